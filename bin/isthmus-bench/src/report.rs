//! Output of results: JSON objects, one a line, for programs; a table and progress for people.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write, stderr, stdout};

use anyhow::{Context, Result};
use serde::{Serialize, Serializer};

use crate::case::{NoValue, Samples, Unit};
use crate::date::utc;
use crate::machine::Machine;
use crate::target::Target;

/// The first line of JSON: the run that the other lines are of.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RunHeader<'a> {
    /// The command line.
    command: String,
    /// The start of the run, UTC.
    date: String,
    machine: &'a Machine,
}

impl<'a> RunHeader<'a> {
    /// The run of this process.
    pub(crate) fn of(machine: &'a Machine) -> Self {
        let mut words: Vec<String> = std::env::args().collect();
        if let Some(program) = words.first_mut() {
            *program = program.rsplit('/').next().unwrap_or_default().to_owned(); // Not the folder that it lies in.
        }
        Self { command: words.join(" "), date: utc(std::time::SystemTime::now()), machine }
    }
}

/// One measured figure: the same fields for `figures` and for `baselines`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) name: String,
    /// The median over the runs; null if it could not be measured, and `why` has the reason.
    #[serde(serialize_with = "six_digits")]
    pub(crate) value: Option<f64>,
    pub(crate) unit: &'static str,
    /// The best peer of the run; null if the figure has none.
    pub(crate) baseline: Option<String>,
    #[serde(serialize_with = "six_digits")]
    pub(crate) baseline_value: Option<f64>,
    /// Value divided by the baseline's.
    #[serde(serialize_with = "six_digits")]
    pub(crate) ratio: Option<f64>,
    /// The row of the floor; absent if the figure has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) floor: Option<String>,
    #[serde(serialize_with = "six_digits", skip_serializing_if = "Option::is_none")]
    pub(crate) floor_value: Option<f64>,
    /// Value divided by the floor's.
    #[serde(serialize_with = "six_digits", skip_serializing_if = "Option::is_none")]
    pub(crate) floor_ratio: Option<f64>,
    /// The number of runs that gave a value.
    pub(crate) runs: usize,
    /// (largest - smallest) / median of the runs.
    #[serde(serialize_with = "six_digits")]
    pub(crate) spread: Option<f64>,
    #[serde(serialize_with = "six_digits")]
    pub(crate) baseline_spread: Option<f64>,
    /// CPU time of all sides for each message.
    #[serde(serialize_with = "six_digits")]
    pub(crate) cpu_ns_per_message: Option<f64>,
    /// The bounds on the value or its ratios. Nothing here compares with them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<Target>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) baseline_why: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) floor_why: Option<String>,
    /// Peers that are not the best one, and further cases, measured in the same turns.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) others: Vec<Other>,
    /// Each run's value, in order; those of the baseline were measured in between.
    pub(crate) values: Vec<f64>,
    pub(crate) baseline_values: Vec<f64>,
}

/// A further case.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Other {
    pub(crate) baseline: String,
    #[serde(serialize_with = "six_digits")]
    pub(crate) baseline_value: Option<f64>,
    #[serde(serialize_with = "six_digits")]
    pub(crate) ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
}

impl Figure {
    pub(crate) fn new(name: String, unit: Unit, samples: &Samples) -> Self {
        Self {
            name,
            value: samples.median(),
            unit: unit.name(),
            baseline: None,
            baseline_value: None,
            ratio: None,
            floor: None,
            floor_value: None,
            floor_ratio: None,
            runs: samples.values.len(),
            spread: samples.spread(),
            baseline_spread: None,
            cpu_ns_per_message: samples.cpu_ns_per_message(),
            target: None,
            why: why(samples),
            baseline_why: None,
            floor_why: None,
            others: Vec::new(),
            values: samples.values.clone(),
            baseline_values: Vec::new(),
        }
    }

    pub(crate) fn with_baseline(mut self, name: String, samples: &Samples) -> Self {
        self.baseline = Some(name);
        self.baseline_value = samples.median();
        self.baseline_spread = samples.spread();
        self.baseline_why = why(samples);
        self.baseline_values = samples.values.clone();
        self.ratio = ratio(self.value, self.baseline_value);
        self
    }

    /// Takes the best of some peers as the baseline; the first one if none has a value.
    pub(crate) fn with_peers<'s>(self, unit: Unit, peers: impl Iterator<Item = (String, &'s Samples)>) -> Self {
        let mut peers: Vec<_> = peers.collect();
        let worth = |value: f64| if unit.is_rate() { value } else { -value };
        let values = peers.iter().enumerate().filter_map(|(at, (_, samples))| Some((at, worth(samples.median()?))));
        // The first one of equals.
        let best = values.reduce(|best, next| if next.1 > best.1 { next } else { best }).map_or(0, |best| best.0);
        if peers.is_empty() {
            return self;
        }
        let (name, samples) = peers.remove(best);
        let figure = self.with_baseline(name, samples);
        peers.into_iter().fold(figure, |figure, (name, samples)| figure.with_other(name, samples))
    }

    pub(crate) fn with_floor(mut self, name: String, samples: &Samples) -> Self {
        self.floor = Some(name);
        self.floor_value = samples.median();
        self.floor_why = why(samples);
        self.floor_ratio = ratio(self.value, self.floor_value);
        self
    }

    pub(crate) fn with_other(mut self, name: String, samples: &Samples) -> Self {
        let (value, why) = (samples.median(), why(samples));
        self.others.push(Other { baseline: name, baseline_value: value, ratio: ratio(self.value, value), why });
        self
    }
}

/// Returns a ratio; `None` unless both are known and the second is not 0.
pub(crate) fn ratio(value: Option<f64>, baseline: Option<f64>) -> Option<f64> {
    let (value, baseline) = value.zip(baseline)?;
    (baseline != 0.0).then_some(value / baseline)
}

fn why(samples: &Samples) -> Option<String> {
    samples.no_value.as_ref().map(|trouble| match trouble {
        NoValue::Unavailable(why) => why.clone(),
        NoValue::Failed(why) => format!("failed: {why}"),
    })
}

/// Rounds to six digits, which is more than the measurements are exact to.
pub(crate) fn six_digits<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    let short = value.map(|value| format!("{value:.5e}").parse().unwrap_or(value));
    short.serialize(serializer)
}

/// The destination of results.
pub(crate) struct Output {
    json: Option<Box<dyn Write>>,
    table: bool,
}

impl Output {
    /// Writes the line of the run. `json` is a file, or `-` for standard output, which then has nothing else on it.
    pub(crate) fn new(json: Option<&str>, machine: &Machine) -> Result<Self> {
        let writer: Option<Box<dyn Write>> = match json {
            None => None,
            Some("-") => Some(Box::new(stdout())),
            Some(file) => {
                let file = File::create(file).with_context(|| format!("cannot write {file}"))?;
                Some(Box::new(BufWriter::new(file)))
            }
        };
        let mut output = Self { json: writer, table: json != Some("-") };
        output.line(&RunHeader::of(machine))?;
        Ok(output)
    }

    /// Writes one line of JSON now, so that an interrupted run leaves its results.
    pub(crate) fn line<T: Serialize>(&mut self, result: &T) -> Result<()> {
        let Some(writer) = &mut self.json else { return Ok(()) };
        let line = serde_json::to_string(result).context("cannot write a result as JSON")?;
        writeln!(writer, "{line}").and_then(|()| writer.flush()).context("cannot write the results")
    }

    /// Prints for people, unless standard output carries JSON.
    pub(crate) fn text(&self, text: &str) -> Result<()> {
        if !self.table {
            return Ok(());
        }
        writeln!(stdout(), "{text}").context("cannot print the results")
    }
}

/// One line on standard error that overwrites itself; silent if that is not a terminal.
pub(crate) fn progress(text: &str) {
    let mut stderr = stderr();
    if stderr.is_terminal() {
        // Progress that cannot be written is not needed.
        let _: io::Result<()> = write!(stderr, "\r\x1b[K{text}").and_then(|()| stderr.flush());
    }
}

/// Columns as wide as they need to be: the first to the left, the others to the right.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let head: Vec<String> = head.iter().map(ToString::to_string).collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.chain(head.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut lines = Vec::new();
    for row in std::iter::once(&head).chain(rows) {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        lines.push(cells.collect::<Vec<_>>().join("  ").trim_end().to_owned());
    }
    lines.join("\n")
}

/// Three digits or a dash.
pub(crate) fn number(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(0.0) => "0".to_owned(),
        Some(value) => {
            let decimals = (2 - value.abs().log10().floor() as i32).clamp(0, 4) as usize;
            format!("{value:.decimals$}")
        }
    }
}

/// The figures as a table. Peers that are not the best one and further cases stand below each, targets and reasons at the end.
pub(crate) fn figures_table(figures: &[Figure]) -> String {
    let mut rows = Vec::new();
    for figure in figures {
        let name = |name: &Option<String>| name.clone().unwrap_or_else(|| "-".to_owned());
        rows.push(vec![
            figure.name.clone(),
            number(figure.value),
            figure.unit.to_owned(),
            percent(figure.spread),
            number(figure.cpu_ns_per_message),
            name(&figure.floor),
            number(figure.floor_value),
            number(figure.floor_ratio),
            name(&figure.baseline),
            number(figure.baseline_value),
            number(figure.ratio),
        ]);
        for other in &figure.others {
            let mut cells = vec![String::new(); 8];
            cells.extend([other.baseline.clone(), number(other.baseline_value), number(other.ratio)]);
            rows.push(cells);
        }
    }
    let floor = ["floor", "its value", "ratio"];
    let head = [&["figure", "value", "unit", "spread", "cpu ns/msg"], &floor[..], &["baseline", "its value", "ratio"]];
    let mut text = table(&head.concat(), &rows);
    for figure in figures {
        if let Some(target) = &figure.target {
            text.push_str(&format!("\ntarget of {}: {target}", figure.name));
        }
    }
    for (name, why) in figures.iter().flat_map(notes) {
        text.push_str(&format!("\n{name}: {why}"));
    }
    text
}

fn notes(figure: &Figure) -> impl Iterator<Item = (&str, &str)> {
    let own = figure.why.as_deref().map(|why| (figure.name.as_str(), why));
    let baseline = figure.baseline.as_deref().zip(figure.baseline_why.as_deref());
    let floor = figure.floor.as_deref().zip(figure.floor_why.as_deref());
    let others = figure.others.iter().filter_map(|other| Some((other.baseline.as_str(), other.why.as_deref()?)));
    own.into_iter().chain(baseline).chain(floor).chain(others)
}

fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{:.0}%", value * 100.0))
}

#[cfg(test)]
mod tests;
