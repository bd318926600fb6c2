//! The control proxy between a guest and its host: connections of the guest's programs to the host's control plane, over the proxy ring.
//!
//! ```text
//!   program ── socket ── guest's daemon ══ proxy ring ══ host's daemon ── socket pair ── session, broker
//!                        (guest)        (ProxySession)   (host)
//! ```
//!
//! Both daemons do the same: a task for each connection and way, and one that takes frames. Neither lets the other one fill its memory:
//! the guest's daemon sends no more messages of a connection than [`UNACKED_MAX`](isthmus_layout::proxy::UNACKED_MAX) beyond those that were
//! acknowledged; the host's queues what it has to send at its sessions, which are bounded.
//!
//! A guest's daemon is no authority for the host, nor for what other guests see of it: it may say anything. For its own programs it is.

pub mod guest;
pub(crate) mod host;

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use isthmus_channel::proxy_ring::{ProxyFrame, ProxyRing};
use isthmus_layout::channel::Direction;
use isthmus_layout::control::{Refused, Text, ToClient, serial_of};
use isthmus_layout::proxy::{
    ControlPacket, GUEST_HEARTBEAT_WORD, HEARTBEAT_INTERVAL_MS, HOST_HEARTBEAT_WORD, ResourceRef,
};
use isthmus_layout::reason::Reason;
use isthmus_platform::seqpacket::{self, SendError};
use isthmus_shm::{SharedMapping, Words as _};
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use crate::async_fd::register_both;

/// Frames that are received before other tasks run.
const FRAMES_PER_POLL: usize = 64;

/// How often either daemon says that it is there.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(HEARTBEAT_INTERVAL_MS as u64);

/// True of what comes and goes while a domain is there.
fn is_region_ref(reference: &ResourceRef) -> bool {
    matches!(reference, ResourceRef::PrivateExtent { .. } | ResourceRef::ReadOnlyExtent { .. })
}

/// What a program is told in place of a message whose region is not there: whoever asked for it is refused, whoever was to read it
/// hears nothing.
fn region_refusal(packet: &ControlPacket<'_>, reason: Reason) -> Option<Vec<u8>> {
    let is_owner = packet.resources.iter().any(|reference| matches!(reference, ResourceRef::PrivateExtent { .. }));
    let refused = Refused { reason, text: Text::clip("the region is not there") };
    is_owner.then(|| ToClient::from(refused).emit(serial_of(packet.message)))
}

/// The heartbeats of both daemons, as one of them has it.
struct Heartbeat {
    head: SharedMapping,
    own_word: u32,
    peer_word: u32,
    /// What stood in the other's word when we looked last.
    last_seen: u32,
    /// Whether the other one was found to be silent.
    silent: bool,
}

impl Heartbeat {
    fn of_host(head: SharedMapping) -> Self {
        Self { head, own_word: HOST_HEARTBEAT_WORD, peer_word: GUEST_HEARTBEAT_WORD, last_seen: 0, silent: false }
    }

    fn of_guest(head: SharedMapping) -> Self {
        Self { head, own_word: GUEST_HEARTBEAT_WORD, peer_word: HOST_HEARTBEAT_WORD, last_seen: 0, silent: false }
    }

    /// Beats. True if the other one has since we did last.
    fn beat(&mut self) -> bool {
        let own = self.head.load(self.own_word, Ordering::Relaxed);
        self.head.store(self.own_word, own.wrapping_add(1).max(1), Ordering::Relaxed);
        let before = std::mem::replace(&mut self.last_seen, self.head.load(self.peer_word, Ordering::Relaxed));
        self.last_seen != 0 && self.last_seen != before
    }

    /// True if that is news.
    fn set_silent(&mut self, silent: bool) -> bool {
        std::mem::replace(&mut self.silent, silent) != silent
    }
}

/// One run of the proxy protocol over a proxy ring. It lives on one thread.
struct ProxySession {
    proxy_ring: RefCell<ProxyRing<SharedMapping>>,
    /// The other side has rung: it may have taken frames.
    doorbell_rang: Notify,
    ended: Cell<bool>,
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

    /// Nothing more is sent or taken, and whoever waits is told.
    fn end(&self) {
        self.ended.set(true);
        self.doorbell_rang.notify_waiters();
    }

    /// Sends a frame if there is room.
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

    /// The other side has rung, or time has passed: receives frames, [`FRAMES_PER_POLL`] at most. How many, or what was wrong with one.
    fn receive_frames(
        &self,
        mut handle_frame: impl FnMut(ProxyFrame, &[u8]) -> Result<(), String>,
    ) -> Result<usize, String> {
        self.doorbell_rang.notify_waiters();
        let mut content = Vec::new();
        for taken in 0..FRAMES_PER_POLL {
            if self.ended.get() {
                return Ok(taken);
            }
            let frame = self.proxy_ring.borrow_mut().receive(&mut content).map_err(|fault| fault.to_string())?;
            let Some(frame) = frame else { return Ok(taken) };
            handle_frame(frame, &content)?;
        }
        Ok(FRAMES_PER_POLL)
    }
}

/// A socket on which packets are sent and received.
pub(crate) struct PacketSocket(AsyncFd<OwnedFd>);

impl PacketSocket {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        register_both(socket).map(Self)
    }

    /// The next packet and its descriptors. None at the end, and for what is no packet of ours.
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

    /// Sends a packet when there is room. False if nobody is there any more.
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

    /// Both ways end.
    fn shut_down(&self) {
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }
}
