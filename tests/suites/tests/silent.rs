//! A guest's daemon that cannot take a program in again, because its device or its host is gone. A message in transit on a channel without
//! a reader ends with an error, whatever the reason of the refusal is, and whenever it comes.
//!
//! ```text
//!   sender ══ channel ══ receiver
//!     └── hello ──► the test, where the daemon was: refuses
//! ```
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_layout::control::{
    Attach, HelloReply, Magic, Name, Refused, RequestSerial, Text, ToClient, ToDaemon, VersionRange,
};
use isthmus_layout::limits::CONTROL_BYTES_MAX;
use isthmus_layout::reason::Reason;
use isthmus_platform::seqpacket;
use isthmus_suites::{TIMEOUT_S, TestProgram, daemon};
use isthmus_testbed::{Deadline, Scratch, eventually};
use std::os::fd::{AsFd, OwnedFd};

/// A program that waits for the end of a message that no receiver takes, and that has lost its daemon.
struct OrphanedClient {
    sender: TestProgram,
    /// The program that only has the other end of the channel.
    _receiver: TestProgram,
    /// Where the daemon was.
    listener: OwnedFd,
    _scratch: Scratch,
}

impl OrphanedClient {
    fn start() -> Self {
        let scratch = Scratch::new().unwrap();
        let daemon = daemon(&scratch, "");
        let [mut sender, mut receiver] = ["sender", "receiver"].map(|name| TestProgram::launch_on_host(&daemon, name));
        let by_channel = eventually(Deadline::secs(TIMEOUT_S), || {
            sender.send_line("exchange 0 receiver.e0 1000 2x8 2000 2x8");
            receiver.send_line("exchange 0 sender.e0 2000 2x8 1000 2x8");
            drop([&mut sender, &mut receiver].map(TestProgram::answer));
            [&mut sender, &mut receiver]
                .map(|actor| actor.ask("channels"))
                .iter()
                .all(|said| said.contains(" channel "))
        });
        by_channel.unwrap();
        // The first of these says to each that the other one sends so.
        sender.send_line("exchange 0 receiver.e0 1000 1x8 2000 1x8");
        receiver.send_line("exchange 0 sender.e0 2000 1x8 1000 1x8");
        drop([&mut sender, &mut receiver].map(TestProgram::answer));
        let posted = sender.ask("send 0 receiver.e0 100000 7");
        assert!(posted.starts_with("posted "), "{posted}");
        let path = daemon.socket();
        daemon.kill(Deadline::secs(TIMEOUT_S)).unwrap();
        std::fs::remove_file(&path).unwrap();
        let listener = seqpacket::listen(&path, 16).unwrap();
        sender.send_line(&format!("wait {}", 1000 * TIMEOUT_S));
        Self { sender, _receiver: receiver, listener, _scratch: scratch }
    }

    /// The next connection, which has said something.
    fn next_connection(&self) -> OwnedFd {
        Deadline::secs(TIMEOUT_S).readable([self.listener.as_fd()]).unwrap();
        let program = seqpacket::accept(&self.listener).unwrap();
        Deadline::secs(TIMEOUT_S).readable([program.as_fd()]).unwrap();
        program
    }

    /// The message fails for this reason.
    #[track_caller]
    fn expect_send_failure(mut self, reason: Reason) {
        let answer = self.sender.answer();
        assert!(answer.starts_with("failed ") && answer.ends_with(reason.name()), "{answer}");
    }
}

fn refusal_packet(reason: Reason, serial: Option<RequestSerial>) -> Vec<u8> {
    ToClient::from(Refused { reason, text: Text::clip(reason.summary()) }).emit(serial)
}

/// Takes what a program says up to its wish to attach, which is refused.
fn refuse_attaching(program: &OwnedFd, is_expected: impl Fn(&Attach) -> bool, reason: Reason) {
    let (mut message, mut fds) = (vec![0; CONTROL_BYTES_MAX], Vec::new());
    loop {
        Deadline::secs(TIMEOUT_S).readable([program.as_fd()]).unwrap();
        let bytes = seqpacket::receive(program, &mut message, &mut fds, false).unwrap();
        let answer = match ToDaemon::parse(&message[..bytes], fds.len()).unwrap() {
            (serial, ToDaemon::Hello(_)) => {
                let (today, daemon) = (VersionRange::CURRENT.version(), Name::new("guest's").unwrap());
                ToClient::from(HelloReply { magic: Magic, major: today.major, minor: today.minor, daemon }).emit(serial)
            }
            (serial, ToDaemon::Attach(attach)) if is_expected(&attach) => {
                return seqpacket::send(program, &refusal_packet(reason, serial), &[]).unwrap();
            }
            (_, other) => panic!("{other:?}"),
        };
        seqpacket::send(program, &answer, &[]).unwrap();
    }
}

#[test]
fn send_fails_with_host_silent_while_hello_is_unread() {
    let mut orphan = OrphanedClient::start();
    let program = orphan.next_connection();
    // As on a machine with one processor: all of it is over when the program looks.
    orphan.sender.proc().freeze().unwrap();
    let view = orphan.sender.view();
    let is_frozen = || view.status("State").unwrap().starts_with('T');
    eventually(Deadline::secs(TIMEOUT_S), is_frozen).unwrap();
    seqpacket::send(&program, &refusal_packet(Reason::HostDaemonUnreachable, None), &[]).unwrap();
    drop(program);
    orphan.sender.proc().thaw().unwrap();
    orphan.expect_send_failure(Reason::HostDaemonUnreachable);
}

#[test]
fn send_fails_when_channels_end_and_attaching_is_refused() {
    let orphan = OrphanedClient::start();
    refuse_attaching(&orphan.next_connection(), |attach| attach.resume.is_some(), Reason::TicketInvalid);
    refuse_attaching(&orphan.next_connection(), |attach| attach.resume.is_none(), Reason::GuestVectorsFull);
    orphan.expect_send_failure(Reason::TicketInvalid);
}
