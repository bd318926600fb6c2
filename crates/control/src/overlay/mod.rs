//! The overlay in the control plane: its networks, the interfaces that the helper creates for them, and the edges.
//!
//! ```text
//!   configuration ──► Overlay::open ──► Opener ──► isthmus-helper ──► TAPs         before the privileges are dropped
//!                        │                 ▲
//!                        ▼                 └── tick: interfaces that could not be created are tried again
//!                     commands ──► the worker of the networks
//! ```

mod explain;
mod interface;
mod metrics;
mod network;
mod opener;
mod report;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use isthmus_config::Config;
use isthmus_config::overlay::EdgeKind;
use isthmus_layout::ids::{DomainId, EndpointAddress};
use isthmus_link::EdgeSocket;
use isthmus_service::overlay::{
    NewOverlaySocket, OverlayCommand, OverlayEdgeKind, OverlayEvent, OverlayNetworkNumber, OverlaySocketNumber,
};
use isthmus_service::{Command, WorkerIndex};

use crate::broker::Broker;
use crate::host;
use crate::tickets::Tickets;
use interface::{InterfaceKey, InterfaceStage, InterfaceState, MacGenerator};
use network::{EdgeSockets, NetworkState};
use opener::Opener;

/// The interval in nanoseconds at which interfaces that could not be created are tried again.
const RETRY_NS: u64 = 1_000_000_000;

/// The interval in nanoseconds at which replies of the opener are looked for, while one is due.
const REPLY_CHECK_NS: u64 = 5_000_000;

/// The state of the overlay.
#[derive(Debug)]
pub struct Overlay {
    networks: Vec<NetworkState>,
    /// The worker of all networks.
    worker: WorkerIndex,
    /// Commands that no worker has carried out yet.
    first_commands: Vec<OverlayCommand>,
    opener: Option<Opener>,
    /// The time at which interfaces are tried again, or replies are looked for.
    due: Option<u64>,
}

impl Default for Overlay {
    /// Returns the state without networks.
    fn default() -> Self {
        Self { networks: Vec::new(), worker: WorkerIndex(0), first_commands: Vec::new(), opener: None, due: None }
    }
}

impl Overlay {
    /// Opens the sockets of the edges and creates the interfaces. An interface that cannot be created is tried again later.
    pub(crate) fn open(config: &Config, tickets: &Tickets) -> Result<Self, String> {
        let networks = config.overlay.network.as_slice();
        if networks.is_empty() {
            return Ok(Self::default());
        }
        let macs = MacGenerator::new(&host::identity(tickets.host_id()), config.daemon.runtime_dir.path());
        let mut overlay = Self {
            // Workers with high numbers do not have the MX boards.
            worker: WorkerIndex((config.daemon.workers.get() - 1) as u8), // At most 64.
            opener: Some(Opener::new(config.overlay.helper.path())),
            ..Self::default()
        };
        let sockets = overlay.open_sockets(config)?;
        for (number, plan) in (0..).zip(networks) {
            let (network, commands) = NetworkState::new(OverlayNetworkNumber(number), plan, &macs, &sockets)?;
            overlay.first_commands.extend(commands);
            overlay.networks.push(network);
        }
        overlay.open_interfaces();
        Ok(overlay)
    }

    /// Opens a socket for each port of the edges.
    fn open_sockets(&mut self, config: &Config) -> Result<EdgeSockets, String> {
        let edges = || config.overlay.network.as_slice().iter().flat_map(|network| &network.edges);
        let ports: BTreeMap<u16, EdgeKind> = edges().map(|edge| (edge.to.port(), edge.kind)).collect();
        let mut sockets = EdgeSockets::default();
        for (number, (port, kind)) in (0..).zip(ports) {
            let address = SocketAddr::new(config.overlay.listen.ip(), port);
            let socket = EdgeSocket::open(address, kind != EdgeKind::Fast)
                .map_err(|error| format!("overlay: the socket for {} edges: {error}", kind.as_str()))?;
            let number = OverlaySocketNumber(number);
            sockets.add(number, &socket, edges().map(|edge| edge.to).filter(|to| to.port() == port));
            let kind = service_kind(kind);
            self.first_commands.push(OverlayCommand::AddSocket(Box::new(NewOverlaySocket { number, kind, socket })));
        }
        Ok(sockets)
    }

    /// Creates all interfaces before the daemon is ready.
    fn open_interfaces(&mut self) {
        let Self { networks, opener, first_commands, .. } = self;
        let Some(opener) = opener else { return };
        for interface in networks.iter_mut().flat_map(|network| &mut network.interfaces) {
            let outcome = opener.open_now(&interface.request());
            first_commands.extend(interface.opened(outcome));
        }
        opener.privileges_dropped();
        self.due = self.has_missing().then_some(RETRY_NS);
    }

    fn interfaces(&self) -> impl Iterator<Item = &InterfaceState> {
        self.networks.iter().flat_map(|network| &network.interfaces)
    }

    fn has_missing(&self) -> bool {
        self.interfaces().any(|interface| matches!(interface.stage, InterfaceStage::Missing))
    }

    /// Returns the commands with which the worker begins to serve the networks.
    pub(crate) fn first_commands(&mut self) -> impl Iterator<Item = Command> {
        let worker = self.worker;
        self.first_commands.drain(..).map(move |command| Command::Overlay(worker, command))
    }

    /// The time at which [`Overlay::tick`] has something to do.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.due
    }

    /// Takes the replies of the opener, and tries interfaces again.
    pub(crate) fn tick(broker: &mut Broker) {
        let now = broker.now;
        let overlay = &mut broker.capabilities.overlay;
        if overlay.due.is_none_or(|due| now < due) {
            return;
        }
        let commands = overlay.take_replies(now);
        overlay.ask_again(now);
        let is_asked = overlay.interfaces().any(|interface| matches!(interface.stage, InterfaceStage::Asked));
        overlay.due = match is_asked {
            true => Some(now + REPLY_CHECK_NS),
            false => overlay.has_missing().then_some(now + RETRY_NS),
        };
        let worker = overlay.worker;
        commands.into_iter().for_each(|command| broker.workers.send(Command::Overlay(worker, command)));
    }

    fn take_replies(&mut self, now: u64) -> Vec<OverlayCommand> {
        let Some(opener) = &self.opener else { return Vec::new() };
        let mut commands = Vec::new();
        while let Some((key, outcome)) = opener.reply() {
            let mut interfaces = self.networks.iter_mut().flat_map(|network| &mut network.interfaces);
            if let Some(interface) = interfaces.find(|interface| interface.key == key) {
                commands.extend(interface.opened(outcome));
                interface.retry_at = now + RETRY_NS;
            }
        }
        commands
    }

    /// Asks the opener for the interfaces that are missing for long enough.
    fn ask_again(&mut self, now: u64) {
        let Some(opener) = &mut self.opener else { return };
        for interface in self.networks.iter_mut().flat_map(|network| &mut network.interfaces) {
            if matches!(interface.stage, InterfaceStage::Missing) && interface.retry_at <= now {
                opener.ask(interface.request());
                interface.stage = InterfaceStage::Asked;
            }
        }
    }

    /// Handles an event of the worker.
    pub(crate) fn event(broker: &mut Broker, event: OverlayEvent) {
        let now = broker.now;
        let overlay = &mut broker.capabilities.overlay;
        let OverlayEvent::InterfaceGone { network, interface } = event;
        let key = InterfaceKey { network, interface };
        let mut interfaces = overlay.networks.iter_mut().flat_map(|network| &mut network.interfaces);
        let Some(state) = interfaces.find(|state| state.key == key) else { return };
        if let (InterfaceStage::Open { helper_number }, Some(opener)) = (&state.stage, &mut overlay.opener) {
            opener.release(*helper_number);
        }
        state.missing("it was deleted, or its network namespace has ended".to_owned());
        state.retry_at = now + RETRY_NS;
        overlay.due = Some(overlay.due.map_or(state.retry_at, |due| due.min(state.retry_at)));
        let worker = overlay.worker;
        let command = OverlayCommand::RemoveInterface { network, interface };
        broker.workers.send(Command::Overlay(worker, command));
    }

    /// Releases the state of a domain that has left. Domains have no part in networks.
    pub(crate) fn left(_broker: &mut Broker, _domain: DomainId) {}

    /// Releases the state of an endpoint that was closed. Endpoints have no part in networks.
    pub(crate) fn endpoint_closed(_broker: &mut Broker, _at: EndpointAddress) {}
}

/// Returns the encapsulation as the workers know it.
fn service_kind(kind: EdgeKind) -> OverlayEdgeKind {
    match kind {
        EdgeKind::Fast => OverlayEdgeKind::Fast,
        EdgeKind::Vxlan => OverlayEdgeKind::Vxlan,
        EdgeKind::Udp => OverlayEdgeKind::Udp,
    }
}
