//! The daemon of programs with the library of sockets, and the check that their bytes went through shared memory.
//!
//! A program with the library and without a daemon uses TCP, and nothing tells it. So these rows have a daemon: the one that
//! `ISTHMUS_SOCKET` names, or one of our own.

use std::cell::OnceCell;
use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use isthmus_client::{Options, QueryClient, Topic};
use serde_json::Value;

use crate::daemon::{self, Plan, PrivateDaemon};
use crate::pair::Bench;
use crate::temp_folder::TempFolder;

const SOCKET: &str = "ISTHMUS_SOCKET";

/// The configuration of a daemon that serves all users, and lets their programs have streams with one another.
const FOR_ALL_USERS: &str = "[policy]\nattach = \"any-user\"\nrules = [{ allow = true }]\n";

/// Started when it is first needed. What is declared first ends first.
#[derive(Debug, Default)]
pub(crate) struct StreamDaemon {
    is_for_all_users: bool,
    daemon: OnceCell<PrivateDaemon>,
    folder: OnceCell<TempFolder>,
}

impl StreamDaemon {
    /// Returns a daemon of the system, which no variable replaces.
    pub(crate) fn for_all_users() -> Self {
        Self { is_for_all_users: true, ..Self::default() }
    }

    /// The reason that this machine has no daemon, if there is one.
    pub(crate) fn unavailable_reason(&self, bench: &Bench) -> Option<String> {
        if self.named(bench).is_some() { None } else { daemon::unavailable_reason() }
    }

    /// The measurement with the variables by which programs find the daemon.
    pub(crate) fn bench(&self, bench: &Bench) -> Result<Bench> {
        let mut bench = bench.clone();
        if self.named(&bench).is_none() {
            bench.environment.extend(self.private()?.environment());
        }
        Ok(bench)
    }

    /// Returns the bytes that went through shared memory since the daemon has started, as the programs count them.
    pub(crate) fn shared_bytes(&self, bench: &Bench) -> Result<u64> {
        shared_bytes(&self.report(bench)?)
    }

    /// The reason that connections between namespaces and between owners become no streams, if there is one.
    pub(crate) fn unrecorded(&self, bench: &Bench) -> Result<Option<String>> {
        Ok(self.report(bench)?["unrecorded"].as_str().map(|why| format!("connections are not recorded: {why}")))
    }

    /// The process of the daemon, if it is our own.
    pub(crate) fn process(&self) -> Result<u32> {
        Ok(self.private()?.process())
    }

    fn report(&self, bench: &Bench) -> Result<Value> {
        let socket = match self.named(bench) {
            Some(socket) => socket,
            None => self.private()?.socket().to_owned(),
        };
        let options = Options { socket: Some(socket), no_autostart: true, ..Options::default() };
        let report = QueryClient::connect(&options)?.query(Topic::Streams, &[])?;
        serde_json::from_str(&report).context("the daemon's report about streams")
    }

    /// The socket of the daemon that was asked for.
    fn named(&self, bench: &Bench) -> Option<PathBuf> {
        let own = bench.environment.iter().rev().find(|(name, _)| name == SOCKET).map(|(_, socket)| socket.clone());
        let named = own.or_else(|| std::env::var_os(SOCKET)).map(|socket: OsString| socket.into());
        named.filter(|_| !self.is_for_all_users)
    }

    fn private(&self) -> Result<&PrivateDaemon> {
        if self.daemon.get().is_none() {
            let folder = TempFolder::make()?;
            let daemon = if self.is_for_all_users {
                folder.permit_all()?;
                let plan = Plan { config: FOR_ALL_USERS, is_of_system: true, ..Plan::default() };
                PrivateDaemon::start_as(folder.path(), &plan)?
            } else {
                PrivateDaemon::start(folder.path())?
            };
            // No other thread sets them: one thread measures all cases.
            self.folder.get_or_init(|| folder);
            self.daemon.get_or_init(|| daemon);
        }
        self.daemon.get().context("the daemon is not started")
    }
}

fn shared_bytes(report: &Value) -> Result<u64> {
    let ended = report["ended"]["shared_bytes"].as_u64();
    let ended = ended.context("the daemon is too old: it does not count the bytes of ended streams")?;
    let streams = report["streams"].as_array().context("the daemon lists no streams")?;
    let ends = streams.iter().flat_map(|stream| [&stream["connector"], &stream["acceptor"]]);
    Ok(ends.filter_map(|end| end["shared_bytes"].as_u64()).fold(ended, u64::saturating_add))
}

/// Fails unless at least half of all bytes went through shared memory: a rate of the others is that of TCP.
pub(crate) fn check_share(shared: u64, all: u64) -> Result<()> {
    ensure!(
        all > 0 && shared >= all.div_ceil(2),
        "{shared} of {all} bytes went through shared memory, so this is no measurement of sockets; \
         is the library on (ISTHMUS_SOCKETS), and which reasons does `isthmus stream list` count?"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_bytes_must_be_shared() {
        assert!(check_share(5, 9).is_ok() && check_share(5, 10).is_ok() && check_share(9, 9).is_ok());
        for (shared, all) in [(4, 9), (0, 1), (0, 0)] {
            let told = check_share(shared, all).expect_err("too few").to_string();
            assert!(told.starts_with(&format!("{shared} of {all} bytes")), "{told}");
        }
    }

    #[test]
    fn bytes_of_living_and_of_ended_streams_count() {
        let stream = serde_json::json!({ "connector": { "shared_bytes": 5 }, "acceptor": { "shared_bytes": null } });
        let mut report = serde_json::json!({ "streams": [stream], "ended": { "shared_bytes": 70 } });
        assert_eq!(shared_bytes(&report).ok(), Some(75));
        report["ended"] = serde_json::Value::Null;
        assert!(shared_bytes(&report).is_err());
    }
}
