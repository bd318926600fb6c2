//! The way back to TCP before a descriptor is used past the library: by another program, or by a call that the library does not
//! define. `docs/spec/stream.md`, section Leaving, has the rules.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use isthmus_layout::sockets::{StreamPath, StreamState};
use isthmus_sockets::Violation;

use crate::connection::{Connection, Stage, Stream, flags};
use crate::stream_io::{advance, view};
use crate::table::{InUse, Tracked};
use crate::wait_limit::Limit;
use crate::{errno, kernel, session};

/// The time after which a call rings the peer's alarm again, in nanoseconds. It rings first after a tenth of it.
const ALARM_NS: u64 = 100_000_000;

/// The time that a call waits for the peer, which has bytes to send again. A peer answers at once if it waits in the library, and else when
/// its alarm rings.
const LIMIT: Duration = Duration::from_secs(30);

/// The time that a call waits for the kernel's connection, or for calls of other threads that do not block.
const SHORT_LIMIT: Duration = Duration::from_secs(2);

impl Connection {
    /// Moves both directions of a connection back to TCP, where they stay. The program may use the descriptor past the library then.
    ///
    /// The connection is reset if bytes would be lost: the program has not read them, and the peer does not send them again in time.
    #[cold]
    pub(crate) fn leave(this: &InUse<Self>, fd: c_int) {
        let errno = errno::get();
        if this.stage() == Stage::Shown {
            session::look();
        }
        match this.stage() {
            Stage::Shown => {
                // The daemon may have a copy for a moment. A close at that time must not end the connection, because others may have it.
                this.is_passed.store(true, Ordering::Relaxed);
                this.set_stage(Stage::Off);
                session::withdraw(this.token.load(Ordering::Relaxed));
            }
            Stage::Paired => {
                this.paired().into_iter().for_each(Stream::stays_unused);
                this.set_stage(Stage::Off);
            }
            Stage::Plain => this.set_stage(Stage::Off),
            Stage::Attached => this.leave_stream(fd),
            Stage::Unconnected => _ = this.move_stage(Stage::Unconnected, Stage::Off),
            Stage::Off | Stage::Listener => {}
        }
        // The sets have the program's data again, because another process may wait in them.
        this.links().iter().for_each(|(set, at)| set.delist(*at));
        errno::set(errno);
    }

    /// Sends by TCP from now on, because the program is about to send past the library. The other direction stays.
    #[cold]
    pub(crate) fn send_by_tcp(this: &InUse<Self>, fd: c_int) {
        let Some(stream) = this.stream() else { return Self::leave(this, fd) };
        let errno = errno::get();
        this.set_flag(flags::SENDS_TCP);
        this.shared().with_sender(|sender| sender.keep_on_tcp(true));
        let until = Limit::after_ns(SHORT_LIMIT.as_nanos() as u64);
        // The switch waits for calls that read or send on TCP now, which do not block.
        while this.writes_ring() && !until.is_over() {
            if !this.shared().with_sender(|sender| this.consider(stream, sender).unwrap_or(false)) {
                std::thread::yield_now();
            }
        }
        stream.notify_all();
        this.path_changed();
        errno::set(errno);
    }

    /// Ends the upgrade of a socket that the program has disconnected, to use it again. It stays on TCP.
    pub(crate) fn dissolve(this: &InUse<Self>) {
        let links = this.links();
        links.iter().for_each(|(set, at)| set.delist(*at));
        if this.stage() == Stage::Shown {
            session::withdraw(this.token.load(Ordering::Relaxed));
        }
        this.has_left.store(true, Ordering::Release);
        this.set_stage(Stage::Off); // Threads inside find the end of the kernel's connection.
    }

    fn leave_stream(&self, fd: c_int) {
        let Some(stream) = self.stream() else { return };
        if self.has_left.swap(true, Ordering::AcqRel) {
            return;
        }
        self.shared().with_sender(|sender| sender.keep_on_tcp(true));
        let Some(may_be_unread) = self.leave_rings_unread(stream) else { return kernel::disconnect(fd) };
        let until = Limit::after_ns(LIMIT.as_nanos() as u64);
        let mut alarm = Limit::after_ns(ALARM_NS / 10);
        loop {
            self.heed(fd, stream);
            if !self.writes_ring() && (!may_be_unread || stream.memory.peer_state() & StreamState::RETURNED != 0) {
                return;
            }
            if until.is_over() || self.has_flag(flags::FIN) {
                return kernel::disconnect(fd);
            }
            self.look_for_end(fd, stream); // A peer that has ended its sending cannot send anything again.
            stream.notify_all();
            if alarm.is_over() {
                stream.peer.alarm(); // No thread of the peer may be in a call of the library.
                alarm = Limit::after_ns(ALARM_NS);
            }
            kernel::pause();
        }
    }

    /// Reads no ring any more. Returns whether bytes may be unread there, and None if they cannot be sent again.
    fn leave_rings_unread(&self, stream: &Stream) -> Option<bool> {
        self.shared().with_receiver(|receiver| {
            advance(stream, receiver).ok()?;
            let was_in_ring = receiver.path() != StreamPath::Tcp;
            if !receiver.leave() {
                return None;
            }
            stream.memory.publish_head(receiver.position());
            stream.memory.add_state(StreamState::LEFT);
            stream.notify_all(); // With a fence: either the peer sees the state, or this end sees what the peer wrote.
            let seen = stream.memory.peer_progress();
            Some(seen.switches != receiver.taken() || was_in_ring && seen.tail != receiver.position() as u32)
        })
    }

    /// Goes back to TCP if either end wants that.
    pub(crate) fn heed(&self, fd: c_int, stream: &Stream) {
        if !self.is_asked(stream) {
            return;
        }
        let fd = self.kernel_fd(fd); // As in `look_for_end`.
        if stream.memory.peer_state() & StreamState::LEFT != 0 {
            if self.send_back(fd, stream).is_err() {
                self.broke(fd, stream);
            }
        } else if !self.shared().with_sender(|sender| self.consider(stream, sender).unwrap_or(false)) {
            return; // The next write reports a violation.
        }
        stream.notify_all();
        self.path_changed();
    }

    /// Returns true if either end wants this one to go back to TCP, and it can.
    #[inline]
    pub(crate) fn is_asked(&self, stream: &Stream) -> bool {
        let state = stream.memory.peer_state();
        let leaves = StreamState::TCP_PLEASE | StreamState::LEFT;
        (state & leaves != 0 || self.has_left.load(Ordering::Relaxed)) && self.can_go_back(stream, state)
    }

    #[cold]
    fn can_go_back(&self, stream: &Stream, state: u32) -> bool {
        self.shared().with_sender(|sender| {
            if sender.is_abandoned() || sender.is_in_tcp() || self.has_flag(flags::BROKEN) {
                return false;
            }
            let _ = sender.saw_taken(stream.memory.peer_taken()); // The next write reports a violation.
            state & StreamState::LEFT != 0
                || sender.path() != StreamPath::Tcp
                    && sender.would_switch(view(stream), || stream.memory.peer_reads_tcp())
        })
    }

    /// Sends by TCP what a peer that has left did not read. The handler of the alarm calls this, so it neither allocates nor frees memory.
    pub(crate) fn send_back(&self, fd: c_int, stream: &Stream) -> Result<(), Violation> {
        if self.can_go_back(stream, stream.memory.peer_state()) {
            match self.take_back(fd, stream)? {
                true => stream.memory.add_state(StreamState::RETURNED),
                false => kernel::disconnect(fd),
            }
            self.path_changed();
        }
        Ok(())
    }

    /// Sends by TCP what the peer has not read and does not read any more. Returns false if that failed.
    #[cold]
    #[inline(never)] // Its buffer is too large for the small stack of a signal handler that only writes.
    fn take_back(&self, fd: c_int, stream: &Stream) -> Result<bool, Violation> {
        // Under the lock, so that no other byte overtakes these.
        self.shared().with_sender(|sender| {
            let Some(unread) = sender.take_back(stream.memory.peer_taken(), stream.memory.peer_head())? else {
                return Ok(false);
            };
            let mut is_sent = true;
            for ring in unread {
                sender.begin_tcp();
                let mut done = 0;
                while done < ring.len && is_sent {
                    let mut bytes = [0; PIECE as usize];
                    let piece = &mut bytes[..PIECE.min(ring.len - done) as usize];
                    stream.memory.read_own(ring.path, ring.at + u64::from(done), piece);
                    is_sent = send_all(fd, piece);
                    done += piece.len() as u32;
                }
                sender.end_tcp(u64::from(ring.len));
            }
            Ok(is_sent)
        })
    }
}

/// Bytes that are copied out of a ring at a time.
const PIECE: u32 = 1024;

/// Sends all bytes by TCP. Returns false if the kernel does not take them in time.
fn send_all(fd: c_int, mut bytes: &[u8]) -> bool {
    let until = Limit::after_ns(SHORT_LIMIT.as_nanos() as u64);
    while !bytes.is_empty() {
        match kernel::send_now(fd, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(libc::EAGAIN) if !until.is_over() => kernel::pause(),
            Err(libc::EINTR) => {}
            Err(_) => return false,
        }
    }
    true
}

/// Moves the connections back to TCP that a new program gets: those of this process that stay open over exec, and any of the standard
/// descriptors. A forked child has all descriptors of its parent. Usually its program uses none of them, so the parent keeps its streams,
/// until it has closed them.
pub(crate) fn before_exec() {
    let own = std::process::id() as i32;
    let mut leaving = Vec::new();
    let standard: Vec<u64> = (0..=2).filter(|fd| kernel::is_tcp(*fd)).filter_map(kernel::cookie).collect();
    Connection::table().for_each(|fd, connection| {
        if connection.stage() != Stage::Attached {
            return;
        }
        let is_own = || connection.is_owned_by(own) || connection.shared().is_handed_over.load(Ordering::Relaxed);
        let is_kept = is_own() && !kernel::closes_on_exec(fd);
        let is_standard =
            || !standard.is_empty() && kernel::cookie(fd).is_some_and(|cookie| standard.contains(&cookie));
        if is_kept || is_standard() {
            leaving.push((fd, connection));
        }
    });
    for (fd, connection) in leaving {
        Connection::leave(&connection, fd);
    }
}

/// Moves the connection of a descriptor back to TCP, if the library tracks it.
pub(crate) fn leave_fd(fd: c_int) {
    if let Some(connection) = crate::table::connection(fd) {
        Connection::leave(&connection, fd);
    }
}

/// Sends by TCP from now on, if the library tracks the descriptor.
pub(crate) fn send_by_tcp(fd: c_int) {
    if let Some(connection) = crate::table::connection(fd) {
        Connection::send_by_tcp(&connection, fd);
    }
}

/// True once the program has set up an io_uring, by which it may use every socket past the library.
static ALL_STAY: AtomicBool = AtomicBool::new(false);

/// Moves all connections of the process back to TCP, and lets no other one attach.
#[cold]
pub(crate) fn all_stay_on_tcp() {
    ALL_STAY.store(true, Ordering::Relaxed);
    let mut all = Vec::new();
    Connection::table().for_each(|fd, connection| all.push((fd, connection)));
    for (fd, connection) in all.into_iter().filter(|(_, connection)| connection.stage() == Stage::Attached) {
        Connection::leave(&connection, fd);
    }
}

/// Returns true if no connection of the process attaches.
pub(crate) fn do_all_stay() -> bool {
    ALL_STAY.load(Ordering::Relaxed)
}

/// Moves the connection of a descriptor back to TCP, because another process gets it.
pub(crate) fn pass_fd(fd: c_int) {
    if let Some(connection) = crate::table::connection(fd) {
        connection.is_passed.store(true, Ordering::Relaxed);
        Connection::leave(&connection, fd);
    }
}
