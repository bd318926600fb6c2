//! Hosts that look like machines of their own, for launchers that start programs there as by ssh.
//!
//! ```text
//!  launcher on a ══ `agent`, in the place of ssh ══ what starts programs on b        by TCP, which is its own
//!  program ── its daemon on a ══ wire ══ the daemon on b ── program
//! ```
//!
//! A host of a testbed shares files and processes with this machine. `on` gives what it starts the host's network, a name of its own, and a
//! folder of the host's at a path that is the same on all: launchers pass on variables, and what these name has to mean each host's own.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A host, as launchers are to see it.
#[derive(Clone, Debug)]
pub struct RemoteHost {
    /// The host name that programs on the host read.
    pub name: String,
    /// The address that launchers use for the host.
    pub address: Ipv4Addr,
    /// A process of it, in all its namespaces.
    pub process: u32,
    /// The folder that is at the common path there.
    pub own: PathBuf,
}

/// The scripts for some hosts, in a folder of the caller's.
#[derive(Clone, Debug)]
pub struct RemoteLauncher {
    on: PathBuf,
    agent: PathBuf,
    common: PathBuf,
}

/// The tools of the scripts.
const TOOLS: [&str; 4] = ["nsenter", "unshare", "mount", "hostname"];

/// Runs a command on a host; it keeps the variables, which ssh would not.
const ON: &str = r#"#!/bin/sh
# on ADDRESS COMMAND...
case "$1" in
{stations}
*) echo "on: there is no host $1" >&2; exit 255 ;;
esac
shift
export TMPDIR='{tmp}'
exec nsenter --target $process --net --mount -- unshare --mount --uts -- \
    sh -c 'mount --bind "$1" "$2" && hostname "$3" && shift 3 && exec "$@"' sh "$own" '{common}' "$name" "$@"
"#;

/// The agent that launchers run in place of ssh: a shell on the host, given all words as one, and none of the caller's variables.
const AGENT: &str = r#"#!/bin/sh
# agent ADDRESS WORDS...
host=$1
shift
exec env -i HOME=/ PATH="$PATH" {variables} '{on}' "$host" sh -c "$*"
"#;

impl RemoteLauncher {
    /// A tool that the scripts need and that is not installed.
    pub fn missing_tool() -> Option<&'static str> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let is_here = |tool: &&str| std::env::split_paths(&path).any(|folder| folder.join(tool).is_file());
        TOOLS.into_iter().find(|tool| !is_here(tool))
    }

    /// Writes the scripts. What is started by the agent has `variables` of ours, where `{common}` is the folder that is each host's own; no
    /// path may have a quote in it.
    pub fn write(folder: &Path, stations: &[RemoteHost], variables: &[(&str, &str)]) -> io::Result<Self> {
        let [on, agent, common, tmp] = ["on", "agent", "common", "tmp"].map(|name| folder.join(name));
        for folder in [&common, &tmp] {
            fs::create_dir_all(folder)?;
        }
        let case = |station: &RemoteHost| {
            let RemoteHost { name, address, process, own } = station;
            format!("{address}) name='{name}' process={process} own='{}' ;;", own.display())
        };
        let cases: Vec<String> = stations.iter().map(case).collect();
        let set: Vec<String> = variables.iter().map(|(name, value)| format!("{name}='{value}'")).collect();
        let words = [
            ("{stations}", cases.join("\n")),
            ("{variables}", set.join(" ")), // Before the folder, which they may name.
            ("{common}", common.display().to_string()),
            ("{tmp}", tmp.display().to_string()),
            ("{on}", on.display().to_string()),
        ];
        for (script, text) in [(&on, ON), (&agent, AGENT)] {
            let text = words.iter().fold(text.to_owned(), |text, (word, value)| text.replace(word, value));
            fs::write(script, text)?;
            fs::set_permissions(script, fs::Permissions::from_mode(0o755))?;
        }
        Ok(Self { on, agent, common })
    }

    /// `on ADDRESS COMMAND …`: runs a command on a host, with the caller's variables.
    pub fn on(&self) -> &Path {
        &self.on
    }

    /// `agent ADDRESS WORDS …`: what to name to a launcher in the place of ssh.
    pub fn agent(&self) -> &Path {
        &self.agent
    }

    /// The folder that is each host's own.
    pub fn common(&self) -> &Path {
        &self.common
    }
}
