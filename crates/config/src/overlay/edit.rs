//! Changes of the networks while the daemon runs.
//!
//! ```text
//!   Networks ── as TOML ──► edits, in their order ──► read again, as from a file ──► Networks
//!                              │                              │
//!                              └── names what is missing      └── every finding of the file's reader
//! ```
//!
//! All edits are applied, or none. Between two edits nothing is checked, so an edge may be removed before its routes are.

use isthmus_overlay::vnet::RouteLine;
use serde::{Deserialize, Serialize};
use toml::de::DeTable;
use toml::{Table, Value};

use super::edge::Edge;
use super::interface::{Interface, label};
use super::{Network, Networks};
use crate::origin::{Source, SourceKind};
use crate::problem::Finding;
use crate::setting::{ConfigValue, Setting};
use crate::users::Users;

/// The key of the networks in the configuration.
const KEY: &str = "overlay.network";

/// The maximum number of findings in the text of a refusal. More are only counted.
const FINDINGS_MAX: usize = 8;

/// A change of the networks. What is added is a table with the fields of the configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Edit {
    /// Adds a network.
    AddNetwork(Table),
    /// Removes the network of this name.
    RemoveNetwork(String),
    /// Adds an interface.
    AddInterface {
        /// The name of the network.
        network: String,
        /// The fields of the interface.
        interface: Table,
    },
    /// Removes an interface.
    RemoveInterface {
        /// The name of the network.
        network: String,
        /// The name of the interface in reports, as in `eth0@web`.
        interface: String,
    },
    /// Adds an edge.
    AddEdge {
        /// The name of the network.
        network: String,
        /// The fields of the edge.
        edge: Table,
    },
    /// Removes an edge.
    RemoveEdge {
        /// The name of the network.
        network: String,
        /// The address of the other host. Its port may be left out if the network has one edge to the host.
        edge: String,
    },
    /// Adds a route behind all others.
    AddRoute {
        /// The name of the network.
        network: String,
        /// The route, in the words of VNET's language.
        route: String,
    },
    /// Removes the first of the routes that are equal to this one.
    RemoveRoute {
        /// The name of the network.
        network: String,
        /// The route, in the words of VNET's language.
        route: String,
    },
}

/// A change that a program asks the daemon for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ChangeRequest {
    /// Applies edits in their order: all, or none.
    Edits(Vec<Edit>),
    /// Runs commands of VNET on a network: all, or none.
    Run {
        /// The name of the network.
        network: String,
        /// The commands.
        text: String,
    },
}

/// The reason why edits were refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// There is no network of the name.
    #[error("there is no overlay network {network}: {known}")]
    UnknownNetwork {
        /// The name.
        network: String,
        /// The networks that there are, as text.
        known: String,
    },
    /// The network has no part of the name.
    #[error("{network} has no {kind} {name}: {known}")]
    UnknownPart {
        /// The network.
        network: String,
        /// `interface`, `edge` or `route`.
        kind: &'static str,
        /// The name.
        name: String,
        /// The parts that there are, as text.
        known: String,
    },
    /// The network has several edges to the host.
    #[error("{network} has several edges to {name}: name the one to remove with its port")]
    AmbiguousEdge {
        /// The network.
        network: String,
        /// The address of the host.
        name: String,
    },
    /// The networks that the edits lead to are not valid.
    #[error("{0}")]
    Invalid(String),
}

impl Edit {
    /// The name of the network that changes.
    #[must_use]
    pub fn network(&self) -> &str {
        match self {
            Self::AddNetwork(fields) => fields.get("name").and_then(Value::as_str).unwrap_or_default(),
            Self::RemoveNetwork(network)
            | Self::AddInterface { network, .. }
            | Self::RemoveInterface { network, .. }
            | Self::AddEdge { network, .. }
            | Self::RemoveEdge { network, .. }
            | Self::AddRoute { network, .. }
            | Self::RemoveRoute { network, .. } => network,
        }
    }
}

impl Networks {
    /// The networks of a configuration.
    #[must_use]
    pub fn new(networks: Vec<Network>) -> Self {
        Self(networks)
    }

    /// Returns the networks after all edits.
    ///
    /// # Errors
    ///
    /// An edit names a network or a part that is missing, or the result is no valid configuration.
    pub fn edited(&self, edits: &[Edit]) -> Result<Self, EditError> {
        let mut networks: Vec<Value> = self.0.iter().map(Setting::to_toml).collect();
        edits.iter().try_for_each(|edit| apply(&mut networks, edit))?;
        read(&Value::Array(networks))
    }

    /// Returns the networks as they are written in the configuration. `of` chooses some of them.
    #[must_use]
    pub fn toml_text(&self, of: impl Fn(&str) -> bool) -> String {
        let chosen = self.0.iter().filter(|network| of(network.name.name().as_str()));
        chosen.map(network_text).collect::<Vec<_>>().join("\n")
    }
}

/// Reads networks as from the configuration.
fn read(networks: &Value) -> Result<Networks, EditError> {
    let text = format!("networks = {networks}\n");
    let table = DeTable::parse(&text).map_err(|error| EditError::Invalid(error.message().to_owned()))?;
    let source = Source::new(SourceKind::CommandLine, "", text.as_str());
    let users = Users::default();
    let value = &table.get_ref()["networks"];
    let item = ConfigValue { key: KEY.to_owned(), value, source: &source, source_index: 0, users: &users };
    let mut findings = Vec::new();
    let networks = Networks::read(&item, &mut findings);
    networks.filter(|_| findings.is_empty()).ok_or_else(|| EditError::Invalid(findings_text(&findings)))
}

fn findings_text(findings: &[Finding]) -> String {
    let text = |Finding { wrong, help, .. }: &Finding| match help {
        Some(help) => format!("{wrong} ({help})"),
        None => wrong.to_string(),
    };
    let mut texts: Vec<_> = findings.iter().take(FINDINGS_MAX).map(text).collect();
    if let Some(more @ 1..) = findings.len().checked_sub(FINDINGS_MAX) {
        texts.push(format!("and {more} more"));
    }
    texts.join("; ")
}

fn apply(networks: &mut Vec<Value>, edit: &Edit) -> Result<(), EditError> {
    let name_of = |network: &Value| network.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    if let Edit::AddNetwork(fields) = edit {
        networks.push(Value::Table(fields.clone()));
        return Ok(());
    }
    let Some(at) = networks.iter().position(|network| name_of(network) == edit.network()) else {
        let names: Vec<_> = networks.iter().map(name_of).collect();
        return Err(EditError::UnknownNetwork { network: edit.network().to_owned(), known: known(&names) });
    };
    let Value::Table(fields) = &mut networks[at] else { return Ok(()) }; // The reader refuses anything else.
    match edit {
        Edit::AddNetwork(_) => {}
        Edit::RemoveNetwork(_) => drop(networks.remove(at)),
        Edit::AddInterface { interface, .. } => add(fields, "interfaces", interface.clone().into()),
        Edit::AddEdge { edge, .. } => add(fields, "edges", edge.clone().into()),
        Edit::AddRoute { route, .. } => add(fields, "routes", canonical(route).into()),
        Edit::RemoveInterface { network, interface } => {
            let parts = Parts { network, fields, key: "interfaces", kind: "interface" };
            parts.remove(interface, interface_label, |label| label == interface)?;
        }
        Edit::RemoveEdge { network, edge } => {
            let parts = Parts { network, fields, key: "edges", kind: "edge" };
            parts.remove(edge, edge_name, |name| name.parse().is_ok_and(|to| Edge::is_named(to, edge)))?;
        }
        Edit::RemoveRoute { network, route } => {
            let wanted = canonical(route);
            let parts = Parts { network, fields, key: "routes", kind: "route" };
            parts.remove(&wanted, |route| route.as_str().unwrap_or_default().to_owned(), |route| route == wanted)?;
        }
    }
    Ok(())
}

/// Appends to a list of a network. A field that is no list stays as it is, and is refused by the reader.
fn add(fields: &mut Table, key: &str, value: Value) {
    let list = fields.entry(key).or_insert_with(|| Value::Array(Vec::new()));
    if let Value::Array(list) = list {
        list.push(value);
    }
}

/// A list of a network.
struct Parts<'a> {
    network: &'a str,
    fields: &'a mut Table,
    key: &'static str,
    kind: &'static str,
}

impl Parts<'_> {
    /// Removes the part of a name. Of equal routes, only the first is removed; several edges of one name are ambiguous.
    fn remove(
        self,
        name: &str,
        name_of: fn(&Value) -> String,
        matches: impl Fn(&str) -> bool,
    ) -> Result<(), EditError> {
        let Self { network, fields, key, kind } = self;
        let mut none = Vec::new();
        let list = fields.get_mut(key).and_then(Value::as_array_mut).unwrap_or(&mut none);
        let mut found = (0..list.len()).filter(|&at| matches(&name_of(&list[at])));
        let (first, second) = (found.next(), found.next());
        let (network, name) = (network.to_owned(), name.to_owned());
        match (first, second) {
            (Some(_), Some(_)) if kind == "edge" => Err(EditError::AmbiguousEdge { network, name }),
            (Some(at), _) => {
                list.remove(at);
                Ok(())
            }
            (None, _) => {
                let names: Vec<_> = list.iter().map(name_of).collect();
                Err(EditError::UnknownPart { network, kind, name, known: known(&names) })
            }
        }
    }
}

/// The name of an interface in reports.
fn interface_label(interface: &Value) -> String {
    let field = |name| interface.get(name).and_then(Value::as_str);
    label(field("name").unwrap_or_default(), field("namespace"))
}

/// The address of an edge in reports.
fn edge_name(edge: &Value) -> String {
    Edge::address_in(edge).map_or_else(String::new, |to| to.to_string())
}

/// A route as reports show it. A text that is no route stays as it is.
fn canonical(route: &str) -> String {
    route.parse::<RouteLine>().map_or_else(|_| route.to_owned(), |line| line.to_string())
}

/// The names that there are, in a sentence.
fn known(names: &[String]) -> String {
    const NAMES_MAX: usize = 8;
    match names.len() {
        0 => "there is none".to_owned(),
        count if count > NAMES_MAX => format!("there are {}, … ({count})", names[..NAMES_MAX].join(", ")),
        _ => format!("there is {}", names.join(", ")),
    }
}

/// A network as it is written in the configuration, with a line for each part.
fn network_text(network: &Network) -> String {
    let mut text = format!("[[{KEY}]]\n");
    let Value::Table(fields) = network.to_toml() else { return text };
    for name in Network::NAMES {
        match fields.get(*name) {
            None => {}
            Some(Value::Array(list)) if list.is_empty() => {}
            Some(Value::Array(list)) => {
                let lines: String = list.iter().map(|value| format!("  {},\n", inline(value))).collect();
                text += &format!("{name} = [\n{lines}]\n");
            }
            Some(value) => text += &format!("{name} = {value}\n"),
        }
    }
    text
}

/// A part of a network, with its fields in the order of the documentation.
fn inline(part: &Value) -> String {
    let Value::Table(fields) = part else { return part.to_string() };
    let names = Interface::NAMES.iter().chain(Edge::NAMES);
    let fields = names.filter_map(|name| Some(format!("{name} = {}", fields.get(*name)?)));
    format!("{{ {} }}", fields.collect::<Vec<_>>().join(", "))
}
