//! Messages that were over for the program before they left: what becomes of them when their domain leaves.
//!
//! ```text
//!   deliver ─► wait until the receivers have taken them ─► none is left
//!                                   └── limit is over ───► Undelivered, to the daemon: log, counter, end of the channel
//! ```

use crate::core::Core;
use crate::domain::Domain;
use crate::matcher::{Matcher, Token};
use isthmus_layout::DomainId;
use isthmus_layout::control::Undelivered;
use std::time::{Duration, Instant};

/// The longest sleep in [`Domain::deliver`], so that its caller can do other work in between.
const SLICE: Duration = Duration::from_millis(10);

impl<M: Matcher> Core<M> {
    /// Counts the messages that wait to be sent and that `is_over` picks out, by their receiver. What the daemon has is not among
    /// them, because it still delivers most of that after the domain has left.
    fn waiting(&self, is_over: &impl Fn(&M, Token) -> bool) -> Vec<(DomainId, u32)> {
        let count = |at| {
            let peer = &self.peers[at];
            let waiting = peer.queue.iter().chain(&peer.streams);
            let messages = waiting.filter(|message| is_over(&self.matcher, message.token)).count();
            (peer.id, u32::try_from(messages).unwrap_or(u32::MAX))
        };
        self.peers.indices().into_iter().map(count).filter(|(_, messages)| *messages > 0).collect()
    }
}

impl<M: Matcher> Domain<M> {
    /// Returns true if a message waits to be sent that `is_over` picks out, or if a receiver of this host has not taken what the daemon has
    /// for it. Such a receiver learns of the end of this domain before the daemon has room for the rest of a long message. What goes to
    /// other hosts is the daemon's.
    pub fn has_undelivered(&self, is_over: impl Fn(&M, Token) -> bool) -> bool {
        let in_flight = self.core.peers.iter().any(|peer| !peer.id.is_remote() && peer.credit.in_flight());
        in_flight || !self.core.waiting(&is_over).is_empty()
    }

    /// Waits until nothing is undelivered, as [`Self::has_undelivered`] says, for `limit` at most. The messages of a peer that leaves fail,
    /// and are not waited for. `between` is called before each iteration; see [`Self::leave`].
    pub fn deliver(&mut self, limit: Duration, is_over: impl Fn(&M, Token) -> bool, mut between: impl FnMut(&mut M)) {
        let deadline = Instant::now() + limit;
        while self.core.check_alive().is_ok() && self.has_undelivered(&is_over) && Instant::now() < deadline {
            between(&mut self.core.matcher);
            self.progress_or_sleep(deadline.min(Instant::now() + SLICE));
        }
    }

    /// Reports to the daemon the messages that are left behind of those that `is_over` picks out. Returns their number.
    pub fn report_undelivered(&mut self, is_over: impl Fn(&M, Token) -> bool) -> u32 {
        let left = self.core.waiting(&is_over);
        for &(peer, messages) in &left {
            // The reply is awaited, because a process that ends right after a message may end before the daemon has read it. A refusal
            // changes nothing here.
            let _ = self.core.request(Undelivered { peer, messages }.into());
        }
        left.iter().fold(0, |sum: u32, (_, messages)| sum.saturating_add(*messages))
    }
}
