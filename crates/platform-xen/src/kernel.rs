//! What a domain's kernel does for a program under Xen: grants, event channels, the way to XenStore.
//!
//! There are two: the device nodes of Linux ([`crate::Devices`]), and a whole host in this process for tests ([`crate::fake`]).
//! Everything above knows only what stands here.

use crate::store::StoreTransport;
use crate::{Domid, EvtchnPort, GrantRef};
use isthmus_shm::{Access, Mapping};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::time::Duration;

/// Bytes of a page, as grants count them.
pub const PAGE_BYTES: u64 = 4096;

/// What the kernel does when a mapping ends, however it ends: it clears one byte and rings. Of the domain whose mapping it is: when
/// Xen destroys that, there is no kernel left to do it.
#[derive(Clone, Copy, Debug)]
pub struct UnmapNotify<'a, P> {
    /// Which byte of the pages. Never of those granted read-only.
    pub byte_at: u64,
    /// An end of ours of a channel to the other domain.
    pub port: &'a P,
}

/// A kernel under Xen.
pub trait Kernel {
    /// Pages of ours, granted.
    type Pages: Pages<Port = Self::Port>;
    /// An end of an event channel.
    type Port: Port;
    /// A connection to XenStore.
    type StoreTransport: StoreTransport;

    /// So many zeroed pages of our own, each granted to `to` and to nobody else, for good: who it is for cannot be changed.
    fn offer(&self, to: Domid, pages: u32, access: Access) -> Result<Self::Pages, Errno>;

    /// Maps pages that `from` granted us, in this order. All of them, or none.
    fn map(
        &self,
        from: Domid,
        refs: &[GrantRef],
        access: Access,
        unmap_notify: Option<UnmapNotify<'_, Self::Port>>,
    ) -> Result<Mapping, Errno>;

    /// Pages that `from` granted us, to be mapped once by whoever gets the descriptor: at offset 0, in full, `refs` in this order, 4096
    /// at most. Nothing is checked before that.
    fn lend_fd(&self, from: Domid, refs: &[GrantRef]) -> Result<OwnedFd, Errno>;

    /// An end that `peer`, and nobody else, can bind to.
    fn listen(&self, peer: Domid) -> Result<Self::Port, Errno>;

    /// An end bound to one of `peer`'s.
    fn bind(&self, peer: Domid, port: EvtchnPort) -> Result<Self::Port, Errno>;

    /// A connection to XenStore.
    fn store(&self) -> Result<Self::StoreTransport, Errno>;

    /// Holds an end for good that was made before this domain was saved and restored: its channel is gone, and a kernel may not survive
    /// that it is closed.
    fn leak_port(&self, port: OwnedFd);
}

/// Pages of ours, granted. While they are mapped somewhere the grants stay, and so do the pages; then both go. Whoever gets the descriptor
/// maps them, at offset 0, and no other pages.
pub trait Pages: AsFd {
    /// An end of an event channel.
    type Port;

    /// What the other domain names them by, in the order in which they lie in our mapping. That may be any order of numbers.
    fn refs(&self) -> &[GrantRef];

    /// A mapping of ours.
    fn map(&self) -> Result<Mapping, Errno>;

    /// What happens when these pages and all mappings of ours are gone.
    fn set_unmap_notify(&self, unmap_notify: UnmapNotify<'_, Self::Port>) -> Result<(), Errno>;
}

/// An end of an event channel. Its descriptor is to poll: readable when there is an event to wait for.
pub trait Port: AsFd {
    /// Its number, by which the other domain binds to it.
    fn number(&self) -> EvtchnPort;

    /// Raises an event at the other end. That this succeeds says nothing about whether there still is one.
    fn notify(&self) -> Result<(), Errno>;

    /// Before the descriptor is handed on: whoever gets it can ring this end, and make further ones, but to `peer` alone.
    fn restrict(&self, peer: Domid) -> Result<(), Errno>;

    /// Waits for an event, `limit` at most; true if there was one. Events that came together are one, and binding is one, too. What was
    /// written before an event is there when this has returned; events that come later are not lost.
    fn wait(&self, limit: Duration) -> Result<bool, Errno>;
}
