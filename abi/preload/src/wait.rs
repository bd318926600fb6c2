//! Waiting of one thread for one connection.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};

use isthmus_layout::ready_map::ReadyBit;
use isthmus_layout::sockets::Interest;

use crate::connection::{Connection, Stream};
use crate::wait_limit::Limit;
use crate::waiter::{self, Waiter};
use crate::{errno, kernel, session};

/// The first and the longest time between two looks of a thread without a waiter of its own, in nanoseconds.
const CROWDED_NS: (u64, u64) = (1_000_000, 16_000_000);

/// Reads the time limit that the program has set for calls in one direction.
pub(crate) fn deadline(fd: c_int, what: Interest) -> Limit {
    let name = match what {
        Interest::Data => libc::SO_RCVTIMEO,
        Interest::Room => libc::SO_SNDTIMEO,
    };
    match kernel::socket_option::<libc::timeval>(fd, libc::SOL_SOCKET, name) {
        None | Some(libc::timeval { tv_sec: 0, tv_usec: 0 }) => Limit::Never,
        Some(time) => Limit::after_ns((time.tv_sec as u64).saturating_mul(1_000_000_000) + time.tv_usec as u64 * 1000),
    }
}

/// Returns true if every handler that the program has set restarts calls. The kernel does not tell which handler has run.
pub(crate) fn restarts_calls() -> bool {
    (1..=libc::SIGRTMAX()).all(|signal| {
        // SAFETY: an action of zeroes is a value, and the call only writes it.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            let is_known = libc::sigaction(signal, core::ptr::null(), &raw mut action) == 0;
            let is_handler = !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
            !is_known || !is_handler || action.sa_flags & libc::SA_RESTART != 0
        }
    })
}

/// Marks that a thread uses the wish of a connection.
struct Claim<'a>(&'a AtomicBool);

impl<'a> Claim<'a> {
    fn new(flag: &'a AtomicBool) -> Option<Self> {
        (!flag.swap(true, Ordering::Acquire)).then_some(Self(flag))
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Connection {
    /// Waits until a read or write may succeed. `EAGAIN` at the deadline, `EINTR` after a signal.
    pub(crate) fn wait(&self, fd: c_int, stream: &Stream, what: Interest, deadline: Limit) -> Result<(), c_int> {
        self.heed(fd, stream);
        let waited = waiter::with_thread(&stream.board, |thread| {
            let ready = || self.is_ready(stream, what) || self.is_asked(stream);
            if deadline.is_over() {
                return Err(libc::EAGAIN);
            }
            let on_ring = match what {
                Interest::Data => self.reads_ring(),
                Interest::Room => true,
            };
            if on_ring && thread.spin.spin(ready) {
                return Ok(());
            }
            match (&thread.waiter, Claim::new(self.wish_in_use(what))) {
                (Some(waiter), Some(claim)) => {
                    let result = self.sleep(fd, stream, what, waiter, deadline);
                    drop(claim);
                    self.restore_want(stream, what);
                    result
                }
                _ => self.wait_crowded(fd, stream, what, deadline),
            }
        });
        waited.unwrap_or_else(|| self.wait_crowded(fd, stream, what, deadline))
    }

    fn is_ready(&self, stream: &Stream, what: Interest) -> bool {
        match what {
            Interest::Data => self.has_data(stream),
            Interest::Room => self.has_room(stream),
        }
    }

    fn sleep(&self, fd: c_int, stream: &Stream, what: Interest, waiter: &Waiter, deadline: Limit) -> Result<(), c_int> {
        let page = waiter.board.board.ready_map(waiter.index);
        page.drain(|_| {});
        stream.memory.set_want(what, waiter.parked(ReadyBit::CONTROL));
        if self.is_ready(stream, what) || self.is_asked(stream) || !waiter.begin_sleep() {
            return Ok(());
        }
        let result = self.poll(
            fd,
            self.kernel_events(what),
            Some(waiter),
            deadline,
            self.has_forked(stream),
            what == Interest::Room,
        );
        waiter.end_sleep();
        result
    }

    /// The events of the kernel that end a wait. If the program shuts its receiving meanwhile, a reader must see that. A writer must not,
    /// because the event stays.
    fn kernel_events(&self, what: Interest) -> i16 {
        if what == Interest::Data || self.tells_of_fin() { libc::POLLIN | libc::POLLRDHUP } else { 0 }
    }

    /// Polls the TCP connection for `events`, and the doorbell.
    fn poll(
        &self,
        fd: c_int,
        events: i16,
        waiter: Option<&Waiter>,
        limit: Limit,
        has_forked: bool,
        waits_for_room: bool,
    ) -> Result<(), c_int> {
        let fd = self.kernel_fd(fd);
        let bell = waiter.map_or(-1, Waiter::fd);
        let mut fds =
            [libc::pollfd { fd, events, revents: 0 }, libc::pollfd { fd: bell, events: libc::POLLIN, revents: 0 }];
        let count = kernel::poll_ns(&mut fds, session::sleep_ns(limit.left_ns(), has_forked, waits_for_room));
        match (count, waiter) {
            (0, Some(_)) if !limit.is_over() => return Ok(()),
            (0, _) => return Err(libc::EAGAIN),
            (..0, _) => return Err(errno::get()),
            (_, Some(waiter)) if fds[1].revents != 0 => waiter.doorbell.clear(),
            _ => {}
        }
        if fds[0].revents != 0 {
            self.note_event(); // The next try asks what it is.
        }
        Ok(())
    }

    /// Waits without a doorbell, by looking again and again.
    fn wait_crowded(&self, fd: c_int, stream: &Stream, what: Interest, deadline: Limit) -> Result<(), c_int> {
        self.leave_rings(); // What is in the ring already is found by looking.
        let mut pause = CROWDED_NS.0;
        while !self.is_ready(stream, what) {
            self.heed(fd, stream);
            let left = deadline.left_ns().unwrap_or(u64::MAX);
            if left == 0 {
                return Err(libc::EAGAIN);
            }
            match self.poll(fd, self.kernel_events(what), None, Limit::after_ns(pause.min(left)), false, false) {
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
