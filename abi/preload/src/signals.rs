//! Handlers of the program, which never run while their thread holds a lock of the library.
//!
//! The library defines `sigaction` and its kin. The kernel gets a trampoline for each signal that has a handler, and the program sees its own
//! handler. The trampoline runs the handler at once, unless the thread holds signals ([`crate::inside`]). Then it notes the signal, and
//! lets the thread go on with all signals blocked. The end of the hold sends the signal to the thread again and gives it its mask back.
//!
//! The trampoline counts the handlers that it runs. So a call that waits knows whether it was interrupted, and whether it restarts.
//!
//! Faults are never deferred. One in a copy between the program's memory and a ring ends that copy ([`crate::copy`]). Any other one is the
//! program's, as without the library.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering, compiler_fence};

use libc::{SIG_DFL, SIG_IGN, sigaction, siginfo_t, ucontext_t};

use crate::inside::{self, ThreadState};
use crate::private_lock::PrivateLock;
use crate::{alarm, copy, errno, fork, real};

/// The kernel's signals are 1 to 64.
const SIGNALS: usize = 65;
/// Bytes of the kernel's set of signals.
const MASK_BYTES: usize = 8;

/// The program's action for a signal.
struct Action {
    handler: AtomicUsize,
    flags: AtomicI32,
    /// The library needs the signal itself.
    is_kept: AtomicBool,
}

static ACTIONS: [Action; SIGNALS] = [const {
    Action { handler: AtomicUsize::new(SIG_DFL), flags: AtomicI32::new(0), is_kept: AtomicBool::new(false) }
}; SIGNALS];

/// The lock of [`ACTIONS`]. It is taken after all others.
pub(crate) static LOCK: PrivateLock<()> = PrivateLock::new(());

/// Copies recover from faults, because the trampoline has those signals.
static GUARDS_COPIES: AtomicBool = AtomicBool::new(false);

type Handler = extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void);

fn trampoline_address() -> usize {
    trampoline as Handler as usize
}

/// Returns true for the signals of memory that cannot be reached.
fn is_of_copies(signal: c_int) -> bool {
    matches!(signal, libc::SIGSEGV | libc::SIGBUS)
}

/// Returns true if an instruction of the thread has caused the signal. It would do so again if the handler did not run.
fn is_fault(signal: c_int, info: &siginfo_t) -> bool {
    matches!(signal, libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE | libc::SIGTRAP | libc::SIGSYS)
        && info.si_code > 0
}

fn has_handler(action: &sigaction) -> bool {
    !matches!(action.sa_sigaction, SIG_DFL | SIG_IGN)
}

/// Sets and returns the action of a signal, as the C library's `sigaction` does.
///
/// # Safety
///
/// `new` is null or an action, and `old` is null or memory for one.
pub(crate) unsafe fn change(signal: c_int, new: *const sigaction, old: *mut sigaction) -> c_int {
    let Some(action) = usize::try_from(signal).ok().and_then(|signal| ACTIONS.get(signal)) else {
        // SAFETY: the caller's promise.
        return unsafe { real::sigaction(signal, new, old) };
    };
    // SAFETY: as above. An address that cannot be reached ends the program here, where the thread has no lock.
    let given = unsafe { new.as_ref() }.copied();
    let (done, found) = LOCK.with(|()| {
        let before = (action.handler.load(Ordering::Relaxed), action.flags.load(Ordering::Relaxed));
        // A child of `vfork` has the actions of its own in the kernel, and this memory of its parent.
        let is_own = given.is_some() && !fork::is_borrowed();
        let is_kept = action.is_kept.load(Ordering::Relaxed);
        let mut told = given;
        if let Some(told) = told.as_mut().filter(|told| is_own && (has_handler(told) || is_kept)) {
            action.flags.store(told.sa_flags, Ordering::Relaxed);
            action.handler.store(told.sa_sigaction, Ordering::Release);
            if !has_handler(told) {
                told.sa_flags |= libc::SA_RESTART;
            }
            trampolined(told, is_kept);
        }
        let pointer = told.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
        // SAFETY: an action of zeroes is a value. The call reads and writes actions of this function.
        let (done, mut found) = unsafe {
            let mut found: sigaction = core::mem::zeroed();
            (real::sigaction(signal, pointer, &raw mut found), found)
        };
        if done != 0 && is_own {
            action.flags.store(before.1, Ordering::Relaxed);
            action.handler.store(before.0, Ordering::Release);
        }
        if found.sa_sigaction == trampoline_address() {
            (found.sa_sigaction, found.sa_flags) = before;
        }
        (done, found)
    });
    // SAFETY: as above.
    if let (0, Some(old)) = (done, unsafe { old.as_mut() }) {
        *old = found;
    }
    done
}

/// Makes the kernel call the trampoline. `is_kept`: on the other stack, if the program has set one, because the first may have no room.
fn trampolined(action: &mut sigaction, is_kept: bool) {
    action.sa_sigaction = trampoline_address();
    // The trampoline resets the action itself: a deferred signal arrives twice.
    action.sa_flags = action.sa_flags & !libc::SA_RESETHAND | libc::SA_SIGINFO;
    if is_kept {
        action.sa_flags |= libc::SA_ONSTACK;
    }
}

/// Returns true if copies recover from faults. That is so as soon as the process has a TCP socket.
#[inline]
pub(crate) fn are_copies_guarded() -> bool {
    GUARDS_COPIES.load(Ordering::Relaxed)
}

/// Lets copies recover from faults, from now on.
pub(crate) fn guard_copies() {
    if !are_copies_guarded() && !GUARDS_COPIES.swap(true, Ordering::Relaxed) {
        keep(libc::SIGSEGV);
        keep(libc::SIGBUS);
    }
}

/// Gives a signal to the trampoline, whether the program has a handler for it or not.
pub(crate) fn keep(signal: c_int) {
    LOCK.with(|()| {
        // SAFETY: an action of zeroes is a value. The calls read and write this one.
        unsafe {
            let mut told: sigaction = core::mem::zeroed();
            if real::sigaction(signal, core::ptr::null(), &raw mut told) != 0 {
                return;
            }
            let action = &ACTIONS[signal as usize];
            if told.sa_sigaction != trampoline_address() {
                if !has_handler(&told) {
                    told.sa_flags |= libc::SA_RESTART;
                }
                action.flags.store(told.sa_flags, Ordering::Relaxed);
                action.handler.store(told.sa_sigaction, Ordering::Release);
            }
            action.is_kept.store(true, Ordering::Relaxed);
            trampolined(&mut told, true);
            real::sigaction(signal, &raw const told, core::ptr::null_mut());
        }
    });
}

/// The handler that the kernel calls.
extern "C-unwind" fn trampoline(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let state = inside::state();
    // SAFETY: the kernel gives both, because the trampoline is registered with `SA_SIGINFO`.
    let (told, context_of_kernel) = unsafe { (&*info, &mut *context.cast::<ucontext_t>()) };
    if is_fault(signal, told) {
        if is_of_copies(signal) && copy::recover(state, context_of_kernel) {
            return;
        }
    } else if state.is_held() {
        return defer(state, signal, told, context_of_kernel);
    }
    run(state, signal, info, context);
}

/// Calls the program's handler.
fn run(state: &ThreadState, signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel has given the information.
    if alarm::is_ring(signal, unsafe { &*info }) {
        state.alarms.store(state.alarms.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        return alarm::answer();
    }
    let action = &ACTIONS[signal as usize];
    let (handler, flags) = (action.handler.load(Ordering::Acquire), action.flags.load(Ordering::Relaxed));
    if matches!(handler, SIG_DFL | SIG_IGN) {
        // SAFETY: the kernel has given the information.
        return unsafe { end_by(signal, &*info, handler) };
    }
    if flags & libc::SA_RESETHAND != 0 {
        if action.is_kept.load(Ordering::Relaxed) {
            action.handler.store(SIG_DFL, Ordering::Relaxed);
        } else {
            reset(signal);
        }
    }
    for (count, counts) in [(&state.handled, true), (&state.handled_ending, flags & libc::SA_RESTART == 0)] {
        count.store(count.load(Ordering::Relaxed).wrapping_add(u32::from(counts)), Ordering::Relaxed);
    }
    compiler_fence(Ordering::SeqCst);
    // SAFETY: the program gave this address as its handler. One with fewer parameters ignores the others.
    let handler: Handler = unsafe { core::mem::transmute(handler) };
    handler(signal, info, context);
    // A thread that was about to sleep must not: the handler counts as an interruption.
    let bell = state.bell.load(Ordering::Relaxed);
    if bell > 0 {
        let errno = errno::get();
        // SAFETY: the doorbell is open while the thread sleeps with it. It takes a number of eight bytes.
        unsafe { real::syscall(libc::SYS_write, (bell - 1) as usize, (&raw const ONE) as usize, 8, 0, 0, 0) };
        errno::set(errno);
    }
}

static ONE: u64 = 1;

/// Gives a signal its default action.
fn reset(signal: c_int) {
    // SAFETY: an action of zeroes is the default one.
    unsafe {
        let default: sigaction = core::mem::zeroed();
        real::sigaction(signal, &raw const default, core::ptr::null_mut());
    }
}

/// Does for a signal of the library's what the kernel does without a handler: ends the program, or ignores the signal.
fn end_by(signal: c_int, info: &siginfo_t, action: usize) {
    let is_sent = !is_fault(signal, info);
    if is_sent && (action == SIG_IGN || signal == alarm::SIGNAL) {
        return;
    }
    reset(signal); // The instruction causes it again, and the kernel sees the program as it was.
    if is_sent {
        // SAFETY: a call without pointers.
        unsafe { real::syscall(libc::SYS_tgkill, process(), thread(), signal as usize, 0, 0, 0) };
    }
}

fn process() -> usize {
    std::process::id() as usize
}

fn thread() -> usize {
    // SAFETY: a call without arguments.
    unsafe { libc::gettid() as usize }
}

/// Notes a signal, and blocks all others until the thread ends its hold.
fn defer(state: &ThreadState, signal: c_int, info: &siginfo_t, context: &mut ucontext_t) {
    // SAFETY: no other signal comes until this one is delivered, so nothing else uses the place. The kernel restores the mask from the
    // context, of which it reads eight bytes.
    unsafe {
        let mask: *mut u64 = (&raw mut context.uc_sigmask).cast();
        state.mask.store(mask.read(), Ordering::Relaxed);
        mask.write(!never_blocked());
        (*state.told.get()).write(*info);
    }
    compiler_fence(Ordering::SeqCst);
    state.deferred.store(signal, Ordering::Relaxed);
}

/// The signals that are never blocked: faults, and the first two real-time ones, by which the C library cancels threads.
fn never_blocked() -> u64 {
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS, 32, 33]
        .into_iter()
        .fold(0, |all, signal| all | 1 << (signal - 1))
}

/// Sends the deferred signal to this thread again, and lets signals arrive.
#[cold]
pub(crate) fn deliver(state: &ThreadState) {
    let errno = errno::get();
    let (signal, mask) = (state.deferred.swap(0, Ordering::Relaxed), state.mask.load(Ordering::Relaxed));
    // SAFETY: the information was written when the signal was deferred, and the mask lives on the stack.
    unsafe {
        let told = (*state.told.get()).as_ptr() as usize;
        let sent = real::syscall(libc::SYS_rt_tgsigqueueinfo, process(), thread(), signal as usize, told, 0, 0);
        if sent != 0 {
            real::syscall(libc::SYS_tgkill, process(), thread(), signal as usize, 0, 0, 0);
        }
        set_mask(mask);
    }
    errno::set(errno);
}

/// # Safety
///
/// The mask was that of this thread.
unsafe fn set_mask(mask: u64) {
    let how = libc::SIG_SETMASK as usize;
    // SAFETY: a mask of eight bytes.
    unsafe { real::syscall(libc::SYS_rt_sigprocmask, how, (&raw const mask) as usize, 0, MASK_BYTES, 0, 0) };
}

/// Forgets, in a child, a signal that was sent to the parent.
pub(crate) fn forget_deferred() {
    let state = inside::state();
    if state.deferred.swap(0, Ordering::Relaxed) != 0 {
        // SAFETY: the child's thread has the mask of the parent's.
        unsafe { set_mask(state.mask.load(Ordering::Relaxed)) };
    }
}
