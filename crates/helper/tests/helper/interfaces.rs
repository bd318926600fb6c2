//! Interfaces have the properties that were asked for, here and in another namespace, and their frames reach the descriptor.

use std::net::UdpSocket;

use isthmus_helper::{InterfaceName, Mtu, RefusalReason, TapRequest};
use isthmus_link::TAP_HEADER_BYTES;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{bed, ip, ip_ok, link, open, open_in, reason, start, tap};

#[test]
fn tap_has_the_properties_of_its_request() {
    let Some(bed) = bed() else { return };
    let (_helper, mut client) = start(&bed.a, &[]);
    assert!(client.info().has_net_admin && client.info().has_tun && !client.info().has_namespaces);
    let opened = client.open_tap(tap("web.front-1", &["10.9.0.1/24", "fd09::1/64"]), None).unwrap();
    let shown = link(&bed.a, "web.front-1");
    let begin = format!("{}: web.front-1: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500", opened.info.index);
    assert!(shown.starts_with(&begin), "{shown}");
    for part in ["link/ether 02:00:00:00:00:11", "tun type tap pi off vnet_hdr on persist off", "alias isthmus "] {
        assert!(shown.contains(part), "{part} is missing in {shown}");
    }
    assert_eq!(shown.contains("gso_max_size 61440"), opened.info.has_gso_max_size, "{shown}");
    let addresses = ip(&bed.a, "-o addr show dev web.front-1");
    assert!(addresses.contains("inet 10.9.0.1/24") && addresses.contains("inet6 fd09::1/64"), "{addresses}");
    assert_eq!(link(&bed.b, "web.front-1"), "");
}

#[test]
fn tap_in_another_namespace_is_there_only() {
    let Some(bed) = bed() else { return };
    let (_helper, mut client) = start(&bed.a, &["--namespaces"]);
    assert!(client.info().has_namespaces);
    let there = open_in(&mut client, tap("tap0", &["10.9.0.2/24"]), &bed.b).unwrap();
    assert_eq!(link(&bed.a, "tap0"), "");
    assert!(ip(&bed.b, "-o addr show dev tap0").contains("inet 10.9.0.2/24"));
    // The same name is free here, and the helper still is at home.
    let here = open(&mut client, "tap0");
    assert!(link(&bed.a, "tap0").contains("mtu 1500"));
    let refused = client.set_mtu(there.info.interface, Mtu::new(9000).unwrap());
    assert_eq!(reason(refused), RefusalReason::InterfaceElsewhere);
    client.set_mtu(here.info.interface, Mtu::new(4000).unwrap()).unwrap();
    assert!(link(&bed.b, "tap0").contains("mtu 1500") && link(&bed.a, "tap0").contains("mtu 4000"));
}

#[test]
fn tap_is_a_port_of_the_bridge_in_its_namespace() {
    let Some(bed) = bed() else { return };
    let (_helper, mut client) = start(&bed.a, &["--namespaces", "--bridges"]);
    let request = |name| TapRequest { bridge: Some(InterfaceName::new("br0").unwrap()), ..tap(name, &[]) };
    ip_ok(&bed.a, "link add br0 type bridge");
    let _here = client.open_tap(request("tap0"), None).unwrap();
    let shown = link(&bed.a, "tap0");
    assert!(shown.contains(",UP,") && shown.contains("master br0") && shown.contains("bridge_slave"), "{shown}");
    assert_eq!(reason(open_in(&mut client, request("tap0"), &bed.b)), RefusalReason::NoBridge);
    ip_ok(&bed.b, "link add br0 type bridge");
    let _there = open_in(&mut client, request("tap0"), &bed.b).unwrap();
    assert!(link(&bed.b, "tap0").contains("master br0"));
}

#[test]
fn changes_take_effect() {
    let Some(bed) = bed() else { return };
    let (_helper, mut client) = start(&bed.a, &[]);
    let opened = open(&mut client, "tap0");
    let interface = opened.info.interface;
    client.set_mtu(interface, Mtu::new(65_493).unwrap()).unwrap();
    client.set_up(interface, false).unwrap();
    let shown = link(&bed.a, "tap0");
    assert!(shown.contains("<BROADCAST,MULTICAST> mtu 65493"), "{shown}");
    client.set_up(interface, true).unwrap();
    assert!(link(&bed.a, "tap0").contains(",UP,"));
    for address in ["10.9.0.1/24", "fd09::1/64"] {
        client.add_address(interface, address.parse().unwrap()).unwrap();
        assert!(ip(&bed.a, "-o addr show dev tap0").contains(address));
        client.del_address(interface, address.parse().unwrap()).unwrap();
        assert!(!ip(&bed.a, "-o addr show dev tap0").contains(address));
    }
}

/// The kernel asks for the address of a neighbour. The question comes behind a header of 12 bytes.
#[test]
fn frames_of_the_interface_reach_the_descriptor() {
    let Some(bed) = bed() else { return };
    let (_helper, mut client) = start(&bed.a, &[]);
    let opened = client.open_tap(tap("tap0", &["10.9.0.1/24"]), None).unwrap();
    let socket = bed.a.with(|| UdpSocket::bind("10.9.0.1:0")).unwrap().unwrap();
    socket.send_to(b"x", "10.9.0.2:9").unwrap();
    let mut frame = [0; 2048];
    loop {
        let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(&opened.descriptor, PollFlags::IN)], Some(&limit)).unwrap();
        assert_eq!(ready, 1, "no request for the address of the neighbour");
        let bytes = rustix::io::read(&opened.descriptor, &mut frame).unwrap();
        let frame = &frame[TAP_HEADER_BYTES..bytes];
        if frame[12..14] == [0x08, 0x06] {
            assert_eq!((&frame[..6], &frame[6..12]), (&[0xFF; 6][..], &[2, 0, 0, 0, 0, 0x11][..]));
            break assert_eq!(frame[38..42], [10, 9, 0, 2]);
        }
    }
    let flags = rustix::fs::fcntl_getfl(&opened.descriptor).unwrap();
    assert!(flags.contains(rustix::fs::OFlags::NONBLOCK));
}
