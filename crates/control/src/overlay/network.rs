//! A network, as control knows it: its plan, and the numbers by which its worker knows its parts.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use isthmus_config::overlay::{Edge, EdgeKind, Network, NetworkPort};
use isthmus_link::EdgeSocket;
use isthmus_overlay::vnet::PortName;
use isthmus_overlay::vxlan::{VXLAN_BYTES, Vni};
use isthmus_overlay::{EdgeId, HEADER_BYTES, InterfaceId, NetworkOptions, Port, Route};
use isthmus_service::overlay::{
    NewOverlayEdge, NewOverlayNetwork, OverlayCommand, OverlayNetworkNumber, OverlaySocketNumber, OverlayView,
};

use super::interface::{InterfaceKey, InterfaceState, MacGenerator};

/// The MTU of interfaces, unless a datagram of an edge has less room.
const MTU: u16 = 1500;

/// The lowest MTU that IPv6 needs. A path with less fragments datagrams.
const MTU_MIN: u16 = 1280;

/// The sockets of the edges, by port.
#[derive(Debug, Default)]
pub(super) struct EdgeSockets(BTreeMap<u16, (OverlaySocketNumber, BTreeMap<SocketAddr, usize>)>);

impl EdgeSockets {
    /// Adds a socket, with the length of the longest datagram to each edge that has a route.
    pub(super) fn add(
        &mut self,
        number: OverlaySocketNumber,
        socket: &EdgeSocket,
        edges: impl Iterator<Item = SocketAddr>,
    ) {
        let paths = edges.filter_map(|to| Some((to, socket.datagram_bytes_to(to)?)));
        self.0.insert(socket.bound().port(), (number, paths.collect()));
    }

    fn number(&self, port: u16) -> OverlaySocketNumber {
        self.0[&port].0
    }

    fn datagram_bytes(&self, to: SocketAddr) -> Option<usize> {
        self.0[&to.port()].1.get(&to).copied()
    }
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
    pub(super) plan: Network,
    pub(super) options: NetworkOptions,
    pub(super) interfaces: Vec<InterfaceState>,
    pub(super) edges: Vec<EdgeState>,
    view: Arc<Mutex<OverlayView>>,
}

impl NetworkState {
    /// Returns the network, and the commands with which its worker begins to serve its edges.
    pub(super) fn new(
        number: OverlayNetworkNumber,
        plan: &Network,
        macs: &MacGenerator,
        sockets: &EdgeSockets,
    ) -> Result<(Self, Vec<OverlayCommand>), String> {
        let vni = Vni::new(plan.vni()).expect("the configuration allows 24 bits");
        let options = NetworkOptions { learning: plan.learning(), ..NetworkOptions::new(random_key()?) };
        let mtu = mtu(&plan.edges, sockets);
        let interface = |(id, interface): (u16, &isthmus_config::overlay::Interface)| {
            let mac = interface.mac().map(isthmus_overlay::MacAddr);
            let mac = mac.unwrap_or_else(|| macs.mac(plan.name.name().as_str(), &interface.label()));
            let key = InterfaceKey { network: number, interface: InterfaceId(id) };
            InterfaceState::new(key, interface, mac, interface.mtu().unwrap_or(mtu))
        };
        let interfaces = (0..).zip(&plan.interfaces).map(interface).collect();
        let edges: Vec<_> = (0..).zip(&plan.edges).map(|(id, &plan)| EdgeState { id: EdgeId(id), plan }).collect();
        let view = Arc::default();
        let new = NewOverlayNetwork { number, vni, options, view: Arc::clone(&view) };
        let edge = |edge: &EdgeState| {
            let (socket, to) = (sockets.number(edge.plan.to.port()), edge.plan.to);
            OverlayCommand::AddEdge(NewOverlayEdge { network: number, edge: edge.id, socket, to })
        };
        let mut commands = vec![OverlayCommand::AddNetwork(Box::new(new))];
        commands.extend(edges.iter().map(edge));
        let state = Self { plan: plan.clone(), options, interfaces, edges, view };
        commands.push(OverlayCommand::SetRoutes {
            network: number,
            routes: state.routes().map(|(route, _)| route).collect(),
        });
        Ok((state, commands))
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
fn mtu(edges: &[Edge], sockets: &EdgeSockets) -> u16 {
    let room = |edge: &Edge| {
        let headers = match edge.kind {
            EdgeKind::Fast => return None,
            EdgeKind::Vxlan => VXLAN_BYTES + HEADER_BYTES,
            EdgeKind::Udp => HEADER_BYTES,
        };
        u16::try_from(sockets.datagram_bytes(edge.to)? - headers).ok()
    };
    edges.iter().filter_map(room).chain([MTU]).min().unwrap_or(MTU).max(MTU_MIN)
}

/// Draws a key that guests do not know.
fn random_key() -> Result<[u64; 2], String> {
    let mut bytes = [[0; 8]; 2];
    rustix::rand::getrandom(bytes.as_flattened_mut(), rustix::rand::GetRandomFlags::empty())
        .map_err(|error| format!("drawing a random key: {error}"))?;
    Ok(bytes.map(u64::from_ne_bytes))
}
