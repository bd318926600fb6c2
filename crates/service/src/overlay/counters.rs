//! Counts of frames that passed and of frames that were lost, by reason.

use isthmus_overlay::DropReason;
use isthmus_overlay::vxlan::Vni;
use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

/// Declares the losses, with a word for each.
macro_rules! losses {
    ($($(#[$doc:meta])* $name:ident = $word:literal,)*) => {
        /// The reason why a frame was lost at an interface or an edge.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum FrameLoss { $($(#[$doc])* $name,)* }

        impl FrameLoss {
            /// All reasons.
            pub const ALL: [Self; [$($word),*].len()] = [$(Self::$name),*];

            /// Returns the word for the reason, as in reports and metrics.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }
        }
    };
}

losses! {
    /// The frame, its virtio-net header or its encapsulation is invalid.
    Invalid = "invalid",
    /// No route matches the frame, and the network does not learn.
    NoRoute = "no-route",
    /// All destinations of the frame are the port that it came from, or edges for a frame of an edge.
    SplitHorizon = "split-horizon",
    /// The interface or edge of the route is gone.
    PortGone = "port-gone",
    /// The frame is one of this host's own, which a bridge sent back.
    Loop = "loop",
    /// The source address of the frame moves between ports too often.
    Flapping = "flapping",
    /// The interface may not send from the source address of the frame.
    ForeignSource = "foreign-source",
    /// The network, or the kernel, had no room for the frame.
    NoRoom = "no-room",
    /// The interface is down.
    Down = "down",
    /// The kernel refused the frame.
    Refused = "refused",
    /// The frame is longer than a datagram to the other host can be.
    TooLong = "too-long",
    /// The frame holds several datagrams of UDP of a size that it does not state.
    Uncut = "uncut",
    /// There is no route to the other host.
    Unreachable = "unreachable",
    /// A firewall of this host, or the service manager of the daemon, does not permit traffic with the other host.
    NotPermitted = "not-permitted",
    /// A part of the frame was lost on the wire, and nothing of the frame was delivered.
    Incomplete = "incomplete",
    /// A part of the frame was lost on the wire. The segments before that part were delivered.
    Shortened = "shortened",
}

impl From<DropReason> for FrameLoss {
    fn from(reason: DropReason) -> Self {
        match reason {
            DropReason::NoRoute => Self::NoRoute,
            DropReason::SplitHorizon => Self::SplitHorizon,
            DropReason::PortGone => Self::PortGone,
            DropReason::Loop => Self::Loop,
            DropReason::Flapping => Self::Flapping,
            DropReason::ForeignSource => Self::ForeignSource,
            DropReason::UnknownPort => Self::PortGone,
        }
    }
}

/// A count for each reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameLosses([u64; FrameLoss::ALL.len()]);

impl FrameLosses {
    /// Counts lost frames.
    pub(super) fn add(&mut self, loss: FrameLoss, frames: u64) {
        self.0[loss as usize] += frames;
    }

    /// Returns the count for a reason.
    pub fn count(&self, loss: FrameLoss) -> u64 {
        self.0[loss as usize]
    }

    /// Returns each reason with its word and count.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        FrameLoss::ALL.into_iter().map(|loss| (loss.word(), self.count(loss)))
    }
}

/// The counters of an interface or an edge, from the network's point of view. Bytes are those of frames without their virtio-net headers
/// and encapsulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Frames that came from the port. A frame that is to be cut counts once.
    pub received: u64,
    /// Bytes in them.
    pub received_bytes: u64,
    /// Frames that left by the port.
    pub sent: u64,
    /// Bytes in them.
    pub sent_bytes: u64,
    /// Frames that came from the port and went nowhere, or that could not leave by it.
    pub lost: FrameLosses,
}

impl PortCounters {
    pub(super) fn count_received(&mut self, bytes: usize) {
        self.received += 1;
        self.received_bytes += bytes as u64;
    }

    pub(super) fn count_sent(&mut self, bytes: usize) {
        self.sent += 1;
        self.sent_bytes += bytes as u64;
    }
}

/// The counters of a socket: received datagrams that belong to no edge. The worker writes them; any thread may read them.
#[derive(Debug, Default)]
pub struct OverlaySocketCounters {
    /// Datagrams from addresses that no edge leads to.
    pub unknown_senders: AtomicU64,
    /// Datagrams from the address of an edge that name a network without an edge to it.
    pub unknown_networks: AtomicU64,
    /// Datagrams without a valid encapsulation.
    pub invalid: AtomicU64,
    /// The last datagram of an unknown sender or network.
    pub last_unknown: Mutex<Option<UnknownDatagram>>,
}

/// A datagram that belongs to no edge.
#[derive(Clone, Copy, Debug)]
pub struct UnknownDatagram {
    /// The address of its sender.
    pub from: IpAddr,
    /// The network that it names; 0 for bare frames.
    pub vni: Vni,
    /// The time at which it came.
    pub at: Instant,
}
