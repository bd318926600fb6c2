//! A container as hostile to a fast path as containers get.
//!
//! ```text
//!            host                │  own pid, ipc, user, mnt, net, uts and cgroup namespaces
//!                                │  no capability, no_new_privs, seccomp without process_vm_*, ptrace, … (`DENIED`)
//!   /tmp/isthmus-XXXXXX/run ═════╪═══ /run/isthmus     the one thing in common, read-only: a socket needs no more
//!   target/debug ────────────────┼─── /program         read-only
//!   /usr, /lib, /lib64, /bin ────┼─── the same         read-only
//!                                │  / and /dev read-only, own /proc, /dev/shm of 64 MB; no /tmp, no /sys, no /etc, no /run
//! ```
//!
//! bubblewrap makes it, as an ordinary user where user namespaces are allowed. Of yama we can only report the level
//! ([`Sandbox::yama`]): setting it to 3 lasts until the next boot. The filter refuses ptrace and process_vm_* to everybody in
//! the sandbox, which is at least what yama at 3 refuses.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use command_fds::FdMapping;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::deadline::Deadline;
use crate::launch::{Launch, LaunchError, tool};
use crate::seccomp::SyscallDenial;

const FILTER_FD: i32 = 900; // Far from what a test hands over.
const STATUS_FD: i32 = 901;
const DENIAL_FD: i32 = 902; // And those after it.
const DENIALS_MAX: usize = 8;
const SHM_BYTES: u64 = 64 << 20;
/// Folders of the system a sandbox sees.
const SYSTEM: [&str; 5] = ["/usr", "/bin", "/sbin", "/lib", "/lib64"];

/// The description of a sandbox. Each process started in it has a sandbox of its own.
#[derive(Clone, Debug)]
pub struct Sandbox {
    user: u32,
    owner: Option<u32>,
    hostname: Option<String>,
    shm_bytes: u64,
    binds: Vec<(PathBuf, PathBuf)>,
    links: Vec<(PathBuf, PathBuf)>,
    host_network: bool,
    no_proc: bool,
    denials: Vec<SyscallDenial>,
}

/// The ptrace scope that the kernel's yama module reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Yama {
    /// The kernel has no yama.
    Absent,
    /// `/proc/sys/kernel/yama/ptrace_scope`.
    Scope(u8),
}

/// A sandbox made concrete for one program.
pub(crate) struct SandboxCommand {
    /// `bwrap …  -- PROGRAM`.
    pub(crate) words: Vec<OsString>,
    /// The filters that bwrap reads: descriptor numbers and contents.
    filters: Vec<(i32, Vec<u8>)>,
}

impl Sandbox {
    /// A sandbox where the program sees itself as uid 1000 and the host sees the caller.
    pub fn new() -> Self {
        let (owner, hostname, shm_bytes) = (None, None, SHM_BYTES);
        let (binds, links, denials) = (Vec::new(), Vec::new(), Vec::new());
        Self { user: 1000, owner, hostname, shm_bytes, binds, links, host_network: false, no_proc: false, denials }
    }

    /// Ok where sandboxes can be made; otherwise why not. It makes one.
    pub fn check() -> Result<(), LaunchError> {
        let mut tried = Self::new().command("/usr/bin/env").arg("true").spawn()?;
        match tried.wait(Deadline::secs(60)) {
            Ok(exit) if exit.success() => Ok(()),
            _ => Err(LaunchError::Sandbox { stderr: tried.stderr() }),
        }
    }

    /// Whether sandboxes can be made here. If not, says why the test that asks is skipped; under CI that is a failure.
    ///
    /// # Panics
    ///
    /// Under CI, where they cannot.
    pub fn is_available() -> bool {
        match Self::check() {
            Ok(()) => true,
            Err(why) if std::env::var_os("CI").is_none() => {
                eprintln!("skipped: {why}");
                false
            }
            Err(why) => panic!("no sandbox: {why}"),
        }
    }

    /// The yama level of this machine.
    pub fn yama() -> Yama {
        let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
        scope.ok().and_then(|text| text.trim().parse().ok()).map_or(Yama::Absent, Yama::Scope)
    }

    /// The uid (and gid) the program sees itself as.
    pub fn user(mut self, uid: u32) -> Self {
        self.user = uid;
        self
    }

    /// The uid (and gid) the host sees, in `SO_PEERCRED` above all: sandboxes of different owners belong to different users.
    /// Needs root. Folders bound into such a sandbox must be open to that uid ([`crate::Scratch::shared`]).
    pub fn owner(mut self, uid: u32) -> Self {
        self.owner = Some(uid);
        self
    }

    /// The host name inside; otherwise each sandbox gets another.
    pub fn hostname(mut self, name: impl Into<String>) -> Self {
        self.hostname = Some(name.into());
        self
    }

    /// The size of `/dev/shm`, instead of 64 MB.
    pub fn shm_bytes(mut self, bytes: u64) -> Self {
        self.shm_bytes = bytes;
        self
    }

    /// Shows `host_dir` at `inside_dir`, read-only (a socket in it can be connected all the same).
    pub fn bind(mut self, host_dir: impl Into<PathBuf>, inside_dir: impl Into<PathBuf>) -> Self {
        self.binds.push((host_dir.into(), inside_dir.into()));
        self
    }

    /// Makes a symbolic link to `target` at `inside`.
    pub fn symlink(mut self, target: impl Into<PathBuf>, inside: impl Into<PathBuf>) -> Self {
        self.links.push((target.into(), inside.into()));
        self
    }

    /// Leaves the program in the network namespace of its host ([`Launch::host`]), instead of an empty one.
    pub fn host_network(mut self) -> Self {
        self.host_network = true;
        self
    }

    /// Leaves `/proc` out.
    pub fn no_proc(mut self) -> Self {
        self.no_proc = true;
        self
    }

    /// Refuses one more system call.
    ///
    /// # Panics
    ///
    /// Beyond eight of them.
    pub fn deny_syscall(mut self, refusal: SyscallDenial) -> Self {
        assert!(self.denials.len() < DENIALS_MAX, "more refusals than there are descriptors for");
        self.denials.push(refusal);
        self
    }

    /// `program`, a path on the host, to be run inside. Its folder is shown at `/program` unless it is the system's.
    pub fn command(self, program: impl Into<PathBuf>) -> Launch {
        Launch::inside(self, program.into())
    }

    pub(crate) fn owner_uid(&self) -> Option<u32> {
        self.owner
    }

    pub(crate) fn command_for(&self, program: &Path) -> Result<SandboxCommand, LaunchError> {
        let mut words = Words(vec![tool("bwrap", "bubblewrap")?.into()]);
        self.isolate(&mut words);
        show_system(&mut words);
        let inside = show_program(&mut words, program);
        for (host, inside) in &self.binds {
            words.add("--ro-bind").add(host).add(inside);
        }
        for (target, inside) in &self.links {
            words.add("--symlink").add(target).add(inside);
        }
        // Last, when everything that is mounted on them has its place.
        words.add("--remount-ro").add("/dev").add("--remount-ro").add("/");
        words.add("--").add(inside);
        Ok(SandboxCommand { words: words.0, filters: self.filters() })
    }

    fn isolate(&self, words: &mut Words) {
        for space in ["user", "pid", "ipc", "net", "uts", "cgroup"] {
            if space != "net" || !self.host_network {
                words.add(format!("--unshare-{space}")); // Its mount namespace goes without saying.
            }
        }
        let (user, hostname) = (self.user.to_string(), self.hostname.clone().unwrap_or_else(fresh_hostname));
        words.add("--uid").add(&user).add("--gid").add(&user).add("--hostname").add(hostname);
        words.add("--cap-drop").add("ALL").add("--new-session").add("--die-with-parent").add("--chdir").add("/");
        for (number, _) in self.filters() {
            words.add("--add-seccomp-fd").add(number.to_string());
        }
        words.add("--json-status-fd").add(STATUS_FD.to_string());
        if !self.no_proc {
            words.add("--proc").add("/proc");
        }
        words.add("--dev").add("/dev");
        words.add("--perms").add("1777").add("--size").add(self.shm_bytes.to_string()).add("--tmpfs").add("/dev/shm");
    }

    fn filters(&self) -> Vec<(i32, Vec<u8>)> {
        let more = (DENIAL_FD..).zip(self.denials.iter().map(SyscallDenial::program_bytes));
        [(FILTER_FD, crate::seccomp::program_bytes())].into_iter().chain(more).collect()
    }
}

impl Default for Sandbox {
    fn default() -> Self {
        Self::new()
    }
}

impl SandboxCommand {
    /// The numbers under which bwrap gets its descriptors.
    pub(crate) const FDS: Range<i32> = FILTER_FD..DENIAL_FD + DENIALS_MAX as i32;

    /// Returns the descriptors from which bwrap reads its filters and to which it writes its child's pid, and our end of the latter.
    pub(crate) fn descriptors(&self) -> io::Result<(Vec<FdMapping>, File)> {
        let mut mapped = Vec::new();
        for (child_fd, bytes) in &self.filters {
            let (parent_fd, filter_in) = pipe_with(PipeFlags::CLOEXEC)?;
            File::from(filter_in).write_all(bytes)?; // Some 200 bytes: a pipe takes them at once.
            mapped.push(FdMapping { parent_fd, child_fd: *child_fd });
        }
        let (status, parent_fd) = pipe_with(PipeFlags::CLOEXEC)?;
        mapped.push(FdMapping { parent_fd, child_fd: STATUS_FD });
        Ok((mapped, File::from(status)))
    }
}

struct Words(Vec<OsString>);

impl Words {
    fn add(&mut self, word: impl Into<OsString>) -> &mut Self {
        self.0.push(word.into());
        self
    }
}

fn show_system(words: &mut Words) {
    for dir in SYSTEM.map(Path::new) {
        match std::fs::read_link(dir) {
            Ok(target) => words.add("--symlink").add(target).add(dir), // As on systems where /lib is usr/lib.
            Err(_) if dir.is_dir() => words.add("--ro-bind").add(dir).add(dir),
            Err(_) => words,
        };
    }
}

/// Shows the program's folder and returns the program's path inside.
fn show_program(words: &mut Words, program: &Path) -> PathBuf {
    if SYSTEM.iter().any(|dir| program.starts_with(dir)) {
        return program.to_owned();
    }
    let folder = program.parent().expect("a canonical path of a file has a folder");
    words.add("--ro-bind").add(folder).add("/program");
    Path::new("/program").join(program.file_name().expect("a canonical path of a file has a name"))
}

fn fresh_hostname() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("sandbox-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed))
}
