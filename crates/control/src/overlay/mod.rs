//! The overlay in the control plane: its networks, the interfaces that the helper creates for them, and the edges.
//!
//! ```text
//!   configuration ──► open, reload  ──► Opener ──► isthmus-helper ──► TAPs         at first before the privileges are dropped
//!                        │                 ▲
//!                        ▼                 └── tick: interfaces that could not be created are tried again
//!                     commands ──► the worker of the networks
//! ```

mod change;
mod explain;
mod interface;
mod metrics;
mod monitor;
mod network;
mod opener;
mod report;
mod sockets;
mod tap_store;
#[cfg(test)]
mod tests;
mod vnet;
mod warnings;

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use isthmus_config::Config;
use isthmus_config::overlay::Network;
use isthmus_service::overlay::{OverlayCommand, OverlayEvent, OverlayNetworkNumber};
use isthmus_service::{Command, Event, WorkerIndex};

use crate::core::Core;
use crate::core::awaited_work::AwaitedWork;
use crate::core::types::StoredFds;
use crate::host;
use crate::tickets::Tickets;
use interface::{InterfaceKey, InterfaceStage, InterfaceState, MacGenerator, RETRY_NS_MAX};
use network::{Changes, NetworkState};
use opener::{Opener, Outcome};
use sockets::EdgeSockets;
use tap_store::TapStore;

/// The state of the overlay.
#[derive(Debug)]
pub struct Overlay {
    networks: Vec<NetworkState>,
    next_network: u32,
    sockets: EdgeSockets,
    macs: MacGenerator,
    opener: Opener,
    /// Interfaces that the opener was asked for, until the broker waits for them.
    opening: VecDeque<AwaitedWork<Self>>,
    /// The worker of all networks.
    worker: WorkerIndex,
    /// Commands that no worker has carried out yet.
    first_commands: Vec<OverlayCommand>,
    /// The time at which interfaces are tried again.
    due: Option<u64>,
    /// The number of changes by commands since the configuration was read.
    changes: u64,
}

impl Default for Overlay {
    /// Returns the state without networks.
    fn default() -> Self {
        Self {
            networks: Vec::new(),
            next_network: 0,
            sockets: EdgeSockets::new(IpAddr::from(Ipv6Addr::UNSPECIFIED)),
            macs: MacGenerator::default(),
            opener: Opener::new(Path::new(isthmus_helper::SOCKET_PATH), TapStore::default()),
            opening: VecDeque::new(),
            worker: WorkerIndex(0),
            first_commands: Vec::new(),
            due: None,
            changes: 0,
        }
    }
}

impl Overlay {
    /// Opens the sockets of the edges and creates the interfaces, or takes those of the previous daemon.
    /// An interface that cannot be created is tried again later.
    pub(crate) fn open(config: &Config, tickets: &Tickets, stored: StoredFds) -> Result<Self, String> {
        let mut overlay = Self {
            sockets: EdgeSockets::new(config.overlay.listen.ip()),
            macs: MacGenerator::new(&host::identity(tickets.host_id()), config.daemon.runtime_dir.path()),
            opener: Opener::new(config.overlay.helper.path(), TapStore::new(stored)),
            // Workers with high numbers do not have the MX boards.
            worker: WorkerIndex((config.daemon.workers.get() - 1) as u8), // At most 64.
            ..Self::default()
        };
        overlay.first_commands = overlay.change(config.overlay.network.as_slice())?;
        overlay.open_interfaces();
        Ok(overlay)
    }

    /// Applies the networks of a configuration that was read again. Returns the key that could not be applied.
    pub(crate) fn reload(&mut self, core: &mut Core, config: &Config) -> Option<&'static str> {
        let error = self.replace(core, config.overlay.network.as_slice()).err()?;
        tracing::error!("the overlay networks stay as they are: {error}");
        Some("overlay.network")
    }

    /// Replaces the networks and the changes by commands: all of them, or none. Interfaces and edges that stay are not touched.
    fn replace(&mut self, core: &mut Core, networks: &[Network]) -> Result<(), String> {
        let before = self.running();
        self.apply(core, networks)?;
        self.changes_replaced(&before);
        Ok(())
    }

    /// Makes the networks what `networks` say: all of them, or none.
    fn apply(&mut self, core: &mut Core, networks: &[Network]) -> Result<(), String> {
        let now = core.now;
        let commands = self.change(networks)?;
        if self.has_missing() {
            self.due = Some(now);
        }
        let worker = self.worker;
        commands.into_iter().for_each(|command| core.workers.send(Command::Overlay(worker, command)));
        Ok(())
    }

    /// Makes the networks what `plans` say. Returns the commands for the worker: what goes, then what comes, because an address may pass from
    /// one edge to another.
    fn change(&mut self, plans: &[Network]) -> Result<Vec<OverlayCommand>, String> {
        let mut new = Changes { commands: self.sockets.open(plans)?, ..Changes::default() };
        let mut before = std::mem::take(&mut self.networks);
        for plan in plans {
            let stays = before.iter().position(|network| network.may_become(plan));
            let mut network = match stays {
                Some(at) => before.swap_remove(at),
                None => {
                    let number = OverlayNetworkNumber(self.next_network);
                    self.next_network += 1;
                    NetworkState::new(number, plan, &mut new)
                }
            };
            network.change(plan, &self.macs, &self.sockets, &mut new);
            self.networks.push(network);
        }
        for network in before {
            network.remove(&mut new);
        }
        new.released.into_iter().for_each(|claims| self.opener.release(claims));
        Ok(new.removals.into_iter().chain(new.commands).collect())
    }

    /// Creates all interfaces before the daemon is ready.
    fn open_interfaces(&mut self) {
        let requests: Vec<_> = self.interfaces().map(InterfaceState::request).collect();
        self.opener.close_unwanted(&requests);
        let Self { networks, opener, first_commands, .. } = self;
        for interface in networks.iter_mut().flat_map(|network| &mut network.interfaces) {
            let outcome = opener.open_now(&interface.request());
            first_commands.extend(interface.opened(outcome));
        }
        opener.privileges_dropped();
        self.due = self.has_missing().then_some(RETRY_NS_MAX);
    }

    fn interfaces(&self) -> impl Iterator<Item = &InterfaceState> {
        self.networks.iter().flat_map(|network| &network.interfaces)
    }

    fn has_missing(&self) -> bool {
        self.next_retry().is_some()
    }

    /// The time at which the next missing interface is tried again.
    fn next_retry(&self) -> Option<u64> {
        let missing = self.interfaces().filter(|interface| matches!(interface.stage, InterfaceStage::Missing));
        missing.map(|interface| interface.retry_at).min()
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

    /// Tries interfaces again.
    pub(crate) fn tick(&mut self, core: &mut Core) {
        if self.due.is_some_and(|due| due <= core.now) {
            self.ask_again(core.now);
            self.due = self.next_retry();
        }
    }

    /// Asks the opener for the interfaces that are missing for long enough.
    fn ask_again(&mut self, now: u64) {
        let Self { networks, opener, opening, .. } = self;
        for interface in networks.iter_mut().flat_map(|network| &mut network.interfaces) {
            if matches!(interface.stage, InterfaceStage::Missing) && interface.retry_at <= now {
                let (key, outcome) = (interface.key, opener.ask(interface.request()));
                interface.stage = InterfaceStage::Asked;
                opening.push_back(AwaitedWork::new(async move {
                    let outcome = outcome.await;
                    move |overlay: &mut Self, core: &mut Core| overlay.opened(core, key, outcome)
                }));
            }
        }
    }

    /// Returns the next interface that is to be waited for.
    pub(crate) fn next_awaited(&mut self) -> Option<AwaitedWork<Self>> {
        self.opening.pop_front()
    }

    /// Handles the outcome of a request to the opener.
    fn opened(&mut self, core: &mut Core, key: InterfaceKey, outcome: Outcome) {
        let mut interfaces = self.networks.iter_mut().flat_map(|network| &mut network.interfaces);
        match (interfaces.find(|interface| interface.key == key), outcome) {
            (Some(interface), outcome) => {
                let commands = interface.opened(outcome);
                interface.retry_at = core.now + interface.retry_delay();
                commands.into_iter().for_each(|command| core.workers.send(Command::Overlay(self.worker, command)));
            }
            (None, Ok(opened)) => self.opener.release(opened.claims), // The interface was removed meanwhile.
            (None, Err(_)) => {}
        }
        self.due = self.next_retry();
    }

    /// Handles an event of the worker.
    pub(crate) fn event(&mut self, core: &mut Core, event: &Event) {
        let (network, interface) = match *event {
            Event::Overlay(OverlayEvent::InterfaceGone { network, interface }) => (network, interface),
            Event::Overlay(OverlayEvent::Report { network, report }) => return self.warn(core, network, report),
            _ => return,
        };
        let now = core.now;
        let key = InterfaceKey { network, interface };
        let mut interfaces = self.networks.iter_mut().flat_map(|network| &mut network.interfaces);
        let Some(state) = interfaces.find(|state| state.key == key) else { return };
        if let Some(claims) = state.claims() {
            self.opener.release(claims);
        }
        state.missing("the interface was deleted, or its network namespace has ended".to_owned());
        state.retry_at = now + RETRY_NS_MAX;
        self.due = Some(self.due.map_or(state.retry_at, |due| due.min(state.retry_at)));
        let worker = self.worker;
        let command = OverlayCommand::RemoveInterface { network, interface };
        core.workers.send(Command::Overlay(worker, command));
    }
}
