//! The overlay: the networks of this host, and the ways of their frames.
//!
//! ```text
//! list ─────▶ isthmus overlay list                                 the daemon's report about its networks
//! parts ────▶ isthmus overlay network|interface|edge|route list    a part of it; isthmus overlay stats
//! change ───▶ isthmus overlay network|interface|edge|route add|remove, isthmus overlay show
//! run ──────▶ isthmus overlay run                                  commands of VNET, from a file
//! monitor ──▶ isthmus overlay monitor                              frames and bytes by source and destination
//! explain ──▶ isthmus overlay explain                              why a frame goes where it goes
//! doctor ───▶ isthmus doctor                                       interfaces that are missing, hosts that cannot be reached
//! ```

mod change;
mod doctor;
mod explain;
mod list;
mod monitor;
mod parts;
mod run;

use std::path::PathBuf;

use anyhow::Result;
use clap::Subcommand;
use isthmus_config::overlay::Edit;

use crate::output::{Outcome, Output};
use change::{NewEdge, NewInterface, NewNetwork, PartName, RouteWords};
use parts::{NetworkChoice, PartKind};

pub(crate) use doctor::check;

/// The commands of the overlay.
#[derive(Subcommand)]
pub(crate) enum OverlayCommand {
    /// The overlay: Ethernet networks for containers and VMs of several hosts.
    #[command(subcommand)]
    Overlay(OverlayVerb),
}

#[derive(Subcommand)]
pub(crate) enum OverlayVerb {
    /// Lists the networks with their interfaces, edges, and counts of frames.
    List,
    /// Prints the running networks as the configuration would have them.
    Show,
    /// Networks: lists, adds and removes them.
    ///
    /// Only root and the daemon's user may change networks. A change is made as a whole or not at all. It holds until the daemon
    /// restarts or reads its configuration again; the command prints what to write into the configuration to keep it.
    #[command(subcommand)]
    Network(NetworkVerb),
    /// Interfaces of containers and of this host: lists, adds and removes them.
    #[command(subcommand)]
    Interface(InterfaceVerb),
    /// Edges to other hosts: lists, adds and removes them.
    #[command(subcommand)]
    Edge(EdgeVerb),
    /// Explicit routes, in the words of VNET: lists, adds and removes them.
    #[command(subcommand)]
    Route(RouteVerb),
    /// Runs commands of VNET from a file: `ADD`, `DEL` and `LIST`, for links and routes.
    ///
    /// Links are edges of kind `udp`. All commands take effect, or none.
    Run(run::RunArgs),
    /// Prints counts of frames and bytes for each interface and edge, and losses by reason.
    Stats(NetworkChoice),
    /// Prints the traffic matrix: frames and bytes by source and destination address, with the rates of an interval.
    Monitor(monitor::MonitorArgs),
    /// Explains where a frame goes: the rule that decides, the path of each copy, and why every other route lost.
    ///
    /// The answer holds for a frame that would be sent now. Learned addresses are those of a moment ago.
    Explain(explain::ExplainArgs),
}

#[derive(Subcommand)]
pub(crate) enum NetworkVerb {
    /// Lists the networks.
    List(NetworkChoice),
    /// Adds a network: `isthmus overlay network add lab vni=7`.
    Add(NewNetwork),
    /// Removes a network with its interfaces, edges and routes.
    Remove {
        /// The network.
        network: String,
    },
}

#[derive(Subcommand)]
pub(crate) enum InterfaceVerb {
    /// Lists the interfaces.
    List(NetworkChoice),
    /// Adds an interface: `isthmus overlay interface add lan eth0 namespace=web`.
    Add(NewInterface),
    /// Removes an interface: `isthmus overlay interface remove lan eth0@web`.
    Remove(PartName),
}

#[derive(Subcommand)]
pub(crate) enum EdgeVerb {
    /// Lists the edges.
    List(NetworkChoice),
    /// Adds an edge: `isthmus overlay edge add lan 192.0.2.2 kind=vxlan`.
    Add(NewEdge),
    /// Removes an edge: `isthmus overlay edge remove lan 192.0.2.2`.
    Remove(PartName),
}

#[derive(Subcommand)]
pub(crate) enum RouteVerb {
    /// Lists the routes.
    List(NetworkChoice),
    /// Adds a route: `isthmus overlay route add lan any 02:00:00:00:00:01 edge 192.0.2.2 any`.
    Add(RouteWords),
    /// Removes the first route of these words.
    Remove(RouteWords),
}

/// The action of a verb of networks, interfaces, edges or routes.
enum Action {
    List(PartKind, NetworkChoice),
    Change(Edit),
}

impl OverlayCommand {
    pub(crate) fn run(self, output: Output, socket: Option<PathBuf>) -> Result<Outcome> {
        let Self::Overlay(verb) = self;
        let action = match verb {
            OverlayVerb::List => return list::list(output, socket),
            OverlayVerb::Show => return change::show(output, socket),
            OverlayVerb::Run(args) => return run::run(output, socket, args),
            OverlayVerb::Stats(choice) => return parts::stats(output, socket, &choice),
            OverlayVerb::Monitor(args) => return monitor::monitor(output, socket, &args),
            OverlayVerb::Explain(args) => return explain::explain(output, socket, &args),
            OverlayVerb::Network(verb) => match verb {
                NetworkVerb::List(choice) => Action::List(PartKind::Networks, choice),
                NetworkVerb::Add(network) => Action::Change(network.edit()?),
                NetworkVerb::Remove { network } => Action::Change(Edit::RemoveNetwork(network)),
            },
            OverlayVerb::Interface(verb) => match verb {
                InterfaceVerb::List(choice) => Action::List(PartKind::Interfaces, choice),
                InterfaceVerb::Add(interface) => Action::Change(interface.edit()?),
                InterfaceVerb::Remove(name) => Action::Change(name.interface()),
            },
            OverlayVerb::Edge(verb) => match verb {
                EdgeVerb::List(choice) => Action::List(PartKind::Edges, choice),
                EdgeVerb::Add(edge) => Action::Change(edge.edit()?),
                EdgeVerb::Remove(name) => Action::Change(name.edge()),
            },
            OverlayVerb::Route(verb) => match verb {
                RouteVerb::List(choice) => Action::List(PartKind::Routes, choice),
                RouteVerb::Add(words) => Action::Change(words.added()),
                RouteVerb::Remove(words) => Action::Change(words.removed()),
            },
        };
        match action {
            Action::List(kind, choice) => parts::list(output, socket, kind, &choice),
            Action::Change(edit) => change::change(output, socket, edit),
        }
    }
}
