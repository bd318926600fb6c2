//! The tunnels between the two containers, each with interfaces and a subnet of its own, so that all can be there at the same time.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::lan::{Lan, LanSite, run};
use crate::case::not_installed;
use crate::daemon::{self, PrivateDaemon};
use crate::pair::Bench;
use crate::pin;
use crate::programs::{KillOnDrop, find_program, wait_until};
use crate::worker::CPUS;

/// The time until an interface exists.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The bytes of a VXLAN tunnel before an inner packet: IPv4, UDP, VXLAN, Ethernet.
const VXLAN_OVERHEAD: u32 = 50;

/// The bytes of IPv4 and UDP.
const DATAGRAM_OVERHEAD: u32 = 28;

/// A tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tunnel {
    /// A *fast* edge between two daemons.
    Fast,
    /// A *fast* edge between two daemons that never spin before they sleep.
    FastSleep,
    /// A VXLAN edge of a daemon on host a, and the VXLAN device of Linux on host b.
    Vxlan,
    /// VXLAN devices of Linux on both hosts.
    Kernel,
    /// `mover.c` on both hosts: whole frames.
    Mover,
    /// `mover.c` with VXLAN on host a, and the VXLAN device of Linux on host b.
    VxlanMover,
}

/// The processes of a tunnel. Dropping them ends them.
#[derive(Debug, Default)]
pub(super) struct TunnelProcesses {
    _daemons: Vec<PrivateDaemon>,
    _movers: Vec<KillOnDrop>,
}

impl Tunnel {
    /// The name in the names of cases.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::FastSleep => "fast_sleep",
            Self::Vxlan => "vxlan",
            Self::Kernel => "kernel_vxlan",
            Self::Mover => "mover",
            Self::VxlanMover => "vxlan_mover",
        }
    }

    /// The name of the interface in both containers.
    pub(super) fn interface(self) -> String {
        format!("tunnel{}", self.number())
    }

    /// The address of the container on a host.
    pub(super) fn address(self, host: usize) -> String {
        format!("10.9.{}.{}", self.number(), host + 1)
    }

    const fn number(self) -> u32 {
        // The VNI of `mover.c` is 45.
        match self {
            Self::Fast => 42,
            Self::Vxlan => 43,
            Self::Kernel => 44,
            Self::VxlanMover => 45,
            Self::Mover => 46,
            Self::FastSleep => 47,
        }
    }

    /// The port of both hosts, of which one socket has each.
    const fn port(self) -> u16 {
        match self {
            Self::Fast => 9001,
            Self::FastSleep => 9101,
            Self::Vxlan => 4789,
            Self::Kernel => 8472,
            Self::VxlanMover => 14789,
            Self::Mover => 19001,
        }
    }

    /// Makes the interfaces. The inner error is the reason that this installation cannot.
    pub(super) fn open(self, bench: &Bench, lan: &Lan) -> Result<Result<TunnelProcesses, String>> {
        let mut processes = TunnelProcesses::default();
        match self {
            Self::Fast | Self::FastSleep | Self::Vxlan => {
                if let Some(why) = daemon::unavailable_reason() {
                    return Ok(Err(why));
                }
                let hosts = if self == Self::Vxlan { 0..1 } else { 0..2 };
                processes._daemons = hosts.map(|host| self.daemon(bench, lan, host)).collect::<Result<_>>()?;
            }
            Self::Mover | Self::VxlanMover => {
                if find_program("cc").is_none() {
                    return Ok(Err(not_installed("cc", "package gcc")));
                }
                let hosts = if self == Self::Mover { 0..2 } else { 0..1 };
                processes._movers = hosts.map(|host| self.mover(bench, lan, host)).collect::<Result<_>>()?;
            }
            Self::Kernel => self.device(lan, 0)?,
        }
        if matches!(self, Self::Kernel | Self::Vxlan | Self::VxlanMover) {
            self.device(lan, 1)?;
        }
        lan.sites.iter().try_for_each(|site| self.wait(site))?;
        Ok(Ok(processes))
    }

    /// A VXLAN device of Linux, which was made on the host and moved into the container.
    fn device(self, lan: &Lan, host: usize) -> Result<()> {
        let (own, other) = (&lan.sites[host], &lan.sites[1 - host]);
        let (name, vni, port) = (self.interface(), self.number(), self.port());
        let ends = format!("local {} remote {}", own.end.v4, other.end.v4);
        run(&own.end.host, &format!("ip link add {name} type vxlan id {vni} {ends} dstport {port} udpcsum"))?;
        run(&own.end.host, &format!("ip link set {name} netns {}", own.namespace()))?;
        self.set_up(lan, host, lan.wire.mtu - VXLAN_OVERHEAD)
    }

    fn set_up(self, lan: &Lan, host: usize, mtu: u32) -> Result<()> {
        let (container, name) = (&lan.sites[host].container, self.interface());
        run(container, &format!("ip addr add {}/24 dev {name}", self.address(host)))?;
        run(container, &format!("ip link set {name} mtu {mtu} up")).map(drop)
    }

    fn daemon(self, bench: &Bench, lan: &Lan, host: usize) -> Result<PrivateDaemon> {
        let (own, other) = (&lan.sites[host], &lan.sites[1 - host]);
        let folder = lan.folder().join(format!("{}{host}", self.name()));
        fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let (kind, mtu) = match self {
            Self::Vxlan => ("vxlan", lan.wire.mtu - VXLAN_OVERHEAD),
            _ => ("fast", lan.wire.mtu),
        };
        let wait = if self == Self::FastSleep { "sleep" } else { "adaptive" };
        let mut config = format!("wait.mode = \"{wait}\"\n[overlay]\nhelper = \"{}/helper.sock\"\n", folder.display());
        writeln!(config, "[[overlay.network]]\nname = \"lan\"\nvni = {}", self.number())?;
        let (name, namespace, address) = (self.interface(), own.namespace(), self.address(host));
        let place = format!("namespace = \"{namespace}\", mtu = {mtu}, addresses = [\"{address}/24\"]");
        writeln!(config, "interfaces = [{{ name = \"{name}\", {place} }}]")?;
        writeln!(config, "edges = [{{ to = \"{}:{}\", kind = \"{kind}\" }}]", other.end.v4, self.port())?;
        let cpus = &bench.host_cpus.daemons[host];
        PrivateDaemon::start_as(
            &folder,
            &daemon::Plan { config: &config, host: Some(&own.end.host), cpus, ..Default::default() },
        )
    }

    fn mover(self, bench: &Bench, lan: &Lan, host: usize) -> Result<KillOnDrop> {
        let (own, other) = (&lan.sites[host], &lan.sites[1 - host]);
        let mut command = Command::new(&bench.program);
        command.arg("run-bound").arg(format!("{CPUS}{}", pin::list(&bench.host_cpus.daemons[host])));
        command.arg(lan.mover()?).args([own.namespace(), self.interface()]);
        command.args([own.end.v4, other.end.v4].map(|address| address.to_string()));
        command.args([self.port().to_string(), (lan.wire.mtu - DATAGRAM_OVERHEAD).to_string()]);
        command.arg(if self == Self::Mover { "whole" } else { "vxlan" });
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut mover = own.end.host.spawn(command).map(KillOnDrop).context("cannot start mover.c")?;
        let mut line = String::new();
        let stdout = mover.0.stdout.take().context("a program without output")?;
        BufReader::new(stdout).read_line(&mut line).context("cannot read the output of mover.c")?;
        ensure!(line == "ready\n", "mover.c ended at its start");
        let overhead = if self == Self::Mover { 0 } else { VXLAN_OVERHEAD };
        self.set_up(lan, host, lan.wire.mtu - overhead)?;
        Ok(mover)
    }

    /// Waits until the interface of a container has its address.
    fn wait(self, site: &LanSite) -> Result<()> {
        let line = format!("ip -4 addr show dev {}", self.interface());
        wait_until(TIMEOUT, || Ok(run(&site.container, &line).is_ok_and(|text| text.contains("inet "))))
            .with_context(|| format!("{} in {}", self.interface(), site.container.name()))
    }
}
