//! C programs against a real daemon.

use crate::build::program;
use isthmus_testbed::{Daemon, Deadline, Exit, Finished, Limit, Proc, Scratch, binary};

const CONFIG: &str = "[daemon]\nsocket = \"{socket}\"\nruntime_dir = \"{state}\"\n";

fn patience() -> Deadline {
    Deadline::secs(60)
}

/// A daemon and a place for programs.
fn daemon() -> (Scratch, Daemon) {
    let scratch = Scratch::new().unwrap();
    binary("isthmusd", "isthmusd").unwrap(); // Building it is not part of anybody's patience.
    let daemon = Daemon::on(&scratch).config(CONFIG).start(patience()).unwrap();
    (scratch, daemon)
}

fn echo(scratch: &Scratch, daemon: &Daemon) -> Proc {
    let mut echo = daemon.beside(program("pingpong", scratch)).args(["serve", "echo"]).spawn().unwrap();
    echo.wait_line("ready", patience()).unwrap();
    echo
}

#[test]
fn messages_of_every_length_come_back() {
    for channels in ["1", "0"] {
        let (scratch, daemon) = daemon();
        let echo = echo(&scratch, &daemon);
        let talk = daemon.beside(scratch.join("pingpong")).args(["talk", "echo"]).env("ISTHMUS_CHANNELS", channels);
        let talk = talk.spawn().unwrap();
        assert_eq!(talk.finish(patience()).unwrap().expect_success(), ["talked"]);
        assert_eq!(echo.finish(patience()).unwrap().expect_success(), ["served"]);
    }
}

#[test]
fn a_domain_works_in_a_programs_own_epoll_set() {
    let (scratch, daemon) = daemon();
    let talker = program("pingpong", &scratch);
    let mut epoll = daemon.beside(program("epoll", &scratch)).arg("echo").talking().spawn().unwrap();
    epoll.wait_line("ready", patience()).unwrap();
    for _ in 0..2 {
        let talk = daemon.beside(&talker).args(["talk", "echo"]).spawn().unwrap();
        assert_eq!(talk.finish(patience()).unwrap().expect_success(), ["talked"]);
    }
    assert_eq!(epoll.finish(patience()).unwrap().expect_success(), ["echoed 440"]);
}

#[test]
fn misuse_is_answered_and_leaves_a_library_that_works() {
    let (scratch, daemon) = daemon();
    let misuse = daemon.beside(program("misuse", &scratch)).spawn().unwrap();
    assert_eq!(misuse.finish(patience()).unwrap().expect_success(), ["told"]);
}

#[test]
fn threads_share_a_domain_however_it_waits() {
    for wait in ["sleep", "adaptive", "spin"] {
        let (scratch, daemon) = daemon();
        let echo = echo(&scratch, &daemon);
        let threads =
            daemon.beside(program("threads", &scratch)).arg("echo").env("ISTHMUS_WAIT", wait).spawn().unwrap();
        assert_eq!(threads.finish(patience()).unwrap().expect_success(), ["joined"], "{wait}");
        assert_eq!(echo.finish(patience()).unwrap().expect_success(), ["served"], "{wait}");
    }
}

#[test]
fn a_limit_on_descriptors_is_named() {
    let (scratch, daemon) = daemon();
    let talker = program("pingpong", &scratch);
    let mut named = false;
    for files in 5..100 {
        let talk = daemon.beside(&talker).args(["talk", "nobody"]).limit(Limit::OpenFiles(files)).spawn().unwrap();
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
fn news_that_came_with_an_answer_are_not_slept_through() {
    let (scratch, daemon) = daemon();
    let bereft = program("bereft", &scratch);
    let mut hold = daemon.beside(&bereft).args(["hold", "peer"]).spawn().unwrap();
    hold.wait_line("ready", patience()).unwrap();
    let mut send = daemon.beside(&bereft).args(["send", "peer"]).talking().spawn().unwrap();
    send.wait_line("sent", patience()).unwrap();
    hold.kill().unwrap();
    hold.wait(patience()).unwrap();
    send.say("killed").unwrap();
    assert_eq!(send.finish(patience()).unwrap().expect_success(), ["bereft"]);
}
