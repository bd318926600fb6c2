//! Xen guests and driver domains: granted pages, event channels, XenStore.
//!
//! ```text
//!   domain A                                                    domain B
//!   offer: pages, each granted to B          map: B's kernel shows A's pages
//!     └ refs ── directory, if they are many ─── XenGrant ───────► ┘
//!   listen: a port for B ──────────────────────  DoorbellToken ─► bind, notify
//!   store: data/isthmus/… ◄─────────────────── watches ─────────► presence
//! ```
//!
//! All access goes through the kernel's device nodes below `/dev/xen` ([`Devices`]), without Xen's libraries and without a kernel module of
//! our own. The same code runs over a simulated host ([`fake`]), because it uses only the trait [`Kernel`].
//!
//! [`Xen`] is the platform toward one other domain. Xen grants pages when they are allocated, and to one domain, so the owner has to know
//! the peer of its memory from the start.
//!
//! ```
//! use isthmus_layout::RegionSize;
//! use isthmus_platform::Platform;
//! use isthmus_platform_xen::{Domid, Xen, fake::FakeHost};
//! use isthmus_shm::{Access, Payload, SharedMapping};
//!
//! let host = FakeHost::new();
//! let [one, two] = [1, 2].map(|number| Domid::new(number).unwrap());
//! let (ours, theirs) = (Xen::new(host.start(one), one), Xen::new(host.start(two), two));
//! let size = RegionSize(8192);
//! let memory = ours.allocate(size, &two, Access::ReadWrite).unwrap();
//! let own = SharedMapping::new(ours.map_own(&memory).unwrap());
//! let grant = ours.grant(&memory, &two, Access::ReadWrite).unwrap();
//! let window = SharedMapping::new(theirs.map(grant, size, Access::ReadWrite).unwrap());
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

pub use devices::{DevicePages, DevicePort, DeviceStoreTransport, Devices};
pub use grant::{GrantRefs, INLINE_MAX, XenGrant, XenGrantError};
pub use ids::{Domid, EvtchnPort, GrantRef};
pub use kernel::{Kernel, Pages, Port, UnmapNotify};
pub use offer::{Offer, OfferError};
pub use platform::{DoorbellToken, Xen, XenListener, XenMemory, XenRinger};
pub use shared::{SharedBatch, SharedHead};
pub use store::{Store, StoreError, StoreEvent};
