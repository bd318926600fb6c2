//! Scheduling latency of a thread that is woken.

use std::time::Duration;

/// The kernel's `struct sched_attr`, as far as every version has it (linux/sched/types.h).
#[repr(C)]
#[derive(Debug, Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

const _: () = assert!(size_of::<Attributes>() == 48);

/// Requests short time slices for the calling thread. Since Linux 6.12 a thread with shorter slices than the running thread gets the CPU
/// as soon as it is woken; otherwise it may wait for some milliseconds behind a program that spins. Its share of CPU time does not
/// change. Returns false, without effect, on older kernels and on those that refuse.
pub fn request_short_slices(slice: Duration) -> bool {
    let runtime_ns = u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX);
    let attributes = Attributes { size: size_of::<Attributes>() as u32, runtime_ns, ..Attributes::default() };
    let (this_thread, flags) = (0, 0);
    // SAFETY: the kernel reads `size` bytes of the structure, which are there, and keeps nothing of it.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, this_thread, &raw const attributes, flags) };
    set == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_slice_is_set_for_the_thread() {
        std::thread::spawn(|| {
            assert!(request_short_slices(Duration::from_micros(150)));
            let mut now = Attributes::default();
            let size = size_of::<Attributes>() as u32;
            // SAFETY: the kernel writes `size` bytes at most.
            let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut now, size, 0) };
            assert_eq!((got, now.policy), (0, 0));
            // Kernels before 6.12 have no slices of a thread's own.
            assert!([0, 150_000].contains(&now.runtime_ns), "{now:?}");
        })
        .join()
        .unwrap();
    }
}
