//! The places of a table, and how many of them each user has. One rule holds for all tables.
//!
//! ```text
//!   │ shared places                                         │ last places │
//!   │ a user has at most half of what other users leave     │ one for each user that has none
//! ```
//!
//! A daemon that serves one user alone shares nothing: the only bound of its tables is their size.

use std::collections::BTreeMap;

use isthmus_layout::control::Owner;

/// The places of one table.
#[derive(Debug, Default)]
pub struct Places {
    /// The number of places.
    max: usize,
    total: usize,
    /// The places of each user that has some.
    by_user: BTreeMap<Owner, usize>,
}

/// A user that takes places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taker {
    /// The user that the places count for. A subordinate user counts as the user that it belongs to.
    pub account: Owner,
    /// False if the daemon serves this user alone.
    pub has_others: bool,
}

impl Places {
    /// Returns a table without users.
    pub fn new(max: usize) -> Self {
        Self { max, total: 0, by_user: BTreeMap::new() }
    }

    /// The number of places that are taken.
    pub fn total(&self) -> usize {
        self.total
    }

    /// The number of places of a user.
    pub fn of(&self, user: Owner) -> usize {
        self.by_user.get(&user).copied().unwrap_or(0)
    }

    /// Takes a place for a user, or says why not.
    pub fn take(&mut self, taker: Taker) -> Result<(), PlacesFull> {
        self.check(taker)?;
        self.add(taker.account, 1);
        Ok(())
    }

    /// Checks whether a user may take another place.
    pub fn check(&self, taker: Taker) -> Result<(), PlacesFull> {
        may_take(self.of(taker.account), self.total, self.max, taker.has_others)
    }

    /// Adds places that a user has without a check.
    pub fn add(&mut self, user: Owner, count: usize) {
        if count > 0 {
            self.total += count;
            *self.by_user.entry(user).or_default() += count;
        }
    }

    /// Returns places of a user.
    pub fn give_back(&mut self, user: Owner, count: usize) {
        let Some(own) = self.by_user.get_mut(&user) else { return };
        let count = count.min(*own);
        *own -= count;
        self.total -= count;
        if *own == 0 {
            self.by_user.remove(&user);
        }
    }
}

/// The reason why a user gets no further place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacesFull {
    /// All places are taken, or all but the last ones, which are for users that have none.
    #[error("the limit for all users is {max}")]
    All {
        /// The number of all places.
        max: usize,
    },
    /// The user has its share.
    #[error("the user has {own} of {max}, and no user may have more than half of what the others leave")]
    Share {
        /// The places of the user.
        own: usize,
        /// The number of all places.
        max: usize,
    },
}

/// Decides whether a user that has `own` of the `total` places that are taken may take another one of `max`.
pub(crate) fn may_take(own: usize, total: usize, max: usize, has_others: bool) -> Result<(), PlacesFull> {
    if total >= max {
        return Err(PlacesFull::All { max });
    }
    let shared = max - max / 8;
    let left_by_others = shared.saturating_sub(total - own);
    if own == 0 || !has_others || own < left_by_others / 2 {
        return Ok(());
    }
    Err(PlacesFull::Share { own, max })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(user: u32) -> Taker {
        Taker { account: Owner(user), has_others: true }
    }

    fn fill(places: &mut Places, number: u32) -> usize {
        std::iter::from_fn(|| places.take(user(number)).ok()).count()
    }

    #[test]
    fn a_user_has_at_most_half_of_what_others_leave() {
        let mut places = Places::new(800);
        assert_eq!([1, 2, 3].map(|number| fill(&mut places, number)), [350, 175, 87]);
        assert_eq!(places.take(user(1)), Err(PlacesFull::Share { own: 350, max: 800 }));
        places.give_back(Owner(2), 175);
        assert_eq!((fill(&mut places, 3), places.of(Owner(2)), places.total()), (88, 0, 525));
    }

    #[test]
    fn last_places_are_for_users_that_have_none() {
        let mut places = Places::new(80);
        let had: Vec<usize> = (0..100).map(|number| fill(&mut places, number)).collect();
        assert_eq!(had[..6], [35, 17, 9, 4, 2, 1]);
        assert_eq!(places.total(), 80);
        assert_eq!(had.iter().filter(|count| **count == 1).count(), 80 - 67);
        assert_eq!(places.take(user(200)), Err(PlacesFull::All { max: 80 }));
        places.give_back(Owner(50), 1);
        assert!(places.take(user(0)).is_err(), "a user that has some gets none of the last");
    }

    #[test]
    fn a_table_of_one_user_is_its_own() {
        let (mut places, alone) = (Places::new(9), Taker { has_others: false, ..user(1) });
        assert_eq!(std::iter::from_fn(|| places.take(alone).ok()).count(), 9);
        assert_eq!(places.take(alone), Err(PlacesFull::All { max: 9 }));
    }

    #[test]
    fn returns_no_more_than_was_taken() {
        let mut places = Places::new(9);
        places.add(Owner(1), 3);
        places.give_back(Owner(1), 5);
        places.give_back(Owner(2), 5);
        assert_eq!((places.total(), places.by_user.len()), (0, 0));
    }
}
