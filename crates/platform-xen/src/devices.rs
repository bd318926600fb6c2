//! The device nodes of Linux: `/dev/xen/gntalloc`, `gntdev`, `evtchn`, `xenbus`. Neither Xen's libraries nor hypercalls are used.
//!
//! Each set of pages and each port has an open file of its own. A descriptor that is handed on therefore reaches no other pages, and a
//! port's descriptor is readable when just that port has an event.

mod calls;

use crate::addresses::{self, FileRange};
use crate::kernel::{Kernel, PAGE_BYTES, Pages, Port, UnmapNotify};
use crate::store::StoreTransport;
use crate::{Domid, EvtchnPort, GrantRef};
use isthmus_platform::event_channel;
use isthmus_shm::{Access, Mapping};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The maximum number of pages in one map request, because the kernel allocates contiguous memory of its own for each request.
const PAGES_AT_ONCE: usize = 4096;

/// The kernel of this domain.
#[derive(Clone, Copy, Debug, Default)]
pub struct Devices;

impl Devices {
    /// Returns the first node that is missing or not accessible, for diagnostics.
    pub fn check() -> Result<(), (&'static str, Errno)> {
        for node in [calls::GNTALLOC, calls::GNTDEV, calls::EVTCHN, calls::XENBUS] {
            open(node).map_err(|errno| (node, errno))?;
        }
        Ok(())
    }
}

fn open(node: &'static str) -> Result<OwnedFd, Errno> {
    rustix::fs::open(node, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())
}

fn bytes_of(pages: usize) -> Result<usize, Errno> {
    pages.checked_mul(PAGE_BYTES as usize).filter(|bytes| *bytes > 0).ok_or(Errno::INVAL)
}

impl Kernel for Devices {
    type Pages = DevicePages;
    type Port = DevicePort;
    type StoreTransport = DeviceStoreTransport;

    fn offer(&self, to: Domid, pages: u32, access: Access) -> Result<DevicePages, Errno> {
        bytes_of(pages as usize)?;
        let file = open(calls::GNTALLOC)?;
        let refs = calls::allocate(&file, to, pages, access)?;
        Ok(DevicePages { file, refs })
    }

    fn map(
        &self,
        from: Domid,
        refs: &[GrantRef],
        access: Access,
        unmap_notify: Option<UnmapNotify<'_, DevicePort>>,
    ) -> Result<Mapping, Errno> {
        bytes_of(refs.len())?;
        let file = open(calls::GNTDEV)?;
        let mut ranges = Vec::new();
        for refs in refs.chunks(PAGES_AT_ONCE) {
            let offset = calls::map_refs(&file, from, refs)?;
            ranges.push(FileRange { file: file.as_fd(), offset, bytes: bytes_of(refs.len())? });
        }
        if let Some(unmap_notify) = unmap_notify {
            let index = usize::try_from(unmap_notify.byte_at / PAGE_BYTES).map_err(|_| Errno::INVAL)? / PAGES_AT_ONCE;
            let into = unmap_notify.byte_at - bytes_of(PAGES_AT_ONCE)? as u64 * index as u64;
            let at = ranges.get(index).ok_or(Errno::INVAL)?.offset + into;
            calls::set_unmap_notify(&file, at, unmap_notify.port.number())?;
        }
        // SAFETY: pages of grants exist from the first moment of a mapping to its end, whatever becomes of the domain that granted them,
        // because the hypervisor keeps them for us. (The kernel checks a reference only now: an invalid one is refused here.) The file is
        // closed with its last mapping, and its state ends with it.
        unsafe { addresses::map(&ranges, access, Box::new(())) }
    }

    /// The descriptor also gives access to other pages granted to this domain, if its holder guesses their references. It is for programs
    /// that may see all of those.
    fn lend_fd(&self, from: Domid, refs: &[GrantRef]) -> Result<OwnedFd, Errno> {
        let file = open(calls::GNTDEV)?;
        let index = calls::map_refs(&file, from, refs)?;
        if index == 0 { Ok(file) } else { Err(Errno::PROTO) } // The index is always 0 for a file that was just opened.
    }

    fn listen(&self, peer: Domid) -> Result<DevicePort, Errno> {
        let file = open(calls::EVTCHN)?;
        let number = calls::port_for(&file, peer)?;
        Ok(DevicePort { file, number })
    }

    fn bind(&self, peer: Domid, port: EvtchnPort) -> Result<DevicePort, Errno> {
        let file = open(calls::EVTCHN)?;
        let number = calls::bind(&file, peer, port)?;
        Ok(DevicePort { file, number })
    }

    fn store(&self) -> Result<DeviceStoreTransport, Errno> {
        Ok(DeviceStoreTransport(open(calls::XENBUS)?))
    }

    /// Linux (6.1) stops at a BUG when the last descriptor of such an end is closed, and the process that closed it never ends. A separate
    /// process that does nothing else therefore holds the descriptor. If that process cannot be started, this process keeps the descriptor
    /// open.
    fn leak_port(&self, port: OwnedFd) {
        if let Ok(copy) = port.try_clone() {
            let mut holder = Command::new("sleep");
            holder.arg("infinity").stdin(copy).stdout(Stdio::null()).stderr(Stdio::null());
            if holder.spawn().is_ok() {
                return;
            }
        }
        std::mem::forget(port);
    }
}

/// Pages of this domain that are granted.
#[derive(Debug)]
pub struct DevicePages {
    file: OwnedFd,
    refs: Vec<GrantRef>,
}

impl Pages for DevicePages {
    type Port = DevicePort;

    fn refs(&self) -> &[GrantRef] {
        &self.refs
    }

    fn map(&self) -> Result<Mapping, Errno> {
        let range = FileRange { file: self.file.as_fd(), offset: 0, bytes: bytes_of(self.refs.len())? };
        // SAFETY: the pages exist from the first moment of a mapping to its end, even if their file was closed before.
        unsafe { addresses::map(&[range], Access::ReadWrite, Box::new(())) }
    }

    fn set_unmap_notify(&self, unmap_notify: UnmapNotify<'_, DevicePort>) -> Result<(), Errno> {
        calls::set_unmap_notify(&self.file, unmap_notify.byte_at, unmap_notify.port.number())
    }
}

impl AsFd for DevicePages {
    /// The descriptor to hand on. Its holder maps just these pages, at offset 0. The holder can also have this kernel grant further pages
    /// of its own.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// An end of an event channel.
#[derive(Debug)]
pub struct DevicePort {
    file: OwnedFd,
    number: EvtchnPort,
}

impl Port for DevicePort {
    fn number(&self) -> EvtchnPort {
        self.number
    }

    fn notify(&self) -> Result<(), Errno> {
        event_channel::notify(&self.file, self.number.0)
    }

    fn restrict(&self, peer: Domid) -> Result<(), Errno> {
        calls::restrict(&self.file, peer)
    }

    fn wait(&self, limit: Duration) -> Result<bool, Errno> {
        let came = poll(&self.file, limit)? && event_channel::take_event(&self.file)?;
        if came {
            // An event between the first one and the unmasking arrives now; both count as one.
            event_channel::take_event(&self.file)?;
        }
        Ok(came)
    }
}

impl AsFd for DevicePort {
    /// The descriptor to poll: readable while an event is pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A connection to XenStore.
#[derive(Debug)]
pub struct DeviceStoreTransport(OwnedFd);

impl StoreTransport for DeviceStoreTransport {
    fn send(&mut self, packet: &[u8]) -> Result<(), Errno> {
        let sent = rustix::io::retry_on_intr(|| rustix::io::write(&self.0, packet))?;
        if sent == packet.len() { Ok(()) } else { Err(Errno::IO) } // The kernel accepts a whole packet or refuses it.
    }

    fn receive(&mut self, into: &mut [u8], limit: Duration) -> Result<usize, Errno> {
        loop {
            match rustix::io::read(&self.0, &mut *into) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if !poll(&self.0, limit)? => return Ok(0),
                Err(Errno::AGAIN) => {}
                Ok(0) => return Err(Errno::PIPE),
                other => return other,
            }
        }
    }
}

impl AsFd for DeviceStoreTransport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until the file is readable; returns false if it is not within `limit`.
fn poll(file: &OwnedFd, limit: Duration) -> Result<bool, Errno> {
    let limit = Timespec::try_from(limit).ok();
    match rustix::event::poll(&mut [PollFd::new(file, PollFlags::IN)], limit.as_ref()) {
        Err(Errno::INTR) => Ok(false),
        ready => Ok(ready? > 0),
    }
}
