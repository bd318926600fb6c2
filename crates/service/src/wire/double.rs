//! Another host that announces the address of a board of ours: each would get the other one's frames, or nobody any.

use isthmus_layout::NicId;
use isthmus_mx::net::Time;

/// How often it is said at most.
const AGAIN_US: u64 = 60_000_000;

/// When it was last said.
#[derive(Debug, Default)]
pub(super) struct Double(Option<Time>);

impl Double {
    /// Another host was heard under this address.
    pub(super) fn heard(&mut self, now: Time, nic: NicId, link: &str) {
        if self.0.is_none_or(|said| now.since_us(said) >= AGAIN_US) {
            self.0 = Some(now);
            tracing::warn!(
                %nic,
                link,
                "another host announces the address of this board: give one of the two another `mac` in [[mx.board]]"
            );
        }
    }
}
