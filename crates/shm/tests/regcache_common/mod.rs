//! Shared code of the tests of the registration cache: memory at known places, and tests in a process of their own.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::ffi::{c_int, c_uint};
use std::ops::Range;
use std::process::{Command, exit};

use isthmus_shm::regcache::{
    CacheConfig, ColdReason, MigrationTarget, PeerRegion, Prepared, RegistrationCache, UserRange, Warm,
};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

pub(crate) const PAGE: usize = 4096;
pub(crate) const MIB: usize = 1 << 20;

/// Anonymous pages at a place of our own, unmapped in the end.
pub(crate) struct Pages {
    pub(crate) start: *mut u8,
    pub(crate) len: usize,
}

// SAFETY: plain memory.
unsafe impl Send for Pages {}
// SAFETY: as above; tests coordinate their writes.
unsafe impl Sync for Pages {}

impl Pages {
    pub(crate) fn new(len: usize) -> Self {
        // One page of the wrong kind on each side, so that neighbours never merge.
        // SAFETY: a new mapping.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len + 2 * PAGE, ProtFlags::empty(), MapFlags::PRIVATE) };
        let start = start.unwrap().cast::<u8>().wrapping_add(PAGE);
        let mut pages = Self { start, len };
        pages.map_anew();
        pages
    }

    /// Other memory at the same place.
    pub(crate) fn map_anew(&mut self) {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: within our own reservation.
        let at = unsafe { mmap_anonymous(self.start.cast(), self.len, ProtFlags::READ | ProtFlags::WRITE, flags) };
        assert_eq!(at.unwrap().cast(), self.start);
    }

    pub(crate) fn filled(len: usize, seed: u64) -> Self {
        let mut pages = Self::new(len);
        pages.fill(seed);
        pages
    }

    pub(crate) fn fill(&mut self, seed: u64) {
        let bytes = pattern(seed, self.len);
        self.bytes_mut().copy_from_slice(&bytes);
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: ours and mapped, unless the test has just unmapped it.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }

    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        self.start.wrapping_add(offset)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: ours, with the pages around it.
        unsafe { munmap(self.start.wrapping_sub(PAGE).cast(), self.len + 2 * PAGE) }.unwrap();
    }
}

/// Bytes which differ from place to place and from seed to seed.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..len.div_ceil(8)).flat_map(|_| next().to_ne_bytes()).take(len).collect()
}

pub(crate) fn prepare(cache: &RegistrationCache, bytes: &[u8]) -> Prepared {
    prepare_at(cache, bytes.as_ptr(), bytes.len())
}

pub(crate) fn prepare_at(cache: &RegistrationCache, start: *const u8, len: usize) -> Prepared {
    // SAFETY: tests neither write nor free while they hold the result.
    cache.prepare(&unsafe { UserRange::new(start, len) })
}

/// Prepares a buffer as in a guest, onto extents.
pub(crate) fn prepare_onto_extents(cache: &RegistrationCache, bytes: &[u8]) -> Prepared {
    // SAFETY: as above.
    cache.prepare_onto(&unsafe { UserRange::new(bytes.as_ptr(), bytes.len()) }, MigrationTarget::Extents)
}

/// The answer for a buffer that is used again and again until there is one other than `FirstUse`.
pub(crate) fn settled(cache: &RegistrationCache, start: *const u8, len: usize) -> Result<Warm, ColdReason> {
    for _ in 0..1000 {
        match prepare_at(cache, start, len) {
            Prepared::Cold(ColdReason::FirstUse) => {}
            Prepared::Cold(reason) => return Err(reason),
            Prepared::Warm(warm) => return Ok(warm),
            Prepared::NeedsExtent { .. } => panic!("files need no extent"),
        }
    }
    panic!("still not used often enough");
}

pub(crate) fn warm(cache: &RegistrationCache, bytes: &[u8]) -> Warm {
    settled(cache, bytes.as_ptr(), bytes.len()).expect("plain memory can be migrated")
}

pub(crate) fn cold(prepared: Prepared) -> ColdReason {
    match prepared {
        Prepared::Cold(reason) => reason,
        warmer => panic!("not cold: {warmer:?}"),
    }
}

/// Returns the bytes that a peer would see of the body of a message.
pub(crate) fn seen_by_peer(cache: &RegistrationCache, warm: &Warm) -> Vec<u8> {
    let theirs = granted(cache, warm);
    let mut copy = vec![0; warm.body.len()];
    theirs.copy_out(warm.offset, &mut copy).unwrap();
    copy
}

pub(crate) fn granted(cache: &RegistrationCache, warm: &Warm) -> PeerRegion {
    let grant = cache.grant(warm.region).unwrap();
    PeerRegion::map(&grant.fd, grant.start, grant.len, 1 << 30).unwrap()
}

pub(crate) fn small_cache(entries_max: usize, bytes_max: usize) -> RegistrationCache {
    RegistrationCache::new(CacheConfig { entries_max, bytes_max, ..config() })
}

/// The default, but for tests that run side by side under a low limit of locked memory, and that lose buffers on purpose without
/// wanting the others to be doubted for it.
pub(crate) fn config() -> CacheConfig {
    CacheConfig { allow_unlocked: true, misses_per_doubling: u32::MAX, ..CacheConfig::default() }
}

/// Whether the kernel calls this page a private one (of whatever file).
pub(crate) fn is_private(address: *const u8) -> bool {
    line_of_maps(address).is_some_and(|line| line.split(' ').nth(1).is_some_and(|rights| rights.ends_with('p')))
}

pub(crate) fn rights(address: *const u8) -> Option<String> {
    line_of_maps(address).map(|line| line.split(' ').nth(1).unwrap_or_default().to_owned())
}

fn line_of_maps(address: *const u8) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().find(|line| range_of(line).contains(&address.addr())).map(str::to_owned)
}

/// Whether anything is mapped there.
pub(crate) fn is_mapped(address: *const u8) -> bool {
    line_of_maps(address).is_some()
}

/// The flags that `/proc/self/smaps` shows for the mapping at an address.
pub(crate) fn flags(address: *const u8) -> String {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let is_header = |line: &&str| line.split(' ').next().is_some_and(|range| range.contains('-'));
    let mut lines = smaps.lines().skip_while(|line| !(is_header(line) && range_of(line).contains(&address.addr())));
    lines.find_map(|line| line.strip_prefix("VmFlags:")).unwrap().to_owned()
}

pub(crate) fn range_of(line: &str) -> Range<usize> {
    let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
    usize::from_str_radix(start, 16).unwrap()..usize::from_str_radix(end, 16).unwrap()
}

/// Runs the body of the test `name` in a process of its own, where it may fork, exhaust limits or lock memory.
pub(crate) fn in_own_process(name: &str, body: impl FnOnce()) {
    const MARK: &str = "ISTHMUS_TEST_IN_OWN_PROCESS";
    if std::env::var(MARK).as_deref() == Ok(name) {
        // SAFETY: no handler: a test that hangs is killed.
        unsafe { alarm(120) };
        body();
        return;
    }
    let me = std::env::current_exe().unwrap();
    let status = Command::new(me).args([name, "--exact", "--nocapture", "--include-ignored"]).env(MARK, name).status();
    assert!(status.unwrap().success(), "{name} failed in its own process");
}

/// Runs `body` in a forked child and returns whether it came to its end.
pub(crate) fn in_child(fork: unsafe extern "C" fn() -> c_int, body: impl FnOnce()) -> bool {
    // SAFETY: the child runs `body`, in which only this thread's things are used, and then leaves without clean-up.
    let pid = unsafe { fork() };
    assert!(pid >= 0, "fork failed");
    if pid == 0 {
        // SAFETY: no handler: a child that hangs is killed, too.
        unsafe { alarm(20) };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        exit(if outcome.is_ok() { 0 } else { 1 });
    }
    wait(pid)
}

/// Whether the child left with 0.
pub(crate) fn wait(pid: c_int) -> bool {
    let mut status = 0;
    // SAFETY: `status` is ours.
    assert_eq!(unsafe { waitpid(pid, &mut status, 0) }, pid);
    status == 0
}

unsafe extern "C" {
    pub(crate) fn fork() -> c_int;
    pub(crate) fn _Fork() -> c_int;
    pub(crate) fn sbrk(by: isize) -> *mut u8;
    fn alarm(seconds: c_uint) -> c_uint;
    fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
}
