//! Bytes of control messages, and each way of being malformed.

use super::*;
use crate::ids::{ChannelId, DomainId, EndpointIndex, RegionId};
use crate::reason::Reason;
use alloc::vec;

fn request(message: impl Into<ToDaemon>) -> Vec<u8> {
    message.into().emit(RequestSerial::new(9))
}

fn refusal(packet: &[u8], descriptors: usize) -> MalformedControl {
    ToDaemon::parse(packet, descriptors).unwrap_err()
}

fn name(name: &str) -> Name {
    Name::new(name).unwrap()
}

#[test]
fn hello_stands_as_documented() {
    let packet = request(Hello { magic: Magic, versions: VersionRange::CURRENT, library: name("x 1") });
    assert_eq!(packet, *b"\x01\0\0\0\x09\0\0\0ISTH\x02\0\x05\0\x04\0\x03\0x 1");
}

#[test]
fn a_field_set_asks_for_its_descriptors() {
    let resume = Some(Resume { domain: DomainId::new(5).unwrap(), ticket: Ticket([7; 32]) });
    let (fresh, back) = (Attach { name: None, resume: None }, Attach { name: Some(name("a")), resume });
    assert_eq!(ToDaemon::from(fresh.clone()).descriptors(), 0);
    assert_eq!(ToDaemon::from(back.clone()).descriptors(), 2);
    assert_eq!(ToDaemon::parse(&request(back.clone()), 2), Ok((RequestSerial::new(9), back.into())));
    assert_eq!(refusal(&request(fresh), 3), MalformedControl::Descriptors { kind: 2, have: 3, want: 0 });
}

#[test]
fn each_malformed_message_is_named() {
    let good = request(Lookup { name: name("web") });
    assert_eq!(refusal(&good[..good.len() - 1], 0), MalformedControl::Short { missing: 1 });
    assert_eq!(refusal(&good[..7], 0), MalformedControl::Short { missing: 1 });
    assert_eq!(refusal(&[&good[..], &[0; 2]].concat(), 0), MalformedControl::Trailing(2));
    assert_eq!(refusal(&vec![0; 16385], 0), MalformedControl::TooLong(16385));
    let with = |at: usize, bytes: &[u8]| {
        let mut packet = good.clone();
        packet[at..at + bytes.len()].copy_from_slice(bytes);
        refusal(&packet, 0)
    };
    assert_eq!(with(2, &[1, 0]), MalformedControl::Reserved(1));
    assert_eq!(with(0, &[0]), MalformedControl::Kind(0));
    assert_eq!(with(0, &[99]), MalformedControl::Kind(99));
    assert_eq!(with(0, &[131]), MalformedControl::WrongDirection(131));
    assert_eq!(with(8, &[65]), MalformedControl::Name(InvalidText::TooLong { have: 65, max: 64 }));
    assert_eq!(with(10, &[0xff]), MalformedControl::Name(InvalidText::Encoding { at: 0 }));
    assert_eq!(with(11, b"/"), MalformedControl::Name(InvalidText::Character('/')));
}

#[test]
fn each_value_that_cannot_be_is_named() {
    let body =
        |kind: u8, body: &[u8], descriptors| refusal(&[&[kind, 0, 0, 0, 0, 0, 0, 0], body].concat(), descriptors);
    assert_eq!(body(1, b"MQTT\0\0\0\0\0\0", 0), MalformedControl::Magic(*b"MQTT"));
    assert_eq!(body(1, b"ISTH\x01\0\x01\0\x02\0\x01\0x", 0), MalformedControl::Versions { minor: 1, oldest: 2 });
    assert_eq!(body(2, &[2], 0), MalformedControl::Option(2));
    assert_eq!(body(3, &[16], 2), MalformedControl::ReadyMap(16));
    assert_eq!(body(6, &[32], 0), MalformedControl::Endpoint(32));
    assert_eq!(body(8, &[0; 5], 0), MalformedControl::Domain);
    assert_eq!(body(10, &[0; 10], 0), MalformedControl::Reason(0));
    assert_eq!(body(13, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0), MalformedControl::Region);
    assert_eq!(body(14, &[0, 0, 0], 0), MalformedControl::Topic(0));
    assert_eq!(body(14, &[10, 0, 0], 0), MalformedControl::Topic(10));
    assert_eq!(body(14, &[1, 5, 0], 0), MalformedControl::List { have: 5, max: 4 });
    let adopt = |direction: u8, slab: u32, ready_bit: u16| {
        let head = [&[1; 12][..], &[direction], &slab.to_le_bytes(), &[1]].concat();
        body(4, &[&head[..], &ready_bit.to_le_bytes(), &[3, 0]].concat(), 1)
    };
    assert_eq!(adopt(2, 1 << 18, 3), MalformedControl::Direction(2));
    assert_eq!(adopt(1, (1 << 18) + 1, 3), MalformedControl::SlabSize((1 << 18) + 1));
    assert_eq!(adopt(1, 1 << 18, 4096), MalformedControl::ReadyBit(4096));
}

#[test]
fn the_other_way_refuses_its_own() {
    let body = |kind: u8, body: &[u8]| ToClient::parse(&[&[kind, 0, 0, 0, 0, 0, 0, 0], body].concat(), 0).unwrap_err();
    assert_eq!(body(1, &[]), MalformedControl::WrongDirection(1));
    assert_eq!(body(137, &[1, 0, 0, 0, 20, 0, 2]), MalformedControl::Bool(2));
    assert_eq!(body(142, &[1, 1, 48]), MalformedControl::Bytes { have: 12289, max: 12288 });
    assert_eq!(body(130, b"\x14\0\x01\0\n"), MalformedControl::Text(InvalidText::Character('\n')));
}

#[test]
fn a_ticket_does_not_show_in_logs() {
    assert_eq!(alloc::format!("{:?}", Ticket([1; 32])), "Ticket(…)");
}

#[test]
fn a_refusal_can_name_the_request_that_did_not_parse() {
    let grant = Grant { peer: DomainId::new(1).unwrap(), region: RegionId(1), start: 0, bytes: 1 };
    assert_eq!(serial_of(&request(grant)[..12]), RequestSerial::new(9));
    let close = ToDaemon::from(CloseChannel { channel: ChannelId(0), reason: Reason::ClosedLocally }).emit(None);
    assert_eq!(serial_of(&close), None);
    assert_eq!(serial_of(&request(CloseEndpoint { index: EndpointIndex::new(0).unwrap() })[..7]), None);
}
