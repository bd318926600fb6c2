//! The ports of a network: interfaces of this host and edges to other hosts.

use alloc::vec::Vec;
use core::fmt;

/// Names an interface of this host: the network card of a container or of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceId(pub u16);

/// Names an edge: the connection to another host of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EdgeId(pub u16);

/// A place where frames enter and leave a network. Interfaces sort before edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Port {
    /// An interface of this host.
    Interface(InterfaceId),
    /// An edge to another host.
    Edge(EdgeId),
}

impl Port {
    /// Whether this port leads to another host.
    #[inline]
    pub const fn is_edge(self) -> bool {
        matches!(self, Self::Edge(_))
    }

    /// Split horizon: whether a frame that came from this port may leave by `to`.
    ///
    /// A frame never returns to its port, and a frame from an edge never leaves by an edge. Edges form a full mesh, so the other
    /// hosts have their own copies, and no table can send a frame around a loop of hosts.
    #[inline]
    pub fn may_forward(self, to: Self) -> bool {
        self != to && !(self.is_edge() && to.is_edge())
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interface(InterfaceId(id)) => write!(f, "interface {id}"),
            Self::Edge(EdgeId(id)) => write!(f, "edge {id}"),
        }
    }
}

/// A set of ports, ascending.
#[derive(Debug, Default)]
pub(crate) struct PortSet(Vec<Port>);

impl PortSet {
    /// Returns false if the port is there already.
    pub(crate) fn insert(&mut self, port: Port) -> bool {
        match self.0.binary_search(&port) {
            Ok(_) => false,
            Err(at) => {
                self.0.insert(at, port);
                true
            }
        }
    }

    /// Returns false if the port is not there.
    pub(crate) fn remove(&mut self, port: Port) -> bool {
        let at = self.0.binary_search(&port);
        at.is_ok_and(|at| {
            self.0.remove(at);
            true
        })
    }

    pub(crate) fn contains(&self, port: Port) -> bool {
        self.0.binary_search(&port).is_ok()
    }

    pub(crate) fn as_slice(&self) -> &[Port] {
        &self.0
    }

    /// The ports that a flooded frame from `from` leaves by.
    pub(crate) fn flood(&self, from: Port) -> impl Iterator<Item = Port> {
        self.0.iter().copied().filter(move |to| from.may_forward(*to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use alloc::vec;

    const I1: Port = Port::Interface(InterfaceId(1));
    const I2: Port = Port::Interface(InterfaceId(2));
    const E1: Port = Port::Edge(EdgeId(1));
    const E2: Port = Port::Edge(EdgeId(2));

    #[test]
    fn split_horizon_forbids_the_way_back_and_edge_to_edge() {
        assert!(I1.may_forward(I2) && I1.may_forward(E1) && E1.may_forward(I1));
        assert!(!I1.may_forward(I1) && !E1.may_forward(E1) && !E1.may_forward(E2));
    }

    #[test]
    fn a_set_is_ascending_and_has_each_port_once() {
        let mut set = PortSet::default();
        for port in [E2, I2, E1, I1] {
            assert!(set.insert(port));
        }
        assert!(!set.insert(I2));
        assert_eq!(set.as_slice(), [I1, I2, E1, E2]);
        assert!(set.remove(I2) && !set.remove(I2));
        assert!(!set.contains(I2) && set.contains(I1));
        assert_eq!(set.as_slice(), [I1, E1, E2]);
    }

    #[test]
    fn a_flood_obeys_split_horizon() {
        let set = PortSet(vec![I1, I2, E1, E2]);
        assert!(set.flood(I1).eq([I2, E1, E2]));
        assert!(set.flood(E1).eq([I1, I2]));
    }

    #[test]
    fn prints_kind_and_number() {
        assert_eq!((I1.to_string().as_str(), E2.to_string().as_str()), ("interface 1", "edge 2"));
    }
}
