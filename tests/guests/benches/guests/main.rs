//! `make bench-guests`: messages between guests of QEMU and of Xen by their windows, beside the same programs between whole daemons behind
//! cards of the guests, and beside the kernel's TCP and ICMP by the same cards. All in one run, on emulated processors: ratios tell, times
//! do not.
//!
//! ```text
//!   lab ──── a Site (guests, their host, another host) and a Probe (a bare window)
//!    ├─ task     one measurement: which way, who, what          turns  the same again and again, in turns
//!    ├─ rows     latency, one direction, the other host, coming and going
//!    ├─ sizes    all sizes: a plot like Xen2MX's figures 10 and 11
//!    └─ crowd    1, 2, … pairs of guests at once: a plot like its figures 13 and 17
//!   xen ──── a XenMachine: domain 0 with a bridge, two guests; the same but for the other host and the crowd
//! ```
//!
//! Into `OUT/guests.jsonl` (rows `guest.qemu.*`, as `isthmus-bench figures` writes them), `OUT/guests-sizes.jsonl` (a row for each size) and
//! two SVG pictures; rows `guest.xen.*` into `OUT/guests-xen.jsonl`, `OUT/guests-xen-sizes.jsonl` and one picture.

#![forbid(unsafe_code)]

mod crowd;
mod lab;
mod rows;
mod sizes;
mod task;
mod xen;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use clap::Parser;
use isthmus_bench::sheet::Sheet;
use isthmus_guests::{Kit, XenKit};

use lab::{Lab, Pace};
use xen::XenLab;

/// Whose guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Platform {
    Qemu,
    Xen,
}

/// Measures messages between guests beside bridged ones.
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
    /// Only guests of this hypervisor
    #[arg(long, value_enum)]
    only: Option<Platform>,
    /// Processors of the machine with Xen, which its domains share
    #[arg(long, default_value_t = 1)]
    xen_processors: u32,
    /// What cargo says to programs of this kind
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    fs::create_dir_all(&args.out).with_context(|| format!("cannot make {}", args.out.display()))?;
    let pace = Pace::new(args.runs, args.ms);
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

fn qemu(out: &Path, pace: Pace, pairs: u32) -> Result<()> {
    let kit = Kit::find().map_err(|why| anyhow!(why))?.eager();
    let pairs = pairs.min(lab::pairs_max()?);
    let file = |name: &str| out.join(name).to_string_lossy().into_owned();
    let mut sheet = Sheet::new(&file("guests.jsonl"), kit.describe())?;
    println!("{}", sheet.machine());
    let mut lab = Lab::start(&kit, pairs.max(1), pace).map_err(|why| anyhow!(why))?;
    rows::latency(&mut lab, &mut sheet)?;
    rows::one_direction(&mut lab, &mut sheet)?;
    rows::registration(&mut lab, &mut sheet)?;
    rows::another_host(&mut lab, &mut sheet)?;
    rows::coming(&mut lab.site, pace, "guest.qemu", &mut sheet)?;
    let mut by_size = Sheet::new(&file("guests-sizes.jsonl"), kit.describe())?;
    let plot = sizes::sweep(&mut lab.site, pace, "guest.qemu", &mut by_size)?;
    fs::write(file("guests.svg"), plot).context("cannot write the plot")?;
    println!("\n{}", by_size.table());
    if pairs > 0 {
        let plot = crowd::grow(&mut lab, &kit, pairs, &mut sheet)?;
        fs::write(file("guests-pairs.svg"), plot).context("cannot write the plot")?;
    }
    println!("\n{}\n\n{}", sheet.machine(), sheet.table());
    println!("\nWritten: {}, guests-sizes.jsonl, guests.svg and guests-pairs.svg beside it", file("guests.jsonl"));
    Ok(())
}

fn xen(out: &Path, pace: Pace, kit: &XenKit) -> Result<()> {
    let file = |name: &str| out.join(name).to_string_lossy().into_owned();
    let mut sheet = Sheet::new(&file("guests-xen.jsonl"), kit.describe())?;
    println!("{}", sheet.machine());
    let mut lab = XenLab::start(kit, pace);
    xen::latency(&mut lab, &mut sheet)?;
    xen::one_direction(&mut lab, &mut sheet)?;
    rows::coming(lab.guests(), pace, "guest.xen", &mut sheet)?;
    let mut by_size = Sheet::new(&file("guests-xen-sizes.jsonl"), kit.describe())?;
    let plot = sizes::sweep(lab.guests(), pace, "guest.xen", &mut by_size)?;
    fs::write(file("guests-xen.svg"), plot).context("cannot write the plot")?;
    println!("\n{}\n\n{}\n\n{}", by_size.table(), sheet.machine(), sheet.table());
    println!("\nWritten: {}, guests-xen-sizes.jsonl and guests-xen.svg beside it", file("guests-xen.jsonl"));
    Ok(())
}
