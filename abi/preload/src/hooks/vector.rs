//! The buffers of a call, as this library reads them from the program.

use core::ffi::c_void;

use libc::{iovec, size_t};

use crate::copy;

/// Vectors of up to this many parts need no memory of the heap, which a signal handler must not use.
const FEW: usize = 8;
/// No address space has bytes from here on.
const ADDRESSES_END: usize = 1 << 56;
/// The most parts that the kernel takes (`UIO_MAXIOV`).
const MOST: usize = 1024;

/// Addresses and lengths of buffers.
pub(super) enum Vector {
    Few([iovec; FEW], usize),
    Many(Vec<iovec>),
}

impl Vector {
    /// One buffer. None for what the kernel refuses.
    pub(super) fn one(at: *mut c_void, len: size_t) -> Option<Self> {
        let mut few = [EMPTY; FEW];
        few[0] = iovec { iov_base: at, iov_len: len };
        let is_outside = is_outside(&few[0]);
        (!is_outside).then_some(Self::Few(few, 1))
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
        let is_refused = |part: &iovec| isize::try_from(part.iov_len).is_err() || is_outside(part);
        (!vector.as_ref().iter().any(is_refused)).then_some(vector)
    }
}

/// Returns true for a buffer that lies outside of the address space, at least in part. The kernel refuses it before it moves a byte.
fn is_outside(part: &iovec) -> bool {
    let end = (part.iov_base as usize).checked_add(part.iov_len);
    part.iov_len > 0 && end.is_none_or(|end| end > ADDRESSES_END)
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
