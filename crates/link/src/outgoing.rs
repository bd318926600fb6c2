//! Messages to send, and the call that sends them: headers, vectors, addresses and control messages of a batch.
//!
//! Each link has one value, allocated when it is opened. Each call sets all pointers anew and is the only one to use them.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use rustix::io::Errno;

use crate::Frame;
use crate::link::SEND_MAX;
use crate::sys::{self, FAMILY_V4, FAMILY_V6, iovec, mmsghdr};

/// The maximum number of parts of all frames of a batch.
const VECTORS_MAX: usize = 3 * SEND_MAX;

/// The size of a control message with one `u16` (length, level, type, value), and the size of its buffer.
const CONTROL_BYTES: usize = 18;
const CONTROL_ROOM: usize = 24;

/// A message of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    /// The index of the first frame in the batch, and the number of frames.
    pub(crate) first: usize,
    pub(crate) count: usize,
    /// The destination; `None` if the socket is bound to an interface.
    pub(crate) to: Option<SocketAddr>,
    /// The size of each datagram, if the kernel is to split the message.
    pub(crate) segment: Option<u16>,
}

/// The headers of a batch and everything they point to.
pub(crate) struct Outgoing {
    headers: [mmsghdr; SEND_MAX],
    vectors: [iovec; VECTORS_MAX],
    names: [[u32; 7]; SEND_MAX],
    controls: [[u64; CONTROL_ROOM / 8]; SEND_MAX],
}

impl Outgoing {
    pub(crate) fn new() -> Box<Self> {
        Box::new(Self {
            // SAFETY: a header of zeroes has no name, no vectors and no control.
            headers: [const { unsafe { std::mem::zeroed() } }; SEND_MAX],
            vectors: [iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; VECTORS_MAX],
            names: [[0; 7]; SEND_MAX],
            controls: [[0; CONTROL_ROOM / 8]; SEND_MAX],
        })
    }

    /// Sends messages made of these frames, in order, until the kernel takes no more; returns the number taken.
    ///
    /// # Panics
    ///
    /// Panics if there are more than [`SEND_MAX`] messages, or more than [`SEND_MAX`] frames in all of them.
    pub(crate) fn send(
        &mut self,
        socket: impl AsFd,
        frames: &[Frame<'_>],
        messages: &[Message],
    ) -> Result<usize, Errno> {
        assert!(messages.len() <= SEND_MAX); // Links make batches of at most this size, also for the next assertion.
        let mut vectors_used = 0;
        for (n, message) in messages.iter().enumerate() {
            let first = vectors_used;
            for frame in &frames[message.first..message.first + message.count] {
                for part in frame.parts().iter().filter(|part| !part.is_empty()) {
                    assert!(vectors_used < VECTORS_MAX);
                    let start = part.as_ptr_for_syscall().cast_mut().cast();
                    self.vectors[vectors_used] = iovec { iov_base: start, iov_len: part.len() };
                    vectors_used += 1;
                }
            }
            self.address(n, message);
            self.headers[n].msg_hdr.msg_iovlen = vectors_used - first;
        }
        let (vectors, names) = (self.vectors.as_mut_ptr(), self.names.as_mut_ptr());
        let controls = self.controls.as_mut_ptr();
        let mut first = 0;
        for (n, header) in self.headers[..messages.len()].iter_mut().enumerate() {
            let header = &mut header.msg_hdr;
            header.msg_iov = vectors.wrapping_add(first);
            header.msg_name = names.wrapping_add(n).cast();
            header.msg_control = controls.wrapping_add(n).cast();
            first += header.msg_iovlen;
        }
        // SAFETY: each header names as many vectors as were filled for it, which name parts of frames that are borrowed, and
        // a name and a control message of the lengths set in `address`, all in `self`, which is borrowed.
        unsafe { sys::send_messages(socket, &mut self.headers[..messages.len()]) }
    }

    /// Sets the name and the control message of message `n`, and their lengths.
    fn address(&mut self, n: usize, message: &Message) {
        let (name, name_len) = message.to.map_or(([0; 7], 0), name_of);
        self.names[n] = name;
        let control_len = match message.segment {
            None => 0,
            Some(bytes) => {
                self.controls[n] = segment_control(bytes);
                CONTROL_ROOM
            }
        };
        let header = &mut self.headers[n].msg_hdr;
        header.msg_namelen = name_len;
        header.msg_controllen = control_len;
        header.msg_flags = 0;
    }
}

/// Returns the control message `UDP_SEGMENT` (struct cmsghdr of a 64-bit system).
pub(crate) fn segment_control(bytes: u16) -> [u64; CONTROL_ROOM / 8] {
    let mut control = [0; CONTROL_ROOM];
    control[..8].copy_from_slice(&(CONTROL_BYTES as u64).to_ne_bytes());
    control[8..12].copy_from_slice(&sys::UDP_SEGMENT.level().to_ne_bytes());
    control[12..16].copy_from_slice(&sys::UDP_SEGMENT.name().to_ne_bytes());
    control[16..18].copy_from_slice(&bytes.to_ne_bytes());
    std::array::from_fn(|at| u64::from_ne_bytes(control[8 * at..8 * at + 8].try_into().expect("eight bytes")))
}

/// Returns `struct sockaddr_in` or `sockaddr_in6`, and its length.
pub(crate) fn name_of(address: SocketAddr) -> ([u32; 7], u32) {
    let mut name = [0; 28];
    name[2..4].copy_from_slice(&address.port().to_be_bytes());
    let len = match address {
        SocketAddr::V4(v4) => {
            name[..2].copy_from_slice(&FAMILY_V4.to_ne_bytes());
            name[4..8].copy_from_slice(&v4.ip().octets());
            16
        }
        SocketAddr::V6(v6) => {
            name[..2].copy_from_slice(&FAMILY_V6.to_ne_bytes());
            name[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
            name[8..24].copy_from_slice(&v6.ip().octets());
            name[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
            28
        }
    };
    (std::array::from_fn(|at| u32::from_ne_bytes(name[4 * at..4 * at + 4].try_into().expect("four bytes"))), len)
}

// SAFETY: the pointers in it are set by the call that uses them, and mean nothing between two calls.
unsafe impl Send for Outgoing {}
// SAFETY: nothing can be done with a shared reference to it.
unsafe impl Sync for Outgoing {}

impl std::fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outgoing").finish_non_exhaustive()
    }
}
