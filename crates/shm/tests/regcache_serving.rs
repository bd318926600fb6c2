//! Serving threads: memory moves while they live, and they and moves do not meet. Each test runs in a process with one thread.
#![cfg(not(any(miri, loom)))] // No memory files or mappings of them there.
#![allow(clippy::unwrap_used, reason = "tests")]

mod regcache_common;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use isthmus_layout::DomainId;
use isthmus_layout::arena::{READ, WRITE};
use isthmus_shm::regcache::ColdReason;
use isthmus_shm::regcache::arena::{AccessRights, Arena, ArenaMapping, RegisteredMemory, Registration};
use isthmus_shm::regcache::serving::{self, ServingThread};
use regcache_common::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// Runs the test `name` in a process with one thread, which may not use userfaultfd.
fn alone(name: &str, body: impl FnOnce()) {
    alone_beside(name, || {}, body);
}

/// As [`alone`], while `beside` runs in the parent of that process.
fn alone_beside(name: &str, beside: impl FnOnce() + Send, body: impl FnOnce()) {
    in_own_process(name, || {
        std::thread::scope(|scope| {
            scope.spawn(beside);
            let ended = in_child(fork, || {
                let mut of_thread = capabilities(None).unwrap();
                of_thread.effective.remove(CapabilitySet::SYS_PTRACE | CapabilitySet::SYS_ADMIN);
                set_capabilities(None, of_thread).unwrap();
                match register(&Arc::new(Arena::new().unwrap()), &Pages::new(PAGE)) {
                    Ok(_) => body(),
                    Err(reason) => eprintln!("skipped: {reason}"),
                }
            });
            assert!(ended, "the process that was alone failed");
        });
    });
}

fn register(arena: &Arc<Arena>, pages: &Pages) -> Result<RegisteredMemory, ColdReason> {
    register_at(arena, pages.start, pages.len)
}

fn register_at(arena: &Arc<Arena>, start: *const u8, len: usize) -> Result<RegisteredMemory, ColdReason> {
    // SAFETY: closed before the memory is unmapped.
    arena.register(&unsafe { Registration::new(start, len, 1, READ | WRITE) })
}

/// Registers as soon as threads that were joined are gone: the kernel counts them a moment longer.
fn register_when_gone(arena: &Arc<Arena>, pages: &Pages) -> RegisteredMemory {
    loop {
        match register(arena, pages) {
            Err(ColdReason::Threads) => std::thread::yield_now(),
            registered => return registered.unwrap(),
        }
    }
}

/// Runs `serve` as a serving thread.
fn run<R>(serve: impl FnOnce(&mut ServingThread) -> R) -> R {
    // SAFETY: a thread of `std`. The tests write outside of the gate to the stack only.
    unsafe { serving::run(serve) }
}

fn words(bytes: &[u8]) -> &[AtomicU64] {
    // SAFETY: aligned; the tests reach these bytes by atomic operations only.
    unsafe { bytes.align_to() }.1
}

/// Returns true if something came, false at the end of the stream.
fn receive(socket: &OwnedFd, bytes: &mut [u8]) -> bool {
    rustix::io::read(socket, bytes).unwrap() > 0
}

const MEMORY: usize = 128 << 10;
const WORDS: usize = MEMORY / 8;
const BURST: usize = 16;

/// A peer that requests increments of random words, a burst at a time, until the owner ends that.
fn request(socket: &OwnedFd) {
    let mut random = 88_172_645_463_325_252_u64;
    loop {
        let mut burst = [0; 4 * BURST];
        for word in burst.chunks_mut(4) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            word.copy_from_slice(&(random as u32).to_ne_bytes());
        }
        // Refused or unanswered when the owner is gone.
        if rustix::io::write(socket, &burst).is_err() || !receive(socket, &mut [0]) {
            return;
        }
    }
}

/// Serves until `over`: adds 1 to the word of each request in the memory of each kind. Returns the number of additions to each.
fn serve_requests(socket: OwnedFd, kinds: [&[AtomicU64]; 3], over: &AtomicBool) -> Vec<u64> {
    let mut counts = vec![0; WORDS];
    run(|thread| {
        assert_eq!(thread.refusal(), None);
        let mut requests = [0; 4 * BURST];
        while receive(&socket, &mut requests) {
            let _inside = thread.enter();
            for request in requests.chunks(4) {
                // Even words: the program adds to the odd ones.
                let at = (u32::from_ne_bytes(request.try_into().unwrap()) as usize % WORDS) & !1;
                counts[at] += 1;
                kinds.iter().for_each(|words| {
                    // Two steps, as a copy of bytes would be: also an update that is not atomic must not be lost.
                    words[at].store(words[at].load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                });
            }
            if over.load(Ordering::Relaxed) {
                break;
            }
            rustix::io::write(&socket, &[1]).unwrap();
        }
    });
    counts
}

#[test]
fn memory_moves_thousands_of_times_while_a_thread_serves_peers() {
    const MOVES: u64 = 2000;
    let flags = SocketFlags::CLOEXEC;
    let (peers, owners) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    let name = "memory_moves_thousands_of_times_while_a_thread_serves_peers";
    let peers_end = peers.as_fd().try_clone_to_owned().unwrap();
    let owners_end = owners.as_fd().try_clone_to_owned().unwrap();
    alone_beside(
        name,
        move || (drop(owners), request(&peers)).1,
        move || {
            drop(peers_end);
            let arena = Arc::new(Arena::new().unwrap());
            let [moving, registered, unregistered] = [0; 3].map(|_| Pages::new(MEMORY));
            let _registered = register(&arena, &registered).unwrap();
            let kinds = [&moving, &registered, &unregistered].map(|pages| words(pages.bytes()));
            let over = AtomicBool::new(false);
            let counts = std::thread::scope(|scope| {
                let (socket, over) = (owners_end, &over);
                let thread = scope.spawn(move || serve_requests(socket, kinds, over));
                let mut mapping = ArenaMapping::new(arena.grant().unwrap(), DomainId::new(7).unwrap()).unwrap();
                for at in 0..MOVES as usize {
                    // The thread is not a serving thread yet, at first.
                    let closes = register_when_gone(&arena, &moving);
                    let odd = (at % (WORDS / 2)) * 2 + 1;
                    kinds[0][odd].fetch_add(1, Ordering::Relaxed);
                    let access = mapping.access(1, odd as u64 * 8, 8, AccessRights::Both).unwrap();
                    // SAFETY: eight aligned bytes, which the access keeps in place.
                    unsafe { AtomicU64::from_ptr(access.pointer().as_ptr().cast()) }.fetch_add(1, Ordering::Relaxed);
                    access.finish().unwrap();
                    drop(closes);
                }
                over.store(true, Ordering::Relaxed);
                thread.join().unwrap()
            });
            let total = counts.iter().sum::<u64>();
            eprintln!("{total} writes were served during {MOVES} moves");
            assert!(total > MOVES, "served meanwhile");
            for (kind, words) in kinds.iter().enumerate() {
                let wrong = (0..WORDS).step_by(2).filter(|&at| words[at].load(Ordering::Relaxed) != counts[at]).count();
                assert_eq!(wrong, 0, "words of kind {kind} lost writes of the serving thread");
            }
            let own = (1..WORDS).step_by(2).map(|at| kinds[0][at].load(Ordering::Relaxed)).sum::<u64>();
            assert_eq!(own, 2 * MOVES, "writes of the program and its peer");
        },
    );
}

/// Runs `body` while a serving thread sleeps outside of the gate.
fn beside_serving_thread(body: impl FnOnce()) {
    let (ready, over) = (Barrier::new(2), rustix::pipe::pipe().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            run(|thread| {
                drop(thread.enter());
                ready.wait(); // On the stack of the other thread, which moves nothing yet.
                receive(&over.0, &mut [0]);
            });
        });
        ready.wait();
        body();
        rustix::io::write(&over.1, &[1]).unwrap();
    });
}

/// Runs `body` beside a thread that has done `first` and is no serving thread.
fn beside_other_thread(first: impl FnOnce() + Send, body: impl FnOnce()) {
    let barrier = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            first();
            barrier.wait();
            barrier.wait()
        });
        barrier.wait();
        body();
        barrier.wait();
    });
}

#[test]
fn only_listed_threads_are_not_counted() {
    alone("only_listed_threads_are_not_counted", || {
        let (arena, pages) = (Arc::new(Arena::new().unwrap()), Pages::new(PAGE));
        beside_serving_thread(|| {
            register(&arena, &pages).unwrap();
            beside_serving_thread(|| drop(register(&arena, &pages).unwrap()));
            drop(register_when_gone(&arena, &pages));
            beside_other_thread(|| {}, || assert_eq!(register(&arena, &pages).err(), Some(ColdReason::Threads)));
            drop(register_when_gone(&arena, &pages));
        });
        drop(register_when_gone(&arena, &pages));
        let was_one = || run(|thread| drop(thread.enter()));
        beside_other_thread(was_one, || assert_eq!(register(&arena, &pages).err(), Some(ColdReason::Threads)));
    });
}

#[test]
fn thread_that_panics_inside_is_removed_before_it_leaves() {
    alone("thread_that_panics_inside_is_removed_before_it_leaves", || {
        let (arena, pages) = (Arc::new(Arena::new().unwrap()), Pages::new(PAGE));
        let panics = || {
            let inside = |thread: &mut ServingThread| {
                let _inside = thread.enter();
                panic!("on purpose");
            };
            assert!(std::panic::catch_unwind(|| run(inside)).is_err());
        };
        beside_other_thread(panics, || assert_eq!(register(&arena, &pages).err(), Some(ColdReason::Threads)));
        drop(register_when_gone(&arena, &pages));
    });
}

#[test]
fn stack_of_a_serving_thread_does_not_move() {
    alone("stack_of_a_serving_thread_does_not_move", || {
        let arena = Arc::new(Arena::new().unwrap());
        let (stack, over) = (AtomicU64::new(0), rustix::pipe::pipe().unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                run(|thread| {
                    let on_the_stack = [0_u8; 1];
                    let inside = thread.enter();
                    stack.store(on_the_stack.as_ptr().expose_provenance() as u64, Ordering::Release);
                    drop(inside);
                    receive(&over.0, &mut [0]);
                });
            });
            while stack.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            let page = stack.load(Ordering::Acquire) as usize & !(PAGE - 1);
            let start = std::ptr::with_exposed_provenance(page);
            assert_eq!(register_at(&arena, start, PAGE).err(), Some(ColdReason::SpecialMemory));
            drop(register(&arena, &Pages::new(PAGE)).unwrap());
            rustix::io::write(&over.1, &[1]).unwrap();
        });
    });
}

/// A lock that the serving thread takes inside of the gate is free in a child, and the child counts its own threads only.
#[test]
fn child_finds_the_gate_and_its_locks_free() {
    alone("child_finds_the_gate_and_its_locks_free", || {
        let (arena, pages) = (Arc::new(Arena::new().unwrap()), Pages::new(PAGE));
        let (lock, over) = (Mutex::new(0_u64), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                run(|thread| {
                    while !over.load(Ordering::Relaxed) {
                        let _inside = thread.enter();
                        let mut count = lock.lock().unwrap();
                        *count += 1;
                        vec![0_u8; 100 + *count as usize % 1000].iter_mut().for_each(|byte| *byte = 1);
                    }
                });
            });
            drop(register_when_gone(&arena, &pages));
            for _ in 0..100 {
                let ended = in_child(fork, || {
                    assert!(lock.try_lock().is_ok(), "a lock of the parent's thread");
                    let own = Arc::new(Arena::new().unwrap());
                    drop(register(&own, &pages).unwrap());
                    beside_other_thread(|| {}, || assert_eq!(register(&own, &pages).err(), Some(ColdReason::Threads)));
                    beside_serving_thread(|| drop(register_when_gone(&own, &pages)));
                });
                assert!(ended);
                drop(register(&arena, &pages).unwrap());
            }
            over.store(true, Ordering::Relaxed);
        });
    });
}

/// A handler of the program could write anywhere.
#[test]
fn serving_threads_take_no_signals() {
    let blocked = || {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap()
    };
    let before = blocked();
    let inside = run(|thread| {
        let _inside = thread.enter();
        blocked()
    });
    // All but KILL, STOP and the two that libc keeps for its own use.
    let may_stay = [9, 19, 32, 33, 34].iter().fold(0, |mask, signal| mask | 1_u64 << (signal - 1));
    assert_eq!(inside | may_stay, u64::MAX);
    assert_eq!(blocked(), before);
}

#[test]
fn thread_serves_where_it_cannot_be_listed() {
    in_own_process("thread_serves_where_it_cannot_be_listed", || {
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
        assert_eq!(run(|thread| thread.refusal()), Some(ColdReason::DescriptorLimit));
        setrlimit(Resource::Nofile, limit).unwrap();
        assert_eq!(run(|thread| thread.refusal()), None);
    });
}
