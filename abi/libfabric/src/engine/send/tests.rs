//! Sends between two endpoints of this process, beside a daemon.

use super::*;
use isthmus_client::{Options, PathKind};
use isthmus_testbed::{DaemonProcess, Deadline, Scratch, eventually};
use std::sync::Arc;

const CONFIG: &str = "[daemon]\nsocket = \"{socket}\"\nruntime_dir = \"{state}\"\n";

/// Two endpoints, and the address of the second one.
struct Fixture {
    sender: Endpoint,
    receiver: Endpoint,
    to: EndpointAddress,
    sent: usize,
}

impl Fixture {
    fn new(daemon: &DaemonProcess) -> Self {
        let options = Options { socket: Some(daemon.socket()), no_autostart: true, ..Options::default() };
        let mut sender = Endpoint::open(&options, Arc::default()).expect("the daemon is there");
        let receiver = Endpoint::open(&options, Arc::default()).expect("the daemon is there");
        sender.dispatcher().events.bind(Side::Transmit, false);
        sender.insert(0, Some(receiver.name), 0);
        let to = sender.place(0).expect("an endpoint of this host");
        Self { sender, receiver, to, sent: 0 }
    }

    /// Queues a message, as a send does that has found no room.
    fn queue(&mut self) {
        self.sent += 1;
        let context = std::ptr::without_provenance_mut(self.sent);
        let (flags, space) = (FI_COMPLETION, MatchSpace::Tagged);
        let report = self.sender.make_report(&SendRequest { space, tag: 7, data: None, context, flags }, 0);
        let mut header = Header::new(PacketKind::Tagged, 0);
        header.word(7);
        self.sender.queue_short_message(self.to, report, &header).expect("the endpoint is open");
    }

    /// Takes the next completion of a send, and returns the number of the send.
    fn completed(&mut self) -> Option<usize> {
        self.sender.dispatcher().events.queue(Side::Transmit).pop_front().map(|event| event.context.addr())
    }

    fn has_channel(&mut self) -> bool {
        self.sender.domain.channels().iter().any(|status| matches!(status.path, PathKind::Channel(_)))
    }
}

#[test]
fn queued_send_completes_if_there_is_room_again() {
    let scratch = Scratch::new().expect("a folder");
    let daemon = DaemonProcess::on(&scratch).config(CONFIG).start(Deadline::secs(60)).expect("a daemon");
    let mut fixture = Fixture::new(&daemon);
    fixture.queue(); // It takes the daemon path and requests a channel.
    let mut completed = None;
    let is_open = eventually(Deadline::secs(60), || {
        fixture.sender.progress();
        fixture.receiver.progress();
        completed = completed.or_else(|| fixture.completed());
        completed.is_some() && fixture.has_channel()
    });
    is_open.expect("a channel");
    assert_eq!(completed, Some(1));
    fixture.queue(); // The receiver has made room meanwhile.
    assert_eq!(fixture.completed(), Some(2));
}
