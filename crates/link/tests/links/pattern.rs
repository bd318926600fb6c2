//! Frames that say what they are, all over.

use std::time::{Duration, Instant};

use isthmus_layout::NicId;
use isthmus_link::{Frame, Link, LinkState, SendNext, SendOutcome, octets};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::testbed::ETHERTYPE;

/// How long a test waits for what must happen; never a claim about speed.
const PATIENCE: Duration = Duration::from_secs(20);

/// Frame `number` of `len` bytes.
pub(crate) fn frame(to: NicId, from: NicId, number: u32, len: usize) -> Vec<u8> {
    let mut frame = Vec::with_capacity(len);
    frame.extend(octets(to));
    frame.extend(octets(from));
    frame.extend(ETHERTYPE.to_be_bytes());
    frame.extend(number.to_be_bytes());
    frame.extend((len as u32).to_be_bytes());
    frame.extend((frame.len()..len).map(|at| (number as usize * 31 + at * 7 + at / 256) as u8));
    frame
}

/// The number of a frame, if it is whole and nothing else.
pub(crate) fn number(bytes: &[u8]) -> u32 {
    let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let nic = |at: usize| NicId::from_octets(bytes[at..at + 6].try_into().unwrap());
    let number = word(14);
    assert_eq!(word(18) as usize, bytes.len(), "frame {number}");
    assert!(bytes == frame(nic(0), nic(6), number, bytes.len()), "frame {number} of {} bytes is mixed", bytes.len());
    number
}

/// Sends all of these, however long it takes; returns how many were refused.
#[track_caller]
pub(crate) fn send_all(link: &mut dyn Link, frames: &[Vec<u8>]) -> usize {
    let end = Instant::now() + PATIENCE;
    let frames: Vec<Frame<'_>> = frames.iter().map(|bytes| Frame::whole(bytes)).collect();
    let (mut at, mut refused) = (0, 0);
    while at < frames.len() {
        let SendOutcome { accepted, refused: those, next } = link.send(&frames[at..]).unwrap();
        at += accepted;
        refused += those.count();
        if next != SendNext::Ready {
            assert!(Instant::now() < end, "{next:?} at {at}: {:?}", link.counters());
            pause(link, PollFlags::OUT);
        }
    }
    refused
}

/// Receives until there are `count` frames: what they are.
#[track_caller]
pub(crate) fn collect(link: &mut dyn Link, count: usize) -> Vec<Vec<u8>> {
    collect_batches(link, count).0
}

/// Collects `count` frames by batches, and counts the batches that may have left some.
#[track_caller]
pub(crate) fn collect_batches(link: &mut dyn Link, count: usize) -> (Vec<Vec<u8>>, usize) {
    let end = Instant::now() + PATIENCE;
    let (mut frames, mut partial) = (Vec::new(), 0);
    while frames.len() < count {
        let came = link.receive().unwrap();
        partial += usize::from(link.has_more());
        frames.extend((0..came).map(|n| link.frame(n).to_vec()));
        if came == 0 {
            assert!(Instant::now() < end, "{} of {count} frames came: {:?}", frames.len(), link.counters());
            pause(link, PollFlags::IN);
        }
    }
    assert_eq!(frames.len(), count);
    (frames, partial)
}

/// All that is there already.
pub(crate) fn drain(link: &mut dyn Link) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    loop {
        let before = link.counters();
        let came = link.receive().unwrap();
        frames.extend((0..came).map(|n| link.frame(n).to_vec()));
        let after = link.counters();
        let is_same = |f: fn(&isthmus_link::LinkCounters) -> u64| f(&before) == f(&after);
        if came == 0 && is_same(|c| c.not_for_us) && is_same(|c| c.sender_unknown) && is_same(|c| c.sender_forged) {
            return frames;
        }
    }
}

/// Sends a frame and waits for it at the other end; what is there before it is dropped.
#[track_caller]
pub(crate) fn passes(from: &mut dyn Link, to: &mut dyn Link, number: u32, len: usize) {
    let sent = frame(to.nic(), from.nic(), number, len);
    assert_eq!(send_all(from, std::slice::from_ref(&sent)), 0);
    let end = Instant::now() + PATIENCE;
    loop {
        let came = to.receive().unwrap();
        if (0..came).any(|n| to.frame(n) == sent) {
            return;
        }
        assert!(Instant::now() < end, "{:?}", to.counters());
        pause(to, PollFlags::IN);
    }
}

/// Looks at the link until it is in this state.
#[track_caller]
pub(crate) fn becomes(link: &mut dyn Link, state: LinkState) {
    let end = Instant::now() + PATIENCE;
    while link.refresh().unwrap() != state {
        assert!(Instant::now() < end, "{} is {}", link.name(), link.state());
        pause(link, PollFlags::PRI);
    }
}

/// Waits for the link, or a moment: interfaces change without an event that we could wait for.
fn pause(link: &mut dyn Link, until: PollFlags) {
    let moment = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
    poll(&mut [PollFd::new(&link, until)], Some(&moment)).unwrap();
}
