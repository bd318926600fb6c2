//! AF_XDP: the suite, in the driver and behind it.

use isthmus_link::{
    Frame, Link, LinkKind, LinkState, OpenError, PacketLink, PacketOptions, SendNext, XdpLink, XdpMode, XdpOptions,
};

use crate::pattern::{becomes, passes, send_all};
use crate::testbed::{ETHERTYPE, Host, Testbed, WIRE, nic};

mod generic {
    crate::suite!(super::open_generic);
}
mod native {
    crate::suite!(super::open_native);
}

fn open_generic(bed: &Testbed) -> [Box<dyn Link>; 2] {
    both(bed, XdpMode::Generic).map(|link| Box::new(link) as Box<dyn Link>)
}

fn open_native(bed: &Testbed) -> [Box<dyn Link>; 2] {
    both(bed, XdpMode::Native).map(|link| Box::new(link) as Box<dyn Link>)
}

fn both(bed: &Testbed, mode: XdpMode) -> [XdpLink; 2] {
    [end(&bed.a, mode), end(&bed.b, mode)]
}

fn end(host: &Host, mode: XdpMode) -> XdpLink {
    host.run(move || {
        let options = XdpOptions { modes: vec![mode], ..XdpOptions::default() };
        XdpLink::open(WIRE, ETHERTYPE, &options).unwrap()
    })
}

#[test]
fn closing_the_link_removes_the_program_and_other_frames_pass() {
    let Some(bed) = Testbed::new(1500) else { return };
    let packet = |host: &Host, ethertype| {
        host.run(move || PacketLink::open(WIRE, ethertype, &PacketOptions::default()).unwrap())
    };
    let (mut a, mut b) = (packet(&bed.a, ETHERTYPE), packet(&bed.b, ETHERTYPE));
    let mut xdp = end(&bed.b, XdpMode::Generic);
    assert_eq!((xdp.kind(), xdp.mode(), xdp.nic()), (LinkKind::Xdp, XdpMode::Generic, nic(2)));
    passes(&mut a, &mut xdp, 1, 1000);
    assert_eq!(b.receive().unwrap(), 0);
    // What is not ours goes to the stack as before.
    let mut other = packet(&bed.b, 0x88B5);
    let mut frame = crate::pattern::frame(nic(2), nic(1), 2, 100);
    frame[12..14].copy_from_slice(&0x88B5_u16.to_be_bytes());
    assert_eq!(send_all(&mut a, &[frame.clone()]), 0);
    assert_eq!(crate::pattern::collect(&mut other, 1), [frame]);
    drop(xdp);
    passes(&mut a, &mut b, 3, 1000);
}

#[test]
fn second_program_is_refused_with_a_reason() {
    let Some(bed) = Testbed::new(1500) else { return };
    let _first = end(&bed.a, XdpMode::Generic);
    let second = bed.a.run(|| XdpLink::open(WIRE, ETHERTYPE, &XdpOptions::default()).unwrap_err());
    assert!(matches!(second, OpenError::Refused { .. }) && second.to_string().contains("XDP"), "{second}");
    let none = bed.a.run(|| XdpLink::open("nothing", ETHERTYPE, &XdpOptions::default()).unwrap_err());
    assert!(matches!(none, OpenError::NoInterface { .. }), "{none}");
}

#[test]
fn a_new_interface_of_the_same_name_is_taken() {
    let Some(bed) = Testbed::new(1500) else { return };
    let (mut a, mut b) = (end(&bed.a, XdpMode::Generic), end(&bed.b, XdpMode::Generic));
    passes(&mut a, &mut b, 0, 1000);
    bed.a.ip(&format!("link delete {WIRE}"));
    becomes(&mut a, LinkState::Gone);
    let frame = crate::pattern::frame(nic(2), nic(1), 1, 100);
    let sent = a.send(&[Frame::whole(&frame)]).unwrap();
    assert_eq!((sent.accepted, sent.next, a.receive().unwrap()), (0, SendNext::Down, 0));
    bed.cable(9000).unwrap();
    let mut a = bed.a.run(move || up(a)); // A new socket is made where the interface is.
    let mut b = bed.b.run(move || up(b));
    passes(&mut a, &mut b, 2, 9014);
    passes(&mut b, &mut a, 3, 9014);
}

fn up(mut link: XdpLink) -> XdpLink {
    becomes(&mut link, LinkState::Up);
    link
}
