//! Checks of shared memory: sealing, moving buffers onto it, limits.

use std::fs;
use std::path::Path;

use isthmus_client::{Buffer, Reason};
use isthmus_shm::regcache::{CacheConfig, ColdReason, MigrationTarget, Prepared, RegistrationCache};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::{Finding, cgroup};

/// The size of the memory file of the check.
const FILE_BYTES: u64 = 4 << 20;
/// The size of the buffer that is moved, which is that of a large message.
const BUFFER_BYTES: usize = 1 << 20;
/// The memory that a program with some hundred peers needs, with a reserve.
const RECOMMENDED_BYTES: u64 = 256 << 20;

pub(super) fn check(findings: &mut Vec<Finding>) {
    findings.push(sealed());
    findings.push(mapped());
    findings.push(limit());
    findings.push(huge_pages());
}

/// Creates a memory file in the way of a channel, and tries to shrink it while it is in use.
fn sealed() -> Finding {
    let id = "memory.sealed";
    let tried = format!("a memory file of {} MiB, written to, sealed, then shrunk", FILE_BYTES >> 20);
    let shrunk = make_sealed().and_then(|file| match rustix::fs::ftruncate(&file, 0) {
        Err(Errno::PERM) => Ok(()),
        Err(errno) => Err(("shrinking it", errno)),
        Ok(()) => Err(("it shrank in spite of its seal", Errno::PERM)),
    });
    match shrunk {
        Ok(()) => Finding::ok(id, tried, "a sealed file cannot shrink: no peer can cause SIGBUS"),
        Err((step, errno)) => {
            let reason = match errno {
                Errno::MFILE | Errno::NFILE => Reason::OutOfFds,
                Errno::NOMEM | Errno::NOSPC => Reason::OutOfMemory,
                _ => Reason::BufferDenied,
            };
            Finding::problem(id, tried, format!("{step}: {errno}")).because(reason)
        }
    }
}

fn make_sealed() -> Result<rustix::fd::OwnedFd, (&'static str, Errno)> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("isthmus-doctor", flags | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| rustix::fs::memfd_create("isthmus-doctor", flags)) // Before Linux 6.3.
        .map_err(|errno| ("creating it", errno))?;
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, FILE_BYTES).map_err(|errno| ("filling it", errno))?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals).map_err(|errno| ("sealing it", errno))?;
    Ok(file)
}

/// Moves a buffer onto shared pages, as a sender of large messages does.
fn mapped() -> Finding {
    let id = "memory.migration";
    let tried = format!("moving a buffer of {} MiB onto pages that a peer may map", BUFFER_BYTES >> 20);
    if isthmus_client::Options::from_environment().is_ok_and(|options| options.no_regcache) {
        return Finding::note(id, tried, "switched off; large messages are copied twice")
            .because(Reason::BufferCacheDisabled);
    }
    let config = CacheConfig { uses_before_migration: 1, ..CacheConfig::default() };
    let cache = RegistrationCache::new(config);
    let buffer = Buffer::from(vec![7; BUFFER_BYTES]);
    let prepared = buffer.migrate(&cache, MigrationTarget::Memfds);
    let intact = buffer.as_slice().iter().all(|&byte| byte == 7);
    let locked = getrlimit(Resource::Memlock).current;
    let lock = locked.map_or_else(|| "no limit".to_owned(), |bytes| format!("{} KiB", bytes >> 10));
    match prepared {
        Prepared::Warm(_) if intact => {
            Finding::ok(id, tried, format!("large messages are copied once (RLIMIT_MEMLOCK: {lock})"))
        }
        Prepared::Warm(_) => Finding::problem(id, tried, "the buffer holds other bytes than before")
            .remedy("Set ISTHMUS_RCACHE=0, and report this with the kernel's version."),
        cold => {
            let cold = if let Prepared::Cold(cold) = cold { cold } else { ColdReason::FirstUse };
            let result = format!("{cold}: large messages are copied twice (RLIMIT_MEMLOCK: {lock})");
            Finding::note(id, tried, result).because(cold.reason())
        }
    }
}

/// Checks the memory that the control groups leave.
fn limit() -> Finding {
    let (id, tried) = ("memory.limit", "reading the limits of the control groups this process is in");
    match cgroup::memory_left() {
        None => Finding::ok(id, tried, "no limit"),
        Some((left, group)) => {
            let result = format!("{} MiB are left in {}", left >> 20, shown(&group));
            let remedy = "Raise the memory limit of the control group; shared memory is charged to the group that touches it first.";
            match left {
                left if left >= RECOMMENDED_BYTES => Finding::ok(id, tried, result),
                _ => Finding::note(id, tried, result).remedy(remedy),
            }
        }
    }
}

fn shown(group: &Path) -> String {
    group.display().to_string()
}

/// Checks whether shared memory may have huge pages, because large messages then cause fewer page faults.
fn huge_pages() -> Finding {
    let (id, tried) = ("memory.huge-pages", "reading whether shared memory may have transparent huge pages");
    let file = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let chosen =
        fs::read_to_string(file).ok().and_then(|text| Some(text.split_once('[')?.1.split_once(']')?.0.to_owned()));
    match chosen.as_deref() {
        Some("never" | "deny") | None => {
            let setting = chosen.as_deref().unwrap_or("not supported");
            let result = format!("{setting}: shared memory has small pages, which slows down the largest messages");
            Finding::note(id, tried, result).remedy(format!("Optional: `echo advise > {file}` as root."))
        }
        Some(setting) => Finding::ok(id, tried, setting),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Severity;

    #[test]
    fn memory_can_be_sealed_where_the_tests_run() {
        let finding = sealed();
        assert_eq!(finding.severity, Severity::Ok, "{finding:?}");
    }

    #[test]
    fn every_failed_check_has_a_remedy() {
        let mut findings = Vec::new();
        check(&mut findings);
        assert!(
            findings.iter().all(|finding| finding.severity == Severity::Ok || finding.remedy.is_some()),
            "{findings:?}"
        );
    }
}
