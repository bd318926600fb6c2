//! What the daemon holds for an attached domain, beside what the directory knows.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use isthmus_layout::board::{self, Place};
use isthmus_layout::control::{BoardIndex, Name, Version};
use isthmus_layout::reason::Reason;
use isthmus_platform::{Doorbell, PlatformError, local};
use isthmus_service::{BoardNumber, DomainCounters, WorkerIndex};

use super::{Refusal, SessionId};

/// A board of a domain, as it is handed to peers: its memory, and what rings for it.
#[derive(Clone, Debug)]
pub struct BoardFds {
    /// The memory.
    pub memory: Arc<OwnedFd>,
    /// What peers ring.
    pub ringer: Arc<OwnedFd>,
}

/// A new board: what peers get, and what the domain listens to.
pub(super) struct NewBoard {
    pub(super) peers: BoardFds,
    pub(super) listener: Arc<OwnedFd>,
}

impl NewBoard {
    /// For peers of the domain's own owner or of another one, if there is room for it.
    pub(super) fn new(own: bool, room: bool) -> Result<Self, Refusal> {
        match (room, own) {
            (false, _) => Err(Reason::DaemonOutOfFds.into()),
            (_, true) => Self::own(),
            (_, false) => Self::across(),
        }
    }

    /// For peers of the domain's own owner: all hold the same event descriptor.
    pub(super) fn own() -> Result<Self, Refusal> {
        let bell = Arc::new(descriptor(&Doorbell::new()?)?);
        let memory = Arc::new(local::memory(board::SIZE)?);
        Ok(Self { peers: BoardFds { memory, ringer: Arc::clone(&bell) }, listener: bell })
    }

    /// For peers of another owner: they hold an end of a socket, the domain holds the other one.
    fn across() -> Result<Self, Refusal> {
        let (listener, ringer) = Doorbell::across()?;
        let memory = Arc::new(local::memory(board::SIZE)?);
        let ringer = Arc::new(descriptor(&ringer)?);
        Ok(Self { peers: BoardFds { memory, ringer }, listener: Arc::new(descriptor(&listener)?) })
    }
}

pub(super) fn descriptor(bell: &Doorbell) -> Result<OwnedFd, PlatformError> {
    bell.as_fd().try_clone_to_owned().map_err(|error| PlatformError::Refused {
        operation: "copying a doorbell",
        source: rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::MFILE),
    })
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
    /// Its connection once more.
    pub nudge: Doorbell,
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
