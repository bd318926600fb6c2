//! Frames that UDP carries, over IPv4 and IPv6.

use isthmus_mx::wire::{Dialect, parse};

use crate::damage::Dice;
use crate::expected::expected;
use crate::samples::samples;
use crate::tshark::Tshark;
use crate::{DIALECTS, columns};

const PORT: u16 = 34527;

/// A frame of a link that IP goes over, in which `inner` is a datagram's payload.
fn carried(v6: bool, port: u16, inner: &[u8]) -> Vec<u8> {
    let mut udp = [port.to_be_bytes(), PORT.to_be_bytes()].concat();
    udp.extend((8 + inner.len() as u16).to_be_bytes());
    udp.extend([0, 0]);
    udp.extend_from_slice(inner);
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    if v6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend((udp.len() as u16).to_be_bytes());
        frame.extend([17, 64]);
        frame.extend([[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], [0xfd; 16]].concat());
    } else {
        frame.extend([0x08, 0x00, 0x45, 0]);
        frame.extend((20 + udp.len() as u16).to_be_bytes());
        frame.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    }
    frame.extend(udp);
    frame
}

#[test]
fn carried_frames_are_shown_as_the_others_are() {
    let Some(tshark) = Tshark::find() else { return };
    let of_dialect = |dialect| samples().into_iter().filter(move |sample| sample.dialects.contains(&dialect));
    for dialect in DIALECTS {
        let frames: Vec<Vec<u8>> = of_dialect(dialect).map(|sample| sample.frame).collect();
        for v6 in [false, true] {
            let datagrams: Vec<Vec<u8>> = frames.iter().map(|frame| carried(v6, PORT, frame)).collect();
            for (frame, row) in frames.iter().zip(tshark.show(dialect, &[], &datagrams, &columns())) {
                let (header, packet) = parse(dialect, frame).unwrap();
                for (column, value) in expected(dialect, &header, &packet, frame) {
                    // There are two Ethernet headers: the carried one is the second.
                    let shown = row.get(column);
                    let shown = if column.starts_with("eth.") { shown.rsplit('|').next().unwrap() } else { shown };
                    assert_eq!(shown, value, "{column} of {packet:?}");
                }
                assert_eq!(row.get("mxoe.malformed"), "");
            }
        }
    }
}

#[test]
fn datagrams_that_carry_no_frame_do_no_harm() {
    let Some(tshark) = Tshark::find() else { return };
    let mut dice = Dice(7);
    let mut payloads = Vec::new();
    for bytes in 1..2000 {
        let length = if bytes < 100 { bytes } else { 1 + dice.below(300) };
        let mut inner: Vec<u8> = (0..length).map(|_| dice.next() as u8).collect();
        // Ethertypes of others among them: IPv4, ARP, IPv6, ours.
        if let Some(ethertype) = inner.get_mut(12..14) {
            ethertype.copy_from_slice(&[[8, 0], [8, 6], [0x86, 0xdd], [0x86, 0xdf], [0, 4]][dice.below(5)]);
        }
        payloads.push(inner);
    }
    let datagrams: Vec<Vec<u8>> = payloads.iter().map(|inner| carried(inner.len() % 2 == 0, 9, inner)).collect();
    let shown = ["mxoe_udp.expert.short", "frame.protocols"];
    for (inner, row) in payloads.iter().zip(tshark.show(Dialect::OPEN_MX, &[], &datagrams, &shown)) {
        assert!(row.get("frame.protocols").contains(":udp:mxoe_udp"), "{row:?}");
        assert_eq!(!row.get("mxoe_udp.expert.short").is_empty(), inner.len() < 14, "{row:?}");
    }
}
