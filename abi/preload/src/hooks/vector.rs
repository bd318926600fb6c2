//! The buffers of a call, as this library reads them from the program.

use core::ffi::c_void;

use libc::{iovec, size_t};

use crate::copy;

/// Vectors of up to this many parts need no memory of the heap, which a signal handler must not use.
const FEW: usize = 8;
/// The most parts that the kernel takes (`UIO_MAXIOV`).
const MOST: usize = 1024;

/// Addresses and lengths of buffers.
pub(super) enum Vector {
    Few([iovec; FEW], usize),
    Many(Vec<iovec>),
}

impl Vector {
    /// One buffer.
    pub(super) fn one(at: *mut c_void, len: size_t) -> Option<Self> {
        let mut few = [EMPTY; FEW];
        few[0] = iovec { iov_base: at, iov_len: len };
        Some(Self::Few(few, 1))
    }

    /// Reads a vector of the program. None for what the kernel refuses.
    ///
    /// # Safety
    ///
    /// `parts` has `count` entries, or is an address that cannot be reached.
    pub(super) unsafe fn read(parts: *const iovec, count: usize) -> Option<Self> {
        let vector = if count <= FEW {
            let mut few = [EMPTY; FEW];
            // SAFETY: the caller's promise, and the guard catches a fault.
            copy::guarded(|| unsafe { core::ptr::copy_nonoverlapping(parts, few.as_mut_ptr(), count) }).ok()?;
            Self::Few(few, count)
        } else if count <= MOST {
            // SAFETY: the caller's promise. Any bytes are a part.
            Self::Many(unsafe { copy::read_all(parts, count) }.ok()?)
        } else {
            return None;
        };
        vector.as_ref().iter().all(|part| isize::try_from(part.iov_len).is_ok()).then_some(vector)
    }
}

const EMPTY: iovec = iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };

impl AsRef<[iovec]> for Vector {
    fn as_ref(&self) -> &[iovec] {
        match self {
            Self::Few(few, count) => &few[..*count],
            Self::Many(many) => many,
        }
    }
}
