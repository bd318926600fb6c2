//! Guests: their programs become domains, and whatever a guest does to its window, the others do not notice.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use isthmus_channel::crossing::{Crossing, Frame};
use isthmus_control::schema::{Domains, Status};
use isthmus_layout::RegionSize;
use isthmus_layout::border::{
    ANSWER_WORD, CALL_WORD, CROSSING, CROSSING_AT, FRAME_BYTES_MAX, FrameKind, Handed, MAGIC, MAGIC_WORD, Open,
    PIECES_AT, Packet, UNTAKEN_MAX, WindowNumber, Withdrawn,
};
use isthmus_layout::channel::Direction;
use isthmus_layout::control::*;
use isthmus_layout::reason::Reason;
use isthmus_platform::seqpacket;
use isthmus_shm::{Access, Mapping, Payload as _, Window, Words as _};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::bed::{Bed, name};

const WINDOW_BYTES: u64 = 32 << 20;

fn bed() -> Bed {
    bed_with(WINDOW_BYTES >> 20, "")
}

fn bed_with(window_mib: u64, more: &str) -> Bed {
    let user = rustix::process::geteuid().as_raw();
    let guest = format!("name = \"web\"\nuser = {user}\nwindow_mib = {window_mib}\nvectors = 4\n");
    Bed::with(&format!("[[kvm.guest]]\n{guest}{more}"))
}

/// A machine with a device, and what a daemon in it does; by hand.
pub(crate) struct Guest {
    pub(crate) qemu: OwnedFd,
    window: OwnedFd,
    memory: Window,
    crossing: Crossing<Window>,
    /// What rings the host's vectors.
    outward: Vec<OwnedFd>,
    /// Where rings of the guest's vectors are heard.
    pub(crate) inward: Vec<OwnedFd>,
    serial: RequestSerial,
    call: u32,
}

fn map(window: &OwnedFd, at: u64, bytes: u64) -> Window {
    Window::new(Mapping::window(window, at, RegionSize(bytes), Access::ReadWrite).unwrap())
}

impl Guest {
    /// QEMU has connected, and nobody has spoken.
    fn plug_in(bed: &Bed, called: &str) -> Self {
        let path = bed.socket().with_file_name(format!("guest-{called}.sock"));
        let qemu = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let qemu = qemu.unwrap();
        rustix::net::connect(&qemu, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        let next = || {
            let (mut number, mut fds) = ([0; 8], Vec::new());
            assert_eq!(seqpacket::receive(&qemu, &mut number, &mut fds, true).unwrap(), 8);
            (i64::from_le_bytes(number), fds.pop())
        };
        assert_eq!((next().0, next().0), (0, 1)); // The protocol's version, and our number.
        let (-1, Some(window)) = next() else { panic!("the window") };
        let (mut outward, mut inward) = (Vec::new(), Vec::new());
        // Toward the host the crossing's vector and the worker's; four toward us.
        for _ in 0..2 + 4 {
            match next() {
                (0, Some(bell)) => outward.push(bell),
                (1, Some(bell)) => inward.push(bell),
                other => panic!("{other:?}"),
            }
        }
        let bytes = rustix::fs::fstat(&window).unwrap().st_size.unsigned_abs();
        let memory = map(&window, 0, bytes);
        let crossing = Crossing::new(map(&window, CROSSING_AT, CROSSING.size().0), Direction::One);
        Self { qemu, window, memory, crossing, outward, inward, serial: RequestSerial::new(1).unwrap(), call: 0 }
    }

    /// Its daemon has called, and was answered.
    fn start(bed: &Bed) -> Self {
        Self::start_as(bed, "web")
    }

    /// The guest of that name, the same.
    pub(crate) fn start_as(bed: &Bed, called: &str) -> Self {
        let mut guest = Self::plug_in(bed, called);
        guest.wait_for(|memory| (MAGIC_WORD..).zip(MAGIC).all(|(at, word)| memory.load(at, Ordering::Acquire) == word));
        guest.call();
        guest
    }

    pub(crate) fn call(&mut self) {
        self.call += 1;
        self.memory.store(CALL_WORD, self.call, Ordering::Release);
        self.ring();
        let call = self.call;
        self.wait_for(move |memory| memory.load(ANSWER_WORD, Ordering::Acquire) == call);
        self.crossing = Crossing::new(map(&self.window, CROSSING_AT, CROSSING.size().0), Direction::One);
    }

    fn ring(&self) {
        rustix::io::write(&self.outward[0], &1_u64.to_ne_bytes()).unwrap();
    }

    /// Waits until the host rings, or has rung.
    fn listen(&self) {
        let mut fds = [PollFd::new(&self.inward[0], PollFlags::IN)];
        let long = Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_eq!(poll(&mut fds, Some(&long)), Ok(1), "the host says nothing");
        let _ = rustix::io::read(&self.inward[0], &mut [0; 8]);
    }

    fn wait_for(&self, what: impl Fn(&Window) -> bool) {
        // The head page is made before the first ring; then each change is rung for.
        let begun = std::time::Instant::now();
        while !what(&self.memory) {
            assert!(begun.elapsed().as_secs() < 20, "the host does nothing");
            std::thread::yield_now();
        }
    }

    pub(crate) fn frame(&mut self, kind: FrameKind, connection: u32, content: &[u8]) {
        while !self.crossing.send(Frame { kind, connection }, content).unwrap() {
            self.listen();
        }
        self.ring();
    }

    fn open(&mut self, connection: u32) {
        let open = Open { uid: 4711, pid: 7, program: name("prog") };
        self.frame(FrameKind::Open, connection, &open.emit());
    }

    pub(crate) fn say(&mut self, connection: u32, message: impl Into<ToDaemon>) {
        let message = message.into().emit(Some(self.serial));
        self.serial = self.serial.next();
        self.frame(FrameKind::Packet, connection, &Packet { handed: Vec::new(), message: &message }.emit());
    }

    /// The next frame and its content, but for those that only count.
    pub(crate) fn next(&mut self) -> (Frame, Vec<u8>) {
        let mut content = Vec::new();
        loop {
            match self.crossing.receive(&mut content).unwrap() {
                Some(Frame { kind: FrameKind::Taken, .. }) => {}
                Some(frame) => return (frame, content),
                None => self.listen(),
            }
        }
    }

    /// The next message to any connection, with what it hands.
    fn hear_any(&mut self) -> (u32, ToClient, Vec<Handed>) {
        loop {
            let (frame, content) = self.next();
            if frame.kind == FrameKind::Withdrawn {
                continue;
            }
            assert_eq!(frame.kind, FrameKind::Packet);
            let packet = Packet::parse(&content).unwrap();
            match ToClient::parse(packet.message, packet.handed.len()).unwrap().1 {
                ToClient::Nudge(_) => {}
                message => return (frame.connection, message, packet.handed),
            }
        }
    }

    /// The next message, which is to this connection.
    pub(crate) fn hear(&mut self, connection: u32) -> (ToClient, Vec<Handed>) {
        let (to, message, handed) = self.hear_any();
        assert_eq!(to, connection, "{message:?}");
        (message, handed)
    }

    pub(crate) fn attach(&mut self, connection: u32, called: &str) -> Result<(Welcome, Vec<Handed>), Reason> {
        self.open(connection);
        self.say(connection, Hello { magic: Magic, spoken: Spoken::CURRENT, library: name("test 1") });
        assert!(matches!(self.hear(connection).0, ToClient::HelloBack(_)));
        self.say(connection, Attach { name: Some(name(called)), resume: None });
        match self.hear(connection) {
            (ToClient::Welcome(welcome), handed) => Ok((welcome, handed)),
            (ToClient::Refused(refused), _) => Err(refused.reason),
            other => panic!("{other:?}"),
        }
    }
}

fn domains(bed: &Bed) -> Domains {
    bed.greeted().report(Topic::Domains, &[]).unwrap()
}

fn status(bed: &Bed) -> Status {
    bed.greeted().report(Topic::Status, &[]).unwrap()
}

/// Waits until the daemon knows of so many domains.
fn until_domains(bed: &Bed, count: usize) {
    let begun = std::time::Instant::now();
    while domains(bed).domains.len() != count {
        assert!(begun.elapsed().as_secs() < 20, "{:?}", domains(bed));
    }
}

#[test]
fn a_program_of_a_guest_is_a_domain_whose_memory_lies_in_the_window() {
    let bed = bed();
    let mut guest = Guest::start(&bed);
    let (welcome, handed) = guest.attach(1, "solver").unwrap();
    assert_eq!((welcome.name.as_str(), welcome.owner.0), ("solver", rustix::process::geteuid().as_raw()));
    let [Handed::Piece { offset: ring, bytes, .. }, Handed::Piece { .. }, host, Handed::Piece { .. }, own] = handed[..]
    else {
        panic!("{handed:?}")
    };
    assert!(ring >= PIECES_AT && ring + bytes <= WINDOW_BYTES);
    assert_eq!((host, own), (Handed::Ringer { peer: 0, vector: 1 }, Handed::Listener { vector: 1 }));
    let known = domains(&bed);
    assert_eq!((known.domains[0].guest.as_deref(), known.domains[0].pid), (Some("web"), None));
    let row = status(&bed).guests.unwrap().remove(0);
    assert!(row.daemon && row.domains == 1 && row.used_bytes > Some(PIECES_AT), "{row:?}");
    // Its end takes back what it had, and says so.
    guest.frame(FrameKind::Closed, 1, &[]);
    let pieces: Vec<u64> = handed
        .iter()
        .filter_map(|handed| if let Handed::Piece { offset, .. } = handed { Some(*offset) } else { None })
        .collect();
    let mut withdrawn = Vec::new();
    while withdrawn.len() < pieces.len() {
        let (frame, content) = guest.next();
        match frame.kind {
            FrameKind::Withdrawn => withdrawn.push(Withdrawn::parse(&content).unwrap().offset),
            kind => assert_eq!(kind, FrameKind::Packet), // On its way when it closed.
        }
    }
    withdrawn.sort_unstable();
    let mut pieces = pieces;
    pieces.sort_unstable();
    assert_eq!(withdrawn, pieces);
}

#[test]
fn what_a_guest_lets_go_is_empty_when_another_one_gets_it() {
    let bed = bed();
    let mut guest = Guest::start(&bed);
    let (_, handed) = guest.attach(1, "one").unwrap();
    let Handed::Piece { offset, bytes, age, .. } = handed[0] else { panic!("{handed:?}") };
    guest.frame(FrameKind::Closed, 1, &[]);
    until_domains(&bed, 0);
    guest.memory.copy_in(offset + bytes - 8, b"a secret");
    let mut connection = 2;
    // First fit: as soon as the bytes are free they are the first.
    loop {
        let (_, handed) = guest.attach(connection, &format!("other{connection}")).unwrap();
        if let Handed::Piece { offset: other, age: later, .. } = handed[0]
            && other == offset
        {
            assert_ne!(later, age);
            let mut found = [1; 8];
            guest.memory.copy_out(offset + bytes - 8, &mut found);
            assert_eq!(found, [0; 8]);
            return;
        }
        guest.frame(FrameKind::Closed, connection, &[]);
        until_domains(&bed, 0);
        connection += 1;
    }
}

#[test]
fn a_guest_has_as_many_domains_as_vectors() {
    let bed = bed();
    let mut guest = Guest::start(&bed);
    for connection in 1..=3 {
        guest.attach(connection, &format!("n{connection}")).unwrap();
    }
    assert_eq!(guest.attach(4, "n4").err(), Some(Reason::GuestVectorsFull));
    guest.frame(FrameKind::Closed, 2, &[]);
    until_domains(&bed, 2);
    let (_, handed) = guest.attach(5, "n5").unwrap();
    assert_eq!(handed[4], Handed::Listener { vector: 2 });
}

#[test]
fn a_window_without_room_refuses_with_the_reason() {
    // A ring has two slabs of 4 MiB, and 16 MiB are not room for two rings and all else.
    let bed = bed_with(16, "[limits]\nslab_kib = 4096\n");
    let mut guest = Guest::start(&bed);
    guest.attach(1, "first").unwrap();
    assert_eq!(guest.attach(2, "second").err(), Some(Reason::OutOfMemory));
    guest.frame(FrameKind::Closed, 1, &[]);
    until_domains(&bed, 0);
    guest.attach(3, "third").unwrap();
}

#[test]
fn between_a_guest_and_its_host_there_is_no_channel_but_a_reason() {
    let bed = bed();
    let (mut local, welcomed) = bed.attached("local");
    let mut guest = Guest::start(&bed);
    let (welcome, _) = guest.attach(1, "solver").unwrap();
    let refused = local.ask(RequestChannel { peer: welcome.domain, attempt: 1 }, &[]);
    match refused.map(|heard| heard.message) {
        Ok(ToClient::ChannelRefused(refused)) => assert_eq!(refused.reason, Reason::NoCommonMemory),
        other => panic!("{other:?}"),
    }
    guest.say(1, RequestChannel { peer: welcomed.id(), attempt: 1 });
    match guest.hear(1).0 {
        ToClient::ChannelRefused(refused) => assert_eq!(refused.reason, Reason::NoCommonMemory),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_guests_domain_does_not_come_back_with_a_ticket() {
    let bed = bed();
    let mut guest = Guest::start(&bed);
    let (welcome, _) = guest.attach(1, "solver").unwrap();
    guest.frame(FrameKind::Closed, 1, &[]);
    until_domains(&bed, 0);
    guest.open(2);
    guest.say(2, Hello { magic: Magic, spoken: Spoken::CURRENT, library: name("test 1") });
    assert!(matches!(guest.hear(2).0, ToClient::HelloBack(_)));
    let resume = Some(Resume { domain: welcome.domain, ticket: welcome.ticket });
    let attach = ToDaemon::from(Attach { name: Some(name("solver")), resume });
    let message = attach.emit(None);
    guest.frame(FrameKind::Packet, 2, &Packet { handed: Vec::new(), message: &message }.emit());
    let (message, _) = guest.hear(2);
    assert!(matches!(message, ToClient::Refused(_)), "{message:?}");
}

#[test]
fn an_end_of_the_machine_is_the_end_of_its_domains_and_the_next_one_finds_nothing() {
    let bed = bed();
    let mut guest = Guest::start(&bed);
    guest.attach(1, "solver").unwrap();
    guest.memory.copy_in(WINDOW_BYTES - 6, b"secret");
    drop(guest);
    until_domains(&bed, 0);
    let mut guest = Guest::start(&bed);
    let mut found = [1; 6];
    guest.memory.copy_out(WINDOW_BYTES - 6, &mut found);
    assert_eq!(found, [0; 6]);
    guest.attach(1, "solver").unwrap();
}

#[test]
fn a_daemon_that_comes_back_starts_anew() {
    let bed = bed();
    let mut guest = Guest::start(&bed);
    guest.attach(1, "solver").unwrap();
    guest.call();
    until_domains(&bed, 0);
    guest.attach(1, "solver").unwrap();
}

#[test]
fn nonsense_ends_a_conversation_and_nothing_else() {
    let bed = bed();
    let (_local, _) = bed.attached("local");
    let mut guest = Guest::start(&bed);
    let hello = ToDaemon::from(Hello { magic: Magic, spoken: Spoken::CURRENT, library: name("test 1") }).emit(None);
    let handing = Packet { handed: vec![Handed::Listener { vector: 1 }], message: &hello }.emit();
    let empty = Packet { handed: Vec::new(), message: b"" }.emit();
    let long = vec![0; FRAME_BYTES_MAX];
    let nonsense: [(FrameKind, u32, &[u8]); 7] = [
        (FrameKind::Open, 9, b"x"),
        (FrameKind::Open, 1, &Open { uid: 0, pid: 0, program: name("twice") }.emit()),
        (FrameKind::Packet, 1, &handing),
        (FrameKind::Packet, 1, &empty),
        (FrameKind::Packet, 1, &long),
        (FrameKind::Taken, 1, b""),
        (FrameKind::Withdrawn, 0, &Withdrawn { window: WindowNumber::OWN, offset: PIECES_AT, age: 1 }.emit()),
    ];
    for (kind, connection, content) in nonsense {
        guest.attach(1, "solver").unwrap();
        guest.frame(kind, connection, content);
        guest.wait_for(|memory| memory.load(ANSWER_WORD, Ordering::Acquire) == 0);
        until_domains(&bed, 1);
        guest.call();
    }
}

#[test]
fn messages_beyond_what_was_taken_end_a_conversation() {
    let bed = bed();
    let mut guest = Guest::start(&bed);
    guest.open(1);
    // A report takes the control plane longer than a frame.
    let ask = ToDaemon::from(Query { topic: Topic::Status, arguments: List::new(Vec::new()).unwrap() }).emit(None);
    let content = Packet { handed: Vec::new(), message: &ask }.emit();
    let frame = Frame { kind: FrameKind::Packet, connection: 1 };
    for _ in 0..4 * UNTAKEN_MAX {
        let _ = guest.crossing.send(frame, &content).unwrap();
    }
    guest.ring();
    guest.wait_for(|memory| memory.load(ANSWER_WORD, Ordering::Acquire) == 0);
}

/// Numbers that look random and are the same each time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

#[test]
fn whatever_a_guest_writes_into_its_window_the_others_go_on() {
    let bed = bed();
    let (_local, _) = bed.attached("local");
    let mut dice = Dice(42);
    for round in 0..60 {
        let mut guest = Guest::start(&bed);
        let (_, handed) = guest.attach(1, "hostile").unwrap();
        for _ in 0..50 {
            // Mostly where it matters: the head, the crossing, the domain's ring and boards.
            let Handed::Piece { offset, bytes, .. } = handed[[0, 1, 3][dice.roll(3) as usize]] else { panic!() };
            let (at, within) = [(0, 512), (CROSSING_AT, 16384), (offset, bytes.min(16384))][dice.roll(3) as usize];
            let word = at + dice.roll(within) / 4 * 4;
            let value = [0, 1, u32::MAX, dice.roll(1 << 32) as u32, dice.roll(64) as u32][dice.roll(5) as usize];
            guest.memory.copy_in(word, &value.to_le_bytes());
            for bell in &guest.outward {
                rustix::io::write(bell, &1_u64.to_ne_bytes()).unwrap();
            }
        }
        assert_eq!(status(&bed).guests.unwrap().len(), 1, "round {round}");
        drop(guest);
        until_domains(&bed, 1);
    }
    let (_another, _) = bed.attached("another");
}

#[test]
fn what_is_left_in_a_channel_that_is_over_is_kept_until_it_was_taken() {
    let bed = bed();
    let mut guest = Guest::start(&bed);
    let (one, _) = guest.attach(1, "one").unwrap();
    let (other, _) = guest.attach(2, "other").unwrap();
    guest.say(1, RequestChannel { peer: other.domain, attempt: 1 });
    let (channel, offset) = loop {
        if let (2, ToClient::ChannelOffer(offer), handed) = guest.hear_any() {
            assert_eq!(offer.peer, one.domain);
            let Handed::Piece { offset, .. } = handed[0] else { panic!("{handed:?}") };
            break (offer.channel, offset);
        }
    };
    guest.say(2, AcceptChannel { channel });
    while !matches!(guest.hear(1).0, ToClient::ChannelOpen(_)) {}
    guest.frame(FrameKind::Closed, 1, &[]);
    // Ring and board of the one are taken back, the channel is not, though the other one was told of its end.
    let (mut told, mut withdrawn) = (false, Vec::new());
    while !told || withdrawn.len() < 2 {
        let (frame, content) = guest.next();
        match frame.kind {
            FrameKind::Withdrawn => withdrawn.push(Withdrawn::parse(&content).unwrap().offset),
            _ => told |= frame.connection == 2,
        }
    }
    assert!(!withdrawn.contains(&offset), "{offset} {withdrawn:?}");
    guest.say(2, CloseChannel { channel, reason: Reason::ClosedHere });
    loop {
        let (frame, content) = guest.next();
        if frame.kind == FrameKind::Withdrawn {
            assert_eq!(Withdrawn::parse(&content).unwrap().offset, offset);
            return;
        }
    }
}
