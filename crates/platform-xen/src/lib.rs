//! Xen guests and driver domains: granted pages, event channels, XenStore.
//!
//! ```text
//!   domain A                                                    domain B
//!   offer: pages, each granted to B          map: B's kernel shows A's pages
//!     └ refs ── directory, if they are many ─── Grant ──────────► ┘
//!   listen: a port for B ──────────────────────  Bell ──────────► bind, notify
//!   store: data/isthmus/… ◄─────────────────── watches ─────────► presence
//! ```
//!
//! Everything goes through the kernel's own nodes below `/dev/xen`, by [`Devices`]: no library of Xen's and no module. The same code
//! runs over a host that is made up ([`fake`]), because [`Kernel`] is all it knows.
//!
//! [`Xen`] is the platform toward one other domain. Pages can be granted only when they are allocated, and to one domain, so here an
//! owner knows from the start who memory is for.
//!
//! ```
//! use isthmus_layout::RegionSize;
//! use isthmus_platform::Platform;
//! use isthmus_platform_xen::{Domid, Xen, fake::Host};
//! use isthmus_shm::{Access, Payload, Window};
//!
//! let host = Host::new();
//! let [one, two] = [1, 2].map(|number| Domid::new(number).unwrap());
//! let (ours, theirs) = (Xen::new(host.start(one), one), Xen::new(host.start(two), two));
//! let size = RegionSize(8192);
//! let memory = ours.allocate(size, &two, Access::ReadWrite).unwrap();
//! let own = Window::new(ours.map_own(&memory).unwrap());
//! let grant = ours.grant(&memory, &two, Access::ReadWrite).unwrap();
//! let window = Window::new(theirs.map(grant, size, Access::ReadWrite).unwrap());
//! own.copy_in(5000, b"hello");
//! let mut bytes = [0; 5];
//! window.copy_out(5000, &mut bytes);
//! assert_eq!(&bytes, b"hello");
//! ```

mod addresses;
pub mod admission;
mod devices;
pub mod directory;
pub mod fake;
mod grant;
mod ids;
pub mod kernel;
mod offer;
mod platform;
pub mod presence;
mod shared;
#[cfg(test)]
mod spec;
pub mod store;

pub use devices::{DevicePages, DevicePort, DeviceWire, Devices};
pub use grant::{Grant, GrantFault, INLINE_MAX, Names};
pub use ids::{Domid, EvtchnPort, GrantRef};
pub use kernel::{Farewell, Kernel, Pages, Port};
pub use offer::{Offer, OfferFault};
pub use platform::{Bell, Xen, XenListener, XenMemory, XenRinger};
pub use shared::{SharedHead, SharedLot};
pub use store::{Event, Store, StoreError};
