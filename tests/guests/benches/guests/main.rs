//! `make bench-guests`: messages between guests of QEMU and of Xen by their windows. The baselines are the same programs with a card and a
//! daemon in each guest, and the kernel's TCP and ICMP by the same cards. All run on emulated processors, so only ratios are meaningful.
//!
//! ```text
//!   bench_lab ── a GuestLab (guests, their host, another host) and a WindowProbe (a bare window)
//!    ├─ task     one measurement: path, client, server, kind
//!    ├─ rows     latency, one direction, the other host, attaching
//!    ├─ sizes    all sizes: a plot like Xen2MX's figures 10 and 11
//!    └─ scaling  1, 2, … pairs of guests at once: a plot like its figures 13 and 17
//!   xen ──────── a XenMachine: domain 0 with a bridge, two guests; no other host and no scaling
//! ```
//!
//! Into `OUT/guests.jsonl` (rows `guest.qemu.*`, as `isthmus-bench figures` writes them), `OUT/guests-sizes.jsonl` (a row for each size) and
//! two SVG pictures; rows `guest.xen.*` into `OUT/guests-xen.jsonl`, `OUT/guests-xen-sizes.jsonl` and one picture.

#![forbid(unsafe_code)]

mod bench_lab;
mod rows;
mod scaling;
mod sizes;
mod task;
mod xen;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use clap::Parser;
use isthmus_bench::result_table::ResultTable;
use isthmus_guests_tests::{GuestKit, XenKit};

use bench_lab::{BenchLab, BenchPlan};
use xen::XenLab;

/// The hypervisor of the guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Platform {
    Qemu,
    Xen,
}

/// Measures messages between guests beside bridged ones.
#[derive(Debug, Parser)]
struct Args {
    /// Folder for rows and plots
    #[arg(long, default_value = "out")]
    out: PathBuf,
    /// Number of runs of each measurement
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Measured part of a measurement, in milliseconds
    #[arg(long, default_value_t = 1000)]
    ms: u32,
    /// Pairs of guests at the end, if there is memory for them; 0 leaves that part out
    #[arg(long, default_value_t = 4)]
    pairs: u32,
    /// Only guests of this hypervisor
    #[arg(long, value_enum)]
    only: Option<Platform>,
    /// Processors of the machine with Xen, which its domains share
    #[arg(long, default_value_t = 1)]
    xen_processors: u32,
    /// Argument that cargo passes to benchmarks
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    fs::create_dir_all(&args.out).with_context(|| format!("cannot create {}", args.out.display()))?;
    let pace = BenchPlan::new(args.runs, args.ms);
    if args.only != Some(Platform::Xen) {
        qemu(&args.out, pace, args.pairs)?;
    }
    if args.only == Some(Platform::Qemu) {
        return Ok(());
    }
    match XenKit::find() {
        Ok(kit) => {
            xen(&args.out, pace, &kit.with(vec![env!("CARGO_BIN_EXE_guest_tcp").into()]).eager(args.xen_processors))
        }
        Err(why) if args.only.is_none() => {
            println!("skipped: guests of Xen: {why}");
            Ok(())
        }
        Err(why) => Err(anyhow!(why)),
    }
}

fn qemu(out: &Path, pace: BenchPlan, pairs: u32) -> Result<()> {
    let kit = GuestKit::find().map_err(|why| anyhow!(why))?.eager();
    let pairs = pairs.min(bench_lab::pairs_max()?);
    let file = |name: &str| out.join(name).to_string_lossy().into_owned();
    let mut result_table = ResultTable::new(&file("guests.jsonl"), kit.describe())?;
    println!("{}", result_table.machine());
    let mut bench_lab = BenchLab::start(&kit, pairs.max(1), pace).map_err(|why| anyhow!(why))?;
    rows::latency(&mut bench_lab, &mut result_table)?;
    rows::one_direction(&mut bench_lab, &mut result_table)?;
    rows::registration(&mut bench_lab, &mut result_table)?;
    rows::another_host(&mut bench_lab, &mut result_table)?;
    rows::attach_times(&mut bench_lab.site, pace, "guest.qemu", &mut result_table)?;
    let mut by_size = ResultTable::new(&file("guests-sizes.jsonl"), kit.describe())?;
    let plot = sizes::sweep(&mut bench_lab.site, pace, "guest.qemu", &mut by_size)?;
    fs::write(file("guests.svg"), plot).context("cannot write the plot")?;
    println!("\n{}", by_size.table());
    if pairs > 0 {
        let plot = scaling::measure_scaling(&mut bench_lab, &kit, pairs, &mut result_table)?;
        fs::write(file("guests-pairs.svg"), plot).context("cannot write the plot")?;
    }
    println!("\n{}\n\n{}", result_table.machine(), result_table.table());
    println!("\nWritten: {}, guests-sizes.jsonl, guests.svg and guests-pairs.svg beside it", file("guests.jsonl"));
    Ok(())
}

fn xen(out: &Path, pace: BenchPlan, kit: &XenKit) -> Result<()> {
    let file = |name: &str| out.join(name).to_string_lossy().into_owned();
    let mut result_table = ResultTable::new(&file("guests-xen.jsonl"), kit.describe())?;
    println!("{}", result_table.machine());
    let mut bench_lab = XenLab::start(kit, pace);
    xen::latency(&mut bench_lab, &mut result_table)?;
    xen::one_direction(&mut bench_lab, &mut result_table)?;
    rows::attach_times(bench_lab.guests(), pace, "guest.xen", &mut result_table)?;
    let mut by_size = ResultTable::new(&file("guests-xen-sizes.jsonl"), kit.describe())?;
    let plot = sizes::sweep(bench_lab.guests(), pace, "guest.xen", &mut by_size)?;
    fs::write(file("guests-xen.svg"), plot).context("cannot write the plot")?;
    println!("\n{}\n\n{}\n\n{}", by_size.table(), result_table.machine(), result_table.table());
    println!("\nWritten: {}, guests-xen-sizes.jsonl and guests-xen.svg beside it", file("guests-xen.jsonl"));
    Ok(())
}
