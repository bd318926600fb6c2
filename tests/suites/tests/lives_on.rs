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
