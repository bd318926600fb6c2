//! The segments of `tun-rs`, which cuts IP packets, are the same bytes.

use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;
use tun_rs::{VIRTIO_NET_HDR_GSO_TCPV4, VIRTIO_NET_HDR_GSO_TCPV6, VIRTIO_NET_HDR_GSO_UDP_L4, VirtioNetHdr, gso_split};

use super::*;

/// The segments of a sample, from the IP header on.
fn reference(sample: &Sample, size: u16) -> Vec<Vec<u8>> {
    let network = sample.network();
    let kind = if sample.is_v6 { VIRTIO_NET_HDR_GSO_TCPV6 } else { VIRTIO_NET_HDR_GSO_TCPV4 };
    let header = VirtioNetHdr {
        flags: 1,
        gso_type: if sample.is_udp { VIRTIO_NET_HDR_GSO_UDP_L4 } else { kind },
        hdr_len: (sample.head_bytes() - network) as u16,
        gso_size: size,
        csum_start: (sample.transport() - network) as u16,
        csum_offset: if sample.is_udp { 6 } else { 16 },
    };
    let mut packet = sample.frame().split_off(network);
    let count = sample.payload.len().div_ceil(size.into());
    let mut buffers = vec![vec![0; packet.len()]; count];
    let mut sizes = vec![0; count];
    let made = gso_split(&mut packet, header, &mut buffers, &mut sizes, 0, sample.is_v6).expect("can be cut");
    assert_eq!(made, count);
    buffers.iter().zip(sizes).map(|(buffer, bytes)| buffer[..bytes].to_vec()).collect()
}

proptest! {
    #[test]
    fn tun_rs_makes_the_same_segments(sample in samples(), size in 8_u16..3000) {
        let frame = sample.frame();
        let mut cutter = Cutter::default();
        let segments = cutter.cut(&[], &sample.header(size), &frame).expect("can be cut");
        let ours: Vec<_> = segments.iter().map(|(head, data)| [&head[sample.network()..], data].concat()).collect();
        // A frame without payload is one segment here, and none there.
        let theirs = reference(&sample, size);
        prop_assert_eq!(&ours[..theirs.len()], &theirs[..]);
        prop_assert!(ours.len() == theirs.len() || sample.payload.is_empty());
    }
}
