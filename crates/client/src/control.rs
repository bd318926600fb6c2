//! The connection to the daemon: requests, their replies, and notifications.

use crate::error::Refusal;
use isthmus_layout::DomainId;
use isthmus_layout::control::{
    EventChannelEnd, EventChannels, Granted, Hello, Magic, MalformedControl, Name, RequestSerial, ToClient, ToDaemon,
    version,
};
use isthmus_layout::limits::{CONTROL_BYTES_MAX, CONTROL_FDS_MAX};
use isthmus_layout::reason::Reason;
use isthmus_platform::Doorbell;
use isthmus_platform::seqpacket::{self, ReceiveError, SendError};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long a reply may take, and why there is none then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyLimit {
    pub(crate) time: Duration,
    pub(crate) silence: Reason,
}

impl ReplyLimit {
    /// Of replies that the daemon gives at once: without one it counts as gone.
    const DAEMON: Self = Self { time: Duration::from_secs(5), silence: Reason::DaemonConnectionLost };
}

/// A message of the daemon with the descriptors that came with it.
#[derive(Debug)]
pub(crate) struct Notification {
    pub(crate) message: ToClient,
    /// The descriptors, each with the port of its event channel, if it is an end of one.
    fds: VecDeque<(OwnedFd, Option<u32>)>,
    pub(crate) serial: Option<RequestSerial>,
    /// True if the descriptors could not be received, because this process may not open more.
    pub(crate) descriptors_lost: bool,
}

impl Notification {
    /// The next descriptor; the codec has checked how many there are.
    pub(crate) fn fd(&mut self) -> OwnedFd {
        self.next().0
    }

    /// The next descriptor, which is a doorbell.
    pub(crate) fn doorbell(&mut self) -> Doorbell {
        match self.next() {
            (end, Some(port)) => Doorbell::event_channel(end, port),
            (doorbell, None) => Doorbell::from(doorbell),
        }
    }

    fn next(&mut self) -> (OwnedFd, Option<u32>) {
        self.fds.pop_front().expect("the codec counted the descriptors")
    }
}

/// An open connection, past the handshake.
#[derive(Debug)]
pub(crate) struct Control {
    socket: OwnedFd,
    /// The minor version of the connection.
    minor: u16,
    serial: RequestSerial,
    /// Notifications that arrived while a request waited for its reply.
    pending_notifications: VecDeque<Notification>,
    packet: Vec<u8>,
    fds: Vec<OwnedFd>,
    /// Those that come with the next message.
    channels: Vec<EventChannelEnd>,
}

impl Control {
    /// Performs the handshake.
    pub(crate) fn open(socket: OwnedFd) -> Result<Self, Refusal> {
        let mut control = Self {
            socket,
            minor: 0,
            serial: RequestSerial::new(1).expect("one is not zero"),
            pending_notifications: VecDeque::new(),
            packet: vec![0; CONTROL_BYTES_MAX],
            fds: Vec::with_capacity(CONTROL_FDS_MAX),
            channels: Vec::new(),
        };
        let versions = version::VersionRange::CURRENT;
        let library = Name::new(concat!("isthmus-client ", env!("CARGO_PKG_VERSION"))).expect("a valid name");
        let notification = control.request(Hello { magic: Magic, versions, library }.into(), &[])?;
        match notification.message {
            ToClient::HelloReply(reply) => match version::check_hello_reply(versions, &reply) {
                Ok(version) => {
                    control.minor = version.minor;
                    Ok(control)
                }
                Err(refused) => Err(Refusal::new(refused.reason, refused.to_string())),
            },
            _ => Err(Refusal::new(Reason::NotIsthmus, "the daemon's first word is not hello")),
        }
    }

    /// Sends a request and waits for the reply. Notifications that arrive meanwhile are kept. A refusal is an error.
    pub(crate) fn request(&mut self, message: ToDaemon, fds: &[BorrowedFd<'_>]) -> Result<Notification, Refusal> {
        self.request_within(message, fds, ReplyLimit::DAEMON)
    }

    /// Like [`Self::request`], for requests that the daemon does not answer itself.
    pub(crate) fn request_within(
        &mut self,
        message: ToDaemon,
        fds: &[BorrowedFd<'_>],
        limit: ReplyLimit,
    ) -> Result<Notification, Refusal> {
        match self.send_request(message, fds) {
            Ok(serial) => self.reply_within(Some(serial), limit),
            Err(refusal) if refusal.reason == Reason::DaemonConnectionLost => {
                Err(self.pending_refusal().unwrap_or(refusal))
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// Refuses a request that was added in minor version `since`, if the daemon's version is older.
    pub(crate) fn require_minor(&self, since: u16, what: &str) -> Result<(), Refusal> {
        if since <= self.minor {
            return Ok(());
        }
        let minor = self.minor;
        Err(Refusal::new(Reason::UnsupportedRequest, format!("{what} is of minor version {since}, spoken is {minor}")))
    }

    /// Why the daemon has ended the connection, if it said so before.
    fn pending_refusal(&mut self) -> Option<Refusal> {
        while let Ok(Some(notification)) = self.receive(None) {
            if let (None, ToClient::Refused(refused)) = (notification.serial, notification.message) {
                return Some(Refusal::from(&refused));
            }
        }
        None
    }

    /// Waits for the next reply to a request. Notifications that arrive meanwhile are kept. A refusal is an error.
    pub(crate) fn next_reply(&mut self, serial: Option<RequestSerial>) -> Result<Notification, Refusal> {
        self.reply_within(serial, ReplyLimit::DAEMON)
    }

    fn reply_within(&mut self, serial: Option<RequestSerial>, limit: ReplyLimit) -> Result<Notification, Refusal> {
        self.fitting_within(limit, |notification| notification.serial == serial)
    }

    /// Waits for the notification that fits. The others keep their order.
    fn fitting_within(
        &mut self,
        limit: ReplyLimit,
        fits: impl Fn(&Notification) -> bool,
    ) -> Result<Notification, Refusal> {
        let deadline = Instant::now() + limit.time;
        loop {
            let Some(notification) = self.receive(Some(deadline))? else {
                return Err(Refusal::new(limit.silence, format!("no reply within {:?}", limit.time)));
            };
            // A refusal without a serial refuses the connection, and not one request.
            let ends = notification.serial.is_none() && matches!(notification.message, ToClient::Refused(_));
            if !fits(&notification) && !ends {
                self.pending_notifications.push_back(notification);
                continue;
            }
            if notification.descriptors_lost {
                return Err(Refusal::new(Reason::OutOfFds, "RLIMIT_NOFILE of this process is reached"));
            }
            return match notification.message {
                ToClient::Refused(refused) => Err(Refusal::from(&refused)),
                _ => Ok(notification),
            };
        }
    }

    /// Sends a request without waiting. The reply arrives as a notification with the returned serial.
    pub(crate) fn send_request(&mut self, message: ToDaemon, fds: &[BorrowedFd<'_>]) -> Result<RequestSerial, Refusal> {
        self.send_request_within(message, fds, ReplyLimit::DAEMON)
    }

    fn send_request_within(
        &mut self,
        message: ToDaemon,
        fds: &[BorrowedFd<'_>],
        limit: ReplyLimit,
    ) -> Result<RequestSerial, Refusal> {
        self.require_minor(message.since(), message.name())?;
        let serial = self.serial;
        self.serial = serial.next();
        let packet = message.emit(Some(serial));
        let deadline = Instant::now() + limit.time;
        loop {
            match seqpacket::send(&self.socket, &packet, fds) {
                Ok(()) => return Ok(serial),
                Err(SendError::Full) if Instant::now() < deadline => self.wait(PollFlags::OUT, deadline)?,
                Err(SendError::Full) => {
                    let detail = format!("it took no request for {:?}", limit.time);
                    return Err(Refusal::new(limit.silence, detail));
                }
                Err(SendError::FdsInFlight) => return Err(Reason::FdsInFlight.into()),
                Err(error) => return Err(Refusal::new(Reason::DaemonConnectionLost, error.to_string())),
            }
        }
    }

    /// The next notification, if there is one.
    pub(crate) fn notification(&mut self) -> Result<Option<Notification>, Refusal> {
        match self.pending_notifications.pop_front() {
            Some(notification) => Ok(Some(notification)),
            None => self.receive(None),
        }
    }

    /// Waits for the notification that fits, with a time limit. The others keep their order.
    pub(crate) fn awaited(
        &mut self,
        limit: Duration,
        fits: impl Fn(&ToClient) -> bool,
    ) -> Result<Notification, Refusal> {
        let limit = ReplyLimit { time: limit, ..ReplyLimit::DAEMON };
        self.fitting_within(limit, |notification| fits(&notification.message))
    }

    /// Takes the grants of `peer` out of the pending notifications. The others keep their order.
    pub(crate) fn take_grants_of(&mut self, peer: DomainId) -> Vec<(Granted, OwnedFd)> {
        // A lost connection is reported again by the next call that asks for notifications.
        while let Ok(Some(notification)) = self.receive(None) {
            self.pending_notifications.push_back(notification);
        }
        let mut granted = Vec::new();
        for mut notification in std::mem::take(&mut self.pending_notifications) {
            match &notification.message {
                ToClient::Granted(message) if message.peer == peer && !notification.descriptors_lost => {
                    granted.push((message.clone(), notification.fd()));
                }
                _ => self.pending_notifications.push_back(notification),
            }
        }
        granted
    }

    /// The next message; with a deadline, waits for it.
    fn receive(&mut self, deadline: Option<Instant>) -> Result<Option<Notification>, Refusal> {
        loop {
            match seqpacket::receive(&self.socket, &mut self.packet, &mut self.fds, false) {
                Ok(bytes) => {
                    if let Some(notification) = self.parse(bytes)? {
                        return Ok(Some(notification));
                    }
                }
                Err(ReceiveError::Empty) => match deadline {
                    Some(deadline) if Instant::now() < deadline => self.wait(PollFlags::IN, deadline)?,
                    _ => return Ok(None),
                },
                Err(ReceiveError::DescriptorsLost { bytes }) => return self.parse_without_descriptors(bytes).map(Some),
                Err(error) => return Err(Refusal::new(Reason::DaemonConnectionLost, error.to_string())),
            }
        }
    }

    /// None of what only says how the next message is to be taken.
    fn parse(&mut self, bytes: usize) -> Result<Option<Notification>, Refusal> {
        let malformed = |error: MalformedControl| Refusal::new(Reason::NotIsthmus, error.to_string());
        let (serial, message) = ToClient::parse(&self.packet[..bytes], self.fds.len()).map_err(malformed)?;
        if let ToClient::EventChannels(EventChannels { ends }) = message {
            self.channels = ends.to_vec();
            return Ok(None);
        }
        let channels = std::mem::take(&mut self.channels);
        let port = |nth| channels.iter().find(|end| end.descriptor == nth).map(|end| end.port);
        let fds = (0..).zip(self.fds.drain(..)).map(|(nth, file)| (file, port(nth))).collect();
        Ok(Some(Notification { message, serial, fds, descriptors_lost: false }))
    }

    /// Parses a message without its descriptors, which are lost, for any number of them.
    fn parse_without_descriptors(&mut self, bytes: usize) -> Result<Notification, Refusal> {
        self.fds.clear(); // The descriptors that could be received.
        self.channels.clear();
        let packet = &self.packet[..bytes];
        let parsed = (0..=CONTROL_FDS_MAX).find_map(|fds| ToClient::parse(packet, fds).ok());
        let (serial, message) = parsed.ok_or_else(|| Refusal::from(Reason::NotIsthmus))?;
        Ok(Notification { message, serial, fds: VecDeque::new(), descriptors_lost: true })
    }

    fn wait(&self, what: PollFlags, deadline: Instant) -> Result<(), Refusal> {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(&self.socket, what)];
        match rustix::event::poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(Refusal::new(Reason::DaemonConnectionLost, errno.to_string())),
        }
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::sockets::StreamSession;
    use isthmus_layout::control::HelloReply;
    use isthmus_layout::sockets::{PeerLeft, SocketsToClient, StreamListening, StreamRefused};

    /// A connection with a minor version that is `less` below the current one, and the daemon's end of it.
    pub(crate) fn opened(less: u16) -> (Control, OwnedFd) {
        let (ours, daemon) = seqpacket::pair().expect("a pair");
        let today = version::VersionRange::CURRENT.version();
        let minor = today.minor - less;
        let back = HelloReply { magic: Magic, major: today.major, minor, daemon: Name::new("other").expect("short") };
        // The reply is in the socket before the client asks for it.
        seqpacket::send(daemon.as_fd(), &ToClient::from(back).emit(RequestSerial::new(1)), &[]).expect("room");
        (Control::open(ours).expect("one minor version apart"), daemon)
    }

    #[test]
    fn awaited_notification_overtakes_others() {
        let (mut control, daemon) = opened(0);
        let [first, second] = [1, 2].map(|peer| ToClient::from(SocketsToClient::from(PeerLeft { peer })));
        for message in [&first, &second] {
            seqpacket::send(daemon.as_fd(), &message.emit(None), &[]).expect("room");
        }
        let found = control.awaited(Duration::from_secs(60), |message| *message == second).expect("it is there");
        assert_eq!(found.message, second);
        let left = control.notification().expect("open").expect("it was kept");
        assert_eq!(left.message, first);
        let silence = control.awaited(Duration::ZERO, |_| true).expect_err("nothing is there");
        assert_eq!(silence.reason, Reason::DaemonConnectionLost);
    }

    #[test]
    fn reason_of_a_missing_reply_fits_the_request() {
        let (mut control, _daemon) = opened(0);
        let lookup = isthmus_layout::control::Lookup { name: Name::new("peer").expect("short") };
        let connect = isthmus_layout::mx::MxConnect { nic: 1, endpoint: 0, key: 0 };
        let requests = [
            (lookup.into(), ReplyLimit::DAEMON, Reason::DaemonConnectionLost),
            (connect.into(), crate::mx::CONNECT_LIMIT, Reason::MxUnreachable),
        ];
        for (request, limit, expected) in requests {
            let limit = ReplyLimit { time: Duration::ZERO, ..limit };
            let silence = control.request_within(request, &[], limit).expect_err("no reply comes");
            assert_eq!(silence.reason, expected, "{silence}");
        }
    }

    #[test]
    fn request_to_a_daemon_that_takes_none_has_a_time_limit() {
        let (mut control, _daemon) = opened(0);
        let limit = ReplyLimit { time: Duration::from_millis(1), ..ReplyLimit::DAEMON };
        let lookup = isthmus_layout::control::Lookup { name: Name::new("peer").expect("short") };
        let (mut sent, mut refusal) = (0, None);
        while refusal.is_none() {
            refusal = control.send_request_within(lookup.clone().into(), &[], limit).err();
            sent += u32::from(refusal.is_none());
        }
        let refusal = refusal.expect("the socket is full");
        assert!(sent > 0 && refusal.reason == Reason::DaemonConnectionLost, "{sent} sent, {refusal}");
        assert!(refusal.detail.contains("took no request"), "{refusal}");
    }

    #[test]
    fn listen_returns_when_the_address_is_listed() {
        let (control, daemon) = opened(0);
        let mut session = StreamSession::over(control);
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let listening = SocketsToClient::from(StreamListening { token: 7 });
        let refused = SocketsToClient::from(StreamRefused { token: 8, reason: Reason::StreamDenied });
        for message in [listening, refused] {
            seqpacket::send(daemon.as_fd(), &ToClient::from(message).emit(None), &[]).expect("room");
        }
        assert_eq!(session.listen(7, socket.as_fd()), Ok(()));
        assert_eq!(session.listen(8, socket.as_fd()).map_err(|refusal| refusal.reason), Err(Reason::StreamDenied));
        assert!(session.next_event().expect("open").is_none(), "both answers were taken");
    }

    #[test]
    fn requests_newer_than_the_daemon_are_not_sent() {
        let today = version::VersionRange::CURRENT.version();
        let (older, (control, _daemon)) = (today.minor - 1, opened(1));
        assert_eq!(control.require_minor(older, "what it has"), Ok(()));
        let refusal = control.require_minor(today.minor, "what came later").expect_err("not in its version");
        assert_eq!(refusal.reason, Reason::UnsupportedRequest);
        assert!(refusal.detail.contains("what came later"), "{refusal}");
    }
}
