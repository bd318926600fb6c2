//! The control protocol by hand: whatever bytes, whatever descriptors, in whatever order.

use anyhow::{Context as _, anyhow, bail};
use isthmus_layout::control::*;
use isthmus_layout::ids::DomainId;
use isthmus_layout::limits::CONTROL_BYTES_MAX;
use isthmus_layout::reason::Reason;
use isthmus_platform::seqpacket::{self, ReceiveError};
use isthmus_testbed::Deadline;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::VecDeque;
use std::path::PathBuf;

/// Seconds after which a daemon that owes an answer counts as hanging.
const TIMEOUT_S: u64 = 30;

/// A message of the daemon.
pub(crate) struct ReceivedMessage {
    pub(crate) serial: Option<RequestSerial>,
    pub(crate) message: ToClient,
    pub(crate) fds: Vec<OwnedFd>,
}

/// A connection.
pub(crate) struct RawConnection {
    pub(crate) socket: OwnedFd,
    serial: RequestSerial,
    unmatched: VecDeque<ReceivedMessage>,
}

/// An attached domain with all it was given.
pub(crate) struct Attached {
    pub(crate) raw: RawConnection,
    pub(crate) welcome: Welcome,
    pub(crate) fds: Vec<OwnedFd>,
}

/// A name that is one.
pub(crate) fn name(name: &str) -> Name {
    Name::new(name).expect("a valid name")
}

/// The daemon's socket.
pub(crate) fn socket() -> PathBuf {
    std::env::var_os("ISTHMUS_SOCKET").map(PathBuf::from).expect("the test bed sets ISTHMUS_SOCKET")
}

impl RawConnection {
    /// A connection that has said nothing.
    pub(crate) fn connect() -> anyhow::Result<Self> {
        let socket = seqpacket::connect(&socket()).context("connecting")?;
        Ok(Self { socket, serial: RequestSerial::new(1).expect("one is not zero"), unmatched: VecDeque::new() })
    }

    /// A connection past the handshake.
    pub(crate) fn connect_and_greet() -> anyhow::Result<Self> {
        let mut raw = Self::connect()?;
        let hello = Hello { magic: Magic, versions: VersionRange::CURRENT, library: name("hostile 1") };
        match raw.ask(hello, &[])?.map(|received| received.message) {
            Ok(ToClient::HelloReply(_)) => Ok(raw),
            other => bail!("no greeting: {other:?}"),
        }
    }

    /// A domain.
    pub(crate) fn connect_and_attach(called: Option<&str>) -> anyhow::Result<Attached> {
        Self::connect_and_greet()?
            .attach(Attach { name: called.map(name), resume: None }, &[])?
            .map_err(|reason| anyhow!("not attached: {reason}"))
    }

    /// Makes it a domain.
    pub(crate) fn attach(mut self, attach: Attach, fds: &[BorrowedFd<'_>]) -> anyhow::Result<Result<Attached, Reason>> {
        Ok(match self.ask(attach, fds)? {
            Ok(ReceivedMessage { message: ToClient::Welcome(welcome), fds, .. }) => {
                Ok(Attached { raw: self, welcome, fds })
            }
            Ok(received) => bail!("no welcome but {:?}", received.message),
            Err(reason) => Err(reason),
        })
    }

    /// Sends a message; answers its serial.
    pub(crate) fn say(
        &mut self,
        message: impl Into<ToDaemon>,
        fds: &[BorrowedFd<'_>],
    ) -> anyhow::Result<RequestSerial> {
        let serial = self.serial;
        self.serial = serial.next();
        seqpacket::send(&self.socket, &message.into().emit(Some(serial)), fds)?;
        Ok(serial)
    }

    /// Sends any bytes. It may fail: the daemon may have had enough.
    pub(crate) fn send_raw(&self, packet: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        seqpacket::send(&self.socket, packet, fds).is_ok()
    }

    /// Asks and waits for the answer, or for the refusal's reason.
    pub(crate) fn ask(
        &mut self,
        message: impl Into<ToDaemon>,
        fds: &[BorrowedFd<'_>],
    ) -> anyhow::Result<Result<ReceivedMessage, Reason>> {
        let serial = self.say(message, fds)?;
        // A connection that is ended as a whole hears so without a serial.
        let received = self.receive_matching(|received| {
            received.serial == Some(serial)
                || received.serial.is_none() && matches!(received.message, ToClient::Refused(_))
        })?;
        Ok(match received.message {
            ToClient::Refused(refused) => Err(refused.reason),
            _ => Ok(received),
        })
    }

    /// Sends a message that is answered by a refusal or not at all: the reply to a harmless request sent after it shows that there was
    /// none.
    pub(crate) fn send_and_check(&mut self, message: impl Into<ToDaemon>) -> anyhow::Result<Option<Reason>> {
        let serial = self.say(message, &[])?;
        let probe = self.say(Lookup { name: name("no such domain") }, &[])?;
        let received =
            self.receive_matching(|received| received.serial == Some(serial) || received.serial == Some(probe))?;
        Ok(match (received.serial == Some(serial), received.message) {
            (true, ToClient::Refused(refused)) => Some(refused.reason),
            (true, ToClient::ChannelRefused(refused)) => Some(refused.reason),
            _ => None,
        })
    }

    /// The next message that is wanted; others are kept.
    pub(crate) fn receive_matching(
        &mut self,
        wanted: impl Fn(&ReceivedMessage) -> bool,
    ) -> anyhow::Result<ReceivedMessage> {
        if let Some(at) = self.unmatched.iter().position(&wanted) {
            return self.unmatched.remove(at).context("found a line above");
        }
        loop {
            let received = self.receive().map_err(|error| anyhow!("the daemon does not answer: {error}"))?;
            if wanted(&received) {
                return Ok(received);
            }
            if !matches!(received.message, ToClient::Wakeup(_)) {
                self.unmatched.push_back(received);
            }
        }
    }

    /// The next packet.
    pub(crate) fn receive(&self) -> Result<ReceivedMessage, ReceiveError> {
        let (mut packet, mut fds) = (vec![0; CONTROL_BYTES_MAX], Vec::new());
        let late = Deadline::secs(TIMEOUT_S).readable([self.socket.as_fd()]).is_err();
        if late {
            return Err(ReceiveError::Empty);
        }
        let bytes = seqpacket::receive(&self.socket, &mut packet, &mut fds, false)?;
        let (serial, message) =
            ToClient::parse(&packet[..bytes], fds.len()).expect("the daemon's messages are well formed");
        Ok(ReceivedMessage { serial, message, fds })
    }

    /// Why the daemon ended the connection: it does so within the patience, or this fails.
    pub(crate) fn ended(&self) -> anyhow::Result<Option<Reason>> {
        let mut reason = None;
        loop {
            match self.receive() {
                Ok(ReceivedMessage { serial: None, message: ToClient::Refused(refused), .. }) => {
                    reason = Some(refused.reason)
                }
                Ok(_) => {}
                Err(ReceiveError::Closed) => return Ok(reason),
                Err(error) => bail!("the connection is not ended: {error}"),
            }
        }
    }

    /// The number of the domain of this name.
    pub(crate) fn lookup(&mut self, called: &str) -> anyhow::Result<DomainId> {
        match self.ask(Lookup { name: name(called) }, &[])?.map(|received| received.message) {
            Ok(ToClient::Found(found)) => Ok(found.domain),
            other => bail!("{called} is not found: {other:?}"),
        }
    }

    /// A channel with this domain, which has taken it.
    pub(crate) fn channel(&mut self, peer: DomainId) -> anyhow::Result<(ChannelOffer, Vec<OwnedFd>)> {
        for attempt in 1..=3 {
            let serial = self.say(RequestChannel { peer, attempt }, &[])?;
            let received = self.receive_matching(|received| received.serial == Some(serial))?;
            let ToClient::ChannelOffer(offer) = received.message else { continue };
            let id = offer.channel;
            let opened = self.receive_matching(|received| match &received.message {
                ToClient::ChannelOpen(open) => open.channel == id,
                ToClient::ChannelRefused(refused) => refused.peer == peer,
                _ => false,
            })?;
            if let ToClient::ChannelOpen(_) = opened.message {
                return Ok((offer, received.fds));
            }
        }
        bail!("no channel with {peer}")
    }
}

impl Attached {
    /// Shows the ticket on a new connection.
    pub(crate) fn resume(welcome: &Welcome) -> Attach {
        Attach {
            name: Some(welcome.name.clone()),
            resume: Some(Resume { domain: welcome.domain, ticket: welcome.ticket }),
        }
    }
}

impl RawConnection {
    /// Takes what is there already.
    pub(crate) fn drain(&self) {
        let (mut packet, mut fds) = (vec![0; CONTROL_BYTES_MAX], Vec::new());
        while seqpacket::receive(&self.socket, &mut packet, &mut fds, false).is_ok() {}
    }
}
