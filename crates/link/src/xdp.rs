//! Frames by an AF_XDP socket, past the kernel's protocol stack.
//!
//! A small program on the interface passes frames of the configured ethertype to the socket and all others to the protocol stack
//! ([`program`]). Frames are copied into and out of pages shared with the kernel: by this process when sending, by the kernel when
//! receiving. On interfaces like veth this is therefore no faster than a packet socket. It is for cards with a driver that supports it
//! ([`XdpOptions::zero_copy`]).
//!
//! A frame larger than a chunk (a page) uses several chunks, which requires Linux 6.6. On older kernels [`Link::frame_bytes_max`] is 3840,
//! whatever the MTU.
//!
//! The socket receives from one queue of the card. Cards deliver unknown protocols, such as this ethertype, to queue 0.
//!
//! The link has to be opened and refreshed in the network namespace of its interface.

mod program;
mod ring;
mod socket;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use isthmus_layout::NicId;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::frame::{HEADER_BYTES, is_group, nic};
use crate::interface::{Interface, query};
use crate::link::SEND_MAX;
use crate::memory::Memory;
use crate::sys::{self, InterfaceQuery};
use crate::{
    Frame, Link, LinkCounters, LinkError, LinkKind, LinkState, OpenError, RefusedFrames, SendNext, SendOutcome,
};
pub use program::XdpMode;
use socket::{CHUNK, GOES_ON, HEADROOM, INCOMING, OUTGOING, Socket, XdpDesc};

/// The maximum number of frames received at once.
const RECEIVE_MAX: usize = 64;

/// The buffer size for each frame that uses several chunks.
const STRIDE: usize = 16 << 10;

/// The maximum number of chunks of a frame: limited by the buffer and by the kernel.
const CHUNKS_MAX: usize = STRIDE / CHUNK;

/// Options for opening an AF_XDP link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpOptions {
    /// The queue of the card.
    pub queue: u32,
    /// The modes in which the program may run, tried in this order.
    pub modes: Vec<XdpMode>,
    /// True if the card may access the shared pages itself. If it cannot, the kernel copies.
    pub zero_copy: bool,
}

impl Default for XdpOptions {
    fn default() -> Self {
        Self { queue: 0, modes: vec![XdpMode::Native, XdpMode::Generic], zero_copy: false }
    }
}

/// A link for the frames of one ethertype on one queue of an interface.
#[derive(Debug)]
pub struct XdpLink {
    name: String,
    ethertype: u16,
    options: XdpOptions,
    socket: Socket,
    /// The socket for queries about the interface.
    asking: OwnedFd,
    interface: Interface,
    state: LinkState,
    /// Free chunks, for frames to send.
    free: Vec<u64>,
    /// The buffers in which frames of several chunks are joined.
    joined: Memory,
    batch: Vec<FramePlace>,
    /// The chunks of the last batch.
    accepted: Vec<u64>,
    /// True if more frames are waiting.
    has_more: bool,
    /// The losses of earlier sockets.
    dropped_before: u64,
    counters: LinkCounters,
}

/// The place of a received frame.
#[derive(Clone, Copy, Debug)]
enum FramePlace {
    Chunk(usize, usize),
    Joined(usize, usize),
}

impl XdpLink {
    /// Opens a queue of an interface for the frames of one ethertype.
    pub fn open(name: &str, ethertype: u16, options: &XdpOptions) -> Result<Self, OpenError> {
        let refused = |operation| move |source| OpenError::Refused { operation, source };
        let asking = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .map_err(refused("opening a socket to ask about the interface"))?;
        let interface = query(&asking, name).map_err(|source| match source {
            Errno::NODEV => OpenError::NoInterface { name: name.to_owned() },
            source => OpenError::Refused { operation: "asking about the interface", source },
        })?;
        if interface.hardware != sys::ETHERNET[0] {
            return Err(OpenError::NotEthernet { name: name.to_owned(), hardware: interface.hardware });
        }
        let socket = open_socket(&interface, ethertype, options)?;
        Ok(Self {
            name: name.to_owned(),
            ethertype,
            options: options.clone(),
            socket,
            asking,
            state: if interface.is_up { LinkState::Up } else { LinkState::Down },
            interface,
            free: free_chunks(),
            joined: Memory::new(RECEIVE_MAX * STRIDE).map_err(refused("making room for frames"))?,
            batch: Vec::with_capacity(RECEIVE_MAX),
            accepted: Vec::with_capacity(RECEIVE_MAX * CHUNKS_MAX),
            has_more: false,
            dropped_before: 0,
            counters: LinkCounters::default(),
        })
    }

    /// Returns the mode in which the program runs.
    pub fn mode(&self) -> XdpMode {
        self.socket.mode
    }

    fn failed(&self, operation: &'static str) -> impl FnOnce(Errno) -> LinkError {
        let link = self.name.clone();
        move |source| LinkError { link, operation, source }
    }

    /// Checks the MTU and the state of the link before a batch is sent, because the kernel does not report them for each frame.
    fn look_before_sending(&mut self) -> LinkState {
        let word = |answer: [u8; 24]| u32::from_ne_bytes([answer[0], answer[1], answer[2], answer[3]]);
        let flags = |answer: [u8; 24]| u32::from(u16::from_ne_bytes([answer[0], answer[1]]));
        let mtu = sys::query_interface(&self.asking, &self.name, InterfaceQuery::Mtu).map(word);
        let flags = sys::query_interface(&self.asking, &self.name, InterfaceQuery::Flags).map(flags);
        let is_up = flags.is_ok_and(|flags| flags & sys::UP_AND_RUNNING == sys::UP_AND_RUNNING);
        self.state = match (mtu, self.state) {
            (Err(_), _) | (_, LinkState::Gone) => LinkState::Gone, // A new interface with this name takes a new socket.
            (Ok(mtu), _) => {
                self.interface.mtu = mtu;
                if is_up { LinkState::Up } else { LinkState::Down }
            }
        };
        self.state
    }

    /// Takes back chunks that the kernel has sent.
    fn reclaim(&mut self) {
        let sent = self.socket.completion.filled();
        self.free.extend((0..sent).map(|ahead| self.socket.completion.peek(ahead)));
        self.socket.completion.release(sent);
    }

    /// Copies a frame into chunks and pushes them; returns false if there is no room.
    fn push(&mut self, frame: &Frame<'_>) -> bool {
        let pieces = frame.len().div_ceil(CHUNK);
        if self.free.len() < pieces || (self.socket.transmit.room() as usize) < pieces {
            return false;
        }
        let rest = self.free.len() - pieces;
        let mut chunks = [0; CHUNKS_MAX];
        chunks[..pieces].copy_from_slice(&self.free[rest..]);
        self.free.truncate(rest);
        let mut at = 0;
        for part in frame.parts() {
            let mut from = 0;
            while from < part.len() {
                let len = (CHUNK - at % CHUNK).min(part.len() - from);
                let place = chunks[at / CHUNK] as usize + at % CHUNK;
                part.slice(from..from + len).copy_out(self.socket.memory.bytes_mut(place, len));
                (at, from) = (at + len, from + len);
            }
        }
        for (n, &chunk) in chunks[..pieces].iter().enumerate() {
            let len = (frame.len() - n * CHUNK).min(CHUNK) as u32;
            let options = if n + 1 < pieces { GOES_ON } else { 0 };
            self.socket.transmit.push(XdpDesc { at: chunk, len, options });
        }
        true
    }

    /// Makes the kernel send the pushed frames. It sends a limited number at a time.
    fn kick(&mut self) -> Result<(), LinkError> {
        for _ in 0..SEND_MAX {
            if !self.socket.transmit.wants_a_kick() && self.options.zero_copy {
                return Ok(());
            }
            self.counters.sends += 1;
            let outcome = sys::kick(&self.socket.fd, true);
            self.reclaim();
            match outcome {
                Ok(()) => return Ok(()),
                Err(Errno::AGAIN | Errno::INTR) if self.socket.transmit.room() < OUTGOING => {}
                // Unsent frames stay in the ring and go with the next kick.
                Err(Errno::AGAIN | Errno::INTR | Errno::BUSY | Errno::NOBUFS) => return Ok(()),
                Err(Errno::NETDOWN | Errno::NXIO | Errno::NODEV) => {
                    self.state = LinkState::Down;
                    return Ok(());
                }
                Err(errno) => return Err(self.failed("sending")(errno)),
            }
        }
        Ok(())
    }

    /// Returns the chunks of the last batch to the kernel.
    fn give_back(&mut self) {
        self.batch.clear();
        self.accepted.drain(..).for_each(|chunk| self.socket.fill.push(chunk));
        self.socket.fill.publish();
    }

    /// Takes the frame that starts at entry `ahead`. Returns its number of pieces, or `None` if it is incomplete.
    fn take(&mut self, ahead: u32, filled: u32) -> Option<u32> {
        let mut pieces = [XdpDesc { at: 0, len: 0, options: 0 }; CHUNKS_MAX];
        let (mut count, mut len) = (0, 0);
        loop {
            if ahead + count == filled {
                return None;
            }
            let piece = self.socket.receive.peek(ahead + count);
            self.accepted.push(piece.at & !(CHUNK as u64 - 1));
            if let Some(place) = pieces.get_mut(count as usize) {
                *place = piece;
            }
            (count, len) = (count + 1, len + piece.len as usize);
            if piece.options & GOES_ON == 0 {
                break;
            }
        }
        if count as usize > CHUNKS_MAX || len > STRIDE {
            self.counters.truncated += 1;
        } else if count == 1 {
            self.sort(FramePlace::Chunk(pieces[0].at as usize, len));
        } else {
            let start = self.batch.len() * STRIDE;
            let mut at = start;
            for piece in &pieces[..count as usize] {
                let from = self.socket.memory.bytes(piece.at as usize, piece.len as usize);
                self.joined.bytes_mut(at, from.len()).copy_from_slice(from);
                at += from.len();
            }
            self.sort(FramePlace::Joined(start, len));
        }
        Some(count)
    }

    /// Keeps a frame if it is for this host.
    fn sort(&mut self, place: FramePlace) {
        let bytes = self.bytes(place);
        match nic(bytes, 0) {
            _ if bytes.len() < HEADER_BYTES => self.counters.short += 1,
            Some(to) if to == self.interface.nic || is_group(to) => {
                let len = bytes.len();
                self.counters.count_received(len);
                self.batch.push(place);
            }
            _ => self.counters.not_for_us += 1,
        }
    }

    fn bytes(&self, place: FramePlace) -> &[u8] {
        match place {
            FramePlace::Chunk(at, len) => self.socket.memory.bytes(at, len),
            FramePlace::Joined(at, len) => self.joined.bytes(at, len),
        }
    }
}

fn open_socket(interface: &Interface, ethertype: u16, options: &XdpOptions) -> Result<Socket, OpenError> {
    Socket::open(interface.index, options.queue, ethertype, &options.modes, options.zero_copy)
}

fn free_chunks() -> Vec<u64> {
    (INCOMING..INCOMING + OUTGOING).map(|chunk| u64::from(chunk) * CHUNK as u64).collect()
}

impl AsFd for XdpLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.fd.as_fd()
    }
}

impl Link for XdpLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Xdp
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn nic(&self) -> NicId {
        self.interface.nic
    }

    fn frame_bytes_max(&self) -> u32 {
        let most = if self.socket.multi_buffer { STRIDE - CHUNK } else { CHUNK - HEADROOM };
        (self.interface.mtu + HEADER_BYTES as u32).min(most as u32)
    }

    fn state(&self) -> LinkState {
        self.state
    }

    fn send(&mut self, frames: &[Frame<'_>]) -> Result<SendOutcome, LinkError> {
        let frames = &frames[..frames.len().min(SEND_MAX)];
        let mut sent = SendOutcome { accepted: 0, refused: RefusedFrames::default(), next: SendNext::Ready };
        if self.look_before_sending() != LinkState::Up {
            self.counters.down += 1;
            return Ok(SendOutcome { next: SendNext::Down, ..sent });
        }
        self.reclaim();
        let longest = self.frame_bytes_max() as usize;
        for (n, frame) in frames.iter().enumerate() {
            if frame.len() > longest {
                self.counters.too_long += 1;
                sent.refused.add(n);
            } else if self.push(frame) {
                self.counters.count_sent(frame.len());
            } else {
                self.counters.no_room += 1;
                sent.next = SendNext::Full;
                break;
            }
            sent.accepted += 1;
        }
        self.socket.transmit.publish();
        self.kick()?;
        Ok(sent)
    }

    fn receive(&mut self) -> Result<usize, LinkError> {
        self.give_back();
        self.counters.receives += 1;
        let filled = self.socket.receive.filled();
        let mut ahead = 0;
        self.has_more = false;
        while ahead < filled {
            if self.batch.len() == RECEIVE_MAX || self.accepted.len() >= RECEIVE_MAX * CHUNKS_MAX {
                self.has_more = true;
                break;
            }
            let before = self.accepted.len();
            match self.take(ahead, filled) {
                Some(pieces) => ahead += pieces,
                None => {
                    self.accepted.truncate(before);
                    break;
                }
            }
        }
        self.socket.receive.release(ahead);
        if self.socket.fill.wants_a_kick() {
            if filled == 0 {
                let _ = sys::kick(&self.socket.fd, false); // The next call finds the outcome.
            } else {
                self.has_more = true; // The next call gives these frames back and kicks: without buffers, the kernel has no event.
            }
        }
        Ok(self.batch.len())
    }

    fn has_more(&self) -> bool {
        self.has_more
    }

    fn frame(&self, n: usize) -> &[u8] {
        self.bytes(self.batch[n])
    }

    fn refresh(&mut self) -> Result<LinkState, LinkError> {
        self.give_back();
        self.counters.overruns = self.dropped_before + self.socket.dropped();
        let now = match query(&self.asking, &self.name) {
            Ok(now) => now,
            Err(Errno::NODEV) => {
                self.state = LinkState::Gone;
                return Ok(self.state);
            }
            Err(source) => return Err(self.failed("asking about the interface")(source)),
        };
        if now.index != self.interface.index || self.state == LinkState::Gone {
            let Ok(socket) = open_socket(&now, self.ethertype, &self.options) else {
                self.state = LinkState::Gone; // Not usable yet; the next call tries again.
                return Ok(self.state);
            };
            self.dropped_before = self.counters.overruns;
            (self.socket, self.free) = (socket, free_chunks());
        }
        self.state = if now.is_up { LinkState::Up } else { LinkState::Down };
        self.interface = now;
        Ok(self.state)
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }
}
