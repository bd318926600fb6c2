//! Limits how often the control plane is notified that guests appeared and disappeared.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use isthmus_platform_xen::Domid;

use super::backend::GuestEvent;

/// The minimum interval between two notifications that the same guest appeared, because the control plane maps a window each time. A guest that
/// restarts takes longer.
const APPEARED_INTERVAL: Duration = Duration::from_millis(500);

/// Queues events for the control plane. It bounds the work that a guest can cause by appearing repeatedly.
#[derive(Debug, Default)]
pub(super) struct EventBackoff {
    disappeared: Vec<GuestEvent>,
    appeared: BTreeMap<Domid, GuestEvent>,
    /// The time of each guest's last notification.
    last_sent: BTreeMap<Domid, Instant>,
}

impl EventBackoff {
    pub(super) fn push(&mut self, guest_event: GuestEvent) {
        match &guest_event {
            GuestEvent::Appeared { guest, .. } => drop(self.appeared.insert(*guest, guest_event)),
            GuestEvent::Disappeared { guest, .. } => {
                self.appeared.remove(guest);
                self.disappeared.push(guest_event);
            }
        }
    }

    /// Returns the events to send now: guests that disappeared first, then guests that appeared.
    pub(super) fn due(&mut self, now: Instant) -> Vec<GuestEvent> {
        self.last_sent.retain(|_, last_sent| now.saturating_duration_since(*last_sent) < APPEARED_INTERVAL);
        let guests: Vec<Domid> =
            self.appeared.keys().copied().filter(|guest| !self.last_sent.contains_key(guest)).collect();
        let mut due = std::mem::take(&mut self.disappeared);
        for guest in guests {
            self.last_sent.insert(guest, now);
            due.extend(self.appeared.remove(&guest));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest() -> Domid {
        Domid::new(7).unwrap()
    }

    fn appeared(offer: u8) -> GuestEvent {
        GuestEvent::Appeared { guest: guest(), name: None, offer: vec![offer] }
    }

    fn disappeared() -> GuestEvent {
        GuestEvent::Disappeared { guest: guest(), how: String::new() }
    }

    #[test]
    fn limits_how_often_one_guest_appears() {
        let (mut backoff, now) = (EventBackoff::default(), Instant::now());
        backoff.push(appeared(1));
        assert_eq!(backoff.due(now), [appeared(1)]);
        for offer in 2..100 {
            backoff.push(disappeared());
            backoff.push(appeared(offer));
        }
        assert_eq!(backoff.due(now), (0..98).map(|_| disappeared()).collect::<Vec<_>>());
        assert_eq!(backoff.due(now + APPEARED_INTERVAL / 2), []);
        assert_eq!(backoff.due(now + APPEARED_INTERVAL), [appeared(99)], "the last that it said");
        backoff.push(disappeared());
        backoff.push(appeared(100));
        backoff.push(disappeared());
        assert_eq!(
            backoff.due(now + 3 * APPEARED_INTERVAL),
            [disappeared(), disappeared()],
            "it is not there any more"
        );
    }
}
