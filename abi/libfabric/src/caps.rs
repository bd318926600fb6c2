//! Capabilities: those a request may name, and those an endpoint gets (`fi_getinfo(3)`, "CAPABILITIES").
//!
//! ```text
//!   primary     FI_MSG FI_TAGGED FI_RMA FI_ATOMIC FI_DIRECTED_RECV       only those that are requested
//!   modifiers   FI_SEND FI_RECV                                          of FI_MSG and FI_TAGGED: all if none is requested
//!               FI_READ FI_WRITE FI_REMOTE_READ FI_REMOTE_WRITE          of FI_RMA and FI_ATOMIC: likewise
//!   secondary   FI_MULTI_RECV FI_SOURCE FI_RMA_EVENT and the domain's    always: they cost nothing that is not used
//! ```

use crate::abi::consts::*;
use crate::errno::Errno;

const MESSAGES: u64 = FI_MSG | FI_TAGGED;
const MESSAGE_MODIFIERS: u64 = FI_SEND | FI_RECV;
const MEMORY: u64 = FI_RMA | FI_ATOMIC;
const TARGET: u64 = FI_REMOTE_READ | FI_REMOTE_WRITE;
const MEMORY_MODIFIERS: u64 = FI_READ | FI_WRITE | TARGET;

/// The capabilities of the domain.
pub(crate) const DOMAIN: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM;
/// The capabilities that apply to the transmit side.
const TX: u64 = MESSAGES | MEMORY | FI_SEND | FI_READ | FI_WRITE;
/// The capabilities that apply to the receive side.
const RX: u64 = MESSAGES | MEMORY | FI_RECV | TARGET | FI_DIRECTED_RECV | FI_MULTI_RECV | FI_SOURCE | FI_RMA_EVENT;
const ALL: u64 = TX | RX | DOMAIN;

/// The capabilities of an endpoint and of its two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caps {
    pub(crate) endpoint: u64,
    pub(crate) tx: u64,
    pub(crate) rx: u64,
}

impl Default for Caps {
    fn default() -> Self {
        Self::granted(0, 0, 0)
    }
}

/// Adds all modifiers to capabilities that are requested without one.
const fn with_modifiers(caps: u64) -> u64 {
    let messages = caps & MESSAGES != 0 && caps & MESSAGE_MODIFIERS == 0;
    let memory = caps & MEMORY != 0 && caps & MEMORY_MODIFIERS == 0;
    caps | if messages { MESSAGE_MODIFIERS } else { 0 } | if memory { MEMORY_MODIFIERS } else { 0 }
}

impl Caps {
    /// Checks the capabilities that hints request of the endpoint and of its sides, and returns those it gets.
    pub(crate) fn requested(endpoint: u64, tx: u64, rx: u64) -> Result<Self, Errno> {
        let caps = Self::granted(endpoint, tx, rx);
        // Modifiers without a capability to modify, and events of accesses that the endpoint refuses, are contradictions.
        let contradicts = endpoint & MEMORY_MODIFIERS != 0 && endpoint & MEMORY == 0;
        if contradicts || (endpoint | tx | rx) & !caps.endpoint != 0 { Err(Errno::NODATA) } else { Ok(caps) }
    }

    /// Returns the capabilities of an endpoint: for a side of zero those of the endpoint that apply to the side, for an
    /// endpoint of zero all that are supported.
    pub(crate) fn granted(endpoint: u64, tx: u64, rx: u64) -> Self {
        let mut caps = if endpoint == 0 { ALL } else { with_modifiers(endpoint & ALL & !FI_RMA_EVENT) };
        caps |= FI_MULTI_RECV | FI_SOURCE | DOMAIN;
        if caps & TARGET != 0 {
            caps |= FI_RMA_EVENT;
        }
        let side = |wanted: u64, applicable: u64| match wanted {
            0 => caps & applicable,
            wanted => with_modifiers(wanted) & caps & applicable,
        };
        Self { endpoint: caps, tx: side(tx, TX), rx: side(rx, RX) }
    }

    /// Checks that the transmit side has all of these capabilities.
    #[inline]
    pub(crate) fn check_tx(self, needed: u64) -> Result<(), Errno> {
        if self.tx & needed == needed { Ok(()) } else { Err(Errno::NOSYS) }
    }

    /// Checks that the receive side has all of these capabilities.
    #[inline]
    pub(crate) fn check_rx(self, needed: u64) -> Result<(), Errno> {
        if self.rx & needed == needed { Ok(()) } else { Err(Errno::NOSYS) }
    }
}
