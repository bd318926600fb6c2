//! Where the four parties of two hosts sit: a program and a daemon on each host, and often fewer processors than that.
//!
//! ```text
//!              together        crossed         apart (4 CPUs)       free
//!   host a     P+D on 0        P 0, D 1        P 0, D 2             the kernel chooses
//!   host b     P+D on 1        P 1, D 0        P 1, D 3             among those of the placement
//! ```

use anyhow::{Result, bail};
use clap::ValueEnum;
use serde::Serialize;

use crate::pin::{Placement, list};

/// How parties are pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Seats {
    /// A host's programs and its daemon share a CPU: one CPU for each host.
    Together,
    /// A host's daemon is on the CPU of the other host's programs.
    Crossed,
    /// Each has its own, which needs four.
    Apart,
    /// All may use all of them.
    Free,
}

/// Which CPUs the parties may use, in the order of the hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Seating {
    pub(crate) programs: [Vec<usize>; 2],
    pub(crate) daemons: [Vec<usize>; 2],
}

impl Seats {
    /// Each its own, where there are enough.
    pub(crate) fn usual(placement: &Placement) -> Self {
        if placement.cpus().len() >= 4 { Self::Apart } else { Self::Together }
    }

    pub(crate) fn seating(self, placement: &Placement) -> Result<Seating> {
        let cpus = placement.cpus();
        let one = |at: usize| vec![cpus[at]];
        let programs = [one(0), one(1)];
        Ok(match (self, cpus.len()) {
            (Self::Together, _) => Seating { daemons: programs.clone(), programs },
            (Self::Crossed, _) => Seating { daemons: [one(1), one(0)], programs },
            (Self::Apart, 4..) => Seating { daemons: [one(2), one(3)], programs },
            (Self::Apart, few) => bail!("seats apart need four CPUs on different cores, not {few}"),
            (Self::Free, _) => {
                let all = || [cpus.to_vec(), cpus.to_vec()];
                Seating { programs: all(), daemons: all() }
            }
        })
    }
}

impl Seating {
    /// For people and for JSON.
    pub(crate) fn describe(&self) -> String {
        let Self { programs: [a, b], daemons: [c, d] } = self;
        format!("of two hosts: programs on CPUs {} and {}, daemons on {} and {}", list(a), list(b), list(c), list(d))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_processors_are_shared_and_four_are_not() {
        let (two, four) = (Placement::of(&[0, 2]), Placement::of(&[0, 1, 2, 3]));
        assert_eq!((Seats::usual(&two), Seats::usual(&four)), (Seats::Together, Seats::Apart));
        let told = |seats: Seats, placement| seats.seating(placement).map(|seating| seating.describe()).ok();
        let is = |text: &str| Some(format!("of two hosts: programs on CPUs {text}"));
        assert_eq!(told(Seats::Together, &two), is("0 and 2, daemons on 0 and 2"));
        assert_eq!(told(Seats::Crossed, &two), is("0 and 2, daemons on 2 and 0"));
        assert_eq!(told(Seats::Free, &two), is("0,2 and 0,2, daemons on 0,2 and 0,2"));
        assert_eq!(told(Seats::Apart, &four), is("0 and 1, daemons on 2 and 3"));
        assert_eq!(told(Seats::Apart, &two), None);
    }
}
