use super::*;
use proptest::prelude::*;

/// What was heard from a real store, byte for byte.
const ANSWER: [u8; 18] = [2, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, b'1', b'2'];

fn all(bytes: &[u8]) -> Result<Vec<Packet>, Malformed> {
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
    let packet = Packet { kind: Some(Kind::Read), request: 7, transaction: 0, body: b"12".to_vec() };
    assert_eq!(all(&ANSWER), Ok(vec![packet]));
}

#[test]
fn a_packet_longer_than_any_is_refused_before_it_came() {
    let mut bytes = ANSWER;
    bytes[12..16].copy_from_slice(&4097_u32.to_ne_bytes());
    assert_eq!(all(&bytes), Err(Malformed::TooLong(4097)));
}

#[test]
fn paths_are_what_the_store_takes_for_some() {
    for good in ["/", "data/isthmus", "/local/domain/1/data/a_b-c", "@releaseDomain", &"a".repeat(2048)] {
        assert_eq!(check_path(good), Ok(()), "{good}");
    }
    for bad in ["", "a/", "a//b", "a b", "a\0b", "ä", &"a".repeat(2049), &format!("/{}", "a".repeat(3072))] {
        assert_eq!(check_path(bad), Err(Unsayable::Path), "{bad}");
    }
}

#[test]
fn what_does_not_fit_is_not_said() {
    assert_eq!(emit(Kind::Write, 1, 0, &["a"], &[0; 4095]), Err(Unsayable::TooLong(4097)));
    assert_eq!(emit(Kind::Write, 1, 0, &["a"], &[0; 4094]).unwrap().len(), HEAD_BYTES + 4096);
    assert_eq!(emit(Kind::Watch, 1, 0, &["a", "b\0c"], &[]), Err(Unsayable::Zero));
}

#[test]
fn permissions_say_the_same_again() {
    for text in ["n0", "r1", "w32751", "b17"] {
        assert_eq!(Permission::parse(text).unwrap().emit(), text);
    }
    for text in ["", "r", "x1", "r-1", "r+1", "r65535", "r32752", "ä1"] {
        assert_eq!(Permission::parse(text), Err(Malformed::Body), "{text}");
    }
}

#[test]
fn refusals_have_names() {
    use Refusal::*;
    for refusal in [Missing, Forbidden, Exists, Again, Invalid, Quota, Other] {
        assert_eq!(Refusal::parse(format!("{}\0", refusal.name()).as_bytes()), refusal);
    }
    assert_eq!(Refusal::parse(b"\xff\xff"), Other);
}

/// All that may be done with what came.
fn understand(packet: &Packet) {
    let _ = (strings(&packet.body), event(&packet.body), transaction(&packet.body), Refusal::parse(&packet.body));
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
            bytes.extend(emit(Kind::Write, *request, *transaction, &[path], value).unwrap());
            let body = [path.as_bytes(), &[0], value].concat();
            expected.push(Packet { kind: Some(Kind::Write), request: *request, transaction: *transaction, body });
        }
        let (mut incoming, mut got) = (Incoming::default(), Vec::new());
        for piece in bytes.chunks(cut) {
            incoming.push(piece);
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
        understand(&Packet { kind: None, request: 0, transaction: 0, body: bytes });
    }

    #[test]
    fn no_body_panics(kind in 0_u32..20, body in "[a-z0-9/\\x00]{0,60}") {
        let mut bytes = emit(Kind::Read, 1, 0, &[], body.as_bytes()).unwrap();
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        for packet in all(&bytes).unwrap() {
            understand(&packet);
        }
    }
}
