//! Hostile clients against a live daemon, with an honest pair beside them whose traffic must go on with the right contents.
//!
//! ```text
//!   siege ─────── a daemon, an honest pair that never stops, and what must be as before when the hostile ones are gone
//!   control ───── noise, floods, requests out of place
//!   descriptors ─ of the wrong kind, of memory that could shrink, that take for ever to close
//!   memory ────── garbage in rings, channels and boards; doorbells that block
//! ```
//!
//! What the hostile program does stands in `src/bin/hostile`. Chance is seeded: `ISTHMUS_SEED`, printed when a test fails.

mod control;
mod descriptors;
mod memory;
mod siege;
