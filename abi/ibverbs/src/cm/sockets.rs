//! The sockets of identifiers.
//!
//! | datagram | content |
//! | --- | --- |
//! | question | `ICQ1`, the port space, 3 zeroes, 8 bytes that the reply repeats |
//! | reply | `ICA1`, the port space, 0, the port of the listener's streams or 0 without a listener, the 8 bytes |
//!
//! Both have 16 bytes, so a listener never sends more than it receives.

use super::device::Device;
use super::packet_info::{self, Arrival};
use super::{LISTENERS_PAUSE_NS, PENDING_MAX, Service, Token, now};
use isthmus_verbs::cm::{End, IdNumber, Kind, MESSAGE_BYTES_MAX, Message, PortSpace, PrivateData};
use rustix::event::epoll::EventFlags;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const QUESTION: [u8; 4] = *b"ICQ1";
const REPLY: [u8; 4] = *b"ICA1";
const DATAGRAM_BYTES: usize = 16;

/// Datagrams and streams that one look takes, so that one socket does not hold the others up.
const AT_ONCE: usize = 64;

/// The backlog of the kernel for streams.
const STREAM_BACKLOG: i32 = 512;

/// The sockets of an identifier.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    /// The bound port. None of an accepted identifier, which shares that of its listener.
    datagrams: Option<OwnedFd>,
    /// The port of the space UDP at which the identifier may listen. Until then, the program may have the port for datagrams of its own, as
    /// rsockets have.
    later_port: Option<u16>,
    is_watched: bool,
    /// The number that a reply to this identifier's question repeats.
    question: u64,
    /// The listener of streams, and its port.
    listener: Option<(OwnedFd, u16)>,
    stream: Option<Stream>,
    /// Only addresses of the family that was bound: `RDMA_OPTION_ID_AFONLY`.
    pub(super) only_family: bool,
}

/// A stream, and what has arrived of its next message.
#[derive(Debug)]
struct Stream {
    fd: OwnedFd,
    is_open: bool,
    arrived: Vec<u8>,
}

/// A stream to a listener that has not sent its request.
#[derive(Debug)]
pub(super) struct Pending {
    listener: IdNumber,
    stream: Stream,
    from: SocketAddr,
}

/// An address of IPv4 where IPv6 has it mapped.
fn unmapped(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn local(fd: impl AsFd) -> Result<SocketAddr, Errno> {
    SocketAddr::try_from(rustix::net::getsockname(fd)?).map_err(|_| Errno::AFNOSUPPORT)
}

fn peer(fd: impl AsFd) -> Result<SocketAddr, Errno> {
    let name = rustix::net::getpeername(fd)?.ok_or(Errno::NOTCONN)?;
    SocketAddr::try_from(name).map_err(|_| Errno::AFNOSUPPORT)
}

fn socket(address: SocketAddr, kind: SocketType) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

/// Binds a socket of datagrams.
fn bind_datagrams(address: SocketAddr, only_family: bool) -> Result<OwnedFd, Errno> {
    let fd = socket(address, SocketType::DGRAM)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, only_family)?;
    }
    packet_info::request(fd.as_fd(), address.is_ipv6());
    rustix::net::bind(&fd, &address)?;
    Ok(fd)
}

impl Service {
    /// Binds an identifier. A wildcard has no device.
    pub(super) fn bind(&mut self, id: IdNumber, space: PortSpace, mut address: SocketAddr) -> Result<(), Errno> {
        let sockets = self.sockets.entry(id).or_default();
        let device = Device::find().ok_or(Errno::NODEV)?;
        let port = address.port();
        if space == PortSpace::Udp && port != 0 {
            sockets.later_port = Some(port);
            address.set_port(0);
        }
        let fd = bind_datagrams(address, sockets.only_family)?;
        let mut address = local(&fd)?;
        sockets.later_port.iter().for_each(|port| address.set_port(*port));
        sockets.datagrams = Some(fd);
        let gid = if address.ip().is_unspecified() { None } else { device.gid_of(address.ip().to_canonical()) };
        self.manager.bound(id, End { address, gid });
        Ok(())
    }

    /// Finds the path to a destination, by the kernel's routes.
    pub(super) fn resolve(
        &mut self,
        id: IdNumber,
        source: Option<SocketAddr>,
        destination: SocketAddr,
    ) -> Result<(End, End), Errno> {
        let sockets = self.sockets.entry(id).or_default();
        let device = Device::find().ok_or(Errno::NODEV)?;
        if sockets.datagrams.is_none() {
            let any: IpAddr =
                if destination.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            let source = source.unwrap_or(SocketAddr::new(any, 0));
            sockets.datagrams = Some(bind_datagrams(source, sockets.only_family)?);
        }
        let fd = sockets.datagrams.as_ref().ok_or(Errno::BADF)?;
        rustix::net::connect(fd, &destination)?;
        let (source, destination) = (unmapped(local(fd)?), unmapped(peer(fd)?));
        let end = |address: SocketAddr| End { address, gid: device.gid_of(address.ip()) };
        Ok((end(source), end(destination)))
    }

    /// Listens at the port of a bound identifier.
    pub(super) fn listen(&mut self, id: IdNumber) -> Result<(), Errno> {
        let sockets = self.sockets.entry(id).or_default();
        let mut address = local(sockets.datagrams.as_ref().ok_or(Errno::INVAL)?)?;
        if let Some(port) = sockets.later_port {
            address.set_port(port);
            sockets.datagrams = Some(bind_datagrams(address, sockets.only_family)?);
            sockets.later_port = None;
        }
        address.set_port(0);
        let fd = socket(address, SocketType::STREAM)?;
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&fd, sockets.only_family)?;
        }
        rustix::net::bind(&fd, &address)?;
        rustix::net::listen(&fd, STREAM_BACKLOG)?;
        let port = local(&fd)?.port();
        sockets.listener = Some((fd, port));
        sockets.is_watched = true;
        let known = &self.sockets[&id];
        if let (Some(datagrams), Some((listener, _))) = (&known.datagrams, &known.listener) {
            self.watch(datagrams, Token::Datagrams(id), EventFlags::IN)?;
            self.watch(listener, Token::Listener(id), EventFlags::IN)?;
        }
        Ok(())
    }

    /// Asks the destination of an identifier for the port of its streams.
    pub(super) fn ask(&mut self, id: IdNumber) {
        let space = self.manager.space(id);
        let Some(known) = self.sockets.get_mut(&id) else { return };
        let Some(fd) = known.datagrams.as_ref() else { return };
        let is_first = !std::mem::replace(&mut known.is_watched, true);
        if is_first {
            let mut question = [0; 8];
            let _ = rustix::rand::getrandom(&mut question, rustix::rand::GetRandomFlags::empty());
            known.question = u64::from_ne_bytes(question);
        }
        let mut datagram = [0; DATAGRAM_BYTES];
        datagram[..4].copy_from_slice(&QUESTION);
        datagram[4] = u8::from(space == Some(PortSpace::Udp));
        datagram[8..].copy_from_slice(&known.question.to_ne_bytes());
        let sent = rustix::net::send(fd, &datagram, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        if is_first && let Some(fd) = self.sockets.get(&id).and_then(|known| known.datagrams.as_ref()) {
            let _ = self.watch(fd, Token::Datagrams(id), EventFlags::IN);
        }
        match sent {
            Err(Errno::CONNREFUSED) => self.manager.not_connected(id, None),
            Err(errno @ (Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::PERM)) => {
                self.manager.not_connected(id, Some(-errno.raw_os_error()));
            }
            _ => {}
        }
    }

    pub(super) fn receive_datagrams(&mut self, id: IdNumber) {
        for _ in 0..AT_ONCE {
            let Some(known) = self.sockets.get(&id) else { return };
            let Some(fd) = known.datagrams.as_ref() else { return };
            let mut bytes = [0; DATAGRAM_BYTES + 1];
            match packet_info::receive(fd, &mut bytes) {
                Ok((DATAGRAM_BYTES, Some(arrival))) if bytes.starts_with(&QUESTION) => {
                    self.reply_to(id, &bytes, &arrival);
                }
                Ok((DATAGRAM_BYTES, _)) if bytes.starts_with(&REPLY) => {
                    let repeated = bytes[8..DATAGRAM_BYTES] == known.question.to_ne_bytes();
                    let port = u16::from_be_bytes([bytes[6], bytes[7]]);
                    match port {
                        _ if !repeated || known.listener.is_some() => {}
                        0 => self.manager.not_connected(id, None),
                        port => self.manager.port_found(id, port),
                    }
                }
                Ok(_) => {}
                Err(Errno::AGAIN) => return,
                Err(Errno::CONNREFUSED) => self.manager.not_connected(id, None),
                Err(_) => {}
            }
        }
    }

    fn reply_to(&self, id: IdNumber, question: &[u8], arrival: &Arrival) {
        let Some(known) = self.sockets.get(&id) else { return };
        let space = u8::from(self.manager.space(id) == Some(PortSpace::Udp));
        let listener = known.listener.as_ref().filter(|_| question[4] == space);
        let mut datagram = [0; DATAGRAM_BYTES];
        datagram[..4].copy_from_slice(&REPLY);
        datagram[4] = space;
        datagram[6..8].copy_from_slice(&listener.map_or(0, |(_, port)| *port).to_be_bytes());
        datagram[8..].copy_from_slice(&question[8..DATAGRAM_BYTES]);
        known.datagrams.iter().for_each(|fd| packet_info::reply(fd, &datagram, arrival));
    }

    /// Opens the stream of an identifier.
    pub(super) fn dial(&mut self, id: IdNumber, port: u16) {
        let begun = self.begin_dial(id, port);
        match begun {
            Ok(()) => {}
            Err(Errno::CONNREFUSED) => self.manager.not_connected(id, None),
            Err(errno) => self.manager.not_connected(id, Some(-errno.raw_os_error())),
        }
    }

    fn begin_dial(&mut self, id: IdNumber, port: u16) -> Result<(), Errno> {
        let known = self.sockets.get_mut(&id).ok_or(Errno::BADF)?;
        let datagrams = known.datagrams.as_ref().ok_or(Errno::BADF)?;
        let (mut from, mut to) = (local(datagrams)?, peer(datagrams)?);
        from.set_port(0);
        to.set_port(port);
        let fd = socket(to, SocketType::STREAM)?;
        rustix::net::bind(&fd, &from)?;
        sockopt::set_tcp_nodelay(&fd, true)?;
        match rustix::net::connect(&fd, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(errno) => return Err(errno),
        }
        known.stream = Some(Stream { fd, is_open: false, arrived: Vec::new() });
        let stream = self.sockets.get(&id).and_then(|known| known.stream.as_ref()).ok_or(Errno::BADF)?;
        self.watch(&stream.fd, Token::Stream(id), EventFlags::OUT)
    }

    /// Sends a message. The buffer of a stream has room for all that a connection ever sends.
    pub(super) fn send(&mut self, id: IdNumber, message: &Message) {
        let Some(stream) = self.sockets.get(&id).and_then(|known| known.stream.as_ref()) else { return };
        send_on(&stream.fd, message);
    }

    pub(super) fn close_stream(&mut self, id: IdNumber) {
        if let Some(known) = self.sockets.get_mut(&id) {
            known.stream = None;
        }
    }

    /// The stream of an identifier is open, or something has arrived.
    pub(super) fn receive(&mut self, id: IdNumber, flags: EventFlags) {
        let Some(stream) = self.sockets.get_mut(&id).and_then(|known| known.stream.as_mut()) else { return };
        if !stream.is_open {
            match sockopt::socket_error(&stream.fd) {
                Ok(Ok(())) if flags.contains(EventFlags::OUT) => {
                    stream.is_open = true;
                    let interest = EventFlags::IN | EventFlags::RDHUP;
                    let _ = rustix::event::epoll::modify(&self.epoll, &stream.fd, Token::Stream(id).pack(), interest);
                    self.manager.dialed(id);
                }
                Ok(Err(Errno::CONNREFUSED)) => self.manager.not_connected(id, None),
                Ok(Err(errno)) | Err(errno) => self.manager.not_connected(id, Some(-errno.raw_os_error())),
                Ok(Ok(())) => {}
            }
            return;
        }
        let is_over = stream.read();
        loop {
            let known = self.sockets.get_mut(&id).and_then(|known| known.stream.as_mut());
            let Some(stream) = known else { return };
            match Message::decode(&stream.arrived) {
                Ok(Some((message, len))) => {
                    stream.arrived.drain(..len);
                    self.manager.received(id, &message);
                    self.perform();
                }
                Ok(None) if !is_over => return,
                Ok(None) | Err(_) => return self.manager.closed(id),
            }
        }
    }

    /// Takes streams of a listener.
    pub(super) fn take_streams(&mut self, id: IdNumber) {
        for _ in 0..AT_ONCE {
            let Some((listener, _)) = self.sockets.get(&id).and_then(|known| known.listener.as_ref()) else { return };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::acceptfrom_with(listener, flags) {
                Ok((fd, Some(from))) => {
                    let Ok(from) = SocketAddr::try_from(from) else { continue };
                    self.add_pending(id, fd, unmapped(from));
                }
                Ok((_, None)) => {}
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => return self.pause_listener(id),
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    fn add_pending(&mut self, listener: IdNumber, fd: OwnedFd, from: SocketAddr) {
        let _ = sockopt::set_tcp_nodelay(&fd, true);
        self.last_pending = self.last_pending.wrapping_add(1);
        let number = self.last_pending;
        if self.watch(&fd, Token::Pending(number), EventFlags::IN | EventFlags::RDHUP).is_err() {
            return;
        }
        let stream = Stream { fd, is_open: true, arrived: Vec::new() };
        self.pending.insert(number, Pending { listener, stream, from });
        self.oldest.push_back(number);
        while self.pending.len() > PENDING_MAX {
            let Some(oldest) = self.oldest.pop_front() else { break };
            self.pending.remove(&oldest);
        }
        while self.oldest.front().is_some_and(|oldest| !self.pending.contains_key(oldest)) {
            self.oldest.pop_front();
        }
        self.receive_request(number); // It often is there already.
    }

    /// Something has arrived on a stream that has not sent its request.
    pub(super) fn receive_request(&mut self, number: u32) {
        let Some(pending) = self.pending.get_mut(&number) else { return };
        let is_over = pending.stream.read();
        let (message, len) = match Message::decode(&pending.stream.arrived) {
            Ok(Some(decoded)) => decoded,
            Ok(None) if !is_over => return,
            Ok(None) | Err(_) => return drop(self.pending.remove(&number)),
        };
        let Some(mut pending) = self.pending.remove(&number) else { return };
        pending.stream.arrived.drain(..len);
        if message.kind != Kind::Request {
            return;
        }
        let Ok(at) = self.end_of(&pending) else { return };
        match self.manager.request(pending.listener, &message, pending.from, at) {
            Ok(id) => {
                let interest = EventFlags::IN | EventFlags::RDHUP;
                let token = Token::Stream(id).pack();
                let _ = rustix::event::epoll::modify(&self.epoll, &pending.stream.fd, token, interest);
                let sockets = Sockets { stream: Some(pending.stream), ..Sockets::default() };
                self.sockets.insert(id, sockets);
                if is_over {
                    self.manager.closed(id);
                }
            }
            Err(reason) => {
                let reject = Message::reject(message.space, reason, PrivateData::NONE);
                send_on(&pending.stream.fd, &reject);
            }
        }
    }

    /// This end of a stream to a listener: its address, with the listener's port.
    fn end_of(&self, pending: &Pending) -> Result<End, Errno> {
        let known = self.sockets.get(&pending.listener).ok_or(Errno::BADF)?;
        let port = local(known.datagrams.as_ref().ok_or(Errno::BADF)?)?.port();
        let mut address = unmapped(local(&pending.stream.fd)?);
        address.set_port(port);
        let gid = Device::find().and_then(|device| device.gid_of(address.ip()));
        Ok(End { address, gid })
    }

    /// Takes no streams of a listener for a while, because there is no descriptor for one.
    fn pause_listener(&mut self, id: IdNumber) {
        let Some((listener, _)) = self.sockets.get(&id).and_then(|known| known.listener.as_ref()) else { return };
        let token = Token::Listener(id).pack();
        let _ = rustix::event::epoll::modify(&self.epoll, listener, token, EventFlags::empty());
        let until = now() + LISTENERS_PAUSE_NS;
        self.paused.get_or_insert_with(|| (until, Vec::new())).1.push(id);
    }

    pub(super) fn resume_listeners(&mut self) {
        let Some((_, paused)) = self.paused.take_if(|(until, _)| *until <= now()) else { return };
        for id in paused {
            let listener = self.sockets.get(&id).and_then(|known| known.listener.as_ref());
            if let Some((listener, _)) = listener {
                let token = Token::Listener(id).pack();
                let _ = rustix::event::epoll::modify(&self.epoll, listener, token, EventFlags::IN);
            }
        }
    }
}

/// Sends a message, or nothing if the peer is gone.
fn send_on(fd: &OwnedFd, message: &Message) {
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let len = message.encode(&mut bytes);
    let _ = rustix::net::send(fd, &bytes[..len], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

impl Stream {
    /// Reads what has arrived. True if nothing follows.
    fn read(&mut self) -> bool {
        let mut bytes = [0; 1024];
        match rustix::net::recv(&self.fd, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => true,
            Ok((count, _)) => {
                self.arrived.extend_from_slice(&bytes[..count]);
                false
            }
            Err(Errno::AGAIN | Errno::INTR) => false,
            Err(_) => true,
        }
    }
}
