//! Explains why a frame goes where it goes.
//!
//! Control knows the routes, and the worker publishes what it has learned. From both it makes a network that decides as the worker's does,
//! and asks it.

use isthmus_config::overlay::EdgeKind;
use isthmus_layout::Refusal;
use isthmus_layout::control::Name;
use isthmus_layout::reason::Reason;
use isthmus_overlay::{FrameHeader, MacAddr, Millis, Network, Port, RouteOutcome, Verdict};
use isthmus_report::SCHEMA;
use isthmus_report::overlay::{OverlayCopy, OverlayExplanation, OverlayRouteOutcome};

use super::Overlay;
use super::interface::InterfaceStage;
use super::network::NetworkState;

/// The time at which the question is asked, on the clock of the network that is made for it. All learned addresses are younger.
const NOW: Millis = Millis(1 << 40);

impl Overlay {
    /// Returns the network of a name that a program has sent.
    pub(super) fn network_named(&self, network: &str) -> Result<&NetworkState, Refusal> {
        self.networks.iter().find(|state| state.name() == network).ok_or_else(|| {
            let names: Vec<_> = self.networks.iter().map(NetworkState::name).collect();
            let known =
                if names.is_empty() { "there is none".to_owned() } else { format!("there is {}", names.join(", ")) };
            invalid(format!("there is no overlay network {network}: {known}"))
        })
    }

    /// Explains the way of a frame of these addresses.
    pub(super) fn explain(
        &self,
        network: &Name,
        from: &Name,
        source: &Name,
        destination: &Name,
    ) -> Result<OverlayExplanation, Refusal> {
        let state = self.network_named(network.as_str())?;
        let port = state.port_named(from.as_str()).ok_or_else(|| {
            let names: Vec<_> = state.ports().map(|port| state.port_name(port)).collect();
            invalid(format!("{network} has no interface or edge {from}: it has {}", names.join(", ")))
        })?;
        let frame = FrameHeader::untagged(mac(destination)?, mac(source)?);
        let explanation = state.model().explain(NOW, port, &frame);
        let copy = |&port: &Port| OverlayCopy { to: state.port_name(port), path: state.path(port) };
        let texts = state.routes();
        let routes = explanation.routes.iter().zip(texts).map(|((id, _, outcome), (_, route))| OverlayRouteOutcome {
            number: id.0,
            route,
            wins: matches!(outcome, RouteOutcome::Wins(_)),
            outcome: outcome.to_string(),
        });
        Ok(OverlayExplanation {
            schema: SCHEMA,
            network: network.to_string(),
            from: state.port_name(port),
            source: explanation.source.to_string(),
            destination: explanation.destination.to_string(),
            rule: state.rule(&explanation.verdict),
            copies: explanation.verdict.ports().iter().map(copy).collect(),
            routes: routes.collect(),
        })
    }
}

fn invalid(text: String) -> Refusal {
    Refusal::new(Reason::RequestInvalid, text)
}

fn mac(text: &Name) -> Result<MacAddr, Refusal> {
    text.as_str().parse().map_err(|_| invalid(format!("{text} is not a MAC address, such as 02:00:5e:00:00:01")))
}

impl NetworkState {
    /// All interfaces and edges.
    fn ports(&self) -> impl Iterator<Item = Port> {
        let interfaces = self.interfaces.iter().map(|interface| Port::Interface(interface.key.interface));
        interfaces.chain(self.edges.iter().map(|edge| Port::Edge(edge.id)))
    }

    /// A network with the ports and routes of the worker's, which has learned the same addresses.
    fn model(&self) -> Network {
        let mut model = Network::new(self.options);
        let exists = |interface: &super::InterfaceState| matches!(interface.stage, InterfaceStage::Open { .. });
        let interfaces = self.interfaces.iter().filter(|interface| exists(interface));
        for interface in interfaces {
            let port = Port::Interface(interface.key.interface);
            model.add_port(port);
            if let Some(sources) = interface.sources() {
                model.limit_sources(port, &sources);
            }
        }
        for edge in &self.edges {
            model.add_port(Port::Edge(edge.id));
        }
        for (route, _) in self.routes() {
            let _ = model.add_route(route); // Within the limit, as the worker's.
        }
        let view = self.view();
        let shown_ms = u64::try_from(view.updated_at.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mut learned = view.learned;
        learned.sort_by_key(|learned| std::cmp::Reverse(learned.age_ms));
        for learned in learned {
            let seen = Millis(NOW.0.saturating_sub(learned.age_ms + shown_ms));
            let header = FrameHeader::untagged(MacAddr::BROADCAST, learned.mac);
            model.forward(seen, learned.port, &FrameHeader { vlan: learned.vlan, ..header });
        }
        model
    }

    /// The rule that decides.
    fn rule(&self, verdict: &Verdict) -> String {
        match verdict {
            Verdict::Routed { rank, .. } => format!("the matching routes of rank {}", rank.number()),
            Verdict::Learned { age, .. } => {
                format!("no route matches; the destination was seen there {}.{:03} s ago", age.0 / 1000, age.0 % 1000)
            }
            Verdict::Flooded { .. } => {
                "no route matches, and the destination is a group or not learned: every other port".to_owned()
            }
            Verdict::Dropped(reason) => format!("dropped: {reason}"),
        }
    }

    /// The way of a frame to an interface or edge.
    fn path(&self, port: Port) -> String {
        let Port::Edge(id) = port else { return "written to the interface, with its offloads".to_owned() };
        let Some(edge) = self.edges.iter().find(|edge| edge.id == id) else { return String::new() };
        let bytes = self.view().edges.iter().find(|served| served.edge == id).and_then(|served| served.datagram_bytes);
        let Some(bytes) = bytes else { return "lost: there is no route to the host".to_owned() };
        match edge.plan.kind {
            EdgeKind::Fast => format!("whole, with its offloads, in datagrams of {bytes} bytes"),
            EdgeKind::Vxlan => format!(
                "cut into segments, each in a VXLAN datagram of network {}; the path takes {bytes} bytes",
                self.plan.vni()
            ),
            EdgeKind::Udp => format!("cut into segments, each in a datagram; the path takes {bytes} bytes"),
        }
    }
}
