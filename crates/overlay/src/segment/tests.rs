use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::samples::{ACK, CWR, FIN, PSH, Sample, samples};
use crate::virtio_net::{FRAME_BYTES_MAX, VIRTIO_NET_BYTES};

mod gso_split;

const PREFIX: [u8; 8] = [8, 0, 0, 0, 0, 0, 42, 0];

fn joined(segment: (&[u8], &[u8])) -> Vec<u8> {
    let (head, data) = segment;
    assert_eq!(head[..8], PREFIX);
    [&head[8..], data].concat()
}

/// Cuts a sample, and asserts of each segment what is true of all.
fn cut_and_check(sample: &Sample, size: u16) {
    let frame = sample.frame();
    let mut cutter = Cutter::default();
    let segments = cutter.cut(&PREFIX, &sample.header(size), &frame).expect("can be cut");
    let step = usize::from(size);
    assert_eq!(segments.len(), sample.payload.len().div_ceil(step).max(1));
    let mut payload = Vec::new();
    for (index, segment) in segments.iter().enumerate() {
        let segment = joined(segment);
        assert!(segment.len() <= segments.bytes_max(PREFIX.len()));
        let checked = sample.check(&segment);
        assert_eq!(segment[..sample.network()], frame[..sample.network()]);
        if !sample.is_v6 {
            assert_eq!(checked.identification, sample.identification.wrapping_add(index as u16));
        }
        if !sample.is_udp {
            assert_eq!(checked.sequence, sample.sequence.wrapping_add(payload.len() as u32));
            let mut flags = sample.flags;
            flags &= if index + 1 == segments.len() { !0 } else { !(FIN | PSH) };
            flags &= if index == 0 { !0 } else { !CWR };
            assert_eq!(checked.flags, flags);
        }
        assert!(checked.payload.len() == step || index + 1 == segments.len());
        payload.extend(checked.payload);
    }
    assert_eq!(payload, sample.payload);
}

#[test]
fn cuts_tcp_into_segments() {
    cut_and_check(&Sample { flags: ACK | PSH | FIN | CWR, ..Sample::default() }, 1448);
}

#[test]
fn completes_the_checksum_of_an_uncut_frame() {
    for is_udp in [false, true] {
        let sample = Sample { is_udp, ..Sample::default() };
        let frame = sample.frame();
        let mut cutter = Cutter::default();
        let segments = cutter.cut(&PREFIX, &sample.header(0), &frame).expect("valid");
        assert_eq!(segments.len(), 1);
        let whole = joined(segments.get(0));
        sample.check(&whole);
        let verified = VirtioNetHeader { checksum: ChecksumState::Verified, gso: None, hdr_len: 0 };
        let segments = cutter.cut(&PREFIX, &verified, &whole).expect("valid");
        assert_eq!(joined(segments.get(0)), whole);
    }
}

#[test]
fn never_sends_the_udp_checksum_0() {
    let mut sample = Sample { is_udp: true, payload: [0; 4].into(), ..Sample::default() };
    let segment = |sample: &Sample, size| {
        let frame = sample.frame();
        let mut cutter = Cutter::default();
        joined(cutter.cut(&PREFIX, &sample.header(size), &frame).expect("valid").get(0))
    };
    // A payload with the checksum itself makes the sum zero.
    let checksum = sample.transport() + 6;
    let word = segment(&sample, 0)[checksum..checksum + 2].to_vec();
    sample.payload[..2].copy_from_slice(&word);
    for size in [0, 1448] {
        let segment = segment(&sample, size);
        assert_eq!(segment[checksum..checksum + 2], [0xff, 0xff]);
        sample.check(&segment);
    }
}

#[test]
fn cuts_what_the_ip_header_states_and_leaves_padding() {
    let sample = Sample::default();
    let mut frame = sample.frame();
    frame.extend([0xee; 9]);
    let mut cutter = Cutter::default();
    let segments = cutter.cut(&PREFIX, &sample.header(1448), &frame).expect("valid");
    let payload: usize = segments.iter().map(|(_, data)| data.len()).sum();
    assert_eq!(payload, sample.payload.len());
}

#[test]
fn refuses_each_lie_under_its_name() {
    let sample = Sample::default();
    let frame = sample.frame();
    let mut cutter = Cutter::default();
    let mut refused = |sample: &Sample, size, frame: &[u8]| {
        cutter.cut(&PREFIX, &sample.header(size), frame).map(|segments| segments.len()).expect_err("refused")
    };
    let v6 = Sample { is_v6: true, ..sample.clone() };
    let udp = Sample { is_udp: true, ..sample.clone() };
    assert_eq!(refused(&v6, 1448, &frame), CutError::KindDiffers);
    assert_eq!(refused(&udp, 1448, &frame), CutError::KindDiffers);
    assert_eq!(refused(&sample, 1, &frame), CutError::TooManySegments(4000));
    assert_eq!(refused(&sample, 1448, &frame[..frame.len() - 1]), CutError::Short);
    assert_eq!(refused(&sample, 1448, &frame[..60]), CutError::Headers(HeadersError::Truncated));
    assert_eq!(refused(&sample, 0, &frame[..50]), CutError::ChecksumOutside);
    let changed = |at: usize, value: u8| {
        let mut frame = frame.clone();
        frame[at] = value;
        frame
    };
    let headers = |error| CutError::Headers(error);
    assert_eq!(refused(&sample, 1448, &changed(13, 0x06)), headers(HeadersError::NotIp));
    assert_eq!(refused(&sample, 1448, &changed(14, 0x44)), headers(HeadersError::Malformed));
    assert_eq!(refused(&sample, 1448, &changed(16, 0xff)), CutError::Short);
    assert_eq!(refused(&sample, 1448, &changed(20, 0x20)), headers(HeadersError::Fragment));
    assert_eq!(refused(&sample, 1448, &changed(23, 1)), headers(HeadersError::NotTransport));
    assert_eq!(refused(&sample, 1448, &changed(46, 0x40)), headers(HeadersError::Malformed));
}

proptest! {
    #[test]
    fn each_segment_is_correct(sample in samples(), size in 8_u16..3000) {
        cut_and_check(&sample, size);
    }

    #[test]
    fn random_bytes_never_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..300),
        sample in samples(),
        header: [u8; VIRTIO_NET_BYTES],
        changes in prop::collection::vec((0_usize..150, any::<u8>()), 0..4),
    ) {
        let mut cutter = Cutter::default();
        let mut frame = sample.frame();
        for (at, value) in changes {
            let at = at % frame.len();
            frame[at] = value;
        }
        bytes.splice(0..0, frame[..12].iter().copied());
        for frame in [&bytes[..], &frame, &[0; FRAME_BYTES_MAX]] {
            for header in [VirtioNetHeader::parse(&header, frame.len()), Ok(sample.header(1448))] {
                let Ok(header) = header else { continue };
                if let Ok(segments) = cutter.cut(&PREFIX, &header, frame) {
                    prop_assert!(segments.iter().all(|(head, _)| head.starts_with(&PREFIX)));
                }
            }
        }
    }
}
