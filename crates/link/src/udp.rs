//! Frames as UDP datagrams, for hosts that are connected only by IP. The format is docs/spec/mxoe-over-udp.md.
//!
//! ```text
//!   frame ──► one datagram, whole, Ethernet header first          to the host that answers to its destination
//!   frames of one length to one host ──► one send (UDP_SEGMENT) … one receive (UDP_GRO) ──► frames
//! ```
//!
//! Hosts are configured ([`UdpLink::set_peers`]). The table says which host may use which source addresses. Datagrams are never fragmented:
//! a frame that is too long for the path is refused.

pub(crate) mod path;
mod peers;
pub(crate) mod received;
pub(crate) mod segments;

use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};

use isthmus_layout::NicId;
use rustix::io::Errno;
use rustix::net::getsockname;

use crate::frame::is_group;
use crate::incoming::Incoming;
use crate::link::SEND_MAX;
use crate::outgoing::{Message, Outgoing};
use crate::packet::set_buffers;
use crate::sys;
use crate::{
    Frame, Link, LinkCounters, LinkError, LinkKind, LinkState, OpenError, RefusedFrames, SendNext, SendOutcome,
};
use path::{Fragments, Routes, is_about_cutting, is_about_the_path, open_socket, overhead};
pub use peers::Peer;
use peers::Peers;
use received::{Drop, check, sender};
use segments::DATAGRAM_BYTES_MAX;

/// The UDP port: the ethertype of the frames.
pub const UDP_PORT: u16 = 0x86DF;

/// The maximum number of datagrams, or runs of them, received at once.
const RECEIVE_MAX: usize = 16;

/// The size of each buffer: the maximum size of a datagram.
const DATAGRAM_BUFFER_BYTES: usize = 1 << 16;

/// The usual number of frames in them. More frames only cost an allocation.
const FRAMES_TYPICAL: usize = 64 * RECEIVE_MAX;

/// The MTU that is assumed while there is no peer.
const MTU_DEFAULT: u32 = 1500;

/// Options for opening a UDP link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpOptions {
    /// The address for receiving and sending. An unspecified IPv6 address includes IPv4.
    pub bind: SocketAddr,
    /// The link's own address in frames.
    pub nic: NicId,
    /// The ethertype of all frames. Others are dropped.
    pub ethertype: u16,
    /// The longest frame, in place of the limit of the paths to all peers.
    pub frame_bytes_max: Option<u32>,
    /// True to pass several frames in one system call if the kernel can (`UDP_SEGMENT`, `UDP_GRO`).
    pub offload: bool,
    /// The size of the kernel's receive buffer in bytes, as for [`PacketOptions`](crate::PacketOptions).
    pub receive_buffer: u32,
    /// The size of the kernel's send buffer in bytes.
    pub send_buffer: u32,
}

impl UdpOptions {
    /// Returns the default options for a board with this address.
    pub fn new(nic: NicId) -> Self {
        Self {
            bind: SocketAddr::from((Ipv6Addr::UNSPECIFIED, UDP_PORT)),
            nic,
            ethertype: 0x86DF,
            frame_bytes_max: None,
            offload: true,
            receive_buffer: 16 << 20,
            send_buffer: 4 << 20,
        }
    }
}

/// A link that carries frames as UDP datagrams.
#[derive(Debug)]
pub struct UdpLink {
    name: String,
    options: UdpOptions,
    bound: SocketAddr,
    socket: OwnedFd,
    routes: Routes,
    /// True if the kernel splits messages.
    segments: bool,
    peers: Peers,
    /// Other peers, from a thread that found out more about them.
    updates: Option<Receiver<Vec<Peer>>>,
    /// The length of the longest frame that fits the path to every peer.
    path_bytes_max: u32,
    state: LinkState,
    outgoing: Box<Outgoing>,
    messages: Vec<Message>,
    incoming: Incoming,
    /// The frames of the last batch: offset and length.
    batch: Vec<(usize, usize)>,
    /// True if more frames may be waiting.
    has_more: bool,
    counters: LinkCounters,
}

impl UdpLink {
    /// Opens a link without peers.
    pub fn open(options: &UdpOptions) -> Result<Self, OpenError> {
        let socket = open_socket(options.bind, Fragments::Refused)?;
        let refused = |operation| move |source| OpenError::Refused { operation, source };
        let bound = getsockname(&socket).and_then(SocketAddr::try_from).map_err(refused("asking for our address"))?;
        set_buffers(&socket, options.receive_buffer, options.send_buffer);
        let probe = || sys::set_option(&socket, sys::UDP_SEGMENT, 0).is_ok();
        let segments = options.offload && probe();
        if options.offload {
            let _ = sys::set_option(&socket, sys::UDP_GRO, 1); // Without this option datagrams arrive singly.
        }
        let mut link = Self {
            name: format!("udp:{bound}"),
            options: options.clone(),
            bound,
            socket,
            routes: Routes::open(),
            segments,
            peers: Peers::default(),
            updates: None,
            path_bytes_max: 0,
            state: LinkState::Up,
            outgoing: Outgoing::new(),
            messages: Vec::with_capacity(SEND_MAX),
            incoming: Incoming::new(RECEIVE_MAX, DATAGRAM_BUFFER_BYTES, true)
                .map_err(refused("making room for frames"))?,
            batch: Vec::with_capacity(FRAMES_TYPICAL),
            has_more: false,
            counters: LinkCounters::default(),
        };
        link.query();
        Ok(link)
    }

    /// Replaces the peers. Peers that stay keep the addresses that they announced.
    pub fn set_peers(&mut self, peers: &[Peer]) -> Result<(), OpenError> {
        let max = peers::HOSTS_MAX;
        if peers.len() > max {
            return Err(OpenError::TooManyPeers { count: peers.len(), max });
        }
        let is_v4_only = self.bound.is_ipv4();
        let is_v6_only = !is_v4_only && !self.bound.ip().is_unspecified();
        let wrong = |peer: &&Peer| {
            let is_v4 = peer.address.ip().to_canonical().is_ipv4();
            (is_v4 && is_v6_only) || (!is_v4 && is_v4_only)
        };
        if let Some(peer) = peers.iter().find(wrong) {
            return Err(OpenError::MixedFamilies { from: self.bound, peer: peer.address });
        }
        self.peers.set(peers);
        self.query();
        Ok(())
    }

    /// Returns a sender of peers that replace the ones of the link, as by [`UdpLink::set_peers`]. The link takes them before it sends to all
    /// hosts or to an unknown address; announcements make sure that this comes soon. Peers that do not fit are ignored.
    pub fn peer_updates(&mut self) -> Sender<Vec<Peer>> {
        let (sender, receiver) = channel();
        self.updates = Some(receiver);
        sender
    }

    fn take_updates(&mut self) {
        if let Some(peers) = self.updates.as_ref().and_then(|updates| updates.try_iter().last()) {
            let _ = self.set_peers(&peers);
        }
    }

    /// Returns the bound address with its port.
    pub fn bound(&self) -> SocketAddr {
        self.bound
    }

    /// Queries the path to every peer again.
    fn query(&mut self) {
        let mtus: Vec<Option<u32>> = self.peers.addresses().map(|to| self.routes.frame_bytes_to(to).ok()).collect();
        let none = mtus.is_empty().then_some(MTU_DEFAULT - overhead(self.bound.ip()));
        let reached = mtus.iter().copied().flatten().chain(none).min();
        self.state = if reached.is_some() { LinkState::Up } else { LinkState::Down };
        if let Some(bytes) = reached {
            self.path_bytes_max = bytes.min(DATAGRAM_BYTES_MAX as u32);
        }
    }

    /// Returns the destination in the address family of the socket.
    fn on_our_socket(&self, to: SocketAddr) -> SocketAddr {
        match to {
            SocketAddr::V4(v4) if self.bound.is_ipv6() => SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port())),
            to => to,
        }
    }

    fn host_of(&self, frame: &Frame<'_>) -> Option<SocketAddr> {
        if frame.len() > self.frame_bytes_max() as usize {
            return None; // `send_without_host` refuses these.
        }
        self.peers.address_of(frame.destination()).map(|to| self.on_our_socket(to))
    }

    /// Sends as many frames as possible, starting at frame `sent.accepted`. Returns false when sending is over.
    fn send_some(
        &mut self,
        frames: &[Frame<'_>],
        sent: &mut SendOutcome,
        singly: &mut usize,
    ) -> Result<bool, LinkError> {
        let from = sent.accepted;
        let mut messages = std::mem::take(&mut self.messages);
        let before = if self.segments { *singly } else { usize::MAX };
        segments::messages(
            &mut messages,
            |n| frames[n].len(),
            |n| self.host_of(&frames[n]),
            from..frames.len(),
            before,
        );
        for message in messages.iter_mut().filter(|message| message.count == 1) {
            message.segment = None;
        }
        let outcome = match messages.first() {
            None => self.send_without_host(&frames[from..=from], sent),
            Some(first) => {
                self.counters.sends += 1;
                match self.outgoing.send(&self.socket, frames, &messages) {
                    Ok(count) => {
                        let went: usize = messages[..count].iter().map(|message| message.count).sum();
                        frames[from..from + went].iter().for_each(|frame| self.counters.count_sent(frame.len()));
                        sent.accepted += went;
                        Ok(true)
                    }
                    Err(errno) if first.count > 1 && is_about_cutting(errno) => {
                        *singly = from + first.count; // Each of these frames gets its own error, if any.
                        self.segments &= errno == Errno::MSGSIZE || errno == Errno::INVAL;
                        Ok(true)
                    }
                    Err(errno) => self.refusal(errno, sent),
                }
            }
        };
        self.messages = messages;
        outcome
    }

    /// Handles a frame that is not for one known host: it is too long, a broadcast, or for an unknown host.
    fn send_without_host(&mut self, frame: &[Frame<'_>], sent: &mut SendOutcome) -> Result<bool, LinkError> {
        if frame[0].len() > self.frame_bytes_max() as usize {
            self.counters.too_long += 1;
            sent.refused.add(sent.accepted);
        } else if is_group(frame[0].destination()) {
            return self.send_to_all(frame, sent);
        } else {
            self.take_updates();
            self.counters.peer_unknown += 1;
            sent.refused.add(sent.accepted);
        }
        sent.accepted += 1;
        Ok(true)
    }

    /// Sends a copy to every host. Copies without room or route are lost.
    fn send_to_all(&mut self, frame: &[Frame<'_>], sent: &mut SendOutcome) -> Result<bool, LinkError> {
        self.take_updates();
        let hosts: Vec<SocketAddr> = self.peers.addresses().map(|to| self.on_our_socket(to)).collect(); // Rare.
        let mut taken = 0;
        while taken < hosts.len() {
            let message = |&to| Message { first: 0, count: 1, to: Some(to), segment: None };
            let messages: Vec<Message> = hosts[taken..].iter().take(SEND_MAX).map(message).collect();
            self.counters.sends += 1;
            match self.outgoing.send(&self.socket, frame, &messages) {
                Ok(count) => {
                    (0..count).for_each(|_| self.counters.count_sent(frame[0].len()));
                    taken += count;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS) if taken == 0 => {
                    sent.next = SendNext::Full;
                    return Ok(false);
                }
                Err(Errno::AGAIN | Errno::NOBUFS) => {
                    self.counters.no_room += 1;
                    break;
                }
                Err(Errno::MSGSIZE) => {
                    self.counters.too_long += 1;
                    taken += 1;
                }
                Err(errno) if is_about_the_path(errno) => {
                    self.count_refused(errno);
                    taken += 1;
                }
                Err(errno) => return Err(self.failed("sending")(errno)),
            }
        }
        sent.accepted += 1;
        Ok(true)
    }

    /// Decides how to continue after the kernel refused the first frame offered to it.
    fn refusal(&mut self, errno: Errno, sent: &mut SendOutcome) -> Result<bool, LinkError> {
        match errno {
            Errno::INTR => return Ok(true),
            Errno::AGAIN | Errno::NOBUFS => {
                sent.next = SendNext::Full;
                return Ok(false);
            }
            Errno::MSGSIZE => {
                self.query();
                self.counters.too_long += 1;
            }
            errno if is_about_the_path(errno) => self.count_refused(errno),
            errno => return Err(self.failed("sending")(errno)),
        }
        sent.refused.add(sent.accepted);
        sent.accepted += 1;
        Ok(true)
    }

    fn count_refused(&mut self, errno: Errno) {
        match errno {
            Errno::PERM => self.counters.not_permitted += 1,
            _ => self.counters.unreachable += 1,
        }
    }

    fn failed(&self, operation: &'static str) -> impl FnOnce(Errno) -> LinkError {
        let link = self.name.clone();
        move |source| LinkError { link, operation, source }
    }

    /// Finds the frames in received message `n`.
    fn sort(&mut self, n: usize) {
        let message = self.incoming.message(n);
        let segment = message.segment.unwrap_or(message.len).max(1);
        let frames = message.len.div_ceil(segment) as u64;
        if message.len > message.bytes.len() {
            self.counters.truncated += frames;
            return;
        }
        let Some(host) = sender(message.name).and_then(|from| self.peers.host_at(from)) else {
            self.counters.sender_unknown += frames.max(1);
            return;
        };
        let mut at = self.incoming.buffer_offset(n);
        for frame in message.bytes.chunks(segment) {
            match check(frame, &self.options, &mut self.peers, host) {
                Ok(()) => {
                    self.counters.count_received(frame.len());
                    self.batch.push((at, frame.len()));
                }
                Err(Drop::Short) => self.counters.short += 1,
                Err(Drop::Ethertype) => self.counters.ethertype_foreign += 1,
                Err(Drop::NotForUs) => self.counters.not_for_us += 1,
                Err(Drop::Forged) => self.counters.sender_forged += 1,
                Err(Drop::Name) => self.counters.names_refused += 1,
            }
            at += frame.len();
        }
    }
}

impl AsFd for UdpLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Link for UdpLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Udp
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn nic(&self) -> NicId {
        self.options.nic
    }

    fn frame_bytes_max(&self) -> u32 {
        self.options.frame_bytes_max.unwrap_or(self.path_bytes_max)
    }

    fn state(&self) -> LinkState {
        self.state
    }

    fn send(&mut self, frames: &[Frame<'_>]) -> Result<SendOutcome, LinkError> {
        let frames = &frames[..frames.len().min(SEND_MAX)];
        let mut sent = SendOutcome { accepted: 0, refused: RefusedFrames::default(), next: SendNext::Ready };
        let mut singly = 0;
        while sent.accepted < frames.len() && self.send_some(frames, &mut sent, &mut singly)? {}
        self.counters.no_room += u64::from(sent.next == SendNext::Full);
        Ok(sent)
    }

    fn receive(&mut self) -> Result<usize, LinkError> {
        self.batch.clear();
        self.counters.receives += 1;
        self.has_more = match self.incoming.receive(&self.socket) {
            Ok(came) => {
                (0..came).for_each(|n| self.sort(n));
                came == RECEIVE_MAX
            }
            Err(Errno::AGAIN) => false,
            Err(Errno::INTR) => true,
            Err(errno) if is_about_the_path(errno) => true, // The error concerns sent frames and precedes the received ones.
            Err(errno) => return Err(self.failed("receiving")(errno)),
        };
        Ok(self.batch.len())
    }

    fn has_more(&self) -> bool {
        self.has_more
    }

    fn frame(&self, n: usize) -> &[u8] {
        let (at, len) = self.batch[n];
        self.incoming.bytes(at, len)
    }

    fn refresh(&mut self) -> Result<LinkState, LinkError> {
        self.batch.clear();
        self.query();
        Ok(self.state)
    }

    fn counters(&self) -> LinkCounters {
        LinkCounters { overruns: sys::overruns(&self.socket).unwrap_or(0), ..self.counters }
    }
}
