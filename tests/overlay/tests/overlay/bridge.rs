//! An interface of a network as a port of a bridge of Linux, and what is behind that bridge.

use isthmus_overlay_tests::{Container, Daemon, Stage};

const NETWORK: &str =
    "[[overlay.network]]\nname = \"lan\"\ninterfaces = [{ name = \"lan0\", mtu = 1400, bridge = \"br0\" }]\n";

/// Two hosts. The first one has a daemon with an interface for a bridge, which does not exist yet, and a container for that bridge. The
/// second one has a daemon with a container.
struct BridgedLan {
    daemons: [Daemon; 2],
    local: Container,
    stage: Stage,
}

impl BridgedLan {
    fn new() -> Option<Self> {
        let mut stage = Stage::new(2, 1500)?;
        let [local, remote] = [0, 1].map(|host| stage.container(host, &format!("container{host}")));
        let edge = |to: usize, from| format!("edges = [{{ to = \"{}\" }}]\n", stage.address(to, from));
        let first = stage.start(0, &format!("{NETWORK}{}", edge(1, 0)));
        let eth0 = remote.interface(", mtu = 1400, addresses = [\"10.9.0.2/24\"]");
        let second =
            stage.start(1, &format!("[[overlay.network]]\nname = \"lan\"\ninterfaces = [{eth0}]\n{}", edge(0, 1)));
        second.wait_for_interfaces();
        Some(Self { daemons: [first, second], local, stage })
    }

    /// Creates the bridge, with the container as a port.
    fn add_bridge(&self) {
        for line in [
            "ip link add port type veth peer name eth0",
            &format!("ip link set eth0 netns {}", self.local.file().display()),
            "ip link add br0 type bridge",
            "ip link set port master br0 up",
            "ip link set br0 up",
        ] {
            self.stage.run(0, line);
        }
        self.local.run("ip link set eth0 mtu 1400 up");
        self.local.run("ip addr add 10.9.0.1/24 dev eth0");
    }
}

#[test]
fn an_interface_is_missing_until_its_bridge_exists() {
    let Some(lan) = BridgedLan::new() else { return };
    let network = lan.daemons[0].wait(|network| network["interfaces"][0]["missing"].is_string());
    let reason = network["interfaces"][0]["missing"].as_str().unwrap();
    assert!(reason.contains("no bridge of that name") && reason.contains("ip link add"), "{reason}");
    lan.add_bridge();
    lan.daemons[0].wait_for_interfaces();
    lan.local.ping("10.9.0.2");
    let shown = lan.stage.run(0, "ip -d link show dev br0");
    assert!(shown.contains("mtu 1400"), "a bridge has the lowest MTU of its ports: {shown}");
}

#[test]
fn an_interface_is_a_port_of_its_bridge_again_after_a_restart() {
    let Some(mut lan) = BridgedLan::new() else { return };
    lan.add_bridge();
    lan.daemons[0].wait_for_interfaces();
    lan.local.ping("10.9.0.2");
    lan.daemons[0].kill_and_restart();
    lan.daemons[0].wait_for_interfaces();
    let shown = lan.stage.run(0, "ip -d link show dev lan0");
    // A lower limit would not hold back the stations behind the bridge: the kernel would cut their longest frames.
    assert!(shown.contains("master br0") && shown.contains("gso_max_size 65536"), "{shown}");
    lan.local.ping("10.9.0.2");
}
