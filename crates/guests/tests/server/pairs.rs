//! Pair windows: created through the monitors at the first message, and removed when necessary.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use isthmus_layout::RegionSize;
use isthmus_layout::control::*;
use isthmus_layout::ids::{ChannelId, DomainId};
use isthmus_layout::limits::RING_CELLS;
use isthmus_layout::proxy::{ControlPacket, ProxyFrameKind, ResourceRef, RevokedExtent, WindowId};
use isthmus_layout::reason::Reason;
use isthmus_platform::{Doorbell, Listen as _, Ring as _, seqpacket};
use isthmus_report::Why;
use isthmus_shm::{Access, Mapping, Payload as _, SharedMapping};

use crate::guest::Guest;
use crate::monitor::{Monitor, MonitorBehaviour};
use crate::testbed::{Testbed, name};

/// Two guests with a domain each, and their simulated monitors.
struct TwoGuests {
    bed: Testbed,
    guests: [Guest; 2],
    received: [Receiver<QemuMessage>; 2],
    monitors: [Option<Monitor>; 2],
    domains: [DomainId; 2],
    folder: tempfile::TempDir,
}

const NAMES: [&str; 2] = ["web", "base"];

impl TwoGuests {
    fn start(behaviours: [Option<MonitorBehaviour>; 2], more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let user = rustix::process::geteuid().as_raw();
        let mut config = format!("[kvm]\n{more}\n");
        for (called, behaviour) in NAMES.iter().zip(behaviours) {
            config += &format!("[[kvm.guest]]\nname = \"{called}\"\nuser = {user}\nwindow_mib = 32\nvectors = 4\n");
            if behaviour.is_some() {
                config += &format!("monitor = \"{}\"\n", folder.path().join(called).display());
            }
        }
        let monitors = [0, 1].map(|at| Some(Monitor::listen(&folder.path().join(NAMES[at]), behaviours[at]?)));
        let bed = Testbed::with(&config);
        let mut guests = NAMES.map(|called| Guest::start_as(&bed, called));
        let received = [0, 1].map(|at| receive_qemu_messages(&guests[at]));
        let [web, base] = &mut guests;
        let domains = [web.attach(1, "web1").unwrap().0.domain, base.attach(1, "base1").unwrap().0.domain];
        Self { bed, guests, received, monitors, domains, folder }
    }

    /// Requests a channel from the first guest's domain to the second's.
    fn request(&mut self) {
        self.guests[0].send(1, RequestChannel { peer: self.domains[1], attempt: 1 });
    }

    /// Returns the reason why the first guest's request was refused.
    fn refused(&mut self) -> Reason {
        match self.guests[0].receive_message(1).0 {
            ToClient::ChannelRefused(refused) => {
                assert_eq!(refused.peer, self.domains[1]);
                refused.reason
            }
            other => panic!("{other:?}"),
        }
    }

    /// Returns the reason that `isthmus why` reports.
    fn why(&self) -> Option<String> {
        let why: Why = self.bed.greeted().report(Topic::Why, &["web1", "base1"]).unwrap();
        why.reason.map(|reason| reason.reason)
    }

    fn until_why(&self, reason: &str) {
        let begun = std::time::Instant::now();
        while self.why().as_deref() != Some(reason) {
            assert!(begun.elapsed().as_secs() < 20, "{:?}", self.why());
            std::thread::yield_now();
        }
    }

    /// Attaches the plugged window in both guests. Returns the memory as each guest maps it.
    fn show(&mut self) -> (WindowId, [SharedMapping; 2]) {
        let plugged = [0, 1].map(|at| self.monitors[at].as_ref().unwrap().plugged());
        assert_eq!(plugged[0].peer, plugged[1].peer);
        let window = WindowId(u16::try_from(plugged[0].peer - 1).unwrap());
        for guest in &mut self.guests {
            guest.frame(ProxyFrameKind::WindowAttached, 0, &window.emit());
        }
        let map = |memory| {
            let bytes = rustix::fs::fstat(&memory).unwrap().st_size.unsigned_abs();
            SharedMapping::new(Mapping::window(memory, 0, RegionSize(bytes), Access::ReadWrite).unwrap())
        };
        (window, plugged.map(|plugged| map(plugged.memory)))
    }

    /// Receives the channel offer of each domain.
    fn offered(&mut self) -> [(ChannelOffer, Vec<ResourceRef>); 2] {
        [0, 1].map(|at| match self.guests[at].receive_message(1) {
            (ToClient::ChannelOffer(offer), handed) => (offer, handed),
            other => panic!("{other:?}"),
        })
    }

    /// Opens a channel. Returns the resources that the first domain received.
    fn channel(&mut self) -> (ChannelId, WindowId, Vec<ResourceRef>) {
        self.request();
        let (window, _) = self.show();
        let [(offer, handed), _] = self.offered();
        self.guests[1].send(1, AcceptChannel { channel: offer.channel });
        assert!(matches!(self.guests[0].receive_message(1).0, ToClient::ChannelOpen(_)));
        (offer.channel, window, handed)
    }

    fn until_devices(&self, at: usize, count: usize) {
        let monitor = self.monitors[at].as_ref().unwrap();
        let begun = std::time::Instant::now();
        while monitor.devices() != count {
            assert!(begun.elapsed().as_secs() < 20, "{}", monitor.devices());
            std::thread::yield_now();
        }
    }
}

/// A message to QEMU about another guest: a doorbell of the guest, or `None` if the guest is gone.
type QemuMessage = (i64, Option<Doorbell>);

/// Starts a thread that reads the messages to QEMU.
fn receive_qemu_messages(guest: &Guest) -> Receiver<QemuMessage> {
    let (sender, received) = channel();
    let socket = guest.qemu.try_clone().unwrap();
    std::thread::spawn(move || {
        let (mut number, mut fds) = ([0; 8], Vec::new());
        while let Ok(8) = seqpacket::receive(&socket, &mut number, &mut fds, true) {
            let _ = sender.send((i64::from_le_bytes(number), fds.pop().map(Doorbell::from))); // The test may have dropped the receiver.
        }
    });
    received
}

fn peers(received: &Receiver<QemuMessage>, doorbells: usize) -> Vec<QemuMessage> {
    (0..doorbells).map(|_| received.recv_timeout(Duration::from_secs(20)).expect("QEMU receives a peer")).collect()
}

#[test]
fn programs_of_two_guests_get_a_channel_in_a_window_that_only_these_two_share() {
    let mut two = TwoGuests::start([Some(MonitorBehaviour::Honest), Some(MonitorBehaviour::Ports)], "");
    assert_eq!(two.why().as_deref(), Some("channel-not-requested"));
    two.request();
    // Each machine receives the other's doorbells before the windows are plugged in.
    let doorbells = [0, 1].map(|at| peers(&two.received[at], 4));
    let (window, memory) = {
        two.until_why("pair-window-pending");
        two.show()
    };
    let offers = two.offered();
    for (at, (offer, handed)) in offers.iter().enumerate() {
        assert_eq!((offer.peer, offer.new_ready_map), (two.domains[1 - at], true));
        let [
            ResourceRef::Extent { window: channel, offset, .. },
            ResourceRef::Extent { window: board, .. },
            ResourceRef::Doorbell { peer, vector: 1 },
            ResourceRef::Extent { window: own, .. },
            ResourceRef::VectorEvents { vector: 1 },
        ] = handed[..]
        else {
            panic!("{handed:?}")
        };
        assert_eq!([channel, board, own], [window; 3]);
        // Data that one guest writes is visible to the other, and the memory was zero before.
        let mut seen = [1; 8];
        memory[1 - at].copy_out(offset + 64 * (1 + at as u64), &mut seen);
        assert_eq!(seen, [0; 8]);
        memory[at].copy_in(offset + 64 * (1 + at as u64), b"in comm.");
        memory[1 - at].copy_out(offset + 64 * (1 + at as u64), &mut seen);
        assert_eq!(&seen, b"in comm.");
        // Its rings arrive in the other guest, but do not ring that guest's proxy ring.
        let (known, doorbell) = &doorbells[at][1];
        assert_eq!(*known, i64::from(peer));
        let heard = |vector: usize| Doorbell::from(two.guests[1 - at].from_host[vector].try_clone().unwrap());
        heard(1).clear();
        doorbell.as_ref().unwrap().ring();
        assert!(heard(1).wait(Duration::ZERO));
        heard(0).clear();
        doorbells[at][0].1.as_ref().unwrap().ring();
        assert!(!heard(0).wait(Duration::ZERO));
    }
    let channel = offers[0].0.channel;
    two.guests[1].send(1, AcceptChannel { channel });
    assert!(matches!(two.guests[0].receive_message(1).0, ToClient::ChannelOpen(_)));
    let why: Why = two.bed.greeted().report(Topic::Why, &["web1", "base1"]).unwrap();
    assert_eq!((why.path.as_str(), why.reason.map(|reason| reason.reason)), ("channel", None));
    // A second pair of programs uses the existing window.
    let other = two.guests[1].attach(2, "base2").unwrap().0.domain;
    two.guests[0].send(1, RequestChannel { peer: other, attempt: 1 });
    match two.guests[0].receive_message(1) {
        (ToClient::ChannelOffer(offer), handed) => {
            assert!(!offer.new_ready_map);
            assert!(matches!(handed[0], ResourceRef::Extent { window: of, .. } if of == window), "{handed:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_region_between_two_guests_lies_in_their_window_and_ends_with_it() {
    let mut two =
        TwoGuests::start([Some(MonitorBehaviour::Honest), Some(MonitorBehaviour::Honest)], "pair_window_idle_s = 1");
    let (channel, window, _) = two.channel();
    let region = isthmus_layout::ids::RegionId(3);
    two.guests[0].send(1, CreateRegion { peer: two.domains[1], region, bytes: 8192 });
    let (made, home) = two.guests[0].receive_message(1);
    let (granted, view) = two.guests[1].receive_message(1);
    assert!(matches!(made, ToClient::RegionCreated(made) if made.region == region));
    assert!(matches!(granted, ToClient::Granted(granted) if granted.region == region && granted.bytes == 8192));
    let [ResourceRef::PrivateExtent { window: ours, offset, .. }] = home[..] else { panic!("{home:?}") };
    let [ResourceRef::ReadOnlyExtent { window: theirs, offset: there, .. }] = view[..] else { panic!("{view:?}") };
    assert_eq!(([ours, theirs], offset), ([window; 2], there));
    // A region for a program of the owner's guest is not in that window.
    let other = two.guests[0].attach(2, "web2").unwrap().0.domain;
    two.guests[0].send(1, CreateRegion { peer: other, region, bytes: 8192 });
    assert!(
        matches!(two.guests[0].receive_message(1).0, ToClient::Refused(refused) if refused.reason == Reason::NoSharedMemory)
    );
    // A region alone does not keep the window.
    two.guests[0].send(1, CloseChannel { channel, reason: Reason::ClosedLocally });
    assert!(matches!(two.guests[1].receive_message(1).0, ToClient::ChannelClosed(_)));
    two.guests[1].send(1, CloseChannel { channel, reason: Reason::ClosedLocally });
    assert!(matches!(two.guests[1].receive_message(1).0, ToClient::Revoked(revoked) if revoked.region == region));
}

#[test]
fn refuses_a_pair_window_without_both_monitors() {
    let mut two = TwoGuests::start([Some(MonitorBehaviour::Honest), None], "");
    assert_eq!(two.why().as_deref(), Some("monitor-missing"));
    two.request();
    assert_eq!(two.refused(), Reason::MonitorMissing);
}

#[test]
fn a_monitor_that_refuses_leaves_the_pair_where_it_was_with_the_reason() {
    for command in ["qmp_capabilities", "getfd", "chardev-add", "device_add"] {
        let mut two = TwoGuests::start([Some(MonitorBehaviour::Honest), Some(MonitorBehaviour::Refuses(command))], "");
        two.request();
        assert_eq!(two.refused(), Reason::PairWindowRefused, "{command}");
        assert_eq!(two.why().as_deref(), Some("pair-window-refused"));
        // The device that was already plugged into the other guest is removed.
        two.until_devices(0, 0);
        // The monitors are not asked again at once.
        two.request();
        assert_eq!(two.refused(), Reason::PairWindowRefused);
    }
}

#[test]
fn hanging_or_lying_monitor_blocks_no_other_guest() {
    for behaviour in [MonitorBehaviour::Hangs, MonitorBehaviour::Lies] {
        let mut two = TwoGuests::start([Some(behaviour), Some(MonitorBehaviour::Honest)], "pair_window_timeout_s = 1");
        two.request();
        two.until_why("pair-window-pending");
        let (_local, _) = two.bed.attached("local");
        two.guests[1].attach(2, "another").unwrap();
        assert_eq!(two.refused(), Reason::PairWindowRefused, "{behaviour:?}");
    }
}

#[test]
fn refuses_a_pair_window_when_a_monitor_is_missing() {
    let mut two = TwoGuests::start([Some(MonitorBehaviour::Honest), Some(MonitorBehaviour::Honest)], "");
    std::fs::remove_file(two.folder.path().join(NAMES[1])).unwrap();
    two.request();
    assert_eq!(two.refused(), Reason::PairWindowRefused);
}

#[test]
fn refuses_a_pair_window_that_a_guest_does_not_attach() {
    let mut two = TwoGuests::start([Some(MonitorBehaviour::Honest); 2], "pair_window_timeout_s = 1");
    two.request();
    let plugged = two.monitors[0].as_ref().unwrap().plugged();
    let number = u16::try_from(plugged.peer - 1).unwrap();
    for other in [0, number + 1, u16::MAX] {
        two.guests[0].frame(ProxyFrameKind::WindowAttached, 0, &WindowId(other).emit());
    }
    two.guests[0].frame(ProxyFrameKind::WindowAttached, 0, &WindowId(number).emit());
    assert_eq!(two.refused(), Reason::PairWindowRefused);
    two.until_devices(0, 0);
    two.until_devices(1, 0);
}

#[test]
fn peer_loses_the_pair_window_when_a_guest_ends() {
    let mut two = TwoGuests::start([Some(MonitorBehaviour::Honest); 2], "");
    let (channel, ..) = two.channel();
    let TwoGuests { bed, guests, received, monitors, .. } = two;
    let [mut remaining, gone] = guests;
    let [monitor, _] = monitors;
    rustix::net::shutdown(&gone.qemu, rustix::net::Shutdown::Both).unwrap();
    let mut ends = Vec::new();
    while ends.len() < 2 {
        match remaining.receive_message(1).0 {
            ToClient::ChannelClosed(closed) => {
                assert_eq!(closed.channel, channel);
                ends.push("channel");
            }
            ToClient::PeerGone(_) => ends.push("peer"),
            other => panic!("{other:?}"),
        }
    }
    let monitor = monitor.unwrap();
    let begun = std::time::Instant::now();
    while monitor.devices() > 0 {
        assert!(begun.elapsed().as_secs() < 20);
        std::thread::yield_now();
    }
    // The doorbells of the other guest were removed from its machine.
    assert!(peers(&received[0], 5).last().unwrap().1.is_none());
    remaining.attach(2, "next").unwrap();
    let (_local, _) = bed.attached("local");
}

#[test]
fn a_window_that_a_guest_loses_ends_the_channels_in_it() {
    let mut two = TwoGuests::start([Some(MonitorBehaviour::Honest); 2], "pair_window_timeout_s = 1");
    let (channel, window, _) = two.channel();
    two.guests[1].frame(ProxyFrameKind::WindowDetached, 0, &window.emit());
    for guest in &mut two.guests {
        match guest.receive_message(1).0 {
            ToClient::ChannelClosed(closed) => {
                assert_eq!((closed.channel, closed.reason), (channel, Reason::PairWindowClosed));
            }
            other => panic!("{other:?}"),
        }
    }
    two.until_devices(0, 0);
    two.until_devices(1, 0);
    // The next window is a new one with new ready maps.
    two.request();
    let (next, _) = two.show();
    assert_ne!(next, window);
    let [(offer, handed), _] = two.offered();
    assert!(offer.new_ready_map && offer.ready_map.number() == 2, "{offer:?}");
    assert!(matches!(handed[0], ResourceRef::Extent { window: of, .. } if of == next), "{handed:?}");
}

#[test]
fn removes_an_idle_pair_window() {
    let mut two = TwoGuests::start([Some(MonitorBehaviour::Honest); 2], "pair_window_idle_s = 1");
    let (_, _, _) = two.channel();
    two.guests[0].frame(ProxyFrameKind::Closed, 1, &[]);
    two.until_devices(0, 1);
    // The remaining domain reports that it has read the messages in the channel.
    loop {
        if let ToClient::ChannelClosed(closed) = two.guests[1].receive_message(1).0 {
            two.guests[1].send(1, CloseChannel { channel: closed.channel, reason: Reason::ClosedLocally });
            break;
        }
    }
    two.until_devices(0, 0);
    two.until_devices(1, 0);
}

/// Fills the proxy ring toward a guest that reads nothing: with replies to connections of programs.
fn fill_proxy_ring(guest: &mut Guest) {
    for connection in 2..2 + RING_CELLS {
        guest.open(connection);
        guest.send(connection, Hello { magic: Magic, versions: VersionRange::CURRENT, library: name("test 1") });
    }
}

#[test]
fn an_offer_that_timed_out_reaches_its_listener_whole() {
    let mut two = TwoGuests::start([Some(MonitorBehaviour::Honest); 2], "");
    two.request();
    fill_proxy_ring(&mut two.guests[1]);
    (0..RING_CELLS).for_each(|_| drop(two.why())); // The daemon answers its clients in turn.
    two.show();
    let (ToClient::ChannelOffer(offer), handed) = two.guests[0].receive_message(1) else { panic!("no offer") };
    let ResourceRef::Extent { offset: channel, .. } = handed[0] else { panic!("{handed:?}") };
    assert_eq!(two.refused(), Reason::ChannelTimeout);
    two.guests[0].send(1, CloseChannel { channel: offer.channel, reason: Reason::ClosedLocally });
    // Another offer would wait behind the first one.
    two.request();
    assert_eq!(two.refused(), Reason::ChannelTimeout);
    let (mut revoked, mut known) = (Vec::new(), None);
    let mut next = |listener: &mut Guest| loop {
        let (frame, content) = listener.next();
        match frame.kind {
            ProxyFrameKind::RevokedExtent => {
                let extent = RevokedExtent::parse(&content).unwrap();
                assert_eq!(extent.offset, channel, "only the channel is over");
                revoked.push(extent);
                return None;
            }
            ProxyFrameKind::ControlPacket if frame.connection == 1 => {
                let packet = ControlPacket::parse(&content).unwrap();
                assert!(revoked.is_empty(), "{packet:?}");
                match ToClient::parse(packet.message, packet.resources.len()).unwrap().1 {
                    ToClient::Wakeup(_) => {}
                    message => return Some(message),
                }
            }
            kind => assert!(kind == ProxyFrameKind::ControlPacket, "{kind:?} of {}", frame.connection),
        }
    };
    while known.is_none() {
        match next(&mut two.guests[1]) {
            Some(ToClient::ChannelOffer(theirs)) => assert_eq!(theirs.channel, offer.channel),
            Some(ToClient::ChannelClosed(closed)) => known = Some((closed.channel, closed.reason)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(known, Some((offer.channel, Reason::ChannelTimeout)));
    // The memory is kept until the listener has confirmed that the channel is over.
    two.guests[1].send(1, CloseChannel { channel: offer.channel, reason: Reason::ClosedLocally });
    assert_eq!(next(&mut two.guests[1]), None);
    two.request();
    let [(again, _), _] = two.offered();
    assert!(!again.new_ready_map && again.channel != offer.channel, "{again:?}");
}

#[test]
fn a_ready_map_that_no_offer_has_announced_is_new_at_the_next_attempt() {
    let mut two = TwoGuests::start([Some(MonitorBehaviour::Honest); 2], "pair_window_mib = 1");
    let (channel, ..) = two.channel();
    let mut attach = |at: usize, connection, called| two.guests[at].attach(connection, called).unwrap().0.domain;
    let web3 = [attach(0, 2, "web2"), attach(0, 3, "web3")][1];
    let base = [two.domains[1], attach(1, 2, "base2"), attach(1, 3, "base3")];
    let request = |two: &mut TwoGuests, [from, to]: [u32; 2]| {
        two.guests[0].send(from, RequestChannel { peer: base[to as usize - 1], attempt: 1 });
        match two.guests[0].receive_message(from).0 {
            ToClient::ChannelOffer(offer) => Some(offer),
            ToClient::ChannelRefused(refused) if refused.reason == Reason::OutOfMemory => None,
            other => panic!("{other:?}"),
        }
    };
    // Channels with smaller and smaller slabs fill the window.
    let refused = [[1, 2], [2, 1], [2, 2]].into_iter().find(|&[from, to]| {
        let Some(offer) = request(&mut two, [from, to]) else { return true };
        assert!(matches!(two.guests[1].receive_message(to).0, ToClient::ChannelOffer(_)));
        two.guests[1].send(to, AcceptChannel { channel: offer.channel });
        assert!(matches!(two.guests[0].receive_message(from).0, ToClient::ChannelOpen(_)));
        false
    });
    assert!(refused.is_some(), "the window has room for four channels");
    assert_eq!(request(&mut two, [3, 3]), None);
    for guest in &mut two.guests {
        guest.send(1, CloseChannel { channel, reason: Reason::ClosedLocally });
    }
    // The memory is free once both guests have unmapped it.
    let begun = std::time::Instant::now();
    let offer = loop {
        while two.guests[1].next_that_is_here().is_some() {}
        if let Some(offer) = request(&mut two, [3, 3]) {
            break offer;
        }
        assert!(begun.elapsed().as_secs() < 20, "the window stays full");
    };
    assert!(offer.new_ready_map, "{offer:?}");
    let (ToClient::ChannelOffer(theirs), _) = two.guests[1].receive_message(3) else { panic!("no offer") };
    assert!(theirs.peer == web3 && theirs.new_ready_map, "{theirs:?}");
}
