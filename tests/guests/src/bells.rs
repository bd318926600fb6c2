//! The server of two guests' ivshmem devices with doorbells, each of which rings the other. The host is no peer.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::IoSlice;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

pub(crate) const VECTORS: usize = 2;

/// The size of a window that is used for nothing.
const WINDOW_BYTES: u64 = 1 << 20;

/// The doorbells of both guests. The peer number of a guest is its own plus one.
#[derive(Debug)]
pub(crate) struct Bells {
    listeners: [(UnixListener, PathBuf); 2],
    events: [[OwnedFd; VECTORS]; 2],
    window: OwnedFd,
}

impl Bells {
    /// Creates the sockets in a folder.
    pub(crate) fn listen(folder: &Path) -> Self {
        let listeners = [0, 1].map(|number| {
            let path = folder.join(format!("bells{number}"));
            (UnixListener::bind(&path).expect("a socket in our folder"), path)
        });
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
        let window = memfd_create("bells", MemfdFlags::CLOEXEC).expect("a memory file");
        ftruncate(&window, WINDOW_BYTES).expect("a memory file can grow");
        Self { listeners, events: [0, 1].map(|_| [0; VECTORS].map(|_| event())), window }
    }

    /// Returns the options of QEMU for a guest's device.
    pub(crate) fn device(&self, number: usize) -> [String; 4] {
        let socket = format!("socket,id=bells,path={}", self.listeners[number].1.display());
        let device = format!("ivshmem-doorbell,chardev=bells,vectors={VECTORS}");
        ["-chardev".to_owned(), socket, "-device".to_owned(), device]
    }

    /// Serves the next connection to a guest's socket. The guest has its device as long as the result lives.
    pub(crate) fn serve(&self, number: usize) -> UnixStream {
        let (to, _) = self.listeners[number].0.accept().expect("QEMU connects");
        let peer = |number: usize| i64::try_from(number + 1).expect("a small number");
        send(&to, 0, None);
        send(&to, peer(number), None);
        send(&to, -1, Some(self.window.as_fd()));
        for number in [1 - number, number] {
            self.events[number].iter().for_each(|event| send(&to, peer(number), Some(event.as_fd())));
        }
        to
    }
}

/// Sends one message of the device's protocol.
fn send(to: &UnixStream, value: i64, descriptor: Option<BorrowedFd<'_>>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<_> = descriptor.into_iter().collect();
    if !descriptors.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)), "there is space for one");
    }
    let sent = sendmsg(to, &[IoSlice::new(&value.to_le_bytes())], &mut ancillary, SendFlags::NOSIGNAL);
    assert_eq!(sent, Ok(8), "QEMU reads");
}
