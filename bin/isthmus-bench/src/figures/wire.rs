//! The rows of MX between hosts: real programs and a daemon on either side of a real wire, beside bare frames by the same
//! system calls and beside the kernel's TCP on that wire.
//!
//! Hosts are network namespaces of this machine, wires are veth pairs, or go through user space where frames get lost or a rate
//! is kept. Where namespaces may not be made, the rows say so. Frames are as long as the MTU allows, on both sides of a ratio.

use std::rc::Rc;

use anyhow::{Context, Result};
use isthmus_link::raw::RAW_MESSAGE_BYTES;
use isthmus_netns::Impairments;

use super::{MIB, Row, row};
use crate::case::{Case, LinkCase, Reading, Unit};
use crate::hosts::{HostPairs, LinkKind, WireSpec};
use crate::job::{Buffers, Wait};
use crate::pair::Bench;
use crate::path::Path;

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
    row(
        "wire.goodput.1m",
        "at least 0.9 times bare frames of the same size by the same system calls",
        goodput(Path::Mx, Wait::Sleep, host_pairs, VETH),
        frames(Wait::Sleep, host_pairs, VETH),
        vec![
            Box::new(goodput(Path::Mx, Wait::Poll, host_pairs, VETH)),
            Box::new(frames(Wait::Poll, host_pairs, VETH)),
            Box::new(goodput(Path::Tcp, Wait::Sleep, host_pairs, VETH)),
            Box::new(goodput(Path::Tcp, Wait::Sleep, host_pairs, VETH).with_option("congestion", "cubic")),
        ],
    )
}

fn goodput_1m_1gbit(host_pairs: &Rc<HostPairs>) -> Option<Row> {
    let between = one_gigabit();
    row(
        "wire.goodput.1m.1gbit",
        "at least 0.97 times what the line can carry of messages",
        goodput(Path::Mx, Wait::Sleep, host_pairs, between).with_time_factor(SLOW_LONGER),
        Line(between),
        vec![Box::new(goodput(Path::Tcp, Wait::Sleep, host_pairs, between).with_time_factor(SLOW_LONGER))],
    )
}

fn udp_goodput_1m(host_pairs: &Rc<HostPairs>) -> Option<Row> {
    row(
        "udp.goodput.1m",
        "offloads on: at least 2 times the raw link",
        goodput(Path::Mx, Wait::Sleep, host_pairs, UDP),
        goodput(Path::Mx, Wait::Sleep, host_pairs, VETH),
        vec![
            Box::new(frames(Wait::Sleep, host_pairs, UDP)),
            Box::new(frames(Wait::Sleep, host_pairs, VETH)),
            Box::new(goodput(Path::Tcp, Wait::Sleep, host_pairs, UDP)),
        ],
    )
}

fn udp_goodput_1m_cut(host_pairs: &Rc<HostPairs>) -> Option<Row> {
    row(
        "udp.goodput.1m.cut",
        "offloads cut on the wire: level with the raw link",
        goodput(Path::Mx, Wait::Sleep, host_pairs, UDP_CUT),
        goodput(Path::Mx, Wait::Sleep, host_pairs, VETH),
        vec![Box::new(frames(Wait::Sleep, host_pairs, UDP_CUT)), Box::new(frames(Wait::Sleep, host_pairs, VETH))],
    )
}

fn half_rtt_8b(host_pairs: &Rc<HostPairs>, name: &'static str, wait: Wait) -> Option<Row> {
    let mut others: Vec<Box<dyn Case>> =
        vec![Box::new(LinkCase::half_rtt(Path::Tcp, wait, 8).between(host_pairs, VETH))];
    if wait == Wait::Sleep {
        let adaptive = LinkCase::half_rtt(Path::Mx, wait, 8).with_option("wait", "adaptive");
        others.push(Box::new(adaptive.between(host_pairs, VETH)));
    }
    row(
        name,
        "at most 1.5 times a bare frame there and back, waiting in the same way; below TCP",
        LinkCase::half_rtt(Path::Mx, wait, 8).between(host_pairs, VETH),
        frame_there_and_back(wait, host_pairs),
        others,
    )
}

fn goodput_loss1(host_pairs: &Rc<HostPairs>) -> Option<Row> {
    let between = one_percent_lost();
    let tcp = || goodput(Path::Tcp, Wait::Sleep, host_pairs, between).with_time_factor(SLOW_LONGER);
    row(
        "wire.goodput.loss1",
        "1 % loss, 1 ms there and back, MTU 1500: at least 3 times TCP as Linux has it (cubic)",
        goodput(Path::Mx, Wait::Sleep, host_pairs, between).with_time_factor(SLOW_LONGER),
        tcp().with_option("congestion", "cubic"),
        vec![Box::new(tcp())],
    )
}

fn cpu_per_gb(host_pairs: &Rc<HostPairs>) -> Option<Row> {
    row(
        "wire.cpu_per_gb",
        "none: CPU time of programs and daemons of both hosts, beside TCP's",
        goodput(Path::Mx, Wait::Sleep, host_pairs, VETH).cpu(),
        goodput(Path::Tcp, Wait::Sleep, host_pairs, VETH).cpu(),
        vec![Box::new(frames(Wait::Sleep, host_pairs, VETH).cpu())],
    )
}

fn aggregate_20pairs(host_pairs: &Rc<HostPairs>) -> Option<Row> {
    let one = goodput(Path::Mx, Wait::Sleep, host_pairs, VETH);
    row(
        "wire.aggregate.20pairs",
        "20 and 20 domains in opposite pairs: together at least as much as one pair",
        one.clone().aggregate(PAIRS).with_time_factor(PAIRS_LONGER),
        one,
        Vec::new(),
    )
}

/// What the line can carry, by the octets that each frame takes on it.
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
