//! perftest as it is packaged: two programs on the virtual RDMA device that send to each other, or write into each other's memory.
//!
//! ```text
//! ib_write_lat  ◄── 8 bytes there and back, both sides poll ──►  ib_write_lat 127.0.0.1     (TCP carries their set-up alone)
//! ```

use std::ffi::OsString;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::case::{Case, Reading, Unit, not_installed, size_name};
use crate::pair::Bench;
use crate::pin;
use crate::programs::{KillOnDrop, TIMEOUT, find_program, free_port, is_listening, output, wait_until};
use crate::worker::CPUS;

/// Bytes of a message.
const SIZE: usize = 8;

/// Messages of one run: some milliseconds on a quiet machine.
const MESSAGES: u32 = 10_000;

/// The place in which RDMA programs find the device.
#[derive(Clone, Debug, Default)]
pub struct RdmaPlace {
    /// The variables by which libibverbs finds the device.
    pub variables: Vec<(OsString, OsString)>,
    /// A program and its arguments that give another program the file of the device; empty if each program has the file.
    pub enclosure: Vec<OsString>,
}

/// Half a round trip of one program of perftest.
pub(crate) struct PerftestLatency {
    pub(crate) program: &'static str,
    pub(crate) place: RdmaPlace,
}

impl Case for PerftestLatency {
    fn name(&self) -> String {
        format!("verbs.{}.{}", self.program, size_name(SIZE))
    }

    fn unit(&self) -> Unit {
        Unit::Microseconds
    }

    fn run(&self, bench: &Bench) -> Result<Reading> {
        if find_program(self.program).is_none() {
            return Ok(Reading::Unavailable(not_installed("perftest", "package perftest")));
        }
        if let Some(why) = self.enclosure_refusal() {
            return Ok(Reading::Unavailable(why));
        }
        let port = free_port()?;
        let server = self.command(bench, bench.placement.follow(0), port).stdout(Stdio::null()).spawn();
        let _server = KillOnDrop::new(server.with_context(|| format!("cannot start {}", self.program))?);
        wait_until(TIMEOUT, || is_listening(port)).with_context(|| format!("{} does not listen", self.program))?;
        let mut client = self.command(bench, bench.placement.lead(0), port);
        let client = client.arg("127.0.0.1").stdout(Stdio::piped()).spawn();
        let client = client.with_context(|| format!("cannot start {}", self.program))?;
        let (status, printed) = output(KillOnDrop::new(client), TIMEOUT)?;
        ensure!(status.success(), "{} ended with {status}: {}", self.program, printed.trim());
        let half_rtt = typical(&printed).with_context(|| format!("{} printed no time: {printed}", self.program))?;
        Ok(Reading::value(half_rtt))
    }
}

impl PerftestLatency {
    /// Returns the command of one side, which ends with this program and runs on one CPU.
    fn command(&self, bench: &Bench, cpu: usize, port: u16) -> Command {
        let mut command = Command::new(&bench.program);
        command.arg("run-bound").arg(format!("{CPUS}{}", pin::list(&[cpu])));
        command.args(&self.place.enclosure).arg(self.program);
        command.envs(bench.environment.iter().cloned()).envs(self.place.variables.iter().cloned());
        // -F: it does not refuse a CPU with a variable frequency.
        command.args(["-F", "-d", "isthmus0", "-s", &SIZE.to_string(), "-n", &MESSAGES.to_string()]);
        command.args(["-p", &port.to_string()]).stdin(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Returns why programs cannot be started in the enclosure, if so.
    fn enclosure_refusal(&self) -> Option<String> {
        let (program, arguments) = self.place.enclosure.split_first()?;
        let tried = Command::new(program).args(arguments).arg("true").stdin(Stdio::null()).output();
        let why = match tried {
            Ok(tried) if tried.status.success() => return None,
            Ok(tried) => String::from_utf8_lossy(&tried.stderr).trim().to_owned(),
            Err(error) => error.to_string(),
        };
        Some(format!("{} does not work here: {why}", program.display()))
    }
}

/// Returns the typical time in the table that a program has printed: `#bytes #iterations t_min t_max t_typical …`.
fn typical(printed: &str) -> Option<f64> {
    let row = printed.lines().skip_while(|line| !line.trim_start().starts_with("#bytes")).nth(1)?;
    let mut words = row.split_whitespace();
    let (bytes, typical) = (words.next()?, words.nth(3)?);
    (bytes == SIZE.to_string()).then(|| typical.parse().ok()).flatten().filter(|us| *us > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typical_time_is_read_from_the_table() {
        let table =
            |row: &str| format!("----\n #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]\n{row}\n");
        assert_eq!(typical(&table(" 8       10000          0.37           79.77      0.46     \t 1.95")), Some(0.46));
        for wrong in ["", " 8 10000 0.37 79.77", " 2 10000 0.37 79.77 0.46", " 8 10000 0.37 79.77 0.00", " 8 1 1 1 x"] {
            assert_eq!(typical(&table(wrong)), None, "{wrong}");
        }
        assert_eq!(typical("No IB devices found\n"), None);
    }

    #[test]
    fn program_that_gives_no_file_is_named() {
        let refused = |enclosure: &[&str]| {
            let enclosure = enclosure.iter().map(OsString::from).collect();
            let place = RdmaPlace { enclosure, ..RdmaPlace::default() };
            PerftestLatency { program: "ib_send_lat", place }.enclosure_refusal()
        };
        assert_eq!([refused(&[]), refused(&["env"])], [None, None]);
        assert_eq!(refused(&["false"]).as_deref(), Some("false does not work here: "));
    }
}
