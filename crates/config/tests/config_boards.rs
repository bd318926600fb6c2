//! MX boards: what is made of their settings, and what is said about each mistake in them but for those in links.

use std::path::Path;

use insta::assert_snapshot;
use isthmus_config::{BoardNic, Carrier, ConfigFile, Inputs, LinkPlan, Loaded, MxHost, Role, UDP_PORT, UdpPeer, load};
use isthmus_mx::net::EndpointTuning;
use isthmus_mx::wire::Dialect;

fn inputs(file: &str) -> Inputs {
    let file = ConfigFile::Given { path: "isthmus.toml".into(), bytes: file.into() };
    Inputs { file, ..Inputs::bare(Role::System) }
}

fn loaded(inputs: &Inputs) -> Loaded {
    load(inputs).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the report about a file.
fn refusal(file: &str) -> String {
    load(&inputs(file)).expect_err("it is wrong").to_string()
}

/// Boards with every field that there is.
const LINKED: &str = r#"
[[mx.board]]
dialect = "open-mx"
ethertype = 0x88B5
frame_bytes_max = 9000
discovery = false
peers = [{ mac = "00:1b:21:bb:00:02", name = "node8:0" }, { mac = "00:1b:21:bb:00:02", name = "alias" }]
peers_file = "/etc/open-mx/peers"
resend_ms = 40
give_up_s = 3
links = [
  { interface = "eth0" },
  { interface = "eth1", kind = "xdp", rank = 7 },
  { udp = "10.0.0.1", peers = ["10.0.0.2", "10.0.0.3:7000", "node9", "node10.lan:7001"] },
  { udp = "[fd00::1]:7000", peers = ["fd00::2", "[fd00::3]", "[fd00::4]:7000"], interface = "eth2", rank = 255 },
]
[[mx.board]]
dialect = "mx"
mac = "02:00:00:00:00:02"
[[mx.board.links]]
interface = "eth0"
kind = "packet"
"#;

fn node7() -> MxHost {
    MxHost { name: "node7".to_owned(), id: [7; 32] }
}

#[test]
fn reads_the_links_of_boards() {
    let config = loaded(&inputs(LINKED)).config;
    let plans = config.mx.plans(&node7()).expect("they can be told apart");
    assert_eq!(plans[0].nic, BoardNic::OfInterface("eth0".to_owned()));

    let network = plans[0].network.as_ref().expect("it has links");
    assert_eq!((network.dialect, network.frame_bytes_max), (Dialect::OpenMx { ethertype: 0x88b5 }, Some(9000)));
    assert!(!network.discovery);
    let peers: Vec<_> = network.peers.iter().map(|peer| (peer.nic.to_string(), peer.name.to_string())).collect();
    let peer = |name: &str| ("00:1b:21:bb:00:02".to_owned(), name.to_owned());
    assert_eq!(peers, [peer("node8:0"), peer("alias")]);
    assert_eq!(network.peers_file.as_deref(), Some(Path::new("/etc/open-mx/peers")));
    assert_eq!((network.tuning().resend_us, network.tuning().resends_max), (40_000, 75));

    let address = |text: &str| UdpPeer::Address(text.parse().expect("an address"));
    let name = |host: &str, port| UdpPeer::Name { host: host.to_owned(), port };
    let links = [
        LinkPlan { rank: 0, carrier: Carrier::Packet { interface: "eth0".to_owned() } },
        LinkPlan { rank: 7, carrier: Carrier::Xdp { interface: "eth1".to_owned() } },
        LinkPlan {
            rank: 2,
            carrier: Carrier::Udp {
                local: "10.0.0.1:34527".parse().expect("an address"),
                peers: vec![
                    address("10.0.0.2:34527"),
                    address("10.0.0.3:7000"),
                    name("node9", UDP_PORT),
                    name("node10.lan", 7001),
                ],
                interface: None,
            },
        },
        LinkPlan {
            rank: 255,
            carrier: Carrier::Udp {
                local: "[fd00::1]:7000".parse().expect("an address"),
                peers: vec![address("[fd00::2]:34527"), address("[fd00::3]:34527"), address("[fd00::4]:7000")],
                interface: Some("eth2".to_owned()),
            },
        },
    ];
    assert_eq!(network.links, links);

    let native = plans[1].network.as_ref().expect("it has links");
    assert_eq!((native.dialect, native.frame_bytes_max), (Dialect::Mx, Some(4144)));
    assert_eq!((native.discovery, native.tuning()), (true, EndpointTuning::DEFAULT));
    assert_eq!(native.links, [LinkPlan { rank: 0, carrier: Carrier::Packet { interface: "eth0".to_owned() } }]);
}

#[test]
fn board_with_one_link_reaches_other_hosts() {
    let by_set = Inputs { sets: vec!["mx.board=[{ links = [{ interface = 'eth0' }] }]".to_owned()], ..inputs("") };
    let loaded = loaded(&by_set);
    let plans = loaded.config.mx.plans(&node7()).expect("there is one");
    let network = plans[0].network.as_ref().expect("it has a link");
    assert_eq!((network.dialect, network.frame_bytes_max), (Dialect::OPEN_MX, None));
    assert!(network.discovery && network.peers.is_empty() && network.peers_file.is_none());
    let check = loaded.check_text();
    let board = check.lines().find(|line| line.starts_with("  {")).expect("a board");
    let with_defaults = "  { dialect = \"open-mx\", discovery = true, ethertype = 34527, give_up_s = 500, \
        links = [{ interface = \"eth0\", kind = \"packet\", rank = 0 }], peers = [], resend_ms = 500 },";
    assert_eq!(board, with_defaults);
    let without = self::loaded(&inputs("[[mx.board]]\nlinks = []\n"));
    assert_eq!(without.config, self::loaded(&inputs("")).config);
}

#[test]
fn boards_may_share_an_interface_with_addresses_of_their_own() {
    let file = "[[mx.board]]\nlinks = [{ interface = 'eth0' }]\n\
        [[mx.board]]\nmac = '02:00:00:00:00:01'\nlinks = [{ interface = 'eth0' }]\n\
        [[mx.board]]\nlinks = [{ udp = '0.0.0.0', interface = 'eth0', peers = ['a'] }]\n\
        [[mx.board]]\nlinks = [{ udp = '0.0.0.0', interface = 'eth1', peers = ['a'] }]\n";
    assert_eq!(loaded(&inputs(file)).config.mx.plans(&node7()).map(|plans| plans.len()), Ok(4));
}

#[test]
fn printed_boards_round_trip() {
    let first = loaded(&inputs(LINKED));
    let again = loaded(&inputs(&first.check_text()));
    assert_eq!(again.config, first.config);
    assert_eq!(again.check_text(), first.check_text());
}

#[test]
fn rejects_wrong_boards() {
    assert_snapshot!(refusal(
        "[[mx.board]]\nmac = \"01:00:00:00:00:01\"\nname = \"a b\"\nendpoints_max = 256\nport = 1\n\
         [[mx.board]]\nmac = \"02:00:00:00:00\"\n[[mx.board]]\nmac = 2\n"
    ), @r#"
    isthmus.toml:2:7: mx.board[0].mac is "01:00:00:00:00:01", but must be the address of one station, as in "02:00:5e:00:00:01"
        2 | mac = "01:00:00:00:00:01"
          |       ^^^^^^^^^^^^^^^^^^^
          = an odd first octet means a group of stations
    isthmus.toml:3:8: mx.board[0].name is "a b", but must be a name of 1 to 79 printable ASCII characters without spaces
        3 | name = "a b"
          |        ^^^^^
    isthmus.toml:4:17: mx.board[0].endpoints_max is 256, but must be an integer from 1 to 255
        4 | endpoints_max = 256
          |                 ^^^
    isthmus.toml:5:1: there is no key mx.board[0].port
        5 | port = 1
          | ^^^^
          = a board has mac, name, endpoints_max, links, dialect, ethertype, frame_bytes_max, discovery, peers, peers_file, resend_ms and give_up_s
    isthmus.toml:7:7: mx.board[1].mac is "02:00:00:00:00", but must be the address of one station, as in "02:00:5e:00:00:01"
        7 | mac = "02:00:00:00:00"
          |       ^^^^^^^^^^^^^^^^
    isthmus.toml:9:7: mx.board[2].mac is 2, but must be the address of one station, as in "02:00:5e:00:00:01"
        9 | mac = 2
          |       ^
          = strings are written in quotes: "2"
    "#);
    assert_snapshot!(refusal(
        "mx.board = [{ name = \"a\" }, { name = \"a\" }, { mac = \"02:00:00:00:00:01\" }, { mac = \"02-00-00-00-00-01\" }]\n"
    ), @r#"
    isthmus.toml:1:29: mx.board repeats the name "a"
        1 | mx.board = [{ name = "a" }, { name = "a" }, { mac = "02:00:00:00:00:01" }, { mac = "02-00-00-00-00-01"…
          |                             ^^^^^^^^^^^^^^
    isthmus.toml:1:76: mx.board repeats the address 02:00:00:00:00:01
        1 | …ame = "a" }, { name = "a" }, { mac = "02:00:00:00:00:01" }, { mac = "02-00-00-00-00-01" }]
          |                                                              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    "#);
    assert_snapshot!(refusal("[mx]\nboard = \"02:00:00:00:00:01\"\n"), @r#"
    isthmus.toml:2:9: mx.board is "02:00:00:00:00:01", but must be a list of at most 32 tables { mac, name, endpoints_max, links, dialect, ethertype, frame_bytes_max, discovery, peers, peers_file, resend_ms, give_up_s }
        2 | board = "02:00:00:00:00:01"
          |         ^^^^^^^^^^^^^^^^^^^
          = boards are written as in [{ name = "web:0", endpoints_max = 64 }]
    "#);
    assert_snapshot!(refusal(&format!("mx.board = [{}]\n", "{},".repeat(33))), @r#"
    isthmus.toml:1:12: mx.board is a list of 33, but must be a list of at most 32 tables { mac, name, endpoints_max, links, dialect, ethertype, frame_bytes_max, discovery, peers, peers_file, resend_ms, give_up_s }
        1 | mx.board = [{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}…
          |            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    "#);
}

#[test]
fn rejects_wrong_values_in_fields_of_a_network() {
    assert_snapshot!(refusal(
        "[[mx.board]]\nlinks = [{ interface = 'eth0' }]\ndialect = \"openmx\"\nethertype = 0x200\nframe_bytes_max = 100\n\
         discovery = \"no\"\npeers_file = \"peers\"\nresend_ms = 0.5\ngive_up_s = 0\n"
    ), @r#"
    isthmus.toml:3:11: mx.board[0].dialect is "openmx", but must be "open-mx" or "mx"
        3 | dialect = "openmx"
          |           ^^^^^^^^
          = did you mean "open-mx"?
    isthmus.toml:4:13: mx.board[0].ethertype is 0x200, but must be an ethertype from 0x0600 to 0xffff
        4 | ethertype = 0x200
          |             ^^^^^
    isthmus.toml:5:19: mx.board[0].frame_bytes_max is 100, but must be an integer from 176 to 65567 bytes
        5 | frame_bytes_max = 100
          |                   ^^^
    isthmus.toml:6:13: mx.board[0].discovery is "no", but must be true or false
        6 | discovery = "no"
          |             ^^^^
          = write false, without quotes
    isthmus.toml:7:14: mx.board[0].peers_file is "peers", but must be the absolute path of a file
        7 | peers_file = "peers"
          |              ^^^^^^^
    isthmus.toml:8:13: mx.board[0].resend_ms is 0.5, but must be an integer from 40 to 60000 ms
        8 | resend_ms = 0.5
          |             ^^^
    isthmus.toml:9:13: mx.board[0].give_up_s is 0, but must be an integer from 1 to 86400 s
        9 | give_up_s = 0
          |             ^
    "#);
}

#[test]
fn rejects_wrong_peers() {
    assert_snapshot!(refusal(
        "[[mx.board]]\nlinks = [{ interface = 'eth0' }]\npeers = [\n{ mac = '02:00:00:00:00:01' },\n{ name = 'b' },\n\
         { mac = '03:00:00:00:00:01', name = '' },\n{ nic = 1, name = 'x', mac = '02:00:00:00:00:01' },\n\
         { mac = '02:00:00:00:00:01', name = 'a' },\n{ mac = '02:00:00:00:00:02', name = 'a' },\n'a',\n]\n"
    ), @r#"
    isthmus.toml:4:1: mx.board[0].peers[0] has no name
        4 | { mac = '02:00:00:00:00:01' },
          | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          = name is a name of 1 to 79 printable ASCII characters without spaces
    isthmus.toml:5:1: mx.board[0].peers[1] has no mac
        5 | { name = 'b' },
          | ^^^^^^^^^^^^^^
          = mac is the address of one station, as in "02:00:5e:00:00:01"
    isthmus.toml:6:9: mx.board[0].peers[2].mac is "03:00:00:00:00:01", but must be the address of one station, as in "02:00:5e:00:00:01"
        6 | { mac = '03:00:00:00:00:01', name = '' },
          |         ^^^^^^^^^^^^^^^^^^^
          = an odd first octet means a group of stations
    isthmus.toml:6:37: mx.board[0].peers[2].name is "", but must be a name of 1 to 79 printable ASCII characters without spaces
        6 | { mac = '03:00:00:00:00:01', name = '' },
          |                                     ^^
    isthmus.toml:7:3: there is no key mx.board[0].peers[3].nic
        7 | { nic = 1, name = 'x', mac = '02:00:00:00:00:01' },
          |   ^^^
          = a peer has mac and name
    isthmus.toml:9:1: mx.board[0].peers repeats the name "a"
        9 | { mac = '02:00:00:00:00:02', name = 'a' },
          | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    isthmus.toml:10:1: mx.board[0].peers[6] is "a", but must be a table { mac, name }
       10 | 'a',
          | ^^^
    "#);
    assert_snapshot!(refusal("[[mx.board]]\npeers = ['node8']\npeers_file = '~/peers'\n[[mx.board]]\npeers = '/etc/peers'\npeers_file = '/etc/'\n"), @r#"
    isthmus.toml:2:10: mx.board[0].peers[0] is "node8", but must be a table { mac, name }
        2 | peers = ['node8']
          |          ^^^^^^^
    isthmus.toml:3:14: mx.board[0].peers_file is "~/peers", but must be the absolute path of a file
        3 | peers_file = '~/peers'
          |              ^^^^^^^^^
          = neither ~ nor variables are expanded here
    isthmus.toml:5:9: mx.board[1].peers is "/etc/peers", but must be a list of at most 1024 tables { mac, name }
        5 | peers = '/etc/peers'
          |         ^^^^^^^^^^^^
          = boards are written as in [{ mac = "02:00:5e:00:00:01", name = "node7:0" }]
    isthmus.toml:6:14: mx.board[1].peers_file is "/etc/", but must be the absolute path of a file
        6 | peers_file = '/etc/'
          |              ^^^^^^^
    "#);
}

#[test]
fn missing_field_has_a_problem_code() {
    let error = load(&inputs("mx.board = [{ links = [{ udp = '::1' }] }]")).expect_err("it has no peers");
    assert_eq!(error.problems[0].wrong.code(), "missing");
}

#[test]
fn names_the_list_for_fields_of_links_outside_it() {
    assert_snapshot!(refusal("[[mx.board]]\ninterface = 'eth0'\nudp = '10.0.0.1'\nmtu = 9000\nlink = []\n"), @r#"
    isthmus.toml:2:1: there is no key mx.board[0].interface
        2 | interface = 'eth0'
          | ^^^^^^^^^
          = links stand in a list: links = [{ interface = "eth0" }]
    isthmus.toml:3:1: there is no key mx.board[0].udp
        3 | udp = '10.0.0.1'
          | ^^^
          = links stand in a list: links = [{ udp = "10.0.0.1", peers = ["10.0.0.2"] }]
    isthmus.toml:4:1: there is no key mx.board[0].mtu
        4 | mtu = 9000
          | ^^^
          = what Open-MX calls the MTU is frame_bytes_max
    isthmus.toml:5:1: there is no key mx.board[0].link
        5 | link = []
          | ^^^^
          = did you mean "links"?
    "#);
}

#[test]
fn rejects_fields_of_a_network_that_do_not_fit_together() {
    assert_snapshot!(refusal(
        "[[mx.board]]\ndialect = \"mx\"\nethertype = 0x88b5\nframe_bytes_max = 9000\nlinks = [{ interface = 'eth0' }]\n"
    ), @r#"
    isthmus.toml:3:13: mx.board[0].ethertype does not fit dialect "mx", which has 0x86df only
        3 | ethertype = 0x88b5
          |             ^^^^^^
    isthmus.toml:4:19: mx.board[0].frame_bytes_max does not fit dialect "mx", which has 4144 only
        4 | frame_bytes_max = 9000
          |                   ^^^^
    "#);
    assert_snapshot!(refusal(
        "[[mx.board]]\nframe_bytes_max = 65508\nlinks = [{ udp = '10.0.0.1', peers = ['a'] }]\nresend_ms = 2000\ngive_up_s = 1\n"
    ), @r#"
    isthmus.toml:2:19: mx.board[0].frame_bytes_max does not fit a link over UDP: a datagram has room for 65507 bytes
        2 | frame_bytes_max = 65508
          |                   ^^^^^
    isthmus.toml:5:13: mx.board[0].give_up_s does not fit resend_ms: a peer would be given up after 1 s, before anything is sent again after 2000 ms
        5 | give_up_s = 1
          |             ^
    "#);
    assert_snapshot!(refusal("[[mx.board]]\ndialect = \"mx\"\npeers = []\n[[mx.board]]\nlinks = []\ndiscovery = false\n"), @r#"
    isthmus.toml:1:1: mx.board[0] says dialect and peers, but has no links to other hosts
        1 | [[mx.board]]
          | ^^^^^^^^^^^^
          = give it links = [{ interface = "eth0" }]
    isthmus.toml:4:1: mx.board[1] says discovery, but has no links to other hosts
        4 | [[mx.board]]
          | ^^^^^^^^^^^^
          = give it links = [{ interface = "eth0" }]
    "#);
}

#[test]
fn refuses_conflicting_boards() {
    assert_snapshot!(refusal(
        "[[mx.board]]\nlinks = [{ interface = 'eth0' }]\n[[mx.board]]\nlinks = [{ interface = 'eth0' }]\n"
    ), @r#"
    isthmus.toml:3:1: mx.board[1] takes the address of the interface eth0, as mx.board[0] does
        3 | [[mx.board]]
          | ^^^^^^^^^^^^
          = give one of them a mac
    "#);
    assert_snapshot!(refusal(
        "[[mx.board]]\nlinks = [{ udp = '10.0.0.1', peers = ['a'] }]\n[[mx.board]]\nlinks = [{ udp = '10.0.0.1:34527', peers = ['b'] }]\n"
    ), @r#"
    isthmus.toml:3:1: mx.board[1] has a link at the address 10.0.0.1:34527, as mx.board[0] does
        3 | [[mx.board]]
          | ^^^^^^^^^^^^
          = give one of them another port
    "#);
    assert_snapshot!(refusal(
        "[[mx.board]]\nlinks = [{ interface = 'eth0', kind = 'xdp' }]\n\
         [[mx.board]]\nmac = '02:00:00:00:00:01'\nlinks = [{ interface = 'eth1' }, { interface = 'eth0' }]\n"
    ), @r#"
    isthmus.toml:3:1: mx.board[1] has a link at the interface eth0, as mx.board[0] does
        3 | [[mx.board]]
          | ^^^^^^^^^^^^
          = a link of kind "xdp" has its interface for itself
    "#);
}
