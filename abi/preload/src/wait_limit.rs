//! The time that a call may wait.

use core::ffi::c_int;

use libc::timespec;

use crate::{copy, kernel};

/// The end of a wait, in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    Never,
    At(u64),
}

impl Limit {
    /// The end of a wait in milliseconds. A negative number waits without end.
    pub(crate) fn after_ms(ms: c_int) -> Self {
        u64::try_from(ms).map_or(Self::Never, |ms| Self::after_ns(ms.saturating_mul(1_000_000)))
    }

    /// The end of a wait in nanoseconds.
    pub(crate) fn after_ns(ns: u64) -> Self {
        Self::At(kernel::now_ns().saturating_add(ns))
    }

    /// The end of a wait of this time. None waits without end. The caller has refused what the kernel refuses.
    pub(crate) fn after(time: Option<&timespec>) -> Self {
        let ns =
            |time: &timespec| (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64);
        time.map_or(Self::Never, |time| Self::after_ns(ns(time)))
    }

    /// Returns the nanoseconds that are left. None without an end.
    pub(crate) fn left_ns(self) -> Option<u64> {
        match self {
            Self::Never => None,
            Self::At(at) => Some(at.saturating_sub(kernel::now_ns())),
        }
    }

    /// Returns true if no time is left.
    pub(crate) fn is_over(self) -> bool {
        self.left_ns() == Some(0)
    }
}

/// Returns true if the kernel refuses this time.
pub(crate) fn is_refused(time: &timespec) -> bool {
    time.tv_sec < 0 || !(0..1_000_000_000).contains(&time.tv_nsec)
}

/// Reads the time of a call; null is a wait without end. None for what the kernel refuses.
pub(crate) fn time_of(time: *const timespec) -> Option<Option<timespec>> {
    if time.is_null() {
        return Some(None);
    }
    // SAFETY: a time, or an address that cannot be reached.
    let time = unsafe { copy::read(time) }.ok()?;
    (!is_refused(&time)).then_some(Some(time))
}
