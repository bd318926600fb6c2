//! `process_vm_readv`, which others call cross-memory attach: the receiver copies out of the sender's memory.
//!
//! The best that can be had between two processes without sharing memory: one copy, made by the kernel, which pins the
//! sender's pages as it goes. The sender says where each message lies by 16 bytes on a socket, and has up to
//! [`UNDER_WAY_MAX`] of them out; the receiver answers one byte for each.
//!
//! ```text
//! sender ── {address, len} ──▶ receiver ── process_vm_readv(sender) ──▶ its buffer
//!        ◀───── 1 byte ───────
//! ```

use std::io::IoSliceMut;

use anyhow::{Context, Result, bail};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use rustix::net::SocketType;

use super::fds::FdLink;
use super::unix::share_pair;
use super::{Link, Transport};
use crate::control_pipe::ControlPipe;
use crate::job::{Setup, Side};
use crate::pool::Pool;

/// Sends that may be under way at once.
const UNDER_WAY_MAX: u64 = 4;

pub(crate) struct Cma(Setup);

/// The socket for addresses and replies, and the process to read from.
pub(crate) struct Reader {
    words: FdLink,
    peer: Pid,
}

impl Transport for Cma {
    type Link = Reader;

    fn open(setup: &Setup) -> Result<Self> {
        Ok(Self(setup.clone()))
    }

    fn connect(self, side: Side, control_pipe: &ControlPipe) -> Result<Reader> {
        let socket = share_pair(side, control_pipe, SocketType::STREAM)?;
        control_pipe.send(&std::process::id())?;
        let peer: i32 = control_pipe.recv()?;
        Ok(Reader { words: FdLink::both_ways(socket, &self.0, usize::MAX)?, peer: Pid::from_raw(peer) })
    }
}

impl Reader {
    fn offer(&mut self, message: &[u8]) -> Result<()> {
        let mut words = [0; 16];
        words[..8].copy_from_slice(&message.as_ptr().addr().to_ne_bytes());
        words[8..].copy_from_slice(&message.len().to_ne_bytes());
        self.words.send(&words)
    }

    fn answered(&mut self) -> Result<()> {
        self.words.recv(&mut [0])
    }
}

impl Link for Reader {
    fn send(&mut self, message: &[u8]) -> Result<()> {
        self.offer(message)?;
        self.answered()
    }

    fn recv(&mut self, into: &mut [u8]) -> Result<()> {
        let (mut address, mut len) = ([0; 8], [0; 8]);
        self.words.recv(&mut address)?;
        self.words.recv(&mut len)?;
        let (mut base, len) = (usize::from_ne_bytes(address), usize::from_ne_bytes(len));
        if len != into.len() {
            bail!("the other side offers {len} bytes instead of {}", into.len());
        }
        let mut rest = into;
        while !rest.is_empty() {
            let remote = [RemoteIoVec { base, len: rest.len() }];
            let got = process_vm_readv(self.peer, &mut [IoSliceMut::new(rest)], &remote).context(
                "cannot read the other side's memory with process_vm_readv (yama, seccomp or another user?)",
            )?;
            base += got;
            rest = &mut rest[got..];
        }
        self.words.send(&[1])
    }

    fn stream_out(&mut self, pool: &mut Pool) -> Result<()> {
        let window = UNDER_WAY_MAX.min(pool.slots());
        for message in 0..pool.messages() {
            if message >= window {
                self.answered()?;
            }
            self.offer(pool.fill(message))?;
        }
        for _ in 0..window.min(pool.messages()) {
            self.answered()?;
        }
        Ok(())
    }
}
