//! Forced switches, for tests: `ISTHMUS_SOCKETS_TEST_SWITCH=N` moves each direction to TCP and back N times a second.

use isthmus_sockets::Sender;

use crate::{kernel, settings};

/// Keeps the sender on TCP in every other half of the period.
#[inline]
pub(crate) fn apply(sender: &mut Sender) {
    let rate = u64::from(settings::get().test_switches);
    if rate > 0 && !sender.is_abandoned() {
        sender.keep_on_tcp(kernel::now_ms() * rate * 2 / 1000 % 2 == 1);
    }
}
