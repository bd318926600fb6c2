//! The rows of MX: programs in C over `libmyriexpress`, beside the same floors and peers as the local rows.

use std::cell::Cell;
use std::rc::Rc;

use anyhow::{Context, Result};

use crate::baseline::{Ucx, ucx};
use crate::case::{Case, LinkCase, Reading, Unit};
use crate::fabric::mpis;
use crate::figures::{MIB, Row, floor};
use crate::job::{Buffers, Matching, Wait, Work};
use crate::pair::{Bench, Task};
use crate::path::Path;
use crate::target::Target;
use crate::target::Versus::{Floor, Peer};

/// The number of receives that are posted, and of messages that are unexpected, on each side.
const DEPTH: u32 = 10_000;

pub(super) fn rows() -> Vec<Option<Row>> {
    vec![
        half_rtt_8b_poll(),
        half_rtt_8b_sleep(),
        half_rtt_8b_sleep_one_cpu(),
        bandwidth_1m_warm(),
        bandwidth_1m_cold(),
        rate_8b(),
        match_10k(),
    ]
}

fn half_rtt_8b_poll() -> Option<Row> {
    let row = Row::of_link("mx.half_rtt.8b.poll", LinkCase::half_rtt(Path::Mx, Wait::Poll, 8))?;
    Some(
        row.peers(Ucx::half_rtts(8))
            .peers(mpis(8))
            .floor(floor::cache_line())
            .beside(LinkCase::half_rtt(Path::Isthmus, Wait::Poll, 8))
            .target(Target::at_most(2.5, Floor).and(Target::at_most(1.0, Peer))),
    )
}

fn half_rtt_8b_sleep() -> Option<Row> {
    let case = LinkCase::half_rtt(Path::Mx, Wait::Sleep, 8);
    let row = Row::of_link("mx.half_rtt.8b.sleep", case.clone())?;
    Some(
        row.peer(LinkCase::half_rtt(Path::Tcp, Wait::Sleep, 8))
            .floor(floor::eventfd())
            .beside(case.with_option("wait", "adaptive"))
            .beside(LinkCase::half_rtt(Path::Isthmus, Wait::Sleep, 8))
            .target(Target::at_most(0.65, Peer)),
    )
}

fn half_rtt_8b_sleep_one_cpu() -> Option<Row> {
    let one = |path| LinkCase::half_rtt(path, Wait::Sleep, 8).on_one_cpu();
    let row = Row::of_link("mx.half_rtt.8b.sleep.one_cpu", one(Path::Mx))?.peer(one(Path::Tcp));
    let row = row.floor(floor::eventfd_one_cpu()).beside(one(Path::Isthmus));
    Some(row.target(Target::at_most(0.65, Peer)))
}

fn bandwidth_1m_warm() -> Option<Row> {
    let row = Row::of_link("mx.bandwidth.1m.warm", LinkCase::bandwidth(Path::Mx, Wait::Poll, MIB, Buffers::Warm))?;
    Some(
        row.peer(Ucx::bandwidth(ucx::Transport::Sysv, MIB))
            .peer(Ucx::bandwidth(ucx::Transport::Cma, MIB))
            .floor(floor::copy())
            .beside(LinkCase::bandwidth(Path::Mx, Wait::Poll, MIB, Buffers::Rewritten))
            .beside(LinkCase::bandwidth(Path::Isthmus, Wait::Poll, MIB, Buffers::Warm))
            .target(Target::at_least(0.8, Floor)),
    )
}

fn bandwidth_1m_cold() -> Option<Row> {
    let row = Row::of_link("mx.bandwidth.1m.cold", LinkCase::bandwidth(Path::Mx, Wait::Poll, MIB, Buffers::Cold))?;
    Some(
        row.peer(LinkCase::bandwidth(Path::Cma, Wait::Poll, MIB, Buffers::Cold))
            .floor(floor::two_copies())
            .beside(Ucx::bandwidth(ucx::Transport::Sysv, MIB))
            .target(Target::at_least(1.5, Peer)),
    )
}

fn rate_8b() -> Option<Row> {
    let row = Row::of_link("mx.rate.8b", LinkCase::rate(Path::Mx, Wait::Poll, 8))?;
    let row = row.peers(Ucx::rates(8)).beside(LinkCase::rate(Path::Isthmus, Wait::Poll, 8));
    Some(row.target(Target::at_least(1.5, Peer)))
}

/// The peer is the same with nothing posted; its receives name their message exactly, as those of the row do.
fn match_10k() -> Option<Row> {
    let last = Rc::new(Cell::new(None));
    let reported = |name, pick| ReportedValue { name, pick, last: Rc::clone(&last) };
    Some(
        Row::new("mx.match.10k", MatchCase { depth: DEPTH, last: Rc::clone(&last) })
            .peer(reported("mx.match.exact.0", |matching| matching.exact_empty_ns))
            .beside(reported("mx.match.masked.0", |matching| matching.masked_empty_ns))
            .beside(reported("mx.match.masked.10k", |matching| matching.masked_full_ns))
            .target(Target::at_most(2.0, Peer)),
    )
}

/// Half a round trip with `depth` receives posted and `depth` messages unexpected before each message. One pair of processes
/// measures all that is compared; [`ReportedValue`] has the rest of its results.
struct MatchCase {
    depth: u32,
    last: Rc<Cell<Option<Matching>>>,
}

impl Case for MatchCase {
    fn name(&self) -> String {
        "mx.match.exact.10k".to_owned()
    }

    fn unit(&self) -> Unit {
        Unit::Microseconds
    }

    fn run(&self, bench: &Bench) -> Result<Reading> {
        self.last.set(None);
        if let Some(why) = Path::Mx.unavailable_reason() {
            return Ok(Reading::Unavailable(why));
        }
        let found = bench.pair(&Task::plain(Path::Mx, Wait::Poll, Work::Match { depth: self.depth }))?;
        let matching = found.lead.matching.context("the leading side measured no matching")?;
        self.last.set(Some(matching));
        Ok(Reading::value(matching.exact_full_ns / 1e3))
    }
}

/// A further result of the run of [`MatchCase`] just before this one.
struct ReportedValue {
    name: &'static str,
    pick: fn(&Matching) -> f64,
    last: Rc<Cell<Option<Matching>>>,
}

impl Case for ReportedValue {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn unit(&self) -> Unit {
        Unit::Microseconds
    }

    fn run(&self, _: &Bench) -> Result<Reading> {
        Ok(match self.last.get() {
            Some(matching) => Reading::value((self.pick)(&matching) / 1e3),
            None => Reading::Unavailable("the pair that reports it did not run".to_owned()),
        })
    }
}
