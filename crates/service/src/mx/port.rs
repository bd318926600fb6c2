//! A link of an MX board, and the frames that wait to be sent by it.

use super::capture::Captures;
use super::endpoints::Endpoints;
use crate::sleeper::{Sleeper, Source};
use isthmus_layout::mx::ENDPOINTS_MAX;
use isthmus_link::{Frame, Link, LinkState, SEND_MAX, SendNext};
use isthmus_mx::net::{PayloadRange, Time};
use isthmus_mx::wire::{Dialect, EmitError, EndpointNumber, Header, Packet, emit_head};
use isthmus_shm::Gather;
use std::collections::VecDeque;
use std::os::fd::AsFd as _;

/// The maximum number of frames that wait for a link. It is small because frames that are made later carry newer acknowledgements.
pub(super) const QUEUE_MAX: usize = 2 * SEND_MAX;

/// Bytes before the data, at most, in a packet of an endpoint.
const HEAD_BYTES_MAX: usize = 64;

/// The interval at which a link that is down is checked.
const LINK_CHECK_INTERVAL_US: u64 = 250_000;

/// The time after which a send to a full link is tried again.
const FULL_RETRY_US: u64 = 500;

/// The padding of a short frame.
static PAD: [u8; 64] = [0; 64];

/// A frame without addresses.
static EMPTY_HEADER: [u8; 14] = [0; 14];

const _: () = assert!(ENDPOINTS_MAX <= 255);

/// A frame that is to be sent.
#[derive(Debug)]
enum Queued {
    /// A frame of the board.
    Whole(Box<[u8]>),
    /// A frame of an endpoint; the endpoint has its data.
    Packet { head: [u8; HEAD_BYTES_MAX], head_len: u8, pad: u8, endpoint: EndpointNumber, source: Option<PayloadRange> },
}

impl Queued {
    /// The endpoint that sends the frame. None for a frame of the board.
    fn endpoint(&self) -> Option<EndpointNumber> {
        match self {
            Self::Whole(_) => None,
            Self::Packet { endpoint, .. } => Some(*endpoint),
        }
    }
}

/// A link and its frames.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) link: Box<dyn Link>,
    pub(super) rank: u32,
    queue: VecDeque<Queued>,
    /// A contiguous copy of data that is in several parts.
    scratch: Vec<u8>,
    /// Whether the link had no room at the last send.
    pub(super) full: bool,
    /// Whether the sleeper also wakes the worker when the link has room. None if the sleeper does not watch the link.
    watched: Option<bool>,
    /// Whether the link may have frames: set by the sleeper's events, and cleared by a receive that took all frames.
    pub(super) is_ready: bool,
    /// The link failed and is not tried again.
    pub(super) broken: bool,
    /// The time of the next check, while the link is down.
    next_check: Option<Time>,
    /// Frames that were not sent: their link was down, or they were too long for it.
    pub(super) unsent: u64,
}

/// A change of a link's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkChange {
    None,
    Up,
    Down,
}

impl Port {
    pub(super) fn new(link: Box<dyn Link>, rank: u32) -> Self {
        Self {
            link,
            rank,
            queue: VecDeque::new(),
            scratch: Vec::new(),
            full: false,
            watched: None,
            is_ready: true,
            broken: false,
            next_check: None,
            unsent: 0,
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.queue.len() < QUEUE_MAX
    }

    /// Returns whether frames wait to be sent.
    pub(super) fn has_unsent(&self) -> bool {
        !self.queue.is_empty()
    }

    /// A frame of the board's own.
    pub(super) fn push_whole(&mut self, frame: Vec<u8>) {
        self.queue.push_back(Queued::Whole(frame.into()));
    }

    /// A frame of an endpoint.
    pub(super) fn push(
        &mut self,
        dialect: Dialect,
        endpoint: EndpointNumber,
        header: &Header,
        packet: &Packet<PayloadRange>,
    ) -> Result<(), EmitError> {
        let mut head = [0; HEAD_BYTES_MAX];
        let parts = emit_head(dialect, header, packet, &mut head)?;
        let source = packet.data().copied();
        let (head_len, pad) = (parts.head as u8, parts.pad as u8); // A head has 64 bytes at most, a short frame 60.
        self.queue.push_back(Queued::Packet { head, head_len, pad, endpoint, source });
        Ok(())
    }

    /// Sends queued frames while the link has room. True if it took a frame.
    pub(super) fn flush(&mut self, now: Time, endpoints: &Endpoints, at: usize, captures: &mut Captures) -> bool {
        let mut moved = false;
        while !self.queue.is_empty() && !self.broken {
            let mut frames = [Frame::whole(&EMPTY_HEADER); SEND_MAX];
            let count = build_frames(&self.queue, endpoints, &mut self.scratch, &mut frames);
            if count == 0 {
                self.queue.pop_front(); // Its message has ended.
                continue;
            }
            match self.link.send(&frames[..count]) {
                Ok(sent) => {
                    let from = |frame: usize| self.queue.get(frame).and_then(Queued::endpoint);
                    captures.sent(endpoints, at, &frames[..sent.accepted], sent.refused, from);
                    self.queue.drain(..sent.accepted);
                    self.unsent += sent.refused.count() as u64;
                    moved |= sent.accepted > 0;
                    self.full = sent.next == SendNext::Full;
                    match sent.next {
                        SendNext::Ready => {}
                        SendNext::Full => return moved,
                        SendNext::Down => {
                            self.unsent += self.queue.len() as u64;
                            self.queue.clear();
                            self.next_check.get_or_insert(now);
                        }
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "a link is given up");
                    self.broken = true;
                    self.queue.clear();
                }
            }
        }
        moved
    }

    /// Receives a batch of frames. Returns the number of frames, and whether there may be more.
    pub(super) fn receive(&mut self, now: Time) -> (usize, bool) {
        if self.broken || !self.is_ready {
            return (0, false);
        }
        match self.link.receive() {
            Ok(count) => {
                // Without the sleeper's events, only a receive finds frames.
                self.is_ready = self.link.has_more() || self.watched.is_none();
                if self.link.state() != LinkState::Up {
                    self.next_check.get_or_insert(now);
                }
                (count, self.link.has_more())
            }
            Err(error) => {
                tracing::error!(%error, "a link is given up");
                self.broken = true;
                (0, false)
            }
        }
    }

    /// Lets the sleeper watch the link, and also for room if the link is full.
    pub(super) fn watch(&mut self, source: Source, sleeper: &mut Sleeper) {
        if self.broken {
            if self.watched.take().is_some() {
                sleeper.unwatch(&self.link.as_fd());
            }
        } else if self.watched != Some(self.full) {
            match sleeper.watch(&self.link.as_fd(), source, self.full) {
                Ok(()) => self.watched = Some(self.full),
                Err(error) => tracing::error!(%error, link = self.link.name(), "a link cannot be waited for"),
            }
        }
    }

    /// Checks a link that is down, at intervals. Returns the change of its state.
    pub(super) fn check_link(&mut self, now: Time, was_up: bool) -> LinkChange {
        if let Some(at) = self.next_check
            && at <= now
            && !self.broken
        {
            self.next_check = Some(now.after_us(LINK_CHECK_INTERVAL_US));
            match self.link.refresh() {
                Ok(LinkState::Up) => self.next_check = None,
                Ok(_) => {}
                Err(error) => {
                    tracing::error!(%error, "a link is given up");
                    self.broken = true;
                }
            }
        }
        match (was_up, !self.broken && self.link.state() == LinkState::Up) {
            (true, false) => LinkChange::Down,
            (false, true) => LinkChange::Up,
            _ => LinkChange::None,
        }
    }

    /// The time of the next timer: a link that is down is checked, and a link that was full is tried again, because not every
    /// network card reports that it has room.
    pub(super) fn deadline(&self, now: Time) -> Option<Time> {
        let again = (self.full && !self.queue.is_empty()).then(|| now.after_us(FULL_RETRY_US));
        self.next_check.into_iter().chain(again).min().filter(|_| !self.broken)
    }
}

/// Builds frames from the queue, up to a batch. Returns 0 only if the data of the first frame no longer exists.
fn build_frames<'a>(
    queue: &'a VecDeque<Queued>,
    endpoints: &'a Endpoints,
    scratch: &'a mut Vec<u8>,
    frames: &mut [Frame<'a>; SEND_MAX],
) -> usize {
    for (at, queued) in queue.iter().take(SEND_MAX).enumerate() {
        frames[at] = match queued {
            Queued::Whole(bytes) => Frame::whole(bytes),
            Queued::Packet { head, head_len, pad, endpoint, source } => {
                let (head, pad) = (&head[..usize::from(*head_len)], &PAD[..usize::from(*pad)]);
                let Some(source) = source else {
                    frames[at] = Frame::new(head, Gather::EMPTY, pad);
                    continue;
                };
                let data = endpoints.get(*endpoint).and_then(|served| served.transport.data(*source));
                let Some(parts) = data else { return at };
                let mut filled = parts.iter().filter(|part| !part.is_empty());
                match (filled.next(), filled.next()) {
                    (first, None) => Frame::new(head, first.copied().unwrap_or(Gather::EMPTY), pad),
                    // Data in several parts is rare enough to be sent alone, from a copy.
                    _ if at > 0 => return at,
                    _ => {
                        scratch.clear();
                        for part in parts {
                            let start = scratch.len();
                            scratch.resize(start + part.len(), 0);
                            part.copy_out(&mut scratch[start..]);
                        }
                        frames[0] = Frame::new(head, &scratch[..], pad);
                        return 1;
                    }
                }
            }
        };
    }
    queue.len().min(SEND_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use isthmus_layout::NicId;
    use isthmus_link::{LinkCounters, LinkError, LinkKind, SendOutcome};
    use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

    /// A link that has `frames` frames and returns up to `BATCH` of them at a time.
    #[derive(Debug)]
    struct Full {
        frames: usize,
        fd: OwnedFd,
    }

    const BATCH: usize = 5;

    impl AsFd for Full {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.fd.as_fd()
        }
    }

    impl Link for Full {
        fn kind(&self) -> LinkKind {
            LinkKind::Udp
        }

        fn name(&self) -> &str {
            "full"
        }

        fn nic(&self) -> NicId {
            NicId::from_octets([2, 0, 0, 0, 0, 1])
        }

        fn frame_bytes_max(&self) -> u32 {
            1500
        }

        fn state(&self) -> LinkState {
            LinkState::Up
        }

        fn send(&mut self, _: &[Frame<'_>]) -> Result<SendOutcome, LinkError> {
            unreachable!("nothing is sent")
        }

        fn receive(&mut self) -> Result<usize, LinkError> {
            let count = self.frames.min(BATCH);
            self.frames -= count;
            Ok(count)
        }

        fn has_more(&self) -> bool {
            self.frames > 0
        }

        fn frame(&self, _: usize) -> &[u8] {
            &[]
        }

        fn refresh(&mut self) -> Result<LinkState, LinkError> {
            Ok(LinkState::Up)
        }

        fn counters(&self) -> LinkCounters {
            LinkCounters::default()
        }
    }

    /// The worker is not woken for frames that are left in the link.
    #[test]
    fn a_link_is_looked_at_until_it_has_no_more() {
        let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let mut port = Port::new(Box::new(Full { frames: 12, fd }), 0);
        let mut receive = || port.receive(Time::ZERO);
        assert_eq!([receive(), receive(), receive()], [(5, true), (5, true), (2, false)]);
        assert_eq!([receive(), receive()], [(0, false), (0, false)]);
    }
}
