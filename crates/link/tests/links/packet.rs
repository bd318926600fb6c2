//! Properties of packet sockets that the suite does not check.

use isthmus_link::{Link, LinkKind, LinkState, OpenError, PacketLink, PacketOptions, interface};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::pattern::{becomes, collect, drain, frame, passes, send_all};
use crate::testbed::{ETHERTYPE, Host, Testbed, WIRE, nic};

crate::suite!(open);

fn open(bed: &Testbed) -> [Box<dyn Link>; 2] {
    [&bed.a, &bed.b].map(|host| Box::new(end(host, PacketOptions::default())) as Box<dyn Link>)
}

fn end(host: &Host, options: PacketOptions) -> PacketLink {
    host.run(move || PacketLink::open(WIRE, ETHERTYPE, &options).unwrap())
}

#[test]
fn an_interface_is_seen_as_it_is() {
    let Some(bed) = Testbed::new(4321) else { return };
    let mut seen = bed.a.run(|| interface(WIRE).unwrap());
    assert_eq!((seen.nic, seen.mtu, seen.hardware), (nic(1), 4321, 1));
    bed.a.ip(&format!("link set {WIRE} down"));
    seen.is_up = false;
    assert_eq!(bed.a.run(|| interface(WIRE).unwrap()), seen);
    let link = end(&bed.a, PacketOptions::default());
    assert_eq!((link.kind(), link.name(), link.nic()), (LinkKind::Packet, WIRE, nic(1)));
    assert_eq!((link.state(), link.frame_bytes_max()), (LinkState::Down, 4335));
}

#[test]
fn open_names_the_missing_capability() {
    let Some(bed) = Testbed::new(1500) else { return };
    let none = bed.a.run(|| PacketLink::open("nothing", ETHERTYPE, &PacketOptions::default()).unwrap_err());
    assert!(matches!(&none, OpenError::NoInterface { name } if name == "nothing"), "{none}");
    let denied = bed.a.run(|| {
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::NET_RAW);
        set_capabilities(None, sets).unwrap(); // Of this thread alone, which does nothing else.
        PacketLink::open(WIRE, ETHERTYPE, &PacketOptions::default()).unwrap_err()
    });
    assert!(matches!(denied, OpenError::NotPermitted { capability: "CAP_NET_RAW", .. }), "{denied}");
    assert!(denied.to_string().contains("CAP_NET_RAW"), "{denied}");
}

#[test]
fn other_ethertypes_are_not_seen() {
    let Some(bed) = Testbed::new(1500) else { return };
    let [mut a, mut b] = [&bed.a, &bed.b].map(|host| end(host, PacketOptions::default()));
    let mut others: Vec<_> = (0..5).map(|n| frame(nic(2), nic(1), n, 100)).collect();
    others.iter_mut().for_each(|frame| frame[13] = 0xDD);
    assert_eq!(send_all(&mut a, &others), 0);
    passes(&mut a, &mut b, 9, 100);
    assert_eq!(b.counters().received, 1);
}

#[test]
fn a_new_interface_of_the_same_name_is_taken() {
    let Some(bed) = Testbed::new(1500) else { return };
    let [mut a, mut b] = [&bed.a, &bed.b].map(|host| end(host, PacketOptions::default()));
    passes(&mut a, &mut b, 0, 1000);
    bed.a.ip(&format!("link delete {WIRE}"));
    becomes(&mut a, LinkState::Gone);
    becomes(&mut b, LinkState::Gone);
    let lost = frame(nic(2), nic(1), 1, 100);
    let sent = a.send(&[isthmus_link::Frame::whole(&lost)]).unwrap();
    assert_eq!((sent.accepted, sent.next, a.state()), (0, isthmus_link::SendNext::Down, LinkState::Gone));
    bed.cable(9000).unwrap();
    becomes(&mut a, LinkState::Up);
    becomes(&mut b, LinkState::Up);
    passes(&mut a, &mut b, 2, 9014);
    passes(&mut b, &mut a, 3, 9014);
}

#[test]
fn a_lost_carrier_is_down_and_not_an_error() {
    let Some(bed) = Testbed::new(1500) else { return };
    let [mut a, mut b] = [&bed.a, &bed.b].map(|host| end(host, PacketOptions::default()));
    bed.b.ip(&format!("link set {WIRE} down"));
    becomes(&mut a, LinkState::Down);
    let lost = frame(nic(2), nic(1), 1, 100);
    let sent = a.send(&[isthmus_link::Frame::whole(&lost)]).unwrap();
    assert_eq!((sent.accepted, sent.next), (0, isthmus_link::SendNext::Down));
    bed.b.ip(&format!("link set {WIRE} up"));
    becomes(&mut a, LinkState::Up);
    passes(&mut a, &mut b, 2, 1000);
}

#[test]
fn a_larger_mtu_gets_larger_room() {
    let Some(bed) = Testbed::new(1500) else { return };
    let [mut a, mut b] = [&bed.a, &bed.b].map(|host| end(host, PacketOptions::default()));
    for host in [&bed.a, &bed.b] {
        host.ip(&format!("link set {WIRE} mtu 30000"));
    }
    a.refresh().unwrap();
    assert_eq!(a.frame_bytes_max(), 30014);
    let long = [frame(nic(2), nic(1), 1, 30014)];
    assert_eq!(send_all(&mut a, &long), 0);
    passes(&mut a, &mut b, 2, 100); // The other end has not looked yet: the long one did not fit.
    assert_eq!(b.counters().truncated, 1);
    b.refresh().unwrap();
    assert_eq!(send_all(&mut a, &long), 0);
    assert_eq!(collect(&mut b, 1), long);
}

#[test]
fn reads_the_kernels_count_of_lost_frames() {
    let Some(bed) = Testbed::new(9000) else { return };
    let options = PacketOptions { receive_buffer: 64 << 10, ..PacketOptions::default() };
    let (mut a, mut b) = (end(&bed.a, PacketOptions::default()), end(&bed.b, options));
    let frames: Vec<_> = (0..500).map(|n| frame(nic(2), nic(1), n, 9000)).collect();
    assert_eq!(send_all(&mut a, &frames), 0);
    let came = drain(&mut b).len() as u64;
    assert!(came < 500 && b.counters().overruns == 500 - came, "{came} {:?}", b.counters());
}

#[test]
fn queueing_disciplines_can_be_kept() {
    let Some(bed) = Testbed::new(1500) else { return };
    let options = PacketOptions { qdisc_bypass: false, ..PacketOptions::default() };
    let [mut a, mut b] = [&bed.a, &bed.b].map(|host| end(host, options.clone()));
    let frames: Vec<_> = (0..100).map(|n| frame(nic(2), nic(1), n, 1514)).collect();
    assert_eq!(send_all(&mut a, &frames), 0);
    assert!(collect(&mut b, 100) == frames);
}
