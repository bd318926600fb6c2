//! Properties of the link over UDP that the suite does not check.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use isthmus_link::{Link, LinkKind, OpenError, Peer, UDP_PORT, UdpLink, UdpOptions};

use crate::pattern::{collect, drain, frame, number, passes, send_all};
use crate::testbed::{ALL, Host, Testbed, nic};

mod v4 {
    crate::suite!(super::open_v4);
}
mod v6 {
    crate::suite!(super::open_v6);
}
mod without_offload {
    crate::suite!(super::open_plain);
}

const V4: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const V6: [&str; 2] = ["2001:db8::1", "2001:db8::2"];

fn open_v4(bed: &Testbed) -> [Box<dyn Link>; 2] {
    both(bed, V4, |_| {}).map(|link| Box::new(link) as Box<dyn Link>)
}

fn open_v6(bed: &Testbed) -> [Box<dyn Link>; 2] {
    both(bed, V6, |_| {}).map(|link| Box::new(link) as Box<dyn Link>)
}

fn open_plain(bed: &Testbed) -> [Box<dyn Link>; 2] {
    both(bed, V4, |options| options.offload = false).map(|link| Box::new(link) as Box<dyn Link>)
}

/// Both ends, each of which knows the other.
fn both(bed: &Testbed, addresses: [&str; 2], with: fn(&mut UdpOptions)) -> [UdpLink; 2] {
    let mut a = end(&bed.a, 1, with);
    let mut b = end(&bed.b, 2, with);
    a.set_peers(&[peer(addresses[1], &[2])]).unwrap();
    b.set_peers(&[peer(addresses[0], &[1])]).unwrap();
    [a, b]
}

fn end(host: &Host, number: u8, with: fn(&mut UdpOptions)) -> UdpLink {
    let mut options = UdpOptions::new(nic(number));
    with(&mut options);
    host.run(move || UdpLink::open(&options).unwrap())
}

fn peer(ip: &str, names: &[u8]) -> Peer {
    Peer { address: address(ip), nics: names.iter().map(|&name| nic(name)).collect() }
}

fn address(ip: &str) -> SocketAddr {
    SocketAddr::new(ip.parse::<IpAddr>().unwrap(), UDP_PORT)
}

#[test]
fn equal_frames_leave_and_arrive_as_one() {
    let Some(bed) = Testbed::new(9000) else { return };
    let [mut a, mut b] = both(&bed, V4, |_| {});
    let frames: Vec<_> = (0..28).map(|n| frame(nic(2), nic(1), n, 8972)).collect();
    assert_eq!(send_all(&mut a, &frames), 0);
    assert!(collect(&mut b, 28) == frames);
    // One call for four messages; a cable that takes super frames hands them over whole.
    assert_eq!(a.counters().sends, 1);
    assert!(b.counters().receives < 28, "{:?}", b.counters());
}

#[test]
fn mixed_sizes_and_hosts_stay_in_order() {
    let Some(bed) = Testbed::new(9000) else { return };
    let [mut a, mut b] = both(&bed, V4, |_| {});
    let mut c = bed.b.run(|| {
        let bind = "192.0.2.2:5000".parse().unwrap();
        UdpLink::open(&UdpOptions { bind, ..UdpOptions::new(nic(3)) }).unwrap()
    });
    c.set_peers(&[peer(V4[0], &[1])]).unwrap();
    let other = Peer { address: "192.0.2.2:5000".parse().unwrap(), nics: vec![nic(3)] };
    a.set_peers(&[peer(V4[1], &[2]), other]).unwrap();
    for round in 0..40_u32 {
        let sizes = [60, 60, 1400, 1400, 1400, 900, 8972, 8972, 8972, 61, 62, 63, 64, 64];
        let frames: Vec<_> = (0..32)
            .map(|n| {
                let pick = (n * 7 + round) % 97;
                frame(nic(2 + u8::from(pick % 5 == 0)), nic(1), 100 * round + n, sizes[pick as usize % sizes.len()])
            })
            .collect();
        assert_eq!(send_all(&mut a, &frames), 0);
        let (to_b, to_c): (Vec<_>, Vec<_>) = frames.into_iter().partition(|frame| frame[5] == 2);
        assert!(collect(&mut b, to_b.len()) == to_b && collect(&mut c, to_c.len()) == to_c, "round {round}");
    }
}

#[test]
fn datagrams_of_unknown_hosts_are_dropped() {
    let Some(bed) = Testbed::new(1500) else { return };
    let [mut a, mut b] = both(&bed, V4, |_| {});
    bed.a.run(|| {
        let unknown_sender = UdpSocket::bind("192.0.2.1:40000").unwrap();
        for n in 0..7 {
            unknown_sender.send_to(&frame(nic(2), nic(1), n, 100), (V4[1], UDP_PORT)).unwrap();
        }
        unknown_sender.send_to(&[], (V4[1], UDP_PORT)).unwrap();
    });
    passes(&mut a, &mut b, 9, 100);
    assert_eq!((b.counters().received, b.counters().sender_unknown), (1, 8));
}

#[test]
fn datagrams_of_known_hosts_are_checked() {
    let Some(bed) = Testbed::new(1500) else { return };
    let mut b = end(&bed.b, 2, |_| {});
    let unusual = |port| Peer { address: SocketAddr::new(V4[0].parse().unwrap(), port), nics: vec![nic(port as u8)] };
    b.set_peers(&[unusual(40001), unusual(40002)]).unwrap();
    bed.a.run(|| {
        let host = UdpSocket::bind("192.0.2.1:40001").unwrap();
        let (own, its) = (nic(40001_u16 as u8), nic(40002_u16 as u8));
        let mut frames = vec![vec![], vec![0; 13], frame(nic(2), its, 1, 100), frame(nic(2), nic(2), 2, 100)];
        frames.extend([frame(nic(7), own, 3, 100), frame(nic(2), ALL, 4, 100), frame(nic(2), own, 5, 100)]);
        frames[4 + 1][12] = 0; // Another ethertype.
        frames.extend([frame(ALL, nic(2), 6, 100), frame(nic(2), own, 7, 100)]);
        for frame in frames {
            host.send_to(&frame, (V4[1], UDP_PORT)).unwrap();
        }
    });
    let came = collect(&mut b, 3);
    // An announcement under our own address is for the board to judge.
    assert_eq!(came.iter().map(|bytes| number(bytes)).collect::<Vec<_>>(), [5, 6, 7]);
    let seen = b.counters();
    assert_eq!((seen.short, seen.sender_forged, seen.not_for_us, seen.ethertype_foreign), (1, 2, 1, 1), "{seen:?}");
}

#[test]
fn names_are_learned_from_announcements_of_configured_hosts() {
    let Some(bed) = Testbed::new(1500) else { return };
    let (mut a, mut b) = (end(&bed.a, 1, |_| {}), end(&bed.b, 2, |_| {}));
    a.set_peers(&[peer(V4[1], &[])]).unwrap();
    b.set_peers(&[peer(V4[0], &[])]).unwrap();
    assert_eq!(send_all(&mut b, &[frame(nic(1), nic(2), 0, 100)]), 1);
    assert_eq!(b.counters().peer_unknown, 1);
    assert_eq!(send_all(&mut a, &[frame(ALL, nic(1), 1, 100)]), 0);
    assert_eq!(collect(&mut b, 1).len(), 1);
    assert_eq!(send_all(&mut b, &[frame(nic(1), nic(2), 2, 100)]), 0);
    assert_eq!(number(&collect(&mut a, 1)[0]), 2);
}

#[test]
fn a_host_that_becomes_known_later_gets_the_next_broadcast() {
    let Some(bed) = Testbed::new(1500) else { return };
    let (mut a, mut b) = (end(&bed.a, 1, |_| {}), end(&bed.b, 2, |_| {}));
    b.set_peers(&[peer(V4[0], &[1])]).unwrap();
    let updates = a.peer_updates();
    updates.send(vec![peer(V4[1], &[])]).unwrap();
    assert_eq!(send_all(&mut a, &[frame(ALL, nic(1), 1, 100)]), 0);
    assert_eq!(number(&collect(&mut b, 1)[0]), 1);
    drop(a);
    assert!(updates.send(Vec::new()).is_err(), "the link is gone");
}

#[test]
fn a_broadcast_goes_to_every_host() {
    let Some(bed) = Testbed::new(1500) else { return };
    let mut a = end(&bed.a, 1, |_| {});
    let mut others: Vec<UdpLink> = (0..40_u8)
        .map(|n| {
            let bind = SocketAddr::new(V4[1].parse().unwrap(), 5000 + u16::from(n));
            let open = move || UdpLink::open(&UdpOptions { bind, ..UdpOptions::new(nic(10 + n)) }).unwrap();
            let mut link = bed.b.run(open);
            link.set_peers(&[peer(V4[0], &[1])]).unwrap();
            link
        })
        .collect();
    let peers: Vec<Peer> = others.iter().map(|link| Peer { address: link.bound(), nics: vec![] }).collect();
    a.set_peers(&peers).unwrap();
    let all = [frame(ALL, nic(1), 1, 64)];
    assert_eq!(send_all(&mut a, &all), 0);
    others.iter_mut().for_each(|link| assert_eq!(collect(link, 1), all));
    assert_eq!(a.counters().sent, 40);
    assert!(drain(&mut a).is_empty());
}

#[test]
fn addresses_that_cannot_be_used_are_named() {
    let Some(bed) = Testbed::new(1500) else { return };
    let at = |bind: &str| UdpOptions { bind: bind.parse().unwrap(), ..UdpOptions::new(nic(1)) };
    let (usual, foreign, v4) = (at("0.0.0.0:34527"), at("192.0.2.77:34527"), at("192.0.2.1:1234"));
    bed.a.run(move || {
        let first = UdpLink::open(&usual).unwrap();
        assert_eq!((first.kind(), first.name()), (LinkKind::Udp, "udp:0.0.0.0:34527"));
        assert!(matches!(UdpLink::open(&usual), Err(OpenError::AddressInUse { .. })));
        assert!(matches!(UdpLink::open(&foreign), Err(OpenError::AddressNotLocal { .. })));
        let mut v4 = UdpLink::open(&v4).unwrap();
        assert!(matches!(v4.set_peers(&[peer(V6[1], &[])]), Err(OpenError::MixedFamilies { .. })));
        let many = vec![peer(V4[1], &[]); 2000];
        assert!(matches!(v4.set_peers(&many), Err(OpenError::TooManyPeers { count: 2000, .. })));
    });
}

#[test]
fn both_ip_versions_share_a_socket() {
    let Some(bed) = Testbed::new(9000) else { return };
    let [mut a, mut b] = both(&bed, V4, |_| {});
    assert_eq!(a.frame_bytes_max(), 9000 - 28);
    a.set_peers(&[peer(V4[1], &[2]), peer(V6[1], &[])]).unwrap();
    assert_eq!(a.frame_bytes_max(), 9000 - 48);
    passes(&mut a, &mut b, 1, 100);
    b.set_peers(&[peer(V6[0], &[1])]).unwrap();
    assert_eq!(send_all(&mut b, &[frame(nic(1), nic(2), 2, 100)]), 0);
    assert_eq!(collect(&mut a, 0).len(), 0);
    // It comes from the IPv6 address of a host that is configured by its IPv4 address.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while a.counters().sender_forged == 0 && std::time::Instant::now() < end {
        assert_eq!(a.receive().unwrap(), 0);
    }
    assert_eq!(a.counters().sender_forged, 1);
}

#[test]
fn a_configured_limit_holds() {
    let Some(bed) = Testbed::new(9000) else { return };
    let [mut a, mut b] = both(&bed, V4, |options| options.frame_bytes_max = Some(1500));
    let frames = [1501, 1500, 9000].map(|len| frame(nic(2), nic(1), len, len as usize));
    assert_eq!(send_all(&mut a, &frames), 2);
    assert_eq!(number(&collect(&mut b, 1)[0]), 1500);
    assert_eq!(a.counters().too_long, 2);
}
