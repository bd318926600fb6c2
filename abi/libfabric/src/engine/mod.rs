//! The engine of an endpoint, on top of the client library. Only the program's memory is raw; there are no C types
//! here.
//!
//! ```text
//!   endpoint ─── an attached domain with one client endpoint: sends, receives, requests, progress
//!     dispatcher ─ its matcher: everything that arrives, and everything that is over, passes here
//!       receive, unexpected ── posted receives, and messages that no receive has taken
//!       serve ──────────────── requests of peers: writes, reads, atomic operations
//!       direct ─────────────── direct access to the memory of peers
//!       ops ────────────────── operations under way, by token
//!       events ─────────────── events for completion queues and counters
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
