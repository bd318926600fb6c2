//! VNET's control language on a network.
//!
//! ```text
//!   text ─► Table::run ─► VnetEdit ─► Edit ─► Overlay::edit, as every change by a command
//!              ▲              │
//!              │              └──► the table after the edits, once they are applied
//!   every change of the network: follow
//! ```

use isthmus_config::overlay::{EdgeKind, Edit, Network};
use isthmus_layout::Refusal;
use isthmus_layout::reason::Reason;
use isthmus_overlay::MacAddr;
use isthmus_overlay::vnet::{InterfaceNames, LinkCounters, Table, VnetEdit, VnetError};
use isthmus_report::SCHEMA;
use isthmus_report::overlay::OverlayRan;

use super::Overlay;
use super::network::NetworkState;
use crate::core::Core;

/// The effect of a text that is not refused.
#[derive(Debug)]
struct VnetRun {
    /// The output of `LIST`.
    output: String,
    /// The changes. They may still be refused, because other networks have the same ports or names.
    edits: Vec<Edit>,
    /// The table of the network once the changes are applied.
    table: Table,
}

impl Overlay {
    /// Runs a text of VNET's language on a network: all of it, or nothing.
    pub(super) fn run(&mut self, core: &mut Core, network: &str, text: &str) -> Result<OverlayRan, Refusal> {
        let state = self.network_named(network)?;
        let VnetRun { output, edits, table } =
            state.run_vnet(text).map_err(|error| Refusal::new(Reason::OverlayChangeInvalid, error.to_string()))?;
        let toml = if edits.is_empty() { String::new() } else { self.edit(core, &edits)?.toml };
        let networks = &mut self.networks;
        if let Some(state) = networks.iter_mut().find(|state| state.name() == network) {
            state.vnet = table; // The indexes that `LIST` has printed, also of entries that the text has deleted again.
        }
        Ok(OverlayRan { schema: SCHEMA, output, changes: edits.len() as u64, toml })
    }
}

/// Makes a table that of a network. What stays keeps its index.
pub(super) fn follow(table: &mut Table, plan: &Network) {
    let links = plan.edges.iter().map(|edge| edge.to);
    let interfaces = plan
        .interfaces
        .iter()
        .map(|interface| InterfaceNames { label: interface.label(), mac: interface.mac().map(MacAddr) });
    table.follow(links, interfaces, plan.routes().iter().cloned());
}

impl NetworkState {
    /// Runs a text. The network does not change yet.
    fn run_vnet(&self, text: &str) -> Result<VnetRun, VnetError> {
        let view = self.view();
        let outcome = self.vnet.run(text, |link| {
            let state = self.edges.iter().find(|edge| edge.plan.to == link);
            let served = state.and_then(|state| view.edges.iter().find(|served| served.edge == state.id));
            let counters = served.map(|served| served.counters).unwrap_or_default();
            LinkCounters {
                received: counters.received,
                received_bytes: counters.received_bytes,
                sent: counters.sent,
                sent_bytes: counters.sent_bytes,
            }
        })?;
        let edits = outcome.edits.into_iter().map(|edit| self.edit(edit)).collect();
        Ok(VnetRun { output: outcome.output, edits, table: outcome.table })
    }

    fn edit(&self, edit: VnetEdit) -> Edit {
        let network = self.name().to_owned();
        match edit {
            VnetEdit::AddLink(to) => {
                let fields = [("to", to.to_string()), ("kind", EdgeKind::Udp.as_str().to_owned())];
                Edit::AddEdge {
                    network,
                    edge: fields.map(|(name, value)| (name.to_owned(), value.into())).into_iter().collect(),
                }
            }
            VnetEdit::RemoveLink(to) => Edit::RemoveEdge { network, edge: to.to_string() },
            VnetEdit::AddRoute(route) => Edit::AddRoute { network, route: route.to_string() },
            VnetEdit::RemoveRoute(route) => Edit::RemoveRoute { network, route: route.to_string() },
        }
    }
}
