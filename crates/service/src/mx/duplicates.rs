//! Another host that announces the address of an MX board of this host: each would get the other one's frames, or neither any.

use isthmus_layout::NicId;
use isthmus_mx::net::Time;

/// The shortest time between two warnings.
const REPORT_INTERVAL_US: u64 = 60_000_000;

/// When the warning was last logged.
#[derive(Debug, Default)]
pub(super) struct DuplicateAddress(Option<Time>);

impl DuplicateAddress {
    /// Warns that another host uses this address.
    pub(super) fn report(&mut self, now: Time, nic: NicId, link: &str) {
        if self.0.is_none_or(|said| now.since_us(said) >= REPORT_INTERVAL_US) {
            self.0 = Some(now);
            tracing::warn!(
                %nic,
                link,
                "another host announces the address of this board: give one of the two another `mac` in [[mx.board]]"
            );
        }
    }
}
