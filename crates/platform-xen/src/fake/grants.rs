//! Grants of the fake host: pages of memory files.

use super::{FakeDomain, FakeHost, FakePort};
use crate::addresses::{self, FileRange};
use crate::kernel::{PAGE_BYTES, Pages, Port, UnmapNotify};
use crate::{Domid, EvtchnPort, GrantRef};
use isthmus_layout::RegionSize;
use isthmus_platform::{PlatformError, local};
use isthmus_shm::{Access, Mapping};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Debug, Default)]
pub(super) struct GrantTable {
    entries: BTreeMap<(Domid, u32), GrantEntry>,
    last: u32,
}

#[derive(Clone, Debug)]
struct GrantEntry {
    to: Domid,
    access: Access,
    file: Arc<OwnedFd>,
    page: u32,
    mapped: u32,
    /// True if the owner dropped the page or was destroyed. The entry goes with its last mapping.
    is_ending: bool,
}

impl GrantTable {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn of(&self, domid: Domid) -> usize {
        self.entries.keys().filter(|(owner, _)| *owner == domid).count()
    }

    pub(super) fn between(&self, domid: Domid, to: Domid) -> usize {
        self.entries.iter().filter(|((owner, _), entry)| *owner == domid && entry.to == to).count()
    }

    /// Ends the mappings of a destroyed domain, though its descriptors still exist.
    pub(super) fn destroy(&mut self, domid: Domid) {
        self.entries.values_mut().filter(|entry| entry.to == domid).for_each(|entry| entry.mapped = 0);
        self.end_grants(|(owner, _)| *owner == domid);
    }

    fn end_grants(&mut self, whose: impl Fn(&(Domid, u32)) -> bool) {
        self.entries.iter_mut().filter(|(at, _)| whose(at)).for_each(|(_, entry)| entry.is_ending = true);
        self.entries.retain(|_, entry| !entry.is_ending || entry.mapped > 0);
    }

    fn release(&mut self, owner: Domid, refs: &[GrantRef]) {
        for reference in refs {
            if let Some(entry) = self.entries.get_mut(&(owner, reference.0)) {
                entry.mapped = entry.mapped.saturating_sub(1);
            }
        }
        self.end_grants(|_| false);
    }
}

/// An unmap notification that is due.
#[derive(Debug)]
struct PendingNotify {
    file: Arc<OwnedFd>,
    byte_at: u64,
    domid: Domid,
    port: EvtchnPort,
}

impl PendingNotify {
    /// Sends the notification, if the domain's kernel still runs.
    fn send(&self, host: &FakeHost) {
        let mut state = host.lock();
        if state.alive.contains(&self.domid) {
            let _ = rustix::io::pwrite(&self.file, &[0], self.byte_at);
            state.ports.notify(self.domid, self.port);
        }
        host.shared.changed.notify_all();
    }
}

/// Granted pages of a fake domain.
#[derive(Debug)]
pub struct FakePages {
    own: Arc<OwnPages>,
}

/// The state shared by the pages and their own mappings.
#[derive(Debug)]
struct OwnPages {
    host: FakeHost,
    domid: Domid,
    file: Arc<OwnedFd>,
    refs: Vec<GrantRef>,
    unmap_notify: Mutex<Option<PendingNotify>>,
}

impl FakePages {
    pub(super) fn new(domain: &FakeDomain, to: Domid, pages: u32, access: Access) -> Result<Self, Errno> {
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
        // Descending, so that no test relies on the order.
        let refs: Vec<GrantRef> = (first..first + pages).rev().map(GrantRef).collect();
        for (page, reference) in (0..).zip(&refs) {
            let entry = GrantEntry { to, access, file: Arc::clone(&file), page, mapped: 0, is_ending: false };
            state.grants.entries.insert((domain.domid, reference.0), entry);
        }
        let own =
            OwnPages { host: domain.host.clone(), domid: domain.domid, file, refs, unmap_notify: Mutex::new(None) };
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
        let range = FileRange { file: self.own.file.as_fd(), offset: 0, bytes };
        // SAFETY: a memory file that is sealed against shrinking.
        unsafe { addresses::map(&[range], Access::ReadWrite, Box::new(Arc::clone(&self.own))) }
    }

    fn set_unmap_notify(&self, unmap_notify: UnmapNotify<'_, FakePort>) -> Result<(), Errno> {
        if unmap_notify.byte_at >= self.own.refs.len() as u64 * PAGE_BYTES {
            return Err(Errno::INVAL);
        }
        let (domid, port) = (unmap_notify.port.domid(), unmap_notify.port.number());
        let pending = PendingNotify { file: Arc::clone(&self.own.file), byte_at: unmap_notify.byte_at, domid, port };
        *self.own.unmap_notify.lock().unwrap_or_else(PoisonError::into_inner) = Some(pending);
        Ok(())
    }
}

impl AsFd for FakePages {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.own.file.as_fd()
    }
}

impl Drop for OwnPages {
    fn drop(&mut self) {
        if let Some(pending) = self.unmap_notify.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            pending.send(&self.host);
        }
        let refs = &self.refs;
        self.host.lock().grants.end_grants(|(owner, number)| *owner == self.domid && refs.contains(&GrantRef(*number)));
    }
}

/// A mapping of another domain's pages, which ends when dropped.
#[derive(Debug)]
struct ForeignMapping {
    host: FakeHost,
    from: Domid,
    refs: Vec<GrantRef>,
    unmap_notify: Option<PendingNotify>,
}

impl Drop for ForeignMapping {
    fn drop(&mut self) {
        if let Some(pending) = self.unmap_notify.take() {
            pending.send(&self.host);
        }
        self.host.lock().grants.release(self.from, &self.refs);
    }
}

/// Returns the file that contains the pages, one after the other from its start. The file cannot report its mappings, so these pages do not
/// count as mapped.
pub(super) fn lend_fd(domain: &FakeDomain, from: Domid, refs: &[GrantRef]) -> Result<OwnedFd, Errno> {
    let state = domain.host.lock();
    let mut file: Option<Arc<OwnedFd>> = None;
    for (page, reference) in (0..).zip(refs) {
        let entry = state.grants.entries.get(&(from, reference.0)).ok_or(Errno::INVAL)?;
        let is_next = entry.page == page && file.as_ref().is_none_or(|file| Arc::ptr_eq(file, &entry.file));
        if entry.to != domain.domid || entry.is_ending || !is_next {
            return Err(Errno::INVAL);
        }
        file = Some(Arc::clone(&entry.file));
    }
    let file = file.ok_or(Errno::INVAL)?;
    file.try_clone().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE))
}

pub(super) fn map(
    domain: &FakeDomain,
    from: Domid,
    refs: &[GrantRef],
    access: Access,
    unmap_notify: Option<UnmapNotify<'_, FakePort>>,
) -> Result<Mapping, Errno> {
    let mut state = domain.host.lock();
    let allowed = |entry: &&GrantEntry| {
        let rights = entry.access == Access::ReadWrite || access == Access::Read;
        entry.to == domain.domid && rights && !entry.is_ending
    };
    let entry = |reference: &GrantRef| state.grants.entries.get(&(from, reference.0)).filter(allowed).cloned();
    let entries: Vec<GrantEntry> = refs.iter().map(entry).collect::<Option<_>>().ok_or(Errno::INVAL)?;
    if entries.is_empty() {
        return Err(Errno::INVAL);
    }
    let pending = |unmap_notify: UnmapNotify<'_, FakePort>| {
        let entry = entries.get(usize::try_from(unmap_notify.byte_at / PAGE_BYTES).ok()?)?;
        let byte_at = u64::from(entry.page) * PAGE_BYTES + unmap_notify.byte_at % PAGE_BYTES;
        Some(PendingNotify {
            file: Arc::clone(&entry.file),
            byte_at,
            domid: domain.domid,
            port: unmap_notify.port.number(),
        })
    };
    let unmap_notify = unmap_notify.map(|unmap_notify| pending(unmap_notify).ok_or(Errno::INVAL)).transpose()?;
    for reference in refs {
        if let Some(entry) = state.grants.entries.get_mut(&(from, reference.0)) {
            entry.mapped += 1;
        }
    }
    drop(state);
    let loan = ForeignMapping { host: domain.host.clone(), from, refs: refs.to_vec(), unmap_notify };
    let ranges: Vec<FileRange<'_>> = entries
        .iter()
        .map(|entry| FileRange {
            file: entry.file.as_fd(),
            offset: u64::from(entry.page) * PAGE_BYTES,
            bytes: PAGE_BYTES as usize,
        })
        .collect();
    // SAFETY: memory files that are sealed against shrinking.
    unsafe { addresses::map(&ranges, access, Box::new(loan)) }
}
