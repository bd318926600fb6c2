use super::*;
use proptest::prelude::*;

/// A reply recorded from a real store.
const ANSWER: [u8; 18] = [2, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, b'1', b'2'];

fn all(bytes: &[u8]) -> Result<Vec<StorePacket>, MalformedPacket> {
    let mut incoming = Incoming::default();
    incoming.push(bytes);
    let mut packets = Vec::new();
    while let Some(packet) = incoming.packet()? {
        packets.push(packet);
    }
    Ok(packets)
}

#[test]
fn an_answer_is_read() {
    let packet = StorePacket { kind: Some(PacketKind::Read), request: 7, transaction: 0, body: b"12".to_vec() };
    assert_eq!(all(&ANSWER), Ok(vec![packet]));
}

#[test]
fn rejects_an_oversized_packet_by_its_header() {
    let mut bytes = ANSWER;
    bytes[12..16].copy_from_slice(&4097_u32.to_ne_bytes());
    assert_eq!(all(&bytes), Err(MalformedPacket::TooLong(4097)));
}

#[test]
fn check_path_follows_xenstore_rules() {
    for good in ["/", "data/isthmus", "/local/domain/1/data/a_b-c", "@releaseDomain", &"a".repeat(2048)] {
        assert_eq!(check_path(good), Ok(()), "{good}");
    }
    for bad in ["", "a/", "a//b", "a b", "a\0b", "ä", &"a".repeat(2049), &format!("/{}", "a".repeat(3072))] {
        assert_eq!(check_path(bad), Err(UnencodableRequest::Path), "{bad}");
    }
}

#[test]
fn rejects_requests_that_do_not_fit() {
    assert_eq!(emit(PacketKind::Write, 1, 0, &["a"], &[0; 4095]), Err(UnencodableRequest::TooLong(4097)));
    assert_eq!(emit(PacketKind::Write, 1, 0, &["a"], &[0; 4094]).unwrap().len(), HEAD_BYTES + 4096);
    assert_eq!(emit(PacketKind::Watch, 1, 0, &["a", "b\0c"], &[]), Err(UnencodableRequest::Zero));
}

#[test]
fn permissions_round_trip() {
    for text in ["n0", "r1", "w32751", "b17"] {
        assert_eq!(Permission::parse(text).unwrap().emit(), text);
    }
    for text in ["", "r", "x1", "r-1", "r+1", "r65535", "r32752", "ä1"] {
        assert_eq!(Permission::parse(text), Err(MalformedPacket::Body), "{text}");
    }
}

#[test]
fn refusals_have_names() {
    use StoreRefusal::*;
    for refusal in [Missing, Forbidden, Exists, Conflict, Invalid, Quota, Other] {
        assert_eq!(StoreRefusal::parse(format!("{}\0", refusal.name()).as_bytes()), refusal);
    }
    assert_eq!(StoreRefusal::parse(b"\xff\xff"), Other);
}

/// Applies every parser to a packet.
fn understand(packet: &StorePacket) {
    let _ = (strings(&packet.body), event(&packet.body), transaction(&packet.body), StoreRefusal::parse(&packet.body));
    for text in strings(&packet.body).into_iter().flatten() {
        let _ = (Permission::parse(text), check_path(text));
    }
}

proptest! {
    #[test]
    fn packets_come_out_as_they_went_in_however_they_are_cut(
        sent in prop::collection::vec((any::<u32>(), any::<u32>(), "[a-z/]{0,40}", prop::collection::vec(any::<u8>(), 0..100)), 0..8),
        cut in 1_usize..50,
    ) {
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        for (request, transaction, path, value) in &sent {
            bytes.extend(emit(PacketKind::Write, *request, *transaction, &[path], value).unwrap());
            let body = [path.as_bytes(), &[0], value].concat();
            expected.push(StorePacket { kind: Some(PacketKind::Write), request: *request, transaction: *transaction, body });
        }
        let (mut incoming, mut got) = (Incoming::default(), Vec::new());
        for chunk in bytes.chunks(cut) {
            incoming.push(chunk);
            while let Some(packet) = incoming.packet().unwrap() {
                got.push(packet);
            }
        }
        prop_assert_eq!(got, expected);
    }

    #[test]
    fn nothing_that_comes_panics(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        for packet in all(&bytes).into_iter().flatten() {
            understand(&packet);
        }
        understand(&StorePacket { kind: None, request: 0, transaction: 0, body: bytes });
    }

    #[test]
    fn no_body_panics(kind in 0_u32..20, body in "[a-z0-9/\\x00]{0,60}") {
        let mut bytes = emit(PacketKind::Read, 1, 0, &[], body.as_bytes()).unwrap();
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        for packet in all(&bytes).unwrap() {
            understand(&packet);
        }
    }
}
