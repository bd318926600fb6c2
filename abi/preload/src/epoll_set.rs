//! An epoll set of the program, with connections of which some have streams.
//!
//! The kernel's set holds the TCP sockets, for what only the kernel reports: plain connections, and the end of streams. Beside them it holds
//! the doorbell of the set's waiter. The library registers a tracked socket with a token of its own, and translates it to the program's
//! data when the kernel returns it.
//!
//! A stream is *hot* while it is busy: each call checks its ring. A silent stream is *parked*, and its peer sets a ready bit.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use isthmus_channel::wait::AdaptiveSpin;
use isthmus_layout::limits::READY_MAP_BITS;
use isthmus_layout::ready_map::ReadyBit;
use isthmus_layout::sockets::Interest;
use libc::{EPOLLET, EPOLLIN, epoll_event};

use crate::connection::{Connection, Stage, Stream};
use crate::interest::{Entry, WRITE};
use crate::table::{InUse, Tracked};
use crate::wait::timeout_ms;
use crate::waiter::Waiter;
use crate::{errno, real, session, settings};

/// The upper half of the library's tokens. No address has it.
const MARK: u64 = 0x1574_a05e << 32;
/// The token of the doorbell.
const DOORBELL: u64 = MARK | 0xffff_ffff;

/// Streams that are checked on each call.
const HOT_MAX: usize = 64;
/// Calls without a change after which a stream is parked, if others are hot.
const PARK_AFTER: u32 = 256;
/// Calls that found streams ready between two questions to the kernel.
const KERNEL_EVERY: u32 = 16;

/// A set.
#[derive(Default)]
pub(crate) struct EpollSet {
    fd: AtomicI32,
    fds: AtomicU32,
    /// Streams in the set.
    streams: AtomicU32,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    entries: Vec<Option<Entry>>,
    /// Places of `entries` without an entry.
    free: Vec<u32>,
    by_fd: HashMap<c_int, u32>,
    hot: Vec<u32>,
    next_hot: usize,
    waiter: Option<Waiter>,
    spin: Option<AdaptiveSpin>,
    calls: u32,
    /// An end of a stream belongs to several processes. It stays true until the set ends.
    has_forked: bool,
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
    pub(crate) fn closing(this: &InUse<Self>) {
        if this.fds.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let entries = this.with(|inner| {
            inner.by_fd.clear();
            inner.hot.clear();
            inner.free.clear();
            core::mem::take(&mut inner.entries)
        });
        for entry in entries.into_iter().flatten() {
            entry.connection.unlink(this);
        }
    }

    /// Ends the object. No user is left.
    pub(crate) fn retire(&self) {
        self.with(|inner| *inner = Inner::default());
        self.streams.store(0, Ordering::Relaxed);
    }

    fn with<R>(&self, f: impl FnOnce(&mut Inner) -> R) -> R {
        f(&mut self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// True if the entry is one of this descriptor.
    pub(crate) fn is_of_fd(&self, at: u32, fd: c_int) -> bool {
        self.with(|inner| inner.entry(at).is_some_and(|entry| entry.fd == fd))
    }

    /// Carries out the program's `epoll_ctl` for a tracked connection.
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
        let Some(fd) = self.with(|inner| inner.entry(at).filter(|entry| entry.is_removed).map(|entry| entry.fd)) else {
            return false;
        };
        self.kernel_control(libc::EPOLL_CTL_DEL, fd, None);
        self.drop_entry(at);
        true
    }

    /// Forgets an entry, and its connection's link to it.
    fn drop_entry(&self, at: u32) {
        if let Some(entry) = self.forget(at) {
            entry.connection.unlink_entry(self, at);
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
        let at = this.with(|inner| {
            let at = inner.free.pop().unwrap_or_else(|| {
                inner.entries.push(None);
                inner.entries.len() as u32 - 1
            });
            inner.entries[at as usize] = Some(Entry::new(fd, connection.clone(), event));
            at
        });
        let kernel = this.with(|inner| inner.entry(at).map(|entry| entry.kernel_events())).unwrap_or(event.events);
        let done = this.kernel_control(
            libc::EPOLL_CTL_ADD,
            fd,
            Some(epoll_event { events: kernel, u64: MARK | u64::from(at) }),
        );
        if done != 0 {
            let errno = errno::get();
            this.forget(at);
            errno::set(errno);
            return done;
        }
        this.with(|inner| inner.by_fd.insert(fd, at));
        if let Ok(mut links) = connection.sets.lock() {
            links.push((this.clone(), at));
        }
        match connection.stream() {
            Some(stream) if !this.enlist(at, stream) => connection.leave_rings(),
            Some(_) if connection.sets.lock().is_ok_and(|links| links.len() > 1) => connection.leave_rings(),
            _ => {}
        }
        done
    }

    fn modify(&self, fd: c_int, event: epoll_event) -> c_int {
        let changed = self.with(|inner| {
            let at = inner.by_fd.get(&fd).copied()?;
            let entry = inner.entry(at).filter(|entry| !entry.is_removed)?;
            let must_tell = entry.change(event);
            let (kernel, is_parked) = (entry.in_kernel, entry.is_stream && !entry.is_hot);
            if is_parked {
                inner.heat(at);
            }
            Some((at, kernel, must_tell))
        });
        match changed {
            None => {
                if let Some(at) = self.with(|inner| inner.by_fd.get(&fd).copied()) {
                    self.purge(at);
                }
                self.kernel_control(libc::EPOLL_CTL_MOD, fd, Some(event))
            }
            Some((_, _, false)) => 0,
            Some((at, events, true)) => {
                self.kernel_control(libc::EPOLL_CTL_MOD, fd, Some(epoll_event { events, u64: MARK | u64::from(at) }))
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
            let entry = inner.entry(at)?;
            let events = entry.kernel_events();
            (entry.in_kernel != events).then(|| {
                entry.in_kernel = events;
                (entry.fd, events)
            })
        });
        if let Some((fd, events)) = change {
            self.kernel_control(libc::EPOLL_CTL_MOD, fd, Some(epoll_event { events, u64: MARK | u64::from(at) }));
        }
    }

    /// Begins to watch the stream of an entry. False if the set has no waiter for it.
    pub(crate) fn enlist(&self, at: u32, stream: &Stream) -> bool {
        let is_enlisted = self.with(|inner| {
            if inner.waiter.is_none() {
                let waiter = stream.board.waiter()?;
                // A thread that is in the kernel for this set cannot say so. It must be woken.
                waiter.begin_sleep();
                let event = epoll_event { events: (EPOLLIN | EPOLLET) as u32, u64: DOORBELL };
                if self.kernel_control(libc::EPOLL_CTL_ADD, waiter.fd(), Some(event)) != 0 {
                    return None;
                }
                inner.waiter = Some(waiter);
            }
            let same_board =
                inner.waiter.as_ref().is_some_and(|waiter| std::sync::Arc::ptr_eq(&waiter.board, &stream.board));
            if !same_board {
                return None;
            }
            let entry = inner.entry(at)?;
            if !entry.is_stream {
                entry.is_stream = true;
                self.streams.fetch_add(1, Ordering::Relaxed);
            }
            inner.heat_stream(at, stream);
            Some(())
        });
        is_enlisted.is_some()
    }

    /// Sleeps for short times only from now on.
    pub(crate) fn sleep_shortly(&self) {
        self.with(|inner| inner.has_forked = true);
    }

    /// Forgets an entry.
    pub(crate) fn forget(&self, at: u32) -> Option<Entry> {
        let entry = self.with(|inner| {
            let entry = inner.entries.get_mut(at as usize)?.take()?;
            inner.free.push(at);
            inner.hot.retain(|hot| *hot != at);
            if inner.by_fd.get(&entry.fd) == Some(&at) {
                inner.by_fd.remove(&entry.fd);
            }
            Some(entry)
        });
        if entry.as_ref().is_some_and(|entry| entry.is_stream) {
            self.streams.fetch_sub(1, Ordering::Relaxed);
        }
        entry // It is dropped outside the lock, because it may be the connection's last use.
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

    /// The program's `epoll_wait`. `wait` is the kernel's, with a timeout in milliseconds.
    pub(crate) fn wait(
        &self,
        events: &mut [epoll_event],
        timeout: c_int,
        wait: impl Fn(&mut [epoll_event], c_int) -> c_int,
    ) -> c_int {
        if self.streams.load(Ordering::Relaxed) == 0 {
            let (count, was_rung) = self.ask_kernel(events, timeout, &wait);
            if count != 0 || !was_rung {
                self.with(Inner::clear_places);
                return count;
            }
        }
        let deadline = u64::try_from(timeout).ok().map(|ms| Instant::now() + Duration::from_millis(ms));
        loop {
            let asks_kernel = self.with(|inner| {
                inner.calls = inner.calls.wrapping_add(1);
                inner.calls.is_multiple_of(KERNEL_EVERY) || inner.needs_kernel()
            });
            let from_kernel = if asks_kernel { self.ask_kernel(events, 0, &wait).0.max(0) } else { 0 };
            let ready = self.collect(events, from_kernel);
            if ready > 0 {
                return ready as c_int;
            }
            if timeout != 0 && self.spin() {
                continue;
            }
            let (count, _) = self.sleep(events, timeout_ms(deadline), &wait);
            if count < 0 {
                return count;
            }
            let total = self.collect(events, count);
            if total > 0 || timeout == 0 || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return total as c_int;
            }
        }
    }

    /// Adds the events of streams to the first `count` of `events`, and moves streams back to TCP that must go there.
    fn collect(&self, events: &mut [epoll_event], count: c_int) -> usize {
        let (total, asked) = self.with(|inner| {
            let total = inner.collect(events, count as usize);
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
        let found = spin.spin(|| self.with(|inner| inner.is_any_ready()));
        self.with(|inner| inner.spin = Some(spin));
        found
    }

    /// Sleeps in the kernel, unless a stream is ready. Returns the number of events that the kernel has, or -1, and whether the doorbell
    /// was rung.
    fn sleep(
        &self,
        events: &mut [epoll_event],
        timeout: c_int,
        wait: &impl Fn(&mut [epoll_event], c_int) -> c_int,
    ) -> (c_int, bool) {
        let (may_sleep, has_forked) = self.with(|inner| {
            let Some(waiter) = &inner.waiter else { return (true, false) };
            let is_quiet = waiter.begin_sleep() && !inner.is_any_ready();
            (is_quiet, inner.has_forked)
        });
        let timeout = if may_sleep { session::sleep_ms(timeout, has_forked) } else { 0 };
        let result = self.ask_kernel(events, timeout, wait);
        self.with(|inner| inner.waiter.as_ref().map(Waiter::end_sleep));
        result
    }

    /// Waits in the kernel, and translates. Returns the number of events, or -1, and whether the doorbell was rung.
    fn ask_kernel(
        &self,
        events: &mut [epoll_event],
        timeout: c_int,
        wait: &impl Fn(&mut [epoll_event], c_int) -> c_int,
    ) -> (c_int, bool) {
        let count = wait(events, timeout);
        let Ok(found) = usize::try_from(count) else { return (count, false) };
        let (mut kept, mut was_rung) = (0, false);
        for index in 0..found {
            let event = events[index];
            if event.u64 == DOORBELL {
                was_rung = true;
            } else if let Some(translated) = self.translate(event, kept) {
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
        (kept as c_int, was_rung)
    }

    /// Replaces a token by the program's data. None if the entry has gone.
    fn translate(&self, event: epoll_event, index: usize) -> Option<epoll_event> {
        if event.u64 & !0xffff_ffff != MARK {
            return Some(event);
        }
        self.with(|inner| {
            inner.listed.push(event.u64 as u32);
            let entry = inner.entry(event.u64 as u32)?;
            if entry.connection.stage() == Stage::Attached {
                let seen = (entry.fd, entry.connection.clone());
                inner.events_of_streams.push(seen);
            }
            let entry = inner.entry(event.u64 as u32)?;
            let (wanted, data) = (entry.wanted_of(event.events), entry.data);
            if wanted != 0 {
                entry.listed_at = Some(index);
                entry.after_report();
            }
            if wanted != event.events {
                inner.unwanted.push(event.u64 as u32);
            }
            (wanted != 0).then_some(epoll_event { events: wanted, u64: data })
        })
    }
}

impl Inner {
    fn entry(&mut self, at: u32) -> Option<&mut Entry> {
        self.entries.get_mut(at as usize)?.as_mut()
    }

    /// Returns true if the kernel is likely to have an event of a hot stream.
    fn needs_kernel(&self) -> bool {
        self.hot.iter().any(|at| self.entries[*at as usize].as_ref().is_some_and(Entry::needs_kernel))
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
        let (entries, hot) = (&mut self.entries, &self.hot);
        hot.iter().any(|at| entries[*at as usize].as_mut().is_some_and(|entry| entry.ready() != 0 || entry.is_asked()))
    }

    /// Adds the events of streams to the first `count` of `events`, which the kernel has. Returns the number of all.
    fn collect(&mut self, events: &mut [epoll_event], count: usize) -> usize {
        self.take_ready_bits();
        let (mut total, mut silent) = (count, None);
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
            if let Some(place) = entry.listed_at.take() {
                events[place].events |= ready;
            } else if total < events.len() {
                events[total] = epoll_event { events: ready, u64: entry.data };
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
        total
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

/// Returns the tracked set of a descriptor, which begins to be tracked now if need be.
pub(crate) fn track(fd: c_int) -> Option<InUse<EpollSet>> {
    EpollSet::table().get(fd).or_else(|| {
        let set = EpollSet::table().insert(fd)?;
        set.start(fd);
        Some(set)
    })
}
