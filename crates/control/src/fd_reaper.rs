//! Descriptors that clients have sent, and how the daemon gets rid of them: closing one may take as long as its sender likes.
//!
//! ```text
//!   client ── packet, fds ──► ReceivedFd ─┬─ found to be what the request is about: kept, a descriptor like any other
//!                                         └─ dropped ──► closed by a thread that does nothing else
//! ```
//!
//! The last close of a TCP socket that lingers waits for the other side; that of a file on a file system of the client's own waits
//! for the client; and a socket closes what was sent into it. None of that may happen on a thread that serves everybody. What one
//! user has waiting to be closed is counted, and bounded by [`PENDING_MAX`].

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Descriptors of one user that wait to be closed, from which on its connections are ended. Where all is well there are none.
pub(crate) const PENDING_MAX: usize = 512;

/// How many wait, by user.
static PENDING: Mutex<BTreeMap<u32, usize>> = Mutex::new(BTreeMap::new());

/// A descriptor as a client has sent it: it may be of anything.
#[derive(Debug)]
pub struct ReceivedFd {
    fd: Option<OwnedFd>,
    owner: u32,
}

impl ReceivedFd {
    /// Sent by a process of that user.
    pub(crate) fn new(owner: u32, fd: OwnedFd) -> Self {
        Self { fd: Some(fd), owner }
    }

    /// A plain descriptor, once it was found to be of memory or of an event: closing those takes no time.
    pub(crate) fn into_fd(mut self) -> OwnedFd {
        self.fd.take().expect("kept or dropped, and only once")
    }
}

impl AsFd for ReceivedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("kept or dropped, and only once").as_fd()
    }
}

impl Drop for ReceivedFd {
    fn drop(&mut self) {
        // Only memory files have seals, and each of them closes at once.
        if let Some(fd) = self.fd.take().filter(|fd| rustix::fs::fcntl_get_seals(fd).is_err()) {
            close_later(self.owner, fd);
        }
    }
}

/// How many descriptors of a user wait to be closed.
pub(crate) fn pending(owner: u32) -> usize {
    pending_counts().get(&owner).copied().unwrap_or(0)
}

fn pending_counts() -> std::sync::MutexGuard<'static, BTreeMap<u32, usize>> {
    PENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Closes it on the thread for that.
fn close_later(owner: u32, fd: OwnedFd) {
    static CLOSER: OnceLock<Sender<(u32, OwnedFd)>> = OnceLock::new();
    *pending_counts().entry(owner).or_default() += 1;
    let unsent = CLOSER.get_or_init(spawn_closer).send((owner, fd)).err();
    if let Some(unsent) = unsent {
        close_now(unsent.0); // There is no such thread: the system gives us none.
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
    // Refused for what is no socket, and for sockets that do not linger it changes nothing.
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
        // Its end, seen from the other one.
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
