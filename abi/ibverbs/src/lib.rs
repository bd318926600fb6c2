//! `libisthmus-rdmav34.so`: a provider for the libibverbs of the system (private ABI 34), so that RDMA programs run on Isthmus.
//!
//! ```text
//!   program ──► libibverbs ──► provider (device found, context opened)
//!      │                          │
//!      └──► table of operations ──┴─► convert ──► isthmus_verbs::Engine ──► isthmus_client::Domain ──► channel, daemon
//! ```
//!
//! The library has no link-time dependency on libibverbs: module `libibverbs` looks its private functions up when the library is loaded.
//! What both sides share in memory are the structures of its headers (module `abi`).
//!
//! The library is linked by `cargo xtask link-abi isthmus-ibverbs --map abi/ibverbs/libisthmus-rdmav34.map --out libisthmus-rdmav34.so`.

mod abi;
mod adapter;
mod attributes;
mod channels;
mod cm;
mod convert;
mod device;
mod events;
mod exposures;
mod extended;
mod handover;
mod libibverbs;
mod memory;
mod port;
mod provider;
mod queue_pairs;
mod queues;
mod regions;
mod serving;
mod sleeping;
mod table;

pub use provider::isthmus_rdma_version;
