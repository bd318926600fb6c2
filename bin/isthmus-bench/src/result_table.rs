//! Figures that another program measures, in the form of `isthmus-bench figures`: lines of JSON, a table, plots.
//!
//! ```no_run
//! use isthmus_bench::result_table::{Row, Runs, ResultTable, Unit};
//!
//! # fn main() -> anyhow::Result<()> {
//! let mut table = ResultTable::new("out/ferries.jsonl", "two ferries".to_owned())?;
//! let row = Row::new("ferry.half_rtt.8b", Unit::Microseconds, Runs::of(&[3.0, 2.0, 4.0]));
//! table.take(row.with_baseline("raft", Runs::of(&[9.0, 10.0])))?;
//! println!("{}", table.table());
//! # Ok(())
//! # }
//! ```

use anyhow::Result;

pub use crate::case::Unit;
pub use crate::plot::{Chart, Line};

pub use crate::target::{Target, Versus};

use crate::case::{NoValue, Samples};
use crate::machine::Machine;
use crate::plot;
use crate::report::{Figure, Output, figures_table};

/// The results of the runs of one measurement.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Runs(Samples);

impl Runs {
    /// These values, in order.
    pub fn of(values: &[f64]) -> Self {
        Self(Samples { values: values.to_vec(), ..Samples::default() })
    }

    /// No results, for this reason.
    pub fn absent(why: impl Into<String>) -> Self {
        Self(Samples { no_value: Some(NoValue::Unavailable(why.into())), ..Samples::default() })
    }

    /// Adds the result of one more run: a value, or the reason of its failure.
    pub fn push(&mut self, result: Result<f64, String>) {
        match result {
            Ok(value) => self.0.values.push(value),
            Err(why) => self.0.no_value = Some(NoValue::Failed(why)),
        }
    }

    /// The median.
    pub fn median(&self) -> Option<f64> {
        self.0.median()
    }
}

/// A figure with the cases that it is compared with.
#[derive(Clone, Debug)]
pub struct Row {
    name: String,
    unit: Unit,
    target: Option<Target>,
    runs: Runs,
    floor: Option<(String, Runs)>,
    /// The baseline, and others.
    beside: Vec<(String, Runs)>,
}

impl Row {
    /// A figure that stands alone so far.
    pub fn new(name: impl Into<String>, unit: Unit, runs: Runs) -> Self {
        Self { name: name.into(), unit, target: None, runs, floor: None, beside: Vec::new() }
    }

    /// Adds a target. Nothing here compares with it.
    pub fn with_target(mut self, target: Target) -> Self {
        self.target = Some(target);
        self
    }

    /// Adds the smallest program of the same structure, measured in the same turns.
    pub fn with_floor(mut self, name: impl Into<String>, runs: Runs) -> Self {
        self.floor = Some((name.into(), runs));
        self
    }

    /// Adds a case that ran in the same turns. The first one is the baseline; further ones stand beside it.
    pub fn with_baseline(mut self, name: impl Into<String>, runs: Runs) -> Self {
        self.beside.push((name.into(), runs));
        self
    }

    fn figure(&self) -> Figure {
        let figure = Figure::new(self.name.clone(), self.unit, &self.runs.0);
        let figure = Figure { target: self.target.clone(), ..figure };
        let figure = match &self.floor {
            Some((name, runs)) => figure.with_floor(name.clone(), &runs.0),
            None => figure,
        };
        let mut beside = self.beside.iter();
        let figure = match beside.next() {
            Some((name, runs)) => figure.with_baseline(name.clone(), &runs.0),
            None => figure,
        };
        beside.fold(figure, |figure, (name, runs)| figure.with_other(name.clone(), &runs.0))
    }
}

/// Rows and the machine that they were measured on.
pub struct ResultTable {
    output: Output,
    machine: Machine,
    rows: Vec<Row>,
}

impl ResultTable {
    /// Writes to this file; `guests` describes the guests of the measured programs.
    pub fn new(json: &str, guests: String) -> Result<Self> {
        let machine = Machine::for_guests(guests);
        Ok(Self { output: Output::new(Some(json), &machine)?, machine, rows: Vec::new() })
    }

    /// Writes a row at once, so that an interrupted run leaves its results.
    pub fn take(&mut self, row: Row) -> Result<()> {
        self.output.line(&row.figure())?;
        self.rows.push(row);
        Ok(())
    }

    /// The machine, in one paragraph.
    pub fn machine(&self) -> String {
        self.machine.describe()
    }

    /// All rows, for people.
    pub fn table(&self) -> String {
        let figures: Vec<Figure> = self.rows.iter().map(Row::figure).collect();
        figures_table(&figures)
    }

    /// Two charts as a picture, with the machine below.
    pub fn plot(&self, charts: [&Chart; 2]) -> Result<String> {
        plot::side_by_side(charts, &self.machine())
    }
}

impl std::fmt::Debug for ResultTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResultTable").field("machine", &self.machine).field("rows", &self.rows).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_lines_with_ratios_and_a_table() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rows.jsonl");
        let mut result_table = ResultTable::new(file.to_str().unwrap(), "two ferries".to_owned()).unwrap();
        let row = Row::new("ferry", Unit::Microseconds, Runs::of(&[3.0, 2.0, 4.0]))
            .with_target(Target::at_most(0.5, Versus::Peer))
            .with_floor("swimming", Runs::of(&[2.5]));
        let mut bridge = Runs::absent("there is none");
        let row = row.with_baseline("raft", Runs::of(&[12.0])).with_baseline("bridge", bridge.clone());
        bridge.push(Ok(6.0));
        bridge.push(Err("it broke".to_owned()));
        let row = row.with_baseline("old bridge", bridge);
        result_table.take(row).unwrap();
        let text = std::fs::read_to_string(file).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let [run, line] = &lines[..] else { panic!("two lines: {text}") };
        assert_eq!(run["machine"]["guests"], "two ferries");
        assert_eq!((&line["floor"], &line["floor_ratio"]), (&"swimming".into(), &1.2.into()));
        assert_eq!((&line["name"], &line["value"], &line["ratio"]), (&"ferry".into(), &3.0.into(), &0.25.into()));
        assert_eq!((&line["runs"], &line["target"]["op"]), (&3.into(), &"<=".into()));
        assert_eq!(line["others"][0]["why"], "there is none");
        assert_eq!((&line["others"][1]["ratio"], &line["others"][1]["why"]), (&0.5.into(), &"failed: it broke".into()));
        let table = result_table.table();
        assert!(table.contains("raft") && table.contains("bridge: there is none"), "{table}");
    }

    #[test]
    fn chart_skips_points_without_a_logarithm() {
        let folder = tempfile::tempdir().unwrap();
        let result_table = ResultTable::new(folder.path().join("x").to_str().unwrap(), String::new()).unwrap();
        let line = |points: &[(f64, f64)]| Line {
            label: "a ferry".to_owned(),
            colour: 9,
            is_thick: true,
            points: points.to_vec(),
        };
        let chart = |points| Chart { title: "up".to_owned(), across: "across", lines: vec![line(points)] };
        let drawn = result_table.plot([&chart(&[(1.0, 2.0), (2.0, 0.0)]), &chart(&[(0.0, 1.0)])]).unwrap();
        assert!(drawn.contains("a ferry") && drawn.contains("up: nothing was measured"), "{drawn}");
        assert_eq!(drawn.matches("<circle").count(), 1);
    }
}
