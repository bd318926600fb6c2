use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::checksum::Sum;
use crate::samples::{ACK, CWR, FIN, PSH, SYN, Sample, samples};
use crate::segment::Cutter;

/// The segments of a sample as they arrive.
fn segments(sample: &Sample, size: u16) -> Vec<Vec<u8>> {
    cut(&sample.frame(), &sample.header(size))
}

fn cut(frame: &[u8], header: &VirtioNetHeader) -> Vec<Vec<u8>> {
    let mut cutter = Cutter::default();
    let segments = cutter.cut(&[], header, frame).expect("can be cut");
    segments.iter().map(|(head, data)| [head, data].concat()).collect()
}

fn delivered(frames: &[Vec<u8>]) -> Vec<(VirtioNetHeader, Vec<u8>)> {
    delivered_to(u16::MAX, frames)
}

/// Delivers to an interface of this MTU.
fn delivered_to(mtu: u16, frames: &[Vec<u8>]) -> Vec<(VirtioNetHeader, Vec<u8>)> {
    let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    let mut coalescer = Coalescer::default();
    let merged = coalescer.coalesce(mtu, &frames);
    merged
        .iter()
        .map(|frame| (frame.header, [frame.head, &frame.slices().collect::<Vec<_>>().concat()].concat()))
        .collect()
}

fn lengths(frames: &[Vec<u8>]) -> Vec<usize> {
    delivered(frames).iter().map(|(_, frame)| frame.len()).collect()
}

/// The segments of [`Sample::default`], 1000 bytes each, with another segment 1.
fn with_change(change: impl FnOnce(&mut Sample)) -> Vec<Vec<u8>> {
    let mut frames = segments(&Sample::default(), 1000);
    let mut sample = Sample { flags: ACK, payload: Sample::default().payload[1000..2000].into(), ..Sample::default() };
    sample.sequence = sample.sequence.wrapping_add(1000);
    change(&mut sample);
    frames[1] = segments(&sample, 2000).remove(0);
    frames
}

#[test]
fn restores_the_frame_that_was_cut() {
    for is_v6 in [false, true] {
        let sample = Sample { is_v6, flags: ACK | PSH | FIN, ..Sample::default() };
        assert_eq!(delivered(&segments(&sample, 1448)), [(sample.header(1448), sample.frame())]);
    }
}

#[test]
fn keeps_flows_apart_and_each_in_order() {
    let a = Sample::default();
    let b = Sample { is_v6: true, ..Sample::default() };
    let mixed: Vec<_> = segments(&a, 1000).into_iter().zip(segments(&b, 1000)).flat_map(|(a, b)| [a, b]).collect();
    assert_eq!(delivered(&mixed), [(a.header(1000), a.frame()), (b.header(1000), b.frame())]);
}

#[test]
fn merges_only_what_continues_the_stream() {
    let head = Sample::default().head_bytes();
    let four = [head + 1000; 4];
    assert_eq!(lengths(&with_change(|_| {})), [head + 4000]);
    assert_eq!(lengths(&with_change(|sample| sample.sequence += 1)), [head + 1000, head + 1000, head + 2000]);
    assert_eq!(lengths(&with_change(|sample| sample.flags |= SYN)), [head + 1000, head + 1000, head + 2000]);
    assert_eq!(lengths(&with_change(|sample| sample.flags |= PSH)), [head + 2000, head + 2000]);
    assert_eq!(lengths(&with_change(|sample| sample.payload.truncate(999))), [head + 1999, head + 2000]);
    let longer = with_change(|sample| sample.payload.push(0));
    assert_eq!(lengths(&longer[..2]), [head + 1000, head + 1001]);
    let other_options = with_change(|sample| sample.tcp_options = 4);
    assert_eq!(lengths(&other_options), [head + 1000, head + 1004, head + 2000]);
    let mut frames = segments(&Sample::default(), 1000);
    frames.reverse();
    assert_eq!(lengths(&frames), four);
}

#[test]
fn merges_only_frames_with_equal_headers() {
    for is_v6 in [false, true] {
        let sample = Sample { is_v6, flags: ACK, ..Sample::default() };
        let (ip, tcp) = (sample.network(), sample.transport());
        let second = Sample {
            sequence: sample.sequence.wrapping_add(1000),
            payload: sample.payload[1000..2000].into(),
            ..sample.clone()
        };
        let lengths_with = |at: usize| {
            let mut frames = segments(&sample, 1000);
            let mut frame = second.frame();
            frame[at] ^= 8;
            frames[1] = cut(&frame, &second.header(2000)).remove(0);
            lengths(&frames)
        };
        let head = sample.head_bytes();
        let apart = [head + 1000, head + 1000, head + 2000];
        // MAC addresses; class and hop limit or lifetime; addresses; ports, acknowledgement, window, an option.
        let ip_fields = if is_v6 { [ip + 1, ip + 7, ip + 8, ip + 39] } else { [ip + 1, ip + 8, ip + 12, ip + 19] };
        for at in
            [[0, 6], [tcp, tcp + 2], [tcp + 8, tcp + 11], [tcp + 14, tcp + 31]].concat().into_iter().chain(ip_fields)
        {
            assert_eq!(lengths_with(at), apart, "byte {at}");
        }
        let identification = ip + 4;
        assert!(is_v6 || lengths_with(identification) == [head + 4000]);
    }
}

#[test]
fn a_fragment_keeps_its_place() {
    let mut frames = segments(&Sample::default(), 1000);
    frames[2] = frames[1].clone();
    frames[1][20] = 0x20;
    let delivered = delivered(&frames[..3]);
    assert_eq!((delivered.len(), &delivered[1].1), (3, &frames[1]));
}

#[test]
fn passes_frames_with_a_wrong_checksum_unchanged() {
    let mut frames = segments(&Sample::default(), 1000);
    frames[1][500] ^= 1;
    let merged = delivered(&frames);
    assert_eq!(merged.len(), 3);
    assert_eq!(merged[1], (VirtioNetHeader::default(), frames[1].clone()));
    frames[1][500] ^= 1;
    frames[1][24] ^= 1; // The checksum of IPv4.
    assert_eq!(delivered(&frames)[1], (VirtioNetHeader::default(), frames[1].clone()));
}

#[test]
fn passes_other_frames_unchanged_and_counts_them() {
    let arp = [&[0xff; 12][..], &[8, 6], &[1; 46]].concat();
    let mut fragment = segments(&Sample::default(), 1000).remove(0);
    fragment[20] = 0x20;
    let mut lying = segments(&Sample { is_udp: true, ..Sample::default() }, 1000).remove(0);
    let word = |frame: &[u8], at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let (length, checksum) = (word(&lying, 38) - 1, word(&lying, 40) + 1);
    lying[38..40].copy_from_slice(&length.to_be_bytes());
    lying[40..42].copy_from_slice(&checksum.to_be_bytes());
    let mut without_checksum = segments(&Sample { is_udp: true, ..Sample::default() }, 1000).remove(0);
    without_checksum[40..42].fill(0);
    let frames = [arp, fragment, vec![], without_checksum, lying];
    let unchanged: Vec<_> = frames.iter().map(|frame| (VirtioNetHeader::default(), frame.clone())).collect();
    assert_eq!(delivered(&frames), unchanged);
    let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    let mut coalescer = Coalescer::default();
    coalescer.coalesce(1500, &frames);
    assert_eq!(*coalescer.counters(), CoalesceCounters { unverified: 2, unparsed: 3, ..CoalesceCounters::default() });
}

#[test]
fn a_frame_to_which_nothing_is_merged_stays_as_it_came() {
    for (is_v6, is_udp, tags) in [(false, false, 0), (true, false, 1), (false, true, 2), (true, true, 0)] {
        let sample = Sample { is_v6, is_udp, tags, payload: vec![7; 3], ..Sample::default() };
        let mut frames = segments(&sample, 1000);
        frames[0].resize(120, 0); // Padding.
        assert_eq!(delivered(&frames), [(VirtioNetHeader::default(), frames[0].clone())]);
    }
}

#[test]
fn a_merged_frame_fits_an_ip_packet_and_a_writev() {
    let sample = Sample { flags: ACK, payload: vec![1; 1000], ..Sample::default() };
    let run = |bytes: usize, count: usize| -> Vec<Vec<u8>> {
        let at = |index: usize| sample.sequence.wrapping_add((index * bytes) as u32);
        let sample = |index| Sample { sequence: at(index), payload: vec![1; bytes], ..sample.clone() };
        (0..count).map(|index| segments(&sample(index), 2000).remove(0)).collect()
    };
    let head = sample.head_bytes();
    assert_eq!(lengths(&run(1000, 70)), [head + 65_000, head + 5000]);
    // 50 segments would be 65,552 bytes of IP.
    assert_eq!(lengths(&run(1310, 50)), [head + 64_190, head + 1310]);
    assert_eq!(lengths(&run(10, 130)), [head + 1280, head + 20]);
}

/// The sample with a payload that no MTU refuses.
fn short(sample: Sample) -> Sample {
    Sample { payload: vec![7; 301], ..sample }
}

#[test]
fn delivers_a_partial_checksum_as_such() {
    for (is_v6, is_udp, tags) in [(false, false, 0), (true, false, 1), (false, true, 2), (true, true, 0)] {
        let sample = short(Sample { is_v6, is_udp, tags, ..Sample::default() });
        let mut frame = sample.frame();
        frame.resize(frame.len() + 9, 0); // Padding.
        assert_eq!(delivered_to(1500, &[frame]), [(sample.header(0), sample.frame())]);
    }
}

#[test]
fn a_long_tcp_frame_with_a_partial_checksum_is_to_be_cut_to_the_mtu() {
    for (is_v6, tags, size) in [(false, 0, 1450 - 52), (true, 1, 1450 - 72)] {
        let sample = Sample { is_v6, tags, flags: ACK | CWR, ..Sample::default() };
        assert_eq!(delivered_to(1450, &[sample.frame()]), [(sample.header(size), sample.frame())]);
    }
    let sample = Sample::default();
    assert_eq!(delivered_to(4052, &[sample.frame()]), [(sample.header(0), sample.frame())]);
    assert_eq!(delivered_to(4051, &[sample.frame()]), [(sample.header(3999), sample.frame())]);
}

#[test]
fn partial_and_complete_checksums_of_a_flow_are_merged() {
    let sample = Sample { flags: ACK, ..Sample::default() };
    let mut frames = segments(&sample, 1000);
    for (index, frame) in frames.iter_mut().enumerate().skip(2) {
        let sequence = sample.sequence.wrapping_add(1000 * index as u32);
        let payload = sample.payload[1000 * index..][..1000].to_vec();
        *frame = Sample { sequence, payload, identification: index as u16, ..sample.clone() }.frame();
    }
    assert_eq!(delivered_to(1500, &frames), [(sample.header(1000), sample.frame())]);
    // Nothing is appended to a frame that was not cut.
    let next = Sample { sequence: sample.sequence.wrapping_add(4000), payload: vec![1; 900], ..sample.clone() };
    let merged = delivered_to(1500, &[sample.frame(), next.frame()]);
    assert_eq!(merged, [(sample.header(1448), sample.frame()), (next.header(0), next.frame())]);
}

#[test]
fn a_long_udp_frame_with_a_partial_checksum_is_lost_and_counted() {
    let sample = Sample { is_udp: true, ..Sample::default() };
    let complete = segments(&sample, 5000).remove(0);
    let frames = [sample.frame(), complete, short(sample.clone()).frame()];
    let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    let mut coalescer = Coalescer::default();
    let merged = coalescer.coalesce(1500, &frames);
    assert_eq!((merged.len(), merged.lost()), (2, 1));
    assert_eq!(merged.get(0).header, VirtioNetHeader::default(), "a datagram of a sender with a larger MTU");
    assert_eq!(merged.get(1).header, sample.header(0));
    let expected = CoalesceCounters { uncut: 1, ..CoalesceCounters::default() };
    assert_eq!(*coalescer.counters(), expected);
    assert_eq!(coalescer.coalesce(1500, &[]).lost(), 0);
}

#[test]
fn a_tcp_frame_whose_headers_fill_the_mtu_is_lost() {
    let frame = Sample::default().frame();
    let mut coalescer = Coalescer::default();
    assert_eq!(coalescer.coalesce(52, &[&frame]).lost(), 1);
    assert_eq!(coalescer.coalesce(53, &[&frame]).get(0).header, Sample::default().header(1));
}

#[test]
fn a_partial_checksum_does_not_hide_a_wrong_header() {
    let mut frame = Sample::default().frame();
    frame[24] ^= 1; // The checksum of IPv4.
    assert_eq!(delivered_to(1450, core::slice::from_ref(&frame)), [(VirtioNetHeader::default(), frame)]);
    let mut frame = Sample { is_udp: true, is_v6: true, ..Sample::default() }.frame();
    frame[58] ^= 1; // The length of UDP.
    assert_eq!(delivered_to(1450, core::slice::from_ref(&frame)), [(VirtioNetHeader::default(), frame)]);
}

proptest! {
    /// The kernel completes a partial checksum. For a complete one that has the value of a partial one, that changes nothing.
    #[test]
    fn a_complete_checksum_that_looks_partial_stays_complete(mut sample in samples()) {
        sample.payload.truncate(1000);
        sample.payload.resize(sample.payload.len().next_multiple_of(2), 0);
        sample.payload.extend([0, 0]);
        let frame = sample.frame();
        let mut frame = Cutter::default().cut(&[], &sample.header(0), &frame).unwrap().get(0).0.to_vec();
        frame.extend(&sample.frame()[frame.len()..]);
        let headers = Headers::parse(&frame).unwrap();
        let at = headers.transport + headers.checksum_offset();
        let (partial, complete) = (Sum::of(&sample.frame()[at..at + 2]), Sum::of(&frame[at..at + 2]));
        // The last word of the payload makes up for the difference.
        let last = frame.len() - 2;
        let word = complete.plus_word(partial.complement()).folded().to_be_bytes();
        frame[last..].copy_from_slice(&word);
        frame[at..at + 2].copy_from_slice(&partial.folded().to_be_bytes());
        sample.check(&frame);
        let delivered = delivered_to(u16::MAX, core::slice::from_ref(&frame));
        let (header, delivered) = &delivered[0];
        let mut completed = Cutter::default();
        let (head, data) = completed.cut(&[], header, delivered).unwrap().get(0);
        prop_assert_eq!([head, data].concat(), frame);
    }

    #[test]
    fn a_cut_frame_is_restored(sample in samples(), size in 100_u16..3000) {
        let mut sample = Sample { is_udp: false, flags: sample.flags & 0xd9, ..sample };
        let payload = sample.payload.len();
        if payload <= usize::from(size) {
            sample.payload.resize(payload + usize::from(size) + 1, 3);
        }
        prop_assert_eq!(delivered(&segments(&sample, size)), vec![(sample.header(size), sample.frame())]);
    }

    #[test]
    fn hostile_frames_lose_no_byte_and_never_panic(
        samples in prop::collection::vec(samples(), 1..4),
        changes in prop::collection::vec((any::<usize>(), any::<usize>(), any::<u8>()), 0..8),
        cut in any::<usize>(),
    ) {
        let mut frames: Vec<_> = samples.iter().flat_map(|sample| segments(sample, 700)).collect();
        let count = frames.len();
        for (frame, at, value) in changes {
            let frame = &mut frames[frame % count];
            let at = at % frame.len();
            frame[at] = value;
        }
        let short = cut % frames[0].len();
        frames[0].truncate(short);
        let total: usize = delivered(&frames).iter().map(|(header, frame)| {
            assert_eq!(VirtioNetHeader::parse(&header.emit(), frame.len().max(14)), Ok(*header));
            frame.len()
        }).sum();
        prop_assert!(total <= frames.iter().map(Vec::len).sum());
    }
}
