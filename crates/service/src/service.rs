//! All workers of a daemon: started together, told what concerns them, ended together.

use crate::command::{Command, Event, Permit, WorkerIndex};
use crate::counters::WorkerCounters;
use crate::mailbox::{Post, Task, mailbox};
use crate::wire::WIRE_WORKER;
use crate::worker::{Parts, Worker};
use isthmus_channel::Wait;
use isthmus_layout::DomainId;
use isthmus_platform::PlatformError;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Workers at most: beyond the processors of a host they are of no use.
pub const WORKERS_MAX: u8 = 64;

/// The turns that workers ask for: whoever waits for them may spin, on the same processor.
const TURN: Duration = Duration::from_micros(100);

/// How the workers are to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many; at least one, at most [`WORKERS_MAX`].
    pub workers: u8,
    /// How they wait.
    pub wait: Wait,
    /// Worker `n` runs on processor `cpus[n % len]`. Empty: anywhere.
    pub cpus: Vec<usize>,
    /// Who may talk to whom, until [`Command::Permit`].
    pub permit: Permit,
}

impl Default for Options {
    /// One worker, adaptive, anywhere, and everybody may talk to everybody.
    fn default() -> Self {
        Self { workers: 1, wait: Wait::default(), cpus: Vec::new(), permit: Permit::everything() }
    }
}

/// Why the workers did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Too many or none.
    #[error("{0} workers were asked for, 1 to {WORKERS_MAX} can be")]
    Workers(u8),
    /// The system refused a descriptor.
    #[error(transparent)]
    Platform(#[from] PlatformError),
    /// The system refused a thread.
    #[error("starting worker {worker}: {source}")]
    Thread {
        /// Which.
        worker: u8,
        /// What it said.
        source: std::io::Error,
    },
}

/// All workers.
#[derive(Debug)]
pub struct Service {
    posts: Vec<Post>,
    counters: Vec<Arc<WorkerCounters>>,
    threads: Vec<JoinHandle<()>>,
}

impl Service {
    /// Starts the workers. `listener` is called on their threads.
    pub fn start(options: Options, listener: impl Fn(Event) + Clone + Send + 'static) -> Result<Self, StartError> {
        let (count, cpus) = (options.workers, options.cpus.clone());
        let (mut service, workers) = Self::prepare(options, listener)?;
        for (index, worker) in (0..count).zip(workers) {
            let cpu = cpus.get(usize::from(index) % cpus.len().max(1)).copied();
            let run = move || {
                pin(cpu);
                isthmus_platform::scheduling::short_turns(TURN);
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
    pub(crate) fn prepare(
        options: Options,
        listener: impl Fn(Event) + Clone + Send + 'static,
    ) -> Result<(Self, Vec<Worker>), StartError> {
        if !(1..=WORKERS_MAX).contains(&options.workers) {
            return Err(StartError::Workers(options.workers));
        }
        let (mut posts, mut mailboxes) = (Vec::new(), Vec::new());
        for _ in 0..options.workers {
            let (post, mailbox) = mailbox()?;
            posts.push(post);
            mailboxes.push(mailbox);
        }
        let counters: Vec<Arc<WorkerCounters>> = posts.iter().map(|_| Arc::default()).collect();
        let workers = (0..).zip(mailboxes).zip(&counters).map(|((index, mailbox), counters)| {
            Worker::new(Parts {
                index: WorkerIndex(index),
                mailbox,
                posts: posts.clone(),
                wait: options.wait,
                permit: options.permit.clone(),
                counters: counters.clone(),
                listener: Box::new(listener.clone()),
            })
        });
        let workers = workers.collect::<Result<Vec<_>, _>>()?;
        Ok((Self { posts, counters, threads: Vec::new() }, workers))
    }

    /// The worker that serves a domain.
    pub fn home(&self, domain: DomainId) -> WorkerIndex {
        WorkerIndex((domain.number() % self.posts.len() as u32) as u8)
    }

    /// The workers.
    pub fn workers(&self) -> impl Iterator<Item = WorkerIndex> + use<> {
        (0..self.posts.len() as u8).map(WorkerIndex)
    }

    /// Tells whom it concerns. Never waits.
    pub fn send(&self, command: Command) {
        match command {
            Command::AddBoard { worker, .. } | Command::RemoveBoard { worker, .. } => {
                self.post(worker, Task::Command(command));
            }
            Command::Add(new) => {
                let (domain, home) = (new.domain, self.home(new.domain));
                self.post_others(home, || Task::Neighbour { domain, worker: home });
                self.post(home, Task::Command(Command::Add(new)));
            }
            Command::Remove { domain, reason } => {
                let home = self.home(domain);
                self.post(home, Task::Command(Command::Remove { domain, reason }));
                self.post_others(home, || Task::NeighbourGone { domain, reason });
            }
            Command::AddMxBoard(_)
            | Command::OpenMx(_)
            | Command::CloseMx { .. }
            | Command::ConnectMx(_)
            | Command::Capture(_)
            | Command::GrantStranger { .. }
            | Command::RevokeStranger { .. } => self.post(WIRE_WORKER, Task::Command(command)),
            Command::Permit(permit) => {
                for worker in self.workers() {
                    self.post(worker, Task::Command(Command::Permit(permit.clone())));
                }
            }
            Command::Shutdown => {
                for worker in self.workers() {
                    self.post(worker, Task::Command(Command::Shutdown));
                }
            }
        }
    }

    /// What each worker has counted, in their order.
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
        self.posts[usize::from(worker.0)].send(task);
    }

    fn post_others(&self, home: WorkerIndex, task: impl Fn() -> Task) {
        for worker in self.workers().filter(|&worker| worker != home) {
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
    if cpu >= rustix::thread::CpuSet::MAX_CPU {
        return tracing::warn!(cpu, "there is no such processor to pin a worker to");
    }
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::warn!(cpu, %error, "a worker cannot be pinned");
    }
}
