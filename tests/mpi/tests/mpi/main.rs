//! The provider under the programs it is for; see the library's documentation.
#![allow(clippy::unwrap_used, reason = "tests")]

mod benchmarks;
mod build;
mod capabilities;
mod cases;
mod fabric;
mod hosts;
mod lifecycle;
mod mpis;
mod run;
