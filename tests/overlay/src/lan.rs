//! A network with a container on each of two hosts.

use crate::stage::{Container, Daemon, Stage};

/// The way of the frames between the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// A *fast* edge between two daemons.
    Fast,
    /// A VXLAN edge between a daemon and the VXLAN device of Linux.
    Vxlan,
}

/// A network with a container on each of two hosts.
#[derive(Debug)]
pub struct Lan {
    /// The daemons, of which the first is the one of host 0. (They go before the stage.)
    pub daemons: Vec<Daemon>,
    /// The container on host 0, with the addresses 10.9.0.1 and fd09::1.
    pub a: Container,
    /// The container on host 1, with the addresses 10.9.0.2 and fd09::2.
    pub b: Container,
    /// The hosts.
    pub stage: Stage,
}

impl Path {
    /// Both ways.
    pub const ALL: [Self; 2] = [Self::Fast, Self::Vxlan];
}

impl Lan {
    /// A network over a wire of MTU 1500. The stage's reasons apply for None.
    pub fn new(path: Path) -> Option<Self> {
        Self::with_wire(path, 1500, "")
    }

    /// A network over a wire of this MTU, with further fields for the interfaces of daemons.
    pub fn with_wire(path: Path, wire_mtu: u32, fields: &str) -> Option<Self> {
        match path {
            Path::Fast => Some(Self::fast(Stage::new(2, wire_mtu)?, fields)),
            Path::Vxlan => Self::vxlan(wire_mtu, 42, fields, "udpcsum"),
        }
    }

    /// A network between the daemons of two hosts.
    pub fn fast(mut stage: Stage, fields: &str) -> Self {
        let [a, b] = [0, 1].map(|host| stage.container(host, &format!("container{host}")));
        let daemons = [(0, &a), (1, &b)].map(|(host, container)| {
            let network = network(&stage, host, Path::Fast, 42, container, fields);
            stage.start(host, &network)
        });
        Self { daemons: daemons.into(), a, b, stage }.up()
    }

    /// A network between a daemon and the VXLAN device of Linux, with options for that.
    pub fn vxlan(wire_mtu: u32, vni: u32, fields: &str, options: &str) -> Option<Self> {
        let mut stage = Stage::new(2, wire_mtu)?;
        let [a, b] = [0, 1].map(|host| stage.container(host, &format!("container{host}")));
        // A veth passes frames on before their inner checksums are complete. The daemon recognises them.
        stage.vxlan_device((1, 0), vni, options, &b);
        for line in ["ip addr add 10.9.0.2/24 dev eth0", "ip addr add fd09::2/64 dev eth0 nodad"] {
            b.run(line);
        }
        let daemon = stage.start(0, &network(&stage, 0, Path::Vxlan, vni, &a, fields));
        let lan = Self { daemons: vec![daemon], a, b, stage }.up();
        lan.b.run(&format!("ip link set eth0 mtu {}", lan.mtu()));
        Some(lan)
    }

    /// Waits for all interfaces.
    fn up(self) -> Self {
        self.daemons.iter().for_each(Daemon::wait_for_interfaces);
        self
    }

    /// Returns the MTU of the container on host 0.
    pub fn mtu(&self) -> u64 {
        self.daemons[0].network()["interfaces"][0]["mtu"].as_u64().unwrap()
    }
}

/// Starts a daemon on each host, with *fast* edges to all others and these interfaces, and waits for the interfaces.
pub fn mesh(stage: &Stage, interfaces: &[String]) -> Vec<Daemon> {
    let start = |(host, interfaces): (usize, &String)| {
        let edges = (0..stage.hosts()).filter(|&other| other != host);
        let edges: Vec<_> = edges.map(|other| format!("{{ to = \"{}\" }}", stage.address(other, host))).collect();
        let edges = edges.join(", ");
        stage.start(
            host,
            &format!("[[overlay.network]]\nname = \"lan\"\ninterfaces = [{interfaces}]\nedges = [{edges}]\n"),
        )
    };
    let daemons: Vec<_> = interfaces.iter().enumerate().map(start).collect();
    daemons.iter().for_each(Daemon::wait_for_interfaces);
    daemons
}

/// The configuration of the network on a host.
fn network(stage: &Stage, host: usize, path: Path, vni: u32, container: &Container, fields: &str) -> String {
    let number = host + 1;
    let addresses = format!(", addresses = [\"10.9.0.{number}/24\", \"fd09::{number}/64\"]{fields}");
    let kind = if path == Path::Fast { "fast" } else { "vxlan" };
    format!(
        "[[overlay.network]]\nname = \"lan\"\nvni = {vni}\ninterfaces = [{}]\nedges = [{{ to = \"{}\", kind = \"{kind}\" }}]\n",
        container.interface(&addresses),
        stage.address(1 - host, host),
    )
}
