//! A host: a network namespace, held open by a descriptor and by a thread of its own inside it.
//!
//! The thread starts the host's programs: a child begins in the namespaces of the thread that forks it, so a plain
//! [`Command`] needs no wrapper. It has a mount namespace too, in which `/sys` shows the host's interfaces (where the kernel
//! lets it be mounted). [`Host::with`] runs code of ours inside, on another new thread. No thread of the caller's ever moves.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use nix::sched::{CloneFlags, setns, unshare};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};

type SpawnRequest = (Command, Sender<io::Result<Child>>);

/// A host of a testbed. Clones are the same host; once its [`crate::Testbed`] is dropped, all that is asked of it fails.
#[derive(Clone)]
pub struct Host {
    name: Arc<str>,
    namespace_state: Arc<Mutex<Option<Namespace>>>,
}

/// The part of a host that ends with the testbed.
struct Namespace {
    namespace: OwnedFd,
    spawn_requests: Sender<SpawnRequest>,
    thread: JoinHandle<()>,
}

impl Host {
    /// A new namespace in which only `lo` is, and up.
    pub(crate) fn new(name: &str) -> io::Result<Self> {
        let (spawn_requests, received) = channel();
        let (opened, namespace) = channel();
        let inside = move || match unshare_namespaces() {
            Ok(namespace) => {
                // The thread that made this one waits for the descriptor. If it does not, the descriptor is closed and the orders end at
                // once.
                drop(opened.send(Ok(namespace)));
                serve_orders(&received);
            }
            Err(error) => drop(opened.send(Err(error))),
        };
        let thread = Builder::new().name(format!("host {name}")).spawn(inside)?;
        let namespace = namespace.recv().expect("the thread answers once")?;
        let host = Self {
            name: name.into(),
            namespace_state: Arc::new(Mutex::new(Some(Namespace { namespace, spawn_requests, thread }))),
        };
        host.lo_up()?;
        Ok(host)
    }

    /// The name it was given; only people need it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its namespace: a descriptor for `setns(2)`, which also keeps the namespace alive.
    pub fn namespace(&self) -> io::Result<OwnedFd> {
        self.lock_state().as_ref().ok_or_else(|| self.host_gone())?.namespace.try_clone()
    }

    /// Runs `inside` on a new thread in this host and waits for it: sockets that it opens belong to the host for ever. `/sys`
    /// still shows the interfaces of the caller.
    ///
    /// # Panics
    ///
    /// If `inside` does.
    pub fn with<R: Send>(&self, inside: impl FnOnce() -> R + Send) -> io::Result<R> {
        let namespace = self.namespace()?;
        std::thread::scope(|scope| {
            let run = move || {
                setns(&namespace, CloneFlags::CLONE_NEWNET)?;
                Ok(inside())
            };
            let thread = Builder::new().name(format!("in {}", self.name)).spawn_scoped(scope, run)?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Starts a program in this host. It ends with the testbed at the latest, and so do those which it starts itself.
    pub fn spawn(&self, command: Command) -> io::Result<Child> {
        let (reply, child) = channel();
        let spawn_requests = self.lock_state().as_ref().map(|life| life.spawn_requests.clone());
        // Neither fails but at the end of the host.
        drop(spawn_requests.ok_or_else(|| self.host_gone())?.send((command, reply)));
        child.recv().map_err(|_| self.host_gone())?
    }

    /// Runs a program in this host to its end and collects what it says; it reads nothing.
    pub fn output(&self, mut command: Command) -> io::Result<Output> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.spawn(command)?.wait_with_output()
    }

    /// Returns the path at which a program may open the namespace while the testbed lives: `ip` takes a path for one.
    pub(crate) fn path(&self) -> io::Result<PathBuf> {
        let life = self.lock_state();
        let life = life.as_ref().ok_or_else(|| self.host_gone())?;
        Ok(PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), life.namespace.as_raw_fd())))
    }

    /// Returns the namespace's number, as `stat` reports it.
    pub(crate) fn inode(&self) -> io::Result<u64> {
        Ok(File::from(self.namespace()?).metadata()?.ino())
    }

    /// Runs `ip -batch` with these lines inside; what it complains of is the error.
    pub(crate) fn ip(&self, lines: &str) -> Result<(), String> {
        let failed = |error: io::Error| format!("ip cannot be run: {error}");
        let mut command = Command::new("ip");
        command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = self.spawn(command).map_err(failed)?;
        let mut stdin = child.stdin.take().expect("it was piped");
        let written = stdin.write_all(lines.as_bytes());
        drop(stdin); // The end of the batch.
        let output = child.wait_with_output().map_err(failed)?;
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() { written.map_err(failed) } else { Err(said.trim().to_owned()) }
    }

    /// Writes a setting below /proc/sys/net, which shows each thread those of its own namespace.
    pub(crate) fn set(&self, setting: &str, value: &str) -> io::Result<()> {
        self.with(|| std::fs::write(format!("/proc/sys/net/{setting}"), value))?
    }

    fn lo_up(&self) -> io::Result<()> {
        self.ip("link set lo up\n").map_err(io::Error::other)
    }

    /// Ends it: no further programs, and nothing of ours keeps the namespace.
    pub(crate) fn end(&self) {
        let life = self.lock_state().take();
        if let Some(Namespace { namespace, spawn_requests, thread }) = life {
            drop((namespace, spawn_requests));
            drop(thread.join()); // It does not panic: it only starts programs.
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, Option<Namespace>> {
        self.namespace_state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn host_gone(&self) -> io::Error {
        io::Error::new(io::ErrorKind::NotConnected, format!("the testbed of host {} is gone", self.name))
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Host").field(&self.name).finish()
    }
}

impl PartialEq for Host {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.namespace_state, &other.namespace_state)
    }
}

impl Eq for Host {}

/// Moves this thread, and no other, to new namespaces.
fn unshare_namespaces() -> io::Result<OwnedFd> {
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)?;
    let namespace = File::open("/proc/thread-self/ns/net")?;
    // Mounts of ours stay here; those of the outside go on to come and go.
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    if mount_change("/", slave).is_ok() {
        // Containers in which /sys is masked refuse this mount. Then /sys shows the interfaces outside, as the docs say.
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        let _ = mount("none", "/sys", "sysfs", flags, None);
    }
    Ok(namespace.into())
}

fn serve_orders(spawn_requests: &Receiver<SpawnRequest>) {
    for (mut command, reply) in spawn_requests {
        let child = command.spawn();
        drop(command); // Before the reply: a reader that waits for the end of a pipe must not wait for our copy.
        if let Err(unheard) = reply.send(child)
            && let Ok(mut child) = unheard.0
        {
            drop(child.kill()); // The requesting thread has unwound, so the child has no user.
            drop(child.wait());
        }
    }
}
