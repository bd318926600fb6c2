//! Calls that set handlers of signals.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};

use libc::{SIG_DFL, SIG_ERR, SIG_IGN, sighandler_t};

use crate::{errno, fork, real, settings, signals};

/// The value of `sigset` that blocks a signal.
const SIG_HOLD: sighandler_t = 2;

/// Signals of which `siginterrupt` has said that handlers set by `signal` end calls: a bit for each.
static INTERRUPTS: AtomicU64 = AtomicU64::new(0);

fn bit(signal: c_int) -> u64 {
    1u64.checked_shl((signal - 1) as u32).unwrap_or(0)
}

/// # Safety
///
/// As the C library's `sigaction`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    if !settings::loaded().is_some_and(|settings| settings.enabled) {
        // SAFETY: the caller's contract is the C library's.
        return unsafe { real::sigaction(signal, new, old) };
    }
    fork::register();
    // SAFETY: as above.
    unsafe { signals::change(signal, new, old) }
}

/// # Safety
///
/// As the C library's `__sigaction`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the caller's contract is the C library's.
    unsafe { sigaction(signal, new, old) }
}

/// Sets a handler with these flags, and with `blocked` during it. Returns the one before.
fn set(signal: c_int, handler: sighandler_t, flags: c_int, blocked: Option<c_int>) -> sighandler_t {
    if handler == SIG_ERR || !(1..=64).contains(&signal) {
        errno::set(libc::EINVAL);
        return SIG_ERR;
    }
    // SAFETY: actions of zeroes are values, and the calls read and write these.
    unsafe {
        let (mut new, mut old): (libc::sigaction, libc::sigaction) = (core::mem::zeroed(), core::mem::zeroed());
        (new.sa_sigaction, new.sa_flags) = (handler, flags);
        blocked.map(|signal| libc::sigaddset(&raw mut new.sa_mask, signal));
        if sigaction(signal, &raw const new, &raw mut old) == 0 { old.sa_sigaction } else { SIG_ERR }
    }
}

/// Sets a handler as BSD does.
fn set_bsd(signal: c_int, handler: sighandler_t) -> sighandler_t {
    let is_ending = (1..=64).contains(&signal) && INTERRUPTS.load(Ordering::Relaxed) & bit(signal) != 0;
    set(signal, handler, if is_ending { 0 } else { libc::SA_RESTART }, Some(signal))
}

/// Sets a handler as System V does.
fn set_system_v(signal: c_int, handler: sighandler_t) -> sighandler_t {
    set(signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER, None)
}

macro_rules! setters {
    ($($name:ident by $set:ident;)*) => {$(
        #[doc = concat!("The C library's `", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub extern "C-unwind" fn $name(signal: c_int, handler: sighandler_t) -> sighandler_t {
            $set(signal, handler)
        }
    )*};
}

setters! {
    signal by set_bsd;
    bsd_signal by set_bsd;
    ssignal by set_bsd;
    sysv_signal by set_system_v;
    __sysv_signal by set_system_v;
}

/// The C library's `sigset`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn sigset(signal: c_int, handler: sighandler_t) -> sighandler_t {
    let how = if handler == SIG_HOLD { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
    let mut found = SIG_ERR;
    if handler != SIG_HOLD {
        found = set(signal, handler, 0, None);
        if found == SIG_ERR {
            return SIG_ERR;
        }
    }
    // SAFETY: sets and actions of zeroes are values, and the calls read and write these.
    unsafe {
        let (mut one, mut before): (libc::sigset_t, libc::sigset_t) = (core::mem::zeroed(), core::mem::zeroed());
        if libc::sigaddset(&raw mut one, signal) != 0 || libc::sigprocmask(how, &raw const one, &raw mut before) != 0 {
            return SIG_ERR;
        }
        if libc::sigismember(&raw const before, signal) == 1 {
            return SIG_HOLD;
        }
        if handler == SIG_HOLD {
            let mut old: libc::sigaction = core::mem::zeroed();
            found = if sigaction(signal, core::ptr::null(), &raw mut old) == 0 { old.sa_sigaction } else { SIG_ERR };
        }
    }
    found
}

/// The C library's `sigignore`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn sigignore(signal: c_int) -> c_int {
    if set(signal, SIG_IGN, 0, None) == SIG_ERR { -1 } else { 0 }
}

/// The C library's `siginterrupt`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn siginterrupt(signal: c_int, ends: c_int) -> c_int {
    // SAFETY: an action of zeroes is a value, and the calls read and write this one.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        if sigaction(signal, core::ptr::null(), &raw mut action) != 0 {
            return -1;
        }
        if ends == 0 {
            INTERRUPTS.fetch_and(!bit(signal), Ordering::Relaxed);
            action.sa_flags |= libc::SA_RESTART;
        } else {
            INTERRUPTS.fetch_or(bit(signal), Ordering::Relaxed);
            action.sa_flags &= !libc::SA_RESTART;
        }
        if action.sa_sigaction == SIG_DFL && action.sa_flags == 0 {
            return 0;
        }
        sigaction(signal, &raw const action, core::ptr::null_mut())
    }
}
