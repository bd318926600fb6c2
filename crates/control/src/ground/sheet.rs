//! A window that is one memory file, which a device shows to the guest.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use isthmus_layout::RegionSize;
use isthmus_layout::border::{PIECES_AT, WINDOW_BYTES_MIN, WindowNumber, Withdrawn};
use isthmus_shm::{Access, Mapping, Window};

use super::pieces::Pieces;
use super::{Land, OutOfLand};
use crate::broker::Refusal;

/// The file, and which bytes of it are handed out.
#[derive(Debug)]
pub(crate) struct Sheet {
    file: OwnedFd,
    pieces: Mutex<Pieces>,
}

impl Sheet {
    /// Over a sealed memory file of so many bytes.
    pub(crate) fn new(file: OwnedFd, bytes: u64) -> Self {
        assert!(bytes >= WINDOW_BYTES_MIN); // The configuration's limit.
        Self { file, pieces: Mutex::new(Pieces::new(WindowNumber::OWN, PIECES_AT, bytes - PIECES_AT)) }
    }

    fn pieces(&self) -> MutexGuard<'_, Pieces> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Land for Sheet {
    fn map(&self, at: u64, size: RegionSize) -> Result<Window, Refusal> {
        let mapping = Mapping::window(&self.file, at, size, Access::ReadWrite);
        mapping.map(Window::new).map_err(|error| Refusal::from_map(&error))
    }

    fn look(&self, at: u64, into: &mut [u8]) -> bool {
        rustix::io::pread(&self.file, &mut *into, at) == Ok(into.len())
    }

    fn take(&self, bytes: u64) -> Result<(u64, u32), OutOfLand> {
        self.pieces().take(bytes).ok_or(OutOfLand)
    }

    fn clear(&self, at: u64, bytes: u64) -> Result<(), Refusal> {
        self.map(at, RegionSize(bytes))?.give_back(0, bytes);
        Ok(())
    }

    fn let_go(&self, at: u64, bytes: u64) {
        self.pieces().let_go(at, bytes);
    }

    fn holds(&self, at: u64, age: u32) -> bool {
        self.pieces().holds(at, age)
    }

    fn withdrawn(&self, told: usize) -> Option<Withdrawn> {
        self.pieces().withdrawn(told)
    }

    fn away(&self, withdrawn: Withdrawn, told: usize) -> bool {
        self.pieces().away_among(told, withdrawn)
    }

    fn bytes(&self) -> u64 {
        PIECES_AT + self.pieces().bytes()
    }

    fn has_regions(&self) -> bool {
        true
    }

    fn used(&self) -> u64 {
        PIECES_AT + self.pieces().used()
    }
}
