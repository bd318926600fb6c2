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

use isthmus_channel::wait::AdaptiveSpin;
use libc::{EPOLLET, EPOLLIN, EPOLLONESHOT, epoll_event, pollfd};

use crate::connection::{Connection, Path, Stage, Stream};
use crate::copy::Fault;
use crate::epoll_inner::{Inner, PLACE};
use crate::inside::{Handled, Interruption, SleepBell};
use crate::interest::Entry;
use crate::private_lock::PrivateLock;
use crate::shared_cell::Cells;
use crate::table::{self, InUse, Recount};
use crate::wait_limit::Limit;
use crate::waiter::Waiter;
use crate::{errno, kernel, real, session, settings};

/// The upper half of the library's tokens. No address has it.
pub(crate) const MARK: u64 = 0x1574_a05e << 32;
/// The tokens of the doorbell, and of those for peers of other owners.
const DOORBELL: u64 = MARK | 0xffff_ffff;
const OWNER_BELLS: u64 = MARK | 0xffff_fffe;

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
#[derive(Default)]
struct Waited {
    /// Events for the program, or -1.
    count: c_int,
    /// The kernel's events, or -1.
    found: c_int,
    /// Entries of streams among them, and the places of their events in the program's array.
    placed: Vec<(u32, usize)>,
}

/// Events of streams that the kernel has reported in one call. Other threads must not answer for it: this one returns when it has.
#[derive(Default)]
struct Told {
    placed: Vec<(u32, usize)>,
    streams: Vec<(c_int, InUse<Connection>)>,
    /// Entries with events that the program does not want.
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
                this.fd.store(kernel::kept_copy(fd), Ordering::Relaxed);
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
            core::mem::take(&mut inner.entries)
        });
        for entry in entries.values() {
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
            inner.entries.values().for_each(|entry| connections.add(&entry.connection));
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
        self.with(|inner| {
            if let Some(entry) = inner.entry(at).filter(|entry| !entry.is_orphan) {
                self.kernel_control(libc::EPOLL_CTL_DEL, entry.fd, None);
            }
        });
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
        let (done, gone) = self.with(|inner| {
            let Some(entry) = inner.entry_of(fd) else {
                return (self.kernel_control(libc::EPOLL_CTL_DEL, fd, None), None);
            };
            let at = entry.at;
            if entry.is_removed {
                let gone = self.take_removed(inner, at);
                errno::set(libc::ENOENT);
                return (-1, gone);
            }
            if entry.remove_lazily() {
                return (0, None);
            }
            (self.kernel_control(libc::EPOLL_CTL_DEL, fd, None), self.take(inner, at))
        });
        self.end(gone);
        done
    }

    /// Removes an entry from the kernel that the program has removed before.
    fn purge(&self, at: u32) {
        let gone = self.with(|inner| self.take_removed(inner, at));
        self.end(gone);
    }

    /// As [`Self::purge`], under the lock.
    fn take_removed(&self, inner: &mut Inner, at: u32) -> Option<Entry> {
        let entry = inner.entry(at).filter(|entry| entry.is_removed)?;
        if !entry.is_orphan {
            self.kernel_control(libc::EPOLL_CTL_DEL, entry.fd, None);
        }
        self.take(inner, at)
    }

    /// Ends an entry that was taken out, and its connection's link to it. Outside all locks, because it may be the connection's last use.
    fn end(&self, gone: Option<Entry>) {
        let Some(entry) = gone else { return };
        let errno = errno::get();
        if self.was_waited(&entry) {
            entry.connection.is_awaited.store(true, Ordering::Relaxed);
        }
        entry.connection.unlink(self, Some(entry.at));
        drop(entry);
        errno::set(errno);
    }

    fn add(this: &InUse<Self>, fd: c_int, connection: &InUse<Connection>, event: epoll_event) -> c_int {
        let (done, gone) = this.with(|inner| {
            let Some(entry) = inner.entry_of(fd).filter(|entry| entry.is_removed) else { return (None, None) };
            if entry.connection == *connection {
                entry.is_removed = false;
                return (Some(this.modify_entry(inner, fd, event)), None);
            }
            let at = entry.at;
            (None, this.take_removed(inner, at))
        });
        this.end(gone);
        if let Some(done) = done {
            return done;
        }
        for (set, at) in connection.links() {
            set.purge(at);
        }
        // A thread that gets the first event must not attach the connection before the link is there.
        let call = match connection.path() {
            Path::Plain(call) => Some(call),
            Path::Kernel | Path::Stream(_) => None,
        };
        let waits = this.waits.load(Ordering::Relaxed);
        let added = this.with(|inner| {
            let done = this.kernel_control(libc::EPOLL_CTL_ADD, fd, Some(event));
            if done == 0 { Ok(inner.insert(fd, connection, event, waits)) } else { Err(done) }
        });
        let at = match added {
            Ok(at) => at,
            Err(done) => return done,
        };
        let links = connection.link(this, at);
        if this.with(|inner| inner.entry(at).is_none()) {
            connection.unlink(this, Some(at)); // Another thread has removed it already.
        }
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
        0
    }

    fn modify(&self, fd: c_int, event: epoll_event) -> c_int {
        if event.events & EPOLLONESHOT as u32 != 0 {
            let arming = self.with(|inner| {
                let entry = inner.entry_of(fd).filter(|entry| !entry.is_stream && !entry.is_removed)?;
                (entry.connection.stage() == Stage::Paired).then(|| {
                    entry.change(event);
                    (entry.at, entry.connection.clone())
                })
            });
            if let Some((at, connection)) = arming {
                Connection::try_attach(&connection, fd, Some(at));
                if connection.stage() == Stage::Attached {
                    return 0; // `enlist` has armed it.
                }
            }
        }
        let (done, gone) = self.with(|inner| match inner.entry_of(fd).filter(|entry| entry.is_removed) {
            Some(entry) => {
                let at = entry.at;
                let gone = self.take_removed(inner, at);
                (self.kernel_control(libc::EPOLL_CTL_MOD, fd, Some(event)), gone)
            }
            None => (self.modify_entry(inner, fd, event), None),
        });
        self.end(gone);
        done
    }

    /// Carries out a change, under the lock: the kernel gets the changes of an entry in the order of the entry's.
    fn modify_entry(&self, inner: &mut Inner, fd: c_int, event: epoll_event) -> c_int {
        let Some(entry) = inner.entry_of(fd) else {
            return self.kernel_control(libc::EPOLL_CTL_MOD, fd, Some(event));
        };
        let at = entry.at;
        let wished_room = entry.wishes_room();
        let must_tell = entry.change(event);
        if !entry.is_stream {
            return self.kernel_control(libc::EPOLL_CTL_MOD, fd, Some(event));
        }
        let (token, is_parked, wishes_room) = (entry.token_event(), !entry.is_hot, entry.wishes_room());
        let done = if must_tell { self.kernel_control(libc::EPOLL_CTL_MOD, fd, Some(token)) } else { 0 };
        let errno = errno::get();
        if is_parked || wished_room != wishes_room {
            inner.heat(at);
        }
        inner.kick(at, self.sleepers.load(Ordering::SeqCst));
        errno::set(errno);
        done
    }

    fn kernel_control(&self, operation: c_int, fd: c_int, event: Option<epoll_event>) -> c_int {
        let mut event = event;
        let pointer = event.as_mut().map_or(core::ptr::null_mut(), core::ptr::from_mut);
        // SAFETY: null, or an event of ours.
        unsafe { real::epoll_ctl(self.fd.load(Ordering::Relaxed), operation, fd, pointer) }
    }

    /// Registers in the kernel what the program wants and the ring does not cause.
    pub(crate) fn sync_kernel(&self, at: u32) {
        self.with(|inner| {
            let sleepers = self.sleepers.load(Ordering::SeqCst);
            inner.kick(at, sleepers);
            // A call of the kernel would arm an entry that is not armed.
            let is_due = |entry: &&mut Entry| entry.is_stream && !entry.is_orphan && !entry.is_unarmed();
            let Some(entry) = inner.entry(at).filter(is_due) else { return };
            let events = entry.kernel_events();
            if entry.in_kernel != events {
                entry.in_kernel = events;
                let (fd, event) = (entry.fd, entry.token_event());
                self.kernel_control(libc::EPOLL_CTL_MOD, fd, Some(event));
            }
        });
    }

    /// True if the program has waited in this set through the library since it added the entry.
    fn was_waited(&self, entry: &Entry) -> bool {
        self.waits.load(Ordering::Relaxed) != entry.waits_before || self.sleepers.load(Ordering::SeqCst) > 0
    }

    /// Begins to watch the stream of an entry. `is_armed`: a one-shot entry certainly is.
    pub(crate) fn enlist(&self, at: u32, stream: &Stream, is_armed: bool) -> Enlisted {
        self.with(|inner| {
            let is_foreign = inner.copy.as_ref().is_some_and(|copy| copy.load(Ordering::Acquire) != 0);
            let Some(entry) = inner.entry(at) else { return Enlisted::Later }; // Another thread has removed it.
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
            let Some(entry) = inner.entry(at) else { return Enlisted::Never };
            entry.begin_stream();
            let (fd, event) = (entry.fd, entry.token_event());
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

    /// Makes the set's waiter if need be. Returns false if the peer of the stream cannot reach it.
    fn has_waiter(&self, inner: &mut Inner, stream: &Stream) -> bool {
        let watch = |fd, token| {
            let event = epoll_event { events: (EPOLLIN | EPOLLET) as u32, u64: token };
            self.kernel_control(libc::EPOLL_CTL_ADD, fd, Some(event)) == 0
        };
        let waiter = match &mut inner.waiter {
            Some(waiter) => waiter,
            none => {
                let Some(waiter) = Waiter::serving(&stream.board) else { return false };
                if !watch(waiter.fd(), DOORBELL) {
                    return false;
                }
                none.insert(waiter)
            }
        };
        if !waiter.join(&stream.board) {
            return false;
        }
        if let (false, Some(bells)) = (inner.has_bells, waiter.bells_fd()) {
            inner.has_bells = watch(bells, OWNER_BELLS);
        }
        inner.has_bells || stream.board.number.is_none()
    }

    /// Watches the streams that were added before the program waited.
    #[cold]
    fn enlist_pending(&self) {
        let pending: Vec<(u32, InUse<Connection>)> = self.with(|inner| {
            let entries = inner.entries.values().filter(|entry| !entry.is_stream);
            entries.map(|entry| (entry.at, entry.connection.clone())).collect()
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
        let gone = self.with(|inner| {
            if let Some((fd, event)) = inner.end_stream(at) {
                self.streams.fetch_sub(1, Ordering::SeqCst);
                if event.is_some() {
                    self.kernel_control(libc::EPOLL_CTL_MOD, fd, event);
                }
            }
            self.take_removed(inner, at)
        });
        self.end(gone);
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
                waiter.clear();
            }
            inner.pass_on();
        });
    }

    /// Returns which of `events` the set has, of which the kernel has told that it is readable. A doorbell that came too late made it so, too.
    fn events_now(&self, fd: c_int, events: i16) -> i16 {
        let asked = self.with(|inner| {
            inner.find_asked();
            core::mem::take(&mut inner.asked)
        });
        heed(asked);
        if self.has_contained.load(Ordering::Acquire) {
            self.nest_contained();
        }
        self.nest();
        kernel::events_now(fd, events)
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
        self.with(|inner| self.take(inner, at))
    }

    /// As [`Self::forget`], under the lock.
    fn take(&self, inner: &mut Inner, at: u32) -> Option<Entry> {
        inner.entry(at)?;
        let entry = inner.entries.remove(at & PLACE)?;
        inner.hot.retain(|hot| *hot != at);
        if inner.by_fd.get(&entry.fd) == Some(&at) {
            inner.by_fd.remove(&entry.fd);
        }
        if entry.is_stream {
            self.streams.fetch_sub(1, Ordering::SeqCst);
        }
        Some(entry)
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

    /// Lets the peer of a stream tell of room, after a write has found none.
    pub(crate) fn wish_room(&self, at: u32, stream: &Stream) {
        self.with(|inner| inner.wish_room(at, stream));
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
        let mut handled = Handled::now();
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
                let waited = if asks_kernel { self.ask_kernel(events, Some(0), &wait) } else { Waited::default() };
                match self.collect(events, &waited) {
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
            let (waited, is_over) = self.sleep(events, limit, handled, &wait);
            if waited.count < 0 {
                if handled.was_only_alarm(errno::get()) {
                    handled = Handled::now();
                    continue;
                }
                return waited.count;
            }
            let Ok(total) = self.collect(events, &waited) else { return refuse_array() };
            if total > 0 || polls || is_over || limit.is_over() {
                return total as c_int;
            }
        }
    }

    /// Adds the events of streams to those that the kernel has put first, and moves streams back to TCP that must go there.
    fn collect(&self, events: &mut [epoll_event], waited: &Waited) -> Result<usize, Fault> {
        let count = waited.count.max(0) as usize;
        if self.streams.load(Ordering::SeqCst) == 0 {
            return Ok(count);
        }
        let (total, asked) = self.with(|inner| {
            let total = inner.collect(events, count, &waited.placed);
            if self.sleepers.load(Ordering::SeqCst) > 0 {
                inner.pass_on();
            }
            (total, core::mem::take(&mut inner.asked))
        });
        heed(asked);
        total
    }

    fn spin(&self) -> bool {
        let mut spin = self.with(|inner| inner.spin.take()).unwrap_or_else(|| AdaptiveSpin::new(settings::get().wait));
        let found = spin.spin(|| self.with(Inner::is_any_ready));
        self.with(|inner| inner.spin = Some(spin));
        found
    }

    /// Sleeps in the kernel, unless a stream is ready. Returns whether the time of the call has passed, too, by the kernel's own clock.
    fn sleep(
        &self,
        events: &mut [epoll_event],
        limit: Limit,
        handled: Handled,
        wait: &impl Fn(&mut [epoll_event], Option<u64>) -> c_int,
    ) -> (Waited, bool) {
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
        let waited = if handled.since() == Interruption::None {
            self.ask_kernel(events, time, wait)
        } else {
            errno::set(libc::EINTR);
            Waited { count: -1, ..Waited::default() }
        };
        drop(bell);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        if self.streams.load(Ordering::SeqCst) != 0 {
            self.with(|inner| {
                // Under the lock: a thread that has marked the waiter as sleeping counts as a sleeper already.
                if self.sleepers.load(Ordering::SeqCst) == 0 {
                    inner.waiter.as_ref().map(Waiter::end_sleep);
                } else if waited.count < 0 {
                    // This call ends without a look at the streams, and its mark of being awake may have replaced that of the others.
                    let errno = errno::get();
                    inner.pass_on();
                    errno::set(errno);
                }
            });
        }
        let is_over = waited.found == 0 && time == wanted && wanted.is_some();
        (waited, is_over)
    }

    /// Lets the parent know that this process, its child, waits in a copy of a set.
    fn note_copy(&self) {
        if crate::fork::is_child() {
            self.with(Inner::note_copy);
        }
    }

    /// Waits in the kernel, and translates.
    fn ask_kernel(
        &self,
        events: &mut [epoll_event],
        time: Option<u64>,
        wait: &impl Fn(&mut [epoll_event], Option<u64>) -> c_int,
    ) -> Waited {
        let found = wait(events, time);
        let count = usize::try_from(found).unwrap_or(0);
        let is_token = |event: &epoll_event| event.u64 & !0xffff_ffff == MARK;
        if !events[..count].iter().any(is_token) {
            return Waited { count: found, found, placed: Vec::new() };
        }
        let (mut kept, mut told) = (0, Told::default());
        for index in 0..count {
            let event = events[index];
            let translated = if is_token(&event) { self.translate(event, kept, &mut told) } else { Some(event) };
            if let Some(translated) = translated {
                events[kept] = translated;
                kept += 1;
            }
        }
        for (fd, connection) in told.streams {
            if let Some(stream) = connection.stream() {
                connection.saw_event(fd, stream);
            }
        }
        for at in told.unwanted {
            self.purge(at);
            self.sync_kernel(at);
        }
        Waited { count: kept as c_int, found, placed: told.placed }
    }

    /// Replaces a token by the program's data. None if the entry has gone, or for a doorbell.
    fn translate(&self, event: epoll_event, index: usize, told: &mut Told) -> Option<epoll_event> {
        if event.u64 == DOORBELL {
            return None;
        }
        if event.u64 == OWNER_BELLS {
            self.with(|inner| inner.waiter.iter().for_each(Waiter::take_rings));
            return None;
        }
        let at = event.u64 as u32;
        self.with(|inner| {
            let entry = inner.entry(at)?;
            entry.connection.note_event(); // Before any thread can report it.
            told.streams.push((entry.fd, entry.connection.clone()));
            let (wanted, data) = (entry.wanted_of(event.events), entry.data);
            if wanted != event.events {
                told.unwanted.push(at);
            }
            (wanted != 0).then(|| {
                told.placed.push((at, index));
                entry.after_report();
                epoll_event { events: wanted, u64: data }
            })
        })
    }
}

/// Answers that the program's array cannot be written.
#[cold]
fn refuse_array() -> c_int {
    errno::set(libc::EFAULT);
    -1
}

/// Moves streams back to TCP that must go there.
fn heed(asked: Vec<(c_int, InUse<Connection>)>) {
    for (fd, connection) in asked {
        if let Some(stream) = connection.stream() {
            connection.heed(fd, stream);
        }
    }
}

/// Polls by `kernel`, which is the program's call with other descriptors and a time in nanoseconds, or None without an end. Sets may be
/// among the descriptors. If the kernel reports only sets, and they have nothing, the call goes on.
pub(crate) fn poll_with_sets(
    fds: &mut [pollfd],
    time: Option<u64>,
    kernel: &impl Fn(&mut [pollfd], Option<u64>) -> c_int,
) -> c_int {
    let limit = time.map_or(Limit::Never, Limit::after_ns);
    let mut left = time;
    loop {
        let mut count = kernel(fds, left);
        if count <= 0 {
            return count;
        }
        for entry in fds.iter_mut().filter(|entry| entry.revents != 0) {
            if let Some(set) = table::set(entry.fd) {
                entry.revents = set.events_now(entry.fd, entry.events);
                count -= c_int::from(entry.revents == 0);
            }
        }
        left = limit.left_ns();
        if count > 0 || time == Some(0) || left == Some(0) {
            return count;
        }
    }
}
