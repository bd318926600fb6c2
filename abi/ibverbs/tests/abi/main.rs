//! The library as it is shipped: what it exports, and what it needs.
#![allow(clippy::unwrap_used, reason = "tests")]
