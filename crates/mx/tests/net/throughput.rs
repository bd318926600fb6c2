//! The throughput over a bad wire in virtual time: equal on every machine, and compared with `throughput.txt`.
//!
//! One host sends to another with 8 sends in flight, at 100 MB/s, with a delay of half a millisecond in each direction.

use crate::host::HostConfig;
use crate::simulation::Simulation;
use crate::wire::{NetConditions, Switch};
use isthmus_mx::StatusCode;
use isthmus_mx::net::EndpointTuning;
use isthmus_mx::wire::{Dialect, Sizes};
use std::fmt::Write as _;

const UNDERWAY: usize = 8;

/// Returns the throughput in KB/s for messages of one length, from one host to another.
fn throughput(kind: HostConfig, length: u32, conditions: NetConditions) -> u64 {
    let mut simulation = Simulation::new(2, kind, conditions, 7);
    simulation.connect_all();
    simulation.run_until_quiet(60_000_000);
    let start = simulation.now;
    let messages = (4_000_000 / u64::from(length)).clamp(32, 1000);
    many(&mut simulation, 0, 1, messages, length);
    messages * u64::from(length) * 1000 / simulation.now.since_us(start)
}

fn many(simulation: &mut Simulation, from: usize, to: usize, messages: u64, length: u32) {
    let start = simulation.now;
    for _ in 0..messages {
        while simulation.hosts[from].sending >= UNDERWAY {
            assert!(simulation.step(start.after_us(600_000_000)));
        }
        simulation.send_whole(from, to, length);
    }
    simulation.run_until_quiet(600_000_000);
    assert!(simulation.hosts[from].sends.values().all(|sending| sending.ended.unwrap().code == StatusCode::Success));
}

fn open_mx(mtu: u32) -> HostConfig {
    HostConfig {
        dialect: Dialect::OPEN_MX,
        sizes: Sizes::open_mx(mtu).unwrap(),
        tuning: EndpointTuning::default(),
        narrow: false,
    }
}

/// Checks a switch with lines of 1 Gbit/s, `queue_bytes` of queue, and eight times the rate on the links of the hosts.
fn on_a_slow_line(mtu: u32, queue_bytes: u64, percent: u64) {
    let switch = Switch { bytes_per_ms: 125_000, queue_bytes };
    let mut simulation =
        Simulation::new(2, open_mx(mtu), NetConditions { switch: Some(switch), ..NetConditions::FINE }, 7);
    simulation.connect_all();
    simulation.run_until_quiet(60_000_000);
    let (start, bytes) = (simulation.now, 256_u64 << 20);
    many(&mut simulation, 0, 1, bytes >> 20, 1 << 20);
    let could_ms = bytes / switch.bytes_per_ms;
    let took_ms = simulation.now.since_us(start) / 1000;
    assert!(100 * could_ms >= percent * took_ms, "MTU {mtu}, {queue_bytes} bytes: {took_ms} ms, not {could_ms}");
    // Frames that the queue drops cost other senders through the same switch their bandwidth.
    let (frames, again) = (bytes / u64::from(mtu), simulation.hosts[1].endpoint.traffic().rerequested);
    assert!(16 * again <= frames, "MTU {mtu}, {queue_bytes} bytes: {again} of {frames} frames were asked for again");
}

#[test]
fn slow_line_is_saturated_without_filling_its_queue() {
    on_a_slow_line(9000, 4 << 20, 98);
    on_a_slow_line(9000, 2 << 20, 98);
    on_a_slow_line(9000, 1 << 20, 97);
    on_a_slow_line(1500, 1 << 20, 95);
    on_a_slow_line(9000, 512 << 10, 90); // The queue holds less than two blocks.
}

#[test]
fn throughput_matches_the_recorded_table() {
    let mut table = String::from("KB/s            loss    0 %    0.1 %      1 %     10 %\n");
    let mx = HostConfig { dialect: Dialect::Mx, sizes: Sizes::MX, tuning: EndpointTuning::default(), narrow: false };
    for (name, kind) in [("mx", mx), ("open 1500", open_mx(1500)), ("open 9000", open_mx(9000))] {
        for length in [8, 128, 4096, 32768, 262_144, 1 << 20] {
            write!(table, "{name:10} {length:8}").unwrap();
            for loss_per_million in [0, 1_000, 10_000, 100_000] {
                let conditions =
                    NetConditions { loss_per_million, delay_us: 500, bytes_per_ms: 100_000, ..NetConditions::FINE };
                write!(table, " {:8}", throughput(kind, length, conditions)).unwrap();
            }
            table.push('\n');
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/net/throughput.txt");
    if std::env::var_os("ISTHMUS_BLESS").is_some() {
        std::fs::write(path, &table).unwrap();
    }
    assert_eq!(table, std::fs::read_to_string(path).unwrap_or_default(), "with ISTHMUS_BLESS=1 the new table is kept");
}
