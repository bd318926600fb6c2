//! The sockets of edges: one for each port. A socket stays open until the daemon ends, because opening it again may need a privilege.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};

use isthmus_config::overlay::{EdgeKind, Network};
use isthmus_link::EdgeSocket;
use isthmus_service::overlay::{
    NewOverlaySocket, OverlayCommand, OverlayEdgeKind, OverlaySocketCounters, OverlaySocketNumber, UnknownDatagram,
};

/// The size of the receive buffer of a socket that holds a burst of other hosts, in bytes.
const RECEIVE_BUFFER_BYTES_MIN: usize = 4 << 20;

/// The sockets of edges.
#[derive(Debug)]
pub(super) struct EdgeSockets {
    listen: IpAddr,
    ports: BTreeMap<u16, SocketState>,
}

/// A socket of edges.
#[derive(Clone, Debug)]
pub(super) struct SocketState {
    number: OverlaySocketNumber,
    pub(super) bound: SocketAddr,
    pub(super) kind: EdgeKind,
    counters: Arc<OverlaySocketCounters>,
}

impl SocketState {
    /// The datagrams that belong to no edge, by reason.
    pub(super) fn refused(&self) -> [(&'static str, u64); 3] {
        let OverlaySocketCounters { unknown_senders, unknown_networks, invalid, .. } = &*self.counters;
        let counts = [("unknown-sender", unknown_senders), ("unknown-network", unknown_networks), ("invalid", invalid)];
        counts.map(|(reason, count)| (reason, count.load(Relaxed)))
    }

    /// The last datagram of an unknown sender or network.
    pub(super) fn last_unknown(&self) -> Option<UnknownDatagram> {
        *self.counters.last_unknown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EdgeSockets {
    /// Returns the sockets of a daemon that receives at this address. None is open.
    pub(super) fn new(listen: IpAddr) -> Self {
        Self { listen, ports: BTreeMap::new() }
    }

    /// Opens the sockets that the edges of these networks need and that are not open. Returns the commands that bring them to the worker.
    /// If one cannot be opened, none is.
    pub(super) fn open(&mut self, networks: &[Network]) -> Result<Vec<OverlayCommand>, String> {
        let edges = networks.iter().flat_map(|network| &network.edges);
        let needed: BTreeMap<u16, EdgeKind> = edges.map(|edge| (edge.to.port(), edge.kind)).collect();
        let (mut ports, mut commands) = (self.ports.clone(), Vec::new());
        for (port, kind) in needed {
            match ports.get(&port) {
                Some(open) if open.kind == kind => continue,
                Some(open) => {
                    let (open, kind) = (open.kind.as_str(), kind.as_str());
                    return Err(format!(
                        "port {port} is open for edges of kind {open}: restart the daemon to use it for {kind}"
                    ));
                }
                None => {}
            }
            let address = SocketAddr::new(self.listen, port);
            let socket = EdgeSocket::open(address, kind != EdgeKind::Fast)
                .map_err(|error| format!("overlay: the socket for {} edges: {error}", kind.as_str()))?;
            if ports.is_empty() {
                check_receive_buffer(&socket);
            }
            let number = OverlaySocketNumber(ports.len() as u32); // Sockets are never closed, and there are fewer than 2¹⁶ ports.
            let (bound, counters) = (socket.bound(), Arc::<OverlaySocketCounters>::default());
            ports.insert(port, SocketState { number, bound, kind, counters: Arc::clone(&counters) });
            let new = NewOverlaySocket { number, kind: service_kind(kind), socket, counters };
            commands.push(OverlayCommand::AddSocket(Box::new(new)));
        }
        self.ports = ports;
        Ok(commands)
    }

    /// The open sockets.
    pub(super) fn iter(&self) -> impl Iterator<Item = &SocketState> {
        self.ports.values()
    }

    /// The socket for edges at a port. It is open.
    pub(super) fn number(&self, port: u16) -> OverlaySocketNumber {
        self.ports[&port].number
    }
}

/// Warns of a receive buffer that is too small for a burst. The kernel treats all sockets alike, so one is checked.
fn check_receive_buffer(socket: &EdgeSocket) {
    if let Some(bytes) = socket.receive_buffer_bytes().filter(|bytes| *bytes < RECEIVE_BUFFER_BYTES_MIN) {
        tracing::warn!(
            bytes,
            "the receive buffers of overlay edges are small, and datagrams of a burst may be lost: set net.core.rmem_max to at least \
             {RECEIVE_BUFFER_BYTES_MIN}, or start the daemon with CAP_NET_ADMIN"
        );
    }
}

/// Returns the encapsulation as the workers know it.
fn service_kind(kind: EdgeKind) -> OverlayEdgeKind {
    match kind {
        EdgeKind::Fast => OverlayEdgeKind::Fast,
        EdgeKind::Vxlan => OverlayEdgeKind::Vxlan,
        EdgeKind::Udp => OverlayEdgeKind::Udp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isthmus_config::{ConfigFile, Inputs, Role, load};

    /// The networks of a configuration with edges of these kinds to these ports.
    fn networks(edges: &[(u16, &str)]) -> Vec<Network> {
        let edge = |(port, kind): &(u16, &str)| format!("{{ to = '192.0.2.2:{port}', kind = '{kind}' }}");
        let edges: Vec<_> = edges.iter().map(edge).collect();
        let text = format!("[[overlay.network]]\nname = 'lan'\nedges = [{}]\n", edges.join(", "));
        let file = ConfigFile::Given { path: "isthmus.toml".into(), bytes: text.into() };
        let loaded = load(&Inputs { file, ..Inputs::bare(Role::System) }).unwrap();
        loaded.config.overlay.network.as_slice().to_vec()
    }

    /// Two ports that are free now.
    fn free_ports() -> [u16; 2] {
        let sockets = [(); 2].map(|()| std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
        sockets.map(|socket| socket.local_addr().unwrap().port())
    }

    #[test]
    fn each_port_is_opened_once_and_for_one_kind() {
        let [a, b] = free_ports();
        let mut sockets = EdgeSockets::new("127.0.0.1".parse().unwrap());
        assert_eq!(sockets.open(&networks(&[(a, "fast")])).unwrap().len(), 1);
        assert_eq!(sockets.open(&networks(&[(a, "fast"), (b, "vxlan")])).unwrap().len(), 1);
        assert_eq!(sockets.open(&networks(&[(b, "vxlan")])).unwrap().len(), 0);
        assert_ne!(sockets.number(a), sockets.number(b));
        let error = sockets.open(&networks(&[(a, "udp")])).unwrap_err();
        assert!(error.contains(&a.to_string()) && error.contains("restart"), "{error}");
    }

    #[test]
    fn a_port_of_another_program_refuses_all() {
        let [a, b] = free_ports();
        let taken = std::net::UdpSocket::bind(("127.0.0.1", a.max(b))).unwrap();
        let mut sockets = EdgeSockets::new("127.0.0.1".parse().unwrap());
        let error = sockets.open(&networks(&[(a, "fast"), (b, "fast")])).unwrap_err();
        assert!(error.contains("is taken"), "{error}");
        drop(taken);
        assert_eq!(sockets.open(&networks(&[(a, "fast"), (b, "fast")])).unwrap().len(), 2);
    }
}
