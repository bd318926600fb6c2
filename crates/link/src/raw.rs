//! Measures the performance of a link with bare frames, without a protocol, for comparison with protocols. Generic over links. Both ends
//! can be in one process or in two.
//!
//! ```text
//!   stream_out ── Data, Data, … (a window of them) ──► stream_in         ping ── Ping ──► pong
//!              ◄── Ack each 64 ──────────────────────                         ◄── Pong ──
//! ```
//!
//! Nothing is retransmitted: lost frames stay lost and are counted. If nothing arrives for a while, the sender asks for the receiver's
//! progress.

mod message;
mod ping;
mod stream;

use std::time::{Duration, Instant};

use isthmus_layout::NicId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::{Frame, Link, LinkError, LinkState, SendNext};
pub use message::RAW_MESSAGE_BYTES;
use message::RawMessage;
pub use ping::{PingReport, ping, pong};
pub use stream::{StreamReport, stream_in, stream_out};

/// The parameters on which both ends of a measurement agree.
#[derive(Clone, Debug)]
pub struct MeasurementPlan {
    /// The other end's address in frames.
    pub to: NicId,
    /// The links' ethertype.
    pub ethertype: u16,
    /// The size of each frame, from the Ethernet header on; at least [`RAW_MESSAGE_BYTES`].
    pub frame_bytes: usize,
    /// The number of frames, or of round trips.
    pub count: u64,
    /// The maximum number of frames in flight.
    pub window: u64,
    /// The number of frames between two acknowledgements.
    pub ack_interval: u64,
    /// The number of frames passed to the link at once.
    pub batch: usize,
    /// The way of waiting.
    pub wait: RawWait,
    /// The time without frames after which the measurement fails.
    pub timeout: Duration,
}

impl MeasurementPlan {
    /// Creates a plan with defaults: a window of 512, an acknowledgement every 64 frames, batches of 32.
    pub fn new(to: NicId, ethertype: u16, frame_bytes: usize, count: u64) -> Self {
        let (window, ack_interval, batch) = (512, 64, 32);
        let timeout = Duration::from_secs(10);
        Self { to, ethertype, frame_bytes, count, window, ack_interval, batch, wait: RawWait::Sleep, timeout }
    }

    /// Returns the plan with another way of waiting.
    pub fn waiting(self, wait: RawWait) -> Self {
        Self { wait, ..self }
    }
}

/// The way in which an end waits for frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawWait {
    /// Polls the link repeatedly.
    Spin,
    /// Sleeps on the link's descriptor.
    Sleep,
}

/// The reason why a measurement ended early.
#[derive(Debug, thiserror::Error)]
pub enum RawError {
    /// The link has failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// Waiting for the link failed.
    #[error("waiting for frames: {0}")]
    Wait(#[source] Errno),
    /// No frame arrived for too long.
    #[error("nothing for {} ms: is the other end there? (the link is {state})", waited.as_millis())]
    Timeout {
        /// The time without frames.
        waited: Duration,
        /// The state of the link.
        state: LinkState,
    },
    /// The link refuses frames of this length or to this address.
    #[error("frames of {bytes} bytes to {to} are refused (at most {max} bytes; for UDP the address must be a peer's)")]
    Refused {
        /// The size of the frames.
        bytes: usize,
        /// The destination.
        to: NicId,
        /// The longest frame that the link takes.
        max: u32,
    },
}

/// The time without frames after which the sender probes.
const PROBE_AFTER: Duration = Duration::from_millis(20);

/// One end of a measurement.
struct MeasurementEnd<'a> {
    link: &'a mut dyn Link,
    plan: &'a MeasurementPlan,
    /// The heads of a batch.
    heads: Vec<[u8; RAW_MESSAGE_BYTES]>,
    filler: Vec<u8>,
    /// The time at which a frame last arrived.
    last_received: Instant,
}

impl<'a> MeasurementEnd<'a> {
    fn new(link: &'a mut dyn Link, plan: &'a MeasurementPlan) -> Self {
        let heads = vec![[0; RAW_MESSAGE_BYTES]; plan.batch.clamp(1, crate::SEND_MAX)];
        let filler = vec![0x5A; plan.frame_bytes.saturating_sub(RAW_MESSAGE_BYTES)];
        Self { link, plan, heads, filler, last_received: Instant::now() }
    }

    /// Sends messages numbered from `first` on, as full frames or as short ones; returns the number sent.
    fn send(
        &mut self,
        message: impl Fn(u64) -> RawMessage,
        first: u64,
        count: usize,
        is_full: bool,
    ) -> Result<usize, RawError> {
        let count = count.min(self.heads.len());
        let from = self.link.nic();
        for (at, head) in self.heads[..count].iter_mut().enumerate() {
            *head = message(first + at as u64).emit(self.plan.to, from, self.plan.ethertype);
        }
        let filler: &[u8] = if is_full { &self.filler } else { &[] };
        let mut frames = [Frame::whole(&[0; RAW_MESSAGE_BYTES]); crate::SEND_MAX];
        for (frame, head) in frames.iter_mut().zip(&self.heads[..count]) {
            *frame = Frame::new(head, filler, &[]);
        }
        let sent = self.link.send(&frames[..count])?;
        if !sent.refused.is_empty() {
            let max = self.link.frame_bytes_max();
            return Err(RawError::Refused { bytes: frames[0].len(), to: self.plan.to, max });
        }
        if sent.next != SendNext::Ready {
            self.wait_for_room(sent.next)?;
        }
        Ok(sent.accepted)
    }

    /// Sends one short message, and waits until there is room.
    fn send_one(&mut self, message: RawMessage) -> Result<(), RawError> {
        while self.send(|_| message, 0, 1, false)? == 0 {}
        Ok(())
    }

    /// Waits until the link can take frames again.
    fn wait_for_room(&mut self, next: SendNext) -> Result<(), RawError> {
        self.check_timeout()?;
        match (next, self.plan.wait) {
            // A full queue of the card cannot be polled, because the socket is writable as long as its own buffer is not full.
            (SendNext::Full, RawWait::Sleep) => self.sleep(PollFlags::OUT, Duration::from_millis(1)),
            (SendNext::Full, RawWait::Spin) | (SendNext::Ready, _) => Ok(()),
            (SendNext::Down, _) => self.sleep(PollFlags::PRI, Duration::from_millis(1)),
        }
    }

    /// Receives a batch; if there is none, waits for one up to [`PROBE_AFTER`]. Puts its messages into `messages`.
    fn receive(&mut self, messages: &mut Vec<RawMessage>, may_wait: bool) -> Result<(), RawError> {
        messages.clear();
        let end = Instant::now() + PROBE_AFTER;
        loop {
            for n in 0..self.link.receive()? {
                messages.extend(RawMessage::parse(self.link.frame(n), self.plan.to));
            }
            if !messages.is_empty() {
                self.last_received = Instant::now();
            }
            let left = end.saturating_duration_since(Instant::now());
            if !messages.is_empty() || !may_wait || left.is_zero() {
                return Ok(());
            }
            match self.plan.wait {
                RawWait::Spin => std::hint::spin_loop(),
                RawWait::Sleep => self.sleep(PollFlags::IN, left)?,
            }
        }
    }

    fn sleep(&self, until: PollFlags, limit: Duration) -> Result<(), RawError> {
        let limit = Timespec::try_from(limit).map_err(|_| RawError::Wait(Errno::INVAL))?;
        match poll(&mut [PollFd::new(&self.link, until)], Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(RawError::Wait(errno)),
        }
    }

    /// Fails if no frame arrived for too long.
    fn check_timeout(&self) -> Result<(), RawError> {
        let waited = self.last_received.elapsed();
        if waited < self.plan.timeout {
            return Ok(());
        }
        Err(RawError::Timeout { waited, state: self.link.state() })
    }
}
