//! Cases: programs in the containers that exchange data through a tunnel.

use std::io::{BufRead, BufReader};
use std::process::{ChildStdout, Command, Stdio};
use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::lan::{Lan, LanWire, Lans};
use super::tunnel::Tunnel;
use crate::case::{Case, Reading, Unit, not_installed};
use crate::job::{Wait, Work};
use crate::pair::{Bench, PairPlan, SidePlacement, Task};
use crate::path::Path;
use crate::pin;
use crate::programs::{KillOnDrop, TIMEOUT, find_program, output};
use crate::worker::CPUS;

const IPERF: &str = "iperf3";

/// The duration of a stream in seconds: TCP needs a part of it to find its window.
const SECONDS: u32 = 3;
const SECONDS_QUICK: u32 = 1;

/// Bytes of each message of round trips.
const ROUND_TRIP_BYTES: usize = 8;

/// Ticks each second in `/proc/stat`, on all architectures.
const TICKS_PER_SECOND: f64 = 100.0;

/// The number that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quantity {
    /// Bytes of a TCP stream each second.
    Bandwidth,
    /// The time of half a round trip over TCP, both sides sleeping.
    HalfRtt,
    /// CPU time of the whole machine by the bytes of a stream: the kernel does most of the work, and not in the name of a process.
    Cpu,
}

/// A load on a tunnel.
#[derive(Clone, Debug)]
pub(super) struct Load {
    pub(super) lans: Rc<Lans>,
    pub(super) wire: LanWire,
    pub(super) tunnel: Tunnel,
    pub(super) quantity: Quantity,
    /// The host of the sender.
    pub(super) from: usize,
}

impl Case for Load {
    fn name(&self) -> String {
        let what = match self.quantity {
            Quantity::Bandwidth => IPERF,
            Quantity::HalfRtt => "half_rtt",
            Quantity::Cpu => "cpu_per_gb",
        };
        let direction = if self.from == 1 { ".from_b" } else { "" };
        format!("{what}.{}.{}{direction}", self.tunnel.name(), self.wire.name)
    }

    fn unit(&self) -> Unit {
        match self.quantity {
            Quantity::Bandwidth => Unit::GigabytesPerSecond,
            Quantity::HalfRtt => Unit::Microseconds,
            Quantity::Cpu => Unit::SecondsPerGigabyte,
        }
    }

    fn run(&self, bench: &Bench) -> Result<Reading> {
        if self.quantity != Quantity::HalfRtt && find_program(IPERF).is_none() {
            return Ok(Reading::Unavailable(not_installed(IPERF, "package iperf3")));
        }
        let lan = match self.lans.on(self.wire)? {
            Ok(lan) => lan,
            Err(why) => return Ok(Reading::Unavailable(why)),
        };
        let done = self.run_on(bench, &lan);
        if done.is_err() {
            self.lans.forget();
        }
        done
    }
}

impl Load {
    fn run_on(&self, bench: &Bench, lan: &Lan) -> Result<Reading> {
        if let Err(why) = lan.open(bench, self.tunnel)? {
            return Ok(Reading::Unavailable(why));
        }
        Ok(Reading::value(match self.quantity {
            Quantity::Bandwidth => self.stream(bench, lan)?.bytes_per_second() / 1e9,
            Quantity::HalfRtt => self.half_rtt(bench, lan)?,
            Quantity::Cpu => {
                let before = busy_seconds()?;
                let stream = self.stream(bench, lan)?;
                (busy_seconds()? - before) / (stream.bytes / 1e9)
            }
        }))
    }

    fn half_rtt(&self, bench: &Bench, lan: &Lan) -> Result<f64> {
        let mut task = Task::plain(Path::Tcp, Wait::Sleep, Work::PingPong { size: ROUND_TRIP_BYTES });
        task.setup.options.insert(crate::path::tcp::AT.to_owned(), self.tunnel.address(1));
        let sides = [0, 1].map(|host| SidePlacement {
            host: lan.sites[host].container.clone(),
            cpus: bench.host_cpus.programs[host].clone(),
            environment: Vec::new(),
        });
        let results = bench.run_pairs(&[PairPlan { task, sides }])?;
        results.first().context("one pair gives one result")?.half_rtt_us()
    }

    fn stream(&self, bench: &Bench, lan: &Lan) -> Result<Stream> {
        let (from, to) = (self.from, 1 - self.from);
        let mut server = iperf(bench, lan, to, &["-s", "-1", "--forceflush", "-B", &self.tunnel.address(to)])?;
        let mut text = BufReader::new(server.0.stdout.take().context("a program without output")?);
        wait_for_server(&mut text)?;
        let seconds = if bench.quick { SECONDS_QUICK } else { SECONDS }.to_string();
        let client = iperf(bench, lan, from, &["-c", &self.tunnel.address(to), "-t", &seconds, "-J"])?;
        let (status, printed) = output(client, TIMEOUT)?;
        let report: Value = serde_json::from_str(&printed).with_context(|| format!("iperf3 printed {printed:?}"))?;
        ensure!(status.success(), "iperf3: {}", report["error"]);
        Stream::parse(&report).with_context(|| format!("iperf3 reports no stream: {printed}"))
    }
}

/// Starts iperf3 in the container of a host.
fn iperf(bench: &Bench, lan: &Lan, host: usize, words: &[&str]) -> Result<KillOnDrop> {
    let mut command = Command::new(&bench.program);
    command.arg("run-bound").arg(format!("{CPUS}{}", pin::list(&bench.host_cpus.programs[host])));
    command.arg(find_program(IPERF).with_context(|| format!("{IPERF} is gone"))?).args(words);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    lan.sites[host].container.spawn(command).map(KillOnDrop).context("cannot start iperf3")
}

fn wait_for_server(text: &mut BufReader<ChildStdout>) -> Result<()> {
    let mut line = String::new();
    while !line.contains("Server listening") {
        line.clear();
        let bytes = text.read_line(&mut line).context("cannot read the output of iperf3")?;
        ensure!(bytes > 0, "the server of iperf3 ended at its start");
    }
    Ok(())
}

/// The stream as its receiver got it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stream {
    bytes: f64,
    seconds: f64,
}

impl Stream {
    /// Reads the report of a client. None if it has no stream.
    fn parse(report: &Value) -> Option<Self> {
        let received = &report["end"]["sum_received"];
        let stream = Self { bytes: received["bytes"].as_f64()?, seconds: received["seconds"].as_f64()? };
        (stream.bytes > 0.0 && stream.seconds > 0.0).then_some(stream)
    }

    fn bytes_per_second(self) -> f64 {
        self.bytes / self.seconds
    }
}

/// The CPU time of the machine since its start, in seconds.
fn busy_seconds() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    let ticks = busy_ticks(&text).with_context(|| format!("cannot understand /proc/stat: {text:?}"))?;
    Ok(ticks as f64 / TICKS_PER_SECOND)
}

/// `cpu user nice system idle iowait irq softirq …`.
fn busy_ticks(text: &str) -> Option<u64> {
    let fields = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let ticks: Vec<u64> = fields.map(str::parse).collect::<Result<_, _>>().ok()?;
    let [user, nice, system, _idle, _iowait, irq, softirq, ..] = ticks[..] else { return None };
    Some(user + nice + system + irq + softirq)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_what_the_receiver_got() {
        let report = serde_json::json!({"end": {
            "sum_sent": {"bytes": 9e9, "seconds": 1.0}, "sum_received": {"bytes": 4e9, "seconds": 2.0},
        }});
        assert_eq!(Stream::parse(&report).map(Stream::bytes_per_second), Some(2e9));
        assert_eq!(Stream::parse(&serde_json::json!({"error": "unable to connect"})), None);
        assert_eq!(Stream::parse(&serde_json::json!({"end": {"sum_received": {"bytes": 0, "seconds": 1.0}}})), None);
    }

    #[test]
    fn waiting_is_not_busy() {
        let text = "cpu  1 20 300 99999 99999 4000 50000 0 0 0\ncpu0 1 1 1 1 1 1 1 0 0 0\n";
        assert_eq!(busy_ticks(text), Some(54321));
        assert_eq!(busy_ticks("cpu0 1 2 3 4 5 6 7\n"), None);
        assert_eq!(busy_ticks("cpu 1 2 3\n"), None);
    }
}
