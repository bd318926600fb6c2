//! Letters Q to Y: an arena's entries, and the writers and readers inside them.

use super::words::{Builder, Handle, Weaken};
use super::{RACE, Setting, TORN, UNOPENED, WHOLE, only, receives, sends};
use isthmus_layout::arena::{CHANGES, ENTRY_WORDS, GENERATION, HEADER, READ, WRITE, WRITING_ENTRY, entry, writer};
use isthmus_shm::regcache::arena::{ArenaEntry, ArenaHeader};
use isthmus_shm::{Payload, Words};
use loom::thread;
use std::sync::atomic::Ordering::Relaxed;

const SHOWN: ArenaEntry = ArenaEntry { key: 7, rights: READ | WRITE, head: 0, body: 4096, start: HEADER.0, base: 0 };

/// A word of the memory that is registered.
const NUMBER: u32 = 100;

/// An empty header, with one entry and one writer, and a byte and a number of memory.
fn memory() -> Handle {
    let entry = (0..ENTRY_WORDS).map(|word| entry(0) + word);
    Builder::default().atomics(entry.chain([CHANGES, writer(0) + WRITING_ENTRY, NUMBER])).bytes([0]).build()
}

fn generation() -> u32 {
    entry(0) + GENERATION
}

fn an_entry_is_opened(setting: &Setting) {
    let memory = memory();
    let header = ArenaHeader::new(memory.weakened(setting.receives.clone()));
    let writer = thread::spawn(move || {
        if let Some((1, found)) = header.read_entry(0) {
            assert_eq!(found, SHOWN);
        }
    });
    ArenaHeader::new(memory.weakened(setting.sends.clone())).open(0, &SHOWN);
    writer.join().unwrap();
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
    let header = ArenaHeader::new(memory.weakened(setting.receives.clone()));
    let writer = thread::spawn(move || {
        if header.change_count() == 1 {
            assert!(header.is_open(0, 1), "counted before it is open");
        }
    });
    ArenaHeader::new(memory.weakened(setting.sends.clone())).open(0, &SHOWN);
    writer.join().unwrap();
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

/// "Sends" is the owner, "receives" the peer.
fn memory_is_closed_while_somebody_writes(setting: &Setting) {
    let memory = memory();
    ArenaHeader::new(memory.clone()).open(0, &SHOWN);
    let theirs = memory.weakened(setting.receives.clone());
    let writer = thread::spawn(move || {
        let header = ArenaHeader::new(theirs.clone());
        if header.begin_write(0, 0, 1) {
            theirs.copy_in(0, &[1]);
            assert!(header.end_write(0, 0), "no writer was evicted");
        }
    });
    let owner = ArenaHeader::new(memory.weakened(setting.sends.clone()));
    owner.invalidate(0);
    while owner.is_writing(0, 0) {
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
    receives(Weaken::CompareExchange(only(writer(0) + WRITING_ENTRY)))
        .fails(RACE, memory_is_closed_while_somebody_writes);
}

#[test]
fn what_is_closed_is_written_without_y() {
    sends(Weaken::Load(only(writer(0) + WRITING_ENTRY))).fails(RACE, memory_is_closed_while_somebody_writes);
}

fn memory_is_closed_while_somebody_reads(setting: &Setting) {
    let memory = memory();
    ArenaHeader::new(memory.clone()).open(0, &SHOWN);
    let theirs = memory.weakened(setting.receives.clone());
    let reader = thread::spawn(move || {
        let header = ArenaHeader::new(theirs.clone());
        let number = theirs.load(NUMBER, Relaxed);
        if header.is_still_open(0, 1) {
            assert_eq!(number, 0);
        }
    });
    ArenaHeader::new(memory.weakened(setting.sends.clone())).invalidate(0);
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
