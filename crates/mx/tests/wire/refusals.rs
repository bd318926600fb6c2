//! Each reason why a frame is dropped, and each reason why a packet is not sent.

use std::collections::BTreeSet;

use isthmus_mx::StatusCode;
use isthmus_mx::wire::{
    BoardName, Dialect, EmitError, Malformed, Nack, Packet, PacketType, PeerIndex, Pull, Raw, emit, emit_head, parse,
};

use crate::samples::{Sample, samples};
use crate::{DIALECTS, frame};

/// Returns a sample's frame with some bytes of its body changed.
fn edited(number: usize, edits: &[(usize, u8)]) -> Vec<u8> {
    let mut frame = samples().swap_remove(number - 1).frame;
    for (at, byte) in edits {
        frame[16 + at] = *byte;
    }
    frame
}

/// The number of a sample, the changes to its body, and the result in the first dialect of the sample.
type Change = (usize, Vec<(usize, u8)>, Malformed);

pub(crate) fn changes() -> Vec<Change> {
    use PacketType as T;
    let too_long = |kind, declared, most| Malformed::TooLong { kind, declared, most };
    let too_short = |kind, declared, least| Malformed::TooShort { kind, declared, least };
    let missing = |declared, have| Malformed::DataMissing { declared, have };
    vec![
        (2, vec![(0, 0)], Malformed::Type(0)),
        (2, vec![(0, 255)], Malformed::Type(255)),
        (2, vec![(0, 46)], Malformed::Type(46)),
        (2, vec![(0, 2)], Malformed::UnsupportedType(T::MfmNicReply)),
        (2, vec![(0, 32)], Malformed::UnsupportedType(T::EtherUnicast)),
        (2, vec![(0, 33)], Malformed::UnsupportedType(T::EtherMulticast)),
        (2, vec![(0, 34)], Malformed::UnsupportedType(T::EtherNative)),
        (17, vec![(0, 1)], too_long(T::Raw, 4111, 1007)),
        (3, vec![(1, 0)], too_short(T::HostReply, 0, 1)),
        (3, vec![(1, 81)], too_long(T::HostReply, 81, 80)),
        (3, vec![(1, 80)], missing(80, 36)),
        (4, vec![(4, 15)], too_short(T::Connect, 15, 16)),
        (4, vec![(4, 29)], missing(29, 28)),
        (4, vec![(26, 2)], Malformed::ConnectKind(2)),
        (5, vec![(28, 1)], Malformed::ConnectStatus(1)),
        (7, vec![(5, 33)], too_long(T::Tiny, 33, 32)),
        (7, vec![(4, 1)], too_long(T::Tiny, 0x105, 32)),
        (8, vec![(5, 129)], too_long(T::Small, 129, 128)),
        (8, vec![(5, 34)], missing(34, 33)),
        (9, vec![(24, 0x10), (25, 1)], too_long(T::Medium, 4097, 4096)),
        (9, vec![(25, 13)], missing(13, 12)),
        (9, vec![(26, 2)], Malformed::FragmentOutside { offset: 8192, bytes: 4, length: 4100 }),
        (9, vec![(27, 13)], Malformed::FragmentOutside { offset: 8192, bytes: 4, length: 4100 }),
        (9, vec![(27, 255)], Malformed::FragmentOutside { offset: 1 << 32, bytes: 4, length: 4100 }),
        (9, vec![(25, 5)], Malformed::FragmentOutside { offset: 4096, bytes: 5, length: 4100 }),
        (10, vec![(6, 0), (7, 3)], Malformed::FragmentOutside { offset: 0, bytes: 4, length: 3 }),
        (10, vec![(24, 0xff)], missing(0xff04, 12)),
        (11, vec![(5, 7)], too_short(T::Rndv, 7, 8)),
        (11, vec![(5, 21)], missing(21, 20)),
        (17, vec![(3, 1)], missing(4097, 4096)),
        (19, vec![(4, 15)], too_short(T::Truc, 15, 16)),
        (19, vec![(4, 33)], missing(33, 32)),
        (19, vec![(12, 0x54)], Malformed::TrucType(0x54)),
        (19, vec![(16, 0)], Malformed::TrucSessions { header: 0x1122_3344, inner: 0x0022_3344 }),
        (20, vec![(3, 0)], Malformed::NackType(0)),
        (20, vec![(3, 5)], Malformed::NackType(5)),
        (21, vec![(3, 0)], Malformed::NackType(0)),
        (21, vec![(3, 5)], Malformed::NackType(5)),
    ]
}

#[test]
fn each_mistake_is_rejected_with_its_reason() {
    for (number, edits, expected) in changes() {
        let dialect = samples()[number - 1].dialects[0];
        assert_eq!(parse(dialect, &edited(number, &edits)), Err(expected), "V{number:02} {edits:?}");
    }
}

#[test]
fn frames_of_other_protocols_are_refused() {
    let mut frame = samples()[6].frame.clone();
    frame[13] = 0xdd;
    for dialect in DIALECTS {
        assert_eq!(parse(dialect, &frame), Err(Malformed::Ethertype(0x86dd)));
    }
    let own = Dialect::OpenMx { ethertype: 0x86dd };
    assert!(parse(own, &frame).is_ok());
    assert_eq!(parse(own, &samples()[6].frame), Err(Malformed::Ethertype(0x86df)));
}

#[test]
fn headers_are_whole() {
    for Sample { number, dialects, packet, frame, .. } in samples() {
        // The bytes of a name are data with a declared length, not a header.
        let head = if packet.kind() == PacketType::HostReply { 32 } else { packet.head_bytes(dialects[0]) };
        let short = |have: usize, need: usize| Err(Malformed::Short { have, need });
        assert_eq!(parse(dialects[0], &frame[..head - 1]), short(head - 1, head), "V{number:02}");
        assert_eq!(parse(dialects[0], &frame[..16]), short(16, 17), "V{number:02}");
        assert_eq!(parse(dialects[0], &frame[..15]), short(15, 16), "V{number:02}");
        assert_eq!(parse(dialects[0], &[]), short(0, 16));
    }
}

#[test]
fn every_reason_has_a_unique_index_and_name() {
    let mut seen = BTreeSet::new();
    let more =
        [Malformed::Short { have: 0, need: 16 }, Malformed::Ethertype(0x0800), Malformed::AnnouncedNic(u64::MAX)];
    for malformed in changes().into_iter().map(|(_, _, malformed)| malformed).chain(more) {
        assert_eq!(Malformed::REASONS[malformed.index()], malformed.reason());
        assert!(!malformed.to_string().is_empty());
        seen.insert(malformed.reason());
    }
    assert_eq!(seen.len(), Malformed::REASONS.len());
}

/// Returns the reason why a changed sample is not sent.
fn refusal(dialect: Dialect, number: usize, change: impl Fn(&mut Packet<Vec<u8>>)) -> EmitError {
    let Sample { header, mut packet, .. } = samples().swap_remove(number - 1);
    change(&mut packet);
    frame(dialect, &header, &packet).unwrap_err()
}

const fn field(field: &'static str, value: u64, most: u64) -> EmitError {
    EmitError::Field { field, value, most }
}

#[test]
fn data_that_receivers_would_refuse_is_not_sent() {
    let resized = |dialect, number, bytes| {
        refusal(dialect, number, |packet| match packet {
            Packet::Raw(Raw { data }) => data.resize(bytes, 0),
            Packet::Tiny(body) | Packet::Small(body) => body.data.resize(bytes, 0),
            Packet::Medium(body) => body.data.resize(bytes, 0),
            Packet::PullReply(body) => body.data.resize(bytes, 0),
            other => panic!("{:?} has no data", other.kind()),
        })
    };
    for dialect in DIALECTS {
        assert_eq!(resized(dialect, 1, 1008), field("raw frame", 1025, 1024));
        assert_eq!(resized(dialect, 7, 33), field("length", 33, 32));
        assert_eq!(resized(dialect, 8, 129), field("length", 129, 128));
        assert_eq!(resized(dialect, 16, 65536), field("frame_length", 65536, 65535));
    }
    assert_eq!(resized(Dialect::Mx, 9, 4097), field("frag_length", 4097, 4096));
    assert_eq!(resized(Dialect::Mx, 9, 5), field("end of fragment", 4101, 4100));
    assert_eq!(resized(Dialect::OPEN_MX, 10, 1457), field("end of fragment", 1457, 1456));
    assert_eq!(resized(Dialect::OPEN_MX, 10, 65536), field("frag_length", 65536, 65535));
}

#[test]
fn mx_mode_refuses_values_that_only_open_mx_mode_can_encode() {
    let pull = |change: fn(&mut Pull)| {
        refusal(Dialect::Mx, 12, |packet| {
            let Packet::Pull(pull) = packet else { panic!("V12 is a PULL") };
            change(pull);
            assert!(frame(Dialect::OPEN_MX, &samples()[11].header, packet).is_ok());
        })
    };
    assert_eq!(pull(|pull| pull.pulled_rdma_id = 256), field("pulled_rdma_id", 256, 255));
    assert_eq!(pull(|pull| pull.pulled_rdma_offset = 65536), field("pulled_rdma_offset", 65536, 65535));
    assert_eq!(pull(|pull| pull.first_frame_offset = 65536), field("first_frame_offset", 65536, 65535));
    assert_eq!(pull(|pull| pull.block_length = 65536), field("block_length", 65536, 65535));
    let long = refusal(Dialect::Mx, 9, |packet| {
        let Packet::Medium(fragment) = packet else { panic!("V09 is a MEDIUM") };
        fragment.length = 65536;
    });
    assert_eq!(long, field("length", 65536, 65535));
}

#[test]
fn emit_never_writes_beyond_the_buffer() {
    for Sample { dialects, header, packet, frame, .. } in samples() {
        let head = packet.head_bytes(dialects[0]);
        let mut buffer = vec![0; frame.len()];
        assert_eq!(emit(dialects[0], &header, &packet, &mut buffer), Ok(frame.len()));
        let have = frame.len() - 1;
        let room = EmitError::Room { need: frame.len(), have };
        assert_eq!(emit(dialects[0], &header, &packet, &mut buffer[..have]), Err(room));
        assert!(emit_head(dialects[0], &header, &packet, &mut buffer[..head]).is_ok());
        let room = EmitError::Room { need: head, have: head - 1 };
        assert_eq!(emit_head(dialects[0], &header, &packet, &mut buffer[..head - 1]), Err(room));
    }
}

#[test]
fn names_are_short_and_without_nul() {
    assert_eq!(BoardName::new(&[b'a'; 79]).map(|name| name.as_bytes().len()), Some(79));
    assert_eq!(BoardName::new(&[b'a'; 80]), None);
    assert_eq!(BoardName::new(b"a\0"), None);
    assert_eq!(BoardName::new(b"n\xff:0").unwrap().to_string(), "n\\xff:0");
    // One name ends before its declared length, and one has no NUL at its end.
    let name = |edits: &[(usize, u8)]| match parse(Dialect::Mx, &edited(3, edits)) {
        Ok((_, Packet::HostReply(reply))) => reply.hostname.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(name(&[(16 + 4, 0)]), "node");
    assert_eq!(name(&[(16 + 7, b'x')]), "nodeB:0");
    assert_eq!(name(&[(1, 1)]), "");
}

#[test]
fn sentinels_and_nacks_have_their_meaning() {
    assert_eq!(PeerIndex::new(0xffff), None);
    let ends = [Nack::BadEndpoint, Nack::EndpointClosed, Nack::BadSession, Nack::BadRdmaWindow];
    let statuses =
        [StatusCode::BadEndpoint, StatusCode::EndpointClosed, StatusCode::BadSession, StatusCode::BadRdmaWindow];
    for (number, (nack, status)) in (1..).zip(ends.into_iter().zip(statuses)) {
        assert_eq!((nack.number(), nack.status()), (number, status));
    }
}
