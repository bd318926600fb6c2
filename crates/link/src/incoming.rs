//! Room for messages that come, and the call that fills it.
//!
//! ```text
//!   slots:  header ─► name, vector, control      one for each message, linked once
//!                        └─► buffers: [ stride ][ stride ][ stride ] …
//! ```
//!
//! All of it is made when the link is opened. Of the headers only what the kernel has changed is set back before the next call.

use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::io::Errno;

use crate::memory::Memory;
use crate::sys::{self, iovec, mmsghdr};

/// Bytes of the largest address we receive from (`sockaddr_in6`), rounded up.
pub(crate) const NAME_BYTES: usize = 32;

/// Room for one control message with one word.
type Control = [u64; 4];

/// What the kernel is given for each message.
struct MessageSlot {
    vector: iovec,
    name: [u8; NAME_BYTES],
    control: Control,
}

/// Messages of one batch.
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
    /// Messages of the last batch.
    used: usize,
}

/// A message that has come.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    /// What there is of it here.
    pub(crate) bytes: &'a [u8],
    /// How long it was; more than `bytes` if there was no room for all.
    pub(crate) len: usize,
    /// `struct sockaddr_…`, as far as it reaches.
    pub(crate) name: &'a [u8; NAME_BYTES],
    /// Of how many bytes each datagram was, where the kernel has put several together.
    pub(crate) segment: Option<usize>,
}

impl Incoming {
    /// Room for `count` messages of `stride` bytes.
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

    /// Points header `n` at its slot.
    fn link(&self, n: usize) {
        assert!(n < self.count);
        let place = self.buffers.address(n * self.stride, self.stride);
        // SAFETY: `n` is below `count` (asserted), and nobody else uses headers and slots (invariant).
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

    /// Sets back what the kernel changes in header `n`.
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

    /// Takes messages that wait, without waiting for any.
    pub(crate) fn receive(&mut self, socket: impl AsFd) -> Result<usize, Errno> {
        for n in 0..self.used {
            self.reset(n);
        }
        self.used = 0;
        // SAFETY: the headers and all they point at are ours and of these lengths (invariant), and borrowed by `&mut self`.
        self.used = unsafe { sys::receive_messages(socket, self.headers.as_ptr(), self.count as u32)? };
        Ok(self.used)
    }

    /// Message `n` of the last batch.
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

    /// Bytes of the last batch at an offset from [`Self::buffer_offset`].
    pub(crate) fn bytes(&self, at: usize, len: usize) -> &[u8] {
        self.buffers.bytes(at, len)
    }

    /// Where the bytes of message `n` begin.
    pub(crate) fn buffer_offset(&self, n: usize) -> usize {
        n * self.stride
    }

    /// Bytes there is room for in a message.
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }
}

/// Control messages are laid out as on 64-bit systems.
const _: () = assert!(size_of::<usize>() == 8);

/// What `UDP_GRO` says: a control message of 8 bytes of length, 4 of level, 4 of type, and an int.
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
// SAFETY: through `&self` nothing is written once it is made.
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
