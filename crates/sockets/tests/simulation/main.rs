//! Two ends with the engine, a model of the memory between them, and a model of the TCP connection below. Whatever the order of their
//! actions, programs are given what TCP gives.
//!
//! Every schedule comes from a seed, and is the same on every machine. `driver.rs` is the procedure that callers of the engine follow.
#![allow(clippy::unwrap_used, reason = "tests")]

mod actions;
mod driver;
mod kernel;
mod memory;
mod random;
mod scripts;
mod simulation;

use random::{Note, Random};
use scripts::Action::{self, *};
use simulation::{Counts, Pauses, Simulation};

/// The schedules of [`any_order_is_like_tcp`].
const SEEDS: u64 = 20_000;
const SEEDS_LONG: u64 = 1_000_000;

/// Returns `short`, or `long` in the long form of tests.
fn short_or_long<T>(short: T, long: T) -> T {
    if std::env::var_os("ISTHMUS_TEST_LONG").is_some() { long } else { short }
}

#[test]
fn any_order_is_like_tcp() {
    let seeds = short_or_long(SEEDS, SEEDS_LONG);
    let counts = run_seeds(0..seeds);
    println!("{counts:?}");
    let all = [
        counts.to_small,
        counts.to_large,
        counts.to_tcp,
        counts.seconds,
        counts.eofs,
        counts.resets,
        counts.deaths_in_calls,
    ];
    assert!(all.into_iter().all(|count| count > seeds / 20), "{counts:?}");
    assert!(counts.actions_in_pauses > seeds, "{counts:?}");
}

/// The ways back to TCP, and the ways to end a connection.
const BACK: [Action; 2] = [Keep(0), Please(0)];
const ENDINGS: [Action; 4] = [Shutdown(0), Close(0), Abort(0), Die(0)];

#[test]
fn all_orders_of_short_scripts_are_like_tcp() {
    let transfers = short_or_long(3, 5);
    let scripts = run_scripts(transfers, |back, ending| vec![Attach(0), Attach(1), back, ending]);
    // 35 places of 3 transfers among 7 actions, 64 transfers, 24 orders of events.
    assert!(scripts >= 8 * 35 * 64 * 24, "{scripts}");
}

#[test]
fn all_orders_with_a_half_closed_end_are_like_tcp() {
    run_scripts(short_or_long(2, 3), |back, ending| vec![Attach(0), Attach(1), back, Shutdown(1), ending]);
    run_scripts(short_or_long(3, 4), |_, ending| vec![Attach(0), Attach(1), Shutdown(0), ending]);
}

#[test]
fn all_orders_with_a_second_upgrade_are_like_tcp() {
    run_scripts(short_or_long(2, 3), |back, ending| vec![Attach(0), Attach(1), back, Release(0), ending]);
    run_scripts(1, |back, ending| vec![Attach(0), Attach(1), back, Release(0), Shutdown(0), ending]);
}

fn run_scripts(transfers: usize, events: impl Fn(Action, Action) -> Vec<Action>) -> u64 {
    let mut simulation = Simulation::new();
    let choices = BACK.into_iter().flat_map(|back| ENDINGS.map(|ending| events(back, ending)));
    choices.map(|events| scripts::run_all(&mut simulation, &events, transfers)).sum()
}

fn run_seeds(seeds: std::ops::Range<u64>) -> Counts {
    let mut simulation = Simulation::new();
    for seed in seeds {
        let _note = Note(("seed", seed));
        run_seed(&mut simulation, seed);
    }
    simulation.counts
}

fn run_seed(simulation: &mut Simulation, seed: u64) {
    let mut random = Random::new(seed);
    let queue_bytes = random.choose(&[200, 5000, 20_000, 100_000]);
    let start = |random: &mut Random| {
        let wrap = random.below(4) << 32;
        wrap.saturating_sub(random.choose(&[0, 3, 10_000, 300_000]))
    };
    let starts = [start(&mut random), start(&mut random)];
    let death = random.choose(&[0, 0, 2000]);
    let leave = random.choose(&[50_000, 200_000, 900_000]);
    let pauses = Pauses { action: random.choose(&[0, 50_000, 300_000]), death, leave };
    simulation.restart(random.next(), queue_bytes, starts, pauses);
    let bias = random.choose(&[200_000, 500_000, 800_000]);
    for _ in 0..random.choose(&[20, 100, 400]) {
        let end = usize::from(random.chance(bias));
        actions::act(simulation, end);
    }
    simulation.finish();
}
