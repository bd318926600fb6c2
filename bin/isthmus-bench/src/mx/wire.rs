//! The rows of MX between hosts: C programs and a daemon on either side of a wire, beside bare frames by the same system calls and
//! beside the kernel's TCP on that wire. A wire goes through user space where frames get lost or a rate is kept.

use std::fmt::Write;
use std::rc::Rc;

use anyhow::{Context, Result};
use isthmus_netns::{Impairments, WireInterface};

use crate::case::{Case, LinkCase, Reading, Unit};
use crate::figures::Row;
use crate::figures::wire::{VETH, frame_there_and_back, frames, goodput};
use crate::hosts::{HostPairs, LinkKind, WireSpec};
use crate::job::Wait;
use crate::pair::Bench;
use crate::path::Path;
use crate::target::Target;
use crate::target::Versus::{Floor, Peer};

const UDP: WireSpec = WireSpec { name: "udp", offloads: true, link_kind: LinkKind::Udp, ..VETH };
const SILENT: WireSpec = WireSpec { name: "udp.silent99", silent_links: 99, ..UDP };
const UDP_CUT: WireSpec = WireSpec { name: "udp.cut", offloads: false, ..UDP };

/// The links of each silent board: as many as a board may have.
const SILENT_LINKS: usize = 8;
/// The port of the first silent link. The others follow.
const SILENT_PORT: u16 = 20_000;

/// Pairs of domains at once; and how much longer they are measured, so that all of them are at work for most of the time.
const PAIRS: usize = 20;
const PAIRS_LONGER: u32 = 6;
/// The factor for wires that are slow or lose frames, because the pace is found late there.
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
        silent_links(host_pairs),
        goodput_loss1(host_pairs),
        cpu_per_gb(host_pairs),
        aggregate_20pairs(host_pairs),
    ]
}

/// The name of the board of a host with this interface.
pub(crate) fn board(interface: &WireInterface) -> String {
    format!("{}:0", interface.host.name())
}

/// The configuration of a host's daemon: a board that knows the board of the other host, so that nothing has to be discovered.
/// Silent boards know no other board.
pub(crate) fn host_config(between: &WireSpec, own: &WireInterface, other: &WireInterface) -> Result<String> {
    let link = match between.link_kind {
        LinkKind::Packet => format!("interface = {:?}", own.name),
        LinkKind::Udp => format!("udp = \"{}\", peers = [\"{}\"]", own.v4, other.v4),
    };
    let mac = |interface: &WireInterface| interface.mac.map(|byte| format!("{byte:02x}")).join(":");
    let mut config = String::new();
    writeln!(config, "[[mx.board]]\nname = {:?}\nmac = \"{}\"\nlinks = [{{ {link} }}]", board(own), mac(own))?;
    writeln!(config, "discovery = false\npeers = [{{ mac = \"{}\", name = {:?} }}]", mac(other), board(other))?;
    let ports: Vec<u16> = (SILENT_PORT..SILENT_PORT + between.silent_links).collect();
    for (number, ports) in ports.chunks(SILENT_LINKS).enumerate() {
        let link = |port| format!("{{ udp = \"{}:{port}\", peers = [\"{}:{port}\"] }}", own.v4, other.v4);
        let links = ports.iter().map(link).collect::<Vec<_>>().join(", ");
        writeln!(config, "[[mx.board]]\nname = \"{}:{}\"\nlinks = [{links}]", own.host.name(), number + 1)?;
        writeln!(config, "mac = \"0a:{number:02x}{}\"\ndiscovery = false", &mac(own)[5..])?;
    }
    Ok(config)
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
        Wait::Poll | Wait::Adaptive => row,
        Wait::Sleep => row.beside(over(Path::Mx).with_option("wait", "adaptive").between(host_pairs, VETH)),
    })
}

/// The peer is the same wire without silent links.
fn silent_links(host_pairs: &Rc<HostPairs>) -> Option<Row> {
    let over = |between| LinkCase::half_rtt(Path::Mx, Wait::Poll, 8).between(host_pairs, between);
    let row = Row::of_link("wire.silent_links", over(SILENT))?;
    Some(row.peer(over(UDP)).target(Target::at_most(1.1, Peer)))
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
