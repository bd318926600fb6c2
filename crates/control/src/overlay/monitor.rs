//! Reports the traffic matrices: frames and bytes by source and destination address.

use isthmus_report::SCHEMA;
use isthmus_report::overlay::{OverlayMonitor, OverlayMonitorRow, OverlayPairRow};
use isthmus_service::overlay::OverlayView;

use super::Overlay;
use super::network::NetworkState;

impl Overlay {
    /// Reports the forwarded frames of all networks by source and destination. `now` is the time of the daemon in nanoseconds.
    pub(super) fn monitor(&self, now: u64) -> OverlayMonitor {
        OverlayMonitor { schema: SCHEMA, time_ms: now / 1_000_000, networks: self.networks.iter().map(row).collect() }
    }
}

fn row(network: &NetworkState) -> OverlayMonitorRow {
    let OverlayView { mut pairs, others, .. } = network.view();
    sort(&mut pairs);
    let pairs = pairs.iter().map(|pair| OverlayPairRow {
        source: pair.source.to_string(),
        destination: pair.destination.to_string(),
        frames: pair.count.frames,
        bytes: pair.count.bytes,
    });
    OverlayMonitorRow {
        network: network.name().to_owned(),
        pairs: pairs.collect(),
        other_frames: others.frames,
        other_bytes: others.bytes,
    }
}

/// Puts the pairs with the most bytes first.
pub(super) fn sort(pairs: &mut [isthmus_overlay::PairCount]) {
    pairs.sort_unstable_by_key(|pair| (std::cmp::Reverse(pair.count.bytes), pair.source, pair.destination));
}
