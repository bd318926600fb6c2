//! Events that an operator should know of. They wait in a bounded queue until the caller takes them.

use alloc::collections::VecDeque;
use core::fmt;

use crate::mac::MacAddr;
use crate::ports::Port;

/// The number of reports that wait at most. Further ones are counted as lost.
pub const REPORTS_MAX: usize = 64;

/// An event that an operator should know of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// An address moved between ports too often within a second. The last move was from the first port to the second.
    Flapping {
        /// The address.
        mac: MacAddr,
        /// The ports of the last move.
        ports: [Port; 2],
    },
    /// A frame of a local station came back from another host.
    Loop {
        /// The address of the station.
        mac: MacAddr,
        /// The interface of the station.
        interface: Port,
        /// The edge that the frame came by.
        edge: Port,
    },
    /// One frame was flooded too often.
    Circulating {
        /// The source address of the frame.
        mac: MacAddr,
        /// The interface that the frame came by.
        port: Port,
    },
    /// An interface sends from an address that it may not use. The frames are dropped.
    ForeignSource {
        /// The address.
        mac: MacAddr,
        /// The interface.
        interface: Port,
    },
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flapping { mac, ports: [from, to] } => write!(
                f,
                "{mac} moves between {from} and {to} too often: two stations use this address, or a bridge connects both ports"
            ),
            Self::Loop { mac, interface, edge } => write!(
                f,
                "frames of {mac} at {interface} come by {edge}, too, and are dropped there: a bridge connects two hosts beside the \
                 overlay, or another host uses this address"
            ),
            Self::Circulating { mac, port } => {
                write!(f, "a frame of {mac} comes by {port} again and again: a bridge connects it with another port")
            }
            Self::ForeignSource { mac, interface } => {
                write!(f, "frames of {mac} come by {interface}, which may not send from this address")
            }
        }
    }
}

/// The reports that wait.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    waiting: VecDeque<Report>,
    lost: u64,
}

impl Reports {
    pub(crate) fn push(&mut self, report: Report) {
        if self.waiting.len() < REPORTS_MAX {
            self.waiting.push_back(report);
        } else {
            self.lost += 1;
        }
    }

    pub(crate) fn take(&mut self) -> Option<Report> {
        self.waiting.pop_front()
    }

    pub(super) const fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::{EdgeId, InterfaceId};
    use alloc::string::ToString;

    const I1: Port = Port::Interface(InterfaceId(1));
    const E2: Port = Port::Edge(EdgeId(2));

    fn report(number: u8) -> Report {
        Report::Loop { mac: MacAddr([2, 0, 0, 0, 0, number]), interface: I1, edge: E2 }
    }

    #[test]
    fn keeps_the_oldest_and_counts_the_rest() {
        let mut reports = Reports::default();
        for number in 0..66 {
            reports.push(report(number));
        }
        assert_eq!(reports.lost(), 2);
        for number in 0..64 {
            assert_eq!(reports.take(), Some(report(number)));
        }
        assert_eq!(reports.take(), None);
    }

    #[test]
    fn texts_name_address_and_ports() {
        let flapping = Report::Flapping { mac: MacAddr([2, 0, 0, 0, 0, 1]), ports: [I1, E2] }.to_string();
        assert!(flapping.starts_with("02:00:00:00:00:01 moves between interface 1 and edge 2 too often"), "{flapping}");
        let text = report(1).to_string();
        assert!(text.starts_with("frames of 02:00:00:00:00:01 at interface 1 come by edge 2, too"), "{text}");
        let text = Report::Circulating { mac: MacAddr([2, 0, 0, 0, 0, 1]), port: I1 }.to_string();
        assert!(text.starts_with("a frame of 02:00:00:00:00:01 comes by interface 1 again"), "{text}");
    }
}
