//! The messages between the daemon and the capturing program: valid, in pieces, and damaged.
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_capture::stream::{
    CaptureMessage, CaptureReader, MESSAGE_BYTES_MAX, MalformedStream, ReadError, emit, parse,
};
use isthmus_capture::{
    CaptureDirection, CapturedFrame, InterfaceIndex, InterfaceStatistics, PcapInterface, SNAP_BYTES_MAX,
};
use isthmus_layout::NicId;
use proptest::collection::vec;
use proptest::prelude::*;

/// Messages that own their frame.
#[derive(Clone, Debug)]
enum Owned {
    Frame { time_ns: u64, interface: u16, direction: CaptureDirection, more: u32, bytes: Vec<u8> },
    Other(CaptureMessage<'static>),
}

impl Owned {
    fn lend(&self) -> CaptureMessage<'_> {
        match self {
            Self::Frame { time_ns, interface, direction, more, bytes } => CaptureMessage::Frame(CapturedFrame {
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
    let direction =
        prop_oneof![Just(CaptureDirection::Unknown), Just(CaptureDirection::Received), Just(CaptureDirection::Sent)];
    (any::<u64>(), any::<u16>(), direction, any::<u32>(), vec(any::<u8>(), 0..300)).prop_map(
        |(time_ns, interface, direction, more, bytes)| Owned::Frame { time_ns, interface, direction, more, bytes },
    )
}

fn interface() -> impl Strategy<Value = Owned> {
    (any::<String>(), ".{0,400}", any::<Option<[u8; 6]>>(), any::<u32>()).prop_map(|(name, text, nic, snap)| {
        let plain = PcapInterface::new(&name, &text).with_snap_bytes(snap);
        let nic = nic.map(NicId::from_octets);
        Owned::Other(CaptureMessage::Interface(nic.map_or(plain.clone(), |nic| plain.with_nic(nic))))
    })
}

fn statistics() -> impl Strategy<Value = Owned> {
    (any::<u16>(), any::<u64>(), any::<u64>()).prop_map(|(interface, seen, dropped)| {
        Owned::Other(CaptureMessage::Statistics(InterfaceStatistics {
            interface: InterfaceIndex(interface),
            seen,
            dropped,
        }))
    })
}

fn middle() -> impl Strategy<Value = Owned> {
    prop_oneof![frame(), interface(), statistics()]
}

fn bytes_of(message: &CaptureMessage<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    emit(message, &mut bytes);
    bytes
}

proptest! {
    #[test]
    fn messages_round_trip(message in middle(), behind in vec(any::<u8>(), 0..20)) {
        let mut bytes = bytes_of(&message.lend());
        let whole = bytes.len();
        prop_assert!(whole <= MESSAGE_BYTES_MAX);
        bytes.extend(behind);
        prop_assert_eq!(parse(&bytes), Ok(Some((message.lend(), whole))));
    }

    #[test]
    fn incomplete_beginnings_need_more_bytes(message in middle()) {
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
    fn reader_returns_all_messages_and_then_none(messages in vec(middle(), 0..20)) {
        let bytes = stream(&messages);
        let mut reader = CaptureReader::new(bytes.as_slice());
        for message in &messages {
            prop_assert_eq!(reader.message().unwrap(), Some(message.lend()));
        }
        prop_assert_eq!(reader.message().unwrap(), None);
        prop_assert_eq!(reader.message().unwrap(), None);
    }

    #[test]
    fn reader_reports_where_a_stream_is_truncated(messages in vec(middle(), 0..4), cut: prop::sample::Index) {
        let bytes = stream(&messages);
        let mut reader = CaptureReader::new(&bytes[..cut.index(bytes.len())]);
        let end = loop {
            match reader.message() {
                Ok(Some(_)) => {}
                other => break other.map(|_| ()),
            }
        };
        prop_assert!(matches!(end, Err(ReadError::Truncated)), "{:?}", end);
    }
}

/// A whole stream.
fn stream(messages: &[Owned]) -> Vec<u8> {
    let mut bytes = bytes_of(&CaptureMessage::Begin);
    messages.iter().for_each(|message| emit(&message.lend(), &mut bytes));
    emit(&CaptureMessage::End, &mut bytes);
    bytes
}

/// A message's bytes with some changed.
fn edited(message: &CaptureMessage<'_>, edits: &[(usize, u8)]) -> Vec<u8> {
    let mut bytes = bytes_of(message);
    edits.iter().for_each(|&(at, value)| bytes[at] = value);
    bytes
}

#[test]
fn each_mistake_is_rejected_with_its_reason() {
    let interface = CaptureMessage::Interface(PcapInterface::new("ab", "cd"));
    let told = CaptureMessage::Statistics(InterfaceStatistics { interface: InterfaceIndex(1), seen: 2, dropped: 3 });
    let record = CapturedFrame {
        time_ns: 1,
        interface: InterfaceIndex(0),
        direction: CaptureDirection::Sent,
        original_bytes: 2,
        bytes: b"ab",
    };
    let frame = CaptureMessage::Frame(record);
    let cases: Vec<(Vec<u8>, MalformedStream)> = vec![
        (edited(&CaptureMessage::Begin, &[(0, 15)]), MalformedStream::Length(15)),
        (edited(&CaptureMessage::Begin, &[(0, 0)]), MalformedStream::Length(0)),
        (edited(&CaptureMessage::Begin, &[(3, 0xff)]), MalformedStream::Length(0xff00_0010)),
        (edited(&CaptureMessage::Begin, &[(6, 2)]), MalformedStream::Version(2)),
        (edited(&CaptureMessage::Begin, &[(8, b'x')]), MalformedStream::Magic(0x6163_7378)),
        (edited(&CaptureMessage::Begin, &[(12, 1)]), MalformedStream::Field(1)),
        (edited(&CaptureMessage::End, &[(4, 6)]), MalformedStream::Kind(6)),
        (edited(&CaptureMessage::End, &[(4, 0)]), MalformedStream::Kind(0)),
        (edited(&CaptureMessage::End, &[(19, 1)]), MalformedStream::Field(5)),
        (edited(&interface, &[(5, 2)]), MalformedStream::Field(2)),
        (edited(&interface, &[(12, 1)]), MalformedStream::Field(2)),
        (edited(&interface, &[(5, 1), (18, 1)]), MalformedStream::Field(2)),
        (edited(&interface, &[(6, 5)]), MalformedStream::Tail(2, 4)),
        (edited(&interface, &[(20, 0xff)]), MalformedStream::Tail(2, 4)),
        (edited(&interface, &[(8, 1)]), MalformedStream::Tail(2, 4)),
        (edited(&frame, &[(5, 3)]), MalformedStream::Field(3)),
        (edited(&frame, &[(8, 1)]), MalformedStream::Tail(3, 2)),
        (edited(&told, &[(5, 1)]), MalformedStream::Field(4)),
        (edited(&told, &[(0, 23)]), MalformedStream::Tail(4, 7)),
        ([&[17, 0, 0, 0][..], &bytes_of(&CaptureMessage::End)[4..], &[0]].concat(), MalformedStream::Tail(5, 1)),
    ];
    for (bytes, expected) in cases {
        assert_eq!(parse(&bytes), Err(expected), "{bytes:x?}");
    }
}

#[test]
fn the_longest_frame_passes_and_a_longer_one_is_cut() {
    let bytes = vec![7; SNAP_BYTES_MAX as usize + 1];
    let record = CapturedFrame {
        time_ns: 0,
        interface: InterfaceIndex(0),
        direction: CaptureDirection::Sent,
        original_bytes: 0,
        bytes: &bytes,
    };
    let sent = bytes_of(&CaptureMessage::Frame(record));
    assert_eq!(sent.len(), MESSAGE_BYTES_MAX);
    let Some((CaptureMessage::Frame(got), _)) = parse(&sent).unwrap() else { panic!("a frame") };
    assert_eq!((got.bytes.len(), got.original_bytes), (SNAP_BYTES_MAX as usize, SNAP_BYTES_MAX + 1));
}

#[test]
fn a_stream_begins_once_and_with_its_beginning() {
    let begin = bytes_of(&CaptureMessage::Begin);
    let mut reader = CaptureReader::new(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".as_slice());
    assert!(matches!(reader.message(), Err(ReadError::Malformed(MalformedStream::Length(_)))));
    let end = bytes_of(&CaptureMessage::End);
    assert!(matches!(
        CaptureReader::new(end.as_slice()).message(),
        Err(ReadError::Malformed(MalformedStream::NoBegin))
    ));
    let twice = [begin.clone(), begin].concat();
    assert!(matches!(
        CaptureReader::new(twice.as_slice()).message(),
        Err(ReadError::Malformed(MalformedStream::Kind(1)))
    ));
}
