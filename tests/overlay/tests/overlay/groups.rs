//! Broadcast and multicast: they reach every container of a network, once, and no other.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use isthmus_overlay_tests::{Container, Daemon, Stage};

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
const PORT: u16 = 5000;

/// A member of a network, with a socket for all that is sent to its group, to all and to itself.
struct Member {
    container: Container,
    socket: UdpSocket,
}

impl Member {
    /// Puts a socket into a container with an interface.
    fn new(container: &Container) -> Self {
        container.run("ip route add 224.0.0.0/4 dev eth0");
        let open = || {
            let socket = UdpSocket::bind(("0.0.0.0", PORT))?;
            socket.join_multicast_v4(&GROUP, &Ipv4Addr::UNSPECIFIED)?;
            socket.set_multicast_loop_v4(false)?;
            socket.set_broadcast(true)?;
            socket.set_read_timeout(Some(Duration::from_secs(60)))?;
            std::io::Result::Ok(socket)
        };
        Self { container: container.clone(), socket: container.network().with(open).unwrap().unwrap() }
    }

    fn send(&self, text: &str, to: [u8; 4]) {
        self.socket.send_to(text.as_bytes(), (Ipv4Addr::from(to), PORT)).unwrap();
    }

    /// Expects these texts to arrive, and nothing before or between them. The kernel returns a broadcast to its sender.
    #[track_caller]
    fn expect(&self, texts: &[&str]) {
        let mut buffer = [0; 64];
        for text in texts {
            let len = self.socket.recv(&mut buffer).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(std::str::from_utf8(&buffer[..len]).unwrap(), *text, "{}", self.container.network().name());
        }
    }
}

const BROADCAST: [u8; 4] = [10, 9, 0, 255];

/// A network of a host with containers, with the last bytes of their addresses, and edges to the other hosts.
fn network(stage: &Stage, name: &str, vni: u32, host: usize, others: &[usize], members: &[(&Container, u8)]) -> String {
    let interface = |&(container, number): &(&Container, u8)| {
        container.interface(&format!(", addresses = [\"10.9.0.{number}/24\"]"))
    };
    let interfaces: Vec<_> = members.iter().map(interface).collect();
    let edges: Vec<_> = others.iter().map(|&other| format!("{{ to = \"{}\" }}", stage.address(other, host))).collect();
    format!(
        "[[overlay.network]]\nname = \"{name}\"\nvni = {vni}\ninterfaces = [{}]\nedges = [{}]\n",
        interfaces.join(", "),
        edges.join(", ")
    )
}

#[test]
fn groups_reach_all_containers_of_the_network_and_no_other() {
    let Some(mut stage) = Stage::new(2, 1500) else { return };
    // Both networks have the same addresses.
    let [a, c, x] = ["a", "c", "x"].map(|name| stage.container(0, name));
    let [b, y] = ["b", "y"].map(|name| stage.container(1, name));
    let first =
        [network(&stage, "lan", 42, 0, &[1], &[(&a, 1), (&c, 3)]), network(&stage, "lab", 43, 0, &[1], &[(&x, 1)])];
    let second = [network(&stage, "lan", 42, 1, &[0], &[(&b, 2)]), network(&stage, "lab", 43, 1, &[0], &[(&y, 2)])];
    let _daemons = [stage.start(0, &first.concat()), stage.start(1, &second.concat())];
    a.ping("10.9.0.2");
    a.ping("10.9.0.3");
    x.ping("10.9.0.2");
    let [a, b, c, x, y] = [&a, &b, &c, &x, &y].map(Member::new);
    a.send("to all", BROADCAST);
    a.send("to the group", GROUP.octets());
    b.expect(&["to all", "to the group"]);
    c.expect(&["to all", "to the group"]);
    // The other network has not seen them: what it has seen first was sent later.
    x.send("of the other", BROADCAST);
    y.expect(&["of the other"]);
    y.send("back", BROADCAST);
    x.expect(&["of the other", "back"]);
    // Nor has the first one seen those.
    b.send("again", BROADCAST);
    a.expect(&["to all", "again"]);
    c.expect(&["again"]);
}

#[test]
fn a_mesh_of_three_hosts_delivers_once_and_survives_a_killed_daemon() {
    let Some(mut stage) = Stage::new(3, 1500) else { return };
    let containers = [0, 1, 2].map(|host| stage.container(host, &format!("container{host}")));
    let mut daemons: Vec<Daemon> = (0..3)
        .map(|host| {
            let others: Vec<_> = (0..3).filter(|&other| other != host).collect();
            let number = host as u8 + 1;
            stage.start(host, &network(&stage, "lan", 42, host, &others, &[(&containers[host], number)]))
        })
        .collect();
    containers[0].ping("10.9.0.2");
    containers[0].ping("10.9.0.3");
    containers[1].ping("10.9.0.3");
    let members = [0, 1, 2].map(|host| Member::new(&containers[host]));
    members[0].send("once", BROADCAST);
    members[0].send("more", BROADCAST);
    for member in &members[1..] {
        member.expect(&["once", "more"]); // A second copy of the first would come before the other.
    }
    daemons[2].process.proc().kill().unwrap();
    daemons[2].process.proc().wait(isthmus_overlay_tests::timeout()).unwrap();
    let is_gone = || !containers[2].try_run("ip link show dev eth0").0;
    isthmus_testbed::eventually(isthmus_overlay_tests::timeout(), is_gone).unwrap();
    containers[0].ping("10.9.0.2");
    members[0].send("without", BROADCAST);
    members[1].expect(&["without"]);
    daemons[2].process.start_again(isthmus_overlay_tests::timeout()).unwrap_or_else(|error| panic!("{error}"));
    daemons[2].wait_for_interfaces();
    containers[2].ping("10.9.0.1");
    containers[1].ping("10.9.0.3");
}

#[test]
fn datagrams_of_a_host_without_an_edge_are_not_delivered() {
    let Some(mut stage) = Stage::new(3, 1500) else { return };
    let containers = [0, 1, 2].map(|host| stage.container(host, &format!("container{host}")));
    // Host 0 has an edge to host 1 alone; both others have one to host 0.
    let others: [&[usize]; 3] = [&[1], &[0], &[0]];
    let daemons = [0, 1, 2].map(|host| {
        let member = [(&containers[host], host as u8 + 1)];
        stage.start(host, &network(&stage, "lan", 42, host, others[host], &member))
    });
    containers[1].ping("10.9.0.1");
    let members = [0, 1, 2].map(|host| Member::new(&containers[host]));
    members[2].send("from outside", BROADCAST);
    daemons[2].wait(|network| network["edges"][0]["traffic"]["sent"].as_u64() > Some(0));
    members[1].send("from inside", BROADCAST);
    members[0].expect(&["from inside"]);
    let learned = daemons[0].network()["learned"].as_array().unwrap().clone();
    let outsider = daemons[2].network()["interfaces"][0]["mac"].clone();
    assert!(learned.iter().all(|learned| learned["mac"] != outsider), "{learned:?}");
}
