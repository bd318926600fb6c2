//! The rows of MX between hosts: real programs and a daemon on either side of a real wire, beside bare frames by the same
//! system calls and beside the kernel's TCP on that wire.
//!
//! Hosts are network namespaces of this machine, wires are veth pairs, or go through user space where frames get lost or a rate
//! is kept. Where namespaces may not be made, the rows say so. Frames are as long as the MTU allows, on both sides of a ratio.

use std::rc::Rc;

use anyhow::{Context, Result};
use isthmus_link::raw::NOTE_BYTES;
use isthmus_netbed::Conditions;

use super::{MIB, Row, row};
use crate::case::{Case, LinkCase, Reading, Unit};
use crate::hosts::{Between, Carrier, Stages};
use crate::job::{Buffers, Wait};
use crate::pair::Bench;
use crate::path::Path;

/// A veth pair that carries frames as a plain network card does.
pub(crate) const VETH: Between =
    Between { name: "veth", mtu: 9000, offloads: false, conditions: None, carrier: Carrier::Packet };
const UDP: Between = Between { name: "udp", offloads: true, carrier: Carrier::Udp, ..VETH };
const UDP_CUT: Between = Between { name: "udp.cut", offloads: false, ..UDP };

/// Pairs of domains at once; and how much longer they are measured, so that all of them are at work for most of the time.
const PAIRS: usize = 20;
const PAIRS_LONGER: u32 = 6;
/// On a slow wire, and on one that loses frames, it takes a while until the pace is found.
const SLOW_LONGER: u32 = 4;

fn one_gigabit() -> Between {
    let conditions = Conditions { rate_bits: Some(1_000_000_000), ..Conditions::default() };
    Between { name: "1gbit", conditions: Some(conditions), ..VETH }
}

fn one_percent_lost() -> Between {
    let conditions = Conditions { loss: 0.01, delay_us: 500, ..Conditions::default() };
    Between { name: "loss1", mtu: 1500, conditions: Some(conditions), ..VETH }
}

pub(super) fn rows(stages: &Rc<Stages>) -> Vec<Option<Row>> {
    vec![
        goodput_1m(stages),
        goodput_1m_1gbit(stages),
        udp_goodput_1m(stages),
        udp_goodput_1m_cut(stages),
        half_rtt_8b(stages, "wire.half_rtt.8b.poll", Wait::Poll),
        half_rtt_8b(stages, "wire.half_rtt.8b.sleep", Wait::Sleep),
        goodput_loss1(stages),
        cpu_per_gb(stages),
        aggregate_20pairs(stages),
    ]
}

/// Messages of 1 MiB one way.
pub(crate) fn goodput(path: Path, wait: Wait, stages: &Rc<Stages>, between: Between) -> LinkCase {
    LinkCase::bandwidth(path, wait, MIB, Buffers::Warm).between(stages, between)
}

/// Bare frames one way, as long as those of the messages.
pub(crate) fn frames(wait: Wait, stages: &Rc<Stages>, between: Between) -> LinkCase {
    let path = match between.carrier {
        Carrier::Packet => Path::Raw,
        Carrier::Udp => Path::RawUdp,
    };
    LinkCase::bandwidth(path, wait, between.frame_bytes(), Buffers::Warm).between(stages, between)
}

/// A bare frame there and back, as short as one can be.
pub(crate) fn frame_there_and_back(wait: Wait, stages: &Rc<Stages>) -> LinkCase {
    LinkCase::half_rtt(Path::Raw, wait, NOTE_BYTES).between(stages, VETH)
}

fn goodput_1m(stages: &Rc<Stages>) -> Option<Row> {
    row(
        "wire.goodput.1m",
        "at least 0.9 times bare frames of the same size by the same system calls",
        goodput(Path::Mx, Wait::Sleep, stages, VETH),
        frames(Wait::Sleep, stages, VETH),
        vec![
            Box::new(goodput(Path::Mx, Wait::Poll, stages, VETH)),
            Box::new(frames(Wait::Poll, stages, VETH)),
            Box::new(goodput(Path::Tcp, Wait::Sleep, stages, VETH)),
            Box::new(goodput(Path::Tcp, Wait::Sleep, stages, VETH).with_option("congestion", "cubic")),
        ],
    )
}

fn goodput_1m_1gbit(stages: &Rc<Stages>) -> Option<Row> {
    let between = one_gigabit();
    row(
        "wire.goodput.1m.1gbit",
        "at least 0.97 times what the line can carry of messages",
        goodput(Path::Mx, Wait::Sleep, stages, between).longer(SLOW_LONGER),
        Line(between),
        vec![Box::new(goodput(Path::Tcp, Wait::Sleep, stages, between).longer(SLOW_LONGER))],
    )
}

fn udp_goodput_1m(stages: &Rc<Stages>) -> Option<Row> {
    row(
        "udp.goodput.1m",
        "offloads on: at least 2 times the raw link",
        goodput(Path::Mx, Wait::Sleep, stages, UDP),
        goodput(Path::Mx, Wait::Sleep, stages, VETH),
        vec![
            Box::new(frames(Wait::Sleep, stages, UDP)),
            Box::new(frames(Wait::Sleep, stages, VETH)),
            Box::new(goodput(Path::Tcp, Wait::Sleep, stages, UDP)),
        ],
    )
}

fn udp_goodput_1m_cut(stages: &Rc<Stages>) -> Option<Row> {
    row(
        "udp.goodput.1m.cut",
        "offloads cut on the wire: level with the raw link",
        goodput(Path::Mx, Wait::Sleep, stages, UDP_CUT),
        goodput(Path::Mx, Wait::Sleep, stages, VETH),
        vec![Box::new(frames(Wait::Sleep, stages, UDP_CUT)), Box::new(frames(Wait::Sleep, stages, VETH))],
    )
}

fn half_rtt_8b(stages: &Rc<Stages>, name: &'static str, wait: Wait) -> Option<Row> {
    let mut others: Vec<Box<dyn Case>> = vec![Box::new(LinkCase::half_rtt(Path::Tcp, wait, 8).between(stages, VETH))];
    if wait == Wait::Sleep {
        let adaptive = LinkCase::half_rtt(Path::Mx, wait, 8).with_option("wait", "adaptive");
        others.push(Box::new(adaptive.between(stages, VETH)));
    }
    row(
        name,
        "at most 1.5 times a bare frame there and back, waiting in the same way; below TCP",
        LinkCase::half_rtt(Path::Mx, wait, 8).between(stages, VETH),
        frame_there_and_back(wait, stages),
        others,
    )
}

fn goodput_loss1(stages: &Rc<Stages>) -> Option<Row> {
    let between = one_percent_lost();
    let tcp = || goodput(Path::Tcp, Wait::Sleep, stages, between).longer(SLOW_LONGER);
    row(
        "wire.goodput.loss1",
        "1 % loss, 1 ms there and back, MTU 1500: at least 3 times TCP as Linux has it (cubic)",
        goodput(Path::Mx, Wait::Sleep, stages, between).longer(SLOW_LONGER),
        tcp().with_option("congestion", "cubic"),
        vec![Box::new(tcp())],
    )
}

fn cpu_per_gb(stages: &Rc<Stages>) -> Option<Row> {
    row(
        "wire.cpu_per_gb",
        "none: CPU time of programs and daemons of both hosts, beside TCP's",
        goodput(Path::Mx, Wait::Sleep, stages, VETH).cpu(),
        goodput(Path::Tcp, Wait::Sleep, stages, VETH).cpu(),
        vec![Box::new(frames(Wait::Sleep, stages, VETH).cpu())],
    )
}

fn aggregate_20pairs(stages: &Rc<Stages>) -> Option<Row> {
    let one = goodput(Path::Mx, Wait::Sleep, stages, VETH);
    row(
        "wire.aggregate.20pairs",
        "20 and 20 domains in opposite pairs: together at least as much as one pair",
        one.clone().aggregate(PAIRS).longer(PAIRS_LONGER),
        one,
        Vec::new(),
    )
}

/// What the line can carry, by the octets that each frame takes on it.
struct Line(Between);

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
