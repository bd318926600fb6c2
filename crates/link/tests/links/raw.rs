//! Measurements end with the right counts, over every link and in both wait modes.

use std::time::Duration;

use isthmus_link::raw::{MeasurementPlan, RawError, RawWait, ping, pong, stream_in, stream_out};
use isthmus_link::{Link, PacketLink, PacketOptions, Peer, UdpLink, UdpOptions};

use crate::testbed::{ETHERTYPE, Testbed, WIRE, nic};

fn packet(bed: &Testbed) -> [Box<dyn Link>; 2] {
    [&bed.a, &bed.b].map(|host| {
        let open = || PacketLink::open(WIRE, ETHERTYPE, &PacketOptions::default()).unwrap();
        Box::new(host.run(open)) as Box<dyn Link>
    })
}

fn udp(bed: &Testbed) -> [Box<dyn Link>; 2] {
    [(&bed.a, 1), (&bed.b, 2)].map(|(host, number)| {
        let open = move || UdpLink::open(&UdpOptions::new(nic(number))).unwrap();
        let mut link = host.run(open);
        let other = 3 - number;
        let address = format!("192.0.2.{other}:{}", isthmus_link::UDP_PORT).parse().unwrap();
        link.set_peers(&[Peer { address, nics: vec![nic(other)] }]).unwrap();
        Box::new(link) as Box<dyn Link>
    })
}

/// Opens both ends.
type Open = fn(&Testbed) -> [Box<dyn Link>; 2];

#[cfg(not(feature = "af-xdp"))]
const ALL: [Open; 2] = [packet, udp];
#[cfg(feature = "af-xdp")]
const ALL: [Open; 3] = [packet, udp, xdp];

#[cfg(feature = "af-xdp")]
fn xdp(bed: &Testbed) -> [Box<dyn Link>; 2] {
    use isthmus_link::{XdpLink, XdpOptions};
    [&bed.a, &bed.b].map(|host| {
        let open = || XdpLink::open(WIRE, ETHERTYPE, &XdpOptions::default()).unwrap();
        Box::new(host.run(open)) as Box<dyn Link>
    })
}

/// Both ends of a plan at once.
fn measure<A: Send, B: Send>(
    [mut a, mut b]: [Box<dyn Link>; 2],
    plan: &MeasurementPlan,
    first: impl FnOnce(&mut dyn Link, &MeasurementPlan) -> A + Send,
    second: impl FnOnce(&mut dyn Link, &MeasurementPlan) -> B + Send,
) -> (A, B) {
    let back = MeasurementPlan { to: a.nic(), ..plan.clone() };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| second(&mut *b, &back));
        (first(&mut *a, plan), other.join().unwrap())
    })
}

#[test]
fn a_stream_arrives_over_every_link() {
    for open in ALL {
        for wait in [RawWait::Sleep, RawWait::Spin] {
            let Some(bed) = Testbed::anywhere(9000) else { return };
            let plan = MeasurementPlan::new(nic(2), ETHERTYPE, 8000, 5000).waiting(wait);
            let (sent, came) = measure(open(&bed), &plan, stream_out, stream_in);
            let (sent, came) = (sent.unwrap(), came.unwrap());
            assert_eq!((sent.frames, sent.bytes), (5000, 40_000_000));
            assert!(came.frames <= 5000 && came.asked <= sent.asked, "{sent:?} {came:?}");
            assert!(came.frames == 5000 || came.asked > 0, "{sent:?} {came:?}");
        }
    }
}

#[test]
fn every_ping_is_answered() {
    for open in ALL {
        for wait in [RawWait::Sleep, RawWait::Spin] {
            let Some(bed) = Testbed::anywhere(1500) else { return };
            let plan = MeasurementPlan::new(nic(2), ETHERTYPE, 64, 300).waiting(wait);
            let mut times = Vec::new();
            let (made, answered) =
                measure(open(&bed), &plan, |link, plan| ping(link, plan, |took| times.push(took)), pong);
            let (made, answered) = (made.unwrap(), answered.unwrap());
            assert_eq!((made.rounds, times.len()), (300, 300));
            assert!(answered >= 300 && answered <= 300 + made.repeated, "{made:?} {answered}");
        }
    }
}

#[test]
fn measurement_fails_when_the_other_end_is_silent() {
    let Some(bed) = Testbed::anywhere(1500) else { return };
    let [mut a, mut b] = packet(&bed);
    let plan = MeasurementPlan { timeout: Duration::ZERO, ..MeasurementPlan::new(nic(2), ETHERTYPE, 64, 10) };
    assert!(matches!(stream_in(&mut *b, &plan), Err(RawError::Timeout { .. })));
    assert!(matches!(ping(&mut *a, &plan, drop), Err(RawError::Timeout { .. })));
    let long = MeasurementPlan::new(nic(2), ETHERTYPE, 2000, 10);
    assert!(matches!(stream_out(&mut *a, &long), Err(RawError::Refused { bytes: 2000, max: 1514, .. })));
}
