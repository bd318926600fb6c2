//! The things that a test could leave behind on the machine, so that it can be shown that it did not.
//!
//! ```
//! use isthmus_testbed::Leftovers;
//!
//! let before = Leftovers::snapshot().expect("a look around");
//! // … domains live and die …
//! let left = Leftovers::snapshot().expect("another").since(&before).named("isthmus-no-such-name");
//! assert!(left.is_empty(), "{left}");
//! ```
//!
//! Other programs leave things as well, and tests run beside each other: compare [`Leftovers::named`] by a name of one's own.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::view::memfd_name;

/// The depth below /tmp and the like to which we look.
const DEPTH_MAX: u32 = 4;

/// Names on this machine that outlive the process that made them, or should not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Files and sockets in /dev/shm, /tmp, /var/tmp, /run and $XDG_RUNTIME_DIR.
    pub files: BTreeSet<PathBuf>,
    /// Abstract Unix sockets of this network namespace, with their `@`.
    pub abstract_sockets: BTreeSet<String>,
    /// memfds some process has open or mapped.
    pub memfds: BTreeSet<HeldMemfd>,
    /// System V shared memory: key and id.
    pub sysv: BTreeSet<String>,
    /// Processes: pid and name.
    pub processes: BTreeSet<(i32, String)>,
}

/// A memfd and a process that holds it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeldMemfd {
    /// Name of the object.
    pub name: String,
    /// Inode of the object.
    pub inode: u64,
    /// The process that holds the object, by descriptor or mapping.
    pub pid: i32,
}

/// The machine could not be looked at.
#[derive(Debug, thiserror::Error)]
#[error("reading {}", path.display())]
pub struct LeftoversError {
    /// The path.
    pub path: PathBuf,
    /// The cause.
    #[source]
    pub source: io::Error,
}

impl Leftovers {
    /// Looks around. Processes of others that we may not look into are left out.
    pub fn snapshot() -> Result<Self, LeftoversError> {
        let mut found = Self::default();
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        for dir in ["/dev/shm", "/tmp", "/var/tmp", "/run"].map(PathBuf::from).into_iter().chain(runtime) {
            found.scan_dir(&dir, DEPTH_MAX);
        }
        let unix = read(Path::new("/proc/net/unix"))?;
        let names = unix.lines().filter_map(|line| line.split_whitespace().nth(7));
        found.abstract_sockets = names.filter(|name| name.starts_with('@')).map(str::to_owned).collect();
        if let Ok(segments) = std::fs::read_to_string("/proc/sysvipc/shm") {
            let ids =
                segments.lines().skip(1).map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" "));
            found.sysv = ids.collect();
        }
        found.scan_processes()?;
        Ok(found)
    }

    /// Returns the leftovers that are here and were not there `before`.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            files: &self.files - &before.files,
            abstract_sockets: &self.abstract_sockets - &before.abstract_sockets,
            memfds: &self.memfds - &before.memfds,
            sysv: &self.sysv - &before.sysv,
            processes: &self.processes - &before.processes,
        }
    }

    /// Only what has `part` in its name. System V segments have no name, so they all stay.
    pub fn named(mut self, part: &str) -> Self {
        self.files.retain(|file| file.to_string_lossy().contains(part));
        self.abstract_sockets.retain(|name| name.contains(part));
        self.memfds.retain(|memfd| memfd.name.contains(part));
        self.processes.retain(|(_, name)| name.contains(part));
        self
    }

    /// True if nothing is left.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn scan_dir(&mut self, dir: &Path, depth: u32) {
        let Ok(entries) = std::fs::read_dir(dir) else { return }; // Absent, or not ours to look into.
        for entry in entries.flatten() {
            if depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                self.scan_dir(&entry.path(), depth - 1);
            }
            self.files.insert(entry.path());
        }
    }

    fn scan_processes(&mut self) -> Result<(), LeftoversError> {
        let proc = Path::new("/proc");
        let entries = std::fs::read_dir(proc).map_err(|source| LeftoversError { path: proc.into(), source })?;
        for entry in entries.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            // Processes come and go while we look: what cannot be read any more is not left behind.
            let Ok(name) = std::fs::read_to_string(entry.path().join("comm")) else { continue };
            self.processes.insert((pid, name.trim_end().to_owned()));
            self.scan_memfds(pid, &entry.path());
        }
        Ok(())
    }

    fn scan_memfds(&mut self, pid: i32, proc: &Path) {
        for entry in std::fs::read_dir(proc.join("fd")).into_iter().flatten().flatten() {
            let Ok(target) = std::fs::read_link(entry.path()) else { continue };
            let Some(name) = target.to_str().and_then(memfd_name) else { continue };
            let Ok(metadata) = std::fs::metadata(entry.path()) else { continue };
            let inode = std::os::unix::fs::MetadataExt::ino(&metadata);
            self.memfds.insert(HeldMemfd { name: name.into(), inode, pid });
        }
        let maps = std::fs::read_to_string(proc.join("maps")).unwrap_or_default();
        for mapping in maps.lines().filter_map(crate::view::ProcMapping::parse) {
            if let Some(name) = mapping.memfd() {
                self.memfds.insert(HeldMemfd { name: name.into(), inode: mapping.inode, pid });
            }
        }
    }
}

impl fmt::Display for Leftovers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for file in &self.files {
            writeln!(f, "file {}", file.display())?;
        }
        for name in &self.abstract_sockets {
            writeln!(f, "abstract socket {name}")?;
        }
        for HeldMemfd { name, inode, pid } in &self.memfds {
            writeln!(f, "memfd {name} (inode {inode}) held by process {pid}")?;
        }
        for segment in &self.sysv {
            writeln!(f, "System V shared memory {segment}")?;
        }
        for (pid, name) in &self.processes {
            writeln!(f, "process {pid} {name}")?;
        }
        Ok(())
    }
}

fn read(path: &Path) -> Result<String, LeftoversError> {
    let bytes = std::fs::read(path).map_err(|source| LeftoversError { path: path.into(), source })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned()) // Abstract names are bytes.
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_name_a_file_a_socket_and_a_memfd() {
        let mark = format!("leftovers-{}", std::process::id());
        let before = Leftovers::snapshot().expect("a snapshot");
        assert!(before.clone().named(&mark).is_empty());

        let file = tempfile::Builder::new().prefix(&mark).tempfile_in("/dev/shm").expect("a file");
        let memfd = rustix::fs::memfd_create(&mark, rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
        let address = <std::os::unix::net::SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(&mark);
        let address = address.expect("an address");
        let socket = std::os::unix::net::UnixDatagram::bind_addr(&address).expect("an abstract socket");

        let left = Leftovers::snapshot().expect("a snapshot").since(&before).named(&mark);
        assert_eq!(left.files.iter().map(PathBuf::as_path).collect::<Vec<_>>(), [file.path()], "{left}");
        assert_eq!(left.abstract_sockets.iter().collect::<Vec<_>>(), [&format!("@{mark}")], "{left}");
        assert_eq!(left.memfds.len(), 1, "{left}");

        drop((file, memfd, socket));
        let left = Leftovers::snapshot().expect("a snapshot").since(&before).named(&mark);
        assert!(left.files.is_empty() && left.abstract_sockets.is_empty() && left.memfds.is_empty(), "{left}");
    }
}
