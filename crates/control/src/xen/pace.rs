//! How often the control plane hears that guests came and went.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use isthmus_platform_xen::Domid;

use super::backend::Sighting;

/// How often the control plane is told that one guest came: each time it maps a window. Guests that start anew take longer.
const COMES_EVERY: Duration = Duration::from_millis(500);

/// When the control plane is told of what was seen. What a guest makes it do by coming again and again is bounded by that.
#[derive(Debug, Default)]
pub(super) struct Pace {
    went: Vec<Sighting>,
    came: BTreeMap<Domid, Sighting>,
    /// When each guest was last told of.
    told: BTreeMap<Domid, Instant>,
}

impl Pace {
    pub(super) fn heard(&mut self, sighting: Sighting) {
        match &sighting {
            Sighting::Came { guest, .. } => drop(self.came.insert(*guest, sighting)),
            Sighting::Went { guest, .. } => {
                self.came.remove(guest);
                self.went.push(sighting);
            }
        }
    }

    /// What is told now: who went, and then who came.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Sighting> {
        self.told.retain(|_, told| now.saturating_duration_since(*told) < COMES_EVERY);
        let guests: Vec<Domid> = self.came.keys().copied().filter(|guest| !self.told.contains_key(guest)).collect();
        let mut due = std::mem::take(&mut self.went);
        for guest in guests {
            self.told.insert(guest, now);
            due.extend(self.came.remove(&guest));
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

    fn came(offer: u8) -> Sighting {
        Sighting::Came { guest: guest(), name: None, offer: vec![offer] }
    }

    fn went() -> Sighting {
        Sighting::Went { guest: guest(), how: String::new() }
    }

    #[test]
    fn a_guest_that_comes_again_and_again_is_told_of_once_in_a_while() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        pace.heard(came(1));
        assert_eq!(pace.due(now), [came(1)]);
        for offer in 2..100 {
            pace.heard(went());
            pace.heard(came(offer));
        }
        assert_eq!(pace.due(now), (0..98).map(|_| went()).collect::<Vec<_>>());
        assert_eq!(pace.due(now + COMES_EVERY / 2), []);
        assert_eq!(pace.due(now + COMES_EVERY), [came(99)], "the last that it said");
        pace.heard(went());
        pace.heard(came(100));
        pace.heard(went());
        assert_eq!(pace.due(now + 3 * COMES_EVERY), [went(), went()], "it is not there any more");
    }
}
