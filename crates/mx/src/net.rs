//! MX between hosts, without I/O and without a clock: what an endpoint does so that messages arrive once, in order and whole over a
//! wire that loses, repeats and mixes up packets.
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
//! The bytes of messages are elsewhere: a packet to transmit says which bytes of which send it carries ([`PayloadRange`]), and
//! [`EndpointEvent::Bytes`] says where those of the frame just received belong. A caller takes the events of a frame before it lets go of
//! the frame.
//!
//! Facts are those of the wire's specification, whose sections are named where they are used. Where it recommends something,
//! that is done. A peer cannot tell the difference between what is done here beyond it and an ordinary peer with luck: times adapt to
//! the round trip, frames that are missing are asked for as soon as that can be known, acknowledgements that bring nothing new
//! are taken as signs of loss, and counting starts anew in another session number whenever a partner is given up or comes back
//! as another.

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

/// A message that comes in. Never used again for another one.
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
    /// The same, and its bytes are somewhere else: [`EndpointEvent::DataWanted`] says which are needed, and [`Endpoint::provide`] that they are
    /// here.
    OnDemand,
}

/// A packet to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Whose host it goes to.
    pub to: PeerIndex,
    /// The packet.
    pub packet: Packet<PayloadRange>,
}

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointEvent {
    /// A message's turn has come: it is to be matched now. Its bytes may be here (those of an eager message that came early), or
    /// on their way.
    Begun {
        /// The message.
        message: IncomingId,
        /// Who sent it.
        source: Address,
        /// What receives are matched with.
        match_info: u64,
        /// Bytes.
        length: u32,
        /// Its bytes are not coming until [`Endpoint::pull`] asks for them, which has to happen at some time.
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
    /// Nothing more comes of a message: it is whole, or it failed, perhaps before it had begun.
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
        /// It will want this much.
        total: u32,
    },
    /// A connect is over.
    Connected {
        /// The connect.
        connect: ConnectId,
        /// Whom it reached.
        partner: Address,
        /// The session of the endpoint there, or why it did not reach it.
        outcome: Result<SessionId, StatusCode>,
    },
    /// A partner was given up, or is another now: what was under way has ended, each with its own event. Messages that are
    /// whole stay.
    Disconnected {
        /// The partner.
        partner: Address,
    },
}
