//! Bytes through one shared ring in each direction and nothing else: the floor of streams that both sides copy.
//!
//! ```text
//! 0      counter of bytes written, counter of bytes read; the same for the other direction; 128 bytes apart
//! 4 KiB  the ring of the leading side's bytes, 1 MiB; the ring of the following side's bytes, 1 MiB
//! ```
//!
//! Both sides poll. Boundaries of messages are known to both, as for every stream of bytes here.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use anyhow::{Context, Result};
use isthmus_layout::RegionSize;
use isthmus_shm::{Access, Mapping, Payload as _, SharedMapping, Words as _};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::unix::take_fds;
use super::{Link, Transport};
use crate::control_pipe::ControlPipe;
use crate::job::{Setup, Side};

const RING_BYTES: u32 = 1 << 20;
/// Bytes that are published at once: while one side copies the next ones, the other side copies these.
const CHUNK_BYTES: u32 = 16 << 10;
/// The page of the counters.
const COUNTERS_BYTES: u64 = 4096;
/// The distance of counters: the two lines that a CPU may fetch together.
const COUNTER_WORDS: u32 = 32;
const MEMORY_BYTES: u64 = COUNTERS_BYTES + 2 * RING_BYTES as u64;

/// A ring in each direction.
pub(crate) struct Ring;

/// One side of both rings.
pub(crate) struct RingLink {
    memory: SharedMapping,
    tx: RingEnd,
    rx: RingEnd,
}

/// One side of a ring. Counters are numbers of bytes and wrap.
struct RingEnd {
    ring_at: u64,
    own_word: u32,
    peer_word: u32,
    own: u32,
    peer: u32,
}

impl RingEnd {
    /// The `n`th ring, for the side that writes into it.
    fn writer(n: u32) -> Self {
        let ring_at = COUNTERS_BYTES + u64::from(n) * u64::from(RING_BYTES);
        let written = 2 * n * COUNTER_WORDS;
        Self { ring_at, own_word: written, peer_word: written + COUNTER_WORDS, own: 0, peer: 0 }
    }

    /// The `n`th ring, for the side that reads out of it.
    fn reader(n: u32) -> Self {
        let Self { ring_at, own_word, peer_word, .. } = Self::writer(n);
        Self { ring_at, own_word: peer_word, peer_word: own_word, own: 0, peer: 0 }
    }

    /// Polls until `ready` bytes can be moved, and returns the first of them: their place in memory and their number.
    fn wait(&mut self, memory: &SharedMapping, most: usize, ready: impl Fn(u32, u32) -> u32) -> (u64, usize) {
        while ready(self.own, self.peer) == 0 {
            self.peer = memory.load(self.peer_word, Ordering::Acquire);
        }
        let offset = self.own % RING_BYTES;
        let bytes = ready(self.own, self.peer).min(RING_BYTES - offset).min(CHUNK_BYTES);
        (self.ring_at + u64::from(offset), (bytes as usize).min(most))
    }

    /// Publishes that `bytes` more were moved.
    fn advance(&mut self, memory: &SharedMapping, bytes: usize) {
        self.own = self.own.wrapping_add(bytes as u32);
        memory.store(self.own_word, self.own, Ordering::Release);
    }
}

impl Transport for Ring {
    type Link = RingLink;

    fn open(_: &Setup) -> Result<Self> {
        Ok(Self)
    }

    fn connect(self, side: Side, control_pipe: &ControlPipe) -> Result<RingLink> {
        let (file, own, peer) = match side {
            Side::Lead => {
                let file = memory_file()?;
                control_pipe.send_with(&"ring", &[file.as_fd()])?;
                (file, 0, 1)
            }
            Side::Follow => {
                let [file] = take_fds(control_pipe)?;
                (file, 1, 0)
            }
        };
        let mapping = Mapping::new(file, RegionSize(MEMORY_BYTES), Access::ReadWrite).context("cannot map the ring")?;
        Ok(RingLink { memory: SharedMapping::new(mapping), tx: RingEnd::writer(own), rx: RingEnd::reader(peer) })
    }
}

fn memory_file() -> Result<OwnedFd> {
    let file = memfd_create("ring", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).context("cannot make memory")?;
    ftruncate(&file, MEMORY_BYTES).context("cannot size the memory")?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).context("cannot seal the memory")?;
    Ok(file)
}

/// A message of 0 bytes goes as one byte, because a stream has no empty messages.
impl Link for RingLink {
    fn send(&mut self, message: &[u8]) -> Result<()> {
        let mut rest = if message.is_empty() { &[0] } else { message };
        while !rest.is_empty() {
            let free = |written: u32, read| RING_BYTES - written.wrapping_sub(read);
            let (at, bytes) = self.tx.wait(&self.memory, rest.len(), free);
            self.memory.copy_in(at, &rest[..bytes]);
            self.tx.advance(&self.memory, bytes);
            rest = &rest[bytes..];
        }
        Ok(())
    }

    fn recv(&mut self, into: &mut [u8]) -> Result<()> {
        let mut empty = [0];
        let mut rest = if into.is_empty() { &mut empty[..] } else { into };
        while !rest.is_empty() {
            let filled = |read: u32, written: u32| written.wrapping_sub(read);
            let (at, bytes) = self.rx.wait(&self.memory, rest.len(), filled);
            let (now, later) = rest.split_at_mut(bytes);
            self.memory.copy_out(at, now);
            self.rx.advance(&self.memory, bytes);
            rest = later;
        }
        Ok(())
    }
}
