//! A simulated guest that consists of a connection and a window, driven by the tests.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use isthmus_channel::proxy_ring::{ProxyFrame, ProxyRing};
use isthmus_layout::RegionSize;
use isthmus_layout::channel::Direction;
use isthmus_layout::control::*;
use isthmus_layout::mx::{MxOpen, MxToClient};
use isthmus_layout::proxy::{
    ClientConnected, ControlPacket, MAGIC, MAGIC_WORD, PROXY_RING, PROXY_RING_OFFSET, ProxyFrameKind, ResourceRef,
    SESSION_REPLY_WORD, SESSION_REQUEST_WORD,
};
use isthmus_layout::reason::Reason;
use isthmus_platform::seqpacket;
use isthmus_report::{Domains, GuestRow, StatusReport};
use isthmus_shm::{Access, Mapping, SharedMapping, Words as _};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::testbed::{Testbed, name};

/// Returns the configuration of a guest.
pub(crate) fn configured(guest: &str, window_mib: u64, vectors: u16) -> String {
    let user = rustix::process::geteuid().as_raw();
    format!("[[kvm.guest]]\nname = \"{guest}\"\nuser = {user}\nwindow_mib = {window_mib}\nvectors = {vectors}\n")
}

/// A machine with a device, and the protocol of the guest daemon in it, driven by the tests.
pub(crate) struct Guest {
    pub(crate) qemu: OwnedFd,
    window: OwnedFd,
    pub(crate) memory: SharedMapping,
    pub(crate) proxy_ring: ProxyRing<SharedMapping>,
    /// Doorbells that ring the host's vectors.
    pub(crate) to_host: Vec<OwnedFd>,
    /// Descriptors that receive the rings of the guest's vectors.
    pub(crate) from_host: Vec<OwnedFd>,
    serial: RequestSerial,
    call: u32,
    /// Whether the guest reports revoked extents as reclaimed.
    pub(crate) answers: bool,
}

fn map(window: &OwnedFd, at: u64, bytes: u64) -> SharedMapping {
    SharedMapping::new(Mapping::window(window, at, RegionSize(bytes), Access::ReadWrite).unwrap())
}

impl Guest {
    /// Connects as QEMU. No guest daemon has requested a session.
    pub(crate) fn plug_in(bed: &Testbed) -> Self {
        Self::plug_in_as(bed, "web")
    }

    pub(crate) fn plug_in_as(bed: &Testbed, guest: &str) -> Self {
        let path = bed.socket().with_file_name(format!("guest-{guest}.sock"));
        let qemu = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let qemu = qemu.unwrap();
        rustix::net::connect(&qemu, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        let next = || {
            let (mut number, mut fds) = ([0; 8], Vec::new());
            assert_eq!(seqpacket::receive(&qemu, &mut number, &mut fds, true).unwrap(), 8);
            (i64::from_le_bytes(number), fds.pop())
        };
        assert_eq!((next().0, next().0), (0, 1)); // The version of the protocol, and the guest's peer number.
        let (-1, Some(window)) = next() else { panic!("the window") };
        let (mut to_host, mut from_host) = (Vec::new(), Vec::new());
        // Toward the host, one vector for the proxy and one for the worker; four toward the guest.
        for _ in 0..2 + 4 {
            match next() {
                (0, Some(doorbell)) => to_host.push(doorbell),
                (1, Some(doorbell)) => from_host.push(doorbell),
                other => panic!("{other:?}"),
            }
        }
        let bytes = rustix::fs::fstat(&window).unwrap().st_size.unsigned_abs();
        let memory = map(&window, 0, bytes);
        let proxy_ring = ProxyRing::new(map(&window, PROXY_RING_OFFSET, PROXY_RING.size().0), Direction::One);
        Self {
            qemu,
            window,
            memory,
            proxy_ring,
            to_host,
            from_host,
            serial: RequestSerial::new(1).unwrap(),
            call: 0,
            answers: true,
        }
    }

    /// Connects as QEMU, and starts a proxy session.
    pub(crate) fn start(bed: &Testbed) -> Self {
        Self::start_as(bed, "web")
    }

    pub(crate) fn start_as(bed: &Testbed, guest: &str) -> Self {
        let mut guest = Self::plug_in_as(bed, guest);
        guest.wait_for_head();
        guest.call();
        guest
    }

    /// Waits until the host has initialized the head page.
    pub(crate) fn wait_for_head(&self) {
        self.wait_for(|memory| (MAGIC_WORD..).zip(MAGIC).all(|(at, word)| memory.load(at, Ordering::Acquire) == word));
    }

    pub(crate) fn call(&mut self) {
        self.call += 1;
        self.memory.store(SESSION_REQUEST_WORD, self.call, Ordering::Release);
        self.ring();
        let call = self.call;
        self.wait_for(move |memory| memory.load(SESSION_REPLY_WORD, Ordering::Acquire) == call);
        self.proxy_ring = ProxyRing::new(map(&self.window, PROXY_RING_OFFSET, PROXY_RING.size().0), Direction::One);
    }

    pub(crate) fn ring(&self) {
        rustix::io::write(&self.to_host[0], &1_u64.to_ne_bytes()).unwrap();
    }

    /// Waits until the host rings, or has rung.
    fn listen(&self) {
        let mut fds = [PollFd::new(&self.from_host[0], PollFlags::IN)];
        let long = Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_eq!(poll(&mut fds, Some(&long)), Ok(1), "the host says nothing");
        let _ = rustix::io::read(&self.from_host[0], &mut [0; 8]);
    }

    pub(crate) fn wait_for(&self, what: impl Fn(&SharedMapping) -> bool) {
        // The host initializes the head page before its first ring, and rings after each change.
        let begun = std::time::Instant::now();
        while !what(&self.memory) {
            assert!(begun.elapsed().as_secs() < 20, "the host does nothing");
            std::thread::yield_now();
        }
    }

    pub(crate) fn frame(&mut self, kind: ProxyFrameKind, connection: u32, content: &[u8]) {
        while !self.proxy_ring.send(ProxyFrame { kind, connection }, content).unwrap() {
            self.listen();
        }
        self.ring();
    }

    pub(crate) fn open(&mut self, connection: u32) {
        let open = ClientConnected { uid: 4711, pid: 7, program: name("prog") };
        self.frame(ProxyFrameKind::ClientConnected, connection, &open.emit());
    }

    pub(crate) fn send(&mut self, connection: u32, message: impl Into<ToDaemon>) {
        let message = message.into().emit(Some(self.serial));
        self.serial = self.serial.next();
        self.frame(
            ProxyFrameKind::ControlPacket,
            connection,
            &ControlPacket { resources: Vec::new(), message: &message }.emit(),
        );
    }

    /// Returns the next frame and its content, and skips acknowledgements.
    pub(crate) fn next(&mut self) -> (ProxyFrame, Vec<u8>) {
        loop {
            match self.next_that_is_here() {
                Some(next) => return next,
                None => self.listen(),
            }
        }
    }

    /// Returns the next frame as `next` does, if one is already in the ring.
    pub(crate) fn next_that_is_here(&mut self) -> Option<(ProxyFrame, Vec<u8>)> {
        let mut content = Vec::new();
        loop {
            let frame = self.proxy_ring.receive(&mut content).unwrap()?;
            if frame.kind == ProxyFrameKind::RevokedExtent && self.answers {
                self.frame(ProxyFrameKind::Reclaimed, 0, &content);
            }
            if frame.kind != ProxyFrameKind::Ack {
                return Some((frame, content));
            }
        }
    }

    /// Returns the next message to any connection, with its resources.
    pub(crate) fn receive_any(&mut self) -> (u32, ToClient, Vec<ResourceRef>) {
        loop {
            let (frame, content) = self.next();
            if frame.kind == ProxyFrameKind::RevokedExtent {
                continue;
            }
            assert_eq!(frame.kind, ProxyFrameKind::ControlPacket);
            let packet = ControlPacket::parse(&content).unwrap();
            match ToClient::parse(packet.message, packet.resources.len()).unwrap().1 {
                ToClient::Wakeup(_) => {}
                message => return (frame.connection, message, packet.resources),
            }
        }
    }

    /// Returns the next message, and checks that it is for this connection.
    pub(crate) fn receive_message(&mut self, connection: u32) -> (ToClient, Vec<ResourceRef>) {
        let (to, message, resources) = self.receive_any();
        assert_eq!(to, connection, "{message:?}");
        (message, resources)
    }

    /// Opens an endpoint with this number on the first MX board, for the domain at connection 1.
    pub(crate) fn open_mx(&mut self, number: u32) {
        self.send(1, OpenEndpoint { index: None, label: None });
        let index = match self.receive_message(1).0 {
            ToClient::EndpointOpened(opened) => opened.index,
            other => panic!("{other:?}"),
        };
        self.send(1, MxOpen { board: None, endpoint: Some(number), key: 0, index });
        match self.receive_message(1).0 {
            ToClient::Mx(MxToClient::MxOpened(opened)) => assert_eq!(opened.endpoint, number),
            other => panic!("{other:?}"),
        }
    }

    /// Requests a report, and returns its JSON.
    pub(crate) fn report_text(&mut self, connection: u32, topic: Topic, arguments: &[&str]) -> Result<String, Reason> {
        let arguments = List::new(arguments.iter().map(|argument| name(argument)).collect()).unwrap();
        self.send(connection, Query { topic, arguments });
        let mut json = Vec::new();
        loop {
            match self.receive_message(connection).0 {
                ToClient::QueryReply(reply) => {
                    json.extend_from_slice(&reply.json);
                    if reply.last {
                        return Ok(String::from_utf8(json).unwrap());
                    }
                }
                ToClient::Refused(refused) => return Err(refused.reason),
                other => panic!("{other:?}"),
            }
        }
    }

    pub(crate) fn attach(&mut self, connection: u32, called: &str) -> Result<(Welcome, Vec<ResourceRef>), Reason> {
        self.open(connection);
        self.send(connection, Hello { magic: Magic, versions: VersionRange::CURRENT, library: name("test 1") });
        assert!(matches!(self.receive_message(connection).0, ToClient::HelloReply(_)));
        self.send(connection, Attach { name: Some(name(called)), resume: None });
        match self.receive_message(connection) {
            (ToClient::Welcome(welcome), resources) => Ok((welcome, resources)),
            (ToClient::Refused(refused), _) => Err(refused.reason),
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn domains(bed: &Testbed) -> Domains {
    bed.greeted().report(Topic::Domains, &[]).unwrap()
}

pub(crate) fn status(bed: &Testbed) -> StatusReport {
    bed.greeted().report(Topic::Status, &[]).unwrap()
}

/// Waits until the daemon reports `count` domains.
pub(crate) fn until_domains(bed: &Testbed, count: usize) {
    let begun = std::time::Instant::now();
    while domains(bed).domains.len() != count {
        assert!(begun.elapsed().as_secs() < 20, "{:?}", domains(bed));
    }
}

/// Returns the daemon's report about a guest.
pub(crate) fn row(bed: &Testbed, guest: &str) -> GuestRow {
    status(bed).guests.unwrap().into_iter().find(|row| row.name == guest).unwrap()
}

/// Waits until the report about a guest fulfils a condition, and returns it.
pub(crate) fn until_row(bed: &Testbed, guest: &str, so: impl Fn(&GuestRow) -> bool) -> GuestRow {
    let begun = std::time::Instant::now();
    loop {
        let row = row(bed, guest);
        if so(&row) {
            return row;
        }
        assert!(begun.elapsed().as_secs() < 30, "{row:?}");
    }
}
