//! A program that does to a daemon and to other domains what no library does. Only tests run it.
//!
//! ```text
//! isthmus-hostile ATTACK [VICTIM]   does it, says what came of it, one fact a line, then `done`, and stays until its input ends
//! ```
//!
//! It speaks the control protocol by hand ([`raw`]); chance comes from `ISTHMUS_SEED`. Its facts are what it was answered: what
//! became of the daemon and of the others is for the test to see.

#![forbid(unsafe_code)]

mod control;
mod descriptors;
mod doorbells;
mod load;
mod memory;
mod noise;
mod raw;

use isthmus_testbed::SeededRandom;
use std::io::Read as _;
use std::process::ExitCode;

/// The outcome of an attack.
type Done = anyhow::Result<()>;

/// The victim of an attack, and its source of random numbers.
struct Attack {
    victim: String,
    chance: SeededRandom,
}

impl Attack {
    fn new(victim: Option<&String>) -> Self {
        let chance = SeededRandom::new();
        print_fact(&format!("seed {:#x}", chance.seed()));
        Self { victim: victim.cloned().unwrap_or_default(), chance }
    }

    /// Returns `count` random bytes.
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count.div_ceil(8)).flat_map(|_| self.chance.bits().to_le_bytes()).take(count).collect()
    }
}

/// A fact for the test.
fn print_fact(fact: &str) {
    println!("{fact}"); // Each line is flushed: standard output is line-buffered.
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mut attack = Attack::new(args.get(1));
    let outcome = match args.first().map(String::as_str) {
        Some("malformed-bytes") => noise::send_noise(&mut attack),
        Some("silent-connections") => noise::connect_silently(),
        Some("connection-flood") => noise::crowd(),
        Some("names") => control::names(),
        Some("out-of-order-messages") => control::send_out_of_order(&mut attack),
        Some("never-read") => control::stop_reading(),
        Some("query-flood") => control::flood_queries(),
        Some("channel-flood") => control::connect_to_all(&mut attack),
        Some("forged-tickets") => control::forge_tickets(&mut attack),
        Some("future-channels") => control::adopt_future_channels(),
        Some("wrong-descriptors") => descriptors::send_wrong_fds(&mut attack),
        Some("slow-close") => descriptors::keep_fds_in_flight(),
        Some("grants") => descriptors::grants(&mut attack),
        Some("resize-memory") => descriptors::shrink(&mut attack),
        Some("ring") => memory::ring(&mut attack),
        Some("channel") => memory::channel(&mut attack),
        Some("records") => memory::records(&mut attack),
        Some("ready-maps") => memory::ready_maps(&mut attack),
        Some("ready-map-flood") => memory::flood_ready_maps(&mut attack),
        Some("full-doorbells") => doorbells::fill(&mut attack),
        Some("descriptors-in-doorbells") => doorbells::pass_fds_in_doorbell(&mut attack),
        Some("connect-loop") => load::connect_without_end(),
        Some("request-flood") => load::flood_requests(),
        Some("hold-descriptors") => load::hold_descriptors(),
        Some("domain-crowd") => load::crowd(),
        Some("hold-reports") => load::hold_reports(),
        Some("peek") => memory::peek(&mut attack, args.get(2)),
        _ => Err(anyhow::anyhow!("unknown attack")),
    };
    if let Err(error) = outcome {
        eprintln!("isthmus-hostile: {error:#}");
        return ExitCode::FAILURE;
    }
    print_fact("done");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    ExitCode::SUCCESS
}
