//! Floods cost other interfaces and networks one bounded turn, and addresses of neighbours cannot be taken.

use super::super::FrameLoss;
use super::super::command::*;
use super::fixture::*;
use isthmus_link::Tap;
use isthmus_overlay::vxlan::Vni;
use isthmus_overlay::{InterfaceId, MacAddr, NetworkOptions};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::sync::Arc;

const ATTACKERS: u16 = 16;
const OTHER: OverlayNetworkNumber = OverlayNetworkNumber(8);

/// Adds an interface. Returns the container's end.
fn interface(host: &mut Host, network: OverlayNetworkNumber, number: u16, sources: Option<Vec<MacAddr>>) -> Container {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (tap, container) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let (interface, tap) = (InterfaceId(number), Tap::new("tap", tap));
    let new = NewOverlayInterface { network, interface, tap, mtu: 1500, sources };
    host.execute(OverlayCommand::AddInterface(new));
    Container(container)
}

fn broadcast(from: u8) -> Vec<u8> {
    plain(BROADCAST, mac(from), &[from; 50])
}

#[test]
fn a_flood_costs_another_network_one_bounded_turn() {
    let mut host = Host::new();
    host.execute(OverlayCommand::AddNetwork(Box::new(NewOverlayNetwork {
        number: OTHER,
        vni: Vni::new(9).unwrap(),
        options: NetworkOptions::new([3, 4]),
        view: Arc::default(),
    })));
    let attackers: Vec<_> = (0..ATTACKERS).map(|number| interface(&mut host, NETWORK, number, None)).collect();
    let victims = [1, 2].map(|number| interface(&mut host, OTHER, number, None));
    for (attacker, number) in attackers.iter().zip(0..) {
        (0..100).for_each(|_| attacker.send(&broadcast(number)));
    }
    let received =
        |host: &mut Host| (0..ATTACKERS).map(|number| host.served(number).counters.received).collect::<Vec<_>>();
    let mut before = 0;
    for turn in 0..ATTACKERS {
        victims[0].send(&broadcast(200));
        host.step();
        assert!(victims[1].receive().is_some(), "turn {turn}: the victim's frame is not delivered");
        let now: u64 = received(&mut host).iter().sum();
        // A read and 15 copies, each as costly as 4 KiB at least: 8 frames are 512 KiB.
        assert!(now - before <= 8, "turn {turn}: {} frames of the flood", now - before);
        assert!(now > before, "turn {turn}: the flood is served, too");
        assert!(host.shared.sleeper.is_check_due, "other sources are checked before the next turn");
        before = now;
        attackers.iter().for_each(|attacker| while attacker.receive().is_some() {});
    }
    assert!(received(&mut host).iter().all(|frames| *frames > 0), "each interface of the flood had a turn");
}

#[test]
fn a_frame_with_many_copies_is_paid_for_by_later_turns() {
    let mut host = Host::new();
    let containers: Vec<_> = (0..64).map(|number| interface(&mut host, NETWORK, number, None)).collect();
    (0..3).for_each(|_| containers[0].send(&large(BROADCAST, mac(1), 30_000)));
    let mut turns = Vec::new();
    for turn in 0..20 {
        host.step();
        if containers[1].receive().is_some() {
            turns.push(turn);
        }
        containers.iter().for_each(|container| while container.receive().is_some() {});
    }
    // 64 times 34 KiB are more than four turns of 512 KiB, the first of which it begins.
    assert_eq!(turns, [0, 4, 8]);
}

#[test]
fn the_frame_that_was_held_first_is_sent_first() {
    let (mut here, mut there) = connected(OverlayEdgeKind::Fast);
    let containers = [1, 2].map(|number| here.interface(number));
    let other = there.interface(1);
    other.send(&plain(BROADCAST, mac(9), b"here"));
    until(&mut [&mut here, &mut there], |_| containers[1].receive());
    here.poller.sockets[0].has_no_room = true;
    for number in [2_u8, 1] {
        containers[usize::from(number) - 1].send(&plain(mac(9), mac(number), &[number; 50]));
        until(&mut [&mut here], |hosts| hosts[0].served(number.into()).held.is_some().then_some(()));
    }
    here.poller.sockets[0].has_no_room = false;
    let mut senders = Vec::new();
    until(&mut [&mut here, &mut there], |_| {
        senders.extend(std::iter::from_fn(|| other.receive()).map(|frame| frame[12 + 11]));
        (senders.len() == 2).then_some(())
    });
    assert_eq!(senders, [2, 1]);
}

#[test]
fn an_interface_cannot_take_the_address_of_another_one() {
    let mut host = Host::new();
    let own = |number| Some(vec![MacAddr(mac(number))]);
    let [attacker, victim, peer] = [1, 2, 3].map(|number| interface(&mut host, NETWORK, number.into(), own(number)));
    victim.send(&broadcast(2));
    until(&mut [&mut host], |_| peer.receive());
    for _ in 0..12 {
        attacker.send(&broadcast(2));
        victim.send(&plain(mac(3), mac(2), b"request"));
        assert_eq!(until(&mut [&mut host], |_| peer.receive()), plain(mac(3), mac(2), b"request"));
        peer.send(&plain(mac(2), mac(3), b"reply"));
        assert_eq!(until(&mut [&mut host], |_| victim.receive()), plain(mac(2), mac(3), b"reply"));
    }
    let lost = host.served(1).counters.lost;
    assert_eq!(
        (lost.count(FrameLoss::ForeignSource), host.served(1).counters.lost.iter().map(|(_, n)| n).sum()),
        (12, 12)
    );
}
