//! A socket on which two of our processes exchange short messages and file descriptors while nothing is being measured.
//!
//! `SOCK_SEQPACKET`, one message a packet. A worker has two: one to the program that started it, and one to the other side
//! of its pair, by which the sides exchange their addresses and the amount of the next step.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest message: a histogram of round trips needs some ten KiB.
const BYTES_MAX: usize = 128 * 1024;
/// The most descriptors with one message.
const FDS_MAX: usize = 4;

/// One end of such a socket.
#[derive(Debug)]
pub(crate) struct ControlPipe(OwnedFd);

impl ControlPipe {
    /// Both ends of a new one.
    pub(crate) fn pair() -> Result<(Self, Self)> {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .context("cannot make a pair of sockets")?;
        Ok((Self(a), Self(b)))
    }

    /// An end that was made elsewhere.
    pub(crate) fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    pub(crate) fn into_fd(self) -> OwnedFd {
        self.0
    }

    pub(crate) fn send<T: Serialize>(&self, message: &T) -> Result<()> {
        self.send_with(message, &[])
    }

    /// Sends a message and copies of descriptors.
    pub(crate) fn send_with<T: Serialize>(&self, message: &T, fds: &[BorrowedFd<'_>]) -> Result<()> {
        let bytes = serde_json::to_vec(message).context("cannot write a message as JSON")?;
        if bytes.len() > BYTES_MAX || fds.len() > FDS_MAX {
            bail!("a message of {} bytes and {} descriptors is too long", bytes.len(), fds.len());
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            bail!("no room for {} descriptors", fds.len());
        }
        match sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL) {
            Ok(_) => Ok(()),
            Err(Errno::PIPE | Errno::CONNRESET) => bail!("the other side has gone"),
            Err(errno) => Err(errno).context("cannot send to the other side"),
        }
    }

    pub(crate) fn recv<T: DeserializeOwned>(&self) -> Result<T> {
        Ok(self.recv_with()?.0)
    }

    /// Waits for a message and takes the descriptors that came with it.
    pub(crate) fn recv_with<T: DeserializeOwned>(&self) -> Result<(T, Vec<OwnedFd>)> {
        let mut bytes = vec![0; BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = loop {
            match recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => bail!("the other side has gone"),
                other => break other.context("cannot receive from the other side")?,
            }
        };
        if got.bytes == 0 {
            bail!("the other side has gone");
        }
        if got.flags.contains(ReturnFlags::TRUNC) {
            bail!("a message of the other side was cut at {BYTES_MAX} bytes");
        }
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                fds.extend(received);
            }
        }
        let message =
            serde_json::from_slice(&bytes[..got.bytes]).context("cannot understand a message of the other side")?;
        Ok((message, fds))
    }

    /// Returns when both sides have called it.
    pub(crate) fn barrier(&self) -> Result<()> {
        self.send(&"here")?;
        let word: String = self.recv()?;
        if word != "here" {
            bail!("expected the other side at the barrier, it said {word:?}");
        }
        Ok(())
    }
}

impl AsFd for ControlPipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_descriptors_arrive_together() {
        let (near, far) = ControlPipe::pair().expect("pair");
        let (reader, writer) = rustix::pipe::pipe().expect("pipe");
        near.send_with(&("port", 7), &[writer.as_fd()]).expect("sent");
        let ((word, number), fds): ((String, u32), _) = far.recv_with().expect("received");
        assert_eq!((word.as_str(), number, fds.len()), ("port", 7, 1));
        rustix::io::write(&fds[0], b"x").expect("written");
        let mut byte = [0];
        assert_eq!(rustix::io::read(&reader, &mut byte).expect("read"), 1);
    }

    #[test]
    fn closed_peer_is_an_error() {
        let (near, far) = ControlPipe::pair().expect("pair");
        drop(far);
        assert!(near.send(&1).is_err());
        assert!(near.recv::<u32>().is_err());
    }
}
