//! Links of MX boards: what is said about each mistake in them.

use insta::assert_snapshot;
use isthmus_config::{ConfigFile, Inputs, Role, load};

fn inputs(file: &str) -> Inputs {
    let file = ConfigFile::Given { path: "isthmus.toml".into(), bytes: file.into() };
    Inputs { file, ..Inputs::bare(Role::System) }
}

/// Returns the report about a file.
fn refusal(file: &str) -> String {
    load(&inputs(file)).expect_err("it is wrong").to_string()
}

/// Returns the report about a link over UDP at this address.
fn refusal_of_udp(local: &str) -> String {
    refusal(&format!("[[mx.board]]\nlinks = [{{ udp = {local}, peers = [\"a\"] }}]\n"))
}

#[test]
fn rejects_links_of_wrong_types() {
    assert_snapshot!(refusal("mx.board = [{ links = { interface = 'eth0' } }, { links = 'eth0' }, { links = [1] }]\n"), @r#"
    isthmus.toml:1:23: mx.board[0].links is a table, but must be a list of at most 8 tables { interface, kind, udp, peers, rank }
        1 | mx.board = [{ links = { interface = 'eth0' } }, { links = 'eth0' }, { links = [1] }]
          |                       ^^^^^^^^^^^^^^^^^^^^^^
          = links are written as in [{ interface = "eth0" }]
    isthmus.toml:1:59: mx.board[1].links is "eth0", but must be a list of at most 8 tables { interface, kind, udp, peers, rank }
        1 | mx.board = [{ links = { interface = 'eth0' } }, { links = 'eth0' }, { links = [1] }]
          |                                                           ^^^^^^
          = links are written as in [{ interface = "eth0" }]
    isthmus.toml:1:80: mx.board[2].links[0] is 1, but must be a table { interface, kind, udp, peers, rank }
        1 | … = { interface = 'eth0' } }, { links = 'eth0' }, { links = [1] }]
          |                                                              ^
    "#);
}

#[test]
fn rejects_wrong_values_in_fields_of_a_link() {
    assert_snapshot!(refusal(
        "[[mx.board]]\n[[mx.board.links]]\ninterface = \"eth0:1\"\nkind = \"pakcet\"\nrank = 256\n\
         [[mx.board.links]]\ninterface = \"10.0.0.1/24\"\n[[mx.board.links]]\ninterface = \"an-interface-0000\"\n\
         [[mx.board.links]]\ndevice = \"eth0\"\nzzz = 1\n[[mx.board.links]]\ninterface = 0\nkind = \"udp\"\n"
    ), @r#"
    isthmus.toml:3:13: mx.board[0].links[0].interface is "eth0:1", but must be the name of a network interface: 1 to 15 bytes without spaces, / and :
        3 | interface = "eth0:1"
          |             ^^^^^^^^
    isthmus.toml:4:8: mx.board[0].links[0].kind is "pakcet", but must be "packet" or "xdp"
        4 | kind = "pakcet"
          |        ^^^^^^^^
          = did you mean "packet"?
    isthmus.toml:5:8: mx.board[0].links[0].rank is 256, but must be an integer from 0 to 255
        5 | rank = 256
          |        ^^^
    isthmus.toml:7:13: mx.board[0].links[1].interface is "10.0.0.1/24", but must be the name of a network interface: 1 to 15 bytes without spaces, / and :
        7 | interface = "10.0.0.1/24"
          |             ^^^^^^^^^^^^^
          = `ip address` shows which interface has that address
    isthmus.toml:9:13: mx.board[0].links[2].interface is "an-interface-0000", but must be the name of a network interface: 1 to 15 bytes without spaces, / and :
        9 | interface = "an-interface-0000"
          |             ^^^^^^^^^^^^^^^^^^^
    isthmus.toml:10:1: mx.board[0].links[3] names neither interface nor udp, so it leads nowhere
       10 | [[mx.board.links]]
          | ^^^^^^^^^^^^^^^^^^
          = a link is { interface = "eth0" } or { udp = "10.0.0.1", peers = ["10.0.0.2"] }
    isthmus.toml:11:1: there is no key mx.board[0].links[3].device
       11 | device = "eth0"
          | ^^^^^^
          = a link has interface, kind, udp, peers and rank
    isthmus.toml:12:1: there is no key mx.board[0].links[3].zzz
       12 | zzz = 1
          | ^^^
          = a link has interface, kind, udp, peers and rank
    isthmus.toml:14:13: mx.board[0].links[4].interface is 0, but must be the name of a network interface: 1 to 15 bytes without spaces, / and :
       14 | interface = 0
          |             ^
          = strings are written in quotes: "0"
    isthmus.toml:15:8: mx.board[0].links[4].kind is "udp", but must be "packet" or "xdp"
       15 | kind = "udp"
          |        ^^^^^
          = a link over UDP is { udp = "10.0.0.1", peers = ["10.0.0.2"] }
    "#);
}

#[test]
fn rejects_fields_of_a_link_that_do_not_fit_together() {
    assert_snapshot!(refusal(
        "[[mx.board]]\nlinks = [\n{ rank = 1 },\n{ interface = 'eth0', peers = ['a'] },\n\
         { udp = '10.0.0.1' },\n{ udp = '10.0.0.1', peers = ['a'], kind = 'packet' },\n\
         { udp = '10.0.0.1', peers = ['a', '::1'] },\n{ udp = '::1', peers = ['10.0.0.1'] },\n]\n"
    ), @r#"
    isthmus.toml:3:1: mx.board[0].links[0] names neither interface nor udp, so it leads nowhere
        3 | { rank = 1 },
          | ^^^^^^^^^^^^
          = a link is { interface = "eth0" } or { udp = "10.0.0.1", peers = ["10.0.0.2"] }
    isthmus.toml:4:31: mx.board[0].links[1].peers goes with udp only
        4 | { interface = 'eth0', peers = ['a'] },
          |                               ^^^^^
          = boards of other hosts are found by discovery, or named by the board's own peers
    isthmus.toml:5:1: mx.board[0].links[2] has no peers
        5 | { udp = '10.0.0.1' },
          | ^^^^^^^^^^^^^^^^^^^^
          = peers is a list of 1 to 1024 addresses or names of hosts
    isthmus.toml:6:43: mx.board[0].links[3].kind does not go with udp: datagrams have one kind of socket
        6 | { udp = '10.0.0.1', peers = ['a'], kind = 'packet' },
          |                                           ^^^^^^^^
    isthmus.toml:7:29: mx.board[0].links[4].peers does not fit udp: [::1]:34527 is not reached from 10.0.0.1:34527
        7 | { udp = '10.0.0.1', peers = ['a', '::1'] },
          |                             ^^^^^^^^^^^^
          = IPv4 and IPv6 take a link each
    isthmus.toml:8:24: mx.board[0].links[5].peers does not fit udp: 10.0.0.1:34527 is not reached from [::1]:34527
        8 | { udp = '::1', peers = ['10.0.0.1'] },
          |                        ^^^^^^^^^^^^
          = IPv4 and IPv6 take a link each
    "#);
}

#[test]
fn rejects_repeated_links_and_too_many_links() {
    assert_snapshot!(refusal(
        "[[mx.board]]\nlinks = [{ interface = 'eth0' }, { interface = 'eth0', kind = 'xdp' }]\n[[mx.board]]\n\
         links = [{ udp = '::1', peers = ['a'] }, { udp = '[::1]:34527', peers = ['b'] }]\n"
    ), @r#"
    isthmus.toml:2:34: mx.board[0].links repeats the interface eth0
        2 | links = [{ interface = 'eth0' }, { interface = 'eth0', kind = 'xdp' }]
          |                                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    isthmus.toml:4:42: mx.board[1].links repeats the address [::1]:34527
        4 | links = [{ udp = '::1', peers = ['a'] }, { udp = '[::1]:34527', peers = ['b'] }]
          |                                          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    "#);
    assert_snapshot!(refusal(&format!("mx.board = [{{ links = [{}] }}]\n", "{ interface = 'a' },".repeat(9))), @r#"
    isthmus.toml:1:23: mx.board[0].links is a list of 9, but must be a list of at most 8 tables { interface, kind, udp, peers, rank }
        1 | mx.board = [{ links = [{ interface = 'a' },{ interface = 'a' },{ interface = 'a' }…
          |                       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    "#);
}

#[test]
fn rejects_wrong_addresses_of_this_host() {
    assert_snapshot!(refusal_of_udp("\"10.0.0.1:0\""), @r#"
    isthmus.toml:2:18: mx.board[0].links[0].udp is "10.0.0.1:0", but must be an address of this host, with a port unless it is 34527, as in "10.0.0.1" or "[fd00::1]:7000"
        2 | links = [{ udp = "10.0.0.1:0", peers = ["a"] }]
          |                  ^^^^^^^^^^^^
          = name a port from 1 to 65535
    "#);
    assert_snapshot!(refusal_of_udp("\"239.0.0.1\""), @r#"
    isthmus.toml:2:18: mx.board[0].links[0].udp is "239.0.0.1", but must be an address of this host, with a port unless it is 34527, as in "10.0.0.1" or "[fd00::1]:7000"
        2 | links = [{ udp = "239.0.0.1", peers = ["a"] }]
          |                  ^^^^^^^^^^^
          = that is the address of a group, not of a host
    "#);
    assert_snapshot!(refusal_of_udp("\":7000\""), @r#"
    isthmus.toml:2:18: mx.board[0].links[0].udp is ":7000", but must be an address of this host, with a port unless it is 34527, as in "10.0.0.1" or "[fd00::1]:7000"
        2 | links = [{ udp = ":7000", peers = ["a"] }]
          |                  ^^^^^^^
          = did you mean "0.0.0.0:7000"?
    "#);
    assert_snapshot!(refusal_of_udp("\"node7:7000\""), @r#"
    isthmus.toml:2:18: mx.board[0].links[0].udp is "node7:7000", but must be an address of this host, with a port unless it is 34527, as in "10.0.0.1" or "[fd00::1]:7000"
        2 | links = [{ udp = "node7:7000", peers = ["a"] }]
          |                  ^^^^^^^^^^^^
          = this host's own address is not looked up: write it in numbers
    "#);
    assert_snapshot!(refusal_of_udp("\"10.0.0.256\""), @r#"
    isthmus.toml:2:18: mx.board[0].links[0].udp is "10.0.0.256", but must be an address of this host, with a port unless it is 34527, as in "10.0.0.1" or "[fd00::1]:7000"
        2 | links = [{ udp = "10.0.0.256", peers = ["a"] }]
          |                  ^^^^^^^^^^^^
    "#);
    assert_snapshot!(refusal_of_udp("34527"), @r#"
    isthmus.toml:2:18: mx.board[0].links[0].udp is 34527, but must be an address of this host, with a port unless it is 34527, as in "10.0.0.1" or "[fd00::1]:7000"
        2 | links = [{ udp = 34527, peers = ["a"] }]
          |                  ^^^^^
          = strings are written in quotes: "34527"
    "#);
}

#[test]
fn rejects_wrong_hosts() {
    assert_snapshot!(refusal(
        "[[mx.board]]\n[[mx.board.links]]\nudp = \"10.0.0.1\"\npeers = [\n\"10.0.0.2:99999\",\n\"[fd00::2]:0x1\",\n\"node7:\",\n\"0.0.0.0\",\n\
         \"ff02::1\",\n\"255.255.255.255\",\n\"no de\",\n\"10.0.0.256\",\n\"\",\n7,\n\"node7\",\n\"node7:34527\",\n]\n"
    ), @r#"
    isthmus.toml:5:1: mx.board[0].links[0].peers[0] is "10.0.0.2:99999", but must be the address or name of a host, with a port unless it is 34527, as in "10.0.0.2" or "node7:7000"
        5 | "10.0.0.2:99999",
          | ^^^^^^^^^^^^^^^^
          = name a port from 1 to 65535
    isthmus.toml:6:1: mx.board[0].links[0].peers[1] is "[fd00::2]:0x1", but must be the address or name of a host, with a port unless it is 34527, as in "10.0.0.2" or "node7:7000"
        6 | "[fd00::2]:0x1",
          | ^^^^^^^^^^^^^^^
          = name a port from 1 to 65535
    isthmus.toml:7:1: mx.board[0].links[0].peers[2] is "node7:", but must be the address or name of a host, with a port unless it is 34527, as in "10.0.0.2" or "node7:7000"
        7 | "node7:",
          | ^^^^^^^^
          = name a port from 1 to 65535
    isthmus.toml:8:1: mx.board[0].links[0].peers[3] is "0.0.0.0", but must be the address or name of a host, with a port unless it is 34527, as in "10.0.0.2" or "node7:7000"
        8 | "0.0.0.0",
          | ^^^^^^^^^
          = no host can be reached there
    isthmus.toml:9:1: mx.board[0].links[0].peers[4] is "ff02::1", but must be the address or name of a host, with a port unless it is 34527, as in "10.0.0.2" or "node7:7000"
        9 | "ff02::1",
          | ^^^^^^^^^
          = that is the address of a group, not of a host
    isthmus.toml:10:1: mx.board[0].links[0].peers[5] is "255.255.255.255", but must be the address or name of a host, with a port unless it is 34527, as in "10.0.0.2" or "node7:7000"
       10 | "255.255.255.255",
          | ^^^^^^^^^^^^^^^^^
          = that is the address of a group, not of a host
    isthmus.toml:11:1: mx.board[0].links[0].peers[6] is "no de", but must be the address or name of a host, with a port unless it is 34527, as in "10.0.0.2" or "node7:7000"
       11 | "no de",
          | ^^^^^^^
    isthmus.toml:12:1: mx.board[0].links[0].peers[7] is "10.0.0.256", but must be the address or name of a host, with a port unless it is 34527, as in "10.0.0.2" or "node7:7000"
       12 | "10.0.0.256",
          | ^^^^^^^^^^^^
    isthmus.toml:13:1: mx.board[0].links[0].peers[8] is "", but must be the address or name of a host, with a port unless it is 34527, as in "10.0.0.2" or "node7:7000"
       13 | "",
          | ^^
    isthmus.toml:14:1: mx.board[0].links[0].peers[9] is 7, but must be the address or name of a host, with a port unless it is 34527, as in "10.0.0.2" or "node7:7000"
       14 | 7,
          | ^
          = strings are written in quotes: "7"
    isthmus.toml:16:1: mx.board[0].links[0].peers repeats node7:34527
       16 | "node7:34527",
          | ^^^^^^^^^^^^^
    "#);
    assert_snapshot!(refusal("[[mx.board]]\nlinks = [{ udp = '::', peers = [] }, { udp = '::1', peers = 'a' }]\n"), @r#"
    isthmus.toml:2:32: mx.board[0].links[0].peers is an empty list, but must be a list of 1 to 1024 addresses or names of hosts
        2 | links = [{ udp = '::', peers = [] }, { udp = '::1', peers = 'a' }]
          |                                ^^
    isthmus.toml:2:61: mx.board[0].links[1].peers is "a", but must be a list of 1 to 1024 addresses or names of hosts
        2 | links = [{ udp = '::', peers = [] }, { udp = '::1', peers = 'a' }]
          |                                                             ^^^
          = hosts are written as in ["10.0.0.2", "node7:7000"]
    "#);
}
