//! What goes into the broker and what comes out of it.

use std::os::fd::OwnedFd;

use isthmus_layout::channel::SlabSize;
use isthmus_layout::control::{Name, RequestSerial, VersionRange};
use isthmus_shm::SharedMapping;

use crate::allocator::{Allocator, Resource};
use crate::capture::CaptureTask;

/// Names a connection. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ControlSessionId(pub u64);

/// Who is at the other end of a connection, as the kernel says.
#[derive(Debug)]
pub struct SocketPeer {
    /// Its user, in the daemon's user namespace.
    pub uid: u32,
    /// Its process, if that can be seen from here.
    pub pid: Option<i32>,
    /// What its program is called.
    pub program: Name,
    /// The connection once more: a worker wakes a domain of this host by it.
    pub socket: OwnedFd,
    /// Where the program is.
    pub allocator: Allocator,
}

/// What a daemon is told when it starts.
#[derive(Debug)]
pub struct Settings {
    /// Versions it speaks.
    pub versions: VersionRange,
    /// What it calls itself.
    pub name: Name,
    /// The user it runs as.
    pub uid: u32,
    /// A uid that the kernel shows in place of users who have none here: it could be several of them.
    pub overflow_uid: Option<u32>,
    /// Bytes of each slab of a channel.
    pub slab: SlabSize,
    /// The same of a domain's ring.
    pub ring_slab: SlabSize,
    /// Different for each start.
    pub epoch: u64,
    /// File descriptors that the process may have.
    pub fds_max: usize,
    /// Connections at once.
    pub sessions_max: usize,
    /// Connections of one user.
    pub sessions_per_owner_max: usize,
    /// Nanoseconds that a listener has to answer an offer.
    pub offer_timeout: u64,
    /// What only reports need.
    pub report_facts: ReportFacts,
}

/// What only reports need.
#[derive(Debug, Default)]
pub struct ReportFacts {
    /// The daemon's socket.
    pub socket: String,
    /// How workers wait.
    pub wait: String,
    /// The configuration in force, each key with its value and origin.
    pub config: serde_json::Value,
}

/// What is to be sent.
#[derive(Debug)]
pub enum Outgoing {
    /// A message.
    Packet {
        /// To whom.
        to: ControlSessionId,
        /// Its bytes.
        packet: Vec<u8>,
        /// What goes with it.
        resources: Vec<Resource>,
    },
    /// A report, in as many messages as it takes, as fast as they are read.
    Report {
        /// To whom.
        to: ControlSessionId,
        /// The request.
        serial: Option<RequestSerial>,
        /// What it says.
        json: Vec<u8>,
    },
    /// The connection is a domain with this ready map now: what is sent from now on sets a bit in it.
    ReadyMap {
        /// Which connection.
        to: ControlSessionId,
        /// The domain's ready map.
        ready_map: SharedMapping,
        /// Its process, to be watched: a child that inherited the connection does not keep the domain alive.
        pid: Option<i32>,
    },
    /// Frames for the program that asked for them by this connection, whatever becomes of the connection. Its end is told by
    /// [`Broker::capture_ended`](super::Broker::capture_ended).
    Capture {
        /// The connection.
        to: ControlSessionId,
        /// The frames and where they go.
        capturing: Box<CaptureTask>,
    },
    /// The connection is over when all that was sent before has gone out.
    End {
        /// Which.
        to: ControlSessionId,
    },
}
