//! The control proxy between a guest and its host: connections of the guest's programs to the host's control plane, over the proxy ring.
//!
//! ```text
//!   program ── socket ── guest's daemon ══ proxy ring ══ host's daemon ── socket pair ── session, broker
//!                        (guest)        (ProxySession)   (host)
//! ```
//!
//! Both daemons have one task for each connection and direction, and one that receives frames. Both directions are flow-controlled. The guest
//! daemon has at most [`UNACKED_MAX`] unacknowledged messages per connection; the host daemon queues its
//! messages in the session's bounded queue.
//!
//! The host does not trust a guest daemon, and neither do other guests: it may send anything. The guest's own programs have to trust it.

pub mod guest;
pub(crate) mod host;

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use isthmus_channel::proxy_ring::{ProxyFrame, ProxyRing, ProxyRingFault};
use isthmus_layout::channel::Direction;
use isthmus_layout::control::{MalformedControl, Refused, Text, ToClient, serial_of};
use isthmus_layout::proxy::{
    ControlPacket, GUEST_HEARTBEAT_WORD, HEARTBEAT_INTERVAL_MS, HOST_HEARTBEAT_WORD, ProxyFrameKind, ResourceRef,
    UNACKED_MAX,
};
use isthmus_layout::reason::Reason;
use isthmus_platform::seqpacket::{self, SendError};
use isthmus_shm::{SharedMapping, Words as _};
use isthmus_window::UnexpectedReply;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use isthmus_control::async_fd::register_both;

/// The maximum number of frames that are received before other tasks run.
const FRAMES_PER_POLL: usize = 64;

/// The interval at which both daemons send heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(HEARTBEAT_INTERVAL_MS as u64);

/// Returns whether a reference is to a region, which may be created and destroyed while its domain exists.
fn is_region_ref(reference: &ResourceRef) -> bool {
    matches!(reference, ResourceRef::PrivateExtent { .. } | ResourceRef::ReadOnlyExtent { .. })
}

/// Returns the replacement for a message with a region that does not exist: a refusal for the domain that requested the region, nothing for a
/// domain that was to read it.
fn region_refusal(packet: &ControlPacket<'_>, reason: Reason) -> Option<Vec<u8>> {
    let is_owner = packet.resources.iter().any(|reference| matches!(reference, ResourceRef::PrivateExtent { .. }));
    let refused = Refused { reason, text: Text::clip("the region is not there") };
    is_owner.then(|| ToClient::from(refused).emit(serial_of(packet.message)))
}

/// The heartbeats of both daemons, as seen by one of them.
struct Heartbeat {
    head: SharedMapping,
    own_word: u32,
    peer_word: u32,
    /// The value of the peer's word at the last check.
    last_seen: u32,
    /// Whether the peer was found to be silent.
    silent: bool,
}

impl Heartbeat {
    fn of_host(head: SharedMapping) -> Self {
        Self { head, own_word: HOST_HEARTBEAT_WORD, peer_word: GUEST_HEARTBEAT_WORD, last_seen: 0, silent: false }
    }

    fn of_guest(head: SharedMapping) -> Self {
        Self { head, own_word: GUEST_HEARTBEAT_WORD, peer_word: HOST_HEARTBEAT_WORD, last_seen: 0, silent: false }
    }

    /// Sends a heartbeat. Returns true if the peer has sent one since the last call.
    fn beat(&mut self) -> bool {
        let own = self.head.load(self.own_word, Ordering::Relaxed);
        self.head.store(self.own_word, own.wrapping_add(1).max(1), Ordering::Relaxed);
        let before = std::mem::replace(&mut self.last_seen, self.head.load(self.peer_word, Ordering::Relaxed));
        self.last_seen != 0 && self.last_seen != before
    }

    /// Records whether the peer is silent. Returns true if that has changed.
    fn set_silent(&mut self, silent: bool) -> bool {
        std::mem::replace(&mut self.silent, silent) != silent
    }
}

/// One run of the proxy protocol over a proxy ring, used on one thread.
struct ProxySession {
    proxy_ring: RefCell<ProxyRing<SharedMapping>>,
    /// Notified when the peer has rung, because it may have taken frames.
    doorbell_rang: Notify,
    ended: Cell<bool>,
}

/// A frame that breaks the proxy protocol. It ends the session.
#[derive(Debug, thiserror::Error)]
enum ProxyViolation {
    /// The proxy ring is damaged.
    #[error(transparent)]
    Ring(#[from] ProxyRingFault),
    /// The content is not that of such a frame.
    #[error(transparent)]
    Malformed(#[from] MalformedControl),
    /// Only the other side sends such frames.
    #[error("a {sender} does not send {kind:?}")]
    Kind { sender: &'static str, kind: ProxyFrameKind },
    /// A guest answers what it was not asked.
    #[error(transparent)]
    Reply(#[from] UnexpectedReply),
    /// A guest has unmapped an extent that was not revoked, or not yet.
    #[error("the guest reclaims an extent that was not reported to it, or is not next")]
    Reclaimed,
    /// The number of a new connection is in use.
    #[error("connection {0} is open already")]
    ConnectionExists(u32),
    /// A message of a guest's program has no content, or resources.
    #[error("a message without content, or with resources")]
    Message,
    /// More messages than the sender may send without an acknowledgement.
    #[error("connection {0} has more than {UNACKED_MAX} messages under way")]
    Unacknowledged(u32),
    /// More requests than the host may have pending.
    #[error("the host has more than {0} requests pending")]
    Requests(usize),
}

/// A proxy session has ended.
#[derive(Debug)]
struct SessionEnded;

impl ProxySession {
    fn new(proxy_ring: SharedMapping, sends: Direction) -> Self {
        Self {
            proxy_ring: RefCell::new(ProxyRing::new(proxy_ring, sends)),
            doorbell_rang: Notify::new(),
            ended: Cell::new(false),
        }
    }

    /// Ends the session: no frame is sent or received any more, and all waiting tasks are woken.
    fn end(&self) {
        self.ended.set(true);
        self.doorbell_rang.notify_waiters();
    }

    /// Sends a frame if there is room. Returns whether it was sent.
    fn send(&self, frame: ProxyFrame, content: &[u8]) -> Result<bool, SessionEnded> {
        if self.ended.get() {
            return Err(SessionEnded);
        }
        self.proxy_ring.borrow_mut().send(frame, content).map_err(|fault| {
            tracing::warn!("the proxy ring cannot be used any more: {fault}");
            self.end();
            SessionEnded
        })
    }

    /// Waits until there may be room.
    async fn wait_for_room(&self) {
        if !self.ended.get() {
            self.doorbell_rang.notified().await;
        }
    }

    /// Receives up to [`FRAMES_PER_POLL`] frames, after the peer has rung or time has passed. Returns the number of frames, or the violation in one.
    fn receive_frames(
        &self,
        mut handle_frame: impl FnMut(ProxyFrame, &[u8]) -> Result<(), ProxyViolation>,
    ) -> Result<usize, ProxyViolation> {
        self.doorbell_rang.notify_waiters();
        let mut content = Vec::new();
        for taken in 0..FRAMES_PER_POLL {
            if self.ended.get() {
                return Ok(taken);
            }
            let frame = self.proxy_ring.borrow_mut().receive(&mut content)?;
            let Some(frame) = frame else { return Ok(taken) };
            handle_frame(frame, &content)?;
        }
        Ok(FRAMES_PER_POLL)
    }
}

/// A packet socket that is registered with tokio.
pub(crate) struct PacketSocket(AsyncFd<OwnedFd>);

impl PacketSocket {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        register_both(socket).map(Self)
    }

    /// Receives the next packet and its descriptors. Returns `None` at the end of the stream, and for an invalid packet.
    async fn receive(&self, into: &mut [u8], fds: &mut Vec<OwnedFd>) -> Option<usize> {
        loop {
            let mut ready = self.0.readable().await.ok()?;
            match seqpacket::receive(&self.0, into, fds, false) {
                Ok(bytes) => return Some(bytes),
                Err(seqpacket::ReceiveError::Empty) => ready.clear_ready(),
                Err(_) => return None,
            }
        }
    }

    /// Sends a packet, waiting for room. Returns false if the peer has closed the socket.
    pub(crate) async fn send(&self, packet: &[u8], fds: &[Arc<OwnedFd>]) -> bool {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        loop {
            let Ok(mut ready) = self.0.writable().await else { return false };
            match seqpacket::send(&self.0, packet, &fds) {
                Ok(()) => return true,
                Err(SendError::Full) => ready.clear_ready(),
                Err(_) => return false,
            }
        }
    }

    /// Shuts down both directions.
    fn shut_down(&self) {
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }
}
