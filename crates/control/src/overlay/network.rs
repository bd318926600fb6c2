//! A network, as control knows it: its plan, and the numbers by which its worker knows its parts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use isthmus_config::overlay::{Edge, EdgeKind, Network, NetworkPort};
use isthmus_link::datagram_bytes_to;
use isthmus_overlay::vnet::{PortName, Table};
use isthmus_overlay::vxlan::{VXLAN_BYTES, Vni};
use isthmus_overlay::{EdgeId, HEADER_BYTES, InterfaceId, MacAddr, NetworkOptions, Port, Route};
use isthmus_service::overlay::{NewOverlayEdge, NewOverlayNetwork, OverlayCommand, OverlayNetworkNumber, OverlayView};

use super::interface::{InterfaceKey, InterfaceState, MacGenerator};
use super::opener::InterfaceClaims;
use super::sockets::EdgeSockets;
use super::vnet;
use super::warnings::Warnings;
use rustix::rand::{GetRandomFlags, getrandom};

/// The MTU of interfaces, unless a datagram of an edge has less room.
const MTU: u16 = 1500;

/// The lowest MTU that IPv6 needs. A path with less fragments datagrams.
const MTU_MIN: u16 = 1280;

/// The effects of a change of the networks.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Commands that remove interfaces, edges and networks.
    pub(super) removals: Vec<OverlayCommand>,
    /// Commands that add them.
    pub(super) commands: Vec<OverlayCommand>,
    /// Interfaces that the helper and the service manager may forget.
    pub(super) released: Vec<InterfaceClaims>,
}

/// An edge.
#[derive(Clone, Copy, Debug)]
pub(super) struct EdgeState {
    pub(super) id: EdgeId,
    pub(super) plan: Edge,
}

/// A network.
#[derive(Debug)]
pub(super) struct NetworkState {
    number: OverlayNetworkNumber,
    pub(super) plan: Network,
    pub(super) options: NetworkOptions,
    pub(super) interfaces: Vec<InterfaceState>,
    pub(super) edges: Vec<EdgeState>,
    /// The routes that the worker has.
    sent_routes: Vec<Route>,
    /// The numbers of the next interface and edge. They are not used again, so that no reply is taken for that about another interface.
    next_interface: u16,
    next_edge: u16,
    /// The parts of the network with their indexes in VNET's language.
    pub(super) vnet: Table,
    view: Arc<Mutex<OverlayView>>,
    pub(super) warnings: Warnings,
}

impl NetworkState {
    /// Returns a network without interfaces and edges. [`NetworkState::change`] adds them.
    pub(super) fn new(number: OverlayNetworkNumber, plan: &Network, changes: &mut Changes) -> Self {
        let vni = Vni::new(plan.vni()).expect("the configuration allows 24 bits");
        let options = NetworkOptions {
            learning: plan.learning(),
            loop_protection: plan.loop_protection(),
            ..NetworkOptions::new(random())
        };
        let view = Arc::default();
        let new = NewOverlayNetwork { number, vni, options, view: Arc::clone(&view) };
        changes.commands.push(OverlayCommand::AddNetwork(Box::new(new)));
        Self {
            number,
            plan: plan.clone(),
            options,
            interfaces: Vec::new(),
            edges: Vec::new(),
            sent_routes: Vec::new(),
            next_interface: 0,
            next_edge: 0,
            vnet: Table::default(),
            view,
            warnings: Warnings::default(),
        }
    }

    /// True if a change of interfaces, edges and routes makes this network what the plan says.
    pub(super) fn may_become(&self, plan: &Network) -> bool {
        let key = |plan: &Network| (plan.name.clone(), plan.vni(), plan.learning(), plan.loop_protection());
        key(&self.plan) == key(plan)
    }

    /// Makes the interfaces, edges and routes what the plan says. Those that stay the same are not touched.
    pub(super) fn change(&mut self, plan: &Network, macs: &MacGenerator, sockets: &EdgeSockets, changes: &mut Changes) {
        self.plan = plan.clone();
        vnet::follow(&mut self.vnet, plan);
        self.change_edges(sockets, changes);
        self.change_interfaces(macs, changes);
        self.change_routes(changes);
    }

    fn change_edges(&mut self, sockets: &EdgeSockets, changes: &mut Changes) {
        let (network, mut before) = (self.number, std::mem::take(&mut self.edges));
        for &plan in &self.plan.edges {
            let stays = before.iter().position(|edge| edge.plan == plan).map(|at| before.swap_remove(at));
            let edge = stays.unwrap_or_else(|| {
                let (id, socket) = (EdgeId(self.next_edge), sockets.number(plan.to.port()));
                self.next_edge = self.next_edge.wrapping_add(1);
                changes.commands.push(OverlayCommand::AddEdge(NewOverlayEdge {
                    network,
                    edge: id,
                    socket,
                    to: plan.to,
                    first_message: random()[0] as u32,
                }));
                EdgeState { id, plan }
            });
            self.edges.push(edge);
        }
        let removals = before.into_iter().map(|edge| OverlayCommand::RemoveEdge { network, edge: edge.id });
        changes.removals.extend(removals);
    }

    fn change_interfaces(&mut self, macs: &MacGenerator, changes: &mut Changes) {
        let (network, mut before) = (self.number, std::mem::take(&mut self.interfaces));
        let mtu = mtu(&self.plan.edges);
        for plan in &self.plan.interfaces {
            let mac = plan.mac().map(MacAddr);
            let mac = mac.unwrap_or_else(|| macs.mac(self.plan.name.name().as_str(), &plan.label()));
            let mtu = plan.mtu().unwrap_or(mtu);
            let stays = before.iter().position(|state| (&state.plan, state.mac, state.mtu) == (plan, mac, mtu));
            let state = stays.map(|at| before.swap_remove(at)).unwrap_or_else(|| {
                let key = InterfaceKey { network, interface: InterfaceId(self.next_interface) };
                self.next_interface = self.next_interface.wrapping_add(1);
                InterfaceState::new(key, plan, mac, mtu)
            });
            self.interfaces.push(state);
        }
        for state in before {
            let interface = state.key.interface;
            changes.released.extend(state.claims());
            changes.removals.push(OverlayCommand::RemoveInterface { network, interface });
        }
    }

    /// Sends the worker what differs from the routes that it has. Its table and its cached decisions about other addresses stay.
    fn change_routes(&mut self, changes: &mut Changes) {
        let routes: Vec<Route> = self.routes().map(|(route, _)| route).collect();
        let before = std::mem::replace(&mut self.sent_routes, routes);
        let mut extra: HashMap<Route, usize> = HashMap::new();
        before.iter().for_each(|route| *extra.entry(*route).or_default() += 1);
        let is_new = |route: &&Route| match extra.get_mut(*route) {
            Some(count @ 1..) => {
                *count -= 1;
                false
            }
            _ => true,
        };
        let added: Vec<Route> = self.sent_routes.iter().filter(is_new).copied().collect();
        let removed: Vec<Route> =
            extra.into_iter().flat_map(|(route, count)| std::iter::repeat_n(route, count)).collect();
        if !added.is_empty() || !removed.is_empty() {
            changes.commands.push(OverlayCommand::ChangeRoutes { network: self.number, removed, added });
        }
    }

    /// Removes the network with all its parts.
    pub(super) fn remove(self, changes: &mut Changes) {
        changes.released.extend(self.interfaces.iter().filter_map(InterfaceState::claims));
        changes.removals.push(OverlayCommand::RemoveNetwork(self.number));
    }

    /// The routes in the order of their numbers, each with its text.
    pub(super) fn routes(&self) -> impl Iterator<Item = (Route, String)> {
        let port = |name: &PortName| {
            Some(match self.plan.port_of(name)? {
                NetworkPort::Interface(place) => Port::Interface(self.interfaces[place].key.interface),
                NetworkPort::Edge(place) => Port::Edge(self.edges[place].id),
            })
        };
        // The configuration was refused if a route names a port that the network does not have.
        self.plan.routes().iter().filter_map(move |line| Some((line.resolve(port).ok()?, line.to_string())))
    }

    pub(super) fn number(&self) -> OverlayNetworkNumber {
        self.number
    }

    pub(super) fn name(&self) -> &str {
        self.plan.name.name().as_str()
    }

    /// The state that the worker has published last.
    pub(super) fn view(&self) -> OverlayView {
        self.view.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The name of an interface or edge in reports.
    pub(super) fn port_name(&self, port: Port) -> String {
        match port {
            Port::Interface(id) => {
                let interface = self.interfaces.iter().find(|interface| interface.key.interface == id);
                interface.map_or_else(|| "a removed interface".to_owned(), |interface| interface.plan.label())
            }
            Port::Edge(id) => {
                let edge = self.edges.iter().find(|edge| edge.id == id);
                edge.map_or_else(|| "a removed edge".to_owned(), |edge| edge.plan.to.to_string())
            }
        }
    }

    /// The interface or edge with a name, as [`NetworkState::port_name`] returns it. The port of an edge may be left out.
    pub(super) fn port_named(&self, name: &str) -> Option<Port> {
        let interface = self.interfaces.iter().find(|interface| interface.plan.label() == name);
        let edge = || {
            let mut edges = self.edges.iter();
            edges.find(|edge| edge.plan.to.to_string() == name || edge.plan.to.ip().to_string() == name)
        };
        interface.map(|interface| Port::Interface(interface.key.interface)).or_else(|| Some(Port::Edge(edge()?.id)))
    }
}

/// The MTU of interfaces that have none in the configuration: frames fit a datagram of each edge that does not carry them in several.
fn mtu(edges: &[Edge]) -> u16 {
    let room = |edge: &Edge| {
        let headers = match edge.kind {
            EdgeKind::Fast => return None,
            EdgeKind::Vxlan => VXLAN_BYTES + HEADER_BYTES,
            EdgeKind::Udp => HEADER_BYTES,
        };
        u16::try_from(datagram_bytes_to(edge.to)? - headers).ok()
    };
    edges.iter().filter_map(room).chain([MTU]).min().unwrap_or(MTU).max(MTU_MIN)
}

/// Draws two numbers that guests and other hosts do not know.
fn random() -> [u64; 2] {
    let mut bytes = [[0; 8]; 2];
    getrandom(bytes.as_flattened_mut(), GetRandomFlags::empty()).expect("the kernel has random bytes since its start");
    bytes.map(u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use isthmus_config::{ConfigFile, Inputs, Role, load};
    use isthmus_helper::InterfaceNumber;
    use std::path::Path;

    const EDGE: &str = "{ to = '127.0.0.2:PORT' }";

    /// The networks of a configuration. `PORT` stands for a port that is free.
    fn networks(text: &str) -> Vec<Network> {
        let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let text = text.replace("PORT", &free.to_string());
        let file =
            ConfigFile::Given { path: "isthmus.toml".into(), bytes: format!("overlay.network = [{text}]").into() };
        load(&Inputs { file, ..Inputs::bare(Role::System) }).unwrap().config.overlay.network.as_slice().to_vec()
    }

    /// The commands of a change, without the sockets' own.
    fn commands(changes: Changes) -> Vec<String> {
        let name = |command: OverlayCommand| match command {
            OverlayCommand::AddNetwork(_) => "add network".to_owned(),
            OverlayCommand::RemoveNetwork(number) => format!("remove network {}", number.0),
            OverlayCommand::AddEdge(edge) => format!("add edge {}", edge.edge.0),
            OverlayCommand::RemoveEdge { edge, .. } => format!("remove edge {}", edge.0),
            OverlayCommand::RemoveInterface { interface, .. } => format!("remove interface {}", interface.0),
            OverlayCommand::ChangeRoutes { removed, added, .. } => {
                format!("remove {} routes, add {}", removed.len(), added.len())
            }
            other => format!("{other:?}"),
        };
        changes.removals.into_iter().chain(changes.commands).map(name).collect()
    }

    #[test]
    fn a_change_touches_only_what_differs() {
        let macs = MacGenerator::new(
            &crate::host::HostIdentity { name: "a".to_owned(), id: [1; 32] },
            Path::new("/run/isthmus"),
        );
        let mut sockets = EdgeSockets::new("127.0.0.1".parse().unwrap());
        let first = networks(&format!(
            "{{ name = 'lan', interfaces = [{{ name = 'a' }}, {{ name = 'b' }}], edges = [{EDGE}], routes = ['any any edge 127.0.0.2 any'] }}"
        ));
        sockets.open(&first).unwrap();
        let mut changes = Changes::default();
        let mut state = NetworkState::new(OverlayNetworkNumber(5), &first[0], &mut changes);
        state.change(&first[0], &macs, &sockets, &mut changes);
        assert_eq!(commands(changes), ["add network", "add edge 0", "remove 0 routes, add 1"]);
        let numbers =
            |state: &NetworkState| state.interfaces.iter().map(|state| state.key.interface.0).collect::<Vec<_>>();
        assert_eq!(numbers(&state), [0, 1]);
        let claims = InterfaceClaims { helper_number: Some(InterfaceNumber(77)), stored_as: None };
        state.interfaces[0].stage = super::super::InterfaceStage::Open { claims: claims.clone() };

        // `a` gets another MTU, `b` stays, `c` is new, and the edge goes.
        let second =
            networks("{ name = 'lan', interfaces = [{ name = 'b' }, { name = 'a', mtu = 1400 }, { name = 'c' }] }");
        assert!(state.may_become(&second[0]));
        let mut changes = Changes::default();
        state.change(&second[0], &macs, &sockets, &mut changes);
        assert_eq!(changes.released, [claims]);
        assert_eq!(commands(changes), ["remove edge 0", "remove interface 0", "remove 1 routes, add 0"]);
        assert_eq!(numbers(&state), [1, 2, 3]);
        assert_eq!(state.port_named("a"), Some(Port::Interface(InterfaceId(2))));

        let mut changes = Changes::default();
        state.change(&second[0], &macs, &sockets, &mut changes);
        assert!(commands(changes).is_empty());
        let other = networks("{ name = 'lan', vni = 3 }, { name = 'lan2' }, { name = 'lan3', learning = false }");
        assert!(other.iter().all(|plan| !state.may_become(plan)));
        let mut changes = Changes::default();
        state.remove(&mut changes);
        assert_eq!(commands(changes), ["remove network 5"]);
    }
}
