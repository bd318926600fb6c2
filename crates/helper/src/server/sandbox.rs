//! Takes from the helper what it does not need: capabilities, new privileges, system calls.
//!
//! Entered once, before there are threads; threads inherit it. A system call that is not listed fails with EPERM and has no effect.

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};
use seccompiler::BpfProgram;

use crate::permissions::Permissions;

/// The abilities of the helper after its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// True if it has CAP_NET_ADMIN.
    pub has_net_admin: bool,
    /// True if it enters other network namespaces: it was asked to, and has CAP_SYS_ADMIN.
    pub may_enter_namespaces: bool,
    /// True if it puts interfaces into bridges: it was asked to.
    pub may_join_bridges: bool,
    /// True if it makes the kernel record connections: it was asked to, and has CAP_BPF.
    pub may_record_connections: bool,
}

/// The reason why the helper does not start.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// Capabilities cannot be given up.
    #[error("giving up capabilities: {0}")]
    Capabilities(#[source] Errno),
    /// The kernel has no filter of system calls, or refuses it.
    #[error("installing the filter of system calls: {0}")]
    Filter(#[from] seccompiler::Error),
}

/// Gives up all capabilities but CAP_NET_ADMIN, CAP_SYS_ADMIN for namespaces and CAP_BPF for connection records, and all system calls but those of requests. Called
/// before there are threads.
pub fn enter(permissions: Permissions) -> Result<Abilities, SandboxError> {
    let kept = limit_capabilities(permissions).map_err(SandboxError::Capabilities)?;
    let abilities = Abilities {
        has_net_admin: kept.contains(CapabilitySet::NET_ADMIN),
        may_enter_namespaces: kept.contains(CapabilitySet::SYS_ADMIN),
        may_join_bridges: permissions.bridges,
        may_record_connections: kept.contains(CapabilitySet::BPF),
    };
    seccompiler::apply_filter(&clone3_filter())?;
    seccompiler::apply_filter(&filter(abilities))?;
    Ok(abilities)
}

/// Gives up what no helper with these permissions needs. A starter has no filter of system calls, because it starts programs.
pub fn enter_starter(permissions: Permissions) -> Result<(), SandboxError> {
    limit_capabilities(permissions).map(drop).map_err(SandboxError::Capabilities)
}

/// Returns the capabilities that are left of those that the permissions need.
fn limit_capabilities(permissions: Permissions) -> Result<CapabilitySet, Errno> {
    let for_namespaces = if permissions.namespaces { CapabilitySet::SYS_ADMIN } else { CapabilitySet::empty() };
    let for_records = if permissions.connection_records { CapabilitySet::BPF } else { CapabilitySet::empty() };
    let wanted = CapabilitySet::NET_ADMIN | for_namespaces | for_records;
    let kept = capabilities(None)?.permitted & wanted;
    for dropped in (CapabilitySet::all() - kept).iter() {
        // Needs CAP_SETPCAP. Without it, as in the system's unit, the set was limited before.
        let _ = remove_capability_from_bounding_set(dropped);
    }
    clear_ambient_capability_set()?;
    set_no_new_privs(true)?;
    let inheritable = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable })?;
    Ok(kept)
}

/// A condition on an argument: its index, the mask of its bits that count, their value.
type Condition = (u8, u64, u64);

const ALL_BITS: u64 = 0xFFFF_FFFF;

/// O_LARGEFILE and O_NOFOLLOW, which x86-64 and AArch64 have the other way round. rustix sets the first one.
const LARGE_FILE_BITS: u64 = 0o500_000;

/// The system calls that are allowed if one of their lines fits.
const CALLS: &[(&str, &[Condition])] = &[
    // Packets and netlink.
    ("accept4", &[]),
    #[cfg(target_arch = "x86_64")]
    ("poll", &[]),
    ("ppoll", &[]),
    ("recvmsg", &[]),
    ("sendmsg", &[]),
    ("socket", &[(0, ALL_BITS, 16), (2, ALL_BITS, 0)]), // AF_NETLINK, NETLINK_ROUTE
    ("connect", &[]),
    ("sendto", &[]),
    ("recvfrom", &[]),
    ("close", &[]),
    ("fcntl", &[(1, ALL_BITS, 1)]), // F_GETFD
    ("fstatfs", &[]),
    // TAP devices. O_RDWR, O_NONBLOCK and O_CLOEXEC: nothing is created.
    ("openat", &[(2, ALL_BITS & !LARGE_FILE_BITS, 0o2_004_002)]),
    ("ioctl", &[(1, ALL_BITS, 0x4004_54CA)]), // TUNSETIFF
    ("ioctl", &[(1, ALL_BITS, 0x4004_54D8)]), // TUNSETVNETHDRSZ
    ("ioctl", &[(1, ALL_BITS, 0x4004_54D0)]), // TUNSETOFFLOAD
    ("ioctl", &[(1, ALL_BITS, 0x8933)]),      // SIOCGIFINDEX
    ("getrandom", &[]),
    // Memory, never executable.
    ("brk", &[]),
    ("mmap", &[(2, 4, 0)]),
    ("mprotect", &[(2, 4, 0)]),
    ("mremap", &[]),
    ("munmap", &[]),
    ("madvise", &[]),
    // Threads, no processes and no namespaces: CLONE_THREAD, and none of the flags CLONE_NEW….
    ("clone", &[(0, 0x0001_0000, 0x0001_0000), (0, 0x7E02_0080, 0)]),
    ("clone3", &[]), // Decided by the other filter.
    ("set_robust_list", &[]),
    ("rseq", &[]),
    ("sigaltstack", &[]),
    ("sched_getaffinity", &[]),
    ("sched_yield", &[]),
    ("prctl", &[(0, ALL_BITS, 15)]), // PR_SET_NAME
    ("futex", &[]),
    ("gettid", &[]),
    ("exit", &[]),
    // Signals, the log, the end.
    ("rt_sigaction", &[]),
    ("rt_sigprocmask", &[]),
    ("rt_sigreturn", &[]),
    ("restart_syscall", &[]),
    ("clock_gettime", &[]),
    ("write", &[(0, ALL_BITS, 2)]),
    ("writev", &[(0, ALL_BITS, 2)]),
    ("exit_group", &[]),
];

/// Allowed where other namespaces are: entering those of the network, CLONE_NEWNET.
const ENTER_NAMESPACE: (&str, &[Condition]) = ("setns", &[(1, ALL_BITS, 0x4000_0000)]);

/// Allowed where connections are recorded: a map and a program, their types, and a link to a cgroup, of which the folder is opened.
const RECORD_CONNECTIONS: &[(&str, &[Condition])] = &[
    ("bpf", &[(0, ALL_BITS, 0)]),  // BPF_MAP_CREATE
    ("bpf", &[(0, ALL_BITS, 5)]),  // BPF_PROG_LOAD
    ("bpf", &[(0, ALL_BITS, 18)]), // BPF_BTF_LOAD
    ("bpf", &[(0, ALL_BITS, 28)]), // BPF_LINK_CREATE
    ("openat", &[(2, ALL_BITS & !LARGE_FILE_BITS, FOLDER)]),
];

/// O_DIRECTORY and O_CLOEXEC, without the right to write.
const FOLDER: u64 = OFlags::DIRECTORY.union(OFlags::CLOEXEC).bits() as u64;

const EPERM: u32 = 1;
const ENOSYS: u32 = 38;

fn filter(abilities: Abilities) -> BpfProgram {
    let for_records = if abilities.may_record_connections { RECORD_CONNECTIONS } else { &[] };
    let calls = CALLS.iter().chain(abilities.may_enter_namespaces.then_some(&ENTER_NAMESPACE)).chain(for_records);
    let lines: Vec<String> = calls.map(|(name, conditions)| line(name, conditions)).collect();
    compile(&lines, &format!(r#"{{"errno": {EPERM}}}"#), r#""allow""#)
}

/// The flags of `clone3` lie in memory, where a filter cannot see them. Without the call, the C library uses `clone`.
fn clone3_filter() -> BpfProgram {
    compile(&[line("clone3", &[])], r#""allow""#, &format!(r#"{{"errno": {ENOSYS}}}"#))
}

/// Describes a call as seccompiler reads it.
fn line(name: &str, conditions: &[Condition]) -> String {
    let condition = |(index, mask, value): &Condition| {
        format!(r#"{{"index": {index}, "type": "dword", "op": {{"masked_eq": {mask}}}, "val": {value}}}"#)
    };
    let conditions: Vec<String> = conditions.iter().map(condition).collect();
    let args = if conditions.is_empty() { String::new() } else { format!(r#", "args": [{}]"#, conditions.join(", ")) };
    format!(r#"{{"syscall": "{name}"{args}}}"#)
}

fn compile(lines: &[String], mismatch: &str, matched: &str) -> BpfProgram {
    let filter = lines.join(", ");
    let text =
        format!(r#"{{"helper": {{"mismatch_action": {mismatch}, "match_action": {matched}, "filter": [{filter}]}}}}"#);
    let arch = std::env::consts::ARCH.try_into().expect("seccompiler knows the architectures we build for");
    let mut compiled = seccompiler::compile_from_json(text.as_bytes(), arch).expect("the list is well-formed");
    compiled.remove("helper").expect("it is the only filter")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_compile() {
        let without = filter(Abilities::default());
        assert!(without.len() > CALLS.len());
        let abilities = Abilities { may_enter_namespaces: true, ..Abilities::default() };
        assert!(filter(abilities).len() > without.len());
        let abilities = Abilities { may_record_connections: true, ..Abilities::default() };
        assert!(filter(abilities).len() > without.len() + RECORD_CONNECTIONS.len());
        assert!(!clone3_filter().is_empty());
    }

    /// A thread in the sandbox works and ends, and other calls fail. The sandbox is that thread's alone.
    #[test]
    fn sandbox_refuses_other_calls() {
        let inside = std::thread::spawn(|| {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("file");
            enter(Permissions::default()).unwrap();
            let created = std::fs::write(&file, "x").unwrap_err();
            let read = std::fs::read("/etc/hostname").unwrap_err();
            let thread = std::thread::spawn(|| 7).join().unwrap();
            let process = std::process::Command::new("true").spawn().unwrap_err();
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap_err();
            std::mem::forget(folder); // It cannot be removed here.
            (file, [created, read, process, socket].map(|error| error.raw_os_error()), thread)
        });
        let (file, errors, thread) = inside.join().unwrap();
        std::fs::remove_dir_all(file.parent().unwrap()).unwrap();
        assert_eq!((errors, thread), ([Some(1); 4], 7));
    }
}
