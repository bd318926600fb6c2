//! RDMA programs on the plug-in of libibverbs.
#![allow(clippy::unwrap_used, reason = "tests")]

mod device;
mod perftest;
mod pingpongs;
mod requests;
