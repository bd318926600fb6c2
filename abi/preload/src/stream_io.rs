//! Bytes of an attached connection: from and to the rings, or TCP, as the engine says.

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;

use isthmus_layout::sockets::{Interest, StreamPath, StreamState};
use isthmus_sockets::{AtFin, Receive, Receiver, Sender, SenderView, Violation, at_fin};
use libc::iovec;

use crate::connection::{Connection, Stream, flags};
use crate::copy::{self, Fault};
use crate::inside::Held;
use crate::shared_state::SharedState;
use crate::{errno, kernel, real, test_switch};

/// Reads that find nothing before the kernel is asked whether the peer has gone.
const EMPTY_READS: u32 = 64;

/// The ticks of [`kernel::ticks`] after which it is asked again by a write, and by a read that does not block: 10 to 40 us. A program that
/// keeps connections reads once, without waiting, to learn which of them have ended, and one that only writes learns it by nothing else. A
/// program that polls by reading, or writes all the time, does not ask each time.
const ASK_AGAIN_TICKS: u32 = 40;

/// Bytes that are copied before the other end learns of them. It copies meanwhile.
const PIECE: usize = 64 << 10;

/// The bytes that one call moves, at most: Linux has no larger result (`MAX_RW_COUNT`).
pub(crate) const BYTES_MAX: usize = 0x7fff_f000;

/// The time that a thread waits for others to end their calls that read TCP, in milliseconds.
const BUSY_MS: u64 = 1000;

/// Events of a connection that has ended, or of which the peer sends no more.
const GONE: i16 = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;

/// Buffers of the program, from some byte on.
#[derive(Clone, Copy)]
pub(crate) struct Parts<'a> {
    parts: &'a [iovec],
    /// Bytes of the first part that are done.
    skipped: usize,
    /// Bytes from there on, at most [`BYTES_MAX`].
    len: usize,
}

impl<'a> Parts<'a> {
    pub(crate) fn new(parts: &'a [iovec]) -> Self {
        let len = parts.iter().fold(0usize, |sum, part| sum.saturating_add(part.iov_len));
        Self { parts, skipped: 0, len: len.min(BYTES_MAX) }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Skips `count` bytes, which are there.
    pub(crate) fn skip(&mut self, count: usize) {
        self.skipped += count;
        self.len -= count;
        while let Some(first) = self.parts.first()
            && self.skipped >= first.iov_len
        {
            self.skipped -= first.iov_len;
            self.parts = &self.parts[1..];
        }
    }

    /// Copies up to `limit` bytes by `f`, which gets the address and length of each piece, and the number of bytes before it.
    fn copy(&self, limit: usize, f: impl Fn(*mut u8, usize, u64)) -> Result<(), Fault> {
        let (mut done, mut result) = (0, Ok(()));
        self.pieces(limit, |at, len| {
            if result.is_ok() {
                // No slice begins at null.
                result = if at.is_null() { Err(Fault) } else { copy::guarded(|| f(at, len, done)) };
                done += len as u64;
            }
        });
        result
    }

    /// Calls `f` with the address and length of each piece, up to `limit` bytes in all.
    fn pieces(&self, limit: usize, mut f: impl FnMut(*mut u8, usize)) {
        let (mut left, mut skipped) = (limit.min(self.len), self.skipped);
        for part in self.parts {
            if left == 0 {
                return;
            }
            let len = (part.iov_len - skipped).min(left);
            if len > 0 {
                f(part.iov_base.cast::<u8>().wrapping_add(skipped), len); // An empty part may have no address.
            }
            (left, skipped) = (left - len, 0);
        }
    }

    /// The pieces as the kernel takes them: at most `limit` bytes, and at most the number of parts that it takes.
    fn to_kernel(self, limit: usize, into: &mut [iovec; 64]) -> usize {
        let mut count = 0;
        self.pieces(limit, |at, len| {
            if count < into.len() {
                into[count] = iovec { iov_base: at.cast(), iov_len: len };
                count += 1;
            }
        });
        count
    }
}

/// Why a step moves no bytes.
enum Stop {
    /// The peer has violated the protocol.
    Violation,
    /// The program's buffer cannot be reached.
    Fault,
}

impl From<Violation> for Stop {
    fn from(_: Violation) -> Self {
        Self::Violation
    }
}

impl From<Fault> for Stop {
    fn from(_: Fault) -> Self {
        Self::Fault
    }
}

/// The result of a step of receiving.
enum Step {
    /// Bytes of rings. `is_all`: the ring had no more, and it is the path.
    Bytes {
        count: usize,
        is_all: bool,
    },
    Tcp(u64),
    /// Another thread reads TCP up to a switch, and gets there at once.
    Busy,
    Empty,
}

/// Bytes that were sent.
pub(crate) struct Sent {
    pub(crate) count: usize,
    /// The kernel has taken fewer than it could: the call's time is over, a signal has come, or the program has ended the sending. A call
    /// that does not block has found no more room.
    pub(crate) is_over: bool,
}

/// The result of a step of sending.
enum SendStep {
    Bytes(usize),
    /// `has_unread`: bytes of a ring before the switch are not read yet, as far as this end knows.
    Tcp {
        has_unread: bool,
    },
    Full,
}

impl Connection {
    /// Receives what is there. `EAGAIN` if nothing is. A count below that of the buffers says that nothing was left, on any path. A call
    /// that `blocks` waits then, and sees the end of the connection there.
    pub(crate) fn try_receive(
        &self,
        fd: c_int,
        stream: &Stream,
        parts: Parts<'_>,
        peek: bool,
        blocks: bool,
    ) -> Result<usize, c_int> {
        // What the kernel said about the end of the connection. It counts when the words that are loaded after it show an empty ring.
        let mut ended = None;
        let (mut total, mut parts, mut busy_since) = (0, parts, None);
        let fd = self.kernel_fd(fd);
        let _held = Held::begin(); // A handler that reads the connection would wait for the end of this call's read of TCP.
        loop {
            match self.receive_step(stream, parts, peek) {
                Err(_) | Ok(Step::Empty | Step::Busy) if total > 0 => return Ok(total),
                Err(Stop::Fault) => return Err(libc::EFAULT),
                Err(Stop::Violation) => {
                    self.broke(fd, stream);
                    self.take_flag(flags::RESET_DUE);
                    return Err(libc::ECONNRESET);
                }
                Ok(Step::Bytes { count, is_all }) => {
                    total += count;
                    parts.skip(count);
                    if is_all || peek || parts.len() == 0 {
                        return Ok(total);
                    }
                }
                // Not EAGAIN: the program may have been told of bytes, and would not be told again.
                Ok(Step::Busy) => self.let_others_read(&mut busy_since)?,
                Ok(Step::Empty) => match ended {
                    Some(kernel) => return self.peer_ended(fd, stream, kernel),
                    None => ended = Some(self.ask_kernel(fd, parts, peek, blocks)?),
                },
                Ok(Step::Tcp(limit)) => {
                    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
                    // Behind other bytes, an end or an error is left for the next call.
                    let is_silent = total > 0 && kernel::unread_bytes(fd) == 0;
                    let result =
                        if is_silent { Err(libc::EAGAIN) } else { self.receive_from_kernel(fd, parts, limit, peek) };
                    let counted = if peek { 0 } else { result.unwrap_or(0) as u64 };
                    let (is_read, is_due) = self.shared().with_receiver(|receiver| {
                        receiver.end_tcp(counted);
                        if counted > 0 {
                            stream.memory.publish_head(receiver.position()); // The sender sees that the program reads.
                        }
                        end_of_tcp_reads(stream, receiver);
                        (receiver.is_in_tcp(), counted == 0 && is_switch_due(stream, receiver))
                    });
                    match (result, ended) {
                        (Ok(count), _) if count == limit && !peek && count < parts.len() => {
                            total += count;
                            parts.skip(count); // A ring follows.
                        }
                        (Ok(count @ 1..), _) => return Ok(total + count),
                        (Err(_), _) if total > 0 => return Ok(total),
                        // While this thread was in the kernel, others could not see the bytes behind the switch.
                        (Err(libc::EAGAIN), _) if is_due => {}
                        (Err(libc::EAGAIN | libc::EINTR | libc::EFAULT | libc::EINVAL), _) => return result,
                        // Bytes that another thread has read are not counted yet, and a switch may lie behind them.
                        _ if is_read => self.let_others_read(&mut busy_since)?,
                        (_, Some(kernel)) => return self.peer_ended(fd, stream, kernel),
                        (result, None) => ended = Some(result),
                    }
                }
            }
        }
    }

    /// Lets other threads end their calls that read TCP, which do not block. `EAGAIN` if one does not come back: its process may be stopped.
    #[cold]
    fn let_others_read(&self, since: &mut Option<u64>) -> Result<(), c_int> {
        let now = kernel::now_ms();
        if now - *since.get_or_insert(now) > BUSY_MS {
            return Err(libc::EAGAIN);
        }
        std::thread::yield_now();
        Ok(())
    }

    /// Asks the kernel whether the connection has ended, and how, when the ring is empty. `EAGAIN` if it has not.
    fn ask_kernel(&self, fd: c_int, parts: Parts<'_>, peek: bool, blocks: bool) -> Result<Result<usize, c_int>, c_int> {
        if self.take_reset(fd) {
            return Err(libc::ECONNRESET);
        }
        let is_shut = self.has_flag(flags::SHUT_READ);
        let empty = self.empty_reads.fetch_add(1, Ordering::Relaxed);
        // The events are counted, because each may be that of another thread, which was told of it by an edge.
        let told = self.kernel_events.load(Ordering::SeqCst);
        let is_told = told != self.asked_events.load(Ordering::Relaxed);
        let is_due = empty.is_multiple_of(EMPTY_READS) || self.has_flag(flags::FIN) || !blocks && self.is_time_to_ask();
        if !is_shut && !is_told && !is_due {
            return Err(libc::EAGAIN);
        }
        if kernel::events_now(fd, libc::POLLIN | libc::POLLRDHUP) & GONE == 0 {
            self.asked_events.store(told, Ordering::Relaxed);
            return Err(libc::EAGAIN);
        }
        if !is_told {
            self.note_event(); // It stays so.
        }
        let mut busy_since = None;
        while self.shared().with_receiver(|receiver| receiver.is_in_tcp()) {
            self.let_others_read(&mut busy_since)?; // Not EAGAIN, as in `try_receive`.
        }
        // Nothing lies on TCP: the peer would have announced it before its FIN. So this reads nothing but the end.
        if self.shared().with_receiver(|receiver| receiver.path() == StreamPath::Tcp) {
            return Ok(Ok(0));
        }
        Ok(self.receive_from_kernel(fd, parts, 0, peek))
    }

    /// Returns true if no write, and no read that does not block, has asked the kernel lately.
    #[inline]
    fn is_time_to_ask(&self) -> bool {
        let now = kernel::ticks();
        let is_time = now.wrapping_sub(self.asked_at.load(Ordering::Relaxed)) >= ASK_AGAIN_TICKS;
        if is_time {
            self.asked_at.store(now, Ordering::Relaxed);
        }
        is_time
    }

    fn receive_from_kernel(&self, fd: c_int, parts: Parts<'_>, limit: usize, peek: bool) -> Result<usize, c_int> {
        let mut pieces = [iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; 64];
        // SAFETY: a message of zeroes is an empty one.
        let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
        message.msg_iovlen = parts.to_kernel(limit, &mut pieces) as _;
        message.msg_iov = pieces.as_mut_ptr();
        // SAFETY: the pieces lie in the program's buffers.
        unsafe { kernel::receive_now(fd, &mut message, if peek { libc::MSG_PEEK } else { 0 }) }
    }

    fn receive_step(&self, stream: &Stream, mut parts: Parts<'_>, peek: bool) -> Result<Step, Stop> {
        let (mut took, mut total) = (false, 0);
        let mut step = |receiver: &mut Receiver| {
            let mut is_shown = false;
            loop {
                if let Receive::Ring { path, at, available } = receiver.next()
                    && available > 0
                {
                    let most = if peek { usize::MAX } else { PIECE };
                    let count = parts.len().min(available as usize).min(most);
                    parts.copy(count, |into, len, done| {
                        // SAFETY: the program's buffer has these bytes, which it lets the call write, or the guard catches the fault.
                        stream.memory.read(path, at + done, unsafe { core::slice::from_raw_parts_mut(into, len) });
                    })?;
                    if peek {
                        return Ok(Step::Bytes { count, is_all: true });
                    }
                    receiver.read(count as u32);
                    stream.memory.publish_head(receiver.position());
                    total += count;
                    parts.skip(count);
                    if parts.len() == 0 {
                        return Ok(Step::Bytes { count: total, is_all: true });
                    }
                }
                let took_now = advance(stream, receiver)?;
                took |= took_now;
                match receiver.next() {
                    Receive::Ring { available, .. } if available > 0 => {}
                    next if total > 0 => {
                        return Ok(Step::Bytes { count: total, is_all: matches!(next, Receive::Ring { .. }) });
                    }
                    Receive::Ring { .. } => return Ok(Step::Empty),
                    Receive::Tcp { limit: 0 } => return Ok(Step::Busy),
                    Receive::Tcp { .. } if receiver.reads_without_limit() && !is_shown => {
                        stream.memory.set_reads_tcp(true); // And look at the switches once more.
                        is_shown = true;
                    }
                    Receive::Tcp { limit } => {
                        receiver.begin_tcp();
                        return Ok(Step::Tcp(limit));
                    }
                }
            }
        };
        let step = self.shared().with_receiver(|receiver| {
            let step = step(receiver);
            end_of_tcp_reads(stream, receiver);
            step
        });
        if took || total > 0 {
            stream.notify(Interest::Room);
        }
        step
    }

    /// Returns true if the program can read bytes from the ring.
    #[inline]
    pub(crate) fn has_data(&self, stream: &Stream) -> bool {
        self.shared().has_data(|| stream.memory.peer_progress()).unwrap_or_else(|| self.looks_for_data(stream))
    }

    fn looks_for_data(&self, stream: &Stream) -> bool {
        let (took, has) = self.shared().with_receiver(|receiver| {
            if receiver.available() > 0 {
                return (false, true);
            }
            match advance(stream, receiver) {
                Ok(took) => (took, receiver.available() > 0),
                Err(_) => (false, true), // The next read reports it.
            }
        });
        if took {
            stream.notify(Interest::Room);
        }
        has
    }

    /// Returns the number of bytes in the rings that the program has not read, also those behind bytes of TCP. The kernel counts the others.
    pub(crate) fn data_len(&self, stream: &Stream) -> u32 {
        let (took, len) = self.shared().with_receiver(|receiver| {
            let took = advance(stream, receiver).unwrap_or(false); // The next read reports a violation.
            (took, receiver.unread(stream.memory.peer_tail()))
        });
        if took {
            stream.notify(Interest::Room);
        }
        len
    }

    /// True if the next bytes to read are in a ring.
    pub(crate) fn reads_ring(&self) -> bool {
        self.shared().reads_ring()
    }

    /// True if the next bytes to write go into a ring.
    pub(crate) fn writes_ring(&self) -> bool {
        self.shared().writes_ring()
    }

    /// True if the next bytes to write go into a ring, and it was full when this end last looked.
    pub(crate) fn is_full(&self) -> bool {
        self.stream().is_some() && self.writes_ring() && !self.shared().has_room()
    }

    /// A number that changes when bytes arrive in the ring.
    pub(crate) fn data_mark(&self, stream: &Stream) -> u32 {
        stream.memory.peer_tail()
    }

    /// Sends what fits. `EAGAIN` if nothing does. `flags` are those of `sendmsg`.
    pub(crate) fn try_send(&self, fd: c_int, stream: &Stream, parts: Parts<'_>, flags: c_int) -> Result<Sent, c_int> {
        let (fd, mut is_marked) = (self.kernel_fd(fd), false);
        if stream.memory.peer_state() & StreamState::CLOSED != 0 || self.is_time_to_ask() {
            self.look_for_end(fd, stream);
        }
        loop {
            if self.take_reset(fd) {
                return Err(libc::ECONNRESET);
            }
            if self.has_flag(flags::SHUT_WRITE) || self.has_flag(flags::BROKEN) {
                return send_to_kernel(fd, parts, flags);
            }
            match self.send_step(stream, parts) {
                Ok(SendStep::Bytes(count)) => {
                    self.heed(fd, stream); // The peer may have left while these bytes were written.
                    return Ok(Sent { count, is_over: false });
                }
                Ok(SendStep::Tcp { has_unread }) => {
                    let mut call = TcpSend { state: self.shared(), sent: 0 };
                    let result = self.send_by_kernel(fd, stream, parts, flags, has_unread);
                    call.sent = result.as_ref().map_or(0, |sent| sent.count as u64);
                    return result;
                }
                Ok(SendStep::Full) => {
                    if self.look_for_end(fd, stream) {
                        continue;
                    }
                    if core::mem::replace(&mut is_marked, true) {
                        return Err(libc::EAGAIN);
                    } else {
                        // Room that came before this mark is no edge for a thread that waits, so this one tries again.
                        self.was_full.store(true, Ordering::SeqCst);
                        self.with_links(|links| links.iter().for_each(|(set, at)| set.wish_room(*at, stream)));
                    }
                }
                Err(Stop::Fault) => return Err(libc::EFAULT),
                Err(Stop::Violation) => {
                    self.broke(fd, stream);
                    return Err(libc::ECONNRESET);
                }
            }
        }
    }

    /// Sends on TCP. While the peer has bytes of a ring to read (`has_unread`), its death is a reset, but the kernel has a FIN, and its error
    /// is `EPIPE`, with a signal. One call reports a reset, also if the kernel and the ring show it to two.
    fn send_by_kernel(
        &self,
        fd: c_int,
        stream: &Stream,
        parts: Parts<'_>,
        flags: c_int,
        has_unread: bool,
    ) -> Result<Sent, c_int> {
        if has_unread {
            self.look_for_end(fd, stream);
            if self.take_reset(fd) {
                return Err(libc::ECONNRESET);
            }
        }
        let is_untold = self.has_flag(flags::WAS_RESET) && !self.has_flag(flags::RESET_TOLD);
        let may_be_reset = is_untold || has_unread && !self.has_flag(flags::FIN);
        let silent = if may_be_reset { libc::MSG_NOSIGNAL } else { 0 };
        match send_to_kernel(fd, parts, flags | silent) {
            Err(libc::EPIPE) if may_be_reset => {
                // Or the program has ended its sending in another thread.
                if kernel::has_fin(fd) {
                    self.note_end(stream);
                }
                if self.has_flag(flags::WAS_RESET) && self.tells_reset() {
                    Err(libc::ECONNRESET)
                } else {
                    send_to_kernel(fd, parts, flags)
                }
            }
            Err(libc::ECONNRESET) => {
                self.note_end(stream);
                if self.tells_reset() { Err(libc::ECONNRESET) } else { send_to_kernel(fd, parts, flags) }
            }
            result => result,
        }
    }

    fn send_step(&self, stream: &Stream, parts: Parts<'_>) -> Result<SendStep, Stop> {
        let (mut switched, mut wrote) = (false, false);
        let step = self.shared().with_sender(|sender| {
            loop {
                switched |= self.consider(stream, sender)?;
                let path = sender.path();
                if path == StreamPath::Tcp {
                    sender.begin_tcp();
                    return Ok(SendStep::Tcp { has_unread: sender.unread() > 0 });
                }
                let wanted = parts.len();
                if (sender.room() as usize) < wanted {
                    sender.saw_head(stream.memory.peer_head())?;
                }
                let count = wanted.min(sender.room() as usize).min(PIECE);
                if count == 0 {
                    sender.was_full(stream.memory.peer_head(), kernel::now_ms());
                    if self.consider(stream, sender)? {
                        switched = true;
                        continue; // The ring is a larger one now.
                    }
                    return Ok(SendStep::Full);
                }
                let at = sender.position();
                parts.copy(count, |from, len, done| {
                    // SAFETY: the program's buffer has these bytes, and it keeps them unchanged during the call, or the guard catches the fault.
                    stream.memory.write(path, at + done, unsafe { core::slice::from_raw_parts(from, len) });
                })?;
                sender.wrote(count as u32);
                stream.memory.publish_tail(sender.position());
                wrote = true;
                return Ok(SendStep::Bytes(count));
            }
        });
        if wrote || switched {
            stream.notify(Interest::Data);
        }
        if switched {
            self.path_changed();
        }
        step
    }

    /// Returns true if a write would not block for want of room in the ring. It announces no switch, because the next write does.
    pub(crate) fn has_room(&self, stream: &Stream) -> bool {
        if self.shared().has_room() {
            return true;
        }
        self.shared().with_sender(|sender| {
            let view = view(stream);
            note_receiver(stream, sender);
            if sender.path() != StreamPath::Tcp && sender.room() == 0 {
                sender.was_full(stream.memory.peer_head(), kernel::now_ms());
            }
            sender.can_send(view, || stream.memory.peer_reads_tcp())
        })
    }

    /// Interprets the end of the peer's bytes. `told` is the result of the kernel's call.
    fn peer_ended(&self, fd: c_int, stream: &Stream, told: Result<usize, c_int>) -> Result<usize, c_int> {
        if told == Ok(0) && (self.has_flag(flags::SHUT_READ) || !kernel::has_fin(fd)) {
            return told; // Another thread may end the receiving at this moment.
        }
        if told == Err(libc::ECONNRESET) {
            self.set_flag(flags::RESET_TOLD);
        }
        match self.note_end(stream) {
            AtFin::Reset => {
                if told == Ok(0) {
                    provoke_reset(fd);
                    kernel::socket_option::<c_int>(fd, libc::SOL_SOCKET, libc::SO_ERROR);
                }
                self.set_flag(flags::RESET_TOLD); // This call reports it.
                Err(libc::ECONNRESET)
            }
            AtFin::HalfClosed | AtFin::Closed => told,
        }
    }

    /// Handles an event of the kernel's connection that may be its end. A peer that died with bytes unread in the ring has sent a FIN, where
    /// TCP would have reset the connection.
    pub(crate) fn saw_event(&self, fd: c_int, stream: &Stream) {
        self.note_event();
        self.look_for_end(fd, stream);
    }

    /// Looks whether the peer has ended, and handles that. Returns true if it has, for the first time.
    pub(crate) fn look_for_end(&self, fd: c_int, stream: &Stream) -> bool {
        if self.has_flag(flags::FIN) {
            return false;
        }
        let fd = self.kernel_fd(fd); // A set may know the socket by a descriptor that is closed.
        let events = kernel::events_now(fd, libc::POLLRDHUP);
        // The program's own end of receiving raises the events, too, also in another thread at this moment.
        let is_gone = events & GONE != 0 && kernel::has_fin(fd);
        if is_gone {
            self.peer_gone(fd, stream, events);
        }
        is_gone
    }

    /// Returns true if `POLLRDHUP` would tell of the peer's FIN. The program's own end of receiving raises it, too.
    pub(crate) fn tells_of_fin(&self) -> bool {
        !self.has_flag(flags::FIN) && !self.has_flag(flags::SHUT_READ)
    }

    /// Handles the end of the peer, of which the kernel has told by `events`.
    fn peer_gone(&self, fd: c_int, stream: &Stream, events: i16) {
        let is_reset = events & (libc::POLLHUP | libc::POLLERR) != 0;
        if self.note_end(stream) == AtFin::Reset && !is_reset {
            self.set_flag(flags::RESET_DUE);
            provoke_reset(fd);
        }
    }

    /// Takes the error of the connection, as a call takes it that asks for errors before it moves bytes.
    pub(crate) fn take_error(&self, fd: c_int, stream: &Stream) -> Result<(), c_int> {
        let fd = self.kernel_fd(fd);
        self.look_for_end(fd, stream);
        if self.take_reset(fd) {
            return Err(libc::ECONNRESET);
        }
        match kernel::socket_option::<c_int>(fd, libc::SOL_SOCKET, libc::SO_ERROR) {
            None | Some(0) => Ok(()),
            // The kernel had the FIN before the reset, and calls that a broken pipe.
            Some(libc::EPIPE) if self.has_flag(flags::WAS_RESET) => Err(libc::ECONNRESET),
            Some(error) => Err(error),
        }
    }

    /// Takes a reset that is due, with the kernel's error of the same cause. Returns true if one was due.
    pub(crate) fn take_reset(&self, fd: c_int) -> bool {
        let is_due = self.take_flag(flags::RESET_DUE);
        if is_due {
            kernel::socket_option::<c_int>(fd, libc::SOL_SOCKET, libc::SO_ERROR);
        }
        is_due && self.tells_reset()
    }

    /// Returns true if the calling call is the one that reports the reset of the connection.
    fn tells_reset(&self) -> bool {
        !self.set_flag(flags::RESET_TOLD)
    }

    /// Takes the bytes of this end back to TCP, because the peer's FIN or reset has arrived. Only the first call returns a reset.
    fn note_end(&self, stream: &Stream) -> AtFin {
        if self.shared().flags.fetch_or(flags::FIN, Ordering::Relaxed) & flags::FIN != 0 {
            return AtFin::HalfClosed;
        }
        let half_closed = stream.memory.peer_state() & StreamState::HALF_CLOSED != 0;
        let end = self.shared().with_sender(|sender| {
            sender.keep_on_tcp(true);
            note_receiver(stream, sender);
            let end = at_fin(half_closed, sender.unread());
            if end != AtFin::HalfClosed {
                sender.abandon();
            }
            end
        });
        if end == AtFin::Reset {
            self.set_flag(flags::WAS_RESET);
        }
        self.path_changed();
        end
    }

    /// Tells the epoll sets that writes take another path.
    pub(crate) fn path_changed(&self) {
        self.with_links(|links| links.iter().for_each(|(set, at)| set.sync_kernel(*at)));
    }
}

/// Notes what the sender has published, and takes a switch that is due. Returns true if one was taken.
pub(crate) fn advance(stream: &Stream, receiver: &mut Receiver) -> Result<bool, Violation> {
    let seen = stream.memory.peer_progress();
    receiver.refresh(seen.tail, seen.switches, |count| stream.memory.peer_switch(count))?;
    let Some(count) = receiver.take() else { return Ok(false) };
    stream.memory.publish_head(receiver.position());
    stream.memory.take(count);
    // The ring of the new path may have bytes.
    let seen = stream.memory.peer_progress();
    receiver.refresh(seen.tail, seen.switches, |count| stream.memory.peer_switch(count))?;
    Ok(true)
}

/// Returns true if everything before a switch was read, and no call reads TCP any more.
fn is_switch_due(stream: &Stream, receiver: &Receiver) -> bool {
    let taken = receiver.taken();
    !receiver.is_in_tcp()
        && receiver.path() == StreamPath::Tcp
        && stream.memory.peer_switches() != taken
        && stream.memory.peer_switch(taken.wrapping_add(1)).0 == receiver.position() as u32
}

/// Tells the sender when no call reads TCP any more.
fn end_of_tcp_reads(stream: &Stream, receiver: &Receiver) {
    if !receiver.is_in_tcp() && stream.memory.reads_tcp() {
        stream.memory.set_reads_tcp(false);
    }
}

/// Sends a byte to a peer that is gone, so that the kernel resets the connection.
fn provoke_reset(fd: c_int) {
    let _ = kernel::send_now(fd, &[0]);
}

/// Fetches the receiver's words that matter for a switch.
pub(crate) fn view(stream: &Stream) -> SenderView {
    let state = stream.memory.peer_state();
    SenderView {
        attached: state & StreamState::ATTACHED != 0,
        taken: stream.memory.peer_taken(),
        tcp_please: state & StreamState::TCP_PLEASE != 0,
    }
}

/// Notes what the receiver has taken and read. A violation is found by the next call.
fn note_receiver(stream: &Stream, sender: &mut Sender) {
    let taken = stream.memory.peer_taken();
    if sender.saw_taken(taken).is_ok() {
        let _ = sender.saw_head(stream.memory.peer_head());
    }
}

impl Connection {
    /// Lets the engine decide about a switch, and announces it. Returns true if there was one.
    pub(crate) fn consider(&self, stream: &Stream, sender: &mut Sender) -> Result<bool, Violation> {
        if !self.has_flag(flags::FIN) && !self.has_flag(flags::SENDS_TCP) && !self.has_left.load(Ordering::Relaxed) {
            test_switch::apply(sender);
        }
        let Some(switch) = sender.consider(view(stream), || stream.memory.peer_reads_tcp())? else { return Ok(false) };
        if switch.path != StreamPath::Tcp {
            stream.memory.publish_tail(switch.at);
        }
        stream.memory.announce(switch.count, switch.at, switch.path, switch.tcp_bytes);
        Ok(true)
    }
}

/// A call that sends on TCP, which ends when it is dropped. A thread that is cancelled drops it, too.
struct TcpSend {
    state: &'static SharedState,
    sent: u64,
}

impl Drop for TcpSend {
    fn drop(&mut self) {
        self.state.with_sender(|sender| sender.end_tcp(self.sent));
    }
}

fn send_to_kernel(fd: c_int, parts: Parts<'_>, flags: c_int) -> Result<Sent, c_int> {
    let mut pieces = [iovec { iov_base: core::ptr::null_mut::<c_void>(), iov_len: 0 }; 64];
    // SAFETY: a message of zeroes is an empty one.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iovlen = parts.to_kernel(usize::MAX, &mut pieces) as _;
    message.msg_iov = pieces.as_mut_ptr();
    let count = if flags & libc::MSG_DONTWAIT != 0 {
        // SAFETY: the pieces lie in the program's buffers.
        unsafe { kernel::send_message_now(fd, &message, flags) }
    } else {
        // SAFETY: as above. This may block, so it is a cancellation point.
        usize::try_from(unsafe { real::sendmsg(fd, &raw const message, flags) }).map_err(|_| errno::get())
    }?;
    let given: usize = pieces.iter().map(|piece| piece.iov_len).sum();
    Ok(Sent { count, is_over: count < given })
}
