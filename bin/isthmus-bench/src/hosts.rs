//! Two hosts on this machine with a wire between them, and a daemon on each: the stage of all measurements from host to host.
//!
//! ```text
//!   Stages ── the last few, so that runs in turns need not make them anew
//!     └─ Stage ─┬─ Bed ── host a ══ wire ══ host b        (isthmus-netbed: network namespaces)
//!               ├─ isthmusd on a, isthmusd on b            when MX is first measured on it
//!               └─ Folder ── their sockets; gone with us, however we end
//! ```
//!
//! Workers start in the hosts. All are pinned as [`crate::seats`] says.

use std::cell::{OnceCell, RefCell};
use std::fmt::Write;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path as FilePath, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result};
use isthmus_netbed::{Bed, Conditions, Host, Interface, Wire};

use crate::cpu::Used;
use crate::daemon::{self, PrivateDaemon};
use crate::folder::Folder;
use crate::pair::{Bench, Found, Party, Seat, Task};
use crate::path::{Path, board};

/// What is between two hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Between {
    /// As it stands in the names of cases.
    pub(crate) name: &'static str,
    pub(crate) mtu: u32,
    /// Whether the pieces of up to 64 KB that TCP and UDP hand over may cross whole.
    pub(crate) offloads: bool,
    /// A wire through user space; none for a veth pair.
    pub(crate) conditions: Option<Conditions>,
    /// What carries the frames of the daemons.
    pub(crate) carrier: Carrier,
}

/// What carries the frames of the daemons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// Packet sockets.
    Packet,
    /// UDP, each frame a datagram.
    Udp,
}

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Bytes of the headers of IPv4 and UDP.
const DATAGRAM: usize = 28;
/// What a frame with data has before them, its Ethernet header included (PULL_REPLY).
const HEAD: usize = 32;
/// Octets of a frame on the line that no host sees: preamble, check sequence, gap.
const ON_THE_LINE: usize = isthmus_netbed::line::LINE_OVERHEAD_BYTES as usize;

impl Between {
    /// The longest frame that goes over it, from its Ethernet header on: by packet sockets, or whole in a datagram.
    pub(crate) const fn frame_bytes(&self) -> usize {
        match self.carrier {
            Carrier::Packet => self.mtu as usize + ETHERNET,
            Carrier::Udp => self.mtu as usize - DATAGRAM,
        }
    }

    /// What its line can carry of long messages, in bytes each second; none if it has no rate.
    pub(crate) fn payload_max(&self) -> Option<f64> {
        let rate = self.conditions?.rate_bits?;
        let frame = self.frame_bytes();
        Some(rate as f64 / 8.0 * (frame - HEAD) as f64 / (frame + ON_THE_LINE) as f64)
    }
}

/// Stages that were made last.
#[derive(Debug, Default)]
pub(crate) struct Stages(RefCell<Vec<Rc<Stage>>>);

/// So many stay: a row compares two at most.
const STAGES_MAX: usize = 2;

impl Stages {
    /// The stage for this, made if it is not there; an error within says why this machine cannot have any.
    pub(crate) fn on(&self, between: &Between) -> Result<Result<Rc<Stage>, String>> {
        let mut stages = self.0.borrow_mut();
        if let Some(at) = stages.iter().position(|stage| stage.between == *between) {
            let stage = stages.remove(at);
            stages.push(Rc::clone(&stage));
            return Ok(Ok(stage));
        }
        let bed = match Bed::new() {
            Ok(bed) => bed,
            Err(why) => return Ok(Err(why.to_string())),
        };
        if stages.len() == STAGES_MAX {
            stages.remove(0);
        }
        let stage = Rc::new(Stage::make(bed, between).context("making two hosts")?);
        stages.push(Rc::clone(&stage));
        Ok(Ok(stage))
    }

    /// Something went wrong on it: the next run has a new one.
    pub(crate) fn forget(&self, between: &Between) {
        self.0.borrow_mut().retain(|stage| stage.between != *between);
    }
}

/// Two hosts. What is declared first ends first.
#[derive(Debug)]
pub(crate) struct Stage {
    between: Between,
    daemons: OnceCell<[PrivateDaemon; 2]>,
    ends: [Interface; 2],
    _bed: Bed,
    folder: Folder,
}

/// Where a host is, for those who start programs there themselves.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) name: String,
    pub(crate) address: Ipv4Addr,
    /// Its interface to the other host.
    pub(crate) interface: String,
    /// The process of its daemon, which is in all its namespaces.
    pub(crate) daemon: u32,
    /// The folder with the daemon's socket.
    pub(crate) run: PathBuf,
}

impl Stage {
    fn make(mut bed: Bed, between: &Between) -> Result<Self> {
        let hosts: [Host; 2] = [bed.host("a")?, bed.host("b")?];
        let wire = Wire { offloads: between.offloads, ..Wire::mtu(between.mtu) };
        let ends = match between.conditions {
            None => {
                let cable = bed.link(&hosts[0], &hosts[1], &wire)?;
                [cable.a().clone(), cable.b().clone()]
            }
            Some(conditions) => {
                let lossy = bed.lossy(&hosts[0], &hosts[1], &wire, conditions)?;
                [lossy.a().clone(), lossy.b().clone()]
            }
        };
        Ok(Self { between: *between, daemons: OnceCell::new(), ends, _bed: bed, folder: Folder::make()? })
    }

    /// The daemons of both hosts, started if they are not running.
    fn daemons(&self, bench: &Bench) -> Result<&[PrivateDaemon; 2]> {
        if self.daemons.get().is_none() {
            let daemons = [self.daemon(bench, 0)?, self.daemon(bench, 1)?];
            // Nobody else sets it: a case is measured by one thread.
            self.daemons.get_or_init(|| daemons);
        }
        self.daemons.get().context("they were started")
    }

    /// Both hosts, with their daemons running.
    pub(crate) fn sites(&self, bench: &Bench) -> Result<[Site; 2]> {
        let daemons = self.daemons(bench)?;
        Ok([0, 1].map(|at| {
            let end = &self.ends[at];
            let name = end.host.name().to_owned();
            let run = self.folder.path().join(&name);
            Site { name, address: end.v4, interface: end.name.clone(), daemon: daemons[at].process(), run }
        }))
    }

    /// A folder that is gone when the stage is.
    pub(crate) fn folder(&self) -> &FilePath {
        self.folder.path()
    }

    fn daemon(&self, bench: &Bench, of: usize) -> Result<PrivateDaemon> {
        let (own, other) = (&self.ends[of], &self.ends[1 - of]);
        let folder = self.folder.path().join(own.host.name());
        fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let config = self.config(own, other)?;
        let cpus = &bench.seating.daemons[of];
        PrivateDaemon::start_as(&folder, &daemon::Plan { config: &config, host: Some(&own.host), cpus })
            .with_context(|| format!("on host {}", own.host.name()))
    }

    /// A board that knows the other host's, so that nothing has to be found first.
    fn config(&self, own: &Interface, other: &Interface) -> Result<String> {
        let link = match self.between.carrier {
            Carrier::Packet => format!("interface = {:?}", own.name),
            Carrier::Udp => format!("udp = \"{}\", peers = [\"{}\"]", own.v4, other.v4),
        };
        let mac = |interface: &Interface| interface.mac.map(|byte| format!("{byte:02x}")).join(":");
        let mut config = String::new();
        writeln!(config, "[[mx.board]]\nname = {:?}\nmac = \"{}\"\nlinks = [{{ {link} }}]", board(own), mac(own))?;
        writeln!(config, "discovery = false\npeers = [{{ mac = \"{}\", name = {:?} }}]", mac(other), board(other))?;
        Ok(config)
    }

    /// Runs so many pairs at the same time, one side on either host; `opposite` ones by turns from a to b and from b to a.
    /// CPU time of the daemons is part of what each found.
    pub(crate) fn pairs(&self, bench: &Bench, task: &Task, pairs: usize, opposite: bool) -> Result<Vec<Found>> {
        let has_daemons = task.path == Path::Mx;
        let daemons = if has_daemons { Some(self.daemons(bench)?) } else { None };
        let seat = |host: usize| Seat {
            host: self.ends[host].host.clone(),
            cpus: bench.seating.programs[host].clone(),
            environment: daemons.map(|daemons| daemons[host].environment()).unwrap_or_default(),
        };
        let party = |number: usize| {
            let from = if opposite { number % 2 } else { 0 };
            let mut task = task.clone();
            for (name, value) in task.path.between(&self.ends[from], &self.ends[1 - from]) {
                task.setup.options.insert(name.to_owned(), value);
            }
            Party { task, seats: [seat(from), seat(1 - from)] }
        };
        let parties: Vec<Party> = (0..pairs).map(party).collect();
        let servants: Vec<u32> = daemons.iter().flat_map(|both| both.iter()).map(PrivateDaemon::process).collect();
        if servants.is_empty() {
            return bench.parties(&parties);
        }
        let (mut found, used) = Used::meanwhile(&servants, || bench.parties(&parties))?;
        for found in &mut found {
            let during = found.interval_ns().map(|(begin, end)| used.between(begin, end)).unwrap_or_default();
            found.lead.cpu_ns += (during / pairs as f64) as u64; // A share of what they did for all.
        }
        Ok(found)
    }
}

/// Why MX between hosts cannot be measured with this installation, if it cannot.
pub(crate) fn absent(path: Path) -> Option<String> {
    if path == Path::Mx { daemon::absent() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_carries_less_than_its_rate() {
        let conditions = Conditions { rate_bits: Some(1_000_000_000), ..Conditions::default() };
        let between = |carrier, conditions| Between { name: "", mtu: 9000, offloads: false, conditions, carrier };
        let packet = between(Carrier::Packet, Some(conditions));
        assert_eq!(packet.frame_bytes(), 9014);
        let payload = packet.payload_max().expect("a rate");
        assert!((payload - 125e6 * 8982.0 / 9038.0).abs() < 1.0, "{payload}");
        assert_eq!(between(Carrier::Udp, None).payload_max(), None);
        assert_eq!(between(Carrier::Udp, None).frame_bytes(), 8972);
    }
}
