//! libfabric itself: its own programs, and calls that no MPI makes.

use std::path::Path;

use isthmus_layout::reason::Reason;
use isthmus_testbed::{Deadline, Launch, Sandbox, binary, eventually_some};

use crate::build::{library, plain_program};
use crate::run::{daemon, timeout, with_provider};

/// Whether a program of Debian's libfabric is here.
fn is_here(program: &str) -> bool {
    let here = Path::new("/usr/bin").join(program).is_file();
    if !here {
        eprintln!("skipped: there is no {program} (scripts/setup)");
    }
    here
}

#[test]
fn fi_info_shows_the_provider_and_its_capabilities() {
    if !is_here("fi_info") {
        return;
    }
    let (_scratch, daemon) = daemon();
    let info = with_provider(daemon.launch_on_host("/usr/bin/fi_info")).args(["-p", "isthmus", "-v"]);
    let lines = info.spawn().unwrap().finish(timeout()).unwrap().expect_success();
    let has = |wanted: &str| assert!(lines.iter().any(|line| line.contains(wanted)), "{wanted}: {lines:#?}");
    has("prov_name: isthmus");
    has("type: FI_EP_RDM");
    has("threading: FI_THREAD_DOMAIN");
    has("FI_DIRECTED_RECV");
    has("mem_tag_format: 0xaaaaaaaaaaaaaaaa");
    // Nothing is layered over it that programs might take for it.
    assert!(!lines.iter().any(|line| line.contains("isthmus;")), "{lines:#?}");
}

#[test]
fn provider_is_not_offered_without_a_daemon() {
    if !is_here("fi_info") {
        return;
    }
    let info = with_provider(Launch::new("/usr/bin/fi_info")).args(["-p", "isthmus"]);
    let info = info.env("ISTHMUS_SOCKET", "/nonexistent/isthmus.sock").env("ISTHMUS_AUTOSTART", "0");
    let finished = info.spawn().unwrap().finish(timeout()).unwrap();
    assert!(!finished.exit.success() && finished.lines.is_empty(), "{:?}", finished.lines);
}

/// Returns a port that no program listens on now.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

#[track_caller]
fn ping_pong(arguments: &[&str]) {
    if !is_here("fi_pingpong") {
        return;
    }
    let (_scratch, daemon) = daemon();
    let port = free_port().to_string();
    let ping = |side: &str| {
        let launch = with_provider(daemon.launch_on_host("/usr/bin/fi_pingpong"))
            .args(["-p", "isthmus", "-e", "rdm", "-I", "50", "-S", "all", "-c"]);
        launch.args(arguments).args([side, &port])
    };
    let mut server = ping("-B").spawn().unwrap();
    // The client does not try again, so it is started again until the server is there.
    let client = eventually_some(timeout(), || {
        assert!(server.try_wait().unwrap().is_none(), "{}", server.stderr());
        let finished = ping("-P").arg("127.0.0.1").spawn().unwrap().finish(Deadline::secs(100)).unwrap();
        finished.exit.success().then_some(finished)
    });
    let client = client.unwrap();
    assert!(client.lines.iter().any(|line| line.starts_with("6m")), "{:?}", client.lines);
    server.finish(timeout()).unwrap().expect_success();
}

#[test]
fn fi_pingpong_sends_tagged_messages_of_every_size() {
    ping_pong(&["-m", "tagged"]);
}

#[test]
fn fi_pingpong_sends_plain_messages_of_every_size() {
    ping_pong(&["-m", "msg"]);
}

/// Cases of a program in `c`, each a test.
macro_rules! cases {
    ($program:literal: $($case:ident)*) => {
        $(#[test]
        fn $case() {
            $crate::fabric::run($program, stringify!($case));
        })*

        #[test]
        fn there_are_no_other_cases() {
            $crate::fabric::assert_listed($program, &[$(stringify!($case)),*]);
        }
    };
}
pub(crate) use cases;

cases!("fabric": names tagged_and_plain cq_data peek_claim_discard multi_recv truncated cancelled selective inject_is_ours
       acknowledged writes reads counters atomics refused_requests waiting wait_descriptor gone_peer many_pieces
       stopped_peer writes_before_messages atomics_of_two closed_meanwhile injected_before_close);

/// Checks that a program has these cases and no others.
#[track_caller]
pub(crate) fn assert_listed(program: &str, cases: &[&str]) {
    if is_here("fi_info") {
        let listed = Launch::new(plain_program(program)).arg("--list").spawn().unwrap();
        assert_eq!(listed.finish(timeout()).unwrap().expect_success(), cases);
    }
}

/// Runs a case of a program beside a daemon.
#[track_caller]
pub(crate) fn run(program: &str, case: &str) {
    if !is_here("fi_info") {
        return;
    }
    let program = plain_program(program);
    let (_scratch, daemon) = daemon();
    let launch = with_provider(daemon.launch_on_host(program)).env("FI_PROVIDER", "isthmus").arg(case);
    let lines = launch.spawn().unwrap().finish(timeout()).unwrap().expect_success();
    assert_eq!(lines, ["done"], "{case}");
}

/// Exchanges the names of two processes and lets them talk.
#[track_caller]
fn run_pair(launches: [Launch; 2]) {
    let [mut one, mut other] = launches.map(|launch| launch.with_stdin().spawn().unwrap());
    let names = [&mut one, &mut other].map(|proc| proc.wait_prefix("name ", timeout()).unwrap().replace("name ", ""));
    one.send_line(&names[1]).unwrap();
    other.send_line(&names[0]).unwrap();
    for proc in [&mut one, &mut other] {
        proc.wait_line("talked", timeout()).unwrap();
    }
    for mut proc in [one, other] {
        proc.send_line("bye").unwrap();
        assert_eq!(proc.finish(timeout()).unwrap().expect_success(), ["done"]);
    }
}

/// Two containers with nothing in common but the daemon's socket, and a container with a process outside.
#[test]
fn containers_exchange_messages_with_each_other_and_with_processes() {
    if !is_here("fi_info") {
        return;
    }
    if let Err(why) = Sandbox::check() {
        eprintln!("skipped: {why}");
        return;
    }
    let program = plain_program("fabric");
    let (_scratch, daemon) = daemon();
    let inside = |hostname: &str| {
        let sandbox = Sandbox::new().hostname(hostname).bind(library(), "/provider");
        // Debian's libfabric needs a library that is found through a link there.
        let sandbox = sandbox.bind("/etc/alternatives", "/etc/alternatives");
        let launch = with_provider(daemon.launch_in_sandbox(sandbox, &program)).env("FI_PROVIDER_PATH", "/provider");
        launch.env("FI_PROVIDER", "isthmus").arg("talk")
    };
    let outside = || with_provider(daemon.launch_on_host(&program)).env("FI_PROVIDER", "isthmus").arg("talk");
    run_pair([inside("one"), inside("other")]);
    run_pair([inside("one"), outside()]);
    run_pair([outside(), outside()]);
}

/// Why memory of one end had to be asked for by the other one, as `isthmus channel list` and `isthmus why` tell it.
#[track_caller]
fn assisted_reasons(way: &str, variables: &[(&str, &str)], reason: &str) {
    if !is_here("fi_info") {
        return;
    }
    let program = plain_program("fabric");
    let isthmus = binary("isthmus", "isthmus").unwrap();
    let (_scratch, daemon) = daemon();
    let launch = with_provider(daemon.launch_on_host(program)).env("FI_PROVIDER", "isthmus").args(["asked", way]);
    let launch = variables.iter().fold(launch, |launch, (name, value)| launch.env(name, value));
    let mut proc = launch.with_stdin().spawn().unwrap();
    proc.wait_line("asked", timeout()).unwrap();
    let ask = |arguments: &[&str]| {
        let finished = daemon.launch_on_host(&isthmus).args(arguments).spawn().unwrap().finish(timeout()).unwrap();
        finished.expect_success().join("\n")
    };
    let listed = ask(&["channel", "list"]);
    // Of the two directions one has a reason: that of the end that owns the memory.
    let cells: Vec<&str> = listed.lines().nth(1).unwrap_or_default().split_whitespace().rev().take(3).collect();
    let told = [cells[0], cells[2]];
    assert!(cells[1] == "/" && told.contains(&reason) && told.contains(&"-"), "{listed}");
    let domains = ask(&["domain", "list", "--json"]);
    let ids: Vec<String> =
        domains.split("\"id\":").skip(1).map(|rest| rest.trim_start().split(',').next().unwrap().to_owned()).collect();
    let [one, other] = ids.first_chunk().unwrap().each_ref().map(|id| format!("d{id}"));
    let why = ask(&["why", &one, &other]);
    assert!(why.contains("needed the owner's help") && why.contains(&format!("[{reason}]")), "{why}");
    proc.send_line("go on").unwrap();
    assert_eq!(proc.finish(timeout()).unwrap().expect_success().last().map(String::as_str), Some("done"));
}

#[test]
fn reports_name_the_reason_of_assisted_accesses() {
    assisted_reasons("read-only", &[], Reason::MemoryReadOnly.name());
    assisted_reasons("counted", &[], Reason::MemoryHasCounter.name());
    assisted_reasons("edge", &[], Reason::MemoryPageShared.name());
    assisted_reasons("forked", &[], Reason::MemoryForked.name());
    assisted_reasons("turn", &[], Reason::MemoryNotReady.name());
    assisted_reasons("turn", &[("ISTHMUS_RCACHE", "0")], Reason::BufferCacheDisabled.name());
}

#[test]
fn reports_name_memory_threads_as_the_reason() {
    let leave = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or_default();
    if leave.trim() == "1" {
        eprintln!("skipped: everybody may use userfaultfd here");
        return;
    }
    assisted_reasons("threads", &[], Reason::MemoryThreads.name());
}
