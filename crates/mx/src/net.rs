//! MX between hosts: an endpoint's protocol, which delivers messages once, in order and whole over a wire that loses, repeats and
//! reorders packets. Does no I/O and reads no clock.
//!
//! ```text
//!   program                          Endpoint                                       link
//!
//!   connect, send ───► partner ─ outbox: numbers, acknowledged or sent again ───► transmit ──► frames
//!                      │  ▲                                        next_deadline, tick: time
//!   event ◄────────────│──┴───── inbox: once, in order, reassembled ◄──────────── receive ◄─── frames
//!                      │
//!   pull ─────► transfer: blocks in flight, holes asked for again ──► PULL ──►  the other end's region: frames of data
//! ```
//!
//! The bytes of messages are elsewhere: a packet to transmit names the bytes of a send that it carries ([`PayloadRange`]), and
//! [`EndpointEvent::Bytes`] says where those of the frame just received belong. A caller takes the events of a frame before it
//! releases the frame.
//!
//! This module follows the wire's specification, and names its sections where it uses them. It also does what the specification
//! recommends. It does more in some places, which a peer cannot tell from an ordinary peer with luck. Timeouts adapt to the round
//! trip. Missing frames are requested as soon as the loss can be known. Acknowledgements that bring nothing new are taken as signs
//! of loss. Numbering restarts in another session number whenever a partner is given up or comes back with another session.

mod blocks;
mod connecting;
mod disconnect;
mod endpoint;
mod ignored;
mod inbox;
mod nack;
mod outbox;
mod partner;
mod pull_window;
mod receiving;
mod regions;
mod rendezvous;
mod time;
mod traffic;
mod transfer;
mod transmitting;
mod tuning;

pub use endpoint::{ConnectError, Endpoint, EndpointSendError, EndpointSetup, UnknownMessage};
pub use ignored::{Ignored, IgnoredCounts};
pub use nack::nack_for;
pub use time::Time;
pub use traffic::TrafficCounters;
pub use tuning::EndpointTuning;

use crate::StatusCode;
use crate::wire::{EndpointNumber, Packet, PacketData, PeerIndex, SessionId};

/// The address of another endpoint: the peer's index in our table, and the endpoint number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// The peer's index in our table.
    pub peer: PeerIndex,
    /// The endpoint number on the peer's board.
    pub endpoint: EndpointNumber,
}

/// The caller's identifier of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SendId(pub u64);

/// The caller's identifier of a connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectId(pub u64);

/// An incoming message. The identifier is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IncomingId(pub(crate) u64);

impl IncomingId {
    /// Returns the identifier as a number.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// The bytes of a send that a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadRange {
    /// The send. Its bytes are not needed any more after [`EndpointEvent::Sent`].
    pub send: SendId,
    /// The offset of the first byte.
    pub at: u32,
    /// The number of bytes.
    pub len: u32,
}

impl PacketData for PayloadRange {
    fn length(&self) -> usize {
        self.len as usize
    }
}

/// How a message is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendMode {
    /// By length: short messages are sent at once, long ones are announced and fetched.
    Standard,
    /// Announced at any length, so that the send completes only when it was matched.
    Synchronous,
    /// Announced like `Synchronous`, but the caller holds the bytes: [`EndpointEvent::DataWanted`] requests them, and
    /// [`Endpoint::provide`] makes them available.
    OnDemand,
}

/// A packet to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The host that the packet goes to.
    pub to: PeerIndex,
    /// The packet.
    pub packet: Packet<PayloadRange>,
}

/// An event of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointEvent {
    /// The next message in order begins, and has to be matched now. Its bytes may have arrived (those of an eager
    /// message that came early), or follow.
    Begun {
        /// The message.
        message: IncomingId,
        /// The sender.
        source: Address,
        /// The value that receives are matched against.
        match_info: u64,
        /// The length of the message in bytes.
        length: u32,
        /// The bytes arrive only after [`Endpoint::pull`], which the caller has to call at some time.
        large: bool,
    },
    /// The data of the last received frame belongs to a message, which may not have begun yet.
    Bytes {
        /// The message.
        message: IncomingId,
        /// The length of the whole message; of a large one, the number of requested bytes.
        length: u32,
        /// The offset of the data in the message.
        at: u32,
        /// The number of bytes.
        len: u32,
    },
    /// A message has ended: it is complete, or it failed, perhaps before it began.
    Received {
        /// The message.
        message: IncomingId,
        /// Success, or the reason of the failure.
        code: StatusCode,
        /// The number of bytes that arrived.
        xfer_length: u32,
    },
    /// A send has ended.
    Sent {
        /// The send.
        send: SendId,
        /// Success means that the peer has the message.
        code: StatusCode,
        /// The number of bytes that the peer took.
        xfer_length: u32,
    },
    /// The peer waits for bytes of a send that were not [provided](Endpoint::provide) yet.
    DataWanted {
        /// The send.
        send: SendId,
        /// The end of the bytes that the peer waits for.
        bytes: u32,
        /// The number of bytes that the peer will want in total.
        total: u32,
    },
    /// A connect has ended.
    Connected {
        /// The connect.
        connect: ConnectId,
        /// The endpoint that was connected to.
        partner: Address,
        /// The session of the endpoint, or the reason why the connect failed.
        outcome: Result<SessionId, StatusCode>,
    },
    /// A partner was given up, or has another session now. Each pending operation has ended with its own event. Complete messages
    /// stay.
    Disconnected {
        /// The partner.
        partner: Address,
    },
}
