//! Frames by an AF_XDP socket, past the kernel's protocol stack.
//!
//! A small program on the interface hands frames of our ethertype to the socket and all others to the stack
//! ([`program`]). Frames are copied into and out of pages shared with the kernel, by us on the way out, by the kernel on the way
//! in; so on interfaces like veth this is no faster than a packet socket. It is for cards whose driver takes part
//! ([`XdpOptions::zero_copy`]).
//!
//! A frame larger than a chunk (a page) lies in several: that takes Linux 6.6, and before that [`Link::frame_bytes_max`] says
//! 3840, whatever the MTU.
//!
//! The socket hears one queue of the card. Cards spread what they do not know, such as our ethertype, to queue 0.
//!
//! It is to be opened and refreshed in the network namespace of its interface.

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

/// Frames received at once.
const RECEIVE_MAX: usize = 64;

/// Room for each that lies in several chunks.
const STRIDE: usize = 16 << 10;

/// The longest frame in several chunks: as many as fit the room, and into what the kernel makes of one frame.
const CHUNKS_MAX: usize = STRIDE / CHUNK;

/// How an AF_XDP link is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpOptions {
    /// Which queue of the card.
    pub queue: u32,
    /// Where the program may run, tried in this order.
    pub modes: Vec<XdpMode>,
    /// Whether the card may read and write our pages itself; where it cannot, the kernel copies.
    pub zero_copy: bool,
}

impl Default for XdpOptions {
    fn default() -> Self {
        Self { queue: 0, modes: vec![XdpMode::Native, XdpMode::Generic], zero_copy: false }
    }
}

/// Frames of one ethertype by one queue of an interface.
#[derive(Debug)]
pub struct XdpLink {
    name: String,
    ethertype: u16,
    options: XdpOptions,
    socket: Socket,
    /// Asks about the interface.
    asking: OwnedFd,
    interface: Interface,
    state: LinkState,
    /// Chunks that nothing is in, for frames that go.
    free: Vec<u64>,
    /// Where frames are put together.
    joined: Memory,
    batch: Vec<FramePlace>,
    /// Chunks that the last batch lies in.
    accepted: Vec<u64>,
    /// There are more frames than those.
    has_more: bool,
    /// What sockets before this one lost.
    dropped_before: u64,
    counters: LinkCounters,
}

/// Where a frame lies.
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

    /// Where the program runs.
    pub fn mode(&self) -> XdpMode {
        self.socket.mode
    }

    fn failed(&self, operation: &'static str) -> impl FnOnce(Errno) -> LinkError {
        let link = self.name.clone();
        move |source| LinkError { link, operation, source }
    }

    /// What a batch depends on: the MTU, and whether frames can pass. The kernel would not say so for each frame.
    fn look_before_sending(&mut self) -> LinkState {
        let word = |answer: [u8; 24]| u32::from_ne_bytes([answer[0], answer[1], answer[2], answer[3]]);
        let flags = |answer: [u8; 24]| u32::from(u16::from_ne_bytes([answer[0], answer[1]]));
        let mtu = sys::query_interface(&self.asking, &self.name, InterfaceQuery::Mtu).map(word);
        let flags = sys::query_interface(&self.asking, &self.name, InterfaceQuery::Flags).map(flags);
        let is_up = flags.is_ok_and(|flags| flags & sys::UP_AND_RUNNING == sys::UP_AND_RUNNING);
        self.state = match (mtu, self.state) {
            (Err(_), _) | (_, LinkState::Gone) => LinkState::Gone, // A new one of that name takes a new socket.
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

    /// Copies a frame into chunks and pushes them; false if there is no room.
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

    /// Has the kernel send what was pushed. It sends some at a time.
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
                // What it could not send stays in the ring, and goes with the next kick.
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

    /// Gives the chunks of the last batch to the kernel again.
    fn give_back(&mut self) {
        self.batch.clear();
        self.accepted.drain(..).for_each(|chunk| self.socket.fill.push(chunk));
        self.socket.fill.publish();
    }

    /// Takes the frame whose first piece is `ahead`: how many pieces it has, none if it is not whole.
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

    /// Keeps a frame if it is for us.
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
        if filled == 0 && self.socket.fill.wants_a_kick() {
            let _ = sys::kick(&self.socket.fd, false); // Its outcome is what the next call finds.
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
