//! The rows of `docs/performance.md`: the claims, and the cases that each is compared with, measured in turns.
//!
//! To add a row: a function that returns its [`Row`], and its line in a list. Work that no pair of workers over a path can
//! measure (idling, many idle peers) is a type of its own that implements [`Case`].

pub(crate) mod floor;
mod idle;
mod local;
mod row;
pub(crate) mod wire;

use std::rc::Rc;

use anyhow::Result;

use crate::case::{Case, NoValue, interleave};
use crate::hosts::HostPairs;
use crate::pair::Bench;
use crate::path::Path;
use crate::report::{Figure, Output, figures_table, progress};

pub(crate) use idle::Idle;
pub(crate) use row::Row;

pub(crate) const MIB: usize = 1 << 20;

/// The function that lists the rows of a capability, in the folder of each.
type RowList = fn(&Rc<HostPairs>) -> Vec<Option<Row>>;

/// The capabilities.
const CAPABILITIES: [RowList; 5] = [
    crate::mx::rows,
    crate::fabric::rows,
    |_| crate::sockets::rows(),
    |_| crate::verbs::rows(),
    |_| crate::overlay::rows(),
];

/// All rows of this path, in the order of the document.
pub(crate) fn rows(path: Path) -> Vec<Row> {
    let mut rows = local::rows(path);
    // Floors do not depend on the path, and capabilities use Isthmus.
    if path.is_ours() {
        let host_pairs = &Rc::new(HostPairs::default());
        rows.extend(floor::rows());
        rows.extend(CAPABILITIES.iter().flat_map(|rows| rows(host_pairs)));
    }
    rows.into_iter().flatten().collect()
}

/// Measures the rows, and prints each when it is done. Returns true if nothing failed; a row of a program that is not installed
/// has not failed.
pub(crate) fn measure(rows: &[Row], bench: &Bench, machine: &str, output: &mut Output) -> Result<bool> {
    let mut figures = Vec::new();
    let mut complete = true;
    for (number, row) in rows.iter().enumerate() {
        let cases: Vec<&dyn Case> = row.cases().collect();
        let samples = interleave(&cases, bench, |run, name| {
            progress(&format!("[{}/{}] {} run {}: {name}", number + 1, rows.len(), row.name, run + 1));
        });
        complete &= !matches!(samples[0].no_value, Some(NoValue::Failed(_)));
        let mut named = cases.iter().map(|case| case.name()).zip(&samples).skip(1);
        let mut figure = Figure::new(row.name.to_owned(), row.case.unit(), &samples[0]);
        figure.target = row.target.clone();
        figure = figure.with_peers(row.case.unit(), named.by_ref().take(row.peers.len()));
        if row.floor.is_some()
            && let Some((name, samples)) = named.next()
        {
            figure = figure.with_floor(name, samples);
        }
        figure = named.fold(figure, |figure, (name, samples)| figure.with_other(name, samples));
        output.line(&figure)?;
        figures.push(figure);
    }
    progress("");
    output.text(&format!("{machine}\n\n{}", figures_table(&figures)))?;
    Ok(complete)
}

/// Returns the rows with one of these names, or with a name that begins with one of them and a dot. An error names all rows.
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
                "local.stream.sleep.8b",
                "local.stream.sleep.128b",
                "local.stream.sleep.4k",
                "local.stream.sleep.64k",
                "local.stream.sleep.1m",
            ]
        );
    }

    #[test]
    fn each_floor_is_a_row_of_its_own_name() {
        let rows = rows(Path::Isthmus);
        let floors = rows.iter().filter_map(|row| row.floor.as_ref()).map(|floor| floor.name());
        for floor in floors.filter(|name| name.starts_with("floor.")) {
            assert!(rows.iter().any(|row| row.name == floor), "{floor}");
        }
        let names: Vec<_> = rows.iter().map(|row| row.name).filter(|name| name.starts_with("floor.")).collect();
        let copies = ["floor.copy", "floor.two_copies", "floor.ring"];
        assert_eq!(
            names,
            [&["floor.cache_line", "floor.eventfd", "floor.eventfd.one_cpu"][..], &copies, &["floor.locked_add"]]
                .concat()
        );
    }

    #[test]
    fn each_target_names_a_case_of_its_row() {
        for row in rows(Path::Isthmus) {
            let named = row.target.iter().flat_map(|target| target.named_cases());
            for name in named {
                assert!(row.cases().any(|case| case.name() == name), "{}: {name}", row.name);
            }
        }
    }

    #[test]
    fn case_names_of_a_row_are_unique() {
        for row in rows(Path::Isthmus) {
            let mut names: Vec<_> = row.cases().map(|case| case.name()).collect();
            let all = names.len();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), all, "{}", row.name);
        }
    }

    #[test]
    fn all_cases_of_a_row_have_the_same_unit() {
        for row in rows(Path::Isthmus) {
            for beside in row.cases() {
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
        assert_eq!(chosen(&[]), Ok(17));
        assert!(chosen(&["local.rat"]).is_err_and(|error| error.contains("local.rate.8b")));
    }
}
