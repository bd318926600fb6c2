//! The checks that every link passes. A new link is complete when it passes.

use isthmus_link::{Frame, Link, LinkKind, LinkState, SendNext};
use isthmus_shm::regcache::PeerRegion;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use crate::pattern::{becomes, collect, collect_batches, drain, frame, number, passes, send_all};
use crate::testbed::{ALL, Testbed, WIRE, nic};

/// Opens both ends.
pub(crate) type Open = fn(&Testbed) -> [Box<dyn Link>; 2];

/// The suite over one link.
#[macro_export]
macro_rules! suite {
    ($open:path) => {
        $crate::suite!(
            $open,
            every_size_arrives_whole_and_in_order,
            parts_are_gathered_from_our_memory_and_from_a_peers,
            a_broadcast_arrives,
            frames_for_others_are_dropped,
            a_frame_that_became_too_long_is_refused_and_the_others_go,
            what_goes_down_comes_up_again,
            a_slow_receiver_loses_frames_and_mixes_none,
            both_directions_at_once,
            a_batch_says_when_it_was_not_all,
        );
    };
    ($open:path, $($test:ident,)*) => {
        $(#[test]
        fn $test() {
            $crate::suite::$test($open);
        })*
    };
}

#[track_caller]
fn bed(open: Open) -> Option<(Testbed, [Box<dyn Link>; 2])> {
    let bed = Testbed::new(9000)?;
    let links = open(&bed);
    Some((bed, links))
}

pub(crate) fn every_size_arrives_whole_and_in_order(open: Open) {
    let Some((_bed, [mut a, mut b])) = bed(open) else { return };
    let longest = a.frame_bytes_max() as usize;
    assert!((8900..=9014).contains(&longest), "{longest}");
    let sizes: Vec<usize> = (60..=longest).collect();
    for batch in sizes.chunks(100) {
        let frames: Vec<_> = batch.iter().map(|&len| frame(b.nic(), a.nic(), len as u32, len)).collect();
        assert_eq!(send_all(&mut *a, &frames), 0);
        assert!(collect(&mut *b, frames.len()) == frames, "sizes from {}", batch[0]);
    }
    let (sent, received) = (a.counters(), b.counters());
    assert_eq!((sent.sent, sent.sent_bytes), (received.received, received.received_bytes));
    assert_eq!(sent.sent, sizes.len() as u64);
}

pub(crate) fn parts_are_gathered_from_our_memory_and_from_a_peers(open: Open) {
    let Some((_bed, [mut a, mut b])) = bed(open) else { return };
    let whole: Vec<_> = (0..20).map(|n| frame(b.nic(), a.nic(), n, 5000 + 60 * n as usize)).collect();
    let file = memfd_create("peer", MemfdFlags::ALLOW_SEALING).unwrap();
    let mut bytes = vec![0; 40 * 4096];
    whole.iter().enumerate().for_each(|(n, frame)| bytes[8192 * n..][..frame.len()].copy_from_slice(frame));
    assert_eq!(rustix::io::write(&file, &bytes), Ok(bytes.len()));
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::FUTURE_WRITE).unwrap();
    let region = PeerRegion::map(&file, 0, bytes.len() as u64, bytes.len() as u64).unwrap();
    let frames: Vec<Frame<'_>> = (0..20)
        .map(|n| {
            let (data, end) = (14 + 5 * n, whole[n].len() - 7 * n);
            let theirs = region.gather((8192 * n + data) as u64, end - data).unwrap();
            Frame::new(&whole[n][..data], theirs, &whole[n][end..])
        })
        .collect();
    assert!(frames.iter().zip(&whole).all(|(frame, whole)| frame.len() == whole.len()));
    let sent = a.send(&frames).unwrap();
    assert_eq!((sent.accepted, sent.refused.is_empty(), sent.next), (20, true, SendNext::Ready));
    assert!(collect(&mut *b, 20) == whole);
}

pub(crate) fn a_broadcast_arrives(open: Open) {
    let Some((_bed, [mut a, mut b])) = bed(open) else { return };
    let frames = [frame(ALL, a.nic(), 1, 64), frame(b.nic(), a.nic(), 2, 64), frame(ALL, a.nic(), 3, 1000)];
    assert_eq!(send_all(&mut *a, &frames), 0);
    assert!(collect(&mut *b, 3) == frames);
    assert!(drain(&mut *a).is_empty(), "no link receives its own frames");
}

pub(crate) fn frames_for_others_are_dropped(open: Open) {
    let Some((bed, [mut a, mut b])) = bed(open) else { return };
    bed.b.ip(&format!("link set {WIRE} promisc on"));
    let frames: Vec<_> = (0..30).map(|n| frame(nic(2 + (n % 3) as u8), a.nic(), n, 200)).collect();
    send_all(&mut *a, &frames); // A link that knows its peers refuses them at once.
    let ours: Vec<_> = frames.into_iter().filter(|frame| frame[5] == 2).collect();
    assert!(collect(&mut *b, ours.len()) == ours);
    assert!(drain(&mut *b).is_empty());
    assert_eq!(b.counters().not_for_us + a.counters().peer_unknown, 20);
}

pub(crate) fn a_frame_that_became_too_long_is_refused_and_the_others_go(open: Open) {
    let Some((bed, [mut a, mut b])) = bed(open) else { return };
    let set = |mtu: u32| {
        bed.a.ip(&format!("link set {WIRE} mtu {mtu}"));
        bed.b.ip(&format!("link set {WIRE} mtu {mtu}"));
    };
    let before = a.frame_bytes_max();
    set(1500);
    let sizes = [8000, 60, 1400, 1400, 8000, 8000, 1000, 8000];
    let frames: Vec<_> = (0..8).map(|n| frame(b.nic(), a.nic(), n as u32, sizes[n])).collect();
    assert_eq!(send_all(&mut *a, &frames), 4);
    assert_eq!(a.counters().too_long, 4);
    assert_eq!(collect(&mut *b, 4).iter().map(|bytes| number(bytes)).collect::<Vec<_>>(), [1, 2, 3, 6]);
    assert_eq!(a.frame_bytes_max(), before - 7500);
    set(9000);
    a.refresh().unwrap();
    assert_eq!(a.frame_bytes_max(), before);
    assert_eq!(send_all(&mut *a, &frames), 0);
    assert!(collect(&mut *b, 8) == frames);
}

pub(crate) fn what_goes_down_comes_up_again(open: Open) {
    let Some((bed, [mut a, mut b])) = bed(open) else { return };
    passes(&mut *a, &mut *b, 0, 100);
    bed.a.ip(&format!("link set {WIRE} down"));
    becomes(&mut *a, LinkState::Down);
    let frames = [frame(b.nic(), a.nic(), 1, 100), frame(b.nic(), a.nic(), 2, 100)];
    let parts: Vec<Frame<'_>> = frames.iter().map(|bytes| Frame::whole(bytes)).collect();
    let sent = a.send(&parts).unwrap();
    let is_down = (sent.accepted, sent.next) == (0, SendNext::Down);
    let is_refused = (sent.accepted, sent.refused.count()) == (2, 2);
    assert!(is_down || is_refused, "{sent:?}");
    for _ in 0..3 {
        assert_eq!(a.receive().unwrap(), 0);
    }
    assert!(drain(&mut *b).is_empty());
    bed.a.ip(&format!("link set {WIRE} up"));
    bed.add_v6(&bed.a, 1);
    becomes(&mut *a, LinkState::Up);
    becomes(&mut *b, LinkState::Up);
    passes(&mut *a, &mut *b, 3, 5000);
    passes(&mut *b, &mut *a, 4, 5000);
}

pub(crate) fn a_slow_receiver_loses_frames_and_mixes_none(open: Open) {
    let Some((_bed, [mut a, mut b])) = bed(open) else { return };
    const FRAMES: u32 = 10_000;
    let longest = a.frame_bytes_max() as usize;
    let size = |n: u32| 60 + (n as usize * 2711) % (longest - 59);
    for first in (0..FRAMES).step_by(20) {
        let frames: Vec<_> = (first..first + 20).map(|n| frame(b.nic(), a.nic(), n, size(n))).collect();
        send_all(&mut *a, &frames);
    }
    passes_in_order(&mut *b, FRAMES);
    if b.kind() == LinkKind::Xdp {
        b.refresh().unwrap();
    }
    let (sent, came) = (a.counters(), b.counters());
    assert!(came.received <= sent.sent && sent.sent <= u64::from(FRAMES), "{sent:?} {came:?}");
    assert!(came.received + came.overruns <= sent.sent && came.overruns > 0, "what is lost is counted: {came:?}");
}

/// Asserts that the received frames are in order and intact, and that there is at least one.
fn passes_in_order(link: &mut dyn Link, limit: u32) {
    let numbers: Vec<u32> = drain(link).iter().map(|bytes| number(bytes)).collect();
    assert!(!numbers.is_empty() && numbers.iter().all(|&n| n < limit));
    assert!(numbers.is_sorted_by(|a, b| a < b));
}

pub(crate) fn both_directions_at_once(open: Open) {
    let Some((_bed, [mut a, mut b])) = bed(open) else { return };
    for round in 0..50_u32 {
        let to_b: Vec<_> = (0..32).map(|n| frame(b.nic(), a.nic(), 32 * round + n, 1400)).collect();
        let to_a: Vec<_> = (0..32).map(|n| frame(a.nic(), b.nic(), 32 * round + n, 700)).collect();
        assert_eq!(send_all(&mut *a, &to_b) + send_all(&mut *b, &to_a), 0);
        assert!(collect(&mut *a, 32) == to_a && collect(&mut *b, 32) == to_b);
    }
}

pub(crate) fn a_batch_says_when_it_was_not_all(open: Open) {
    let Some((_bed, [mut a, mut b])) = bed(open) else { return };
    // Each is longer than the one before, so that no two arrive as one message.
    let frames: Vec<_> = (0..200).map(|n| frame(b.nic(), a.nic(), n, 100 + n as usize)).collect();
    let said = (0..100).any(|_| {
        assert_eq!(send_all(&mut *a, &frames), 0);
        let (came, partial) = collect_batches(&mut *b, frames.len());
        assert!(came == frames);
        assert_eq!((b.receive().unwrap(), b.has_more()), (0, false));
        partial > 0 // None is where each frame was taken as it came.
    });
    assert!(said);
}
