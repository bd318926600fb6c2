//! The machines of all measurements: guests on their host, another host, and a guest with a window only.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use isthmus_bench::result_table::Runs;
use isthmus_guests_tests::{Extra, Guest, GuestKit, GuestLab, WindowProbe};
use isthmus_mx_tests::build;

use crate::task::{MessagePath, Task, Wait, ping};

/// The maximum memory of a guest, including that of QEMU itself.
const GUEST_MIB: u64 = 640;

/// The number of rounds of a bare doorbell and of a bare word.
const BELLS: u32 = 300;
const WORDS: u32 = 10_000;

/// The number of ICMP echoes of one value.
pub(crate) const PINGS: u32 = 200;

/// The number and the duration of measurements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BenchPlan {
    pub(crate) runs: usize,
    /// The measured part of a measurement, in milliseconds.
    pub(crate) ms: u32,
    begun: Instant,
}

impl BenchPlan {
    pub(crate) fn new(runs: usize, ms: u32) -> Self {
        Self { runs, ms, begun: Instant::now() }
    }

    /// Prints the current step and the time.
    pub(crate) fn report_progress(&self, what: &str) {
        eprintln!("[{:>4.0} s] {what}", self.begun.elapsed().as_secs_f64());
    }

    /// Measures all cases in turns, `runs` times, and returns the values of each.
    pub(crate) fn measure_in_turns<C: Copy, const N: usize>(
        &self,
        what: &str,
        cases: [C; N],
        mut measure: impl FnMut(C) -> Result<f64, String>,
    ) -> [Runs; N] {
        let mut all = std::array::from_fn(|_| Runs::default());
        for run in 1..=self.runs {
            self.report_progress(&format!("{what}: run {run} of {}", self.runs));
            for (runs, case) in all.iter_mut().zip(cases) {
                runs.push(measure(case));
            }
        }
        all
    }
}

/// The machines of guests of QEMU.
#[derive(Debug)]
pub(crate) struct BenchLab {
    pub(crate) site: GuestLab,
    pub(crate) pace: BenchPlan,
    probe: WindowProbe,
}

/// A measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Case<Bare> {
    /// Half a round trip in µs, or GB/s.
    Task(Task),
    /// Half the average ICMP echo of 8 bytes from guest0 to guest1, in µs.
    Echo,
    /// A primitive of the hypervisor.
    Bare(Bare),
}

impl<Bare> Case<Bare> {
    /// 8 bytes from guest0 to guest1.
    pub(crate) fn latency(way: MessagePath, wait: Wait) -> Self {
        Self::Task(Task::latency(way, wait))
    }

    /// 1 MiB from guest0 to guest1.
    pub(crate) fn bandwidth(way: MessagePath) -> Self {
        Self::Task(Task::bandwidth(way))
    }
}

/// A primitive of QEMU.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bare {
    /// A doorbell from a guest to its host and one back, both sides sleeping, in µs.
    Doorbell,
    /// Half the round trip of a word in a window, both sides polling, in µs.
    Word,
}

/// Returns the number of pairs of guests that fit into the available memory.
pub(crate) fn pairs_max() -> Result<u32> {
    let text = fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let available = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:")?.split_whitespace().next()?.parse::<u64>().ok());
    let mib = available.context("no MemAvailable in /proc/meminfo")? / 1024;
    Ok(u32::try_from(mib / (2 * GUEST_MIB)).unwrap_or(u32::MAX))
}

impl BenchLab {
    /// Starts two guests, with room for `pairs` pairs. The error says what is missing.
    pub(crate) fn start(kit: &GuestKit, pairs: u32, pace: BenchPlan) -> Result<Self, String> {
        let probe = WindowProbe::start(kit)?;
        let regions = build::compiled(&Path::new(env!("CARGO_MANIFEST_DIR")).join("guest/regions.c"));
        let extra = Extra { programs: vec![env!("CARGO_BIN_EXE_guest_tcp").into(), regions], ..Extra::default() };
        let site = GuestLab::start_monitored(kit, 2 * pairs, 2, &extra)?;
        let mut bench_lab = Self { site, pace, probe };
        bench_lab.open_channels(0);
        Ok(bench_lab)
    }

    /// Opens a pair window for each pair of guests, from the guest `from` on. Starts the daemons in these guests, and waits until all boards
    /// know each other.
    pub(crate) fn open_channels(&mut self, from: usize) {
        self.site.guests[from..].chunks_mut(2).for_each(open_channel);
        for guest in &mut self.site.guests[from..] {
            guest.run("by isthmus && daemon");
        }
        let boards: Vec<String> = self.site.guests.iter().map(Guest::board).collect();
        for guest in &mut self.site.guests {
            let own = guest.board();
            for board in boards.iter().map(String::as_str).filter(|board| *board != own).chain(["far:0"]) {
                guest.run(&format!("by isthmus; until isthmus peer list | grep -q '{board}'; do usleep 20000; done"));
            }
        }
    }

    /// Measures all cases in turns.
    pub(crate) fn measure_in_turns<const N: usize>(&mut self, what: &str, cases: [Case<Bare>; N]) -> [Runs; N] {
        let pace = self.pace;
        pace.measure_in_turns(what, cases, |case| self.measure(case))
    }

    fn measure(&mut self, case: Case<Bare>) -> Result<f64, String> {
        match case {
            Case::Task(task) => task.run(&mut self.site, self.pace.ms),
            Case::Echo => ping(&mut self.site, PINGS),
            Case::Bare(Bare::Doorbell) => Ok(self.probe.doorbells(BELLS).as_secs_f64() * 1e6),
            Case::Bare(Bare::Word) => Ok(self.probe.words(WORDS).as_secs_f64() * 1e6 / 2.0),
        }
    }
}

/// Sends from a program of one guest to one of the other until they have a pair window.
fn open_channel(pair: &mut [Guest]) {
    let [one, other] = pair else { return };
    other.run("by window");
    let endpoint = other.serve("mx_stream -w");
    one.start_command(&format!("by window; mx_stream -w -r {endpoint} -s 65536 -N 10000000"));
    other.run("until test -e /dev/isthmus1; do usleep 20000; done; kill $served_pid");
    other.start_command("served");
    other.finish_command();
    one.finish_command(); // The sender ends with an error, because the receiver has ended.
}
