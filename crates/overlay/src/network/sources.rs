//! The source addresses that frames of an interface may have.
//!
//! A container owns one address, that of its interface. Frames with other ones would move the addresses of its neighbours to it. Interfaces
//! that carry several stations, as the port of a bridge does, have no limit or a list.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::{Millis, Report, Reports};
use crate::learned::REPORT_INTERVAL_MS;
use crate::mac::MacAddr;
use crate::ports::Port;

struct Limit {
    port: Port,
    allowed: Box<[MacAddr]>,
    reported: Option<Millis>,
}

/// The limits of all ports, ascending. A port without one may send from any address.
#[derive(Default)]
pub(crate) struct SourceLimits(Vec<Limit>);

impl SourceLimits {
    pub(super) fn set(&mut self, port: Port, allowed: &[MacAddr]) {
        let limit = Limit { port, allowed: allowed.into(), reported: None };
        match self.find(port) {
            Ok(at) => self.0[at] = limit,
            Err(at) => self.0.insert(at, limit),
        }
    }

    pub(super) fn remove(&mut self, port: Port) {
        if let Ok(at) = self.find(port) {
            self.0.remove(at);
        }
    }

    /// Whether frames of a port may have this source address.
    #[inline]
    pub(crate) fn allows(&self, port: Port, source: MacAddr) -> bool {
        self.find(port).map_or(true, |at| self.0[at].allowed.contains(&source))
    }

    /// Whether a port has a limit.
    pub(crate) fn limits(&self, port: Port) -> bool {
        self.find(port).is_ok()
    }

    /// Reports a frame that was dropped, at most once for each port and [`REPORT_INTERVAL_MS`].
    #[cold]
    pub(super) fn report(&mut self, now: Millis, port: Port, source: MacAddr, reports: &mut Reports) {
        let Ok(at) = self.find(port) else { return };
        let reported = &mut self.0[at].reported;
        if reported.is_none_or(|reported| now.since(reported) >= REPORT_INTERVAL_MS) {
            *reported = Some(now);
            reports.push(Report::ForeignSource { mac: source, interface: port });
        }
    }

    fn find(&self, port: Port) -> Result<usize, usize> {
        self.0.binary_search_by_key(&port, |limit| limit.port)
    }
}
