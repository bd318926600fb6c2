//! The connection to the daemon: requests, their replies, and news.

use crate::error::Refusal;
use isthmus_layout::DomainId;
use isthmus_layout::control::{
    EventChannelEnd, EventChannels, Granted, Hello, Magic, MalformedControl, Name, Placed, PlacedMemory, RequestSerial,
    ToClient, ToDaemon, version,
};
use isthmus_layout::limits::{CONTROL_BYTES_MAX, CONTROL_FDS_MAX};
use isthmus_layout::reason::Reason;
use isthmus_platform::Doorbell;
use isthmus_platform::seqpacket::{self, ReceiveError, SendError};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long a reply may take before the daemon counts as gone.
const REPLY: Duration = Duration::from_secs(5);

/// A message of the daemon with the descriptors that came with it.
#[derive(Debug)]
pub(crate) struct News {
    pub(crate) message: ToClient,
    fds: VecDeque<Descriptor>,
    pub(crate) serial: Option<RequestSerial>,
    /// Its descriptors could not be taken: this process may not open more.
    pub(crate) lost: bool,
}

/// A descriptor that came with a message, and what the message before said of it.
#[derive(Debug)]
struct Descriptor {
    file: OwnedFd,
    /// Of an end of an event channel.
    port: Option<u32>,
    /// Of memory that is a part of its file.
    at: Option<u64>,
}

/// Memory as it came over the socket.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) file: OwnedFd,
    /// Its first byte, where the file is a whole window.
    pub(crate) at: Option<u64>,
}

impl News {
    /// The next descriptor; the codec has checked how many there are.
    pub(crate) fn fd(&mut self) -> OwnedFd {
        self.next().file
    }

    /// The same of one that is memory of a channel, or a board.
    pub(crate) fn memory(&mut self) -> Memory {
        let Descriptor { file, at, .. } = self.next();
        Memory { file, at }
    }

    /// The same of one that is a doorbell.
    pub(crate) fn doorbell(&mut self) -> Doorbell {
        match self.next() {
            Descriptor { file, port: Some(port), .. } => Doorbell::event_channel(file, port),
            Descriptor { file, .. } => Doorbell::from(file),
        }
    }

    fn next(&mut self) -> Descriptor {
        self.fds.pop_front().expect("the codec counted the descriptors")
    }
}

/// An open connection, past the handshake.
#[derive(Debug)]
pub(crate) struct Control {
    socket: OwnedFd,
    /// The minor version that both speak.
    minor: u16,
    serial: RequestSerial,
    /// News that came while a reply was waited for.
    waiting: VecDeque<News>,
    packet: Vec<u8>,
    fds: Vec<OwnedFd>,
    /// Those that come with the next message.
    channels: Vec<EventChannelEnd>,
    placed: Vec<PlacedMemory>,
}

impl Control {
    /// Says hello.
    pub(crate) fn open(socket: OwnedFd) -> Result<Self, Refusal> {
        let mut control = Self {
            socket,
            minor: 0,
            serial: RequestSerial::new(1).expect("one is not zero"),
            waiting: VecDeque::new(),
            packet: vec![0; CONTROL_BYTES_MAX],
            fds: Vec::with_capacity(CONTROL_FDS_MAX),
            channels: Vec::new(),
            placed: Vec::new(),
        };
        let spoken = version::Spoken::CURRENT;
        let library = Name::new(concat!("isthmus-client ", env!("CARGO_PKG_VERSION"))).expect("a valid name");
        let news = control.request(Hello { magic: Magic, spoken, library }.into(), &[])?;
        match news.message {
            ToClient::HelloBack(back) => match version::accept(spoken, &back) {
                Ok(version) => {
                    control.minor = version.minor;
                    Ok(control)
                }
                Err(refused) => Err(Refusal::new(refused.reason, refused.to_string())),
            },
            _ => Err(Refusal::new(Reason::NotIsthmus, "the daemon's first word is not hello")),
        }
    }

    /// Asks, and waits for the reply; news that come meanwhile are kept. A refusal is an error.
    pub(crate) fn request(&mut self, message: ToDaemon, fds: &[BorrowedFd<'_>]) -> Result<News, Refusal> {
        match self.tell(message, fds) {
            Ok(serial) => self.next_reply(Some(serial)),
            Err(refusal) if refusal.reason == Reason::DaemonGone => Err(self.last_word().unwrap_or(refusal)),
            Err(refusal) => Err(refusal),
        }
    }

    /// The same with a limit of the caller's, who takes silence for what it is.
    pub(crate) fn request_within(&mut self, message: ToDaemon, limit: Duration) -> Result<News, Refusal> {
        let serial = self.tell(message, &[])?;
        let silence = Refusal::new(Reason::MxUnreachable, format!("no answer within {limit:?}"));
        self.reply_until(Some(serial), Instant::now() + limit, silence)
    }

    /// A daemon of an older minor version is not asked what it does not know.
    pub(crate) fn knows(&self, since: u16, what: &str) -> Result<(), Refusal> {
        if since <= self.minor {
            return Ok(());
        }
        let minor = self.minor;
        Err(Refusal::new(Reason::NotInVersion, format!("{what} is of minor version {since}, spoken is {minor}")))
    }

    /// Why the daemon has ended the connection, if it said so before.
    fn last_word(&mut self) -> Option<Refusal> {
        while let Ok(Some(news)) = self.receive(None) {
            if let (None, ToClient::Refused(refused)) = (news.serial, news.message) {
                return Some(Refusal::new(refused.reason, refused.text.to_string()));
            }
        }
        None
    }

    /// The next reply to a request; news that come meanwhile are kept. A refusal is an error.
    pub(crate) fn next_reply(&mut self, serial: Option<RequestSerial>) -> Result<News, Refusal> {
        self.reply_until(serial, Instant::now() + REPLY, Refusal::new(Reason::DaemonGone, "no reply within 5 s"))
    }

    fn reply_until(
        &mut self,
        serial: Option<RequestSerial>,
        deadline: Instant,
        silence: Refusal,
    ) -> Result<News, Refusal> {
        loop {
            let Some(news) = self.receive(Some(deadline))? else { return Err(silence) };
            // Without a serial it is not one request that is refused but the connection.
            let ends = news.serial.is_none() && matches!(news.message, ToClient::Refused(_));
            if news.serial != serial && !ends {
                self.waiting.push_back(news);
                continue;
            }
            if news.lost {
                return Err(Refusal::new(Reason::OutOfFds, "RLIMIT_NOFILE of this process is reached"));
            }
            return match news.message {
                ToClient::Refused(refused) => Err(Refusal::new(refused.reason, refused.text.to_string())),
                _ => Ok(news),
            };
        }
    }

    /// Asks without waiting; the reply comes as news with this serial.
    pub(crate) fn tell(&mut self, message: ToDaemon, fds: &[BorrowedFd<'_>]) -> Result<RequestSerial, Refusal> {
        self.knows(message.since(), message.name())?;
        let serial = self.serial;
        self.serial = serial.next();
        let packet = message.emit(Some(serial));
        loop {
            match seqpacket::send(&self.socket, &packet, fds) {
                Ok(()) => return Ok(serial),
                Err(SendError::Full) => self.wait(PollFlags::OUT, Instant::now() + REPLY)?,
                Err(SendError::FdsInFlight) => return Err(Reason::FdsInFlight.into()),
                Err(error) => return Err(Refusal::new(Reason::DaemonGone, error.to_string())),
            }
        }
    }

    /// News, if there are any.
    pub(crate) fn news(&mut self) -> Result<Option<News>, Refusal> {
        match self.waiting.pop_front() {
            Some(news) => Ok(Some(news)),
            None => self.receive(None),
        }
    }

    /// What `peer` has granted among the news there are. The others are kept in their order.
    pub(crate) fn take_grants(&mut self, peer: DomainId) -> Vec<(Granted, OwnedFd)> {
        // An end of the connection is met again by whoever asks for news.
        while let Ok(Some(news)) = self.receive(None) {
            self.waiting.push_back(news);
        }
        let mut granted = Vec::new();
        for mut news in std::mem::take(&mut self.waiting) {
            match &news.message {
                ToClient::Granted(message) if message.peer == peer && !news.lost => {
                    granted.push((message.clone(), news.fd()));
                }
                _ => self.waiting.push_back(news),
            }
        }
        granted
    }

    /// The next message; with a deadline, waits for it.
    fn receive(&mut self, deadline: Option<Instant>) -> Result<Option<News>, Refusal> {
        loop {
            match seqpacket::receive(&self.socket, &mut self.packet, &mut self.fds, false) {
                Ok(bytes) => {
                    if let Some(news) = self.parse(bytes)? {
                        return Ok(Some(news));
                    }
                }
                Err(ReceiveError::Empty) => match deadline {
                    Some(deadline) if Instant::now() < deadline => self.wait(PollFlags::IN, deadline)?,
                    _ => return Ok(None),
                },
                Err(ReceiveError::DescriptorsLost { bytes }) => return self.parse_lost(bytes).map(Some),
                Err(error) => return Err(Refusal::new(Reason::DaemonGone, error.to_string())),
            }
        }
    }

    /// None of what only says how the next message is to be taken.
    fn parse(&mut self, bytes: usize) -> Result<Option<News>, Refusal> {
        let malformed = |error: MalformedControl| Refusal::new(Reason::NotIsthmus, error.to_string());
        let (serial, message) = ToClient::parse(&self.packet[..bytes], self.fds.len()).map_err(malformed)?;
        match message {
            ToClient::EventChannels(EventChannels { ends }) => {
                self.channels = ends.to_vec();
                return Ok(None);
            }
            ToClient::Placed(Placed { memory }) => {
                self.placed = memory.to_vec();
                return Ok(None);
            }
            _ => {}
        }
        let (channels, placed) = (std::mem::take(&mut self.channels), std::mem::take(&mut self.placed));
        let port = |nth| channels.iter().find(|end| end.descriptor == nth).map(|end| end.port);
        let at = |nth| placed.iter().find(|memory| memory.descriptor == nth).map(|memory| memory.at);
        let fds = (0..).zip(self.fds.drain(..)).map(|(nth, file)| Descriptor { file, port: port(nth), at: at(nth) });
        let fds = fds.collect();
        Ok(Some(News { message, serial, fds, lost: false }))
    }

    /// A message whose descriptors are gone, whatever their number was.
    fn parse_lost(&mut self, bytes: usize) -> Result<News, Refusal> {
        self.fds.clear(); // Those that could be taken.
        self.channels.clear();
        self.placed.clear();
        let packet = &self.packet[..bytes];
        let parsed = (0..=CONTROL_FDS_MAX).find_map(|fds| ToClient::parse(packet, fds).ok());
        let (serial, message) = parsed.ok_or_else(|| Refusal::from(Reason::NotIsthmus))?;
        Ok(News { message, serial, fds: VecDeque::new(), lost: true })
    }

    fn wait(&self, what: PollFlags, deadline: Instant) -> Result<(), Refusal> {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(&self.socket, what)];
        match rustix::event::poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(Refusal::new(Reason::DaemonGone, errno.to_string())),
        }
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isthmus_layout::control::{HelloBack, List, RegionMade};
    use isthmus_layout::ids::RegionId;

    /// A connection on which so much less than today's minor version is spoken, and the daemon's end of it.
    fn opened(less: u16) -> (Control, OwnedFd) {
        let (ours, daemon) = seqpacket::pair().expect("a pair");
        let today = version::Spoken::CURRENT.version();
        let minor = today.minor - less;
        let back = HelloBack { magic: Magic, major: today.major, minor, daemon: Name::new("other").expect("short") };
        // It lies in the socket before it is asked for.
        seqpacket::send(daemon.as_fd(), &ToClient::from(back).emit(RequestSerial::new(1)), &[]).expect("room");
        (Control::open(ours).expect("one minor version apart"), daemon)
    }

    #[test]
    fn what_the_daemon_does_not_know_is_not_asked() {
        let today = version::Spoken::CURRENT.version();
        let (older, (control, _daemon)) = (today.minor - 1, opened(1));
        assert_eq!(control.knows(older, "what it has"), Ok(()));
        let refusal = control.knows(today.minor, "what came later").expect_err("not in its version");
        assert_eq!(refusal.reason, Reason::NotInVersion);
        assert!(refusal.detail.contains("what came later"), "{refusal}");
    }

    #[test]
    fn where_memory_begins_is_said_of_the_next_message_alone() {
        let (mut control, daemon) = opened(0);
        let file = || isthmus_platform::local::memory(isthmus_layout::RegionSize(4096)).expect("memory");
        let placed = vec![PlacedMemory { descriptor: 0, at: 8192 }, PlacedMemory { descriptor: 7, at: 4096 }];
        let placed = Placed { memory: List::new(placed).expect("two") };
        let made = ToClient::from(RegionMade { region: RegionId(1) });
        seqpacket::send(&daemon, &ToClient::from(placed).emit(None), &[]).expect("room");
        for _ in 0..2 {
            seqpacket::send(&daemon, &made.emit(None), &[file().as_fd()]).expect("room");
        }
        let mut next = || control.news().expect("a daemon").expect("news").memory().at;
        assert_eq!((next(), next()), (Some(8192), None));
    }
}
