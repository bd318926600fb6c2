//! The library as C programs see it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod build;
mod cases;
mod examples;
mod headers;
mod run;
