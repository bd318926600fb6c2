//! One side of a pair: this program, started again as a child, with a socket to its parent as standard input.

use std::ffi::OsString;
use std::io::stdin;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, bail};
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::control_pipe::ControlPipe;
use crate::job::{SideResult, WorkerMessage, WorkerOrder};
use crate::pin::{parse_list, pin};

/// Does the one job that the parent sends, and reports the result or the error.
pub(crate) fn main() -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("cannot ask to end with the parent")?;
    let socket = stdin().as_fd().try_clone_to_owned().context("cannot use standard input")?;
    let parent = ControlPipe::from_fd(socket);
    match work(&parent) {
        Ok(done) => parent.send(&WorkerMessage::Done(done)),
        // If the parent does not receive it, this process prints it.
        Err(error) => parent.send(&WorkerMessage::Failed(format!("{error:#}"))).map_err(|_| error),
    }
}

/// Before a program that is to be pinned: `cpus=0,1`.
pub(crate) const CPUS: &str = "cpus=";

/// Before a program that is a rank of an MPI job: `rank-cpus=0/1`, the CPUs of rank 0, those of rank 1, and round again.
pub(crate) const RANK_CPUS: &str = "rank-cpus=";

/// Becomes another program that ends with its parent, so that a killed isthmus-bench leaves nothing behind.
pub(crate) fn run_bound(command: &[OsString]) -> Result<()> {
    let (mut program, mut arguments) = command.split_first().context("a program is missing")?;
    if let Some(cpus) = program.to_str().and_then(|word| word.strip_prefix(CPUS)) {
        pin(&parse_list(cpus).with_context(|| format!("{cpus:?} is no list of CPUs"))?)?;
        (program, arguments) = arguments.split_first().context("a program is missing")?;
    }
    if let Some(cpus) = program.to_str().and_then(|word| word.strip_prefix(RANK_CPUS)) {
        pin(&cpus_of(cpus, rank()?).with_context(|| format!("{cpus:?} are no lists of CPUs"))?)?;
        (program, arguments) = arguments.split_first().context("a program is missing")?;
    }
    set_parent_process_death_signal(Some(Signal::KILL)).context("cannot ask to end with the parent")?;
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}

/// The rank of this process in an MPI job, from the variables of launchers.
fn rank() -> Result<usize> {
    let variable = ["OMPI_COMM_WORLD_RANK", "PMI_RANK"].into_iter().find_map(std::env::var_os);
    let rank = variable.and_then(|rank| rank.to_str()?.parse().ok());
    rank.context("no launcher says which rank this is")
}

/// The CPUs of a rank.
fn cpus_of(lists: &str, rank: usize) -> Option<Vec<usize>> {
    let lists: Vec<&str> = lists.split('/').collect();
    parse_list(lists[rank % lists.len()])
}

fn work(parent: &ControlPipe) -> Result<SideResult> {
    let (order, fds) = parent.recv_with().context("`isthmus-bench worker` is only for isthmus-bench itself")?;
    let WorkerOrder::Job(job) = order else { bail!("the first order must be a job") };
    let [other] =
        <[OwnedFd; 1]>::try_from(fds).map_err(|fds| anyhow::anyhow!("a job comes with 1 socket, not {}", fds.len()))?;
    pin(&job.cpus)?;
    job.path.run(&job, &ControlPipe::from_fd(other), || {
        parent.send(&WorkerMessage::Ready)?;
        match parent.recv()? {
            WorkerOrder::Go => Ok(()),
            WorkerOrder::Job(_) => bail!("a second job instead of the word to begin"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_go_round_the_lists() {
        assert_eq!(cpus_of("0/2,3", 0), Some(vec![0]));
        assert_eq!(cpus_of("0/2,3", 1), Some(vec![2, 3]));
        assert_eq!(cpus_of("0/2,3", 2), Some(vec![0]));
        assert_eq!(cpus_of("0//1", 1), None);
    }
}
