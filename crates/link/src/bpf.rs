//! Programs of the kernel's virtual machine: a few instructions, assembled here and loaded by bpf(2).

use std::os::fd::{FromRawFd, OwnedFd};

use rustix::io::Errno;

use crate::sys;

pub(crate) const MAP_CREATE: u32 = 0;
pub(crate) const PROG_LOAD: u32 = 5;
pub(crate) const LINK_CREATE: u32 = 28;

// Codes of instructions.
pub(crate) const LOAD_WORD: u8 = 0x61;
pub(crate) const LOAD_CONSTANT: u8 = 0x18;
pub(crate) const MOVE: u8 = 0xBF;
pub(crate) const SET: u8 = 0xB7;
pub(crate) const JUMP_UNLESS: u8 = 0x55;
pub(crate) const CALL: u8 = 0x85;
pub(crate) const EXIT: u8 = 0x95;
/// The source of a [`LOAD_CONSTANT`] of which the constant is the descriptor of a map.
pub(crate) const A_MAP: u8 = 1;

/// Calls a command that creates an object and has no addresses in its attribute.
pub(crate) fn made<const N: usize>(command: u32, words: [u64; N]) -> Result<OwnedFd, Errno> {
    // SAFETY: no addresses.
    descriptor(unsafe { sys::bpf(command, &mut attribute(words))? })
}

/// Takes a descriptor that a command has returned.
pub(crate) fn descriptor(number: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Returns an attribute that begins with these words. The others are zero.
pub(crate) fn attribute<const N: usize>(words: [u64; N]) -> [u64; 16] {
    let mut attribute = [0; 16];
    attribute[..N].copy_from_slice(&words);
    attribute
}

pub(crate) fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

pub(crate) fn address<T>(values: &[T]) -> u64 {
    values.as_ptr() as u64
}

/// Returns an instruction: operation, registers, offset, constant.
pub(crate) const fn op(code: u8, to: u8, from: u8, offset: i16, number: i32) -> u64 {
    code as u64 | (to as u64) << 8 | (from as u64) << 12 | (offset as u16 as u64) << 16 | (number as u32 as u64) << 32
}
