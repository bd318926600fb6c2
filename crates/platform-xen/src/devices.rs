//! The device nodes of Linux: `/dev/xen/gntalloc`, `gntdev`, `evtchn`, `xenbus`. No library of Xen's, no hypercall.
//!
//! Each set of pages and each port has an open file of its own, so a descriptor that is handed on reaches no pages of anybody else's,
//! and a port's descriptor is readable when just that port has an event.

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

/// Pages that the kernel is asked to map at once: it wants memory of its own for each, in a row.
const PAGES_AT_ONCE: usize = 4096;

/// This domain's kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct Devices;

impl Devices {
    /// Which of the nodes is missing, or not for us; for people.
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
        // SAFETY: pages of grants are there from the first moment of a mapping to its end, whatever becomes of who granted them: the
        // hypervisor keeps them for us. (The kernel asks it only now: a number that is not good is refused here.) The file goes with
        // the last mapping of it, and with the file what it remembers.
        unsafe { addresses::map(&ranges, access, Box::new(())) }
    }

    /// Whoever holds it can also ask for other pages granted to this domain, if it guesses their numbers: it is for programs that may see
    /// all of those.
    fn lend_fd(&self, from: Domid, refs: &[GrantRef]) -> Result<OwnedFd, Errno> {
        let file = open(calls::GNTDEV)?;
        let index = calls::map_refs(&file, from, refs)?;
        if index == 0 { Ok(file) } else { Err(Errno::PROTO) } // Of a file that was just opened it always is.
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

    /// Linux (6.1) stops at a BUG when the last descriptor of such an end is closed, and whoever closed it never ends. So a process holds it
    /// that does nothing else; without one, we do.
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

/// Granted pages of ours.
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
        // SAFETY: the pages are there from the first moment of a mapping to its end, also when their file was closed before.
        unsafe { addresses::map(&[range], Access::ReadWrite, Box::new(())) }
    }

    fn set_unmap_notify(&self, unmap_notify: UnmapNotify<'_, DevicePort>) -> Result<(), Errno> {
        calls::set_unmap_notify(&self.file, unmap_notify.byte_at, unmap_notify.port.number())
    }
}

impl AsFd for DevicePages {
    /// To hand on: whoever gets it maps just these pages, at offset 0. It can also have this kernel grant further pages of its own.
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
            // What came between the first event and our writing back comes now, as one more.
            event_channel::take_event(&self.file)?;
        }
        Ok(came)
    }
}

impl AsFd for DevicePort {
    /// To poll: readable when there is an event to wait for.
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
        if sent == packet.len() { Ok(()) } else { Err(Errno::IO) } // The kernel takes a packet or refuses it.
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

/// Waits until there is something to read.
fn poll(file: &OwnedFd, limit: Duration) -> Result<bool, Errno> {
    let limit = Timespec::try_from(limit).ok();
    match rustix::event::poll(&mut [PollFd::new(file, PollFlags::IN)], limit.as_ref()) {
        Err(Errno::INTR) => Ok(false),
        ready => Ok(ready? > 0),
    }
}
