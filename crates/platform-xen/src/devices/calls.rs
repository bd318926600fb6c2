//! The requests to the nodes, as in `linux/include/uapi/xen`. Those headers cannot be compiled alone.

use crate::{Domid, EvtchnPort, GrantRef};
use isthmus_shm::Access;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::ioctl::{Direction, Ioctl, IoctlOutput, Opcode, Setter, ioctl, opcode};
use std::ffi::c_void;

pub(super) const GNTALLOC: &str = "/dev/xen/gntalloc";
pub(super) const GNTDEV: &str = "/dev/xen/gntdev";
pub(super) const EVTCHN: &str = "/dev/xen/evtchn";
pub(super) const XENBUS: &str = "/dev/xen/xenbus";

const RESTRICT: Opcode = opcode::from_components(Direction::None, b'E', 6, 2);

/// The flag that lets the other domain write.
const WRITABLE: u32 = 1;
/// The actions of an unmap notification: clear the byte, raise the event.
const CLEAR_AND_SEND: u32 = 1 | 2;

/// A request with an argument of words owned by this process. The kernel reads and writes there and nowhere else.
struct Call<'a> {
    opcode: Opcode,
    argument: &'a mut [u32],
}

// SAFETY: the opcode and the words belong together: `Call`s are made by `call` only. Its callers below give at least as many words as the
// kernel's structure has; those that end in a list give as many more as their count says. The words are plain numbers, exclusively ours
// while the call lasts, and any value that the kernel writes there is a valid word.
unsafe impl Ioctl for Call<'_> {
    type Output = u32;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.argument.as_mut_ptr().cast()
    }

    unsafe fn output_from_ptr(output: IoctlOutput, _: *mut c_void) -> rustix::io::Result<u32> {
        u32::try_from(output).map_err(|_| Errno::PROTO)
    }
}

/// Makes a request. `words` is the size of the kernel's structure, which is part of the request number.
fn call(file: &OwnedFd, group: u8, number: u8, words: usize, argument: &mut [u32]) -> Result<u32, Errno> {
    assert!(argument.len() >= words); // A bug of the caller, not of a peer.
    let opcode = opcode::from_components(Direction::None, group, number, 4 * words);
    // SAFETY: these requests make the kernel read and write `argument`, as stated above; their other effects are on a file of ours, and
    // they map or change no memory of this process.
    unsafe { ioctl(file.as_fd(), Call { opcode, argument }) }
}

// A number of 64 bits is two words, the lower one first.
const _: () = assert!(cfg!(target_endian = "little"));

fn halves(number: u64) -> [u32; 2] {
    [number as u32, (number >> 32) as u32]
}

/// `IOCTL_GNTALLOC_ALLOC_GREF`: pages, each granted to `to`.
pub(super) fn allocate(file: &OwnedFd, to: Domid, pages: u32, access: Access) -> Result<Vec<GrantRef>, Errno> {
    let flags = if access == Access::ReadWrite { WRITABLE } else { 0 };
    // The argument: domid and flags of 16 bits each, count, index, then the list.
    let mut argument = vec![0; (4 + pages as usize).max(6)];
    argument[0] = u32::from(to.number()) | flags << 16;
    argument[1] = pages;
    call(file, b'G', 5, 6, &mut argument)?;
    // The first pages of a file that was just opened are at offset 0.
    if argument[2..4] != [0, 0] {
        return Err(Errno::PROTO);
    }
    Ok(argument[4..4 + pages as usize].iter().copied().map(GrantRef).collect())
}

/// `IOCTL_GNTDEV_MAP_GRANT_REF`: sets the pages of `from` that the file shows, and returns their offset. This does not map them.
pub(super) fn map_refs(file: &OwnedFd, from: Domid, refs: &[GrantRef]) -> Result<u64, Errno> {
    // The argument: count, padding, index, then the list with domain and reference for each page.
    let count = u32::try_from(refs.len()).map_err(|_| Errno::INVAL)?;
    let mut argument = vec![count, 0, 0, 0];
    argument.extend(refs.iter().flat_map(|reference| [u32::from(from.number()), reference.0]));
    if refs.is_empty() {
        return Err(Errno::INVAL);
    }
    call(file, b'G', 0, 6, &mut argument)?;
    Ok(u64::from(argument[2]) | u64::from(argument[3]) << 32)
}

/// `IOCTL_GNTALLOC_SET_UNMAP_NOTIFY` and `IOCTL_GNTDEV_SET_UNMAP_NOTIFY`, which have the same number and layout.
pub(super) fn set_unmap_notify(file: &OwnedFd, byte_at: u64, port: EvtchnPort) -> Result<(), Errno> {
    let [low, high] = halves(byte_at);
    call(file, b'G', 7, 4, &mut [low, high, CLEAR_AND_SEND, port.0]).map(drop)
}

/// `IOCTL_EVTCHN_BIND_UNBOUND_PORT`.
pub(super) fn port_for(file: &OwnedFd, peer: Domid) -> Result<EvtchnPort, Errno> {
    call(file, b'E', 2, 1, &mut [u32::from(peer.number())]).map(EvtchnPort)
}

/// `IOCTL_EVTCHN_BIND_INTERDOMAIN`.
pub(super) fn bind(file: &OwnedFd, peer: Domid, port: EvtchnPort) -> Result<EvtchnPort, Errno> {
    call(file, b'E', 1, 2, &mut [u32::from(peer.number()), port.0]).map(EvtchnPort)
}

/// `IOCTL_EVTCHN_RESTRICT_DOMID`: limits the file to event channels with this domain, also for later holders. The argument is a number of
/// 16 bits.
pub(super) fn restrict(file: &OwnedFd, peer: Domid) -> Result<(), Errno> {
    // SAFETY: the request has the kernel read one `u16`, which `Setter` points to as long as the call lasts, and changes no memory.
    unsafe { ioctl(file, Setter::<RESTRICT, u16>::new(peer.number())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_numbers_of_the_kernels_headers() {
        let number = |group, number, words: usize| opcode::from_components(Direction::None, group, number, 4 * words);
        let numbers = [
            number(b'G', 5, 6),
            number(b'G', 0, 6),
            number(b'G', 7, 4),
            number(b'E', 2, 1),
            number(b'E', 1, 2),
            isthmus_platform::event_channel::NOTIFY,
            RESTRICT,
        ];
        assert_eq!(numbers, [0x18_4705, 0x18_4700, 0x10_4707, 0x4_4502, 0x8_4501, 0x4_4504, 0x2_4506]);
    }
}
