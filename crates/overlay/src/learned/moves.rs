//! Addresses that appear at another port: moves, loops and flapping.
//!
//! Three things look alike at first: a station that moved, a frame of our own that comes back through a bridge of a user (a loop), and two
//! stations with one address.
//!
//! * From any port to any other, an address *moves* at once, with the exceptions that follow.
//! * From an interface to an edge, it moves only after the interface was silent for [`LOOP_MS`]. Until then a frame by the edge is dropped
//!   as a loop: the frames of a local station come back by an edge only if some bridge connects two hosts beside the overlay. A station that
//!   really moved to another host is silent here, so it moves after that time at the latest.
//! * A station that moved may announce itself only once, before that time is over. A dropped frame therefore leaves a *claim* if it comes at
//!   least [`CLAIM_AFTER_MS`] after the last frame of the interface; our own frames come back earlier. The claim moves the address when the
//!   interface has been silent for [`LOOP_MS`]. Any frame from the interface withdraws it.
//! * An address that moves more than [`FLAP_MOVES_MAX`] times within [`FLAP_WINDOW_MS`] is *flapping*. Two remote stations with one address do
//!   that between edges, and all moves are followed. A bridge between two interfaces of this host does that too, and would let frames
//!   circulate without end. Frames of that address from interfaces are therefore dropped until the window is over.
//!
//! Loops and flapping are reported once for each address and [`REPORT_INTERVAL_MS`].

use crate::mac::MacAddr;
use crate::network::{DropReason, Millis, Report, Reports};
use crate::ports::Port;

/// The time in which an interface must be silent before its address moves to an edge.
pub const LOOP_MS: Millis = Millis(1_000);

/// The age at which a frame by an edge is no longer taken for the return of the interface's last frame.
pub const CLAIM_AFTER_MS: Millis = Millis(200);

/// The length of the windows in which moves are counted.
pub const FLAP_WINDOW_MS: Millis = Millis(1_000);

/// The number of moves in a window that are not yet flapping.
pub const FLAP_MOVES_MAX: u32 = 8;

/// The time between two reports about one address.
pub const REPORT_INTERVAL_MS: Millis = Millis(10_000);

/// Recent events of one address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct History {
    /// The start of the window in which `moves` happened.
    window: Millis,
    moves: u32,
    /// The edge by which the address was seen while an interface has it, and when.
    claim: Option<(Port, Millis)>,
    loop_reported: Option<Millis>,
    flap_reported: Option<Millis>,
}

impl History {
    /// Whether the next frame has to be compared with this history even if it comes by the known port.
    pub(super) fn is_watched(&self, now: Millis) -> bool {
        self.claim.is_some() || self.is_flapping(now)
    }

    fn is_flapping(&self, now: Millis) -> bool {
        self.moves > FLAP_MOVES_MAX && now.since(self.window) < FLAP_WINDOW_MS
    }

    /// The claim that takes over from an interface that was last seen at `seen`.
    pub(super) fn due_claim(&self, now: Millis, seen: Millis) -> Option<(Port, Millis)> {
        self.claim.filter(|_| now.since(seen) >= LOOP_MS)
    }

    /// Removes a claim for `port`.
    pub(super) fn withdraw_claim(&mut self, port: Port) {
        self.claim = self.claim.filter(|(claimed, _)| *claimed != port);
    }

    /// The address has aged out: its next frame is the first one anywhere.
    pub(super) fn expire(&mut self) {
        self.claim = None;
    }

    /// Checks a frame that came by `from` while the address is at `port`, where it was seen `age` ago.
    pub(super) fn check(&self, now: Millis, port: Port, age: Millis, from: Port) -> Result<(), DropReason> {
        if !port.is_edge() && from.is_edge() && age < LOOP_MS {
            Err(DropReason::Loop)
        } else if !from.is_edge() && self.is_flapping(now) {
            Err(DropReason::Flapping)
        } else {
            Ok(())
        }
    }

    /// Notes a frame as [`Self::check`] judges it. If that allows it, the address is at `from` from now on.
    pub(super) fn note(
        &mut self,
        now: Millis,
        mac: MacAddr,
        (port, age): (Port, Millis),
        from: Port,
        reports: &mut Reports,
    ) -> Result<(), DropReason> {
        if let Err(reason) = self.check(now, port, age, from) {
            if reason == DropReason::Loop {
                if age >= CLAIM_AFTER_MS {
                    self.claim = Some((from, now));
                }
                report(&mut self.loop_reported, now, Report::Loop { mac, interface: port, edge: from }, reports);
            }
            return Err(reason);
        }
        self.claim = None;
        if port != from {
            if now.since(self.window) >= FLAP_WINDOW_MS {
                self.window = now;
                self.moves = 0;
            }
            self.moves += 1;
            if self.is_flapping(now) {
                report(&mut self.flap_reported, now, Report::Flapping { mac, ports: [port, from] }, reports);
            }
        }
        Ok(())
    }
}

/// Reports unless the address was reported for the same thing a short time ago.
fn report(last: &mut Option<Millis>, now: Millis, report: Report, reports: &mut Reports) {
    if last.is_none_or(|last| now.since(last) >= REPORT_INTERVAL_MS) {
        *last = Some(now);
        reports.push(report);
    }
}
