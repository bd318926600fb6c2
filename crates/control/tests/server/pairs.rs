//! Windows that two guests have in common: made by their monitors at the first message, and gone when they have to be.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use isthmus_control::schema::Why;
use isthmus_layout::RegionSize;
use isthmus_layout::border::{FrameKind, Handed, WindowNumber};
use isthmus_layout::control::*;
use isthmus_layout::ids::{ChannelId, DomainId};
use isthmus_layout::reason::Reason;
use isthmus_platform::{Doorbell, Listen as _, Ring as _, seqpacket};
use isthmus_shm::{Access, Mapping, Payload as _, Window};

use crate::bed::Bed;
use crate::guest::Guest;
use crate::monitor::{Manner, Monitor};

/// Two guests, with a domain each, whose monitors behave so; None: the daemon is not given one.
struct Two {
    bed: Bed,
    guests: [Guest; 2],
    told: [Receiver<Told>; 2],
    monitors: [Option<Monitor>; 2],
    domains: [DomainId; 2],
    folder: tempfile::TempDir,
}

const NAMES: [&str; 2] = ["web", "base"];

impl Two {
    fn start(manners: [Option<Manner>; 2], more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let user = rustix::process::geteuid().as_raw();
        let mut config = format!("[kvm]\n{more}\n");
        for (called, manner) in NAMES.iter().zip(manners) {
            config += &format!("[[kvm.guest]]\nname = \"{called}\"\nuser = {user}\nwindow_mib = 32\nvectors = 4\n");
            if manner.is_some() {
                config += &format!("monitor = \"{}\"\n", folder.path().join(called).display());
            }
        }
        let monitors = [0, 1].map(|at| Some(Monitor::listen(&folder.path().join(NAMES[at]), manners[at]?)));
        let bed = Bed::with(&config);
        let mut guests = NAMES.map(|called| Guest::start_as(&bed, called));
        let told = [0, 1].map(|at| listens(&guests[at]));
        let [web, base] = &mut guests;
        let domains = [web.attach(1, "web1").unwrap().0.domain, base.attach(1, "base1").unwrap().0.domain];
        Self { bed, guests, told, monitors, domains, folder }
    }

    /// The first guest's domain asks for a channel with the other one's.
    fn ask(&mut self) {
        self.guests[0].say(1, RequestChannel { peer: self.domains[1], attempt: 1 });
    }

    /// Why the first one's request was refused.
    fn refused(&mut self) -> Reason {
        match self.guests[0].hear(1).0 {
            ToClient::ChannelRefused(refused) => {
                assert_eq!(refused.peer, self.domains[1]);
                refused.reason
            }
            other => panic!("{other:?}"),
        }
    }

    /// The reason that a person is told.
    fn why(&self) -> Option<String> {
        let why: Why = self.bed.greeted().report(Topic::Why, &["web1", "base1"]).unwrap();
        why.reason.map(|reason| reason.reason)
    }

    fn until_why(&self, reason: &str) {
        let begun = std::time::Instant::now();
        while self.why().as_deref() != Some(reason) {
            assert!(begun.elapsed().as_secs() < 20, "{:?}", self.why());
            std::thread::yield_now();
        }
    }

    /// Both guests show the window that is plugged into them; its memory as each of them has it.
    fn show(&mut self) -> (WindowNumber, [Window; 2]) {
        let shown = [0, 1].map(|at| self.monitors[at].as_ref().unwrap().plugged());
        assert_eq!(shown[0].peer, shown[1].peer);
        let window = WindowNumber(u16::try_from(shown[0].peer - 1).unwrap());
        for guest in &mut self.guests {
            guest.frame(FrameKind::Plugged, 0, &window.emit());
        }
        let map = |memory| {
            let bytes = rustix::fs::fstat(&memory).unwrap().st_size.unsigned_abs();
            Window::new(Mapping::window(memory, 0, RegionSize(bytes), Access::ReadWrite).unwrap())
        };
        (window, shown.map(|shown| map(shown.memory)))
    }

    /// What each is offered.
    fn offered(&mut self) -> [(ChannelOffer, Vec<Handed>); 2] {
        [0, 1].map(|at| match self.guests[at].hear(1) {
            (ToClient::ChannelOffer(offer), handed) => (offer, handed),
            other => panic!("{other:?}"),
        })
    }

    /// A channel is there; what the first one was handed.
    fn channel(&mut self) -> (ChannelId, WindowNumber, Vec<Handed>) {
        self.ask();
        let (window, _) = self.show();
        let [(offer, handed), _] = self.offered();
        self.guests[1].say(1, AcceptChannel { channel: offer.channel });
        assert!(matches!(self.guests[0].hear(1).0, ToClient::ChannelOpen(_)));
        (offer.channel, window, handed)
    }

    fn until_devices(&self, at: usize, count: usize) {
        let monitor = self.monitors[at].as_ref().unwrap();
        let begun = std::time::Instant::now();
        while monitor.devices() != count {
            assert!(begun.elapsed().as_secs() < 20, "{}", monitor.devices());
            std::thread::yield_now();
        }
    }
}

/// What QEMU is told of other guests: a bell of one, or that it is gone.
type Told = (i64, Option<Doorbell>);

/// Reads what QEMU is told, as soon as it is.
fn listens(guest: &Guest) -> Receiver<Told> {
    let (tells, told) = channel();
    let socket = guest.qemu.try_clone().unwrap();
    std::thread::spawn(move || {
        let (mut number, mut fds) = ([0; 8], Vec::new());
        while let Ok(8) = seqpacket::receive(&socket, &mut number, &mut fds, true) {
            let _ = tells.send((i64::from_le_bytes(number), fds.pop().map(Doorbell::from))); // A test may not care.
        }
    });
    told
}

fn peers(told: &Receiver<Told>, bells: usize) -> Vec<Told> {
    (0..bells).map(|_| told.recv_timeout(Duration::from_secs(20)).expect("QEMU is told of a peer")).collect()
}

#[test]
fn programs_of_two_guests_get_a_channel_in_a_window_that_only_these_two_share() {
    let mut two = Two::start([Some(Manner::Honest), Some(Manner::Ports)], "");
    assert_eq!(two.why().as_deref(), Some("channel-not-asked"));
    two.ask();
    // The machines know one another's bells before their windows are plugged in.
    let bells = [0, 1].map(|at| peers(&two.told[at], 4));
    let (window, memory) = {
        two.until_why("window-pending");
        two.show()
    };
    let offers = two.offered();
    for (at, (offer, handed)) in offers.iter().enumerate() {
        assert_eq!((offer.peer, offer.new_board), (two.domains[1 - at], true));
        let [
            Handed::Piece { window: channel, offset, .. },
            Handed::Piece { window: board, .. },
            Handed::Ringer { peer, vector: 1 },
            Handed::Piece { window: own, .. },
            Handed::Listener { vector: 1 },
        ] = handed[..]
        else {
            panic!("{handed:?}")
        };
        assert_eq!([channel, board, own], [window; 3]);
        // What the one writes the other reads, and nothing was there before.
        let mut seen = [1; 8];
        memory[1 - at].copy_out(offset + 64 * (1 + at as u64), &mut seen);
        assert_eq!(seen, [0; 8]);
        memory[at].copy_in(offset + 64 * (1 + at as u64), b"in comm.");
        memory[1 - at].copy_out(offset + 64 * (1 + at as u64), &mut seen);
        assert_eq!(&seen, b"in comm.");
        // What it rings is heard in the other guest; the crossing of that one is rung by nobody.
        let (known, bell) = &bells[at][1];
        assert_eq!(*known, i64::from(peer));
        let heard = |vector: usize| Doorbell::from(two.guests[1 - at].inward[vector].try_clone().unwrap());
        heard(1).clear();
        bell.as_ref().unwrap().ring();
        assert!(heard(1).wait(Duration::ZERO));
        heard(0).clear();
        bells[at][0].1.as_ref().unwrap().ring();
        assert!(!heard(0).wait(Duration::ZERO));
    }
    let channel = offers[0].0.channel;
    two.guests[1].say(1, AcceptChannel { channel });
    assert!(matches!(two.guests[0].hear(1).0, ToClient::ChannelOpen(_)));
    let why: Why = two.bed.greeted().report(Topic::Why, &["web1", "base1"]).unwrap();
    assert_eq!((why.path.as_str(), why.reason.map(|reason| reason.reason)), ("channel", None));
    // A second pair of programs finds the window there.
    let other = two.guests[1].attach(2, "base2").unwrap().0.domain;
    two.guests[0].say(1, RequestChannel { peer: other, attempt: 1 });
    match two.guests[0].hear(1) {
        (ToClient::ChannelOffer(offer), handed) => {
            assert!(!offer.new_board);
            assert!(matches!(handed[0], Handed::Piece { window: of, .. } if of == window), "{handed:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_region_between_two_guests_lies_in_their_window_and_ends_with_it() {
    let mut two = Two::start([Some(Manner::Honest), Some(Manner::Honest)], "common_idle_s = 1");
    let (channel, window, _) = two.channel();
    let region = isthmus_layout::ids::RegionId(3);
    two.guests[0].say(1, MakeRegion { peer: two.domains[1], region, bytes: 8192 });
    let (made, home) = two.guests[0].hear(1);
    let (granted, view) = two.guests[1].hear(1);
    assert!(matches!(made, ToClient::RegionMade(made) if made.region == region));
    assert!(matches!(granted, ToClient::Granted(granted) if granted.region == region && granted.bytes == 8192));
    let [Handed::Home { window: ours, offset, .. }] = home[..] else { panic!("{home:?}") };
    let [Handed::View { window: theirs, offset: there, .. }] = view[..] else { panic!("{view:?}") };
    assert_eq!(([ours, theirs], offset), ([window; 2], there));
    // A program of the owner's guest has no part in that window.
    let other = two.guests[0].attach(2, "web2").unwrap().0.domain;
    two.guests[0].say(1, MakeRegion { peer: other, region, bytes: 8192 });
    assert!(matches!(two.guests[0].hear(1).0, ToClient::Refused(refused) if refused.reason == Reason::NoCommonMemory));
    // A region alone does not keep the window.
    two.guests[0].say(1, CloseChannel { channel, reason: Reason::ClosedHere });
    assert!(matches!(two.guests[1].hear(1).0, ToClient::ChannelClosed(_)));
    two.guests[1].say(1, CloseChannel { channel, reason: Reason::ClosedHere });
    assert!(matches!(two.guests[1].hear(1).0, ToClient::Revoked(revoked) if revoked.region == region));
}

#[test]
fn without_both_monitors_there_is_no_window_but_a_reason() {
    let mut two = Two::start([Some(Manner::Honest), None], "");
    assert_eq!(two.why().as_deref(), Some("no-monitor"));
    two.ask();
    assert_eq!(two.refused(), Reason::NoMonitor);
}

#[test]
fn a_monitor_that_refuses_leaves_the_pair_where_it_was_with_the_reason() {
    for command in ["qmp_capabilities", "getfd", "chardev-add", "device_add"] {
        let mut two = Two::start([Some(Manner::Honest), Some(Manner::Refuses(command))], "");
        two.ask();
        assert_eq!(two.refused(), Reason::WindowRefused, "{command}");
        assert_eq!(two.why().as_deref(), Some("window-refused"));
        // What the other one has got already is taken from it.
        two.until_devices(0, 0);
        // Nobody is asked again at once.
        two.ask();
        assert_eq!(two.refused(), Reason::WindowRefused);
    }
}

#[test]
fn a_monitor_that_hangs_or_lies_holds_nobody_up() {
    for manner in [Manner::Hangs, Manner::Lies] {
        let mut two = Two::start([Some(manner), Some(Manner::Honest)], "plug_timeout_s = 1");
        two.ask();
        two.until_why("window-pending");
        let (_local, _) = two.bed.attached("local");
        two.guests[1].attach(2, "another").unwrap();
        assert_eq!(two.refused(), Reason::WindowRefused, "{manner:?}");
    }
}

#[test]
fn a_monitor_that_is_not_there_is_a_refusal() {
    let mut two = Two::start([Some(Manner::Honest), Some(Manner::Honest)], "");
    std::fs::remove_file(two.folder.path().join(NAMES[1])).unwrap();
    two.ask();
    assert_eq!(two.refused(), Reason::WindowRefused);
}

#[test]
fn a_guest_that_does_not_take_its_window_is_a_refusal_and_one_that_says_it_has_others_is_not_heard() {
    let mut two = Two::start([Some(Manner::Honest); 2], "plug_timeout_s = 1");
    two.ask();
    let shown = two.monitors[0].as_ref().unwrap().plugged();
    let number = u16::try_from(shown.peer - 1).unwrap();
    for other in [0, number + 1, u16::MAX] {
        two.guests[0].frame(FrameKind::Plugged, 0, &WindowNumber(other).emit());
    }
    two.guests[0].frame(FrameKind::Plugged, 0, &WindowNumber(number).emit());
    assert_eq!(two.refused(), Reason::WindowRefused);
    two.until_devices(0, 0);
    two.until_devices(1, 0);
}

#[test]
fn when_a_guest_is_switched_off_the_other_one_loses_the_window_and_goes_on() {
    let mut two = Two::start([Some(Manner::Honest); 2], "");
    let (channel, ..) = two.channel();
    let Two { bed, guests, told, monitors, .. } = two;
    let [mut survivor, gone] = guests;
    let [monitor, _] = monitors;
    rustix::net::shutdown(&gone.qemu, rustix::net::Shutdown::Both).unwrap();
    let mut ends = Vec::new();
    while ends.len() < 2 {
        match survivor.hear(1).0 {
            ToClient::ChannelClosed(closed) => {
                assert_eq!(closed.channel, channel);
                ends.push("channel");
            }
            ToClient::PeerGone(_) => ends.push("peer"),
            other => panic!("{other:?}"),
        }
    }
    let monitor = monitor.unwrap();
    let begun = std::time::Instant::now();
    while monitor.devices() > 0 {
        assert!(begun.elapsed().as_secs() < 20);
        std::thread::yield_now();
    }
    // Its machine knows the other one's bells no more.
    assert!(peers(&told[0], 5).last().unwrap().1.is_none());
    survivor.attach(2, "next").unwrap();
    let (_local, _) = bed.attached("local");
}

#[test]
fn a_window_that_a_guest_loses_ends_the_channels_in_it() {
    let mut two = Two::start([Some(Manner::Honest); 2], "plug_timeout_s = 1");
    let (channel, window, _) = two.channel();
    two.guests[1].frame(FrameKind::Unplugged, 0, &window.emit());
    for guest in &mut two.guests {
        match guest.hear(1).0 {
            ToClient::ChannelClosed(closed) => {
                assert_eq!((closed.channel, closed.reason), (channel, Reason::WindowGone));
            }
            other => panic!("{other:?}"),
        }
    }
    two.until_devices(0, 0);
    two.until_devices(1, 0);
    // The next one is another one, on boards of its own.
    two.ask();
    let (next, _) = two.show();
    assert_ne!(next, window);
    let [(offer, handed), _] = two.offered();
    assert!(offer.new_board && offer.board.number() == 2, "{offer:?}");
    assert!(matches!(handed[0], Handed::Piece { window: of, .. } if of == next), "{handed:?}");
}

#[test]
fn a_window_that_nobody_uses_goes_after_a_while() {
    let mut two = Two::start([Some(Manner::Honest); 2], "common_idle_s = 1");
    let (_, _, _) = two.channel();
    two.guests[0].frame(FrameKind::Closed, 1, &[]);
    two.until_devices(0, 1);
    // The domain that is left says that it has taken what lay in the channel.
    loop {
        if let ToClient::ChannelClosed(closed) = two.guests[1].hear(1).0 {
            two.guests[1].say(1, CloseChannel { channel: closed.channel, reason: Reason::ClosedHere });
            break;
        }
    }
    two.until_devices(0, 0);
    two.until_devices(1, 0);
}
