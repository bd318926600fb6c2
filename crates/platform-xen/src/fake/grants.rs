//! Grants of the fake host: pages of memory files.

use super::{Domain, FakePort, Host};
use crate::addresses::{self, Piece};
use crate::kernel::{Farewell, PAGE_BYTES, Pages, Port};
use crate::{Domid, EvtchnPort, GrantRef};
use isthmus_layout::RegionSize;
use isthmus_platform::{PlatformError, local};
use isthmus_shm::{Access, Mapping};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Debug, Default)]
pub(super) struct Table {
    entries: BTreeMap<(Domid, u32), Entry>,
    last: u32,
}

#[derive(Clone, Debug)]
struct Entry {
    to: Domid,
    access: Access,
    file: Arc<OwnedFd>,
    page: u32,
    mapped: u32,
    /// Its owner wants it no more, or is no more: it goes with its last mapping.
    ending: bool,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn of(&self, domid: Domid) -> usize {
        self.entries.keys().filter(|(owner, _)| *owner == domid).count()
    }

    pub(super) fn between(&self, domid: Domid, to: Domid) -> usize {
        self.entries.iter().filter(|((owner, _), entry)| *owner == domid && entry.to == to).count()
    }

    /// What it had mapped is mapped no more, though its descriptors are here still.
    pub(super) fn destroy(&mut self, domid: Domid) {
        self.entries.values_mut().filter(|entry| entry.to == domid).for_each(|entry| entry.mapped = 0);
        self.end(|(owner, _)| *owner == domid);
    }

    fn end(&mut self, whose: impl Fn(&(Domid, u32)) -> bool) {
        self.entries.iter_mut().filter(|(at, _)| whose(at)).for_each(|(_, entry)| entry.ending = true);
        self.entries.retain(|_, entry| !entry.ending || entry.mapped > 0);
    }

    fn release(&mut self, owner: Domid, refs: &[GrantRef]) {
        for reference in refs {
            if let Some(entry) = self.entries.get_mut(&(owner, reference.0)) {
                entry.mapped = entry.mapped.saturating_sub(1);
            }
        }
        self.end(|_| false);
    }
}

/// A farewell that is to be said.
#[derive(Debug)]
struct Last {
    file: Arc<OwnedFd>,
    byte_at: u64,
    speaker: Domid,
    port: EvtchnPort,
}

impl Last {
    /// Says it, if there is still a kernel that could.
    fn say(&self, host: &Host) {
        let mut state = host.lock();
        if state.alive.contains(&self.speaker) {
            let _ = rustix::io::pwrite(&self.file, &[0], self.byte_at);
            state.ports.notify(self.speaker, self.port);
        }
        host.shared.happened.notify_all();
    }
}

/// Granted pages of a fake domain.
#[derive(Debug)]
pub struct FakePages {
    own: Arc<Own>,
}

/// What the pages and their own mappings hold in common.
#[derive(Debug)]
struct Own {
    host: Host,
    domid: Domid,
    file: Arc<OwnedFd>,
    refs: Vec<GrantRef>,
    farewell: Mutex<Option<Last>>,
}

impl FakePages {
    pub(super) fn new(domain: &Domain, to: Domid, pages: u32, access: Access) -> Result<Self, Errno> {
        let size = RegionSize(u64::from(pages) * PAGE_BYTES);
        let file = local::memory(size).map(Arc::new).map_err(|error| match error {
            PlatformError::Refused { source, .. } => source,
            PlatformError::Map(_) => Errno::INVAL,
        })?;
        let mut state = domain.host.lock();
        let most = state.limits.get(&domain.domid).copied().unwrap_or(usize::MAX);
        if state.grants.of(domain.domid).saturating_add(pages as usize) > most {
            return Err(Errno::NOSPC);
        }
        let first = state.grants.last + 1;
        state.grants.last += pages;
        // Backwards: nobody may take the order for granted.
        let refs: Vec<GrantRef> = (first..first + pages).rev().map(GrantRef).collect();
        for (page, reference) in (0..).zip(&refs) {
            let entry = Entry { to, access, file: Arc::clone(&file), page, mapped: 0, ending: false };
            state.grants.entries.insert((domain.domid, reference.0), entry);
        }
        let own = Own { host: domain.host.clone(), domid: domain.domid, file, refs, farewell: Mutex::new(None) };
        Ok(Self { own: Arc::new(own) })
    }
}

impl Pages for FakePages {
    type Port = FakePort;

    fn refs(&self) -> &[GrantRef] {
        &self.own.refs
    }

    fn map(&self) -> Result<Mapping, Errno> {
        let bytes = self.own.refs.len() * PAGE_BYTES as usize;
        let piece = Piece { file: self.own.file.as_fd(), offset: 0, bytes };
        // SAFETY: a memory file that is sealed against shrinking.
        unsafe { addresses::map(&[piece], Access::ReadWrite, Box::new(Arc::clone(&self.own))) }
    }

    fn set_farewell(&self, farewell: Farewell<'_, FakePort>) -> Result<(), Errno> {
        if farewell.byte_at >= self.own.refs.len() as u64 * PAGE_BYTES {
            return Err(Errno::INVAL);
        }
        let (speaker, port) = (farewell.port.domid(), farewell.port.number());
        let last = Last { file: Arc::clone(&self.own.file), byte_at: farewell.byte_at, speaker, port };
        *self.own.farewell.lock().unwrap_or_else(PoisonError::into_inner) = Some(last);
        Ok(())
    }
}

impl AsFd for FakePages {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.own.file.as_fd()
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Some(last) = self.farewell.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            last.say(&self.host);
        }
        let refs = &self.refs;
        self.host.lock().grants.end(|(owner, number)| *owner == self.domid && refs.contains(&GrantRef(*number)));
    }
}

/// A mapping of another domain's pages; over when dropped.
#[derive(Debug)]
struct Loan {
    host: Host,
    from: Domid,
    refs: Vec<GrantRef>,
    farewell: Option<Last>,
}

impl Drop for Loan {
    fn drop(&mut self) {
        if let Some(last) = self.farewell.take() {
            last.say(&self.host);
        }
        self.host.lock().grants.release(self.from, &self.refs);
    }
}

/// The file in which the pages lie, one after the other from its start. A file says nothing of who maps it: the pages are lent, and not
/// counted as mapped.
pub(super) fn lend(domain: &Domain, from: Domid, refs: &[GrantRef]) -> Result<OwnedFd, Errno> {
    let state = domain.host.lock();
    let mut lent: Option<Arc<OwnedFd>> = None;
    for (page, reference) in (0..).zip(refs) {
        let entry = state.grants.entries.get(&(from, reference.0)).ok_or(Errno::INVAL)?;
        let is_next = entry.page == page && lent.as_ref().is_none_or(|lent| Arc::ptr_eq(lent, &entry.file));
        if entry.to != domain.domid || entry.ending || !is_next {
            return Err(Errno::INVAL);
        }
        lent = Some(Arc::clone(&entry.file));
    }
    let lent = lent.ok_or(Errno::INVAL)?;
    lent.try_clone().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE))
}

pub(super) fn map(
    domain: &Domain,
    from: Domid,
    refs: &[GrantRef],
    access: Access,
    farewell: Option<Farewell<'_, FakePort>>,
) -> Result<Mapping, Errno> {
    let mut state = domain.host.lock();
    let allowed = |entry: &&Entry| {
        let rights = entry.access == Access::ReadWrite || access == Access::Read;
        entry.to == domain.domid && rights && !entry.ending
    };
    let entry = |reference: &GrantRef| state.grants.entries.get(&(from, reference.0)).filter(allowed).cloned();
    let entries: Vec<Entry> = refs.iter().map(entry).collect::<Option<_>>().ok_or(Errno::INVAL)?;
    if entries.is_empty() {
        return Err(Errno::INVAL);
    }
    let last = |farewell: Farewell<'_, FakePort>| {
        let entry = entries.get(usize::try_from(farewell.byte_at / PAGE_BYTES).ok()?)?;
        let byte_at = u64::from(entry.page) * PAGE_BYTES + farewell.byte_at % PAGE_BYTES;
        Some(Last { file: Arc::clone(&entry.file), byte_at, speaker: domain.domid, port: farewell.port.number() })
    };
    let farewell = farewell.map(|farewell| last(farewell).ok_or(Errno::INVAL)).transpose()?;
    for reference in refs {
        if let Some(entry) = state.grants.entries.get_mut(&(from, reference.0)) {
            entry.mapped += 1;
        }
    }
    drop(state);
    let loan = Loan { host: domain.host.clone(), from, refs: refs.to_vec(), farewell };
    let pieces: Vec<Piece<'_>> = entries
        .iter()
        .map(|entry| Piece {
            file: entry.file.as_fd(),
            offset: u64::from(entry.page) * PAGE_BYTES,
            bytes: PAGE_BYTES as usize,
        })
        .collect();
    // SAFETY: memory files that are sealed against shrinking.
    unsafe { addresses::map(&pieces, access, Box::new(loan)) }
}
