//! A guest's device without a driver: the window as the kernel shows it to root, without interrupts.
//!
//! ```text
//!   program ── socket pair ──► a task for each doorbell of the host ──► register, as soon as it is rung
//!   program ◄── event descriptor ◄── a task for all vectors of this guest ◄── timer: a woken program checks by itself for work
//! ```
//!
//! Rings of the host cannot be received, so a task rings all listeners at intervals. The intervals are short for some time after a program of
//! this guest has rung the host, because a reply is then likely, and long otherwise. Programs of this guest ring each other directly.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use isthmus_layout::RegionSize;
use isthmus_layout::limits::PAGE_BYTES;
use isthmus_layout::proxy::WindowId;
use isthmus_platform::seqpacket;
use isthmus_platform_kvm::{BareDevice, DeviceError, GUEST, HOST, VECTORS_MAX};
use isthmus_shm::{Access, SharedMapping};
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{Instant, sleep};

use super::device::GuestDevice;
use super::is_initialized;
use crate::proxy::PacketSocket;

/// The interval between two rings while the guest is active. tokio's timer supports no shorter one.
const ACTIVE_INTERVAL: Duration = Duration::from_millis(1);

/// The interval between two rings while the guest is idle.
const IDLE_INTERVAL: Duration = Duration::from_millis(10);

/// The number of short intervals after the last activity.
const ACTIVE_ROUNDS: u32 = 100;

/// The interval at which the device is checked for having been unplugged.
const UNPLUG_POLL: Duration = Duration::from_secs(1);

/// A device without a driver.
pub struct Bare {
    device: Rc<BareDevice>,
    doorbells: Rc<VectorRinger>,
    /// Descriptors that ring the host, by vector.
    senders: RefCell<BTreeMap<u16, OwnedFd>>,
    tasks: RefCell<Vec<JoinHandle<()>>>,
}

/// Rings the vectors of this guest.
struct VectorRinger {
    /// Event descriptors by vector.
    listeners: RefCell<BTreeMap<u16, OwnedFd>>,
    /// Readable once the device is gone.
    hangup_event: OwnedFd,
    /// Set when a program has rung the host or a listener was added.
    is_active: Cell<bool>,
    wake: Notify,
}

impl Bare {
    /// Finds the PCI function without a driver by which this guest and its host share a window. The head page identifies a window of an Isthmus
    /// daemon. Other functions have other uses, or show pair windows.
    pub fn of_host() -> Option<PathBuf> {
        let is_ours = |function: &PathBuf| {
            let device = BareDevice::open(function).ok().filter(|device| device.peer() == Some(GUEST));
            let head = device.and_then(|device| device.map(0, RegionSize(PAGE_BYTES.into()), Access::Read).ok());
            head.map(SharedMapping::new).is_some_and(|head| is_initialized(&head))
        };
        BareDevice::functions().into_iter().find(is_ours)
    }

    /// Opens a function that has no driver. Runs inside a [`LocalSet`](tokio::task::LocalSet).
    pub fn open(function: &Path) -> Result<Self, DeviceError> {
        let device = Rc::new(BareDevice::open(function)?);
        let hangup_event = event().map_err(|source| DeviceError::Open { path: function.to_owned(), source })?;
        let (listeners, is_active, wake) = (RefCell::default(), Cell::new(true), Notify::new());
        let doorbells = Rc::new(VectorRinger { listeners, hangup_event, is_active, wake });
        let ring_task = spawn_local(Rc::clone(&doorbells).ring(Rc::clone(&device)));
        Ok(Self { device, doorbells, senders: RefCell::default(), tasks: RefCell::new(vec![ring_task]) })
    }

    /// The folder of the function in sysfs.
    pub fn path(&self) -> &Path {
        self.device.path()
    }

    /// The size of the window.
    pub fn size(&self) -> RegionSize {
        self.device.size()
    }

    /// Returns a descriptor that rings a vector of the host. A task reads the other end and rings the device.
    fn host_doorbell_sender(&self, vector: u16) -> io::Result<OwnedFd> {
        let (ours, theirs) = seqpacket::pair()?;
        let (socket, device, doorbells) =
            (PacketSocket::new(ours)?, Rc::clone(&self.device), Rc::clone(&self.doorbells));
        self.tasks.borrow_mut().push(spawn_local(async move {
            let (mut packet, mut fds) = ([0; 8], Vec::new());
            while socket.receive(&mut packet, &mut fds).await.is_some() {
                fds.clear();
                device.ring(HOST, vector);
                doorbells.wake();
            }
        }));
        Ok(theirs)
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        self.tasks.get_mut().iter().for_each(JoinHandle::abort);
    }
}

impl VectorRinger {
    /// Rings all listeners at intervals, until the device is gone.
    async fn ring(self: Rc<Self>, device: Rc<BareDevice>) {
        let (mut idle_rounds, mut last_checked) = (0, Instant::now());
        loop {
            if idle_rounds < ACTIVE_ROUNDS {
                sleep(ACTIVE_INTERVAL).await;
            } else {
                tokio::select! {
                    () = sleep(IDLE_INTERVAL) => {}
                    () = self.wake.notified() => {}
                }
            }
            idle_rounds = if self.is_active.take() { 0 } else { idle_rounds.saturating_add(1) };
            self.listeners.borrow().values().for_each(ring);
            if last_checked.elapsed() >= UNPLUG_POLL {
                last_checked = Instant::now();
                if device.is_gone() {
                    return ring(&self.hangup_event);
                }
            }
        }
    }

    /// Starts a period of short intervals, so that all listeners are rung soon.
    fn wake(&self) {
        self.is_active.set(true);
        self.wake.notify_one();
    }
}

/// Returns an error if the device has no such vector.
fn is_vector(vector: u16) -> io::Result<()> {
    match vector {
        0..VECTORS_MAX => Ok(()),
        _ => Err(io::Error::other(format!("there is no vector {vector}"))),
    }
}

fn event() -> Result<OwnedFd, rustix::io::Errno> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// Rings an event descriptor. A full counter needs no further ring, because it is already readable.
fn ring(event: &OwnedFd) {
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

impl GuestDevice for Bare {
    fn window(&self, at: u64, size: RegionSize) -> io::Result<SharedMapping> {
        Ok(SharedMapping::new(self.device.map(at, size, Access::ReadWrite)?))
    }

    fn extent(&self, offset: u64, bytes: u64) -> io::Result<OwnedFd> {
        self.device.claim_extent(offset, RegionSize(bytes)).map_err(|errno| match errno {
            rustix::io::Errno::AGAIN => io::Error::other("a program of before still has its memory there"),
            errno => errno.into(),
        })
    }

    fn revoke(&self, _offset: u64, _extent: Option<&OwnedFd>) -> io::Result<()> {
        Ok(()) // No mapping can be revoked: see `is_in_use`.
    }

    fn doorbell_sender(&self, peer: u16, vector: u16) -> io::Result<OwnedFd> {
        is_vector(vector)?;
        match peer {
            GUEST => {
                let mut listeners = self.doorbells.listeners.borrow_mut();
                // A later listener gets a descriptor of its own, and is rung at intervals.
                let listener = listeners.remove(&vector).map_or_else(event, Ok)?;
                listeners.entry(vector).or_insert(listener).try_clone()
            }
            HOST => {
                let mut senders = self.senders.borrow_mut();
                let sender = senders.remove(&vector).map_or_else(|| self.host_doorbell_sender(vector), Ok)?;
                senders.entry(vector).or_insert(sender).try_clone()
            }
            peer => Err(io::Error::other(format!("there is no peer {peer} without a pair window"))),
        }
    }

    fn listen(&self, vector: u16) -> io::Result<OwnedFd> {
        is_vector(vector)?;
        let theirs = event()?;
        self.doorbells.listeners.borrow_mut().insert(vector, theirs.try_clone()?);
        self.doorbells.wake();
        Ok(theirs)
    }

    fn hangup_fd(&self) -> io::Result<OwnedFd> {
        self.doorbells.hangup_event.as_fd().try_clone_to_owned()
    }

    fn pair_devices(&self, _known: &BTreeSet<WindowId>) -> Vec<(WindowId, Self)> {
        Vec::new() // Each would need a polling task of its own.
    }

    fn is_gone(&self) -> bool {
        self.device.is_gone()
    }

    fn exposes_whole_window(&self) -> bool {
        true
    }

    fn is_in_use(&self, offset: u64, bytes: u64) -> bool {
        self.device.is_claimed(offset, RegionSize(bytes))
    }
}
