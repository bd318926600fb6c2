//! The program that takes the link's frames off an interface: a dozen instructions, assembled here, loaded by bpf(2).
//!
//! ```text
//!   ethertype is ours ──► the socket in the map at this queue, or, if there is none, the stack
//!   anything else ──────► the stack
//! ```
//!
//! The program is attached by a bpf link that this process holds. The kernel detaches it when the process ends for any reason.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::io::Errno;

use crate::bpf::{
    A_MAP, CALL, EXIT, JUMP_UNLESS, LINK_CREATE, LOAD_CONSTANT, LOAD_WORD, MAP_CREATE, MOVE, PROG_LOAD, SET, address,
    attribute, descriptor, made, op, pair,
};
use crate::sys;

const MAP_UPDATE: u32 = 2;
const MAP_OF_SOCKETS: u64 = 17;
const PROGRAM_XDP: u64 = 6;
const ATTACH_XDP: u64 = 37;
/// `BPF_F_XDP_HAS_FRAGS`: the program accepts frames in several pieces.
const HAS_PIECES: u64 = 1 << 5;
/// The maximum number of queues of an interface.
const QUEUES_MAX: u32 = 256;
const LICENSE: &CStr = c"Apache-2.0 OR MIT";
const XDP_PASS: i32 = 2;
const REDIRECT_MAP: i32 = 51;

/// The place where the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver.
    Native,
    /// After the driver, which does not have to support XDP (`xdpgeneric`).
    Generic,
}

impl XdpMode {
    fn flags(self) -> u64 {
        match self {
            Self::Native => 1 << 2,
            Self::Generic => 1 << 1,
        }
    }
}

/// The program, attached while this value lives.
#[derive(Debug)]
pub(super) struct Program {
    _map: OwnedFd,
    _link: OwnedFd,
}

impl Program {
    /// Attaches the program to an interface, so that frames of this ethertype on this queue go to `socket`.
    pub(super) fn attach(
        socket: impl AsFd,
        index: u32,
        queue: u32,
        ethertype: u16,
        mode: XdpMode,
    ) -> Result<Self, Errno> {
        if queue >= QUEUES_MAX {
            return Err(Errno::INVAL);
        }
        let map = made(MAP_CREATE, [pair(MAP_OF_SOCKETS as u32, 4), pair(4, QUEUES_MAX)])?;
        let (key, value) = ([queue], [socket.as_fd().as_raw_fd()]);
        let mut update = attribute([map.as_raw_fd() as u64, address(&key), address(&value), 0]);
        // SAFETY: key and value are the four bytes each that the map was made with.
        unsafe { sys::bpf(MAP_UPDATE, &mut update)? };
        let code = instructions(ethertype, map.as_raw_fd());
        let program = load(&code, HAS_PIECES).or_else(|_| load(&code, 0))?; // Before Linux 5.18.
        let link = made(LINK_CREATE, [pair(program.as_raw_fd() as u32, index), ATTACH_XDP | mode.flags() << 32])?;
        Ok(Self { _map: map, _link: link })
    }
}

fn load(code: &[u64], flags: u64) -> Result<OwnedFd, Errno> {
    let mut words = attribute([PROGRAM_XDP | (code.len() as u64) << 32, address(code), LICENSE.as_ptr() as u64]);
    words[5] = flags << 32; // Behind the kernel version, which is not checked.
    words[8] = ATTACH_XDP << 32; // Behind name and interface.
    // SAFETY: as many instructions as it says, and a text that ends with a zero; there is no log.
    descriptor(unsafe { sys::bpf(PROG_LOAD, &mut words)? })
}

fn instructions(ethertype: u16, map: i32) -> [u64; 15] {
    const LOAD_HALF: u8 = 0x69;
    const ADD: u8 = 0x07;
    const JUMP_ABOVE: u8 = 0x2D;
    [
        op(LOAD_WORD, 2, 1, 0, 0),                              // r2: where the frame begins
        op(LOAD_WORD, 3, 1, 4, 0),                              // r3: where its first piece ends
        op(MOVE, 4, 2, 0, 0),                                   //
        op(ADD, 4, 0, 0, 14),                                   // r4: behind the Ethernet header
        op(JUMP_ABOVE, 4, 3, 8, 0),                             // shorter: to the stack
        op(LOAD_HALF, 5, 2, 12, 0),                             // r5: ethertype, in the order of this machine
        op(JUMP_UNLESS, 5, 0, 6, i32::from(ethertype.to_be())), // another: to the stack
        op(LOAD_WORD, 2, 1, 16, 0),                             // r2: which queue
        op(LOAD_CONSTANT, 1, A_MAP, 0, map),                    // r1: the map, in two instructions
        op(0, 0, 0, 0, 0),                                      //
        op(SET, 3, 0, 0, XDP_PASS),                             // r3: if there is no socket
        op(CALL, 0, 0, 0, REDIRECT_MAP),
        op(EXIT, 0, 0, 0, 0), //
        op(SET, 0, 0, 0, XDP_PASS),
        op(EXIT, 0, 0, 0, 0),
    ]
}
