//! A link over file descriptors that carry bytes: sockets and pipes, in both wait styles.

use std::os::fd::OwnedFd;

use anyhow::{Context, Result, bail};
use rustix::io::{Errno, ioctl_fionbio, read, write};

use crate::job::{Setup, Wait};
use crate::path::Link;

/// Reads from one descriptor and writes to the other; they may be the same socket twice.
///
/// Polling means non-blocking descriptors tried again and again; sleeping means blocking ones. A message of 0 bytes goes as one byte,
/// as a stream has no empty messages.
#[derive(Debug)]
pub(crate) struct FdLink {
    rx: OwnedFd,
    tx: OwnedFd,
    /// The most bytes one system call may move: both sides cut messages at the same places, so packets fit their reads.
    piece_max: usize,
}

impl FdLink {
    pub(crate) fn new(rx: OwnedFd, tx: OwnedFd, setup: &Setup, piece_max: usize) -> Result<Self> {
        let poll = setup.wait == Wait::Poll;
        ioctl_fionbio(&rx, poll).context("cannot choose whether to block")?;
        ioctl_fionbio(&tx, poll).context("cannot choose whether to block")?;
        Ok(Self { rx, tx, piece_max })
    }

    /// Uses one socket for both directions.
    pub(crate) fn both_ways(socket: OwnedFd, setup: &Setup, piece_max: usize) -> Result<Self> {
        let other = socket.try_clone().context("cannot duplicate a socket")?;
        Self::new(socket, other, setup, piece_max)
    }
}

impl Link for FdLink {
    fn send(&mut self, message: &[u8]) -> Result<()> {
        let message = if message.is_empty() { &[0] } else { message };
        for piece in message.chunks(self.piece_max) {
            let mut rest = piece;
            while !rest.is_empty() {
                match write(&self.tx, rest) {
                    Ok(written) => rest = &rest[written..],
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    Err(errno) => return Err(errno).context("cannot send"),
                }
            }
        }
        Ok(())
    }

    fn recv(&mut self, into: &mut [u8]) -> Result<()> {
        let mut empty = [0];
        let into = if into.is_empty() { &mut empty[..] } else { into };
        for piece in into.chunks_mut(self.piece_max) {
            let mut filled = 0;
            while filled < piece.len() {
                match read(&self.rx, &mut piece[filled..]) {
                    Ok(0) => bail!("the other side has closed its end"),
                    Ok(got) => filled += got,
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    Err(errno) => return Err(errno).context("cannot receive"),
                }
            }
        }
        Ok(())
    }
}
