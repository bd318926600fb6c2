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

#[expect(dead_code, reason = "for the operations of an open device")]
mod abi;
#[cfg_attr(not(test), expect(dead_code, reason = "for the operations of an open device"))]
mod attributes;
#[cfg_attr(not(test), expect(dead_code, unused_imports, reason = "for the operations of an open device"))]
mod convert;
#[cfg_attr(not(test), expect(dead_code, reason = "for the operations of an open device"))]
mod libibverbs;
mod provider;

pub use provider::isthmus_rdma_version;
