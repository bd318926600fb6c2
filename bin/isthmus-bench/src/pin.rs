//! The CPUs of the two sides of a measurement, and pinning a thread to one.
//!
//! Sides of one pair lie on different physical cores: two hyperthreads of one core share its caches, and a measurement between
//! them says nothing about two cores.

use anyhow::{Context, Result, bail};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The CPUs that measurements use, in the order in which sides are put onto them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement(Vec<usize>);

impl Placement {
    /// Takes the CPUs asked for, or one CPU of each physical core that this process may use.
    pub(crate) fn choose(asked: &[usize]) -> Result<Self> {
        let allowed = allowed()?;
        let cpus = if asked.is_empty() { one_of_each_core(&allowed, siblings) } else { asked.to_vec() };
        if let Some(missing) = cpus.iter().find(|cpu| !allowed.contains(cpu)) {
            bail!("CPU {missing} is not among those this process may use ({})", list(&allowed));
        }
        if cpus.len() < 2 {
            bail!("two CPUs on different cores are needed, one for each side; there is only {}", list(&cpus));
        }
        Ok(Self(cpus))
    }

    /// A placement for tests that pin nothing.
    #[cfg(test)]
    pub(crate) fn of(cpus: &[usize]) -> Self {
        Self(cpus.to_vec())
    }

    /// The CPU of the side that leads pair number `pair`.
    pub(crate) fn lead(&self, pair: usize) -> usize {
        self.0[(2 * pair) % self.0.len()]
    }

    /// The CPU of the side that follows.
    pub(crate) fn follow(&self, pair: usize) -> usize {
        self.0[(2 * pair + 1) % self.0.len()]
    }

    /// All of them.
    pub(crate) fn cpus(&self) -> &[usize] {
        &self.0
    }

    /// As in `0,1`.
    pub(crate) fn list(&self) -> String {
        list(&self.0)
    }
}

/// Binds the calling thread, and all threads it starts later, to these CPUs.
pub(crate) fn pin(cpus: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu >= CpuSet::MAX_CPU {
            bail!("CPU {cpu} is beyond the {} that can be named", CpuSet::MAX_CPU);
        }
        set.set(cpu);
    }
    sched_setaffinity(None, &set).with_context(|| format!("cannot pin to CPUs {}", list(cpus)))
}

fn allowed() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None).context("cannot ask for the CPUs this process may use")?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// The first CPU of each group of siblings, among those allowed.
fn one_of_each_core(allowed: &[usize], siblings: impl Fn(usize) -> Vec<usize>) -> Vec<usize> {
    let mut chosen: Vec<usize> = Vec::new();
    for &cpu in allowed {
        let group = siblings(cpu);
        if !chosen.iter().any(|other| group.contains(other)) {
            chosen.push(cpu);
        }
    }
    chosen
}

/// The hyperthreads of this CPU's core, itself included; only itself where the kernel does not say.
fn siblings(cpu: usize) -> Vec<usize> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    std::fs::read_to_string(path).ok().and_then(|text| parse_list(text.trim())).unwrap_or_else(|| vec![cpu])
}

/// Reads a list of CPUs as the kernel and `--cpus` write it: `0,2-3`.
pub(crate) fn parse_list(text: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last < first || last >= CpuSet::MAX_CPU {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

pub(crate) fn list(cpus: &[usize]) -> String {
    cpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse_list("0,2-4"), Some(vec![0, 2, 3, 4]));
        assert_eq!(parse_list("7"), Some(vec![7]));
        assert_eq!(parse_list("3-1"), None);
        assert_eq!(parse_list(""), None);
        assert_eq!(parse_list("a,b"), None);
        assert_eq!(parse_list("0-999999999"), None);
    }

    #[test]
    fn one_hyperthread_of_each_core_is_chosen() {
        let pairs = |cpu: usize| vec![cpu % 4, cpu % 4 + 4];
        assert_eq!(one_of_each_core(&[0, 1, 2, 3, 4, 5, 6, 7], pairs), [0, 1, 2, 3]);
        assert_eq!(one_of_each_core(&[1, 4, 5], pairs), [1, 4]);
    }

    #[test]
    fn pairs_go_round_the_placement() {
        let placement = Placement(vec![0, 1, 2]);
        assert_eq!((placement.lead(0), placement.follow(0)), (0, 1));
        assert_eq!((placement.lead(1), placement.follow(1)), (2, 0));
        assert_eq!(placement.list(), "0,1,2");
    }
}
