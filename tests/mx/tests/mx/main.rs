//! The library as C programs see it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod cases;
mod examples;
mod headers;
mod run;

use isthmus_mx_tests::build;
