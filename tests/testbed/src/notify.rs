//! The service manager's side of sd_notify(3): a datagram socket on which a daemon says `READY=1`.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use crate::deadline::{Deadline, TimedOut};
use crate::fd_store::FdStore;

/// Descriptors that come with one message at most (`SCM_MAX_FD`).
const FDS_MAX: usize = 253;

/// Receives the messages of a daemon to its service manager.
#[derive(Debug)]
pub struct NotifySocket {
    socket: UnixDatagram,
    path: PathBuf,
    /// The messages received, one `NAME=value` each.
    said: Vec<String>,
    store: FdStore,
}

/// The awaited word did not come.
#[derive(Debug, thiserror::Error)]
pub enum NotifyError {
    /// The awaited message did not come in time.
    #[error("no {awaited}, only {said:?}: {late}")]
    TimedOut {
        /// The message that was awaited.
        awaited: String,
        /// The messages that came instead.
        said: Vec<String>,
        /// The time waited.
        #[source]
        late: TimedOut,
    },
    /// The process behind it ended.
    #[error("ended before {awaited}, after {said:?}")]
    Ended {
        /// The message that was awaited.
        awaited: String,
        /// The messages that came instead.
        said: Vec<String>,
    },
    /// The socket failed.
    #[error("notify socket")]
    Socket(#[from] io::Error),
}

impl NotifySocket {
    /// Listens at `path`, which goes into `$NOTIFY_SOCKET` of the daemon.
    pub fn listen(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        let socket = UnixDatagram::bind(&path)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, path, said: Vec::new(), store: FdStore::default() })
    }

    /// Returns the path at which the socket listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Everything said since the last [`NotifySocket::forget`], one `NAME=value` each.
    pub fn messages(&mut self) -> io::Result<&[String]> {
        self.drain()?;
        Ok(&self.said)
    }

    /// Returns the descriptors that were stored here for a later daemon.
    pub fn store(&mut self) -> io::Result<&FdStore> {
        self.drain()?;
        Ok(&self.store)
    }

    /// Forgets what was said, so that a restarted daemon has to say it again.
    pub fn forget(&mut self) -> io::Result<()> {
        self.drain()?;
        self.said.clear();
        Ok(())
    }

    /// Waits until `word` (`READY=1`) has been said, or the process of `pidfd` has ended.
    pub fn wait(&mut self, word: &str, pidfd: BorrowedFd<'_>, deadline: Deadline) -> Result<(), NotifyError> {
        loop {
            let [_, dead] = match deadline.readable([self.socket.as_fd(), pidfd]) {
                Ok(ready) => ready,
                Err(late) => return Err(NotifyError::TimedOut { awaited: word.into(), said: self.said.clone(), late }),
            };
            self.drain()?; // After learning of a death: what it said before is all here.
            if self.said.iter().any(|said| said == word) {
                return Ok(());
            }
            if dead {
                return Err(NotifyError::Ended { awaited: word.into(), said: self.said.clone() });
            }
        }
    }

    fn drain(&mut self) -> io::Result<()> {
        let mut packet = [0; 4096];
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC;
            match rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(&mut packet)], &mut ancillary, flags) {
                Ok(message) => {
                    let text = String::from_utf8_lossy(&packet[..message.bytes]).into_owned();
                    let mut fds = Vec::new();
                    for part in ancillary.drain() {
                        if let RecvAncillaryMessage::ScmRights(came) = part {
                            fds.extend(came);
                        }
                    }
                    self.store.take(&text, fds);
                    self.said.extend(text.lines().map(str::to_owned));
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
