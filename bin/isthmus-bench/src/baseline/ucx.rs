//! `ucx_perftest`, where it is installed: what UCX reaches between two processes of this machine.
//!
//! A server and a client are started on a port of their own, each bound to a CPU; the client's last line has the figures.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::case::{Case, Reading, Unit, not_installed, size_name};
use crate::pair::Bench;
use crate::programs::{TIMEOUT, find_program, free_port, run_client, start_server};

const PROGRAM: &str = "ucx_perftest";

/// The way of UCX through shared memory that it may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Posix,
    Sysv,
    /// Large messages by process_vm_readv, the rest as posix: it cannot do without.
    Cma,
}

impl Transport {
    const fn name(self) -> &'static str {
        match self {
            Self::Posix => "posix",
            Self::Sysv => "sysv",
            Self::Cma => "cma",
        }
    }

    const fn tls(self) -> &'static str {
        match self {
            Self::Posix => "posix",
            Self::Sysv => "sysv",
            Self::Cma => "posix,cma",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quantity {
    HalfRtt,
    Bandwidth,
    Rate,
}

/// One test of `ucx_perftest`.
pub(crate) struct Ucx {
    transport: Transport,
    quantity: Quantity,
    size: usize,
}

impl Ucx {
    /// Half a round trip by tag_lat: its median, which is below its mean.
    pub(crate) fn half_rtt(transport: Transport, size: usize) -> Self {
        Self { transport, quantity: Quantity::HalfRtt, size }
    }

    /// Bytes each second by tag_bw.
    pub(crate) fn bandwidth(transport: Transport, size: usize) -> Self {
        Self { transport, quantity: Quantity::Bandwidth, size }
    }

    /// Messages each second by tag_bw.
    pub(crate) fn rate(transport: Transport, size: usize) -> Self {
        Self { transport, quantity: Quantity::Rate, size }
    }

    /// Half a round trip over each kind of shared memory.
    pub(crate) fn half_rtts(size: usize) -> [Box<dyn Case>; 2] {
        [Transport::Posix, Transport::Sysv].map(|transport| Box::new(Self::half_rtt(transport, size)) as Box<dyn Case>)
    }

    /// Messages each second over each kind of shared memory.
    pub(crate) fn rates(size: usize) -> [Box<dyn Case>; 2] {
        [Transport::Posix, Transport::Sysv].map(|transport| Box::new(Self::rate(transport, size)) as Box<dyn Case>)
    }

    /// Returns the number of iterations that takes about the budget on a fast and quiet machine. The program has no limit of time.
    fn iterations(&self, budget: Duration) -> u64 {
        let guess_ns = match self.quantity {
            Quantity::HalfRtt => 500 + self.size as u64 / 5,
            Quantity::Bandwidth | Quantity::Rate => 150 + self.size as u64 / 10,
        };
        (budget.as_nanos() as u64 / guess_ns).max(200)
    }

    fn command(&self, bench: &Bench, cpu: usize, port: u16) -> Command {
        let mut command = Command::new(&bench.program);
        command.args(["run-bound", PROGRAM]);
        command.env("UCX_TLS", self.transport.tls()).env("UCX_WARN_UNUSED_ENV_VARS", "n");
        command.stdin(Stdio::null()).stderr(Stdio::null());
        command.args(["-c", &cpu.to_string(), "-p", &port.to_string()]);
        command
    }
}

impl Case for Ucx {
    fn name(&self) -> String {
        let quantity = match self.quantity {
            Quantity::HalfRtt => "half_rtt",
            Quantity::Bandwidth => "bandwidth",
            Quantity::Rate => "rate",
        };
        format!("ucx.{}.{quantity}.{}", self.transport.name(), size_name(self.size))
    }

    fn unit(&self) -> Unit {
        match self.quantity {
            Quantity::HalfRtt => Unit::Microseconds,
            Quantity::Bandwidth => Unit::GigabytesPerSecond,
            Quantity::Rate => Unit::MegamessagesPerSecond,
        }
    }

    fn run(&self, bench: &Bench) -> Result<Reading> {
        match self.measure(bench) {
            Ok(Some(line)) => Ok(Reading::value(match self.quantity {
                Quantity::HalfRtt => line.half_rtt_us,
                Quantity::Bandwidth => line.rate * self.size as f64 / 1e9,
                Quantity::Rate => line.rate / 1e6,
            })),
            Ok(None) => Ok(Reading::Unavailable(not_installed(PROGRAM, "package ucx-utils"))),
            // Not ours to repair: a baseline less, and the reason in its row.
            Err(error) => Ok(Reading::Unavailable(format!("{PROGRAM} did not work: {error:#}"))),
        }
    }
}

impl Ucx {
    /// `None` if it is not installed.
    fn measure(&self, bench: &Bench) -> Result<Option<FinalLine>> {
        if find_program(PROGRAM).is_none() {
            return Ok(None);
        }
        let port = free_port()?;
        let _server = start_server(self.command(bench, bench.placement.follow(0), port), None, port)?;
        let test = if self.quantity == Quantity::HalfRtt { "tag_lat" } else { "tag_bw" };
        let count = self.iterations(bench.budget);
        let mut client = self.command(bench, bench.placement.lead(0), port);
        client.args(["127.0.0.1", "-t", test, "-f", "-v", "-s", &self.size.to_string()]);
        client.args(["-n", &count.to_string(), "-w", &(count / 10).max(20).to_string()]);
        let (_, printed) = run_client(client, None, TIMEOUT + bench.budget * 20)?;
        FinalLine::parse(&printed).map(Some)
    }
}

/// The last line of `ucx_perftest -f -v`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct FinalLine {
    /// The median of the latency, which is of half a round trip in tag_lat.
    half_rtt_us: f64,
    /// Messages each second, over the whole run. (Its MB/s are of 2^20 bytes; this has no such doubt.)
    rate: f64,
}

impl FinalLine {
    /// `iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr`
    fn parse(printed: &str) -> Result<Self> {
        let last = printed.lines().rfind(|line| !line.trim().is_empty()).context("the client printed nothing")?;
        let fields: Vec<f64> = last.split(',').map_while(|field| field.trim().parse().ok()).collect();
        match fields[..] {
            [_, half_rtt_us, _, _, _, _, _, rate] if half_rtt_us > 0.0 && rate > 0.0 => Ok(Self { half_rtt_us, rate }),
            _ => bail!("the last line is {last:?}, not 8 numbers"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_read() {
        let printed = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
                       2000,31.660,90.572,90.572,11041.00,11041.00,11041,11041\n";
        let line = FinalLine::parse(printed).expect("parses");
        assert_eq!(line, FinalLine { half_rtt_us: 31.66, rate: 11041.0 });
    }

    #[test]
    fn other_last_lines_are_refused() {
        for printed in ["", "\n", "iterations,50.0_percentile_lat", "1,2,3", "1,0,3,4,5,6,7,0", "[vm:1] UCX ERROR, no"]
        {
            assert!(FinalLine::parse(printed).is_err(), "{printed:?}");
        }
    }
}
