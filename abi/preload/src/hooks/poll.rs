//! `poll`, `select`, and their variants.

use core::ffi::{c_int, c_long};
use core::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_layout::ready_map::ReadyBit;
use isthmus_layout::sockets::Interest;
use libc::{POLLIN, POLLOUT, POLLRDHUP, POLLRDNORM, POLLWRNORM, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

use crate::connection::{Connection, Stage, Stream};
use crate::table::{InUse, connection};
use crate::wait::timeout_ms;
use crate::waiter::{self, Waiter};
use crate::{errno, kernel, real, session};

const READ: i16 = POLLIN | POLLRDNORM;
const WRITE: i16 = POLLOUT | POLLWRNORM;

/// The longest time between two looks at streams that cannot wake this thread.
const CROWDED_MS: c_int = 4;

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
    timeout: c_int,
    kernel: &impl Fn(&mut [pollfd], c_int) -> c_int,
) -> c_int {
    for polled in tracked {
        Connection::progress(&polled.connection, fds[polled.index].fd);
    }
    let Some(board) = tracked.iter().find_map(|polled| Some(Arc::clone(&polled.connection.stream()?.board))) else {
        return poll_plain(fds, tracked, timeout, kernel);
    };
    let deadline = u64::try_from(timeout).ok().map(|ms| Instant::now() + Duration::from_millis(ms));
    loop {
        for_each_stream(fds, tracked, |fd, connection, stream| connection.heed(fd, stream));
        if timeout == 0 || is_any_ready(fds, tracked) {
            return ask_kernel(fds, tracked, None, 0, kernel);
        }
        let count = waiter::with_thread(&board, |thread| {
            if thread.spin.spin(|| is_any_ready(fds, tracked)) {
                return 0;
            }
            sleep(fds, tracked, thread.waiter.as_ref(), timeout_ms(deadline), kernel)
        });
        let count = count.unwrap_or_else(|| sleep(fds, tracked, None, timeout_ms(deadline), kernel));
        if count != 0 || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return count;
        }
    }
}

/// Polls connections of which none has a stream.
fn poll_plain(
    fds: &mut [pollfd],
    tracked: &[Polled],
    timeout: c_int,
    kernel: &impl Fn(&mut [pollfd], c_int) -> c_int,
) -> c_int {
    for polled in tracked {
        polled.connection.polling.fetch_add(1, Ordering::AcqRel);
    }
    let count = kernel(fds, timeout);
    for polled in tracked {
        polled.connection.polling.fetch_sub(1, Ordering::AcqRel);
    }
    count
}

/// Sets the wishes of the streams, and sleeps in the kernel.
fn sleep(
    fds: &mut [pollfd],
    tracked: &[Polled],
    waiter: Option<&Waiter>,
    timeout: c_int,
    kernel: &impl Fn(&mut [pollfd], c_int) -> c_int,
) -> c_int {
    let Some((waiter, claimed)) = waiter.and_then(|waiter| Some((waiter, claim(fds, tracked, waiter)?))) else {
        let pause = if timeout < 0 { CROWDED_MS } else { timeout.min(CROWDED_MS) };
        return ask_kernel(fds, tracked, None, pause, kernel);
    };
    let mut may_sleep = waiter.begin_sleep() && !is_any_ready(fds, tracked);
    let mut has_forked = false;
    for_each_stream(fds, tracked, |_, connection, stream| {
        may_sleep &= !connection.is_asked(stream);
        has_forked |= connection.has_forked(stream);
    });
    let timeout = if may_sleep { session::sleep_ms(timeout, has_forked) } else { 0 };
    let count = ask_kernel(fds, tracked, Some(waiter), timeout, kernel);
    let errno = errno::get();
    waiter.end_sleep();
    release(claimed);
    errno::set(errno);
    count
}

/// Calls `f` for each stream among the descriptors.
fn for_each_stream(fds: &[pollfd], tracked: &[Polled], mut f: impl FnMut(c_int, &Connection, &Stream)) {
    for polled in tracked {
        if let Some(stream) = polled.connection.stream() {
            f(fds[polled.index].fd, &polled.connection, stream);
        }
    }
}

/// Gives the wishes back that were claimed.
fn release(claimed: Vec<(&Polled, Interest)>) {
    for (polled, what) in claimed {
        polled.connection.wish_in_use(what).store(false, Ordering::Release);
        if let Some(stream) = polled.connection.stream() {
            polled.connection.restore_want(stream, what);
        }
    }
}

/// Returns true if a ring has an event that the program waits for.
fn is_any_ready(fds: &[pollfd], tracked: &[Polled]) -> bool {
    tracked.iter().any(|polled| polled.ready(fds[polled.index].events) != 0)
}

/// Claims the wishes of all streams for this thread. None if another thread has one, or a stream knows another board.
fn claim<'a>(fds: &[pollfd], tracked: &'a [Polled], waiter: &Waiter) -> Option<Vec<(&'a Polled, Interest)>> {
    waiter.board.board.ready_map(waiter.index).drain(|_| {});
    let (mut claimed, mut is_complete) = (Vec::new(), true);
    for polled in tracked {
        let Some(stream) = polled.connection.stream() else { continue };
        for (what, mask) in [(Interest::Data, READ), (Interest::Room, WRITE)] {
            if fds[polled.index].events & mask == 0 {
                continue;
            }
            if !Arc::ptr_eq(&stream.board, &waiter.board)
                || polled.connection.wish_in_use(what).swap(true, Ordering::Acquire)
            {
                is_complete = false;
                continue;
            }
            claimed.push((polled, what));
            stream.memory.set_want(what, waiter.parked(ReadyBit::CONTROL));
        }
    }
    if is_complete {
        return Some(claimed);
    }
    release(claimed);
    None
}

/// Asks the kernel, and adds what the rings have. Returns the number of descriptors with events.
fn ask_kernel(
    fds: &mut [pollfd],
    tracked: &[Polled],
    waiter: Option<&Waiter>,
    timeout: c_int,
    kernel: &impl Fn(&mut [pollfd], c_int) -> c_int,
) -> c_int {
    let mut asked = fds.to_vec();
    for polled in tracked {
        let entry = &mut asked[polled.index];
        entry.events = polled.kernel_events(entry.events);
    }
    asked.push(pollfd { fd: waiter.map_or(-1, Waiter::fd), events: POLLIN, revents: 0 });
    let count = kernel(&mut asked, timeout);
    if count < 0 {
        return count;
    }
    if let (Some(waiter), true) = (waiter, asked[fds.len()].revents != 0) {
        waiter.doorbell.clear();
    }
    let mut total = 0;
    for (entry, asked) in fds.iter_mut().zip(&asked) {
        entry.revents = asked.revents;
    }
    for polled in tracked {
        let entry = &mut fds[polled.index];
        if let (Some(stream), true) = (polled.connection.stream(), entry.revents != 0) {
            polled.connection.saw_event(entry.fd, stream);
            if asked[polled.index].events & WRITE != entry.events & WRITE && !polled.connection.writes_ring() {
                entry.revents |= kernel::events_now(entry.fd, entry.events & WRITE); // Writes take TCP since this look.
            }
        }
        // The FIN shows as data that can be read, unless the program asks for it by name.
        let hidden = POLLRDHUP & !entry.events;
        entry.revents = entry.revents & !hidden | polled.ready(entry.events);
    }
    for entry in fds.iter() {
        total += c_int::from(entry.revents != 0);
    }
    total
}

/// The entries of a call and those with tracked connections. None if the C library's own call serves.
///
/// # Safety
///
/// `fds` has `count` entries, which the call may write, or the count is one that the kernel refuses.
unsafe fn entries<'a>(fds: *mut pollfd, count: nfds_t) -> Option<(&'a mut [pollfd], Vec<Polled>)> {
    if count == 0 || count > 1 << 16 || fds.is_null() {
        return None;
    }
    // SAFETY: the caller's contract.
    let entries = unsafe { core::slice::from_raw_parts_mut(fds, count as usize) };
    let tracked = tracked(entries);
    (!tracked.is_empty()).then_some((entries, tracked))
}

fn tracked(fds: &[pollfd]) -> Vec<Polled> {
    let polled = |(index, entry): (usize, &pollfd)| {
        let connection = connection(entry.fd)?;
        let is_tcp = !matches!(connection.stage(), Stage::Listener | Stage::Off);
        is_tcp.then_some(Polled { index, connection })
    };
    fds.iter().enumerate().filter_map(polled).collect()
}

/// # Safety
///
/// As the C library's `poll`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the caller's contract is the C library's.
    if let Some((entries, tracked)) = unsafe { entries(fds, count) } {
        return poll_tracked(entries, &tracked, timeout, &|fds, timeout| {
            // SAFETY: a slice of entries.
            unsafe { real::poll(fds.as_mut_ptr(), fds.len() as nfds_t, timeout) }
        });
    }
    // SAFETY: the caller's contract is the C library's.
    unsafe { real::poll(fds, count, timeout) }
}

/// # Safety
///
/// As the C library's `__poll_chk`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, size: libc::size_t) -> c_int {
    if count as usize > size / size_of::<pollfd>() {
        std::process::abort();
    }
    // SAFETY: the caller's contract is the C library's.
    unsafe { poll(fds, count, timeout) }
}

/// Returns the milliseconds of a time, rounded up.
pub(super) fn ms_of(time: &timespec) -> c_int {
    let ms = time.tv_sec.saturating_mul(1000).saturating_add((time.tv_nsec + 999_999) / 1_000_000);
    c_int::try_from(ms).unwrap_or(c_int::MAX)
}

fn time_of(ms: c_int) -> timespec {
    timespec { tv_sec: (ms / 1000).into(), tv_nsec: c_long::from(ms % 1000 * 1_000_000) }
}

/// Calls the kernel's `ppoll` with a timeout in milliseconds.
fn ppoll_ms(fds: &mut [pollfd], timeout: c_int, mask: *const sigset_t) -> c_int {
    let time = time_of(timeout.max(0));
    let time = if timeout < 0 { core::ptr::null() } else { &raw const time };
    // SAFETY: a slice of entries, a time, and the caller's mask.
    unsafe { real::ppoll(fds.as_mut_ptr(), fds.len() as nfds_t, time, mask) }
}

/// # Safety
///
/// As the C library's `ppoll`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's contract is the C library's.
    if let Some((entries, tracked)) = unsafe { entries(fds, count) } {
        // SAFETY: null or a time.
        let timeout = unsafe { timeout.as_ref() }.map_or(-1, ms_of);
        return poll_tracked(entries, &tracked, timeout, &|fds, timeout| ppoll_ms(fds, timeout, mask));
    }
    // SAFETY: the caller's contract is the C library's.
    unsafe { real::ppoll(fds, count, timeout, mask) }
}

/// # Safety
///
/// As the C library's `__ppoll_chk`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __ppoll_chk(
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

/// The sets of a `select`, as entries of `poll`.
struct Selected {
    entries: Vec<pollfd>,
    sets: [*mut fd_set; 3],
}

const SELECT_EVENTS: [i16; 3] = [POLLIN, POLLOUT, libc::POLLPRI];
/// The events of `poll` that make a descriptor ready for reading, writing, and exceptions.
const SELECT_READY: [i16; 3] =
    [POLLIN | libc::POLLHUP | libc::POLLERR | POLLRDNORM, POLLOUT | libc::POLLERR | POLLWRNORM, libc::POLLPRI];

impl Selected {
    /// Reads the sets. None if they have no tracked connection.
    ///
    /// # Safety
    ///
    /// Each set is null or a set.
    unsafe fn read(count: c_int, sets: [*mut fd_set; 3]) -> Option<Self> {
        if !(1..=libc::FD_SETSIZE as c_int).contains(&count) {
            return None;
        }
        let mut entries = Vec::new();
        for fd in 0..count {
            let mut events = 0;
            for (set, event) in sets.iter().zip(SELECT_EVENTS) {
                // SAFETY: the caller's contract; `fd` is below FD_SETSIZE.
                if !set.is_null() && unsafe { libc::FD_ISSET(fd, *set) } {
                    events |= event;
                }
            }
            if events != 0 {
                entries.push(pollfd { fd, events, revents: 0 });
            }
        }
        entries.iter().any(|entry| connection(entry.fd).is_some()).then_some(Self { entries, sets })
    }

    /// Writes the sets. Returns the number of their members.
    fn write(&self) -> c_int {
        let mut total = 0;
        for ((set, event), ready) in self.sets.iter().zip(SELECT_EVENTS).zip(SELECT_READY) {
            if set.is_null() {
                continue;
            }
            // SAFETY: a set of the program, which it lets the call write.
            unsafe { libc::FD_ZERO(*set) };
            for entry in self.entries.iter().filter(|entry| entry.events & event != 0 && entry.revents & ready != 0) {
                // SAFETY: as above.
                unsafe { libc::FD_SET(entry.fd, *set) };
                total += 1;
            }
        }
        total
    }

    fn run(mut self, timeout: c_int, mask: *const sigset_t) -> c_int {
        let tracked = tracked(&self.entries);
        let kernel = |fds: &mut [pollfd], timeout| ppoll_ms(fds, timeout, mask);
        let count = if tracked.is_empty() {
            kernel(&mut self.entries, timeout)
        } else {
            poll_tracked(&mut self.entries, &tracked, timeout, &kernel)
        };
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
pub unsafe extern "C" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the caller's contract is the C library's.
    match unsafe { Selected::read(count, [read, write, except]) } {
        Some(selected) => {
            let began = Instant::now();
            // SAFETY: null or a time.
            let limit = unsafe { timeout.as_mut() };
            let ms = limit.as_ref().map_or(-1, |time| {
                ms_of(&timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_usec.saturating_mul(1000) })
            });
            let result = selected.run(ms, core::ptr::null());
            if let Some(time) = limit {
                // Linux leaves the rest of the time there.
                let given = Duration::from_millis(ms.max(0) as u64);
                let left = given.saturating_sub(began.elapsed());
                (time.tv_sec, time.tv_usec) = (left.as_secs() as i64, i64::from(left.subsec_micros()));
            }
            result
        }
        // SAFETY: as above.
        None => unsafe { real::select(count, read, write, except, timeout) },
    }
}

/// # Safety
///
/// As the C library's `pselect`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's contract is the C library's.
    match unsafe { Selected::read(count, [read, write, except]) } {
        // SAFETY: null or a time.
        Some(selected) => selected.run(unsafe { timeout.as_ref() }.map_or(-1, ms_of), mask),
        // SAFETY: as above.
        None => unsafe { real::pselect(count, read, write, except, timeout, mask) },
    }
}
