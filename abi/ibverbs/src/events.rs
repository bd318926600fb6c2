//! Completion channels and asynchronous events.
//!
//! libibverbs reads the address of a completion queue from the descriptor of a channel, and a record from that of asynchronous events. Both
//! are pipes here, which only this process writes. An event is written by the call that finds it: that is `ibv_get_cq_event()` itself while
//! the program sleeps there, and the serving thread while it sleeps on a descriptor in another way. A program that arms a queue arms the
//! domain as well, so a doorbell wakes the thread.
//!
//! A pipe is written without blocking. An event that finds no room waits here until the next iteration.

use crate::abi::consts::*;
use crate::abi::requests::AsyncEventRecord;
use isthmus_verbs::{AsyncEvent, Cq, Engine};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The bytes of a record of libibverbs' that names a completion queue.
const CQ_BYTES: usize = 8;

/// The bytes of a record of an asynchronous event.
const ASYNC_BYTES: usize = size_of::<AsyncEventRecord>();

/// A pipe of records of `N` bytes. Both ends are open here, so that a program that closes its own end is sent no signal.
#[derive(Debug)]
pub(crate) struct EventPipe<const N: usize> {
    read: OwnedFd,
    write: OwnedFd,
    /// Counts records that were written. Changed under the lock of the device.
    sent: AtomicU32,
    /// Counts records that were taken back, or that the program has read or is about to read.
    taken: AtomicU32,
}

impl<const N: usize> EventPipe<N> {
    /// Returns the pipe, and the end for the program.
    pub(crate) fn new() -> rustix::io::Result<(Self, OwnedFd)> {
        let (program, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let flags = rustix::fs::fcntl_getfl(&write)?;
        rustix::fs::fcntl_setfl(&write, flags | OFlags::NONBLOCK)?;
        let read = rustix::io::fcntl_dupfd_cloexec(&program, 3)?;
        Ok((Self { read, write, sent: AtomicU32::new(0), taken: AtomicU32::new(0) }, program))
    }

    /// Writes a record. False if there is no room now.
    fn send(&self, record: [u8; N]) -> bool {
        let written = !matches!(rustix::io::write(&self.write, &record), Err(Errno::AGAIN | Errno::INTR));
        self.sent.store(self.sent().wrapping_add(u32::from(written)), Ordering::Relaxed);
        written
    }

    /// True if a record waits to be read, as far as is known. Counts it as read.
    pub(crate) fn take(&self) -> bool {
        let next = |taken: u32| (self.sent() != taken).then(|| taken.wrapping_add(1));
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }

    /// The number of records written so far.
    pub(crate) fn sent(&self) -> u32 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Takes records back that the program has not read, and that `of` picks out. Returns their number. The others keep their order.
    fn take_back(&self, of: impl Fn(&[u8; N]) -> bool) -> u32 {
        let (mut taken, mut others) = (0, Vec::new());
        while is_readable(self.read.as_fd()) {
            let mut record = [0; N];
            match rustix::io::read(&self.read, &mut record) {
                Ok(read) if read == N => {}
                _ => break,
            }
            self.take();
            if of(&record) {
                taken += 1;
            } else {
                others.push(record);
            }
        }
        others.into_iter().for_each(|record| _ = self.send(record));
        taken
    }
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec};
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// A completion channel.
pub(crate) type ChannelPipe = EventPipe<CQ_BYTES>;

/// A completion queue as its channel names it.
#[derive(Debug)]
struct Listener {
    channel: Arc<ChannelPipe>,
    /// The address of the object in the program.
    cq: u64,
    /// Events written to the channel.
    written: u32,
}

/// An object as asynchronous events name it.
#[derive(Clone, Copy, Debug, Default)]
struct Named {
    address: u64,
    written: u32,
}

/// An object that asynchronous events may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Object {
    Cq(u32),
    Qp(u32),
    Srq(u32),
}

/// The receivers of the events of an open device.
#[derive(Debug)]
pub(crate) struct Events {
    listeners: HashMap<Cq, Listener>,
    /// There was more than one channel.
    several_channels: bool,
    objects: HashMap<Object, Named>,
    asynchronous: EventPipe<ASYNC_BYTES>,
    /// Events that found no room.
    waiting: VecDeque<Waiting>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    Completion(Cq),
    Asynchronous(AsyncEvent),
}

impl Events {
    /// Returns the receivers, and the descriptor of asynchronous events for the program.
    pub(crate) fn new() -> rustix::io::Result<(Self, OwnedFd)> {
        let (asynchronous, async_fd) = EventPipe::new()?;
        let (listeners, objects) = (HashMap::new(), HashMap::new());
        Ok((Self { listeners, several_channels: false, objects, asynchronous, waiting: VecDeque::new() }, async_fd))
    }

    /// True if a program asked for an event on another channel as well. `is_armed` says whether it did for a queue.
    pub(crate) fn is_other_armed(&self, channel: &Arc<ChannelPipe>, is_armed: impl Fn(Cq) -> bool) -> bool {
        self.several_channels
            && self.listeners.iter().any(|(cq, listener)| !Arc::ptr_eq(&listener.channel, channel) && is_armed(*cq))
    }

    /// A completion queue reports on a channel.
    pub(crate) fn listen(&mut self, cq: Cq, address: u64, channel: Arc<ChannelPipe>) {
        self.several_channels |=
            self.listeners.values().next().is_some_and(|other| !Arc::ptr_eq(&other.channel, &channel));
        self.listeners.insert(cq, Listener { channel, cq: address, written: 0 });
    }

    /// An object of the program has this address.
    pub(crate) fn name(&mut self, object: Object, address: u64) {
        self.objects.insert(object, Named { address, written: 0 });
    }

    /// A completion queue ends: returns the number of its completion events that the program has read.
    pub(crate) fn forget_cq(&mut self, cq: Cq) -> u32 {
        self.waiting.retain(|waiting| *waiting != Waiting::Completion(cq));
        let Some(listener) = self.listeners.remove(&cq) else { return 0 };
        listener.written - listener.channel.take_back(|record| u64::from_ne_bytes(*record) == listener.cq)
    }

    /// An object ends: returns the number of its asynchronous events that the program has read.
    pub(crate) fn forget(&mut self, object: Object) -> u32 {
        self.waiting.retain(|waiting| match waiting {
            Waiting::Asynchronous(event) => object_of(event).0 != object,
            Waiting::Completion(_) => true,
        });
        let Some(named) = self.objects.remove(&object) else { return 0 };
        named.written - self.asynchronous.take_back(|record| record[..8] == named.address.to_ne_bytes())
    }

    /// True if events wait for room.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Writes all events of the engine.
    pub(crate) fn deliver(&mut self, engine: &mut Engine) {
        while let Some(cq) = engine.next_completion_event() {
            self.waiting.push_back(Waiting::Completion(cq));
        }
        while let Some(event) = engine.next_async_event() {
            self.waiting.push_back(Waiting::Asynchronous(event));
        }
        for _ in 0..self.waiting.len() {
            let Some(event) = self.waiting.pop_front() else { return };
            let written = match event {
                Waiting::Completion(cq) => self.write_completion(cq),
                Waiting::Asynchronous(event) => self.write_asynchronous(&event),
            };
            if !written && !self.waiting.contains(&event) {
                self.waiting.push_back(event);
            }
        }
    }

    /// False if there is no room. An event of a queue without a channel is dropped.
    fn write_completion(&mut self, cq: Cq) -> bool {
        let Some(listener) = self.listeners.get_mut(&cq) else { return true };
        let written = listener.channel.send(listener.cq.to_ne_bytes());
        listener.written += u32::from(written);
        written
    }

    fn write_asynchronous(&mut self, event: &AsyncEvent) -> bool {
        let (object, event_type) = object_of(event);
        let Some(named) = self.objects.get_mut(&object) else { return true };
        let mut record = [0; ASYNC_BYTES];
        record[..8].copy_from_slice(&named.address.to_ne_bytes());
        record[8..12].copy_from_slice(&event_type.to_ne_bytes());
        let written = self.asynchronous.send(record);
        named.written += u32::from(written);
        written
    }
}

/// The object of an event, and the number of the event.
fn object_of(event: &AsyncEvent) -> (Object, u32) {
    match event {
        AsyncEvent::CqError(cq) => (Object::Cq(cq.number()), EVENT_CQ_ERR),
        AsyncEvent::QpRequestError(qp) => (Object::Qp(qp.0), EVENT_QP_REQ_ERR),
        AsyncEvent::QpAccessError(qp) => (Object::Qp(qp.0), EVENT_QP_ACCESS_ERR),
        AsyncEvent::SendQueueDrained(qp) => (Object::Qp(qp.0), EVENT_SQ_DRAINED),
        AsyncEvent::LastRequestReached(qp) => (Object::Qp(qp.0), EVENT_QP_LAST_WQE_REACHED),
        AsyncEvent::SrqLimitReached(srq) => (Object::Srq(srq.number()), EVENT_SRQ_LIMIT_REACHED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_were_not_read_are_taken_back_and_others_stay_in_order() {
        let (pipe, program) = ChannelPipe::new().expect("descriptors");
        for record in [1_u64, 2, 1, 3] {
            assert!(pipe.send(record.to_ne_bytes()));
        }
        let mut first = [0; 8];
        assert_eq!(rustix::io::read(&program, &mut first).ok(), Some(8));
        assert!(pipe.take(), "the one that was read");
        assert_eq!(pipe.take_back(|record| *record == 1_u64.to_ne_bytes()), 1);
        let mut rest = [0; 32];
        assert_eq!(rustix::io::read(&program, &mut rest).ok(), Some(16));
        let numbers: Vec<u64> = rest.chunks_exact(8).map(|n| u64::from_ne_bytes(n.try_into().expect("8"))).collect();
        assert_eq!((first, &numbers[..2]), (1_u64.to_ne_bytes(), &[2, 3][..]));
        assert!(pipe.take() && pipe.take() && !pipe.take(), "those that were left");
    }

    #[test]
    fn an_event_without_room_waits() {
        let (mut events, _async_fd) = Events::new().expect("descriptors");
        let (channel, program) = ChannelPipe::new().expect("descriptors");
        let channel = Arc::new(channel);
        while channel.send([7; 8]) {}
        let mut engine = Engine::new(1);
        let cq = engine.create_cq(1).expect("a queue");
        events.listen(cq, 99, Arc::clone(&channel));
        events.waiting.push_back(Waiting::Completion(cq));
        events.deliver(&mut engine);
        assert!(events.has_waiting());
        let mut bytes = vec![0; 1 << 20];
        let full = rustix::io::read(&program, &mut bytes).expect("what was sent");
        assert!(full >= 4096);
        events.deliver(&mut engine);
        assert!(!events.has_waiting());
        assert_eq!(rustix::io::read(&program, &mut bytes[..64]).ok(), Some(8));
        assert_eq!(bytes[..8], 99_u64.to_ne_bytes());
        assert_eq!(events.forget_cq(cq), 1);
    }
}
