//! Packaged servers, and packaged clients that put load on them: over TCP, and over sockets.
//!
//! ```text
//! server  ◄── connections ──  client        (both with the library of sockets, or both without it)
//! ```
//!
//! A rate over sockets counts only if the bytes of the connections went through shared memory, as the daemon counts them.

pub(crate) mod http;
pub(crate) mod memcached;
pub(crate) mod postgresql;
pub(crate) mod redis;

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, anyhow, ensure};
use isthmus_netns::{Host, Testbed, Wire};

use crate::case::{Case, Reading, Unit, not_installed};
use crate::job::Wait;
use crate::pair::Bench;
use crate::pin;
use crate::programs::{TIMEOUT, find_program, free_port, run_client, start_server, wait_until};
use crate::sockets::{StreamDaemon, check_share};
use crate::temp_folder::TempFolder;
use crate::worker::CPUS;

/// A user without rights, for programs that root may not run and for owners that differ.
const OTHER_USER: u32 = 65534;

/// The program that starts others as another user.
const SETPRIV: &str = "setpriv";

/// The words before a server that takes its processes and System V segments with it when it ends.
const ALONE: [&str; 7] = ["unshare", "--ipc", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "--"];

/// The way of the bytes between server and clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    /// The Unix socket of the server.
    Unix,
    /// Both programs have the library of sockets, as `isthmus run --with sockets` gives it to them.
    Sockets,
}

/// The place of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    OneHost,
    /// Each in a network namespace of its own, with a wire between them.
    TwoNamespaces,
    /// The client has another owner than the server.
    TwoOwners,
}

/// A server, and a client that puts load on it.
pub(crate) trait Load {
    /// The server and the work: `redis`, `get.50clients.1at_once`.
    fn name(&self) -> (&'static str, String);

    /// The reason that this machine cannot run it, if there is one.
    fn unavailable_reason(&self) -> Option<String>;

    /// Returns the words of the server, and writes the files that it needs.
    fn server(&self, server: &ServerAddress<'_>) -> Result<Vec<OsString>>;

    /// Returns the words of a program that prepares the server, if it needs that.
    fn preparation(&self, _server: &ServerAddress<'_>) -> Option<Vec<OsString>> {
        None
    }

    /// Returns the words of the client.
    fn client(&self, server: &ServerAddress<'_>) -> Vec<OsString>;

    /// Returns the requests each second that the client has printed.
    fn rate(&self, printed: &str) -> Result<f64>;

    /// Returns the bytes of both directions on all connections, or a number that is surely not larger.
    fn bytes(&self, server: &ServerAddress<'_>, printed: &str) -> Result<u64>;

    /// Fails unless the bytes went by the path that the row names.
    fn check(&self, shared: u64, all: u64) -> Result<()> {
        check_share(shared, all)
    }

    /// True if root may not run the programs.
    fn refuses_root(&self) -> bool {
        false
    }
}

/// The place in which a server listens.
#[derive(Clone, Copy)]
pub(crate) struct ServerAddress<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) address: Ipv4Addr,
    pub(crate) port: u16,
    pub(crate) transport: Transport,
}

/// Requests each second of a server under load.
pub(crate) struct Served<L> {
    pub(crate) load: L,
    pub(crate) transport: Transport,
    pub(crate) place: Place,
    /// Threads that compute beside the programs, on the same CPUs.
    pub(crate) busy: usize,
    /// The daemon of sockets.
    pub(crate) daemon: Rc<StreamDaemon>,
}

impl<L> Served<L> {
    /// The case on one host with nothing beside it.
    pub(crate) fn new(load: L, transport: Transport, daemon: &Rc<StreamDaemon>) -> Self {
        Self { load, transport, place: Place::OneHost, busy: 0, daemon: Rc::clone(daemon) }
    }
}

impl<L: Load> Case for Served<L> {
    fn name(&self) -> String {
        let transport = match self.transport {
            Transport::Tcp => "tcp",
            Transport::Unix => "unix",
            Transport::Sockets => "sockets",
        };
        let (server, work) = self.load.name();
        let place = match self.place {
            Place::OneHost => "",
            Place::TwoNamespaces => ".two_namespaces",
            Place::TwoOwners => ".two_owners",
        };
        let busy = if self.busy == 0 { String::new() } else { format!(".busy{}", self.busy) };
        format!("{server}.{transport}.{work}{place}{busy}")
    }

    fn unit(&self) -> Unit {
        Unit::RequestsPerSecond
    }

    fn run(&self, bench: &Bench) -> Result<Reading> {
        if let Some(why) = self.unavailable_reason(bench) {
            return Ok(Reading::Unavailable(why));
        }
        let hosts = match (self.place == Place::TwoNamespaces).then(Hosts::make) {
            Some(Err(why)) => return Ok(Reading::Unavailable(format!("{why:#}"))),
            Some(Ok(hosts)) => Some(hosts),
            None => None,
        };
        if self.transport != Transport::Sockets {
            return Ok(Reading::value(self.measure(bench, hosts.as_ref(), |_, _| Ok(()))?));
        }
        let bench = &self.daemon.bench(bench)?;
        if self.place != Place::OneHost
            && let Some(why) = self.daemon.unrecorded(bench)?
        {
            return Ok(Reading::Unavailable(why));
        }
        let before = self.daemon.shared_bytes(bench)?;
        let rate = self.measure(bench, hosts.as_ref(), |server, printed| {
            let all = self.load.bytes(server, printed).context("asking for the bytes of the connections")?;
            self.load.check(self.daemon.shared_bytes(bench)?.saturating_sub(before), all)
        })?;
        Ok(Reading::value(rate))
    }
}

impl<L: Load> Served<L> {
    fn unavailable_reason(&self, bench: &Bench) -> Option<String> {
        let of_library = || crate::path::Path::Sockets.unavailable_reason();
        let of_sockets = || of_library().or_else(|| self.daemon.unavailable_reason(bench));
        let of_users = || {
            (!rustix::process::geteuid().is_root())
                .then(|| "programs of two users need root".to_owned())
                .or_else(|| find_program(SETPRIV).is_none().then(|| not_installed(SETPRIV, "package util-linux")))
        };
        let has_users = self.load.refuses_root() || self.place == Place::TwoOwners;
        let of_load = self.load.unavailable_reason().or_else(|| has_users.then(of_users).flatten());
        of_load.or_else(|| (self.transport == Transport::Sockets).then(of_sockets).flatten())
    }

    /// Measures once. `check` is called after it, while the server still runs, with what the client has printed.
    fn measure(
        &self,
        bench: &Bench,
        hosts: Option<&Hosts>,
        check: impl FnOnce(&ServerAddress<'_>, &str) -> Result<()>,
    ) -> Result<f64> {
        let folder = TempFolder::make()?;
        let refuses_root = self.load.refuses_root();
        if refuses_root {
            chown(folder.path(), Some(OTHER_USER), Some(OTHER_USER))
                .context("cannot give the folder to another user")?;
        } else {
            folder.permit_all()?;
        }
        let address = hosts.map_or(Ipv4Addr::LOCALHOST, |hosts| hosts.address);
        let server = ServerAddress { folder: folder.path(), address, port: free_port()?, transport: self.transport };
        let (server_cpu, client_cpu) = (bench.placement.follow(0), bench.placement.lead(0));
        let mut words = self.load.server(&server)?;
        if refuses_root {
            words.splice(0..0, as_other_user());
            words.splice(0..0, self::words(ALONE));
        }
        let command = self.command(bench, server_cpu, words)?;
        let server_host = hosts.map(|hosts| &hosts.server);
        let _server = start_server(command, server_host, server.port).context("the server")?;
        let is_other_user = refuses_root || self.place == Place::TwoOwners;
        let client = |mut words: Vec<OsString>| {
            if is_other_user {
                words.splice(0..0, as_other_user());
            }
            self.command(bench, client_cpu, words)
        };
        let client_host = hosts.map(|hosts| &hosts.client);
        if let Some(words) = self.load.preparation(&server) {
            // A server may listen before it is ready.
            let prepare = || Ok(run_client(client(words.clone())?, client_host, TIMEOUT)?.0.success());
            wait_until(TIMEOUT, prepare).context("the preparation of the server")?;
        }
        let command = client(self.load.client(&server))?;
        let (status, printed) =
            beside(self.busy, &[server_cpu, client_cpu], || run_client(command, client_host, TIMEOUT))?
                .context("the client")?;
        ensure!(status.success(), "the client ended with {status}");
        check(&server, &printed)?;
        self.load.rate(&printed)
    }

    /// Returns the command of a program that ends with this one and runs on one CPU.
    fn command(&self, bench: &Bench, cpu: usize, words: Vec<OsString>) -> Result<Command> {
        let mut command = Command::new(&bench.program);
        command.arg("run-bound").arg(format!("{CPUS}{}", pin::list(&[cpu])));
        command.args(words).current_dir("/").envs(bench.environment.iter().cloned());
        if self.transport == Transport::Sockets {
            command.envs(crate::path::Path::Sockets.environment(Wait::Adaptive)?);
        }
        command.stdin(Stdio::null()).stderr(Stdio::null());
        Ok(command)
    }
}

/// The words before a program of another user. A process that changes its user no longer ends with its parent, so it asks again.
fn as_other_user() -> Vec<OsString> {
    let (user, group) = (format!("--reuid={OTHER_USER}"), format!("--regid={OTHER_USER}"));
    words([SETPRIV, &user, &group, "--clear-groups", "--pdeathsig=KILL", "--"])
}

/// Two network namespaces with a wire between them. What is declared first ends first.
struct Hosts {
    server: Host,
    client: Host,
    /// The server's.
    address: Ipv4Addr,
    _bed: Testbed,
}

impl Hosts {
    fn make() -> Result<Self> {
        let mut bed = Testbed::new()?;
        let (server, client) = (bed.host("server")?, bed.host("client")?);
        let address = bed.link(&server, &client, &Wire::default())?.a().v4;
        Ok(Self { server, client, address, _bed: bed })
    }
}

/// Runs `f` beside threads that compute on these CPUs.
fn beside<T>(threads: usize, cpus: &[usize], f: impl FnOnce() -> T) -> Result<T> {
    let is_over = AtomicBool::new(false);
    let compute = || {
        pin::pin(cpus)?;
        while !is_over.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
        Ok::<_, anyhow::Error>(())
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(compute)).collect();
        let over = Over(&is_over);
        let result = f();
        drop(over);
        all.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread that computes"))?)?;
        Ok(result)
    })
}

/// Ends the threads that compute, also if what they run beside panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the number between two texts in the first line that has the first one.
fn number_between(printed: &str, before: &str, after: &str) -> Result<f64> {
    let line = printed.lines().find_map(|line| line.split_once(before));
    let number = line.and_then(|(_, rest)| rest.split(after).next()?.trim().parse().ok());
    match number {
        Some(number) if number > 0.0 => Ok(number),
        _ => anyhow::bail!("the client printed no line with {before:?}: {printed:?}"),
    }
}

impl TempFolder {
    /// Lets all users enter it.
    pub(crate) fn permit_all(&self) -> Result<()> {
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(self.path(), mode).context("cannot change the rights of a folder")
    }
}

fn words<const N: usize>(words: [&str; N]) -> Vec<OsString> {
    words.map(OsString::from).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_stands_between_two_texts() {
        let printed = "some line\n  Requests per second:    1234.50 [#/sec] (mean)\n";
        assert_eq!(number_between(printed, "Requests per second:", "[").ok(), Some(1234.5));
        for (before, after) in [("Time", "["), ("Requests per second:", "x"), ("some line", "[")] {
            assert!(number_between(printed, before, after).is_err(), "{before:?}");
        }
    }

    #[test]
    fn threads_end_with_what_they_run_beside() {
        assert_eq!(beside(2, &[0], || 7).ok(), Some(7));
    }
}
