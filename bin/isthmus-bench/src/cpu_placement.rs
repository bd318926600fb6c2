//! Placement of the four processes of two hosts: a program and a daemon on each host, and often fewer processors.
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

/// The way they are pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum HostPlacement {
    /// A host's programs and its daemon share a CPU: one CPU for each host.
    Together,
    /// A host's daemon is on the CPU of the other host's programs.
    Crossed,
    /// Each has its own, which needs four.
    Apart,
    /// All may use all of them.
    Free,
}

/// The CPUs that the processes may use, in the order of the hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct HostCpus {
    pub(crate) programs: [Vec<usize>; 2],
    pub(crate) daemons: [Vec<usize>; 2],
}

impl HostPlacement {
    /// Each its own, where there are enough.
    pub(crate) fn usual(placement: &Placement) -> Self {
        if placement.cpus().len() >= 4 { Self::Apart } else { Self::Together }
    }

    pub(crate) fn host_cpus(self, placement: &Placement) -> Result<HostCpus> {
        let cpus = placement.cpus();
        let one = |at: usize| vec![cpus[at]];
        let programs = [one(0), one(1)];
        Ok(match (self, cpus.len()) {
            (Self::Together, _) => HostCpus { daemons: programs.clone(), programs },
            (Self::Crossed, _) => HostCpus { daemons: [one(1), one(0)], programs },
            (Self::Apart, 4..) => HostCpus { daemons: [one(2), one(3)], programs },
            (Self::Apart, few) => bail!("placement apart needs four CPUs on different cores, not {few}"),
            (Self::Free, _) => {
                let all = || [cpus.to_vec(), cpus.to_vec()];
                HostCpus { programs: all(), daemons: all() }
            }
        })
    }
}

impl HostCpus {
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
        assert_eq!(
            (HostPlacement::usual(&two), HostPlacement::usual(&four)),
            (HostPlacement::Together, HostPlacement::Apart)
        );
        let told =
            |hosts: HostPlacement, placement| hosts.host_cpus(placement).map(|host_cpus| host_cpus.describe()).ok();
        let is = |text: &str| Some(format!("of two hosts: programs on CPUs {text}"));
        assert_eq!(told(HostPlacement::Together, &two), is("0 and 2, daemons on 0 and 2"));
        assert_eq!(told(HostPlacement::Crossed, &two), is("0 and 2, daemons on 2 and 0"));
        assert_eq!(told(HostPlacement::Free, &two), is("0,2 and 0,2, daemons on 0,2 and 0,2"));
        assert_eq!(told(HostPlacement::Apart, &four), is("0 and 1, daemons on 2 and 3"));
        assert_eq!(told(HostPlacement::Apart, &two), None);
    }
}
