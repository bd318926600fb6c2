//! The border between a guest and its host: connections of the guest's programs to the host's control plane, over the crossing.
//!
//! ```text
//!   program ── socket ── guest's daemon ══ crossing ══ host's daemon ── socket pair ── session, broker
//!                        (guest)           (Talk)      (host)
//! ```
//!
//! Both daemons do the same: a task for each connection and way, and one that takes frames. Neither lets the other one fill its memory:
//! the guest's daemon sends no more messages of a connection than [`UNTAKEN_MAX`](isthmus_layout::border::UNTAKEN_MAX) beyond those that were taken; the host's
//! queues what it has to say at its sessions, which are bounded.
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

use isthmus_channel::crossing::{Crossing, Frame};
use isthmus_layout::border::{BEAT_MS, GUEST_BEAT_WORD, HOST_BEAT_WORD, Handed, Packet};
use isthmus_layout::channel::Direction;
use isthmus_layout::control::{Refused, Text, ToClient, serial_of};
use isthmus_layout::reason::Reason;
use isthmus_platform::seqpacket::{self, SendError};
use isthmus_shm::{Window, Words as _};
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use crate::watched::watched_both;

/// Frames that are taken before others have their turn.
const TURN_FRAMES: usize = 64;

/// How often either daemon says that it is there.
const BEAT: Duration = Duration::from_millis(BEAT_MS as u64);

/// True of what comes and goes while a domain is there.
fn is_of_region(handed: &Handed) -> bool {
    matches!(handed, Handed::Home { .. } | Handed::View { .. })
}

/// What a program is told in place of a message whose region is not there: whoever asked for it is refused, whoever was to read it
/// hears nothing.
fn region_refused(packet: &Packet<'_>, reason: Reason) -> Option<Vec<u8>> {
    let asked = packet.handed.iter().any(|handed| matches!(handed, Handed::Home { .. }));
    let refused = Refused { reason, text: Text::clip("the region is not there") };
    asked.then(|| ToClient::from(refused).emit(serial_of(packet.message)))
}

/// The beats of both daemons, as one of them has it.
struct Pulse {
    head: Window,
    ours: u32,
    theirs: u32,
    /// What stood in the other's word when we looked last.
    seen: u32,
    /// Whether the other one was found to be silent.
    silent: bool,
}

impl Pulse {
    fn of_host(head: Window) -> Self {
        Self { head, ours: HOST_BEAT_WORD, theirs: GUEST_BEAT_WORD, seen: 0, silent: false }
    }

    fn of_guest(head: Window) -> Self {
        Self { head, ours: GUEST_BEAT_WORD, theirs: HOST_BEAT_WORD, seen: 0, silent: false }
    }

    /// Beats. True if the other one has since we did last.
    fn beat(&mut self) -> bool {
        let own = self.head.load(self.ours, Ordering::Relaxed);
        self.head.store(self.ours, own.wrapping_add(1).max(1), Ordering::Relaxed);
        let before = std::mem::replace(&mut self.seen, self.head.load(self.theirs, Ordering::Relaxed));
        self.seen != 0 && self.seen != before
    }

    /// True if that is news.
    fn found(&mut self, silent: bool) -> bool {
        std::mem::replace(&mut self.silent, silent) != silent
    }
}

/// One conversation over a crossing. It lives on one thread.
struct Talk {
    crossing: RefCell<Crossing<Window>>,
    /// The other side has rung: it may have taken frames.
    rung: Notify,
    over: Cell<bool>,
}

/// A conversation has ended.
#[derive(Debug)]
struct Over;

impl Talk {
    fn new(crossing: Window, sends: Direction) -> Self {
        Self { crossing: RefCell::new(Crossing::new(crossing, sends)), rung: Notify::new(), over: Cell::new(false) }
    }

    /// Nothing more is sent or taken, and whoever waits is told.
    fn end(&self) {
        self.over.set(true);
        self.rung.notify_waiters();
    }

    /// Sends a frame if there is room.
    fn send(&self, frame: Frame, content: &[u8]) -> Result<bool, Over> {
        if self.over.get() {
            return Err(Over);
        }
        self.crossing.borrow_mut().send(frame, content).map_err(|fault| {
            tracing::warn!("the crossing cannot be used any more: {fault}");
            self.end();
            Over
        })
    }

    /// Waits until there may be room.
    async fn room(&self) {
        if !self.over.get() {
            self.rung.notified().await;
        }
    }

    /// The other side has rung, or time has passed: takes frames, a turn's at most. How many, or what was wrong with one.
    fn take(&self, mut heard: impl FnMut(Frame, &[u8]) -> Result<(), String>) -> Result<usize, String> {
        self.rung.notify_waiters();
        let mut content = Vec::new();
        for taken in 0..TURN_FRAMES {
            if self.over.get() {
                return Ok(taken);
            }
            let frame = self.crossing.borrow_mut().receive(&mut content).map_err(|fault| fault.to_string())?;
            let Some(frame) = frame else { return Ok(taken) };
            heard(frame, &content)?;
        }
        Ok(TURN_FRAMES)
    }
}

/// A socket on which packets are sent and received.
pub(crate) struct Line(AsyncFd<OwnedFd>);

impl Line {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        watched_both(socket).map(Self)
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
