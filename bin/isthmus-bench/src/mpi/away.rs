//! Jobs on two hosts: a host of a stage is made to look like a machine of its own.
//!
//! ```text
//!  launcher on a ══ `agent`, in the place of ssh ══ what starts ranks on b        by TCP, which is its own
//!  rank 0 ── isthmusd ══ wire ══ isthmusd ── rank 1
//! ```
//!
//! A host shares its files and processes with this machine. `on` gives what it starts the host's network, a name of its own,
//! and the socket of the host's daemon at a path that is the same on both, since launchers pass on variables.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::launch::Launch;
use crate::hosts::{Site, Stage};
use crate::pair::Bench;

/// Runs a command on a host; it keeps the variables, which ssh would not.
const ON: &str = r#"#!/bin/sh
# on ADDRESS COMMAND...
case "$1" in
{a.address}) name=a daemon={a.daemon} run={a.run} ;;
{b.address}) name=b daemon={b.daemon} run={b.run} ;;
*) echo "on: there is no host $1" >&2; exit 255 ;;
esac
shift
exec nsenter --target $daemon --net --mount -- unshare --mount --uts -- \
    sh -c 'mount --bind "$1" {sockets} && hostname "$2" && shift 2 && exec "$@"' sh "$run" "$name" "$@"
"#;

/// What launchers take for ssh: a shell on the host, given all words as one, and none of the caller's variables.
const AGENT: &str = r#"#!/bin/sh
# agent ADDRESS WORDS...
host=$1
shift
exec env -i HOME=/ PATH="$PATH" TMPDIR={folder} ISTHMUS_SOCKET={sockets}/isthmus.sock ISTHMUS_AUTOSTART=0 {on} "$host" sh -c "$*"
"#;

/// The tools of the scripts.
const TOOLS: [&str; 4] = ["nsenter", "unshare", "mount", "hostname"];

/// An MPI's launcher on the first host, told of both.
pub(super) fn launcher(launch: &Launch, bench: &Bench, stage: &Stage) -> Result<Command> {
    if let Some(tool) = TOOLS.into_iter().find(|tool| super::flavour::in_path(tool).is_none()) {
        anyhow::bail!("there is no {tool}");
    }
    let sites = stage.sites(bench)?;
    let scripts = Scripts::write(stage.folder(), &sites)?;
    let [a, b] = [&sites[0].address, &sites[1].address];
    let mut command = launch.command(bench, &sites[0].interface)?;
    command.env("ISTHMUS_SOCKET", scripts.sockets.join("isthmus.sock")).env("ISTHMUS_AUTOSTART", "0");
    command.arg("bound").arg(&scripts.on).arg(a.to_string()).arg(launch.mpi.installed()?.launcher);
    if launch.mpi.is_open_mpi() {
        command.env("OMPI_MCA_plm_rsh_agent", &scripts.agent).env("PRTE_MCA_plm_ssh_agent", &scripts.agent);
        let each = launch.ranks.div_ceil(2);
        command.args(["--host", &format!("{a}:{each},{b}:{each}"), "--map-by", "node", "--bind-to", "none"]);
        command.args(["-x", "FI_PROVIDER_PATH"]);
    } else {
        command.env("HYDRA_LAUNCHER", "rsh").env("HYDRA_LAUNCHER_EXEC", &scripts.agent);
        command.args(["-hosts", &format!("{a},{b}"), "-ppn", "1", "-iface", &sites[0].interface, "-bind-to", "none"]);
    }
    command.args(["-n", &launch.ranks.to_string()]);
    Ok(command)
}

struct Scripts {
    on: PathBuf,
    agent: PathBuf,
    /// Where each host has its own daemon's socket.
    sockets: PathBuf,
}

impl Scripts {
    fn write(folder: &Path, sites: &[Site; 2]) -> Result<Self> {
        let [on, agent, sockets] = ["on", "agent", "sockets"].map(|name| folder.join(name));
        fs::create_dir_all(&sockets).with_context(|| format!("cannot make {}", sockets.display()))?;
        let [a, b] = sites;
        let words = [
            ("{a.address}", a.address.to_string()),
            ("{b.address}", b.address.to_string()),
            ("{a.daemon}", a.daemon.to_string()),
            ("{b.daemon}", b.daemon.to_string()),
            ("{a.run}", a.run.display().to_string()),
            ("{b.run}", b.run.display().to_string()),
            ("{sockets}", sockets.display().to_string()),
            ("{folder}", folder.display().to_string()),
            ("{on}", on.display().to_string()),
        ];
        for (script, text) in [(&on, ON), (&agent, AGENT)] {
            let text = words.iter().fold(text.to_owned(), |text, (word, value)| text.replace(word, value));
            let written =
                fs::write(script, text).and_then(|()| fs::set_permissions(script, fs::Permissions::from_mode(0o755)));
            written.with_context(|| format!("cannot write {}", script.display()))?;
        }
        Ok(Self { on, agent, sockets })
    }
}
