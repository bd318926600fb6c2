//! A TCP connection that the library tracks.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use isthmus_client::sockets::SynTime;
use isthmus_layout::sockets::{Interest, StreamState};
use isthmus_shm::SharedMapping;
use isthmus_shm::stream::StreamMemory;
use isthmus_sockets::Upgrade;

use crate::epoll_set::EpollSet;
use crate::pool::{self, SharedState};
use crate::session::{self, Peer};
use crate::table::InUse;
use crate::waiter::LocalBoard;
use crate::{fork, kernel, real};

/// Bits of [`SharedState::flags`].
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
    /// No connection: a listening socket.
    Listener = 5,
}

impl Stage {
    fn from_number(number: u32) -> Self {
        match number {
            0 => Self::Plain,
            1 => Self::Shown,
            2 => Self::Paired,
            3 => Self::Attached,
            5 => Self::Listener,
            _ => Self::Off,
        }
    }
}

/// The memory of a stream, and the other end's process.
pub(crate) struct Stream {
    pub(crate) number: u64,
    pub(crate) memory: StreamMemory<SharedMapping>,
    pub(crate) peer: Arc<Peer>,
    /// The board of this process. The peer knows its waiters.
    pub(crate) board: Arc<LocalBoard>,
}

impl Stream {
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

/// An entry of an epoll set.
pub(crate) type SetEntry = (InUse<EpollSet>, u32);

/// A connection, or a listening socket.
#[derive(Default)]
pub(crate) struct Connection {
    shared: AtomicPtr<SharedState>,
    stage: AtomicU32,
    /// Written before the stage becomes `Paired`, and cleared when the last user has gone.
    stream: UnsafeCell<Option<Stream>>,
    upgrade: Mutex<Upgrade>,
    /// Descriptors of this process.
    fds: AtomicU32,
    /// The token at the daemon. 0: none.
    pub(crate) token: AtomicU32,
    connector: AtomicBool,
    syn_since: AtomicU64,
    syn_until: AtomicU64,
    /// Calls do not block. Known once this end is attached.
    pub(crate) nonblocking: AtomicBool,
    /// The kernel has reported an event of the TCP connection since it was asked last.
    pub(crate) kernel_event: AtomicBool,
    /// Reads that found nothing since the kernel was asked.
    pub(crate) empty_reads: AtomicU32,
    /// A write found the ring full.
    pub(crate) was_full: AtomicBool,
    /// Threads that wait in the kernel for this connection without a doorbell.
    pub(crate) polling: AtomicU32,
    /// A thread waits for data; for room.
    waits_for_data: AtomicBool,
    waits_for_room: AtomicBool,
    pub(crate) sets: Mutex<Vec<SetEntry>>,
    /// Both directions go back to TCP and stay there.
    pub(crate) has_left: AtomicBool,
    /// The process that made the shared state.
    owner: AtomicI32,
}

// SAFETY: `stream` is written by the one thread that moves the stage from `Shown` to `Paired`, before it does so, and cleared when no user is
// left. Its parts may be used from any thread.
unsafe impl Sync for Connection {}
// SAFETY: as above.
unsafe impl Send for Connection {}

impl Connection {
    /// Starts tracking a connection. `syn`: this end connects, and the SYN is sent no earlier than then. False without memory.
    pub(crate) fn start(&self, syn_since_ms: Option<u64>) -> bool {
        let Some(shared) = pool::allocate() else { return false };
        self.shared.store(core::ptr::from_ref(shared).cast_mut(), Ordering::Release);
        self.connector.store(syn_since_ms.is_some(), Ordering::Relaxed);
        self.syn_since.store(syn_since_ms.unwrap_or(0), Ordering::Relaxed);
        self.syn_until.store(0, Ordering::Relaxed);
        self.owner.store(fork::owner(), Ordering::Relaxed);
        if let Ok(mut upgrade) = self.upgrade.lock() {
            *upgrade = Upgrade::default();
        }
        self.start_as(Stage::Plain);
        true
    }

    /// Starts tracking a listening socket.
    pub(crate) fn start_listener(&self, token: u32) {
        self.token.store(token, Ordering::Relaxed);
        self.start_as(Stage::Listener);
    }

    fn start_as(&self, stage: Stage) {
        self.fds.store(1, Ordering::Relaxed);
        for flag in [&self.kernel_event, &self.was_full, &self.waits_for_data, &self.waits_for_room, &self.has_left] {
            flag.store(false, Ordering::Relaxed);
        }
        self.empty_reads.store(0, Ordering::Relaxed);
        self.set_stage(stage);
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

    /// The state that processes share. Only connections have one.
    #[inline]
    pub(crate) fn shared(&self) -> &'static SharedState {
        // SAFETY: `start` has stored a state, and states stay mapped. Listening sockets do not come here.
        unsafe { &*self.shared.load(Ordering::Acquire) }
    }

    /// The stream, if this end watches it.
    #[inline]
    pub(crate) fn stream(&self) -> Option<&Stream> {
        if self.stage.load(Ordering::Acquire) == Stage::Attached as u32 { self.paired() } else { None }
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
        if self.stage() != Stage::Shown {
            return;
        }
        // SAFETY: the daemon answers a token once, so one thread comes here; no thread reads the value before the stage is `Paired`.
        unsafe { *self.stream.get() = Some(stream) };
        self.set_stage(Stage::Paired);
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

    /// Counts bytes on plain TCP, and shows the socket to the daemon once the connection is worth a stream.
    pub(crate) fn count(this: &InUse<Self>, fd: c_int, sent: bool, bytes: u64) {
        this.connected();
        let Ok(mut upgrade) = this.upgrade.lock() else { return };
        let worth = if sent { upgrade.sent(bytes) } else { upgrade.received(bytes) };
        if worth
            && this
                .stage
                .compare_exchange(Stage::Plain as u32, Stage::Shown as u32, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        {
            drop(upgrade);
            session::show(this, fd);
        }
    }

    pub(crate) fn has_flag(&self, flag: u32) -> bool {
        self.shared().flags.load(Ordering::Relaxed) & flag != 0
    }

    pub(crate) fn set_flag(&self, flag: u32) {
        self.shared().flags.fetch_or(flag, Ordering::Relaxed);
    }

    /// Clears a flag. Returns true if it was set.
    pub(crate) fn take_flag(&self, flag: u32) -> bool {
        self.shared().flags.load(Ordering::Relaxed) & flag != 0
            && self.shared().flags.fetch_and(!flag, Ordering::Relaxed) & flag != 0
    }

    /// Counts another descriptor of this process.
    pub(crate) fn add_fd(&self) {
        self.fds.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a descriptor is about to be closed. With the last one of all processes, the peer learns that this end is gone.
    pub(crate) fn closing(&self, fd: c_int) {
        let links = self.sets.lock().map(|mut links| {
            let (gone, left) = core::mem::take(&mut *links).into_iter().partition(|(set, at)| set.is_of_fd(*at, fd));
            *links = left;
            gone
        });
        for (set, at) in links.unwrap_or_else(|_| Vec::new()) {
            set.forget(at);
        }
        if self.fds.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        match self.stage() {
            Stage::Shown => session::withdraw(self.token.load(Ordering::Relaxed)),
            Stage::Listener => session::unlisten(self.token.load(Ordering::Relaxed)),
            Stage::Attached => self.last_close(fd),
            _ => {}
        }
    }

    fn last_close(&self, fd: c_int) {
        let Some(stream) = self.stream() else { return };
        self.heed(fd, stream);
        if self.shared().processes.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        if self.has_data(stream) && !self.has_flag(flags::SHUT_READ) {
            // As TCP does when bytes were not read.
            let reset = libc::linger { l_onoff: 1, l_linger: 0 };
            kernel::set_socket_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, reset);
        }
        stream.memory.add_state(StreamState::CLOSED);
    }

    /// Notes that a child is about to have the stream, too.
    pub(crate) fn forks(&self) {
        let Some(stream) = self.stream() else { return };
        // A connection with two descriptors counts twice. Then no process counts as its last, and the kernel alone reports its end.
        self.shared().processes.fetch_add(1, Ordering::Relaxed);
        stream.memory.add_state(StreamState::FORKED);
        stream.notify_all(); // A peer that sleeps already learns the state, while this process can still ring.
        for (set, _) in self.links() {
            set.sleep_shortly();
        }
    }

    /// Returns true if several processes have this end, or the other one.
    pub(crate) fn has_forked(&self, stream: &Stream) -> bool {
        stream.memory.peer_state() & StreamState::FORKED != 0 || self.shared().processes.load(Ordering::Relaxed) > 1
    }

    /// The entries of epoll sets that have the connection.
    pub(crate) fn links(&self) -> Vec<SetEntry> {
        self.sets.lock().map(|links| links.clone()).unwrap_or_default()
    }

    /// Ends the program's sending, receiving, or both.
    pub(crate) fn shut(&self, fd: c_int, how: c_int) -> c_int {
        if let (Some(stream), true) = (self.stream(), how != libc::SHUT_RD) {
            stream.memory.add_state(StreamState::HALF_CLOSED);
        }
        // SAFETY: a call without pointers.
        let done = unsafe { real::shutdown(fd, how) };
        if done == 0 && self.stage() != Stage::Listener {
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
            unsafe { real::shutdown(fd, libc::SHUT_RDWR) };
            session::ended(stream.number, true);
        }
    }

    /// Ends the object. No user is left.
    pub(crate) fn retire(&self) {
        // SAFETY: no user is left, so no reference into the value.
        if let Some(stream) = unsafe { (*self.stream.get()).take() }
            && !self.has_flag(flags::BROKEN)
        {
            session::ended(stream.number, false);
        }
        let shared = self.shared.swap(core::ptr::null_mut(), Ordering::AcqRel);
        let is_owner = self.is_owned_by(fork::owner());
        // SAFETY: states stay mapped. The pointer is null for a listening socket.
        if let Some(shared) = unsafe { shared.as_ref() }
            && is_owner
            && shared.processes.load(Ordering::Acquire) <= 1
        {
            pool::release(shared);
        }
        self.token.store(0, Ordering::Relaxed);
        self.set_stage(Stage::Off);
    }
}
