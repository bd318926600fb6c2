//! A daemon that lives on, or ends visibly: without a place for its log, without room for its files, and watched by a service manager.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;

use isthmus_suites::test_program::{plan, program};
use isthmus_suites::{TIMEOUT_S, TestProgram};
use isthmus_testbed::{DaemonProcess, Deadline, Scratch, Signal, binary, eventually};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::pipe::{PipeFlags, pipe_with};

fn deadline() -> Deadline {
    Deadline::secs(TIMEOUT_S)
}

/// Returns a pipe without room. A write into it waits until the other end is read.
fn full_pipe() -> (OwnedFd, OwnedFd) {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
    while rustix::io::write(&writer, &[b'x'; 4096]).is_ok() {}
    while rustix::io::write(&writer, b"x").is_ok() {}
    fcntl_setfl(&writer, OFlags::empty()).unwrap();
    (reader, writer)
}

/// Two programs attach and exchange messages through the daemon and on a channel.
#[track_caller]
fn assert_messages_pass(daemon: &DaemonProcess) {
    for path in ["channels=no", ""] {
        let [mut a, mut b] =
            ["a", "b"].map(|name| TestProgram::start_attached(daemon.launch_on_host(program()), name, path));
        a.send_line("exchange 0 b.e0 1 20x8,2x50000 9 20x8");
        b.send_line("exchange 0 a.e0 9 20x8 1 20x8,2x50000");
        let answers = [a.answer(), b.answer()];
        assert!(answers.iter().all(|answer| answer.starts_with("exchanged ")), "{path}: {answers:?}");
        for program in [&mut a, &mut b] {
            program.expect("detach 1000", "detached 0");
        }
    }
}

/// Has a hostile program break the protocol of twelve rings. Returns when the daemon has ended each of its domains.
#[track_caller]
fn violate_rings(daemon: &DaemonProcess) {
    let program = binary("isthmus-suites", "isthmus-hostile").unwrap();
    let mut hostile = daemon.launch_on_host(program).arg("ring").with_stdin().spawn().unwrap();
    let mut ended = 0;
    loop {
        match hostile.line(deadline()).unwrap() {
            line if line == "done" => break,
            line => ended += u32::from(line.starts_with("ended ")),
        }
    }
    assert_eq!(ended, 12);
}

#[test]
fn serves_when_standard_error_is_full_and_not_read() {
    let scratch = Scratch::new().unwrap();
    let (reader, writer) = full_pipe();
    let daemon = plan(&scratch, "daemon.log = \"trace\"\n").stderr(writer).start(deadline()).unwrap();
    violate_rings(&daemon);
    assert_messages_pass(&daemon);
    // Once there is room again, the log goes on, and says how much of it was lost.
    let reading = std::thread::spawn(move || {
        let (mut log, mut reader) = (Vec::new(), File::from(reader));
        reader.read_to_end(&mut log).map(|_| String::from_utf8_lossy(&log).into_owned())
    });
    assert_messages_pass(&daemon);
    let stopped = daemon.stop(deadline()).unwrap();
    assert!(stopped.exit.success(), "{:?}", stopped.exit);
    drop(stopped); // The last writing end of the pipe.
    let log = reading.join().unwrap().unwrap();
    assert!(log.contains("isthmusd: starting") && log.contains(" ended"), "{log}");
}

#[test]
fn ends_in_order_when_standard_error_is_full_and_not_read() {
    let scratch = Scratch::new().unwrap();
    let (_reader, writer) = full_pipe();
    let daemon = plan(&scratch, "").stderr(writer).start(deadline()).unwrap();
    assert!(daemon.stop(deadline()).unwrap().exit.success());
}

#[test]
fn serves_when_standard_error_cannot_be_written() {
    let scratch = Scratch::new().unwrap();
    let full = File::options().write(true).open("/dev/full").unwrap();
    assert!((&full).write(b"x").is_err());
    let daemon = plan(&scratch, "").stderr(full).start(deadline()).unwrap();
    violate_rings(&daemon);
    assert_messages_pass(&daemon);
    assert!(daemon.stop(deadline()).unwrap().exit.success());
}

#[test]
fn sends_heartbeats_while_all_workers_answer() {
    let scratch = Scratch::new().unwrap();
    let daemon = plan(&scratch, "daemon.workers = 3\nwait.mode = \"sleep\"\n").env("WATCHDOG_USEC", "200000");
    let mut daemon = daemon.start(deadline()).unwrap();
    let heartbeats = |daemon: &mut DaemonProcess| {
        daemon.notify().messages().unwrap().iter().filter(|message| *message == "WATCHDOG=1").count()
    };
    // The workers sleep, because there is no domain. A heartbeat follows only when all of them have answered the one before.
    eventually(deadline(), || heartbeats(&mut daemon) >= 5).unwrap();
    assert_eq!(daemon.proc().try_wait().unwrap(), None);
    assert_messages_pass(&daemon);
    let before = heartbeats(&mut daemon);
    eventually(deadline(), || heartbeats(&mut daemon) >= before + 5).unwrap();
    daemon.proc().signal(Signal::TERM).unwrap();
    assert!(daemon.proc().wait(deadline()).unwrap().success());
}

/// Two programs on a channel, and the answers to the lookups of both.
fn pair(daemon: &DaemonProcess) -> ([TestProgram; 2], [String; 2]) {
    let mut pair = ["a", "b"].map(|name| TestProgram::launch_on_host(daemon, name));
    let [a, b] = &mut pair;
    eventually(deadline(), || {
        exchange(a, b);
        [&mut *a, &mut *b].map(|program| program.ask("channels")).iter().all(|path| path.contains(" channel "))
    })
    .unwrap();
    let found = [a.ask("lookup a"), a.ask("lookup b")];
    (pair, found)
}

#[track_caller]
fn exchange(a: &mut TestProgram, b: &mut TestProgram) {
    a.send_line("exchange 0 b.e0 1 20x8,2x50000 9 20x8");
    b.send_line("exchange 0 a.e0 9 20x8 1 20x8,2x50000");
    let answers = [a.answer(), b.answer()];
    assert!(answers.iter().all(|answer| answer.starts_with("exchanged ")), "{answers:?}");
}

/// A program that does not use its daemon notices its end late, so it is asked for something.
#[track_caller]
fn resume(program: &mut TestProgram) {
    program.ask("query status");
    eventually(deadline(), || program.ask("connected 2000") == "connected true").unwrap();
}

#[test]
fn domains_resume_when_the_runtime_folder_is_full() {
    let scratch = Scratch::new().unwrap();
    let mut daemon = plan(&scratch, "").start(deadline()).unwrap();
    let ([mut a, mut b], before) = pair(&daemon);
    // No file can be written in place of this folder, also by root.
    let next = daemon.state_dir().join("resume.new");
    std::fs::create_dir(&next).unwrap();
    daemon.kill_and_restart(deadline()).unwrap();
    let warning = "cannot write which domains may resume";
    let warned = eventually(deadline(), || daemon.proc().stderr().contains(warning));
    assert!(warned.is_ok(), "{}", daemon.proc().stderr());
    [&mut a, &mut b].into_iter().for_each(resume);
    assert_eq!([a.ask("lookup a"), a.ask("lookup b")], before, "they have their numbers");
    exchange(&mut a, &mut b);
    // With room again, the next daemon finds them too.
    std::fs::remove_dir(&next).unwrap();
    let _other = TestProgram::launch_on_host(&daemon, "other");
    daemon.kill_and_restart(deadline()).unwrap();
    [&mut a, &mut b].into_iter().for_each(resume);
    assert_eq!([a.ask("lookup a"), a.ask("lookup b")], before);
    exchange(&mut a, &mut b);
}

#[test]
fn survivor_of_a_restart_keeps_its_name_and_is_found() {
    let scratch = Scratch::new().unwrap();
    let mut daemon = plan(&scratch, "").start(deadline()).unwrap();
    let ([mut a, mut b], [_, found]) = pair(&daemon);
    b.proc().freeze().unwrap();
    daemon.kill_and_restart(deadline()).unwrap();
    resume(&mut a);
    let mut thief = TestProgram::start(daemon.launch_on_host(program()));
    let refused = thief.ask("attach name=b");
    assert!(refused.starts_with("refused "), "{refused}");
    a.send_line("lookup b");
    b.proc().thaw().unwrap();
    resume(&mut b);
    assert_eq!(a.answer(), found);
    exchange(&mut a, &mut b);
}
