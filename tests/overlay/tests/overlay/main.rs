//! Overlay networks, as containers see them.
#![allow(clippy::unwrap_used, reason = "tests")]

mod bridge;
mod control;
mod ends;
mod explain;
mod groups;
mod services;
mod survival;
mod traffic;
mod vnetp;
mod vxlan;
