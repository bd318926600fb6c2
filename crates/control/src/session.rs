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

use isthmus_layout::control::{
    BoundedBytes, HEADER_BYTES, QUERY_REPLY_BYTES_MAX, QueryReply, RequestSerial, ToClient, Wakeup, serial_of,
};
use isthmus_layout::limits::CONTROL_FDS_MAX;
use isthmus_layout::proxy;
use isthmus_layout::ready_map::ReadyBit;
use isthmus_platform::seqpacket::{self, ReceiveError, SendError};
use isthmus_shm::{PeerReadyBit, SharedMapping};
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::allocator::Resource;
use crate::async_fd;
use crate::broker::ControlSessionId;
use crate::fd_reaper::ReceivedFd;

/// Messages that wait for one connection.
pub(crate) const QUEUE_MAX: usize = 8192;

/// Packets that a connection may send at once, and in a second. Beyond it is read more slowly.
const BURST_PACKETS: f64 = 4096.0;
const PACKETS_PER_SECOND: f64 = 1024.0;

/// A report costs as much to make as so many other requests.
const REPORT_COST: f64 = 32.0;

/// Reports that wait for one connection; each may be large.
const REPORTS_MAX: usize = 8;

/// Bytes of packets in the kernel for one connection. It also bounds how many descriptors are under way in it.
const SEND_BUFFER_BYTES: usize = 64 << 10;

/// How long a connection that is over has to take what was sent before.
pub(crate) const LINGER: Duration = Duration::from_secs(1);

/// After descriptors of this user filled the kernel's count.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

struct QueuedPacket {
    bytes: Vec<u8>,
    resources: Vec<Resource>,
}

struct Report {
    serial: Option<RequestSerial>,
    json: Vec<u8>,
    sent: usize,
}

impl Report {
    /// The next part; none after the last.
    fn next(&mut self) -> Option<QueuedPacket> {
        let rest = &self.json[self.sent..];
        if rest.is_empty() {
            return None;
        }
        let part = &rest[..rest.len().min(QUERY_REPLY_BYTES_MAX)];
        self.sent += part.len();
        let json = BoundedBytes::new(part.to_vec()).expect("cut to the maximum above");
        let last = self.sent == self.json.len();
        Some(QueuedPacket { bytes: ToClient::from(QueryReply { last, json }).emit(self.serial), resources: Vec::new() })
    }
}

/// What came of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushResult {
    /// Everything has gone out.
    All,
    /// Something waits for room in the socket.
    Blocked,
    /// The other side is gone.
    Closed,
}

/// A connection as the server knows it.
pub(crate) struct Connection {
    pub(crate) id: ControlSessionId,
    /// User and process at the other end.
    credentials: (u32, Option<i32>),
    /// A control proxy is in between, where descriptors become references.
    is_proxied: bool,
    /// Watched for what comes in, and not for room: workers wake the domain by it, and we need not wake with it.
    socket: AsyncFd<OwnedFd>,
    /// The same while something waits for room.
    writable_fd: RefCell<Option<Rc<AsyncFd<OwnedFd>>>>,
    queue: RefCell<VecDeque<QueuedPacket>>,
    reports: RefCell<VecDeque<Report>>,
    peer_ready_bit: RefCell<Option<PeerReadyBit<SharedMapping>>>,
    /// The process behind it, once it is a domain.
    process: OnceCell<AsyncFd<OwnedFd>>,
    /// Something has changed that its task should look at.
    pub(crate) changed: Notify,
    deadline: Cell<Option<Instant>>,
    /// When to try again what the kernel refused for a passing reason.
    retry: Cell<Option<Instant>>,
    rate_limit: RefCell<TokenBucket>,
    /// Is known to be read slowly.
    throttled: Cell<bool>,
}

/// What a connection's task should do next.
pub(crate) enum ConnectionEvent {
    /// A packet.
    Packet(Vec<u8>, Vec<ReceivedFd>),
    /// What came is longer than any message.
    Unreceivable(String),
    /// What came had descriptors that this process could not open.
    DescriptorsLost(Option<RequestSerial>),
    /// The connection is closed, or its process has ended.
    Closed,
    /// It has sent so much that it is read more slowly from now on.
    Throttled,
    /// Room, or something new to send.
    Flush,
}

impl Connection {
    /// With a process of this host.
    pub(crate) fn new(id: ControlSessionId, socket: OwnedFd) -> io::Result<Self> {
        let stream = UnixStream::from_std(socket.into())?;
        let peer_cred = stream.peer_cred()?;
        let credentials = (peer_cred.uid(), peer_cred.pid().filter(|pid| *pid > 0));
        Self::with_credentials(id, stream.into_std()?.into(), credentials, false)
    }

    /// With a program of a guest, by way of its control proxy.
    pub(crate) fn proxied(id: ControlSessionId, socket: OwnedFd, uid: u32) -> io::Result<Self> {
        Self::with_credentials(id, socket, (uid, None), true)
    }

    fn with_credentials(
        id: ControlSessionId,
        socket: OwnedFd,
        credentials: (u32, Option<i32>),
        is_proxied: bool,
    ) -> io::Result<Self> {
        rustix::net::sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER_BYTES)?;
        Ok(Self {
            id,
            credentials,
            is_proxied,
            socket: async_fd::register(socket)?,
            writable_fd: RefCell::default(),
            queue: RefCell::default(),
            reports: RefCell::default(),
            peer_ready_bit: RefCell::default(),
            process: OnceCell::new(),
            retry: Cell::new(None),
            changed: Notify::new(),
            deadline: Cell::new(None),
            rate_limit: RefCell::new(TokenBucket { tokens: BURST_PACKETS, at: Instant::now() }),
            throttled: Cell::new(false),
        })
    }

    /// User and process at the other end.
    pub(crate) fn credentials(&self) -> (u32, Option<i32>) {
        self.credentials
    }

    pub(crate) fn try_clone_socket(&self) -> io::Result<OwnedFd> {
        self.socket.get_ref().try_clone()
    }

    /// It is a domain now: a bit of its ready map is set with whatever is sent, and its process is watched.
    pub(crate) fn set_attached(&self, ready_map: SharedMapping, pid: Option<i32>) {
        *self.peer_ready_bit.borrow_mut() = Some(PeerReadyBit::new(ready_map, ReadyBit::CONTROL));
        if let Some(process) = pid.and_then(async_fd::pidfd) {
            let _ = self.process.set(process); // A connection attaches once.
        }
        self.changed.notify_one();
    }

    pub(crate) fn push(&self, bytes: Vec<u8>, resources: Vec<Resource>) {
        self.queue.borrow_mut().push_back(QueuedPacket { bytes, resources });
    }

    fn send(&self, bytes: &[u8], resources: &[Resource]) -> Result<(), SendError> {
        if self.is_proxied {
            let references = resources.iter().filter_map(Resource::to_ref).collect();
            return seqpacket::send(
                &self.socket,
                &proxy::ControlPacket { resources: references, message: bytes }.emit(),
                &[],
            );
        }
        let fds: Vec<BorrowedFd<'_>> = resources.iter().filter_map(Resource::file).map(|file| file.as_fd()).collect();
        seqpacket::send(&self.socket, bytes, &fds)
    }

    /// False if too many wait already.
    pub(crate) fn report(&self, serial: Option<RequestSerial>, json: Vec<u8>) -> bool {
        self.rate_limit.borrow_mut().tokens -= REPORT_COST;
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
    pub(crate) fn close(&self) {
        self.deadline.set(Some(Instant::now() + LINGER));
        self.changed.notify_one();
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.deadline.get().is_some()
    }

    /// Messages that wait.
    pub(crate) fn backlog(&self) -> usize {
        self.queue.borrow().len() + self.reports.borrow().len()
    }

    /// Sends what the socket takes.
    pub(crate) fn flush(&self) -> FlushResult {
        let mut sent = false;
        let outcome = loop {
            let front = self.queue.borrow_mut().pop_front();
            let Some(packet) = front.or_else(|| self.next_report_part()) else { break FlushResult::All };
            match self.send(&packet.bytes, &packet.resources) {
                Ok(()) => sent = true,
                Err(SendError::FdsInFlight) => {
                    self.queue.borrow_mut().push_front(packet);
                    self.retry.set(Some(Instant::now() + RETRY_INTERVAL));
                    self.changed.notify_one();
                    break FlushResult::Blocked;
                }
                Err(SendError::Full) => {
                    self.queue.borrow_mut().push_front(packet);
                    self.wait_for_room();
                    self.changed.notify_one();
                    break FlushResult::Blocked;
                }
                Err(SendError::Closed | SendError::Refused(_)) => break FlushResult::Closed,
            }
        };
        if self.peer_ready_bit.borrow().as_ref().is_some_and(|ready_bit| sent && ready_bit.set()) {
            // It slept, and the mark has taken that note off: it is up to us to wake it. A full socket wakes it as well.
            let _ = self.send(&ToClient::from(Wakeup {}).emit(None), &[]);
        }
        if outcome == FlushResult::All {
            self.writable_fd.take();
        }
        outcome
    }

    /// The socket is full: from now on we hear when it no longer is.
    fn wait_for_room(&self) {
        match self.try_clone_socket().and_then(async_fd::register_writable) {
            Ok(room) => *self.writable_fd.borrow_mut() = Some(Rc::new(room)),
            // Without a descriptor for that we look again.
            Err(_) => self.retry.set(Some(Instant::now() + RETRY_INTERVAL)),
        }
    }

    fn next_report_part(&self) -> Option<QueuedPacket> {
        let mut reports = self.reports.borrow_mut();
        let part = reports.front_mut()?.next();
        if part.is_none() {
            reports.pop_front();
        }
        part.or_else(|| reports.front_mut()?.next())
    }

    /// Waits for something to do. `scratch` is room for a packet.
    pub(crate) async fn next(&self, scratch: &mut [u8]) -> ConnectionEvent {
        loop {
            let throttled = self.throttled_until();
            if throttled.is_some() && !self.throttled.replace(true) {
                return ConnectionEvent::Throttled;
            }
            let is_readable_wanted = throttled.is_none() && self.deadline.get().is_none();
            let retry = self.retry.get();
            let is_writable_wanted = self.backlog() > 0 && retry.is_none();
            if !is_readable_wanted && !is_writable_wanted && self.deadline.get().is_some() && retry.is_none() {
                return ConnectionEvent::Closed;
            }
            let deadline = throttled.into_iter().chain(self.deadline.get()).chain(retry).min();
            tokio::select! {
                ready = self.socket.readable(), if is_readable_wanted => match ready {
                    Ok(mut ready) => match self.receive(scratch) {
                        Some(next) => return next,
                        None => ready.clear_ready(),
                    },
                    Err(_) => return ConnectionEvent::Closed,
                },
                () = self.wait_writable(), if is_writable_wanted => return ConnectionEvent::Flush,
                () = self.process_ended(), if self.deadline.get().is_none() => return ConnectionEvent::Closed,
                () = self.changed.notified() => {}
                () = sleep_until(deadline) => {
                    if self.deadline.get().is_some_and(|over| over <= Instant::now()) {
                        return ConnectionEvent::Closed;
                    }
                    if self.retry.take().is_some() {
                        return ConnectionEvent::Flush;
                    }
                }
            }
        }
    }

    async fn wait_writable(&self) {
        let room = self.writable_fd.borrow().clone();
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
    fn throttled_until(&self) -> Option<Instant> {
        let mut bucket = self.rate_limit.borrow_mut();
        let pause = bucket.next_allowed();
        if bucket.tokens >= BURST_PACKETS / 2.0 {
            self.throttled.set(false);
        }
        pause
    }

    fn receive(&self, scratch: &mut [u8]) -> Option<ConnectionEvent> {
        let mut fds = Vec::with_capacity(CONTROL_FDS_MAX);
        let received = seqpacket::receive(&self.socket, scratch, &mut fds, false);
        self.rate_limit.borrow_mut().tokens -= 1.0;
        let received_fds: Vec<ReceivedFd> = fds.into_iter().map(|fd| ReceivedFd::new(self.credentials.0, fd)).collect();
        match received {
            Err(ReceiveError::Empty) => None,
            Ok(bytes) => Some(ConnectionEvent::Packet(scratch[..bytes].to_vec(), received_fds)),
            Err(ReceiveError::Closed) => Some(ConnectionEvent::Closed),
            Err(ReceiveError::DescriptorsLost { bytes }) => {
                Some(ConnectionEvent::DescriptorsLost(serial_of(&scratch[..bytes])))
            }
            Err(error) => Some(ConnectionEvent::Unreceivable(error.to_string())),
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
            fds.drain(..).for_each(|fd| drop(ReceivedFd::new(self.credentials.0, fd)));
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
struct TokenBucket {
    tokens: f64,
    at: Instant,
}

impl TokenBucket {
    /// None if it may send now, else when.
    fn next_allowed(&mut self) -> Option<Instant> {
        let now = Instant::now();
        self.tokens = (self.tokens + (now - self.at).as_secs_f64() * PACKETS_PER_SECOND).min(BURST_PACKETS);
        self.at = now;
        (self.tokens < 1.0).then(|| now + Duration::from_secs_f64((1.0 - self.tokens) / PACKETS_PER_SECOND))
    }
}
