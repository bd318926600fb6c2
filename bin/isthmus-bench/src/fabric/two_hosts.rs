//! Jobs on two hosts: the arguments of a launcher for both, and the scripts by which it starts ranks there ([`RemoteLauncher`]).

use std::process::Command;

use anyhow::{Context, Result};
use isthmus_netns::{RemoteHost, RemoteLauncher};

use super::launch::Launch;
use crate::hosts::{HostPair, HostSite};
use crate::pair::Bench;

/// An MPI's launcher on the first host, with the names of both.
pub(super) fn launcher(launch: &Launch, bench: &Bench, host_pair: &HostPair) -> Result<Command> {
    if let Some(tool) = RemoteLauncher::missing_tool() {
        anyhow::bail!("there is no {tool}");
    }
    let sites = host_pair.sites(bench)?;
    let remote_host = |site: &HostSite| RemoteHost {
        name: site.name.clone(),
        address: site.address,
        process: site.daemon,
        own: site.run.clone(),
    };
    let variables = [("ISTHMUS_SOCKET", "{common}/isthmus.sock"), ("ISTHMUS_AUTOSTART", "0")];
    let remote = RemoteLauncher::write(host_pair.folder(), &sites.each_ref().map(remote_host), &variables);
    let remote = remote.with_context(|| format!("cannot write scripts in {}", host_pair.folder().display()))?;
    let [a, b] = [&sites[0].address, &sites[1].address];
    let mut command = launch.command(bench, &sites[0].interface)?;
    command.env("ISTHMUS_SOCKET", remote.common().join("isthmus.sock")).env("ISTHMUS_AUTOSTART", "0");
    command.arg("run-bound").arg(remote.on()).arg(a.to_string()).arg(launch.mpi.installed()?.launcher);
    if launch.mpi.is_open_mpi() {
        command.env("OMPI_MCA_plm_rsh_agent", remote.agent()).env("PRTE_MCA_plm_ssh_agent", remote.agent());
        let each = launch.ranks.div_ceil(2);
        command.args(["--host", &format!("{a}:{each},{b}:{each}"), "--map-by", "node", "--bind-to", "none"]);
        command.args(["-x", "FI_PROVIDER_PATH"]);
    } else {
        command.env("HYDRA_LAUNCHER", "rsh").env("HYDRA_LAUNCHER_EXEC", remote.agent());
        command.args(["-hosts", &format!("{a},{b}"), "-ppn", "1", "-iface", &sites[0].interface, "-bind-to", "none"]);
    }
    command.args(["-n", &launch.ranks.to_string()]);
    Ok(command)
}
