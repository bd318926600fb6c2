//! What every link does, whatever carries its frames.

use std::fmt;
use std::os::fd::AsFd;

use isthmus_layout::NicId;
use rustix::io::Errno;

use crate::{Frame, LinkCounters};

/// Frames looked at by one [`Link::send`].
pub const SEND_MAX: usize = 32;

/// Frames in and out of this process. Its descriptor becomes readable when frames have come, and writable when there is room
/// again after [`SendNext::Full`].
pub trait Link: Send + fmt::Debug + AsFd {
    /// What carries the frames.
    fn kind(&self) -> LinkKind;

    /// The interface, or the address that it is bound to.
    fn name(&self) -> &str;

    /// Our address in frames.
    fn nic(&self) -> NicId;

    /// The longest frame that can be sent, from the Ethernet header on. It follows the MTU, at the latest with
    /// [`refresh`](Self::refresh).
    fn frame_bytes_max(&self) -> u32;

    /// Whether frames can pass, as far as was seen by the last call.
    fn state(&self) -> LinkState;

    /// Sends frames in order, [`SEND_MAX`] of them at most, and never waits.
    fn send(&mut self, frames: &[Frame<'_>]) -> Result<SendOutcome, LinkError>;

    /// Takes a batch of frames that have come, without waiting: how many. The frames of the last batch are gone.
    fn receive(&mut self) -> Result<usize, LinkError>;

    /// Whether the last [`receive`](Self::receive) may have left frames: nobody who waits for the descriptor to become readable is
    /// told of those again.
    fn has_more(&self) -> bool;

    /// Frame `n` of the last batch.
    ///
    /// # Panics
    ///
    /// If the batch had no such frame.
    fn frame(&self, n: usize) -> &[u8];

    /// Looks again at the interface: state, MTU, address. A few system calls; the frames of the last batch are gone.
    fn refresh(&mut self) -> Result<LinkState, LinkError>;

    /// What was carried and what was lost; the kernel is asked what it lost (with AF_XDP, by [`refresh`](Self::refresh)).
    fn counters(&self) -> LinkCounters;
}

/// What carries the frames of a link.
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

/// Whether frames can pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkState {
    /// They can.
    Up,
    /// The interface is down, or has no carrier, or there is no route.
    Down,
    /// There is no interface of that name now.
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

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "frames that were not taken are still to be sent"]
pub struct SendOutcome {
    /// So many from the beginning are done with: on their way, unless they are among the refused.
    pub accepted: usize,
    /// Which of those cannot go, now or later.
    pub refused: RefusedFrames,
    /// When to go on with the others.
    pub next: SendNext,
}

/// A set of frames of a batch that cannot be sent: too long for the MTU as it is now, or to a peer that has no address or no
/// route. They are counted by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusedFrames(u32);

const _: () = assert!(SEND_MAX <= u32::BITS as usize);

impl RefusedFrames {
    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether frame `n` of the batch is among them.
    pub fn contains(self, n: usize) -> bool {
        n < SEND_MAX && self.0 >> n & 1 == 1
    }

    /// How many.
    pub fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    pub(crate) fn add(&mut self, n: usize) {
        debug_assert!(n < SEND_MAX);
        self.0 |= 1 << n;
    }
}

/// When to send what was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendNext {
    /// At once: nothing is in the way.
    Ready,
    /// When the descriptor is writable, or a little later: there is no room now.
    Full,
    /// When the link is up again: frames for it may be taken for lost.
    Down,
}

/// A link that does not work any more, for a reason that will not pass.
#[derive(Debug, thiserror::Error)]
#[error("{link}: {operation}: {source}")]
pub struct LinkError {
    /// Which link.
    pub link: String,
    /// What was tried.
    pub operation: &'static str,
    /// What the system said.
    pub source: Errno,
}

/// Why a link cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no such interface, here in this network namespace.
    #[error("there is no interface {name} in this network namespace (`ip link` lists them)")]
    NoInterface {
        /// Its name.
        name: String,
    },
    /// Its frames do not begin with an Ethernet header.
    #[error("{name} is no Ethernet interface (its type is {hardware}, see linux/if_arp.h)")]
    NotEthernet {
        /// Its name.
        name: String,
        /// What it is instead.
        hardware: u16,
    },
    /// A privilege is missing.
    #[error(
        "{operation} needs {capability}: start the program with it (as root, or AmbientCapabilities={capability} in its unit)"
    )]
    NotPermitted {
        /// What was tried.
        operation: &'static str,
        /// What is missing.
        capability: &'static str,
    },
    /// The kernel was built without what is needed, or is too old.
    #[error("{operation}: this kernel cannot ({what})")]
    NotSupported {
        /// What was tried.
        operation: &'static str,
        /// What it would take.
        what: &'static str,
    },
    /// The address is taken by another socket.
    #[error("{address} is taken by another program (`ss -ulnp` shows which)")]
    AddressInUse {
        /// Which address.
        address: std::net::SocketAddr,
    },
    /// The address is none of this host's.
    #[error("{address} is no address of this host (`ip address` lists them)")]
    AddressNotLocal {
        /// Which address.
        address: std::net::SocketAddr,
    },
    /// A list of peers that cannot be used.
    #[error("{count} peers, of which each link can have {max}")]
    TooManyPeers {
        /// How many there are.
        count: usize,
        /// How many there may be.
        max: usize,
    },
    /// Two kinds of addresses that one socket cannot send between.
    #[error("{peer} cannot be reached from {from}: one is IPv4, the other IPv6")]
    MixedFamilies {
        /// Our address.
        from: std::net::SocketAddr,
        /// The peer's.
        peer: std::net::SocketAddr,
    },
    /// The system refused otherwise.
    #[error("{operation}: {source}")]
    Refused {
        /// What was tried.
        operation: &'static str,
        /// What the system said.
        source: Errno,
    },
}

impl OpenError {
    /// What a refused step means to somebody who wants to open a link.
    pub(crate) fn from_errno(operation: &'static str, capability: &'static str, source: Errno) -> Self {
        match source {
            Errno::PERM | Errno::ACCESS => Self::NotPermitted { operation, capability },
            source => Self::Refused { operation, source },
        }
    }
}
