//! Redis as it is packaged: `redis-benchmark` that sends GET to a `redis-server`: over TCP, its Unix socket, and sockets.
//!
//! ```text
//! redis-server  ◄── connections ──  redis-benchmark     (both with the library of sockets, or both without it)
//! ```
//!
//! A rate over sockets counts only if the bytes that the server counts went through shared memory, as the daemon counts them.

use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;

use anyhow::{Context, Result, bail, ensure};

use crate::case::{Case, Reading, Unit, not_installed};
use crate::job::Wait;
use crate::pair::Bench;
use crate::pin;
use crate::programs::{TIMEOUT, find_program, free_port, run_client, start_server};
use crate::sockets::{StreamDaemon, check_share};
use crate::worker::CPUS;

const SERVER: &str = "redis-server";
const BENCHMARK: &str = "redis-benchmark";
/// The server's other name, which the package of the clients has. The name by which it is started decides what it does.
const SERVER_OTHER_NAME: &str = "redis-check-rdb";

/// The requests of one run: at most a second on a slow machine.
const REQUESTS: u32 = 50_000;

/// The way of the bytes between server and clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    /// The Unix socket of the server.
    Unix,
    /// Both programs have the library of sockets, as `isthmus run --with sockets` gives it to them.
    Sockets,
}

/// GET requests each second.
pub(crate) struct RedisGet {
    pub(crate) transport: Transport,
    /// The daemon of sockets.
    pub(crate) daemon: Rc<StreamDaemon>,
    /// A folder for the server.
    pub(crate) folder: PathBuf,
    /// Connections of the benchmark.
    pub(crate) clients: u32,
    /// Requests that each sends at once.
    pub(crate) pipeline: u32,
}

impl Case for RedisGet {
    fn name(&self) -> String {
        let transport = match self.transport {
            Transport::Tcp => "tcp",
            Transport::Unix => "unix",
            Transport::Sockets => "sockets",
        };
        format!("redis.{transport}.get.{}clients.{}at_once", self.clients, self.pipeline)
    }

    fn unit(&self) -> Unit {
        Unit::RequestsPerSecond
    }

    fn run(&self, bench: &Bench) -> Result<Reading> {
        let (Some(server), Some(benchmark)) = (server_program(&self.folder)?, find_program(BENCHMARK)) else {
            return Ok(Reading::Unavailable(not_installed(BENCHMARK, "package redis-tools")));
        };
        if self.transport != Transport::Sockets {
            return Ok(Reading::value(self.rate(bench, (&server, &benchmark), |_| Ok(()))?));
        }
        let why = || StreamDaemon::unavailable_reason(bench);
        if let Some(why) = crate::path::Path::Sockets.unavailable_reason().or_else(why) {
            return Ok(Reading::Unavailable(why));
        }
        let bench = &self.daemon.bench(bench)?;
        let before = self.daemon.shared_bytes(bench)?;
        let rate = self.rate(bench, (&server, &benchmark), |port| {
            let all = server_bytes(port).context("asking redis-server for its bytes")?;
            check_share(self.daemon.shared_bytes(bench)?.saturating_sub(before), all)
        })?;
        Ok(Reading::value(rate))
    }
}

impl RedisGet {
    /// Measures once. `check` is called after it with the port of the server, which still runs.
    fn rate(
        &self,
        bench: &Bench,
        (server, benchmark): (&Path, &Path),
        check: impl FnOnce(u16) -> Result<()>,
    ) -> Result<f64> {
        let port = free_port()?;
        let mut server = self.command(bench, bench.placement.follow(0), server)?;
        server.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--appendonly", "no"]);
        let unix = self.folder.join(format!("isthmus-redis-{port}.sock"));
        server.arg("--unixsocket").arg(&unix);
        let _server = start_server(server, port).context("redis-server")?;
        let mut benchmark = self.command(bench, bench.placement.lead(0), benchmark)?;
        if self.transport == Transport::Unix {
            benchmark.arg("-s").arg(&unix);
        }
        let (clients, pipeline) = (self.clients.to_string(), self.pipeline.to_string());
        benchmark.args(["-p", &port.to_string(), "-c", &clients, "-P", &pipeline, "-t", "get", "--csv"]);
        benchmark.args(["-n", &(REQUESTS * self.pipeline).to_string()]);
        let (status, printed) = run_client(benchmark, TIMEOUT).context("redis-benchmark")?;
        ensure!(status.success(), "redis-benchmark ended with {status}");
        check(port)?;
        rate(&printed)
    }

    /// Returns the command of a program that ends with this one and runs on one CPU.
    fn command(&self, bench: &Bench, cpu: usize, program: &Path) -> Result<Command> {
        let mut command = Command::new(&bench.program);
        command.arg("run-bound").arg(format!("{CPUS}{}", pin::list(&[cpu])));
        command.arg(program).current_dir(&self.folder).envs(bench.environment.iter().cloned());
        if self.transport == Transport::Sockets {
            command.envs(crate::path::Path::Sockets.environment(Wait::Adaptive)?);
        }
        command.stdin(Stdio::null()).stderr(Stdio::null());
        Ok(command)
    }
}

/// Returns the server: the program of that name, or a link to its other name. None if neither is installed.
fn server_program(folder: &Path) -> Result<Option<PathBuf>> {
    if let Some(program) = find_program(SERVER) {
        return Ok(Some(program));
    }
    let Some(program) = find_program(SERVER_OTHER_NAME) else { return Ok(None) };
    let link = folder.join(SERVER);
    match symlink(program, &link) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(error).context("cannot make a link to redis-server")
        }
        _ => Ok(Some(link)),
    }
}

/// Returns the bytes that a server has received and sent on all connections.
fn server_bytes(port: u16) -> Result<u64> {
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    server.set_read_timeout(Some(TIMEOUT))?;
    server.write_all(b"INFO stats\r\n")?;
    let (mut sum, mut found) = (0, 0);
    for line in BufReader::new(server).lines() {
        if let Some(bytes) = traffic(&line?)? {
            (sum, found) = (sum + bytes, found + 1);
        }
        if found == 2 {
            return Ok(sum);
        }
    }
    bail!("the server ended the connection")
}

/// Returns the bytes of one direction, if a line of the server's statistics has them.
fn traffic(line: &str) -> Result<Option<u64>> {
    let names = ["total_net_input_bytes:", "total_net_output_bytes:"];
    let bytes = names.into_iter().find_map(|name| line.strip_prefix(name));
    bytes.map(|bytes| bytes.trim_end().parse().with_context(|| line.to_owned())).transpose()
}

/// Returns the requests each second that `redis-benchmark --csv` has printed.
fn rate(printed: &str) -> Result<f64> {
    let line = printed.lines().find_map(|line| line.strip_prefix("\"GET\",\""));
    let rate = line.and_then(|line| line.split('"').next()?.parse().ok());
    match rate {
        Some(rate) if rate > 0.0 => Ok(rate),
        _ => bail!("redis-benchmark printed no rate: {printed:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_from_the_statistics() {
        let lines =
            ["# Stats", "total_net_input_bytes:1000\r", "total_net_output_bytes:70", "instantaneous_input_kbps:0.0"];
        let bytes = lines.map(|line| traffic(line).expect("a number"));
        assert_eq!(bytes, [None, Some(1000), Some(70), None]);
        assert!(traffic("total_net_input_bytes:x").is_err());
    }

    #[test]
    fn rate_is_read_from_the_line_of_the_command() {
        let printed = "\"test\",\"rps\",\"avg_latency_ms\"\n\"GET\",\"50709.94\",\"0.636\"\n";
        assert_eq!(rate(printed).ok(), Some(50709.94));
        for wrong in ["", "\"test\",\"rps\"\n", "\"GET\",\"0.00\",\"1\"\n", "\"SET\",\"5.0\",\"1\"\n"] {
            assert!(rate(wrong).is_err(), "{wrong:?}");
        }
    }
}
