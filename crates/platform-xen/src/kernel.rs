//! The services of a domain's kernel to a program under Xen: grants, event channels, the connection to XenStore.
//!
//! There are two implementations: the device nodes of Linux ([`crate::Devices`]), and a whole host in this process for tests
//! ([`crate::fake`]). All other code of this crate uses only these traits.

use crate::store::StoreTransport;
use crate::{Domid, EvtchnPort, GrantRef};
use isthmus_shm::{Access, Mapping};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::time::Duration;

/// The size of a granted page in bytes.
pub const PAGE_BYTES: u64 = 4096;

/// The action of the kernel when a mapping ends for any reason: it clears one byte and raises an event. The kernel is that of the domain
/// that maps. If Xen destroys this domain, no notification is sent.
#[derive(Clone, Copy, Debug)]
pub struct UnmapNotify<'a, P> {
    /// The offset of the byte in the pages. Pages granted read-only cannot have one.
    pub byte_at: u64,
    /// This domain's end of an event channel to the other domain.
    pub port: &'a P,
}

/// The kernel of a domain under Xen.
pub trait Kernel {
    /// Granted pages of this domain.
    type Pages: Pages<Port = Self::Port>;
    /// An end of an event channel.
    type Port: Port;
    /// A connection to XenStore.
    type StoreTransport: StoreTransport;

    /// Allocates zeroed pages and grants each to `to` and to no other domain. The domain cannot be changed later.
    fn offer(&self, to: Domid, pages: u32, access: Access) -> Result<Self::Pages, Errno>;

    /// Maps pages that `from` granted to this domain, in this order. Maps all of them or none.
    fn map(
        &self,
        from: Domid,
        refs: &[GrantRef],
        access: Access,
        unmap_notify: Option<UnmapNotify<'_, Self::Port>>,
    ) -> Result<Mapping, Errno>;

    /// Returns a descriptor for pages that `from` granted to this domain. Its holder maps them once: at offset 0, completely, `refs` in
    /// this order, at most 4096. Nothing is checked before that.
    fn lend_fd(&self, from: Domid, refs: &[GrantRef]) -> Result<OwnedFd, Errno>;

    /// Allocates an end to which only `peer` can bind.
    fn listen(&self, peer: Domid) -> Result<Self::Port, Errno>;

    /// Binds a new end to an end of `peer`.
    fn bind(&self, peer: Domid, port: EvtchnPort) -> Result<Self::Port, Errno>;

    /// Opens a connection to XenStore.
    fn store(&self) -> Result<Self::StoreTransport, Errno>;

    /// Keeps an end open permanently. For an end from before this domain was saved and restored: its channel no longer exists,
    /// and closing it can crash a kernel.
    fn leak_port(&self, port: OwnedFd);
}

/// Granted pages of this domain. The pages and their grants exist until the last mapping ends. A holder of the descriptor maps these pages,
/// at offset 0, and no others.
pub trait Pages: AsFd {
    /// An end of an event channel.
    type Port;

    /// Returns the grant references of the pages, in the order of the pages in our mapping. The numbers can be in any order.
    fn refs(&self) -> &[GrantRef];

    /// Maps the pages into this process.
    fn map(&self) -> Result<Mapping, Errno>;

    /// Sets the action when these pages and all mappings of them by this domain are gone.
    fn set_unmap_notify(&self, unmap_notify: UnmapNotify<'_, Self::Port>) -> Result<(), Errno>;
}

/// An end of an event channel. Its descriptor is for polling: it is readable while an event is pending.
pub trait Port: AsFd {
    /// Returns the number by which the other domain binds to this end.
    fn number(&self) -> EvtchnPort;

    /// Raises an event at the other end. Success does not mean that the other end still exists.
    fn notify(&self) -> Result<(), Errno>;

    /// Restricts the descriptor before it is handed on. Its holder can then notify through this end and create further ends, but only to
    /// `peer`.
    fn restrict(&self, peer: Domid) -> Result<(), Errno>;

    /// Waits for an event, at most `limit`; returns true if there was one. Events that arrive together count as one, and binding counts as
    /// one, too. Stores made before an event are visible when this returns. Later events are not lost.
    fn wait(&self, limit: Duration) -> Result<bool, Errno>;
}
