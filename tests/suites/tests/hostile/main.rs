//! Hostile clients against a live daemon. An honest pair runs beside them, and its traffic must go on with the right contents.
//!
//! ```text
//!   attack_bed ── a daemon, an honest pair that never stops, and what must be as before when the hostile ones are gone
//!   control ───── noise, floods, requests out of place
//!   descriptors ─ of the wrong kind, of memory that could shrink, that take for ever to close
//!   load ──────── what one user's many connections take, and how long another user's attach takes meanwhile
//!   memory ────── garbage in rings, channels and ready maps; doorbells that block
//! ```
//!
//! The attacks themselves are in `src/bin/hostile`. Chance is seeded: `ISTHMUS_SEED`, printed when a test fails.

mod attack_bed;
mod control;
mod descriptors;
mod load;
mod memory;
