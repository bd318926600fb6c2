//! Xen domains. A guest daemon finds its backend through XenStore and grants it a window. A backend finds its guests there.
//!
//! ```text
//!  guest: frontend                                               domain 0, or a driver domain: backend
//!    its store's thread ── offer: grants, a port ── XenStore ──► its store's thread
//!      │ OfferedWindow                                             │ GuestEvent
//!    GuestDaemon over a Frontend ══ head, proxy ring, batches ══ GuestProxy over a GuestWindow of grants
//!    relay ◄────────────────── one event channel ───────────────► relay
//!
//!  guest ══ pair window (granted by the one to the other), an event channel of its own ══ another guest of the same backend
//! ```
//!
//! The protocol on the proxy ring is the same as over the window of a device ([`crate::proxy`]). Only the source of extents and the doorbells
//! differ. The XenStore library blocks, so each side has a separate thread for it, which does nothing else.

pub mod backend;
mod backoff;
pub mod frontend;
mod held_port;
mod pairs;
mod peer_guests;
mod relay;

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use isthmus_platform_xen::{Kernel, Store, StoreError};

/// How long the store's thread waits for events before it checks for other work.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The pause before the store is opened again if it has failed repeatedly.
const STORE_RETRY: Duration = Duration::from_secs(5);

/// A domain's kernel that several threads can use. Implemented by the kernel's devices, and by a domain of a fake host
/// ([`isthmus_platform_xen::fake`]).
pub trait XenKernel: Kernel<Pages: Send, Port: Send> + Clone + Send + Sync + 'static {}

impl<K: Kernel<Pages: Send, Port: Send> + Clone + Send + Sync + 'static> XenKernel for K {}

/// Opens a new connection to the store.
fn connect_store<K: XenKernel>(kernel: &K) -> Result<Store<K::StoreTransport>, StoreError> {
    kernel.store().map(Store::new).map_err(StoreError::Broken)
}

/// Runs `work` repeatedly until it is stopped. After an error it retries at once, or after [`STORE_RETRY`] if the previous error was recent.
fn run_with_retry(what: &str, stop_flag: &StopFlag, mut work: impl FnMut() -> Result<(), StoreError>) {
    let mut broken: Option<Instant> = None;
    while !stop_flag.is_stopped() {
        let Err(error) = work() else { continue };
        tracing::warn!("{what}: {error}; it is tried again");
        if broken.replace(Instant::now()).is_some_and(|before| before.elapsed() < 2 * STORE_RETRY) {
            std::thread::park_timeout(STORE_RETRY);
        }
    }
}

/// Ends a store's thread when dropped. The thread ends within a [`POLL_INTERVAL`]; the drop does not wait for it.
#[derive(Debug)]
struct StopOnDrop(Arc<AtomicBool>);

/// The thread's view of a [`StopOnDrop`].
#[derive(Clone, Debug)]
struct StopFlag(Arc<AtomicBool>);

impl StopOnDrop {
    fn new() -> (Self, StopFlag) {
        let flag = Arc::new(AtomicBool::new(false));
        (Self(Arc::clone(&flag)), StopFlag(flag))
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl StopFlag {
    fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Starts a store's thread.
fn spawn_thread(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
}

/// Returns a random number, which very likely no previous daemon has used.
fn incarnation() -> io::Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_le_bytes(bytes))
}

fn event() -> io::Result<OwnedFd> {
    use rustix::event::{EventfdFlags, eventfd};
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

fn duplicate(fd: &OwnedFd) -> io::Result<OwnedFd> {
    fd.as_fd().try_clone_to_owned()
}
