//! The calls of the C library that this library defines.
//!
//! Each looks up the descriptor. Without an object in the table it makes the C library's own call, and nothing else.

pub mod epoll;
mod inq;
pub mod leave;
pub mod pipe;
pub mod poll;
pub mod process;
pub mod raw;
pub mod receive;
pub mod send;
pub mod socket;

use core::ffi::c_int;

use libc::iovec;

use crate::errno;

/// No address space has bytes from here on.
const ADDRESSES_END: usize = 1 << 56;

/// Returns true for buffers that lie outside of the address space, at least in part. The kernel refuses them before it moves a byte.
fn are_outside(parts: &[iovec]) -> bool {
    let end = |part: &iovec| (part.iov_base as usize).checked_add(part.iov_len);
    parts.iter().any(|part| part.iov_len > 0 && end(part).is_none_or(|end| end > ADDRESSES_END))
}

/// Turns a result into the C library's: the count, or -1 and `errno`.
fn to_c(result: Result<usize, c_int>) -> isize {
    match result {
        Ok(count) => count as isize,
        Err(code) => {
            errno::set(code);
            -1
        }
    }
}
