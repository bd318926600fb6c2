//! `libisthmus-fi.so`, a libfabric provider: MPIs and other programs on libfabric run on Isthmus through it.
//!
//! ```text
//!   MPI ──► libfabric ──► fi_prov_ini ─► provider, getinfo
//!                └──────► tables of functions: fabric, domain, endpoint (message, remote, atomic), av, cq, cntr, mr, eq
//!                                                            │ under the lock of the domain (shared)
//!                                                            ▼
//!                                             engine: Endpoint ──► isthmus_client::Domain ──► channel, daemon
//! ```
//!
//! An endpoint is an `FI_EP_RDM` endpoint. It is a domain of the client library with one client endpoint, which has an MX
//! endpoint number, so that endpoints on other hosts can find it. `engine::header` describes the messages in a channel; there
//! is no second protocol below.
//!
//! This crate has no thread and no signal handler; all work is done inside calls. It does not link libfabric; the module
//! `abi` repeats the structures of its headers.
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
