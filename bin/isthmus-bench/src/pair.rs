//! Pairs of workers: both ends of a path as processes of their own, pinned, started together, and never left behind.
//!
//! ```text
//!            isthmus-bench
//!     job, go │        │ job, go         (a ControlPipe each, as standard input)
//!             ▼        ▼
//!          lead ◀────▶ follow            (a ControlPipe between them, made here, passed with the job)
//!             ╞════════╡                 (the path that is measured)
//! ```

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use isthmus_netns::Host;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;

use crate::control_pipe::ControlPipe;
use crate::cpu_placement::HostCpus;
use crate::job::{Job, Setup, Side, SideResult, Work, WorkerMessage, WorkerOrder};
use crate::path::Path;
use crate::pin::Placement;

/// The settings of all measurements of one run of this program.
#[derive(Clone, Debug)]
pub(crate) struct Bench {
    pub(crate) placement: Placement,
    /// The CPUs of two hosts.
    pub(crate) host_cpus: HostCpus,
    /// The time of the measured part of one run.
    pub(crate) budget: Duration,
    /// The number of runs of each measurement.
    pub(crate) runs: usize,
    /// True if long waits (a minute of idling) are shortened as well.
    pub(crate) quick: bool,
    /// This program.
    pub(crate) program: PathBuf,
    /// Variables that workers are given beside those of this program.
    pub(crate) environment: Vec<(OsString, OsString)>,
}

/// The task of a pair.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) path: Path,
    pub(crate) setup: Setup,
    pub(crate) work: Work,
    /// Starts each side in namespaces of its own, without capabilities.
    pub(crate) isolated: bool,
    /// Puts both sides of a pair onto one CPU: for sides that sleep, of which only one has anything to do.
    pub(crate) one_cpu: bool,
}

impl Task {
    /// Work on a path without options, as most are.
    pub(crate) fn plain(path: Path, wait: crate::job::Wait, work: Work) -> Self {
        let setup = Setup { wait, size_max: work.size(), options: Default::default() };
        Self { path, setup, work, isolated: false, one_cpu: false }
    }
}

/// The host and the CPUs of a side of a pair, if it is not in the host namespaces of this machine.
#[derive(Clone, Debug)]
pub(crate) struct SidePlacement {
    pub(crate) host: Host,
    pub(crate) cpus: Vec<usize>,
    /// Variables of its own.
    pub(crate) environment: Vec<(OsString, OsString)>,
}

/// A pair that is to be started: its task, and the places of its sides, the leading one first.
#[derive(Clone, Debug)]
pub(crate) struct PairPlan {
    pub(crate) task: Task,
    pub(crate) sides: [SidePlacement; 2],
}

/// The results of both sides.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PairResult {
    pub(crate) lead: SideResult,
    pub(crate) follow: SideResult,
}

impl PairResult {
    /// CPU time of both sides for each message; `None` if nothing was sent.
    pub(crate) fn cpu_ns_per_message(&self) -> Option<f64> {
        let cpu_ns = (self.lead.cpu_ns + self.follow.cpu_ns) as f64;
        (self.lead.messages > 0).then(|| cpu_ns / self.lead.messages as f64)
    }

    /// Messages each second, of a stream.
    pub(crate) fn rate(&self) -> Result<f64> {
        match self.lead.elapsed_ns {
            Some(ns) if ns > 0 => Ok(self.lead.messages as f64 * 1e9 / ns as f64),
            _ => bail!("the leading side measured no stream"),
        }
    }

    /// The begin and the end of the measured part, if they are known.
    pub(crate) fn interval_ns(&self) -> Option<(u64, u64)> {
        let took = match (self.lead.elapsed_ns, self.lead.half_rtt_ns) {
            (Some(ns), _) => ns,
            (None, half) => (half? * self.lead.messages as f64) as u64,
        };
        self.lead.ended_ns.map(|end| (end.saturating_sub(took), end))
    }

    /// Half a round trip in microseconds, of a ping-pong.
    pub(crate) fn half_rtt_us(&self) -> Result<f64> {
        Ok(self.lead.half_rtt_ns.context("the leading side measured no round trip")? / 1e3)
    }
}

impl Bench {
    /// Runs one pair.
    pub(crate) fn pair(&self, task: &Task) -> Result<PairResult> {
        self.pairs(task, 1)?.pop().context("one pair gives one result")
    }

    /// Runs `pairs` pairs at the same time, with the same task.
    pub(crate) fn pairs(&self, task: &Task, pairs: usize) -> Result<Vec<PairResult>> {
        Ok(self.run_pairs_watched(task, pairs, |_| Ok(()))?.0)
    }

    /// Runs pairs as [`Self::pairs`] does; `watch` is called with the workers' process ids when all have begun.
    pub(crate) fn run_pairs_watched<T>(
        &self,
        task: &Task,
        pairs: usize,
        watch: impl FnOnce(&[u32]) -> Result<T>,
    ) -> Result<(Vec<PairResult>, T)> {
        let workers = self.start(task, pairs, false)?;
        self.named(task, self.run_workers(workers, watch))
    }

    /// Runs pairs between hosts at the same time.
    pub(crate) fn run_pairs(&self, pair_plans: &[PairPlan]) -> Result<Vec<PairResult>> {
        let Some(PairPlan { task, .. }) = pair_plans.first() else { return Ok(Vec::new()) };
        let mut workers = Vec::new();
        for PairPlan { task, sides } in pair_plans {
            let (near, far) = ControlPipe::pair()?;
            for (side, side_placement, socket) in [(Side::Lead, &sides[0], near), (Side::Follow, &sides[1], far)] {
                let job = self.job(task, side, side_placement.cpus.clone(), false);
                workers.push(Worker::start(self, Command::new(&self.program), Some(side_placement), job, &socket)?);
            }
        }
        Ok(self.named(task, self.run_workers(workers, |_| Ok(())))?.0)
    }

    /// Runs one pair, and calls `look` when it is done and both sides are still there.
    pub(crate) fn run_pair_held<T>(&self, task: &Task, look: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut workers = self.start(task, 1, true)?;
        let held = self.begin(&mut workers).and_then(|()| {
            self.all_ready(&mut workers)?;
            look()
        });
        self.named(task, held)
    }

    fn named<T>(&self, task: &Task, result: Result<T>) -> Result<T> {
        result.with_context(|| format!("{} {:?} ({})", task.path.name(), task.work, task.setup.wait.name()))
    }

    fn start(&self, task: &Task, pairs: usize, hold: bool) -> Result<Vec<Worker>> {
        let mut workers = Vec::new();
        for pair in 0..pairs {
            let (near, far) = ControlPipe::pair()?;
            let lead = self.placement.lead(pair);
            let follow = if task.one_cpu { lead } else { self.placement.follow(pair) };
            for (side, cpu, socket) in [(Side::Lead, lead, near), (Side::Follow, follow, far)] {
                let command = if task.isolated { isolated_command(self) } else { Command::new(&self.program) };
                let job = self.job(task, side, vec![cpu], hold);
                workers.push(Worker::start(self, command, None, job, &socket)?);
            }
        }
        Ok(workers)
    }

    fn job(&self, task: &Task, side: Side, cpus: Vec<usize>, hold: bool) -> Job {
        let budget_ms = self.budget.as_millis() as u64;
        Job { side, path: task.path, setup: task.setup.clone(), work: task.work, cpus, budget_ms, hold }
    }

    fn all_ready(&self, workers: &mut [Worker]) -> Result<()> {
        each_answer(workers, self.deadline(), |worker, answer| match answer {
            WorkerMessage::Ready => Ok(()),
            WorkerMessage::Done(_) => bail!("the {} side was done before it began", worker.side_name()),
            WorkerMessage::Failed(error) => bail!("the {} side: {error}", worker.side_name()),
        })
    }

    /// Waits for all to be ready, and lets them begin together.
    fn begin(&self, workers: &mut [Worker]) -> Result<()> {
        self.all_ready(workers)?;
        workers.iter().try_for_each(|worker| worker.control_pipe.send(&WorkerOrder::Go))
    }

    /// Lets all begin, and collects what they found, in order.
    fn run_workers<T>(
        &self,
        mut workers: Vec<Worker>,
        watch: impl FnOnce(&[u32]) -> Result<T>,
    ) -> Result<(Vec<PairResult>, T)> {
        self.begin(&mut workers)?;
        let pids: Vec<u32> = workers.iter().map(|worker| worker.child.id()).collect();
        let watched = watch(&pids)?;
        each_answer(&mut workers, self.deadline(), |worker, answer| match answer {
            WorkerMessage::Done(done) => {
                worker.done = Some(done);
                Ok(())
            }
            WorkerMessage::Ready => bail!("the {} side was ready twice", worker.side_name()),
            WorkerMessage::Failed(error) => bail!("the {} side: {error}", worker.side_name()),
        })?;
        let mut found = Vec::new();
        let mut dones = workers.iter_mut().map(|worker| worker.done.take());
        while let (Some(Some(lead)), Some(Some(follow))) = (dones.next(), dones.next()) {
            found.push(PairResult { lead, follow });
        }
        Ok((found, watched))
    }

    /// The end of waiting from now on: a loaded machine may be slow, but a worker that spins for ever must end.
    fn deadline(&self) -> Instant {
        Instant::now() + Duration::from_secs(20) + self.budget * 20
    }
}

/// A process that is killed when the value is dropped.
struct Worker {
    side: Side,
    child: Child,
    control_pipe: ControlPipe,
    done: Option<SideResult>,
}

impl Worker {
    fn start(
        bench: &Bench,
        mut command: Command,
        side_placement: Option<&SidePlacement>,
        job: Job,
        socket: &ControlPipe,
    ) -> Result<Self> {
        let (ours, theirs) = ControlPipe::pair()?;
        let own = side_placement.map(|side_placement| &side_placement.environment[..]).unwrap_or_default();
        command
            .arg("worker")
            .envs(bench.environment.iter().chain(own).map(|(name, value)| (name, value)))
            .envs(job.path.environment(job.setup.wait)?)
            .stdin(Stdio::from(theirs.into_fd()))
            .stdout(Stdio::null());
        let started = format!("cannot start {}", command.get_program().display());
        let child = match side_placement {
            Some(side_placement) => side_placement.host.spawn(command),
            None => command.spawn(),
        };
        let child = child.context(started)?;
        let worker = Self { side: job.side, child, control_pipe: ours, done: None };
        worker.control_pipe.send_with(&WorkerOrder::Job(job), &[socket.as_fd()])?;
        Ok(worker)
    }

    fn side_name(&self) -> &'static str {
        match self.side {
            Side::Lead => "leading",
            Side::Follow => "following",
        }
    }

    /// Takes its next answer, or says how it ended without one.
    fn next_message(&mut self) -> Result<WorkerMessage> {
        self.control_pipe.recv().or_else(|_| {
            let status = self.child.wait().context("cannot wait for a worker")?;
            Err(anyhow!("the {} side ended without an answer: {status}", self.side_name()))
        })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended already. Other errors are ignored, because nothing is left to do.
        let _: io::Result<()> = self.child.kill();
        let _: io::Result<_> = self.child.wait();
    }
}

/// Returns a command in a sandbox like a container's, by util-linux: own pid, ipc, user, mount, network and uts namespaces, and no
/// capabilities.
fn isolated_command(bench: &Bench) -> Command {
    let mut command = Command::new("unshare");
    command
        .args([
            "--user",
            "--map-root-user",
            "--mount",
            "--pid",
            "--ipc",
            "--net",
            "--uts",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ])
        .args(["--", "setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--"])
        .arg(&bench.program);
    command
}

/// Takes one answer of each, in whatever order they come. Silence until the deadline is an error, after which all are killed.
fn each_answer(
    workers: &mut [Worker],
    deadline: Instant,
    mut take: impl FnMut(&mut Worker, WorkerMessage) -> Result<()>,
) -> Result<()> {
    let mut missing: Vec<usize> = (0..workers.len()).collect();
    while !missing.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).context("the deadline is too far away")?;
        let mut fds: Vec<_> =
            missing.iter().map(|&index| PollFd::new(&workers[index].control_pipe, PollFlags::IN)).collect();
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => bail!("{} of {} workers did not answer in time", missing.len(), workers.len()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno).context("cannot wait for the workers"),
        }
        let spoke: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let (answered, silent): (Vec<_>, Vec<_>) = missing.into_iter().zip(spoke).partition(|(_, spoke)| *spoke);
        for (index, _) in answered {
            let answer = workers[index].next_message()?;
            take(&mut workers[index], answer)?;
        }
        missing = silent.into_iter().map(|(index, _)| index).collect();
    }
    Ok(())
}
