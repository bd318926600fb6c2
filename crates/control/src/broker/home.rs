//! What the daemon holds for an attached domain, beside what the directory knows.

use std::collections::BTreeMap;
use std::sync::Arc;

use isthmus_layout::board::{self, Place};
use isthmus_layout::channel::SlabSize;
use isthmus_layout::control::{BoardIndex, EventChannels, Name, Version};
use isthmus_layout::ids::DomainId;
use isthmus_layout::reason::Reason;
use isthmus_platform::Doorbell;
use isthmus_service::{BoardNumber, DomainCounters, WorkerIndex};

use super::{Refusal, SessionId};
use crate::ground::{CommonWindow, Ground, Item, descriptor};

/// A board of a domain, as it is handed to peers: its memory, and what rings for it.
#[derive(Clone, Debug)]
pub struct BoardFds {
    /// The memory.
    pub memory: Item,
    /// What peers ring.
    pub ringer: Item,
    /// What those ring instead that know lines.
    pub line: Option<Item>,
}

impl BoardFds {
    /// What a peer rings with which this version is spoken.
    pub(super) fn ringer_for(&self, version: Version) -> Item {
        self.line.as_ref().filter(|_| knows_lines(version)).unwrap_or(&self.ringer).clone()
    }
}

/// Whether a library knows what to do with an end of an event channel.
fn knows_lines(version: Version) -> bool {
    version.minor >= EventChannels::SINCE
}

/// A new board: what peers get, and what the domain listens to.
pub(super) struct NewBoard {
    pub(super) peers: BoardFds,
    pub(super) listener: Item,
}

impl NewBoard {
    /// For peers of the domain's own owner or of another one, if there is room for it.
    pub(super) fn new(own: bool, room: bool, ground: &Ground, domain: DomainId) -> Result<Self, Refusal> {
        match (room, own) {
            (false, _) => Err(Reason::DaemonOutOfFds.into()),
            (_, true) => Self::own(ground, domain),
            (_, false) => Self::across(ground),
        }
    }

    /// For peers of the domain's own owner: all ring the same bell.
    pub(super) fn own(ground: &Ground, domain: DomainId) -> Result<Self, Refusal> {
        let (listener, ringer) = ground.domain_bell(domain)?;
        let memory = ground.memory(board::SIZE)?;
        Ok(Self { peers: BoardFds { memory, ringer, line: None }, listener })
    }

    /// For peers in another guest, in the window that both guests have in common.
    pub(super) fn common(
        window: &Arc<CommonWindow>,
        ground: &Ground,
        domain: DomainId,
        version: Version,
    ) -> Result<Self, Refusal> {
        let (listener, ringer) = window.bell(domain, ground.number())?;
        let memory = window.memory(board::SIZE)?;
        // The listener's own bell is heard by it as well.
        let line = window.line(&memory).filter(|_| knows_lines(version));
        let listener = line.clone().unwrap_or(listener);
        Ok(Self { peers: BoardFds { memory, ringer, line }, listener })
    }

    /// For peers of another owner: they hold an end of a socket, the domain holds the other one. All domains of a guest have one owner.
    fn across(ground: &Ground) -> Result<Self, Refusal> {
        let (listener, ringer) = Doorbell::across()?;
        let memory = ground.memory(board::SIZE)?;
        let ringer = descriptor(&ringer)?.into();
        Ok(Self { peers: BoardFds { memory, ringer, line: None }, listener: descriptor(&listener)?.into() })
    }
}

/// An attached domain's things.
#[derive(Debug)]
pub struct Home {
    /// Its connection.
    pub session: SessionId,
    /// Its process.
    pub pid: Option<i32>,
    /// What its library calls itself.
    pub library: Name,
    /// The version spoken with it.
    pub version: Version,
    /// When it attached.
    pub since: u64,
    /// Who serves it.
    pub worker: WorkerIndex,
    /// The worker's board for its owner.
    pub daemon_board: BoardNumber,
    /// Its place there.
    pub daemon_place: Place,
    /// What the worker counts.
    pub counters: Arc<DomainCounters>,
    /// Its boards, but for those that can be offered to nobody.
    pub boards: BTreeMap<BoardIndex, BoardFds>,
    /// Where it is.
    pub ground: Ground,
    /// What its worker wakes it by: its connection, or its guest's device.
    pub nudge: Doorbell,
    /// Bytes of each slab of its ring.
    pub ring_slab: SlabSize,
}

impl Home {
    /// True if the connection is broken already, though nobody has read that yet.
    pub(super) fn hung_up(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(&self.nudge, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).is_ok()
            && fds[0].revents().intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR)
    }
}
