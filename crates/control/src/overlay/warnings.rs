//! The warnings of a network: addresses that move too often or that two hosts use, and frames that come back.
//!
//! The worker reports each address at most every ten seconds. The latest warnings are in the report of the network. An address is logged at
//! most once a minute, and a network logs a bounded number of addresses in that time: guests choose their addresses.

use std::collections::VecDeque;

use isthmus_overlay::{MacAddr, Port, Report};
use isthmus_report::overlay::OverlayWarningRow;
use isthmus_service::overlay::OverlayNetworkNumber;

use super::Overlay;
use super::network::NetworkState;
use crate::core::Core;

/// The number of warnings that a network keeps.
const WARNINGS_MAX: usize = 16;

/// The interval in nanoseconds at which a warning is logged again.
const LOG_INTERVAL_NS: u64 = 60_000_000_000;

/// The maximum number of log lines of a network in [`LOG_INTERVAL_NS`].
const LOG_LINES_MAX: u32 = 8;

/// The latest warnings of a network, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    latest: VecDeque<Warning>,
    /// The start of the interval in which `log_lines` were logged.
    log_since: u64,
    log_lines: u32,
}

/// A warning about an address.
#[derive(Clone, Copy, Debug)]
struct Warning {
    report: Report,
    count: u64,
    last_at: u64,
    logged_at: Option<u64>,
}

impl Warnings {
    /// Notes a report of the worker. Returns true if it is to be logged.
    fn note(&mut self, now: u64, report: Report) -> bool {
        let same = |warning: &Warning| key(&warning.report) == key(&report);
        let known = self.latest.iter().position(same).and_then(|at| self.latest.remove(at));
        let (count, logged_at) = known.map_or((0, None), |warning| (warning.count, warning.logged_at));
        let is_due = logged_at.is_none_or(|logged_at| now - logged_at >= LOG_INTERVAL_NS) && self.may_log(now);
        if self.latest.len() == WARNINGS_MAX {
            self.latest.pop_front();
        }
        let logged_at = if is_due { Some(now) } else { logged_at };
        self.latest.push_back(Warning { report, count: count + 1, last_at: now, logged_at });
        is_due
    }

    fn may_log(&mut self, now: u64) -> bool {
        if now - self.log_since >= LOG_INTERVAL_NS {
            (self.log_since, self.log_lines) = (now, 0);
        }
        self.log_lines += 1;
        self.log_lines <= LOG_LINES_MAX
    }
}

/// The kind and the address of a report. A warning stands for all reports with the same ones.
fn key(report: &Report) -> (&'static str, MacAddr) {
    match report {
        Report::Flapping { mac, .. } => ("flapping", *mac),
        Report::Loop { mac, .. } => ("loop", *mac),
        Report::Circulating { mac, .. } => ("circulating", *mac),
        Report::ForeignSource { mac, .. } => ("foreign-source", *mac),
    }
}

/// Returns the problem and its remedy.
fn text(report: &Report, name: impl Fn(Port) -> String) -> (String, &'static str) {
    match *report {
        Report::Flapping { mac, ports: [from, to] } => (
            format!("{mac} moves between {} and {} too often", name(from), name(to)),
            "two stations use this address: change one; or a bridge connects both ports: remove it",
        ),
        Report::Loop { mac, interface, edge } => (
            format!("frames of {mac} at {} come by {}, too, and are dropped there", name(interface), name(edge)),
            "another host uses this address: change one; or a bridge connects the hosts beside the overlay: remove it",
        ),
        Report::Circulating { mac, port } => (
            format!("a frame of {mac} comes by {} again and again", name(port)),
            "a bridge connects this interface with another one of the network: remove it",
        ),
        Report::ForeignSource { mac, interface } => (
            format!("{} sends frames from {mac}, which are dropped", name(interface)),
            "if the address belongs there, name it in `source_macs` of the interface, or allow \"any\" for a bridge or macvlan",
        ),
    }
}

impl NetworkState {
    /// The latest warnings, the oldest first.
    pub(super) fn warning_rows(&self, now: u64) -> Vec<OverlayWarningRow> {
        let row = |warning: &Warning| {
            let (kind, mac) = key(&warning.report);
            let (problem, remedy) = text(&warning.report, |port| self.port_name(port));
            OverlayWarningRow {
                kind: kind.to_owned(),
                mac: mac.to_string(),
                problem,
                remedy: remedy.to_owned(),
                count: warning.count,
                age_ms: now.saturating_sub(warning.last_at) / 1_000_000,
            }
        };
        self.warnings.latest.iter().map(row).collect()
    }
}

impl Overlay {
    /// Keeps a report of the worker, and logs it.
    pub(super) fn warn(&mut self, core: &mut Core, number: OverlayNetworkNumber, report: Report) {
        let now = core.now;
        let mut networks = self.networks.iter_mut();
        let Some(network) = networks.find(|network| network.number() == number) else { return };
        if network.warnings.note(now, report) {
            let (problem, remedy) = text(&report, |port| network.port_name(port));
            tracing::warn!(network = network.name(), "{problem}; {remedy}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isthmus_overlay::{EdgeId, InterfaceId};

    const SECOND: u64 = 1_000_000_000;

    fn flapping(number: u8) -> Report {
        Report::Flapping {
            mac: MacAddr([2, 0, 0, 0, 0, number]),
            ports: [Port::Interface(InterfaceId(1)), Port::Edge(EdgeId(2))],
        }
    }

    #[test]
    fn an_address_is_logged_once_a_minute_and_kept_once() {
        let mut warnings = Warnings::default();
        assert!(warnings.note(5 * SECOND, flapping(1)));
        assert!(!warnings.note(15 * SECOND, flapping(1)));
        let other = Report::Loop {
            mac: MacAddr([2, 0, 0, 0, 0, 1]),
            interface: Port::Interface(InterfaceId(1)),
            edge: Port::Edge(EdgeId(2)),
        };
        assert!(warnings.note(16 * SECOND, other));
        assert!(warnings.note(65 * SECOND, flapping(1)));
        let counts: Vec<_> = warnings.latest.iter().map(|warning| (key(&warning.report).0, warning.count)).collect();
        assert_eq!(counts, [("loop", 1), ("flapping", 3)]);
    }

    #[test]
    fn invented_addresses_fill_neither_the_log_nor_the_memory() {
        let mut warnings = Warnings::default();
        let logged = |warnings: &mut Warnings, at: u64| {
            (0..200).filter(|number| warnings.note(at * SECOND, flapping(*number))).count() as u32
        };
        assert_eq!([logged(&mut warnings, 100), logged(&mut warnings, 159), logged(&mut warnings, 160)], [8, 0, 8]);
        assert_eq!(warnings.latest.len(), WARNINGS_MAX);
    }

    #[test]
    fn texts_name_address_ports_and_remedy() {
        let (problem, remedy) = text(&flapping(9), |port| format!("<{port}>"));
        assert_eq!(problem, "02:00:00:00:00:09 moves between <interface 1> and <edge 2> too often");
        assert!(remedy.contains("remove it"), "{remedy}");
    }
}
