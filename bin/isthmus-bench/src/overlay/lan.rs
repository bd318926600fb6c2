//! Two hosts with a wire, and a container on each. Tunnels between the containers are made when they are first needed.

use std::cell::{OnceCell, RefCell};
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use isthmus_netns::{Host, Impairments, Testbed, Wire, WireInterface};

use super::tunnel::{Tunnel, TunnelProcesses};
use crate::pair::Bench;
use crate::temp_folder::TempFolder;

/// The wire between the hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LanWire {
    /// The name in the names of cases.
    pub(super) name: &'static str,
    pub(super) mtu: u32,
    /// True if every packet on it fits the MTU and has complete checksums. Otherwise a veth pair carries packets of up to 64 KB whole.
    pub(super) is_cut: bool,
    /// A wire through user space; none for a veth pair.
    pub(super) conditions: Option<Impairments>,
}

/// The pair of hosts that was made last. Rows with the same wire stand together.
#[derive(Debug, Default)]
pub(super) struct Lans(RefCell<Option<Rc<Lan>>>);

impl Lans {
    /// Returns the hosts with this wire, and makes them if they are not there. The inner error is the reason that this machine cannot.
    pub(super) fn on(&self, wire: LanWire) -> Result<Result<Rc<Lan>, String>> {
        let mut last = self.0.borrow_mut();
        if let Some(lan) = last.as_ref().filter(|lan| lan.wire == wire) {
            return Ok(Ok(Rc::clone(lan)));
        }
        *last = None;
        let bed = match Testbed::new() {
            Ok(bed) => bed,
            Err(why) => return Ok(Err(why.to_string())),
        };
        let lan = Rc::new(Lan::make(bed, wire).context("making two hosts with containers")?);
        *last = Some(Rc::clone(&lan));
        Ok(Ok(lan))
    }

    /// Drops the hosts after a failure, so that the next run has new ones.
    pub(super) fn forget(&self) {
        *self.0.borrow_mut() = None;
    }
}

/// Two hosts with containers. What is declared first ends first.
#[derive(Debug)]
pub(super) struct Lan {
    pub(super) wire: LanWire,
    tunnels: RefCell<Vec<(Tunnel, TunnelProcesses)>>,
    mover: OnceCell<PathBuf>,
    pub(super) sites: [LanSite; 2],
    _bed: Testbed,
    folder: TempFolder,
}

/// One of the hosts.
#[derive(Debug)]
pub(super) struct LanSite {
    /// The interface to the other host.
    pub(super) end: WireInterface,
    pub(super) container: Host,
    /// Keeps the number of the descriptor in the path of the namespace.
    namespace: OwnedFd,
}

impl LanSite {
    /// The path of the namespace of the container.
    pub(super) fn namespace(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.namespace.as_raw_fd())
    }
}

impl Lan {
    fn make(mut bed: Testbed, wire: LanWire) -> Result<Self> {
        let hosts = [bed.host("a")?, bed.host("b")?];
        let plan = Wire { offloads: !wire.is_cut, ..Wire::mtu(wire.mtu) };
        let ends = match wire.conditions {
            None => {
                let cable = bed.link(&hosts[0], &hosts[1], &plan)?;
                let ends = [cable.a().clone(), cable.b().clone()];
                if wire.is_cut {
                    ends.iter().try_for_each(WireInterface::complete_checksums).context("offloads")?;
                }
                ends
            }
            Some(conditions) => {
                let impaired = bed.impaired(&hosts[0], &hosts[1], &plan, conditions)?;
                [impaired.a().clone(), impaired.b().clone()]
            }
        };
        let mut site = |end: WireInterface, name: &str| {
            let container = bed.host(name)?;
            quiet(&container)?;
            let namespace = container.namespace().context("the namespace of a container")?;
            Ok::<_, anyhow::Error>(LanSite { end, container, namespace })
        };
        let [a, b] = ends;
        let sites = [site(a, "container a")?, site(b, "container b")?];
        let folder = TempFolder::make()?;
        Ok(Self { wire, tunnels: RefCell::default(), mover: OnceCell::new(), sites, _bed: bed, folder })
    }

    /// Makes a tunnel, unless it is there, and waits until a packet passed. The inner error is the reason that this installation cannot.
    pub(super) fn open(&self, bench: &Bench, tunnel: Tunnel) -> Result<Result<(), String>> {
        if self.tunnels.borrow().iter().any(|(made, _)| *made == tunnel) {
            return Ok(Ok(()));
        }
        let processes = match tunnel.open(bench, self).with_context(|| format!("making the tunnel {tunnel:?}"))? {
            Ok(processes) => processes,
            Err(why) => return Ok(Err(why)),
        };
        let ping = format!("ping -n -q -c 1 -i 0.05 -w 20 {}", tunnel.address(1));
        run(&self.sites[0].container, &ping).with_context(|| format!("no packet passes the tunnel {tunnel:?}"))?;
        self.tunnels.borrow_mut().push((tunnel, processes));
        Ok(Ok(()))
    }

    /// The folder of the hosts, which is removed with them.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The program of `mover.c`. Compiled when it is first needed.
    pub(super) fn mover(&self) -> Result<&Path> {
        if self.mover.get().is_none() {
            let (source, program) = (self.folder().join("mover.c"), self.folder().join("mover"));
            fs::write(&source, include_str!("mover.c")).context("cannot write mover.c")?;
            let mut compiler = Command::new("cc");
            compiler.args(["-std=gnu11", "-D_GNU_SOURCE", "-O2", "-o"]).arg(&program).arg(&source);
            let done = compiler.output().context("cannot start the compiler of mover.c")?;
            ensure!(done.status.success(), "mover.c: {}", String::from_utf8_lossy(&done.stderr).trim_end());
            self.mover.get_or_init(|| program); // No other thread sets it: one thread measures all cases.
        }
        Ok(self.mover.get().context("mover.c is not compiled")?)
    }
}

/// Keeps the kernel from sending packets of its own by the interfaces that a host gets.
pub(super) fn quiet(host: &Host) -> Result<()> {
    // A kernel without IPv6 is as quiet.
    let _: std::io::Result<()> = host
        .with(|| fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1"))
        .context("the settings of a host")?;
    Ok(())
}

/// Runs a command line on a host and returns its output. A failure of the command is an error.
pub(super) fn run(host: &Host, line: &str) -> Result<String> {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().context("an empty line")?);
    command.args(words);
    let output = host.output(command).with_context(|| line.to_owned())?;
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).trim_end().to_owned();
    ensure!(output.status.success(), "{line}: {text}");
    Ok(text)
}
