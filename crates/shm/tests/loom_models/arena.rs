//! Letters Q to Y: an arena's entries, and who is in them.

use super::words::{Builder, Handle, Weaken};
use super::{RACE, Setting, TORN, UNOPENED, WHOLE, only, receives, sends};
use isthmus_layout::arena::{CHANGES, ENTRY_WORDS, FRONT, GENERATION, INSIDE, READ, WRITE, entry, visitor};
use isthmus_shm::rehome::arena::{Entry, Front};
use isthmus_shm::{Payload, Words};
use loom::thread;
use std::sync::atomic::Ordering::Relaxed;

const SHOWN: Entry = Entry { key: 7, rights: READ | WRITE, head: 0, body: 4096, start: FRONT.0 };

/// A word of the memory that is registered.
const NUMBER: u32 = 100;

/// An empty front, with one entry and one visitor, and a byte and a number of memory.
fn memory() -> Handle {
    let entry = (0..ENTRY_WORDS).map(|word| entry(0) + word);
    Builder::default().atomics(entry.chain([CHANGES, visitor(0) + INSIDE, NUMBER])).bytes([0]).build()
}

fn generation() -> u32 {
    entry(0) + GENERATION
}

fn an_entry_is_opened(setting: &Setting) {
    let memory = memory();
    let front = Front::new(memory.weakened(setting.receives.clone()));
    let visitor = thread::spawn(move || {
        if let Some((1, found)) = front.look(0) {
            assert_eq!(found, SHOWN);
        }
    });
    Front::new(memory.weakened(setting.sends.clone())).open(0, &SHOWN);
    visitor.join().unwrap();
}

#[test]
fn an_entry_is_whole_when_it_is_open() {
    WHOLE.passes(an_entry_is_opened);
}

#[test]
fn an_entry_is_torn_without_q() {
    sends(Weaken::Store(only(generation()))).fails(TORN, an_entry_is_opened);
}

#[test]
fn an_entry_is_torn_without_r() {
    receives(Weaken::Load(only(generation()))).fails(TORN, an_entry_is_opened);
}

fn an_opening_is_counted(setting: &Setting) {
    let memory = memory();
    let front = Front::new(memory.weakened(setting.receives.clone()));
    let visitor = thread::spawn(move || {
        if front.changes() == 1 {
            assert!(front.is_open(0, 1), "counted before it is open");
        }
    });
    Front::new(memory.weakened(setting.sends.clone())).open(0, &SHOWN);
    visitor.join().unwrap();
}

#[test]
fn what_is_counted_is_open() {
    WHOLE.passes(an_opening_is_counted);
}

#[test]
fn what_is_counted_is_not_open_without_s() {
    sends(Weaken::Store(only(CHANGES))).fails(UNOPENED, an_opening_is_counted);
}

#[test]
fn what_is_counted_is_not_open_without_t() {
    receives(Weaken::Load(only(CHANGES))).fails(UNOPENED, an_opening_is_counted);
}

/// "Sends" is the owner, "receives" the visitor.
fn memory_is_closed_while_somebody_writes(setting: &Setting) {
    let memory = memory();
    Front::new(memory.clone()).open(0, &SHOWN);
    let visited = memory.weakened(setting.receives.clone());
    let writer = thread::spawn(move || {
        let front = Front::new(visited.clone());
        if front.enter(0, 0, 1) {
            visited.copy_in(0, &[1]);
            assert!(front.leave(0, 0), "nobody was evicted");
        }
    });
    let owner = Front::new(memory.weakened(setting.sends.clone()));
    owner.shut(0);
    while owner.is_inside(0, 0) {
        thread::yield_now();
    }
    memory.copy_in(0, &[2]);
    writer.join().unwrap();
}

#[test]
fn what_is_closed_is_not_written() {
    WHOLE.passes(memory_is_closed_while_somebody_writes);
}

#[test]
fn what_is_closed_is_written_without_u() {
    sends(Weaken::Fence).fails(RACE, memory_is_closed_while_somebody_writes);
}

#[test]
fn what_is_closed_is_written_without_v() {
    receives(Weaken::Fence).fails(RACE, memory_is_closed_while_somebody_writes);
}

#[test]
fn what_is_closed_is_written_without_x() {
    receives(Weaken::Replace(only(visitor(0) + INSIDE))).fails(RACE, memory_is_closed_while_somebody_writes);
}

#[test]
fn what_is_closed_is_written_without_y() {
    sends(Weaken::Load(only(visitor(0) + INSIDE))).fails(RACE, memory_is_closed_while_somebody_writes);
}

fn memory_is_closed_while_somebody_reads(setting: &Setting) {
    let memory = memory();
    Front::new(memory.clone()).open(0, &SHOWN);
    let visited = memory.weakened(setting.receives.clone());
    let reader = thread::spawn(move || {
        let front = Front::new(visited.clone());
        let number = visited.load(NUMBER, Relaxed);
        if front.is_still_open(0, 1) {
            assert_eq!(number, 0);
        }
    });
    Front::new(memory.weakened(setting.sends.clone())).shut(0);
    memory.store(NUMBER, 1, Relaxed);
    reader.join().unwrap();
}

#[test]
fn what_is_read_was_there() {
    WHOLE.passes(memory_is_closed_while_somebody_reads);
}

#[test]
fn what_is_read_was_never_there_without_u() {
    sends(Weaken::Fence).fails(TORN, memory_is_closed_while_somebody_reads);
}

#[test]
fn what_is_read_was_never_there_without_w() {
    receives(Weaken::LoadFence).fails(TORN, memory_is_closed_while_somebody_reads);
}
