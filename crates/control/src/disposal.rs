//! Descriptors that clients have sent, and how the daemon gets rid of them: closing one may take as long as its sender likes.
//!
//! ```text
//!   client ── packet, fds ──► Given ─┬─ found to be what the request is about: kept, a descriptor like any other
//!                                    └─ dropped ──► closed by a thread that does nothing else
//! ```
//!
//! The last close of a TCP socket that lingers waits for the other side; that of a file on a file system of the client's own waits
//! for the client; and a socket closes what was sent into it. None of that may happen on a thread that serves everybody. What one
//! user has waiting to be closed is counted, and bounded by [`WAITING_MAX`].

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Descriptors of one user that wait to be closed, from which on its connections are ended. Where all is well there are none.
pub(crate) const WAITING_MAX: usize = 512;

/// How many wait, by user.
static WAITING: Mutex<BTreeMap<u32, usize>> = Mutex::new(BTreeMap::new());

/// A descriptor as a client has sent it: it may be of anything.
#[derive(Debug)]
pub struct Given {
    fd: Option<OwnedFd>,
    owner: u32,
}

impl Given {
    /// Sent by a process of that user.
    pub(crate) fn by(owner: u32, fd: OwnedFd) -> Self {
        Self { fd: Some(fd), owner }
    }

    /// An ordinary descriptor, once it was found to be of memory or of an event: closing those takes no time.
    pub(crate) fn keep(mut self) -> OwnedFd {
        self.fd.take().expect("kept or dropped, and only once")
    }
}

impl AsFd for Given {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("kept or dropped, and only once").as_fd()
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        // Only memory files have seals, and each of them closes at once.
        if let Some(fd) = self.fd.take().filter(|fd| rustix::fs::fcntl_get_seals(fd).is_err()) {
            close(self.owner, fd);
        }
    }
}

/// How many descriptors of a user wait to be closed.
pub(crate) fn waiting(owner: u32) -> usize {
    count().get(&owner).copied().unwrap_or(0)
}

fn count() -> std::sync::MutexGuard<'static, BTreeMap<u32, usize>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Closes it on the thread for that.
fn close(owner: u32, fd: OwnedFd) {
    static CLOSER: OnceLock<Sender<(u32, OwnedFd)>> = OnceLock::new();
    *count().entry(owner).or_default() += 1;
    let unsent = CLOSER.get_or_init(start).send((owner, fd)).err();
    if let Some(unsent) = unsent {
        closed(unsent.0); // There is no such thread: the system gives us none.
    }
}

fn start() -> Sender<(u32, OwnedFd)> {
    let (closer, descriptors) = channel();
    let thread = std::thread::Builder::new().name("closer".into());
    if let Err(error) = thread.spawn(move || descriptors.into_iter().for_each(closed)) {
        tracing::warn!(%error, "no thread to close what clients send");
    }
    closer
}

fn closed((owner, fd): (u32, OwnedFd)) {
    // Refused for what is no socket, and for sockets that do not linger it changes nothing.
    let _ = rustix::net::sockopt::set_socket_linger(&fd, None);
    drop(fd);
    let mut count = count();
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
    fn what_is_dropped_is_closed_elsewhere_and_counted_until_then() {
        let (ours, theirs) = isthmus_platform::seqpacket::pair().unwrap();
        drop(Given::by(77_001, theirs));
        // Its end, seen from the other one.
        let mut fds = [rustix::event::PollFd::new(&ours, rustix::event::PollFlags::RDHUP)];
        assert_eq!(rustix::event::poll(&mut fds, None), Ok(1));
        while waiting(77_001) > 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_is_kept_stays_open() {
        let event = Given::by(77_002, eventfd(0, EventfdFlags::CLOEXEC).unwrap()).keep();
        assert_eq!(waiting(77_002), 0);
        rustix::io::write(&event, &1_u64.to_ne_bytes()).unwrap();
    }
}
