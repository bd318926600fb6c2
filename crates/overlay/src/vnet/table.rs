//! The links and routes of a network, as VNET's commands see and change them.

use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use super::command::{self, Command, VnetFile};
use super::error::{VnetError, VnetReason};
use super::indexed::Indexed;
use super::listing;
use super::route_line::{PortName, RouteLine, UnknownPort};
use crate::mac::MacAddr;

/// The maximum length of what a text prints. A list of all routes that a network can have is shorter.
pub const OUTPUT_BYTES_MAX: usize = 4 << 20;

/// An interface, by the names that routes have for it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InterfaceNames {
    /// The name of the interface in reports.
    pub label: String,
    /// The MAC address, if routes may name the interface by it.
    pub mac: Option<MacAddr>,
}

/// The traffic of a link. Bytes are those of frames, without encapsulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Frames that came by the link.
    pub received: u64,
    /// Bytes in them.
    pub received_bytes: u64,
    /// Frames that left by the link.
    pub sent: u64,
    /// Bytes in them.
    pub sent_bytes: u64,
}

/// A change of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VnetEdit {
    /// Adds an edge of bare frames to this host.
    AddLink(SocketAddr),
    /// Removes the edge to this host, of whatever kind it is.
    RemoveLink(SocketAddr),
    /// Adds a route.
    AddRoute(RouteLine),
    /// Removes a route.
    RemoveRoute(RouteLine),
}

/// The effect of a text.
#[derive(Clone, Debug)]
pub struct VnetOutcome {
    /// The output of `LIST`.
    pub output: String,
    /// The changes, in their order.
    pub edits: Vec<VnetEdit>,
    /// The table after the changes.
    pub table: Table,
}

/// The links, interfaces and routes of a network, with their indexes.
#[derive(Clone, Debug, Default)]
pub struct Table {
    pub(super) links: Indexed<SocketAddr>,
    interfaces: Indexed<InterfaceNames>,
    pub(super) routes: Indexed<RouteLine>,
}

/// The port that a route names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NamedPort {
    Link(SocketAddr),
    /// An interface, by its index.
    Interface(u64),
}

impl Table {
    /// Makes the table that of a network. What stays keeps its index; what is new gets the next one, in the order of these lists.
    pub fn follow(
        &mut self,
        links: impl IntoIterator<Item = SocketAddr>,
        interfaces: impl IntoIterator<Item = InterfaceNames>,
        routes: impl IntoIterator<Item = RouteLine>,
    ) {
        self.links.follow(links);
        self.interfaces.follow(interfaces);
        self.routes.follow(routes);
    }

    /// Runs a text. This table does not change: that of the outcome replaces it once the edits are applied. Until then a link that the text
    /// adds has no counters.
    pub fn run(&self, text: &str, counters: impl Fn(SocketAddr) -> LinkCounters) -> Result<VnetOutcome, VnetError> {
        let mut outcome = VnetOutcome { output: String::new(), edits: Vec::new(), table: self.clone() };
        for (line, command) in command::parse(text)? {
            outcome.execute(command, &counters).map_err(|reason| VnetError { line, reason })?;
        }
        Ok(outcome)
    }

    /// Finds the port that a route names.
    pub(super) fn port_of(&self, name: &PortName) -> Option<NamedPort> {
        match name {
            PortName::Edge(id) => {
                let link = self.links_named(id).next();
                link.map(|(_, link)| NamedPort::Link(link))
            }
            PortName::Interface(id) => {
                let mac = id.parse::<MacAddr>().ok();
                let is_named = |names: &InterfaceNames| names.label == *id || mac.is_some() && names.mac == mac;
                let named = self.interfaces.iter().find(|(_, names)| is_named(names));
                named.map(|(index, _)| NamedPort::Interface(index))
            }
        }
    }

    /// The links to a host, of which routes mean the first. The name is an address, or one with a port.
    fn links_named(&self, name: &str) -> impl Iterator<Item = (u64, SocketAddr)> {
        let (ip, to) = (name.parse::<IpAddr>().ok(), name.parse::<SocketAddr>().ok());
        let is_named = move |link: SocketAddr| Some(link.ip()) == ip || Some(link) == to;
        self.links.iter().map(|(index, link)| (index, *link)).filter(move |(_, link)| is_named(*link))
    }

    /// The index of a route that names this link and no other one.
    fn user_of(&self, index: u64) -> Option<u64> {
        let means = |name: &PortName| {
            let PortName::Edge(id) = name else { return false };
            let mut links = self.links_named(id);
            links.next().is_some_and(|(named, _)| named == index) && links.next().is_none()
        };
        self.routes.iter().find(|(_, route)| route.ports().any(means)).map(|(user, _)| user)
    }

    /// Returns a route in the words of the configuration, which names hosts by the usual form of their addresses.
    fn resolved(&self, mut route: RouteLine) -> Result<RouteLine, VnetReason> {
        for name in route.ports_mut() {
            let port = self.port_of(name).ok_or_else(|| UnknownPort(name.clone()))?;
            if let (PortName::Edge(id), NamedPort::Link(link)) = (name, port) {
                *id = if id.parse::<IpAddr>().is_ok() { link.ip().to_string() } else { link.to_string() };
            }
        }
        Ok(route)
    }
}

impl VnetOutcome {
    fn execute(&mut self, command: Command, counters: &impl Fn(SocketAddr) -> LinkCounters) -> Result<(), VnetReason> {
        let Self { output, edits, table } = self;
        match command {
            Command::AddLink(to) => {
                if let Some((index, _)) = table.links.iter().find(|(_, link)| **link == to) {
                    return Err(VnetReason::LinkExists(index));
                }
                table.links.add(to);
                edits.push(VnetEdit::AddLink(to));
            }
            Command::AddRoute(route) => {
                let route = table.resolved(route)?;
                table.routes.add(route.clone());
                edits.push(VnetEdit::AddRoute(route));
            }
            Command::Delete(file, index) => edits.push(table.delete(file, index)?),
            Command::List(file) => {
                listing::list(output, table, file, counters);
                if output.len() > OUTPUT_BYTES_MAX {
                    return Err(VnetReason::OutputTooLong);
                }
            }
        }
        Ok(())
    }
}

impl Table {
    fn delete(&mut self, file: VnetFile, index: u64) -> Result<VnetEdit, VnetReason> {
        let edit = match file {
            VnetFile::Links => {
                if let (Some(_), Some(route)) = (self.links.get(index), self.user_of(index)) {
                    return Err(VnetReason::LinkInUse(route));
                }
                self.links.remove(index).map(VnetEdit::RemoveLink)
            }
            VnetFile::Routes => self.routes.remove(index).map(VnetEdit::RemoveRoute),
        };
        edit.ok_or(VnetReason::UnknownIndex { file, index })
    }
}
