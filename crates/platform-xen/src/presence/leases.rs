//! Decides which domains count as present, without access to a store or a clock.

use super::{Advertisement, AdvertisementError, LEASE_TIMEOUT};
use crate::Domid;
use std::collections::BTreeMap;
use std::time::Instant;

/// A change of a domain's presence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PresenceEvent {
    /// The domain is present now.
    Appeared(Domid, Advertisement),
    /// The domain is gone, for this reason. A daemon that starts again first disappears.
    Disappeared(Domid, DisappearReason),
}

/// The reason why a domain counts as gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DisappearReason {
    /// The advertisement was removed or is not readable any more: the daemon removed it, or the domain was shut down or destroyed.
    #[error("the advertisement was removed; the domain may be gone")]
    Removed,
    /// The heartbeat did not change for too long.
    #[error("no heartbeat for {} s", LEASE_TIMEOUT.as_secs())]
    LeaseExpired,
    /// Another daemon has taken the place of the previous one.
    #[error("the daemon has restarted")]
    Restarted,
    /// The node's contents are not an advertisement.
    #[error("the advertisement is invalid: {0}")]
    Malformed(AdvertisementError),
}

/// The state of the domains that are followed.
#[derive(Debug, Default)]
pub(super) struct Leases {
    followed: BTreeMap<Domid, Followed>,
}

#[derive(Debug, Default)]
struct Followed {
    /// The last advertisement that was read, kept after its lease expired: an unchanged heartbeat is no sign of life.
    last: Option<Advertisement>,
    /// The end of the lease, if the domain counts as present.
    until: Option<Instant>,
}

impl Leases {
    pub(super) fn follow(&mut self, domid: Domid) {
        self.followed.entry(domid).or_default();
    }

    /// Stops following a domain; returns true if it was followed.
    pub(super) fn unfollow(&mut self, domid: Domid) -> bool {
        self.followed.remove(&domid).is_some()
    }

    pub(super) fn follows(&self, domid: Domid) -> bool {
        self.followed.contains_key(&domid)
    }

    pub(super) fn len(&self) -> usize {
        self.followed.len()
    }

    pub(super) fn domids(&self) -> impl Iterator<Item = Domid> {
        self.followed.keys().copied()
    }

    /// Returns the end of the next lease, if no heartbeat renews it.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.followed.values().filter_map(|followed| followed.until).min()
    }

    /// Records the result of reading a domain's node: nothing, an advertisement, or invalid contents.
    pub(super) fn update(
        &mut self,
        domid: Domid,
        advertisement: Option<Result<Advertisement, AdvertisementError>>,
        now: Instant,
        events: &mut Vec<PresenceEvent>,
    ) {
        let Some(followed) = self.followed.get_mut(&domid) else { return };
        let was_there = followed.until.is_some();
        let gone = match advertisement {
            None => DisappearReason::Removed,
            Some(Err(fault)) => DisappearReason::Malformed(fault),
            Some(Ok(advertisement)) => {
                if followed.last.as_ref() == Some(&advertisement) {
                    return; // The heartbeat was reported before.
                }
                let same = |last: &Advertisement| {
                    last.incarnation == advertisement.incarnation && last.offer == advertisement.offer
                };
                let is_same_instance = was_there && followed.last.as_ref().is_some_and(same);
                if was_there && !is_same_instance {
                    events.push(PresenceEvent::Disappeared(domid, DisappearReason::Restarted));
                }
                if !is_same_instance {
                    events.push(PresenceEvent::Appeared(domid, advertisement.clone()));
                }
                *followed = Followed { last: Some(advertisement), until: Some(now + LEASE_TIMEOUT) };
                return;
            }
        };
        if was_there {
            events.push(PresenceEvent::Disappeared(domid, gone));
        }
        // Any contents after an end are reported as new.
        *followed = Followed::default();
    }

    /// Ends the leases that have expired.
    pub(super) fn expire(&mut self, now: Instant, events: &mut Vec<PresenceEvent>) {
        for (domid, followed) in &mut self.followed {
            if followed.until.is_some_and(|until| until <= now) {
                followed.until = None;
                events.push(PresenceEvent::Disappeared(*domid, DisappearReason::LeaseExpired));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    struct LeaseTest {
        leases: Leases,
        now: Instant,
    }

    fn domid() -> Domid {
        Domid::new(7).unwrap()
    }

    fn advertisement(incarnation: u64, heartbeat: u32) -> Advertisement {
        Advertisement { incarnation, heartbeat, offer: Vec::new() }
    }

    impl LeaseTest {
        fn new() -> Self {
            let mut leases = Leases::default();
            leases.follow(domid());
            Self { leases, now: Instant::now() }
        }

        fn update(&mut self, advertisement: Option<Result<Advertisement, AdvertisementError>>) -> Vec<PresenceEvent> {
            let mut events = Vec::new();
            self.leases.update(domid(), advertisement, self.now, &mut events);
            events
        }

        fn after(&mut self, time: Duration) -> Vec<PresenceEvent> {
            let mut events = Vec::new();
            self.now += time;
            self.leases.expire(self.now, &mut events);
            events
        }
    }

    #[test]
    fn domain_disappears_when_its_lease_expires() {
        let mut test = LeaseTest::new();
        assert_eq!(test.update(Some(Ok(advertisement(1, 1)))), [PresenceEvent::Appeared(domid(), advertisement(1, 1))]);
        assert_eq!(test.after(LEASE_TIMEOUT - Duration::from_secs(1)), []);
        assert_eq!(test.update(Some(Ok(advertisement(1, 2)))), []);
        assert_eq!(test.after(LEASE_TIMEOUT - Duration::from_secs(1)), []);
        assert_eq!(test.update(Some(Ok(advertisement(1, 2)))), [], "the same heartbeat is none");
        assert_eq!(test.leases.next_expiry(), Some(test.now + Duration::from_secs(1)));
        assert_eq!(
            test.after(Duration::from_secs(1)),
            [PresenceEvent::Disappeared(domid(), DisappearReason::LeaseExpired)]
        );
        assert_eq!(test.leases.next_expiry(), None);
        assert_eq!(test.after(LEASE_TIMEOUT), []);
        assert_eq!(test.update(Some(Ok(advertisement(1, 2)))), [], "what was there before does not bring it back");
        assert_eq!(test.update(Some(Ok(advertisement(1, 3)))), [PresenceEvent::Appeared(domid(), advertisement(1, 3))]);
    }

    #[test]
    fn domain_disappears_before_it_reappears_when_it_restarts() {
        let mut test = LeaseTest::new();
        test.update(Some(Ok(advertisement(1, 9))));
        let again = test.update(Some(Ok(advertisement(2, 1))));
        assert_eq!(
            again,
            [
                PresenceEvent::Disappeared(domid(), DisappearReason::Restarted),
                PresenceEvent::Appeared(domid(), advertisement(2, 1))
            ]
        );
        let other = Advertisement { offer: vec![1], ..advertisement(2, 2) };
        let again = test.update(Some(Ok(other.clone())));
        assert_eq!(
            again,
            [PresenceEvent::Disappeared(domid(), DisappearReason::Restarted), PresenceEvent::Appeared(domid(), other)]
        );
    }

    #[test]
    fn domain_disappears_once_when_removed_or_malformed() {
        let mut test = LeaseTest::new();
        for (broken, gone) in [
            (None, DisappearReason::Removed),
            (Some(Err(AdvertisementError::Offer)), DisappearReason::Malformed(AdvertisementError::Offer)),
        ] {
            assert_eq!(test.update(broken.clone()), []);
            assert_eq!(
                test.update(Some(Ok(advertisement(1, 1)))),
                [PresenceEvent::Appeared(domid(), advertisement(1, 1))]
            );
            assert_eq!(test.update(broken.clone()), [PresenceEvent::Disappeared(domid(), gone)]);
            assert_eq!(test.update(broken), []);
        }
    }

    #[test]
    fn ignores_domains_that_are_not_followed() {
        let mut test = LeaseTest::new();
        test.update(Some(Ok(advertisement(1, 1))));
        assert!(test.leases.unfollow(domid()) && !test.leases.unfollow(domid()));
        assert_eq!(test.update(Some(Ok(advertisement(1, 2)))), []);
        assert_eq!(test.after(LEASE_TIMEOUT), []);
    }
}
