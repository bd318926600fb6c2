//! The suite that every platform passes.
//!
//! Each check has two halves, one for the side that owns the memory or the doorbell and one for the side that was let in. The halves run in two
//! places that share nothing but the platform: two threads of a process, two processes, a guest and its host. What they have to tell
//! one another (a grant, a bell, a word) goes over a [`Border`].
//!
//! ```text
//!   check          one side (the owner first)                 other side
//!   ─────          ──────────────────────────                 ──────────
//!   memory         allocate, grant ──── Grant ──────────────► map, look for zeroes
//!                  map_own, look    ◄── Here ───────────────► look, write
//! ```
//!
//! A half panics with what it missed; the other half then finds the border closed and panics as well. Tests of a platform call
//! [`check_here`] where both sides fit into one process, or [`check_side`] on each side. A platform says by [`Conform`] what a liar would
//! offer on it.

mod border;
mod checks;

pub use border::{Border, BorderClosed, Lines, Message, Portable, Thread, threads};

use crate::{Platform, PlatformError};
use isthmus_layout::RegionSize;

/// What a platform brings so that the suite can try to cheat on it.
pub trait Conform: Platform {
    /// Offers that look like grants of `memory` to `to`, of `size` bytes, and are none, each with what is wrong with it: the other side has to
    /// refuse every one, and goes on working. Where a liar needs something that must not be dropped before, it is in `held`.
    fn forgeries(
        &self,
        memory: &Self::Memory,
        to: &Self::Peer,
        size: RegionSize,
        held: &mut Vec<Self::Memory>,
    ) -> Result<Vec<(&'static str, Self::Grant)>, PlatformError>;
}

/// Which of the two sides this is: one starts as the owner, the other as who is let in; then they change places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Owns first.
    One,
    /// Is let in first.
    Other,
}

/// What one side has at hand: the platform, what it knows the other side by, and the way to talk to it.
pub(crate) struct Party<'a, P: Platform> {
    platform: &'a P,
    them: &'a P::Peer,
    border: &'a mut dyn Border<P>,
}

/// Runs all checks on one side, in both roles; `them` is what this side knows the other by. `passed` hears of each check that passed
/// on this side.
///
/// # Panics
///
/// Where a check fails, here or on the other side.
pub fn check_side<P: Conform>(
    side: Side,
    platform: &P,
    them: &P::Peer,
    border: &mut dyn Border<P>,
    passed: &mut dyn FnMut(&str),
) {
    let mut party = Party { platform, them, border };
    for owner in [Side::One, Side::Other] {
        for check in checks::all::<P>() {
            let (half, role) = if side == owner { (check.owner, "owner") } else { (check.guest, "let in") };
            half(&mut party);
            party.meet();
            passed(&format!("{} ({role})", check.name));
        }
    }
}

/// Runs all checks between two platforms of this process; `them` is what `ours` knows the other side by, `us` what `theirs` knows us by.
///
/// # Panics
///
/// Where a check fails.
pub fn check_here<P>(ours: &P, them: &P::Peer, theirs: &P, us: &P::Peer)
where
    P: Conform + Sync,
    P::Peer: Sync,
    P::Grant: Send,
    P::Bell: Send,
{
    let (mut here, mut there) = threads::<P>();
    std::thread::scope(|scope| {
        let other = scope.spawn(move || check_side(Side::Other, theirs, us, &mut there, &mut |_| {}));
        // A side that fails drops its end of the border, so that the other one ends as well.
        let one = scope.spawn(move || check_side(Side::One, ours, them, &mut here, &mut |_| {}));
        // The side that failed first says why; the other one only that it was left alone.
        let (one, other) = (one.join(), other.join());
        let failed = [one, other].into_iter().filter_map(Result::err);
        if let Some(why) =
            failed.min_by_key(|why| why.downcast_ref::<String>().is_some_and(|why| why.contains(border::CLOSED)))
        {
            std::panic::resume_unwind(why);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Local;

    #[test]
    fn local_passes() {
        check_here(&Local, &(), &Local, &());
    }

    #[test]
    fn each_check_is_heard_of_in_both_roles() {
        let (mut here, mut there) = threads::<Local>();
        let mut heard = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(move || check_side(Side::Other, &Local, &(), &mut there, &mut |_| {}));
            check_side(Side::One, &Local, &(), &mut here, &mut |name| heard.push(name.to_owned()));
        });
        let names: Vec<&str> = checks::all::<Local>().iter().map(|check| check.name).collect();
        assert_eq!(heard.len(), 2 * names.len());
        assert!(heard[0].starts_with(names[0]) && heard[0].ends_with("(owner)"), "{heard:?}");
        assert!(heard[names.len()].starts_with(names[0]) && heard[names.len()].ends_with("(let in)"), "{heard:?}");
    }
}
