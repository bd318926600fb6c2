//! Cases: what ranks of a job of ours do to each other (`program.c`).

use std::rc::Rc;

use anyhow::{Context, Result};

use super::flavour::{Mpi, Transport};
use super::launch::Launch;
use super::stock::Stock;
use crate::case::{Case, Reading, Unit, size_name};
use crate::hosts::{Between, Stages};
use crate::pair::Bench;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    HalfRtt,
    Bandwidth,
    Crowd,
    CrowdTcp,
}

impl Work {
    const fn name(self) -> &'static str {
        match self {
            Self::HalfRtt => "half_rtt",
            Self::Bandwidth => "bandwidth",
            Self::Crowd => "crowd",
            Self::CrowdTcp => "crowd_tcp",
        }
    }
}

/// A job of ours.
pub(crate) struct Ranks {
    work: Work,
    size: usize,
    launch: Launch,
    stock: Rc<Stock>,
}

impl Ranks {
    fn new(stock: &Rc<Stock>, work: Work, (mpi, transport): (Mpi, Transport), size: usize, ranks: usize) -> Self {
        let launch = Launch { mpi, transport, ranks, away: None };
        Self { work, size, launch, stock: Rc::clone(stock) }
    }

    /// Half a round trip between two ranks.
    pub(crate) fn half_rtt(stock: &Rc<Stock>, over: (Mpi, Transport), size: usize) -> Self {
        Self::new(stock, Work::HalfRtt, over, size, 2)
    }

    /// Bytes each second from one rank to another, with 64 messages under way.
    pub(crate) fn bandwidth(stock: &Rc<Stock>, over: (Mpi, Transport), size: usize) -> Self {
        Self::new(stock, Work::Bandwidth, over, size, 2)
    }

    /// So many ranks on two processors: a turn in which each sends so many bytes to each, all add up and all wait for all.
    pub(crate) fn crowd(stock: &Rc<Stock>, over: (Mpi, Transport), size: usize, ranks: usize) -> Self {
        Self::new(stock, Work::Crowd, over, size, ranks)
    }

    /// The same by blocking TCP sockets, in processes that an MPI has started.
    pub(crate) fn crowd_tcp(stock: &Rc<Stock>, mpi: Mpi, size: usize, ranks: usize) -> Self {
        Self::new(stock, Work::CrowdTcp, (mpi, Transport::Own), size, ranks)
    }

    /// The same with ranks on two hosts.
    pub(crate) fn between(mut self, stages: &Rc<Stages>, between: Between) -> Self {
        self.launch.away = Some((Rc::clone(stages), between));
        self
    }

    fn measure(&self, bench: &Bench) -> Result<Result<f64, String>> {
        let program = self.stock.program(self.launch.mpi)?;
        let arguments = [self.work.name().to_owned(), self.size.to_string(), bench.budget.as_millis().to_string()];
        match self.launch.run(bench, &self.stock, &program, &arguments)? {
            Ok(printed) => Ok(Ok(parse(&printed)?)),
            Err(why) => Ok(Err(why)),
        }
    }
}

fn parse(printed: &str) -> Result<f64> {
    let value = printed.lines().find_map(|line| line.strip_prefix("ns ")?.trim().parse().ok());
    value.filter(|&value| value > 0.0).with_context(|| format!("it printed {printed:?}"))
}

impl Case for Ranks {
    fn name(&self) -> String {
        let Launch { mpi, transport, ranks, away } = &self.launch;
        let ranks = if *ranks == 2 { String::new() } else { format!(".{ranks}ranks") };
        let between = away.as_ref().map_or(String::new(), |(_, between)| format!(".{}", between.name));
        let over = if self.work == Work::CrowdTcp {
            "tcp.crowd".to_owned()
        } else {
            format!("{}.{}.{}", mpi.name(), transport.name(), self.work.name())
        };
        format!("{over}.{}{ranks}{between}", size_name(self.size))
    }

    fn unit(&self) -> Unit {
        if self.work == Work::Bandwidth { Unit::GigabytesPerSecond } else { Unit::Microseconds }
    }

    fn run(&self, bench: &Bench) -> Result<Reading> {
        if let Some(why) = self.launch.absent() {
            return Ok(Reading::Absent(why));
        }
        match (self.measure(bench), self.launch.transport) {
            (Ok(Ok(ns)), _) if self.work == Work::Bandwidth => Ok(Reading::value(self.size as f64 / ns)),
            (Ok(Ok(ns)), _) => Ok(Reading::value(ns / 1e3)),
            (Ok(Err(why)), _) => Ok(Reading::Absent(why)),
            (Err(error), Transport::Isthmus) => Err(error),
            // Not ours to repair: a baseline less, and the reason in its row.
            (Err(error), _) => Ok(Reading::Absent(format!("it did not work: {error:#}"))),
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
