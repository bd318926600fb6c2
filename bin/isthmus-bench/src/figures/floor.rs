//! Floors: the smallest programs of the structures that other rows have, pinned as those rows are.
//!
//! A row's ratio to its floor is the cost of everything that is not the structure itself.

use anyhow::Result;

use super::{MIB, Row};
use crate::baseline::{CacheLine, LockedAdd, copy};
use crate::case::{Case, LinkCase, Reading, Unit};
use crate::job::{Buffers, Wait};
use crate::pair::Bench;
use crate::path::Path;

/// A case under the name of a floor, which is also the name of its row.
pub(crate) struct Floor<C>(&'static str, C);

impl<C: Case> Case for Floor<C> {
    fn name(&self) -> String {
        self.0.to_owned()
    }

    fn unit(&self) -> Unit {
        self.1.unit()
    }

    fn run(&self, bench: &Bench) -> Result<Reading> {
        self.1.run(bench)
    }
}

/// One line that goes to and fro between two processors that poll.
pub(crate) const fn cache_line() -> Floor<CacheLine> {
    Floor("floor.cache_line", CacheLine)
}

/// A wake-up there and back between two processors, halved.
pub(crate) fn eventfd() -> Floor<LinkCase> {
    Floor("floor.eventfd", LinkCase::half_rtt(Path::Eventfd, Wait::Sleep, 8))
}

/// A wake-up there and back on one processor, halved.
pub(crate) fn eventfd_one_cpu() -> Floor<LinkCase> {
    Floor("floor.eventfd.one_cpu", LinkCase::half_rtt(Path::Eventfd, Wait::Sleep, 8).on_one_cpu())
}

/// 1 MiB copied out of lines that are dirty in the other processor's cache.
pub(crate) const fn copy() -> Floor<copy::CrossCore> {
    Floor("floor.copy", copy::CrossCore { size: MIB })
}

/// 1 MiB copied twice out of memory that was never used and into such, by two processors at the same time.
pub(crate) const fn two_copies() -> Floor<copy::TwoCopies> {
    Floor("floor.two_copies", copy::TwoCopies { size: MIB })
}

/// Messages of 1 MiB through one shared ring of 1 MiB.
pub(crate) fn ring() -> Floor<LinkCase> {
    Floor("floor.ring", LinkCase::bandwidth(Path::Ring, Wait::Poll, MIB, Buffers::Warm))
}

/// An addition to one word by each of two processors.
pub(crate) const fn locked_add() -> Floor<LockedAdd> {
    Floor("floor.locked_add", LockedAdd)
}

pub(super) fn rows() -> Vec<Option<Row>> {
    vec![
        row(cache_line()),
        row(eventfd()),
        row(eventfd_one_cpu()),
        row(copy()),
        row(two_copies()),
        row(ring()),
        row(locked_add()),
    ]
}

fn row(floor: Floor<impl Case + 'static>) -> Option<Row> {
    Some(Row::new(floor.0, floor))
}
