//! RDMA programs on the plug-in of libibverbs.
#![allow(clippy::unwrap_used, reason = "tests")]

mod containers;
mod device;
mod kills;
mod mpi;
mod perftest;
mod pingpongs;
mod pyverbs;
mod requests;
mod revoke;
mod ucx;
