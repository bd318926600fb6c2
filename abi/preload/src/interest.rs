//! One entry of an epoll set: what the program wants to know about a connection, and what it was told.

use core::ffi::c_int;
use core::sync::atomic::Ordering;
use std::sync::Arc;

use isthmus_layout::sockets::StreamState;
use libc::{EPOLLET, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDNORM, EPOLLWRNORM, epoll_event};

use crate::connection::Connection;
use crate::epoll_set::MARK;
use crate::table::InUse;
use crate::waiter::LocalBoard;

/// The events of the program that bytes in a ring cause, and those that room in a ring causes.
const READ: u32 = (EPOLLIN | EPOLLRDNORM) as u32;
pub(crate) const WRITE: u32 = (EPOLLOUT | EPOLLWRNORM) as u32;
const EDGE: u32 = EPOLLET as u32;
const ONE_SHOT: u32 = EPOLLONESHOT as u32;
/// The events of an entry that is neither edge-triggered nor special in other ways.
const LEVEL: u32 = READ | WRITE | (libc::EPOLLRDHUP | libc::EPOLLPRI | libc::EPOLLERR | libc::EPOLLHUP) as u32;
/// The events that the kernel reports without a wish.
const UNASKED: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

/// An entry.
pub(crate) struct Entry {
    /// Its name in the set.
    pub(crate) at: u32,
    pub(crate) fd: c_int,
    pub(crate) connection: InUse<Connection>,
    /// The events that the program wants, with those that the kernel reports without a wish. A one-shot entry that is not armed has none.
    pub(crate) events: u32,
    pub(crate) data: u64,
    /// The events that the kernel has for it. They may be more than the program wants.
    pub(crate) in_kernel: u32,
    /// The program has removed it, and the kernel still has it.
    pub(crate) is_removed: bool,
    /// The connection has a stream, and the kernel's entry has a token.
    pub(crate) is_stream: bool,
    /// The descriptor is closed, and the kernel keeps the entry because the socket has others.
    pub(crate) is_orphan: bool,
    /// Waits in the set before the entry was added.
    pub(crate) waits_before: u32,
    pub(crate) is_hot: bool,
    /// Calls since it was ready.
    pub(crate) quiet: u32,
    /// Edge-triggered: the mark of the bytes that were reported.
    reported: Option<u32>,
    /// The mark of the bytes when data was last looked for.
    seen: u32,
    /// Edge-triggered: room was reported since a write found none.
    room_reported: bool,
}

impl Entry {
    pub(crate) fn new(
        at: u32,
        fd: c_int,
        connection: InUse<Connection>,
        event: epoll_event,
        waits_before: u32,
    ) -> Self {
        Self {
            at,
            fd,
            connection,
            events: event.events | UNASKED,
            data: event.u64,
            in_kernel: event.events | UNASKED,
            is_removed: false,
            is_stream: false,
            is_orphan: false,
            waits_before,
            is_hot: false,
            quiet: 0,
            reported: None,
            seen: 0,
            room_reported: false,
        }
    }

    /// Begins to have a stream.
    pub(crate) fn begin_stream(&mut self) {
        (self.is_stream, self.quiet) = (true, 0);
        (self.reported, self.room_reported) = (None, false);
        self.in_kernel = self.kernel_events();
    }

    /// The event to register in the kernel while the connection has a stream.
    pub(crate) fn token_event(&self) -> epoll_event {
        epoll_event { events: self.in_kernel, u64: MARK | u64::from(self.at) }
    }

    /// Takes the program's new wishes. An edge is reported again. Returns false if the kernel has all that it must watch.
    pub(crate) fn change(&mut self, event: epoll_event) -> bool {
        let was_lazy = self.is_lazy();
        (self.events, self.data) = (event.events | UNASKED, event.u64);
        (self.reported, self.room_reported) = (None, false);
        let wanted = self.kernel_events();
        if was_lazy && self.is_lazy() && wanted & !self.in_kernel == 0 {
            return false;
        }
        self.in_kernel = wanted;
        true
    }

    /// Returns true if the kernel may have more events than the program wants. The kernel reports nothing of a stream that uses its rings
    /// but its end, so most changes need no call of the kernel. Events that the program does not want are corrected when they come.
    pub(crate) fn is_lazy(&self) -> bool {
        self.is_stream
            && self.events & !LEVEL == 0
            && self.connection.stream().is_some()
            && self.connection.reads_ring()
    }

    /// Removes the entry for the program, and leaves it to the kernel. Returns false if the kernel must remove it.
    pub(crate) fn remove_lazily(&mut self) -> bool {
        let is_lazy = self.is_lazy();
        if is_lazy {
            (self.events, self.is_removed) = (0, true);
        }
        is_lazy
    }

    /// The events that the kernel must watch: all, without room in the socket while bytes go into a ring.
    pub(crate) fn kernel_events(&self) -> u32 {
        let is_ring = self.events & WRITE != 0 && self.connection.stream().is_some() && self.connection.writes_ring();
        if is_ring { self.events & !WRITE } else { self.events }
    }

    /// Returns the events of the ring that the program wants and was not told.
    pub(crate) fn ready(&mut self) -> u32 {
        let Some(stream) = self.connection.stream() else { return 0 };
        let is_edge = self.events & EDGE != 0;
        let mut ready = 0;
        if self.events & READ != 0 {
            // The mark is older than the look, so bytes that arrive after it are reported later.
            self.seen = self.connection.data_mark(stream);
            if self.connection.has_data(stream) && !(is_edge && self.reported == Some(self.seen)) {
                ready |= self.events & READ;
            }
        }
        if self.events & WRITE != 0 && self.connection.writes_ring() {
            if self.connection.was_full.swap(false, Ordering::Relaxed) {
                self.room_reported = false;
            }
            if !(is_edge && self.room_reported) && self.connection.has_room(stream) {
                ready |= self.events & WRITE;
            }
        }
        ready
    }

    /// Returns true if the program waits for room in a full ring.
    pub(crate) fn waits_for_room(&self) -> bool {
        let was_told = self.events & EDGE != 0 && self.room_reported;
        self.is_stream && self.events & WRITE != 0 && !was_told && self.connection.is_full()
    }

    /// Returns true if the peer must tell of room: the program waits for it, and has not been told of the room that is there.
    pub(crate) fn wishes_room(&self) -> bool {
        let was_told =
            self.events & EDGE != 0 && self.room_reported && !self.connection.was_full.load(Ordering::SeqCst);
        self.events & WRITE != 0 && !was_told
    }

    /// Returns true if the peer reaches this end by a board.
    pub(crate) fn is_of(&self, board: *const LocalBoard) -> bool {
        self.connection.stream().is_some_and(|stream| core::ptr::eq(Arc::as_ptr(&stream.board), board))
    }

    /// Returns true if either end wants to go back to TCP.
    pub(crate) fn is_asked(&self) -> bool {
        self.connection.stream().is_some_and(|stream| self.connection.is_asked(stream))
    }

    /// Returns true if the kernel is likely to have an event: the next bytes come by TCP, or the peer has closed or is about to.
    pub(crate) fn needs_kernel(&self) -> bool {
        self.connection.stream().is_some_and(|stream| {
            stream.memory.peer_state() & (StreamState::HALF_CLOSED | StreamState::CLOSED) != 0
                || !self.connection.reads_ring()
        })
    }

    /// Returns the events of the kernel that the program wants.
    pub(crate) fn wanted_of(&self, events: u32) -> u32 {
        if self.is_removed { 0 } else { events & self.events }
    }

    /// Notes that these events were reported.
    pub(crate) fn reported(&mut self, events: u32) {
        if events & READ != 0 {
            self.reported = Some(self.seen);
        }
        if events & WRITE != 0 {
            self.room_reported = true;
        }
        self.after_report();
    }

    /// True for a one-shot entry that has reported an event, and was not armed again.
    pub(crate) fn is_unarmed(&self) -> bool {
        self.events == ONE_SHOT
    }

    /// A one-shot entry reports nothing more until the program changes it, not even an end.
    pub(crate) fn after_report(&mut self) {
        if self.events & ONE_SHOT != 0 {
            self.events = ONE_SHOT;
        }
    }
}

impl Connection {
    /// Moves both directions back to TCP, where the kernel wakes every set and every process.
    pub(crate) fn leave_rings(&self) {
        if let Some(stream) = self.stream() {
            self.shared().with_sender(|sender| sender.keep_on_tcp(true));
            stream.memory.add_state(StreamState::TCP_PLEASE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Tracked as _;

    #[test]
    fn peer_tells_of_room_only_while_the_program_waits_for_it() {
        let fd = 1 << 16;
        let connection = Connection::table().insert(fd).unwrap();
        let event = |events: u32| epoll_event { events, u64: 0 };
        let mut entry = Entry::new(1, fd, connection.clone(), event(READ), 0);
        assert!(!entry.wishes_room());
        entry.change(event(READ | WRITE));
        entry.reported(WRITE);
        assert!(entry.wishes_room(), "a level is reported again");
        entry.change(event(READ | WRITE | EDGE));
        assert!(entry.wishes_room());
        entry.reported(READ | WRITE);
        assert!(!entry.wishes_room(), "the edge was reported");
        connection.was_full.store(true, Ordering::SeqCst);
        assert!(entry.wishes_room(), "a write has found no room since");
        entry.change(event(READ | WRITE | ONE_SHOT));
        entry.reported(READ);
        assert!(!entry.wishes_room(), "the entry is not armed");
        Connection::table().remove(fd);
    }
}
