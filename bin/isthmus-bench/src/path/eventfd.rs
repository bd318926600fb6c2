//! Two eventfds: the cost of waking a sleeping process and nothing else.

use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result, bail};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read, write};

use super::unix::take_fds;
use super::{Link, Transport};
use crate::control_pipe::ControlPipe;
use crate::job::{Setup, Side};

/// One eventfd for each direction.
pub(crate) struct Eventfd;

/// Rings one, sleeps on the other.
pub(crate) struct EventfdLink {
    ours: OwnedFd,
    theirs: OwnedFd,
}

impl Transport for Eventfd {
    type Link = EventfdLink;

    fn open(_: &Setup) -> Result<Self> {
        Ok(Self)
    }

    fn connect(self, side: Side, control_pipe: &ControlPipe) -> Result<EventfdLink> {
        let [ours, theirs] = match side {
            Side::Lead => {
                let make = || eventfd(0, EventfdFlags::CLOEXEC).context("cannot make an eventfd");
                let (ours, theirs) = (make()?, make()?);
                control_pipe.send_with(&"eventfds", &[theirs.as_fd(), ours.as_fd()])?;
                [ours, theirs]
            }
            Side::Follow => take_fds(control_pipe)?,
        };
        Ok(EventfdLink { ours, theirs })
    }
}

/// The count is the message: 8 bytes that are neither 0, which would wake no process, nor all ones.
impl Link for EventfdLink {
    fn send(&mut self, message: &[u8]) -> Result<()> {
        if message.len() != 8 {
            bail!("an eventfd carries 8 bytes, not {}", message.len());
        }
        write(&self.theirs, message).context("cannot ring an eventfd").map(drop)
    }

    fn recv(&mut self, into: &mut [u8]) -> Result<()> {
        loop {
            match read(&self.ours, &mut *into) {
                Ok(8) => return Ok(()),
                Ok(got) => bail!("an eventfd gave {got} bytes"),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno).context("cannot wait on an eventfd"),
            }
        }
    }
}
