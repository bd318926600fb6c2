//! Cases: the programs of perftest, as they are packaged, on the device.
//!
//! A server and a client, which lead to each other by TCP and are pinned as workers are. The client prints a table with one row.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::device::Device;
use crate::case::{Case, Reading, Unit, not_installed, size_name};
use crate::pair::Bench;
use crate::programs::{Place, TIMEOUT, find_program, free_port, run_client, start_server};

/// Requests of one list, of which a run has whole ones.
const LIST: u64 = 32;

/// The iterations that a program accepts.
const ITERATIONS_MIN: u64 = 320;
const ITERATIONS_MAX: u64 = 5_000_000;

/// The number that is taken from the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quantity {
    /// `t_typical`, the median: of half a round trip, or of a whole one where only one side has requests.
    Latency,
    Bandwidth,
    Rate,
}

/// One test.
#[derive(Clone, Debug)]
pub(crate) struct Perftest {
    device: Rc<Device>,
    program: &'static str,
    quantity: Quantity,
    size: usize,
    /// Both sides sleep until their completion channel is readable.
    sleeps: bool,
    one_cpu: bool,
    /// The memory of both sides stays where it is, so that a thread of its owner serves it.
    served: bool,
}

impl Perftest {
    fn new(device: &Rc<Device>, program: &'static str, quantity: Quantity, size: usize) -> Self {
        let device = Rc::clone(device);
        Self { device, program, quantity, size, sleeps: false, one_cpu: false, served: false }
    }

    /// The median of a latency.
    pub(crate) fn latency(device: &Rc<Device>, program: &'static str, size: usize) -> Self {
        Self::new(device, program, Quantity::Latency, size)
    }

    /// Bytes each second in one direction.
    pub(super) fn bandwidth(device: &Rc<Device>, program: &'static str, size: usize) -> Self {
        Self::new(device, program, Quantity::Bandwidth, size)
    }

    /// Messages each second in one direction, posted in lists.
    pub(super) fn rate(device: &Rc<Device>, program: &'static str, size: usize) -> Self {
        Self::new(device, program, Quantity::Rate, size)
    }

    pub(super) fn sleeping(self) -> Self {
        Self { sleeps: true, ..self }
    }

    pub(super) fn on_one_cpu(self) -> Self {
        Self { one_cpu: true, ..self }
    }

    pub(super) fn served(self) -> Self {
        Self { served: true, ..self }
    }

    /// Returns the number of iterations that takes about the budget on a fast and quiet machine. `-D` counts whole seconds, and leaves out
    /// the median.
    fn iterations(&self, budget: Duration) -> u64 {
        let guess_ns = match self.quantity {
            // Some processors take so long to wake. A read may need a thread of its owner.
            Quantity::Latency if self.sleeps || self.served || self.program == "ib_read_lat" => 30_000,
            Quantity::Latency => 400,
            // A tenth of a copy's speed, because a connection may carry all messages by packets.
            Quantity::Bandwidth | Quantity::Rate => 200 + self.size as u64 / 4,
        };
        let count = (budget.as_nanos() as u64 / guess_ns).clamp(ITERATIONS_MIN, ITERATIONS_MAX);
        count / LIST * LIST
    }

    fn arguments(&self, port: u16, budget: Duration) -> Vec<String> {
        let [port, count] = [u64::from(port), self.iterations(budget)].map(|number| number.to_string());
        let mut words = vec!["-F".to_owned(), "-p".to_owned(), port, "-n".to_owned(), count];
        if self.program != "ib_atomic_lat" {
            words.extend(["-s".to_owned(), self.size.to_string()]); // Atomic operations have 8 bytes.
        }
        let more: &[&str] = match self.quantity {
            Quantity::Latency if self.sleeps => &["-e"],
            Quantity::Latency => &[],
            Quantity::Bandwidth => &["--noPeak"],
            Quantity::Rate => &["--noPeak", "-l", "32"],
        };
        words.extend(more.iter().map(|&word| word.to_owned()));
        words
    }

    /// One side. Its errors go to a file.
    fn command(&self, bench: &Bench, cpu: usize, port: u16, errors: &Path) -> Result<Command> {
        let program = find_program(self.program).with_context(|| format!("{} is gone", self.program))?;
        let mut command = self.device.command(bench, cpu, &program)?;
        command.args(self.arguments(port, bench.budget));
        if self.served {
            command.env("ISTHMUS_RCACHE", "0");
        }
        let errors = File::create(errors).with_context(|| format!("cannot write {}", errors.display()))?;
        command.stdin(Stdio::null()).stderr(errors);
        Ok(command)
    }

    fn measure(&self, bench: &Bench) -> Result<f64> {
        let port = free_port()?;
        let lead = bench.placement.lead(0);
        let follow = if self.one_cpu { lead } else { bench.placement.follow(0) };
        let folder = self.device.folder()?;
        let (of_server, of_client) = (folder.join("server"), folder.join("client"));
        let server = start_server(self.command(bench, follow, port, &of_server)?, None, port);
        let _server = server.with_context(|| text(&of_server))?;
        let mut client = self.command(bench, lead, port, &of_client)?;
        client.arg("127.0.0.1");
        let done = run_client(client, None, TIMEOUT + bench.budget * 20);
        let (status, printed) = done.with_context(|| text(&of_client))?;
        ensure!(status.success(), "the client ended with {status}: {}{}", text(&of_client), text(&of_server));
        self.value(&printed)
    }

    /// Returns the number that is wanted of the table.
    fn value(&self, printed: &str) -> Result<f64> {
        match self.quantity {
            Quantity::Latency => column(printed, "t_typical[usec]"),
            Quantity::Bandwidth => Ok(column(printed, "MsgRate[Mpps]")? * self.size as f64 / 1e3),
            Quantity::Rate => column(printed, "MsgRate[Mpps]"),
        }
    }
}

impl Case for Perftest {
    fn name(&self) -> String {
        let all = [
            (self.quantity == Quantity::Rate, ".lists"),
            (self.sleeps, ".sleep"),
            (self.one_cpu, ".one_cpu"),
            (self.served, ".served"),
        ];
        let suffixes: String = all.iter().filter(|suffix| suffix.0).map(|suffix| suffix.1).collect();
        format!("perftest.{}.{}{suffixes}", self.program, size_name(self.size))
    }

    fn unit(&self) -> Unit {
        match self.quantity {
            Quantity::Latency => Unit::Microseconds,
            Quantity::Bandwidth => Unit::GigabytesPerSecond,
            Quantity::Rate => Unit::MegamessagesPerSecond,
        }
    }

    fn run(&self, bench: &Bench) -> Result<Reading> {
        if find_program(self.program).is_none() {
            return Ok(Reading::Unavailable(not_installed("perftest", "package perftest")));
        }
        if let Some(why) = self.device.unavailable_reason() {
            return Ok(Reading::Unavailable(why));
        }
        Ok(Reading::value(self.measure(bench).with_context(|| self.program.to_owned())?))
    }
}

/// The text of a file of errors.
fn text(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_default()
}

/// Returns a number of the only row of a table, by the heading of its column.
fn column(printed: &str, heading: &str) -> Result<f64> {
    let mut lines = printed.lines().skip_while(|line| !line.trim_start().starts_with("#bytes"));
    let (headings, row) =
        lines.next().zip(lines.next()).with_context(|| format!("there is no table in {printed:?}"))?;
    // The first heading is `#bytes`, and others may have blanks: `BW peak[MB/sec]`.
    let headings = headings.replace("BW ", "BW_");
    let at = headings.split_whitespace().position(|found| found == heading);
    let at = at.with_context(|| format!("the table has no {heading}: {headings:?}"))?;
    match row.split_whitespace().nth(at).and_then(|number| number.parse().ok()) {
        Some(number) if number > 0.0 => Ok(number),
        _ => bail!("{heading} is no number in {row:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATENCY: &str = "\
 local address: LID 0000 QPN 0xef4400 PSN 0xd3a609
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
 2       100000          0.25           6031.88      0.54     	       1.55        	60.53  		1.04    		9.62   
---------------------------------------------------------------------------------------
";

    const BANDWIDTH: &str = "\
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:192:00:02:02
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      20000            0.00               15582.89		   0.249326
---------------------------------------------------------------------------------------
";

    fn of(test: &Perftest, printed: &str) -> Option<f64> {
        test.value(printed).ok()
    }

    #[test]
    fn table_is_read_by_its_headings() {
        let device = Rc::default();
        assert_eq!(of(&Perftest::latency(&device, "ib_send_lat", 2), LATENCY), Some(0.54));
        let bandwidth = Perftest::bandwidth(&device, "ib_write_bw", 65536);
        // The same as its 15582.89 MB/s, which are of 2^20 bytes.
        assert!(of(&bandwidth, BANDWIDTH).is_some_and(|rate| (rate - 15582.89 * 1.048576 / 1e3).abs() < 1e-4));
        assert_eq!(of(&Perftest::rate(&device, "ib_send_bw", 8), BANDWIDTH), Some(0.249326));
    }

    #[test]
    fn other_output_is_refused() {
        let device = Rc::default();
        let latency = Perftest::latency(&device, "ib_send_lat", 2);
        let (table, _) = LATENCY.split_once(" 2  ").expect("a row");
        for printed in ["", table, BANDWIDTH, &LATENCY.replace("0.54", "0.00"), &LATENCY.replace("0.54", "inf?")] {
            assert_eq!(of(&latency, printed), None, "{printed}");
        }
    }

    #[test]
    fn iterations_are_whole_lists_within_the_limits() {
        let device = Rc::default();
        for (test, expected) in [
            (Perftest::latency(&device, "ib_send_lat", 2), 749_984),
            (Perftest::latency(&device, "ib_send_lat", 2).sleeping(), 9984),
            (Perftest::bandwidth(&device, "ib_send_bw", 1 << 30), 320),
            (Perftest::rate(&device, "ib_send_bw", 0), 1_500_000),
        ] {
            let count = test.iterations(Duration::from_millis(300));
            assert_eq!((count, count % LIST), (expected, 0), "{}", test.name());
        }
    }
}
