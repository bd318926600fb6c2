//! The rows of MX between hosts: real programs and a daemon on either side of a real wire, beside bare frames by the same
//! system calls and beside the kernel's TCP on that wire.
//!
//! Hosts are network namespaces of this machine, wires are veth pairs, or go through user space where frames get lost or a rate
//! is kept. Where namespaces may not be made, the rows say so. Frames are as long as the MTU allows, on both sides of a ratio.

use std::rc::Rc;

use anyhow::{Context, Result};
use isthmus_link::raw::RAW_MESSAGE_BYTES;
use isthmus_netns::Impairments;

use super::{MIB, Row};
use crate::case::{Case, LinkCase, Reading, Unit};
use crate::hosts::{HostPairs, LinkKind, WireSpec};
use crate::job::{Buffers, Wait};
use crate::pair::Bench;
use crate::path::Path;
use crate::target::Target;
use crate::target::Versus::{Floor, Peer};

/// A veth pair that carries frames as a plain network card does.
pub(crate) const VETH: WireSpec =
    WireSpec { name: "veth", mtu: 9000, offloads: false, conditions: None, link_kind: LinkKind::Packet };
const UDP: WireSpec = WireSpec { name: "udp", offloads: true, link_kind: LinkKind::Udp, ..VETH };
const UDP_CUT: WireSpec = WireSpec { name: "udp.cut", offloads: false, ..UDP };

/// Pairs of domains at once; and how much longer they are measured, so that all of them are at work for most of the time.
const PAIRS: usize = 20;
const PAIRS_LONGER: u32 = 6;
/// On a slow wire, and on one that loses frames, it takes a while until the pace is found.
const SLOW_LONGER: u32 = 4;

fn one_gigabit() -> WireSpec {
    let conditions = Impairments { rate_bits: Some(1_000_000_000), ..Impairments::default() };
    WireSpec { name: "1gbit", conditions: Some(conditions), ..VETH }
}

fn one_percent_lost() -> WireSpec {
    let conditions = Impairments { loss: 0.01, delay_us: 500, ..Impairments::default() };
    WireSpec { name: "loss1", mtu: 1500, conditions: Some(conditions), ..VETH }
}

pub(super) fn rows(host_pairs: &Rc<HostPairs>) -> Vec<Option<Row>> {
    vec![
        goodput_1m(host_pairs),
        goodput_1m_1gbit(host_pairs),
        udp_goodput_1m(host_pairs),
        udp_goodput_1m_cut(host_pairs),
        half_rtt_8b(host_pairs, "wire.half_rtt.8b.poll", Wait::Poll),
        half_rtt_8b(host_pairs, "wire.half_rtt.8b.sleep", Wait::Sleep),
        goodput_loss1(host_pairs),
        cpu_per_gb(host_pairs),
        aggregate_20pairs(host_pairs),
    ]
}

/// Messages of 1 MiB one way.
pub(crate) fn goodput(path: Path, wait: Wait, host_pairs: &Rc<HostPairs>, between: WireSpec) -> LinkCase {
    LinkCase::bandwidth(path, wait, MIB, Buffers::Warm).between(host_pairs, between)
}

/// Bare frames one way, as long as those of the messages.
pub(crate) fn frames(wait: Wait, host_pairs: &Rc<HostPairs>, between: WireSpec) -> LinkCase {
    let path = match between.link_kind {
        LinkKind::Packet => Path::Raw,
        LinkKind::Udp => Path::RawUdp,
    };
    LinkCase::bandwidth(path, wait, between.frame_bytes(), Buffers::Warm).between(host_pairs, between)
}

/// A bare frame there and back, as short as one can be.
pub(crate) fn frame_there_and_back(wait: Wait, host_pairs: &Rc<HostPairs>) -> LinkCase {
    LinkCase::half_rtt(Path::Raw, wait, RAW_MESSAGE_BYTES).between(host_pairs, VETH)
}

fn goodput_1m(host_pairs: &Rc<HostPairs>) -> Option<Row> {
    let tcp = || goodput(Path::Tcp, Wait::Sleep, host_pairs, VETH);
    let row = Row::of_link("wire.goodput.1m", goodput(Path::Mx, Wait::Sleep, host_pairs, VETH))?;
    Some(
        row.peer(tcp())
            .peer(tcp().with_option("congestion", "cubic"))
            .floor(frames(Wait::Sleep, host_pairs, VETH))
            .beside(goodput(Path::Mx, Wait::Poll, host_pairs, VETH))
            .beside(frames(Wait::Poll, host_pairs, VETH))
            .target(Target::at_least(0.9, Floor)),
    )
}

fn goodput_1m_1gbit(host_pairs: &Rc<HostPairs>) -> Option<Row> {
    let between = one_gigabit();
    let over = |path| goodput(path, Wait::Sleep, host_pairs, between).with_time_factor(SLOW_LONGER);
    let row = Row::of_link("wire.goodput.1m.1gbit", over(Path::Mx))?.peer(over(Path::Tcp));
    Some(row.floor(Line(between)).target(Target::at_least(0.97, Floor)))
}

fn udp_goodput_1m(host_pairs: &Rc<HostPairs>) -> Option<Row> {
    let packets = goodput(Path::Mx, Wait::Sleep, host_pairs, VETH);
    let target = Target::at_least(2.0, Peer).of(packets.name());
    let row = Row::of_link("udp.goodput.1m", goodput(Path::Mx, Wait::Sleep, host_pairs, UDP))?;
    Some(
        row.peer(goodput(Path::Tcp, Wait::Sleep, host_pairs, UDP))
            .floor(frames(Wait::Sleep, host_pairs, UDP))
            .beside(packets)
            .beside(frames(Wait::Sleep, host_pairs, VETH))
            .target(target),
    )
}

fn udp_goodput_1m_cut(host_pairs: &Rc<HostPairs>) -> Option<Row> {
    let row = Row::of_link("udp.goodput.1m.cut", goodput(Path::Mx, Wait::Sleep, host_pairs, UDP_CUT))?;
    Some(
        row.peer(goodput(Path::Mx, Wait::Sleep, host_pairs, VETH))
            .floor(frames(Wait::Sleep, host_pairs, UDP_CUT))
            .beside(frames(Wait::Sleep, host_pairs, VETH))
            .target(Target::at_least(1.0, Peer)),
    )
}

fn half_rtt_8b(host_pairs: &Rc<HostPairs>, name: &'static str, wait: Wait) -> Option<Row> {
    let over = |path| LinkCase::half_rtt(path, wait, 8);
    let row = Row::of_link(name, over(Path::Mx).between(host_pairs, VETH))?;
    let row = row.peer(over(Path::Tcp).between(host_pairs, VETH)).floor(frame_there_and_back(wait, host_pairs));
    let row = row.target(Target::at_most(1.5, Floor).and(Target::at_most(1.0, Peer)));
    Some(match wait {
        Wait::Poll => row,
        Wait::Sleep => row.beside(over(Path::Mx).with_option("wait", "adaptive").between(host_pairs, VETH)),
    })
}

/// Linux has TCP with `cubic`; the machine may have another congestion control, which is a peer as well.
fn goodput_loss1(host_pairs: &Rc<HostPairs>) -> Option<Row> {
    let over = |path| goodput(path, Wait::Sleep, host_pairs, one_percent_lost()).with_time_factor(SLOW_LONGER);
    let cubic = over(Path::Tcp).with_option("congestion", "cubic");
    let target = Target::at_least(3.0, Peer).of(cubic.name());
    let row = Row::of_link("wire.goodput.loss1", over(Path::Mx))?;
    Some(row.peer(cubic).peer(over(Path::Tcp)).target(target))
}

/// CPU time of programs and daemons of both hosts.
fn cpu_per_gb(host_pairs: &Rc<HostPairs>) -> Option<Row> {
    let over = |path| goodput(path, Wait::Sleep, host_pairs, VETH).cpu();
    let row = Row::of_link("wire.cpu_per_gb", over(Path::Mx))?;
    Some(row.peer(over(Path::Tcp)).floor(frames(Wait::Sleep, host_pairs, VETH).cpu()))
}

/// 20 and 20 domains in opposite pairs. The peer is one pair.
fn aggregate_20pairs(host_pairs: &Rc<HostPairs>) -> Option<Row> {
    let one = goodput(Path::Mx, Wait::Sleep, host_pairs, VETH);
    let all = one.clone().aggregate(PAIRS).with_time_factor(PAIRS_LONGER);
    Some(Row::of_link("wire.aggregate.20pairs", all)?.peer(one).target(Target::at_least(1.0, Peer)))
}

/// The bandwidth of a line, by the octets that each frame takes on it.
struct Line(WireSpec);

impl Case for Line {
    fn name(&self) -> String {
        format!("line.payload.{}", self.0.name)
    }

    fn unit(&self) -> Unit {
        Unit::GigabytesPerSecond
    }

    fn run(&self, _: &Bench) -> Result<Reading> {
        Ok(Reading::value(self.0.payload_max().context("a line without a rate")? / 1e9))
    }
}
