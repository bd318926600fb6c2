//! The alarm of this process: a doorbell that peers ring when they cannot wait for its next call.
//!
//! A peer that leaves its stream may have bytes unread in a ring, which only this process can send again by TCP. If no thread of this process
//! is in a call of the library, the peer rings the alarm. The kernel turns that into `SIGURG`, which programs ignore unless they ask for
//! it. The library's handler sends the bytes ([`crate::signals`]). It may have interrupted any code, so it neither allocates nor frees memory.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, Ordering};

use isthmus_layout::sockets::StreamState;
use isthmus_platform::Doorbell;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};

use crate::connection::Connection;
use crate::private_lock::PrivateLock;
use crate::table::Tracked;
use crate::{errno, kernel, signals};

/// The signal of the alarm.
pub(crate) const SIGNAL: c_int = libc::SIGURG;

/// Sets the signal of a descriptor, and asks for it (linux/fcntl.h).
const F_SETSIG: c_int = 10;

/// The process that has the alarm. 0: none has. A child of `fork` makes its own.
static OWNER: AtomicI32 = AtomicI32::new(0);
/// The receiving end and the ringing one. They stay open, because streams outlive sessions with the daemon.
static RECEIVER: AtomicI32 = AtomicI32::new(-1);
static RINGING: AtomicI32 = AtomicI32::new(-1);

/// The ends of all alarms.
static KEPT: PrivateLock<Vec<(Doorbell, Doorbell)>> = PrivateLock::new(Vec::new());

/// Returns the ringing end of this process's alarm, which is made if need be. None if the kernel refuses it. The caller holds the lock of the
/// session.
pub(crate) fn ringing() -> Option<BorrowedFd<'static>> {
    let process = std::process::id();
    if OWNER.load(Ordering::Relaxed) != process as i32 {
        let (receiver, ringing) = Doorbell::socket_pair().ok()?;
        let (receiver, ringing) = (kernel::placed_doorbell(receiver), kernel::placed_doorbell(ringing));
        let fd = receiver.as_fd().as_raw_fd();
        let is_set = kernel::control_fd(fd, libc::F_SETOWN, process as usize)
            && kernel::control_fd(fd, F_SETSIG, SIGNAL as usize)
            && kernel::control_fd(fd, libc::F_SETFL, (libc::O_ASYNC | libc::O_NONBLOCK) as usize);
        if !is_set {
            return None;
        }
        RECEIVER.store(fd, Ordering::Relaxed);
        RINGING.store(ringing.as_fd().as_raw_fd(), Ordering::Relaxed);
        KEPT.with(|kept| kept.push((receiver, ringing)));
        signals::keep(SIGNAL);
        OWNER.store(process as i32, Ordering::Relaxed);
    }
    // SAFETY: the descriptor stays open.
    Some(unsafe { BorrowedFd::borrow_raw(RINGING.load(Ordering::Relaxed)) })
}

/// Returns true if the signal is a ring of the alarm.
pub(crate) fn is_ring(signal: c_int, told: &libc::siginfo_t) -> bool {
    /// The descriptor in `siginfo_t` of a signal that tells of one (asm-generic/siginfo.h).
    #[repr(C)]
    struct OfDescriptor {
        numbers: [c_int; 4],
        band: libc::c_long,
        fd: c_int,
    }
    // SAFETY: the kernel's structure is larger than this, and any bytes are a value.
    let fd = unsafe { (*core::ptr::from_ref(told).cast::<OfDescriptor>()).fd };
    let receiver = RECEIVER.load(Ordering::Relaxed);
    signal == SIGNAL && told.si_code > 0 && receiver >= 0 && fd == receiver
}

/// Sends the bytes by TCP that peers ask for. Called in the handler of the signal, in a thread that holds no lock.
pub(crate) fn answer() {
    let errno = errno::get();
    kernel::discard(RECEIVER.load(Ordering::Relaxed));
    Connection::table().for_each(|fd, connection| {
        if let Some(stream) = connection.stream()
            && stream.memory.peer_state() & StreamState::LEFT != 0
        {
            let _ = connection.send_back(fd, stream); // The next call reports a violation.
        }
        if connection.is_last() {
            core::mem::forget(connection); // Another thread has closed it meanwhile. Its memory stays, because a handler frees none.
        }
    });
    errno::set(errno);
}
