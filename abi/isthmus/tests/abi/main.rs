//! The library as C programs see it: header, layout, exported names, and programs that run against a real daemon.
#![allow(clippy::unwrap_used, reason = "tests")]

mod build;
mod header;
mod hello;
mod layout;
mod programs;
mod symbols;
