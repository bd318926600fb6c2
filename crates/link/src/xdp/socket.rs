//! An AF_XDP socket: pages shared with the kernel, divided into chunks, and four rings that pass their ownership.
//!
//! ```text
//!            fill ──► kernel writes a frame ──► receive ──► us ──► fill
//!   us ──► transmit ──► kernel sends it ──► completion ──► us
//! ```

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::program::{Program, XdpMode};
use super::ring::{Offsets, Ring};
use crate::OpenError;
use crate::memory::Memory;
use crate::sys::{self, Opt};

/// The size of a chunk: a page, the maximum.
pub(super) const CHUNK: usize = 4096;

/// The number of bytes that the kernel leaves free at the start of a chunk that it fills.
pub(super) const HEADROOM: usize = 256;

/// The number of chunks for received frames, and for frames to send.
pub(super) const INCOMING: u32 = 4096;
pub(super) const OUTGOING: u32 = 1024;

/// A piece of a frame (`struct xdp_desc`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct XdpDesc {
    pub(super) at: u64,
    pub(super) len: u32,
    pub(super) options: u32,
}

/// The flag that the frame continues in the next piece.
pub(super) const GOES_ON: u32 = libc::XDP_PKT_CONTD;

/// The socket and the memory that it shares with the kernel.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) fill: Ring<u64>,
    pub(super) completion: Ring<u64>,
    pub(super) receive: Ring<XdpDesc>,
    pub(super) transmit: Ring<XdpDesc>,
    /// True if frames may use several chunks.
    pub(super) multi_buffer: bool,
    pub(super) mode: XdpMode,
    _program: Program,
    pub(super) fd: OwnedFd,
    /// Dropped after the socket, when the kernel no longer uses it.
    pub(super) memory: Memory,
}

impl Socket {
    /// Opens a socket on a queue of an interface, in the first of these modes that works.
    pub(super) fn open(
        index: u32,
        queue: u32,
        ethertype: u16,
        modes: &[XdpMode],
        zero_copy: bool,
    ) -> Result<Self, OpenError> {
        let mut last = Errno::OPNOTSUPP;
        for &mode in modes {
            for multi_buffer in [true, false] {
                match Self::prepare(index, queue, ethertype, mode, multi_buffer, zero_copy) {
                    Ok(socket) => return Ok(socket),
                    Err(Failed::Privilege(error)) => return Err(error),
                    Err(Failed::Step(errno)) => last = errno,
                }
            }
        }
        Err(match last {
            Errno::BUSY => OpenError::Refused {
                operation: "attaching to the interface (another XDP program or socket is there; `ip link` shows it)",
                source: last,
            },
            source => OpenError::Refused { operation: "setting up an AF_XDP socket", source },
        })
    }

    fn prepare(
        index: u32,
        queue: u32,
        ethertype: u16,
        mode: XdpMode,
        multi_buffer: bool,
        zero_copy: bool,
    ) -> Result<Self, Failed> {
        let fd = new_socket().map_err(Failed::Privilege)?;
        let memory = Memory::new((INCOMING + OUTGOING) as usize * CHUNK)?;
        let bytes = (INCOMING + OUTGOING) as usize * CHUNK;
        let start = memory.address(0, bytes).as_ptr() as u64;
        let words = [start as u32, (start >> 32) as u32, bytes as u32, 0, CHUNK as u32, 0, 0, 0];
        sys::set_option(&fd, opt(libc::XDP_UMEM_REG), words)?;
        let sizes = [
            (libc::XDP_UMEM_FILL_RING, INCOMING),
            (libc::XDP_UMEM_COMPLETION_RING, OUTGOING),
            (libc::XDP_RX_RING, INCOMING),
            (libc::XDP_TX_RING, OUTGOING),
        ];
        for (ring, size) in sizes {
            sys::set_option(&fd, opt(ring), size as i32)?;
        }
        let offsets: [u32; 32] = sys::option(&fd, opt(libc::XDP_MMAP_OFFSETS))?;
        let [rx, tx, fr, cr] = std::array::from_fn(|ring| offsets_at(&offsets, ring));
        let mut fill = Ring::map(&fd, libc::XDP_UMEM_PGOFF_FILL_RING, fr, INCOMING)?;
        let completion = Ring::map(&fd, libc::XDP_UMEM_PGOFF_COMPLETION_RING, cr, OUTGOING)?;
        let receive = Ring::map(&fd, libc::XDP_PGOFF_RX_RING as u64, rx, INCOMING)?;
        let transmit = Ring::map(&fd, libc::XDP_PGOFF_TX_RING as u64, tx, OUTGOING)?;
        (0..INCOMING).for_each(|chunk| fill.push(u64::from(chunk) * CHUNK as u64));
        fill.publish();
        let copy = if zero_copy { 0 } else { libc::XDP_COPY };
        let pieces = if multi_buffer { libc::XDP_USE_SG } else { 0 };
        sys::bind_xdp(&fd, index, queue, copy | pieces | libc::XDP_USE_NEED_WAKEUP)?;
        let program = Program::attach(&fd, index, queue, ethertype, mode).map_err(|source| match source {
            Errno::PERM => {
                Failed::Privilege(OpenError::from_errno("attaching an XDP program", "CAP_BPF CAP_NET_ADMIN", source))
            }
            source => Failed::Step(source),
        })?;
        Ok(Self { fill, completion, receive, transmit, multi_buffer, mode, _program: program, fd, memory })
    }

    /// Returns the number of frames that the kernel dropped, for all reasons.
    pub(super) fn dropped(&self) -> u64 {
        let counts: [u32; 12] = sys::option(&self.fd, opt(libc::XDP_STATISTICS)).unwrap_or_default();
        let count = |at: usize| u64::from(counts[2 * at]) | u64::from(counts[2 * at + 1]) << 32;
        count(0) + count(3) // Frames without a chunk to fill are included in the first counter.
    }
}

/// The reason why one attempt to set up a socket failed.
enum Failed {
    /// No other attempt can succeed.
    Privilege(OpenError),
    /// Another attempt may succeed.
    Step(Errno),
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Self {
        Self::Step(errno)
    }
}

fn new_socket() -> Result<OwnedFd, OpenError> {
    let operation = "opening an AF_XDP socket";
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::XDP, SocketType::RAW, flags, None).map_err(|source| match source {
        Errno::AFNOSUPPORT => OpenError::NotSupported { operation, what: "it has no CONFIG_XDP_SOCKETS" },
        source => OpenError::from_errno(operation, "CAP_NET_RAW", source),
    })
}

fn opt(name: i32) -> Opt {
    Opt::xdp(name)
}

/// Returns the offsets of ring `ring` in `struct xdp_mmap_offsets`.
fn offsets_at(words: &[u32; 32], ring: usize) -> Offsets {
    let word = |at: usize| {
        let at = 8 * ring + 2 * at;
        u64::from(words[at]) | u64::from(words[at + 1]) << 32
    };
    Offsets { producer: word(0), consumer: word(1), entries: word(2), flags: word(3) }
}
