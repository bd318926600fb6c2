//! `cargo xtask tidy words`: the counts as a table, or the places of one package.

use std::collections::BTreeMap;

use anyhow::{Result, bail};

use super::{Counts, Tally, tallies};
use crate::tree::Tree;

/// The first line of the table.
const TITLES: &str = "  pronouns beginnings    phrases    retired per 1,000  of docs  package or file\n";

/// Prints the counts of all packages and documents, or every place of the one with this name.
pub(in crate::tidy) fn print(tree: &Tree, unit: Option<&str>) -> Result<()> {
    let tallies = tallies(tree);
    let Some(unit) = unit else {
        print!("{}", table(&tallies));
        return Ok(());
    };
    let Some(tally) = tallies.get(unit) else { bail!("no package or document is called {unit}") };
    for line in occurrences(tally) {
        println!("{line}");
    }
    Ok(())
}

/// One line for each place, by file and line.
pub(super) fn occurrences(tally: &Tally) -> Vec<String> {
    let line = |place: &super::Place| format!("{}:{}: {}: {}", place.path, place.line, place.class, place.word);
    tally.places.iter().map(line).collect()
}

/// The table: four counts, pronouns for 1,000 words of comments and Markdown, percentage of doc comments that begin
/// wrongly; a total at the end.
pub(super) fn table(tallies: &BTreeMap<String, Tally>) -> String {
    let mut text = TITLES.to_owned();
    let mut total = (Counts::default(), 0, 0, 0);
    for (unit, tally) in tallies {
        let counts = tally.counts();
        text += &row(unit, counts, tally.pronouns_in_words, tally.words, tally.docs);
        total.0 = std::array::from_fn(|at| total.0[at] + counts[at]);
        total.1 += tally.pronouns_in_words;
        total.2 += tally.words;
        total.3 += tally.docs;
    }
    text + &row("total", total.0, total.1, total.2, total.3)
}

fn row(unit: &str, counts: Counts, pronouns: usize, words: usize, docs: usize) -> String {
    let [pronouns_all, beginnings, phrases, retired] = counts;
    let rate = tenths(pronouns * 1000, words);
    let share = tenths(beginnings * 100, docs);
    format!("{pronouns_all:>10} {beginnings:>10} {phrases:>10} {retired:>10} {rate:>9} {share:>7}%  {unit}\n")
}

/// A quotient with one decimal place, rounded; 0 if there is nothing to divide by.
fn tenths(of: usize, by: usize) -> String {
    let tenths = (of * 20 + by).checked_div(by * 2).unwrap_or_default();
    format!("{}.{}", tenths / 10, tenths % 10)
}
