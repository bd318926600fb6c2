//! The seccomp filter of a sandbox: what containers commonly refuse, and the calls other systems' fast paths rest on.
//!
//! A refused call answers EPERM, as Docker's and Podman's default profiles do. Everything else is allowed: the sandbox tests
//! what a library may rely on, it does not hold an attacker. [`SyscallDenial`] adds to it, as older kernels and stricter modules do.

use std::collections::BTreeMap;

use nix::libc;
use rustix::io::Errno;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

/// The system calls a sandbox refuses, by name and number.
pub const DENIED: [(&str, i64); 9] = [
    ("process_vm_readv", libc::SYS_process_vm_readv),
    ("process_vm_writev", libc::SYS_process_vm_writev),
    ("ptrace", libc::SYS_ptrace),
    ("io_uring_setup", libc::SYS_io_uring_setup),
    ("userfaultfd", libc::SYS_userfaultfd),
    ("bpf", libc::SYS_bpf),
    ("perf_event_open", libc::SYS_perf_event_open),
    ("kcmp", libc::SYS_kcmp),
    ("pidfd_getfd", libc::SYS_pidfd_getfd),
];

/// One more system call that a sandbox refuses: all such calls, or those with certain arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyscallDenial {
    call: i64,
    errno: Errno,
    arguments: Vec<(u8, u64, u64)>,
}

impl SyscallDenial {
    /// Refuses the system call of this number (`SYS_…`) with `errno`.
    pub fn new(call: i64, errno: Errno) -> Self {
        Self { call, errno, arguments: Vec::new() }
    }

    /// Only where the bits `mask` of argument `index` (from 0) are those of `value`.
    ///
    /// # Panics
    ///
    /// When there is no such argument.
    pub fn only(mut self, index: u8, mask: u64, value: u64) -> Self {
        assert!(index < 6, "system calls have six arguments");
        self.arguments.push((index, mask, value & mask));
        self
    }

    /// The filter of this refusal alone: one filter gives one answer.
    pub(crate) fn program_bytes(&self) -> Vec<u8> {
        let condition = |&(index, mask, value): &(u8, u64, u64)| {
            SeccompCondition::new(index, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(mask), value)
        };
        let conditions = self.arguments.iter().map(condition).collect::<Result<Vec<_>, _>>();
        let conditions = conditions.expect("each index was checked");
        let rules = if conditions.is_empty() {
            Vec::new() // Whatever its arguments.
        } else {
            vec![SeccompRule::new(conditions).expect("a rule with conditions is one")]
        };
        bytes_of(compile(BTreeMap::from([(self.call, rules)]), self.errno.raw_os_error()))
    }
}

/// The filter as the kernel reads it (`struct sock_filter[]`), for `bwrap --add-seccomp-fd`.
pub(crate) fn program_bytes() -> Vec<u8> {
    bytes_of(program())
}

fn bytes_of(program: BpfProgram) -> Vec<u8> {
    let mut bytes = Vec::new();
    for instruction in program {
        bytes.extend_from_slice(&instruction.code.to_ne_bytes());
        bytes.extend_from_slice(&[instruction.jt, instruction.jf]);
        bytes.extend_from_slice(&instruction.k.to_ne_bytes());
    }
    bytes
}

fn program() -> BpfProgram {
    compile(DENIED.iter().map(|(_, number)| (*number, Vec::new())).collect(), libc::EPERM)
}

fn compile(rules: BTreeMap<i64, Vec<SeccompRule>>, errno: i32) -> BpfProgram {
    let arch = TargetArch::try_from(std::env::consts::ARCH).expect("seccompiler knows the architectures we build for");
    let refuse = SeccompAction::Errno(errno as u32);
    SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch)
        .and_then(BpfProgram::try_from)
        .expect("a list of system calls makes a valid filter")
}

#[cfg(test)]
mod tests {
    use super::*;
    use seccompiler::sock_filter;

    const ALLOW: u32 = 0x7fff_0000;
    const REFUSE: u32 = 0x0005_0000 | libc::EPERM as u32;
    #[cfg(target_arch = "x86_64")]
    const ARCH: u32 = 0xc000_003e;
    #[cfg(target_arch = "aarch64")]
    const ARCH: u32 = 0xc000_00b7;

    /// Runs the few instructions seccompiler emits over `struct seccomp_data { nr, arch, … }`.
    fn verdict(program: &[sock_filter], nr: u32) -> u32 {
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let instruction = &program[at];
            at += 1;
            match instruction.code {
                0x20 => accumulator = [nr, ARCH][instruction.k as usize / 4],
                0x05 => at += instruction.k as usize,
                0x15 => at += usize::from(if accumulator == instruction.k { instruction.jt } else { instruction.jf }),
                0x06 => return instruction.k,
                code => panic!("instruction {code:#x} is new to this test"),
            }
        }
    }

    #[test]
    fn filter_refuses_each_denied_call_and_allows_the_others() {
        let program = program();
        for nr in 0..600 {
            let denied = DENIED.iter().any(|(_, number)| *number == i64::from(nr));
            let expected = if denied { REFUSE } else { ALLOW };
            assert_eq!(verdict(&program, nr), expected, "system call {nr}");
        }
    }

    #[test]
    fn filter_bytes_are_whole_instructions() {
        assert_eq!(program_bytes().len(), program().len() * 8);
    }
}
