//! Who counts as being there: decisions without a store or a clock.

use super::{Advert, AdvertFault, LEASE};
use crate::Domid;
use std::collections::BTreeMap;
use std::time::Instant;

/// A domain came or went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// It is there.
    Came(Domid, Advert),
    /// It is there no more, for this reason. One that starts again goes first.
    Went(Domid, Gone),
}

/// Why a domain is not there any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Gone {
    /// Its advertisement is not there, or not for us: withdrawn, or the domain was shut down or destroyed.
    #[error("its advertisement is gone, as the domain may be")]
    Vanished,
    /// It has not said that it is there for too long.
    #[error("it was silent for {} s", LEASE.as_secs())]
    Silent,
    /// Another daemon is in its place.
    #[error("it has started again")]
    Restarted,
    /// It writes something else.
    #[error("it says something else: {0}")]
    Garbled(AdvertFault),
}

/// What is known of the domains that are followed.
#[derive(Debug, Default)]
pub(super) struct Leases {
    followed: BTreeMap<Domid, Followed>,
}

#[derive(Debug, Default)]
struct Followed {
    /// What was read last, also when that was too long ago: the same again is no sign of life.
    last: Option<Advert>,
    /// Until when it counts as being there, if it does.
    until: Option<Instant>,
}

impl Leases {
    pub(super) fn follow(&mut self, domid: Domid) {
        self.followed.entry(domid).or_default();
    }

    /// Forgets it; true if it was followed.
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

    /// When the next lease ends, if nothing is heard.
    pub(super) fn ends(&self) -> Option<Instant> {
        self.followed.values().filter_map(|followed| followed.until).min()
    }

    /// What was read of a domain: nothing, its advertisement, or something else.
    pub(super) fn heard(
        &mut self,
        domid: Domid,
        said: Option<Result<Advert, AdvertFault>>,
        now: Instant,
        news: &mut Vec<News>,
    ) {
        let Some(followed) = self.followed.get_mut(&domid) else { return };
        let was_there = followed.until.is_some();
        let gone = match said {
            None => Gone::Vanished,
            Some(Err(fault)) => Gone::Garbled(fault),
            Some(Ok(advert)) => {
                if followed.last.as_ref() == Some(&advert) {
                    return; // Said before.
                }
                let same = |last: &Advert| last.incarnation == advert.incarnation && last.offer == advert.offer;
                let goes_on = was_there && followed.last.as_ref().is_some_and(same);
                if was_there && !goes_on {
                    news.push(News::Went(domid, Gone::Restarted));
                }
                if !goes_on {
                    news.push(News::Came(domid, advert.clone()));
                }
                *followed = Followed { last: Some(advert), until: Some(now + LEASE) };
                return;
            }
        };
        if was_there {
            news.push(News::Went(domid, gone));
        }
        // What comes after an end is news, whatever it says.
        *followed = Followed::default();
    }

    /// Ends the leases that are over.
    pub(super) fn expire(&mut self, now: Instant, news: &mut Vec<News>) {
        for (domid, followed) in &mut self.followed {
            if followed.until.is_some_and(|until| until <= now) {
                followed.until = None;
                news.push(News::Went(*domid, Gone::Silent));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    struct Bed {
        leases: Leases,
        now: Instant,
    }

    fn domid() -> Domid {
        Domid::new(7).unwrap()
    }

    fn advert(incarnation: u64, beat: u32) -> Advert {
        Advert { incarnation, beat, offer: Vec::new() }
    }

    impl Bed {
        fn new() -> Self {
            let mut leases = Leases::default();
            leases.follow(domid());
            Self { leases, now: Instant::now() }
        }

        fn heard(&mut self, said: Option<Result<Advert, AdvertFault>>) -> Vec<News> {
            let mut news = Vec::new();
            self.leases.heard(domid(), said, self.now, &mut news);
            news
        }

        fn after(&mut self, time: Duration) -> Vec<News> {
            let mut news = Vec::new();
            self.now += time;
            self.leases.expire(self.now, &mut news);
            news
        }
    }

    #[test]
    fn who_says_nothing_new_is_silent() {
        let mut bed = Bed::new();
        assert_eq!(bed.heard(Some(Ok(advert(1, 1)))), [News::Came(domid(), advert(1, 1))]);
        assert_eq!(bed.after(LEASE - Duration::from_secs(1)), []);
        assert_eq!(bed.heard(Some(Ok(advert(1, 2)))), []);
        assert_eq!(bed.after(LEASE - Duration::from_secs(1)), []);
        assert_eq!(bed.heard(Some(Ok(advert(1, 2)))), [], "the same beat is none");
        assert_eq!(bed.leases.ends(), Some(bed.now + Duration::from_secs(1)));
        assert_eq!(bed.after(Duration::from_secs(1)), [News::Went(domid(), Gone::Silent)]);
        assert_eq!(bed.leases.ends(), None);
        assert_eq!(bed.after(LEASE), []);
        assert_eq!(bed.heard(Some(Ok(advert(1, 2)))), [], "what was there before does not bring it back");
        assert_eq!(bed.heard(Some(Ok(advert(1, 3)))), [News::Came(domid(), advert(1, 3))]);
    }

    #[test]
    fn who_starts_again_goes_first() {
        let mut bed = Bed::new();
        bed.heard(Some(Ok(advert(1, 9))));
        let again = bed.heard(Some(Ok(advert(2, 1))));
        assert_eq!(again, [News::Went(domid(), Gone::Restarted), News::Came(domid(), advert(2, 1))]);
        let other = Advert { offer: vec![1], ..advert(2, 2) };
        let again = bed.heard(Some(Ok(other.clone())));
        assert_eq!(again, [News::Went(domid(), Gone::Restarted), News::Came(domid(), other)]);
    }

    #[test]
    fn who_vanishes_or_writes_something_else_is_gone_once() {
        let mut bed = Bed::new();
        for (said, gone) in [(None, Gone::Vanished), (Some(Err(AdvertFault::Offer)), Gone::Garbled(AdvertFault::Offer))]
        {
            assert_eq!(bed.heard(said.clone()), []);
            assert_eq!(bed.heard(Some(Ok(advert(1, 1)))), [News::Came(domid(), advert(1, 1))]);
            assert_eq!(bed.heard(said.clone()), [News::Went(domid(), gone)]);
            assert_eq!(bed.heard(said), []);
        }
    }

    #[test]
    fn who_is_not_followed_is_not_heard() {
        let mut bed = Bed::new();
        bed.heard(Some(Ok(advert(1, 1))));
        assert!(bed.leases.unfollow(domid()) && !bed.leases.unfollow(domid()));
        assert_eq!(bed.heard(Some(Ok(advert(1, 2)))), []);
        assert_eq!(bed.after(LEASE), []);
    }
}
