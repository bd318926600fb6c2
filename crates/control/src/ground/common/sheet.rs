//! A common window that is one memory file, which a device shows to each guest.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use isthmus_layout::RegionSize;
use isthmus_layout::border::{Handed, WindowNumber, Withdrawn};
use isthmus_layout::reason::Reason;
use isthmus_shm::{Access, Mapping, Window};

use super::{Away, Common};
use crate::broker::Refusal;
use crate::ground::Estate;
use crate::ground::pieces::Pieces;

/// The file, and which bytes of it are handed out.
#[derive(Debug)]
pub(crate) struct Sheet {
    file: Arc<OwnedFd>,
    account: Mutex<Account>,
}

#[derive(Debug)]
struct Account {
    pieces: Pieces,
    away: Away,
}

impl Sheet {
    /// Over a sealed memory file of so many bytes, in whole pages.
    pub(crate) fn new(number: WindowNumber, file: Arc<OwnedFd>, bytes: u64) -> Self {
        Self { file, account: Mutex::new(Account { pieces: Pieces::new(number, 0, bytes), away: Away::default() }) }
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Common for Sheet {
    fn take(&self, bytes: u64) -> Option<(u64, u32)> {
        self.account().pieces.take(bytes)
    }

    fn clear(&self, at: u64, bytes: u64) -> Result<(), Refusal> {
        self.map(at, RegionSize(bytes))?.give_back(0, bytes);
        Ok(())
    }

    fn map(&self, at: u64, size: RegionSize) -> Result<Window, Refusal> {
        let mapping = Mapping::window(&self.file, at, size, Access::ReadWrite);
        mapping.map(Window::new).map_err(|error| Refusal::from_map(&error))
    }

    fn look(&self, at: u64, into: &mut [u8]) -> bool {
        rustix::io::pread(&self.file, &mut *into, at) == Ok(into.len())
    }

    fn let_go(&self, at: u64, bytes: u64) {
        self.account().pieces.let_go(at, bytes);
    }

    fn holds(&self, at: u64, age: u32) -> bool {
        self.account().pieces.holds(at, age)
    }

    fn withdrawn(&self, side: usize, told: usize) -> Option<Withdrawn> {
        let account = self.account();
        account.pieces.withdrawn(account.away.beyond(side) + told)
    }

    fn away(&self, side: usize) {
        let mut account = self.account();
        if account.away.count(side) {
            account.pieces.away();
        }
    }

    fn bytes(&self) -> u64 {
        self.account().pieces.bytes()
    }

    fn has_regions(&self) -> bool {
        true
    }

    /// The guests' devices know each other.
    fn ringer(&self, of: &Estate, from: &Estate, vector: u16) -> Result<Handed, Refusal> {
        let beyond = |what: String| Refusal::new(Reason::GuestVectorsFull, what);
        let peer = of.peer().ok_or_else(|| beyond(format!("guest {} has come too often", of.name())))?;
        if vector >= from.vectors_max() {
            let text =
                format!("the device of guest {} cannot ring vector {vector} of guest {}", from.name(), of.name());
            return Err(beyond(text));
        }
        Ok(Handed::Ringer { peer, vector })
    }
}
