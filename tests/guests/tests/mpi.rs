//! Unmodified MPI jobs with a rank in each of two guests: Debian's Open MPI on our provider, with messages by the guests' windows.
//!
//! The launcher has no ssh. It prints the command for the other guest on the serial line, and the test forwards it. The launcher and its
//! daemon there communicate by the cards. Messages of the ranks cannot use the cards.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use isthmus_guests_tests::{Extra, GuestKit, GuestLab};
use isthmus_testbed::{Scratch, link_library, run_tool, workspace_root};

/// Only one test runs guests at a time, because each emulated processor takes a whole one.
static MACHINE: Mutex<()> = Mutex::new(());

const LAUNCHER: &str = "/usr/bin/mpirun.openmpi";

/// The programs that Debian's Open MPI needs in a guest, besides its libraries.
const PROGRAMS: [&str; 3] = [LAUNCHER, "/usr/bin/orted", "/usr/bin/NPopenmpi"];

const COMPILER: &str = "/usr/bin/mpicc.openmpi";

/// The folder in which Open MPI looks for its components.
const PARTS: &str = "usr/lib/x86_64-linux-gnu/openmpi/lib/openmpi3";

/// Components for networks, schedulers and debuggers that no guest has.
const NEEDLESS: [&str; 8] = ["ucx", "psm", "openib", "slurm", "flux", "gridengine", "monitoring", "dbg_msgq"];

/// The replacement of ssh: HOST COMMAND.
const AGENT: &[u8] = b"#!/bin/sh\nshift\necho \"launch $*\" >/dev/ttyS0\n";

/// The settings of Open MPI. `pml cm` sends by the MTL only, and the MTL uses the included provider.
const SETTINGS: &str = "-mca plm rsh -mca plm_rsh_agent /bin/agent -mca plm_rsh_no_tree_spawn 1 -mca pml cm -mca mtl ofi \
                        -mca btl ofi,self -mca osc ^sm,ucx -mca opal_common_ofi_provider_include isthmus \
                        -mca mtl_base_verbose 5 -mca opal_common_ofi_verbose 5 --allow-run-as-root";

/// The message of each rank that uses our provider.
const PROOF: &str = "mtl:ofi:provider: isthmus";

/// Returns the content that a guest needs for Open MPI. The error says what is missing.
fn open_mpi(folder: &Path) -> Result<Extra, String> {
    let missing = PROGRAMS.into_iter().chain([COMPILER]).find(|program| !Path::new(program).is_file());
    if let Some(program) = missing {
        return Err(format!("there is no {program} (scripts/setup)"));
    }
    let messages = folder.join("messages");
    let mut compiler = Command::new(COMPILER);
    compiler.args(["-O1", "-pthread", "-o"]).arg(&messages).arg(workspace_root().join("tests/mpi/c/messages.c"));
    run_tool(&mut compiler);
    let parts = std::fs::read_dir(Path::new("/").join(PARTS)).map_err(|error| format!("/{PARTS}: {error}"))?;
    let parts = parts.flatten().map(|entry| entry.file_name().into_string().unwrap());
    let parts = parts.filter(|name| name.ends_with(".so") && !NEEDLESS.iter().any(|word| name.contains(word)));
    let parts = parts.map(|name| format!("{PARTS}/{name}")).map(|path| (path.clone(), Path::new("/").join(path)));
    let provider = ("provider/libisthmus-fi.so".to_owned(), provider(folder));
    let file = |path: &str, content: &[u8]| (path.to_owned(), content.to_vec());
    Ok(Extra {
        programs: PROGRAMS.map(PathBuf::from).into_iter().chain([messages]).collect(),
        libraries: parts.chain([provider]).collect(),
        files: vec![
            file("bin/agent", AGENT),
            file("etc/passwd", b"root:x:0:0:root:/tmp:/bin/sh\n"),
            file("etc/hosts", b"127.0.0.1 localhost\n10.86.223.1 guest0\n10.86.223.2 guest1\n"),
        ],
    })
}

/// Returns the path of the provider, linked as it is packaged.
fn provider(folder: &Path) -> PathBuf {
    if let Some(built) = std::env::var_os("ISTHMUS_BIN_DIR").map(|built| Path::new(&built).join("libisthmus-fi.so")) {
        return built;
    }
    let provider = folder.join("libisthmus-fi.so");
    link_library("abi/libfabric", "libisthmus-fi.so", folder);
    provider
}

/// Runs a program with a rank in each guest, and returns its output.
#[track_caller]
fn job(site: &mut GuestLab, program: &str) -> Vec<String> {
    let [first, second] = &mut site.guests[..] else { panic!("there are two guests") };
    let passed = "-x FI_PROVIDER_PATH -x ISTHMUS_SOCKET -x ISTHMUS_AUTOSTART -x LD_LIBRARY_PATH -x PATH";
    let order = format!("mpirun.openmpi --host guest0,guest1 -n 2 {SETTINGS} {passed} {program}");
    first.start_command(&format!("by window; export SHELL=/bin/sh FI_PROVIDER_PATH=/provider; {order}"));
    let order = first.wait_for_line("launch ");
    second.run(&order);
    let said = first.finish_command().expect_success(program);
    let ranks = said.iter().filter(|line| line.contains(PROOF)).count();
    assert_eq!(ranks, 2, "{}", said.join("\n"));
    said
}

#[test]
fn runs_an_unmodified_mpi_job_with_a_rank_in_each_guest() {
    let _alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let scratch = Scratch::new().unwrap();
    let found = open_mpi(scratch.path()).and_then(|extra| GuestLab::start(&GuestKit::find()?, 2, 2, &extra));
    let mut site = match found {
        Ok(site) => site,
        Err(why) => return println!("skipped: {why}"),
    };
    let cases = "ring_of_lengths order_across_lengths kinds_of_sends wildcards derived_datatypes many_at_once";
    let said = job(&mut site, &format!("messages {cases}"));
    assert!(said.contains(&"done 6".to_owned()), "{}", said.join("\n"));
    // NetPIPE checks every received byte.
    let said = job(&mut site, "NPopenmpi -i -n 10 -u 262144 -o /tmp/np.out");
    assert!(!said.iter().any(|line| line.contains("Integrity check failed")), "{}", said.join("\n"));
    // It prints a line for each size: `29:   98305 bytes   1839 times --> …`.
    let bytes =
        said.iter().filter_map(|line| line.split_once(": ")?.1.split_once(" bytes")?.0.trim().parse::<u64>().ok());
    assert!(bytes.max() >= Some(150_000), "{}", said.join("\n"));
}
