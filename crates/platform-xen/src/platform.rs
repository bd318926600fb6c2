//! The platform toward one other domain.

use crate::directory::{self, Level, ListError, ListPosition, PAGES_MAX};
use crate::grant::{GrantRefs, INLINE_MAX, XenGrant};
use crate::kernel::{Kernel, PAGE_BYTES, Pages, Port, UnmapNotify};
use crate::{Domid, EvtchnPort, GrantRef};
use isthmus_layout::RegionSize;
use isthmus_platform::conformance::{ConformancePlatform, WireValue};
use isthmus_platform::{Listen, Platform, PlatformError, Ring};
use isthmus_shm::{Access, MapError, Mapping, Payload, SharedMapping};
use rustix::io::Errno;
use std::time::Duration;

/// The platform for domains of a Xen host, over their kernel: [`crate::Devices`] or a [`crate::fake::FakeDomain`].
#[derive(Clone, Copy, Debug)]
pub struct Xen<K> {
    kernel: K,
    own: Domid,
}

/// Memory of this domain, granted to one other domain.
#[derive(Debug)]
pub struct XenMemory<P> {
    to: Domid,
    access: Access,
    pages: P,
    /// The lists of references, the root first. They have to exist until the peer has mapped the pages.
    lists: Vec<P>,
    grant: GrantRefs,
}

impl<P: Pages> XenMemory<P> {
    /// Returns the granted pages, for handing on their descriptor or setting the unmap notification.
    pub fn pages(&self) -> &P {
        &self.pages
    }

    /// Drops the lists of references, which the peer no longer needs after it has mapped. Grants that name the lists cannot be mapped any
    /// more.
    pub fn drop_lists(&mut self) {
        self.lists.clear();
    }
}

/// The data with which the peer notifies this domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoorbellToken {
    /// The domain of the port. The bytes do not contain it, because the receiver knows the sender.
    pub from: Domid,
    /// The port of the doorbell.
    pub port: EvtchnPort,
}

impl WireValue for DoorbellToken {
    fn emit(&self) -> Vec<u8> {
        [&self.from.number().to_le_bytes()[..], &self.port.0.to_le_bytes()].concat()
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let &[from0, from1, ref port @ ..] = bytes else { return None };
        let port = EvtchnPort(u32::from_le_bytes(port.try_into().ok()?));
        Some(Self { from: Domid::new(u16::from_le_bytes([from0, from1]))?, port })
    }
}

/// The receiving end of a doorbell.
#[derive(Debug)]
pub struct XenListener<P>(pub P);

/// The ringing end of a doorbell.
#[derive(Debug)]
pub struct XenRinger<P>(pub P);

fn refused(operation: &'static str) -> impl Fn(Errno) -> PlatformError {
    move |source| PlatformError::Refused { operation, source }
}

const GRANTING: &str = "granting pages (see the module parameter limit of xen_gntalloc)";
const MAPPING: &str = "mapping pages that another domain granted";

impl<K: Kernel> Xen<K> {
    /// Creates the platform of the domain `own`, over its kernel. ([`crate::Store::own_domid`] returns the number.)
    pub fn new(kernel: K, own: Domid) -> Self {
        Self { kernel, own }
    }

    /// Returns the number of this domain.
    pub fn own(&self) -> Domid {
        self.own
    }

    /// Maps as [`Platform::map`] does. When the mapping ends for any reason, the kernel notifies the peer.
    pub fn map_with_notify(
        &self,
        grant: &XenGrant,
        size: RegionSize,
        access: Access,
        unmap_notify: Option<UnmapNotify<'_, K::Port>>,
    ) -> Result<Mapping, PlatformError> {
        let refs = self.resolve_refs(grant, size)?;
        self.kernel.map(grant.from, &refs, access, unmap_notify).map_err(refused(MAPPING))
    }

    /// Returns the references of a grant's first pages, as many as `size` needs. They are checked only when they are mapped.
    pub fn resolve_refs(&self, grant: &XenGrant, size: RegionSize) -> Result<Vec<GrantRef>, PlatformError> {
        let (need, have) = (size.0.div_ceil(PAGE_BYTES), u64::from(grant.pages));
        if need > have {
            return Err(MapError::TooSmall { need: size.0, have: have * PAGE_BYTES }.into());
        }
        let mut refs = self.read_refs(grant)?;
        refs.truncate(need as usize);
        Ok(refs)
    }

    /// Returns the kernel.
    pub fn kernel(&self) -> &K {
        &self.kernel
    }

    /// Writes references into lists that `to` may read. Returns how the grant names them, and the pages of the lists.
    fn write_lists(&self, to: Domid, refs: &[GrantRef]) -> Result<(GrantRefs, Vec<K::Pages>), PlatformError> {
        if refs.len() <= INLINE_MAX {
            return Ok((GrantRefs::Inline(refs.to_vec()), Vec::new()));
        }
        let pages = refs.len() as u32;
        let one_page = |position: ListPosition, refs: &[GrantRef]| {
            let list = self.kernel.offer(to, 1, Access::Read).map_err(refused(GRANTING))?;
            SharedMapping::new(list.map().map_err(refused(GRANTING))?).copy_in(0, &directory::emit(position, refs));
            Ok::<_, PlatformError>(list)
        };
        let mut lists = Vec::new();
        for (leaf, refs) in (0..).zip(refs.chunks(directory::REFS_MAX)) {
            lists.push(one_page(ListPosition { level: Level::Leaf, pages, leaf }, refs)?);
        }
        if Level::first(pages) == Level::Root {
            let leaves: Vec<GrantRef> = lists.iter().map(|leaf| leaf.refs()[0]).collect();
            lists.insert(0, one_page(ListPosition { level: Level::Root, pages, leaf: 0 }, &leaves)?);
        }
        Ok((GrantRefs::Listed(lists[0].refs()[0]), lists))
    }

    /// Returns the references of a grant, each read once.
    fn read_refs(&self, grant: &XenGrant) -> Result<Vec<GrantRef>, PlatformError> {
        let pages = grant.pages;
        if pages == 0 || pages > PAGES_MAX {
            return Err(refused(MAPPING)(Errno::INVAL));
        }
        let first = match &grant.refs {
            GrantRefs::Inline(refs) if refs.len() == pages as usize => return Ok(refs.clone()),
            GrantRefs::Inline(_) => return Err(refused(MAPPING)(Errno::INVAL)),
            GrantRefs::Listed(first) => *first,
        };
        let leaves = match Level::first(pages) {
            Level::Leaf => vec![first],
            Level::Root => {
                let root = self.copy_pages(grant.from, &[first])?;
                directory::parse(ListPosition { level: Level::Root, pages, leaf: 0 }, &root[0]).map_err(unreadable)?
            }
        };
        let mut refs = Vec::with_capacity(pages as usize);
        for (leaf, page) in (0..).zip(self.copy_pages(grant.from, &leaves)?.iter()) {
            refs.extend(directory::parse(ListPosition { level: Level::Leaf, pages, leaf }, page).map_err(unreadable)?);
        }
        Ok(refs)
    }

    /// Returns copies of these pages, each made once.
    fn copy_pages(&self, from: Domid, refs: &[GrantRef]) -> Result<Vec<[u8; PAGE_BYTES as usize]>, PlatformError> {
        let window = SharedMapping::new(self.kernel.map(from, refs, Access::Read, None).map_err(refused(MAPPING))?);
        let copy = |at: usize| {
            let mut page = [0; PAGE_BYTES as usize];
            window.copy_out(at as u64 * PAGE_BYTES, &mut page);
            page
        };
        Ok((0..refs.len()).map(copy).collect())
    }
}

fn unreadable(fault: ListError) -> PlatformError {
    let operation = match fault {
        ListError::Unknown => "reading another domain's list of grant references, which is none",
        ListError::WrongPosition => "reading another domain's list of grant references, which is that of another grant",
        ListError::Pages(_) => "reading a list of as many grant references as there cannot be",
    };
    refused(operation)(Errno::BADMSG)
}

impl<K: Kernel> Platform for Xen<K> {
    type Peer = Domid;
    type Memory = XenMemory<K::Pages>;
    type Grant = XenGrant;
    type DoorbellToken = DoorbellToken;
    type DoorbellSender = XenRinger<K::Port>;
    type DoorbellReceiver = XenListener<K::Port>;

    fn allocate(&self, size: RegionSize, to: &Domid, access: Access) -> Result<Self::Memory, PlatformError> {
        let pages = size.0.div_ceil(PAGE_BYTES);
        if pages == 0 || pages > u64::from(PAGES_MAX) {
            return Err(refused(GRANTING)(Errno::INVAL));
        }
        let pages = self.kernel.offer(*to, pages as u32, access).map_err(refused(GRANTING))?;
        let (grant, lists) = self.write_lists(*to, pages.refs())?;
        Ok(XenMemory { to: *to, access, pages, lists, grant })
    }

    fn map_own(&self, memory: &Self::Memory) -> Result<Mapping, PlatformError> {
        memory.pages.map().map_err(refused("mapping granted pages of our own"))
    }

    fn grant(&self, memory: &Self::Memory, to: &Domid, access: Access) -> Result<XenGrant, PlatformError> {
        // The domain and the access were both fixed at allocation.
        if *to != memory.to || access != memory.access {
            return Err(refused(GRANTING)(Errno::PERM));
        }
        let pages = memory.pages.refs().len() as u32;
        Ok(XenGrant { from: self.own, access, pages, refs: memory.grant.clone() })
    }

    fn map(&self, grant: XenGrant, size: RegionSize, access: Access) -> Result<Mapping, PlatformError> {
        self.map_with_notify(&grant, size, access, None)
    }

    fn doorbell(&self, for_peer: &Domid) -> Result<(Self::DoorbellReceiver, DoorbellToken), PlatformError> {
        let port = self.kernel.listen(*for_peer).map_err(refused("making an event channel"))?;
        let bell = DoorbellToken { from: self.own, port: port.number() };
        Ok((XenListener(port), bell))
    }

    fn doorbell_sender(&self, bell: DoorbellToken) -> Result<Self::DoorbellSender, PlatformError> {
        Ok(XenRinger(self.kernel.bind(bell.from, bell.port).map_err(refused("binding to an event channel"))?))
    }
}

impl<P: Port> Ring for XenRinger<P> {
    fn ring(&self) {
        // Fails only for a port that is not ours, and this one is ours. Whether the other end still exists is unknown.
        let _ = self.0.notify();
    }
}

impl<P: Port> Listen for XenListener<P> {
    fn wait(&self, limit: Duration) -> bool {
        self.0.wait(limit).unwrap_or(false)
    }
}

impl<K: Kernel> ConformancePlatform for Xen<K> {
    fn forged_grants(
        &self,
        memory: &Self::Memory,
        to: &Domid,
        size: RegionSize,
        held: &mut Vec<Self::Memory>,
    ) -> Result<Vec<(&'static str, XenGrant)>, PlatformError> {
        let pages = size.0.div_ceil(PAGE_BYTES) as u32;
        let inline = |from, refs: Vec<GrantRef>| XenGrant {
            from,
            access: Access::ReadWrite,
            pages: refs.len() as u32,
            refs: GrantRefs::Inline(refs),
        };
        let listed = |pages, first| XenGrant {
            from: self.own,
            access: Access::ReadWrite,
            pages,
            refs: GrantRefs::Listed(first),
        };
        let valid_refs = memory.pages.refs().to_vec();
        // Granted to another domain: to this one.
        let foreign = self.allocate(size, &self.own, Access::ReadWrite)?;
        let read_only = self.allocate(size, to, Access::Read)?;
        let one_wrong = valid_refs[1..].iter().copied().chain([GrantRef(0x00ff_fff0)]).collect();
        let forged = vec![
            ("references that were never granted", inline(self.own, vec![GrantRef(0x00ff_fff1); pages as usize])),
            ("references made out to another domain", inline(self.own, foreign.pages.refs().to_vec())),
            ("one bad reference among good ones", inline(self.own, one_wrong)),
            ("references of a domain that granted nothing", inline(*to, valid_refs.clone())),
            ("read-only pages, said to be writable", inline(self.own, read_only.pages.refs().to_vec())),
            ("a list that is none", listed(pages, valid_refs[0])),
            ("fewer pages than it says", listed(PAGES_MAX, valid_refs[0])),
        ];
        held.extend([foreign, read_only]);
        Ok(forged)
    }
}

#[cfg(test)]
mod tests;
