//! Lossy wires: what the pure line decided is what happens to packets.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};

use isthmus_netns::impairment::FrameFate;
use isthmus_netns::{ImpairedWire, Impairments, Wire, WireDirection};
use isthmus_testbed::{Deadline, eventually};

use crate::{Done, TIMEOUT, exchange, two_hosts, udp};

fn good() -> Impairments {
    Impairments::default()
}

#[test]
fn perfect_wire_carries_every_size_both_ways() {
    let Some((mut bed, a, b)) = two_hosts() else { return };
    let wire = bed.impaired(&a, &b, &Wire::mtu(9000), good()).unwrap();
    let (one, other) = (udp(wire.a()), udp(wire.b()));
    exchange(&one, &other).unwrap();
    let mut buffer = vec![0; 10_000];
    for bytes in (0..=8972).step_by(23).chain([8972]) {
        let sent = (0..bytes).map(|at| (at * 7 + bytes) as u8).collect::<Vec<_>>();
        one.send_to(&sent, other.local_addr().unwrap()).unwrap();
        let got = other.recv(&mut buffer).unwrap();
        assert!(buffer[..got] == sent, "{bytes} bytes");
    }
    let counters = wire.counters(WireDirection::Forth).unwrap();
    assert_eq!((counters.offered, counters.delivered, counters.overrun), (393, 393, 0));
    assert_eq!(counters.longest_bytes, 9014);
    assert_eq!(wire.counters(WireDirection::Back).unwrap().offered, 1);
}

/// How often each of `count` datagrams is to arrive by what the seed says.
fn expected_arrivals(conditions: &Impairments, direction: WireDirection, count: u64) -> BTreeMap<u64, u64> {
    let fates = (0..count).map(|number| (number, FrameFate::of(conditions, direction, number)));
    fates.filter(|(_, fate)| !fate.is_lost).map(|(number, fate)| (number, 1 + u64::from(fate.is_doubled))).collect()
}

/// Sends `count` numbered datagrams, never many more than were received, and tells how often each arrived.
fn send_numbered(
    from: &UdpSocket,
    to: &UdpSocket,
    foretold: &BTreeMap<u64, u64>,
    count: u64,
) -> Done<BTreeMap<u64, u64>> {
    let (mut arrived, mut buffer) = (BTreeMap::new(), [0; 8]);
    for first in (0..count).step_by(50) {
        for number in first..first + 50 {
            from.send_to(&u64::to_be_bytes(number), to.local_addr()?)?;
        }
        for _ in 0..foretold.range(first..first + 50).map(|(_, times)| times).sum() {
            to.recv(&mut buffer)?;
            *arrived.entry(u64::from_be_bytes(buffer)).or_default() += 1;
        }
    }
    Ok(arrived)
}

#[test]
fn loss_and_duplication_follow_the_seed() {
    let Some((mut bed, a, b)) = two_hosts() else { return };
    let conditions =
        Impairments { loss: 0.1, duplicate: 0.1, reorder: 0.1, delay_us: 200, jitter_us: 100, seed: 42, ..good() };
    let wire = bed.impaired(&a, &b, &Wire::default(), conditions).unwrap();
    let (one, other) = (udp(wire.a()), udp(wire.b()));
    for (direction, from, to) in [(WireDirection::Forth, &one, &other), (WireDirection::Back, &other, &one)] {
        let foretold = expected_arrivals(&conditions, direction, 2000);
        let arrived = send_numbered(from, to, &foretold, 2000).unwrap();
        assert!(arrived == foretold, "{direction:?}");
        let counters = wire.counters(direction).unwrap();
        assert_eq!((counters.offered, counters.overrun, counters.queue_full, counters.rejected), (2000, 0, 0, 0));
        assert_eq!(counters.lost, 2000 - foretold.len() as u64);
        assert_eq!(counters.duplicated, foretold.values().filter(|times| **times == 2).count() as u64);
        assert_eq!(counters.delivered, foretold.values().sum::<u64>());
        assert!(counters.reordered > 0);
    }
}

#[test]
fn conditions_can_be_changed_under_way_and_in_one_direction() {
    let Some((mut bed, a, b)) = two_hosts() else { return };
    let wire = bed.impaired(&a, &b, &Wire::default(), good()).unwrap();
    let (one, other) = (udp(wire.a()), udp(wire.b()));
    exchange(&one, &other).unwrap();
    let dead = Impairments { loss: 1.0, ..good() };
    wire.change_one(WireDirection::Forth, dead);
    assert_eq!((wire.conditions(WireDirection::Forth), wire.conditions(WireDirection::Back)), (dead, good()));
    (0..10).for_each(|_| assert_eq!(one.send_to(b"lost", other.local_addr().unwrap()).unwrap(), 4));
    let lost = || wire.counters(WireDirection::Forth).unwrap().lost;
    eventually(Deadline::after(TIMEOUT), || lost() == 10).unwrap();
    other.send_to(b"not", one.local_addr().unwrap()).unwrap();
    assert_eq!(one.recv(&mut [0; 10]).unwrap(), 3);
    wire.change(good());
    exchange(&one, &other).unwrap();
    assert_eq!(lost(), 10);
}

#[test]
fn slow_line_drops_and_counts_overflow() {
    let Some((mut bed, a, b)) = two_hosts() else { return };
    // A frame of 1042 bytes and 24 more takes 8528 seconds at 1 bit/s: what waits does not get shorter while we look.
    let slow = Impairments { rate_bits: Some(1), queue_bytes: 4 * 1066 + 1042, ..good() };
    let wire = bed.impaired(&a, &b, &Wire::default(), slow).unwrap();
    let (one, other) = (udp(wire.a()), udp(wire.b()));
    (0..20).for_each(|_| assert_eq!(one.send_to(&[0; 1000], other.local_addr().unwrap()).unwrap(), 1000));
    let counters = || wire.counters(WireDirection::Forth).unwrap();
    eventually(Deadline::after(TIMEOUT), || counters().offered == 20).unwrap();
    assert_eq!((counters().queue_full, counters().delivered, counters().lost), (15, 0, 0));
}

#[test]
fn unplugging_removes_the_carrier_until_plugged_again() {
    let Some((mut bed, a, b)) = two_hosts() else { return };
    let wire = bed.impaired(&a, &b, &Wire::default(), good()).unwrap();
    let (one, other) = (udp(wire.a()), udp(wire.b()));
    exchange(&one, &other).unwrap();
    wire.down().unwrap();
    assert!([wire.a(), wire.b()].iter().all(|end| !end.has_carrier().unwrap()));
    wire.up().unwrap();
    assert!([wire.a(), wire.b()].iter().all(|end| end.has_carrier().unwrap()));
    exchange(&one, &other).unwrap();
}

/// Sends a megabyte by TCP and checks it at the other end.
fn megabyte_by_tcp(wire: &ImpairedWire) -> Done {
    let (a, b) = (wire.a(), wire.b());
    let server = b.host.with(|| TcpListener::bind((b.v4, 0)))??;
    let at = server.local_addr()?;
    let mut sender = a.host.with(|| TcpStream::connect(at))??;
    let (mut receiver, _) = server.accept()?;
    receiver.set_read_timeout(Some(TIMEOUT))?;
    let sent = (0..1_u32 << 20).map(|at| (at % 251) as u8).collect::<Vec<_>>();
    let copy = sent.clone();
    let sending = std::thread::spawn(move || sender.write_all(&copy));
    let mut received = Vec::new();
    receiver.read_to_end(&mut received)?;
    sending.join().expect("no panic")?;
    assert!(received == sent);
    Ok(())
}

#[test]
fn tcp_gets_through_a_bad_wire_in_frames_of_the_mtu() {
    let Some((mut bed, a, b)) = two_hosts() else { return };
    let bad = Impairments { loss: 0.02, duplicate: 0.02, reorder: 0.02, delay_us: 100, jitter_us: 50, ..good() };
    let wire = bed.impaired(&a, &b, &Wire { offloads: true, ..Wire::default() }, bad).unwrap();
    megabyte_by_tcp(&wire).unwrap();
    let counters = wire.counters(WireDirection::Forth).unwrap();
    assert_eq!(counters.longest_bytes, 1514, "segments are cut before they enter, with their checksums");
    assert!(counters.lost > 0 && counters.duplicated > 0 && counters.reordered > 0, "{counters:?}");
}

#[test]
fn mtu_of_the_wire_can_be_lowered() {
    let Some((mut bed, a, b)) = two_hosts() else { return };
    let wire = bed.impaired(&a, &b, &Wire::mtu(9000), good()).unwrap();
    megabyte_by_tcp(&wire).unwrap();
    assert_eq!(wire.counters(WireDirection::Forth).unwrap().longest_bytes, 9014);
    wire.set_mtu(1500).unwrap();
    let (one, other) = (udp(wire.a()), udp(wire.b()));
    let before = wire.counters(WireDirection::Forth).unwrap().offered;
    one.send_to(&[1; 2000], other.local_addr().unwrap()).unwrap();
    assert_eq!(other.recv(&mut [0; 3000]).unwrap(), 2000);
    assert_eq!(wire.counters(WireDirection::Forth).unwrap().offered - before, 2, "in two fragments");
}
