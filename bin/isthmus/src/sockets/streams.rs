//! `isthmus stream list`: the daemon's report about streams.

use std::path::PathBuf;

use anyhow::Result;
use isthmus_client::Topic;
use isthmus_report::{StreamEndRow, StreamsReport};

use crate::daemon::{ask, show};
use crate::output::{Align, Outcome, Output, Table, bytes, duration, hidden};

pub(super) fn list(output: Output, socket: Option<PathBuf>) -> Result<Outcome> {
    show(output, "streams", &ask(socket, Topic::Streams, &[])?, text)
}

/// Formats a line for each direction of each stream, those of an earlier daemon last, then the counts.
fn text(report: &StreamsReport) -> String {
    let mut table = Table::new(&[
        ("stream", Align::Left),
        ("from", Align::Left),
        ("address", Align::Left),
        ("to", Align::Left),
        ("address", Align::Left),
        ("user", Align::Right),
        ("age", Align::Right),
        ("state", Align::Left),
        ("path", Align::Left),
        ("shared", Align::Right),
        ("tcp", Align::Right),
        ("switches", Align::Right),
    ]);
    for stream in &report.streams {
        for (from, to) in [(&stream.connector, &stream.acceptor), (&stream.acceptor, &stream.connector)] {
            table.row(vec![
                stream.id.clone(),
                program(from),
                from.address.clone(),
                program(to),
                to.address.clone(),
                from.uid.to_string(),
                duration(stream.age_s),
                or_dash(from.state.clone()),
                or_dash(from.path.clone()),
                or_dash(from.shared_bytes.map(bytes)),
                or_dash(from.tcp_bytes.map(bytes)),
                or_dash(from.switches.map(|count| count.to_string())),
            ]);
        }
    }
    let kept = report.sockets.iter().flatten().filter(|socket| socket.state == "kept");
    for socket in kept {
        let program = socket.pid.map_or_else(|| socket.program.clone(), |pid| format!("{} ({pid})", socket.program));
        let (stream, to, peer) = (or_dash(None), or_dash(None), or_dash(socket.peer_address.clone()));
        let mut row = vec![stream, program, socket.address.clone(), to, peer, socket.uid.to_string()];
        row.extend([duration(socket.age_s), socket.state.clone()]);
        row.extend((0..4).map(|_| or_dash(None)));
        table.row(row);
    }
    format!("{}{}{}", table.text(), hidden(report.hidden), summary(report))
}

fn program(end: &StreamEndRow) -> String {
    end.pid.map_or_else(|| end.program.clone(), |pid| format!("{} ({pid})", end.program))
}

fn or_dash(cell: Option<String>) -> String {
    cell.unwrap_or_else(|| "-".to_owned())
}

/// Formats the counts of sockets without a stream, and of streams that have ended: one to three lines.
fn summary(report: &StreamsReport) -> String {
    if !report.enabled {
        return "streams are disabled: sockets.enabled is false\n".to_owned();
    }
    let StreamsReport { programs, listening, waiting, paired, .. } = report;
    let counts =
        format!("programs {programs}, listening {listening}, waiting {waiting}, streams since the start {paired}\n");
    let refused: Vec<String> =
        report.refused.iter().map(|refused| format!("{} {}", refused.reason, refused.count)).collect();
    let refused = if refused.is_empty() { String::new() } else { format!("refused: {}\n", refused.join(", ")) };
    counts + &ended(report) + &refused
}

/// Formats the sum of streams that have ended; nothing if there is none.
fn ended(report: &StreamsReport) -> String {
    match &report.ended {
        Some(ended) if ended.streams > 0 => format!(
            "streams that have ended: {}, with {} by shared memory and {} by TCP\n",
            ended.streams,
            bytes(ended.shared_bytes),
            bytes(ended.tcp_bytes)
        ),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::daemon::read;

    #[test]
    fn both_directions_of_a_stream_are_printed() {
        let end = |pid: Option<i32>, program: &str, address: &str, path: &str, shared: u64| {
            json!({
                "pid": pid, "uid": 1000, "program": program, "address": address, "state": "attached", "path": path,
                "shared_bytes": shared, "tcp_bytes": 32_768, "read_bytes": shared, "switches": 1, "sleeps": 7,
            })
        };
        let unknown = json!({ "pid": null, "uid": 1000, "program": "nginx", "address": "10.0.0.2:80" });
        let stream = |id: &str, connector: Value, acceptor: Value| json!({ "id": id, "age_s": 61, "connector": connector, "acceptor": acceptor });
        let streams = [
            stream(
                "0x100000001",
                end(Some(7), "curl", "10.0.0.1:40000", "small", 900),
                end(Some(81), "nginx", "10.0.0.2:80", "large", 5 << 30),
            ),
            stream("0x100000002", unknown.clone(), unknown),
        ];
        let kept = |state: &str| {
            json!({
                "state": state, "pid": 9, "uid": 1000, "program": "redis-server", "inode": 5, "address": "10.0.0.1:6379",
                "peer_address": "10.0.0.3:50000", "age_s": 3, "reason": "",
            })
        };
        let report = json!({
            "schema": 1, "sockets": [kept("refused"), kept("kept")], "enabled": true, "programs": 2, "waiting": 1, "listening": 3, "paired": 4,
            "refused": [{ "reason": "stream-peer-missing", "kind": "fallback", "count": 5 }], "streams": streams,
            "ended": { "streams": 3, "shared_bytes": 5 << 20, "tcp_bytes": 700 },
        });
        insta::assert_snapshot!("streams", text(&read(&report).expect("a report")));
    }
}
