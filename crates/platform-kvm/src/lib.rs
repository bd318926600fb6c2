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
//! [`Kvm`] is the platform over either half.
//!
//! ```
//! use isthmus_layout::RegionSize;
//! use isthmus_platform_kvm::{Event, IvshmemServer, Shape};
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("guest1");
//! let shape = Shape::new(RegionSize(16 << 20), 4, 16)?;
//! let mut server = IvshmemServer::listen(&path, None, shape)?;
//! # let qemu = std::os::unix::net::UnixStream::connect(&path)?;
//! // Once the server's descriptor is readable:
//! while let Some(event) = server.poll() {
//!     match event {
//!         Event::Connected(guest) => assert_eq!((guest.size, guest.inward.len()), (shape.window(), 4)),
//!         Event::Gone { how, .. } => println!("{how}"),
//!         Event::Failed { why, .. } => println!("{why}"),
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bare;
mod common;
mod device;
pub mod driver;
mod kvm;
pub mod port;
mod server;
mod shape;
mod unread;

pub use bare::BareDevice;
pub use common::CommonDevice;
pub use device::{Device, DeviceError, Info, MemoryType};
pub use kvm::{DeviceHalf, End, Half, Kvm, KvmListener, KvmMemory, Place, Vector};
pub use server::{ConnectError, Departure, Event, GUEST, Guest, HOST, IvshmemServer, ResumeError, ServerError};
pub use shape::{Shape, ShapeError, VECTORS_MAX, VECTORS_MIN};
