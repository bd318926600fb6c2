//! Frames by an AF_PACKET socket: any network card, bridge or veth, any MTU, nothing to install.
//!
//! The socket receives one ethertype from one interface. It bypasses the queueing disciplines (unless configured otherwise), receives none
//! of its own frames, and has a large buffer. A frame that arrives only because the interface is promiscuous (`PACKET_OTHERHOST`) is
//! dropped.
//!
//! The interface is identified by its name. If it disappears and another one with that name appears, the link is bound to the new one
//! ([`Link::refresh`]).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use isthmus_layout::NicId;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::frame::HEADER_BYTES;
use crate::incoming::Incoming;
use crate::interface::{Interface, query};
use crate::link::SEND_MAX;
use crate::outgoing::{Message, Outgoing};
use crate::sys;
use crate::{
    Frame, Link, LinkCounters, LinkError, LinkKind, LinkState, OpenError, RefusedFrames, SendNext, SendOutcome,
};

/// The maximum number of frames received at once.
const RECEIVE_MAX: usize = 64;

/// Messages with one frame each.
static ONE_FRAME_EACH: [Message; SEND_MAX] = {
    let mut messages = [Message { first: 0, count: 1, to: None, segment: None }; SEND_MAX];
    let mut n = 0;
    while n < SEND_MAX {
        messages[n].first = n;
        n += 1;
    }
    messages
};

/// Options for opening a packet link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketOptions {
    /// True if frames bypass the queueing discipline, which would cost a third. Set to false if `tc` limits the rate.
    pub qdisc_bypass: bool,
    /// The size of the kernel's receive buffer in bytes. Smaller without CAP_NET_ADMIN if `net.core.rmem_max` is smaller.
    pub receive_buffer: u32,
    /// The size of the kernel's send buffer in bytes, with the same limitation (`net.core.wmem_max`).
    pub send_buffer: u32,
}

impl Default for PacketOptions {
    fn default() -> Self {
        Self { qdisc_bypass: true, receive_buffer: 16 << 20, send_buffer: 4 << 20 }
    }
}

/// A link for the frames of one ethertype on one interface.
#[derive(Debug)]
pub struct PacketLink {
    name: String,
    ethertype: u16,
    socket: OwnedFd,
    /// The interface as last seen.
    interface: Interface,
    state: LinkState,
    outgoing: Box<Outgoing>,
    incoming: Incoming,
    /// The frames of the last batch: index of the message, and length.
    batch: Vec<(usize, usize)>,
    /// True if more frames may be waiting.
    has_more: bool,
    counters: LinkCounters,
}

impl PacketLink {
    /// Opens an interface of this network namespace for the frames of one ethertype. It may be down.
    pub fn open(name: &str, ethertype: u16, options: &PacketOptions) -> Result<Self, OpenError> {
        let socket = socket(options)?;
        let interface = query(&socket, name).map_err(|source| match source {
            Errno::NODEV => OpenError::NoInterface { name: name.to_owned() },
            source => OpenError::Refused { operation: "asking about the interface", source },
        })?;
        if !sys::ETHERNET.contains(&interface.hardware) {
            return Err(OpenError::NotEthernet { name: name.to_owned(), hardware: interface.hardware });
        }
        let refused = |operation| move |source| OpenError::Refused { operation, source };
        sys::bind_packet(&socket, ethertype, interface.index).map_err(refused("binding a packet socket"))?;
        let incoming = incoming_for(&interface).map_err(refused("making room for frames"))?;
        let state = if interface.is_up { LinkState::Up } else { LinkState::Down };
        let batch = Vec::with_capacity(RECEIVE_MAX);
        let (outgoing, counters) = (Outgoing::new(), LinkCounters::default());
        let (name, has_more) = (name.to_owned(), false);
        Ok(Self { name, ethertype, socket, interface, state, outgoing, incoming, batch, has_more, counters })
    }

    fn failed(&self, operation: &'static str) -> impl FnOnce(Errno) -> LinkError {
        let link = self.name.clone();
        move |source| LinkError { link, operation, source }
    }

    /// Decides how to continue after the kernel refused the first of the frames offered to it.
    fn refusal(&mut self, errno: Errno) -> Result<Refusal, LinkError> {
        match errno {
            Errno::MSGSIZE => {
                // The MTU was lowered. The new one applies to the next frames.
                self.query()?;
                self.counters.too_long += 1;
                Ok(Refusal::Frame)
            }
            Errno::AGAIN => Ok(Refusal::Rest(SendNext::Full)),
            // The card's queue is full, or there is no carrier, for which the kernel returns the same error.
            Errno::NOBUFS => {
                Ok(Refusal::Rest(if self.query()? == LinkState::Up { SendNext::Full } else { SendNext::Down }))
            }
            Errno::NETDOWN | Errno::NXIO | Errno::NODEV => {
                self.query()?;
                Ok(Refusal::Rest(SendNext::Down))
            }
            Errno::INTR => Ok(Refusal::Retry),
            errno => Err(self.failed("sending")(errno)),
        }
    }

    /// Queries the interface, and binds the socket to it if it is another one now.
    fn query(&mut self) -> Result<LinkState, LinkError> {
        let now = match query(&self.socket, &self.name) {
            Ok(now) => now,
            Err(Errno::NODEV) => {
                self.state = LinkState::Gone;
                return Ok(self.state);
            }
            Err(source) => return Err(self.failed("asking about the interface")(source)),
        };
        let is_new = now.index != self.interface.index || self.state == LinkState::Gone;
        if is_new && let Err(source) = sys::bind_packet(&self.socket, self.ethertype, now.index) {
            return match source {
                Errno::NODEV => Ok(LinkState::Gone), // Gone again, or renamed, since the query.
                source => Err(self.failed("binding to the interface of this name that is new")(source)),
            };
        }
        self.state = if now.is_up { LinkState::Up } else { LinkState::Down };
        self.interface = now;
        Ok(self.state)
    }

    /// Keeps the messages that are frames for this host.
    fn keep_frames(&mut self, count: usize) {
        for n in 0..count {
            let message = self.incoming.message(n);
            let for_us = (sys::PACKET_HOST..=sys::PACKET_MULTICAST).contains(&message.name[PACKET_TYPE_AT]);
            if !for_us {
                self.counters.not_for_us += 1;
            } else if message.len > message.bytes.len() {
                self.counters.truncated += 1;
            } else if message.len < HEADER_BYTES {
                self.counters.short += 1;
            } else {
                self.counters.count_received(message.len);
                self.batch.push((n, message.len));
            }
        }
    }
}

/// The offset of `sll_pkttype` in `struct sockaddr_ll`.
const PACKET_TYPE_AT: usize = 10;

/// The consequence of a refused frame.
enum Refusal {
    /// The frame cannot be sent.
    Frame,
    /// Neither the frame nor the rest can be sent now.
    Rest(SendNext),
    /// The frame can be sent again at once.
    Retry,
}

/// Creates an unbound socket, which receives nothing before its options are set.
fn socket(options: &PacketOptions) -> Result<OwnedFd, OpenError> {
    let operation = "opening a packet socket";
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None).map_err(|source| match source {
        Errno::AFNOSUPPORT => OpenError::NotSupported { operation, what: "it has no CONFIG_PACKET" },
        source => OpenError::from_errno(operation, "CAP_NET_RAW", source),
    })?;
    if options.qdisc_bypass {
        // Before Linux 3.14 the option does not exist, and frames pass the queueing discipline.
        let _ = sys::set_option(&socket, sys::PACKET_QDISC_BYPASS, 1);
    }
    // Before Linux 4.20 the socket receives its own frames, and the link drops them by their type.
    let _ = sys::set_option(&socket, sys::PACKET_IGNORE_OUTGOING, 1);
    set_buffers(&socket, options.receive_buffer, options.send_buffer);
    Ok(socket)
}

/// Sets the buffer sizes as far as the process may.
pub(crate) fn set_buffers(socket: impl AsFd, receive: u32, send: u32) {
    let larger = |force, plain, bytes: u32| {
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        // After a refusal the buffer keeps its size: fewer frames fit, and losses are counted.
        let _ = sys::set_option(&socket, force, bytes).or_else(|_| sys::set_option(&socket, plain, bytes));
    };
    larger(sys::RECEIVE_BUFFER_FORCE, sys::RECEIVE_BUFFER, receive);
    larger(sys::SEND_BUFFER_FORCE, sys::SEND_BUFFER, send);
}

/// Allocates buffers for frames of this interface, or of the usual large MTU, in case the MTU is raised.
fn incoming_for(interface: &Interface) -> Result<Incoming, Errno> {
    let longest = HEADER_BYTES + 4 + (interface.mtu as usize).max(9216); // 4: a VLAN tag.
    Incoming::new(RECEIVE_MAX, longest.next_multiple_of(64), false)
}

impl AsFd for PacketLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Link for PacketLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Packet
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn nic(&self) -> NicId {
        self.interface.nic
    }

    fn frame_bytes_max(&self) -> u32 {
        self.interface.mtu.saturating_add(HEADER_BYTES as u32)
    }

    fn state(&self) -> LinkState {
        self.state
    }

    fn send(&mut self, frames: &[Frame<'_>]) -> Result<SendOutcome, LinkError> {
        let frames = &frames[..frames.len().min(SEND_MAX)];
        let mut sent = SendOutcome { accepted: 0, refused: RefusedFrames::default(), next: SendNext::Ready };
        while sent.accepted < frames.len() {
            let rest = &frames[sent.accepted..];
            self.counters.sends += 1;
            match self.outgoing.send(&self.socket, rest, &ONE_FRAME_EACH[..rest.len()]) {
                Ok(count) => {
                    rest[..count].iter().for_each(|frame| self.counters.count_sent(frame.len()));
                    sent.accepted += count;
                    self.state = LinkState::Up;
                }
                Err(errno) => match self.refusal(errno)? {
                    Refusal::Retry => {}
                    Refusal::Frame => {
                        sent.refused.add(sent.accepted);
                        sent.accepted += 1;
                    }
                    Refusal::Rest(next) => {
                        sent.next = next;
                        break;
                    }
                },
            }
        }
        match sent.next {
            SendNext::Ready => {}
            SendNext::Full => self.counters.no_room += 1,
            SendNext::Down => self.counters.down += 1,
        }
        Ok(sent)
    }

    fn receive(&mut self) -> Result<usize, LinkError> {
        self.batch.clear();
        self.counters.receives += 1;
        self.has_more = match self.incoming.receive(&self.socket) {
            Ok(count) => {
                self.keep_frames(count);
                count == RECEIVE_MAX
            }
            Err(Errno::AGAIN) => false,
            Err(Errno::INTR) => true,
            // The kernel reports this once, when the interface goes down.
            Err(Errno::NETDOWN | Errno::NXIO | Errno::NODEV) => {
                self.query()?;
                false
            }
            Err(errno) => return Err(self.failed("receiving")(errno)),
        };
        Ok(self.batch.len())
    }

    fn has_more(&self) -> bool {
        self.has_more
    }

    fn frame(&self, n: usize) -> &[u8] {
        let (message, len) = self.batch[n];
        self.incoming.bytes(self.incoming.buffer_offset(message), len)
    }

    fn refresh(&mut self) -> Result<LinkState, LinkError> {
        self.batch.clear();
        self.query()?;
        if HEADER_BYTES + 4 + self.interface.mtu as usize > self.incoming.stride() {
            self.incoming = incoming_for(&self.interface).map_err(self.failed("making room for larger frames"))?;
        }
        Ok(self.state)
    }

    fn counters(&self) -> LinkCounters {
        LinkCounters { overruns: sys::overruns(&self.socket).unwrap_or(0), ..self.counters }
    }
}
