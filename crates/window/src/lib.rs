//! Shared memory and doorbells for domains: memory files of this host, or extents and vectors of guests' windows.
//!
//! ```text
//!   Allocator::Host ───► memory files, event descriptors       handed over as descriptors
//!   Allocator::Guest ──► GuestWindow: a guest's own window      handed over as references (isthmus_layout::proxy)
//!                        PairWindow: what two guests share      the same
//!                          └ Window: extents, seen by one guest or by two
//!                              └ Backing::File     a memory file that devices show to each guest (KVM)
//!                                Backing::Grants   pages that a guest grants, for each extent anew (Xen)
//! ```
//!
//! Every domain is given a [`Resource`], whatever allocated it. A guest may write anything into its windows at any time. The account of a
//! window is kept outside of it, and no decision depends on the bytes in it.
//!
//! ```
//! use isthmus_layout::RegionSize;
//! use isthmus_window::Allocator;
//!
//! let memory = Allocator::Host.allocate(RegionSize(4096)).unwrap();
//! assert!(memory.file().is_some() && memory.to_ref().is_none());
//! ```
#![forbid(unsafe_code)]

mod allocator;
mod backing;
mod error;
mod extents;
mod file;
mod grant_pool;
mod grants;
mod guest_window;
mod pair_window;
mod resource;
mod window;

pub use allocator::{Allocator, RingMemory};
pub use backing::{Backing, Progress};
pub use error::{UnexpectedReply, WindowError};
pub use file::FileBacking;
pub use grant_pool::SizeClass;
pub use grants::{GrantBacking, MapGrant};
pub use guest_window::{GuestId, GuestWindow, OutgoingFrame};
pub use pair_window::{LoopDoorbell, PairWindow};
pub use resource::{ForeignFile, Resource};
pub use window::{Extent, Window, WindowRef};
