//! Files that are written, read block by block: what stands in them, whatever was asked to be written.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{self, Write};

use isthmus_capture::pcapng::{WriteError, Writer};
use isthmus_capture::{CaptureDirection, CapturedFrame, InterfaceIndex, InterfaceStatistics, PcapInterface};
use isthmus_layout::NicId;
use proptest::collection::vec;
use proptest::prelude::*;

/// A block as the format's description has it: its type, what is in it before its options, and these.
#[derive(Debug)]
struct Block {
    kind: u32,
    fixed: Vec<u8>,
    options: Vec<(u16, Vec<u8>)>,
}

fn u16_at(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()))
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

/// Two words with the upper half first.
fn time_at(bytes: &[u8], at: usize) -> u64 {
    (u32_at(bytes, at) as u64) << 32 | u32_at(bytes, at + 4) as u64
}

fn blocks(mut file: &[u8]) -> Vec<Block> {
    let mut found = Vec::new();
    while !file.is_empty() {
        let (kind, length) = (u32_at(file, 0) as u32, u32_at(file, 4));
        assert_eq!((length % 4, u32_at(file, length - 4)), (0, length));
        let body = &file[8..length - 4];
        let fixed = match kind {
            0x0a0d_0d0a => 16,
            1 => 8,
            5 => 12,
            6 => 20 + u32_at(body, 12).next_multiple_of(4),
            other => panic!("block type {other}"),
        };
        let (fixed, mut rest) = body.split_at(fixed);
        let mut options = Vec::new();
        while u16_at(rest, 0) != 0 {
            let (code, bytes) = (u16_at(rest, 0) as u16, u16_at(rest, 2));
            options.push((code, rest[4..4 + bytes].to_vec()));
            rest = &rest[4 + bytes.next_multiple_of(4)..];
        }
        assert_eq!(rest, [0; 4], "options end with their end");
        found.push(Block { kind, fixed: fixed.to_vec(), options });
        file = &file[length..];
    }
    found
}

fn record(time_ns: u64, direction: CaptureDirection, original_bytes: u32, bytes: &[u8]) -> CapturedFrame<'_> {
    CapturedFrame { time_ns, interface: InterfaceIndex(0), direction, original_bytes, bytes }
}

#[test]
fn capture_records_interfaces_and_losses() {
    let nic = NicId::from_octets([0, 0x1b, 0x21, 0xaa, 0, 1]);
    let wire = PcapInterface::new("wire0", "the first link").with_nic(nic).with_snap_bytes(9014);
    let mut writer = Writer::new(Vec::new(), &[wire]).unwrap();
    writer.write(&record(0x1_0000_0002, CaptureDirection::Received, 5, b"abcde")).unwrap();
    assert_eq!(writer.add(&PcapInterface::new("d1", "")).unwrap(), InterfaceIndex(1));
    let other = CapturedFrame { interface: InterfaceIndex(1), ..record(9, CaptureDirection::Sent, 100, b"abcdefgh") };
    writer.write_commented(&other, "odd").unwrap();
    let told = [0, 1].map(|number| InterfaceStatistics { interface: InterfaceIndex(number), seen: 10, dropped: 9 });
    let file = writer.finish(&told).unwrap();

    let [section, wire, first, domain, second, wire_end, domain_end] = &blocks(&file)[..] else { panic!("7 blocks") };
    let shape: Vec<u32> = blocks(&file).iter().map(|block| block.kind).collect();
    assert_eq!(shape, [0x0a0d_0d0a, 1, 6, 1, 6, 5, 5]);
    assert_eq!(section.fixed, [&[0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0][..], &[0xff; 8]].concat());
    assert_eq!(wire.fixed, [1, 0, 0, 0, 0x36, 0x23, 0, 0]);
    let named = |code, text: &str| (code, text.as_bytes().to_vec());
    let address = (6, vec![0, 0x1b, 0x21, 0xaa, 0, 1]);
    assert_eq!(wire.options, [named(2, "wire0"), named(3, "the first link"), address, (9, vec![9])]);
    assert_eq!(domain.options, [named(2, "d1"), (9, vec![9])]);
    assert_eq!((time_at(&first.fixed, 4), &first.fixed[20..]), (0x1_0000_0002, &b"abcde\0\0\0"[..]));
    assert_eq!(first.options, [(2, vec![1, 0, 0, 0])]);
    assert_eq!((u32_at(&second.fixed, 0), u32_at(&second.fixed, 12), u32_at(&second.fixed, 16)), (1, 8, 100));
    assert_eq!(second.options, [(2, vec![2, 0, 0, 0]), named(1, "odd")]);
    assert_eq!((u32_at(&wire_end.fixed, 0), time_at(&wire_end.fixed, 4)), (0, 0x1_0000_0002));
    let counts: Vec<u16> = domain_end.options.iter().map(|(code, _)| *code).collect();
    assert_eq!(counts, [2, 3, 4, 7]);
    assert_eq!(domain_end.options[3].1, 9u64.to_le_bytes());
}

#[test]
fn interfaces_that_are_not_there_are_refused() {
    let mut writer = Writer::new(Vec::new(), &[]).unwrap();
    let refused = writer.write(&record(0, CaptureDirection::Sent, 0, &[]));
    assert!(matches!(refused, Err(WriteError::NoInterface(0, 0))));
    let told = InterfaceStatistics { interface: InterfaceIndex(3), seen: 0, dropped: 0 };
    assert!(matches!(writer.finish(&[told]), Err(WriteError::NoInterface(3, 0))));
}

#[test]
fn write_errors_are_reported() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    assert!(matches!(Writer::new(Full, &[]), Err(WriteError::Io(error)) if error.kind() == io::ErrorKind::StorageFull));
}

proptest! {
    #[test]
    fn written_captures_can_be_read_back(
        names in vec((any::<String>(), ".{0,300}", any::<u32>()), 1..4),
        records in vec((any::<u64>(), any::<u16>(), any::<u32>(), vec(any::<u8>(), 0..200), ".{0,50}"), 0..20),
        long in 0..70_000usize,
    ) {
        let interfaces: Vec<PcapInterface> =
            names.iter().map(|(name, text, snap)| PcapInterface::new(name, text).with_snap_bytes(*snap)).collect();
        let mut writer = Writer::new(Vec::new(), &interfaces).unwrap();
        let mut written = Vec::new();
        for (time_ns, index, original_bytes, bytes, comment) in &records {
            let interface = InterfaceIndex(index % 5);
            let record = CapturedFrame { time_ns: *time_ns, interface, direction: CaptureDirection::Sent, original_bytes: *original_bytes, bytes };
            let done = writer.write_commented(&record, comment);
            prop_assert_eq!(done.is_ok(), usize::from(interface.0) < interfaces.len());
            if done.is_ok() {
                written.push(record);
            }
        }
        writer.write_commented(&record(0, CaptureDirection::Sent, 0, &[]), &"ü".repeat(long)).unwrap();
        let file = writer.finish(&[]).unwrap();
        let packets: Vec<Block> = blocks(&file).into_iter().filter(|block| block.kind == 6).collect();
        prop_assert_eq!(packets.len(), written.len() + 1);
        for (packet, record) in packets.iter().zip(written) {
            let kept = record.bytes.len().min(interfaces[usize::from(record.interface.0)].snap_bytes() as usize);
            prop_assert_eq!(time_at(&packet.fixed, 4), record.time_ns);
            prop_assert_eq!(u32_at(&packet.fixed, 12), kept);
            prop_assert_eq!(u32_at(&packet.fixed, 16), record.bytes.len().max(record.original_bytes as usize));
            prop_assert_eq!(&packet.fixed[20..20 + kept], &record.bytes[..kept]);
        }
    }
}
