//! One control connection. Packets are received at a bounded rate. Packets are sent as fast as the program reads them, from a bounded
//! queue.
//!
//! A packet is first sent directly. If the socket is full, the packet waits in the queue and the connection's task sends it later. A domain
//! that stops reading is dropped when its queue is full and not earlier, because a program may compute for hours.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use isthmus_layout::Refusal;
use isthmus_layout::control::{
    BoundedBytes, HEADER_BYTES, QUERY_REPLY_BYTES_MAX, Query, QueryReply, Refused, RequestSerial, ToClient, Wakeup,
    serial_of,
};
use isthmus_layout::limits::CONTROL_FDS_MAX;
use isthmus_layout::proxy;
use isthmus_layout::ready_map::ReadyBit;
use isthmus_platform::seqpacket::{self, ReceiveError, SendError};
use isthmus_shm::{PeerReadyBit, SharedMapping};
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::async_fd;
use crate::core::types::ControlSessionId;
use crate::fd_reaper::ReceivedFd;
use crate::users::{ReportPermit, TokenBucket, UserSession};
use isthmus_window::Resource;

/// The number of messages that may wait for one connection.
pub const QUEUE_MAX: usize = 8192;

/// The number of packets that a connection may send at once, and per second. A connection that exceeds them is read more slowly. This
/// protects other programs of the same user. All users are protected by the rate of the [`User`](crate::users::User).
const BURST_PACKETS: f64 = 4096.0;
const PACKETS_PER_SECOND: f64 = 1024.0;

/// The least cost of a report in packets, because a report costs as much to make as this number of other requests.
const REPORT_COST: f64 = 32.0;

/// The number of bytes of a report that cost as much to make as another request.
const REPORT_BYTES_PER_PACKET: f64 = 4096.0;

/// The number of requests for reports that may wait for one connection.
const REPORTS_MAX: usize = 8;

/// Bytes of packets in the kernel for one connection.
const SEND_BUFFER_BYTES: usize = 64 << 10;

/// The time that an ending connection has to read what was sent before.
pub(crate) const LINGER: Duration = Duration::from_secs(1);

/// The time in which a program has to read the next part of a report. Other reports wait meanwhile.
const REPORT_READ_TIMEOUT: Duration = Duration::from_secs(10);

/// The pause before another attempt, after descriptors in flight of this user reached the kernel's limit.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

struct QueuedPacket {
    bytes: Vec<u8>,
    resources: Vec<Resource>,
}

struct Report {
    serial: Option<RequestSerial>,
    json: Vec<u8>,
    sent: usize,
    /// The time until which the next part has to be read.
    until: Instant,
    _permit: ReportPermit,
}

impl Report {
    /// Returns the next part; none after the last.
    fn next(&mut self) -> Option<QueuedPacket> {
        let rest = &self.json[self.sent..];
        if rest.is_empty() {
            return None;
        }
        let part = &rest[..rest.len().min(QUERY_REPLY_BYTES_MAX)];
        self.sent += part.len();
        self.until = Instant::now() + REPORT_READ_TIMEOUT;
        let json = BoundedBytes::new(part.to_vec()).expect("cut to the maximum above");
        let last = self.sent == self.json.len();
        Some(QueuedPacket { bytes: ToClient::from(QueryReply { last, json }).emit(self.serial), resources: Vec::new() })
    }
}

/// The result of sending the queued messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushResult {
    /// All messages were sent.
    All,
    /// Some messages wait for room in the socket.
    Blocked,
    /// The other side has closed the connection.
    Closed,
}

/// A control connection.
pub(crate) struct Connection {
    pub(crate) id: ControlSessionId,
    /// The account of the user at the other end.
    user: UserSession,
    /// A control proxy is in between, which replaces descriptors by references.
    is_proxied: bool,
    /// Registered for reading and not for writing. Workers wake the domain by sending on this socket. The room that appears when the domain
    /// reads must not wake the server each time.
    socket: AsyncFd<OwnedFd>,
    /// A copy of the socket, registered for writing while messages wait for room.
    writable_fd: RefCell<Option<Rc<AsyncFd<OwnedFd>>>>,
    queue: RefCell<VecDeque<QueuedPacket>>,
    /// Requests for reports that were not made yet.
    queries: RefCell<VecDeque<(Option<RequestSerial>, Query)>>,
    report: RefCell<Option<Report>>,
    peer_ready_bit: RefCell<Option<PeerReadyBit<SharedMapping>>>,
    /// The process at the other end, once it has attached as a domain.
    process: OnceCell<AsyncFd<OwnedFd>>,
    /// Notified when a change needs the attention of the connection's task.
    pub(crate) changed: Notify,
    deadline: Cell<Option<Instant>>,
    /// The connection's task sends the queued packets.
    is_flush_due: Cell<bool>,
    /// Descriptors of packets that were sent and were not received when this was last checked.
    unread_fds: Cell<usize>,
    /// The time at which to retry a send that was refused for a temporary reason.
    retry: Cell<Option<Instant>>,
    rate_limit: RefCell<TokenBucket>,
    /// The connection was reported as being read more slowly.
    throttled: Cell<bool>,
}

/// The next action of a connection's task.
pub(crate) enum ConnectionEvent {
    /// A packet was received.
    Packet(Vec<u8>, Vec<ReceivedFd>),
    /// The packet is longer than any message.
    Unreceivable(String),
    /// The packet had descriptors that this process could not open.
    DescriptorsLost(Option<RequestSerial>),
    /// The connection is closed, or its process has ended.
    Closed,
    /// The connection has sent too many packets and is read more slowly from now on.
    Throttled,
    /// The socket has room, or there are new messages to send.
    Flush,
    /// The next report may be made.
    ReportAllowed(ReportPermit),
    /// The program does not read its report.
    ReportUnread,
}

impl Connection {
    /// Creates a connection with a process of this host, or with a program of a guest through its control proxy.
    pub(crate) fn new(id: ControlSessionId, socket: OwnedFd, user: UserSession, is_proxied: bool) -> io::Result<Self> {
        rustix::net::sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER_BYTES)?;
        Ok(Self {
            id,
            user,
            is_proxied,
            socket: async_fd::register(socket)?,
            writable_fd: RefCell::default(),
            queue: RefCell::default(),
            queries: RefCell::default(),
            report: RefCell::default(),
            peer_ready_bit: RefCell::default(),
            process: OnceCell::new(),
            is_flush_due: Cell::new(false),
            unread_fds: Cell::new(0),
            retry: Cell::new(None),
            changed: Notify::new(),
            deadline: Cell::new(None),
            rate_limit: RefCell::new(TokenBucket::new(BURST_PACKETS, PACKETS_PER_SECOND, Instant::now())),
            throttled: Cell::new(false),
        })
    }

    /// The account of the user at the other end.
    pub(crate) fn user(&self) -> &UserSession {
        &self.user
    }

    pub(crate) fn try_clone_socket(&self) -> io::Result<OwnedFd> {
        self.socket.get_ref().try_clone()
    }

    /// Notes that the connection has attached as a domain. Sending sets a bit in the domain's ready map from now on, and its process is
    /// watched.
    pub(crate) fn set_attached(&self, ready_map: SharedMapping, pid: Option<i32>) {
        *self.peer_ready_bit.borrow_mut() = Some(PeerReadyBit::new(ready_map, ReadyBit::CONTROL));
        if let Some(process) = pid.and_then(async_fd::pidfd) {
            let _ = self.process.set(process); // A connection attaches once.
        }
        self.changed.notify_one();
    }

    pub(crate) fn push(&self, bytes: Vec<u8>, resources: Vec<Resource>) {
        self.user.queue_fds(resources.len());
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
        let fds: Vec<BorrowedFd<'_>> = resources.iter().filter_map(Resource::file).collect();
        seqpacket::send(&self.socket, bytes, &fds)
    }

    /// Queues a request for a report. Returns false if too many wait.
    pub(crate) fn queue_query(&self, serial: Option<RequestSerial>, query: Query) -> bool {
        let mut queries = self.queries.borrow_mut();
        queries.push_back((serial, query));
        self.changed.notify_one();
        queries.len() <= REPORTS_MAX
    }

    /// Returns the request for the next report.
    pub(crate) fn next_query(&self) -> Option<(Option<RequestSerial>, Query)> {
        self.queries.borrow_mut().pop_front()
    }

    /// Begins to send a report.
    pub(crate) fn start_report(&self, serial: Option<RequestSerial>, json: Vec<u8>, permit: ReportPermit) {
        self.rate_limit.borrow_mut().take(REPORT_COST);
        self.user.take_requests(REPORT_COST + json.len() as f64 / REPORT_BYTES_PER_PACKET);
        self.user.end_turn();
        let until = Instant::now() + REPORT_READ_TIMEOUT;
        *self.report.borrow_mut() = Some(Report { serial, json, sent: 0, until, _permit: permit });
    }

    /// True if a report was requested, and none is under way.
    fn is_report_wanted(&self) -> bool {
        self.report.borrow().is_none() && !self.queries.borrow().is_empty() && !self.is_closing()
    }

    /// Drops all queued messages and reports.
    pub(crate) fn clear(&self) {
        let packets = std::mem::take(&mut *self.queue.borrow_mut());
        packets.iter().for_each(|packet| self.user.unqueue_fds(packet.resources.len()));
        self.queries.borrow_mut().clear();
        self.report.take();
    }

    /// Begins to close the connection. Nothing more is queued after this.
    pub(crate) fn close(&self) {
        self.deadline.set(Some(Instant::now() + LINGER));
        self.changed.notify_one();
    }

    /// True if the connection waits to retry a send.
    pub(crate) fn is_retrying(&self) -> bool {
        self.retry.get().is_some()
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.deadline.get().is_some()
    }

    /// The number of queued messages and reports.
    pub(crate) fn backlog(&self) -> usize {
        self.queue.borrow().len() + self.queries.borrow().len() + usize::from(self.report.borrow().is_some())
    }

    /// Lets the connection's task send the queued messages.
    pub(crate) fn flush_later(&self) {
        self.is_flush_due.set(true);
        self.changed.notify_one();
    }

    /// Sends queued messages until the socket is full.
    pub(crate) fn flush(&self) -> FlushResult {
        self.is_flush_due.set(false);
        let mut sent = false;
        let outcome = loop {
            let front = self.queue.borrow_mut().pop_front();
            let Some(packet) = front.or_else(|| self.next_report_part()) else { break FlushResult::All };
            let fds = packet.resources.len();
            let outcome = match self.may_send_fds(fds) {
                Ok(()) => self.send(&packet.bytes, &packet.resources),
                refused => refused,
            };
            if let Err(error @ (SendError::FdsInFlight | SendError::Full)) = outcome {
                self.queue.borrow_mut().push_front(packet);
                match error {
                    SendError::Full => self.wait_for_room(),
                    _ => self.retry.set(Some(Instant::now() + RETRY_INTERVAL)),
                }
                self.changed.notify_one();
                break FlushResult::Blocked;
            }
            self.user.unqueue_fds(fds);
            match outcome {
                Ok(()) => sent = true,
                Err(_) => break FlushResult::Closed,
            }
            if !self.is_proxied {
                self.unread_fds.set(self.unread_fds.get() + fds);
                self.user.fds_sent(fds);
            }
        };
        if self.peer_ready_bit.borrow().as_ref().is_some_and(|ready_bit| sent && ready_bit.set()) {
            // The domain was asleep, and setting the bit has cleared its note of that, so this side has to wake it. A full socket wakes it
            // as well.
            let _ = self.send(&ToClient::from(Wakeup {}).emit(None), &[]);
        }
        if outcome == FlushResult::All {
            self.writable_fd.take();
        }
        outcome
    }

    /// Checks whether a packet with this number of descriptors may be sent. Descriptors are sent only to a program that has received those
    /// sent before, and to a user within its share of those in flight.
    fn may_send_fds(&self, fds: usize) -> Result<(), SendError> {
        if fds == 0 || self.is_proxied {
            return Ok(());
        }
        self.check_received();
        match self.unread_fds.get() {
            0 if self.user.may_send_fds(fds) => Ok(()),
            0 => Err(SendError::FdsInFlight),
            _ => Err(SendError::Full),
        }
    }

    /// Checks whether the program has received the descriptors that were sent to it.
    pub(crate) fn check_received(&self) {
        if self.unread_fds.get() > 0 && !seqpacket::has_unread(&self.socket).unwrap_or(false) {
            self.user.fds_received(self.unread_fds.take());
        }
    }

    /// Registers the socket for writing, because it is full or has unread descriptors. It is reported whenever the program has received
    /// something.
    fn wait_for_room(&self) {
        if self.writable_fd.borrow().is_some() {
            return;
        }
        match self.try_clone_socket().and_then(async_fd::register_writable) {
            Ok(room) => *self.writable_fd.borrow_mut() = Some(Rc::new(room)),
            // Without a descriptor for that, sending is retried after an interval.
            Err(_) => self.retry.set(Some(Instant::now() + RETRY_INTERVAL)),
        }
    }

    /// Returns the next part of the report; none after the last. The end of a report lets another one begin.
    fn next_report_part(&self) -> Option<QueuedPacket> {
        let mut report = self.report.borrow_mut();
        let part = report.as_mut()?.next();
        if part.is_none() {
            *report = None;
        }
        part
    }

    /// Waits for the next action. `scratch` has room for a packet.
    pub(crate) async fn next(&self, scratch: &mut [u8]) -> ConnectionEvent {
        loop {
            if self.is_flush_due.get() {
                return ConnectionEvent::Flush;
            }
            let throttled = self.throttled_until();
            if throttled.is_some() && !self.throttled.replace(true) {
                return ConnectionEvent::Throttled;
            }
            let is_readable_wanted = throttled.is_none() && self.deadline.get().is_none();
            let retry = self.retry.get();
            let is_writable_wanted = self.writable_fd.borrow().is_some() && retry.is_none();
            let report_until = self.report.borrow().as_ref().map(|report| report.until);
            if !is_readable_wanted && !is_writable_wanted && self.deadline.get().is_some() && retry.is_none() {
                return ConnectionEvent::Closed;
            }
            let deadline = throttled.into_iter().chain(self.deadline.get()).chain(retry).chain(report_until).min();
            tokio::select! {
                ready = self.socket.readable(), if is_readable_wanted => match ready {
                    Ok(mut ready) => {
                        self.user.turn().await;
                        match self.receive(scratch) {
                            Some(next) => return next,
                            None => ready.clear_ready(),
                        }
                    }
                    Err(_) => return ConnectionEvent::Closed,
                },
                () = self.wait_writable(), if is_writable_wanted => return ConnectionEvent::Flush,
                () = self.process_ended(), if self.deadline.get().is_none() => return ConnectionEvent::Closed,
                permit = self.user.report_permit(), if self.is_report_wanted() => return ConnectionEvent::ReportAllowed(permit),
                () = self.changed.notified() => {}
                () = sleep_until(deadline) => {
                    if self.deadline.get().is_some_and(|over| over <= Instant::now()) {
                        return ConnectionEvent::Closed;
                    }
                    if report_until.is_some_and(|until| until <= Instant::now()) {
                        return ConnectionEvent::ReportUnread;
                    }
                    if self.retry.take().is_some() {
                        return ConnectionEvent::Flush;
                    }
                }
            }
        }
    }

    /// True if a packet has arrived that was not received yet.
    pub(crate) fn has_unreceived(&self) -> bool {
        rustix::io::ioctl_fionread(&self.socket).is_ok_and(|bytes| bytes > 0)
    }

    async fn wait_writable(&self) {
        let room = self.writable_fd.borrow().clone();
        if let Some(room) = room
            && let Ok(mut ready) = room.writable().await
        // If the socket is broken, sending will report that.
        {
            ready.clear_ready();
        }
    }

    async fn process_ended(&self) {
        match self.process.get() {
            Some(process) => drop(process.readable().await),
            None => std::future::pending().await,
        }
    }

    /// Returns the time from which the connection is read again; none if it may be read now. Also ends throttling once the bucket is half
    /// full.
    fn throttled_until(&self) -> Option<Instant> {
        let (mut bucket, now) = (self.rate_limit.borrow_mut(), Instant::now());
        let pause = bucket.next_allowed(now).max(self.user.requests_allowed_at(now));
        if pause.is_none() && bucket.is_half_full() {
            self.throttled.set(false);
        }
        pause
    }

    fn receive(&self, scratch: &mut [u8]) -> Option<ConnectionEvent> {
        let mut fds = Vec::with_capacity(CONTROL_FDS_MAX);
        let received = seqpacket::receive(&self.socket, scratch, &mut fds, false);
        self.rate_limit.borrow_mut().take(1.0);
        self.user.take_requests(1.0);
        let received_fds: Vec<ReceivedFd> = fds.into_iter().map(|fd| ReceivedFd::new(self.user.uid, fd)).collect();
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
        self.clear();
        self.check_received();
        if self.unread_fds.get() > 0
            && let Ok(socket) = self.try_clone_socket()
        {
            self.user.keep_unread(socket, self.unread_fds.get());
        }
        hang_up(self.socket.get_ref(), self.user.uid);
    }
}

/// Refuses a connection that was not admitted: sends the reason, and closes the connection at once. A new socket has room for the reason.
pub(crate) fn refuse(socket: &OwnedFd, uid: u32, is_proxied: bool, refusal: &Refusal) {
    let message = ToClient::from(Refused::from(refusal)).emit(None);
    let packet = match is_proxied {
        true => proxy::ControlPacket { resources: Vec::new(), message: &message }.emit(),
        false => message,
    };
    let _ = seqpacket::send(socket, &packet, &[]);
    hang_up(socket, uid);
}

/// Ends a connection. A worker may hold the socket a moment longer, but the other side should notice now.
fn hang_up(socket: &OwnedFd, uid: u32) {
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
    // Nothing more can arrive. Unread packets are taken out here, because otherwise their descriptors would be closed on the thread that
    // closes the last copy of the socket.
    let (mut packet, mut fds) = ([0; HEADER_BYTES], Vec::new());
    loop {
        let received = seqpacket::receive(socket, &mut packet, &mut fds, false);
        fds.drain(..).for_each(|fd| drop(ReceivedFd::new(uid, fd)));
        if !matches!(received, Ok(_) | Err(ReceiveError::TooLong | ReceiveError::DescriptorsLost { .. })) {
            break;
        }
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
