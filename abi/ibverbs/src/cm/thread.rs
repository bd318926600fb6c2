//! The thread that takes what arrives, and ends what takes too long.

use super::{Service, Token, lock, now};
use isthmus_client::serving::{self, ServingThread};
use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::RecvFlags;

/// The stack of the thread.
const STACK_BYTES: usize = 256 << 10;

/// Events that one look takes.
const EVENTS: usize = 64;

/// Starts the thread for the manager that was just made. It ends with the process.
pub(super) fn start() -> Result<(), Errno> {
    let thread = std::thread::Builder::new().name("isthmus-cm".into()).stack_size(STACK_BYTES);
    let main = || {
        // SAFETY: a thread of `std`. Outside of the gate, `run` only waits for events, into its stack.
        unsafe { serving::run(run) }
    };
    thread.spawn(main).map(drop).map_err(|_| Errno::AGAIN)
}

fn run(thread: &mut ServingThread) {
    let inside = thread.enter();
    // The set stays open as long as the process.
    let epoll = match lock().as_ref().map(|service| service.epoll.as_fd().try_clone_to_owned()) {
        Some(Ok(epoll)) => epoll,
        _ => return,
    };
    drop(inside);
    loop {
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; EVENTS];
        let Some(count) = wait(&epoll, &mut events) else { return };
        let _inside = thread.enter();
        let mut service = lock();
        let Some(service) = service.as_mut() else { return };
        service.manager.set_time(now());
        for event in &events[..count] {
            service.handle(Token::unpack(event.data), event.flags);
        }
        service.resume_listeners();
        service.perform();
    }
}

fn wait(epoll: &OwnedFd, events: &mut [epoll::Event; EVENTS]) -> Option<usize> {
    loop {
        match epoll::wait(epoll, &mut events[..], None) {
            Ok(count) => return Some(count),
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

impl Service {
    fn handle(&mut self, token: Token, flags: epoll::EventFlags) {
        match token {
            Token::Timer => {
                let mut expirations = [0; 8];
                let _ = rustix::io::read(&self.timer, &mut expirations);
                self.next = None;
            }
            Token::Channel(channel) => {
                let Some(known) = self.channels.get(&channel) else { return };
                let ended = match rustix::net::recv(&known.ours, &mut [0; 16], RecvFlags::DONTWAIT) {
                    Ok((count, _)) => count == 0,
                    Err(errno) => errno != Errno::AGAIN,
                };
                if ended || flags.contains(epoll::EventFlags::HUP) {
                    self.channels.remove(&channel);
                    self.manager.close_channel(channel);
                }
            }
            Token::Datagrams(id) => self.receive_datagrams(id),
            Token::Listener(id) => self.take_streams(id),
            Token::Stream(id) => self.receive(id, flags),
            Token::Pending(number) => self.receive_request(number),
        }
        self.perform();
    }
}
