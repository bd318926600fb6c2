//! The specification states what the code does.

use alloc::format;
use alloc::vec::Vec;

use super::*;
use crate::fast::header::{KIND_FRAME, VERSION};

const PAGE: &str = include_str!("../../../../../docs/spec/overlay-fast.md");

/// The rows of the first table below a heading.
fn table(heading: &str) -> Vec<Vec<&'static str>> {
    let (_, section) = PAGE.split_once(heading).expect("the heading is there");
    let lines = section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    lines.skip(2).map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

#[test]
fn the_header_is_as_stated() {
    let header = ChunkHeader {
        vni: Vni::from_bytes([1, 2, 3]),
        message: 0x0405_0607,
        total: 0x0809,
        is_repeated: false,
        offset: 0x0a0b,
    };
    let mut bytes: Vec<u8> = Vec::new();
    for row in table("## The chunk header") {
        let [offset, length, field, _] = row[..] else { panic!("four columns: {row:?}") };
        assert_eq!(offset, format!("{}", bytes.len()));
        let value = match field {
            "version and kind" => u32::from(VERSION << 4 | KIND_FRAME),
            "network" => header.vni.number(),
            "message" => header.message,
            "total" => header.total as u32,
            "offset" => header.offset as u32,
            _ => panic!("{field} is no field"),
        };
        let length: usize = length.parse().expect("a number");
        bytes.extend(&value.to_be_bytes()[4 - length..]);
    }
    assert_eq!(bytes, header.emit());
}

#[test]
fn the_limits_are_as_stated() {
    let limits: Vec<usize> = table("## Limits").iter().map(|row| row[1].parse().expect("a number")).collect();
    let newer = usize::from(NEWER_MESSAGES_MAX);
    let pending = [PENDING_MAX, PENDING_MS_MAX as usize, newer];
    assert_eq!(
        limits,
        [&[MESSAGE_BYTES_MIN, MESSAGE_BYTES_MAX, CHUNK_BYTES_MIN, REPEATED_BYTES][..], &pending].concat()
    );
}

#[test]
fn the_counters_are_as_stated() {
    let debug = format!("{:?}", FastCounters::default());
    let names = debug.trim_start_matches("FastCounters { ").trim_end_matches(" }").split(", ");
    let names: Vec<&str> = names.map(|field| field.trim_end_matches(": 0")).collect();
    let stated = table("## Counters");
    let stated: Vec<&str> = stated.iter().map(|row| row[0].trim_matches('`')).collect();
    assert_eq!(stated, names);
}
