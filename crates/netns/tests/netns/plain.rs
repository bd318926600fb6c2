//! Plain wires: addresses, MTU, offloads, down and up.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use isthmus_netns::{Cable, End, Wire, WireInterface, active_offloads};

use crate::{Done, TIMEOUT, bound, exchange, packets, two_hosts, udp};

#[test]
fn datagrams_cross_in_both_directions_and_by_both_ips() {
    let Some((mut bed, a, b)) = two_hosts() else { return };
    let cable = bed.link(&a, &b, &Wire { ipv6: true, ..Wire::mtu(9000) }).unwrap();
    exchange(&udp(cable.a()), &udp(cable.b())).unwrap();
    let v6 = |end: &WireInterface| bound(&end.host, (end.v6.expect("asked for"), 0).into());
    exchange(&v6(cable.a()), &v6(cable.b())).unwrap();
}

#[test]
fn hosts_have_the_requested_names_and_addresses() {
    let Some((mut bed, a, b)) = two_hosts() else { return };
    let end = |name: &str, last| End {
        name: Some(name.to_owned()),
        mac: Some([0x02, 1, 2, 3, 4, last]),
        v4: Some(Ipv4Addr::new(192, 168, 7, last)),
        v6: None,
    };
    let cable = bed.link(&a, &b, &Wire { a: end("left", 1), b: end("right", 9), ..Wire::default() }).unwrap();
    assert_eq!((cable.b().name.as_str(), cable.b().mac), ("right", [2, 1, 2, 3, 4, 9]));
    assert!(packets(&a).contains_key("left") && packets(&b).contains_key("right"));
    exchange(&udp(cable.a()), &udp(cable.b())).unwrap();
    let again = bed.link(&a, &b, &Wire { a: end("left", 1), ..Wire::default() }).unwrap_err();
    assert!(again.to_string().contains("left"), "{again}");
}

#[test]
fn wires_between_three_hosts_are_isolated() {
    let Some((mut bed, a, b)) = two_hosts() else { return };
    let c = bed.host("c").unwrap();
    let wires = [(&a, &b), (&b, &c), (&a, &b)].map(|(from, to)| bed.link(from, to, &Wire::default()).unwrap());
    for wire in &wires {
        exchange(&udp(wire.a()), &udp(wire.b())).unwrap();
    }
    assert_eq!(wires.iter().map(|wire| wire.a().name.as_str()).collect::<Vec<_>>(), ["wire0", "wire1", "wire2"]);
    assert_eq!(packets(&a)["wire0"], (1, 1));
    assert_eq!(packets(&b)["wire1"], (1, 1));
}

#[test]
fn unused_wire_carries_no_frames() {
    let Some((mut bed, a, b)) = two_hosts() else { return };
    let cable = bed.link(&a, &b, &Wire::default()).unwrap();
    let (one, other) = (udp(cable.a()), udp(cable.b()));
    for round in 0..10 {
        assert_eq!(packets(&a)["wire0"], (round, round), "neither ARP nor IPv6 disturbs a count");
        exchange(&one, &other).unwrap();
    }
}

/// Frames that a datagram of `bytes` takes.
fn frames_of(cable: &Cable, bytes: usize) -> Done<u64> {
    let (one, other) = (udp(cable.a()), udp(cable.b()));
    let before = packets(&cable.b().host)[&cable.b().name].0;
    one.send_to(&vec![7; bytes], other.local_addr()?)?;
    let mut buffer = vec![0; 65_536];
    assert_eq!(other.recv(&mut buffer)?, bytes);
    Ok(packets(&cable.b().host)[&cable.b().name].0 - before)
}

#[test]
fn mtu_is_as_requested_and_can_be_lowered() {
    let Some((mut bed, a, b)) = two_hosts() else { return };
    let cable = bed.link(&a, &b, &Wire::mtu(9000)).unwrap();
    let head = 28; // IPv4 and UDP
    assert_eq!([8999, 9000, 9001].map(|bytes| frames_of(&cable, bytes - head).unwrap()), [1, 1, 2]);
    cable.set_mtu(1500).unwrap();
    assert_eq!([1500, 1501].map(|bytes| frames_of(&cable, bytes - head).unwrap()), [1, 2]);
}

#[test]
fn wire_restores_its_settings_when_it_comes_up() {
    let Some((mut bed, a, b)) = two_hosts() else { return };
    let cable = bed.link(&a, &b, &Wire { ipv6: true, ..Wire::default() }).unwrap();
    let (one, other) = (udp(cable.a()), udp(cable.b()));
    cable.down().unwrap();
    assert!(one.send_to(b"lost", other.local_addr().unwrap()).is_err());
    cable.up().unwrap();
    let v6 = |end: &WireInterface| bound(&end.host, (end.v6.expect("asked for"), 0).into());
    let (one6, other6) = (v6(cable.a()), v6(cable.b()));
    exchange(&one, &other).unwrap();
    exchange(&one6, &other6).unwrap();
}

/// Packets that arrive when a megabyte crosses by TCP.
fn packets_of_a_megabyte(cable: &Cable) -> Done<u64> {
    const BYTES: usize = 1 << 20;
    let (a, b) = (cable.a(), cable.b());
    let server = b.host.with(|| TcpListener::bind((b.v4, 0)))??;
    let at = server.local_addr()?;
    let before = packets(&b.host)[&b.name].0;
    let mut sender = a.host.with(|| TcpStream::connect(at))??;
    let (mut receiver, _) = server.accept()?;
    receiver.set_read_timeout(Some(TIMEOUT))?;
    let sending = std::thread::spawn(move || sender.write_all(&vec![0x5A; BYTES]));
    let mut received = Vec::new();
    receiver.read_to_end(&mut received)?;
    sending.join().expect("no panic")?;
    assert!(received.len() == BYTES && received.iter().all(|byte| *byte == 0x5A));
    Ok(packets(&b.host)[&b.name].0 - before)
}

#[test]
fn offloads_are_cut_unless_asked_for() {
    let Some((mut bed, a, b)) = two_hosts() else { return };
    let whole = bed.link(&a, &b, &Wire { offloads: true, ..Wire::default() }).unwrap();
    let cut = bed.link(&a, &b, &Wire::default()).unwrap();
    for end in [cut.a(), cut.b()] {
        let active = end.host.with(|| active_offloads(&end.name)).unwrap().unwrap();
        assert!(active.iter().all(|name| !name.contains("segmentation") && !name.contains("gro")), "{active:?}");
    }
    let active = a.with(|| active_offloads(&whole.a().name)).unwrap().unwrap();
    assert!(active.contains("tx-tcp-segmentation") && active.contains("tx-udp-segmentation"), "{active:?}");
    let full_frames = (1 << 20) / 1448;
    assert!(packets_of_a_megabyte(&cut).unwrap() >= full_frames, "each frame carries no more than the MTU lets it");
    assert!(packets_of_a_megabyte(&whole).unwrap() < full_frames, "segments cross in larger pieces");
    assert!(a.with(|| active_offloads("nothing")).unwrap().is_err());
}
