//! The rows of overlay networks.
//!
//! A veth pair that carries packets of 64 KB whole is not a wire, so streams have a second row over a wire that is cut.

use std::rc::Rc;

use isthmus_netns::Impairments;

use super::idle::Idle;
use super::lan::{LanWire, Lans};
use super::load::{Load, Quantity};
use super::lookup::Lookup;
use super::tunnel::Tunnel;
use crate::case::Case;
use crate::figures::Row;
use crate::target::Target;
use crate::target::Versus::{Floor, Peer, Value};

const WHOLE: LanWire = LanWire { name: "1500", mtu: 1500, is_cut: false, conditions: None };
const CUT: LanWire = LanWire { name: "1500.cut", is_cut: true, ..WHOLE };
const WHOLE_9000: LanWire = LanWire { name: "9000", mtu: 9000, ..WHOLE };
const CUT_9000: LanWire = LanWire { name: "9000.cut", is_cut: true, ..WHOLE_9000 };

/// Half of a delay of 1 ms there and back.
const DELAY_US: u32 = 500;

fn lossy(name: &'static str, loss: f64, reorder: f64) -> LanWire {
    let conditions = Impairments { loss, reorder, delay_us: DELAY_US, ..Impairments::default() };
    LanWire { name, conditions: Some(conditions), ..CUT }
}

/// The rows, in the order of the document. Those of one wire stand together.
pub(crate) fn rows() -> Vec<Option<Row>> {
    let lans = &Rc::new(Lans::default());
    let rows = [
        user_stream("net.user.stream.1500", lans, WHOLE, 0.7),
        user_stream("net.user.stream.1500.cut", lans, CUT, 0.7),
        user_stream("net.user.stream.9000", lans, WHOLE_9000, 1.0),
        user_stream("net.user.stream.9000.cut", lans, CUT_9000, 1.0),
        round_trip(lans),
        vxlan("net.vxlan.user.send", lans, WHOLE, 0),
        vxlan("net.vxlan.user.send.cut", lans, CUT, 0),
        vxlan("net.vxlan.user.receive", lans, WHOLE, 1),
        vxlan("net.vxlan.user.receive.cut", lans, CUT, 1),
        loss("net.loss.1", lans, lossy("loss1", 0.01, 0.0)),
        loss("net.loss.5", lans, lossy("loss5", 0.05, 0.0)),
        loss("net.loss.reordered", lans, lossy("reordered", 0.0, 0.01)),
        cpu_per_gb("net.cpu_per_gb", lans, WHOLE),
        cpu_per_gb("net.cpu_per_gb.cut", lans, CUT),
        Row::new("net.lookup.cached", Lookup::Cached).target(Target::at_least(20.0, Value)),
        Row::new("net.lookup.miss", Lookup::Miss).target(Target::at_least(2.0, Value)),
        Row::new("net.lookup.change", Lookup::Change).target(Target::at_most(100.0, Value)),
        Row::new("net.idle", Idle { interfaces: 100, edges: 20 }).target(Target::at_most(0.0, Value)),
    ];
    rows.into_iter().map(Some).collect()
}

/// The measurements of `isthmus try`: a stream through *fast*, and through the kernel's VXLAN.
pub(crate) fn trial() -> [impl Case + use<>; 2] {
    let lans = &Rc::new(Lans::default());
    [Tunnel::Fast, Tunnel::Kernel].map(|tunnel| load(lans, WHOLE, tunnel, Quantity::Bandwidth))
}

fn load(lans: &Rc<Lans>, wire: LanWire, tunnel: Tunnel, quantity: Quantity) -> Load {
    Load { lans: Rc::clone(lans), wire, tunnel, quantity, from: 0 }
}

fn user_stream(name: &'static str, lans: &Rc<Lans>, wire: LanWire, least: f64) -> Row {
    let through = |tunnel| load(lans, wire, tunnel, Quantity::Bandwidth);
    let row = Row::new(name, through(Tunnel::Fast)).peer(through(Tunnel::Kernel)).floor(through(Tunnel::Mover));
    let row = row.beside(through(Tunnel::FastSleep));
    row.target(Target::at_least(least, Peer).and(Target::at_least(0.9, Floor)))
}

fn round_trip(lans: &Rc<Lans>) -> Row {
    let through = |tunnel| load(lans, WHOLE, tunnel, Quantity::HalfRtt);
    let row = Row::new("net.user.rr", through(Tunnel::Fast)).peer(through(Tunnel::Kernel));
    let row = row.floor(through(Tunnel::Mover)).beside(through(Tunnel::FastSleep));
    row.target(Target::at_most(1.15, Floor))
}

/// Our VXLAN edge on host a. The sender is on host `from`.
fn vxlan(name: &'static str, lans: &Rc<Lans>, wire: LanWire, from: usize) -> Row {
    let through = |tunnel| Load { from, ..load(lans, wire, tunnel, Quantity::Bandwidth) };
    let row = Row::new(name, through(Tunnel::Vxlan)).peer(through(Tunnel::Kernel)).floor(through(Tunnel::VxlanMover));
    row.target(Target::at_least(0.5, Peer).and(Target::at_least(0.9, Floor)))
}

fn loss(name: &'static str, lans: &Rc<Lans>, wire: LanWire) -> Row {
    let through = |tunnel| load(lans, wire, tunnel, Quantity::Bandwidth);
    let row = Row::new(name, through(Tunnel::Fast)).peer(through(Tunnel::Kernel));
    row.target(Target::at_least(0.8, Peer))
}

/// CPU time of the whole machine.
fn cpu_per_gb(name: &'static str, lans: &Rc<Lans>, wire: LanWire) -> Row {
    let through = |tunnel| load(lans, wire, tunnel, Quantity::Cpu);
    let row = Row::new(name, through(Tunnel::Fast)).peer(through(Tunnel::Kernel)).floor(through(Tunnel::Mover));
    row.beside(through(Tunnel::FastSleep))
}
