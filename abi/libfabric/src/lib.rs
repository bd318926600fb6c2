//! `libisthmus-fi.so`: a provider for libfabric, so that MPIs and whatever else is built on it run on Isthmus.
//!
//! ```text
//!   MPI ──► libfabric ──► fi_prov_ini ─► provider, getinfo
//!                └──────► tables of functions: fabric, domain, endpoint (message, remote, atomic), av, cq, cntr, mr, eq
//!                                                            │ under the lock of the domain (shared)
//!                                                            ▼
//!                                             engine: Endpoint ──► isthmus_client::Domain ──► channel, daemon
//! ```
//!
//! An endpoint is `FI_EP_RDM` and a domain of the client library with one client endpoint in it, which has an MX endpoint number, so that
//! endpoints on other hosts are found by it. What goes over the channel is described in `engine::header`; there is no second
//! protocol below.
//!
//! This crate has no thread and no signal handler; everything happens inside calls. It does not link libfabric: what is shared are
//! the structures of its headers (module `abi`).
//!
//! The library is linked by `cargo xtask link-abi isthmus-libfabric --map abi/libfabric/libisthmus-fi.map --out libisthmus-fi.so`.

mod abi;
mod address;
mod atomic;
mod caps;
mod cntr;
mod cq;
mod domain;
mod endpoint;
mod engine;
mod eq;
mod errno;
mod fabric;
mod getinfo;
mod memory;
mod message;
mod provider;
mod remote;
mod shared;
mod stubs;
mod wait_object;

pub use provider::fi_prov_ini;
