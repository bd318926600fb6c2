//! The library as programs of MX see it: what it exports, and what its headers say. How it behaves is tested by programs in C,
//! in tests/mx.
#![allow(clippy::unwrap_used, reason = "tests")]

mod build;
mod headers;
mod layout;
mod symbols;
