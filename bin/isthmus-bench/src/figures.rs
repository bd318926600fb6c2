//! The rows of `docs/figures.md`: what is claimed, and what it is held against, measured in turns.
//!
//! To add a row: a function that returns its [`Row`], and its line in [`rows`]. What no pair of workers over a path can measure
//! (idling, many idle peers) is a type of its own that implements [`Case`], in a file below `figures/`.

mod idle;
mod mpi;
mod mx;
pub(crate) mod wire;

use std::rc::Rc;

use anyhow::Result;

use crate::baseline::{CacheLine, Ucx, copy, ucx};
use crate::case::{Case, LinkCase, NoValue, interleave};
use crate::hosts::HostPairs;
use crate::job::{Buffers, Wait};
use crate::machine::Machine;
use crate::mpi::SystemMpis;
use crate::pair::Bench;
use crate::path::Path;
use crate::report::{Figure, Output, figures_table, progress};
use idle::Idle;

const MIB: usize = 1 << 20;

/// One row: a case, the baseline that its ratio is of, and others beside it.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// For the reader: nothing here decides whether it is met.
    pub(crate) target: &'static str,
    pub(crate) case: Box<dyn Case>,
    pub(crate) baseline: Option<Box<dyn Case>>,
    pub(crate) others: Vec<Box<dyn Case>>,
}

/// All rows, in the order of the document, of what this path can do.
pub(crate) fn rows(path: Path) -> Vec<Row> {
    let local = [
        half_rtt_8b_poll(path),
        half_rtt_4k_poll(path),
        bandwidth_1m_warm(path),
        bandwidth_1m_cold(path),
        rate_8b(path),
        half_rtt_8b_sleep(path),
        half_rtt_8b_sleep_one_cpu(path),
        isolated_half_rtt_8b(path),
        isolated_bandwidth_1m(path),
        attach(path),
        first_message(path),
        idle_cpu(path),
        idle_peers(path),
    ];
    // MX and the provider go over Isthmus, and over nothing else.
    let is_ours = matches!(path, Path::Isthmus | Path::Mx);
    let others = if is_ours {
        let host_pairs = &Rc::new(HostPairs::default());
        [mx::rows(), wire::rows(host_pairs), mpi::rows(&Rc::new(SystemMpis::default()), host_pairs)]
            .into_iter()
            .flatten()
            .collect()
    } else {
        Vec::new()
    };
    local.into_iter().chain(others).flatten().collect()
}

/// Measures the rows, and prints each when it is done. Says whether all of them have a value.
pub(crate) fn measure(rows: &[Row], bench: &Bench, machine: &Machine, output: &mut Output) -> Result<bool> {
    let mut figures = Vec::new();
    let mut complete = true;
    for (number, row) in rows.iter().enumerate() {
        let cases: Vec<&dyn Case> =
            std::iter::once(&row.case).chain(&row.baseline).chain(&row.others).map(|case| &**case).collect();
        let samples = interleave(&cases, bench, |run, name| {
            progress(&format!("[{}/{}] {} run {}: {name}", number + 1, rows.len(), row.name, run + 1));
        });
        let mut figure = Figure::new(row.name.to_owned(), row.case.unit(), &samples[0], machine);
        figure.target = Some(row.target);
        let mut beside = cases.iter().zip(&samples).skip(1);
        if row.baseline.is_some()
            && let Some((case, samples)) = beside.next()
        {
            figure = figure.with_baseline(case.name(), samples);
        }
        for (case, samples) in beside {
            figure = figure.with_other(case.name(), samples);
        }
        complete &= figure.value.is_some() && !matches!(samples[0].no_value, Some(NoValue::Failed(_)));
        output.line(&figure)?;
        figures.push(figure);
    }
    progress("");
    output.text(&format!("{}\n\n{}", machine.describe(), figures_table(&figures)))?;
    Ok(complete)
}

/// A row whose case is possible over its path.
fn row(
    name: &'static str,
    target: &'static str,
    case: LinkCase,
    baseline: impl Case + 'static,
    others: Vec<Box<dyn Case>>,
) -> Option<Row> {
    let possible = case.is_supported();
    possible.then(|| Row { name, target, case: Box::new(case), baseline: Some(Box::new(baseline)), others })
}

fn half_rtt_8b_poll(path: Path) -> Option<Row> {
    row(
        "local.half_rtt.8b.poll",
        "at most 2 times the one-line cache ping-pong, and below every peer",
        LinkCase::half_rtt(path, Wait::Poll, 8),
        CacheLine,
        vec![
            Box::new(Ucx::half_rtt(ucx::Transport::Posix, 8)),
            Box::new(Ucx::half_rtt(ucx::Transport::Sysv, 8)),
            Box::new(LinkCase::half_rtt(Path::Tcp, Wait::Poll, 8)),
        ],
    )
}

fn half_rtt_4k_poll(path: Path) -> Option<Row> {
    row(
        "local.half_rtt.4k.poll",
        "at most 0.6 times UCX's, or at most 0.5 us",
        LinkCase::half_rtt(path, Wait::Poll, 4096),
        Ucx::half_rtt(ucx::Transport::Posix, 4096),
        vec![
            Box::new(Ucx::half_rtt(ucx::Transport::Sysv, 4096)),
            Box::new(LinkCase::half_rtt(Path::Tcp, Wait::Poll, 4096)),
        ],
    )
}

fn bandwidth_1m_warm(path: Path) -> Option<Row> {
    row(
        "local.bandwidth.1m.warm",
        "at least 0.8 times a copy of lines dirty in the other core",
        LinkCase::bandwidth(path, Wait::Poll, MIB, Buffers::Warm),
        copy::CrossCore { size: MIB },
        vec![
            Box::new(LinkCase::bandwidth(path, Wait::Poll, MIB, Buffers::Rewritten)),
            Box::new(copy::OneCore { size: MIB }),
            Box::new(LinkCase::bandwidth(Path::Cma, Wait::Poll, MIB, Buffers::Warm)),
            Box::new(Ucx::bandwidth(ucx::Transport::Sysv, MIB)),
            Box::new(Ucx::bandwidth(ucx::Transport::Cma, MIB)),
        ],
    )
}

fn bandwidth_1m_cold(path: Path) -> Option<Row> {
    row(
        "local.bandwidth.1m.cold",
        "at least 1.5 times process_vm_readv",
        LinkCase::bandwidth(path, Wait::Poll, MIB, Buffers::Cold),
        LinkCase::bandwidth(Path::Cma, Wait::Poll, MIB, Buffers::Cold),
        vec![Box::new(copy::TwoCopies { size: MIB }), Box::new(Ucx::bandwidth(ucx::Transport::Sysv, MIB))],
    )
}

fn rate_8b(path: Path) -> Option<Row> {
    row(
        "local.rate.8b",
        "at least 1.5 times UCX's",
        LinkCase::rate(path, Wait::Poll, 8),
        Ucx::rate(ucx::Transport::Posix, 8),
        vec![Box::new(Ucx::rate(ucx::Transport::Sysv, 8)), Box::new(LinkCase::rate(Path::Tcp, Wait::Poll, 8))],
    )
}

fn half_rtt_8b_sleep(path: Path) -> Option<Row> {
    row(
        "local.half_rtt.8b.sleep",
        "at most 0.6 times blocking loopback TCP",
        LinkCase::half_rtt(path, Wait::Sleep, 8),
        LinkCase::half_rtt(Path::Tcp, Wait::Sleep, 8),
        vec![
            Box::new(LinkCase::half_rtt(Path::Unix, Wait::Sleep, 8)),
            Box::new(LinkCase::half_rtt(Path::Eventfd, Wait::Sleep, 8)),
        ],
    )
}

/// The same where the CPU need not be woken, only the other side: what is left is what sleeping and waking cost.
fn half_rtt_8b_sleep_one_cpu(path: Path) -> Option<Row> {
    let one = |path| LinkCase::half_rtt(path, Wait::Sleep, 8).on_one_cpu();
    row(
        "local.half_rtt.8b.sleep.one_cpu",
        "at most 0.6 times blocking loopback TCP",
        one(path),
        one(Path::Tcp),
        vec![Box::new(one(Path::Unix)), Box::new(one(Path::Eventfd))],
    )
}

fn isolated_half_rtt_8b(path: Path) -> Option<Row> {
    let case = LinkCase::half_rtt(path, Wait::Poll, 8);
    row(
        "local.isolated.half_rtt.8b",
        "at most 1.05 times the same without isolation",
        case.clone().isolated(),
        case,
        Vec::new(),
    )
}

fn isolated_bandwidth_1m(path: Path) -> Option<Row> {
    let case = LinkCase::bandwidth(path, Wait::Poll, MIB, Buffers::Warm);
    row(
        "local.isolated.bandwidth.1m",
        "at least 0.95 times the same without isolation",
        case.clone().isolated(),
        case,
        Vec::new(),
    )
}

fn attach(path: Path) -> Option<Row> {
    let (case, tcp) = (LinkCase::open(path, Wait::Poll), LinkCase::open(Path::Tcp, Wait::Poll));
    row("local.attach_us", "at most 2 ms", case, tcp, Vec::new())
}

fn first_message(path: Path) -> Option<Row> {
    let (case, tcp) = (LinkCase::first(path, Wait::Poll, 8), LinkCase::first(Path::Tcp, Wait::Poll, 8));
    row("local.first_message_us", "at most 300 us, the channel made in it; there and back", case, tcp, Vec::new())
}

fn idle_cpu(path: Path) -> Option<Row> {
    let case = Idle { path, domains: 100 };
    case.is_supported().then(|| Row {
        name: "local.idle_cpu_ms",
        target: "0 ms CPU in 60 s, daemon and 100 attached domains",
        case: Box::new(case),
        baseline: Some(Box::new(Idle { path: Path::Unix, domains: 100 })),
        others: Vec::new(),
    })
}

fn idle_peers(path: Path) -> Option<Row> {
    let case = LinkCase::half_rtt(path, Wait::Poll, 8);
    let with_silent = case.clone().with_option("idle_peers", "1000");
    row("local.idle_peers", "within 10 % of the same without 1,000 idle peers", with_silent, case, Vec::new())
}

/// The rows whose name is one of these, or begins with one of them and a dot; an error names those there are.
pub(crate) fn select(rows: Vec<Row>, only: &[String]) -> Result<Vec<Row>, String> {
    for wanted in only {
        if !rows.iter().any(|row| matches(row.name, wanted)) {
            let names: Vec<_> = rows.iter().map(|row| row.name).collect();
            return Err(format!("there is no row {wanted:?}; there are: {}", names.join(", ")));
        }
    }
    Ok(rows.into_iter().filter(|row| only.is_empty() || only.iter().any(|wanted| matches(row.name, wanted))).collect())
}

/// `tcp.half_rtt` selects all of `tcp.half_rtt.*`.
pub(crate) fn matches(name: &str, wanted: &str) -> bool {
    name.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_named_as_in_the_document() {
        let names: Vec<_> = rows(Path::Unix).iter().map(|row| row.name).collect();
        assert_eq!(
            names,
            [
                "local.half_rtt.8b.poll",
                "local.half_rtt.4k.poll",
                "local.bandwidth.1m.warm",
                "local.bandwidth.1m.cold",
                "local.rate.8b",
                "local.half_rtt.8b.sleep",
                "local.half_rtt.8b.sleep.one_cpu",
                "local.isolated.half_rtt.8b",
                "local.isolated.bandwidth.1m",
                "local.attach_us",
                "local.first_message_us",
                "local.idle_cpu_ms",
            ]
        );
    }

    #[test]
    fn mx_has_rows_beside_those_of_isthmus() {
        let rows = rows(Path::Isthmus);
        let names: Vec<_> = rows.iter().map(|row| row.name).filter(|name| name.starts_with("mx.")).collect();
        assert_eq!(
            names,
            [
                "mx.half_rtt.8b.poll",
                "mx.half_rtt.8b.sleep",
                "mx.half_rtt.8b.sleep.one_cpu",
                "mx.bandwidth.1m.warm",
                "mx.bandwidth.1m.cold",
                "mx.rate.8b",
                "mx.match.10k",
            ]
        );
    }

    #[test]
    fn hosts_have_rows_beside_those_of_isthmus() {
        let rows = rows(Path::Mx);
        let names: Vec<_> = rows.iter().map(|row| row.name).filter(|name| name.starts_with("wire.")).collect();
        assert_eq!(
            names,
            [
                "wire.goodput.1m",
                "wire.goodput.1m.1gbit",
                "wire.half_rtt.8b.poll",
                "wire.half_rtt.8b.sleep",
                "wire.goodput.loss1",
                "wire.cpu_per_gb",
                "wire.aggregate.20pairs",
            ]
        );
        let udp: Vec<_> = rows.iter().map(|row| row.name).filter(|name| name.starts_with("udp.")).collect();
        assert_eq!(udp, ["udp.goodput.1m", "udp.goodput.1m.cut"]);
    }

    #[test]
    fn mpis_have_rows_beside_those_of_isthmus() {
        let rows = rows(Path::Isthmus);
        let names: Vec<_> = rows.iter().map(|row| row.name).filter(|name| name.starts_with("mpi.")).collect();
        assert_eq!(
            names,
            [
                "mpi.half_rtt.8b",
                "mpi.bandwidth.1m",
                "mpi.net.half_rtt.8b",
                "mpi.net.bandwidth.1m",
                "mpi.oversubscribed.8ranks",
                "mpi.hpcc.ring_latency",
                "mpi.hpcc.ring_bandwidth",
                "mpi.hpcc.random_access",
                "mpi.hpcc.fft",
            ]
        );
    }

    #[test]
    fn case_names_of_a_row_are_unique() {
        for row in rows(Path::Isthmus) {
            let mut names: Vec<_> = row.baseline.iter().chain(&row.others).map(|case| case.name()).collect();
            names.push(row.case.name());
            let all = names.len();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), all, "{}", row.name);
        }
    }

    #[test]
    fn values_and_baselines_have_the_same_unit() {
        for row in rows(Path::Isthmus) {
            for beside in row.baseline.iter().chain(&row.others) {
                assert_eq!(beside.unit(), row.case.unit(), "{}: {}", row.name, beside.name());
            }
        }
    }

    #[test]
    fn rows_are_selected_by_name_or_prefix() {
        let chosen = |only: &[&str]| -> Result<usize, String> {
            let only: Vec<String> = only.iter().map(ToString::to_string).collect();
            select(rows(Path::Unix), &only).map(|rows| rows.len())
        };
        assert_eq!(chosen(&["local.rate.8b"]), Ok(1));
        assert_eq!(chosen(&["local.isolated", "local.rate"]), Ok(3));
        assert_eq!(chosen(&[]), Ok(12));
        assert!(chosen(&["local.rat"]).is_err_and(|error| error.contains("local.rate.8b")));
    }
}
