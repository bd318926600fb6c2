//! Look-ups of peers that no device had when their connection began.
//!
//! After a restart of the daemon, a device is unknown until its program has resumed, and while there is no daemon, every device is. So the
//! caller looks a peer up again, after pauses that grow. Meanwhile requests wait. Packets of the peer are dropped, and the first one hastens
//! the next look-up. When the peer is found, it sends them again; otherwise they are refused then.

use crate::engine::Engine;
use crate::packet::{Syndrome, Tag};
use crate::types::{Gid, QpNumber};
use isthmus_layout::EndpointAddress;

/// The pause before the second look-up, in nanoseconds. It doubles with each further one.
const PAUSE_NS: u64 = 10_000_000;

/// The longest pause in nanoseconds.
const PAUSE_NS_MAX: u64 = 320_000_000;

/// Look-ups that find no device, at most: about one second.
const UNKNOWN_MAX: u32 = 8;

/// Look-ups without an answer, at most: about ten seconds.
const UNANSWERED_MAX: u32 = 36;

/// A look-up that the caller makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookUp {
    /// The queue pair of this device, which [`Engine::looked_up`] names.
    pub qp: QpNumber,
    /// The address of the peer.
    pub gid: Gid,
    /// The queue pair of the peer.
    pub destination: QpNumber,
}

/// The result of a look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The device that has the queue pair.
    Device(EndpointAddress),
    /// No device that this one may reach: requests end as if the peer never replied.
    Nothing,
    /// No device has the queue pair, but one may have it soon.
    Unknown,
    /// There is no daemon.
    Unanswered,
}

impl Found {
    /// The device that was found.
    pub const fn device(self) -> Option<EndpointAddress> {
        match self {
            Self::Device(device) => Some(device),
            Self::Nothing | Self::Unknown | Self::Unanswered => None,
        }
    }
}

/// The look-ups of a queue pair.
#[derive(Debug, Default)]
pub(crate) struct Search {
    /// The end of the pause, once a caller has given the time.
    until: Option<u64>,
    /// The caller makes a look-up now.
    is_due: bool,
    unknown: u32,
    unanswered: u32,
    /// The sender of the last attempt that was dropped, and its refusal.
    dropped: Option<(EndpointAddress, Tag)>,
}

impl Search {
    fn pause_ns(&self) -> u64 {
        let doublings = (self.unknown + self.unanswered).saturating_sub(1).min(16);
        (PAUSE_NS << doublings).min(PAUSE_NS_MAX)
    }

    /// Drops an attempt to send, which has this refusal.
    pub(crate) fn drop_attempt(&mut self, from: EndpointAddress, refusal: Tag) {
        if self.dropped.replace((from, refusal)).is_none() {
            self.until = Some(0); // Once for each search: a peer does not make this device ask more often.
        }
    }

    /// Notes a look-up that found no device. False if there are no further ones.
    fn go_on(&mut self, found: Found) -> bool {
        match found {
            Found::Unknown => self.unknown += 1,
            _ => self.unanswered += 1,
        }
        (self.until, self.is_due) = (None, false);
        self.unknown < UNKNOWN_MAX && self.unanswered < UNANSWERED_MAX
    }
}

impl Engine {
    /// Handles the result of a look-up for a connected queue pair: the first one, which the caller makes when it connects the queue pair
    /// without a device, or one of [`Self::next_look_up`].
    pub fn looked_up(&mut self, number: QpNumber, found: Found) {
        let Some(slot) = self.slot(number) else { return };
        let Some(qp) = self.qp_mut(slot).filter(|qp| qp.peer.is_none() && qp.can_receive()) else { return };
        if let Found::Unknown | Found::Unanswered = found
            && qp.search.get_or_insert_default().go_on(found)
        {
            if !self.searching.contains(&slot) {
                self.searching.push(slot);
            }
            return;
        }
        if let Found::Device(peer) = found {
            qp.peer = Some(peer);
            // A sender that was not refused does not pause, and would wait for ever.
            let was_dropped = qp.search.take().is_some_and(|search| search.dropped.is_some());
            if qp.is_reliable() {
                self.owe(slot, if was_dropped { Syndrome::Again } else { Syndrome::Ready });
                self.describe(slot, true);
            }
        }
        self.end_search(slot);
        self.resume(slot);
    }

    /// Ends the look-ups of a queue pair, if there are any, without a device: what was dropped is refused.
    pub(crate) fn end_search(&mut self, slot: u32) {
        let Some(search) = self.qp_mut(slot).and_then(|qp| qp.search.take()) else { return };
        if let Some((to, refusal)) = search.dropped {
            self.refuse_stray(to, refusal);
        }
    }

    /// Returns the next look-up that is due. The caller passes its result to [`Self::looked_up`].
    pub fn next_look_up(&mut self) -> Option<LookUp> {
        let due = |qp: &crate::queue_pair::QueuePair| qp.search.as_ref().is_some_and(|search| search.is_due);
        let slot = self.searching.iter().copied().find(|slot| self.qp(*slot).is_some_and(due))?;
        let qp = self.qp_mut(slot)?;
        qp.search.as_mut()?.is_due = false;
        Some(LookUp { qp: qp.number, gid: qp.attributes.address.gid, destination: qp.attributes.destination })
    }

    /// Ends the pauses of look-ups that are over at `now`. Returns when the next one ends.
    pub(crate) fn tick_look_ups(&mut self, now: u64) -> Option<u64> {
        let mut slots = core::mem::take(&mut self.searching);
        slots.retain(|slot| self.qp(*slot).is_some_and(|qp| qp.search.is_some()));
        let mut next = None;
        for slot in &slots {
            let Some(search) = self.qp_mut(*slot).and_then(|qp| qp.search.as_mut()) else { continue };
            let pause = search.pause_ns();
            let until = *search.until.get_or_insert(now.saturating_add(pause));
            search.is_due = until <= now;
            next = Some(next.map_or(until, |next: u64| next.min(until)));
        }
        self.searching = slots;
        next
    }
}
