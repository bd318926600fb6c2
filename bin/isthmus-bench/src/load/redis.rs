//! `redis-benchmark` that sends GET to a `redis-server`.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::{Load, ServerAddress, Transport, words};
use crate::case::not_installed;
use crate::programs::{TIMEOUT, find_program};

const SERVER: &str = "redis-server";
const BENCHMARK: &str = "redis-benchmark";
/// The server's other name, which the package of the clients has. The name by which it is started decides what it does.
const SERVER_OTHER_NAME: &str = "redis-check-rdb";

/// The requests of one run: at most a second on a slow machine.
const REQUESTS: u32 = 50_000;

/// GET requests.
pub(crate) struct RedisGet {
    /// Connections of the benchmark.
    pub(crate) clients: u32,
    /// Requests that each sends at once.
    pub(crate) pipeline: u32,
}

impl Load for RedisGet {
    fn name(&self) -> (&'static str, String) {
        ("redis", format!("get.{}clients.{}at_once", self.clients, self.pipeline))
    }

    fn unavailable_reason(&self) -> Option<String> {
        let is_there = [SERVER, SERVER_OTHER_NAME].into_iter().any(|program| find_program(program).is_some());
        (!is_there || find_program(BENCHMARK).is_none()).then(|| not_installed(BENCHMARK, "package redis-tools"))
    }

    fn server(&self, server: &ServerAddress<'_>) -> Result<Vec<OsString>> {
        let (address, port) = (server.address.to_string(), server.port.to_string());
        let mut all = vec![server_program(server.folder)?.into()];
        all.extend(words(["--bind", &address, "--port", &port, "--save", "", "--appendonly", "no"]));
        all.extend(words(["--protected-mode", "no", "--unixsocket"]));
        all.push(unix_socket(server).into());
        Ok(all)
    }

    fn client(&self, server: &ServerAddress<'_>) -> Vec<OsString> {
        let mut all = words([BENCHMARK]);
        if server.transport == Transport::Unix {
            all.extend(["-s".into(), unix_socket(server).into()]);
        }
        let (clients, pipeline) = (self.clients.to_string(), self.pipeline.to_string());
        let requests = (REQUESTS * self.pipeline).to_string();
        all.extend(words(["-h", &server.address.to_string(), "-p", &server.port.to_string(), "-c", &clients]));
        all.extend(words(["-P", &pipeline, "-t", "get", "--csv", "-n", &requests]));
        all
    }

    fn rate(&self, printed: &str) -> Result<f64> {
        rate(printed)
    }

    fn bytes(&self, server: &ServerAddress<'_>, _printed: &str) -> Result<u64> {
        server_bytes(server)
    }
}

fn unix_socket(server: &ServerAddress<'_>) -> PathBuf {
    server.folder.join("redis.sock")
}

/// Returns the server: the program of that name, or a link to its other name.
fn server_program(folder: &Path) -> Result<PathBuf> {
    if let Some(program) = find_program(SERVER) {
        return Ok(program);
    }
    let program = find_program(SERVER_OTHER_NAME).context("redis-server is gone")?;
    let link = folder.join(SERVER);
    match symlink(program, &link) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(error).context("cannot make a link to redis-server")
        }
        _ => Ok(link),
    }
}

/// Returns the bytes that a server has received and sent on all connections.
fn server_bytes(server: &ServerAddress<'_>) -> Result<u64> {
    let socket = UnixStream::connect(unix_socket(server))?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    (&socket).write_all(b"INFO stats\r\n")?;
    let (mut sum, mut found) = (0, 0);
    for line in BufReader::new(socket).lines() {
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
