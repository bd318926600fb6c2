//! Letters I and J: slab bytes used again.

use super::words::{Builder, Weaken, layout};
use super::{RACE, Setting, WHOLE, only, receives, sends};
use isthmus_layout::channel::SLAB_HEAD;
use isthmus_layout::limits::SLAB_BYTES_MIN;
use isthmus_layout::record::Fragment;
use isthmus_shm::Payload;
use loom::thread;

/// A fragment: its bytes are reserved again while they are taken.
fn slab_bytes_are_used_again(setting: &Setting) {
    const LEN: u32 = SLAB_BYTES_MIN / 4;
    let memory = Builder::default().slab([0]).build();
    let (sending, receiving) = (memory.weakened(setting.sends.clone()), memory.weakened(setting.receives.clone()));
    let (mut producer, mut consumer) = (sending.slab_producer(), receiving.slab_consumer());
    let fragment = producer.reserve(LEN, LEN).unwrap().unwrap();
    sending.copy_in(producer.region_offset(fragment), &[1]);
    let sender = thread::spawn(move || {
        if let Some(Fragment { offset: 0, .. }) = producer.reserve(LEN, LEN).unwrap() {
            sending.copy_in(producer.region_offset(fragment), &[2]);
        }
    });
    let mut bytes = [0];
    receiving.copy_out(consumer.span(fragment).unwrap().start(), &mut bytes);
    assert_eq!(bytes, [1]);
    consumer.release(fragment);
    consumer.publish();
    sender.join().unwrap();
}

#[test]
fn slab_bytes_are_not_written_before_they_were_copied() {
    WHOLE.passes(slab_bytes_are_used_again);
}

#[test]
fn slab_bytes_are_written_before_they_were_copied_without_i() {
    receives(Weaken::Store(only(layout().consumer + SLAB_HEAD))).fails(RACE, slab_bytes_are_used_again);
}

#[test]
fn slab_bytes_are_written_before_they_were_copied_without_j() {
    sends(Weaken::Load(only(layout().consumer + SLAB_HEAD))).fails(RACE, slab_bytes_are_used_again);
}
