//! MX between hosts, as programs see it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod attacks;
mod breaks;
mod dialects;
mod discovery;
mod examples;
mod home;
mod leaving;
mod loss;
mod many;
mod rights;
