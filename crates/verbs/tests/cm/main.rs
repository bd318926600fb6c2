//! The connection manager: rules one by one, a model of two managers with loss and every order, and hostile messages.
#![allow(clippy::unwrap_used, reason = "tests")]

mod model;
mod network;
mod rules;

use isthmus_verbs::Gid;
use isthmus_verbs::cm::{Kind, MESSAGE_BYTES_MAX, Malformed, Message, Parameters, PortSpace, PrivateData};
use proptest::prelude::*;

/// Parameters that differ in every field.
pub(crate) fn parameters(qp: u32, private: &[u8]) -> Parameters {
    Parameters {
        qp,
        qkey: 0x11,
        responder_resources: 3,
        initiator_depth: 5,
        flow_control: true,
        retries: 6,
        receiver_retries: 7,
        srq: true,
        private: PrivateData::new(private).unwrap(),
    }
}

fn message(kind: Kind, space: PortSpace, private: &[u8]) -> Message {
    let gid = Gid([9; 16]);
    Message { kind, space, port: 0x1234, reason: 28, psn: 0xab_cdef, gid, parameters: parameters(0x12_3456, private) }
}

#[test]
fn messages_are_read_as_they_were_written_and_byte_by_byte() {
    use Kind::{Disconnect, Disconnected, Ready, Reject, Reply, Request};
    for kind in [Request, Reply, Ready, Reject, Disconnect, Disconnected] {
        for (space, len) in [(PortSpace::Tcp, 0), (PortSpace::Udp, 1), (PortSpace::Tcp, PrivateData::BYTES_MAX)] {
            let message = message(kind, space, &vec![7; len]);
            let mut bytes = [0; MESSAGE_BYTES_MAX];
            let written = message.encode(&mut bytes);
            for len in 0..written {
                assert_eq!(Message::decode(&bytes[..len]), Ok(None), "{kind:?}: {len} of {written} bytes");
            }
            let more = [&bytes[..written], b"ICM1"].concat();
            assert_eq!(Message::decode(&more), Ok(Some((message, written))));
        }
    }
    assert_eq!(PrivateData::new(&[0; PrivateData::BYTES_MAX + 1]), None);
}

#[test]
fn other_bytes_are_refused_as_soon_as_they_show() {
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let len = message(Kind::Request, PortSpace::Tcp, b"abc").encode(&mut bytes);
    for (at, value) in [(0, b'J'), (3, b'2'), (4, 0), (4, 7), (5, 2), (10, PrivateData::BYTES_MAX as u8 + 1)] {
        let mut other = bytes;
        other[at] = value;
        assert_eq!(Message::decode(&other[..len.max(44)]), Err(Malformed), "byte {at} is {value}");
    }
    assert_eq!(Message::decode(b"GET"), Err(Malformed));
}

fn cases() -> ProptestConfig {
    let cases = if std::env::var_os("ISTHMUS_TEST_LONG").is_some() { 200_000 } else { 4_000 };
    ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 20_000, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn two_managers_agree_in_every_order(life in proptest::collection::vec(any::<[u8; 3]>(), 0..200)) {
        model::live(&life);
    }

    #[test]
    fn a_manager_survives_every_peer(bytes in proptest::collection::vec(any::<u8>(), 0..400), state in 0_u8..8) {
        model::survive(state, &bytes);
    }
}
