//! The connection manager: identifiers, their states, and the messages of two managers, without I/O.
//!
//! A program has identifiers, as `struct rdma_cm_id` names them, and channels of events. A [`Manager`] holds those of one process. Each
//! connection has a stream of its own, which loses and reorders nothing and which ends with either process:
//!
//! ```text
//!   active                                              passive
//!   connect ──► Ask (a datagram, repeated) ───────────► the port of the listener's streams
//!           ◄── port_found ◄────────────────────────────
//!           ──► Dial ──► dialed ──► Request ──────────► request ──► event: connect request
//!   event: connect response ◄────── Reply ◄──────────── accept
//!   accept ───────────────────────► Ready ────────────► event: established
//!   disconnect ───────────────────► Disconnect ───────► event: disconnected
//!   event: disconnected ◄────────── Disconnected ◄─────
//! ```
//!
//! An identifier of the port space UDP asks for a queue pair and its key instead: `Request`, `Reply`, and the stream is over.
//!
//! The caller performs the [`Action`]s, and reports what arrives. Datagrams may be lost and repeated. Everything that a peer sends is
//! checked here: a message that does not fit the state ends the stream.

mod manager;
mod message;

pub use manager::Manager;
pub use message::{Kind, MESSAGE_BYTES_MAX, Malformed, Message, Parameters, PrivateData};

use crate::Gid;
use alloc::boxed::Box;
use core::net::SocketAddr;

/// The number of an identifier, as `rdma_ucm_create_id_resp` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdNumber(pub u32);

/// The number of a channel of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelNumber(pub u64);

/// The ports that an identifier is on: which service, and so which queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortSpace {
    /// Reliable connections.
    Tcp,
    /// Datagrams.
    Udp,
}

/// An end of a path: an address with its port, and the GID of the device there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The address.
    pub address: SocketAddr,
    /// The GID. None while the identifier has no device, for example because its address is a wildcard.
    pub gid: Option<Gid>,
}

/// The kinds of events, with the codes of `rdma_cm_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the events of the interface")]
pub enum EventKind {
    AddressResolved = 0,
    AddressError = 1,
    RouteResolved = 2,
    ConnectRequest = 4,
    ConnectResponse = 5,
    Unreachable = 7,
    Rejected = 8,
    Established = 9,
    Disconnected = 10,
    TimewaitExit = 15,
}

/// An event of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The number that the program gave the identifier; of a request, that of the listener.
    pub uid: u64,
    /// The identifier; of a request, the new one.
    pub id: IdNumber,
    /// The kind.
    pub kind: EventKind,
    /// 0, a negative error number, or the reason of a rejection.
    pub status: i32,
    /// The parameters that the peer sent, as this end may use them.
    pub parameters: Parameters,
    /// The GID of the peer, or zeroes.
    pub gid: Gid,
    /// The space of the identifier.
    pub space: PortSpace,
}

/// A task of the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Asks the destination of an identifier for the port of its streams, by a datagram.
    Ask(IdNumber),
    /// Opens the stream of an identifier to this port of its destination.
    Dial(IdNumber, u16),
    /// Sends a message on the stream of an identifier.
    Send(IdNumber, Box<Message>),
    /// Closes the stream of an identifier, after everything was sent.
    Close(IdNumber),
    /// Closes all sockets of an identifier, which exists no more.
    Forget(IdNumber),
    /// A channel has an event, after it had none.
    Readable(ChannelNumber),
    /// A channel has no event any more.
    Drained(ChannelNumber),
}

/// The key of queue pairs of the port space UDP that name none.
pub const UDP_QKEY: u32 = 0x0123_4567;

/// The attributes with which the program moves the queue pair of an identifier to a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transition {
    /// The rights that the peer needs, for the state Init.
    pub lets_write: bool,
    /// Reads and atomics as well.
    pub lets_read: bool,
    /// The GID of the peer.
    pub gid: Gid,
    /// The queue pair of the peer.
    pub destination: u32,
    /// The first packet that the peer sends.
    pub receive_psn: u32,
    /// The first packet that this end sends.
    pub send_psn: u32,
    /// The reads of the peer at once.
    pub responder_resources: u8,
    /// The reads of this end at once.
    pub initiator_depth: u8,
    /// Retries after missing acknowledgements.
    pub retries: u8,
    /// Retries after a receiver that was not ready.
    pub receiver_retries: u8,
}

/// The reasons of a refusal, with the meaning of the error number that the program gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such identifier on this channel.
    NoSuchId,
    /// The state of the identifier or an argument does not allow the command.
    Invalid,
}

/// The reasons of rejections that this manager gives, with the codes of the specification.
pub mod reason {
    /// There is no listener at the port.
    pub const INVALID_SERVICE: u16 = 8;
    /// The program refused, or its identifier is gone.
    pub const CONSUMER: u16 = 28;
    /// No queue pair is given out at the port, for the port space UDP.
    pub const UNSUPPORTED_SERVICE: u16 = 1;
    /// The program refused, for the port space UDP.
    pub const REFUSED: u16 = 2;
}

/// The times of a manager, in nanoseconds.
pub mod times {
    /// The pause before a datagram is repeated. It doubles with each repetition.
    pub const ASK_PAUSE_NS: u64 = 10_000_000;
    /// The longest pause.
    pub const ASK_PAUSE_NS_MAX: u64 = 1_000_000_000;
    /// The time for which datagrams are repeated.
    pub const ASK_NS: u64 = 10_000_000_000;
    /// The time for which they are repeated although there is no listener. A server that has served one connection often listens anew for the next
    /// one, at the same port, after its client has begun to connect.
    pub const NO_LISTENER_NS: u64 = 1_000_000_000;
    /// The time in which a stream opens.
    pub const DIAL_NS: u64 = 10_000_000_000;
    /// The time in which the peer's program replies to a request, or confirms a reply.
    pub const REPLY_NS: u64 = 70_000_000_000;
    /// The time after which a disconnected identifier may be used anew.
    pub const TIMEWAIT_NS: u64 = 1_000_000_000;
}
