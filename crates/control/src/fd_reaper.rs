//! Closes descriptors that clients have sent on a thread of its own, because closing one may take as long as its sender likes.
//!
//! ```text
//!   client ── packet, fds ──► ReceivedFd ─┬─ found to be what the request is about: kept, a descriptor like any other
//!                                         └─ dropped ──► closed by a thread that does nothing else
//! ```
//!
//! The last close of a lingering TCP socket waits for the other side. The last close of a file on a file system of the client's waits for
//! the client. Closing a socket also closes the descriptors that were sent into it. None of this may happen on a thread that serves all
//! clients. The descriptors of each user that wait to be closed are counted, and bounded by `PENDING_MAX`.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};

use isthmus_window::ForeignFile;

/// The number of descriptors of one user that may wait to be closed. Above it the user's connections are ended. Usually none wait.
pub(crate) const PENDING_MAX: usize = 512;

/// The number of waiting descriptors, by user.
static PENDING: Mutex<BTreeMap<u32, usize>> = Mutex::new(BTreeMap::new());

/// A descriptor sent by a client. It may be of any type.
#[derive(Debug)]
pub struct ReceivedFd {
    fd: Option<OwnedFd>,
    owner: u32,
}

impl ReceivedFd {
    /// Takes a descriptor that a process of the user `owner` has sent.
    pub fn new(owner: u32, fd: OwnedFd) -> Self {
        Self { fd: Some(fd), owner }
    }

    /// Returns the plain descriptor, once it is known to be of memory or an event, because closing those takes no time. Also for a thread
    /// that nothing waits for.
    pub fn into_fd(mut self) -> OwnedFd {
        self.fd.take().expect("kept or dropped, and only once")
    }
}

impl AsFd for ReceivedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("kept or dropped, and only once").as_fd()
    }
}

impl ForeignFile for ReceivedFd {}

impl Drop for ReceivedFd {
    fn drop(&mut self) {
        // Only memory files have seals, and each of them closes at once.
        if let Some(fd) = self.fd.take().filter(|fd| rustix::fs::fcntl_get_seals(fd).is_err()) {
            close_later(self.owner, fd);
        }
    }
}

/// The number of descriptors of a user that wait to be closed.
pub(crate) fn pending(owner: u32) -> usize {
    pending_counts().get(&owner).copied().unwrap_or(0)
}

fn pending_counts() -> std::sync::MutexGuard<'static, BTreeMap<u32, usize>> {
    PENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Closes a descriptor on the closing thread.
fn close_later(owner: u32, fd: OwnedFd) {
    static CLOSER: OnceLock<Sender<(u32, OwnedFd)>> = OnceLock::new();
    *pending_counts().entry(owner).or_default() += 1;
    let unsent = CLOSER.get_or_init(spawn_closer).send((owner, fd)).err();
    if let Some(unsent) = unsent {
        close_now(unsent.0); // The thread could not be started.
    }
}

fn spawn_closer() -> Sender<(u32, OwnedFd)> {
    let (closer, descriptors) = channel();
    let thread = std::thread::Builder::new().name("closer".into());
    if let Err(error) = thread.spawn(move || descriptors.into_iter().for_each(close_now)) {
        tracing::warn!(%error, "no thread to close what clients send");
    }
    closer
}

fn close_now((owner, fd): (u32, OwnedFd)) {
    // Fails for files that are not sockets, and changes nothing for sockets that do not linger.
    let _ = rustix::net::sockopt::set_socket_linger(&fd, None);
    drop(fd);
    let mut count = pending_counts();
    if let Some(waiting) = count.get_mut(&owner) {
        *waiting -= 1;
        if *waiting == 0 {
            count.remove(&owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    #[test]
    fn closes_dropped_fds_on_the_closer_thread() {
        let (ours, theirs) = isthmus_platform::seqpacket::pair().unwrap();
        drop(ReceivedFd::new(77_001, theirs));
        // The other end sees the close.
        let mut fds = [rustix::event::PollFd::new(&ours, rustix::event::PollFlags::RDHUP)];
        assert_eq!(rustix::event::poll(&mut fds, None), Ok(1));
        while pending(77_001) > 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn into_fd_keeps_the_descriptor_open() {
        let event = ReceivedFd::new(77_002, eventfd(0, EventfdFlags::CLOEXEC).unwrap()).into_fd();
        assert_eq!(pending(77_002), 0);
        rustix::io::write(&event, &1_u64.to_ne_bytes()).unwrap();
    }
}
