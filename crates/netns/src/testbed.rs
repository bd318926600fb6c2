//! A testbed: hosts and wires that live as long as it does.

use std::io;
use std::path::PathBuf;

use crate::cable::{Cable, Wire};
use crate::host::Host;
use crate::impaired_wire::ImpairedWire;
use crate::impairment::Impairments;
use crate::reaper::Reaper;

/// Tools that a testbed rests on, and the packages they come with.
const TOOLS: [(&str, &str); 3] = [("ip", "iproute2"), ("sh", "dash"), ("stat", "coreutils")];

/// The reason why there can be no testbed, host or wire. The text is fit for "skipped: …".
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A tool is not installed.
    #[error("{tool} is not installed; it comes with the package {package}")]
    ToolMissing {
        /// The program that was to be run.
        tool: &'static str,
        /// The package to install.
        package: &'static str,
    },
    /// Only root may have network namespaces, be it of a user namespace.
    #[error(
        "network namespaces need root; `unshare --map-root-user PROGRAM` makes one root enough, where that is allowed"
    )]
    NeedsRoot(#[source] io::Error),
    /// The kernel knows no network namespaces, or has no more of them.
    #[error("the kernel makes no network namespace")]
    NoNamespace(#[source] io::Error),
    /// The kernel did not do what `ip` or we asked of it.
    #[error("{what}: {stderr}")]
    Refused {
        /// The request.
        what: String,
        /// The answer.
        stderr: String,
    },
    /// A system call failed on the way.
    #[error("{what}: {source}")]
    System {
        /// The object that was to be made.
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// There are 65536 wires in the testbed.
    #[error("a testbed has no more than 65536 wires")]
    TooManyWires,
}

/// Hosts, the wires between them, and the programs on them; dropping it ends them all.
#[derive(Debug)]
pub struct Testbed {
    hosts: Vec<Host>,
    wires: Vec<ImpairedWire>,
    wires_made: u16,
    reaper: Reaper,
}

impl SetupError {
    pub(crate) fn host(source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::PermissionDenied => Self::NeedsRoot(source),
            _ => Self::NoNamespace(source),
        }
    }
}

impl Testbed {
    /// An empty testbed, if this program can have one: that is tried, with a host and a veth pair that are gone again.
    pub fn new() -> Result<Self, SetupError> {
        for (tool, package) in TOOLS {
            if find(tool).is_none() {
                return Err(SetupError::ToolMissing { tool, package });
            }
        }
        let trial = Host::new("trial").map_err(SetupError::host)?;
        let veth = trial.ip("link add trial0 type veth peer name trial1\n");
        trial.end();
        veth.map_err(|stderr| SetupError::Refused { what: "a veth pair".to_owned(), stderr })?;
        let reaper =
            Reaper::start().map_err(|source| SetupError::System { what: "the reaper of the testbed", source })?;
        Ok(Self { hosts: Vec::new(), wires: Vec::new(), wires_made: 0, reaper })
    }

    /// A new host, in which there is only `lo`. The name is for people.
    pub fn host(&mut self, name: &str) -> Result<Host, SetupError> {
        let host = Host::new(name).map_err(SetupError::host)?;
        let watched = host.inode().and_then(|inode| self.reaper.watch(inode));
        if let Err(source) = watched {
            host.end();
            return Err(SetupError::System { what: "the reaper of the testbed", source });
        }
        self.hosts.push(host.clone());
        Ok(host)
    }

    /// A plain wire between two hosts: a veth pair. The hosts may be of another testbed; the wire goes with the first of them.
    pub fn link(&mut self, a: &Host, b: &Host, wire: &Wire) -> Result<Cable, SetupError> {
        let ends = wire.ends(self.next_wire()?, [a, b]);
        Cable::new(wire, ends)
    }

    /// A wire that goes through user space, where it meets these conditions. Its interfaces are always cut, whatever
    /// `wire.offloads` says.
    pub fn impaired(
        &mut self,
        a: &Host,
        b: &Host,
        wire: &Wire,
        conditions: Impairments,
    ) -> Result<ImpairedWire, SetupError> {
        let ends = wire.ends(self.next_wire()?, [a, b]);
        let wire = ImpairedWire::new(wire, conditions, ends)?;
        self.wires.push(wire.clone());
        Ok(wire)
    }

    fn next_wire(&mut self) -> Result<u16, SetupError> {
        let number = self.wires_made;
        self.wires_made = number.checked_add(1).ok_or(SetupError::TooManyWires)?;
        Ok(number)
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        self.reaper.end(); // First: no program sees its wires go.
        self.wires.iter().for_each(ImpairedWire::end);
        self.hosts.iter().for_each(Host::end);
    }
}

fn find(tool: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    std::env::split_paths(&path).map(|dir| dir.join(tool)).find(|file| file.is_file())
}
