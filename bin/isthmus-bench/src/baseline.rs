//! Cases that the figures are compared with, measured in the same run on the same machine.
//!
//! - the limits of the machine: [`CacheLine`], [`LockedAdd`], [`copy::CrossCore`], [`copy::OneCore`], [`copy::TwoCopies`], eventfds for sides that
//!   sleep, and copies to unfavourable addresses ([`copy::OffsetCopy`]);
//! - the means of every program: TCP, Unix sockets, pipes, each waiting both ways;
//! - other ways between processes: `process_vm_readv`, and UCX and MPIs where they are installed ([`ucx`], [`crate::fabric`]).

mod cache_line;
pub(crate) mod copy;
mod locked_add;
pub(crate) mod ucx;

use crate::case::{Case, LinkCase};
use crate::job::{Buffers, Wait};
use crate::path::Path;

pub(crate) use cache_line::CacheLine;
pub(crate) use locked_add::LockedAdd;
pub(crate) use ucx::Ucx;

/// All baselines. The two copies move `copy_size` bytes at once.
pub(crate) fn all(copy_size: usize) -> Vec<Box<dyn Case>> {
    let mut cases: Vec<Box<dyn Case>> = vec![
        Box::new(CacheLine),
        Box::new(LockedAdd),
        Box::new(copy::OneCore { size: copy_size }),
        Box::new(copy::CrossCore { size: copy_size }),
        Box::new(copy::TwoCopies { size: copy_size }),
        Box::new(LinkCase::half_rtt(Path::Eventfd, Wait::Sleep, 8)),
        Box::new(LinkCase::bandwidth(Path::Cma, Wait::Poll, 1 << 20, Buffers::Warm)),
        Box::new(LinkCase::bandwidth(Path::Cma, Wait::Poll, 1 << 20, Buffers::Cold)),
    ];
    for by in [copy::CopyRoutine::Library, copy::CopyRoutine::SharedMapping] {
        for distance in [0, 1, 15, 16, 31, 32, 64, 2048] {
            cases.push(Box::new(copy::OffsetCopy { distance, by }));
        }
    }
    for path in [Path::Tcp, Path::Unix, Path::Seqpacket, Path::Pipe] {
        for wait in [Wait::Poll, Wait::Sleep] {
            cases.push(Box::new(LinkCase::half_rtt(path, wait, 8)));
            cases.push(Box::new(LinkCase::half_rtt(path, wait, 4096)));
            cases.push(Box::new(LinkCase::bandwidth(path, wait, 1 << 20, Buffers::Warm)));
            cases.push(Box::new(LinkCase::rate(path, wait, 8)));
        }
    }
    for transport in [ucx::Transport::Posix, ucx::Transport::Sysv] {
        cases.push(Box::new(Ucx::half_rtt(transport, 8)));
        cases.push(Box::new(Ucx::half_rtt(transport, 4096)));
        cases.push(Box::new(Ucx::rate(transport, 8)));
        cases.push(Box::new(Ucx::bandwidth(transport, 1 << 20)));
    }
    cases.push(Box::new(Ucx::bandwidth(ucx::Transport::Cma, 1 << 20)));
    cases.extend(crate::fabric::mpis(8));
    cases
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_baselines_have_the_same_name() {
        let cases = all(1 << 20);
        let names: BTreeSet<_> = cases.iter().map(|case| case.name()).collect();
        assert_eq!(names.len(), cases.len());
    }
}
