//! A UDP socket through which overlay edges exchange datagrams with other hosts.
//!
//! One send carries up to 64 datagrams of one size, which the kernel or the card splits (`UDP_SEGMENT`). One received message holds
//! several datagrams of one sender, if the kernel has merged them (`UDP_GRO`). The socket does not interpret the datagrams.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::getsockname;

use crate::incoming::Incoming;
use crate::outgoing::{name_of, segment_control};
use crate::packet::set_buffers;
use crate::udp::path::{Fragments, Routes, is_about_cutting, is_about_the_path, open_socket};
use crate::udp::received::sender;
use crate::{LinkError, OpenError, sys};

pub use crate::udp::segments::DATAGRAM_BYTES_MAX;

/// The maximum number of datagrams that one [`EdgeSocket::send`] takes: the limit of the kernel (`UDP_MAX_SEGMENTS` of Linux 5.0).
pub const SEGMENTS_MAX: usize = 64;

/// The maximum number of messages received at once.
const RECEIVE_MAX: usize = 64;

/// The size of the buffer of each message: the maximum size of a datagram.
const MESSAGE_BUFFER_BYTES: usize = 1 << 16;

/// The sizes of the kernel's buffers in bytes. A burst of another host has to fit while this host's worker does not run.
const RECEIVE_BUFFER_BYTES: u32 = 16 << 20;
const SEND_BUFFER_BYTES: u32 = 4 << 20;

/// Returns the length of the longest datagram on the path to a host, as the kernel knows it now. Returns none without a route.
pub fn datagram_bytes_to(to: SocketAddr) -> Option<usize> {
    longest_datagram(&Routes::open(), to)
}

fn longest_datagram(routes: &Routes, to: SocketAddr) -> Option<usize> {
    let bytes = routes.frame_bytes_to(to).ok()?;
    Some((bytes as usize).min(DATAGRAM_BYTES_MAX))
}

/// A UDP socket of overlay edges.
#[derive(Debug)]
pub struct EdgeSocket {
    name: String,
    bound: SocketAddr,
    socket: OwnedFd,
    routes: Routes,
    incoming: Incoming,
    /// The number of messages of the last batch.
    received: usize,
    has_more: bool,
    /// True if the kernel splits messages.
    segments: bool,
}

/// A received message: one datagram, or several of one size (the last may be shorter).
#[derive(Clone, Copy, Debug)]
pub struct EdgeMessage<'a> {
    /// The sender.
    pub from: SocketAddr,
    /// The datagrams, one behind the other.
    pub bytes: &'a [u8],
    /// The size of each datagram but the last; never 0.
    pub datagram_bytes: usize,
}

/// The result of [`EdgeSocket::send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "datagrams that were not sent are lost, or are to be sent again"]
pub enum EdgeSend {
    /// The kernel has taken all datagrams.
    Sent,
    /// The socket's buffer is full. The descriptor is writable when there is room.
    Full,
    /// The kernel does not split the message. The datagrams may be sent one by one.
    Unsplit,
    /// A datagram is too long for the path.
    TooLong,
    /// There is no route to the host.
    Unreachable,
    /// A firewall of this host, or the service manager of this process, does not permit it.
    NotPermitted,
}

impl EdgeSocket {
    /// Opens a socket. An unspecified IPv6 address includes IPv4. With `may_fragment`, datagrams that are longer than the path allows are
    /// fragmented by IP; otherwise they are refused as [`EdgeSend::TooLong`].
    pub fn open(bind: SocketAddr, may_fragment: bool) -> Result<Self, OpenError> {
        let socket = open_socket(bind, if may_fragment { Fragments::Allowed } else { Fragments::Refused })?;
        let refused = |operation| move |source| OpenError::Refused { operation, source };
        let bound = getsockname(&socket).and_then(SocketAddr::try_from).map_err(refused("asking for our address"))?;
        set_buffers(&socket, RECEIVE_BUFFER_BYTES, SEND_BUFFER_BYTES);
        let segments = sys::set_option(&socket, sys::UDP_SEGMENT, 0).is_ok();
        let _ = sys::set_option(&socket, sys::UDP_GRO, 1); // Without this option datagrams arrive singly.
        let incoming = Incoming::new(RECEIVE_MAX, MESSAGE_BUFFER_BYTES, true).map_err(refused("allocating buffers"))?;
        let name = format!("udp:{bound}");
        Ok(Self { name, bound, socket, routes: Routes::open(), incoming, received: 0, has_more: false, segments })
    }

    /// Returns the bound address with its port.
    pub fn bound(&self) -> SocketAddr {
        self.bound
    }

    /// Returns the size of the receive buffer that the kernel granted, in the units of `net.core.rmem_max`.
    pub fn receive_buffer_bytes(&self) -> Option<usize> {
        let bytes = sys::option::<i32>(&self.socket, sys::RECEIVE_BUFFER).ok()?;
        usize::try_from(bytes / 2).ok() // The kernel doubles the size, for what it adds to each datagram.
    }

    /// Returns the length of the longest datagram on the path to a host, as the kernel knows it now. Returns none without a route.
    pub fn datagram_bytes_to(&self, to: SocketAddr) -> Option<usize> {
        longest_datagram(&self.routes, to)
    }

    /// Receives a batch of messages without blocking; returns their number. The messages of the last batch become invalid.
    pub fn receive(&mut self) -> Result<usize, LinkError> {
        self.received = 0;
        (self.received, self.has_more) = match self.incoming.receive(&self.socket) {
            Ok(count) => (count, count == RECEIVE_MAX),
            Err(Errno::AGAIN) => (0, false),
            Err(Errno::INTR) => (0, true),
            Err(errno) if is_about_the_path(errno) => (0, true), // The error concerns sent datagrams and precedes the received ones.
            Err(source) => return Err(LinkError { link: self.name.clone(), operation: "receiving", source }),
        };
        Ok(self.received)
    }

    /// Returns true if the last [`receive`](Self::receive) may have left messages. Polling the descriptor does not report those again.
    pub fn has_more(&self) -> bool {
        self.has_more
    }

    /// Returns message `n` of the last batch. Returns none if the message is empty, was cut, or its sender has no address.
    ///
    /// # Panics
    ///
    /// Panics if the batch has no such message.
    pub fn message(&self, n: usize) -> Option<EdgeMessage<'_>> {
        assert!(n < self.received, "message {n} of {}", self.received);
        let message = self.incoming.message(n);
        if message.bytes.is_empty() || message.len > message.bytes.len() {
            return None;
        }
        let datagram_bytes = message.segment.filter(|&bytes| bytes > 0).unwrap_or(message.bytes.len());
        Some(EdgeMessage { from: sender(message.name)?, bytes: message.bytes, datagram_bytes })
    }

    /// Sends the bytes of `parts` without blocking, in datagrams of `datagram_bytes` (the last may be shorter), or as one datagram.
    ///
    /// # Panics
    ///
    /// Panics if `parts` has more than [`PARTS_MAX`](Self::PARTS_MAX) members.
    pub fn send(&mut self, to: SocketAddr, parts: &[IoSlice<'_>], datagram_bytes: Option<u16>) -> EdgeSend {
        assert!(parts.len() <= Self::PARTS_MAX, "{} parts", parts.len());
        if datagram_bytes.is_some() && !self.segments {
            return EdgeSend::Unsplit;
        }
        let name = name_of(self.on_our_socket(to));
        loop {
            return match sys::send_parts(&self.socket, &name, parts, datagram_bytes.map(segment_control)) {
                Ok(_) => EdgeSend::Sent,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN | Errno::NOBUFS) => EdgeSend::Full,
                Err(errno) if datagram_bytes.is_some() && is_about_cutting(errno) => {
                    self.segments &= errno == Errno::MSGSIZE || errno == Errno::INVAL;
                    EdgeSend::Unsplit
                }
                Err(Errno::MSGSIZE) => EdgeSend::TooLong,
                Err(Errno::PERM) => EdgeSend::NotPermitted,
                Err(_) => EdgeSend::Unreachable,
            };
        }
    }

    /// The maximum number of parts of a message: the kernel's limit for vectors.
    pub const PARTS_MAX: usize = 1024;

    /// Returns the number of messages that the kernel dropped because the socket's buffer was full.
    pub fn overruns(&self) -> u64 {
        sys::overruns(&self.socket).unwrap_or(0)
    }

    /// Returns the destination in the address family of the socket.
    fn on_our_socket(&self, to: SocketAddr) -> SocketAddr {
        match to {
            SocketAddr::V4(v4) if self.bound.is_ipv6() => SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port())),
            to => to,
        }
    }
}

impl AsFd for EdgeSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
