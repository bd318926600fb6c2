//! The commands of control about overlay networks.

use super::counters::OverlaySocketCounters;
use super::view::OverlayView;
use isthmus_link::{EdgeSocket, Tap};
use isthmus_overlay::vxlan::Vni;
use isthmus_overlay::{EdgeId, InterfaceId, MacAddr, NetworkOptions, Report, Route};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

/// A command about overlay networks.
#[derive(Debug)]
pub enum OverlayCommand {
    /// Adds a network without interfaces and edges.
    AddNetwork(Box<NewOverlayNetwork>),
    /// Removes a network with its interfaces and edges.
    RemoveNetwork(OverlayNetworkNumber),
    /// Adds a socket for edges.
    AddSocket(Box<NewOverlaySocket>),
    /// Adds an interface to a network.
    AddInterface(NewOverlayInterface),
    /// Removes an interface. Its TAP is closed, so the interface vanishes.
    RemoveInterface {
        /// The network.
        network: OverlayNetworkNumber,
        /// The interface.
        interface: InterfaceId,
    },
    /// Adds an edge to a network.
    AddEdge(NewOverlayEdge),
    /// Removes an edge.
    RemoveEdge {
        /// The network.
        network: OverlayNetworkNumber,
        /// The edge.
        edge: EdgeId,
    },
    /// Changes the routes of a network.
    ChangeRoutes {
        /// The network.
        network: OverlayNetworkNumber,
        /// Routes that go, each once.
        removed: Vec<Route>,
        /// Routes that come, in their order.
        added: Vec<Route>,
    },
}

/// An overlay network, numbered by control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OverlayNetworkNumber(pub u32);

/// A socket of edges, numbered by control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OverlaySocketNumber(pub u32);

/// An overlay network.
#[derive(Debug)]
pub struct NewOverlayNetwork {
    /// The number of the network; each number is used once.
    pub number: OverlayNetworkNumber,
    /// The number of the network on the wire.
    pub vni: Vni,
    /// How the network learns addresses.
    pub options: NetworkOptions,
    /// The visible state of the network, which the worker updates.
    pub view: Arc<Mutex<OverlayView>>,
}

/// The encapsulation of a socket's edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OverlayEdgeKind {
    /// Our own: whole frames with their virtio-net headers.
    Fast,
    /// VXLAN.
    Vxlan,
    /// Bare frames.
    Udp,
}

/// A socket of edges.
#[derive(Debug)]
pub struct NewOverlaySocket {
    /// The number of the socket; each number is used once.
    pub number: OverlaySocketNumber,
    /// The encapsulation of all its edges.
    pub kind: OverlayEdgeKind,
    /// The socket.
    pub socket: EdgeSocket,
    /// The counters of the socket, which the worker updates.
    pub counters: Arc<OverlaySocketCounters>,
}

/// An interface of a network.
#[derive(Debug)]
pub struct NewOverlayInterface {
    /// The network.
    pub network: OverlayNetworkNumber,
    /// The number of the interface in the network.
    pub interface: InterfaceId,
    /// The open TAP, with virtio-net headers of 12 bytes.
    pub tap: Tap,
    /// The MTU of the interface.
    pub mtu: u16,
    /// The source addresses that its frames may have. None if there is no limit.
    pub sources: Option<Vec<MacAddr>>,
}

/// An edge of a network.
#[derive(Clone, Copy, Debug)]
pub struct NewOverlayEdge {
    /// The network.
    pub network: OverlayNetworkNumber,
    /// The number of the edge in the network.
    pub edge: EdgeId,
    /// The socket by which frames leave and arrive.
    pub socket: OverlaySocketNumber,
    /// The other host. Frames are accepted from its address, at any port.
    pub to: SocketAddr,
    /// The number of the first message on a *fast* edge. It is random, because the receiver takes numbers that it has seen for duplicates.
    pub first_message: u32,
}

/// An event of an overlay network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverlayEvent {
    /// An interface no longer exists: its container has ended, or another program has deleted it. Control sends
    /// [`OverlayCommand::RemoveInterface`].
    InterfaceGone {
        /// The network.
        network: OverlayNetworkNumber,
        /// The interface.
        interface: InterfaceId,
    },
    /// An address moves too often, or its frames come back.
    Report {
        /// The network.
        network: OverlayNetworkNumber,
        /// The address and its ports.
        report: Report,
    },
}
