//! `make bench-guests`: messages between guests of QEMU by their windows, beside the same programs between whole daemons behind cards of
//! the guests, and beside the kernel's TCP and ICMP by the same cards. All in one run, on emulated processors: ratios tell, times do not.
//!
//! ```text
//!   lab ──── a Site (guests, their host, another host) and a Probe (a bare window)
//!    ├─ task     one measurement: which way, who, what          turns  the same again and again, in turns
//!    ├─ rows     latency, one direction, the other host, coming and going
//!    ├─ sizes    all sizes: a plot like Xen2MX's figures 10 and 11
//!    └─ crowd    1, 2, … pairs of guests at once: a plot like its figures 13 and 17
//! ```
//!
//! Into `OUT/guests.jsonl` (rows `guest.qemu.*`, as `isthmus-bench figures` writes them), `OUT/guests-sizes.jsonl` (a row for each size) and
//! two SVG pictures.

#![forbid(unsafe_code)]

mod crowd;
mod lab;
mod rows;
mod sizes;
mod task;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use clap::Parser;
use isthmus_bench::sheet::Sheet;
use isthmus_guests::Kit;

use lab::Lab;

/// Measures messages between guests of QEMU beside bridged ones.
#[derive(Debug, Parser)]
struct Args {
    /// Where rows and plots go
    #[arg(long, default_value = "out")]
    out: PathBuf,
    /// How often each measurement is made
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Milliseconds of the part of a measurement that counts
    #[arg(long, default_value_t = 1000)]
    ms: u32,
    /// Pairs of guests at the end, if there is memory for them; 0 leaves that part out
    #[arg(long, default_value_t = 4)]
    pairs: u32,
    /// What cargo says to programs of this kind
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let kit = Kit::find().map_err(|why| anyhow!(why))?.eager();
    let pairs = args.pairs.min(lab::pairs_max()?);
    fs::create_dir_all(&args.out).with_context(|| format!("cannot make {}", args.out.display()))?;
    let file = |name: &str| args.out.join(name).to_string_lossy().into_owned();
    let mut sheet = Sheet::new(&file("guests.jsonl"), kit.describe())?;
    println!("{}", sheet.machine());
    let mut lab = Lab::start(&kit, pairs.max(1), args.runs, args.ms).map_err(|why| anyhow!(why))?;
    rows::latency(&mut lab, &mut sheet)?;
    rows::one_direction(&mut lab, &mut sheet)?;
    rows::another_host(&mut lab, &mut sheet)?;
    rows::coming(&mut lab, &mut sheet)?;
    let mut by_size = Sheet::new(&file("guests-sizes.jsonl"), kit.describe())?;
    fs::write(file("guests.svg"), sizes::sweep(&mut lab, &mut by_size)?).context("cannot write the plot")?;
    println!("\n{}", by_size.table());
    if pairs > 0 {
        let plot = crowd::grow(&mut lab, &kit, pairs, &mut sheet)?;
        fs::write(file("guests-pairs.svg"), plot).context("cannot write the plot")?;
    }
    println!("\n{}\n\n{}", sheet.machine(), sheet.table());
    println!("\nWritten: {}, guests-sizes.jsonl, guests.svg and guests-pairs.svg beside it", file("guests.jsonl"));
    Ok(())
}
