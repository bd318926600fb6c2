//! `pgbench` that selects rows from PostgreSQL.

use std::cell::OnceCell;
use std::ffi::OsString;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::{Load, OTHER_USER, SETPRIV, ServerAddress, number_between, words};
use crate::case::not_installed;
use crate::temp_folder::TempFolder;

const FOLDER: &str = "/usr/lib/postgresql/15/bin";
const CLIENTS: &str = "8";
/// Transactions of each client.
const TRANSACTIONS: u64 = 4_000;
/// Bytes of a query and its answer, at least.
const QUERY_BYTES: u64 = 100;

/// Transactions that select one row.
pub(crate) struct PgbenchSelect {
    /// The database, which is made once.
    data: OnceCell<TempFolder>,
    /// Each transaction has a connection of its own.
    connects: bool,
}

impl PgbenchSelect {
    /// `connects`: each transaction has a connection of its own.
    pub(crate) fn new(connects: bool) -> Self {
        Self { data: OnceCell::new(), connects }
    }

    fn transactions(&self) -> u64 {
        if self.connects { TRANSACTIONS / 40 } else { TRANSACTIONS }
    }

    fn data(&self) -> Result<&Path> {
        if self.data.get().is_none() {
            let folder = TempFolder::make()?;
            chown(folder.path(), Some(OTHER_USER), Some(OTHER_USER))
                .context("cannot give the folder to another user")?;
            let mut command = Command::new(SETPRIV);
            command
                .args([format!("--reuid={OTHER_USER}"), format!("--regid={OTHER_USER}")])
                .args(["--clear-groups", "--"]);
            command.arg(format!("{FOLDER}/initdb")).args(["-A", "trust", "-U", "me", "-N", "--locale=C", "-D"]);
            command.arg(folder.path().join("data")).current_dir("/").stdin(Stdio::null());
            let made = command.output().context("cannot start initdb")?;
            ensure!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
            self.data.get_or_init(|| folder); // No other thread sets it: one thread measures all cases.
        }
        Ok(self.data.get().context("there is no database")?.path())
    }

    fn pgbench(server: &ServerAddress<'_>) -> Vec<OsString> {
        let (address, port) = (server.address.to_string(), server.port.to_string());
        words([&format!("{FOLDER}/pgbench"), "-h", &address, "-p", &port, "-U", "me"])
    }
}

impl Load for PgbenchSelect {
    fn name(&self) -> (&'static str, String) {
        ("pgbench", format!("{}select.{CLIENTS}clients", if self.connects { "connect." } else { "" }))
    }

    fn unavailable_reason(&self) -> Option<String> {
        let is_there = ["initdb", "postgres", "pgbench"].iter().all(|name| Path::new(FOLDER).join(name).is_file());
        (!is_there).then(|| not_installed("pgbench", "package postgresql-15"))
    }

    fn server(&self, server: &ServerAddress<'_>) -> Result<Vec<OsString>> {
        let data = self.data()?.join("data");
        let (postgres, listen) = (format!("{FOLDER}/postgres"), format!("listen_addresses={}", server.address));
        let (data, port) = (data.to_string_lossy(), format!("port={}", server.port));
        let mut all = words([&postgres, "-D", &data]);
        for setting in [&listen, &port, "unix_socket_directories=", "fsync=off", "dynamic_shared_memory_type=mmap"] {
            all.extend(words(["-c", setting]));
        }
        Ok(all)
    }

    fn preparation(&self, server: &ServerAddress<'_>) -> Option<Vec<OsString>> {
        Some([Self::pgbench(server), words(["-i", "-q", "postgres"])].concat())
    }

    fn client(&self, server: &ServerAddress<'_>) -> Vec<OsString> {
        let transactions = self.transactions().to_string();
        let mut all = Self::pgbench(server);
        all.extend(words(["-n", "-S", "-c", CLIENTS, "-t", &transactions]));
        if self.connects {
            all.push("-C".into());
        }
        all.push("postgres".into());
        all
    }

    fn rate(&self, printed: &str) -> Result<f64> {
        number_between(printed, "tps =", "(")
    }

    fn bytes(&self, _server: &ServerAddress<'_>, _printed: &str) -> Result<u64> {
        let clients: u64 = CLIENTS.parse().context("the number of clients")?;
        Ok(self.transactions() * clients * QUERY_BYTES)
    }

    fn check(&self, shared: u64, all: u64) -> Result<()> {
        if self.connects { Ok(()) } else { crate::sockets::check_share(shared, all) }
    }

    fn refuses_root(&self) -> bool {
        true
    }
}
