//! The control messages of sockets: shown TCP sockets, their pairs, and what wakes the programs at both ends.

use alloc::string::String;
use alloc::vec::Vec;

use super::StreamEndIndex;
use crate::control::codec::{Field, FieldReader, Flag as _, MalformedControl, Width};
use crate::control::table::{FieldInfo, MessageInfo, OptionalDescriptors, concat_tables, messages, record};
use crate::control::{Text, ToClient, ToDaemon};
use crate::reason::Reason;

messages! {
    /// A message about streams, from a program to its daemon.
    SocketsToDaemon;

    /// Attaches the connection to streams. The connection is not attached as a domain.
    32 StreamAttach since 4, reply "`StreamAttached`", descriptors [] {}

    /// Adds a waiter: an epoll set, or a thread that blocks. The daemon sends it to all programs that have a stream with this one, before
    /// it replies.
    33 StreamWaiter since 4, reply "`Done`", descriptors ["the waiter's doorbell"] {
        /// The index of the waiter, which is also the index of its page in the board. Each index is used once.
        waiter: u8,
    }

    /// Lists the address of a listening TCP socket. The daemon closes its copy of the socket at once.
    34 StreamListen since 4, reply "`StreamListening`, or `StreamRefused`", descriptors ["the TCP socket"] {
        /// The number of the socket. The program has no other listed or shown socket of this number.
        token: u32,
    }

    /// Removes a listed address.
    35 StreamUnlisten since 4, reply "", descriptors [] {
        /// The number of the socket.
        token: u32,
    }

    /// Shows a connected TCP socket, which the daemon pairs with the socket at its other end. The daemon closes its copy of the socket at
    /// once.
    36 StreamShow since 4, reply "`StreamWaiting`, `StreamPaired` or `StreamRefused`", descriptors ["the TCP socket"] {
        /// The number of the socket. The program has no other listed or shown socket of this number.
        token: u32,
        /// True if the program has connected the socket, false if it has accepted it.
        connector: bool,
        /// For a connector, the earliest time at which the SYN was sent: milliseconds of `CLOCK_MONOTONIC`.
        since_ms: u64,
        /// For a connector, the latest time at which the SYN was sent: milliseconds of `CLOCK_MONOTONIC`.
        until_ms: u64,
    }

    /// Ends this side of a stream. Its memory is unmapped, or will be soon.
    37 StreamEnded since 4, reply "", descriptors [] {
        /// The number of the stream.
        stream: u64,
        /// True if the stream ended because the peer violated the protocol.
        violation: bool,
    }

    /// Withdraws a shown socket, because it was closed.
    38 StreamGone since 4, reply "", descriptors [] {
        /// The number of the socket.
        token: u32,
    }

    /// Adds a waiter to a board for peers of another owner. The daemon sends it to all programs of that owner that have a stream with this
    /// one, before it replies.
    39 StreamBoardWaiter since 5, reply "`Done`", descriptors ["the waiter's doorbell, a Unix socket of packets"] {
        /// The number of the board.
        board: u32,
        /// The index of the waiter, which is also the index of its page in the board. Each index is used once for each board.
        waiter: u8,
    }

    /// Names a TCP socket that is an end of a stream which an earlier daemon has made. Both programs go on to use its memory, which this
    /// daemon does not have. It is for reports only, so the daemon believes it. `StreamGone` withdraws it.
    40 StreamKept since 5, reply "", descriptors [] {
        /// The number of the socket. The program has no other listed or shown socket of this number.
        token: u32,
        /// The inode of the socket.
        inode: u64,
        /// The address of the socket, as `192.0.2.1:80` or `[2001:db8::1]:80`.
        local: Text,
        /// The address of the other end, as the socket has it.
        peer: Text,
    }
}

messages! {
    /// A message about streams, from a daemon to a program.
    SocketsToClient;

    /// The connection is attached to streams.
    160 StreamAttached since 4, reply "", descriptors ["own board's memory", "the listed page"] {
        /// The number of the program's session. Other programs know the program by this number.
        session: u32,
        /// The bytes in both directions after which the program shows a connection.
        after_bytes: u64,
    }

    /// The address of the listening socket is listed.
    161 StreamListening since 4, reply "", descriptors [] {
        /// The number of the socket.
        token: u32,
    }

    /// The shown socket waits for the socket at its other end. `StreamPaired` or `StreamRefused` follows within 60 s.
    162 StreamWaiting since 4, reply "", descriptors [] {
        /// The number of the socket.
        token: u32,
    }

    /// The shown socket is an end of a stream now. The waiters of a new peer were sent before.
    163 StreamPaired since 4, reply "", descriptors ["the stream's memory"] if new_peer ["peer's board's memory"] {
        /// The number of the shown socket.
        token: u32,
        /// The number of the stream.
        stream: u64,
        /// The end that the program has.
        end: StreamEndIndex,
        /// The session of the program at the other end.
        peer: u32,
        /// True if this is the first stream with the peer, and the peer's board comes with the message.
        new_peer: bool,
    }

    /// The shown socket gets no stream, or the listening socket is not listed. The connection stays TCP.
    164 StreamRefused since 4, reply "", descriptors [] {
        /// The number of the socket.
        token: u32,
        /// The reason.
        reason: Reason,
    }

    /// A waiter of a peer.
    165 PeerWaiter since 4, reply "", descriptors ["the waiter's doorbell"] {
        /// The session of the peer.
        peer: u32,
        /// The index of the waiter.
        waiter: u8,
    }

    /// The session of a peer has ended. Its board and its waiters can go with the last stream.
    166 PeerLeft since 4, reply "", descriptors [] {
        /// The session of the peer.
        peer: u32,
    }

    /// A peer of another owner reaches the program by a board for that owner. The message comes before the first stream with the peer. A
    /// board ends with the last of its peers.
    167 StreamBoard since 5, reply "", descriptors [] if new_board ["the board's memory"] {
        /// The session of the peer.
        peer: u32,
        /// The number of the board. Each number is used once.
        board: u32,
        /// True for the first peer of its owner. The board's memory comes with the message.
        new_board: bool,
    }
}

macro_rules! conversions {
    ($nested:ident into $way:ident: $($message:ident)*) => {$(
        impl From<$message> for $way {
            fn from(message: $message) -> Self {
                Self::Sockets($nested::from(message))
            }
        }
    )*};
}

conversions! {
    SocketsToDaemon into ToDaemon:
    StreamAttach StreamWaiter StreamListen StreamUnlisten StreamShow StreamEnded StreamGone
    StreamBoardWaiter StreamKept
}

conversions! {
    SocketsToClient into ToClient:
    StreamAttached StreamListening StreamWaiting StreamPaired StreamRefused PeerWaiter PeerLeft
    StreamBoard
}
