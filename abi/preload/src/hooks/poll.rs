//! `poll`, `select`, and their variants.

use core::ffi::c_int;
use core::mem::replace;
use core::sync::atomic::Ordering;

use isthmus_layout::ready_map::ReadyBit;
use isthmus_layout::sockets::Interest;
use libc::{POLLIN, POLLOUT, POLLRDHUP, POLLRDNORM, POLLWRNORM, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

use crate::connection::{Connection, Path, Stream, flags};
use crate::epoll_set::poll_with_sets;
use crate::inside::{Handled, Interruption};
use crate::table::{InUse, connection, set};
use crate::wait_limit::{Limit, is_refused, time_of};
use crate::waiter::{self, Asleep, Waiter};
use crate::{copy, errno, kernel, real, session, signals};

const READ: i16 = POLLIN | POLLRDNORM;
const WRITE: i16 = POLLOUT | POLLWRNORM;

/// The longest time between two looks at streams that cannot wake this thread, in nanoseconds.
const CROWDED_NS: u64 = 4_000_000;

/// A connection among the descriptors of a call.
struct Polled {
    index: usize,
    connection: InUse<Connection>,
}

impl Polled {
    /// The events of the ring, of those in `events`.
    fn ready(&self, events: i16) -> i16 {
        let Some(stream) = self.connection.stream() else { return 0 };
        let mut ready = 0;
        if events & READ != 0 && self.connection.has_data(stream) {
            ready |= events & READ;
        }
        if events & WRITE != 0 && self.connection.writes_ring() && self.connection.has_room(stream) {
            ready |= events & WRITE;
        }
        ready
    }

    /// The events that the kernel must watch.
    fn kernel_events(&self, events: i16) -> i16 {
        if self.connection.stream().is_none() {
            return events;
        }
        let room = if self.connection.writes_ring() { events & !WRITE } else { events };
        // A FIN may mean more than the kernel says, so this library looks at the first one.
        if self.connection.tells_of_fin() { room | POLLRDHUP } else { room }
    }
}

/// Polls descriptors of which some are tracked. `kernel` is the program's call with other descriptors and a timeout in milliseconds.
fn poll_tracked(
    fds: &mut [pollfd],
    tracked: &[Polled],
    limit: Limit,
    kernel: &impl Fn(&mut [pollfd], Option<u64>) -> c_int,
) -> c_int {
    let kernel = &|fds: &mut [pollfd], time| poll_with_sets(fds, time, kernel);
    let (mut handled, mut has_left) = (Handled::now(), false);
    for polled in tracked {
        polled.connection.is_awaited.store(true, Ordering::Relaxed);
        Connection::progress(&polled.connection, fds[polled.index].fd);
    }
    loop {
        if tracked.iter().all(|polled| polled.connection.stream().is_none()) {
            match poll_plain(fds, tracked, limit, kernel) {
                Some(count) => return count,
                None => continue, // Another thread has attached one meanwhile.
            }
        }
        for_each_stream(fds, tracked, |fd, connection, stream| connection.heed(fd, stream));
        if is_any_ready(fds, tracked) {
            // Without the mask of the call: signals wait while something is ready.
            return ask_kernel(fds, tracked, None, Some(0), &kernel::poll_ns).0;
        }
        if limit.is_over() {
            return ask_kernel(fds, tracked, None, Some(0), kernel).0;
        }
        let slept = waiter::with_thread(|thread| {
            for_each_stream(fds, tracked, |_, _, stream| _ = thread.serves(&stream.board));
            if let Some(waiter) = thread.waiter.as_ref().filter(|_| !replace(&mut has_left, true)) {
                leave_unserved(fds, tracked, waiter);
            }
            if thread.spin.spin(|| is_any_ready(fds, tracked)) {
                return Slept { count: 0, is_over: false };
            }
            sleep(fds, tracked, thread.waiter.as_ref(), limit, handled, kernel)
        });
        let slept = slept.unwrap_or_else(|| sleep(fds, tracked, None, limit, handled, kernel));
        if slept.count < 0 && handled.was_only_alarm(errno::get()) {
            handled = Handled::now();
            continue;
        }
        if slept.count != 0 || slept.is_over {
            return slept.count;
        }
    }
}

/// Moves streams back to TCP if their peers cannot reach the waiter: the session has ended, and no thread gives up a waiter that they know.
fn leave_unserved(fds: &[pollfd], tracked: &[Polled], waiter: &Waiter) {
    for_each_stream(fds, tracked, |_, connection, stream| {
        if !waiter.serves(&stream.board) {
            connection.leave_rings();
            stream.notify_all(); // A peer that sleeps would not learn it.
        }
    });
}

/// Polls connections of which none has a stream. None if one has a stream meanwhile.
fn poll_plain(
    fds: &mut [pollfd],
    tracked: &[Polled],
    limit: Limit,
    kernel: &impl Fn(&mut [pollfd], Option<u64>) -> c_int,
) -> Option<c_int> {
    let mut calls = Vec::with_capacity(tracked.len());
    for polled in tracked {
        match polled.connection.path() {
            Path::Plain(call) => calls.push(call),
            Path::Kernel => {}
            Path::Stream(_) => return None,
        }
    }
    Some(kernel(fds, limit.left_ns()))
}

/// The result of a sleep.
struct Slept {
    /// Descriptors with events, or -1.
    count: c_int,
    /// The time of the call has passed, by the kernel's own clock.
    is_over: bool,
}

/// Sets the wishes of the streams, and sleeps in the kernel.
fn sleep(
    fds: &mut [pollfd],
    tracked: &[Polled],
    waiter: Option<&Waiter>,
    limit: Limit,
    handled: Handled,
    kernel: &impl Fn(&mut [pollfd], Option<u64>) -> c_int,
) -> Slept {
    let interrupted = || {
        errno::set(libc::EINTR);
        Slept { count: -1, is_over: false }
    };
    let wanted = limit.left_ns();
    let Some((waiter, _claims)) = waiter.and_then(|waiter| Some((waiter, claim(fds, tracked, waiter)?))) else {
        if handled.since() != Interruption::None {
            return interrupted();
        }
        let pause = wanted.map_or(CROWDED_NS, |time| time.min(CROWDED_NS));
        let (count, was_woken) = ask_kernel(fds, tracked, None, Some(pause), kernel);
        return Slept { count, is_over: !was_woken && wanted == Some(pause) };
    };
    let mut may_sleep = waiter.begin_sleep() && !is_any_ready(fds, tracked);
    let _asleep = Asleep::begin(waiter);
    if handled.since() != Interruption::None {
        return interrupted();
    }
    let (mut has_forked, mut waits_for_room) = (false, false);
    for_each_stream(fds, tracked, |_, connection, stream| {
        may_sleep &= !connection.is_asked(stream);
        has_forked |= connection.has_forked(stream);
    });
    for polled in tracked {
        waits_for_room |= fds[polled.index].events & WRITE != 0 && polled.connection.is_full();
    }
    let time = if may_sleep { session::sleep_ns(wanted, has_forked, waits_for_room) } else { Some(0) };
    let (count, was_woken) = ask_kernel(fds, tracked, Some(waiter), time, kernel);
    Slept { count, is_over: count == 0 && !was_woken && time == wanted && wanted.is_some() }
}

/// Calls `f` for each stream among the descriptors.
fn for_each_stream(fds: &[pollfd], tracked: &[Polled], mut f: impl FnMut(c_int, &Connection, &Stream)) {
    for polled in tracked {
        if let Some(stream) = polled.connection.stream() {
            f(fds[polled.index].fd, &polled.connection, stream);
        }
    }
}

/// Wishes that this thread has claimed. It gives them back when they are dropped.
struct Claims<'a>(Vec<(&'a Polled, Interest)>);

impl Drop for Claims<'_> {
    fn drop(&mut self) {
        let errno = errno::get();
        for (polled, what) in &self.0 {
            polled.connection.wish_in_use(*what).store(false, Ordering::Release);
            if let Some(stream) = polled.connection.stream() {
                polled.connection.restore_want(stream, *what);
            }
        }
        errno::set(errno);
    }
}

/// Returns true if a ring has an event that the program waits for.
fn is_any_ready(fds: &[pollfd], tracked: &[Polled]) -> bool {
    tracked.iter().any(|polled| polled.ready(fds[polled.index].events) != 0)
}

/// Claims the wishes of all streams for this thread. None if another thread has one, or the peer of a stream that uses a ring cannot reach the
/// waiter. What has gone back to TCP needs no wish.
fn claim<'a>(fds: &[pollfd], tracked: &'a [Polled], waiter: &Waiter) -> Option<Claims<'a>> {
    waiter.drain(|_, _| {});
    let (mut claims, mut is_complete) = (Claims(Vec::new()), true);
    for polled in tracked {
        let Some(stream) = polled.connection.stream() else { continue };
        for (what, mask) in [(Interest::Data, READ), (Interest::Room, WRITE)] {
            if fds[polled.index].events & mask == 0 {
                continue;
            }
            if !waiter.serves(&stream.board) {
                is_complete &= !match what {
                    Interest::Data => polled.connection.reads_ring(),
                    Interest::Room => polled.connection.writes_ring(),
                };
                continue;
            }
            if polled.connection.wish_in_use(what).swap(true, Ordering::Acquire) {
                is_complete = false;
                continue;
            }
            claims.0.push((polled, what));
            stream.memory.set_want(what, waiter.parked(ReadyBit::CONTROL));
        }
    }
    is_complete.then_some(claims)
}

/// Asks the kernel, and adds what the rings have. Returns the number of descriptors with events, and whether the kernel had an event.
fn ask_kernel(
    fds: &mut [pollfd],
    tracked: &[Polled],
    waiter: Option<&Waiter>,
    time: Option<u64>,
    kernel: &impl Fn(&mut [pollfd], Option<u64>) -> c_int,
) -> (c_int, bool) {
    let mut asked = fds.to_vec();
    for polled in tracked {
        let entry = &mut asked[polled.index];
        entry.events = polled.kernel_events(entry.events);
    }
    let bells = [waiter.map(Waiter::fd), waiter.and_then(Waiter::bells_fd)].into_iter().flatten();
    asked.extend(bells.map(|fd| pollfd { fd, events: POLLIN, revents: 0 }));
    let mut count = kernel(&mut asked, time);
    if count < 0 && waiter.is_some() && errno::get() == libc::EINVAL {
        // With the doorbells, these may be more descriptors than the program's limit.
        asked[fds.len()..].iter_mut().for_each(|bell| bell.revents = 0);
        count = kernel(&mut asked[..fds.len()], Some(time.map_or(CROWDED_NS, |time| time.min(CROWDED_NS))));
        if count == 0 {
            return (0, true);
        }
    }
    if count < 0 {
        return (count, false);
    }
    if let (Some(waiter), true) = (waiter, asked[fds.len()..].iter().any(|bell| bell.revents != 0)) {
        waiter.clear();
    }
    let mut total = 0;
    for (entry, asked) in fds.iter_mut().zip(&asked) {
        entry.revents = asked.revents;
    }
    for polled in tracked {
        let entry = &mut fds[polled.index];
        if let (Some(stream), true) = (polled.connection.stream(), entry.revents != 0) {
            polled.connection.saw_event(entry.fd, stream);
            if polled.connection.has_flag(flags::WAS_RESET) {
                entry.revents |= kernel::events_now(entry.fd, entry.events); // That look may have made the kernel's reset.
            }
            if asked[polled.index].events & WRITE != entry.events & WRITE && !polled.connection.writes_ring() {
                entry.revents |= kernel::events_now(entry.fd, entry.events & WRITE); // Writes take TCP since this look.
            }
        }
        // The FIN shows as data that can be read, unless the program asks for it by name.
        let (hidden, ready) = (POLLRDHUP & !entry.events, polled.ready(entry.events));
        entry.revents = entry.revents & !hidden | ready;
        if let (Some(waiter), Some(stream), true) = (waiter, polled.connection.stream(), ready != 0) {
            waiter.found(&stream.board);
        }
    }
    for entry in fds.iter() {
        total += c_int::from(entry.revents != 0);
    }
    (total, count > 0)
}

/// Polls the entries of the program. None if the C library's own call serves, or refuses them.
///
/// # Safety
///
/// `fds` has `count` entries, which the call may write, or the kernel refuses them.
unsafe fn poll_in(
    fds: *mut pollfd,
    count: nfds_t,
    limit: Limit,
    kernel: &impl Fn(&mut [pollfd], Option<u64>) -> c_int,
) -> Option<c_int> {
    if count == 0 || count > 1 << 16 || !signals::are_copies_guarded() {
        return None;
    }
    // SAFETY: the caller's promise. Any bytes are an entry.
    let mut entries = unsafe { copy::read_all(fds, count as usize) }.ok()?;
    let tracked = tracked(&entries);
    if tracked.is_empty() && !entries.iter().any(|entry| set(entry.fd).is_some()) {
        return None;
    }
    let result = poll_tracked(&mut entries, &tracked, limit, kernel);
    // SAFETY: as above.
    if result >= 0 && unsafe { copy::write_all(fds, &entries) }.is_err() {
        errno::set(libc::EFAULT);
        return Some(-1);
    }
    Some(result)
}

fn tracked(fds: &[pollfd]) -> Vec<Polled> {
    let polled = |(index, entry): (usize, &pollfd)| {
        let Some(connection) = connection(entry.fd) else {
            if let Some(set) = set(entry.fd) {
                set.nest();
            }
            return None;
        };
        connection.stage().is_followed().then_some(Polled { index, connection })
    };
    fds.iter().enumerate().filter_map(polled).collect()
}

/// # Safety
///
/// As the C library's `poll`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the caller's contract is the C library's.
    let polled = unsafe { poll_in(fds, count, Limit::after_ms(timeout), &kernel::poll_ns) };
    // SAFETY: as above.
    polled.unwrap_or_else(|| unsafe { real::poll(fds, count, timeout) })
}

/// # Safety
///
/// As the C library's `__poll_chk`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    size: libc::size_t,
) -> c_int {
    if count as usize > size / size_of::<pollfd>() {
        std::process::abort();
    }
    // SAFETY: the caller's contract is the C library's.
    unsafe { poll(fds, count, timeout) }
}

/// Calls the kernel's `ppoll` with a time in nanoseconds, or without end.
fn ppoll_ns(fds: &mut [pollfd], time: Option<u64>, mask: *const sigset_t) -> c_int {
    let time = time.map(kernel::timespec_of);
    let pointer = time.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: a slice of entries, null or a time, and the caller's mask.
    unsafe { real::ppoll(fds.as_mut_ptr(), fds.len() as nfds_t, pointer, mask) }
}

/// # Safety
///
/// As the C library's `ppoll`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let polled = time_of(timeout).and_then(|time| {
        // SAFETY: the caller's contract is the C library's.
        unsafe { poll_in(fds, count, Limit::after(time.as_ref()), &|fds, time| ppoll_ns(fds, time, mask)) }
    });
    // SAFETY: as above.
    polled.unwrap_or_else(|| unsafe { real::ppoll(fds, count, timeout, mask) })
}

/// # Safety
///
/// As the C library's `__ppoll_chk`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    size: libc::size_t,
) -> c_int {
    if count as usize > size / size_of::<pollfd>() {
        std::process::abort();
    }
    // SAFETY: the caller's contract is the C library's.
    unsafe { ppoll(fds, count, timeout, mask) }
}

/// The most descriptors that a `select` has here. The kernel takes sets beyond `FD_SETSIZE`, as many as the program has memory for.
const SELECTED_MAX: c_int = 1 << 20;

/// The sets of a `select`, as entries of `poll`.
struct Selected {
    entries: Vec<pollfd>,
    sets: [*mut fd_set; 3],
    /// Words of each set that the call uses.
    words: usize,
}

const SELECT_EVENTS: [i16; 3] = [POLLIN, POLLOUT, libc::POLLPRI];
/// The events of `poll` that make a descriptor ready for reading, writing, and exceptions.
const SELECT_READY: [i16; 3] =
    [POLLIN | libc::POLLHUP | libc::POLLERR | POLLRDNORM, POLLOUT | libc::POLLERR | POLLWRNORM, libc::POLLPRI];

impl Selected {
    /// Reads the sets. None if they have no tracked connection, or the kernel refuses them.
    ///
    /// # Safety
    ///
    /// Each set is null, a set, or an address that cannot be reached.
    unsafe fn read(count: c_int, sets: [*mut fd_set; 3]) -> Option<Self> {
        if !(1..=SELECTED_MAX).contains(&count) || !signals::are_copies_guarded() {
            return None;
        }
        let words = (count as usize).div_ceil(64);
        let mut members = [(); 3].map(|()| vec![0u64; words]);
        for (set, members) in sets.iter().zip(&mut members).filter(|(set, _)| !set.is_null()) {
            // SAFETY: the caller's promise; a set has as many words.
            unsafe { copy::read_into(set.cast::<u64>().cast_const(), members) }.ok()?;
        }
        let mut entries = Vec::new();
        for fd in 0..count {
            let (word, bit) = (fd as usize / 64, 1u64 << (fd % 64));
            let wanted = members.iter().zip(SELECT_EVENTS).filter(|(set, _)| set[word] & bit != 0);
            let events = wanted.fold(0, |events, (_, event)| events | event);
            if events != 0 {
                entries.push(pollfd { fd, events, revents: 0 });
            }
        }
        let is_ours = |entry: &pollfd| connection(entry.fd).is_some() || set(entry.fd).is_some();
        entries.iter().any(is_ours).then_some(Self { entries, sets, words })
    }

    /// Writes the sets. Returns the number of their members, or -1.
    fn write(&self) -> c_int {
        let mut total = 0;
        for ((set, event), ready) in self.sets.iter().zip(SELECT_EVENTS).zip(SELECT_READY) {
            if set.is_null() {
                continue;
            }
            let mut members = vec![0u64; self.words];
            for entry in self.entries.iter().filter(|entry| entry.events & event != 0 && entry.revents & ready != 0) {
                members[entry.fd as usize / 64] |= 1 << (entry.fd % 64);
                total += 1;
            }
            // SAFETY: a set of the program, which it lets the call write, or an address that cannot be reached.
            if unsafe { copy::write_all(set.cast::<u64>(), &members) }.is_err() {
                errno::set(libc::EFAULT);
                return -1;
            }
        }
        total
    }

    fn run(mut self, limit: Limit, mask: *const sigset_t) -> c_int {
        let tracked = tracked(&self.entries);
        let kernel = |fds: &mut [pollfd], time| ppoll_ns(fds, time, mask);
        let count = poll_tracked(&mut self.entries, &tracked, limit, &kernel);
        if count < 0 {
            return count;
        }
        if self.entries.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
            errno::set(libc::EBADF);
            return -1;
        }
        self.write()
    }
}

/// # Safety
///
/// As the C library's `select`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: a time, or an address that the kernel refuses, which then answers the call.
    let given = if timeout.is_null() { None } else { unsafe { copy::read(timeout) }.ok() };
    let time = given.map(|time| timespec {
        tv_sec: time.tv_sec.saturating_add(time.tv_usec / 1_000_000), // As the kernel does.
        tv_nsec: time.tv_usec % 1_000_000 * 1000,
    });
    let is_refused = timeout.is_null() != time.is_none() || time.as_ref().is_some_and(is_refused);
    // SAFETY: the caller's contract is the C library's.
    let selected = if is_refused { None } else { unsafe { Selected::read(count, [read, write, except]) } };
    let Some(selected) = selected else {
        // SAFETY: as above.
        return unsafe { real::select(count, read, write, except, timeout) };
    };
    let limit = Limit::after(time.as_ref());
    let result = selected.run(limit, core::ptr::null());
    if let Some(left) = limit.left_ns() {
        let left = timeval { tv_sec: (left / 1_000_000_000) as i64, tv_usec: (left % 1_000_000_000 / 1000) as i64 };
        // SAFETY: as above. Linux leaves the rest of the time there, if it can.
        let _ = unsafe { copy::write(timeout, left) };
    }
    result
}

/// # Safety
///
/// As the C library's `pselect`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let selected = time_of(timeout).and_then(|time| {
        // SAFETY: the caller's contract is the C library's.
        Some((unsafe { Selected::read(count, [read, write, except]) }?, time))
    });
    match selected {
        Some((selected, time)) => selected.run(Limit::after(time.as_ref()), mask),
        // SAFETY: as above.
        None => unsafe { real::pselect(count, read, write, except, timeout, mask) },
    }
}
