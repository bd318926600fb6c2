//! Streams: programs attach, list their listeners, show connected sockets, and get pairs.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;

use isthmus_layout::control::*;
use isthmus_layout::reason::Reason;
use isthmus_layout::sockets::*;
use isthmus_netns::Host;
use isthmus_platform::{Doorbell, tcp_socket};
use isthmus_report::{MetricsText, StreamsReport};
use isthmus_shm::{Access, Mapping, SharedMapping, Words as _};
use isthmus_testbed::{Deadline, eventually};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::time::{ClockId, clock_gettime};

use crate::testbed::{Client, ReceivedMessage, Testbed};

const ALL_USERS: &str = "[policy]\nattach = \"any-user\"\n";

/// A program that is attached to streams.
pub(crate) struct Program {
    client: Client,
    session: u32,
    board: OwnedFd,
    listed: SharedMapping,
    next_token: u32,
}

/// A stream as a program receives it.
#[derive(Debug)]
pub(crate) struct Paired {
    message: StreamPaired,
    fds: Vec<OwnedFd>,
}

/// A connection of the loopback interface, with the time of its connect.
pub(crate) struct Connection {
    pub(crate) client: TcpStream,
    pub(crate) server: TcpStream,
    connected_ms: (u64, u64),
}

fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

pub(crate) fn listener() -> TcpListener {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    tcp_socket::save_syns(&listener).unwrap();
    listener
}

pub(crate) fn connection(listener: &TcpListener) -> Connection {
    connection_from(Ipv4Addr::LOCALHOST, listener)
}

fn connection_from(client: Ipv4Addr, listener: &TcpListener) -> Connection {
    connection_from_port(SocketAddrV4::new(client, 0), listener)
}

fn connection_from_port(client: SocketAddrV4, listener: &TcpListener) -> Connection {
    let SocketAddr::V4(address) = listener.local_addr().unwrap() else { panic!("it listens on IPv4") };
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::bind(&socket, &client).unwrap();
    let since = now_ms();
    rustix::net::connect(&socket, &address).unwrap();
    let client = TcpStream::from(socket);
    let connected_ms = (since, now_ms());
    Connection { client, server: listener.accept().unwrap().0, connected_ms }
}

fn inode(fd: &OwnedFd) -> u64 {
    rustix::fs::fstat(fd).unwrap().st_ino
}

fn sockets(message: &ToClient) -> Option<&SocketsToClient> {
    match message {
        ToClient::Sockets(message) => Some(message),
        _ => None,
    }
}

impl Program {
    fn new(bed: &Testbed) -> Self {
        Self::of(bed.greeted())
    }

    pub(crate) fn of(mut client: Client) -> Self {
        let mut heard = client.request(StreamAttach {}, &[]).unwrap();
        let Some(SocketsToClient::StreamAttached(attached)) = sockets(&heard.message).cloned() else {
            panic!("{heard:?}")
        };
        let listed = Mapping::new(&heard.fds[1], LISTED_SIZE, Access::Read).unwrap();
        let board = heard.fds.remove(0);
        Self { client, session: attached.session, board, listed: SharedMapping::new(listed), next_token: 1 }
    }

    fn token(&mut self) -> u32 {
        self.next_token += 1;
        self.next_token
    }

    fn listen(&mut self, listener: &TcpListener) -> Result<u32, Reason> {
        let token = self.token();
        self.client.send(StreamListen { token }, &[listener.as_fd()]);
        match self.receive_about(token) {
            SocketsToClient::StreamListening(_) => Ok(token),
            SocketsToClient::StreamRefused(refused) => Err(refused.reason),
            other => panic!("{other:?}"),
        }
    }

    fn is_listed(&self, address: SocketAddr) -> bool {
        let key = std::array::from_fn(|word| self.listed.load(LISTED_KEY + word as u32, Relaxed));
        let bit = listed_bit(key, address.ip(), address.port());
        self.listed.load(listed_word(bit), Relaxed) & listed_mask(bit) != 0
    }

    pub(crate) fn show_client(&mut self, connection: &Connection) -> u32 {
        let (token, (since_ms, until_ms)) = (self.token(), connection.connected_ms);
        let message = StreamShow { token, connector: true, since_ms, until_ms };
        self.client.send(message, &[connection.client.as_fd()]);
        token
    }

    pub(crate) fn show_server(&mut self, socket: impl AsFd) -> u32 {
        let token = self.token();
        let message = StreamShow { token, connector: false, since_ms: 0, until_ms: 0 };
        self.client.send(message, &[socket.as_fd()]);
        token
    }

    /// Receives the next message about a socket, but that it waits.
    fn receive_about(&mut self, token: u32) -> SocketsToClient {
        sockets(&self.receive_packet_about(token).message).unwrap().clone()
    }

    fn receive_packet_about(&mut self, token: u32) -> ReceivedMessage {
        self.client.receive_matching(|heard| match sockets(&heard.message) {
            Some(SocketsToClient::StreamListening(message)) => message.token == token,
            Some(SocketsToClient::StreamPaired(message)) => message.token == token,
            Some(SocketsToClient::StreamRefused(message)) => message.token == token,
            _ => false,
        })
    }

    pub(crate) fn paired(&mut self, token: u32) -> Paired {
        let heard = self.receive_packet_about(token);
        match sockets(&heard.message) {
            Some(SocketsToClient::StreamPaired(message)) => Paired { message: message.clone(), fds: heard.fds },
            _ => panic!("{heard:?}"),
        }
    }

    fn refused(&mut self, token: u32) -> Reason {
        match self.receive_about(token) {
            SocketsToClient::StreamRefused(message) => message.reason,
            other => panic!("{other:?}"),
        }
    }

    /// Waits until a socket was read and waits for its peer.
    fn wait_until_waiting(&mut self, token: u32) {
        self.client.receive_matching(|heard| {
            matches!(sockets(&heard.message), Some(SocketsToClient::StreamWaiting(message)) if message.token == token)
        });
    }

    fn add_waiter(&mut self, waiter: u8) -> Result<(), Reason> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        self.client.request(StreamWaiter { waiter }, &[bell.as_fd()]).map(drop)
    }

    /// Receives the next waiter of a peer.
    fn peer_waiter(&mut self) -> (u32, u8) {
        let heard = self
            .client
            .receive_matching(|heard| matches!(sockets(&heard.message), Some(SocketsToClient::PeerWaiter(_))));
        match sockets(&heard.message) {
            Some(SocketsToClient::PeerWaiter(message)) => (message.peer, message.waiter),
            _ => unreachable!(),
        }
    }

    fn report(&mut self) -> StreamsReport {
        self.client.report(Topic::Streams, &[]).unwrap()
    }
}

/// Two programs with a stream between them.
pub(crate) fn pair(a: &mut Program, b: &mut Program) -> (Connection, Paired, Paired) {
    let connection = connection(&listener());
    let client = a.show_client(&connection);
    let server = b.show_server(&connection.server);
    let (client, server) = (a.paired(client), b.paired(server));
    (connection, client, server)
}

#[test]
fn both_ends_get_one_memory_and_the_other_s_board() {
    let bed = Testbed::new();
    let (mut a, mut b) = (Program::new(&bed), Program::new(&bed));
    b.add_waiter(3).unwrap();
    let (_tcp, client, server) = pair(&mut a, &mut b);
    assert_eq!((client.message.end, server.message.end), (StreamEndIndex::Connector, StreamEndIndex::Acceptor));
    assert_eq!((client.message.peer, server.message.peer), (b.session, a.session));
    assert_eq!(client.message.stream, server.message.stream);
    assert!(client.message.new_peer && server.message.new_peer);
    assert_eq!(inode(&client.fds[0]), inode(&server.fds[0]));
    assert_eq!((inode(&client.fds[1]), inode(&server.fds[1])), (inode(&b.board), inode(&a.board)));
    assert_eq!(a.peer_waiter(), (b.session, 3));
    let [ours, theirs] = [&client, &server]
        .map(|paired| SharedMapping::new(Mapping::new(&paired.fds[0], STREAM_SIZE, Access::ReadWrite).unwrap()));
    ours.store(7, 9, Relaxed);
    assert_eq!(theirs.load(7, Relaxed), 9);
    // Later waiters come before the reply to their request, and the board comes once.
    a.add_waiter(0).unwrap();
    assert_eq!(b.peer_waiter(), (a.session, 0));
    let (_tcp, client, server) = pair(&mut a, &mut b);
    assert!(!client.message.new_peer && !server.message.new_peer && client.fds.len() == 1);
}

#[test]
fn a_program_may_connect_to_itself() {
    let bed = Testbed::new();
    let mut a = Program::new(&bed);
    let tcp = connection(&listener());
    let (client, server) = (a.show_client(&tcp), a.show_server(&tcp.server));
    let (client, server) = (a.paired(client).message, a.paired(server).message);
    assert_eq!((client.peer, server.peer, client.stream), (a.session, a.session, server.stream));
    for _ in 0..2 {
        assert_eq!(a.report().streams.len(), 1);
        a.client.send(StreamEnded { stream: client.stream, violation: false }, &[]);
    }
    assert_eq!(a.report().streams.len(), 0);
}

#[test]
fn listeners_are_listed_while_they_listen() {
    let bed = Testbed::new();
    let (mut a, b) = (Program::new(&bed), Program::new(&bed));
    let (one, other) = (listener(), TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap());
    let (address, any_address) = (one.local_addr().unwrap(), other.local_addr().unwrap());
    let token = a.listen(&one).unwrap();
    a.listen(&other).unwrap();
    assert!(b.is_listed(address) && b.is_listed((Ipv4Addr::UNSPECIFIED, any_address.port()).into()));
    a.client.send(StreamUnlisten { token }, &[]);
    assert_eq!(a.report().listening, 1);
    assert!(!b.is_listed(address));
    drop(a);
    eventually(Deadline::secs(20), || !b.is_listed((Ipv4Addr::UNSPECIFIED, any_address.port()).into())).unwrap();
}

/// A program that closes its listening socket expects that connections are refused at once, as by TCP alone.
#[test]
fn a_listener_that_is_answered_is_not_open_in_the_daemon() {
    const LISTENERS_MAX: usize = 1024;
    let bed = Testbed::new();
    let mut a = Program::new(&bed);
    let one = listener();
    let closed = |listener: TcpListener| {
        let address = listener.local_addr().unwrap();
        drop(listener);
        let refused = TcpStream::connect(address).map_err(|error| error.kind());
        assert_eq!(refused.err(), Some(std::io::ErrorKind::ConnectionRefused));
    };
    for number in 0..LISTENERS_MAX {
        assert!(a.listen(&one).is_ok(), "{number}");
    }
    for _ in 0..500 {
        let another = listener();
        assert_eq!(a.listen(&another), Err(Reason::StreamsFull));
        closed(another);
    }
}

#[test]
fn sockets_of_the_wrong_kind_are_refused_with_the_reason() {
    let bed = Testbed::new();
    let mut a = Program::new(&bed);
    let tcp = connection(&listener());
    let client = TcpListener::from(OwnedFd::from(tcp.client.try_clone().unwrap()));
    assert_eq!(a.listen(&client), Err(Reason::StreamWrongState));
    let token = a.show_server(rustix::pipe::pipe().unwrap().0);
    assert_eq!(a.refused(token), Reason::StreamNotTcp);
    let twice = [a.show_server(&tcp.server), a.show_server(&tcp.server)];
    assert_eq!(twice.map(|token| a.refused(token)), [Reason::StreamSocketTwice; 2]);
    let report = a.report();
    let counts: Vec<_> = report.refused.iter().map(|count| (&*count.reason, count.count)).collect();
    assert_eq!(counts, [("stream-not-tcp", 1), ("stream-wrong-state", 1), ("stream-socket-twice", 2)]);
    let text = a.client.report::<MetricsText>(Topic::Metrics, &[]).unwrap().text;
    assert!(text.contains("isthmus_stream_refused_total{reason=\"stream-socket-twice\"} 2"), "{text}");
}

#[test]
fn a_shown_socket_is_still_the_program_s_own() {
    let bed = Testbed::new();
    let mut a = Program::new(&bed);
    let tcp = connection(&listener());
    rustix::net::sockopt::set_socket_linger(&tcp.server, Some(std::time::Duration::from_secs(7))).unwrap();
    let token = a.show_server(&tcp.server);
    a.wait_until_waiting(token);
    let linger = rustix::net::sockopt::socket_linger(&tcp.server).unwrap();
    assert_eq!(linger, Some(std::time::Duration::from_secs(7)), "the daemon changes nothing");
    // The daemon has closed its copy: the other end sees the close of the program.
    rustix::net::sockopt::set_socket_linger(&tcp.server, None).unwrap();
    let Connection { client, server, .. } = tcp;
    drop(server);
    assert_eq!(std::io::Read::read(&mut &client, &mut [0; 1]).unwrap(), 0);
    a.client.send(StreamGone { token }, &[]);
    assert_eq!(a.report().waiting, 0);
}

#[test]
fn denied_addresses_and_limits_keep_connections_on_tcp() {
    let bed = Testbed::with("[sockets]\ndeny = [\"127.0.0.2\"]\nstreams_max = 1\n");
    let (mut a, mut b) = (Program::new(&bed), Program::new(&bed));
    let denied = TcpListener::bind((Ipv4Addr::new(127, 0, 0, 2), 0)).unwrap();
    assert_eq!(a.listen(&denied), Err(Reason::StreamDenied));
    let tcp = connection(&denied);
    let token = a.show_client(&tcp);
    assert_eq!(a.refused(token), Reason::StreamDenied);
    let (_tcp, client, _) = pair(&mut a, &mut b);
    let tcp = connection(&listener());
    let tokens = (a.show_client(&tcp), b.show_server(&tcp.server));
    assert_eq!((a.refused(tokens.0), b.refused(tokens.1)), (Reason::StreamsFull, Reason::StreamsFull));
    // The place is free once both ends have ended.
    for program in [&mut a, &mut b] {
        program.client.send(StreamEnded { stream: client.message.stream, violation: false }, &[]);
    }
    a.report(); // The daemon has read what this program has sent before.
    assert_eq!(b.report().streams.len(), 0);
    pair(&mut a, &mut b);
}

#[test]
fn only_allowed_addresses_become_streams_unless_they_are_denied() {
    let allowed = listener();
    let port = allowed.local_addr().unwrap().port();
    let bed =
        Testbed::with(&format!("[sockets]\nallow = [\"127.0.0.1:{port}\", \"127.0.0.2\"]\ndeny = [\"127.0.0.2\"]\n"));
    let mut a = Program::new(&bed);
    let shown = |a: &mut Program, listener: &TcpListener| {
        let tcp = connection(listener);
        let token = a.show_client(&tcp);
        a.refused(token)
    };
    let other = listener();
    assert!(a.listen(&other).is_ok(), "its connections decide");
    assert_eq!(shown(&mut a, &other), Reason::StreamDenied);
    assert_eq!(shown(&mut a, &TcpListener::bind((Ipv4Addr::new(127, 0, 0, 2), 0)).unwrap()), Reason::StreamDenied);
    let mut b = Program::new(&bed);
    let tcp = connection(&allowed);
    let tokens = (a.show_client(&tcp), b.show_server(&tcp.server));
    a.paired(tokens.0);
    b.paired(tokens.1);
}

#[test]
fn listening_socket_of_another_address_gives_streams_to_allowed_clients() {
    let client = Ipv4Addr::new(127, 0, 0, 3);
    let bed = Testbed::with(&format!("[sockets]\nallow = [\"{client}\"]\n"));
    let (mut a, mut b) = (Program::new(&bed), Program::new(&bed));
    let listener = listener();
    assert!(b.listen(&listener).is_ok());
    let tcp = connection_from(client, &listener);
    let tokens = (a.show_client(&tcp), b.show_server(&tcp.server));
    a.paired(tokens.0);
    b.paired(tokens.1);
    let tcp = connection(&listener);
    let tokens = (a.show_client(&tcp), b.show_server(&tcp.server));
    assert_eq!((a.refused(tokens.0), b.refused(tokens.1)), (Reason::StreamDenied, Reason::StreamDenied));
}

#[test]
fn streams_can_be_disabled() {
    let bed = Testbed::with("[sockets]\nenabled = false\n");
    assert_eq!(bed.greeted().request(StreamAttach {}, &[]).unwrap_err(), Reason::StreamsDisabled);
}

#[test]
fn requests_in_the_wrong_order_are_refused() {
    let bed = Testbed::new();
    let mut other = bed.greeted();
    let listener = listener();
    let unattached = other.request(StreamListen { token: 1 }, &[listener.as_fd()]);
    assert_eq!(unattached.unwrap_err(), Reason::UnexpectedMessageType);
    let mut a = Program::new(&bed);
    assert_eq!(a.client.request(StreamAttach {}, &[]).unwrap_err(), Reason::UnexpectedMessageType);
    let token = a.listen(&listener).unwrap();
    let twice = a.client.request(StreamListen { token }, &[listener.as_fd()]);
    assert_eq!(twice.unwrap_err(), Reason::RequestInvalid);
    assert_eq!(
        (a.add_waiter(64), a.add_waiter(5), a.add_waiter(5)),
        (Err(Reason::RequestInvalid), Ok(()), Err(Reason::RequestInvalid))
    );
    let no_eventfd = a.client.request(StreamWaiter { waiter: 1 }, &[listener.as_fd()]);
    assert_eq!(no_eventfd.unwrap_err(), Reason::DoorbellInvalid);
    // The alarm is a socket of the kind that rings doorbells between owners, and nothing else.
    let eventfd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let (alarm, _receiver) = Doorbell::socket_pair().unwrap();
    for (socket, expected) in [
        (listener.as_fd(), Err(Reason::DoorbellInvalid)),
        (eventfd.as_fd(), Err(Reason::DoorbellInvalid)),
        (alarm.as_fd(), Ok(())),
    ] {
        assert_eq!(a.client.request(StreamWaiter { waiter: ALARM }, &[socket]).map(|_| ()), expected);
    }
    let unknown = a.client.request(StreamEnded { stream: 5, violation: false }, &[]);
    assert_eq!(unknown.unwrap_err(), Reason::RequestInvalid);
    let (mut domain, _) = bed.attached("domain");
    assert_eq!(domain.request(StreamAttach {}, &[]).unwrap_err(), Reason::UnexpectedMessageType);
}

#[test]
fn peers_are_notified_of_the_end_of_a_program() {
    let bed = Testbed::new();
    let (mut a, mut b) = (Program::new(&bed), Program::new(&bed));
    let (_tcp, client, _) = pair(&mut a, &mut b);
    let session = a.session;
    drop(a);
    b.client.receive_matching(
        |heard| matches!(sockets(&heard.message), Some(SocketsToClient::PeerLeft(left)) if left.peer == session),
    );
    let row = b.report().streams.remove(0);
    assert_eq!((row.connector.state.as_deref(), row.acceptor.state.as_deref()), (Some("ended"), Some("waiting")));
    b.client.send(StreamEnded { stream: client.message.stream, violation: true }, &[]);
    let report = b.report();
    assert!(report.streams.is_empty());
    assert_eq!(report.refused[0].reason, Reason::StreamViolation.name());
}

#[test]
fn reports_show_what_the_programs_count() {
    let bed = Testbed::new();
    let (mut a, mut b) = (Program::new(&bed), Program::new(&bed));
    let (tcp, client, _) = pair(&mut a, &mut b);
    let memory = SharedMapping::new(Mapping::new(&client.fds[0], STREAM_SIZE, Access::ReadWrite).unwrap());
    for (word, value) in [(TAIL, 5000), (TAIL_HIGH, 1), (TCP_BYTES, 1000), (SWITCH_PATH + 1, 2), (SWITCHES, 1)] {
        memory.store(word, value, Relaxed);
    }
    memory.store(BLOCK_WORDS + HEAD, 4000, Relaxed);
    let report = a.report();
    assert_eq!((report.programs, report.waiting, report.paired), (2, 0, 1));
    let row = &report.streams[0];
    assert_eq!(row.connector.address, tcp.client.local_addr().unwrap().to_string());
    assert_eq!(row.acceptor.address, tcp.server.local_addr().unwrap().to_string());
    assert_eq!((row.connector.path.as_deref(), row.acceptor.path.as_deref()), (Some("large"), Some("tcp")));
    assert_eq!((row.connector.shared_bytes, row.connector.tcp_bytes), (Some((1 << 32) + 4000), Some(1000)));
    assert_eq!((row.connector.read_bytes, row.connector.switches), (Some(4000), Some(1)));
    assert_eq!(row.connector.pid, Some(std::process::id() as i32));
}

#[test]
fn ended_streams_count_for_their_user() {
    let bed = Testbed::with(ALL_USERS);
    let (mut a, mut b) = (Program::new(&bed), Program::new(&bed));
    let (_tcp, client, _) = pair(&mut a, &mut b);
    let memory = SharedMapping::new(Mapping::new(&client.fds[0], STREAM_SIZE, Access::ReadWrite).unwrap());
    for (word, value) in [(TAIL, 5000), (TCP_BYTES, 1000), (SWITCH_PATH + 1, 2), (SWITCHES, 1)] {
        memory.store(word, value, Relaxed);
    }
    memory.store(HEAD, 70, Relaxed); // The acceptor has sent that by TCP.
    assert_eq!(a.report().ended.unwrap().streams, 0);
    for program in [&mut a, &mut b] {
        program.client.send(StreamEnded { stream: client.message.stream, violation: false }, &[]);
    }
    b.report();
    let ended = a.report().ended.unwrap();
    assert_eq!((ended.streams, ended.shared_bytes, ended.tcp_bytes), (1, 4000, 1070));
    if let Some(other) = bed.greeted_as(6001) {
        assert_eq!(Program::of(other).report().ended.unwrap().streams, 0);
    }
}

#[test]
fn sockets_without_a_stream_are_listed_for_their_user() {
    let bed = Testbed::with(&format!("{ALL_USERS}[sockets]\ndeny = [\"127.0.0.2\"]\n"));
    let mut program = Program::new(&bed);
    let listener = listener();
    let (denied, waiting) = (connection_from(Ipv4Addr::new(127, 0, 0, 2), &listener), connection(&listener));
    let (first, second) = (program.show_client(&denied), program.show_client(&waiting));
    assert_eq!(program.refused(first), Reason::StreamDenied);
    program.wait_until_waiting(second);
    let rows = program.report().sockets.unwrap();
    let expected = [("refused", &denied, Reason::StreamDenied), ("waiting", &waiting, Reason::StreamPeerMissing)];
    assert_eq!(rows.len(), expected.len(), "{rows:?}");
    for (row, (state, connection, reason)) in rows.iter().zip(expected) {
        let socket = connection.client.as_fd().try_clone_to_owned().unwrap();
        assert_eq!((row.state.as_str(), row.reason.as_str(), row.inode), (state, reason.name(), inode(&socket)));
        assert_eq!(row.address, connection.client.local_addr().unwrap().to_string());
        assert_eq!(row.peer_address, Some(connection.client.peer_addr().unwrap().to_string()));
        assert_eq!(row.pid, Some(std::process::id() as i32));
    }
    if let Some(other) = bed.greeted_as(6001) {
        assert_eq!(Program::of(other).report().sockets, Some(Vec::new()));
    }
    // A connection that waits and goes is not kept; a refused one is.
    program.client.send(StreamGone { token: second }, &[]);
    let states: Vec<_> = program.report().sockets.unwrap().into_iter().map(|row| row.state).collect();
    assert_eq!(states, ["refused"]);
}

#[test]
fn programs_of_different_users_get_no_stream() {
    let bed = Testbed::with(ALL_USERS);
    let (Some(one), Some(other)) = (bed.greeted_as(1001), bed.greeted_as(1002)) else {
        return eprintln!("skipped: needs root");
    };
    let (mut a, mut b) = (Program::of(one), Program::of(other));
    let tcp = connection(&listener());
    let tokens = (a.show_client(&tcp), b.show_server(&tcp.server));
    assert_eq!((a.refused(tokens.0), b.refused(tokens.1)), (Reason::StreamOwnerDiffers, Reason::StreamOwnerDiffers));
}

const CLIENT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 9, 0, 1), 40_000);
const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 9, 0, 2), 80);

/// A connection between [`CLIENT`] and [`SERVER`] in a namespace, to which both addresses belong.
fn connection_in(host: &Host) -> Connection {
    for address in [CLIENT, SERVER] {
        let mut command = std::process::Command::new("ip");
        command.args(["address", "replace", &format!("{}/32", address.ip()), "dev", "lo"]);
        assert!(host.output(command).unwrap().status.success());
    }
    let connect = || {
        let listener = TcpListener::bind(SERVER).unwrap();
        tcp_socket::save_syns(&listener).unwrap();
        connection_from_port(CLIENT, &listener)
    };
    host.with(connect).unwrap()
}

/// An attacker of the same owner has the addresses of the victim's client in a namespace of its own, and says that it has connected at any
/// time. Returns the attacker and the victim, with the tokens of their sockets, and the connections.
fn attack_across_namespaces(bed: &Testbed, netns: &mut isthmus_netns::Testbed) -> [(Program, u32, Connection); 2] {
    let host = |netns: &mut isthmus_netns::Testbed, name| netns.host(name).unwrap();
    let mut repeated = connection_in(&host(netns, "attacker"));
    repeated.connected_ms = (0, u64::MAX);
    let genuine = connection_in(&host(netns, "victim"));
    let (mut attacker, mut victim) = (Program::new(bed), Program::new(bed));
    let victim_token = victim.show_server(&genuine.server);
    victim.wait_until_waiting(victim_token);
    let token = attacker.show_client(&repeated);
    [(attacker, token, repeated), (victim, victim_token, genuine)]
}

#[test]
fn program_in_another_namespace_cannot_take_over_a_connection() {
    let bed = Testbed::new();
    let Ok(mut netns) = isthmus_netns::Testbed::new().map_err(|why| eprintln!("skipped: {why}")) else { return };
    let [(mut attacker, token, _repeated), (mut victim, victim_token, genuine)] =
        attack_across_namespaces(&bed, &mut netns);
    attacker.wait_until_waiting(token);
    for program in [&mut attacker, &mut victim] {
        let report = program.report();
        assert_eq!((report.paired, report.waiting), (0, 2));
        let reasons: Vec<_> = report.sockets.unwrap().into_iter().map(|row| row.reason).collect();
        assert_eq!(reasons, ["stream-across-namespaces"; 2]);
    }
    // The genuine client is in the namespace of the victim, and comes late.
    let mut client = Program::new(&bed);
    let client_token = client.show_client(&genuine);
    assert_eq!(client.paired(client_token).message.peer, victim.session);
    assert_eq!(victim.paired(victim_token).message.peer, client.session);
}

/// `sockets.across = true` permits it, as the threat model says.
#[test]
fn program_in_another_namespace_can_take_over_a_connection_if_streams_may_cross() {
    let bed = Testbed::with("[sockets]\nacross = true\n");
    let Ok(mut netns) = isthmus_netns::Testbed::new().map_err(|why| eprintln!("skipped: {why}")) else { return };
    let [(mut attacker, token, _repeated), (mut victim, victim_token, _genuine)] =
        attack_across_namespaces(&bed, &mut netns);
    assert_eq!(attacker.paired(token).message.peer, victim.session);
    assert_eq!(victim.paired(victim_token).message.peer, attacker.session);
}

#[test]
fn policy_decides_about_streams_as_about_channels() {
    let bed = Testbed::with("[policy]\nchannels = false\n");
    let (mut a, mut b) = (Program::new(&bed), Program::new(&bed));
    let tcp = connection(&listener());
    let tokens = (a.show_client(&tcp), b.show_server(&tcp.server));
    assert_eq!((a.refused(tokens.0), b.refused(tokens.1)), (Reason::ChannelsForbidden, Reason::ChannelsForbidden));
}

#[test]
fn a_socket_that_is_gone_is_not_paired() {
    let bed = Testbed::new();
    let (mut a, mut b) = (Program::new(&bed), Program::new(&bed));
    let tcp = connection(&listener());
    let token = a.show_client(&tcp);
    a.client.send(StreamGone { token }, &[]);
    assert_eq!(a.report().waiting, 0);
    let token = b.show_server(&tcp.server);
    b.wait_until_waiting(token);
    // The same socket may be shown again.
    let token = a.show_client(&tcp);
    a.paired(token);
}
