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

use crate::testbed::{Client, ReceivedMessage, Testbed, versions_of};

/// Without records of connections.
const UNRECORDED: &str = "[sockets]\nconnection_records = false\n";

pub(crate) const ALL_USERS: &str = "[policy]\nattach = \"any-user\"\n";

/// A program that is attached to streams.
pub(crate) struct Program {
    client: Client,
    pub(crate) session: u32,
    board: OwnedFd,
    listed: SharedMapping,
    next_token: u32,
}

/// A stream as a program receives it.
#[derive(Debug)]
pub(crate) struct Paired {
    pub(crate) message: StreamPaired,
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
    connection_from_port(SocketAddrV4::new(client, 0), listener, None)
}

/// A connection from an address to a listener, or to another address that stands for it.
pub(crate) fn connection_from_port(
    client: SocketAddrV4,
    listener: &TcpListener,
    to: Option<SocketAddrV4>,
) -> Connection {
    let SocketAddr::V4(address) = listener.local_addr().unwrap() else { panic!("it listens on IPv4") };
    let address = to.unwrap_or(address);
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
    pub(crate) fn new(bed: &Testbed) -> Self {
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

    pub(crate) fn is_listed(&self, address: SocketAddr) -> bool {
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

    pub(crate) fn refused(&mut self, token: u32) -> Reason {
        match self.receive_about(token) {
            SocketsToClient::StreamRefused(message) => message.reason,
            other => panic!("{other:?}"),
        }
    }

    /// Waits until a socket was read and waits for its peer.
    pub(crate) fn wait_until_waiting(&mut self, token: u32) {
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

    pub(crate) fn report(&mut self) -> StreamsReport {
        self.client.report(Topic::Streams, &[]).unwrap()
    }
}

/// Two programs with a stream between them.
pub(crate) fn pair(a: &mut Program, b: &mut Program) -> (Connection, Paired, Paired) {
    let connection = connection(&listener());
    let client = a.show_client(&connection);
    a.wait_until_waiting(client); // So that it is not the other one that waits.
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
fn listeners_are_listed_for_their_owner_while_they_listen() {
    let bed = Testbed::with(&format!("{ALL_USERS}{UNRECORDED}"));
    let (mut a, b) = (Program::new(&bed), Program::new(&bed));
    let other_owner = bed.greeted_as(6001).map(Program::of);
    let (one, other) = (listener(), TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap());
    let (address, any_address) = (one.local_addr().unwrap(), other.local_addr().unwrap());
    let token = a.listen(&one).unwrap();
    a.listen(&other).unwrap();
    let any: SocketAddr = (Ipv4Addr::UNSPECIFIED, any_address.port()).into();
    assert!(b.is_listed(address) && b.is_listed(any));
    assert!(other_owner.is_none_or(|program| !program.is_listed(address) && !program.is_listed(any)));
    a.client.send(StreamUnlisten { token }, &[]);
    assert_eq!(a.report().listening, 1);
    assert!(!b.is_listed(address));
    drop(a);
    eventually(Deadline::secs(20), || !b.is_listed(any)).unwrap();
}

/// Not a test: a program that closes its listening socket expects that connections are refused at once, as by TCP alone.
#[test]
#[ignore = "run by the test below"]
fn close_listeners_that_are_answered() {
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

/// Runs in a process of its own: a child that another test starts has all sockets open until it executes its program.
#[test]
fn a_listener_that_is_answered_is_not_open_in_the_daemon() {
    let mut program = std::process::Command::new(std::env::current_exe().unwrap());
    let test = ["--exact", "streams::close_listeners_that_are_answered", "--ignored", "--nocapture"];
    let output = program.args(test).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
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
fn kept_ends_are_listed_for_their_user_until_they_end() {
    let bed = Testbed::with(ALL_USERS);
    let mut program = Program::new(&bed);
    let text = |text: &str| Text::new(text).unwrap();
    let kept =
        |token: u32, local: &str, peer: &str| StreamKept { token, inode: 5, local: text(local), peer: text(peer) };
    for (local, peer) in [("10.0.0.1", "10.0.0.2:80"), ("10.0.0.1:9", "name:80")] {
        assert_eq!(program.client.request(kept(1, local, peer), &[]).map(drop), Err(Reason::RequestInvalid));
    }
    program.client.send(kept(1, "10.0.0.1:9", "[::1]:80"), &[]);
    program.client.send(kept(2, "[::1]:80", "10.0.0.1:9"), &[]);
    assert_eq!(
        program.client.request(kept(2, "10.0.0.1:9", "10.0.0.2:80"), &[]).map(drop),
        Err(Reason::RequestInvalid)
    );
    let listed = |program: &mut Program| -> Vec<(String, String, Option<String>)> {
        let rows = program.report().sockets.unwrap().into_iter();
        rows.map(|row| (row.state, row.address, row.peer_address)).collect()
    };
    let row = |local: &str, peer: &str| ("kept".to_owned(), local.to_owned(), Some(peer.to_owned()));
    assert_eq!(listed(&mut program), [row("10.0.0.1:9", "[::1]:80"), row("[::1]:80", "10.0.0.1:9")]);
    if let Some(other) = bed.greeted_as(6001) {
        assert_eq!(Program::of(other).report().sockets, Some(Vec::new()));
    }
    program.client.send(StreamGone { token: 1 }, &[]);
    assert_eq!(listed(&mut program), [row("[::1]:80", "10.0.0.1:9")]);
    drop(program);
    let mut next = Program::new(&bed);
    let gone = eventually(Deadline::secs(6), || listed(&mut next).is_empty());
    gone.unwrap_or_else(|error| panic!("{error}: {:?}", listed(&mut next)));
}

#[test]
fn kept_ends_of_one_program_are_bounded_and_take_no_place_of_shown_sockets() {
    let bed = Testbed::with("");
    let mut program = Program::new(&bed);
    let kept = |token: u32| {
        let address = Text::new("10.0.0.1:9").unwrap();
        StreamKept { token, inode: 5, local: address.clone(), peer: address }
    };
    for token in 10_001..=14_096 {
        program.client.send(kept(token), &[]);
    }
    assert_eq!(program.client.request(kept(20_000), &[]).map(drop), Err(Reason::StreamsFull));
    let tcp = connection(&listener());
    let token = program.show_client(&tcp);
    program.wait_until_waiting(token);
}

#[test]
fn programs_of_different_users_get_no_stream_by_default() {
    let bed = Testbed::with(ALL_USERS);
    let Some([mut a, mut b]) = programs_of(&bed, [1001, 1002]) else { return };
    assert_eq!(refused_pair(&mut a, &mut b), [Reason::TalkForbidden; 2]);
}

/// The policy that lets users have streams with one another.
const ALL_TALK: &str = "[policy]\nattach = \"any-user\"\nrules = [{ allow = true }]\n";

/// Returns programs of these users, or none without the right to be other users.
fn programs_of<const N: usize>(bed: &Testbed, users: [u32; N]) -> Option<[Program; N]> {
    let programs: Option<Vec<_>> = users.into_iter().map(|user| bed.greeted_as(user).map(Program::of)).collect();
    let Some(programs) = programs else {
        eprintln!("skipped: only root can be other users");
        return None;
    };
    programs.try_into().ok()
}

/// Shows both ends of a connection that gets no stream. Returns the reasons.
fn refused_pair(a: &mut Program, b: &mut Program) -> [Reason; 2] {
    let tcp = connection(&listener());
    let tokens = (a.show_client(&tcp), b.show_server(&tcp.server));
    [a.refused(tokens.0), b.refused(tokens.1)]
}

impl Program {
    /// Receives the next board for another owner. Returns the message, and the board's memory if it is new.
    fn owner_board(&mut self) -> (StreamBoard, Option<OwnedFd>) {
        let mut heard = self
            .client
            .receive_matching(|heard| matches!(sockets(&heard.message), Some(SocketsToClient::StreamBoard(_))));
        match sockets(&heard.message) {
            Some(SocketsToClient::StreamBoard(message)) => (message.clone(), heard.fds.pop()),
            _ => unreachable!(),
        }
    }

    fn add_board_waiter(&mut self, board: u32, waiter: u8, doorbell: impl AsFd) -> Result<(), Reason> {
        self.client.request(StreamBoardWaiter { board, waiter }, &[doorbell.as_fd()]).map(drop)
    }
}

#[test]
fn each_owner_among_the_peers_gets_a_board_of_its_own() {
    let bed = Testbed::with(ALL_TALK);
    let Some([mut a, mut b, mut third]) = programs_of(&bed, [1001, 1002, 1001]) else { return };
    a.add_waiter(3).unwrap();
    let (_tcp, at_a, at_b) = pair(&mut a, &mut b);
    let (board_a, memory_a) = a.owner_board();
    let (board_b, memory_b) = b.owner_board();
    assert_eq!((board_a.peer, board_b.peer, board_a.new_board, board_b.new_board), (b.session, a.session, true, true));
    let [memory_a, memory_b] = [memory_a, memory_b].map(|memory| inode(&memory.unwrap()));
    assert_eq!((inode(&at_a.fds[1]), inode(&at_b.fds[1])), (memory_b, memory_a), "each has the other's board");
    assert_ne!(memory_a, inode(&a.board));

    // The doorbells of the own owner are for it alone, and those of the other one are sockets.
    let (bell, _receiver) = Doorbell::socket_pair().unwrap();
    let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    assert_eq!(a.add_board_waiter(board_a.board, 5, &event), Err(Reason::DoorbellInvalid));
    assert_eq!(a.add_board_waiter(board_a.board, ALARM, &bell), Err(Reason::RequestInvalid));
    for number in [0, board_a.board + 1] {
        assert_eq!(a.add_board_waiter(number, 5, &bell), Err(Reason::RequestInvalid));
    }
    assert_eq!(a.add_board_waiter(board_a.board, 5, &bell), Ok(()));
    assert_eq!(b.peer_waiter(), (a.session, 5));
    assert_eq!(a.add_board_waiter(board_a.board, 5, &bell), Err(Reason::RequestInvalid), "it was added");

    // A third program, of the first owner, gets the other board.
    let (_tcp, at_a, at_third) = pair(&mut a, &mut third);
    assert_eq!((inode(&at_a.fds[1]), inode(&at_third.fds[1])), (inode(&third.board), inode(&a.board)));
    assert_eq!(third.peer_waiter(), (a.session, 3));
    third.client.expect_no_message();
    // Another program of the second owner gets the board that is there, with its waiters.
    let Some([mut fourth]) = programs_of(&bed, [1002]) else { return };
    let (_tcp, _, at_fourth) = pair(&mut a, &mut fourth);
    assert_eq!((inode(&at_fourth.fds[1]), fourth.peer_waiter()), (memory_a, (a.session, 5)));
    let (board, memory) = a.owner_board();
    assert_eq!((board.board, board.new_board, memory.is_none()), (board_a.board, false, true));
}

#[test]
fn streams_of_two_owners_count_for_both() {
    let bed = Testbed::with(&format!("{ALL_TALK}[sockets]\nstreams_max = 1\n"));
    let Some([mut a, mut b, mut third]) = programs_of(&bed, [1001, 1002, 1003]) else { return };
    let (_tcp, client, _) = pair(&mut a, &mut b);
    for program in [&mut a, &mut b] {
        let report = program.report();
        assert_eq!((report.streams[0].connector.uid, report.streams[0].acceptor.uid), (1001, 1002));
        assert_eq!(refused_pair(&mut third, program), [Reason::StreamsFull; 2]);
    }
    assert_eq!((third.report().streams.len(), third.report().hidden), (0, Some(1)));
    for program in [&mut a, &mut b] {
        program.client.send(StreamEnded { stream: client.message.stream, violation: false }, &[]);
        program.report();
    }
    for program in [&mut a, &mut b] {
        assert_eq!(program.report().ended.unwrap().streams, 1);
    }
    assert_eq!(Program::new(&bed).report().ended.unwrap().streams, 1, "root sees it once");
    pair(&mut a, &mut third);
}

#[test]
fn program_of_an_older_version_gets_no_stream_with_another_user() {
    let bed = Testbed::with(ALL_TALK);
    let Some([mut a, mut b]) = programs_of(&bed, [1001, 1002]) else { return };
    let Some(mut old) = bed.greeted_as_version(1002, versions_of(StreamBoard::SINCE - 1)).map(Program::of) else {
        return;
    };
    assert_eq!(refused_pair(&mut a, &mut old), [Reason::StreamOwnerDiffers; 2]);
    assert_eq!(refused_pair(&mut old, &mut a), [Reason::StreamOwnerDiffers; 2]);
    pair(&mut b, &mut old);
}

#[test]
fn boards_are_bounded_and_end_with_their_last_peer() {
    const OWNERS_MAX: usize = isthmus_layout::limits::READY_MAPS_MAX;
    let bed = Testbed::with(ALL_TALK);
    let Some([mut server]) = programs_of(&bed, [1000]) else { return };
    let own_fds = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mut clients = Vec::new();
    for user in 1..OWNERS_MAX as u32 {
        let Some([mut client]) = programs_of(&bed, [1000 + user]) else { return };
        let (tcp, ..) = pair(&mut client, &mut server);
        let (board, _) = server.owner_board();
        assert_eq!(server.add_board_waiter(board.board, 0, Doorbell::socket_pair().unwrap().1), Ok(()));
        assert_eq!(client.peer_waiter(), (server.session, 0));
        clients.push((client, tcp));
    }
    let Some([mut late]) = programs_of(&bed, [2000]) else { return };
    assert_eq!(refused_pair(&mut late, &mut server), [Reason::ReadyMapsFull; 2]);
    // The own owner has its board from the beginning.
    let Some([mut own]) = programs_of(&bed, [1000]) else { return };
    pair(&mut own, &mut server);
    // The place is free again once the last program of an owner has ended.
    let (first, _) = clients.remove(0);
    let session = first.session;
    drop(first);
    server.client.receive_matching(
        |heard| matches!(sockets(&heard.message), Some(SocketsToClient::PeerLeft(left)) if left.peer == session),
    );
    let before = own_fds();
    let (_tcp, ..) = pair(&mut late, &mut server);
    let (board, memory) = server.owner_board();
    assert_eq!((board.board, memory.is_some()), (OWNERS_MAX as u32, true), "a number that was not used before");
    drop((late, memory, own, clients, server));
    // The daemon is in this process.
    let is_less = eventually(Deadline::secs(60), || own_fds() + 2 * OWNERS_MAX < before);
    assert!(is_less.is_ok(), "{before} before, {} after", own_fds());
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
        connection_from_port(CLIENT, &listener, None)
    };
    host.with(connect).unwrap()
}

/// An attacker of the same owner has the addresses of the victim's client in a namespace of its own, and says that it has connected at any
/// time. Returns the attacker and the victim, with the tokens of their sockets, and the connections.
pub(crate) fn attack_across_namespaces(
    bed: &Testbed,
    netns: &mut isthmus_netns::Testbed,
) -> [(Program, u32, Connection); 2] {
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
    let bed = Testbed::with(UNRECORDED);
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
    let bed = Testbed::with("[sockets]\nconnection_records = false\nacross = true\n");
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

#[test]
fn program_gets_few_doorbells_from_one_other_owner() {
    let bed = Testbed::with(ALL_TALK);
    let Some([mut server]) = programs_of(&bed, [1001]) else { return };
    let (bell, _receiver) = Doorbell::socket_pair().unwrap();
    let (mut clients, mut added) = (Vec::new(), 0);
    // A program that reads its messages has no other limit before this one.
    let mut add_from = |server: &mut Program, waiters: std::ops::Range<u8>| {
        let [mut client] = programs_of(&bed, [1002]).unwrap();
        let (tcp, ..) = pair(&mut client, server);
        let board = client.owner_board().0.board;
        let outcome = waiters.clone().try_for_each(|waiter| {
            client.add_board_waiter(board, waiter, &bell)?;
            server.peer_waiter();
            added += 1;
            Ok(())
        });
        clients.push((client, tcp));
        (outcome, added)
    };
    for _ in 0..4 {
        assert_eq!(add_from(&mut server, 0..60).0, Ok(()));
    }
    assert_eq!(add_from(&mut server, 0..60), (Err(Reason::StreamsFull), 256));
    drop(clients.pop());
    server.client.receive_matching(|heard| matches!(sockets(&heard.message), Some(SocketsToClient::PeerLeft(_))));
    let [mut last] = programs_of(&bed, [1002]).unwrap();
    pair(&mut last, &mut server);
    let board = last.owner_board().0.board;
    assert_eq!(last.add_board_waiter(board, 0, &bell), Ok(()));
}

/// The program has the other end of the socket by which its alarm is rung. It sends a socket into it that lingers when it is closed.
#[test]
fn content_of_a_doorbell_does_not_block_the_daemon() {
    use std::io::Write as _;
    let bed = Testbed::new();
    let program = Program::new(&bed);
    let Connection { client: mut lingering, server: unread, .. } = connection(&listener());
    rustix::net::sockopt::set_socket_linger(&lingering, Some(std::time::Duration::from_secs(3600))).unwrap();
    lingering.set_nonblocking(true).unwrap();
    while lingering.write(&[0; 65_536]).is_ok() {}
    let (ringing, receiving) = isthmus_platform::seqpacket::pair().unwrap();
    isthmus_platform::seqpacket::send(&receiving, b"x", &[lingering.as_fd()]).unwrap();
    drop((lingering, receiving));
    let Program { mut client, .. } = program;
    client.request(StreamWaiter { waiter: ALARM }, &[ringing.as_fd()]).unwrap();
    drop(ringing); // First, because the last close waits for the content.
    drop(client);
    // The session of the program ends, and the daemon answers the others.
    let mut other = Program::new(&bed);
    eventually(Deadline::secs(20), || other.report().programs == 1).unwrap();
    drop(unread); // The thread that closes it goes on.
}
