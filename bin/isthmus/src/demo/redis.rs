//! Redis over TCP and over sockets: both programs as they are packaged. Higher is better.

use std::path::Path;

use anyhow::Result;
use isthmus_bench::demo::{RedisRate, RedisRates, Session};
use isthmus_client::{Options, Topic};
use isthmus_report::StreamsReport;

use super::table::{distinct, shown};
use crate::daemon::{Daemon, read};
use crate::output::{Align, Table};
use crate::run::installed_folder;
use crate::sockets::LIBRARY;

const TITLE: &str = "redis-benchmark, GET with 50 clients; server and benchmark have the library that `isthmus run --with sockets` preloads, or not";

/// Measures both. A rate over sockets counts only if the daemon has made streams.
pub(super) fn measure(session: &Session, socket: &Path, step: impl FnMut(&str)) -> RedisRates {
    if let Err(error) = installed_folder(LIBRARY) {
        let rate = |name: &str| RedisRate {
            name: name.to_owned(),
            requests_per_s: None,
            why: Some(format!("not installed: {error}")),
            failed: false,
        };
        return RedisRates { tcp: rate("redis.tcp.get"), sockets: rate("redis.sockets.get") };
    }
    let mut rates = session.redis(step);
    if rates.sockets.requests_per_s.is_some() {
        match streams(socket) {
            Ok(0) => without_value(&mut rates.sockets, "no connection became a stream".to_owned()),
            Ok(_) => {}
            Err(error) => without_value(&mut rates.sockets, crate::output::causes(&error)),
        }
    }
    rates
}

/// Returns the number of streams that the daemon has made since its start.
fn streams(socket: &Path) -> Result<u64> {
    let options = Options { socket: Some(socket.to_owned()), no_autostart: true, ..Options::default() };
    let report: StreamsReport = read(&Daemon::connect(&options)?.ask(Topic::Streams, &[])?)?;
    Ok(report.paired)
}

fn without_value(rate: &mut RedisRate, why: String) {
    (rate.requests_per_s, rate.why, rate.failed) = (None, Some(why), true);
}

/// Returns the table, or the reasons why there is none.
pub(super) fn text(rates: &RedisRates) -> String {
    let both = [("Isthmus", &rates.sockets), ("TCP", &rates.tcp)];
    let whys = distinct(both.iter().filter_map(|(_, rate)| rate.why.as_deref()));
    if both.iter().all(|(_, rate)| rate.requests_per_s.is_none()) {
        return format!("Redis over sockets: not measured: {}\n\n", whys.join("; "));
    }
    let mut table = Table::new(&[("", Align::Left), ("1000 requests/s", Align::Right)]);
    for (name, rate) in both {
        table.row(vec![name.to_owned(), shown(rate.requests_per_s.map(|rate| rate / 1000.0))]);
    }
    let missing: String = whys.iter().map(|why| format!("redis-benchmark: {why}\n")).collect();
    format!("{TITLE}\n{}{missing}\n", table.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(outcome: Result<f64, &str>) -> RedisRate {
        let (requests_per_s, why) = (outcome.ok(), outcome.err().map(str::to_owned));
        RedisRate { name: String::new(), requests_per_s, why, failed: false }
    }

    #[test]
    fn shows_both_rates_or_the_reason() {
        let measured = RedisRates { tcp: rate(Ok(83_400.0)), sockets: rate(Ok(185_000.0)) };
        let shown = text(&measured);
        let rows: Vec<Vec<&str>> = shown.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[..2], [["Isthmus", "185"], ["TCP", "83.4"]]);
        let why = || rate(Err("not installed: redis-benchmark (package redis-tools)"));
        let expected = "Redis over sockets: not measured: not installed: redis-benchmark (package redis-tools)\n\n";
        assert_eq!(text(&RedisRates { tcp: why(), sockets: why() }), expected);
    }
}
