//! Frames arrive whole, once, and at the right places.

use super::super::FrameLoss;
use super::super::command::{OverlayCommand, OverlayEdgeKind};
use super::super::edge::Edge;
use super::fixture::*;
use isthmus_overlay::virtio_net::{GsoKind, VirtioNetHeader};
use isthmus_overlay::{EdgeId, InterfaceId, Millis};
use std::net::SocketAddr;

#[test]
fn a_frame_between_interfaces_keeps_its_header() {
    let mut host = Host::new();
    let (one, two, three) = (host.interface(1), host.interface(2), host.interface(3));
    two.send(&plain(BROADCAST, mac(2), b"here"));
    let heard = until(&mut [&mut host], |_| Some((one.receive()?, three.receive()?)));
    assert_eq!(heard, (plain(BROADCAST, mac(2), b"here"), plain(BROADCAST, mac(2), b"here")));
    assert_eq!(two.receive(), None, "a flood does not return");
    let frame = large(mac(2), mac(1), 60_000);
    one.send(&frame);
    assert!(until(&mut [&mut host], |_| two.receive()) == frame);
    assert_eq!(three.receive(), None, "the address was learned");
    let counters = host.served(1).counters;
    assert_eq!((counters.received, counters.received_bytes, counters.sent), (1, frame.len() as u64 - 12, 1));
}

#[test]
fn a_fast_edge_carries_a_large_frame_whole() {
    for datagram_bytes in [1_472, 8_972, 65_507] {
        let (mut here, mut there) = connected(OverlayEdgeKind::Fast);
        here.limit_path(datagram_bytes);
        let (one, two) = (here.interface(1), there.interface(1));
        let frame = large(mac(2), mac(1), 60_000);
        one.send(&frame);
        let arrived = until(&mut [&mut here, &mut there], |_| two.receive());
        assert!(arrived == frame, "by datagrams of {datagram_bytes} bytes");
        assert_eq!((here.edge_counters().sent, there.edge_counters().received), (1, 1));
    }
}

#[test]
fn other_edges_cut_a_large_frame_and_merge_it_again() {
    for kind in [OverlayEdgeKind::Vxlan, OverlayEdgeKind::Udp] {
        let (mut here, mut there) = connected(kind);
        here.limit_path(1_600);
        let (one, two) = (here.interface(1), there.interface(1));
        let frame = large(mac(2), mac(1), 40 * 1_448);
        one.send(&frame);
        let mut frames = Vec::new();
        let payload = until(&mut [&mut here, &mut there], |_| {
            frames.extend(std::iter::from_fn(|| two.receive()));
            let payload = frames.iter().flat_map(|frame| &frame[12 + 54..]).copied().collect::<Vec<u8>>();
            (payload.len() >= 40 * 1_448).then_some(payload)
        });
        assert!(payload == frame[12 + 54..], "{kind:?}");
        assert!(frames.len() <= 4, "{kind:?}: {} frames", frames.len());
        for frame in &frames {
            let header = VirtioNetHeader::parse(frame.first_chunk().unwrap(), frame.len() - 12).unwrap();
            let gso = header.gso.expect("several segments");
            assert_eq!((gso.kind, gso.size.get()), (GsoKind::Tcp4, 1_448));
            assert_eq!(frame[12..24], [mac(2), mac(1)].concat());
        }
    }
}

#[test]
fn a_broadcast_reaches_each_port_once() {
    for kind in KINDS {
        let (mut here, mut there) = connected(kind);
        let containers = [here.interface(1), here.interface(2), there.interface(1), there.interface(2)];
        let frame = plain(BROADCAST, mac(1), &[9; 50]);
        containers[0].send(&frame);
        let mut heard: [Vec<Vec<u8>>; 4] = Default::default();
        until(&mut [&mut here, &mut there], |_| {
            heard.iter_mut().zip(&containers).for_each(|(heard, at)| heard.extend(at.receive()));
            heard[1..].iter().all(|heard| !heard.is_empty()).then_some(())
        });
        // A frame in the other direction follows whatever came by the edge.
        containers[2].send(&plain(mac(1), mac(3), b"reply"));
        until(&mut [&mut here, &mut there], |_| {
            heard.iter_mut().zip(&containers).for_each(|(heard, at)| heard.extend(at.receive()));
            (!heard[0].is_empty()).then_some(())
        });
        let reply = plain(mac(1), mac(3), b"reply");
        let expected = [&reply, &frame, &frame, &frame];
        for (heard, expected) in heard.iter().zip(expected) {
            assert_eq!(heard.iter().map(|frame| &frame[12..]).collect::<Vec<_>>(), [&expected[12..]], "{kind:?}");
        }
    }
}

#[test]
fn frames_with_vlan_tags_pass_untouched() {
    for kind in KINDS {
        let (mut here, mut there) = connected(kind);
        let (a, b) = (here.interface(1), there.interface(1));
        for tags in [&[0x81, 0, 0x60, 7][..], &[0x88, 0xa8, 0, 9, 0x81, 0, 0, 7]] {
            let frame = [&[0; 12][..], &mac(3), &mac(1), tags, &[0x88, 0xb5], b"tagged"].concat();
            a.send(&frame);
            let received = until(&mut [&mut here, &mut there], |_| b.receive());
            assert_eq!(received[12..], frame[12..], "{kind:?}");
        }
    }
}

#[test]
fn silent_interfaces_are_not_read() {
    let mut host = Host::new();
    let silent: Vec<_> = (10..60).map(|number| host.interface(number)).collect();
    let (one, two) = (host.interface(1), host.interface(2));
    two.send(&plain(mac(9), mac(2), b"learned"));
    until(&mut [&mut host], |_| one.receive());
    while host.step() {}
    let reads = |host: &mut Host| (10..60).map(|number| host.served(number).reads).sum::<u64>();
    let before = reads(&mut host);
    for _ in 0..200 {
        one.send(&plain(mac(2), mac(1), &[1; 100]));
        until(&mut [&mut host], |_| two.receive());
    }
    assert_eq!(reads(&mut host), before);
    silent[0].send(&plain(mac(2), mac(10), b"awake"));
    until(&mut [&mut host], |_| two.receive());
    while host.step() {}
    assert_eq!(reads(&mut host), before + 2, "one frame, and the end");
}

#[test]
fn the_view_follows() {
    let (mut here, mut there) = connected(OverlayEdgeKind::Fast);
    let (one, two) = (here.interface(1), there.interface(1));
    one.send(&plain(BROADCAST, mac(1), &[1; 86]));
    until(&mut [&mut here, &mut there], |_| two.receive());
    let view = until(&mut [&mut here, &mut there], |hosts| {
        let view = hosts[1].view();
        (view.edges.len() == 1 && view.edges[0].counters.received == 1).then_some(view)
    });
    assert_eq!((view.edges[0].edge, view.edges[0].counters.received_bytes), (EDGE, 100));
    assert!(view.edges[0].datagram_bytes.is_some());
    assert_eq!((view.interfaces[0].interface, view.interfaces[0].counters.sent), (InterfaceId(1), 1));
    assert_eq!((view.learned[0].mac.0, view.learned[0].port), (mac(1), isthmus_overlay::Port::Edge(EDGE)));
    there.execute(OverlayCommand::RemoveEdge { network: NETWORK, edge: EDGE });
    until(&mut [&mut there], |hosts| {
        let view = hosts[0].view();
        (view.edges.is_empty() && view.learned.is_empty()).then_some(())
    });
    assert_eq!(there.served(1).counters.lost.count(FrameLoss::PortGone), 0);
}

/// A search for each copy would look at 32,896 edges.
#[test]
fn a_broadcast_finds_each_edge_in_one_step() {
    let mut host = Host::new();
    let [socket, _] = sockets(OverlayEdgeKind::Udp);
    let port = socket.bound().port();
    host.socket(OverlayEdgeKind::Udp, socket);
    (0..=255).for_each(|last| host.edge(EdgeId(last.into()), SocketAddr::from(([127, 0, 1, last], port))));
    let one = host.interface(1);
    host.network().edges.lookups.take();
    one.send(&plain(BROADCAST, mac(1), b"to all"));
    until(&mut [&mut host], |hosts| (hosts[0].served(1).counters.received == 1).then_some(()));
    let lookups = host.network().edges.lookups.take();
    let lost = |edge: &Edge| edge.counters.lost.iter().map(|(_, frames)| frames).sum::<u64>();
    let counters = host.network().edges.iter().map(|edge| edge.counters.sent + lost(edge));
    assert_eq!(counters.collect::<Vec<_>>(), [1; 256]);
    assert!(lookups <= 256, "{lookups} places for 256 copies");
}

#[test]
fn an_edge_without_a_route_is_queried_again_although_nothing_is_sent() {
    let (mut here, _there) = connected(OverlayEdgeKind::Fast);
    until(&mut [&mut here], |hosts| hosts[0].view().edges.first().map(|_| ()));
    let edge = here.network().edge(EDGE).unwrap();
    (edge.datagram_bytes, edge.path_due) = (None, Millis(0)); // As if there had been no route a moment ago.
    here.touch();
    let bytes = until(&mut [&mut here], |hosts| hosts[0].view().edges[0].datagram_bytes);
    assert!(bytes > 1_472, "the path of the loopback interface");
}

#[test]
fn an_edge_knows_when_its_host_was_heard() {
    let (mut here, mut there) = connected(OverlayEdgeKind::Vxlan);
    let one = here.interface(1);
    let heard = |host: &Host| host.view().edges.first().and_then(|edge| edge.heard_ms);
    one.send(&plain(BROADCAST, mac(1), &[1; 50]));
    until(&mut [&mut here, &mut there], |hosts| heard(hosts[1]));
    assert_eq!(heard(&here), None, "it has sent, and got nothing");
}
