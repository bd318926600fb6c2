//! Guests of QEMU: a window of a device that guest and host both see, and doorbells.
//!
//! ```text
//!  host                                                  guest
//!   IvshmemServer ── socket ── QEMU: ivshmem-doorbell     Device ── /dev/isthmusN ── the driver (kmod/)
//!     └ Guest: window, outward, inward                      └ pieces, ringers, listeners: descriptors
//! ```
//!
//! One [`IvshmemServer`] serves one guest, and its [`Guest`] is the host's half; the guest's daemon has a [`Device`], or, without the driver, a
//! [`BareDevice`] that it has to look at again and again. What lies in the window is not known here.

mod bare;
mod device;
pub mod driver;
mod server;
mod shape;

pub use bare::BareDevice;
pub use device::{Device, DeviceError, Info, MemoryType};
pub use server::{ConnectError, Departure, Event, GUEST, Guest, HOST, IvshmemServer, ServerError};
pub use shape::{Shape, ShapeError, VECTORS_MAX, VECTORS_MIN};
