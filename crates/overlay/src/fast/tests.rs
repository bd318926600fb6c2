use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::header::{ChunkHeader, KIND_FRAME, VERSION};
use super::*;
use crate::samples::{ACK, FIN, PSH, Sample, samples};
use crate::segment::Cutter;
use crate::virtio_net::VirtioNetHeader;
use crate::vxlan::Vni;

mod page;

const VNI: Vni = Vni::MAX;
/// For a path of 1500 bytes over IPv4.
const DATAGRAM: usize = 1472;
const CHUNK: usize = DATAGRAM - CHUNK_HEADER_BYTES;

fn message(sample: &Sample, size: u16) -> Vec<u8> {
    [&sample.header(size).emit()[..], &sample.frame()].concat()
}

/// The datagrams of a message.
fn datagrams(sender: &mut Sender, message: &[u8], datagram_bytes: usize) -> Vec<Vec<u8>> {
    let chunks = sender.plan(VNI, message.len(), datagram_bytes).expect("can be sent");
    (0..chunks.len())
        .map(|index| chunks.get(index))
        .map(|(header, range)| [&header, &message[range]].concat())
        .collect()
}

/// A reassembler, and what it delivered: the bytes of each message, and whether it was whole.
#[derive(Default)]
struct Receiver {
    reassembler: Reassembler,
    delivered: Vec<(Vec<u8>, bool)>,
    now_ms: u64,
}

impl Receiver {
    fn receive(&mut self, buffer: &[u8], segment_bytes: usize) {
        self.reassembler.receive(buffer, segment_bytes, self.now_ms, |delivery| {
            let bytes = delivery.slices().collect::<Vec<_>>().concat();
            assert_eq!((delivery.vni, delivery.message_bytes), (VNI, bytes.len()));
            assert!(delivery.head().len() >= bytes.len().min(CHUNK_BYTES_MIN));
            self.delivered.push((bytes, delivery.is_whole));
        });
    }

    fn expire_at(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        let delivered = &mut self.delivered;
        self.reassembler.expire(now_ms, |delivery| {
            delivered.push((delivery.slices().collect::<Vec<_>>().concat(), delivery.is_whole));
        });
    }

    fn receive_all<'a>(&mut self, datagrams: impl IntoIterator<Item = &'a Vec<u8>>) {
        datagrams.into_iter().for_each(|datagram| self.receive(datagram, 0));
    }
}

/// Asserts that a shortened message is the first part of a sample: cut into segments, each is correct. Returns the length of its payload.
fn check_shortened(sample: &Sample, shortened: &[u8]) -> usize {
    let (raw, frame) = shortened.split_first_chunk().expect("a header");
    let header = VirtioNetHeader::parse(raw, frame.len()).expect("valid");
    let mut cutter = Cutter::default();
    let segments = cutter.cut(&[], &header, frame).expect("can be cut");
    assert_eq!(header.gso.is_some(), segments.len() > 1);
    let mut payload = Vec::new();
    for (head, data) in segments.iter() {
        let checked = sample.check(&[head, data].concat());
        assert!(sample.is_udp || checked.sequence == sample.sequence.wrapping_add(payload.len() as u32));
        assert!(sample.is_udp || checked.flags & (FIN | PSH) == 0);
        payload.extend(checked.payload);
    }
    assert!(!payload.is_empty() && payload.len() < sample.payload.len());
    assert!(sample.payload.starts_with(&payload));
    payload.len()
}

#[test]
fn plans_equal_chunks_and_sends_within_limits() {
    let mut sender = Sender::new(u32::MAX);
    let chunks = sender.plan(VNI, MESSAGE_BYTES_MAX, DATAGRAM).expect("can be sent");
    let batches: Vec<_> = chunks.batches().collect();
    let segment_bytes = DATAGRAM as u16;
    let both = [0..44, 44..46].map(|chunks| SendBatch { chunks, segment_bytes });
    assert_eq!((chunks.len(), &batches[..]), (46, &both[..]));
    let (header, range) = chunks.get(45);
    assert_eq!(header, [0x10, 255, 255, 255, 255, 255, 255, 255, 0, 1, 0, 0x1d, 0, 0, 0xff, 0xf0]);
    assert_eq!(range, 45 * CHUNK..MESSAGE_BYTES_MAX);
    let small = sender.plan(VNI, 26, DATAGRAM).expect("can be sent");
    assert_eq!(small.get(0).0[4..8], [0; 4]);
    assert_eq!(small.batches().count(), 1);
    for datagram_bytes in [272, 576, 1472, 8972, 65_507, 100_000] {
        let chunks = sender.plan(VNI, MESSAGE_BYTES_MAX, datagram_bytes).expect("can be sent");
        for SendBatch { chunks, segment_bytes } in chunks.batches() {
            assert!(chunks.len() <= SEND_SEGMENTS_MAX && chunks.len() * usize::from(segment_bytes) <= SEND_BYTES_MAX);
        }
    }
    assert_eq!(sender.plan(VNI, 25, DATAGRAM).err(), Some(SendError::MessageLength(25)));
    let long = MESSAGE_BYTES_MAX + 1;
    assert_eq!(sender.plan(VNI, long, DATAGRAM).err(), Some(SendError::MessageLength(long)));
    assert_eq!(sender.plan(VNI, 26, 271).err(), Some(SendError::DatagramShort(271)));
}

#[test]
fn delivers_messages_of_one_buffer_in_place() {
    let mut sender = Sender::new(7);
    let first = message(&Sample::default(), 1448);
    let second = message(&Sample { payload: vec![1; 5 * CHUNK], ..Sample::default() }, 1448);
    let third = message(&Sample { payload: vec![2; 9], ..Sample::default() }, 0);
    // The last datagram of `second` is as long as the others, so GRO may put `third` behind it.
    let second = &second[..5 * CHUNK];
    let tail = [datagrams(&mut sender, second, DATAGRAM), datagrams(&mut sender, &third, DATAGRAM)].concat().concat();
    let mut receiver = Receiver::default();
    receiver.receive(&datagrams(&mut sender, &first, DATAGRAM).concat(), DATAGRAM);
    receiver.receive(&tail, DATAGRAM);
    assert_eq!(receiver.delivered, [(first, true), (second.to_vec(), true), (third, true)]);
    assert_eq!(*receiver.reassembler.counters(), FastCounters { in_place: 3, ..FastCounters::default() });
}

#[test]
fn collects_chunks_of_any_order_and_drops_duplicates() {
    let mut sender = Sender::new(7);
    let message = message(&Sample::default(), 1448);
    let datagrams = datagrams(&mut sender, &message, DATAGRAM);
    assert_eq!(datagrams.len(), 3);
    for order in [[2, 1, 0], [0, 2, 1], [1, 2, 0], [1, 0, 2]] {
        let mut receiver = Receiver::default();
        let order = order.map(|index| &datagrams[index]);
        receiver.receive_all([order[0], order[0], order[1], order[0], order[2], order[1]]);
        receiver.receive(&datagrams.concat(), DATAGRAM);
        assert_eq!(receiver.delivered, [(message.clone(), true)]);
        let expected = FastCounters { copied: 1, duplicates: 6, ..FastCounters::default() };
        assert_eq!(*receiver.reassembler.counters(), expected);
        assert_eq!(receiver.reassembler.next_expiry_ms(), None);
    }
}

#[test]
fn delivers_the_part_before_a_hole_after_a_time() {
    let payload: Vec<u8> = (0..20_000_u32).map(|at| (at % 253) as u8).collect();
    for is_v6 in [false, true] {
        for (lost, size) in [(1, 1448), (2, 1448), (13, 100)] {
            let sample = Sample { is_v6, flags: ACK | PSH | FIN, payload: payload.clone(), ..Sample::default() };
            let mut datagrams = datagrams(&mut Sender::new(1), &message(&sample, size), DATAGRAM);
            let late = datagrams.remove(lost);
            let mut receiver = Receiver { now_ms: 1000, ..Receiver::default() };
            receiver.receive_all(&datagrams);
            assert_eq!(receiver.reassembler.next_expiry_ms(), Some(1000 + PENDING_MS_MAX));
            receiver.expire_at(999 + PENDING_MS_MAX);
            assert_eq!(receiver.delivered, []);
            receiver.expire_at(1000 + PENDING_MS_MAX);
            receiver.receive_all([&late]);
            let [(shortened, false)] = &receiver.delivered[..] else { panic!("one is delivered") };
            assert_eq!(check_shortened(&sample, shortened), lost * CHUNK - 12 - sample.head_bytes());
            let expected = FastCounters { shortened: 1, timed_out: 1, duplicates: 1, ..FastCounters::default() };
            assert_eq!(*receiver.reassembler.counters(), expected);
        }
    }
}

#[test]
fn shortens_udp_to_whole_datagrams() {
    let sample = Sample { is_udp: true, ..Sample::default() };
    let datagrams = datagrams(&mut Sender::new(1), &message(&sample, 500), DATAGRAM);
    let mut receiver = Receiver::default();
    receiver.receive_all(&datagrams[..2]);
    receiver.expire_at(PENDING_MS_MAX);
    assert_eq!(check_shortened(&sample, &receiver.delivered[0].0), 2500);
}

#[test]
fn loses_a_frame_with_a_hole_that_is_one_packet() {
    let uncut = message(&Sample::default(), 0);
    let large_udp = message(&Sample { is_udp: true, ..Sample::default() }, 3000);
    let no_head = message(&Sample::default(), 1448);
    for (message, there) in [(uncut, 0..2), (large_udp, 0..2), (no_head, 1..3)] {
        let datagrams = datagrams(&mut Sender::new(1), &message, DATAGRAM);
        let mut receiver = Receiver::default();
        receiver.receive_all(&datagrams[there]);
        receiver.expire_at(PENDING_MS_MAX);
        assert_eq!(receiver.delivered, []);
        assert_eq!(*receiver.reassembler.counters(), FastCounters { lost: 1, timed_out: 1, ..FastCounters::default() });
    }
}

#[test]
fn gives_up_a_message_after_newer_ones() {
    let mut sender = Sender::new(u32::MAX - 1);
    let sample = Sample::default();
    let message = message(&sample, 1448);
    let mut receiver = Receiver::default();
    receiver.receive_all(&datagrams(&mut sender, &message, DATAGRAM)[..2]);
    for newer in 1..=NEWER_MESSAGES_MAX {
        assert_eq!(receiver.delivered.len(), usize::from(newer) - 1);
        receiver.receive(&datagrams(&mut sender, &message, DATAGRAM).concat(), DATAGRAM);
    }
    assert_eq!(receiver.delivered.len(), 4);
    check_shortened(&sample, &receiver.delivered[2].0);
    assert_eq!(receiver.reassembler.counters().overtaken, 1);
}

#[test]
fn bounds_the_incomplete_messages() {
    let mut sender = Sender::new(0);
    let message = message(&Sample::default(), 1448);
    let mut receiver = Receiver::default();
    for _ in 0..PENDING_MAX + 5 {
        receiver.receive_all(&datagrams(&mut sender, &message, DATAGRAM)[..2]);
    }
    assert_eq!(receiver.delivered.len(), 5);
    receiver.expire_at(PENDING_MS_MAX);
    assert_eq!(receiver.delivered.len(), PENDING_MAX + 5);
    let counters = receiver.reassembler.counters();
    assert_eq!((counters.evicted, counters.timed_out, counters.shortened), (5, 8, 13));
}

#[test]
fn refuses_each_lie_under_its_name() {
    let header = ChunkHeader { vni: VNI, message: 1, total: 1000, offset: 500 };
    let datagram = |header: ChunkHeader, bytes: usize| [&header.emit()[..], &vec![0; bytes]].concat();
    let refused = |datagram: &[u8]| {
        let mut receiver = Receiver::default();
        receiver.receive(&datagram_of(500), 0);
        receiver.receive(datagram, 0);
        assert_eq!(receiver.delivered, []);
        *receiver.reassembler.counters()
    };
    fn datagram_of(offset: usize) -> Vec<u8> {
        [&ChunkHeader { vni: VNI, message: 1, total: 1000, offset }.emit()[..], &[0; 300]].concat()
    }
    let none = FastCounters::default();
    assert_eq!(refused(&datagram(header, 500)[..16]), FastCounters { short: 1, ..none });
    assert_eq!(refused(&[]), FastCounters { short: 1, ..none });
    let with_first = |first: u8| [&[first][..], &datagram(header, 500)[1..]].concat();
    assert_eq!(refused(&with_first(0x20)), FastCounters { version_unknown: 1, ..none });
    assert_eq!(refused(&with_first(0x11)), FastCounters { kind_unknown: 1, ..none });
    for total in [0, 25, MESSAGE_BYTES_MAX + 1, u32::MAX as usize] {
        assert_eq!(refused(&datagram(ChunkHeader { total, ..header }, 500)), FastCounters { total_refused: 1, ..none });
    }
    assert_eq!(refused(&datagram(header, 501)), FastCounters { outside: 1, ..none });
    let beyond = ChunkHeader { offset: u32::MAX as usize, ..header };
    assert_eq!(refused(&datagram(beyond, 500)), FastCounters { outside: 1, ..none });
    assert_eq!(refused(&datagram(header, 255)), FastCounters { chunk_short: 1, ..none });
    for other in [ChunkHeader { total: 1001, ..header }, ChunkHeader { vni: Vni::from_bytes([0; 3]), ..header }] {
        assert_eq!(refused(&datagram(other, 500)), FastCounters { inconsistent: 1, ..none });
    }
    for (offset, bytes) in [(499, 300), (501, 300), (0, 501), (500, 500)] {
        let overlapping = datagram(ChunkHeader { offset, ..header }, bytes);
        assert_eq!(refused(&overlapping), FastCounters { overlapping: 1, ..none });
    }
    let lie = [&ChunkHeader { message: 2, offset: 0, ..header }.emit()[..], &[0xff; 1000]].concat();
    assert_eq!(refused(&lie), FastCounters { header_refused: 1, ..none });
}

/// The fate of a datagram.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Lost,
    Arrives,
    Twice,
}

fn fates() -> impl Strategy<Value = Fate> {
    prop_oneof![1 => Just(Fate::Lost), 6 => Just(Fate::Arrives), 1 => Just(Fate::Twice)]
}

proptest! {
    #[test]
    fn only_what_was_sent_is_delivered(
        samples in prop::collection::vec((samples(), 0_u16..3000), 1..6),
        datagram_bytes in 272_usize..2000,
        fates in prop::collection::vec(fates(), 120),
        moves in prop::collection::vec((0_usize..120, 0_usize..120), 0..20),
        gro in 1_usize..20,
    ) {
        let mut sender = Sender::new(u32::MAX - 2);
        let mut wire = Vec::new();
        let mut messages = Vec::new();
        for (sample, size) in &samples {
            let message = message(sample, *size);
            wire.extend(datagrams(&mut sender, &message, datagram_bytes));
            messages.push(message);
        }
        let is_lossless = wire.len() > fates.len() || fates[..wire.len()].iter().all(|fate| !matches!(fate, Fate::Lost));
        let arrives = |(index, datagram)| match fates.get(index).unwrap_or(&Fate::Arrives) {
            Fate::Lost => vec![],
            Fate::Arrives => vec![datagram],
            Fate::Twice => vec![datagram; 2],
        };
        let mut wire: Vec<Vec<u8>> = wire.into_iter().enumerate().flat_map(arrives).collect();
        let count = wire.len();
        if count > 0 {
            moves.iter().for_each(|(from, to)| wire.swap(from % count, to % count));
        }
        let mut receiver = Receiver::default();
        let mut rest = &wire[..];
        while let Some(first) = rest.first() {
            // GRO takes datagrams of one length, and a shorter one at the end.
            let equal = rest.iter().take(gro).take_while(|datagram| datagram.len() == first.len()).count();
            let shorter = usize::from(rest.get(equal).is_some_and(|next| equal < gro && next.len() < first.len()));
            let (buffer, after) = rest.split_at(equal + shorter);
            receiver.receive(&buffer.concat(), first.len());
            rest = after;
        }
        receiver.expire_at(PENDING_MS_MAX);
        let mut open: Vec<usize> = (0..messages.len()).collect();
        for (delivered, is_whole) in &receiver.delivered {
            // Each message at most once.
            let found = open.iter().position(|index| {
                let (sample, _) = &samples[*index];
                let head = sample.head_bytes() + 12;
                let same = messages[*index].get(head..).is_some_and(|all| all.starts_with(delivered.get(head..).unwrap_or(&[1; 1])));
                if *is_whole { messages[*index] == *delivered } else { same && delivered.len() < messages[*index].len() && delivered[12..26] == messages[*index][12..26] }
            });
            let index = open.remove(found.expect("was sent"));
            if !is_whole {
                check_shortened(&samples[index].0, delivered);
            }
        }
        let counters = receiver.reassembler.counters();
        let ended = counters.in_place + counters.copied + counters.shortened + counters.lost;
        prop_assert!(ended <= messages.len() as u64);
        prop_assert_eq!(counters.in_place + counters.copied + counters.shortened, receiver.delivered.len() as u64);
        if is_lossless {
            prop_assert_eq!(ended, messages.len() as u64);
        }
    }

    #[test]
    fn random_bytes_never_panic(
        buffers in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..900), any::<u16>(), 0_u32..1100, 0_u32..1100), 0..40),
    ) {
        let mut receiver = Receiver::default();
        for (mut bytes, segment_bytes, total, offset) in buffers {
            let segment_bytes = usize::from(segment_bytes % 600);
            for datagram in bytes.chunks_mut(segment_bytes.max(300)) {
                if let Some(header) = datagram.first_chunk_mut::<CHUNK_HEADER_BYTES>() {
                    header[7] %= 12;
                    header[..7].copy_from_slice(&[VERSION << 4 | KIND_FRAME, 255, 255, 255, 0, 0, 0]);
                    header[8..12].copy_from_slice(&total.to_be_bytes());
                    header[12..].copy_from_slice(&offset.to_be_bytes());
                }
            }
            receiver.now_ms += 1;
            receiver.receive(&bytes, segment_bytes);
            receiver.expire_at(receiver.now_ms);
        }
    }
}
