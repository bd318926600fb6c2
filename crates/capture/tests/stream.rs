//! The messages between the daemon and whoever captures: as they were meant, in pieces, and damaged.
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_capture::stream::{MESSAGE_BYTES_MAX, Malformed, Message, ReadError, Reader, emit, parse};
use isthmus_capture::{Direction, Interface, InterfaceIndex, Record, SNAP_BYTES_MAX, Statistics};
use isthmus_layout::NicId;
use proptest::collection::vec;
use proptest::prelude::*;

/// Messages that own their frame.
#[derive(Clone, Debug)]
enum Owned {
    Frame { time_ns: u64, interface: u16, direction: Direction, more: u32, bytes: Vec<u8> },
    Other(Message<'static>),
}

impl Owned {
    fn lend(&self) -> Message<'_> {
        match self {
            Self::Frame { time_ns, interface, direction, more, bytes } => Message::Frame(Record {
                time_ns: *time_ns,
                interface: InterfaceIndex(*interface),
                direction: *direction,
                original_bytes: (bytes.len() as u32).saturating_add(*more),
                bytes,
            }),
            Self::Other(message) => message.clone(),
        }
    }
}

fn frame() -> impl Strategy<Value = Owned> {
    let direction = prop_oneof![Just(Direction::Unknown), Just(Direction::Received), Just(Direction::Sent)];
    (any::<u64>(), any::<u16>(), direction, any::<u32>(), vec(any::<u8>(), 0..300)).prop_map(
        |(time_ns, interface, direction, more, bytes)| Owned::Frame { time_ns, interface, direction, more, bytes },
    )
}

fn interface() -> impl Strategy<Value = Owned> {
    (any::<String>(), ".{0,400}", any::<Option<[u8; 6]>>(), any::<u32>()).prop_map(|(name, text, nic, snap)| {
        let plain = Interface::new(&name, &text).with_snap_bytes(snap);
        let nic = nic.map(NicId::from_octets);
        Owned::Other(Message::Interface(nic.map_or(plain.clone(), |nic| plain.with_nic(nic))))
    })
}

fn statistics() -> impl Strategy<Value = Owned> {
    (any::<u16>(), any::<u64>(), any::<u64>()).prop_map(|(interface, seen, dropped)| {
        Owned::Other(Message::Statistics(Statistics { interface: InterfaceIndex(interface), seen, dropped }))
    })
}

fn middle() -> impl Strategy<Value = Owned> {
    prop_oneof![frame(), interface(), statistics()]
}

fn bytes_of(message: &Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    emit(message, &mut bytes);
    bytes
}

proptest! {
    #[test]
    fn messages_come_back_as_they_were(message in middle(), behind in vec(any::<u8>(), 0..20)) {
        let mut bytes = bytes_of(&message.lend());
        let whole = bytes.len();
        prop_assert!(whole <= MESSAGE_BYTES_MAX);
        bytes.extend(behind);
        prop_assert_eq!(parse(&bytes), Ok(Some((message.lend(), whole))));
    }

    #[test]
    fn beginnings_ask_for_more(message in middle()) {
        let bytes = bytes_of(&message.lend());
        for cut in 0..bytes.len() {
            prop_assert_eq!(parse(&bytes[..cut]), Ok(None), "{} of {} bytes", cut, bytes.len());
        }
    }

    /// Any bytes: what is accepted can be said again, and means the same.
    #[test]
    fn damage_is_refused_or_has_a_meaning(message in middle(), at: prop::sample::Index, value: u8, any in vec(any::<u8>(), 0..64)) {
        let mut bytes = bytes_of(&message.lend());
        let at = at.index(bytes.len());
        bytes[at] = value;
        for bytes in [bytes, any] {
            if let Ok(Some((message, whole))) = parse(&bytes) {
                prop_assert!(whole <= bytes.len());
                let again = bytes_of(&message);
                prop_assert_eq!(parse(&again), Ok(Some((message, again.len()))));
            }
        }
    }

    #[test]
    fn a_reader_gives_all_messages_and_then_none(messages in vec(middle(), 0..20)) {
        let bytes = stream(&messages);
        let mut reader = Reader::new(bytes.as_slice());
        for message in &messages {
            prop_assert_eq!(reader.message().unwrap(), Some(message.lend()));
        }
        prop_assert_eq!(reader.message().unwrap(), None);
        prop_assert_eq!(reader.message().unwrap(), None);
    }

    #[test]
    fn a_reader_says_where_a_stream_stops_early(messages in vec(middle(), 0..4), cut: prop::sample::Index) {
        let bytes = stream(&messages);
        let mut reader = Reader::new(&bytes[..cut.index(bytes.len())]);
        let end = loop {
            match reader.message() {
                Ok(Some(_)) => {}
                other => break other.map(|_| ()),
            }
        };
        prop_assert!(matches!(end, Err(ReadError::Stopped)), "{:?}", end);
    }
}

/// A whole stream.
fn stream(messages: &[Owned]) -> Vec<u8> {
    let mut bytes = bytes_of(&Message::Begin);
    messages.iter().for_each(|message| emit(&message.lend(), &mut bytes));
    emit(&Message::End, &mut bytes);
    bytes
}

/// A message's bytes with some changed.
fn edited(message: &Message<'_>, edits: &[(usize, u8)]) -> Vec<u8> {
    let mut bytes = bytes_of(message);
    edits.iter().for_each(|&(at, value)| bytes[at] = value);
    bytes
}

#[test]
fn each_mistake_is_refused_by_its_name() {
    let interface = Message::Interface(Interface::new("ab", "cd"));
    let told = Message::Statistics(Statistics { interface: InterfaceIndex(1), seen: 2, dropped: 3 });
    let record = Record {
        time_ns: 1,
        interface: InterfaceIndex(0),
        direction: Direction::Sent,
        original_bytes: 2,
        bytes: b"ab",
    };
    let frame = Message::Frame(record);
    let cases: Vec<(Vec<u8>, Malformed)> = vec![
        (edited(&Message::Begin, &[(0, 15)]), Malformed::Length(15)),
        (edited(&Message::Begin, &[(0, 0)]), Malformed::Length(0)),
        (edited(&Message::Begin, &[(3, 0xff)]), Malformed::Length(0xff00_0010)),
        (edited(&Message::Begin, &[(6, 2)]), Malformed::Version(2)),
        (edited(&Message::Begin, &[(8, b'x')]), Malformed::Magic(0x6163_7378)),
        (edited(&Message::Begin, &[(12, 1)]), Malformed::Field(1)),
        (edited(&Message::End, &[(4, 6)]), Malformed::Kind(6)),
        (edited(&Message::End, &[(4, 0)]), Malformed::Kind(0)),
        (edited(&Message::End, &[(19, 1)]), Malformed::Field(5)),
        (edited(&interface, &[(5, 2)]), Malformed::Field(2)),
        (edited(&interface, &[(12, 1)]), Malformed::Field(2)),
        (edited(&interface, &[(5, 1), (18, 1)]), Malformed::Field(2)),
        (edited(&interface, &[(6, 5)]), Malformed::Tail(2, 4)),
        (edited(&interface, &[(20, 0xff)]), Malformed::Tail(2, 4)),
        (edited(&interface, &[(8, 1)]), Malformed::Tail(2, 4)),
        (edited(&frame, &[(5, 3)]), Malformed::Field(3)),
        (edited(&frame, &[(8, 1)]), Malformed::Tail(3, 2)),
        (edited(&told, &[(5, 1)]), Malformed::Field(4)),
        (edited(&told, &[(0, 23)]), Malformed::Tail(4, 7)),
        ([&[17, 0, 0, 0][..], &bytes_of(&Message::End)[4..], &[0]].concat(), Malformed::Tail(5, 1)),
    ];
    for (bytes, expected) in cases {
        assert_eq!(parse(&bytes), Err(expected), "{bytes:x?}");
    }
}

#[test]
fn the_longest_frame_passes_and_a_longer_one_is_cut() {
    let bytes = vec![7; SNAP_BYTES_MAX as usize + 1];
    let record = Record {
        time_ns: 0,
        interface: InterfaceIndex(0),
        direction: Direction::Sent,
        original_bytes: 0,
        bytes: &bytes,
    };
    let sent = bytes_of(&Message::Frame(record));
    assert_eq!(sent.len(), MESSAGE_BYTES_MAX);
    let Some((Message::Frame(got), _)) = parse(&sent).unwrap() else { panic!("a frame") };
    assert_eq!((got.bytes.len(), got.original_bytes), (SNAP_BYTES_MAX as usize, SNAP_BYTES_MAX + 1));
}

#[test]
fn a_stream_begins_once_and_with_its_beginning() {
    let begin = bytes_of(&Message::Begin);
    let mut reader = Reader::new(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".as_slice());
    assert!(matches!(reader.message(), Err(ReadError::Malformed(Malformed::Length(_)))));
    let end = bytes_of(&Message::End);
    assert!(matches!(Reader::new(end.as_slice()).message(), Err(ReadError::Malformed(Malformed::NoBegin))));
    let twice = [begin.clone(), begin].concat();
    assert!(matches!(Reader::new(twice.as_slice()).message(), Err(ReadError::Malformed(Malformed::Kind(1)))));
}
