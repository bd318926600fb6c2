//! Guests of QEMU: doorbells, and a window in a device, visible to guest and host.
//!
//! ```text
//!  host                                                  guest
//!   IvshmemServer ── socket ── QEMU: ivshmem-doorbell     Device ── /dev/isthmusN ── the driver (kmod/)
//!     └ ServerGuest: window, to_guest, from_guest           └ extents, doorbell senders, listeners: descriptors
//! ```
//!
//! One [`IvshmemServer`] serves one guest, and its [`ServerGuest`] is the host's side. The guest daemon has a [`Device`]. This crate
//! does not interpret the window's contents. [`Kvm`] is the platform over either side.
//!
//! ```
//! use isthmus_layout::RegionSize;
//! use isthmus_platform_kvm::{ServerEvent, IvshmemServer, DeviceLayout};
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("guest1");
//! let layout = DeviceLayout::new(RegionSize(16 << 20), 4, 16)?;
//! let mut server = IvshmemServer::listen(&path, None, layout)?;
//! # let qemu = std::os::unix::net::UnixStream::connect(&path)?;
//! // Once the server's descriptor is readable:
//! while let Some(event) = server.poll() {
//!     match event {
//!         ServerEvent::Connected(guest) => assert_eq!((guest.size, guest.from_guest.len()), (layout.window(), 4)),
//!         ServerEvent::Disconnected { reason, .. } => println!("{reason}"),
//!         ServerEvent::Failed { error, .. } => println!("{error}"),
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod device;
mod device_layout;
pub mod driver;
mod kvm;
mod pair;
pub mod pci;
pub mod port;
mod server;
mod steering;
mod unsent;

pub use device::{Device, DeviceError, DeviceInfo, LoopDevice, LoopSetup, MemoryType, hangs_up};
pub use device_layout::{DeviceLayout, DeviceLayoutError, VECTORS_MAX, VECTORS_MIN};
pub use kvm::{DeviceSide, GuestSide, Kvm, KvmListener, KvmMemory, Side, Vector, WindowRange};
pub use pair::PairDevice;
pub use server::{
    AcceptError, CloseReason, GUEST, HOST, IvshmemServer, ResumeError, ServerError, ServerEvent, ServerGuest,
};
pub use steering::{Route, Steering};
