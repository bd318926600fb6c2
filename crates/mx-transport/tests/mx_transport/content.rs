//! The content of messages. Each is a part of the same eight MiB in a real memory file, so that a message can also be sent from
//! mapped pages.

use crate::random::Random;
use isthmus_shm::regcache::PeerRegion;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

/// Bytes that messages are made of.
pub(crate) const POOL_BYTES: usize = 8 << 20;

pub(crate) const PAGE: usize = 4096;

struct Pool {
    bytes: Vec<u8>,
    file: OwnedFd,
}

fn pool() -> &'static Pool {
    static POOL: OnceLock<Pool> = OnceLock::new();
    POOL.get_or_init(|| {
        let mut random = Random::new(1);
        let bytes: Vec<u8> = (0..POOL_BYTES / 8).flat_map(|_| random.next().to_le_bytes()).collect();
        let file = memfd_create("pool", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, POOL_BYTES as u64).unwrap();
        let mut written = 0;
        while written < bytes.len() {
            written += rustix::io::pwrite(&file, &bytes[written..], written as u64).unwrap();
        }
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::FUTURE_WRITE).unwrap();
        Pool { bytes, file }
    })
}

/// The file, mapped as a peer does that it was granted to.
pub(crate) fn region() -> Arc<PeerRegion> {
    static REGION: OnceLock<Arc<PeerRegion>> = OnceLock::new();
    let map = || Arc::new(map(0, POOL_BYTES));
    Arc::clone(REGION.get_or_init(map))
}

/// Some pages of it.
pub(crate) fn map(start: usize, bytes: usize) -> PeerRegion {
    PeerRegion::map(&pool().file, start as u64, bytes as u64, 1 << 40).unwrap()
}

/// Where a message begins in the file.
pub(crate) fn start(id: u64) -> usize {
    (Random::new(id).next() % (POOL_BYTES as u64 / 2)) as usize
}

/// Bytes of a message: those from `at` on, as many as lie together.
pub(crate) fn bytes(id: u64, at: usize, len: usize) -> &'static [u8] {
    let from = (start(id) + at) % POOL_BYTES;
    &pool().bytes[from..POOL_BYTES.min(from + len)]
}

/// Whether these are the bytes of a message from `at` on.
pub(crate) fn is(id: u64, mut at: usize, mut piece: &[u8]) -> bool {
    while !piece.is_empty() {
        let expected = bytes(id, at, piece.len());
        if piece[..expected.len()] != *expected {
            return false;
        }
        at += expected.len();
        piece = &piece[expected.len()..];
    }
    true
}

/// How a program replies to an announced message. The message's number determines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Completed(u32),
    Dropped,
    Bounced,
}

impl Fate {
    pub(crate) fn of(id: u64, length: u32) -> Self {
        match id % 16 {
            3 => Self::Completed(length / 2),
            7 => Self::Completed(0),
            11 => Self::Bounced,
            13 => Self::Dropped,
            _ => Self::Completed(length),
        }
    }

    /// Bytes that get there.
    pub(crate) const fn bytes(self) -> u32 {
        match self {
            Self::Completed(bytes) => bytes,
            Self::Dropped | Self::Bounced => 0,
        }
    }
}

/// A message's tag: it encodes the sender, the number and the length of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    pub(crate) from: u8,
    pub(crate) len: u32,
    pub(crate) id: u64,
}

impl Tag {
    pub(crate) fn emit(self) -> u64 {
        assert!(self.len < 1 << 28 && self.id < 1 << 28);
        u64::from(self.from) << 56 | u64::from(self.len) << 28 | self.id
    }

    pub(crate) const fn parse(tag: u64) -> Self {
        Self { from: (tag >> 56) as u8, len: (tag >> 28) as u32 & 0xfff_ffff, id: tag & 0xfff_ffff }
    }
}
