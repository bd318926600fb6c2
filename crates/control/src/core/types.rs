//! The inputs and outputs of the control plane.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use isthmus_layout::channel::SlabSize;
use isthmus_layout::control::{Name, Query, RequestSerial, VersionRange};
use isthmus_shm::SharedMapping;

use crate::capture::CaptureTask;
use crate::users::User;
use isthmus_window::{Allocator, Resource};

/// Identifies a connection. A number is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ControlSessionId(pub u64);

/// The program at the other end of a connection, as reported by the kernel.
#[derive(Debug)]
pub struct SocketPeer {
    /// Its user, in the daemon's user namespace.
    pub uid: u32,
    /// Its process, if the daemon can see it.
    pub pid: Option<i32>,
    /// The name of its program.
    pub program: Name,
    /// A copy of the connection's socket, with which a worker wakes a domain of this host.
    pub socket: OwnedFd,
    /// The allocator for the program's location.
    pub allocator: Allocator,
    /// The account of its user.
    pub(crate) account: Rc<User>,
}

impl SocketPeer {
    /// The name of the program's domain, if the program does not choose one.
    pub(crate) fn fallback_name(&self) -> Name {
        let number = self.pid.map_or_else(String::new, |pid| format!("-{pid}"));
        Name::new(&format!("{}{number}", self.program)).unwrap_or_else(|_| self.program.clone())
    }
}

/// The settings that a daemon is given when it starts.
#[derive(Debug)]
pub struct Settings {
    /// The versions that the daemon speaks.
    pub versions: VersionRange,
    /// The daemon's name for itself.
    pub name: Name,
    /// The user that the daemon runs as.
    pub uid: u32,
    /// The UID that the kernel shows in place of users without one in the daemon's user namespace. Several users may share it.
    pub overflow_uid: Option<u32>,
    /// Bytes of each slab of a channel.
    pub slab: SlabSize,
    /// Bytes of each slab of a domain's ring.
    pub ring_slab: SlabSize,
    /// A number that is different for each start.
    pub epoch: u64,
    /// The number of file descriptors that the process may have.
    pub fds_max: usize,
    /// The number of connections at once, without the places that are kept for users without a connection.
    pub sessions_max: usize,
    /// The number of connections of one user.
    pub sessions_per_owner_max: usize,
    /// Nanoseconds that a listener has to reply to an offer.
    pub offer_timeout: u64,
    /// Facts that only reports need.
    pub report_facts: ReportFacts,
}

/// Facts that only reports need.
#[derive(Debug, Default)]
pub struct ReportFacts {
    /// The daemon's socket.
    pub socket: String,
    /// The mode in which workers wait.
    pub wait: String,
    /// The configuration in force, each key with its value and origin.
    pub config: serde_json::Value,
}

/// Descriptors that outlive the daemon with its service manager.
#[derive(Debug, Default)]
pub struct StoredFds {
    /// The datagram socket on which the service manager takes descriptors.
    pub manager: Option<OwnedFd>,
    /// The descriptors that the previous daemon has stored, with their names.
    pub restored: Vec<(String, OwnedFd)>,
}

/// An action for the server to take.
#[derive(Debug)]
pub enum Outgoing {
    /// A message.
    Packet {
        /// The connection.
        to: ControlSessionId,
        /// The bytes of the message.
        packet: Vec<u8>,
        /// The resources sent with the message.
        resources: Vec<Resource>,
    },
    /// A report to make, once no other report of the user is under way. It is sent in as many messages as it needs, as fast as the program
    /// reads them.
    Report {
        /// The connection.
        to: ControlSessionId,
        /// The serial number of the request.
        serial: Option<RequestSerial>,
        /// The request.
        query: Query,
    },
    /// The connection has become a domain with this ready map. Sending anything from now on sets a bit in it.
    ReadyMap {
        /// The connection.
        to: ControlSessionId,
        /// The domain's ready map.
        ready_map: SharedMapping,
        /// The process of the domain. The server watches it, because a child that inherited the connection must not keep the domain alive.
        pid: Option<i32>,
    },
    /// Starts to send frames to the program that asked for them by this connection, even if the connection ends. Its end is reported by
    /// `Broker::capture_ended`.
    Capture {
        /// The connection.
        to: ControlSessionId,
        /// The frames and their destination.
        capturing: Box<CaptureTask>,
    },
    /// Ends the connection once everything that was queued before has been sent.
    End {
        /// The connection.
        to: ControlSessionId,
    },
}
