//! Waiting of one thread for one connection.

use core::cell::Cell;
use core::ffi::c_int;
use core::sync::atomic::Ordering;

use isthmus_layout::ready_map::ReadyBit;
use isthmus_layout::sockets::Interest;

use crate::connection::{Connection, Stream};
use crate::inside::{Handled, Interruption};
use crate::wait_limit::Limit;
use crate::waiter::{self, Asleep, Waiter};
use crate::{errno, kernel, session};

/// The first and the longest time between two looks of a thread without a waiter of its own, in nanoseconds.
const CROWDED_NS: (u64, u64) = (1_000_000, 16_000_000);

/// Reads the time limit that the program has set for calls in one direction.
fn deadline(fd: c_int, what: Interest) -> Limit {
    let name = match what {
        Interest::Data => libc::SO_RCVTIMEO,
        Interest::Room => libc::SO_SNDTIMEO,
    };
    match kernel::socket_option::<libc::timeval>(fd, libc::SOL_SOCKET, name) {
        None | Some(libc::timeval { tv_sec: 0, tv_usec: 0 }) => Limit::Never,
        Some(time) => Limit::after_ns((time.tv_sec as u64).saturating_mul(1_000_000_000) + time.tv_usec as u64 * 1000),
    }
}

/// Marks that a thread uses the wish of a connection, which the connection's epoll set gets back at the end.
struct Claim<'a> {
    connection: &'a Connection,
    stream: &'a Stream,
    what: Interest,
}

impl<'a> Claim<'a> {
    fn new(connection: &'a Connection, stream: &'a Stream, what: Interest) -> Option<Self> {
        let is_free = !connection.wish_in_use(what).swap(true, Ordering::Acquire);
        is_free.then_some(Self { connection, stream, what })
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.connection.wish_in_use(self.what).store(false, Ordering::Release);
        self.connection.restore_want(self.stream, self.what);
    }
}

/// A wait that a call makes: for what, how long, and what handlers had run when the call began to wait.
pub(crate) struct Wait {
    what: Interest,
    until: Limit,
    handled: Handled,
    /// The thread has not slept. It sleeps shortly at first: another thread may have closed the descriptor just before.
    is_first: Cell<bool>,
}

impl Wait {
    /// Begins to wait, with the time limit that the program has set for calls in one direction.
    pub(crate) fn new(fd: c_int, what: Interest) -> Self {
        Self { what, until: deadline(fd, what), handled: Handled::now(), is_first: Cell::new(true) }
    }

    /// Returns true if a call that was interrupted goes on, as it does on TCP. One with a time limit does not.
    pub(crate) fn restarts(&mut self) -> bool {
        let restarts = match self.handled.since() {
            Interruption::None => true,
            Interruption::Restarts => self.until == Limit::Never,
            Interruption::Ends => false,
        };
        self.handled = Handled::now();
        restarts
    }

    /// `EINTR` if a handler has run since the call began to wait.
    fn check(&self) -> Result<(), c_int> {
        if self.handled.since() == Interruption::None { Ok(()) } else { Err(libc::EINTR) }
    }
}

impl Connection {
    /// Waits until a read or write may succeed. `EAGAIN` at the deadline, `EINTR` after a signal.
    pub(crate) fn wait(&self, fd: c_int, stream: &Stream, wait: &Wait) -> Result<(), c_int> {
        self.heed(fd, stream);
        let waited = waiter::with_thread(|thread| {
            let serves = thread.serves(&stream.board);
            let ready = || self.is_ready(stream, wait.what) || self.is_asked(stream);
            if wait.until.is_over() {
                return Err(libc::EAGAIN);
            }
            let on_ring = match wait.what {
                Interest::Data => self.reads_ring(),
                Interest::Room => true,
            };
            if on_ring && thread.spin.spin(ready) {
                return Ok(());
            }
            match (thread.waiter.as_ref().filter(|_| serves), Claim::new(self, stream, wait.what)) {
                (Some(waiter), Some(_claim)) => self.sleep(fd, stream, waiter, wait),
                _ => self.wait_crowded(fd, stream, wait),
            }
        });
        waited.unwrap_or_else(|| self.wait_crowded(fd, stream, wait))
    }

    fn is_ready(&self, stream: &Stream, what: Interest) -> bool {
        match what {
            Interest::Data => self.has_data(stream),
            Interest::Room => self.has_room(stream),
        }
    }

    fn sleep(&self, fd: c_int, stream: &Stream, waiter: &Waiter, wait: &Wait) -> Result<(), c_int> {
        waiter.drain(|_, _| {});
        stream.memory.set_want(wait.what, waiter.parked(ReadyBit::CONTROL));
        let may_sleep = !self.is_ready(stream, wait.what) && !self.is_asked(stream) && waiter.begin_sleep();
        if !may_sleep {
            self.note_reason(stream, waiter, wait.what);
            return Ok(());
        }
        let _asleep = Asleep::begin(waiter);
        wait.check()?;
        let (is_short, waits_for_room) = (wait.is_first.take(), wait.what == Interest::Room);
        let is_short = is_short || self.has_forked(stream);
        self.poll(fd, self.kernel_events(wait.what), Some(waiter), wait.until, is_short, waits_for_room)?;
        self.note_reason(stream, waiter, wait.what);
        Ok(())
    }

    /// Notes for the doorbell of the peer's owner that its bit or ring had a reason, if the stream is ready.
    fn note_reason(&self, stream: &Stream, waiter: &Waiter, what: Interest) {
        if self.is_ready(stream, what) {
            waiter.found(&stream.board);
        }
    }

    /// The events of the kernel that end a wait. If the program shuts its receiving meanwhile, a reader must see that. A writer must not,
    /// because the event stays.
    fn kernel_events(&self, what: Interest) -> i16 {
        if what == Interest::Data || self.tells_of_fin() { libc::POLLIN | libc::POLLRDHUP } else { 0 }
    }

    /// Polls the TCP connection for `events`, and the doorbells.
    fn poll(
        &self,
        fd: c_int,
        events: i16,
        waiter: Option<&Waiter>,
        limit: Limit,
        is_short: bool,
        waits_for_room: bool,
    ) -> Result<(), c_int> {
        let fd = self.kernel_fd(fd);
        let of_bell = |fd: Option<c_int>| libc::pollfd { fd: fd.unwrap_or(-1), events: libc::POLLIN, revents: 0 };
        let (bell, bells) = (waiter.map(Waiter::fd), waiter.and_then(Waiter::bells_fd));
        let mut fds = [libc::pollfd { fd, events, revents: 0 }, of_bell(bell), of_bell(bells)];
        let watched = if bells.is_some() { 3 } else { 2 };
        let count = kernel::poll_ns(&mut fds[..watched], session::sleep_ns(limit.left_ns(), is_short, waits_for_room));
        match (count, waiter) {
            (0, Some(_)) if !limit.is_over() => return Ok(()),
            (0, _) => return Err(libc::EAGAIN),
            // The program has lowered its limit of descriptors, so the kernel polls none: look again soon.
            (..0, _) if errno::get() == libc::EINVAL => kernel::pause(),
            (..0, _) => return Err(errno::get()),
            (_, Some(waiter)) if fds[1].revents | fds[2].revents != 0 => waiter.clear(),
            _ => {}
        }
        if fds[0].revents != 0 {
            self.note_event(); // The next try asks what it is.
        }
        Ok(())
    }

    /// Waits without a doorbell, by looking again and again.
    fn wait_crowded(&self, fd: c_int, stream: &Stream, wait: &Wait) -> Result<(), c_int> {
        self.leave_rings(); // What is in the ring already is found by looking.
        let mut pause = CROWDED_NS.0;
        while !self.is_ready(stream, wait.what) {
            self.heed(fd, stream);
            wait.check()?;
            let left = wait.until.left_ns().unwrap_or(u64::MAX);
            if left == 0 {
                return Err(libc::EAGAIN);
            }
            match self.poll(fd, self.kernel_events(wait.what), None, Limit::after_ns(pause.min(left)), false, false) {
                Err(libc::EAGAIN) => pause = (pause * 2).min(CROWDED_NS.1),
                result => return result,
            }
        }
        Ok(())
    }

    /// Gives the wish back to the epoll set of the connection, and wakes the set, which may have missed a change.
    pub(crate) fn restore_want(&self, stream: &Stream, what: Interest) {
        stream.memory.clear_want(what);
        let links = self.links();
        for (set, at) in links {
            set.restore_want(at);
        }
    }
}
