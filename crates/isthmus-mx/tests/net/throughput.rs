//! What a bad wire leaves of the throughput, in virtual time: the same on every machine, and held against `throughput.txt`.
//!
//! 8 sends under way from one host to another, 100 MB/s, half a millisecond each way.

use crate::host::Kind;
use crate::wire::Weather;
use crate::world::World;
use isthmus_mx::StatusCode;
use isthmus_mx::net::Tuning;
use isthmus_mx::wire::{Dialect, Sizes};
use std::fmt::Write as _;

const UNDERWAY: usize = 8;

/// KB/s of messages of one length.
fn throughput(kind: Kind, length: u32, loss_per_million: u64) -> u64 {
    let weather = Weather { loss_per_million, delay_us: 500, bytes_per_ms: 100_000, ..Weather::FINE };
    let mut world = World::new(2, kind, weather, 7);
    world.connect_all();
    world.run_until_quiet(60_000_000);
    let start = world.now;
    let messages = (4_000_000 / u64::from(length)).clamp(32, 1000);
    for _ in 0..messages {
        loop {
            if world.hosts[0].sending < UNDERWAY {
                break;
            }
            assert!(world.step(start.after_us(600_000_000)));
        }
        world.send_whole(0, 1, length);
    }
    world.run_until_quiet(600_000_000);
    assert!(world.hosts[0].sends.values().all(|sending| sending.ended.unwrap().code == StatusCode::Success));
    messages * u64::from(length) * 1000 / world.now.since_us(start)
}

#[test]
fn throughput_by_size_and_loss_is_what_it_was() {
    let mut table = String::from("KB/s            loss    0 %    0.1 %      1 %     10 %\n");
    let open = |mtu| Kind {
        dialect: Dialect::OPEN_MX,
        sizes: Sizes::open_mx(mtu).unwrap(),
        tuning: Tuning::default(),
        narrow: false,
    };
    let mx = Kind { dialect: Dialect::Mx, sizes: Sizes::MX, tuning: Tuning::default(), narrow: false };
    for (name, kind) in [("mx", mx), ("open 1500", open(1500)), ("open 9000", open(9000))] {
        for length in [8, 128, 4096, 32768, 262_144, 1 << 20] {
            write!(table, "{name:10} {length:8}").unwrap();
            for loss in [0, 1_000, 10_000, 100_000] {
                write!(table, " {:8}", throughput(kind, length, loss)).unwrap();
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
