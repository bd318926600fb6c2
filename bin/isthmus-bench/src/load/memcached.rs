//! `memcaslap` that asks `memcached` for values, and sets one for each nine.

use std::ffi::OsString;

use anyhow::{Result, ensure};

use super::{Load, ServerAddress, number_between, words};
use crate::case::not_installed;
use crate::programs::find_program;

const SERVER: &str = "memcached";
const CLIENT: &str = "memcaslap";

/// Connections of the client.
const CLIENTS: u32 = 16;
/// Requests of one run.
const REQUESTS: u32 = 100_000;

/// Requests for values of 1 KiB.
pub(crate) struct MemcachedGet;

impl Load for MemcachedGet {
    fn name(&self) -> (&'static str, String) {
        ("memcached", format!("get.{CLIENTS}clients"))
    }

    fn unavailable_reason(&self) -> Option<String> {
        let all = [(SERVER, "package memcached"), (CLIENT, "package libmemcached-tools")];
        all.into_iter().find(|(program, _)| find_program(program).is_none()).map(|(name, how)| not_installed(name, how))
    }

    fn server(&self, server: &ServerAddress<'_>) -> Result<Vec<OsString>> {
        let (address, port) = (server.address.to_string(), server.port.to_string());
        Ok(words([SERVER, "-u", "root", "-l", &address, "-p", &port, "-U", "0", "-t", "1"]))
    }

    fn client(&self, server: &ServerAddress<'_>) -> Vec<OsString> {
        let (address, clients) = (format!("{}:{}", server.address, server.port), CLIENTS.to_string());
        words([CLIENT, "-s", &address, "-T", "1", "-c", &clients, "-x", &REQUESTS.to_string()])
    }

    fn rate(&self, printed: &str) -> Result<f64> {
        let is_right = printed.lines().any(|line| line.trim() == "get_misses: 0");
        ensure!(is_right, "values are missing: {printed}");
        number_between(printed, "TPS:", "Net_rate")
    }

    fn bytes(&self, _server: &ServerAddress<'_>, printed: &str) -> Result<u64> {
        let [written, read] = ["written_bytes:", "read_bytes:"].map(|name| number_between(printed, name, " bytes"));
        Ok((written? + read?) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "get_misses: 0\nwritten_bytes: 1000\nread_bytes: 900\n\n\
        Run time: 1.7s Ops: 100000 TPS: 58282 Net_rate: 65.2M/s\n";

    #[test]
    fn rate_and_bytes_are_those_that_the_client_prints() {
        assert_eq!(MemcachedGet.rate(PRINTED).ok(), Some(58_282.0));
        for wrong in [PRINTED.replace("misses: 0", "misses: 3"), PRINTED.replace("TPS", "?")] {
            assert!(MemcachedGet.rate(&wrong).is_err(), "{wrong}");
        }
        let [written, read] =
            ["written_bytes:", "read_bytes:"].map(|name| number_between(PRINTED, name, " bytes").ok());
        assert_eq!((written, read), (Some(1000.0), Some(900.0)));
    }
}
