//! RDMA programs on the plug-in of libibverbs.
#![allow(clippy::unwrap_used, reason = "tests")]

mod connections;
mod containers;
mod device;
mod hostile;
mod kills;
mod mpi;
mod owners;
mod perftest;
mod pingpongs;
mod pyverbs;
mod requests;
mod restarts;
mod revoke;
mod ucx;
mod why;
