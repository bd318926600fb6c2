//! Other programs and libraries that measurements need: where they are, and how they are run.

use std::ffi::OsString;
use std::fmt::Debug;
use std::io::{self, Read};
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use isthmus_netns::Host;

use crate::case::not_installed;

/// The time that a server may take to listen, and a client beyond the budget.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// A place in which programs find more than they do on this machine.
pub(crate) trait Place: Debug {
    /// The reason that this installation does not have it, if there is one.
    fn unavailable_reason(&self) -> Option<String>;

    /// The variables of programs in it.
    fn variables(&self) -> Result<Vec<(OsString, OsString)>>;

    /// The words before a program in it.
    fn words(&self) -> Vec<&'static str>;
}

/// Returns one of our libraries: beside this program, as `make build` puts it, in `../lib`, as `make install` does, or in `../abi`, as
/// `cargo xtask link-abi` does.
pub(crate) fn library(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program")?;
    let folder = own.parent().context("this program is in no folder")?;
    let mut places = ["", "../lib", "../abi"].into_iter().map(|place| folder.join(place).join(name));
    places.find(|file| file.is_file()).with_context(|| not_installed(name, "run `make build`"))
}

/// A process that does not outlive its measurement.
#[derive(Debug)]
pub(crate) struct KillOnDrop(pub(crate) Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // It may have ended already.
        let _: io::Result<()> = self.0.kill();
        let _: io::Result<_> = self.0.wait();
    }
}

/// Starts a server, on a host if one is given, and waits until it listens on its port.
pub(crate) fn start_server(mut server: Command, host: Option<&Host>, port: u16) -> Result<KillOnDrop> {
    server.stdout(Stdio::null());
    let server = spawn(server, host).map(KillOnDrop).context("cannot start the server")?;
    let listens = || host.map_or_else(|| is_listening(port), |host| host.with(|| is_listening(port))?);
    wait_until(TIMEOUT, listens).context("the server does not listen")?;
    Ok(server)
}

/// Runs a client, on a host if one is given. Returns as [`output`] does.
pub(crate) fn run_client(mut client: Command, host: Option<&Host>, timeout: Duration) -> Result<(ExitStatus, String)> {
    client.stdout(Stdio::piped());
    output(KillOnDrop(spawn(client, host).context("cannot start the client")?), timeout)
}

fn spawn(mut command: Command, host: Option<&Host>) -> io::Result<Child> {
    match host {
        Some(host) => host.spawn(command),
        None => command.spawn(),
    }
}

/// Returns the exit status and the (short) output of a process; an error if it takes too long.
pub(crate) fn output(mut process: KillOnDrop, timeout: Duration) -> Result<(ExitStatus, String)> {
    wait_until(timeout, || Ok(process.0.try_wait()?.is_some())).context("the program does not end")?;
    let mut printed = String::new();
    let mut stdout = process.0.stdout.take().context("the program has no output")?;
    stdout.read_to_string(&mut printed).context("cannot read the output of the program")?;
    Ok((process.0.wait().context("cannot wait for it")?, printed))
}

/// Finds a program in `PATH`.
pub(crate) fn find_program(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot find a free port")?;
    Ok(listener.local_addr().context("cannot find a free port")?.port())
}

/// Returns true if a program listens on a TCP port. A connection to find out would be taken for the client.
fn is_listening(port: u16) -> Result<bool> {
    // The network of a process may be another one than that of its thread.
    let table = |name: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{name}"));
    let mut tables = table("tcp").context("cannot read the sockets of this host")?;
    tables.push_str(&table("tcp6").unwrap_or_default());
    Ok(tables.lines().any(|line| listens(line, port)))
}

/// One line of the table: `0: 0100007F:3458 00000000:0000 0A …`, where 0A is LISTEN.
fn listens(line: &str, port: u16) -> bool {
    let mut fields = line.split_whitespace().skip(1);
    let local = fields.next().and_then(|address| address.rsplit_once(':')).map(|(_, port)| port);
    local.and_then(|text| u16::from_str_radix(text, 16).ok()) == Some(port) && fields.nth(1) == Some("0A")
}

/// Waits until a condition holds.
pub(crate) fn wait_until(timeout: Duration, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + timeout;
    while !holds()? {
        if Instant::now() > deadline {
            bail!("gave up after {} s", timeout.as_secs());
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_ports_are_recognised() {
        let line = "   0: 00000000:3458 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1";
        assert!(listens(line, 0x3458));
        assert!(!listens(line, 0x3459));
        assert!(!listens(&line.replace(" 0A ", " 01 "), 0x3458));
        assert!(!listens("  sl  local_address rem_address   st tx_queue", 0x3458));
    }
}
