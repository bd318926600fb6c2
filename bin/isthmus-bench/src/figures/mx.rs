//! The rows of MX: real programs in C over `libmyriexpress`, beside the same floors and peers as the local rows.

use std::cell::Cell;
use std::rc::Rc;

use anyhow::{Context, Result};

use super::{MIB, Row, row};
use crate::baseline::{CacheLine, Ucx, copy, mpis, ucx};
use crate::case::{Case, LinkCase, Reading, Unit};
use crate::job::{Buffers, Matching, Wait, Work};
use crate::pair::{Bench, Task};
use crate::path::Path;

/// So many receives are posted and so many messages lie unexpected, on each side.
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
    let mut others: Vec<Box<dyn Case>> = vec![
        Box::new(LinkCase::half_rtt(Path::Isthmus, Wait::Poll, 8)),
        Box::new(Ucx::half_rtt(ucx::Transport::Posix, 8)),
        Box::new(Ucx::half_rtt(ucx::Transport::Sysv, 8)),
    ];
    others.extend(mpis(8));
    row(
        "mx.half_rtt.8b.poll",
        "at most 2.5 times the one-line cache ping-pong, and below UCX's and every MPI's own shared memory",
        LinkCase::half_rtt(Path::Mx, Wait::Poll, 8),
        CacheLine,
        others,
    )
}

fn half_rtt_8b_sleep() -> Option<Row> {
    row(
        "mx.half_rtt.8b.sleep",
        "at most 0.65 times blocking loopback TCP",
        LinkCase::half_rtt(Path::Mx, Wait::Sleep, 8),
        LinkCase::half_rtt(Path::Tcp, Wait::Sleep, 8),
        vec![
            Box::new(LinkCase::half_rtt(Path::Mx, Wait::Sleep, 8).with_option("wait", "adaptive")),
            Box::new(LinkCase::half_rtt(Path::Isthmus, Wait::Sleep, 8)),
            Box::new(LinkCase::half_rtt(Path::Eventfd, Wait::Sleep, 8)),
        ],
    )
}

fn half_rtt_8b_sleep_one_cpu() -> Option<Row> {
    let one = |path| LinkCase::half_rtt(path, Wait::Sleep, 8).on_one_cpu();
    row(
        "mx.half_rtt.8b.sleep.one_cpu",
        "at most 0.65 times blocking loopback TCP",
        one(Path::Mx),
        one(Path::Tcp),
        vec![Box::new(one(Path::Isthmus)), Box::new(one(Path::Eventfd))],
    )
}

fn bandwidth_1m_warm() -> Option<Row> {
    row(
        "mx.bandwidth.1m.warm",
        "at least 0.8 times a copy of lines dirty in the other core",
        LinkCase::bandwidth(Path::Mx, Wait::Poll, MIB, Buffers::Warm),
        copy::CrossCore { size: MIB },
        vec![
            Box::new(LinkCase::bandwidth(Path::Mx, Wait::Poll, MIB, Buffers::Rewritten)),
            Box::new(LinkCase::bandwidth(Path::Isthmus, Wait::Poll, MIB, Buffers::Warm)),
            Box::new(Ucx::bandwidth(ucx::Transport::Sysv, MIB)),
            Box::new(Ucx::bandwidth(ucx::Transport::Cma, MIB)),
        ],
    )
}

fn bandwidth_1m_cold() -> Option<Row> {
    row(
        "mx.bandwidth.1m.cold",
        "at least 1.5 times process_vm_readv",
        LinkCase::bandwidth(Path::Mx, Wait::Poll, MIB, Buffers::Cold),
        LinkCase::bandwidth(Path::Cma, Wait::Poll, MIB, Buffers::Cold),
        vec![Box::new(copy::TwoCopies { size: MIB }), Box::new(Ucx::bandwidth(ucx::Transport::Sysv, MIB))],
    )
}

fn rate_8b() -> Option<Row> {
    row(
        "mx.rate.8b",
        "at least 1.5 times UCX's",
        LinkCase::rate(Path::Mx, Wait::Poll, 8),
        Ucx::rate(ucx::Transport::Posix, 8),
        vec![Box::new(Ucx::rate(ucx::Transport::Sysv, 8)), Box::new(LinkCase::rate(Path::Isthmus, Wait::Poll, 8))],
    )
}

fn match_10k() -> Option<Row> {
    let last = Rc::new(Cell::new(None));
    let told = |name, pick| ReportedValue { name, pick, last: Rc::clone(&last) };
    Some(Row {
        name: "mx.match.10k",
        target: "at most 2 times the same with none, where receives name their message exactly",
        case: Box::new(MatchCase { depth: DEPTH, last: Rc::clone(&last) }),
        baseline: Some(Box::new(told("mx.match.exact.0", |matching| matching.exact_empty_ns))),
        others: vec![
            Box::new(told("mx.match.masked.0", |matching| matching.masked_empty_ns)),
            Box::new(told("mx.match.masked.10k", |matching| matching.masked_full_ns)),
        ],
    })
}

/// Half a round trip with so much posted and unexpected before each message. One pair of processes takes turns with all
/// that is compared; what it told of the rest is there for [`ReportedValue`].
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

/// What the run of [`MatchCase`] just before this one told besides.
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
            None => Reading::Unavailable("the pair that tells it did not run".to_owned()),
        })
    }
}
