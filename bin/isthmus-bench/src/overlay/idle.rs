//! The cost of interfaces and edges without frames: CPU time of the daemon and its helper.

use std::fmt::Write as _;
use std::fs;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use isthmus_netns::{Host, Testbed, Wire};

use super::lan::{quiet, run};
use crate::case::{Case, Reading, Unit};
use crate::cpu::cpu_ns_during;
use crate::daemon::{self, PrivateDaemon};
use crate::pair::Bench;
use crate::programs::wait_until;
use crate::temp_folder::TempFolder;

const MINUTE_MS: u64 = 60_000;
/// The time of one run: five runs, which is the usual number, take a minute in all.
const RUN_MS: u64 = 12_000;
const QUICK_MS: u64 = 2_000;
/// Until all has gone to sleep.
const SETTLE_MS: u64 = 1_000;
/// The time until all interfaces exist.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The CPU time of a daemon with one network, scaled to a minute.
#[derive(Clone, Copy, Debug)]
pub(super) struct Idle {
    pub(super) interfaces: usize,
    pub(super) edges: usize,
}

impl Case for Idle {
    fn name(&self) -> String {
        format!("overlay.idle_cpu.{}interfaces.{}edges", self.interfaces, self.edges)
    }

    fn unit(&self) -> Unit {
        Unit::Milliseconds
    }

    /// CPU time is read from outside while all sleep, so that start and end do not count.
    fn run(&self, bench: &Bench) -> Result<Reading> {
        if let Some(why) = daemon::unavailable_reason() {
            return Ok(Reading::Unavailable(why));
        }
        let mut bed = match Testbed::new() {
            Ok(bed) => bed,
            Err(why) => return Ok(Reading::Unavailable(why.to_string())),
        };
        let (host, other) = (bed.host("a")?, bed.host("b")?);
        bed.link(&host, &other, &Wire::default())?;
        quiet(&host)?;
        let folder = TempFolder::make()?;
        let config = self.config(&folder)?;
        let plan = daemon::Plan {
            config: &config,
            host: Some(&host),
            cpus: &bench.host_cpus.daemons[0],
            ..Default::default()
        };
        let daemon = PrivateDaemon::start_as(folder.path(), &plan)?;
        self.wait(&host)?;
        sleep(Duration::from_millis(SETTLE_MS));
        let processes = with_children(daemon.process())?;
        let ms = if bench.quick { QUICK_MS } else { RUN_MS };
        let used = cpu_ns_during(&processes, || sleep(Duration::from_millis(ms)))?;
        Ok(Reading::value(used as f64 / 1e6 * MINUTE_MS as f64 / ms as f64))
    }
}

impl Idle {
    fn config(&self, folder: &TempFolder) -> Result<String> {
        let mut config = format!("[overlay]\nhelper = \"{}/helper.sock\"\n", folder.path().display());
        let interfaces: Vec<_> = (0..self.interfaces).map(|number| format!("{{ name = \"idle{number}\" }}")).collect();
        // The other host has none of these addresses: edges send nothing before a frame comes.
        let edges: Vec<_> = (0..self.edges).map(|number| format!("{{ to = \"10.0.0.{}\" }}", 100 + number)).collect();
        writeln!(config, "[[overlay.network]]\nname = \"idle\"\nvni = 1\ninterfaces = [{}]", interfaces.join(", "))?;
        writeln!(config, "edges = [{}]", edges.join(", "))?;
        Ok(config)
    }

    fn wait(&self, host: &Host) -> Result<()> {
        let up = || Ok(run(host, "ip -o link show up")?.matches(": idle").count() == self.interfaces);
        wait_until(TIMEOUT, up).context("the interfaces")
    }
}

/// The process and those that it started.
fn with_children(process: u32) -> Result<Vec<u32>> {
    let mut all = vec![process];
    let tasks = format!("/proc/{process}/task");
    for task in fs::read_dir(&tasks).with_context(|| format!("cannot read {tasks}"))? {
        // A thread may have ended in between, or the kernel has no such file.
        let text = fs::read_to_string(task.with_context(|| tasks.clone())?.path().join("children")).unwrap_or_default();
        all.extend(text.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
    }
    Ok(all)
}
