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
pub mod signal;
pub mod socket;
mod vector;

use core::ffi::c_int;

use crate::errno;

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
