//! Buffers for received messages, and the call that fills them.
//!
//! ```text
//!   slots:  header ─► name, vector, control      one for each message, linked once
//!                        └─► buffers: [ stride ][ stride ][ stride ] …
//! ```
//!
//! All memory is allocated when the link is opened. Before each call, only the header fields that the kernel changed are reset.

use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::io::Errno;

use crate::memory::Memory;
use crate::sys::{self, iovec, mmsghdr};

/// The size of the largest sender address (`sockaddr_in6`), rounded up.
pub(crate) const NAME_BYTES: usize = 32;

/// The buffer of one control message with one word.
type Control = [u64; 4];

/// The structures that a message header points to.
struct MessageSlot {
    vector: iovec,
    name: [u8; NAME_BYTES],
    control: Control,
}

/// The buffers of one batch of messages.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// Invariant: `count` headers, each linked to the slot of its number and through it to its buffer of `stride` bytes. Only
    /// this value uses them, by these pointers.
    headers: NonNull<mmsghdr>,
    slots: NonNull<MessageSlot>,
    count: usize,
    buffers: Memory,
    stride: usize,
    with_control: bool,
    /// The number of messages of the last batch.
    used: usize,
}

/// A received message.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    /// The received bytes, cut to the buffer.
    pub(crate) bytes: &'a [u8],
    /// The original length, which is larger than `bytes` if the buffer was too small.
    pub(crate) len: usize,
    /// The sender as `struct sockaddr_…`, cut to the buffer.
    pub(crate) name: &'a [u8; NAME_BYTES],
    /// The size of each datagram, if the kernel has merged several.
    pub(crate) segment: Option<usize>,
}

impl Incoming {
    /// Allocates buffers for `count` messages of `stride` bytes.
    pub(crate) fn new(count: usize, stride: usize, with_control: bool) -> Result<Self, Errno> {
        let buffers = Memory::new(count * stride)?;
        let slot = || MessageSlot {
            vector: iovec { iov_base: std::ptr::null_mut(), iov_len: 0 },
            name: [0; NAME_BYTES],
            control: [0; 4],
        };
        let mut slots: Vec<MessageSlot> = Vec::new();
        slots.resize_with(count, slot);
        // SAFETY: a header of zeroes has no name, no vectors and no control.
        let headers: Vec<mmsghdr> = (0..count).map(|_| unsafe { std::mem::zeroed() }).collect();
        let slots = NonNull::from(Box::leak(slots.into_boxed_slice())).cast::<MessageSlot>();
        let headers = NonNull::from(Box::leak(headers.into_boxed_slice())).cast::<mmsghdr>();
        let made = Self { headers, slots, count, buffers, stride, with_control, used: 0 };
        for n in 0..count {
            made.link(n);
        }
        Ok(made)
    }

    /// Sets the pointers of header `n`.
    fn link(&self, n: usize) {
        assert!(n < self.count);
        let place = self.buffers.address(n * self.stride, self.stride);
        // SAFETY: `n` is below `count` (asserted), and no other code uses headers and slots (invariant).
        unsafe {
            let slot = self.slots.add(n).as_ptr();
            (*slot).vector = iovec { iov_base: place.as_ptr().cast(), iov_len: self.stride };
            let header = &mut (*self.headers.add(n).as_ptr()).msg_hdr;
            header.msg_iov = &raw mut (*slot).vector;
            header.msg_iovlen = 1;
            header.msg_name = (&raw mut (*slot).name).cast();
            if self.with_control {
                header.msg_control = (&raw mut (*slot).control).cast();
            }
        }
        self.reset(n);
    }

    /// Resets the fields of header `n` that the kernel changes.
    fn reset(&self, n: usize) {
        assert!(n < self.count);
        // SAFETY: as in `link`.
        unsafe {
            let header = &mut (*self.headers.add(n).as_ptr()).msg_hdr;
            header.msg_namelen = NAME_BYTES as u32;
            header.msg_controllen = if self.with_control { size_of::<Control>() as _ } else { 0 };
            header.msg_flags = 0;
        }
    }

    /// Receives the waiting messages without blocking; returns their number.
    pub(crate) fn receive(&mut self, socket: impl AsFd) -> Result<usize, Errno> {
        for n in 0..self.used {
            self.reset(n);
        }
        self.used = 0;
        // SAFETY: the headers and all they point at are ours and of these lengths (invariant), and borrowed by `&mut self`.
        self.used = unsafe { sys::receive_messages(socket, self.headers.as_ptr(), self.count as u32)? };
        Ok(self.used)
    }

    /// Returns message `n` of the last batch.
    pub(crate) fn message(&self, n: usize) -> Message<'_> {
        assert!(n < self.used);
        // SAFETY: below `count`; nothing writes headers and slots but `receive`, which borrows `self` alone.
        let (header, slot) = unsafe { (self.headers.add(n).as_ref(), self.slots.add(n).as_ref()) };
        let len = header.msg_len as usize;
        Message {
            bytes: self.buffers.bytes(n * self.stride, len.min(self.stride)),
            len,
            name: &slot.name,
            segment: segment(&slot.control, header.msg_hdr.msg_controllen),
        }
    }

    /// Returns bytes of the last batch at an offset from [`Self::buffer_offset`].
    pub(crate) fn bytes(&self, at: usize, len: usize) -> &[u8] {
        self.buffers.bytes(at, len)
    }

    /// Returns the offset of the bytes of message `n`.
    pub(crate) fn buffer_offset(&self, n: usize) -> usize {
        n * self.stride
    }

    /// Returns the buffer size of a message.
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }
}

/// Control messages are laid out as on 64-bit systems.
const _: () = assert!(size_of::<usize>() == 8);

/// Returns the datagram size in a `UDP_GRO` control message: 8 bytes of length, 4 of level, 4 of type, and an int.
fn segment(control: &Control, len: usize) -> Option<usize> {
    if len < 20 {
        return None;
    }
    let low = |word: u64| u32::from_ne_bytes(word.to_ne_bytes()[..4].try_into().expect("four of eight bytes"));
    let high = |word: u64| u32::from_ne_bytes(word.to_ne_bytes()[4..].try_into().expect("four of eight bytes"));
    let is_segment = low(control[1]) == sys::UDP_GRO.level() && high(control[1]) == sys::UDP_GRO.name();
    is_segment.then(|| low(control[2]) as usize)
}

// SAFETY: the pointers are to memory which this value alone owns and uses.
unsafe impl Send for Incoming {}
// SAFETY: nothing is written through `&self` after `new`.
unsafe impl Sync for Incoming {}

impl Drop for Incoming {
    fn drop(&mut self) {
        // SAFETY: leaked boxes of slices of these lengths, made in `new` and given back once.
        unsafe {
            drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.headers.as_ptr(), self.count)));
            drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.slots.as_ptr(), self.count)));
        }
    }
}
