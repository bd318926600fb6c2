//! What an endpoint does, in terms of the client library: no C in here but the program's memory.
//!
//! ```text
//!   endpoint ─── an attached domain with one client endpoint: sends, receives, requests, progress
//!     hub ────── its matcher: everything that arrives, and everything that is over, passes here
//!       receive, held ── posted receives, and messages that nobody has received
//!       serve ────────── what others ask: writes, reads, atomic operations
//!       direct ───────── what can be done in the other one's memory without asking
//!       ops ──────────── operations under way, by token
//!       events ───────── what completion queues and counters are told
//!   head ─────── the first words of each message
//!   pieces, regions, arithmetic, name ── memory, registered memory, atomic operations, addresses
//! ```

pub(crate) mod arithmetic;
pub(crate) mod direct;
pub(crate) mod endpoint;
pub(crate) mod events;
pub(crate) mod head;
pub(crate) mod held;
pub(crate) mod hub;
pub(crate) mod name;
pub(crate) mod ops;
pub(crate) mod pieces;
pub(crate) mod receive;
pub(crate) mod regions;
pub(crate) mod request;
pub(crate) mod send;
pub(crate) mod serve;
