//! The specification's sample frames in both directions, with every byte that can be ignored, changed or cut off.

use isthmus_mx::wire::{Announcement, HEADER_BYTES, Malformed, Packet, PacketType, emit_head, parse};

use crate::samples::{Sample, samples};
use crate::{DIALECTS, frame};

#[test]
fn samples_are_parsed_and_emitted_byte_by_byte() {
    for Sample { number, dialects, header, packet, frame: bytes } in samples() {
        for &dialect in dialects {
            let (parsed_header, parsed) =
                parse(dialect, &bytes).unwrap_or_else(|error| panic!("V{number:02}: {error}"));
            assert_eq!((parsed_header, parsed.map(<[u8]>::to_vec)), (header, packet.clone()), "V{number:02}");
            assert_eq!(frame(dialect, &header, &packet).unwrap(), bytes, "V{number:02}");
        }
    }
}

#[test]
fn emit_head_equals_the_bytes_before_the_data() {
    for Sample { number, dialects, header, packet, frame: bytes } in samples() {
        for &dialect in dialects {
            let mut buffer = [0xee; isthmus_mx::wire::HEAD_BYTES_MAX];
            let parts = emit_head(dialect, &header, &packet, &mut buffer).unwrap();
            assert_eq!(buffer[..parts.head], bytes[..parts.head], "V{number:02}");
            assert_eq!(parts.frame(), bytes.len(), "V{number:02}");
            let data = packet.data().map_or(&[][..], |data| data);
            assert_eq!(&bytes[parts.head..parts.head + parts.data], data, "V{number:02}");
            assert!(bytes[parts.head + parts.data..].iter().all(|byte| *byte == 0), "V{number:02}");
        }
    }
}

#[test]
fn the_announcement_of_a_sample_is_read() {
    let Packet::Raw(raw) = &samples()[0].packet else { panic!("V01 is raw") };
    let announcement = Announcement::parse(&raw.data).unwrap();
    assert_eq!((announcement.nic_id, announcement.serial), (crate::samples::A, 0x0a0b_0c0d));
    for bytes in 0..raw.data.len() {
        assert_eq!(Announcement::parse(&raw.data[..bytes]).is_ok(), bytes >= 27, "{bytes}");
    }
    let mut foreign = raw.data.clone();
    foreign[16] = 1;
    assert_eq!(Announcement::parse(&foreign), Err(Malformed::AnnouncedNic(0x0001_001b_21aa_0001)));
    foreign = vec![0xff; 47];
    foreign[15..27].copy_from_slice(&raw.data[15..27]);
    assert_eq!(Announcement::parse(&foreign), Ok(announcement));
}

/// Returns the bytes of a body that receivers must ignore, by the specification's tables.
fn ignored(kind: PacketType, number: usize) -> Vec<usize> {
    let ranges: &[std::ops::Range<usize>] = match kind {
        PacketType::HostQuery => &[1..2, 4..8, 12..16],
        // The last byte of the name counts as NUL, whatever its value.
        PacketType::HostReply => &[4..8, 12..16, 23..24],
        PacketType::Truc => &[3..4, 5..8, 13..14, 24..28],
        PacketType::Connect if number == 4 => &[3..4, 5..10, 12..16, 28..32],
        PacketType::Connect => &[3..4, 5..10, 12..16, 29..32],
        PacketType::Tiny | PacketType::Small | PacketType::Rndv => &[3..4, 6..8],
        PacketType::Medium if number == 9 => &[3..4, 6..8, 28..32],
        PacketType::Medium => &[3..4, 27..32],
        PacketType::Pull if number == 15 => &[3..4, 17..20],
        PacketType::Pull => std::slice::from_ref(&(3..4)),
        PacketType::Notify => &[3..4, 14..18, 22..24],
        PacketType::NackLib => &[2..3, 4..9, 10..12, 14..16],
        PacketType::NackMcp => &[2..3, 4..8],
        _ => &[],
    };
    ranges.iter().cloned().flatten().map(|at| HEADER_BYTES + at).collect()
}

#[test]
fn parse_ignores_exactly_the_reserved_bytes() {
    for Sample { number, dialects, header, packet, frame } in samples() {
        for &dialect in dialects {
            let parts = packet.parts(dialect);
            let mut skipped = ignored(packet.kind(), number);
            skipped.extend(parts.head + parts.data..frame.len());
            for at in 0..frame.len() {
                let mut changed = frame.clone();
                changed[at] = !changed[at];
                let same = parse(dialect, &changed)
                    .is_ok_and(|(head, parsed)| head == header && parsed.map(<[u8]>::to_vec) == packet);
                assert_eq!(same, skipped.contains(&at), "V{number:02}, byte {at}");
            }
            let mut noisy = frame.clone();
            skipped.iter().for_each(|&at| noisy[at] = 0xa5);
            let (_, parsed) = parse(dialect, &noisy).unwrap();
            assert_eq!(parsed.map(<[u8]>::to_vec), packet, "V{number:02}");
        }
    }
}

#[test]
fn beginnings_of_samples_are_refused_until_their_last_declared_byte() {
    for Sample { number, dialects, packet, frame, .. } in samples() {
        for &dialect in dialects {
            let parts = packet.parts(dialect);
            // A raw packet has no length: all bytes after its type are its data.
            let needed = if packet.kind() == PacketType::Raw { parts.head } else { parts.head + parts.data };
            for bytes in 0..=frame.len() {
                match parse(dialect, &frame[..bytes]) {
                    Ok(_) => assert!(bytes >= needed, "V{number:02}, {bytes} bytes"),
                    Err(Malformed::Short { have, need }) => assert!(have == bytes && have < need && need <= needed),
                    Err(Malformed::DataMissing { declared, have }) => {
                        assert!(have < declared as usize && bytes < needed, "V{number:02}, {bytes} bytes");
                    }
                    Err(other) => panic!("V{number:02}, {bytes} bytes: {other}"),
                }
            }
        }
    }
}

/// Each byte of each sample gets each value: parsing does not panic, and an accepted packet can be emitted.
#[test]
fn parse_accepts_any_value_of_any_byte_without_panic() {
    for Sample { dialects, frame: bytes, .. } in samples() {
        for &dialect in dialects {
            for at in 0..bytes.len().min(64) {
                for value in 0..=u8::MAX {
                    let mut changed = bytes.clone();
                    changed[at] = value;
                    if let Ok((header, packet)) = parse(dialect, &changed) {
                        let again = frame(dialect, &header, &packet).unwrap();
                        assert_eq!(parse(dialect, &again), Ok((header, packet)));
                    }
                }
            }
        }
    }
}

#[test]
fn rejects_a_frame_of_the_other_dialect() {
    // The dialects differ in MEDIUM and PULL alone, and a frame does not contain its dialect. The same bytes must not
    // have the same meaning in both.
    for Sample { number, dialects, packet, frame, .. } in samples() {
        for &dialect in DIALECTS.iter().filter(|dialect| !dialects.contains(dialect)) {
            let same = parse(dialect, &frame).is_ok_and(|(_, parsed)| parsed.map(<[u8]>::to_vec) == packet);
            assert!(!same, "V{number:02}");
        }
    }
}
