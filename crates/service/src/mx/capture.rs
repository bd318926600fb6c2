//! Copies of frames for captures.
//!
//! ```text
//!   link ─► received ─┐                                    ┌─► Tap ══ a task of control ──► the program that asked
//!                     ├─ whose frame? ─ a copy, its start ─┤
//!   link ◄─ sent ─────┘                                    └─► Tap ══ …
//! ```
//!
//! No worker waits for a slow reader: a tap that is full drops and counts. Without captures, a check of an empty option is all
//! there is.

use super::MxBoardNumber;
use super::endpoints::Endpoints;
use isthmus_capture::{CaptureDirection, InterfaceIndex, OfferResult, SNAP_BYTES_MAX, Tap};
use isthmus_layout::DomainId;
use isthmus_link::{Frame, RefusedFrames};
use isthmus_mx::board::Board;
use isthmus_mx::wire::EndpointNumber;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// A closure that wakes the reader of a capture.
#[derive(Clone)]
pub struct WakeReader(Arc<dyn Fn() + Send + Sync>);

impl WakeReader {
    /// Called on a worker's thread: it must not wait for anything.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(wake))
    }

    fn wake(&self) {
        (self.0)();
    }
}

impl fmt::Debug for WakeReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WakeReader(..)")
    }
}

/// A new capture: frames are copied into a tap until its reader is gone.
#[derive(Debug)]
pub struct NewCapture {
    /// The boards of one worker, and for each the tap's interface of its first link; the interfaces of its other links follow.
    pub boards: Vec<(MxBoardNumber, InterfaceIndex)>,
    /// Only frames from or to endpoints of this domain.
    pub domain: Option<DomainId>,
    /// The destination of the copies.
    pub tap: CaptureTap,
}

/// A tap that several boards share. Boards of different workers contend for its lock, which is held while one frame is copied.
#[derive(Clone, Debug)]
pub struct CaptureTap(Arc<SharedTap>);

impl CaptureTap {
    /// Calls `wake` when a sleeping reader has something to read, and at the end.
    pub fn new(tap: Tap, wake: WakeReader) -> Self {
        Self(Arc::new(SharedTap { tap: Mutex::new(Some(tap)), wake }))
    }
}

#[derive(Debug)]
struct SharedTap {
    /// There until this is dropped.
    tap: Mutex<Option<Tap>>,
    wake: WakeReader,
}

impl SharedTap {
    fn with<T>(&self, act: impl FnOnce(&mut Tap) -> T) -> Option<T> {
        self.tap.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(act)
    }

    fn is_watched(&self) -> bool {
        self.with(|tap| tap.is_watched()).unwrap_or(false)
    }
}

impl Drop for SharedTap {
    /// Drops the tap and wakes the reader, which finds that the tap is gone.
    fn drop(&mut self) {
        *self.tap.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
        self.wake.wake();
    }
}

/// A capture of frames of a board.
#[derive(Debug)]
struct FrameWatcher {
    tap: CaptureTap,
    first: InterfaceIndex,
    domain: Option<DomainId>,
    snap_bytes: u32,
}

impl FrameWatcher {
    fn wants(&self, domain: Option<DomainId>) -> bool {
        self.domain.is_none() || self.domain == domain
    }

    fn offer(&self, port: usize, direction: CaptureDirection, bytes: &[u8], had: usize) {
        let interface = InterfaceIndex(self.first.0.saturating_add(u16::try_from(port).unwrap_or(u16::MAX)));
        let had = u32::try_from(had).unwrap_or(u32::MAX);
        let offered = self.tap.0.with(|tap| tap.offer_truncated(now_ns(), interface, direction, &[bytes], had));
        if offered == Some(OfferResult::QueuedWakeReader) {
            self.tap.0.wake.wake();
        }
    }
}

/// The captures of one board.
#[derive(Debug)]
struct FrameWatchers {
    all: Vec<FrameWatcher>,
    /// A frame that is sent, or its beginning, put together.
    scratch: Vec<u8>,
}

impl FrameWatchers {
    /// Removes captures without a reader. False if none is left.
    fn prune(&mut self) -> bool {
        self.all.retain(|watcher| watcher.tap.0.is_watched());
        !self.all.is_empty()
    }

    fn has_filter(&self) -> bool {
        self.all.iter().any(|watcher| watcher.domain.is_some())
    }
}

/// The captures of one board, if there are any.
#[derive(Debug, Default)]
pub(super) struct Captures(Option<Box<FrameWatchers>>);

impl Captures {
    /// One more. Its interfaces begin with `first`.
    pub(super) fn add(&mut self, tap: CaptureTap, first: InterfaceIndex, domain: Option<DomainId>) {
        let snap_bytes = tap.0.with(|tap| tap.snap_bytes()).unwrap_or(SNAP_BYTES_MAX);
        let watchers = self.0.get_or_insert_with(|| Box::new(FrameWatchers { all: Vec::new(), scratch: Vec::new() }));
        watchers.prune(); // A quiet board finds closed captures only here.
        watchers.all.push(FrameWatcher { tap, first, domain, snap_bytes });
    }

    /// The watchers, if there are any left.
    #[inline]
    fn watchers(&mut self) -> Option<&mut FrameWatchers> {
        if self.0.is_some() && !self.0.as_mut().is_some_and(|watchers| watchers.prune()) {
            self.0 = None;
        }
        self.0.as_deref_mut()
    }

    /// A frame has come, whatever the board will say to it.
    #[inline]
    pub(super) fn received(&mut self, board: &Board, endpoints: &Endpoints, port: usize, frame: &[u8]) {
        let Some(watchers) = self.watchers() else { return };
        let addressee = if watchers.has_filter() { board.destination_endpoint(frame) } else { None };
        let domain = addressee.and_then(|endpoint| endpoints.owner(endpoint));
        for watcher in watchers.all.iter().filter(|watcher| watcher.wants(domain)) {
            watcher.offer(port, CaptureDirection::Received, frame, frame.len());
        }
    }

    /// Frames have been sent, but for those that were refused. `from` says which endpoint a frame is of.
    #[inline]
    pub(super) fn sent(
        &mut self,
        endpoints: &Endpoints,
        port: usize,
        frames: &[Frame<'_>],
        refused: RefusedFrames,
        from: impl Fn(usize) -> Option<EndpointNumber>,
    ) {
        let Some(watchers) = self.watchers() else { return };
        for (at, frame) in frames.iter().enumerate().filter(|(at, _)| !refused.contains(*at)) {
            let domain = from(at).and_then(|endpoint| endpoints.owner(endpoint));
            let wanted = watchers.all.iter().filter(|watcher| watcher.wants(domain));
            let Some(most) = wanted.clone().map(|watcher| watcher.snap_bytes).max() else { continue };
            copy_prefix(frame, most as usize, &mut watchers.scratch);
            wanted.for_each(|watcher| watcher.offer(port, CaptureDirection::Sent, &watchers.scratch, frame.len()));
        }
    }
}

/// Copies the beginning of a frame. The data may be in a peer's memory, and the peer may change it. The copy may then differ from
/// the frame that the kernel has read.
fn copy_prefix(frame: &Frame<'_>, most: usize, into: &mut Vec<u8>) {
    into.clear();
    for part in frame.parts() {
        let start = into.len();
        let count = part.len().min(most - start);
        into.resize(start + count, 0);
        part.slice(0..count).copy_out(&mut into[start..]);
    }
}

/// Nanoseconds since 1970.
fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use isthmus_capture::tap;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// A tap that keeps `snap_bytes` of each frame, its reader, and the number of times that the reader was woken.
    fn watched(snap_bytes: u32) -> (CaptureTap, isthmus_capture::TapReader, Arc<AtomicUsize>) {
        let (tap, reader) = tap(2, snap_bytes, 1 << 16);
        let woken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&woken);
        let wake = WakeReader::new(move || _ = count.fetch_add(1, Relaxed));
        (CaptureTap::new(tap, wake), reader, woken)
    }

    fn send(captures: &mut Captures, frames: &[Frame<'_>], refused: RefusedFrames) {
        captures.sent(&Endpoints::default(), 1, frames, refused, |_| None);
    }

    #[test]
    fn a_frame_in_parts_is_one_record_with_its_true_length() {
        let (mut captures, (shared, mut reader, woken)) = (Captures::default(), watched(20));
        captures.add(shared, InterfaceIndex(0), None);
        assert!(reader.begin_sleep());
        let (head, data, pad) = ([1; 16], [2; 3], [3; 41]);
        send(&mut captures, &[Frame::new(&head, &data[..], &pad), Frame::whole(&head)], RefusedFrames::default());
        let record = reader.pop().unwrap();
        assert_eq!(record.bytes, [&head[..], &data, &pad[..1]].concat());
        assert_eq!((record.original_bytes, record.direction), (60, CaptureDirection::Sent));
        assert_eq!((record.interface, woken.load(Relaxed)), (InterfaceIndex(1), 1));
        assert_eq!(reader.pop().unwrap().bytes, head);
        assert!(record_time_is_of_this_century(&mut captures, &mut reader));
    }

    fn record_time_is_of_this_century(captures: &mut Captures, reader: &mut isthmus_capture::TapReader) -> bool {
        send(captures, &[Frame::whole(&[0; 14])], RefusedFrames::default());
        reader.pop().unwrap().time_ns > 1_700_000_000_000_000_000
    }

    #[test]
    fn capture_of_a_domain_excludes_frames_without_domain() {
        let (mut captures, (all, mut of_all, _), (one, mut of_one, _)) =
            (Captures::default(), watched(64), watched(64));
        captures.add(all, InterfaceIndex(0), None);
        captures.add(one, InterfaceIndex(0), DomainId::new(7));
        send(&mut captures, &[Frame::whole(&[0; 14])], RefusedFrames::default());
        assert!(of_all.pop().is_some() && of_one.pop().is_none());
    }

    #[test]
    fn closed_captures_are_removed() {
        let (mut captures, (shared, reader, woken)) = (Captures::default(), watched(64));
        captures.add(shared, InterfaceIndex(0), None);
        drop(reader);
        send(&mut captures, &[Frame::whole(&[0; 14])], RefusedFrames::default());
        assert!(captures.0.is_none());
        assert_eq!(woken.load(Relaxed), 1, "at the end");
    }

    #[test]
    fn the_end_of_the_last_board_is_the_end_of_the_capture() {
        let (mut one, mut other, (shared, mut reader, woken)) = (Captures::default(), Captures::default(), watched(64));
        one.add(shared.clone(), InterfaceIndex(0), None);
        other.add(shared, InterfaceIndex(1), None);
        assert!(reader.begin_sleep());
        drop(one);
        assert!(!reader.is_over() && woken.load(Relaxed) == 0);
        drop(other);
        assert!(reader.is_over() && woken.load(Relaxed) == 1);
    }
}
