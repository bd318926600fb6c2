//! Verbs in the control plane: the identity of the virtual RDMA device in each place, and the queue pair numbers of the host and its guests.
//!
//! ```text
//!   Broker ── request, left, endpoint_closed ──► Verbs
//!                                                 ├── NumberBlocks   blocks of queue pair numbers, and the endpoints that have them
//!                                                 ├── NumberPeers    the domains that have asked for a queue pair
//!                                                 └── GidTable       node GUIDs, and the GIDs of the host's interfaces and of guests'
//! ```
//!
//! The daemon takes no part in what queue pairs do. It says which domain has a number; the programs then exchange messages.

mod gids;
mod metrics;
mod numbers;
mod peers;
pub(crate) mod report;
mod requests;

use std::collections::BTreeMap;

use isthmus_config::Config;
use isthmus_layout::Capability;
use isthmus_layout::reason::Reason;

use crate::host;
use crate::tickets::Tickets;

use gids::GidTable;
use numbers::NumberBlocks;
use peers::NumberPeers;

/// The state of verbs.
#[derive(Debug, Default)]
pub struct Verbs {
    is_enabled: bool,
    numbers: NumberBlocks,
    peers: NumberPeers,
    gids: GidTable,
    counts: Counts,
}

/// The counts of requests.
#[derive(Debug, Default)]
struct Counts {
    /// Queue pair numbers that were found.
    resolved: u64,
    /// Requests that were refused, by reason.
    refused: BTreeMap<Reason, u64>,
}

impl Verbs {
    /// Takes the settings, and reserves the blocks of domains that may resume.
    pub(crate) fn open(config: &Config, tickets: &Tickets) -> Self {
        let gids = GidTable::new(host::identity(tickets.host_id()));
        let mut verbs = Self {
            is_enabled: config.verbs.enabled,
            numbers: NumberBlocks::new(random_u16()),
            gids,
            ..Self::default()
        };
        for (item, domain) in tickets.claims(Capability::Verbs) {
            if let Ok(first) = item.parse() {
                verbs.numbers.reserve(first, domain, tickets.account_of(domain));
            }
        }
        verbs
    }
}

/// Returns a random number. Each daemon begins elsewhere in the space of numbers, because it does not know which ones the previous daemon
/// gave out last.
fn random_u16() -> u16 {
    let mut bytes = [0; 2];
    let drawn = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK);
    if drawn.is_ok() { u16::from_le_bytes(bytes) } else { 0 }
}
