//! Bytes from other hosts and from guests that no program of good will sends: each is counted, and none arrives or stops the poller.

use super::super::FrameLoss;
use super::super::command::OverlayEdgeKind;
use super::fixture::*;
use isthmus_overlay::virtio_net::VirtioNetHeader;
use isthmus_overlay::vxlan::Vni;
use isthmus_overlay::{fast, vxlan};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::Ordering::Relaxed;

/// A host with a container, and a socket at the address of its edge.
fn attacked(kind: OverlayEdgeKind) -> (Host, Container, UdpSocket, SocketAddr) {
    let [here, there] = sockets(kind);
    let (at, from) = (here.bound(), there.bound());
    drop(there);
    let mut host = Host::new();
    host.socket(kind, here);
    host.edge(EDGE, from);
    let container = host.interface(1);
    (host, container, UdpSocket::bind((from.ip(), 0)).unwrap(), at)
}

/// Numbers without order.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// The datagrams that the host has counted.
fn counted(host: &mut Host) -> u64 {
    let sockets = host.refused.unknown_senders.load(Relaxed)
        + host.refused.unknown_networks.load(Relaxed)
        + host.refused.invalid.load(Relaxed);
    sockets + host.edge_counters().received + host.edge_lost(FrameLoss::Invalid)
}

/// The chunks of a frame with its virtio-net header.
fn plan(number: u32, frame: &[u8]) -> fast::Chunks {
    let header = VirtioNetHeader::parse(frame.first_chunk().unwrap(), frame.len() - 12).unwrap();
    fast::Sender::new(number).plan(vni(), &header, frame.len(), 1_472).unwrap()
}

/// The datagram of a chunk.
fn chunk(chunks: &fast::Chunks, frame: &[u8], at: usize) -> Vec<u8> {
    let fast::Chunk { header, range, repeated } = chunks.get(at);
    [&header[..], &frame[range], &frame[repeated]].concat()
}

/// A datagram with a frame for the container.
fn valid(kind: OverlayEdgeKind, payload: &[u8]) -> Vec<u8> {
    let frame = plain(BROADCAST, mac(9), payload);
    match kind {
        OverlayEdgeKind::Fast => chunk(&plan(5, &frame), &frame, 0),
        OverlayEdgeKind::Vxlan => [&vxlan::emit(vni())[..], &frame[12..]].concat(),
        OverlayEdgeKind::Udp => frame[12..].to_vec(),
    }
}

#[test]
fn invalid_datagrams_of_every_length_are_counted() {
    for kind in KINDS {
        let (mut host, container, socket, at) = attacked(kind);
        let headers = valid(kind, &[]).len();
        let whole = valid(kind, &[7; 60]);
        let cut_max = if kind == OverlayEdgeKind::Fast { whole.len() } else { headers };
        let mut noise = Noise(0x5eed);
        let mut datagrams: Vec<Vec<u8>> = (0..cut_max).map(|len| whole[..len].to_vec()).collect();
        for len in (0..=64).chain((0..200).map(|at| 65 + at * 311)) {
            let mut bytes = noise.bytes(len);
            match (kind, bytes.first_mut()) {
                (OverlayEdgeKind::Fast, Some(first)) => *first |= 0x20, // Not version 1.
                (OverlayEdgeKind::Vxlan, Some(first)) => *first &= !0x08, // No valid VNI.
                (OverlayEdgeKind::Udp, _) => bytes.truncate(len % 14),
                _ => {}
            }
            datagrams.push(bytes);
        }
        for (sent, datagram) in (1..).zip(&datagrams) {
            socket.send_to(datagram, at).unwrap();
            until(&mut [&mut host], |hosts| (counted(hosts[0]) == sent).then_some(()));
        }
        assert_eq!(host.edge_counters().received, 0, "{kind:?}");
        assert_eq!(container.receive(), None, "{kind:?}");
        socket.send_to(&whole, at).unwrap();
        let arrived = until(&mut [&mut host], |_| container.receive());
        assert!(arrived[12..] == plain(BROADCAST, mac(9), &[7; 60])[12..], "{kind:?}");
    }
}

#[test]
fn noise_behind_a_valid_encapsulation_stops_nothing() {
    for kind in KINDS {
        let (mut host, container, socket, at) = attacked(kind);
        let mut noise = Noise(0xbad);
        for _ in 0..3_000 {
            let mut datagram = valid(kind, &[]);
            let len = noise.next() as usize % 3_000;
            datagram.extend(noise.bytes(len));
            for _ in 0..noise.next() % 4 {
                let at = noise.next() as usize % datagram.len().min(60);
                datagram[at] = noise.next() as u8;
            }
            socket.send_to(&datagram, at).unwrap();
            host.step();
            while container.receive().is_some() {}
        }
        let last = valid(kind, b"the last of them");
        until(&mut [&mut host], |hosts| {
            hosts[0].network().edge(EDGE).unwrap().reassembler = Default::default();
            socket.send_to(&last, at).unwrap();
            hosts[0].step();
            std::iter::from_fn(|| container.receive()).find(|frame| frame.ends_with(b"the last of them"))
        });
    }
}

#[test]
fn unknown_senders_and_networks_are_counted() {
    for kind in KINDS {
        let (mut host, container, socket, at) = attacked(kind);
        let last =
            |host: &Host| host.refused.last_unknown.lock().unwrap().map(|last| (last.from.to_string(), last.vni));
        let other_host = UdpSocket::bind("127.0.0.3:0").unwrap();
        other_host.send_to(&valid(kind, &[1; 64]), at).unwrap();
        until(&mut [&mut host], |hosts| (hosts[0].refused.unknown_senders.load(Relaxed) == 1).then_some(()));
        let named = if kind == OverlayEdgeKind::Udp { Vni::MIN } else { vni() };
        assert_eq!(last(&host), Some(("127.0.0.3".to_owned(), named)));
        if kind != OverlayEdgeKind::Udp {
            let mut other = valid(kind, &[1; 64]);
            other[if kind == OverlayEdgeKind::Fast { 3 } else { 6 }] ^= 1;
            socket.send_to(&other, at).unwrap();
            until(&mut [&mut host], |hosts| (hosts[0].refused.unknown_networks.load(Relaxed) == 1).then_some(()));
            let (from, named) = last(&host).unwrap();
            assert!(from == "127.0.0.2" && named != vni(), "{from}, {named:?}");
        }
        assert_eq!(container.receive(), None);
        assert_eq!(host.edge_counters().received, 0);
        assert_eq!(host.refused.invalid.load(Relaxed), 0);
    }
}

#[test]
fn messages_with_a_lost_chunk_are_counted() {
    let (mut host, container, socket, at) = attacked(OverlayEdgeKind::Fast);
    let frame = large(BROADCAST, mac(9), 6 * 1_448);
    let chunks = plan(5, &frame);
    for at_chunk in [0, 1, 2, 4] {
        socket.send_to(&chunk(&chunks, &frame, at_chunk), at).unwrap();
    }
    until(&mut [&mut host], |hosts| (hosts[0].edge_lost(FrameLoss::Shortened) == 1).then_some(()));
    let parts: Vec<_> = std::iter::from_fn(|| container.receive()).collect();
    assert!(!parts.is_empty());
    // Each part has the headers of the frame, and data that stands in it.
    for part in &parts {
        let data = &part[12 + 54..];
        assert!(frame[12 + 54..].windows(data.len()).any(|window| window == data));
    }
    assert!(parts.iter().map(|part| part.len() - 12 - 54).sum::<usize>() < frame.len() - 12 - 54);
    let frame = plain(BROADCAST, mac(9), &[1; 3_000]); // One packet, so nothing of it can be delivered.
    socket.send_to(&chunk(&plan(6, &frame), &frame, 0), at).unwrap();
    until(&mut [&mut host], |hosts| (hosts[0].edge_lost(FrameLoss::Incomplete) == 1).then_some(()));
    let shown = until(&mut [&mut host], |hosts| {
        let view = hosts[0].view();
        view.edges.first().map(|edge| edge.counters.lost).filter(|lost| lost.count(FrameLoss::Incomplete) == 1)
    });
    assert_eq!(shown.count(FrameLoss::Shortened), 1);
    assert_eq!(container.receive(), None);
}

#[test]
fn invalid_headers_of_a_guest_are_counted() {
    for kind in KINDS {
        let (mut here, mut there) = connected(kind);
        let (guest, local, remote) = (here.interface(1), here.interface(2), there.interface(1));
        let mut noise = Noise(0xf00d);
        let mut sent = 0;
        for round in 0..2_000 {
            let mut frame = if round % 2 == 0 {
                large(BROADCAST, mac(1), 1_000)
            } else {
                plain(BROADCAST, mac(1), &noise.bytes(50))
            };
            frame[..12].copy_from_slice(&noise.bytes(12));
            guest.send(&frame);
            sent += 1;
            until(&mut [&mut here, &mut there], |hosts| {
                let counters = hosts[0].served(1).counters;
                (counters.received + counters.lost.count(FrameLoss::Invalid) == sent).then_some(())
            });
            while local.receive().is_some() {}
            while remote.receive().is_some() {}
        }
        assert!(here.served(1).counters.lost.count(FrameLoss::Invalid) > sent / 2);
        for len in 1..26 {
            guest.send(&vec![0; len]);
            sent += 1;
            until(&mut [&mut here], |hosts| {
                let counters = hosts[0].served(1).counters;
                (counters.received + counters.lost.count(FrameLoss::Invalid) == sent).then_some(())
            });
        }
        assert_eq!(local.receive(), None);
        guest.send(&plain(BROADCAST, mac(1), b"valid"));
        until(&mut [&mut here, &mut there], |_| remote.receive().filter(|frame| frame.ends_with(b"valid")));
    }
}
