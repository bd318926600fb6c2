//! Sockets without room, and parts that are removed while frames pass.

use super::super::FrameLoss;
use super::super::command::{OverlayCommand, OverlayEdgeKind, OverlayEvent};
use super::fixture::*;
use crate::Event;
use isthmus_overlay::{EdgeId, InterfaceId};
use rustix::fd::OwnedFd;

/// Two hosts that know the addresses of each other's containers, so that frames have one destination.
fn learned(kind: OverlayEdgeKind) -> (Host, Host, Container, Container) {
    let (mut here, mut there) = connected(kind);
    let (one, two) = (here.interface(1), there.interface(1));
    two.send(&plain(BROADCAST, mac(2), b"here"));
    until(&mut [&mut here, &mut there], |_| one.receive());
    (here, there, one, two)
}

fn numbered(number: u16) -> Vec<u8> {
    plain(mac(2), mac(1), &[&number.to_be_bytes()[..], &[3; 60]].concat())
}

fn number_of(frame: &[u8]) -> u16 {
    u16::from_be_bytes([frame[26], frame[27]])
}

#[test]
fn a_frame_without_room_is_held_and_its_interface_not_read() {
    for kind in KINDS {
        let (mut here, mut there, one, two) = learned(kind);
        here.poller.sockets[0].has_no_room = true;
        (0..40).for_each(|number| one.send(&numbered(number)));
        until(&mut [&mut here], |hosts| hosts[0].served(1).held.is_some().then_some(()));
        let reads = here.served(1).reads;
        (40..80).for_each(|number| one.send(&numbered(number)));
        // The view is updated only after some turns.
        until(&mut [&mut here], |hosts| hosts[0].view().interfaces.iter().any(|shown| shown.is_held).then_some(()));
        assert_eq!(here.served(1).reads, reads, "the interface is not read");
        assert_eq!(two.receive(), None);
        here.poller.sockets[0].has_no_room = false;
        let mut numbers = Vec::new();
        until(&mut [&mut here, &mut there], |_| {
            numbers.extend(std::iter::from_fn(|| two.receive()).map(|frame| number_of(&frame)));
            (numbers.len() >= 80).then_some(())
        });
        assert_eq!(numbers, (0..80).collect::<Vec<_>>(), "{kind:?}");
    }
}

#[test]
fn a_poller_carries_a_stream_until_only_short_frames_pass() {
    for kind in KINDS {
        let (mut here, mut there, one, two) = learned(kind);
        assert!(!here.poller.carries_stream() && !there.poller.carries_stream(), "{kind:?}");
        one.send(&large(mac(2), mac(1), 20_000));
        until(&mut [&mut here], |hosts| hosts[0].poller.carries_stream().then_some(()));
        until(&mut [&mut there], |hosts| hosts[0].poller.carries_stream().then_some(()));
        until(&mut [&mut here, &mut there], |hosts| {
            one.send(&numbered(1));
            while two.receive().is_some() {}
            hosts.iter().all(|host| !host.poller.carries_stream()).then_some(())
        });
    }
}

#[test]
fn a_flood_does_not_wait_for_room() {
    let (mut here, _there, one, _two) = learned(OverlayEdgeKind::Fast);
    let local = here.interface(2);
    here.poller.sockets[0].has_no_room = true;
    one.send(&plain(BROADCAST, mac(1), b"all"));
    until(&mut [&mut here], |_| local.receive());
    assert!(here.served(1).held.is_none());
    assert_eq!(here.edge_lost(FrameLoss::NoRoom), 1);
}

#[test]
fn an_interface_is_read_again_if_the_edge_of_its_held_frame_is_removed() {
    let (mut here, _there, one, _two) = learned(OverlayEdgeKind::Vxlan);
    let local = here.interface(2);
    here.poller.sockets[0].has_no_room = true;
    one.send(&numbered(1));
    until(&mut [&mut here], |hosts| hosts[0].served(1).held.is_some().then_some(()));
    one.send(&numbered(2)); // Its arrival is reported before the edge goes.
    while here.step() {}
    here.execute(OverlayCommand::RemoveEdge { network: NETWORK, edge: EDGE });
    let frame = until(&mut [&mut here], |_| local.receive());
    assert_eq!(number_of(&frame), 2, "the address is no longer known, so the frame is flooded");
}

#[test]
fn a_gone_interface_is_reported_once() {
    let mut host = Host::new();
    let (one, two) = (host.interface(1), host.interface(2));
    one.send(&plain(BROADCAST, mac(1), b"before"));
    until(&mut [&mut host], |_| two.receive());
    two.send(&plain(BROADCAST, mac(2), b"never read"));
    until(&mut [&mut host], |hosts| (hosts[0].served(1).counters.sent == 1).then_some(()));
    drop(one); // With a frame that was not read, so that the next read fails as that of a deleted TAP.
    let gone = until(&mut [&mut host], |hosts| hosts[0].events().pop());
    let event = OverlayEvent::InterfaceGone { network: NETWORK, interface: InterfaceId(1) };
    assert!(matches!(gone, Event::Overlay(reported) if reported == event));
    for number in 0..100 {
        two.send(&plain(mac(1), mac(2), &[number; 60]));
        host.step();
    }
    while host.step() {}
    assert!(host.events().is_empty());
    host.execute(OverlayCommand::RemoveInterface { network: NETWORK, interface: InterfaceId(1) });
    let again = host.interface(1);
    two.send(&plain(mac(1), mac(2), b"again"));
    until(&mut [&mut host], |_| again.receive());
}

#[test]
fn a_frame_that_the_kernel_refuses_is_counted() {
    let mut host = Host::new();
    let one = host.interface(1);
    host.interface_on(2, OwnedFd::from(std::fs::File::open("/dev/zero").unwrap()));
    // The device is always readable, and is gone for the poller only if reading fails; only writing matters here.
    one.send(&plain(BROADCAST, mac(1), b"refused"));
    until(&mut [&mut host], |hosts| (hosts[0].served(2).counters.lost.count(FrameLoss::Refused) == 1).then_some(()));
}

#[test]
fn parts_are_removed_while_frames_pass() {
    for kind in KINDS {
        let (mut here, mut there, one, two) = learned(kind);
        let burst = |one: &Container| (0..40).for_each(|number| one.send(&numbered(number)));
        let to = here.network().edge(EDGE).unwrap().to;
        burst(&one);
        here.step();
        here.execute(OverlayCommand::RemoveEdge { network: NETWORK, edge: EDGE });
        until(&mut [&mut here], |hosts| (hosts[0].served(1).counters.received == 40).then_some(()));
        here.edge(EdgeId(5), to);
        burst(&one);
        here.step();
        here.execute(OverlayCommand::RemoveInterface { network: NETWORK, interface: InterfaceId(1) });
        assert!(rustix::io::write(&one.0, b"more").is_err(), "the TAP is closed");
        let one = here.interface(1);
        there.execute(OverlayCommand::RemoveInterface { network: NETWORK, interface: InterfaceId(1) });
        drop(two);
        let two = there.interface(1);
        one.send(&plain(BROADCAST, mac(1), b"works"));
        until(&mut [&mut here, &mut there], |_| two.receive().filter(|frame| frame.ends_with(b"works")));
        burst(&one);
        here.step();
        here.execute(OverlayCommand::RemoveNetwork(NETWORK));
        while here.step() | there.step() {}
        assert!(here.poller.networks.iter().all(Option::is_none));
        two.send(&plain(BROADCAST, mac(2), b"to a removed network"));
        until(&mut [&mut here, &mut there], |hosts| {
            (hosts[0].refused.unknown_senders.load(std::sync::atomic::Ordering::Relaxed) > 0).then_some(())
        });
    }
}
