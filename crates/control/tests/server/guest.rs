//! A guest made of a connection and a window, driven by hand.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use isthmus_channel::crossing::{Crossing, Frame};
use isthmus_control::schema::{Domains, GuestRow, Status};
use isthmus_layout::RegionSize;
use isthmus_layout::border::{
    ANSWER_WORD, CALL_WORD, CROSSING, CROSSING_AT, FrameKind, Handed, MAGIC, MAGIC_WORD, Open, Packet,
};
use isthmus_layout::channel::Direction;
use isthmus_layout::control::*;
use isthmus_layout::reason::Reason;
use isthmus_platform::seqpacket;
use isthmus_shm::{Access, Mapping, Window, Words as _};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::bed::{Bed, name};

/// A guest as the configuration has it.
pub(crate) fn configured(guest: &str, window_mib: u64, vectors: u16) -> String {
    let user = rustix::process::geteuid().as_raw();
    format!("[[kvm.guest]]\nname = \"{guest}\"\nuser = {user}\nwindow_mib = {window_mib}\nvectors = {vectors}\n")
}

/// A machine with a device, and what a daemon in it does; by hand.
pub(crate) struct Guest {
    pub(crate) qemu: OwnedFd,
    pub(crate) window: OwnedFd,
    pub(crate) memory: Window,
    pub(crate) crossing: Crossing<Window>,
    /// What rings the host's vectors.
    pub(crate) outward: Vec<OwnedFd>,
    /// Where rings of the guest's vectors are heard.
    pub(crate) inward: Vec<OwnedFd>,
    serial: RequestSerial,
    call: u32,
    /// Says that pieces are away when they are withdrawn.
    pub(crate) answers: bool,
}

fn map(window: &OwnedFd, at: u64, bytes: u64) -> Window {
    Window::new(Mapping::window(window, at, RegionSize(bytes), Access::ReadWrite).unwrap())
}

impl Guest {
    /// QEMU has connected, and nobody has spoken.
    pub(crate) fn plug_in(bed: &Bed) -> Self {
        Self::plug_in_as(bed, "web")
    }

    pub(crate) fn plug_in_as(bed: &Bed, guest: &str) -> Self {
        let path = bed.socket().with_file_name(format!("guest-{guest}.sock"));
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
        Self {
            qemu,
            window,
            memory,
            crossing,
            outward,
            inward,
            serial: RequestSerial::new(1).unwrap(),
            call: 0,
            answers: true,
        }
    }

    /// Its daemon has called, and was answered.
    pub(crate) fn start(bed: &Bed) -> Self {
        Self::start_as(bed, "web")
    }

    pub(crate) fn start_as(bed: &Bed, guest: &str) -> Self {
        let mut guest = Self::plug_in_as(bed, guest);
        guest.wait_for_head();
        guest.call();
        guest
    }

    /// The host has made its head page.
    pub(crate) fn wait_for_head(&self) {
        self.wait_for(|memory| (MAGIC_WORD..).zip(MAGIC).all(|(at, word)| memory.load(at, Ordering::Acquire) == word));
    }

    pub(crate) fn call(&mut self) {
        self.call += 1;
        self.memory.store(CALL_WORD, self.call, Ordering::Release);
        self.ring();
        let call = self.call;
        self.wait_for(move |memory| memory.load(ANSWER_WORD, Ordering::Acquire) == call);
        self.crossing = Crossing::new(map(&self.window, CROSSING_AT, CROSSING.size().0), Direction::One);
    }

    pub(crate) fn ring(&self) {
        rustix::io::write(&self.outward[0], &1_u64.to_ne_bytes()).unwrap();
    }

    /// Waits until the host rings, or has rung.
    fn listen(&self) {
        let mut fds = [PollFd::new(&self.inward[0], PollFlags::IN)];
        let long = Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_eq!(poll(&mut fds, Some(&long)), Ok(1), "the host says nothing");
        let _ = rustix::io::read(&self.inward[0], &mut [0; 8]);
    }

    pub(crate) fn wait_for(&self, what: impl Fn(&Window) -> bool) {
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

    pub(crate) fn open(&mut self, connection: u32) {
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
        loop {
            match self.next_that_is_here() {
                Some(next) => return next,
                None => self.listen(),
            }
        }
    }

    /// The same, without waiting for it.
    pub(crate) fn next_that_is_here(&mut self) -> Option<(Frame, Vec<u8>)> {
        let mut content = Vec::new();
        loop {
            let frame = self.crossing.receive(&mut content).unwrap()?;
            if frame.kind == FrameKind::Withdrawn && self.answers {
                self.frame(FrameKind::Away, 0, &content);
            }
            if frame.kind != FrameKind::Taken {
                return Some((frame, content));
            }
        }
    }

    /// The next message to any connection, with what it hands.
    pub(crate) fn hear_any(&mut self) -> (u32, ToClient, Vec<Handed>) {
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

    /// The domain at connection 1 opens an endpoint that has this number on the first MX board.
    pub(crate) fn open_mx(&mut self, number: u32) {
        self.say(1, OpenEndpoint { index: None, label: None });
        let index = match self.hear(1).0 {
            ToClient::EndpointOpened(opened) => opened.index,
            other => panic!("{other:?}"),
        };
        self.say(1, MxOpen { board: None, endpoint: Some(number), key: 0, at: index });
        match self.hear(1).0 {
            ToClient::MxOpened(opened) => assert_eq!(opened.endpoint, number),
            other => panic!("{other:?}"),
        }
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

pub(crate) fn domains(bed: &Bed) -> Domains {
    bed.greeted().report(Topic::Domains, &[]).unwrap()
}

pub(crate) fn status(bed: &Bed) -> Status {
    bed.greeted().report(Topic::Status, &[]).unwrap()
}

/// Waits until the daemon knows of so many domains.
pub(crate) fn until_domains(bed: &Bed, count: usize) {
    let begun = std::time::Instant::now();
    while domains(bed).domains.len() != count {
        assert!(begun.elapsed().as_secs() < 20, "{:?}", domains(bed));
    }
}

/// How a guest is.
pub(crate) fn row(bed: &Bed, guest: &str) -> GuestRow {
    status(bed).guests.unwrap().into_iter().find(|row| row.name == guest).unwrap()
}

/// How a guest is once that is so.
pub(crate) fn until_row(bed: &Bed, guest: &str, so: impl Fn(&GuestRow) -> bool) -> GuestRow {
    let begun = std::time::Instant::now();
    loop {
        let row = row(bed, guest);
        if so(&row) {
            return row;
        }
        assert!(begun.elapsed().as_secs() < 30, "{row:?}");
    }
}
