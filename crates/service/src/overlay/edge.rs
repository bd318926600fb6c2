//! Sends frames to one host: whole by a *fast* edge, cut by others.

use super::command::OverlayEdgeKind;
use super::counters::{FrameLoss, PortCounters};
use isthmus_link::{DATAGRAM_BYTES_MAX, EdgeSend, EdgeSocket, SEGMENTS_MAX};
use isthmus_overlay::fast::{CHUNK_HEADER_BYTES, Chunk, Chunks, Reassembler, Sender};
use isthmus_overlay::segment::Cutter;
use isthmus_overlay::virtio_net::{VIRTIO_NET_BYTES, VirtioNetHeader};
use isthmus_overlay::vxlan::{self, Vni};
use isthmus_overlay::{EdgeId, Millis};
use std::io::IoSlice;
use std::net::SocketAddr;
use std::ops::Range;

/// The interval at which the path to the other host is queried, in milliseconds.
const PATH_INTERVAL_MS: u64 = 1_000;

/// The size of datagrams while there is no route to the host.
const DATAGRAM_BYTES_DEFAULT: usize = 1_472;

/// The maximum number of slices of one send.
const SLICES_MAX: usize = 3 * SEGMENTS_MAX;

/// An edge.
#[derive(Debug)]
pub(super) struct Edge {
    pub(super) id: EdgeId,
    /// The place of its socket in the poller.
    pub(super) socket: usize,
    pub(super) to: SocketAddr,
    pub(super) datagram_bytes: Option<usize>,
    pub(super) path_due: Millis,
    sender: Sender,
    /// The headers and ranges of the datagrams of a message.
    chunks: Vec<Chunk>,
    pub(super) reassembler: Reassembler,
    /// The time of the last frame from the host.
    pub(super) heard: Option<Millis>,
    pub(super) counters: PortCounters,
}

/// The result of sending a frame.
#[derive(Clone, Copy, Debug)]
pub(super) enum EdgeOutcome {
    Sent,
    /// The socket has no room. The first datagrams were sent; the rest waits for room.
    Full(Resume),
    Lost(FrameLoss),
}

/// The place in a frame at which sending continues.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Resume {
    /// Datagrams that were sent.
    datagrams: usize,
    /// The plan of a whole frame. All its datagrams need the same one.
    chunks: Option<Chunks>,
}

/// A frame with its virtio-net header.
#[derive(Clone, Copy, Debug)]
pub(super) struct TapFrame<'a> {
    pub(super) header: &'a [u8; VIRTIO_NET_BYTES],
    pub(super) frame: &'a [u8],
}

impl Edge {
    pub(super) fn new(id: EdgeId, socket: usize, to: SocketAddr, first_message: u32) -> Self {
        Self {
            id,
            socket,
            to,
            datagram_bytes: None,
            path_due: Millis(0),
            sender: Sender::new(first_message),
            chunks: Vec::new(),
            reassembler: Reassembler::default(),
            heard: None,
            counters: PortCounters::default(),
        }
    }

    /// Queries the path to the host, if that is due.
    pub(super) fn check_path(&mut self, now: Millis, socket: &EdgeSocket) {
        if self.path_due <= now {
            self.path_due = Millis(now.0 + PATH_INTERVAL_MS);
            self.datagram_bytes = socket.datagram_bytes_to(self.to);
        }
    }

    /// The time at which the path is queried although nothing is sent: there was no route, or a frame was lost.
    pub(super) fn next_check(&self) -> Option<Millis> {
        (self.datagram_bytes.is_none() || self.path_due == Millis(0)).then_some(self.path_due)
    }

    fn datagram_bytes(&self) -> usize {
        self.datagram_bytes.unwrap_or(DATAGRAM_BYTES_DEFAULT)
    }

    /// The counters, with the losses that the reassembler has counted.
    pub(super) fn counters(&self) -> PortCounters {
        let (mut counters, messages) = (self.counters, self.reassembler.counters());
        counters.lost.add(FrameLoss::Incomplete, messages.lost);
        counters.lost.add(FrameLoss::Shortened, messages.incomplete);
        counters.lost.add(FrameLoss::Invalid, messages.refused());
        counters
    }

    /// Sends a frame, or the rest of it.
    pub(super) fn send(
        &mut self,
        now: Millis,
        (kind, vni): (OverlayEdgeKind, Vni),
        socket: &mut EdgeSocket,
        cutter: &mut Cutter,
        frame: TapFrame<'_>,
        resume: Option<Resume>,
    ) -> EdgeOutcome {
        self.check_path(now, socket);
        let resume = resume.unwrap_or_default();
        let outcome = match kind {
            OverlayEdgeKind::Fast => self.send_whole(vni, socket, frame, resume),
            OverlayEdgeKind::Vxlan => self.send_cut(&vxlan::emit(vni), socket, cutter, frame, resume),
            OverlayEdgeKind::Udp => self.send_cut(&[], socket, cutter, frame, resume),
        };
        match outcome {
            EdgeOutcome::Sent => self.counters.count_sent(frame.frame.len()),
            EdgeOutcome::Full(_) => {}
            EdgeOutcome::Lost(loss) => {
                self.counters.lost.add(loss, 1);
                self.path_due = Millis(0); // The path may have changed.
            }
        }
        outcome
    }
}

/// The datagrams of a frame.
impl Edge {
    fn send_whole(&mut self, vni: Vni, socket: &mut EdgeSocket, frame: TapFrame<'_>, resume: Resume) -> EdgeOutcome {
        let Ok(header) = VirtioNetHeader::parse(frame.header, frame.frame.len()) else {
            return EdgeOutcome::Lost(FrameLoss::Invalid);
        };
        let bytes = VIRTIO_NET_BYTES + frame.frame.len();
        let plan = || self.sender.plan(vni, &header, bytes, self.datagram_bytes()).ok();
        let Some(chunks) = resume.chunks.or_else(plan) else {
            return EdgeOutcome::Lost(FrameLoss::TooLong);
        };
        self.chunks.clear();
        self.chunks.extend((0..chunks.len()).map(|chunk| chunks.get(chunk)));
        let bytes = CHUNK_HEADER_BYTES + self.chunks[0].range.len();
        let datagrams = Datagrams { count: chunks.len(), bytes, to: self.to };
        let resume = Resume { chunks: Some(chunks), ..resume };
        datagrams.send(socket, resume, true, |chunk, slices| {
            let Chunk { header, range, repeated } = &self.chunks[chunk];
            slices.push(header);
            let parts = [range, repeated].map(|range| frame.part(range.clone()));
            parts.into_iter().flatten().for_each(|part| slices.push(part));
        })
    }

    fn send_cut(
        &self,
        prefix: &[u8],
        socket: &mut EdgeSocket,
        cutter: &mut Cutter,
        frame: TapFrame<'_>,
        resume: Resume,
    ) -> EdgeOutcome {
        let Ok(header) = VirtioNetHeader::parse(frame.header, frame.frame.len()) else {
            return EdgeOutcome::Lost(FrameLoss::Invalid);
        };
        let Ok(segments) = cutter.cut(prefix, &header, frame.frame) else {
            return EdgeOutcome::Lost(FrameLoss::Invalid);
        };
        let bytes = prefix.len() + segments.bytes_max(prefix.len());
        let datagrams = Datagrams { count: segments.len(), bytes, to: self.to };
        // IP fragments longer datagrams, which the kernel refuses to split from one message.
        datagrams.send(socket, resume, bytes <= self.datagram_bytes(), |segment, slices| {
            let (head, data) = segments.get(segment);
            slices.push(head);
            slices.push(data);
        })
    }
}

impl<'a> TapFrame<'a> {
    /// The bytes of a range of the virtio-net header and the frame behind it.
    fn part(&self, range: Range<usize>) -> [&'a [u8]; 2] {
        let in_header = range.start.min(VIRTIO_NET_BYTES)..range.end.min(VIRTIO_NET_BYTES);
        let in_frame = range.start.saturating_sub(VIRTIO_NET_BYTES)..range.end.saturating_sub(VIRTIO_NET_BYTES);
        [&self.header[in_header], &self.frame[in_frame]]
    }
}

/// Datagrams of one size; the last may be shorter.
#[derive(Clone, Copy, Debug)]
struct Datagrams {
    count: usize,
    bytes: usize,
    to: SocketAddr,
}

impl Datagrams {
    /// Sends the datagrams that were not sent yet, with `together` as many as possible by one call. `slices_of` appends the slices of a
    /// datagram.
    fn send<'a>(
        self,
        socket: &mut EdgeSocket,
        mut resume: Resume,
        together: bool,
        slices_of: impl Fn(usize, &mut Slices<'a>),
    ) -> EdgeOutcome {
        let mut batch_max = if together { (DATAGRAM_BYTES_MAX / self.bytes).clamp(1, SEGMENTS_MAX) } else { 1 };
        while resume.datagrams < self.count {
            let end = self.count.min(resume.datagrams + batch_max);
            let mut slices = Slices::new();
            (resume.datagrams..end).for_each(|datagram| slices_of(datagram, &mut slices));
            let segment = u16::try_from(self.bytes).ok().filter(|_| end - resume.datagrams > 1);
            match socket.send(self.to, slices.as_slice(), segment) {
                EdgeSend::Sent => resume.datagrams = end,
                EdgeSend::Full => return EdgeOutcome::Full(resume),
                EdgeSend::Unsplit => batch_max = 1,
                EdgeSend::TooLong => return EdgeOutcome::Lost(FrameLoss::TooLong),
                EdgeSend::Unreachable => return EdgeOutcome::Lost(FrameLoss::Unreachable),
                EdgeSend::NotPermitted => return EdgeOutcome::Lost(FrameLoss::NotPermitted),
            }
        }
        EdgeOutcome::Sent
    }
}

/// The slices of one send. Empty ones are left out.
struct Slices<'a> {
    slices: [IoSlice<'a>; SLICES_MAX],
    len: usize,
}

impl<'a> Slices<'a> {
    fn new() -> Self {
        Self { slices: [IoSlice::new(&[]); SLICES_MAX], len: 0 }
    }

    fn push(&mut self, bytes: &'a [u8]) {
        if !bytes.is_empty() {
            self.slices[self.len] = IoSlice::new(bytes);
            self.len += 1;
        }
    }

    fn as_slice(&self) -> &[IoSlice<'a>] {
        &self.slices[..self.len]
    }
}
