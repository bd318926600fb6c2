//! Work in the network namespace of a descriptor.
//!
//! A thread of its own enters the namespace, does the work, and ends; it never goes back. The other threads of the helper stay where they are.

use std::thread;

use rustix::fd::{AsFd as _, OwnedFd};
use rustix::fs::fstatfs;
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::refusal::{Refusal, RefusalReason};

/// `NSFS_MAGIC` of linux/magic.h: the file system of namespaces.
const NSFS_MAGIC: i128 = 0x6E73_6673;

/// Does `work` in that network namespace, or in that of the caller if there is none.
pub(super) fn work_in<T: Send>(
    namespace: Option<&OwnedFd>,
    work: impl FnOnce() -> Result<T, Refusal> + Send,
) -> Result<T, Refusal> {
    let Some(namespace) = namespace else { return work() };
    thread::scope(|scope| {
        let entered = || enter(namespace).and_then(|()| work());
        let spawned = thread::Builder::new().name("namespace".to_owned()).spawn_scoped(scope, entered);
        match spawned {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(_) => Err(RefusalReason::KernelRefused.by(Errno::AGAIN)),
        }
    })
}

/// Enters a network namespace, with this thread only.
///
/// The kernel checks what the descriptor is before the helper does anything with it, because the file system of an arbitrary file may block
/// every other call. Apart from namespaces it only lets a descriptor of a process pass, which is refused afterwards.
fn enter(namespace: &OwnedFd) -> Result<(), Refusal> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).map_err(|errno| match errno {
        Errno::PERM => RefusalReason::NamespaceDenied.by(errno),
        errno => RefusalReason::NotANamespace.by(errno),
    })?;
    match fstatfs(namespace) {
        Ok(found) if i128::from(found.f_type) == NSFS_MAGIC => Ok(()),
        _ => Err(RefusalReason::NotANamespace.into()),
    }
}
