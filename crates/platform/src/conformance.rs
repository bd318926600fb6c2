//! The suite that every platform passes.
//!
//! Each check has two halves, one for the side that owns the memory or the doorbell and one for the side that was let in. The halves run in two
//! places that share nothing but the platform: two threads of a process, two processes, a guest and its host. What they have to tell
//! one another (a grant, a bell, a word) goes over a [`CheckTransport`].
//!
//! ```text
//!   check          one side (the owner first)                 other side
//!   ─────          ──────────────────────────                 ──────────
//!   memory         allocate, grant ──── Grant ──────────────► map, look for zeroes
//!                  map_own, look    ◄── Barrier ────────────► look, write
//! ```
//!
//! A half panics with what it missed; the other half then finds the transport closed and panics as well. Tests of a platform call
//! [`check_in_process`] where both sides fit into one process, or [`check_side`] on each side. A platform says by
//! [`ConformancePlatform`] what a liar would offer on it.

mod checks;
mod transport;

pub use transport::{
    CheckMessage, CheckTransport, LineTransport, ThreadTransport, TransportClosed, WireValue, thread_pair,
};

use crate::{Platform, PlatformError};
use isthmus_layout::RegionSize;

/// A platform's additions for the suite, with which it tries to cheat.
pub trait ConformancePlatform: Platform {
    /// Offers that look like grants of `memory` to `to`, of `size` bytes, but are forged, each with what is wrong with it. The other side has
    /// to refuse every one, and continues to work. Memory that a forged offer needs, and that must not be dropped before, is added to `held`.
    fn forged_grants(
        &self,
        memory: &Self::Memory,
        to: &Self::Peer,
        size: RegionSize,
        held: &mut Vec<Self::Memory>,
    ) -> Result<Vec<(&'static str, Self::Grant)>, PlatformError>;
}

/// The role of a side: one starts as the owner, the other as the peer that is granted access; then they change places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckRole {
    /// Is the owner first.
    One,
    /// Is the peer first.
    Other,
}

/// The state of one side: the platform, its identification of the other side, and the transport to it.
pub(crate) struct CheckSide<'a, P: Platform> {
    platform: &'a P,
    peer: &'a P::Peer,
    transport: &'a mut dyn CheckTransport<P>,
}

/// Runs all checks on one side, in both roles; `peer` is what this side knows the other by. `passed` is called for each check that passed
/// on this side.
///
/// # Panics
///
/// Where a check fails, here or on the other side.
pub fn check_side<P: ConformancePlatform>(
    own_role: CheckRole,
    platform: &P,
    peer: &P::Peer,
    transport: &mut dyn CheckTransport<P>,
    passed: &mut dyn FnMut(&str),
) {
    let mut side = CheckSide { platform, peer, transport };
    for owner in [CheckRole::One, CheckRole::Other] {
        for check in checks::all::<P>() {
            let (half, role) = if own_role == owner { (check.owner, "owner") } else { (check.peer, "let in") };
            half(&mut side);
            side.synchronize();
            passed(&format!("{} ({role})", check.name));
        }
    }
}

/// Runs all checks between two platforms of this process; `peer` is what `ours` knows the other side by, `us` what `theirs` knows us by.
///
/// # Panics
///
/// Where a check fails.
pub fn check_in_process<P>(ours: &P, peer: &P::Peer, theirs: &P, us: &P::Peer)
where
    P: ConformancePlatform + Sync,
    P::Peer: Sync,
    P::Grant: Send,
    P::DoorbellToken: Send,
{
    let (mut here, mut there) = thread_pair::<P>();
    std::thread::scope(|scope| {
        let other = scope.spawn(move || check_side(CheckRole::Other, theirs, us, &mut there, &mut |_| {}));
        // A side that fails drops its end of the transport, so that the other one ends as well.
        let one = scope.spawn(move || check_side(CheckRole::One, ours, peer, &mut here, &mut |_| {}));
        // The side that failed first says why; the other one only that it was left alone.
        let (one, other) = (one.join(), other.join());
        let failed = [one, other].into_iter().filter_map(Result::err);
        if let Some(why) =
            failed.min_by_key(|why| why.downcast_ref::<String>().is_some_and(|why| why.contains(transport::CLOSED)))
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
        check_in_process(&Local, &(), &Local, &());
    }

    #[test]
    fn check_side_reports_each_check_in_both_roles() {
        let (mut here, mut there) = thread_pair::<Local>();
        let mut reported = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(move || check_side(CheckRole::Other, &Local, &(), &mut there, &mut |_| {}));
            check_side(CheckRole::One, &Local, &(), &mut here, &mut |name| reported.push(name.to_owned()));
        });
        let names: Vec<&str> = checks::all::<Local>().iter().map(|check| check.name).collect();
        assert_eq!(reported.len(), 2 * names.len());
        assert!(reported[0].starts_with(names[0]) && reported[0].ends_with("(owner)"), "{reported:?}");
        assert!(
            reported[names.len()].starts_with(names[0]) && reported[names.len()].ends_with("(let in)"),
            "{reported:?}"
        );
    }
}
