//! The Markdown of the results: tables of numbers, and the reasons of rows without a value below them.

use std::collections::BTreeSet;
use std::fmt::Write;

use anyhow::Result;
use serde_json::Value;

use super::Results;
use super::row::{Compared, Row};

const HEAD: &str = "\
| row | value | best peer | its value | ratio | floor | its value | ratio | target | result |
| --- | ---: | --- | ---: | ---: | --- | ---: | ---: | --- | --- |
";

/// Returns the section of a file of rows: a table for each first part of their names.
pub(super) fn figures(title: &str, results: &Results) -> Result<String> {
    let rows = results.lines.iter().map(Row::parse).collect::<Result<Vec<Row>>>()?;
    let mut text = format!("## {title}\n\n{}", run(&results.run));
    for group in groups(&rows) {
        write!(text, "\n### `{group}`\n\n{HEAD}")?;
        let of_group = || rows.iter().filter(|row| group_of(row) == group);
        of_group().for_each(|row| text += &table_line(row));
        let absent: Vec<&Row> = of_group().filter(|row| row.value.is_none()).collect();
        if !absent.is_empty() {
            text.push('\n');
        }
        for row in absent {
            let why = row.why.as_deref().unwrap_or("no reason was recorded");
            writeln!(text, "- `{}`: {}", row.name, why.lines().next().unwrap_or_default())?;
        }
    }
    Ok(text)
}

/// The machine and the command of a run.
fn run(run: &Value) -> String {
    let machine = &run["machine"];
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let kind = if machine["virtual_machine"] == true { "virtual machine" } else { "machine" };
    let memory = word(&machine["memory_mib"]);
    let mut text = format!("- Machine: {} ({} CPUs, {memory} MiB, {kind})\n", word(&machine["cpu"]), machine["cpus"]);
    for (name, value) in [
        ("Kernel", &machine["kernel"]),
        ("Guests", &machine["guests"]),
        ("Pinned to CPUs", &machine["pinned"]),
        ("Two hosts", &machine["cpu_placement"]),
        ("Date", &run["date"]),
    ] {
        if !value.is_null() {
            let value = word(value);
            text += &format!("- {name}: {}\n", value.strip_prefix("of two hosts: ").unwrap_or(&value));
        }
    }
    text + &format!("- Command: `{}`\n", word(&run["command"]))
}

/// The first parts of names, in the order of the rows.
fn groups(rows: &[Row]) -> Vec<&str> {
    let mut groups = Vec::new();
    for group in rows.iter().map(group_of) {
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    groups
}

fn group_of(row: &Row) -> &str {
    row.name.split('.').next().unwrap_or_default()
}

fn table_line(row: &Row) -> String {
    let value = row.value.map_or_else(|| "-".to_owned(), |value| format!("{} {}", number(Some(value)), row.unit));
    let compared = |side: &Option<Compared>| match side {
        None => "- | - | -".to_owned(),
        Some(side) => format!("`{}` | {} | {}", side.name, number(side.value), number(side.ratio)),
    };
    let (peer, floor) = (compared(&row.peer), compared(&row.floor));
    format!("| `{}` | {value} | {peer} | {floor} | {} | {} |\n", row.name, row.target(), row.verdict())
}

/// Returns the section of latency and bandwidth by size: a table for each quantity and way to wait.
pub(super) fn points(results: &Results, picture: Option<&str>) -> Result<String> {
    let mut text = format!("## By size\n\n{}", run(&results.run));
    if let Some(picture) = picture {
        write!(text, "\n![Latency and bandwidth by size](performance/{picture})\n")?;
    }
    let waits: BTreeSet<&str> = results.lines.iter().filter_map(|point| point["wait"].as_str()).collect();
    for (quantity, title) in [("half_rtt_us", "Half a round trip, us"), ("bandwidth_gb_s", "One direction, GB/s")] {
        for wait in &waits {
            let of_wait: Vec<&Value> = results.lines.iter().filter(|point| point["wait"] == *wait).collect();
            write!(text, "\n### {title} (`{wait}`)\n\n{}", by_size(&of_wait, quantity))?;
        }
    }
    Ok(text)
}

/// A line for each size, a column for each path.
fn by_size(points: &[&Value], quantity: &str) -> String {
    let mut paths: Vec<&str> = Vec::new();
    for path in points.iter().filter_map(|point| point["path"].as_str()) {
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    let sizes: BTreeSet<u64> = points.iter().filter_map(|point| point["size"].as_u64()).collect();
    let mut text = format!("| bytes | {} |\n| ---: |{}\n", paths.join(" | "), " ---: |".repeat(paths.len()));
    for size in sizes {
        let at = |path: &&str| points.iter().find(|point| point["size"] == size && point["path"] == **path);
        let cells = paths.iter().map(|path| number(at(path).and_then(|point| point[quantity].as_f64())));
        text += &format!("| {size} | {} |\n", cells.collect::<Vec<_>>().join(" | "));
    }
    text
}

/// Three digits; a dash without a value.
fn number(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(0.0) => "0".to_owned(),
        Some(value) => {
            let decimals = (2 - value.abs().log10().floor() as i32).clamp(0, 4) as usize;
            format!("{value:.decimals$}")
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn results(lines: &[Value]) -> Results {
        let machine = json!({"cpu": "A CPU", "cpus": 2, "memory_mib": 8192, "kernel": "Linux 6.18"});
        Results { run: json!({"command": "bench", "date": "today", "machine": machine}), lines: lines.to_vec() }
    }

    #[test]
    fn rows_stand_in_tables_by_group() {
        let text = figures(
            "Title",
            &results(&[
                json!({"name": "local.half_rtt", "value": 0.319, "unit": "us", "baseline": "ucx", "baseline_value": 0.573,
                    "ratio": 0.5567, "floor": "floor.cache_line", "floor_value": 0.227, "floor_ratio": 1.405,
                    "target": {"vs": "floor", "op": "<=", "value": 2.0}}),
                json!({"name": "mx.match", "value": null, "unit": "us", "why": "not installed: a program"}),
                json!({"name": "local.idle", "value": 0.0, "unit": "ms", "target": {"vs": "value", "op": "<=", "value": 0.0}}),
            ]),
        );
        let text = text.unwrap();
        let row = "| `local.half_rtt` | 0.319 us | `ucx` | 0.573 | 0.557 | `floor.cache_line` | 0.227 | 1.41 | ≤ 2 × floor | met |";
        let idle = "| `local.idle` | 0 ms | - | - | - | - | - | - | ≤ 0 ms | met |";
        assert!(text.contains(&format!("### `local`\n\n{HEAD}{row}\n{idle}\n")), "{text}");
        assert!(text.ends_with(
            "| `mx.match` | - | - | - | - | - | - | - | - | - |\n\n- `mx.match`: not installed: a program\n"
        ));
        assert!(text.starts_with("## Title\n\n- Machine: A CPU (2 CPUs, 8192 MiB, machine)\n- Kernel: Linux 6.18\n"));
    }

    #[test]
    fn points_stand_by_size_and_path() {
        let point = |path: &str, size: u64, half: f64| json!({"path": path, "wait": "poll", "size": size, "half_rtt_us": half, "bandwidth_gb_s": null});
        let points = points(&results(&[point("b", 8, 1.5), point("a", 8, 20.0), point("b", 64, 1.75)]), Some("p.svg"));
        let text = points.unwrap();
        let table = "| bytes | b | a |\n| ---: | ---: | ---: |\n| 8 | 1.50 | 20.0 |\n| 64 | 1.75 | - |\n";
        assert!(text.contains(&format!("### Half a round trip, us (`poll`)\n\n{table}")), "{text}");
        assert!(text.contains("](performance/p.svg)"), "{text}");
    }

    #[test]
    fn numbers_have_three_digits() {
        let cells = [0.06312, 12.345, 12_345.0, 0.0].map(|value| number(Some(value)));
        assert_eq!(cells, ["0.0631", "12.3", "12345", "0"]);
        assert_eq!(number(None), "-");
    }
}
