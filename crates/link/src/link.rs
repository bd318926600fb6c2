//! The interface that all kinds of links implement.

use std::fmt;
use std::os::fd::AsFd;

use isthmus_layout::NicId;
use rustix::io::Errno;

use crate::{Frame, LinkCounters};

/// The maximum number of frames that one [`Link::send`] takes.
pub const SEND_MAX: usize = 32;

/// A link that sends and receives frames. Its descriptor is readable when frames have arrived, and writable when there is room again after
/// [`SendNext::Full`].
pub trait Link: Send + fmt::Debug + AsFd {
    /// Returns the kind of link.
    fn kind(&self) -> LinkKind;

    /// Returns the name of the interface, or the address to which the link is bound.
    fn name(&self) -> &str;

    /// Returns the link's own address in frames.
    fn nic(&self) -> NicId;

    /// Returns the length of the longest frame that can be sent, from the Ethernet header on. It follows the MTU, at the latest with
    /// [`refresh`](Self::refresh).
    fn frame_bytes_max(&self) -> u32;

    /// Returns the state that the last call found.
    fn state(&self) -> LinkState;

    /// Sends frames in order, at most [`SEND_MAX`], without blocking.
    fn send(&mut self, frames: &[Frame<'_>]) -> Result<SendOutcome, LinkError>;

    /// Receives a batch of frames without blocking; returns their number. The frames of the last batch become invalid.
    fn receive(&mut self) -> Result<usize, LinkError>;

    /// Returns true if the last [`receive`](Self::receive) may have left frames. Polling the descriptor does not report those frames again.
    fn has_more(&self) -> bool;

    /// Returns frame `n` of the last batch.
    ///
    /// # Panics
    ///
    /// Panics if the batch has no such frame.
    fn frame(&self, n: usize) -> &[u8];

    /// Queries the interface again: state, MTU, address. This takes a few system calls. The frames of the last batch become invalid.
    fn refresh(&mut self) -> Result<LinkState, LinkError>;

    /// Returns the counters of carried and lost frames. The kernel is asked for its own losses (with AF_XDP, by
    /// [`refresh`](Self::refresh)).
    fn counters(&self) -> LinkCounters;
}

/// The kind of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkKind {
    /// An AF_PACKET socket.
    Packet,
    /// An AF_XDP socket.
    Xdp,
    /// A UDP socket.
    Udp,
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Packet => "packet",
            Self::Xdp => "xdp",
            Self::Udp => "udp",
        })
    }
}

/// The state of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkState {
    /// Frames can pass.
    Up,
    /// The interface is down, has no carrier, or there is no route.
    Down,
    /// There is no interface with this name now.
    Gone,
}

impl fmt::Display for LinkState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Gone => "gone",
        })
    }
}

/// The result of sending a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "frames that were not taken are still to be sent"]
pub struct SendOutcome {
    /// The number of frames from the start of the batch that are done: sent, or refused.
    pub accepted: usize,
    /// The frames among those that cannot be sent, now or later.
    pub refused: RefusedFrames,
    /// The time to send the remaining frames.
    pub next: SendNext,
}

/// A set of frames of a batch that cannot be sent: too long for the current MTU, or to a peer without a known address or route. They are
/// counted by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusedFrames(u32);

const _: () = assert!(SEND_MAX <= u32::BITS as usize);

impl RefusedFrames {
    /// Returns true if the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns true if frame `n` of the batch is in the set.
    pub fn contains(self, n: usize) -> bool {
        n < SEND_MAX && self.0 >> n & 1 == 1
    }

    /// Returns the number of frames in the set.
    pub fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    pub(crate) fn add(&mut self, n: usize) {
        debug_assert!(n < SEND_MAX);
        self.0 |= 1 << n;
    }
}

/// The time to send the frames that were not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendNext {
    /// At once, because nothing blocks them.
    Ready,
    /// When the descriptor is writable, or a little later, because there is no room now.
    Full,
    /// When the link is up again. Frames for it may be considered lost.
    Down,
}

/// A permanent failure of a link.
#[derive(Debug, thiserror::Error)]
#[error("{link}: {operation}: {source}")]
pub struct LinkError {
    /// The name of the link.
    pub link: String,
    /// The operation.
    pub operation: &'static str,
    /// The system's error.
    pub source: Errno,
}

/// The reason why a link cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no such interface in this network namespace.
    #[error("there is no interface {name} in this network namespace (`ip link` lists them)")]
    NoInterface {
        /// The name of the interface.
        name: String,
    },
    /// The interface is not an Ethernet interface.
    #[error("{name} is no Ethernet interface (its type is {hardware}, see linux/if_arp.h)")]
    NotEthernet {
        /// The name of the interface.
        name: String,
        /// The hardware type of the interface.
        hardware: u16,
    },
    /// A privilege is missing.
    #[error(
        "{operation} needs {capability}: start the program with it (as root, or AmbientCapabilities={capability} in its unit)"
    )]
    NotPermitted {
        /// The operation.
        operation: &'static str,
        /// The missing capability.
        capability: &'static str,
    },
    /// The kernel was built without a required feature, or is too old.
    #[error("{operation}: this kernel cannot ({what})")]
    NotSupported {
        /// The operation.
        operation: &'static str,
        /// The required feature.
        what: &'static str,
    },
    /// Another socket uses the address.
    #[error("{address} is taken by another program (`ss -ulnp` shows which)")]
    AddressInUse {
        /// The address.
        address: std::net::SocketAddr,
    },
    /// The address does not belong to this host.
    #[error("{address} is no address of this host (`ip address` lists them)")]
    AddressNotLocal {
        /// The address.
        address: std::net::SocketAddr,
    },
    /// The list of peers is too long.
    #[error("{count} peers, of which each link can have {max}")]
    TooManyPeers {
        /// The number of peers.
        count: usize,
        /// The maximum number of peers.
        max: usize,
    },
    /// The addresses belong to different families, between which one socket cannot send.
    #[error("{peer} cannot be reached from {from}: one is IPv4, the other IPv6")]
    MixedFamilies {
        /// The link's own address.
        from: std::net::SocketAddr,
        /// The peer's address.
        peer: std::net::SocketAddr,
    },
    /// The system refused for another reason.
    #[error("{operation}: {source}")]
    Refused {
        /// The operation.
        operation: &'static str,
        /// The system's error.
        source: Errno,
    },
}

impl OpenError {
    /// Converts the error of a failed step into the reason why the link cannot be opened.
    pub(crate) fn from_errno(operation: &'static str, capability: &'static str, source: Errno) -> Self {
        match source {
            Errno::PERM | Errno::ACCESS => Self::NotPermitted { operation, capability },
            source => Self::Refused { operation, source },
        }
    }
}
