//! A container as its users make them: mount, pid, ipc, uts and network namespaces of its own, run by root.
//!
//! ```text
//!            host               │  own /tmp, /run, shared-memory folder, /proc, host name; an end of a wire
//!   SCRATCH/run ════════════════╪══ /run/isthmus      the folder with the daemon's socket
//!   folders of programs ────────┼── /run/folders/N    read-only
//! ```
//!
//! `unshare` makes it, and a shell mounts. A [`isthmus_testbed::Sandbox`] is stricter, but has no end of a wire.

use std::fs;
use std::path::{Path, PathBuf};

use isthmus_netns::Host;
use isthmus_testbed::{Launch, Proc, binary, eventually_some};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::stage::Stage;
use crate::{build, timeout};

/// The words before `--` are `NAME` and pairs of folders: on the host and inside. The others are for env(1).
// tidy(names): the container's own folder of that name hides the host's.
const SCRIPT: &str = r#"
set -e
mount -n --make-rprivate /
hostname "$1"; shift
mount -n -t tmpfs none /mnt
at=0
while [ "$1" != -- ]; do
    mkdir "/mnt/$at"
    mount -n --bind "$1" "/mnt/$at"
    inside="$inside $2"
    at=$((at + 1)); shift 2
done
shift
mount -n -t tmpfs none /run
mount -n -t tmpfs none /tmp
mount -n -t tmpfs none /dev/shm
mount -n -t proc none /proc
at=0
for folder in $inside; do
    mkdir -p "$folder"
    mount -n --move "/mnt/$at" "$folder"
    at=$((at + 1))
done
umount -n /mnt
cd /tmp
exec env "$@"
"#;

const RUN_INSIDE: &str = "/run/isthmus";

/// The place at which a container sees an installation of `isthmus`.
const INSTALLED: &str = "/run/installed";

/// A container, and the folders that it shows to its programs.
#[derive(Debug)]
pub struct Container {
    host: Host,
    run: Option<PathBuf>,
}

impl Container {
    /// A container with this host's network.
    pub(crate) fn new(host: Host, stage: &Stage) -> Self {
        let run = match stage {
            Stage::Kernel => None,
            Stage::Library(daemon, _) => Some(daemon.run_dir()),
        };
        Self { host, run }
    }

    /// Launches a program, with the library if the stage has one, and with these variables.
    pub fn launch(&self, program: &Path, words: &[&str], variables: &[(String, String)]) -> Launch {
        let mut folders = Folders::default();
        let mut settings: Vec<String> = variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
        if self.run.is_some() {
            let library = build::library().expect("the stage has been made with it").join(build::LIBRARY);
            settings.push(format!("LD_PRELOAD={}", folders.show(&library)));
        }
        let program = folders.show(program);
        self.launch_words(folders, settings, program, words)
    }

    /// Launches `isthmus run -- PROGRAM WORDS` where the stage has a library, otherwise the program itself.
    pub fn isthmus_run(&self, program: &Path, words: &[&str]) -> Launch {
        let mut folders = Folders::default();
        if self.run.is_none() {
            let own = folders.show(program);
            return self.launch_words(folders, Vec::new(), own, words);
        }
        let isthmus = binary("isthmus", "isthmus").unwrap_or_else(|error| panic!("{error}"));
        let isthmus = folders.show_at(&isthmus, &format!("{INSTALLED}/bin"));
        let library = build::library().expect("the stage has been made with it").join(build::LIBRARY);
        folders.show_at(&library, &format!("{INSTALLED}/lib"));
        let own = folders.show(program);
        self.launch_words(folders, Vec::new(), isthmus, &[&["run", "--with", "sockets", "--", &own], words].concat())
    }

    fn launch_words(&self, mut folders: Folders, mut settings: Vec<String>, program: String, words: &[&str]) -> Launch {
        if let Some(run) = &self.run {
            folders.0.push((run.clone(), RUN_INSIDE.to_owned()));
            settings.push(format!("ISTHMUS_SOCKET={RUN_INSIDE}/isthmus.sock"));
            settings.push("ISTHMUS_AUTOSTART=0".to_owned());
        }
        let unshare =
            ["--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child=KILL", "--", "sh", "-c", SCRIPT, "sh"];
        let launch = Launch::new("/usr/bin/unshare").host(&self.host).args(unshare).arg(self.host.name());
        let launch = folders.0.iter().fold(launch, |launch, (outside, inside)| launch.arg(outside).arg(inside));
        launch.arg("--").args(settings).arg(program).args(words)
    }

    /// Kills the program that a launch of this container has started.
    pub(crate) fn kill(proc: &Proc) {
        let child = Pid::from_raw(Self::pid(proc)).expect("a child has a number");
        let killed = pidfd_open(child, PidfdFlags::empty()).and_then(|life| pidfd_send_signal(life, Signal::KILL));
        killed.unwrap_or_else(|errno| panic!("the program cannot be killed: {errno}"));
    }

    /// Returns the number of the program that a launch of a container has started: the first process of its pid namespace.
    pub fn pid(proc: &Proc) -> i32 {
        let unshare = proc.pid().unwrap_or_else(|error| panic!("{error}"));
        let children = format!("/proc/{unshare}/task/{unshare}/children");
        let child = || fs::read_to_string(&children).ok()?.split_whitespace().next()?.parse().ok();
        eventually_some(timeout(), child).unwrap_or_else(|late| panic!("the program: {late}"))
    }
}

/// The folders that a program sees: on the host and inside.
#[derive(Default)]
struct Folders(Vec<(PathBuf, String)>);

impl Folders {
    /// Shows the folder of a file; returns the file's path inside. Files of the system have their path.
    fn show(&mut self, file: &Path) -> String {
        if ["/usr", "/bin", "/lib"].iter().any(|system| file.starts_with(system)) {
            return file.display().to_string();
        }
        let inside = format!("/run/folders/{}", self.0.len());
        self.show_at(file, &inside)
    }

    /// Shows the folder of a file at this place, or where it is seen already.
    fn show_at(&mut self, file: &Path, inside: &str) -> String {
        let file = fs::canonicalize(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let folder = file.parent().expect("a file lies in a folder");
        let name = file.file_name().expect("a file has a name").to_string_lossy();
        let seen = self.0.iter().find(|(outside, _)| outside == folder).map(|(_, inside)| inside.clone());
        let inside = seen.unwrap_or_else(|| {
            self.0.push((folder.to_owned(), inside.to_owned()));
            inside.to_owned()
        });
        format!("{inside}/{name}")
    }
}
