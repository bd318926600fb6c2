//! Two hosts on this machine with a wire between them and a daemon on each, for all measurements from host to host.
//!
//! ```text
//!   HostPairs ── the last few, so that runs in turns do not make them again
//!     └─ HostPair ─┬─ Testbed ── host a ══ wire ══ host b        (isthmus-netns: network namespaces)
//!                  ├─ isthmusd on a, isthmusd on b             when a path needs them
//!                  └─ TempFolder ── their sockets; gone with us, however we end
//! ```
//!
//! Workers start in the hosts. All are pinned as [`crate::cpu_placement`] says.

use std::cell::{OnceCell, RefCell};
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path as FilePath, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result};
use isthmus_netns::{Host, Impairments, Testbed, Wire, WireInterface};

use crate::cpu::CpuUsage;
use crate::daemon::{self, PrivateDaemon};
use crate::pair::{Bench, PairPlan, PairResult, SidePlacement, Task};
use crate::path::Path;
use crate::temp_folder::TempFolder;

/// The wire between two hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct WireSpec {
    /// The name in the names of cases.
    pub(crate) name: &'static str,
    pub(crate) mtu: u32,
    /// True if packets of up to 64 KB of TCP and UDP may cross whole.
    pub(crate) offloads: bool,
    /// A wire through user space; none for a veth pair.
    pub(crate) conditions: Option<Impairments>,
    /// The carrier of the frames of the daemons.
    pub(crate) link_kind: LinkKind,
    /// The number of further links of each daemon, on boards of their own, by which no frame goes.
    pub(crate) silent_links: u16,
}

/// The carrier of the frames of the daemons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkKind {
    /// Packet sockets.
    Packet,
    /// UDP, each frame a datagram.
    Udp,
}

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Bytes of the headers of IPv4 and UDP.
const DATAGRAM: usize = 28;
/// Bytes of a frame with data before the data, its Ethernet header included (PULL_REPLY).
const PULL_REPLY_HEAD_BYTES: usize = 32;
/// Octets of a frame on the line that no host sees: preamble, check sequence, gap.
const LINE_OVERHEAD_BYTES: usize = isthmus_netns::impairment::LINE_OVERHEAD_BYTES as usize;

impl WireSpec {
    /// The longest frame that goes over it, from its Ethernet header on: by packet sockets, or whole in a datagram.
    pub(crate) const fn frame_bytes(&self) -> usize {
        match self.link_kind {
            LinkKind::Packet => self.mtu as usize + ETHERNET,
            LinkKind::Udp => self.mtu as usize - DATAGRAM,
        }
    }

    /// The bytes of long messages that its line carries each second; none if it has no rate.
    pub(crate) fn payload_max(&self) -> Option<f64> {
        let rate = self.conditions?.rate_bits?;
        let frame = self.frame_bytes();
        Some(rate as f64 / 8.0 * (frame - PULL_REPLY_HEAD_BYTES) as f64 / (frame + LINE_OVERHEAD_BYTES) as f64)
    }
}

/// The pairs of hosts that were made last.
#[derive(Debug, Default)]
pub(crate) struct HostPairs(RefCell<Vec<Rc<HostPair>>>);

/// The number of pairs that stay: a row compares at most two.
const HOST_PAIRS_MAX: usize = 2;

impl HostPairs {
    /// Returns the pair for this wire, and makes it if it is not there. The inner error is the reason that this machine cannot.
    pub(crate) fn on(&self, between: &WireSpec) -> Result<Result<Rc<HostPair>, String>> {
        let mut host_pairs = self.0.borrow_mut();
        if let Some(at) = host_pairs.iter().position(|pair| pair.between == *between) {
            let pair = host_pairs.remove(at);
            host_pairs.push(Rc::clone(&pair));
            return Ok(Ok(pair));
        }
        let bed = match Testbed::new() {
            Ok(bed) => bed,
            Err(why) => return Ok(Err(why.to_string())),
        };
        if host_pairs.len() == HOST_PAIRS_MAX {
            host_pairs.remove(0);
        }
        let pair = Rc::new(HostPair::make(bed, between).context("making two hosts")?);
        host_pairs.push(Rc::clone(&pair));
        Ok(Ok(pair))
    }

    /// Drops a pair after a failure, so that the next run has a new one.
    pub(crate) fn forget(&self, between: &WireSpec) {
        self.0.borrow_mut().retain(|pair| pair.between != *between);
    }
}

/// Two hosts. What is declared first ends first.
#[derive(Debug)]
pub(crate) struct HostPair {
    between: WireSpec,
    daemons: OnceCell<[PrivateDaemon; 2]>,
    ends: [WireInterface; 2],
    _bed: Testbed,
    folder: TempFolder,
}

/// The place of a host, for code that starts programs there itself.
#[derive(Clone, Debug)]
pub(crate) struct HostSite {
    pub(crate) name: String,
    pub(crate) address: Ipv4Addr,
    /// The interface to the other host.
    pub(crate) interface: String,
    /// The process of its daemon, which is in all its namespaces.
    pub(crate) daemon: u32,
    /// The folder with the daemon's socket.
    pub(crate) run: PathBuf,
}

impl HostPair {
    fn make(mut bed: Testbed, between: &WireSpec) -> Result<Self> {
        let hosts: [Host; 2] = [bed.host("a")?, bed.host("b")?];
        let wire = Wire { offloads: between.offloads, ..Wire::mtu(between.mtu) };
        let ends = match between.conditions {
            None => {
                let cable = bed.link(&hosts[0], &hosts[1], &wire)?;
                [cable.a().clone(), cable.b().clone()]
            }
            Some(conditions) => {
                let lossy = bed.impaired(&hosts[0], &hosts[1], &wire, conditions)?;
                [lossy.a().clone(), lossy.b().clone()]
            }
        };
        Ok(Self { between: *between, daemons: OnceCell::new(), ends, _bed: bed, folder: TempFolder::make()? })
    }

    /// The daemons of both hosts, started if they are not running.
    fn daemons(&self, bench: &Bench) -> Result<&[PrivateDaemon; 2]> {
        if self.daemons.get().is_none() {
            let daemons = [self.daemon(bench, 0)?, self.daemon(bench, 1)?];
            // No other thread sets it: one thread measures all cases.
            self.daemons.get_or_init(|| daemons);
        }
        self.daemons.get().context("the daemons are not started")
    }

    /// Both hosts, with their daemons running.
    pub(crate) fn sites(&self, bench: &Bench) -> Result<[HostSite; 2]> {
        let daemons = self.daemons(bench)?;
        Ok([0, 1].map(|at| {
            let end = &self.ends[at];
            let name = end.host.name().to_owned();
            let run = self.folder.path().join(&name);
            HostSite { name, address: end.v4, interface: end.name.clone(), daemon: daemons[at].process(), run }
        }))
    }

    /// The folder of the pair, which is removed with it.
    pub(crate) fn folder(&self) -> &FilePath {
        self.folder.path()
    }

    fn daemon(&self, bench: &Bench, of: usize) -> Result<PrivateDaemon> {
        let (own, other) = (&self.ends[of], &self.ends[1 - of]);
        let folder = self.folder.path().join(own.host.name());
        fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let config = Path::host_config(&self.between, own, other)?;
        let cpus = &bench.host_cpus.daemons[of];
        PrivateDaemon::start_as(
            &folder,
            &daemon::Plan { config: &config, host: Some(&own.host), cpus, ..Default::default() },
        )
        .with_context(|| format!("on host {}", own.host.name()))
    }

    /// Runs `pairs` pairs at the same time, one side on either host; `opposite` ones by turns from a to b and from b to a.
    /// CPU time of the daemons is part of their results.
    pub(crate) fn pairs(&self, bench: &Bench, task: &Task, pairs: usize, opposite: bool) -> Result<Vec<PairResult>> {
        let has_daemons = task.path.needs_host_daemons();
        let daemons = if has_daemons { Some(self.daemons(bench)?) } else { None };
        let side_placement = |host: usize| SidePlacement {
            host: self.ends[host].host.clone(),
            cpus: bench.host_cpus.programs[host].clone(),
            environment: daemons.map(|daemons| daemons[host].environment()).unwrap_or_default(),
        };
        let pair_plan = |number: usize| {
            let from = if opposite { number % 2 } else { 0 };
            let mut task = task.clone();
            for (name, value) in task.path.between(&self.ends[from], &self.ends[1 - from]) {
                task.setup.options.insert(name.to_owned(), value);
            }
            PairPlan { task, sides: [side_placement(from), side_placement(1 - from)] }
        };
        let pair_plans: Vec<PairPlan> = (0..pairs).map(pair_plan).collect();
        let servants: Vec<u32> = daemons.iter().flat_map(|both| both.iter()).map(PrivateDaemon::process).collect();
        if servants.is_empty() {
            return bench.run_pairs(&pair_plans);
        }
        let (mut found, used) = CpuUsage::record(&servants, || bench.run_pairs(&pair_plans))?;
        for found in &mut found {
            let during = found.interval_ns().map(|(begin, end)| used.between(begin, end)).unwrap_or_default();
            found.lead.cpu_ns += (during / pairs as f64) as u64; // A share of what they did for all.
        }
        Ok(found)
    }
}

/// Returns the reason that this installation cannot measure a path between hosts, if there is one.
pub(crate) fn unavailable_reason(path: Path) -> Option<String> {
    if path.needs_host_daemons() { daemon::unavailable_reason() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_carries_less_than_its_rate() {
        let conditions = Impairments { rate_bits: Some(1_000_000_000), ..Impairments::default() };
        let between = |link_kind, conditions| WireSpec {
            name: "",
            mtu: 9000,
            offloads: false,
            conditions,
            link_kind,
            silent_links: 0,
        };
        let packet = between(LinkKind::Packet, Some(conditions));
        assert_eq!(packet.frame_bytes(), 9014);
        let payload = packet.payload_max().expect("a rate");
        assert!((payload - 125e6 * 8982.0 / 9038.0).abs() < 1.0, "{payload}");
        assert_eq!(between(LinkKind::Udp, None).payload_max(), None);
        assert_eq!(between(LinkKind::Udp, None).frame_bytes(), 8972);
    }
}
