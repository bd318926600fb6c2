//! `isthmus reason`: the table of reasons, as the library and the daemon name them.

use anyhow::Result;
use isthmus_client::Reason;
use isthmus_control::schema::Explained;
use serde::Serialize;

use crate::output::{Ended, Lean, Misuse, Output, Table};

#[derive(Serialize)]
struct Reasons {
    reasons: Vec<Explained>,
}

#[derive(Serialize)]
struct One {
    reason: Explained,
}

pub(crate) fn list(output: Output) -> Result<Ended> {
    let reasons = Reasons { reasons: Reason::ALL.iter().copied().map(Explained::from).collect() };
    output.result("reasons", &reasons, || {
        let mut table = Table::new(&[
            ("code", Lean::Right),
            ("reason", Lean::Left),
            ("kind", Lean::Left),
            ("what happened", Lean::Left),
        ]);
        for row in &reasons.reasons {
            table.row(vec![row.code.to_string(), row.reason.clone(), row.kind.clone(), row.summary.clone()]);
        }
        table.text()
    })?;
    Ok(Ended::Done)
}

/// A reason by its name or its code.
pub(crate) fn show(output: Output, wanted: &str) -> Result<Ended> {
    let by_code = || wanted.parse().ok().and_then(Reason::from_code);
    let Some(reason) = Reason::from_name(wanted).or_else(by_code) else {
        return Err(Misuse(unknown(wanted)).into());
    };
    let one = One { reason: reason.into() };
    output.result("reason", &one, || {
        let Explained { reason, code, kind, summary, remedy } = &one.reason;
        format!("{reason} ({code}, {kind})\n  what happened: {summary}.\n  remedy: {remedy}\n")
    })?;
    Ok(Ended::Done)
}

/// Names that share a word with what was asked for.
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
    fn an_unknown_reason_brings_similar_ones() {
        let text = unknown("channel_timeout");
        assert!(text.contains("channel-refused") && text.contains("handshake-timeout"), "{text}");
        assert_eq!(unknown("x"), "there is no reason \"x\"; `isthmus reason list` shows all.");
    }
}
