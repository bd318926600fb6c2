//! Control messages as properties: what is emitted parses to itself, and no bytes make the parsers panic.
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_layout::control::{RequestSerial, ToClient, ToDaemon};
use proptest::prelude::*;

mod corpus;
mod sample;

use sample::{to_client, to_daemon};

proptest! {
    #[test]
    fn messages_to_the_daemon_survive_their_bytes(message in to_daemon(), serial: u32) {
        let serial = RequestSerial::new(serial);
        let packet = message.emit(serial);
        prop_assert_eq!(ToDaemon::parse(&packet, message.descriptors()), Ok((serial, message.clone())));
        prop_assert!(ToDaemon::parse(&packet[..packet.len() - 1], message.descriptors()).is_err());
        prop_assert!(ToDaemon::parse(&packet, message.descriptors() + 1).is_err());
    }

    #[test]
    fn messages_to_the_library_survive_their_bytes(message in to_client(), serial: u32) {
        let serial = RequestSerial::new(serial);
        let packet = message.emit(serial);
        prop_assert_eq!(ToClient::parse(&packet, message.descriptors()), Ok((serial, message.clone())));
        prop_assert!(ToClient::parse(&packet[..packet.len() - 1], message.descriptors()).is_err());
    }

    /// Bytes that parse are the only bytes of what they parse to.
    #[test]
    fn bytes_that_parse_are_emitted_again(kind in 0..150_u16, serial: u32, body: Vec<u8>, descriptors in 0..8_usize) {
        let packet = [&kind.to_le_bytes()[..], &[0, 0], &serial.to_le_bytes(), &body].concat();
        if let Ok((serial, message)) = ToDaemon::parse(&packet, descriptors) {
            prop_assert_eq!(message.emit(serial), packet.clone());
        }
        if let Ok((serial, message)) = ToClient::parse(&packet, descriptors) {
            prop_assert_eq!(message.emit(serial), packet);
        }
    }

    #[test]
    fn one_changed_byte_never_panics(message in to_daemon(), at: prop::sample::Index, value: u8) {
        let mut packet = message.emit(None);
        let at = at.index(packet.len());
        packet[at] = value;
        if let Ok((serial, message)) = ToDaemon::parse(&packet, message.descriptors()) {
            prop_assert_eq!(message.emit(serial), packet);
        }
    }

    #[test]
    fn records_never_panic_and_survive(kind in 0..12_u8, bytes: u16, words in proptest::collection::vec(any::<u32>(), 0..64)) {
        use isthmus_layout::record::Record;
        for bytes in [bytes, 4 * words.len() as u16] {
            if let Ok((route, record)) = Record::parse(kind, bytes, &words) {
                let emitted = record.emit(route);
                prop_assert_eq!(emitted.kind, kind);
                let again = Record::parse(kind, bytes, &words);
                prop_assert_eq!(again, Ok((route, record)));
            }
        }
    }
}
