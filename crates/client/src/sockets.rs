//! A program's session for streams: it lists listening sockets, shows connections, and learns of their pairs.
//!
//! The session is no domain: it has one descriptor, and no ring. Answers arrive in any order; tokens match them to their sockets.

use crate::connect;
use crate::control::{Control, Notification};
use crate::error::Refusal;
use crate::options::Options;
use isthmus_layout::control::{Text, ToClient};
use isthmus_layout::reason::Reason;
use isthmus_layout::sockets::{
    SocketsToClient, StreamAttach, StreamBoardWaiter, StreamEndIndex, StreamEnded, StreamGone, StreamKept,
    StreamListen, StreamShow, StreamUnlisten, StreamWaiter, WaiterIndex,
};
use isthmus_platform::Doorbell;
use rustix::fd::{BorrowedFd, OwnedFd};
use std::net::SocketAddr;
use std::time::Duration;

/// The time that a program waits in `listen` for its address to be listed. The daemon needs less than a millisecond.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection to the daemon for streams.
#[derive(Debug)]
pub struct StreamSession {
    control: Control,
}

/// The memory that comes with a session.
#[derive(Debug)]
pub struct StreamAttachment {
    /// The session.
    pub session: StreamSession,
    /// The program's board.
    pub board: OwnedFd,
    /// The page of listed addresses.
    pub listed: OwnedFd,
    /// The bytes in both directions after which a connection is shown.
    pub after_bytes: u64,
}

/// When a connector sent its SYN, in milliseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SynTime {
    /// The earliest time.
    pub since_ms: u64,
    /// The latest time.
    pub until_ms: u64,
}

/// A message of the daemon about streams.
#[derive(Debug)]
pub enum StreamEvent {
    /// A shown socket has its pair.
    Paired {
        /// The token of the socket.
        token: u32,
        /// The number of the stream.
        stream: u64,
        /// The end that the program has.
        end: StreamEndIndex,
        /// The session of the peer.
        peer: u32,
        /// The memory of the stream.
        memory: OwnedFd,
        /// The board of the peer, with its first stream.
        board: Option<OwnedFd>,
    },
    /// A socket gets no stream, or is not listed.
    Refused {
        /// The token of the socket.
        token: u32,
        /// The reason.
        reason: Reason,
    },
    /// The daemon has read a shown socket, and has no copy of it any more. The pair or the refusal follows.
    Waiting {
        /// The token of the socket.
        token: u32,
    },
    /// A waiter of a peer. It arrives before the first stream that needs it.
    Waiter {
        /// The session of the peer.
        peer: u32,
        /// The waiter.
        waiter: u8,
        /// Its doorbell.
        doorbell: Doorbell,
    },
    /// A peer of another owner reaches this program by a board for that owner. The event comes before the first stream with the peer.
    Board {
        /// The session of the peer.
        peer: u32,
        /// The number of the board.
        board: u32,
        /// The board's memory, with the first peer of its owner. None also if it was lost.
        memory: Option<OwnedFd>,
    },
    /// The session of a peer has ended.
    PeerLeft {
        /// The session.
        peer: u32,
    },
    /// A message that changes nothing here.
    Other,
}

impl StreamSession {
    /// Connects to the daemon that the options name, and never starts one. `place` may move the socket to another number.
    pub fn attach(options: &Options, place: impl FnOnce(OwnedFd) -> OwnedFd) -> Result<StreamAttachment, Refusal> {
        let options = Options { no_autostart: true, ..options.clone() };
        let (socket, _) = connect::connect(&options)?;
        let mut control = Control::open(place(socket))?;
        let mut reply = control.request(StreamAttach {}.into(), &[])?;
        match reply.message {
            ToClient::Sockets(SocketsToClient::StreamAttached(ref attached)) => {
                let after_bytes = attached.after_bytes;
                let (board, listed) = (reply.fd(), reply.fd());
                Ok(StreamAttachment { session: Self { control }, board, listed, after_bytes })
            }
            _ => Err(Reason::NotIsthmus.into()),
        }
    }

    #[cfg(test)]
    pub(crate) fn over(control: Control) -> Self {
        Self { control }
    }

    /// Lists the address of a listening socket. Returns when programs that connect can find it.
    pub fn listen(&mut self, token: u32, socket: BorrowedFd<'_>) -> Result<(), Refusal> {
        self.control.send_request(StreamListen { token }.into(), &[socket])?;
        let answer = self.control.awaited(LISTEN_TIMEOUT, |message| match message {
            ToClient::Sockets(SocketsToClient::StreamListening(listening)) => listening.token == token,
            ToClient::Sockets(SocketsToClient::StreamRefused(refused)) => refused.token == token,
            _ => false,
        })?;
        match answer.message {
            ToClient::Sockets(SocketsToClient::StreamRefused(refused)) => Err(refused.reason.into()),
            _ => Ok(()),
        }
    }

    /// Lists the address of a listening socket, as [`Self::listen`] does, without waiting.
    pub fn listen_later(&mut self, token: u32, socket: BorrowedFd<'_>) -> Result<(), Refusal> {
        self.control.send_request(StreamListen { token }.into(), &[socket]).map(drop)
    }

    /// Removes a listed address.
    pub fn unlisten(&mut self, token: u32) -> Result<(), Refusal> {
        self.control.send_request(StreamUnlisten { token }.into(), &[]).map(drop)
    }

    /// Shows a connected socket. `syn` is the time of the SYN if the program has connected the socket.
    pub fn show(&mut self, token: u32, socket: BorrowedFd<'_>, syn: Option<SynTime>) -> Result<(), Refusal> {
        let SynTime { since_ms, until_ms } = syn.unwrap_or_default();
        let message = StreamShow { token, connector: syn.is_some(), since_ms, until_ms };
        self.control.send_request(message.into(), &[socket]).map(drop)
    }

    /// Withdraws a shown socket.
    pub fn gone(&mut self, token: u32) -> Result<(), Refusal> {
        self.control.send_request(StreamGone { token }.into(), &[]).map(drop)
    }

    /// Names a socket that is an end of a stream of an earlier daemon. [`Self::gone`] withdraws it.
    pub fn kept(&mut self, token: u32, inode: u64, [local, peer]: [SocketAddr; 2]) -> Result<(), Refusal> {
        let text = |address: SocketAddr| Text::new(&address.to_string()).map_err(|_| Reason::RequestInvalid);
        let message = StreamKept { token, inode, local: text(local)?, peer: text(peer)? };
        self.control.send_request(message.into(), &[]).map(drop)
    }

    /// Ends this side of a stream.
    pub fn ended(&mut self, stream: u64, violation: bool) -> Result<(), Refusal> {
        self.control.send_request(StreamEnded { stream, violation }.into(), &[]).map(drop)
    }

    /// Adds a waiter, and returns when the daemon has told all peers.
    pub fn add_waiter(&mut self, waiter: WaiterIndex, doorbell: BorrowedFd<'_>) -> Result<(), Refusal> {
        self.control.request(StreamWaiter { waiter: waiter.number() }.into(), &[doorbell]).map(drop)
    }

    /// Adds a waiter to a board for peers of another owner, as [`Self::add_waiter`] does to the own one.
    pub fn add_board_waiter(
        &mut self,
        board: u32,
        waiter: WaiterIndex,
        doorbell: BorrowedFd<'_>,
    ) -> Result<(), Refusal> {
        let message = StreamBoardWaiter { board, waiter: waiter.number() };
        self.control.request(message.into(), &[doorbell]).map(drop)
    }

    /// The next message, if one has arrived.
    pub fn next_event(&mut self) -> Result<Option<StreamEvent>, Refusal> {
        let notification = self.control.notification()?;
        Ok(notification.map(event))
    }
}

fn event(mut notification: Notification) -> StreamEvent {
    let ToClient::Sockets(message) = &notification.message else { return StreamEvent::Other };
    if let (SocketsToClient::StreamBoard(added), true) = (message, notification.descriptors_lost) {
        return StreamEvent::Board { peer: added.peer, board: added.board, memory: None };
    }
    if notification.descriptors_lost {
        // A stream without its memory: the peer never sees this end attached, and both stay on TCP.
        return StreamEvent::Other;
    }
    match *message {
        SocketsToClient::StreamBoard(ref added) => {
            let (peer, board, new_board) = (added.peer, added.board, added.new_board);
            StreamEvent::Board { peer, board, memory: new_board.then(|| notification.fd()) }
        }
        SocketsToClient::StreamPaired(ref paired) => {
            let (token, stream, end, peer) = (paired.token, paired.stream, paired.end, paired.peer);
            let new_peer = paired.new_peer;
            let memory = notification.fd();
            let board = new_peer.then(|| notification.fd());
            StreamEvent::Paired { token, stream, end, peer, memory, board }
        }
        SocketsToClient::StreamRefused(ref refused) => {
            StreamEvent::Refused { token: refused.token, reason: refused.reason }
        }
        SocketsToClient::StreamWaiting(ref waiting) => StreamEvent::Waiting { token: waiting.token },
        SocketsToClient::PeerWaiter(ref added) => {
            let (peer, waiter) = (added.peer, added.waiter);
            StreamEvent::Waiter { peer, waiter, doorbell: notification.doorbell() }
        }
        SocketsToClient::PeerLeft(ref left) => StreamEvent::PeerLeft { peer: left.peer },
        _ => StreamEvent::Other,
    }
}
