//! One side of a pair: this program started again by itself, with a socket to its parent as standard input.

use std::ffi::OsString;
use std::io::stdin;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, bail};
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::job::{Answer, Done, Order};
use crate::pin::{parse_list, pin};
use crate::talk::Talk;

/// Does the one job that the parent sends, and tells it what came out, also if that is an error.
pub(crate) fn main() -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("cannot ask to end with the parent")?;
    let socket = stdin().as_fd().try_clone_to_owned().context("cannot use standard input")?;
    let parent = Talk::from_fd(socket);
    match work(&parent) {
        Ok(done) => parent.send(&Answer::Done(done)),
        // Where nobody listens it is ours to tell.
        Err(error) => parent.send(&Answer::Failed(format!("{error:#}"))).map_err(|_| error),
    }
}

/// Before a program that is to be pinned: `cpus=0,1`.
pub(crate) const CPUS: &str = "cpus=";

/// Becomes another program that ends with its parent: whoever kills isthmus-bench leaves nothing behind.
pub(crate) fn bound(command: &[OsString]) -> Result<()> {
    let (mut program, mut arguments) = command.split_first().context("a program is missing")?;
    if let Some(cpus) = program.to_str().and_then(|word| word.strip_prefix(CPUS)) {
        pin(&parse_list(cpus).with_context(|| format!("{cpus:?} is no list of CPUs"))?)?;
        (program, arguments) = arguments.split_first().context("a program is missing")?;
    }
    set_parent_process_death_signal(Some(Signal::KILL)).context("cannot ask to end with the parent")?;
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}

fn work(parent: &Talk) -> Result<Done> {
    let (order, fds) = parent.recv_with().context("`isthmus-bench worker` is only for isthmus-bench itself")?;
    let Order::Job(job) = order else { bail!("the first order must be a job") };
    let [other] =
        <[OwnedFd; 1]>::try_from(fds).map_err(|fds| anyhow::anyhow!("a job comes with 1 socket, not {}", fds.len()))?;
    pin(&job.cpus)?;
    job.path.run(&job, &Talk::from_fd(other), || {
        parent.send(&Answer::Ready)?;
        match parent.recv()? {
            Order::Go => Ok(()),
            Order::Job(_) => bail!("a second job instead of the word to begin"),
        }
    })
}
