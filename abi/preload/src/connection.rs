//! A TCP socket that the library tracks, from `socket` or `accept` to its last `close`.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use isthmus_client::sockets::SynTime;
use isthmus_layout::sockets::{Interest, StreamState};
use isthmus_shm::SharedMapping;
use isthmus_shm::stream::StreamMemory;
use isthmus_sockets::Upgrade;

use crate::epoll_set::EpollSet;
use crate::plain::{PlainCall, PlainCounts};
use crate::private_lock::PrivateLock;
use crate::session::{self, Peer};
use crate::shared_cell::{Cells, SharedCell};
use crate::shared_state::SharedState;
use crate::table::{InUse, Recount, Tracked};
use crate::waiter::LocalBoard;
use crate::{kernel, not_here, real};

/// Bits of [`SharedState::flags`], and of [`Connection::plain_flags`] before.
pub(crate) mod flags {
    /// The kernel has reported the peer's FIN, and it was interpreted.
    pub(crate) const FIN: u32 = 1;
    /// The program has ended its sending.
    pub(crate) const SHUT_WRITE: u32 = 2;
    /// The program has ended its receiving.
    pub(crate) const SHUT_READ: u32 = 4;
    /// The next call reports a reset.
    pub(crate) const RESET_DUE: u32 = 8;
    /// The peer has violated the protocol.
    pub(crate) const BROKEN: u32 = 16;
    /// The program sends past the library, so this end sends by TCP.
    pub(crate) const SENDS_TCP: u32 = 32;
    /// The peer has ended with bytes unread, so TCP would have reset the connection. The kernel has a FIN before the reset.
    pub(crate) const WAS_RESET: u32 = 64;
    /// A call has reported the reset. The next ones report the end of the connection.
    pub(crate) const RESET_TOLD: u32 = 128;
}

/// How far the upgrade of a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Stage {
    /// TCP only; bytes are counted.
    Plain = 0,
    /// The daemon has seen the socket.
    Shown = 1,
    /// The memory is there, and this end does not watch it yet.
    Paired = 2,
    /// This end watches the memory.
    Attached = 3,
    /// TCP until the end.
    Off = 4,
    /// A listening socket.
    Listener = 5,
    /// No connection yet, or one that no stream can serve.
    Unconnected = 6,
}

impl Stage {
    fn from_number(number: u32) -> Self {
        match number {
            0 => Self::Plain,
            1 => Self::Shown,
            2 => Self::Paired,
            3 => Self::Attached,
            5 => Self::Listener,
            6 => Self::Unconnected,
            _ => Self::Off,
        }
    }

    /// True if the library counts or carries the bytes.
    pub(crate) fn is_followed(self) -> bool {
        matches!(self, Self::Plain | Self::Shown | Self::Paired | Self::Attached)
    }
}

/// The memory of a stream, and the other end's process.
pub(crate) struct Stream {
    pub(crate) number: u64,
    pub(crate) memory: StreamMemory<SharedMapping>,
    pub(crate) peer: Arc<Peer>,
    /// The board of this process by which the peer reaches this end.
    pub(crate) board: Arc<LocalBoard>,
}

impl Stream {
    /// Shows that this end, which has not attached, never reads or writes a ring.
    pub(crate) fn stays_unused(&self) {
        self.memory.add_state(StreamState::LEFT);
        self.notify_all();
    }

    /// Notifies the peer if it waits for anything.
    pub(crate) fn notify_all(&self) {
        Interest::ALL.into_iter().for_each(|what| self.notify(what));
    }

    /// Notifies the peer if it waits for `what`.
    #[inline]
    pub(crate) fn notify(&self, what: Interest) {
        if let Some(want) = self.memory.peer_wants(what)
            && self.peer.board.notify(want)
        {
            self.peer.ring(want.waiter());
        }
    }
}

/// Where the bytes of a call go.
pub(crate) enum Path<'a> {
    /// To and from TCP, which is counted.
    Plain(PlainCall<'a>),
    /// To and from TCP, until the end.
    Kernel,
    /// As the engine says.
    Stream(&'a Stream),
}

/// An entry of an epoll set.
pub(crate) type SetEntry = (InUse<EpollSet>, u32);

/// The lock of the entries of all connections. It is taken before that of a set.
pub(crate) static LINKS: PrivateLock<()> = PrivateLock::new(());

/// The entries of epoll sets that have a connection. [`LINKS`] guards them.
#[derive(Default)]
struct Links {
    count: AtomicU32,
    entries: UnsafeCell<Vec<SetEntry>>,
}

/// The number of other processes that have a plain connection. [`LINKS`] guards it.
#[derive(Default)]
struct Others {
    is_known: AtomicBool,
    count: UnsafeCell<Option<SharedCell>>,
}

/// A TCP socket.
#[derive(Default)]
pub(crate) struct Connection {
    stage: AtomicU32,
    /// The bytes that TCP has carried, before this end attaches.
    pub(crate) plain: PlainCounts,
    plain_flags: AtomicU32,
    /// The state of an attached end.
    shared: AtomicPtr<SharedState>,
    /// Written before the stage becomes `Paired`, and cleared when the last user has gone.
    stream: UnsafeCell<Option<Stream>>,
    /// A word of [`Upgrade`].
    upgrade: AtomicU64,
    /// Descriptors of this process.
    fds: AtomicU32,
    /// A descriptor of the library's, plus 1, for calls under way on a descriptor that the program has closed. 0: none.
    kept_fd: AtomicI32,
    /// The token at the daemon. 0: none.
    pub(crate) token: AtomicU32,
    /// The daemon may have a copy of the socket.
    pub(crate) is_copied: AtomicBool,
    /// Another process may have the socket, which this one must not shut down when it closes it.
    pub(crate) is_passed: AtomicBool,
    connector: AtomicBool,
    syn_since: AtomicU64,
    syn_until: AtomicU64,
    /// The mark of the address that it connects to.
    pub(crate) to: AtomicU64,
    /// Calls do not block. Known once this end is attached.
    pub(crate) nonblocking: AtomicBool,
    /// The program waits for this socket by calls of the library.
    pub(crate) is_awaited: AtomicBool,
    /// Events of the TCP connection that the kernel has reported.
    pub(crate) kernel_events: AtomicU32,
    /// The number of those events when the kernel was last asked, and the connection had not ended.
    pub(crate) asked_events: AtomicU32,
    /// Reads that found nothing since the kernel was asked.
    pub(crate) empty_reads: AtomicU32,
    /// The time at which a write, or a read that does not block, has asked it, in ticks of [`kernel::ticks`].
    pub(crate) asked_at: AtomicU32,
    /// A write found the ring full.
    pub(crate) was_full: AtomicBool,
    /// The program has set `TCP_INQ`. Known once this end is attached.
    pub(crate) says_what_is_left: AtomicBool,
    /// A thread waits for data; for room.
    waits_for_data: AtomicBool,
    waits_for_room: AtomicBool,
    links: Links,
    /// Both directions go back to TCP and stay there.
    pub(crate) has_left: AtomicBool,
    /// The process that has tracked the connection since it was plain.
    owner: AtomicI32,
    /// Processes besides this one that had the plain connection at a fork and have not closed it.
    others: Others,
}

// SAFETY: `stream` is written by the one thread that moves the stage from `Shown` to `Paired`, before it does so, and cleared when no user is
// left. Its parts may be used from any thread. The links are used under their lock.
unsafe impl Sync for Connection {}
// SAFETY: as above.
unsafe impl Send for Connection {}

impl Connection {
    /// Starts tracking a socket that is new.
    pub(crate) fn start(&self, stage: Stage) {
        self.plain.reset();
        for word in
            [&self.plain_flags, &self.token, &self.empty_reads, &self.asked_at, &self.kernel_events, &self.asked_events]
        {
            word.store(0, Ordering::Relaxed);
        }
        for flag in [
            &self.is_copied,
            &self.is_passed,
            &self.connector,
            &self.is_awaited,
            &self.was_full,
            &self.says_what_is_left,
            &self.waits_for_data,
            &self.waits_for_room,
            &self.has_left,
        ] {
            flag.store(false, Ordering::Relaxed);
        }
        self.upgrade.store(0, Ordering::Relaxed);
        self.syn_until.store(0, Ordering::Relaxed);
        self.owner.store(std::process::id() as i32, Ordering::Relaxed);
        self.fds.store(1, Ordering::Relaxed);
        self.set_stage(stage);
    }

    /// Begins to count what a connection carries, to an address where a program may listen. The SYN is sent no earlier than `since_ms`.
    pub(crate) fn start_connecting(&self, since_ms: u64, to: SocketAddr) {
        self.to.store(not_here::mark(to), Ordering::Relaxed);
        self.connector.store(true, Ordering::Relaxed);
        self.syn_since.store(since_ms, Ordering::Relaxed);
        self.set_stage(Stage::Plain);
    }

    /// Notes that the kernel has reported an event. The next read that finds nothing asks what it is.
    pub(crate) fn note_event(&self) {
        self.kernel_events.fetch_add(1, Ordering::SeqCst);
    }

    /// The mark that a thread uses the wish for data, or for room.
    pub(crate) fn wish_in_use(&self, what: Interest) -> &AtomicBool {
        match what {
            Interest::Data => &self.waits_for_data,
            Interest::Room => &self.waits_for_room,
        }
    }

    pub(crate) fn stage(&self) -> Stage {
        Stage::from_number(self.stage.load(Ordering::Acquire))
    }

    pub(crate) fn set_stage(&self, stage: Stage) {
        self.stage.store(stage as u32, Ordering::Release);
    }

    /// Moves from one stage to another. Returns false if the connection is in a different one.
    pub(crate) fn move_stage(&self, from: Stage, to: Stage) -> bool {
        self.stage.compare_exchange(from as u32, to as u32, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The state that processes share. Only attached ends have one.
    #[inline]
    pub(crate) fn shared(&self) -> &'static SharedState {
        // SAFETY: a user of an attached end comes here. `attach` has stored a state, which is mapped until the last user has gone.
        unsafe { &*self.shared.load(Ordering::Acquire) }
    }

    /// Begins to use the stream. `sent` and `received` bytes went by TCP. Returns false without memory.
    pub(crate) fn set_shared(&self, sent: u64, received: u64) -> bool {
        let Some(state) = SharedState::map(sent, received, self.plain_flags.load(Ordering::Relaxed)) else {
            return false;
        };
        self.shared.store(core::ptr::from_ref(state).cast_mut(), Ordering::Release);
        true
    }

    /// Unmaps the shared state, if there is one. This end is not attached, or no user is left.
    pub(crate) fn clear_shared(&self) {
        let shared = self.shared.swap(core::ptr::null_mut(), Ordering::AcqRel);
        if !shared.is_null() {
            // SAFETY: only users of an attached end have references to the state.
            unsafe { SharedState::unmap(shared) };
        }
    }

    /// The stream, if this end watches it.
    #[inline]
    pub(crate) fn stream(&self) -> Option<&Stream> {
        if self.stage.load(Ordering::Acquire) == Stage::Attached as u32 { self.paired() } else { None }
    }

    /// Where a call's bytes go. A call on TCP keeps this end from attaching until it is over.
    #[inline]
    pub(crate) fn path(&self) -> Path<'_> {
        loop {
            if let Some(stream) = self.stream() {
                return Path::Stream(stream);
            }
            if let Some(call) = self.plain.begin() {
                return Path::Plain(call);
            }
            if !self.stage().is_followed() {
                return Path::Kernel;
            }
            std::thread::yield_now(); // Another thread attaches, which does not wait.
        }
    }

    /// The stream, if its memory is there.
    pub(crate) fn paired(&self) -> Option<&Stream> {
        if !matches!(self.stage(), Stage::Paired | Stage::Attached) {
            return None;
        }
        // SAFETY: the stage says that the value was written, and it is cleared only when no user is left. The caller is a user.
        unsafe { (*self.stream.get()).as_ref() }
    }

    /// Stores the stream of a shown connection.
    pub(crate) fn pair(&self, stream: Stream) {
        // SAFETY: the daemon answers a token once, so one thread comes here; no thread reads the value before the stage is `Paired`.
        unsafe { *self.stream.get() = Some(stream) };
        self.move_stage(Stage::Shown, Stage::Paired); // If the connection has left meanwhile, `retire` ends the stream.
    }

    /// True if this process began to track the connection, and not its parent.
    pub(crate) fn is_owned_by(&self, process: i32) -> bool {
        self.owner.load(Ordering::Relaxed) == process
    }

    /// True if this end sent the SYN.
    pub(crate) fn is_connector(&self) -> bool {
        self.connector.load(Ordering::Relaxed)
    }

    /// Notes that the connection exists, so the SYN was sent before now.
    pub(crate) fn connected(&self) {
        if self.is_connector() && self.syn_until.load(Ordering::Relaxed) == 0 {
            self.syn_until.store(kernel::now_ms(), Ordering::Relaxed);
        }
    }

    /// The time of the SYN, if this end sent it.
    pub(crate) fn syn(&self) -> Option<SynTime> {
        self.is_connector().then(|| SynTime {
            since_ms: self.syn_since.load(Ordering::Relaxed),
            until_ms: self.syn_until.load(Ordering::Relaxed),
        })
    }

    /// Counts bytes on plain TCP for the upgrade, and shows the socket to the daemon once the connection is worth a stream.
    pub(crate) fn count(this: &InUse<Self>, fd: c_int, sent: bool, bytes: u64) {
        this.connected();
        if this.stage() != Stage::Plain || this.fds.load(Ordering::Relaxed) == 0 {
            return; // Without a descriptor of the program, the number may be another file.
        }
        // Two threads at once may lose a count, which only delays the upgrade.
        let mut upgrade = Upgrade::from_word(this.upgrade.load(Ordering::Relaxed));
        let after = session::after_bytes();
        let worth = if sent { upgrade.sent(bytes, after) } else { upgrade.received(bytes, after) };
        this.upgrade.store(upgrade.word(), Ordering::Relaxed);
        if worth && this.is_sole() && this.move_stage(Stage::Plain, Stage::Shown) {
            session::show(this, fd);
        }
    }

    /// Returns true if no other process has the connection since a fork, as far as the processes say.
    pub(crate) fn is_sole(&self) -> bool {
        !self.others.is_known.load(Ordering::Acquire)
            || self.with_others(|others| others.as_ref().is_none_or(|others| others.load(Ordering::Acquire) == 0))
    }

    fn with_others<R>(&self, f: impl FnOnce(&mut Option<SharedCell>) -> R) -> R {
        LINKS.with(|()| {
            // SAFETY: under the lock.
            let others = unsafe { &mut *self.others.count.get() };
            let result = f(others);
            self.others.is_known.store(others.is_some(), Ordering::Release);
            result
        })
    }

    /// Notes that a child is about to have the plain connection, too.
    pub(crate) fn shares_plain(&self, cells: &mut Cells) {
        let is_noted = self.with_others(|others| {
            if others.is_none() {
                *others = cells.cell();
            }
            others.as_ref().map(|others| others.fetch_add(1, Ordering::AcqRel)).is_some()
        });
        if !is_noted {
            self.move_stage(Stage::Plain, Stage::Off); // Without memory.
        }
    }

    /// Notes that this process has closed the plain connection.
    fn leave_others(&self) {
        if self.others.is_known.load(Ordering::Acquire)
            && let Some(others) = self.with_others(Option::take)
        {
            others.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn flags(&self) -> &AtomicU32 {
        if self.stage.load(Ordering::Acquire) == Stage::Attached as u32 {
            &self.shared().flags
        } else {
            &self.plain_flags
        }
    }

    pub(crate) fn has_flag(&self, flag: u32) -> bool {
        self.flags().load(Ordering::Relaxed) & flag != 0
    }

    /// Sets a flag. Returns true if it was set already.
    pub(crate) fn set_flag(&self, flag: u32) -> bool {
        self.flags().fetch_or(flag, Ordering::Relaxed) & flag != 0
    }

    /// Clears a flag. Returns true if it was set.
    pub(crate) fn take_flag(&self, flag: u32) -> bool {
        let flags = self.flags();
        flags.load(Ordering::Relaxed) & flag != 0 && flags.fetch_and(!flag, Ordering::Relaxed) & flag != 0
    }

    /// The descriptor by which the library calls the kernel. `given` is the program's, which it may have closed meanwhile.
    #[inline]
    pub(crate) fn kernel_fd(&self, given: c_int) -> c_int {
        match self.kept_fd.load(Ordering::Acquire) {
            0 => given,
            kept => kept - 1,
        }
    }

    /// Counts another descriptor of this process.
    pub(crate) fn add_fd(&self) {
        self.fds.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a descriptor is about to be closed. `is_stale`: it was closed past the library, and the number may be another file.
    pub(crate) fn closing(this: InUse<Self>, fd: c_int, is_stale: bool) {
        let is_last = this.fds.fetch_sub(1, Ordering::AcqRel) == 1;
        let is_passed = this.is_passed.load(Ordering::Relaxed) || !this.is_sole();
        let may_end = is_last && !is_stale && !is_passed && this.is_copied();
        for (set, at) in this.take_links(fd, is_last) {
            if may_end {
                set.remove_from_kernel(at); // The kernel would report events as long as the daemon has a copy.
            }
            drop(set.forget(at));
        }
        if is_last {
            this.leave_others();
            if this.stream().is_some() && this.is_owned_by(std::process::id() as i32) {
                this.shared().is_handed_over.store(true, Ordering::Relaxed);
            }
            match this.stage() {
                Stage::Shown => session::withdraw(this.token.load(Ordering::Relaxed)),
                Stage::Listener => session::unlisten(this.token.load(Ordering::Relaxed)),
                _ => {}
            }
        }
        if is_stale {
            return;
        }
        if !this.is_last() && this.stream().is_some() && this.kept_fd.load(Ordering::Relaxed) == 0 {
            this.kept_fd.store(kernel::kept_copy(fd) + 1, Ordering::Release);
        } else if is_last && this.is_last() {
            this.last_close(fd);
        }
        // A thread that is in a call keeps the connection, as in the kernel. The daemon closes its copy before that call is over, or soon.
        if may_end && this.is_last() {
            end_copied(fd);
        }
    }

    /// Returns true if the daemon may have a copy of the socket.
    fn is_copied(&self) -> bool {
        self.is_copied.load(Ordering::Acquire) && {
            session::pump();
            self.is_copied.load(Ordering::Acquire)
        }
    }

    /// Resets the connection if bytes of the ring were not read, as TCP does. A process that shares the socket may still read them.
    fn last_close(&self, fd: c_int) {
        let Some(stream) = self.stream() else { return };
        self.heed(fd, stream);
        let is_sole = !self.shared().has_forked.load(Ordering::Relaxed) && !self.has_left.load(Ordering::Relaxed);
        if is_sole && self.has_data(stream) && !self.has_flag(flags::SHUT_READ) {
            let reset = libc::linger { l_onoff: 1, l_linger: 0 };
            kernel::set_socket_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, reset);
        }
        if is_sole {
            stream.memory.add_state(StreamState::CLOSED); // A peer that only sends asks the kernel from now on.
        }
    }

    /// Notes that a child is about to have the stream, too.
    pub(crate) fn forks(&self) {
        let Some(stream) = self.stream() else { return };
        self.shared().has_forked.store(true, Ordering::Relaxed);
        stream.memory.add_state(StreamState::FORKED);
        stream.notify_all(); // A peer that sleeps already learns the state, while this process can still ring.
        for (set, _) in self.links() {
            set.sleep_shortly();
        }
    }

    /// Returns true if several processes have this end, or the other one.
    pub(crate) fn has_forked(&self, stream: &Stream) -> bool {
        stream.memory.peer_state() & StreamState::FORKED != 0 || self.shared().has_forked.load(Ordering::Relaxed)
    }

    /// Forgets in a child what threads of the parent do with the connection. Counts the sets that it uses.
    pub(crate) fn forget_threads(&self, sets: &mut Recount<EpollSet>) {
        self.plain.forget_calls();
        self.waits_for_data.store(false, Ordering::Relaxed);
        self.waits_for_room.store(false, Ordering::Relaxed);
        self.with_links(|links| links.iter().for_each(|(set, _)| sets.add(set)));
    }

    /// The entries of epoll sets that have the connection.
    pub(crate) fn links(&self) -> Vec<SetEntry> {
        if self.links.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        // SAFETY: under the lock.
        LINKS.with(|()| unsafe { (*self.links.entries.get()).clone() })
    }

    pub(crate) fn with_links<R>(&self, f: impl FnOnce(&mut Vec<SetEntry>) -> R) -> R {
        LINKS.with(|()| {
            // SAFETY: under the lock.
            let entries = unsafe { &mut *self.links.entries.get() };
            let result = f(entries);
            self.links.count.store(entries.len() as u32, Ordering::Release);
            result
        })
    }

    /// Adds an entry. Returns the number of entries.
    pub(crate) fn link(&self, set: &InUse<EpollSet>, at: u32) -> usize {
        self.with_links(|links| {
            links.push((set.clone(), at));
            links.len()
        })
    }

    /// Removes the links to one entry of a set, or to all.
    pub(crate) fn unlink(&self, set: &EpollSet, at: Option<u32>) {
        let is_same = |(linked, linked_at): &SetEntry| {
            core::ptr::eq::<EpollSet>(&**linked, set) && at.is_none_or(|at| at == *linked_at)
        };
        let gone: Vec<SetEntry> = self.with_links(|links| links.extract_if(.., |link| is_same(link)).collect());
        drop(gone); // Outside the lock, because it may be the last use of the set.
    }

    /// Removes the links of entries that go with a descriptor: all with the last one. The kernel keeps the entries of other ones.
    fn take_links(&self, fd: c_int, is_last: bool) -> Vec<SetEntry> {
        if self.links.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        if is_last {
            return self.with_links(core::mem::take);
        }
        for (set, at) in self.links() {
            set.orphan(at, fd);
        }
        Vec::new()
    }

    /// Ends the program's sending, receiving, or both.
    pub(crate) fn shut(&self, fd: c_int, how: c_int) -> c_int {
        if let (Some(stream), true) = (self.stream(), how != libc::SHUT_RD) {
            stream.memory.add_state(StreamState::HALF_CLOSED);
        }
        // SAFETY: a call without pointers.
        let done = unsafe { real::shutdown(fd, how) };
        if done == 0 {
            let (read, write) = (flags::SHUT_READ, flags::SHUT_WRITE);
            self.set_flag(match how {
                libc::SHUT_RD => read,
                libc::SHUT_WR => write,
                _ => read | write,
            });
        }
        done
    }

    /// Ends the stream of a peer that has violated the protocol.
    pub(crate) fn broke(&self, fd: c_int, stream: &Stream) {
        let before = self.shared().flags.fetch_or(flags::BROKEN | flags::RESET_DUE, Ordering::Relaxed);
        if before & flags::BROKEN == 0 {
            // SAFETY: a call without pointers.
            unsafe { real::shutdown(self.kernel_fd(fd), libc::SHUT_RDWR) };
            session::ended(stream, self.token.load(Ordering::Relaxed), true);
        }
    }

    /// Ends the object. No user is left.
    pub(crate) fn retire(&self) {
        let kept = self.kept_fd.swap(0, Ordering::AcqRel);
        if kept > 0 {
            self.last_close(kept - 1);
            kernel::close(kept - 1);
        }
        let is_broken = self.stage() == Stage::Attached && self.has_flag(flags::BROKEN);
        self.set_stage(Stage::Off);
        // SAFETY: no user is left, so no reference into the value.
        if let Some(stream) = unsafe { (*self.stream.get()).take() }
            && !is_broken
        {
            session::ended(&stream, self.token.load(Ordering::Relaxed), false);
        }
        self.clear_shared();
    }
}

/// Ends the connection of a socket of which the daemon has a copy, as `close` would without the copy.
fn end_copied(fd: c_int) {
    let linger: Option<libc::linger> = kernel::socket_option(fd, libc::SOL_SOCKET, libc::SO_LINGER);
    let resets = linger.is_some_and(|linger| linger.l_onoff != 0 && linger.l_linger == 0);
    if resets || kernel::unread(fd).is_some_and(|bytes| bytes > 0) {
        kernel::disconnect(fd);
    } else {
        // SAFETY: a call without pointers.
        unsafe { real::shutdown(fd, libc::SHUT_RDWR) };
    }
}

/// Ends the tracking of a number that the program has closed past the library.
pub(crate) fn forget_stale(fd: c_int) {
    if let Some(tracked) = Connection::table().remove(fd) {
        Connection::closing(tracked, fd, true);
    }
    if let Some(tracked) = EpollSet::table().remove(fd) {
        EpollSet::closing(&tracked, fd, true);
    }
}
