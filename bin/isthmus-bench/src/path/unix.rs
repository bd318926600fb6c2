//! Unix sockets and pipes: made by the leading side, which passes the other ends to the following one.

use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};

use super::Transport;
use super::fds::FdLink;
use crate::control_pipe::ControlPipe;
use crate::job::{Setup, Side};

/// A packet must fit into the socket's buffer, 208 KiB unless the administrator changed it.
const PACKET_MAX: usize = 64 * 1024;

/// A Unix stream socket.
pub(crate) struct Stream(Setup);

/// A Unix sequenced-packet socket.
pub(crate) struct Seqpacket(Setup);

/// Two pipes, one for each direction.
pub(crate) struct Pipe(Setup);

impl Transport for Stream {
    type Link = FdLink;

    fn open(setup: &Setup) -> Result<Self> {
        Ok(Self(setup.clone()))
    }

    fn connect(self, side: Side, control_pipe: &ControlPipe) -> Result<FdLink> {
        FdLink::both_ways(share_pair(side, control_pipe, SocketType::STREAM)?, &self.0, usize::MAX)
    }
}

impl Transport for Seqpacket {
    type Link = FdLink;

    fn open(setup: &Setup) -> Result<Self> {
        Ok(Self(setup.clone()))
    }

    fn connect(self, side: Side, control_pipe: &ControlPipe) -> Result<FdLink> {
        FdLink::both_ways(share_pair(side, control_pipe, SocketType::SEQPACKET)?, &self.0, PACKET_MAX)
    }
}

impl Transport for Pipe {
    type Link = FdLink;

    fn open(setup: &Setup) -> Result<Self> {
        Ok(Self(setup.clone()))
    }

    fn connect(self, side: Side, control_pipe: &ControlPipe) -> Result<FdLink> {
        let (rx, tx) = match side {
            Side::Lead => {
                let (our_rx, their_tx) = pipe_with(PipeFlags::CLOEXEC).context("cannot make a pipe")?;
                let (their_rx, our_tx) = pipe_with(PipeFlags::CLOEXEC).context("cannot make a pipe")?;
                control_pipe.send_with(&"pipes", &[their_rx.as_fd(), their_tx.as_fd()])?;
                (our_rx, our_tx)
            }
            Side::Follow => take_fds::<2>(control_pipe)?.into(),
        };
        FdLink::new(rx, tx, &self.0, usize::MAX)
    }
}

/// The leading side makes a pair of sockets, and passes one of them.
pub(super) fn share_pair(side: Side, control_pipe: &ControlPipe, kind: SocketType) -> Result<OwnedFd> {
    match side {
        Side::Lead => {
            let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
                .context("cannot make a pair of sockets")?;
            control_pipe.send_with(&"socket", &[theirs.as_fd()])?;
            Ok(ours)
        }
        Side::Follow => {
            let [socket] = take_fds(control_pipe)?;
            Ok(socket)
        }
    }
}

/// Takes exactly `N` descriptors from the other side.
pub(super) fn take_fds<const N: usize>(control_pipe: &ControlPipe) -> Result<[OwnedFd; N]> {
    let (_, fds) = control_pipe.recv_with::<String>()?;
    let got = fds.len();
    fds.try_into().map_err(|_| anyhow::anyhow!("the other side sent {got} descriptors instead of {N}"))
}
