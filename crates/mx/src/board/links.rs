//! The links of a board, and the selection of a link for a peer.

use super::Board;
use crate::net::Time;

/// Limit of the links of one board.
pub const LINKS_MAX: usize = 8;

/// The number of a link of the board, assigned by the caller, below [`LINKS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkNumber(pub u8);

/// The board has no such link, or cannot have a link with this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the board has no link {}", .0.0)]
pub struct NoSuchLink(pub LinkNumber);

/// When the last frame of a peer arrived on each link.
pub(super) type LinkLastSeen = [Option<Time>; LINKS_MAX];

#[derive(Clone, Copy, Debug)]
struct LinkState {
    rank: u32,
    up: bool,
}

/// The links.
#[derive(Debug, Default)]
pub(super) struct LinkSelector([Option<LinkState>; LINKS_MAX]);

impl LinkSelector {
    #[inline]
    pub(super) fn has(&self, link: LinkNumber) -> bool {
        self.0.get(usize::from(link.0)).is_some_and(Option::is_some)
    }

    pub(super) fn is_up(&self, link: LinkNumber) -> bool {
        self.up().any(|(up, _)| up == link)
    }

    pub(super) fn is_any_up(&self) -> bool {
        self.up().next().is_some()
    }

    /// Returns all links of the board.
    pub(super) fn all(&self) -> impl Iterator<Item = LinkNumber> + '_ {
        (0..).zip(&self.0).filter(|(_, link)| link.is_some()).map(|(number, _)| LinkNumber(number))
    }

    /// Returns the links that are up, with their ranks.
    fn up(&self) -> impl Iterator<Item = (LinkNumber, u32)> + '_ {
        let links = (0..).zip(&self.0).filter_map(|(number, link)| Some((LinkNumber(number), (*link)?)));
        links.filter(|(_, link)| link.up).map(|(number, link)| (number, link.rank))
    }

    /// Returns the links to query a peer on: those that are up and on which the peer was heard; all that are up if
    /// there are none, or with `all_links`.
    pub(super) fn query_links(
        &self,
        last_seen_by_link: &LinkLastSeen,
        all_links: bool,
    ) -> [Option<LinkNumber>; LINKS_MAX] {
        let all = all_links || !self.reaches(last_seen_by_link);
        let mut links = [None; LINKS_MAX];
        for (number, _) in self.up().filter(|(number, _)| all || link_last_seen(last_seen_by_link, *number).is_some()) {
            links[usize::from(number.0)] = Some(number);
        }
        links
    }

    /// Returns true if a frame of the peer has arrived on a link that is up.
    pub(super) fn reaches(&self, last_seen_by_link: &LinkLastSeen) -> bool {
        self.up().any(|(number, _)| link_last_seen(last_seen_by_link, number).is_some())
    }

    /// Returns true if there is a link that is up and on which no frame of the peer has arrived.
    pub(super) fn has_unheard_link(&self, last_seen_by_link: &LinkLastSeen) -> bool {
        self.up().any(|(number, _)| link_last_seen(last_seen_by_link, number).is_none())
    }

    #[inline]
    pub(super) fn best(&self, last_seen_by_link: &LinkLastSeen, link_stale_us: u64) -> Option<LinkNumber> {
        let latest = self.up().filter_map(|(number, _)| link_last_seen(last_seen_by_link, number)).max();
        let is_usable = |number| match (latest, link_last_seen(last_seen_by_link, number)) {
            (None, _) => true,
            (Some(latest), Some(heard)) => latest.since_us(heard) <= link_stale_us,
            (Some(_), None) => false,
        };
        // Of several links with one rank, the first is used.
        let links = self.up().filter(|(number, _)| is_usable(*number));
        links.min_by_key(|(number, rank)| (core::cmp::Reverse(*rank), *number)).map(|(number, _)| number)
    }
}

fn link_last_seen(last_seen_by_link: &LinkLastSeen, link: LinkNumber) -> Option<Time> {
    last_seen_by_link.get(usize::from(link.0)).copied().flatten()
}

impl Board {
    /// Adds a link, which is up, or changes the rank of a link. Faster links have higher ranks. Received frames are
    /// recorded by link number, so a number must not be reused for another network.
    pub fn add_link(&mut self, now: Time, link: LinkNumber, rank: u32) -> Result<(), NoSuchLink> {
        let place = self.links.0.get_mut(usize::from(link.0)).ok_or(NoSuchLink(link))?;
        *place = Some(LinkState { rank, up: place.is_some_and(|old| old.up) });
        self.link_up(now, link)
    }

    /// Reports that a link works: the board announces itself, and looks for peers there.
    pub fn link_up(&mut self, now: Time, link: LinkNumber) -> Result<(), NoSuchLink> {
        self.set_link(now, link, true)
    }

    /// Reports that a link does not work: peers are reached by other links on which they were heard.
    pub fn link_down(&mut self, now: Time, link: LinkNumber) -> Result<(), NoSuchLink> {
        self.set_link(now, link, false)
    }

    fn set_link(&mut self, now: Time, link: LinkNumber, up: bool) -> Result<(), NoSuchLink> {
        let known = self.links.0.get_mut(usize::from(link.0)).and_then(Option::as_mut).ok_or(NoSuchLink(link))?;
        if known.up == up {
            return Ok(());
        }
        known.up = up;
        if up {
            self.announce_timer.restart(now, &self.setup.tuning);
        } else {
            self.outgoing.retain(|(on, ..)| *on != link);
        }
        self.requery_incomplete(now);
        Ok(())
    }
}
