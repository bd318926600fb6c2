//! The events in the life of a job: a rank that dies, no daemon, a daemon that dies, switched-off paths, other allocators.

use std::path::{Path, PathBuf};

use isthmus_testbed::{DaemonProcess, Launch, Scratch, binary, eventually};

use crate::build::{library, program};
use crate::mpis::Mpi;
use crate::run::{daemon, job, launched, run_beside, run_cases, succeed, timeout, with_provider};

fn all() -> impl Iterator<Item = Mpi> {
    [Mpi::debian_open_mpi(), Mpi::open_mpi_wheel(), Mpi::mpich_wheel(), Mpi::intel_mpi_wheel()].into_iter().flatten()
}

/// A job in which a rank is killed ends, and says that it did not end well.
#[test]
fn a_killed_rank_ends_the_job() {
    for mpi in all() {
        let program = program("stress", &mpi);
        let (_scratch, daemon) = daemon();
        let finished = job(&daemon, &mpi, 3).arg(program).arg("killed").spawn().unwrap().finish(timeout()).unwrap();
        assert!(!finished.exit.success(), "{}: {:?}", mpi.name, finished.lines);
        assert!(!finished.lines.iter().any(|line| line.starts_with("done")), "{}: {:?}", mpi.name, finished.lines);
        // The daemon serves the next job as if nothing had been.
        run_beside(&daemon, &mpi, 2, &self::program("messages", &mpi), &["ring_of_lengths"]);
    }
}

/// Whether a thread that writes to memory that is being moved may wait for it: CAP_SYS_PTRACE, or the system's leave.
fn may_handle_faults() -> bool {
    const SYS_PTRACE: u64 = 1 << 19;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    let leave = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or_default();
    u64::from_str_radix(capabilities.trim(), 16).unwrap() & SYS_PTRACE != 0 || leave.trim() == "1"
}

/// A rank that is stopped is read and written all the same.
#[test]
fn stopped_rank_memory_can_be_read_and_written() {
    for mpi in all() {
        // Open MPI has threads of its own.
        if mpi.name != "mpich" && !may_handle_faults() {
            eprintln!("skipped: {}: userfaultfd is not for us", mpi.name);
            continue;
        }
        let program = program("stress", &mpi);
        let (_scratch, daemon) = daemon();
        run_beside(&daemon, &mpi, 2, &program, &["stopped"]);
    }
}

/// Where a library of Debian's is.
fn debian_library(name: &str) -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").unwrap().map(|entry| entry.unwrap().path());
    let found = folders.map(|folder| folder.join(name)).find(|library| library.is_file());
    if found.is_none() {
        eprintln!("skipped: there is no {name} (scripts/setup)");
    }
    found
}

/// Buffers come from an allocator that is not the C library's, go back to it, and are sent again.
#[track_caller]
fn run_with_allocator(library: &str, case: &str) {
    let Some(library) = debian_library(library) else { return };
    for mpi in all() {
        let program = program("stress", &mpi);
        let (_scratch, daemon) = daemon();
        // The launcher goes without: it is the ranks that are tested.
        let preload = format!("LD_PRELOAD={}", library.display());
        let launch = job(&daemon, &mpi, 2).args(["/usr/bin/env", &preload]);
        run_cases(&mpi, launch, &program, &[case]);
    }
}

#[test]
fn buffers_of_jemalloc_are_freed_and_allocated_again() {
    run_with_allocator("libjemalloc.so.2", "jemalloc");
}

#[test]
fn buffers_of_tcmalloc_are_freed_and_allocated_again() {
    run_with_allocator("libtcmalloc_minimal.so.4", "tcmalloc");
}

/// Without channels everything goes through the daemon.
#[test]
fn messages_take_the_daemon_path_when_channels_are_disabled() {
    for mpi in all() {
        let program = program("messages", &mpi);
        let (_scratch, daemon) = daemon();
        succeed(&mpi, &job(&daemon, &mpi, 2).env("ISTHMUS_CHANNELS", "0").arg(program));
    }
}

/// Without the cache of buffers long messages go in fragments.
#[test]
fn messages_are_fragmented_when_the_cache_is_disabled() {
    for mpi in all() {
        let program = program("messages", &mpi);
        let (_scratch, daemon) = daemon();
        succeed(&mpi, &job(&daemon, &mpi, 2).env("ISTHMUS_RCACHE", "0").arg(program));
    }
}

/// Where no daemon answers, the provider starts the one that lies beside it.
#[test]
fn starts_a_daemon_when_none_runs() {
    let daemon = binary("isthmusd", "isthmusd").unwrap();
    if Path::new("/run/isthmus/isthmus.sock").exists() {
        eprintln!("skipped: a daemon for all users is running here");
        return;
    }
    for mpi in all() {
        let scratch = Scratch::new().unwrap();
        let folder = scratch.dir("lib").unwrap();
        std::os::unix::fs::symlink(library().join("libisthmus-fi.so"), folder.join("libisthmus-fi.so")).unwrap();
        std::os::unix::fs::symlink(&daemon, folder.join("isthmusd")).unwrap();
        let launch =
            with_provider(Launch::new(&mpi.launcher)).env_remove("ISTHMUS_SOCKET").env_remove("ISTHMUS_AUTOSTART");
        let launch = launch.env("XDG_RUNTIME_DIR", scratch.path()).env("FI_PROVIDER_PATH", &folder);
        succeed(&mpi, &launched(launch, &mpi, 2).arg(program("messages", &mpi)).arg("ring_of_lengths"));
        // The daemon leaves when no domain is attached, and removes its socket.
        let socket = scratch.join("isthmus/isthmus.sock");
        eventually(timeout(), || !socket.exists()).unwrap();
    }
}

/// Returns the domains that the daemon knows, as the command line shows them.
fn domains(daemon: &DaemonProcess) -> String {
    let isthmus = binary("isthmus", "isthmus").unwrap();
    let finished =
        daemon.launch_on_host(isthmus).args(["domain", "list", "--json"]).spawn().unwrap().finish(timeout()).unwrap();
    finished.expect_success().join("").split_whitespace().collect()
}

/// Checks that the resources of a killed rank, and of those that were killed because of it, are freed with them.
#[test]
fn jobs_leave_nothing_behind() {
    for mpi in all() {
        let program = program("stress", &mpi);
        let (_scratch, daemon) = daemon();
        let nobody = domains(&daemon);
        let finished = job(&daemon, &mpi, 3).arg(program).arg("killed").spawn().unwrap().finish(timeout()).unwrap();
        assert!(!finished.exit.success());
        eventually(timeout(), || domains(&daemon) == nobody).unwrap();
    }
}

/// Checks that the variables of `isthmus mpi env` and `isthmus mpi run` are enough for each MPI.
#[test]
fn command_line_sets_all_variables_that_mpis_need() {
    let isthmus = binary("isthmus", "isthmus").unwrap();
    for mpi in all() {
        let program = program("messages", &mpi);
        let (_scratch, daemon) = daemon();
        // Of the test's own variables only those that let it say so, and run here.
        let theirs = |(name, _): &&(&str, &str)| {
            ["VERBOSE", "ROOT", "SUBSCRIBE", "DEBUG"].iter().any(|part| name.to_uppercase().contains(part))
        };
        let told = |launch: Launch| {
            let launch = mpi.linked(with_provider(launch).env_remove("FI_PROVIDER_PATH"));
            mpi.variables.iter().filter(theirs).fold(launch, |launch, (name, value)| launch.env(name, value))
        };
        let launcher = mpi.launcher.to_string_lossy();
        let run = told(daemon.launch_on_host(&isthmus))
            .args(["mpi", "run", "--launcher", &launcher, "--provider"])
            .arg(library());
        succeed(&mpi, &run.args(["--", "-n", "2"]).arg(&program).arg("ring_of_lengths"));
        let name = if mpi.name.starts_with("openmpi") { "openmpi" } else { mpi.name };
        let script = r#"set -e; eval "$("$1" mpi env "$2" --provider "$3")"; exec "$4" -n 2 "$5" ring_of_lengths"#;
        let shell =
            told(daemon.launch_on_host("/bin/sh")).args(["-c", script, "sh"]).arg(&isthmus).arg(name).arg(library());
        succeed(&mpi, &shell.arg(&mpi.launcher).arg(&program));
    }
}
