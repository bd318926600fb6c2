//! An epoll set of the program, with connections of which some have streams.
//!
//! The kernel's set holds the TCP sockets, for what only the kernel reports: plain connections, and the end of streams. While a connection
//! has a stream, its entry in the kernel has a token of the library's in place of the program's data, and the set has the doorbell of its
//! waiter. The result of every wait is translated, whatever was known when the wait began.
//!
//! A stream is *hot* while it is busy: each call checks its ring. A silent stream is *parked*, and its peer sets a ready bit.
//!
//! Several threads may wait in one set. A doorbell wakes one of them. Each thread that stops sleeping while others go on marks the waiter as
//! sleeping again, looks once more, and rings the doorbell if a stream is ready that it does not report.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::collections::HashMap;
use std::sync::Arc;

use isthmus_channel::wait::AdaptiveSpin;
use isthmus_layout::limits::READY_MAP_BITS;
use isthmus_layout::ready_map::ReadyBit;
use isthmus_layout::sockets::Interest;
use isthmus_platform::Ring as _;
use libc::{EPOLLET, EPOLLIN, EPOLLONESHOT, epoll_event};

use crate::connection::{Connection, Path, Stage, Stream};
use crate::copy::{self, Fault};
use crate::inside::{Handled, Interruption, SleepBell};
use crate::interest::{Entry, WRITE};
use crate::private_lock::PrivateLock;
use crate::shared_cell::{Cells, SharedCell};
use crate::table::{InUse, Recount};
use crate::wait_limit::Limit;
use crate::waiter::Waiter;
use crate::{errno, kernel, real, session, settings};

/// The upper half of the library's tokens. No address has it.
pub(crate) const MARK: u64 = 0x1574_a05e << 32;
/// The token of the doorbell.
const DOORBELL: u64 = MARK | 0xffff_ffff;

/// The low bits of a token, which name the entry. The other ones are the entry's generation.
const TOKEN_INDEX_BITS: u32 = 20;
const TOKEN_INDEX: u32 = (1 << TOKEN_INDEX_BITS) - 1;

/// Streams that are checked on each call.
const HOT_MAX: usize = 64;
/// Calls without a change after which a stream is parked, if others are hot.
const PARK_AFTER: u32 = 256;
/// Calls that found streams ready between two questions to the kernel.
const KERNEL_EVERY: u32 = 16;

/// A set.
#[derive(Default)]
pub(crate) struct EpollSet {
    /// The descriptor by which the library calls the kernel.
    fd: AtomicI32,
    /// The descriptor is the library's own copy.
    is_fd_kept: AtomicBool,
    fds: AtomicU32,
    /// Streams in the set.
    streams: AtomicU32,
    /// Threads that wait in the kernel, by calls of the library. A set that is itself waited for counts as one more.
    sleepers: AtomicU32,
    is_nested: AtomicBool,
    /// Waits by calls of the library so far.
    waits: AtomicU32,
    /// Streams were added before the first wait.
    has_pending: AtomicBool,
    has_contained: AtomicBool,
    inner: PrivateLock<Inner>,
}

/// The answer of a set that is asked to watch a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Enlisted {
    Yes,
    /// Not yet: the program has not waited since it added the socket, or a one-shot entry may not be armed.
    Later,
    Never,
}

/// The result of a wait in the kernel.
struct Waited {
    /// Events for the program, or -1.
    count: c_int,
    /// The time of the call has passed, by the kernel's own clock.
    is_over: bool,
}

#[derive(Default)]
pub(crate) struct Inner {
    entries: Vec<Option<Entry>>,
    /// Places of `entries` without an entry.
    free: Vec<u32>,
    generation: u32,
    by_fd: HashMap<c_int, u32>,
    hot: Vec<u32>,
    next_hot: usize,
    waiter: Option<Waiter>,
    spin: Option<AdaptiveSpin>,
    calls: u32,
    /// An end of a stream belongs to several processes. It stays true until the set ends.
    has_forked: bool,
    /// Sets in this one. They stay until the set ends.
    contained: Vec<InUse<EpollSet>>,
    /// A child has the set, too. The number is not 0 once a child has waited in its copy.
    copy: Option<SharedCell>,
    /// This process is the child.
    is_copy: bool,
    /// Entries with a place in the program's array, during a call.
    listed: Vec<u32>,
    /// Streams that must go back to TCP.
    asked: Vec<(c_int, InUse<Connection>)>,
    /// Streams with events of the kernel, during a call.
    events_of_streams: Vec<(c_int, InUse<Connection>)>,
    /// Entries of which the kernel has reported events that the program does not want.
    unwanted: Vec<u32>,
}

impl EpollSet {
    /// Starts tracking a set.
    pub(crate) fn start(&self, fd: c_int) {
        self.fd.store(fd, Ordering::Relaxed);
        self.fds.store(1, Ordering::Relaxed);
    }

    /// Counts another descriptor.
    pub(crate) fn add_fd(&self) {
        self.fds.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a descriptor is about to be closed. With the last one the entries go.
    pub(crate) fn closing(this: &InUse<Self>, fd: c_int, is_stale: bool) {
        if this.fds.fetch_sub(1, Ordering::AcqRel) != 1 {
            if this.fd.load(Ordering::Relaxed) == fd && !is_stale {
                // SAFETY: a command without pointers.
                let kept = unsafe { real::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
                this.fd.store(kept, Ordering::Relaxed);
                this.is_fd_kept.store(true, Ordering::Relaxed);
            }
            return;
        }
        if this.is_fd_kept.swap(false, Ordering::Relaxed) {
            kernel::close(this.fd.load(Ordering::Relaxed));
        }
        drop(this.with(|inner| core::mem::take(&mut inner.contained)));
        let entries = this.with(|inner| {
            inner.by_fd.clear();
            inner.hot.clear();
            inner.free.clear();
            core::mem::take(&mut inner.entries)
        });
        for entry in entries.into_iter().flatten() {
            entry.connection.unlink(this, None);
        }
    }

    /// Ends the object. No user is left.
    pub(crate) fn retire(&self) {
        drop(self.with(core::mem::take)); // Outside the lock, because it ends waiters and connections.
        for count in [&self.streams, &self.sleepers, &self.waits] {
            count.store(0, Ordering::Relaxed);
        }
        self.is_nested.store(false, Ordering::Relaxed);
        self.has_pending.store(false, Ordering::Relaxed);
        self.has_contained.store(false, Ordering::Relaxed);
    }

    fn with<R>(&self, f: impl FnOnce(&mut Inner) -> R) -> R {
        self.inner.with(f)
    }

    /// The lock, which `fork` holds.
    pub(crate) fn lock(&self) -> &PrivateLock<Inner> {
        &self.inner
    }

    /// Notes that a child is about to have the set, too.
    pub(crate) fn shares(&self, cells: &mut Cells) {
        self.with(|inner| {
            if inner.copy.is_none() {
                inner.copy = cells.cell();
            }
        });
    }

    /// Notes in a child that the set is a copy, in which no thread waits. Counts what it uses.
    pub(crate) fn becomes_copy(&self, connections: &mut Recount<Connection>, sets: &mut Recount<Self>) {
        self.with(|inner| {
            inner.is_copy = true;
            // Their calls were in threads of the parent.
            core::mem::take(&mut inner.asked).into_iter().for_each(core::mem::forget);
            core::mem::take(&mut inner.events_of_streams).into_iter().for_each(core::mem::forget);
            inner.clear_places();
            inner.entries.iter().flatten().for_each(|entry| connections.add(&entry.connection));
            inner.contained.iter().for_each(|set| sets.add(set));
        });
        self.sleepers.store(u32::from(self.is_nested.load(Ordering::Relaxed)), Ordering::Relaxed);
    }

    /// Keeps the entry of a descriptor that is about to be closed, while the socket has others. The kernel keeps it as well.
    pub(crate) fn orphan(&self, at: u32, fd: c_int) {
        self.with(|inner| {
            if let Some(entry) = inner.entry(at).filter(|entry| entry.fd == fd) {
                entry.is_orphan = true;
                if inner.by_fd.get(&fd) == Some(&at) {
                    inner.by_fd.remove(&fd);
                }
            }
        });
    }

    /// Removes an entry from the kernel's set.
    pub(crate) fn remove_from_kernel(&self, at: u32) {
        let fd = self.with(|inner| inner.entry(at).filter(|entry| !entry.is_orphan).map(|entry| entry.fd));
        if let Some(fd) = fd {
            self.kernel_control(libc::EPOLL_CTL_DEL, fd, None);
        }
    }

    /// Carries out the program's `epoll_ctl` for a tracked socket.
    pub(crate) fn control(
        this: &InUse<Self>,
        operation: c_int,
        fd: c_int,
        connection: &InUse<Connection>,
        event: Option<epoll_event>,
    ) -> c_int {
        match (operation, event) {
            (libc::EPOLL_CTL_ADD, Some(event)) => Self::add(this, fd, connection, event),
            (libc::EPOLL_CTL_MOD, Some(event)) => this.modify(fd, event),
            (libc::EPOLL_CTL_DEL, _) => this.remove(fd),
            _ => this.kernel_control(operation, fd, event),
        }
    }

    fn remove(&self, fd: c_int) -> c_int {
        let (at, is_left) = self.with(|inner| {
            let at = inner.by_fd.get(&fd).copied();
            let entry = at.and_then(|at| inner.entry(at));
            (at, entry.is_some_and(|entry| !entry.is_removed && entry.remove_lazily()))
        });
        if is_left {
            return 0;
        }
        if at.is_some_and(|at| self.purge(at)) {
            errno::set(libc::ENOENT);
            return -1;
        }
        let done = self.kernel_control(libc::EPOLL_CTL_DEL, fd, None);
        if let Some(at) = at {
            let errno = errno::get();
            self.drop_entry(at);
            errno::set(errno);
        }
        done
    }

    /// Removes an entry from the kernel that the program has removed before. Returns false if it has not.
    fn purge(&self, at: u32) -> bool {
        if !self.with(|inner| inner.entry(at).is_some_and(|entry| entry.is_removed)) {
            return false;
        }
        self.remove_from_kernel(at);
        self.drop_entry(at);
        true
    }

    /// Forgets an entry, and its connection's link to it.
    fn drop_entry(&self, at: u32) {
        if let Some(entry) = self.forget(at) {
            if self.was_waited(&entry) {
                entry.connection.is_awaited.store(true, Ordering::Relaxed);
            }
            entry.connection.unlink(self, Some(at));
        }
    }

    fn add(this: &InUse<Self>, fd: c_int, connection: &InUse<Connection>, event: epoll_event) -> c_int {
        // The same connection, which the program removed before.
        let left = this.with(|inner| {
            let at = inner.by_fd.get(&fd).copied()?;
            let entry = inner.entry(at).filter(|entry| entry.is_removed)?;
            let is_same = entry.connection == *connection;
            entry.is_removed = !is_same;
            Some((at, is_same))
        });
        match left {
            Some((_, true)) => return this.modify(fd, event),
            Some((at, false)) => _ = this.purge(at),
            None => {}
        }
        for (set, at) in connection.links() {
            set.purge(at);
        }
        // A thread that gets the first event must not attach the connection before the link is there.
        let call = match connection.path() {
            Path::Plain(call) => Some(call),
            Path::Kernel | Path::Stream(_) => None,
        };
        let done = this.kernel_control(libc::EPOLL_CTL_ADD, fd, Some(event));
        if done != 0 {
            return done;
        }
        let waits = this.waits.load(Ordering::Relaxed);
        let at = this.with(|inner| {
            let at = inner.free.pop().unwrap_or_else(|| {
                inner.entries.push(None);
                inner.entries.len() as u32 - 1
            });
            inner.entries[at as usize] = Some(Entry::new(fd, connection.clone(), event, waits));
            inner.by_fd.insert(fd, at);
            at
        });
        let links = connection.link(this, at);
        drop(call);
        if let Some(stream) = connection.stream()
            && !connection.has_left.load(Ordering::Relaxed)
        {
            match this.enlist(at, stream, true) {
                Enlisted::Never => connection.leave_rings(),
                Enlisted::Later => this.has_pending.store(true, Ordering::Release),
                Enlisted::Yes => {}
            }
            if links > 1 {
                connection.leave_rings();
            }
        }
        done
    }

    fn modify(&self, fd: c_int, event: epoll_event) -> c_int {
        let known = self.with(|inner| {
            let at = inner.by_fd.get(&fd).copied()?;
            let entry = inner.entry(at).filter(|entry| !entry.is_removed)?;
            let is_stream = entry.is_stream;
            let must_tell = entry.change(event);
            let (token, is_parked) = (entry.token_event(at), is_stream && !entry.is_hot);
            let connection = entry.connection.clone();
            if is_parked {
                inner.heat(at);
            }
            if is_stream {
                inner.kick(at, self.sleepers.load(Ordering::SeqCst));
            }
            Some((at, is_stream.then_some((token, must_tell)), connection))
        });
        match known {
            None => {
                if let Some(at) = self.with(|inner| inner.by_fd.get(&fd).copied()) {
                    self.purge(at);
                }
                self.kernel_control(libc::EPOLL_CTL_MOD, fd, Some(event))
            }
            Some((_, Some((_, false)), _)) => 0,
            Some((_, Some((token, true)), _)) => self.kernel_control(libc::EPOLL_CTL_MOD, fd, Some(token)),
            Some((at, None, connection)) => {
                if event.events & EPOLLONESHOT as u32 != 0 && connection.stage() == Stage::Paired {
                    Connection::try_attach(&connection, fd, Some(at));
                    if connection.stage() == Stage::Attached {
                        return 0; // `enlist` has armed it.
                    }
                }
                self.kernel_control(libc::EPOLL_CTL_MOD, fd, Some(event))
            }
        }
    }

    fn kernel_control(&self, operation: c_int, fd: c_int, event: Option<epoll_event>) -> c_int {
        let mut event = event;
        let pointer = event.as_mut().map_or(core::ptr::null_mut(), core::ptr::from_mut);
        // SAFETY: null, or an event of ours.
        unsafe { real::epoll_ctl(self.fd.load(Ordering::Relaxed), operation, fd, pointer) }
    }

    /// Registers in the kernel what the program wants and the ring does not cause.
    pub(crate) fn sync_kernel(&self, at: u32) {
        let change = self.with(|inner| {
            let sleepers = self.sleepers.load(Ordering::SeqCst);
            inner.kick(at, sleepers);
            let entry = inner.entry(at).filter(|entry| entry.is_stream && !entry.is_orphan)?;
            let events = entry.kernel_events();
            (entry.in_kernel != events).then(|| {
                entry.in_kernel = events;
                (entry.fd, entry.token_event(at))
            })
        });
        if let Some((fd, event)) = change {
            self.kernel_control(libc::EPOLL_CTL_MOD, fd, Some(event));
        }
    }

    /// True if the program has waited in this set through the library since it added the entry.
    fn was_waited(&self, entry: &Entry) -> bool {
        self.waits.load(Ordering::Relaxed) != entry.waits_before || self.sleepers.load(Ordering::SeqCst) > 0
    }

    /// Begins to watch the stream of an entry. `is_armed`: a one-shot entry certainly is.
    pub(crate) fn enlist(&self, at: u32, stream: &Stream, is_armed: bool) -> Enlisted {
        self.with(|inner| {
            let is_foreign = inner.copy.as_ref().is_some_and(|copy| copy.load(Ordering::Acquire) != 0);
            let Some(entry) = inner.entry(at) else { return Enlisted::Never };
            if is_foreign || entry.is_orphan {
                return Enlisted::Never;
            }
            if entry.is_stream {
                return Enlisted::Yes;
            }
            if !self.was_waited(entry) || entry.events & EPOLLONESHOT as u32 != 0 && !is_armed {
                return Enlisted::Later;
            }
            if !self.has_waiter(inner, stream) {
                return Enlisted::Never;
            }
            // A thread that begins to sleep after this sees that there is a stream.
            self.streams.fetch_add(1, Ordering::SeqCst);
            inner.generation = inner.generation.wrapping_add(1);
            let generation = inner.generation;
            let Some(entry) = inner.entry(at) else { return Enlisted::Never };
            entry.begin_stream(generation << TOKEN_INDEX_BITS);
            let (fd, event) = (entry.fd, entry.token_event(at));
            if self.kernel_control(libc::EPOLL_CTL_MOD, fd, Some(event)) != 0 {
                inner.end_stream(at);
                self.streams.fetch_sub(1, Ordering::SeqCst);
                return Enlisted::Never; // It was removed past the library.
            }
            inner.heat_stream(at, stream);
            if self.sleepers.load(Ordering::SeqCst) > 0 {
                inner.pass_on(); // Threads that went to sleep before there was a stream.
            }
            Enlisted::Yes
        })
    }

    /// Makes the set's waiter if need be. Returns false if the stream needs another one.
    fn has_waiter(&self, inner: &mut Inner, stream: &Stream) -> bool {
        if inner.waiter.is_none() {
            let Some(waiter) = stream.board.waiter() else { return false };
            let event = epoll_event { events: (EPOLLIN | EPOLLET) as u32, u64: DOORBELL };
            if self.kernel_control(libc::EPOLL_CTL_ADD, waiter.fd(), Some(event)) != 0 {
                return false;
            }
            inner.waiter = Some(waiter);
        }
        inner.waiter.as_ref().is_some_and(|waiter| Arc::ptr_eq(&waiter.board, &stream.board))
    }

    /// Watches the streams that were added before the program waited.
    #[cold]
    fn enlist_pending(&self) {
        let pending: Vec<(u32, InUse<Connection>)> = self.with(|inner| {
            let entries = (0..).zip(inner.entries.iter().flatten());
            entries.filter(|(_, entry)| !entry.is_stream).map(|(at, entry)| (at, entry.connection.clone())).collect()
        });
        for (at, connection) in pending {
            if let Some(stream) = connection.stream()
                && !connection.has_left.load(Ordering::Relaxed)
                && self.enlist(at, stream, true) == Enlisted::Never
            {
                connection.leave_rings();
            }
        }
    }

    /// Gives an entry back to the kernel, with the program's data.
    pub(crate) fn delist(&self, at: u32) {
        let given_back = self.with(|inner| {
            let event = inner.end_stream(at)?;
            self.streams.fetch_sub(1, Ordering::SeqCst);
            Some(event)
        });
        match given_back {
            Some((_, None)) | None => {}
            Some((fd, Some(event))) => _ = self.kernel_control(libc::EPOLL_CTL_MOD, fd, Some(event)),
        }
        self.purge(at);
    }

    /// Prepares a wait for the set itself, by `poll` or in another set. From the first one on, the set always counts as asleep, so its doorbell
    /// makes it readable. The doorbell is silent while no stream is ready.
    pub(crate) fn nest(&self) {
        if !self.is_nested.swap(true, Ordering::SeqCst) {
            self.sleepers.fetch_add(1, Ordering::SeqCst);
        }
        self.waits.fetch_add(1, Ordering::Relaxed);
        if self.has_pending.swap(false, Ordering::AcqRel) {
            self.enlist_pending();
        }
        self.with(|inner| {
            if let Some(waiter) = &inner.waiter {
                waiter.doorbell.clear();
            }
            inner.pass_on();
        });
    }

    /// Notes that the program waits in this set for another one.
    pub(crate) fn contain(&self, other: &InUse<Self>) {
        other.nest();
        self.with(|inner| {
            if !inner.contained.contains(other) {
                inner.contained.push(other.clone());
            }
        });
        self.has_contained.store(true, Ordering::Release);
    }

    /// Prepares the sets in this one for a wait.
    #[cold]
    fn nest_contained(&self) {
        self.with(|inner| inner.contained.clone()).iter().for_each(|set| set.nest());
    }

    /// Sleeps for short times only from now on.
    pub(crate) fn sleep_shortly(&self) {
        self.with(|inner| inner.has_forked = true);
    }

    /// Forgets an entry. The caller drops it outside all locks, because it may be the connection's last use.
    pub(crate) fn forget(&self, at: u32) -> Option<Entry> {
        self.with(|inner| {
            let entry = inner.entries.get_mut(at as usize)?.take()?;
            inner.free.push(at);
            inner.hot.retain(|hot| *hot != at);
            if inner.by_fd.get(&entry.fd) == Some(&at) {
                inner.by_fd.remove(&entry.fd);
            }
            if entry.is_stream {
                self.streams.fetch_sub(1, Ordering::SeqCst);
            }
            Some(entry)
        })
    }

    /// Sets the wish of a stream again, after a thread has used it, and lets the set look.
    pub(crate) fn restore_want(&self, at: u32) {
        self.with(|inner| {
            inner.heat(at);
            if let Some(waiter) = &inner.waiter {
                waiter.wake();
            }
        });
    }

    /// The program's `epoll_wait`. `wait` is the kernel's, with a time in nanoseconds, or None without an end. `polls`: the program does
    /// not wait.
    pub(crate) fn wait(
        &self,
        events: &mut [epoll_event],
        limit: Limit,
        polls: bool,
        wait: impl Fn(&mut [epoll_event], Option<u64>) -> c_int,
    ) -> c_int {
        let handled = Handled::now();
        self.waits.fetch_add(1, Ordering::Relaxed);
        if self.has_pending.swap(false, Ordering::AcqRel) {
            self.enlist_pending();
        }
        loop {
            if self.streams.load(Ordering::Relaxed) != 0 {
                let asks_kernel = self.with(|inner| {
                    inner.calls = inner.calls.wrapping_add(1);
                    inner.calls.is_multiple_of(KERNEL_EVERY) || inner.needs_kernel()
                });
                let from_kernel = if asks_kernel { self.ask_kernel(events, Some(0), &wait).0.max(0) } else { 0 };
                match self.collect(events, from_kernel) {
                    Ok(0) => {}
                    Ok(ready) => return ready as c_int,
                    Err(Fault) => return refuse_array(),
                }
                if !polls && self.spin() {
                    continue;
                }
            }
            if self.has_contained.load(Ordering::Acquire) {
                self.nest_contained();
            }
            let Waited { count, is_over } = self.sleep(events, limit, handled, &wait);
            if count < 0 {
                return count;
            }
            let Ok(total) = self.collect(events, count) else { return refuse_array() };
            if total > 0 || polls || is_over || limit.is_over() {
                return total as c_int;
            }
        }
    }

    /// Adds the events of streams to the first `count` of `events`, and moves streams back to TCP that must go there.
    fn collect(&self, events: &mut [epoll_event], count: c_int) -> Result<usize, Fault> {
        if self.streams.load(Ordering::SeqCst) == 0 {
            self.with(Inner::clear_places);
            return Ok(count as usize);
        }
        let (total, asked) = self.with(|inner| {
            let total = inner.collect(events, count as usize);
            if self.sleepers.load(Ordering::SeqCst) > 0 {
                inner.pass_on();
            }
            (total, core::mem::take(&mut inner.asked))
        });
        for (fd, connection) in asked {
            if let Some(stream) = connection.stream() {
                connection.heed(fd, stream);
            }
        }
        total
    }

    fn spin(&self) -> bool {
        let mut spin = self.with(|inner| inner.spin.take()).unwrap_or_else(|| AdaptiveSpin::new(settings::get().wait));
        let found = spin.spin(|| self.with(Inner::is_any_ready));
        self.with(|inner| inner.spin = Some(spin));
        found
    }

    /// Sleeps in the kernel, unless a stream is ready.
    fn sleep(
        &self,
        events: &mut [epoll_event],
        limit: Limit,
        handled: Handled,
        wait: &impl Fn(&mut [epoll_event], Option<u64>) -> c_int,
    ) -> Waited {
        // Before the look at the streams: a stream that comes later sees the sleeper.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let wanted = limit.left_ns();
        let (mut time, mut bell) = (wanted, -1);
        if self.streams.load(Ordering::SeqCst) != 0 {
            time = self.with(|inner| {
                inner.note_copy();
                let Some(waiter) = &inner.waiter else { return time };
                bell = waiter.fd();
                match waiter.begin_sleep() && !inner.is_any_ready() {
                    true => session::sleep_ns(time, inner.has_forked, inner.waits_for_room()),
                    false => Some(0),
                }
            });
        } else {
            self.note_copy();
        }
        let bell = SleepBell::begin(bell);
        let (count, found) = if handled.since() == Interruption::None {
            self.ask_kernel(events, time, wait)
        } else {
            errno::set(libc::EINTR);
            (-1, -1)
        };
        drop(bell);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        if self.streams.load(Ordering::SeqCst) != 0 {
            self.with(|inner| {
                // Under the lock: a thread that has marked the waiter as sleeping counts as a sleeper already.
                if self.sleepers.load(Ordering::SeqCst) == 0 {
                    inner.waiter.as_ref().map(Waiter::end_sleep);
                }
            });
        }
        Waited { count, is_over: found == 0 && time == wanted && wanted.is_some() }
    }

    /// Lets the parent know that this process, its child, waits in a copy of a set.
    fn note_copy(&self) {
        if crate::fork::is_child() {
            self.with(Inner::note_copy);
        }
    }

    /// Waits in the kernel, and translates. Returns the number of events for the program, or -1, and the number of the kernel's.
    fn ask_kernel(
        &self,
        events: &mut [epoll_event],
        time: Option<u64>,
        wait: &impl Fn(&mut [epoll_event], Option<u64>) -> c_int,
    ) -> (c_int, c_int) {
        let count = wait(events, time);
        let Ok(found) = usize::try_from(count) else { return (count, count) };
        let is_token = |event: &epoll_event| event.u64 & !0xffff_ffff == MARK;
        if !events[..found].iter().any(is_token) {
            return (count, count);
        }
        let mut kept = 0;
        for index in 0..found {
            let event = events[index];
            let translated =
                if is_token(&event) { self.translate(event, events.as_ptr() as usize, kept) } else { Some(event) };
            if let Some(translated) = translated {
                events[kept] = translated;
                kept += 1;
            }
        }
        for (fd, connection) in self.with(|inner| core::mem::take(&mut inner.events_of_streams)) {
            if let Some(stream) = connection.stream() {
                connection.saw_event(fd, stream);
            }
        }
        for at in self.with(|inner| core::mem::take(&mut inner.unwanted)) {
            if !self.purge(at) {
                self.sync_kernel(at);
            }
        }
        (kept as c_int, count)
    }

    /// Replaces a token by the program's data. None if the entry has gone, or for the doorbell.
    fn translate(&self, event: epoll_event, call: usize, index: usize) -> Option<epoll_event> {
        if event.u64 == DOORBELL {
            return None;
        }
        let (at, token) = (event.u64 as u32 & TOKEN_INDEX, event.u64 as u32);
        self.with(|inner| {
            let entry = inner.entry(at).filter(|entry| entry.generation | at == token)?;
            let seen = (entry.connection.stage() == Stage::Attached).then(|| (entry.fd, entry.connection.clone()));
            let (wanted, data) = (entry.wanted_of(event.events), entry.data);
            if wanted != 0 {
                entry.listed_at = Some((call, index));
                entry.after_report();
            }
            inner.listed.push(at);
            inner.events_of_streams.extend(seen);
            if wanted != event.events {
                inner.unwanted.push(at);
            }
            (wanted != 0).then_some(epoll_event { events: wanted, u64: data })
        })
    }
}

/// Answers that the program's array cannot be written.
#[cold]
fn refuse_array() -> c_int {
    errno::set(libc::EFAULT);
    -1
}

impl Inner {
    /// Notes that a child waits in its copy of the set. Its parent gives the set no further streams.
    fn note_copy(&mut self) {
        if let (true, Some(copy)) = (self.is_copy, &self.copy) {
            copy.store(1, Ordering::Release);
        }
    }

    /// Stops watching the stream of an entry. Returns its descriptor, and the event to register in the kernel again.
    fn end_stream(&mut self, at: u32) -> Option<(c_int, Option<epoll_event>)> {
        self.hot.retain(|hot| *hot != at);
        let entry = self.entry(at).filter(|entry| entry.is_stream)?;
        let has_own = entry.is_orphan || entry.is_removed;
        (entry.is_stream, entry.is_hot) = (false, false);
        let event = epoll_event { events: entry.events, u64: entry.data };
        Some((entry.fd, (!has_own).then_some(event)))
    }

    fn entry(&mut self, at: u32) -> Option<&mut Entry> {
        self.entries.get_mut(at as usize)?.as_mut()
    }

    /// Returns true if the kernel is likely to have an event of a hot stream.
    fn needs_kernel(&self) -> bool {
        self.hot.iter().any(|at| self.entries[*at as usize].as_ref().is_some_and(Entry::needs_kernel))
    }

    /// Returns true if the program waits for room in a full ring.
    fn waits_for_room(&self) -> bool {
        self.hot.iter().any(|at| self.entries[*at as usize].as_ref().is_some_and(Entry::waits_for_room))
    }

    /// Makes a stream hot.
    fn heat(&mut self, at: u32) {
        let Some(connection) = self.entry(at).filter(|entry| entry.is_stream).map(|entry| entry.connection.clone())
        else {
            return;
        };
        if let Some(stream) = connection.stream() {
            self.heat_stream(at, stream);
        }
    }

    fn heat_stream(&mut self, at: u32, stream: &Stream) {
        let Some(hot) = self.waiter.as_ref().map(Waiter::hot) else { return };
        let Some(entry) = self.entry(at) else { return };
        entry.quiet = 0;
        let (connection, was_hot) = (entry.connection.clone(), core::mem::replace(&mut entry.is_hot, true));
        self.has_forked |= connection.has_forked(stream);
        for what in Interest::ALL {
            if !connection.wish_in_use(what).load(Ordering::Relaxed) {
                stream.memory.set_want(what, hot);
            }
        }
        if !was_hot {
            if self.hot.len() >= HOT_MAX {
                self.park_quietest();
            }
            self.hot.push(at);
        }
    }

    fn park_quietest(&mut self) {
        let quiet = |at: &u32| self.entries[*at as usize].as_ref().map_or(u32::MAX, |entry| entry.quiet);
        if let Some(index) = (0..self.hot.len()).max_by_key(|index| quiet(&self.hot[*index])) {
            self.park(index);
        }
    }

    /// Parks the hot stream at `index`. If something has arrived meanwhile, its ready bit is set at once.
    fn park(&mut self, index: usize) {
        let at = self.hot.swap_remove(index);
        let Some(waiter) = &self.waiter else { return };
        let ready_bit = ready_bit(at);
        let want = waiter.parked(ready_bit);
        let Some(entry) = self.entries[at as usize].as_mut() else { return };
        entry.is_hot = false;
        let connection = entry.connection.clone();
        let Some(stream) = connection.stream() else { return };
        stream.memory.set_want(Interest::Data, want);
        if entry.waits_for_room() {
            connection.leave_rings(); // Nothing would look whether the peer reads.
            self.asked.push((entry.fd, connection.clone()));
        }
        if entry.events & WRITE != 0 {
            stream.memory.set_want(Interest::Room, want);
        } else {
            stream.memory.clear_want(Interest::Room);
        }
        if entry.ready() != 0 {
            waiter.board.board.notify(want);
        }
    }

    /// Makes streams hot if their ready bits are set.
    fn take_ready_bits(&mut self) {
        let Some(waiter) = &self.waiter else { return };
        let map = waiter.board.board.ready_map(waiter.index);
        if !map.is_any_set() {
            return;
        }
        let mut found = Vec::new();
        map.drain(|bit| found.push(bit.number()));
        for number in found {
            for at in (u32::from(number)..self.entries.len() as u32).step_by(READY_MAP_BITS as usize) {
                self.heat(at);
            }
        }
    }

    /// Returns true if a stream is ready that the program waits for.
    fn is_any_ready(&mut self) -> bool {
        self.take_ready_bits();
        if !self.asked.is_empty() {
            return true;
        }
        let (entries, hot) = (&mut self.entries, &self.hot);
        hot.iter().any(|at| entries[*at as usize].as_mut().is_some_and(|entry| entry.ready() != 0 || entry.is_asked()))
    }

    /// Adds the events of streams to the first `count` of `events`, which the kernel has. Returns the number of all.
    fn collect(&mut self, events: &mut [epoll_event], count: usize) -> Result<usize, Fault> {
        self.take_ready_bits();
        let (mut total, mut silent, mut written) = (count, None, Ok(()));
        let hot_len = self.hot.len();
        for index in (self.next_hot.min(hot_len)..hot_len).chain(0..self.next_hot.min(hot_len)) {
            let at = self.hot[index];
            let Some(entry) = self.entries[at as usize].as_mut() else { continue };
            if entry.is_asked() {
                self.asked.push((entry.fd, entry.connection.clone()));
            }
            let ready = entry.ready();
            if ready == 0 {
                entry.quiet = entry.quiet.saturating_add(1);
                silent = silent.or((entry.quiet > PARK_AFTER && hot_len > 1).then_some(at));
                entry.listed_at = None;
                continue;
            }
            entry.quiet = 0;
            if let Some((_, place)) = entry.listed_at.take_if(|(call, _)| *call == events.as_ptr() as usize) {
                events[place].events |= ready;
            } else if let Some(place) = events.get_mut(total) {
                // SAFETY: a place in the program's array, of which the kernel has not written all.
                written = unsafe { copy::write(place, epoll_event { events: ready, u64: entry.data }) };
                if written.is_err() {
                    break;
                }
                total += 1;
            } else {
                self.next_hot = index; // The next call begins here.
                break;
            }
            entry.reported(ready);
        }
        if let Some(at) = silent
            && let Some(index) = self.hot.iter().position(|hot| *hot == at)
        {
            self.park(index);
        }
        self.clear_places();
        if total > 0 { Ok(total) } else { written.map(|()| 0) }
    }

    /// Rings this set's own doorbell if the entry is ready and threads sleep in the set.
    fn kick(&mut self, at: u32, sleepers: u32) {
        if sleepers > 0
            && self.entry(at).is_some_and(|entry| entry.ready() != 0 || entry.is_asked())
            && let Some(waiter) = &self.waiter
        {
            waiter.doorbell.ring();
        }
    }

    /// Lets other threads sleep on in the set, which this one has left. What is ready now wakes the next one.
    fn pass_on(&mut self) {
        let Some(waiter) = &self.waiter else { return };
        let is_quiet = waiter.begin_sleep();
        if (!is_quiet || self.is_any_ready())
            && let Some(waiter) = &self.waiter
        {
            waiter.doorbell.ring();
        }
    }

    fn clear_places(&mut self) {
        for at in core::mem::take(&mut self.listed) {
            if let Some(entry) = self.entry(at) {
                entry.listed_at = None;
            }
        }
    }
}

fn ready_bit(at: u32) -> ReadyBit {
    ReadyBit::new((at % READY_MAP_BITS) as u16).unwrap_or(ReadyBit::CONTROL)
}
