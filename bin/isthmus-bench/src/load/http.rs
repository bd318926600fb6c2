//! `ab` that asks `nginx` for a file.

use std::ffi::OsString;
use std::fs;

use anyhow::{Context, Result, ensure};

use super::{Load, ServerAddress, number_between, words};
use crate::case::not_installed;
use crate::programs::find_program;
use crate::sockets::check_share;

const SERVER: &str = "nginx";
const CLIENT: &str = "ab";

/// Bytes of the file.
const FILE_BYTES: usize = 4096;
/// Connections at once.
const CLIENTS: u32 = 16;

/// GET requests for a file of 4 KiB.
pub(crate) struct Http {
    /// Connections are used again. Otherwise each request has its own.
    pub(crate) keeps_alive: bool,
}

impl Http {
    fn requests(&self) -> u32 {
        if self.keeps_alive { 60_000 } else { 15_000 }
    }
}

impl Load for Http {
    fn name(&self) -> (&'static str, String) {
        ("nginx", if self.keeps_alive { "4k" } else { "4k.connect" }.to_owned())
    }

    fn unavailable_reason(&self) -> Option<String> {
        let all = [(SERVER, "package nginx-light"), (CLIENT, "package apache2-utils")];
        all.into_iter().find(|(program, _)| find_program(program).is_none()).map(|(name, how)| not_installed(name, how))
    }

    fn server(&self, server: &ServerAddress<'_>) -> Result<Vec<OsString>> {
        let folder = server.folder.display();
        let (file, config) = (server.folder.join("4k"), server.folder.join("nginx.conf"));
        let kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let temporary: String = kinds.iter().map(|kind| format!("{kind}_temp_path {folder}/{kind};\n")).collect();
        // One process, of the user that has started it.
        let text = format!(
            "daemon off;\nmaster_process off;\nerror_log {folder}/errors;\npid {folder}/pid;\n\
             events {{ worker_connections 1024; }}\n\
             http {{\n{temporary}access_log off;\nkeepalive_requests 1000000;\n\
             server {{ listen {}:{}; root {folder}; }}\n}}\n",
            server.address, server.port
        );
        fs::write(&file, vec![b'x'; FILE_BYTES]).and_then(|()| fs::write(&config, text)).context("files of nginx")?;
        let errors = format!("{folder}/errors");
        Ok(words([SERVER, "-e", &errors, "-c", &config.to_string_lossy()]))
    }

    fn client(&self, server: &ServerAddress<'_>) -> Vec<OsString> {
        let place = format!("http://{}:{}/4k", server.address, server.port);
        let mut all = words([CLIENT, "-q", "-c", &CLIENTS.to_string(), "-n", &self.requests().to_string()]);
        if self.keeps_alive {
            all.push("-k".into());
        }
        all.push(place.into());
        all
    }

    fn rate(&self, printed: &str) -> Result<f64> {
        let failed = printed.lines().find_map(|line| line.strip_prefix("Failed requests:"));
        ensure!(failed.is_some_and(|count| count.trim() == "0"), "requests failed: {printed}");
        number_between(printed, "Requests per second:", "[")
    }

    fn bytes(&self, _server: &ServerAddress<'_>, printed: &str) -> Result<u64> {
        Ok(number_between(printed, "Total transferred:", "bytes")? as u64)
    }

    fn check(&self, shared: u64, all: u64) -> Result<()> {
        if self.keeps_alive {
            return check_share(shared, all);
        }
        ensure!(shared < all / 20, "{shared} of {all} bytes went through shared memory; this row is about TCP");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "Complete requests:      15000\nFailed requests:        0\n\
        Total transferred:      64995000 bytes\nRequests per second:    9876.54 [#/sec] (mean)\n";

    #[test]
    fn rate_and_bytes_are_those_that_ab_prints() {
        let load = Http { keeps_alive: true };
        assert_eq!(load.rate(PRINTED).ok(), Some(9876.54));
        assert!(load.rate(&PRINTED.replace("        0", "        7")).is_err());
        assert_eq!(number_between(PRINTED, "Total transferred:", "bytes").ok(), Some(64_995_000.0));
    }

    #[test]
    fn short_connections_go_by_tcp_and_long_ones_do_not() {
        let (long, short) = (Http { keeps_alive: true }, Http { keeps_alive: false });
        assert!(long.check(50, 100).is_ok() && long.check(49, 100).is_err());
        assert!(short.check(4, 100).is_ok() && short.check(5, 100).is_err());
    }
}
