//! The cost of waiting: CPU time of connected domains that send nothing to each other.

use std::rc::Rc;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;

use crate::case::{Case, Reading, Unit};
use crate::cpu::cpu_ns_during;
use crate::job::{Wait, Work};
use crate::pair::{Bench, Task};
use crate::path::Path;
use crate::sockets::StreamDaemon;

/// The CPU time of `domains` domains in connected pairs, scaled to a minute.
pub(crate) struct Idle {
    pub(crate) path: Path,
    pub(crate) domains: usize,
    /// The daemon of the path of sockets.
    pub(crate) stream_daemon: Option<Rc<StreamDaemon>>,
}

const MINUTE_MS: u64 = 60_000;
/// The time of one run: five runs, which is the usual number, take a minute in all.
const RUN_MS: u64 = 12_000;
const QUICK_MS: u64 = 2_000;
/// Before and after the time that counts: until all have gone to sleep, and before the first is woken.
const SETTLE_MS: u64 = 500;

impl Idle {
    pub(crate) fn is_supported(&self) -> bool {
        self.path.supports(Work::Idle { ms: RUN_MS }, Wait::Sleep)
    }
}

impl Case for Idle {
    fn name(&self) -> String {
        format!("{}.idle_cpu.{}", self.path.name(), self.domains)
    }

    fn unit(&self) -> Unit {
        Unit::Milliseconds
    }

    /// CPU time is read from outside while all sleep, so that start and end do not count.
    fn run(&self, bench: &Bench) -> Result<Reading> {
        let ms = if bench.quick { QUICK_MS } else { RUN_MS };
        let task = Task::plain(self.path, Wait::Sleep, Work::Idle { ms: ms + 2 * SETTLE_MS });
        let bench = match &self.stream_daemon {
            Some(daemon) => {
                let of_sockets = || self.path.unavailable_reason();
                if let Some(why) = daemon.unavailable_reason(bench).or_else(of_sockets) {
                    return Ok(Reading::Unavailable(why));
                }
                &daemon.bench(bench)?
            }
            None => bench,
        };
        let (_, used_ns) = bench.run_pairs_watched(&task, self.domains.div_ceil(2), |workers| {
            let servants = match &self.stream_daemon {
                Some(daemon) => vec![daemon.process()?],
                None => self.path.server_processes()?, // They are running now, even if a worker started them.
            };
            sleep(Duration::from_millis(SETTLE_MS));
            let all: Vec<u32> = workers.iter().chain(&servants).copied().collect();
            cpu_ns_during(&all, || sleep(Duration::from_millis(ms)))
        })?;
        Ok(Reading::value(used_ns as f64 / 1e6 * MINUTE_MS as f64 / ms as f64))
    }
}
