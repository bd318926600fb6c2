//! `isthmus reason`: the table of reasons of the library and the daemon.

use anyhow::Result;
use isthmus_client::Reason;
use isthmus_report::ReasonRow;
use serde::Serialize;

use crate::output::{Align, Outcome, Output, Table, UsageError};

#[derive(Serialize)]
struct Reasons {
    reasons: Vec<ReasonRow>,
}

#[derive(Serialize)]
struct One {
    reason: ReasonRow,
}

pub(crate) fn list(output: Output) -> Result<Outcome> {
    let reasons = Reasons { reasons: Reason::ALL.iter().copied().map(ReasonRow::from).collect() };
    output.result("reasons", &reasons, || {
        let mut table = Table::new(&[
            ("code", Align::Right),
            ("reason", Align::Left),
            ("kind", Align::Left),
            ("summary", Align::Left),
        ]);
        for row in &reasons.reasons {
            table.row(vec![row.code.to_string(), row.reason.clone(), row.kind.clone(), row.summary.clone()]);
        }
        table.text()
    })?;
    Ok(Outcome::Done)
}

/// Shows a reason, found by its name or its code.
pub(crate) fn show(output: Output, wanted: &str) -> Result<Outcome> {
    let by_code = || wanted.parse().ok().and_then(Reason::from_code);
    let Some(reason) = Reason::from_name(wanted).or_else(by_code) else {
        return Err(UsageError(unknown(wanted)).into());
    };
    let one = One { reason: reason.into() };
    output.result("reason", &one, || {
        let ReasonRow { reason, code, kind, summary, remedy } = &one.reason;
        format!("{reason} ({code}, {kind})\n  summary: {summary}.\n  remedy: {remedy}\n")
    })?;
    Ok(Outcome::Done)
}

/// Describes an unknown reason, with the names that share a word with it.
fn unknown(wanted: &str) -> String {
    let words: Vec<&str> = wanted.split(['-', '_', ' ']).filter(|word| word.len() > 2).collect();
    let similar = |reason: &&Reason| reason.name().split('-').any(|part| words.contains(&part));
    let names: Vec<&str> = Reason::ALL.iter().filter(similar).map(|reason| reason.name()).collect();
    let hint = if names.is_empty() { String::new() } else { format!(" Similar: {}.", names.join(", ")) };
    format!("there is no reason {wanted:?}; `isthmus reason list` shows all.{hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_about_an_unknown_reason_lists_similar_ones() {
        let text = unknown("channel_timeout");
        assert!(text.contains("channel-refused") && text.contains("handshake-timeout"), "{text}");
        assert_eq!(unknown("x"), "there is no reason \"x\"; `isthmus reason list` shows all.");
    }
}
