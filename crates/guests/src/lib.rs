//! Guests: how their programs reach the host's control plane, and how their windows appear and disappear.
//!
//! ```text
//!   proxy ──── connections of guests' programs, over the proxy ring of a window: the host's side, and a guest's own daemon
//!   relay ──── requests that the host cannot take as they are
//!   kvm ────── QEMU's side: devices; windows that are plugged into two guests; what of guests outlives this daemon
//!   xen ────── both sides of a window that a guest of Xen grants, and of a pair window of two such guests
//!   pairs ──── the life of a pair window
//! ```
//!
//! The control plane knows guests by their windows (`isthmus-window`). It does not know this crate.
#![forbid(unsafe_code)]

pub mod kvm;
mod pairs;
pub mod proxy;
mod relay;
pub mod xen;
