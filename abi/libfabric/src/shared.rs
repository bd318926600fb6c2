//! The state that the objects of a domain share, and the lock that covers it.
//!
//! ```text
//!   domain, endpoint, av, cq, cntr, mr ── each an object of C with an Arc of this
//!        └── lock ──► State: members (endpoints and what is bound to them), address vectors, queues
//! ```
//!
//! One lock covers a whole domain. With `FI_THREAD_DOMAIN` no thread ever waits for it; with `FI_THREAD_SAFE` the lock
//! provides the thread safety. A thread sleeps without the lock. The next thread that releases the lock wakes it.

use crate::abi::consts::{FI_ADDR_UNSPEC, FI_DIRECTED_RECV};
use crate::address::Av;
use crate::caps::Caps;
use crate::cq::Queue;
use crate::engine::endpoint::Endpoint;
use crate::engine::regions::Regions;
use crate::errno::Errno;
use crate::wait_object::WaitObject;
use isthmus_client::{EndpointAddress, Options};
use isthmus_layout::SlotTable;
use isthmus_shm::biased_lock::{BiasedLock, BiasedLockGuard};
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// An endpoint, and the objects bound to it.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) endpoint: Endpoint,
    pub(crate) av: Option<u32>,
    /// The capabilities that calls of the endpoint are checked against.
    pub(crate) caps: Caps,
    /// The default flags of calls without flags.
    pub(crate) tx_flags: u64,
    pub(crate) rx_flags: u64,
    pub(crate) enabled: bool,
}

/// The state that the lock covers.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) members: SlotTable<Member>,
    pub(crate) avs: SlotTable<Av>,
    pub(crate) queues: SlotTable<Queue>,
    /// The number of sleeping threads.
    sleepers: u32,
    /// A program may be sleeping on the descriptor.
    pub(crate) watched: bool,
}

impl State {
    /// Returns an endpoint.
    #[inline]
    pub(crate) fn member(&mut self, at: u32) -> Result<&mut Member, Errno> {
        self.members.get_mut(at).ok_or(Errno::OPBADSTATE)
    }

    /// Returns an endpoint and the address of a destination in its address vector.
    #[inline]
    pub(crate) fn route(&mut self, at: u32, to: u64) -> Result<(&mut Member, EndpointAddress), Errno> {
        let member = self.members.get_mut(at).ok_or(Errno::OPBADSTATE)?;
        let index = usize::try_from(to).map_err(|_| Errno::INVAL)?;
        match member.endpoint.place(index) {
            Some(address) => Ok((member, address)),
            None => {
                let av = member.av.and_then(|av| self.avs.get(av)).ok_or(Errno::NOAV)?;
                let name = av.name(index).ok_or(Errno::INVAL)?;
                let address = member.endpoint.resolve_remote(index, name, av.first(index))?;
                Ok((member, address))
            }
        }
    }

    /// Returns the number of the sender that a receive is to match. Without `FI_DIRECTED_RECV` that is any sender. A
    /// peer of another host is known only after it was resolved. A peer that cannot be resolved sends nothing.
    pub(crate) fn source(&mut self, at: u32, from: u64) -> Result<u64, Errno> {
        if self.member(at)?.caps.check_rx(FI_DIRECTED_RECV).is_err() {
            return Ok(FI_ADDR_UNSPEC);
        }
        let _ = self.route(at, from);
        let member = self.members.get(at).ok_or(Errno::OPBADSTATE)?;
        let av = member.av.and_then(|av| self.avs.get(av)).ok_or(Errno::NOAV)?;
        Ok(av.first(usize::try_from(from).map_err(|_| Errno::INVAL)?) as u64)
    }

    /// Makes progress on every endpoint.
    pub(crate) fn progress_all(&mut self) {
        self.members.values_mut().for_each(|member| _ = member.endpoint.progress());
    }

    /// Arms the descriptors of all endpoints, which report everything from now on. Returns false if there is something to do already.
    pub(crate) fn arm_all(&mut self) -> bool {
        let mut quiet = true;
        for member in self.members.values_mut() {
            quiet &= member.endpoint.arm(); // Each of them, whatever the others answer.
        }
        quiet
    }
}

/// The state that the objects of a domain share.
#[derive(Debug)]
pub(crate) struct Shared {
    state: BiasedLock<State>,
    pub(crate) wait_object: WaitObject,
    pub(crate) regions: Arc<Regions>,
    pub(crate) options: Options,
    /// The version of the API that the program was built with.
    pub(crate) api_version: u32,
}

impl Shared {
    pub(crate) fn new(options: Options, api_version: u32) -> Result<Self, Errno> {
        let (state, regions) = (BiasedLock::new(State::default()), Arc::default());
        Ok(Self { state, wait_object: WaitObject::new()?, regions, options, api_version })
    }

    /// Locks the state. A lock that a panic poisoned is taken nevertheless: the interrupted operation fails, all others
    /// continue.
    #[inline]
    pub(crate) fn lock(&self) -> Locked<'_> {
        Locked { guard: self.hold(), shared: self }
    }

    /// Runs `look` if no other thread holds the lock, and returns its result. `look` must not change state that a
    /// thread waits for. Returns false if the lock is held, or if `look` panics.
    #[inline]
    pub(crate) fn try_inspect(&self, look: impl FnOnce(&mut State) -> bool) -> bool {
        let Some(mut state) = self.state.try_lock() else { return false };
        catch_unwind(AssertUnwindSafe(|| look(&mut state))).unwrap_or(false)
    }

    #[inline]
    fn hold(&self) -> BiasedLockGuard<'_, State> {
        self.state.try_lock().unwrap_or_else(|| self.state.lock())
    }
}

/// A guard of the lock.
pub(crate) struct Locked<'a> {
    guard: BiasedLockGuard<'a, State>,
    shared: &'a Shared,
}

impl<'a> Locked<'a> {
    /// Releases the lock without a wake-up.
    fn release(self) -> &'a Shared {
        let this = ManuallyDrop::new(self);
        // SAFETY: no code uses or drops `this` any more, so the guard is only here.
        drop(unsafe { std::ptr::read(&raw const this.guard) });
        this.shared
    }

    /// Releases the lock. The next holder then wakes a program that sleeps on the descriptor.
    pub(crate) fn watch(mut self) {
        self.watched = true;
        self.release(); // This thread knows of its own changes.
    }

    /// Releases the lock and sleeps until an event occurs or `limit` is over. The endpoints have been armed before.
    pub(crate) fn sleep(mut self, limit: Duration) -> Self {
        self.sleepers += 1;
        // All sleepers share one wait object, and the first that wakes clears it.
        let limit = if self.sleepers > 1 { limit.min(Duration::from_millis(10)) } else { limit };
        let shared = self.release();
        shared.wait_object.sleep(limit);
        let mut again = shared.lock();
        again.sleepers -= 1;
        again
    }
}

impl Deref for Locked<'_> {
    type Target = State;

    #[inline]
    fn deref(&self) -> &State {
        &self.guard
    }
}

impl DerefMut for Locked<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut State {
        &mut self.guard
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.sleepers > 0 || self.watched {
            self.watched = false;
            self.shared.wait_object.wake();
        }
    }
}
