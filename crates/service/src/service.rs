//! All workers of a daemon: their start, their commands, their end.

use crate::command::{Command, Event, SendPolicy, WorkerIndex};
use crate::counters::WorkerCounters;
use crate::mailbox::{MailboxSender, Task, mailbox};
use crate::worker::{Worker, WorkerConfig};
use isthmus_channel::WaitMode;
use isthmus_layout::DomainId;
use isthmus_platform::PlatformError;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// The maximum number of workers. More workers than processors are of no use.
pub const WORKERS_MAX: u8 = 64;

/// The time slice that workers request. It is short because a program that waits for a worker may spin on the same processor.
const TIME_SLICE: Duration = Duration::from_micros(100);

/// The options of the workers.
#[derive(Clone, Debug)]
pub struct ServiceOptions {
    /// The number of workers, from 1 to [`WORKERS_MAX`].
    pub workers: u8,
    /// The wait mode.
    pub wait: WaitMode,
    /// The processors: worker `n` runs on `cpus[n % len]`. If empty, workers run on any processor.
    pub cpus: Vec<usize>,
    /// The policy until the first [`Command::SendPolicy`].
    pub send_policy: SendPolicy,
}

impl Default for ServiceOptions {
    /// Returns the options of one adaptive worker on any processor, with a policy that permits all messages.
    fn default() -> Self {
        Self { workers: 1, wait: WaitMode::default(), cpus: Vec::new(), send_policy: SendPolicy::allow_all() }
    }
}

/// The reason why the workers did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The number of workers is out of range.
    #[error("{0} workers are out of range: 1 to {WORKERS_MAX}")]
    Workers(u8),
    /// The system refused a descriptor.
    #[error(transparent)]
    Platform(#[from] PlatformError),
    /// The system refused a thread.
    #[error("starting worker {worker}: {source}")]
    Thread {
        /// The worker.
        worker: u8,
        /// The error of the system.
        source: std::io::Error,
    },
}

/// All workers.
#[derive(Debug)]
pub struct Service {
    mailboxes: Vec<MailboxSender>,
    counters: Vec<Arc<WorkerCounters>>,
    threads: Vec<JoinHandle<()>>,
}

impl Service {
    /// Starts the workers. `event_handler` is called on their threads.
    pub fn start(
        options: ServiceOptions,
        event_handler: impl Fn(Event) + Clone + Send + 'static,
    ) -> Result<Self, StartError> {
        let (count, cpus) = (options.workers, options.cpus.clone());
        let (mut service, workers) = Self::build_workers(options, event_handler)?;
        for (index, worker) in (0..count).zip(workers) {
            let cpu = cpus.get(usize::from(index) % cpus.len().max(1)).copied();
            let run = move || {
                pin(cpu);
                isthmus_platform::scheduling::request_short_slices(TIME_SLICE);
                worker.run();
            };
            match std::thread::Builder::new().name(format!("worker-{index}")).spawn(run) {
                Ok(thread) => service.threads.push(thread),
                Err(source) => {
                    service.end();
                    return Err(StartError::Thread { worker: index, source });
                }
            }
        }
        Ok(service)
    }

    /// The workers, without their threads.
    pub(crate) fn build_workers(
        options: ServiceOptions,
        event_handler: impl Fn(Event) + Clone + Send + 'static,
    ) -> Result<(Self, Vec<Worker>), StartError> {
        if !(1..=WORKERS_MAX).contains(&options.workers) {
            return Err(StartError::Workers(options.workers));
        }
        let (mut senders, mut mailboxes) = (Vec::new(), Vec::new());
        for _ in 0..options.workers {
            let (sender, mailbox) = mailbox()?;
            senders.push(sender);
            mailboxes.push(mailbox);
        }
        let counters: Vec<Arc<WorkerCounters>> = mailboxes.iter().map(|_| Arc::default()).collect();
        let workers = (0..).zip(mailboxes).zip(&counters).map(|((index, mailbox), counters)| {
            Worker::new(WorkerConfig {
                index: WorkerIndex(index),
                mailbox,
                mailboxes: senders.clone(),
                wait: options.wait,
                send_policy: options.send_policy.clone(),
                counters: counters.clone(),
                event_handler: Box::new(event_handler.clone()),
            })
        });
        let workers = workers.collect::<Result<Vec<_>, _>>()?;
        Ok((Self { mailboxes: senders, counters, threads: Vec::new() }, workers))
    }

    /// The worker that serves a domain.
    pub fn worker_of(&self, domain: DomainId) -> WorkerIndex {
        WorkerIndex((domain.number() % self.mailboxes.len() as u32) as u8)
    }

    /// The workers.
    pub fn workers(&self) -> impl Iterator<Item = WorkerIndex> + use<> {
        (0..self.mailboxes.len() as u8).map(WorkerIndex)
    }

    /// Sends a command to the workers that it concerns. Never waits.
    pub fn send(&self, command: Command) {
        match command {
            Command::AddReadyMap { worker, .. }
            | Command::RemoveReadyMap { worker, .. }
            | Command::Mx(worker, _)
            | Command::Overlay(worker, _)
            | Command::GrantRemote { worker, .. }
            | Command::RevokeRemote { worker, .. } => self.post(worker, Task::Command(command)),
            Command::Add(new) => {
                let (domain, worker) = (new.domain, self.worker_of(new.domain));
                self.post_others(worker, || Task::RemoteDomainAdded { domain, worker });
                self.post(worker, Task::Command(Command::Add(new)));
            }
            Command::Remove { domain, reason } => {
                let worker = self.worker_of(domain);
                self.post(worker, Task::Command(Command::Remove { domain, reason }));
                self.post_others(worker, || Task::RemoteDomainRemoved { domain, reason });
            }
            Command::SendPolicy(send_policy) => {
                self.post_all(|| Task::Command(Command::SendPolicy(send_policy.clone())));
            }
            Command::Heartbeat => self.post_all(|| Task::Command(Command::Heartbeat)),
            Command::Shutdown => self.post_all(|| Task::Command(Command::Shutdown)),
        }
    }

    /// The counters of each worker, in the order of the workers.
    pub fn counters(&self) -> &[Arc<WorkerCounters>] {
        &self.counters
    }

    /// Ends the workers and waits for them. Panics with the panic of a worker.
    pub fn end(&mut self) {
        self.send(Command::Shutdown);
        for thread in self.threads.drain(..) {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }

    fn post(&self, worker: WorkerIndex, task: Task) {
        self.mailboxes[usize::from(worker.0)].send(task);
    }

    fn post_all(&self, task: impl Fn() -> Task) {
        self.workers().for_each(|worker| self.post(worker, task()));
    }

    fn post_others(&self, except: WorkerIndex, task: impl Fn() -> Task) {
        for worker in self.workers().filter(|&worker| worker != except) {
            self.post(worker, task());
        }
    }
}

impl Drop for Service {
    /// Ends the workers.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end();
        }
    }
}

fn pin(cpu: Option<usize>) {
    let Some(cpu) = cpu else { return };
    let mut set = rustix::thread::CpuSet::new();
    let pinned = if cpu < rustix::thread::CpuSet::MAX_CPU {
        set.set(cpu);
        rustix::thread::sched_setaffinity(None, &set)
    } else {
        Err(rustix::io::Errno::INVAL)
    };
    if let Err(error) = pinned {
        tracing::warn!(
            cpu,
            %error,
            "cannot pin a worker, which runs on any CPU now: name CPUs of this host in `daemon.worker_cpus` that the daemon may use \
             (`lscpu -e`; `taskset -cp PID`)"
        );
    }
}
