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

/// Another endpoint: its host's place in our table of peers, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// In our table.
    pub peer: PeerIndex,
    /// Of the peer's board.
    pub endpoint: EndpointNumber,
}

/// A send, as the caller names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SendId(pub u64);

/// A connect, as the caller names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectId(pub u64);

/// An incoming message. The identifier is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IncomingId(pub(crate) u64);

impl IncomingId {
    /// As a number.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// Bytes that a packet carries: some of a send's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadRange {
    /// The send. Its bytes are not asked for any more once [`EndpointEvent::Sent`] has said that it is over.
    pub send: SendId,
    /// Where they begin.
    pub at: u32,
    /// How many.
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
    /// As its length asks for: the shorter ones at once, the longer ones when they are asked for.
    Standard,
    /// Announced, however short, so that its end means that it was matched.
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
    /// The next message in order, to be matched now. Its bytes may be here (those of an eager message that came early), or on their way.
    Begun {
        /// The message.
        message: IncomingId,
        /// The sender.
        source: Address,
        /// The value that receives are matched against.
        match_info: u64,
        /// Bytes.
        length: u32,
        /// The bytes come only once [`Endpoint::pull`] requests them, which the caller has to do at some time.
        large: bool,
    },
    /// The data of the frame just received belongs into a message, which may not have begun yet.
    Bytes {
        /// The message.
        message: IncomingId,
        /// Bytes of the whole message; of a large one, those that were asked for.
        length: u32,
        /// Where the data belongs.
        at: u32,
        /// How many bytes.
        len: u32,
    },
    /// A message has ended: it is complete, or it failed, perhaps before it had begun.
    Received {
        /// The message.
        message: IncomingId,
        /// Success, or why not.
        code: StatusCode,
        /// Bytes that are here.
        xfer_length: u32,
    },
    /// A send is over.
    Sent {
        /// The send.
        send: SendId,
        /// Success: the peer has it.
        code: StatusCode,
        /// Bytes that the peer took.
        xfer_length: u32,
    },
    /// The peer waits for bytes of a send that were not [provided](Endpoint::provide) yet.
    DataWanted {
        /// The send.
        send: SendId,
        /// All up to this one.
        bytes: u32,
        /// The number of bytes that the peer will want in total.
        total: u32,
    },
    /// A connect is over.
    Connected {
        /// The connect.
        connect: ConnectId,
        /// The endpoint that was connected to.
        partner: Address,
        /// The session of the endpoint there, or why it did not reach it.
        outcome: Result<SessionId, StatusCode>,
    },
    /// A partner was given up, or has another session now. Each pending operation has ended with its own event. Complete messages
    /// stay.
    Disconnected {
        /// The partner.
        partner: Address,
    },
}
