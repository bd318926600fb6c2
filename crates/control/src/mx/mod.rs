//! MX in the control plane: boards, the endpoint numbers on them, and connects to boards of other hosts.
//!
//! ```text
//!   Broker ── request, left, endpoint_closed, event ──► Mx
//!                                                       ├── EndpointNumbers   boards, claims of their numbers
//!                                                       ├── RemoteAddresses   the boards and numbers of remote peers
//!                                                       └── PendingRequests   connects without a reply
//! ```

mod capture;
mod metrics;
mod network;
mod numbers;
mod peer_hosts;
mod remote;
pub(crate) mod report;
mod requests;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex};

use isthmus_config::{Config, MxHost};
use isthmus_layout::Capability;
use isthmus_service::{Command, MxBoardNumber, MxCommand, MxView, NewMxBoard, WorkerIndex};

use crate::core::pending_requests::PendingRequests;
use crate::host;
use crate::tickets::Tickets;

use network::OpenedBoards;
use numbers::{EndpointNumbers, MxNumber};
use peer_hosts::UnresolvedHosts;
use remote::{Connect, RemoteAddresses};

/// The state of MX.
#[derive(Debug, Default)]
pub struct Mx {
    numbers: EndpointNumbers,
    /// Boards with links that no worker polls yet.
    linked: Vec<NewMxBoard>,
    /// The visible state of each board; none for boards without links.
    views: Vec<Option<Arc<Mutex<MxView>>>>,
    /// The hosts of links over UDP that do not resolve.
    unresolved: UnresolvedHosts,
    has_xdp_links: bool,
    remote: RemoteAddresses,
    connects: PendingRequests<Connect>,
}

impl Mx {
    /// Opens the boards with their links, and reserves the numbers of domains that may resume.
    pub(crate) fn open(config: &Config, tickets: &Tickets) -> Result<Self, String> {
        let host::HostIdentity { name, id } = host::identity(tickets.host_id());
        let plans = config.mx.plans(&MxHost { name, id })?;
        let opened = network::open(&plans)?;
        opened.log();
        let OpenedBoards { boards, linked, views, unresolved } = opened;
        let mut numbers = EndpointNumbers::new(boards, config.limits.mx_endpoints_per_user_max.get() as usize);
        for (item, domain) in tickets.claims(Capability::Mx) {
            if let Some(number) = MxNumber::parse(item) {
                numbers.reserve(number, domain, tickets.account_of(domain));
            }
        }
        let has_xdp_links = network::has_xdp_links(&plans);
        Ok(Self { numbers, linked, views, unresolved, has_xdp_links, ..Self::default() })
    }

    /// True if an AF_XDP link is open. Such a link needs privileges again later.
    pub(crate) fn has_xdp_links(&self) -> bool {
        self.has_xdp_links
    }

    /// True if a board has links to other hosts.
    pub(crate) fn has_links(&self) -> bool {
        self.views.iter().any(Option::is_some)
    }

    /// Returns the commands with which the workers begin to poll the boards.
    pub(crate) fn first_commands(&mut self) -> impl Iterator<Item = Command> {
        self.linked.drain(..).map(|board| board_command(board.number, MxCommand::AddBoard(Box::new(board))))
    }

    fn board_has_links(&self, board: u32) -> bool {
        self.views.get(board as usize).is_some_and(Option::is_some)
    }
}

/// The worker that polls a board: boards go to the first worker.
const fn worker_of(_board: MxBoardNumber) -> WorkerIndex {
    WorkerIndex(0)
}

/// A command about a board, for the worker that polls it.
fn board_command(board: MxBoardNumber, command: MxCommand) -> Command {
    Command::Mx(worker_of(board), command)
}
