//! Guests: their programs become domains. Writes of a guest to its own window do not affect others.

use std::net::Ipv6Addr;
use std::sync::atomic::Ordering;

use isthmus_channel::proxy_ring::ProxyFrame;
use isthmus_layout::control::*;
use isthmus_layout::limits::SLAB_BYTES_MIN;
use isthmus_layout::proxy::addresses::{GuestAddresses, InterfaceAddress};
use isthmus_layout::proxy::{
    ClientConnected, ControlPacket, EXTENTS_OFFSET, PROXY_FRAME_BYTES_MAX, PROXY_RING_OFFSET, ProxyFrameKind,
    ResourceRef, RevokedExtent, SESSION_REPLY_WORD, UNACKED_MAX, WindowId,
};
use isthmus_layout::reason::Reason;
use isthmus_layout::sockets::StreamAttach;
use isthmus_layout::verbs::{VerbsResolve, VerbsTake, VerbsToClient};
use isthmus_report::{StatusReport, VerbsReport};
use isthmus_shm::{Payload as _, Words as _};

use crate::guest::{Guest, configured, domains, row, status, until_domains};
use crate::testbed::{Testbed, name};

const WINDOW_BYTES: u64 = 32 << 20;

fn bed() -> Testbed {
    bed_with(WINDOW_BYTES >> 20, 4, "")
}

fn bed_with(window_mib: u64, vectors: u16, more: &str) -> Testbed {
    Testbed::with(&format!("{}{more}", configured("web", window_mib, vectors)))
}

#[test]
fn user_of_the_daemon_shares_with_guests() {
    // Of 8 places, the last one is for users that have none, and a user has at most half of what the others leave.
    let bed = bed_with(4, 4, "[limits]\ndomains_max = 8\n");
    let mut programs: Vec<_> = (0..4).map(|_| bed.greeted()).collect();
    let attached = (0..).zip(&mut programs).map(|(number, program)| program.attach(Some(&format!("p{number}"))));
    let refused: Vec<_> = attached.filter_map(Result::err).collect();
    assert_eq!(refused, [Reason::UserDomainsFull]);
}

#[test]
fn a_program_of_a_guest_is_a_domain_whose_memory_lies_in_the_window() {
    let bed = bed();
    let mut guest = Guest::start(&bed);
    let (welcome, handed) = guest.attach(1, "solver").unwrap();
    assert_eq!((welcome.name.as_str(), welcome.owner.0), ("solver", rustix::process::geteuid().as_raw()));
    let [
        ResourceRef::Extent { offset: ring, bytes, .. },
        ResourceRef::Extent { .. },
        host,
        ResourceRef::Extent { .. },
        own,
    ] = handed[..]
    else {
        panic!("{handed:?}")
    };
    assert!(ring >= EXTENTS_OFFSET && ring + bytes <= WINDOW_BYTES);
    assert_eq!((host, own), (ResourceRef::Doorbell { peer: 0, vector: 1 }, ResourceRef::VectorEvents { vector: 1 }));
    let known = domains(&bed);
    assert_eq!((known.domains[0].guest.as_deref(), known.domains[0].pid), (Some("web"), None));
    let row = status(&bed).guests.unwrap().remove(0);
    assert!(row.daemon && row.domains == 1 && row.used_bytes > Some(EXTENTS_OFFSET), "{row:?}");
    // The end of the connection revokes its extents, and the guest is notified.
    guest.frame(ProxyFrameKind::Closed, 1, &[]);
    let extents: Vec<u64> = handed
        .iter()
        .filter_map(|handed| if let ResourceRef::Extent { offset, .. } = handed { Some(*offset) } else { None })
        .collect();
    let mut revoked = Vec::new();
    while revoked.len() < extents.len() {
        let (frame, content) = guest.next();
        match frame.kind {
            ProxyFrameKind::RevokedExtent => revoked.push(RevokedExtent::parse(&content).unwrap().offset),
            kind => assert_eq!(kind, ProxyFrameKind::ControlPacket), // Sent before the connection was closed.
        }
    }
    revoked.sort_unstable();
    let mut extents = extents;
    extents.sort_unstable();
    assert_eq!(revoked, extents);
}

#[test]
fn clears_an_extent_before_it_is_reused() {
    let bed = bed();
    let mut guest = Guest::start(&bed);
    let (_, handed) = guest.attach(1, "one").unwrap();
    let ResourceRef::Extent { offset, bytes, generation, .. } = handed[0] else { panic!("{handed:?}") };
    guest.frame(ProxyFrameKind::Closed, 1, &[]);
    until_domains(&bed, 0);
    guest.memory.copy_in(offset + bytes - 8, b"a secret");
    let mut connection = 2;
    // The allocator uses first fit, so it reuses the bytes as soon as they are free.
    loop {
        let (_, handed) = guest.attach(connection, &format!("other{connection}")).unwrap();
        if let ResourceRef::Extent { offset: other, generation: later, .. } = handed[0]
            && other == offset
        {
            assert_ne!(later, generation);
            let mut found = [1; 8];
            guest.memory.copy_out(offset + bytes - 8, &mut found);
            assert_eq!(found, [0; 8]);
            return;
        }
        guest.frame(ProxyFrameKind::Closed, connection, &[]);
        until_domains(&bed, 0);
        connection += 1;
    }
}

#[test]
fn a_guest_has_as_many_domains_as_vectors() {
    let bed = bed();
    let mut guest = Guest::start(&bed);
    for connection in 1..=3 {
        guest.attach(connection, &format!("n{connection}")).unwrap();
    }
    assert_eq!(guest.attach(4, "n4").err(), Some(Reason::GuestVectorsFull));
    guest.frame(ProxyFrameKind::Closed, 2, &[]);
    until_domains(&bed, 2);
    let (_, handed) = guest.attach(5, "n5").unwrap();
    assert_eq!(handed[4], ResourceRef::VectorEvents { vector: 2 });
}

#[test]
fn a_full_window_makes_rings_smaller_and_refuses_with_the_reason_in_the_end() {
    // A ring has two slabs of 4 MiB, and 16 MiB have no room for two rings and everything else.
    let bed = bed_with(16, 64, "[limits]\nslab_kib = 4096\n");
    let mut guest = Guest::start(&bed);
    let before = row(&bed, "web").used_bytes;
    let mut slabs = Vec::new();
    let refused = (1..).find_map(|connection| match guest.attach(connection, &format!("n{connection}")) {
        Ok((welcome, _)) => {
            slabs.push(welcome.slab.bytes());
            None
        }
        Err(reason) => Some(reason),
    });
    assert_eq!(refused, Some(Reason::OutOfMemory));
    assert!(slabs.is_sorted_by(|before, after| before >= after), "{slabs:?}");
    let least = slabs[slabs.len() - 1];
    assert!(slabs[..2] == [4 << 20, 2 << 20] && (SLAB_BYTES_MIN..1 << 20).contains(&least), "{slabs:?}");
    let attached = slabs.len() as u32;
    for connection in 1..=attached {
        guest.frame(ProxyFrameKind::Closed, connection, &[]);
    }
    until_domains(&bed, 0);
    // The data plane releases the memory asynchronously.
    let begun = std::time::Instant::now();
    while row(&bed, "web").used_bytes != before {
        assert!(begun.elapsed().as_secs() < 20, "{:?}", row(&bed, "web"));
        while guest.next_that_is_here().is_some() {}
    }
    let (welcome, _) = guest.attach(attached + 2, "again").unwrap();
    assert_eq!(welcome.slab.bytes(), slabs[0]);
}

#[test]
fn between_a_guest_and_its_host_there_is_no_channel_but_a_reason() {
    let bed = bed();
    let (mut local, welcomed) = bed.attached("local");
    let mut guest = Guest::start(&bed);
    let (welcome, _) = guest.attach(1, "solver").unwrap();
    let refused = local.request(RequestChannel { peer: welcome.domain, attempt: 1 }, &[]);
    match refused.map(|heard| heard.message) {
        Ok(ToClient::ChannelRefused(refused)) => assert_eq!(refused.reason, Reason::NoSharedMemory),
        other => panic!("{other:?}"),
    }
    guest.send(1, RequestChannel { peer: welcomed.id(), attempt: 1 });
    match guest.receive_message(1).0 {
        ToClient::ChannelRefused(refused) => assert_eq!(refused.reason, Reason::NoSharedMemory),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_guests_domain_does_not_come_back_with_a_ticket() {
    let bed = bed();
    let mut guest = Guest::start(&bed);
    let (welcome, _) = guest.attach(1, "solver").unwrap();
    guest.frame(ProxyFrameKind::Closed, 1, &[]);
    until_domains(&bed, 0);
    guest.open(2);
    guest.send(2, Hello { magic: Magic, versions: VersionRange::CURRENT, library: name("test 1") });
    assert!(matches!(guest.receive_message(2).0, ToClient::HelloReply(_)));
    let resume = Some(Resume { domain: welcome.domain, ticket: welcome.ticket });
    let attach = ToDaemon::from(Attach { name: Some(name("solver")), resume });
    let message = attach.emit(None);
    guest.frame(ProxyFrameKind::ControlPacket, 2, &ControlPacket { resources: Vec::new(), message: &message }.emit());
    let (message, _) = guest.receive_message(2);
    assert!(matches!(message, ToClient::Refused(_)), "{message:?}");
}

#[test]
fn an_end_of_the_machine_is_the_end_of_its_domains_and_the_next_one_finds_nothing() {
    let bed = bed();
    let mut guest = Guest::start(&bed);
    guest.attach(1, "solver").unwrap();
    guest.memory.copy_in(WINDOW_BYTES - 6, b"secret");
    drop(guest);
    until_domains(&bed, 0);
    let mut guest = Guest::start(&bed);
    let mut found = [1; 6];
    guest.memory.copy_out(WINDOW_BYTES - 6, &mut found);
    assert_eq!(found, [0; 6]);
    guest.attach(1, "solver").unwrap();
}

#[test]
fn restarted_guest_daemon_starts_a_new_session() {
    let bed = bed();
    let mut guest = Guest::start(&bed);
    guest.attach(1, "solver").unwrap();
    guest.call();
    until_domains(&bed, 0);
    guest.attach(1, "solver").unwrap();
}

#[test]
fn malformed_frame_ends_only_the_session() {
    let bed = bed();
    let (_local, _) = bed.attached("local");
    let mut guest = Guest::start(&bed);
    let hello =
        ToDaemon::from(Hello { magic: Magic, versions: VersionRange::CURRENT, library: name("test 1") }).emit(None);
    let handing = ControlPacket { resources: vec![ResourceRef::VectorEvents { vector: 1 }], message: &hello }.emit();
    let empty = ControlPacket { resources: Vec::new(), message: b"" }.emit();
    let long = vec![0; PROXY_FRAME_BYTES_MAX];
    let nonsense: [(ProxyFrameKind, u32, &[u8]); 7] = [
        (ProxyFrameKind::ClientConnected, 9, b"x"),
        (ProxyFrameKind::ClientConnected, 1, &ClientConnected { uid: 0, pid: 0, program: name("twice") }.emit()),
        (ProxyFrameKind::ControlPacket, 1, &handing),
        (ProxyFrameKind::ControlPacket, 1, &empty),
        (ProxyFrameKind::ControlPacket, 1, &long),
        (ProxyFrameKind::Ack, 1, b""),
        (
            ProxyFrameKind::RevokedExtent,
            0,
            &RevokedExtent { window: WindowId::OWN, offset: EXTENTS_OFFSET, generation: 1 }.emit(),
        ),
    ];
    for (kind, connection, content) in nonsense {
        guest.attach(1, "solver").unwrap();
        guest.frame(kind, connection, content);
        guest.wait_for(|memory| memory.load(SESSION_REPLY_WORD, Ordering::Acquire) == 0);
        until_domains(&bed, 1);
        guest.call();
    }
}

#[test]
fn ends_the_session_when_unacknowledged_messages_exceed_the_limit() {
    let bed = bed();
    let mut guest = Guest::start(&bed);
    guest.open(1);
    // The control plane needs more time for a report than for a frame.
    let ask = ToDaemon::from(Query { topic: Topic::Status, arguments: List::new(Vec::new()).unwrap() }).emit(None);
    let content = ControlPacket { resources: Vec::new(), message: &ask }.emit();
    let frame = ProxyFrame { kind: ProxyFrameKind::ControlPacket, connection: 1 };
    for _ in 0..4 * UNACKED_MAX {
        let _ = guest.proxy_ring.send(frame, &content).unwrap();
    }
    guest.ring();
    guest.wait_for(|memory| memory.load(SESSION_REPLY_WORD, Ordering::Acquire) == 0);
}

/// A generator of deterministic pseudo-random numbers.
struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

#[test]
fn hostile_window_writes_do_not_affect_others() {
    let bed = bed();
    let (_local, _) = bed.attached("local");
    let mut dice = Random(42);
    for round in 0..60 {
        let mut guest = Guest::start(&bed);
        let (_, handed) = guest.attach(1, "hostile").unwrap();
        for _ in 0..50 {
            // Most writes go to sensitive places: the head, the proxy ring, the domain's ring and ready maps.
            let ResourceRef::Extent { offset, bytes, .. } = handed[[0, 1, 3][dice.next(3) as usize]] else { panic!() };
            let (at, within) =
                [(0, 512), (PROXY_RING_OFFSET, 16384), (offset, bytes.min(16384))][dice.next(3) as usize];
            let word = at + dice.next(within) / 4 * 4;
            let value = [0, 1, u32::MAX, dice.next(1 << 32) as u32, dice.next(64) as u32][dice.next(5) as usize];
            guest.memory.copy_in(word, &value.to_le_bytes());
            for doorbell in &guest.to_host {
                rustix::io::write(doorbell, &1_u64.to_ne_bytes()).unwrap();
            }
        }
        assert_eq!(status(&bed).guests.unwrap().len(), 1, "round {round}");
        drop(guest);
        until_domains(&bed, 1);
    }
    let (_another, _) = bed.attached("another");
}

#[test]
fn keeps_channel_memory_until_the_peer_has_drained_it() {
    let bed = bed();
    let mut guest = Guest::start(&bed);
    let (one, _) = guest.attach(1, "one").unwrap();
    let (other, _) = guest.attach(2, "other").unwrap();
    guest.send(1, RequestChannel { peer: other.domain, attempt: 1 });
    let (channel, kept) = loop {
        if let (2, ToClient::ChannelOffer(offer), handed) = guest.receive_any() {
            assert_eq!(offer.peer, one.domain);
            let offset = |at: usize| match handed[at] {
                ResourceRef::Extent { offset, .. } => offset,
                other => panic!("{other:?}"),
            };
            break (offer.channel, [offset(0), offset(1)]);
        }
    };
    guest.send(2, AcceptChannel { channel });
    while !matches!(guest.receive_message(1).0, ToClient::ChannelOpen(_)) {}
    guest.frame(ProxyFrameKind::Closed, 1, &[]);
    // The ring of the first domain is revoked. The channel and the ready map, to which the offer refers, are not, although the other domain
    // was notified of the first one's end.
    let (mut told, mut revoked) = (false, Vec::new());
    while !told || revoked.is_empty() {
        let (frame, content) = guest.next();
        match frame.kind {
            ProxyFrameKind::RevokedExtent => revoked.push(RevokedExtent::parse(&content).unwrap().offset),
            _ => told |= frame.connection == 2,
        }
    }
    assert!(!kept.iter().any(|offset| revoked.contains(offset)), "{kept:?} {revoked:?}");
    guest.send(2, CloseChannel { channel, reason: Reason::ClosedLocally });
    for offset in kept {
        let content = loop {
            let (frame, content) = guest.next();
            if frame.kind == ProxyFrameKind::RevokedExtent {
                break content;
            }
        };
        assert_eq!(RevokedExtent::parse(&content).unwrap().offset, offset);
    }
}

#[test]
fn a_refusal_confirms_that_a_channel_is_over() {
    let bed = bed();
    let mut guest = Guest::start(&bed);
    guest.attach(1, "one").unwrap();
    let (other, _) = guest.attach(2, "other").unwrap();
    guest.send(1, RequestChannel { peer: other.domain, attempt: 1 });
    let (channel, memory) = match guest.receive_any() {
        (_, ToClient::ChannelOffer(offer), handed) => (offer.channel, handed[0]),
        other => panic!("{other:?}"),
    };
    // Neither of the two can map it, and the requester is faster.
    for connection in [1, 2] {
        guest.send(connection, RefuseChannel { channel, reason: Reason::OutOfFds });
    }
    let revoked = loop {
        let (frame, content) = guest.next();
        if frame.kind == ProxyFrameKind::RevokedExtent {
            break RevokedExtent::parse(&content).unwrap();
        }
    };
    assert!(matches!(memory, ResourceRef::Extent { offset, .. } if offset == revoked.offset), "{memory:?} {revoked:?}");
}

#[test]
fn capabilities_that_guests_do_not_have_yet_are_refused_by_name() {
    let bed = bed();
    let mut guest = Guest::start(&bed);
    guest.open(1);
    guest.send(1, Hello { magic: Magic, versions: VersionRange::CURRENT, library: name("test 1") });
    assert!(matches!(guest.receive_message(1).0, ToClient::HelloReply(_)));
    let mut refused = |message: ToDaemon| {
        guest.send(1, message);
        match guest.receive_message(1).0 {
            ToClient::Refused(refused) => (refused.reason, refused.text.to_string()),
            other => panic!("{other:?}"),
        }
    };
    let not_yet = |capability: &str| (Reason::NotInGuestsYet, capability.to_owned());
    assert_eq!(refused(StreamAttach {}.into()), not_yet("sockets"));
    for (topic, capability) in [(Topic::Streams, "sockets"), (Topic::Overlay, "overlay")] {
        let arguments = List::new(Vec::new()).unwrap();
        assert_eq!(refused(Query { topic, arguments }.into()), not_yet(capability));
    }
    let status: StatusReport = serde_json::from_str(&guest.report_text(1, Topic::Status, &[]).unwrap()).unwrap();
    assert_eq!(status.guest.as_deref(), Some("web"));
    let of_host = self::status(&bed);
    let counted = of_host.reasons.iter().find(|row| *row.reason == *"not-in-guests-yet").map(|row| row.count);
    assert_eq!((of_host.guest, counted), (None, Some(3)));
}

/// Opens a domain with an endpoint and a block of queue pair numbers. Returns the first number.
fn queue_pairs(guest: &mut Guest, connection: u32, called: &str) -> u32 {
    guest.attach(connection, called).unwrap();
    guest.send(connection, OpenEndpoint { index: None, label: None });
    let ToClient::EndpointOpened(EndpointOpened { index }) = guest.receive_message(connection).0 else {
        panic!("an endpoint")
    };
    guest.send(connection, VerbsTake { index, first: None });
    let taken = guest.receive_message(connection).0;
    let ToClient::Verbs(VerbsToClient::VerbsTaken(taken)) = taken else { panic!("{taken:?}") };
    taken.first
}

fn resolve(guest: &mut Guest, connection: u32, gid: &str, qpn: u32) -> Result<(), Reason> {
    let bits = gid.parse::<Ipv6Addr>().unwrap().to_bits();
    guest.send(connection, VerbsResolve { gid_high: (bits >> 64) as u64, gid_low: bits as u64, qpn });
    match guest.receive_message(connection).0 {
        ToClient::Verbs(VerbsToClient::VerbsFound(_)) => Ok(()),
        ToClient::Refused(refused) => Err(refused.reason),
        other => panic!("{other:?}"),
    }
}

fn state(guest: &mut Guest, addresses: &[&str]) {
    let stated = |address: &&str| InterfaceAddress::new(address.parse().unwrap(), name("eth0"));
    let addresses = GuestAddresses::clip(addresses.iter().map(stated).collect());
    guest.frame(ProxyFrameKind::Addresses, 0, &addresses.emit());
}

fn gids(guest: &mut Guest, connection: u32) -> VerbsReport {
    serde_json::from_str(&guest.report_text(connection, Topic::Verbs, &[]).unwrap()).unwrap()
}

/// The number of a queue pair says which program is meant, and the GID has to be one of the guest that it runs in.
#[test]
fn each_guest_has_the_gids_that_its_daemon_states() {
    let bed = Testbed::with(&format!("{}{}", configured("web", 32, 4), configured("db", 32, 4)));
    let (mut web, mut db) = (Guest::start_as(&bed, "web"), Guest::start_as(&bed, "db"));
    let (shared, of_web, of_nobody) = ("::ffff:192.0.2.15", "2001:db8::1", "2001:db8::9");
    state(&mut web, &[shared, of_web]);
    state(&mut db, &[shared]);
    let (first, second) = (queue_pairs(&mut web, 1, "one"), queue_pairs(&mut db, 1, "two"));
    let unknown = Err(Reason::VerbsGidUnknown);
    assert_eq!([first, second].map(|qpn| resolve(&mut web, 1, shared, qpn)), [Ok(()); 2]);
    assert_eq!([first, second].map(|qpn| resolve(&mut db, 1, of_web, qpn)), [Ok(()), unknown]);
    assert_eq!([first, second].map(|qpn| resolve(&mut db, 1, "::", qpn)), [Ok(()); 2]);
    // Without such a number, nothing is said of addresses.
    let none = 0xFF_FE00;
    assert_eq!([of_web, of_nobody].map(|gid| resolve(&mut db, 1, gid, first)), [Ok(()), unknown]);
    assert_eq!([of_web, of_nobody].map(|gid| resolve(&mut db, 1, gid, none)), [Err(Reason::VerbsNumberUnknown); 2]);

    let (seen, other) = (gids(&mut web, 1), gids(&mut db, 1));
    let listed = |report: &VerbsReport| -> Vec<_> {
        report.gids.iter().skip(1).map(|row| (row.gid.clone(), row.interface.clone())).collect()
    };
    let row = |gid: &str| (gid.to_owned(), Some("eth0".to_owned()));
    let ipv4 = "0000:0000:0000:0000:0000:ffff:c000:020f";
    assert_eq!(listed(&seen), [row(ipv4), row("2001:0db8:0000:0000:0000:0000:0000:0001")]);
    assert_eq!(listed(&other), [row(ipv4)]);
    let host: VerbsReport = bed.greeted().report(Topic::Verbs, &[]).unwrap();
    assert!(
        seen.node_guid != other.node_guid && ![&seen, &other].iter().any(|guest| guest.node_guid == host.node_guid)
    );
    assert_eq!(seen.domains.iter().map(|row| row.domain.name.as_str()).collect::<Vec<_>>(), ["one"]);
    assert!(host.gids.iter().all(|row| !row.gid.ends_with("c000:020f")), "{host:?}");

    // Addresses replace those before them, and end with the session.
    state(&mut web, &[]);
    assert_eq!(resolve(&mut db, 1, of_web, first), unknown);
    assert_eq!(gids(&mut web, 1).gids.len(), 1);
}

#[test]
fn addresses_of_a_guest_end_with_its_daemon() {
    let bed = bed();
    let mut guest = Guest::start(&bed);
    state(&mut guest, &["2001:db8::1"]);
    queue_pairs(&mut guest, 1, "one");
    assert_eq!(gids(&mut guest, 1).gids.len(), 2);
    guest.call();
    queue_pairs(&mut guest, 1, "one");
    assert_eq!(gids(&mut guest, 1).gids.len(), 1);
}

#[test]
fn addresses_of_a_guest_end_with_its_device() {
    let bed = bed();
    let mut guest = Guest::start(&bed);
    state(&mut guest, &["2001:db8::1"]);
    queue_pairs(&mut guest, 1, "one");
    drop(guest);
    until_domains(&bed, 0);
    let mut guest = Guest::start(&bed);
    queue_pairs(&mut guest, 1, "one");
    assert_eq!(gids(&mut guest, 1).gids.len(), 1);
}

#[test]
fn gids_of_a_guest_are_not_told_to_those_that_may_not_send_there() {
    let policy = "[[policy.rules]]\nfrom = { guest = \"db\" }\nto = { guest = \"web\" }\nallow = false\n";
    let bed = bed_with(WINDOW_BYTES >> 20, 4, &format!("{}{policy}", configured("db", 32, 4)));
    let (mut web, mut db) = (Guest::start_as(&bed, "web"), Guest::start_as(&bed, "db"));
    let (own, other) = ("2001:db8::1", "2001:db8::2");
    state(&mut web, &[own]);
    let number = queue_pairs(&mut web, 1, "one");
    queue_pairs(&mut db, 1, "two");
    let refused = [own, other].map(|gid| resolve(&mut db, 1, gid, number));
    assert_eq!(refused, [Err(Reason::TalkForbidden); 2]);
}

#[test]
fn malformed_addresses_end_the_session() {
    let bed = bed();
    let mut guest = Guest::start(&bed);
    guest.frame(ProxyFrameKind::Addresses, 0, &[1, 0, 7]);
    guest.wait_for(|head| head.load(SESSION_REPLY_WORD, Ordering::Acquire) == 0);
    guest.call();
    guest.attach(1, "one").unwrap();
}
