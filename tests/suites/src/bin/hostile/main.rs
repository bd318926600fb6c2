//! A program that does to a daemon and to other domains what no library does. Only tests run it.
//!
//! ```text
//! isthmus-hostile DEED [VICTIM]     does it, says what came of it, one fact a line, then `done`, and stays until its input ends
//! ```
//!
//! It speaks the control protocol by hand ([`raw`]); chance comes from `ISTHMUS_SEED`. Its facts are what it was answered: what
//! became of the daemon and of the others is for the test to see.

#![forbid(unsafe_code)]

mod control;
mod descriptors;
mod doorbells;
mod memory;
mod noise;
mod raw;

use isthmus_testbed::Schedule;
use std::io::Read as _;
use std::process::ExitCode;

/// What a deed can break off with.
type Done = anyhow::Result<()>;

/// Whom a deed is done to, and by what chance.
struct Deed {
    victim: String,
    chance: Schedule,
}

impl Deed {
    fn new(victim: Option<&String>) -> Self {
        let chance = Schedule::new();
        say(&format!("seed {:#x}", chance.seed()));
        Self { victim: victim.cloned().unwrap_or_default(), chance }
    }

    /// So many bytes, any.
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count.div_ceil(8)).flat_map(|_| self.chance.bits().to_le_bytes()).take(count).collect()
    }
}

/// A fact for the test.
fn say(fact: &str) {
    println!("{fact}"); // Each line is flushed: standard output is line-buffered.
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mut deed = Deed::new(args.get(1));
    let outcome = match args.first().map(String::as_str) {
        Some("noise") => noise::noise(&mut deed),
        Some("mute") => noise::mute(),
        Some("crowd") => noise::crowd(),
        Some("names") => control::names(),
        Some("turns") => control::turns(&mut deed),
        Some("deaf") => control::deaf(),
        Some("inquisitive") => control::inquisitive(),
        Some("everybody") => control::everybody(&mut deed),
        Some("forge") => control::forge(&mut deed),
        Some("future") => control::future(),
        Some("descriptors") => descriptors::wrong(&mut deed),
        Some("linger") => descriptors::linger(),
        Some("grants") => descriptors::grants(&mut deed),
        Some("shrink") => descriptors::shrink(&mut deed),
        Some("ring") => memory::ring(&mut deed),
        Some("channel") => memory::channel(&mut deed),
        Some("records") => memory::records(&mut deed),
        Some("boards") => memory::boards(&mut deed),
        Some("bells") => doorbells::fill(&mut deed),
        Some("parcels") => doorbells::parcels(&mut deed),
        Some("peek") => memory::peek(&mut deed, args.get(2)),
        _ => Err(anyhow::anyhow!("what deed?")),
    };
    if let Err(error) = outcome {
        eprintln!("isthmus-hostile: {error:#}");
        return ExitCode::FAILURE;
    }
    say("done");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    ExitCode::SUCCESS
}
