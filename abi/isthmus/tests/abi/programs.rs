//! C programs against a real daemon.

use crate::build::program;
use isthmus_testbed::{DaemonProcess, Deadline, Exit, Finished, Limit, Proc, Scratch, binary};

const CONFIG: &str = "[daemon]\nsocket = \"{socket}\"\nruntime_dir = \"{state}\"\n";

pub(crate) fn patience() -> Deadline {
    Deadline::secs(60)
}

/// A daemon and a place for programs.
pub(crate) fn daemon() -> (Scratch, DaemonProcess) {
    let scratch = Scratch::new().unwrap();
    binary("isthmusd", "isthmusd").unwrap(); // Built before the time limit of a test starts.
    let daemon = DaemonProcess::on(&scratch).config(CONFIG).start(patience()).unwrap();
    (scratch, daemon)
}

fn echo(scratch: &Scratch, daemon: &DaemonProcess) -> Proc {
    let mut echo = daemon.launch_on_host(program("pingpong", scratch)).args(["serve", "echo"]).spawn().unwrap();
    echo.wait_line("ready", patience()).unwrap();
    echo
}

#[test]
fn messages_of_every_length_round_trip() {
    for channels in ["1", "0"] {
        let (scratch, daemon) = daemon();
        let echo = echo(&scratch, &daemon);
        let talk =
            daemon.launch_on_host(scratch.join("pingpong")).args(["talk", "echo"]).env("ISTHMUS_CHANNELS", channels);
        let talk = talk.spawn().unwrap();
        assert_eq!(talk.finish(patience()).unwrap().expect_success(), ["talked"]);
        assert_eq!(echo.finish(patience()).unwrap().expect_success(), ["served"]);
    }
}

#[test]
fn domain_fd_works_in_a_program_epoll_set() {
    let (scratch, daemon) = daemon();
    let talker = program("pingpong", &scratch);
    let mut epoll = daemon.launch_on_host(program("epoll", &scratch)).arg("echo").with_stdin().spawn().unwrap();
    epoll.wait_line("ready", patience()).unwrap();
    for _ in 0..2 {
        let talk = daemon.launch_on_host(&talker).args(["talk", "echo"]).spawn().unwrap();
        assert_eq!(talk.finish(patience()).unwrap().expect_success(), ["talked"]);
    }
    assert_eq!(epoll.finish(patience()).unwrap().expect_success(), ["echoed 440"]);
}

#[test]
fn invalid_calls_return_errors_and_leave_the_library_usable() {
    let (scratch, daemon) = daemon();
    let misuse = daemon.launch_on_host(program("misuse", &scratch)).spawn().unwrap();
    assert_eq!(misuse.finish(patience()).unwrap().expect_success(), ["told"]);
}

#[test]
fn threads_share_a_domain_however_it_waits() {
    for wait in ["sleep", "adaptive", "spin"] {
        let (scratch, daemon) = daemon();
        let echo = echo(&scratch, &daemon);
        let threads =
            daemon.launch_on_host(program("threads", &scratch)).arg("echo").env("ISTHMUS_WAIT", wait).spawn().unwrap();
        assert_eq!(threads.finish(patience()).unwrap().expect_success(), ["joined"], "{wait}");
        assert_eq!(echo.finish(patience()).unwrap().expect_success(), ["served"], "{wait}");
    }
}

#[test]
fn names_the_limit_of_descriptors() {
    let (scratch, daemon) = daemon();
    let talker = program("pingpong", &scratch);
    let mut named = false;
    for files in 5..100 {
        let talk =
            daemon.launch_on_host(&talker).args(["talk", "absent"]).limit(Limit::OpenFiles(files)).spawn().unwrap();
        let Finished { exit, stderr, .. } = talk.finish(patience()).unwrap();
        assert_eq!(exit, Exit::Code(1), "{files} files: {stderr}");
        if stderr.contains("[no-such-domain]") {
            assert!(named, "{files} files are enough, and fewer were not tried");
            return;
        }
        assert!(stderr.contains("RLIMIT_NOFILE") || stderr.contains("[out-of-fds]"), "{files} files: {stderr}");
        named = true;
    }
    panic!("100 files are not enough");
}

#[test]
fn wait_returns_notifications_that_arrived_with_a_reply() {
    let (scratch, daemon) = daemon();
    let bereft = program("bereft", &scratch);
    let mut hold = daemon.launch_on_host(&bereft).args(["hold", "peer"]).spawn().unwrap();
    hold.wait_line("ready", patience()).unwrap();
    let mut send = daemon.launch_on_host(&bereft).args(["send", "peer"]).with_stdin().spawn().unwrap();
    send.wait_line("sent", patience()).unwrap();
    hold.kill().unwrap();
    hold.wait(patience()).unwrap();
    send.send_line("killed").unwrap();
    assert_eq!(send.finish(patience()).unwrap().expect_success(), ["bereft"]);
}
