//! Cases: messages between ranks of a job of ours (`program.c`).

use std::rc::Rc;

use anyhow::{Context, Result};

use super::installation::{Mpi, Transport};
use super::launch::Launch;
use super::system_mpi::SystemMpis;
use crate::case::{Case, Reading, Unit, size_name};
use crate::hosts::{HostPairs, WireSpec};
use crate::pair::Bench;
use crate::programs::Place;

/// The measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    HalfRtt,
    Bandwidth,
    Oversubscribed,
    OversubscribedTcp,
}

impl Work {
    const fn name(self) -> &'static str {
        match self {
            Self::HalfRtt => "half_rtt",
            Self::Bandwidth => "bandwidth",
            Self::Oversubscribed => "oversubscribed",
            Self::OversubscribedTcp => "oversubscribed_tcp",
        }
    }
}

/// A job of ours.
pub(crate) struct Ranks {
    work: Work,
    size: usize,
    launch: Launch,
    system_mpi: Rc<SystemMpis>,
}

impl Ranks {
    fn new(
        system_mpi: &Rc<SystemMpis>,
        work: Work,
        (mpi, transport): (Mpi, Transport),
        size: usize,
        ranks: usize,
    ) -> Self {
        let launch = Launch { mpi, transport, ranks, two_hosts: None };
        Self { work, size, launch, system_mpi: Rc::clone(system_mpi) }
    }

    /// Half a round trip between two ranks.
    pub(crate) fn half_rtt(system_mpi: &Rc<SystemMpis>, over: (Mpi, Transport), size: usize) -> Self {
        Self::new(system_mpi, Work::HalfRtt, over, size, 2)
    }

    /// Bytes each second from one rank to another, with 64 messages under way.
    pub(crate) fn bandwidth(system_mpi: &Rc<SystemMpis>, over: (Mpi, Transport), size: usize) -> Self {
        Self::new(system_mpi, Work::Bandwidth, over, size, 2)
    }

    /// `ranks` ranks on two processors: an iteration in which each sends `size` bytes to each, all sum up and all wait for all.
    pub(crate) fn oversubscribed(
        system_mpi: &Rc<SystemMpis>,
        over: (Mpi, Transport),
        size: usize,
        ranks: usize,
    ) -> Self {
        Self::new(system_mpi, Work::Oversubscribed, over, size, ranks)
    }

    /// The iteration of [`Self::oversubscribed`] by blocking TCP sockets, in processes that an MPI has started.
    pub(crate) fn oversubscribed_tcp(system_mpi: &Rc<SystemMpis>, mpi: Mpi, size: usize, ranks: usize) -> Self {
        Self::new(system_mpi, Work::OversubscribedTcp, (mpi, Transport::Own), size, ranks)
    }

    /// Puts the ranks on two hosts.
    pub(crate) fn between(mut self, host_pairs: &Rc<HostPairs>, between: WireSpec) -> Self {
        self.launch.two_hosts = Some((Rc::clone(host_pairs), between));
        self
    }

    fn measure(&self, bench: &Bench) -> Result<Result<f64, String>> {
        let program = self.system_mpi.program(self.launch.mpi)?;
        let arguments = [self.work.name().to_owned(), self.size.to_string(), bench.budget.as_millis().to_string()];
        match self.launch.run(bench, &self.system_mpi, &program, &arguments)? {
            Ok(printed) => Ok(Ok(parse(&printed)?)),
            Err(why) => Ok(Err(why)),
        }
    }
}

fn parse(printed: &str) -> Result<f64> {
    let value = printed.lines().find_map(|line| line.strip_prefix("ns ")?.trim().parse().ok());
    value.filter(|&value| value > 0.0).with_context(|| format!("the program printed {printed:?}"))
}

impl Case for Ranks {
    fn name(&self) -> String {
        let Launch { mpi, transport, ranks, two_hosts } = &self.launch;
        let ranks = if *ranks == 2 { String::new() } else { format!(".{ranks}ranks") };
        let between = two_hosts.as_ref().map_or(String::new(), |(_, between)| format!(".{}", between.name));
        let over = if self.work == Work::OversubscribedTcp {
            "tcp.oversubscribed".to_owned()
        } else {
            format!("{}.{}.{}", mpi.name(), transport.name(), self.work.name())
        };
        format!("{over}.{}{ranks}{between}", size_name(self.size))
    }

    fn unit(&self) -> Unit {
        if self.work == Work::Bandwidth { Unit::GigabytesPerSecond } else { Unit::Microseconds }
    }

    fn run(&self, bench: &Bench) -> Result<Reading> {
        let place = self.system_mpi.place();
        if let Some(why) = place.and_then(Place::unavailable_reason).or_else(|| self.launch.unavailable_reason()) {
            return Ok(Reading::Unavailable(why));
        }
        match (self.measure(bench), self.launch.transport) {
            (Ok(Ok(ns)), _) if self.work == Work::Bandwidth => Ok(Reading::value(self.size as f64 / ns)),
            (Ok(Ok(ns)), _) => Ok(Reading::value(ns / 1e3)),
            (Ok(Err(why)), _) => Ok(Reading::Unavailable(why)),
            (Err(error), transport) if transport == Transport::Isthmus || place.is_some() => Err(error),
            // Not ours to repair: a baseline less, and the reason in its row.
            (Err(error), _) => Ok(Reading::Unavailable(format!("it did not work: {error:#}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_is_found_among_warnings() {
        assert_eq!(parse("a warning\nns 312.50\n").expect("parses"), 312.5);
        for printed in ["", "ns 0\n", "ns none\n"] {
            assert!(parse(printed).is_err(), "{printed:?}");
        }
    }
}
