use std::net::IpAddr;

use proptest::prelude::*;

use super::*;

fn addresses() -> impl Strategy<Value = InterfaceAddress> {
    (any::<IpAddr>(), 0..=128_u8).prop_filter_map("unicast", |(ip, bits)| InterfaceAddress::new(ip, bits).ok())
}

fn taps() -> impl Strategy<Value = TapRequest> {
    let name = "[A-Za-z0-9_-][A-Za-z0-9._-]{0,14}".prop_map(|name| InterfaceName::new(&name).unwrap());
    let mac = any::<[u8; 6]>().prop_filter_map("unicast", |octets| MacAddress::new(octets).ok());
    let mtu = (68..=65535_u32).prop_map(|bytes| Mtu::new(bytes).unwrap());
    let list =
        proptest::collection::vec(addresses(), 0..=ADDRESSES_MAX).prop_map(|list| AddressList::new(list).unwrap());
    let bridge = proptest::option::of("[a-z][a-z0-9]{0,14}".prop_map(|name| InterfaceName::new(&name).unwrap()));
    let all = (name, mac, mtu, any::<bool>(), list, any::<u32>(), bridge);
    all.prop_map(|(name, mac, mtu, is_up, addresses, gso, bridge)| TapRequest {
        name,
        mac,
        mtu,
        is_up,
        addresses,
        gso_max_size: NonZeroU32::new(gso),
        bridge,
    })
}

fn requests() -> impl Strategy<Value = Request> {
    let number = || any::<u32>().prop_map(InterfaceNumber);
    let mtu = (68..=65535_u32).prop_map(|bytes| Mtu::new(bytes).unwrap());
    prop_oneof![
        any::<u32>().prop_map(|version| Request::Hello { version }),
        (taps(), any::<bool>()).prop_map(|(tap, attached)| {
            let namespace = if attached { NamespaceChoice::Attached } else { NamespaceChoice::Here };
            Request::OpenTap { tap, namespace }
        }),
        (number(), mtu).prop_map(|(interface, mtu)| Request::SetMtu { interface, mtu }),
        (number(), any::<bool>()).prop_map(|(interface, is_up)| Request::SetUp { interface, is_up }),
        (number(), addresses()).prop_map(|(interface, address)| Request::AddAddress { interface, address }),
        (number(), addresses()).prop_map(|(interface, address)| Request::DelAddress { interface, address }),
        number().prop_map(|interface| Request::Release { interface }),
        Just(Request::RecordConnections),
    ]
}

fn descriptors(request: &Request) -> usize {
    matches!(request, Request::OpenTap { namespace: NamespaceChoice::Attached, .. }).into()
}

proptest! {
    #[test]
    fn request_survives_its_packet(request in requests()) {
        let packet = request.emit();
        prop_assert!(packet.len() <= PACKET_BYTES_MAX);
        let count = descriptors(&request);
        prop_assert_eq!(Request::parse(&packet, count), Ok(request));
        let wrong = Request::parse(&packet, count + 1);
        prop_assert_eq!(wrong, Err(Malformed::Descriptors { have: count + 1, expected: count }));
    }

    /// An accepted packet is the one that its request emits, so no two packets mean the same.
    #[test]
    fn any_bytes_are_refused_or_canonical(packet in proptest::collection::vec(any::<u8>(), 0..=PACKET_BYTES_MAX + 8)) {
        for count in 0..=2 {
            if let Ok(request) = Request::parse(&packet, count) {
                prop_assert_eq!(request.emit(), packet.clone());
            }
            if let Ok(reply) = Reply::parse(&packet, count) {
                prop_assert!(Reply::parse(&reply.emit(), count).is_ok());
            }
        }
    }

    #[test]
    fn changed_bytes_are_refused_or_canonical(request in requests(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut packet = request.emit();
        let at = at.index(packet.len());
        packet[at] = byte;
        for count in 0..=1 {
            if let Ok(parsed) = Request::parse(&packet, count) {
                prop_assert_eq!(parsed.emit(), packet.clone());
            }
        }
    }

    #[test]
    fn every_other_length_is_refused(request in requests(), more in 1..=8_usize) {
        let packet = request.emit();
        let count = descriptors(&request);
        for len in 0..packet.len() {
            prop_assert_eq!(Request::parse(&packet[..len], count), Err(Malformed::Length { have: len }));
        }
        let longer = [&packet[..], &vec![0; more]].concat();
        prop_assert_eq!(Request::parse(&longer, count), Err(Malformed::Length { have: longer.len() }));
    }
}

#[test]
fn longest_request_fills_a_packet() {
    let address = "fd00::1/64".parse().unwrap();
    let tap = TapRequest {
        name: InterfaceName::new("fifteen-bytes-x").unwrap(),
        mac: MacAddress::new([2, 0, 0, 0, 0, 1]).unwrap(),
        mtu: Mtu::new(65_493).unwrap(),
        is_up: true,
        addresses: AddressList::new(vec![address; ADDRESSES_MAX]).unwrap(),
        gso_max_size: NonZeroU32::new(61_440),
        bridge: Some(InterfaceName::new("fifteen-bytes-y").unwrap()),
    };
    let packet = Request::OpenTap { tap, namespace: NamespaceChoice::Here }.emit();
    assert_eq!(packet.len(), PACKET_BYTES_MAX);
    assert_eq!(packet[..16], [2, 0, 0, 0, 2, 0, 0, 0, 0, 1, 1, 8, 0xD5, 0xFF, 0, 0]);
}

#[test]
fn replies_survive_their_packets() {
    let flags = || [false, true].into_iter();
    let mut replies = vec![Reply::Done, Reply::ConnectionsRecorded];
    for reason in RefusalReason::ALL {
        replies.extend([(*reason).into(), reason.by(Errno::EXIST)].map(Reply::Refused));
    }
    for (a, b, c) in flags().flat_map(|a| flags().flat_map(move |b| flags().map(move |c| (a, b, c)))) {
        replies.push(Reply::Hello(HelperInfo { version: VERSION, has_net_admin: a, has_namespaces: b, has_tun: c }));
        let interface = InterfaceNumber(7);
        replies.push(Reply::TapOpened(TapInfo { interface, index: 9, has_udp_offloads: a, has_gso_max_size: b }));
    }
    for reply in replies {
        let count = match reply {
            Reply::TapOpened(_) => 1,
            Reply::ConnectionsRecorded => 3,
            _ => 0,
        };
        assert_eq!(Reply::parse(&reply.emit(), count), Ok(reply));
    }
}
