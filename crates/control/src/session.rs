//! One connection: packets in, at a bounded rate; packets out, as fast as they are taken, from a bounded queue.
//!
//! What is to be sent is first tried at once; what the socket does not take waits here, and the connection's task sends it later. A
//! domain that takes nothing any more is dropped when its queue is full, never before: a program may compute for hours.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use isthmus_layout::board::Place;
use isthmus_layout::border;
use isthmus_layout::control::{
    ANSWER_BYTES_MAX, Answer, Bytes, HEADER_BYTES, Nudge, RequestSerial, ToClient, serial_of,
};
use isthmus_layout::limits::CONTROL_FDS_MAX;
use isthmus_platform::seqpacket::{self, ReceiveError, SendError};
use isthmus_shm::{Marker, Window};
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::broker::SessionId;
use crate::disposal::Given;
use crate::ground::Item;
use crate::watched;

/// Messages that wait for one connection.
pub(crate) const QUEUE_MAX: usize = 8192;

/// Packets that a connection may send at once, and in a second. Beyond it is read more slowly.
const BURST: f64 = 4096.0;
const PER_SECOND: f64 = 1024.0;

/// A report costs as much to make as so many other requests.
const REPORT_COST: f64 = 32.0;

/// Reports that wait for one connection; each may be large.
const REPORTS_MAX: usize = 8;

/// Bytes of packets in the kernel for one connection. It also bounds how many descriptors are under way in it.
const SEND_BUFFER_BYTES: usize = 64 << 10;

/// How long a connection that is over has to take what was sent before.
pub(crate) const LINGER: Duration = Duration::from_secs(1);

/// After descriptors of this user filled the kernel's count.
const RETRY: Duration = Duration::from_millis(20);

struct Packet {
    bytes: Vec<u8>,
    items: Vec<Item>,
}

struct Report {
    serial: Option<RequestSerial>,
    json: Vec<u8>,
    sent: usize,
}

impl Report {
    /// The next part; none after the last.
    fn next(&mut self) -> Option<Packet> {
        let rest = &self.json[self.sent..];
        if rest.is_empty() {
            return None;
        }
        let part = &rest[..rest.len().min(ANSWER_BYTES_MAX)];
        self.sent += part.len();
        let json = Bytes::new(part.to_vec()).expect("cut to the maximum above");
        let last = self.sent == self.json.len();
        Some(Packet { bytes: ToClient::from(Answer { last, json }).emit(self.serial), items: Vec::new() })
    }
}

/// What came of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// Everything has gone out.
    All,
    /// Something waits for room in the socket.
    Waits,
    /// The other side is gone.
    Broken,
}

/// A connection as the server knows it.
pub(crate) struct Connection {
    pub(crate) id: SessionId,
    /// User and process at the other end.
    credentials: (u32, Option<i32>),
    /// A border is in between, where descriptors become places.
    border: bool,
    /// Watched for what comes in, and not for room: workers wake the domain by it, and we need not wake with it.
    socket: AsyncFd<OwnedFd>,
    /// The same while something waits for room.
    room: RefCell<Option<Rc<AsyncFd<OwnedFd>>>>,
    queue: RefCell<VecDeque<Packet>>,
    reports: RefCell<VecDeque<Report>>,
    marker: RefCell<Option<Marker<Window>>>,
    /// The process behind it, once it is a domain.
    process: OnceCell<AsyncFd<OwnedFd>>,
    /// Something has changed that its task should look at.
    pub(crate) changed: Notify,
    over: Cell<Option<Instant>>,
    /// When to try again what the kernel refused for a passing reason.
    retry: Cell<Option<Instant>>,
    bucket: RefCell<Bucket>,
    /// Is known to be read slowly.
    throttled: Cell<bool>,
}

/// What a connection's task should do next.
pub(crate) enum Next {
    /// A packet.
    Packet(Vec<u8>, Vec<Given>),
    /// What came is longer than any message.
    Unreceivable(String),
    /// What came had descriptors that this process could not open.
    DescriptorsLost(Option<RequestSerial>),
    /// The connection is closed, or its process has ended.
    Gone,
    /// It has sent so much that it is read more slowly from now on.
    Throttled,
    /// Room, or something new to send.
    Flush,
}

impl Connection {
    /// With a process of this host.
    pub(crate) fn new(id: SessionId, socket: OwnedFd) -> io::Result<Self> {
        let stream = UnixStream::from_std(socket.into())?;
        let known = stream.peer_cred()?;
        let credentials = (known.uid(), known.pid().filter(|pid| *pid > 0));
        Self::over(id, stream.into_std()?.into(), credentials, false)
    }

    /// With a program of a guest, by way of its border.
    pub(crate) fn across(id: SessionId, socket: OwnedFd, uid: u32) -> io::Result<Self> {
        Self::over(id, socket, (uid, None), true)
    }

    fn over(id: SessionId, socket: OwnedFd, credentials: (u32, Option<i32>), border: bool) -> io::Result<Self> {
        rustix::net::sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER_BYTES)?;
        Ok(Self {
            id,
            credentials,
            border,
            socket: watched::watched(socket)?,
            room: RefCell::default(),
            queue: RefCell::default(),
            reports: RefCell::default(),
            marker: RefCell::default(),
            process: OnceCell::new(),
            retry: Cell::new(None),
            changed: Notify::new(),
            over: Cell::new(None),
            bucket: RefCell::new(Bucket { tokens: BURST, at: Instant::now() }),
            throttled: Cell::new(false),
        })
    }

    /// User and process at the other end.
    pub(crate) fn credentials(&self) -> (u32, Option<i32>) {
        self.credentials
    }

    pub(crate) fn duplicate(&self) -> io::Result<OwnedFd> {
        self.socket.get_ref().try_clone()
    }

    /// It is a domain now: its board is marked with whatever is sent, and its process is watched.
    pub(crate) fn attached(&self, board: Window, pid: Option<i32>) {
        *self.marker.borrow_mut() = Some(Marker::new(board, Place::CONTROL));
        if let Some(process) = pid.and_then(watched::process) {
            let _ = self.process.set(process); // A connection attaches once.
        }
        self.changed.notify_one();
    }

    pub(crate) fn push(&self, bytes: Vec<u8>, items: Vec<Item>) {
        self.queue.borrow_mut().push_back(Packet { bytes, items });
    }

    fn send(&self, bytes: &[u8], items: &[Item]) -> Result<(), SendError> {
        if self.border {
            let handed = items.iter().filter_map(Item::handed).collect();
            return seqpacket::send(&self.socket, &border::Packet { handed, message: bytes }.emit(), &[]);
        }
        let fds: Vec<BorrowedFd<'_>> = items.iter().filter_map(Item::file).map(|file| file.as_fd()).collect();
        seqpacket::send(&self.socket, bytes, &fds)
    }

    /// False if too many wait already.
    pub(crate) fn report(&self, serial: Option<RequestSerial>, json: Vec<u8>) -> bool {
        self.bucket.borrow_mut().tokens -= REPORT_COST;
        let mut reports = self.reports.borrow_mut();
        reports.push_back(Report { serial, json, sent: 0 });
        reports.len() <= REPORTS_MAX
    }

    /// Forgets what waits.
    pub(crate) fn clear(&self) {
        self.queue.borrow_mut().clear();
        self.reports.borrow_mut().clear();
    }

    /// Nothing more will be put into the queue.
    pub(crate) fn end(&self) {
        self.over.set(Some(Instant::now() + LINGER));
        self.changed.notify_one();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.get().is_some()
    }

    /// Messages that wait.
    pub(crate) fn backlog(&self) -> usize {
        self.queue.borrow().len() + self.reports.borrow().len()
    }

    /// Sends what the socket takes.
    pub(crate) fn flush(&self) -> Flushed {
        let mut sent = false;
        let outcome = loop {
            let front = self.queue.borrow_mut().pop_front();
            let Some(packet) = front.or_else(|| self.next_of_report()) else { break Flushed::All };
            match self.send(&packet.bytes, &packet.items) {
                Ok(()) => sent = true,
                Err(SendError::FdsInFlight) => {
                    self.queue.borrow_mut().push_front(packet);
                    self.retry.set(Some(Instant::now() + RETRY));
                    self.changed.notify_one();
                    break Flushed::Waits;
                }
                Err(SendError::Full) => {
                    self.queue.borrow_mut().push_front(packet);
                    self.wait_for_room();
                    self.changed.notify_one();
                    break Flushed::Waits;
                }
                Err(SendError::Closed | SendError::Refused(_)) => break Flushed::Broken,
            }
        };
        if self.marker.borrow().as_ref().is_some_and(|marker| sent && marker.mark()) {
            // It slept, and the mark has taken that note off: it is up to us to wake it. A full socket wakes it as well.
            let _ = self.send(&ToClient::from(Nudge {}).emit(None), &[]);
        }
        if outcome == Flushed::All {
            self.room.take();
        }
        outcome
    }

    /// The socket is full: from now on we hear when it no longer is.
    fn wait_for_room(&self) {
        match self.duplicate().and_then(watched::watched_for_room) {
            Ok(room) => *self.room.borrow_mut() = Some(Rc::new(room)),
            // Without a descriptor for that we look again.
            Err(_) => self.retry.set(Some(Instant::now() + RETRY)),
        }
    }

    fn next_of_report(&self) -> Option<Packet> {
        let mut reports = self.reports.borrow_mut();
        let part = reports.front_mut()?.next();
        if part.is_none() {
            reports.pop_front();
        }
        part.or_else(|| reports.front_mut()?.next())
    }

    /// Waits for something to do. `scratch` is room for a packet.
    pub(crate) async fn next(&self, scratch: &mut [u8]) -> Next {
        loop {
            let throttled = self.pause();
            if throttled.is_some() && !self.throttled.replace(true) {
                return Next::Throttled;
            }
            let reads = throttled.is_none() && self.over.get().is_none();
            let retry = self.retry.get();
            let writes = self.backlog() > 0 && retry.is_none();
            if !reads && !writes && self.over.get().is_some() && retry.is_none() {
                return Next::Gone;
            }
            let deadline = throttled.into_iter().chain(self.over.get()).chain(retry).min();
            tokio::select! {
                ready = self.socket.readable(), if reads => match ready {
                    Ok(mut ready) => match self.receive(scratch) {
                        Some(next) => return next,
                        None => ready.clear_ready(),
                    },
                    Err(_) => return Next::Gone,
                },
                () = self.has_room(), if writes => return Next::Flush,
                () = self.process_ended(), if self.over.get().is_none() => return Next::Gone,
                () = self.changed.notified() => {}
                () = sleep_until(deadline) => {
                    if self.over.get().is_some_and(|over| over <= Instant::now()) {
                        return Next::Gone;
                    }
                    if self.retry.take().is_some() {
                        return Next::Flush;
                    }
                }
            }
        }
    }

    async fn has_room(&self) {
        let room = self.room.borrow().clone();
        if let Some(room) = room {
            drop(room.writable().await); // Or broken, which sending will tell.
        }
    }

    async fn process_ended(&self) {
        match self.process.get() {
            Some(process) => drop(process.readable().await),
            None => std::future::pending().await,
        }
    }

    /// When it may send again; none if now. Also forgets that it was read slowly once it has been modest for a while.
    fn pause(&self) -> Option<Instant> {
        let mut bucket = self.bucket.borrow_mut();
        let pause = bucket.until_next();
        if bucket.tokens >= BURST / 2.0 {
            self.throttled.set(false);
        }
        pause
    }

    fn receive(&self, scratch: &mut [u8]) -> Option<Next> {
        let mut fds = Vec::with_capacity(CONTROL_FDS_MAX);
        let received = seqpacket::receive(&self.socket, scratch, &mut fds, false);
        self.bucket.borrow_mut().tokens -= 1.0;
        let given: Vec<Given> = fds.into_iter().map(|fd| Given::by(self.credentials.0, fd)).collect();
        match received {
            Err(ReceiveError::Empty) => None,
            Ok(bytes) => Some(Next::Packet(scratch[..bytes].to_vec(), given)),
            Err(ReceiveError::Closed) => Some(Next::Gone),
            Err(ReceiveError::DescriptorsLost { bytes }) => Some(Next::DescriptorsLost(serial_of(&scratch[..bytes]))),
            Err(error) => Some(Next::Unreceivable(error.to_string())),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A worker may hold the socket a moment longer; the other side shall know now.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        // Nothing more comes in. What has not been read is taken out here, or its descriptors would be closed where the last
        // copy of the socket is.
        let (mut packet, mut fds) = ([0; HEADER_BYTES], Vec::new());
        loop {
            let received = seqpacket::receive(&self.socket, &mut packet, &mut fds, false);
            fds.drain(..).for_each(|fd| drop(Given::by(self.credentials.0, fd)));
            if !matches!(received, Ok(_) | Err(ReceiveError::TooLong | ReceiveError::DescriptorsLost { .. })) {
                break;
            }
        }
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// How many packets a connection may still send.
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    /// None if it may send now, else when.
    fn until_next(&mut self) -> Option<Instant> {
        let now = Instant::now();
        self.tokens = (self.tokens + (now - self.at).as_secs_f64() * PER_SECOND).min(BURST);
        self.at = now;
        (self.tokens < 1.0).then(|| now + Duration::from_secs_f64((1.0 - self.tokens) / PER_SECOND))
    }
}
