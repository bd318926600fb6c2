//! The connection manager of a process: what librdmacm asks the kernel for, answered here.
//!
//! ```text
//!   librdmacm ─ write ─► preloaded library ─► command ─► isthmus_verbs::cm::Manager ─► actions ─► sockets ──► peer
//!        ▲                                                     ▲                                    │
//!        └─ poll: the channel's socket has a byte              └───────── the thread of this module ◄┘
//! ```
//!
//! A bound identifier is a bound UDP socket of the program: the kernel checks that the address is its own, and keeps the port. A listener has a TCP
//! socket as well, at any port, which it tells those that ask at its own port. A connection is a TCP connection. The kernel ends it
//! with the process, so the peer notices. It carries only the messages of connection management; data takes the way of the queue pair.
//!
//! A channel of events is one end of a pair of sockets. It can be read while the channel has an event. It ends when the program closes it,
//! with all its identifiers, as the kernel does it.

mod commands;
mod device;
mod packet_info;
mod sockets;
mod thread;

pub(crate) use device::found;

use isthmus_verbs::cm::{Action, ChannelNumber, IdNumber, Manager};
use rustix::event::{Timespec, epoll};
use rustix::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::time::{ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};
use sockets::{Pending, Sockets};
use std::collections::{HashMap, VecDeque};
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The most streams to listeners that have not sent a request. A further one takes the place of the oldest.
const PENDING_MAX: usize = 256;

/// The pause of listeners when the process has no descriptor for another stream.
const LISTENERS_PAUSE_NS: u64 = 100_000_000;

/// `/dev/null` and `/dev/full`: librdmacm opens a link to one of them. Without this library, the second refuses its commands.
const PLACES: [(u32, u32); 2] = [(1, 3), (1, 7)];

/// A socket that is never readable, for threads that never return: their channel was closed while they waited.
static NEVER: AtomicI32 = AtomicI32::new(-1);

/// The kinds of descriptors in the epoll set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Timer,
    Channel(ChannelNumber),
    Datagrams(IdNumber),
    Listener(IdNumber),
    Stream(IdNumber),
    Pending(u32),
}

impl Token {
    fn pack(self) -> epoll::EventData {
        let (kind, number) = match self {
            Self::Timer => (0, 0),
            Self::Channel(number) => (1, number.0),
            Self::Datagrams(id) => (2, u64::from(id.0)),
            Self::Listener(id) => (3, u64::from(id.0)),
            Self::Stream(id) => (4, u64::from(id.0)),
            Self::Pending(number) => (5, u64::from(number)),
        };
        epoll::EventData::new_u64(kind << 56 | number)
    }

    fn unpack(data: epoll::EventData) -> Self {
        let number = data.u64() & ((1 << 56) - 1);
        let id = IdNumber(number as u32);
        match data.u64() >> 56 {
            0 => Self::Timer,
            1 => Self::Channel(ChannelNumber(number)),
            2 => Self::Datagrams(id),
            3 => Self::Listener(id),
            4 => Self::Stream(id),
            _ => Self::Pending(id.0),
        }
    }
}

/// A channel of events.
#[derive(Debug)]
struct Channel {
    /// Our end.
    ours: OwnedFd,
    /// The program's descriptor, as it was at the last command.
    program: c_int,
}

/// The connection manager of this process.
#[derive(Debug)]
pub(super) struct Service {
    manager: Manager,
    epoll: OwnedFd,
    timer: OwnedFd,
    channels: HashMap<ChannelNumber, Channel>,
    sockets: HashMap<IdNumber, Sockets>,
    pending: HashMap<u32, Pending>,
    /// The order of [`Self::pending`].
    oldest: VecDeque<u32>,
    last_pending: u32,
    /// Listeners that take no streams until this time.
    paused: Option<(u64, Vec<IdNumber>)>,
    /// The time for which the timer is set.
    next: Option<u64>,
}

/// The manager of a process. A child after a fork has one of its own, because another thread of its parent may have had the lock.
#[derive(Debug)]
struct OfProcess {
    process: u32,
    service: Mutex<Option<Service>>,
}

static SERVICE: AtomicPtr<OfProcess> = AtomicPtr::new(std::ptr::null_mut());

/// The manager of this process. A child begins with none of its parent's identifiers. What it has inherited stays as it is: the epoll set
/// and the sockets are the parent's as well.
fn lock() -> MutexGuard<'static, Option<Service>> {
    let process = std::process::id();
    let mut known = SERVICE.load(Ordering::Acquire);
    loop {
        // SAFETY: null, or from `Box::into_raw` below, and never freed.
        if let Some(of_process) = unsafe { known.as_ref() }.filter(|of_process| of_process.process == process) {
            return of_process.service.lock().unwrap_or_else(PoisonError::into_inner);
        }
        let new = Box::into_raw(Box::new(OfProcess { process, service: Mutex::new(None) }));
        match SERVICE.compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => known = new,
            Err(other) => {
                // SAFETY: from `Box::into_raw` above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(new) });
                known = other;
            }
        }
    }
}

/// Tells the preloaded library, if there is one, that this provider manages connections.
pub(crate) fn register() {
    type Adopt = unsafe extern "C" fn(c_int) -> bool;
    type Command = unsafe extern "C-unwind" fn(c_int, *const c_void, usize, *mut isize) -> bool;
    // SAFETY: the name is a C string.
    let hook = unsafe { libc::dlsym(libc::RTLD_DEFAULT, CStr::as_ptr(c"isthmus_verbs_set_connections")) };
    if !hook.is_null() {
        // SAFETY: the preloaded library of this project defines the name, as a function of this type.
        let hook: unsafe extern "C" fn(Adopt, Command) = unsafe { std::mem::transmute(hook) };
        // SAFETY: the functions stay as long as the library, which libibverbs never closes.
        unsafe { hook(adopt, commands::command) };
    }
}

/// Puts an end of a new channel in the place of a descriptor of `/dev/full` or `/dev/null`.
unsafe extern "C" fn adopt(fd: c_int) -> bool {
    // SAFETY: librdmacm has opened the descriptor, and only this thread knows it.
    let program = unsafe { BorrowedFd::borrow_raw(fd) };
    let is_ours = rustix::fs::fstat(program).is_ok_and(|stat| {
        let is_device = rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::CharacterDevice;
        is_device && PLACES.contains(&(rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)))
    });
    if !is_ours {
        return false;
    }
    let mut service = lock();
    let made = match Service::started(&mut service) {
        Ok(service) => service.create_channel(fd),
        Err(errno) => Err(errno),
    };
    if let Err(errno) = made {
        // tidy(print): librdmacm has its channel, and the first command says only that it failed.
        eprintln!("isthmus: cannot create a channel of connection events: {errno}");
    }
    made.is_ok()
}

fn now() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

impl Service {
    /// The manager, which the first channel starts.
    fn started(service: &mut Option<Self>) -> Result<&mut Self, Errno> {
        if service.is_none() {
            *service = Some(Self::new()?);
            thread::start().inspect_err(|_| *service = None)?;
        }
        service.as_mut().ok_or(Errno::NOMEM)
    }

    fn new() -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer =
            rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &timer, Token::Timer.pack(), epoll::EventFlags::IN)?;
        let never = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        NEVER.store(never.into_raw_fd(), Ordering::Release); // Open as long as the process.
        let mut seed = [0; 4];
        let _ = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty());
        Ok(Self {
            manager: Manager::new(u32::from_ne_bytes(seed)),
            epoll,
            timer,
            channels: HashMap::new(),
            sockets: HashMap::new(),
            pending: HashMap::new(),
            oldest: VecDeque::new(),
            last_pending: 0,
            paused: None,
            next: None,
        })
    }

    /// Creates a channel. The program's end takes the place of `fd`.
    fn create_channel(&mut self, fd: c_int) -> Result<(), Errno> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, program) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let number = ChannelNumber(rustix::fs::fstat(&program)?.st_ino);
        let interest = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        epoll::add(&self.epoll, &ours, Token::Channel(number).pack(), interest)?;
        // SAFETY: the program's descriptor, which is closed and opened in one step. `place` is not dropped.
        let mut place = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) });
        rustix::io::dup3(&program, &mut place, rustix::io::DupFlags::CLOEXEC)?;
        self.channels.insert(number, Channel { ours, program: fd });
        Ok(())
    }

    /// The channel that a descriptor of the program is.
    fn channel_of(&self, fd: c_int) -> Option<ChannelNumber> {
        // SAFETY: the program passes its descriptor to a call that uses it. Another thread may close it meanwhile, as for any call.
        let stat = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) }).ok()?;
        let is_socket = rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Socket;
        let number = ChannelNumber(stat.st_ino);
        (is_socket && self.channels.contains_key(&number)).then_some(number)
    }

    /// Performs what the manager wants, and sets the timer.
    fn perform(&mut self) {
        while let Some(action) = self.manager.next_action() {
            match action {
                Action::Ask(id) => self.ask(id),
                Action::Dial(id, port) => self.dial(id, port),
                Action::Send(id, message) => self.send(id, &message),
                Action::Close(id) => self.close_stream(id),
                Action::Forget(id) => drop(self.sockets.remove(&id)),
                Action::Readable(channel) => self.mark_readable(channel),
                Action::Drained(channel) => self.drain(channel),
            }
        }
        let next = self.manager.expire();
        let paused = self.paused.as_ref().map(|(until, _)| *until);
        let next = [next, paused].into_iter().flatten().min();
        if self.next != next {
            self.next = next;
            let at = next.unwrap_or(0);
            let it_value =
                Timespec { tv_sec: (at / 1_000_000_000).cast_signed(), tv_nsec: (at % 1_000_000_000).cast_signed() };
            let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
            let _ = rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once);
        }
    }

    fn mark_readable(&self, channel: ChannelNumber) {
        if let Some(known) = self.channels.get(&channel) {
            let _ = rustix::net::send(&known.ours, &[1], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }

    fn drain(&self, channel: ChannelNumber) {
        let Some(fd) = self.channels.get(&channel).map(|known| known.program) else { return };
        if self.channel_of(fd) == Some(channel) {
            // SAFETY: the descriptor is the channel's, as was just checked.
            let program = unsafe { BorrowedFd::borrow_raw(fd) };
            let _ = rustix::net::recv(program, &mut [0; 1], RecvFlags::DONTWAIT);
        }
    }

    fn watch(&self, fd: impl AsFd, token: Token, interest: epoll::EventFlags) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, token.pack(), interest)
    }
}

impl Channel {
    /// True if the program waits in the call when there is no event.
    fn is_blocking(&self) -> bool {
        // SAFETY: the descriptor was used by the command that asks.
        let program = unsafe { BorrowedFd::borrow_raw(self.program) };
        !rustix::fs::fcntl_getfl(program).is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK))
    }
}
