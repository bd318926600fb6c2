//! The state of a process as shown by /proc: descriptors, memory, processor time, mappings, namespaces.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::deadline::Deadline;

/// O_CLOEXEC, as /proc/PID/fdinfo shows it.
const CLOEXEC: u32 = rustix::fs::OFlags::CLOEXEC.bits();

/// Looks at one process. With a pidfd behind it (all views of a [`crate::Proc`] have one) it never shows another process
/// that got the same pid.
#[derive(Clone, Debug)]
pub struct View {
    pid: i32,
    life: Option<Arc<OwnedFd>>,
}

/// The reason why /proc could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// The process has ended.
    #[error("process {pid} has ended")]
    Gone {
        /// The file.
        pid: i32,
    },
    /// A file could not be read.
    #[error("reading {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A file did not have the form we know.
    #[error("{} has no {what}", path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
        /// The entry that was looked for.
        what: &'static str,
    },
}

/// An open descriptor.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fd {
    /// The descriptor's number.
    pub number: i32,
    /// The object it refers to, as /proc writes it: `/memfd:name (deleted)`, `socket:[1234]`, `anon_inode:[eventfd]`.
    pub target: String,
    /// False if a program it starts would inherit it.
    pub closes_on_exec: bool,
}

/// Memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Resident, all kinds.
    pub rss_bytes: u64,
    /// Resident, shared memory (memfd, tmpfs, shmem).
    pub rss_shmem_bytes: u64,
    /// Resident, divided by the number of processes that map each page.
    pub pss_bytes: u64,
    /// The proportional set size of shared memory only.
    pub pss_shmem_bytes: u64,
    /// Locked.
    pub locked_bytes: u64,
    /// Address space.
    pub virtual_bytes: u64,
}

/// A mapping, from /proc/PID/maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcMapping {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// `rwxs` or `rwxp`, with dashes.
    pub rights: String,
    /// Inode of the file behind it, 0 if there is none.
    pub inode: u64,
    /// The file's path, `/memfd:NAME (deleted)`, `[heap]`, or nothing.
    pub name: String,
}

impl View {
    /// Returns the view of this process.
    pub fn own() -> Self {
        Self { pid: std::process::id().cast_signed(), life: None }
    }

    /// Returns the view of any process. After the process has ended, its number may come to mean another one.
    pub fn of(pid: i32) -> Self {
        Self { pid, life: None }
    }

    pub(crate) fn with_life(pid: i32, life: Arc<OwnedFd>) -> Self {
        Self { pid, life: Some(life) }
    }

    /// The pid.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns the open descriptors of the process, sorted by number.
    pub fn fds(&self) -> Result<Vec<Fd>, ViewError> {
        let dir = self.path("fd");
        let ours = dir.to_string_lossy().into_owned(); // Through which we look when we look at ourselves.
        let mut fds = Vec::new();
        for name in self.names("fd")? {
            let Ok(target) = std::fs::read_link(dir.join(&name)) else { continue }; // Closed meanwhile.
            let number = name.parse().map_err(|_| self.unknown("fd", "numbers"))?;
            let target = target.to_string_lossy().into_owned();
            let info = std::fs::read_to_string(self.path("fdinfo").join(&name)).unwrap_or_default();
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
            let Some(flags) = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok()) else { continue };
            if target != ours {
                fds.push(Fd { number, target, closes_on_exec: flags & CLOEXEC != 0 });
            }
        }
        fds.sort();
        self.alive(fds)
    }

    /// How many of these it holds, but for those in `/proc`: the maps and the load are opened once, when they are first wanted, and kept.
    pub fn held_fds(&self) -> Result<usize, ViewError> {
        Ok(self.fds()?.iter().filter(|fd| !fd.target.starts_with("/proc/")).count())
    }

    /// Returns the memory figures of the process.
    pub fn memory(&self) -> Result<Memory, ViewError> {
        let (status, rollup) = (self.fields("status")?, self.fields("smaps_rollup")?);
        let kib = |file, fields: &BTreeMap<String, String>, name: &'static str| {
            let value = fields.get(name).and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok());
            value.map(|kib| kib * 1024).ok_or_else(|| self.unknown(file, name))
        };
        self.alive(Memory {
            rss_bytes: kib("status", &status, "VmRSS")?,
            rss_shmem_bytes: kib("status", &status, "RssShmem")?,
            pss_bytes: kib("smaps_rollup", &rollup, "Pss")?,
            pss_shmem_bytes: kib("smaps_rollup", &rollup, "Pss_Shmem")?,
            locked_bytes: kib("status", &status, "VmLck")?,
            virtual_bytes: kib("status", &status, "VmSize")?,
        })
    }

    /// Processor time it has used, user and system, in clock ticks of 10 ms (/proc/PID/stat). Its ended threads count.
    pub fn cpu(&self) -> Result<Duration, ViewError> {
        let stat = self.read("stat")?;
        let after_name = stat.rsplit_once(')').ok_or_else(|| self.unknown("stat", "name"))?.1;
        let ticks = after_name.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok());
        let ticks = ticks.sum::<u64>();
        self.alive(Duration::from_nanos(ticks * 1_000_000_000 / rustix::param::clock_ticks_per_second()))
    }

    /// Processor time its present threads have used, to the nanosecond (/proc/PID/task/TID/schedstat).
    pub fn cpu_fine(&self) -> Result<Duration, ViewError> {
        let mut nanoseconds = 0;
        for tid in self.names("task")? {
            let file = format!("task/{tid}/schedstat");
            let Ok(text) = std::fs::read_to_string(self.path(&file)) else { continue }; // Ended meanwhile.
            let first = text.split_whitespace().next().and_then(|first| first.parse::<u64>().ok());
            nanoseconds += first.ok_or_else(|| self.unknown(&file, "time"))?;
        }
        self.alive(Duration::from_nanos(nanoseconds))
    }

    /// Returns how often the present threads of the process went to sleep of their own will. Each sleep ends with a wake-up.
    pub fn sleeps(&self) -> Result<u64, ViewError> {
        let mut sleeps = 0;
        for tid in self.names("task")? {
            let file = format!("task/{tid}/status");
            let Ok(text) = std::fs::read_to_string(self.path(&file)) else { continue }; // Ended meanwhile.
            let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            let count = line.and_then(|count| count.trim().parse::<u64>().ok());
            sleeps += count.ok_or_else(|| self.unknown("status", "voluntary_ctxt_switches"))?;
        }
        self.alive(sleeps)
    }

    /// The names of its threads, sorted.
    pub fn threads(&self) -> Result<Vec<String>, ViewError> {
        let mut threads = Vec::new();
        for tid in self.names("task")? {
            let Ok(name) = std::fs::read_to_string(self.path(&format!("task/{tid}/comm"))) else { continue };
            threads.push(name.trim_end().to_owned());
        }
        threads.sort();
        self.alive(threads)
    }

    /// The capabilities that any of its threads has or could take up: a bit for each.
    pub fn capabilities(&self) -> Result<u64, ViewError> {
        let mut all = 0;
        for tid in self.names("task")? {
            let Ok(status) = std::fs::read_to_string(self.path(&format!("task/{tid}/status"))) else { continue };
            let permitted = status.lines().find_map(|line| line.strip_prefix("CapPrm:"));
            let permitted = permitted.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
            all |= permitted.ok_or_else(|| self.unknown("status", "CapPrm"))?;
        }
        self.alive(all)
    }

    /// The signals it handles itself: bit n-1 for signal n.
    pub fn caught_signals(&self) -> Result<u64, ViewError> {
        let mask = self.fields("status")?.get("SigCgt").and_then(|mask| u64::from_str_radix(mask, 16).ok());
        self.alive(mask.ok_or_else(|| self.unknown("status", "SigCgt"))?)
    }

    /// A line of /proc/PID/status.
    pub fn status(&self, name: &'static str) -> Result<String, ViewError> {
        let value = self.fields("status")?.remove(name);
        self.alive(value.ok_or_else(|| self.unknown("status", name))?)
    }

    /// Returns the mappings of the process.
    pub fn maps(&self) -> Result<Vec<ProcMapping>, ViewError> {
        let text = self.read("maps")?;
        let maps = text.lines().map(ProcMapping::parse).collect::<Option<Vec<_>>>();
        self.alive(maps.ok_or_else(|| self.unknown("maps", "mapping"))?)
    }

    /// Returns the mappings that the process shares with others, or could.
    pub fn shared_maps(&self) -> Result<Vec<ProcMapping>, ViewError> {
        Ok(self.maps()?.into_iter().filter(ProcMapping::is_shared).collect())
    }

    /// Returns the namespaces of the process: `mnt` → `mnt:[4026531841]`.
    pub fn namespaces(&self) -> Result<BTreeMap<String, String>, ViewError> {
        let mut spaces = BTreeMap::new();
        for name in self.names("ns")? {
            let path = self.path("ns").join(&name);
            let target = std::fs::read_link(&path).map_err(|source| ViewError::Unreadable { path, source })?;
            spaces.insert(name, target.to_string_lossy().into_owned());
        }
        self.alive(spaces)
    }

    fn path(&self, file: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{file}", self.pid))
    }

    fn read(&self, file: &str) -> Result<String, ViewError> {
        let path = self.path(file);
        std::fs::read_to_string(&path).map_err(|source| self.unreadable(path, source))
    }

    fn names(&self, dir: &str) -> Result<Vec<String>, ViewError> {
        let path = self.path(dir);
        let list = || {
            let entries = std::fs::read_dir(&path)?;
            entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect::<io::Result<_>>()
        };
        list().map_err(|source| self.unreadable(path, source))
    }

    fn fields(&self, file: &str) -> Result<BTreeMap<String, String>, ViewError> {
        let text = self.read(file)?;
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        Ok(lines.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
    }

    /// `seen` if it was still that process when we looked.
    fn alive<T>(&self, seen: T) -> Result<T, ViewError> {
        if self.has_ended() { Err(ViewError::Gone { pid: self.pid }) } else { Ok(seen) }
    }

    fn has_ended(&self) -> bool {
        let now = Deadline::after(Duration::ZERO);
        self.life.as_ref().is_some_and(|life| now.readable([life.as_fd()]).is_ok())
    }

    fn unreadable(&self, path: PathBuf, source: io::Error) -> ViewError {
        if self.has_ended() { ViewError::Gone { pid: self.pid } } else { ViewError::Unreadable { path, source } }
    }

    fn unknown(&self, file: &str, what: &'static str) -> ViewError {
        // A zombie's files have fewer lines.
        if self.has_ended() {
            ViewError::Gone { pid: self.pid }
        } else {
            ViewError::Unknown { path: self.path(file), what }
        }
    }
}

impl ProcMapping {
    /// True for MAP_SHARED.
    pub fn is_shared(&self) -> bool {
        self.rights.ends_with('s')
    }

    /// True if it can be written.
    pub fn is_writable(&self) -> bool {
        self.rights.contains('w')
    }

    /// The name of the memfd behind it, if there is one.
    pub fn memfd(&self) -> Option<&str> {
        memfd_name(&self.name)
    }

    /// Reads `start-end rights offset device inode name`.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        let rights = words.next()?.to_owned();
        let inode = words.nth(2)?.parse().ok()?;
        let name = words.next().unwrap_or_default().trim().to_owned();
        Some(Self { start, end, rights, inode, name })
    }
}

/// The name in `/memfd:NAME (deleted)`.
pub(crate) fn memfd_name(target: &str) -> Option<&str> {
    let name = target.strip_prefix("/memfd:")?;
    Some(name.strip_suffix(" (deleted)").unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapping_parses_lines_of_maps() {
        let line = "7f0000000000-7f0000200000 rw-s 00001000 00:01 2053                       /memfd:a name (deleted)";
        let mapping = ProcMapping::parse(line).expect("a mapping");
        assert_eq!((mapping.start, mapping.end, mapping.inode), (0x7f00_0000_0000, 0x7f00_0020_0000, 2053));
        assert!(mapping.is_shared() && mapping.is_writable());
        assert_eq!(mapping.memfd(), Some("a name"));
        let mapping = ProcMapping::parse("55d0-55e0 r--p 00000000 00:00 0 ").expect("a mapping");
        assert!(!mapping.is_shared() && !mapping.is_writable() && mapping.name.is_empty());
        assert_eq!(ProcMapping::parse("what is this"), None);
    }

    #[test]
    fn own_view_shows_a_new_memfd_and_no_observer_fds() {
        let view = View::own();
        let file = rustix::fs::memfd_create("own-view", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
        let fds = view.fds().expect("descriptors");
        assert!(fds.iter().any(|fd| memfd_name(&fd.target) == Some("own-view")));
        let looking = format!("/proc/{}/fd", std::process::id());
        assert!(fds.iter().all(|fd| fd.target != looking), "{fds:?}");
        drop(file);
        assert!(view.memory().expect("memory").rss_bytes > 0);
        assert!(view.cpu_fine().expect("time") > Duration::ZERO);
        assert!(!view.threads().expect("threads").is_empty());
    }
}
