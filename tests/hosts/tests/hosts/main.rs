//! MX between hosts, as programs see it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod attacks;
mod cleanup;
mod completion;
mod dialects;
mod discovery;
mod examples;
mod faults;
mod local_traffic;
mod loss;
mod privileges;
mod scale;
