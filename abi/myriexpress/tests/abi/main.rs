//! Tests of the library's exports and headers. Programs in C test its behaviour (tests/mx).
#![allow(clippy::unwrap_used, reason = "tests")]

mod build;
mod headers;
mod layout;
mod symbols;
