//! The work of an endpoint, in terms of the client library. No C appears in this module except the program's memory.
//!
//! ```text
//!   endpoint ─── an attached domain with one client endpoint: sends, receives, requests, progress
//!     dispatcher ─ its matcher: everything that arrives, and everything that is over, passes here
//!       receive, unexpected ── posted receives, and messages that no receive has taken
//!       serve ──────────────── what others ask: writes, reads, atomic operations
//!       direct ─────────────── what can be done in the other one's memory without asking
//!       ops ────────────────── operations under way, by token
//!       events ─────────────── what completion queues and counters report
//!   header ───── the first words of each message
//!   iovecs, regions, arithmetic, name ── memory, registered memory, atomic operations, addresses
//! ```

pub(crate) mod arithmetic;
pub(crate) mod direct;
pub(crate) mod dispatcher;
pub(crate) mod endpoint;
pub(crate) mod events;
pub(crate) mod header;
pub(crate) mod iovecs;
pub(crate) mod name;
pub(crate) mod ops;
pub(crate) mod receive;
pub(crate) mod regions;
pub(crate) mod request;
pub(crate) mod send;
pub(crate) mod serve;
pub(crate) mod unexpected;
