//! `isthmus channel list`: pairs of domains, with the path between them and its traffic.

use std::path::PathBuf;

use anyhow::Result;
use isthmus_client::Topic;
use isthmus_report::{Channels, DirectionRow, DomainName, PairRow, ReasonRow};
use serde_json::Value;

use super::{ask, read, show};
use crate::output::{Align, Outcome, Output, Table, bytes, duration, hidden};

pub(crate) fn list(output: Output, socket: Option<PathBuf>) -> Result<Outcome> {
    show(output, "channels", &ask(socket, Topic::Channels, &[])?, table)
}

/// Formats a report.
pub(crate) fn text(answer: &Value) -> Result<String> {
    Ok(table(&read(answer)?))
}

/// Returns whether any pair has an open channel with messages in both directions.
pub(crate) fn has_channel(answer: &Value) -> bool {
    let both_sent = |directions: &[DirectionRow; 2]| directions.iter().all(|direction| direction.messages > 0);
    let talks = |pair: &PairRow| {
        pair.channel.as_ref().is_some_and(|channel| channel.directions.as_ref().is_some_and(both_sent))
    };
    read::<Channels>(answer).is_ok_and(|channels| channels.pairs.iter().any(talks))
}

fn table(answer: &Channels) -> String {
    let mut table = Table::new(&[
        ("domain a", Align::Left),
        ("domain b", Align::Left),
        ("path", Align::Left),
        ("reason", Align::Left),
        ("channel", Align::Left),
        ("age", Align::Right),
        ("memory", Align::Right),
        ("messages", Align::Right),
        ("bytes", Align::Right),
        ("wakeups", Align::Right),
        ("fragmented", Align::Left),
        ("assisted", Align::Left),
    ]);
    for pair in &answer.pairs {
        table.row(row(pair));
    }
    table.text() + &hidden(answer.hidden)
}

fn row(pair: &PairRow) -> Vec<String> {
    let dash = || "-".to_owned();
    let channel = pair.channel.as_ref();
    let both = |value: fn(&DirectionRow) -> String| {
        let directions = channel.and_then(|channel| channel.directions.as_ref());
        directions.map_or_else(dash, |directions| in_pair_order(pair, directions).map(value).join(" / "))
    };
    let state = channel
        .filter(|channel| channel.state != "open")
        .map_or_else(String::new, |channel| format!(" ({})", channel.state));
    vec![
        name(&pair.a),
        name(&pair.b),
        pair.path.clone() + &state,
        pair.reason.as_ref().map_or_else(dash, |reason| reason.reason.clone()),
        channel.map_or_else(dash, |channel| channel.id.clone()),
        channel.map_or_else(dash, |channel| duration(channel.age_s)),
        channel.and_then(|channel| channel.memory_bytes).map_or_else(dash, bytes),
        both(|direction| direction.messages.to_string()),
        both(|direction| bytes(direction.bytes)),
        both(|direction| direction.wakeups.to_string()),
        both(|direction| reason(direction.fragmented.as_ref())),
        both(|direction| reason(direction.assisted.as_ref())),
    ]
}

fn reason(explained: Option<&ReasonRow>) -> String {
    explained.map_or_else(|| "-".to_owned(), |explained| explained.reason.clone())
}

fn name(domain: &DomainName) -> String {
    format!("d{} {}", domain.id, domain.name)
}

/// Returns the direction on which the first of the pair sends, then the other one.
pub(super) fn in_pair_order<'a>(pair: &PairRow, [one, other]: &'a [DirectionRow; 2]) -> [&'a DirectionRow; 2] {
    if one.from == pair.a.id { [one, other] } else { [other, one] }
}
