//! `isthmus overlay monitor`: frames and bytes by source and destination address.
//!
//! The daemon counts frames by source and destination all the time. The command reads the counts twice, and prints totals with the rates
//! between both.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use isthmus_client::Topic;
use isthmus_report::overlay::{OverlayMonitor, OverlayMonitorRow};
use serde::Serialize;

use super::parts::NetworkChoice;
use crate::daemon::{Daemon, options, read};
use crate::output::{Align, Outcome, Output, Table, bytes};

/// The address that stands for all groups.
const GROUPS: &str = "ff:ff:ff:ff:ff:ff";

#[derive(Args)]
pub(crate) struct MonitorArgs {
    #[command(flatten)]
    choice: NetworkChoice,
    /// The interval of the rates, in seconds.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
}

/// The forwarded frames, with the rates of the interval.
#[derive(Serialize)]
struct Monitored {
    schema: u32,
    seconds: f64,
    networks: Vec<MonitoredNetwork>,
}

#[derive(Serialize)]
struct MonitoredNetwork {
    network: String,
    pairs: Vec<MonitoredPair>,
    other_frames: u64,
    other_bytes: u64,
}

#[derive(Serialize)]
struct MonitoredPair {
    source: String,
    destination: String,
    frames: u64,
    bytes: u64,
    frames_per_s: f64,
    bytes_per_s: f64,
}

pub(super) fn monitor(output: Output, socket: Option<PathBuf>, args: &MonitorArgs) -> Result<Outcome> {
    let mut daemon = Daemon::connect(&options(socket)?)?;
    let mut report = || -> Result<OverlayMonitor> {
        let mut answer = daemon.ask(Topic::Overlay, &["monitor"])?;
        args.choice.choose(&mut answer, "network")?;
        read(&answer)
    };
    let before = report()?;
    std::thread::sleep(Duration::from_secs(args.seconds));
    let monitored = compare(&before, &report()?);
    output.result("overlay_monitor", &monitored, || text(&monitored))?;
    Ok(Outcome::Done)
}

/// The counts of a report, with the rates since an earlier one.
fn compare(before: &OverlayMonitor, after: &OverlayMonitor) -> Monitored {
    let seconds = after.time_ms.saturating_sub(before.time_ms).max(1) as f64 / 1000.0;
    let network = |row: &OverlayMonitorRow| {
        let earlier = before.networks.iter().find(|other| other.network == row.network);
        let earlier = earlier.map(|row| row.pairs.as_slice()).unwrap_or_default();
        let earlier: HashMap<_, _> =
            earlier.iter().map(|pair| ((&pair.source, &pair.destination), (pair.frames, pair.bytes))).collect();
        let pairs = row.pairs.iter().map(|pair| {
            // The counts of a pair begin anew if it had lost its place.
            let known = earlier.get(&(&pair.source, &pair.destination)).filter(|(frames, _)| *frames <= pair.frames);
            let (frames, bytes) = known.copied().unwrap_or_default();
            MonitoredPair {
                source: pair.source.clone(),
                destination: pair.destination.clone(),
                frames: pair.frames,
                bytes: pair.bytes,
                frames_per_s: (pair.frames - frames) as f64 / seconds,
                bytes_per_s: pair.bytes.saturating_sub(bytes) as f64 / seconds,
            }
        });
        let mut pairs: Vec<_> = pairs.collect();
        pairs.sort_by(|a, b| b.bytes_per_s.total_cmp(&a.bytes_per_s)); // Stable: those of one rate stay in the order of the report.
        let (other_frames, other_bytes) = (row.other_frames, row.other_bytes);
        MonitoredNetwork { network: row.network.clone(), pairs, other_frames, other_bytes }
    };
    Monitored { schema: after.schema, seconds, networks: after.networks.iter().map(network).collect() }
}

fn text(monitored: &Monitored) -> String {
    let mut table = Table::new(&[
        ("network", Align::Left),
        ("from", Align::Left),
        ("to", Align::Left),
        ("frames/s", Align::Right),
        ("bytes/s", Align::Right),
        ("frames", Align::Right),
        ("bytes", Align::Right),
    ]);
    for network in &monitored.networks {
        for pair in &network.pairs {
            let to = if pair.destination == GROUPS { "groups" } else { &pair.destination };
            table.row(vec![
                network.network.clone(),
                pair.source.clone(),
                to.to_owned(),
                format!("{:.0}", pair.frames_per_s),
                bytes(pair.bytes_per_s as u64),
                pair.frames.to_string(),
                bytes(pair.bytes),
            ]);
        }
        if network.other_frames > 0 {
            let cells = ["others", "-", "-", "-"].map(str::to_owned);
            let counts = [network.other_frames.to_string(), bytes(network.other_bytes)];
            table.row([network.network.clone()].into_iter().chain(cells).chain(counts).collect());
        }
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use isthmus_report::overlay::OverlayPairRow;

    use super::*;

    fn report(time_ms: u64, pairs: &[(&str, &str, u64, u64)]) -> OverlayMonitor {
        let pair = |&(source, destination, frames, bytes): &(&str, &str, u64, u64)| OverlayPairRow {
            source: source.to_owned(),
            destination: destination.to_owned(),
            frames,
            bytes,
        };
        let pairs = pairs.iter().map(pair).collect();
        let network = OverlayMonitorRow { network: "lan".to_owned(), pairs, other_frames: 9, other_bytes: 900 };
        OverlayMonitor { schema: 1, time_ms, networks: vec![network] }
    }

    #[test]
    fn rates_are_those_of_the_interval_and_the_busiest_pair_comes_first() {
        let (a, b, c) = ("02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03");
        let before = report(5000, &[(a, b, 1000, 1_000_000), (c, GROUPS, 10, 600)]);
        let after = report(7000, &[(a, b, 1000, 1_000_000), (b, a, 20, 30_000), (c, GROUPS, 4, 240)]);
        let monitored = compare(&before, &after);
        insta::assert_snapshot!("monitor", text(&monitored));
        let rates: Vec<_> =
            monitored.networks[0].pairs.iter().map(|pair| (pair.frames_per_s, pair.bytes_per_s)).collect();
        assert_eq!(rates, [(10.0, 15_000.0), (2.0, 120.0), (0.0, 0.0)]);
    }
}
