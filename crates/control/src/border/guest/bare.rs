//! The device of a guest in which no driver has it: the window as the kernel shows it to root, and nobody who is woken.
//!
//! ```text
//!   program ── socket pair ──► a task for each bell of the host's ──► register, as soon as it is rung
//!   program ◄── event descriptor ◄── a task for all vectors of ours ◄── time: whoever hears one looks for itself
//! ```
//!
//! Rings of the host's cannot be heard, so all who listen are rung at intervals: short ones as long as somebody here rings the host, who will
//! have something to say to that, long ones otherwise. Programs of this guest ring one another without us.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use isthmus_layout::RegionSize;
use isthmus_layout::border::WindowNumber;
use isthmus_layout::limits::PAGE_BYTES;
use isthmus_platform::seqpacket;
use isthmus_platform_kvm::{BareDevice, DeviceError, GUEST, HOST, VECTORS_MAX};
use isthmus_shm::{Access, Window};
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{Instant, sleep};

use super::device::Device;
use super::is_made;
use crate::border::Line;

/// Between two rings while something happens; tokio's clock knows no shorter time.
const SOON: Duration = Duration::from_millis(1);

/// And while nothing does.
const SELDOM: Duration = Duration::from_millis(10);

/// So many short intervals after something has happened.
const LOOKS: u32 = 100;

/// How often it is looked whether the device was unplugged.
const GONE: Duration = Duration::from_secs(1);

/// A device without a driver.
pub struct Bare {
    device: Rc<BareDevice>,
    bells: Rc<Bells>,
    /// What rings the host, by vector.
    ringers: RefCell<BTreeMap<u16, OwnedFd>>,
    tasks: RefCell<Vec<JoinHandle<()>>>,
}

/// What is rung in this guest.
struct Bells {
    /// By vector, event descriptors.
    listeners: RefCell<BTreeMap<u16, OwnedFd>>,
    /// Readable once the device is gone.
    gone: OwnedFd,
    /// Somebody has rung the host.
    stirred: Cell<bool>,
    stir: Notify,
}

impl Bare {
    /// The function, which no driver has, by which this guest and its host share a window: what is there says that a daemon of ours has made it.
    /// Others are strangers', or show windows that guests have in common.
    pub fn of_host() -> Option<PathBuf> {
        let is_ours = |function: &PathBuf| {
            let device = BareDevice::open(function).ok().filter(|device| device.peer() == Some(GUEST));
            let head = device.and_then(|device| device.map(0, RegionSize(PAGE_BYTES.into()), Access::Read).ok());
            head.map(Window::new).is_some_and(|head| is_made(&head))
        };
        BareDevice::functions().into_iter().find(is_ours)
    }

    /// Takes a function that no driver has. Runs inside a [`LocalSet`](tokio::task::LocalSet).
    pub fn open(function: &Path) -> Result<Self, DeviceError> {
        let device = Rc::new(BareDevice::open(function)?);
        let gone = event().map_err(|source| DeviceError::Open { path: function.to_owned(), source })?;
        let (listeners, stirred, stir) = (RefCell::default(), Cell::new(true), Notify::new());
        let bells = Rc::new(Bells { listeners, gone, stirred, stir });
        let ringing = spawn_local(Rc::clone(&bells).ring(Rc::clone(&device)));
        Ok(Self { device, bells, ringers: RefCell::default(), tasks: RefCell::new(vec![ringing]) })
    }

    /// The function's folder.
    pub fn path(&self) -> &Path {
        self.device.path()
    }

    /// Bytes of the window.
    pub fn size(&self) -> RegionSize {
        self.device.size()
    }

    /// What rings a vector of the host's: a task hears it.
    fn pass_on(&self, vector: u16) -> io::Result<OwnedFd> {
        let (ours, theirs) = seqpacket::pair()?;
        let (line, device, bells) = (Line::new(ours)?, Rc::clone(&self.device), Rc::clone(&self.bells));
        self.tasks.borrow_mut().push(spawn_local(async move {
            let (mut packet, mut fds) = ([0; 8], Vec::new());
            while line.receive(&mut packet, &mut fds).await.is_some() {
                fds.clear();
                device.ring(HOST, vector);
                bells.stir();
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

impl Bells {
    /// Rings all who listen, until the device is gone.
    async fn ring(self: Rc<Self>, device: Rc<BareDevice>) {
        let (mut quiet, mut looked) = (0, Instant::now());
        loop {
            if quiet < LOOKS {
                sleep(SOON).await;
            } else {
                tokio::select! {
                    () = sleep(SELDOM) => {}
                    () = self.stir.notified() => {}
                }
            }
            quiet = if self.stirred.take() { 0 } else { quiet.saturating_add(1) };
            self.listeners.borrow().values().for_each(ring);
            if looked.elapsed() >= GONE {
                looked = Instant::now();
                if device.is_gone() {
                    return ring(&self.gone);
                }
            }
        }
    }

    /// Has all who listen look soon, and for some time.
    fn stir(&self) {
        self.stirred.set(true);
        self.stir.notify_one();
    }
}

/// A device has no others.
fn is_vector(vector: u16) -> io::Result<()> {
    match vector {
        0..VECTORS_MAX => Ok(()),
        _ => Err(io::Error::other(format!("there is no vector {vector}"))),
    }
}

fn event() -> Result<OwnedFd, rustix::io::Errno> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// One that is full rings already.
fn ring(event: &OwnedFd) {
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

impl Device for Bare {
    fn window(&self, at: u64, size: RegionSize) -> io::Result<Window> {
        Ok(Window::new(self.device.map(at, size, Access::ReadWrite)?))
    }

    fn piece(&self, offset: u64, bytes: u64) -> io::Result<OwnedFd> {
        self.device.piece(offset, RegionSize(bytes)).map_err(|errno| match errno {
            rustix::io::Errno::AGAIN => io::Error::other("a program of before still has its memory there"),
            errno => errno.into(),
        })
    }

    fn withdraw(&self, _offset: u64, _piece: Option<&OwnedFd>) -> io::Result<()> {
        Ok(()) // Nothing can be: see `is_held`.
    }

    fn ringer(&self, peer: u16, vector: u16) -> io::Result<OwnedFd> {
        is_vector(vector)?;
        match peer {
            GUEST => {
                let mut listeners = self.bells.listeners.borrow_mut();
                // Who listens later has another one, and is rung at intervals.
                let listener = listeners.remove(&vector).map_or_else(event, Ok)?;
                listeners.entry(vector).or_insert(listener).try_clone()
            }
            HOST => {
                let mut ringers = self.ringers.borrow_mut();
                let ringer = ringers.remove(&vector).map_or_else(|| self.pass_on(vector), Ok)?;
                ringers.entry(vector).or_insert(ringer).try_clone()
            }
            peer => Err(io::Error::other(format!("peer {peer} is nobody without a window in common"))),
        }
    }

    fn listen(&self, vector: u16) -> io::Result<OwnedFd> {
        is_vector(vector)?;
        let theirs = event()?;
        self.bells.listeners.borrow_mut().insert(vector, theirs.try_clone()?);
        self.bells.stir();
        Ok(theirs)
    }

    fn hang_up(&self) -> io::Result<OwnedFd> {
        self.bells.gone.as_fd().try_clone_to_owned()
    }

    fn beside(&self, _known: &BTreeSet<WindowNumber>) -> Vec<(WindowNumber, Self)> {
        Vec::new() // Each would need somebody to look there.
    }

    fn is_gone(&self) -> bool {
        self.device.is_gone()
    }

    fn shows_all(&self) -> bool {
        true
    }

    fn is_held(&self, offset: u64, bytes: u64) -> bool {
        self.device.is_held(offset, RegionSize(bytes))
    }
}
