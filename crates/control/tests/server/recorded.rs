//! Connections that the kernel records: their ends are recognised in any network namespaces, and by nothing but their numbers.
//!
//! Where this process may not have connections recorded, each test says "skipped" and why.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::process::{Command, Stdio};

use isthmus_layout::reason::Reason;
use isthmus_netns::{Host, Wire};
use isthmus_report::StreamsReport;

use crate::streams::{
    ALL_USERS, Connection, Program, attack_across_namespaces, connection, connection_from_port, listener,
};
use crate::testbed::Testbed;

/// A daemon for which the kernel records connections.
fn bed(more: &str) -> Option<Testbed> {
    let bed = Testbed::with(more);
    let report: StreamsReport = bed.greeted().report(isthmus_layout::control::Topic::Streams, &[]).unwrap();
    match report.unrecorded {
        None => Some(bed),
        Some(why) => {
            assert!(why.contains("not permitted") || why.contains("no cgroup2"), "{why}");
            eprintln!("skipped: {why}");
            None
        }
    }
}

/// Two connected hosts.
struct TwoHosts {
    client: Host,
    server: Host,
    _netns: isthmus_netns::Testbed,
}

const SERVER_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

impl TwoHosts {
    fn new() -> Option<Self> {
        let made = isthmus_netns::Testbed::new().and_then(|mut netns| {
            let (client, server) = (netns.host("client")?, netns.host("server")?);
            netns.link(&client, &server, &Wire::default())?;
            Ok(Self { client, server, _netns: netns })
        });
        made.map_err(|why| eprintln!("skipped: {why}")).ok()
    }

    /// A connection from the one host to the other. The client connects to `to` instead of the address where the server listens.
    fn connection(&self, to: Option<SocketAddrV4>) -> Connection {
        let listener = self.server.with(|| TcpListener::bind((SERVER_IP, 8000)).unwrap()).unwrap();
        let unbound = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
        self.client.with(|| connection_from_port(unbound, &listener, to)).unwrap()
    }
}

/// Shows both ends by programs of their own, and expects a stream.
fn expect_stream(bed: &Testbed, connection: &Connection) {
    let (mut a, mut b) = (Program::new(bed), Program::new(bed));
    let tokens = (a.show_client(connection), b.show_server(&connection.server));
    assert_eq!((a.paired(tokens.0).message.peer, b.paired(tokens.1).message.peer), (b.session, a.session));
    let row = &a.report().streams[0];
    let of = |address: std::io::Result<std::net::SocketAddr>| Some(address.unwrap().to_string());
    assert_eq!(row.connector.peer_address, of(connection.client.peer_addr()));
    assert_eq!(row.acceptor.peer_address, of(connection.server.peer_addr()));
}

#[test]
fn ends_in_two_namespaces_are_recognised() {
    let Some((bed, hosts)) = bed("").zip(TwoHosts::new()) else { return };
    expect_stream(&bed, &hosts.connection(None));
}

/// Both the address of the server and that of the client are others at the far end.
#[test]
fn ends_behind_translated_addresses_are_recognised() {
    let Some((bed, hosts)) = bed("").zip(TwoHosts::new()) else { return };
    let rules = "table ip nat {
        chain out { type nat hook output priority -100; ip daddr 10.77.0.9 tcp dport 80 dnat to 10.0.0.2:8000; }
        chain post { type nat hook postrouting priority 100; ip daddr 10.0.0.2 masquerade random; }
    }";
    let mut nft = Command::new("nft");
    nft.args(["-f", "-"]).stdin(Stdio::piped());
    let Ok(mut nft) = hosts.client.spawn(nft) else { return eprintln!("skipped: nft is not installed") };
    nft.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
    assert!(nft.wait().unwrap().success());
    let mut route = Command::new("ip");
    route.args(["route", "add", "10.77.0.0/16", "via", "10.0.0.2"]);
    assert!(hosts.client.output(route).unwrap().status.success());
    let connection = hosts.connection(Some(SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 9), 80)));
    assert_ne!(connection.client.local_addr().unwrap(), connection.server.peer_addr().unwrap(), "it is translated");
    expect_stream(&bed, &connection);
}

/// The take-over that addresses and times permit: the attacker has the addresses of the victim's client, and says that it has connected
/// at any time. Its own connection has other numbers.
#[test]
fn program_with_the_same_addresses_takes_over_nothing() {
    let Some(bed) = bed("[sockets]\nacross = true\n") else { return };
    let Ok(mut netns) = isthmus_netns::Testbed::new().map_err(|why| eprintln!("skipped: {why}")) else { return };
    let [(mut attacker, token, _repeated), (mut victim, victim_token, genuine)] =
        attack_across_namespaces(&bed, &mut netns);
    attacker.wait_until_waiting(token);
    let reasons: Vec<_> = victim.report().sockets.unwrap().into_iter().map(|row| row.reason).collect();
    assert_eq!(reasons, ["stream-peer-missing"; 2]);
    let mut client = Program::new(&bed);
    let client_token = client.show_client(&genuine);
    assert_eq!(client.paired(client_token).message.peer, victim.session);
    assert_eq!(victim.paired(victim_token).message.peer, client.session);
}

/// A connection that was closed without notice still waits when another one gets its addresses. Before, only the time of the SYN told
/// them apart.
#[test]
fn reused_ports_are_another_connection() {
    let Some(bed) = bed("") else { return };
    let (mut stale, mut client, mut server) = (Program::new(&bed), Program::new(&bed), Program::new(&bed));
    let listener = listener();
    let first = connection(&listener);
    let token = stale.show_client(&first);
    stale.wait_until_waiting(token);
    let std::net::SocketAddr::V4(address) = first.client.local_addr().unwrap() else { panic!("it is IPv4") };
    for socket in [&first.client, &first.server] {
        rustix::net::sockopt::set_socket_linger(socket, Some(std::time::Duration::ZERO)).unwrap(); // The close resets it.
    }
    drop(first);
    let second = connection_from_port(address, &listener, None);
    let tokens = (server.show_server(&second.server), client.show_client(&second));
    assert_eq!(server.paired(tokens.0).message.peer, client.session);
    assert_eq!(client.paired(tokens.1).message.peer, server.session);
    assert_eq!(stale.report().waiting, 1);
}

#[test]
fn connection_that_is_older_than_the_program_is_recognised_in_its_namespace_only() {
    let Some(hosts) = TwoHosts::new() else { return };
    let (near, far) = (connection(&listener()), hosts.connection(None));
    let Some(bed) = bed("") else { return };
    expect_stream(&bed, &near);
    let (mut a, mut b) = (Program::new(&bed), Program::new(&bed));
    let token = a.show_client(&far);
    a.wait_until_waiting(token);
    let token = b.show_server(&far.server);
    b.wait_until_waiting(token);
    let reasons: Vec<_> = a.report().sockets.unwrap().into_iter().map(|row| row.reason).collect();
    assert_eq!(reasons, ["stream-unrecorded"; 2]);
}

/// The page says nothing about the ports of other programs, because each connection may be worth a question.
#[test]
fn every_address_is_listed() {
    let Some(bed) = bed(ALL_USERS) else { return };
    let program = Program::new(&bed);
    assert!((0..=u16::MAX).all(|port| program.is_listed((Ipv4Addr::LOCALHOST, port).into())));
}

/// A policy for programs of two users in two containers.
#[test]
fn ends_of_two_owners_in_two_namespaces_are_a_stream_if_policy_lets_them_talk() {
    const RULE: &str = "[policy]\nattach = \"any-user\"\ntalk = \"all\"\n";
    let Some(hosts) = TwoHosts::new() else { return };
    for (policy, may_talk) in [(RULE, true), (ALL_USERS, false)] {
        let Some(bed) = bed(policy) else { return };
        let connection = hosts.connection(None);
        let (Some(one), Some(other)) = (bed.greeted_as(1001), bed.greeted_as(1002)) else {
            return eprintln!("skipped: needs root");
        };
        let (mut a, mut b) = (Program::of(one), Program::of(other));
        let tokens = (a.show_client(&connection), b.show_server(&connection.server));
        if may_talk {
            assert_eq!((a.paired(tokens.0).message.peer, b.paired(tokens.1).message.peer), (b.session, a.session));
        } else {
            assert_eq!([a.refused(tokens.0), b.refused(tokens.1)], [Reason::TalkForbidden; 2]);
        }
    }
}
