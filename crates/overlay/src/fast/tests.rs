use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use super::header::ChunkHeader;
use super::*;
use crate::samples::{ACK, CWR, FIN, PSH, Sample};
use crate::segment::Cutter;
use crate::virtio_net::VirtioNetHeader;
use crate::vxlan::Vni;

mod page;
mod properties;

const VNI: Vni = Vni::MAX;
/// For a path of 1500 bytes over IPv4.
const DATAGRAM: usize = 1472;
const CHUNK: usize = DATAGRAM - CHUNK_HEADER_BYTES;

fn message(sample: &Sample, size: u16) -> Vec<u8> {
    [&sample.header(size).emit()[..], &sample.frame()].concat()
}

/// The datagrams of a message.
fn datagrams(sender: &mut Sender, message: &[u8], datagram_bytes: usize) -> Vec<Vec<u8>> {
    let raw = message.first_chunk().expect("a header");
    let header = VirtioNetHeader::parse(raw, message.len() - 12).expect("valid");
    let chunks = sender.plan(VNI, &header, message.len(), datagram_bytes).expect("can be sent");
    let chunks = (0..chunks.len()).map(|index| chunks.get(index));
    chunks.map(|chunk| [&chunk.header, &message[chunk.range], &message[chunk.repeated]].concat()).collect()
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
            // A part has all headers in its head.
            let head_bytes = if delivery.is_whole { CHUNK_BYTES_MIN } else { 12 + 14 + 20 + 8 };
            assert!(delivery.head().len() >= bytes.len().min(head_bytes));
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

/// Asserts that a part of a sample is correct: cut into segments, each of them is. Returns where its payload lies.
fn check_part(sample: &Sample, size: u16, part: &[u8]) -> Range<usize> {
    let (raw, frame) = part.split_first_chunk().expect("a header");
    let header = VirtioNetHeader::parse(raw, frame.len()).expect("valid");
    let mut cutter = Cutter::default();
    let segments = cutter.cut(&[], &header, frame).expect("can be cut");
    assert_eq!(header.gso.is_some(), segments.len() > 1);
    let checked: Vec<_> = segments.iter().map(|(head, data)| sample.check(&[head, data].concat())).collect();
    let payload = checked.iter().flat_map(|segment| segment.payload.iter().copied()).collect::<Vec<u8>>();
    let start = if sample.is_udp {
        sample.payload.windows(payload.len()).position(|window| window == payload).expect("was sent")
    } else {
        checked[0].sequence.wrapping_sub(sample.sequence) as usize
    };
    let end = start + payload.len();
    assert!(start < end && sample.payload[start..end] == payload);
    let has_cwr = !sample.is_udp && sample.flags & CWR != 0;
    assert!(header.gso.is_none_or(|gso| gso.ecn == (has_cwr && start == 0)));
    let identification = sample.identification.wrapping_add((start / usize::from(size)) as u16);
    let last = checked.len() - 1;
    for (index, segment) in checked.iter().enumerate() {
        // Where a part of UDP lies is a guess if the payload has equal datagrams.
        assert!(sample.is_v6 || sample.is_udp || segment.identification == identification.wrapping_add(index as u16));
        let mut flags = sample.flags;
        flags &= if index == last && end == sample.payload.len() { !0 } else { !(FIN | PSH) };
        flags &= if index == 0 && start == 0 { !0 } else { !CWR };
        assert!(sample.is_udp || segment.flags == flags);
    }
    start..end
}

#[test]
fn plans_equal_chunks_of_at_most_a_datagram() {
    let mut sender = Sender::new(u32::MAX);
    let uncut = VirtioNetHeader::default();
    let cut = Sample::default().header(1448);
    let chunks = sender.plan(VNI, &uncut, MESSAGE_BYTES_MAX, DATAGRAM).expect("can be sent");
    assert_eq!((chunks.len(), chunks.get(44).range.len()), (46, CHUNK));
    let header = [0x10, 255, 255, 255, 255, 255, 255, 255, 0, 1, 0, 0x1d, 0, 0, 0xff, 0xf0];
    assert_eq!(chunks.get(45), Chunk { header, range: 45 * CHUNK..MESSAGE_BYTES_MAX, repeated: 0..0 });
    let small = sender.plan(VNI, &uncut, 26, DATAGRAM).expect("can be sent");
    assert_eq!(small.get(0).header[4..8], [0; 4]);
    assert_eq!(small.len(), 1);
    let mut plan = |header, message_bytes, datagram_bytes| sender.plan(VNI, header, message_bytes, datagram_bytes);
    for datagram_bytes in [272, 576, 1472, 8972, 65_507, 100_000] {
        let chunks = plan(&cut, MESSAGE_BYTES_MAX, datagram_bytes).expect("can be sent");
        let longest = chunks.get(0);
        let bytes = CHUNK_HEADER_BYTES + longest.range.len() + longest.repeated.len();
        assert_eq!(bytes, datagram_bytes.min(DATAGRAM_BYTES_MAX));
    }
    assert_eq!(plan(&uncut, 25, DATAGRAM).err(), Some(SendError::MessageLength(25)));
    let long = MESSAGE_BYTES_MAX + 1;
    assert_eq!(plan(&uncut, long, DATAGRAM).err(), Some(SendError::MessageLength(long)));
    assert_eq!(plan(&uncut, 26, 271).err(), Some(SendError::DatagramShort(271)));
}

#[test]
fn repeats_the_head_of_a_frame_that_is_to_be_cut() {
    let mut sender = Sender::new(0);
    let mut plan = |bytes| sender.plan(VNI, &Sample::default().header(1448), bytes, DATAGRAM).expect("can be sent");
    let one = plan(CHUNK);
    assert_eq!((one.len(), one.get(0).header[0], one.get(0).repeated), (1, 0x10, 0..0));
    let within = plan(CHUNK + 1);
    let last = within.get(1);
    assert_eq!((within.len(), last.header[0]), (2, 0x11));
    assert_eq!((last.range, last.repeated), (CHUNK..CHUNK + 1, 0..REPEATED_BYTES));
    let across = plan(2 * CHUNK - 100);
    assert_eq!((across.len(), across.get(1).repeated, across.get(2).repeated), (3, 0..100, 100..REPEATED_BYTES));
    assert_eq!(across.get(2).range, 2 * CHUNK - 100..2 * CHUNK - 100);
}

#[test]
fn delivers_messages_of_one_buffer_in_place() {
    let mut sender = Sender::new(7);
    let first = message(&Sample::default(), 1448);
    let second = message(&Sample { payload: vec![1; 5 * CHUNK], ..Sample::default() }, 0);
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
    let message = message(&Sample::default(), 0);
    let datagrams = datagrams(&mut sender, &message, DATAGRAM);
    assert_eq!(datagrams.len(), 3);
    for order in [[0, 1, 2], [2, 1, 0], [0, 2, 1], [1, 2, 0], [1, 0, 2]] {
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
fn delivers_the_parts_around_a_hole_when_the_last_chunk_comes() {
    let payload: Vec<u8> = (0..20_000_u32).map(|at| (at % 253) as u8).collect();
    for is_v6 in [false, true] {
        for (lost, size) in [(1, 1448), (2, 1448), (12, 100)] {
            let sample = Sample { is_v6, flags: ACK | PSH | FIN | CWR, payload: payload.clone(), ..Sample::default() };
            let mut datagrams = datagrams(&mut Sender::new(1), &message(&sample, size), DATAGRAM);
            let late = datagrams.remove(lost);
            let mut receiver = Receiver::default();
            receiver.receive_all(&datagrams[..datagrams.len() - 1]);
            assert_eq!(receiver.delivered, []);
            receiver.receive_all(datagrams.last());
            receiver.receive_all([&late, &late]);
            let parts: Vec<_> = receiver.delivered.iter().map(|(part, _)| check_part(&sample, size, part)).collect();
            let head = 12 + sample.head_bytes();
            let (start, end) = (lost * CHUNK - head, (lost + 1) * CHUNK - head);
            assert_eq!(parts, [0..start, end..20_000, start..end]);
            let expected = FastCounters { parts: 3, duplicates: 1, ..FastCounters::default() };
            assert_eq!(*receiver.reassembler.counters(), expected);
        }
    }
}

#[test]
fn delivers_parts_before_a_newer_message() {
    let mut sender = Sender::new(u32::MAX);
    let sample = Sample::default();
    let message = message(&sample, 1448);
    let older = datagrams(&mut sender, &message, DATAGRAM);
    let mut receiver = Receiver::default();
    receiver.receive_all(&older[..1]);
    for _ in 0..=NEWER_MESSAGES_MAX {
        receiver.receive(&datagrams(&mut sender, &message, DATAGRAM).concat(), DATAGRAM);
    }
    receiver.receive_all(&older[1..]);
    let [(first, false), (newer, true), .., (last, false)] = &receiver.delivered[..] else { panic!("two parts") };
    let start = CHUNK - 12 - sample.head_bytes();
    let parts = [first, last].map(|part| check_part(&sample, 1448, part));
    assert_eq!(parts, [0..start, start..sample.payload.len()]);
    assert_eq!(*newer, message);
}

#[test]
fn delivers_what_has_come_after_a_time() {
    let udp = Sample { is_udp: true, ..Sample::default() };
    for (sample, size, end) in [(udp, 500, 2500), (Sample::default(), 1448, 2 * CHUNK - 12 - 66)] {
        let datagrams = datagrams(&mut Sender::new(1), &message(&sample, size), DATAGRAM);
        let mut receiver = Receiver { now_ms: 1000, ..Receiver::default() };
        receiver.receive_all(&datagrams[..2]);
        assert_eq!(receiver.reassembler.next_expiry_ms(), Some(1000 + PENDING_MS_MAX));
        receiver.expire_at(999 + PENDING_MS_MAX);
        assert_eq!(receiver.delivered, []);
        receiver.expire_at(1000 + PENDING_MS_MAX);
        receiver.receive_all(&datagrams[2..]);
        assert_eq!(check_part(&sample, size, &receiver.delivered[0].0), 0..end);
        let expected = FastCounters { parts: 1, incomplete: 1, timed_out: 1, duplicates: 1, ..FastCounters::default() };
        assert_eq!(*receiver.reassembler.counters(), expected);
    }
}

#[test]
fn delivers_whole_udp_datagrams_around_a_hole() {
    let payload: Vec<u8> = (0..8000_u32).map(|at| (at.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
    let sample = Sample { is_udp: true, payload, ..Sample::default() };
    let mut datagrams = datagrams(&mut Sender::new(1), &message(&sample, 700), DATAGRAM);
    datagrams.remove(2);
    let mut receiver = Receiver::default();
    receiver.receive_all(&datagrams);
    assert_eq!(receiver.delivered, []);
    receiver.expire_at(PENDING_MS_MAX);
    let parts: Vec<_> = receiver.delivered.iter().map(|(part, _)| check_part(&sample, 700, part)).collect();
    let (start, end) = (2 * CHUNK - 12 - 42, 3 * CHUNK - 12 - 42);
    assert_eq!(parts, [0..start / 700 * 700, end.next_multiple_of(700)..8000]);
}

#[test]
fn takes_the_headers_from_the_end_if_the_first_chunk_is_lost() {
    let mut sample = Sample::default();
    for payload in [4000, 2 * CHUNK - 78 - 100] {
        sample.payload.truncate(payload);
        let datagrams = datagrams(&mut Sender::new(1), &message(&sample, 1448), DATAGRAM);
        let mut receiver = Receiver::default();
        receiver.receive_all(&datagrams[1..]);
        receiver.receive_all(&datagrams[..1]);
        let parts: Vec<_> = receiver.delivered.iter().map(|(part, _)| check_part(&sample, 1448, part)).collect();
        assert_eq!(parts, [CHUNK - 78..payload, 0..CHUNK - 78]);
    }
}

#[test]
fn loses_a_frame_with_a_hole_that_is_one_packet_or_has_no_headers() {
    let uncut = message(&Sample::default(), 0);
    let large_udp = message(&Sample { is_udp: true, ..Sample::default() }, 3000);
    let no_head = message(&Sample::default(), 1448);
    for (message, there) in [(uncut, 0..2), (large_udp, 0..2), (no_head, 1..2)] {
        let datagrams = datagrams(&mut Sender::new(1), &message, DATAGRAM);
        let mut receiver = Receiver::default();
        receiver.receive_all(&datagrams[there]);
        receiver.expire_at(PENDING_MS_MAX);
        assert_eq!(receiver.delivered, []);
        assert_eq!(*receiver.reassembler.counters(), FastCounters { lost: 1, timed_out: 1, ..FastCounters::default() });
    }
}

#[test]
fn gives_up_a_message_without_parts_after_newer_ones() {
    let mut sender = Sender::new(u32::MAX - 1);
    let message = message(&Sample::default(), 0);
    let mut receiver = Receiver::default();
    receiver.receive_all(&datagrams(&mut sender, &message, DATAGRAM)[..2]);
    for newer in 1..=NEWER_MESSAGES_MAX {
        assert_eq!(receiver.reassembler.counters().overtaken, 0);
        receiver.receive(&datagrams(&mut sender, &message, DATAGRAM).concat(), DATAGRAM);
        assert_eq!(receiver.delivered.len(), usize::from(newer));
    }
    let counters = receiver.reassembler.counters();
    assert_eq!((counters.overtaken, counters.lost), (1, 1));
}

#[test]
fn bounds_the_incomplete_messages() {
    let mut sender = Sender::new(0);
    let message = message(&Sample::default(), 0);
    let mut receiver = Receiver::default();
    for _ in 0..PENDING_MAX + 5 {
        receiver.receive_all(&datagrams(&mut sender, &message, DATAGRAM)[..2]);
    }
    receiver.expire_at(PENDING_MS_MAX);
    assert_eq!(receiver.delivered, []);
    let counters = receiver.reassembler.counters();
    assert_eq!((counters.evicted, counters.timed_out, counters.lost), (5, 8, 13));
}

#[test]
fn refuses_each_lie_under_its_name() {
    let header = ChunkHeader { vni: VNI, message: 1, total: 1000, is_repeated: false, offset: 500 };
    let datagram = |header: ChunkHeader, bytes: usize| [&header.emit()[..], &vec![0; bytes]].concat();
    let refused = |datagram: &[u8]| {
        let mut receiver = Receiver::default();
        receiver.receive(&datagram_of(500), 0);
        receiver.receive(datagram, 0);
        assert_eq!(receiver.delivered, []);
        *receiver.reassembler.counters()
    };
    fn datagram_of(offset: usize) -> Vec<u8> {
        [&ChunkHeader { vni: VNI, message: 1, total: 1000, is_repeated: false, offset }.emit()[..], &[0; 300]].concat()
    }
    let none = FastCounters::default();
    assert_eq!(refused(&datagram(header, 500)[..16]), FastCounters { short: 1, ..none });
    assert_eq!(refused(&[]), FastCounters { short: 1, ..none });
    let with_first = |first: u8| [&[first][..], &datagram(header, 500)[1..]].concat();
    assert_eq!(refused(&with_first(0x20)), FastCounters { version_unknown: 1, ..none });
    assert_eq!(refused(&with_first(0x12)), FastCounters { kind_unknown: 1, ..none });
    for total in [0, 25, MESSAGE_BYTES_MAX + 1, u32::MAX as usize] {
        assert_eq!(refused(&datagram(ChunkHeader { total, ..header }, 500)), FastCounters { total_refused: 1, ..none });
    }
    let repeated = ChunkHeader { total: REPEATED_BYTES - 1, is_repeated: true, ..header };
    assert_eq!(refused(&datagram(repeated, 100)), FastCounters { total_refused: 1, ..none });
    assert_eq!(refused(&datagram(header, 501)), FastCounters { outside: 1, ..none });
    let beyond = ChunkHeader { offset: u32::MAX as usize, ..header };
    assert_eq!(refused(&datagram(beyond, 500)), FastCounters { outside: 1, ..none });
    assert_eq!(refused(&datagram(header, 255)), FastCounters { chunk_short: 1, ..none });
    let other = [ChunkHeader { vni: Vni::from_bytes([0; 3]), ..header }, ChunkHeader { is_repeated: true, ..header }];
    for other in [other[0], other[1], ChunkHeader { total: 1001, ..header }] {
        assert_eq!(refused(&datagram(other, 500)), FastCounters { inconsistent: 1, ..none });
    }
    for (offset, bytes) in [(499, 300), (501, 300), (0, 501), (500, 500)] {
        let overlapping = datagram(ChunkHeader { offset, ..header }, bytes);
        assert_eq!(refused(&overlapping), FastCounters { overlapping: 1, ..none });
    }
    let lie = [&ChunkHeader { message: 2, offset: 0, ..header }.emit()[..], &[0xff; 1000]].concat();
    assert_eq!(refused(&lie), FastCounters { header_refused: 1, ..none });
}
