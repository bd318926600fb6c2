//! Frames for tests, and a checker of their own: byte by byte, without the code that is tested.

use alloc::vec;
use alloc::vec::Vec;
use core::num::NonZeroU16;

use proptest::prelude::*;

use crate::virtio_net::{ChecksumState, Gso, GsoKind, VirtioNetHeader};

pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const PSH: u8 = 0x08;
pub(crate) const ACK: u8 = 0x10;
pub(crate) const CWR: u8 = 0x80;

/// A frame as a TAP gives it: lengths of the whole, a partial checksum.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) tags: usize,
    pub(crate) is_v6: bool,
    /// Words of 4 bytes for options of IPv4, of 8 for extension headers of IPv6.
    pub(crate) ip_options: usize,
    pub(crate) is_udp: bool,
    /// Words of 4 bytes.
    pub(crate) tcp_options: usize,
    pub(crate) flags: u8,
    pub(crate) identification: u16,
    pub(crate) sequence: u32,
    pub(crate) payload: Vec<u8>,
}

impl Default for Sample {
    fn default() -> Self {
        let payload = (0..4000_u32).map(|at| (at * 7 % 251) as u8).collect();
        Self {
            tags: 0,
            is_v6: false,
            ip_options: 0,
            is_udp: false,
            tcp_options: 3,
            flags: ACK | PSH,
            identification: 0xfffe,
            sequence: 0xffff_ff00,
            payload,
        }
    }
}

impl Sample {
    pub(crate) fn network(&self) -> usize {
        14 + 4 * self.tags
    }

    pub(crate) fn transport(&self) -> usize {
        self.network() + if self.is_v6 { 40 + 8 * self.ip_options } else { 20 + 4 * self.ip_options }
    }

    pub(crate) fn head_bytes(&self) -> usize {
        self.transport() + if self.is_udp { 8 } else { 20 + 4 * self.tcp_options }
    }

    pub(crate) fn frame(&self) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        for tag in 0..self.tags {
            frame.extend([if tag + 1 == self.tags { [0x81, 0x00] } else { [0x88, 0xa8] }, [0, 7]].concat());
        }
        frame.extend(if self.is_v6 { [0x86, 0xdd] } else { [0x08, 0x00] });
        let length = self.head_bytes() - self.transport() + self.payload.len();
        let protocol = if self.is_udp { 17 } else { 6 };
        if self.is_v6 {
            self.push_ipv6(&mut frame, protocol, length)
        } else {
            self.push_ipv4(&mut frame, protocol, length)
        }
        let partial = pseudo(&frame[self.network()..], self.is_v6, protocol, length);
        if self.is_udp {
            frame.extend([0x12, 0x34, 0x56, 0x78]);
            frame.extend((length as u16).to_be_bytes());
            frame.extend(partial.to_be_bytes());
        } else {
            frame.extend([0x12, 0x34, 0x56, 0x78]);
            frame.extend(self.sequence.to_be_bytes());
            frame.extend([1, 2, 3, 4, (5 + self.tcp_options as u8) << 4, self.flags, 0x20, 0]);
            frame.extend(partial.to_be_bytes());
            frame.extend([0, 0]);
            frame.extend((0..self.tcp_options * 4).map(|at| at as u8 + 1));
        }
        frame.extend(&self.payload);
        frame
    }

    fn push_ipv4(&self, frame: &mut Vec<u8>, protocol: u8, length: usize) {
        let header = 20 + 4 * self.ip_options;
        let mut ip = vec![0x40 | (header / 4) as u8, 0];
        ip.extend(((header + length) as u16).to_be_bytes());
        ip.extend(self.identification.to_be_bytes());
        ip.extend([0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        ip.resize(header, 1);
        let checksum = !sum(&ip);
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        frame.extend(ip);
    }

    /// The extension headers are a hop-by-hop header, or that and a route without segments left.
    fn push_ipv6(&self, frame: &mut Vec<u8>, protocol: u8, length: usize) {
        let mut next = vec![protocol];
        for index in 0..self.ip_options {
            next.insert(0, if index + 1 == self.ip_options { 0 } else { 43 });
        }
        frame.extend([0x60, 0, 0, 0]);
        frame.extend(((8 * self.ip_options + length) as u16).to_be_bytes());
        frame.extend([next[0], 64]);
        frame.extend([0xfd; 15]);
        frame.push(1);
        frame.extend([0xfd; 15]);
        frame.push(2);
        for next in &next[1..] {
            frame.extend([*next, 0, 0, 0, 0, 0, 0, 0]);
        }
    }

    pub(crate) fn header(&self, size: u16) -> VirtioNetHeader {
        let kind = match (self.is_udp, self.is_v6) {
            (true, _) => GsoKind::Udp,
            (false, true) => GsoKind::Tcp6,
            (false, false) => GsoKind::Tcp4,
        };
        let gso = NonZeroU16::new(size).map(|size| Gso { kind, size, ecn: !self.is_udp && self.flags & CWR != 0 });
        VirtioNetHeader { checksum: self.partial(), gso, hdr_len: self.head_bytes() as u16 }
    }

    pub(crate) fn partial(&self) -> ChecksumState {
        ChecksumState::Partial { start: self.transport() as u16, offset: if self.is_udp { 6 } else { 16 } }
    }

    /// Asserts that a frame is correct, and returns what differs between frames of a flow.
    pub(crate) fn check(&self, frame: &[u8]) -> Checked {
        let ip = &frame[self.network()..];
        let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let network = self.network();
        if self.is_v6 {
            assert_eq!(usize::from(word(network + 4)) + 40, ip.len());
        } else {
            assert_eq!(usize::from(word(network + 2)), ip.len());
            assert_eq!(sum(&frame[network..self.transport()]), 0xffff, "checksum of IPv4");
        }
        let segment = &frame[self.transport()..];
        let protocol = if self.is_udp { 17 } else { 6 };
        let whole = [&pseudo(ip, self.is_v6, protocol, segment.len()).to_be_bytes()[..], segment].concat();
        assert_eq!(sum(&whole), 0xffff, "checksum of the transport");
        if self.is_udp {
            assert_eq!(usize::from(word(self.transport() + 4)), segment.len());
            assert_ne!(word(self.transport() + 6), 0);
        }
        Checked {
            identification: if self.is_v6 { 0 } else { word(network + 4) },
            sequence: u32::from_be_bytes([segment[4], segment[5], segment[6], segment[7]]),
            flags: *segment.get(13).unwrap_or(&0),
            payload: frame[self.head_bytes()..].to_vec(),
        }
    }
}

/// See [`Sample::check`].
pub(crate) struct Checked {
    pub(crate) identification: u16,
    pub(crate) sequence: u32,
    pub(crate) flags: u8,
    pub(crate) payload: Vec<u8>,
}

fn sum(bytes: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) * 256 + u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn pseudo(ip: &[u8], is_v6: bool, protocol: u8, length: usize) -> u16 {
    let addresses = if is_v6 { &ip[8..40] } else { &ip[12..20] };
    sum(&[addresses, &[0, protocol], &(length as u32).to_be_bytes()].concat())
}

prop_compose! {
    pub(crate) fn samples()(
        tags in 0_usize..3, is_v6: bool, ip_options in 0_usize..4, is_udp: bool, tcp_options in 0_usize..11,
        flags: u8, identification: u16, sequence: u32, payload in prop::collection::vec(any::<u8>(), 0..5000),
    ) -> Sample {
        let flags = flags & !SYN | ACK;
        Sample { tags, is_v6, ip_options, is_udp, tcp_options, flags, identification, sequence, payload }
    }
}
