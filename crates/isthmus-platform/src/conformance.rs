//! The suite that every platform passes.
//!
//! Two sides of one platform, in one process or with a border between them; each check panics with what it missed. Tests of a
//! platform call [`check_all`].

use crate::{Listen, Platform, Ring};
use isthmus_layout::RegionSize;
use isthmus_layout::channel::{Direction, Geometry, SlabSize};
use isthmus_layout::limits::SLAB_BYTES_MIN;
use isthmus_shm::{Access, Consumer, Payload, Producer, RecordBuffer, SlabConsumer, SlabProducer, Window, Words};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Long enough for any platform, emulated ones too; only a missing wake-up ever waits for it.
const LIVENESS: Duration = Duration::from_secs(30);

/// All checks, between `ours` and `theirs`; `them` is what we know the other side by, `us` what it knows us by.
pub fn check_all<P: Platform>(ours: &P, them: &P::Peer, theirs: &P, us: &P::Peer) {
    memory_starts_as_zeroes_and_is_shared(ours, them, theirs);
    read_only_grants_show_later_writes(ours, them, theirs);
    more_than_there_is_cannot_be_mapped(ours, them, theirs);
    a_doorbell_wakes_once_for_many_rings(ours, them, theirs);
    records_and_pieces_cross(ours, them, theirs);
    both_sides_can_grant(theirs, us, ours);
}

fn memory_starts_as_zeroes_and_is_shared<P: Platform>(ours: &P, them: &P::Peer, theirs: &P) {
    let size = RegionSize(4 * 4096);
    let memory = ours.allocate(size).expect("allocate");
    let own = Window::new(ours.map_own(&memory).expect("map_own"));
    let grant = ours.grant(&memory, them, Access::ReadWrite).expect("grant");
    let peer = Window::new(theirs.map(grant, size, Access::ReadWrite).expect("map"));
    let mut bytes = [0xff; 4096];
    peer.copy_out(3 * 4096, &mut bytes);
    assert!(bytes.iter().all(|&byte| byte == 0), "fresh memory is not zeroed");
    for page in 0..4 {
        own.store(page * 1024 + 1, page + 10, Relaxed);
        peer.store(page * 1024 + 2, page + 20, Relaxed);
        assert_eq!((peer.load(page * 1024 + 1, Relaxed), own.load(page * 1024 + 2, Relaxed)), (page + 10, page + 20));
    }
}

fn read_only_grants_show_later_writes<P: Platform>(ours: &P, them: &P::Peer, theirs: &P) {
    let size = RegionSize(4096);
    let memory = ours.allocate(size).expect("allocate");
    let own = Window::new(ours.map_own(&memory).expect("map_own"));
    let grant = || ours.grant(&memory, them, Access::Read).expect("grant");
    let peer = Window::new(theirs.map(grant(), size, Access::Read).expect("map"));
    own.copy_in(100, b"later");
    let mut bytes = [0; 5];
    peer.copy_out(100, &mut bytes);
    assert_eq!(&bytes, b"later");
    assert!(theirs.map(grant(), size, Access::ReadWrite).is_err(), "a read-only grant was mapped writable");
}

fn more_than_there_is_cannot_be_mapped<P: Platform>(ours: &P, them: &P::Peer, theirs: &P) {
    let memory = ours.allocate(RegionSize(4096)).expect("allocate");
    let grant = ours.grant(&memory, them, Access::ReadWrite).expect("grant");
    assert!(theirs.map(grant, RegionSize(2 * 4096), Access::ReadWrite).is_err(), "mapped beyond the grant");
}

fn a_doorbell_wakes_once_for_many_rings<P: Platform>(ours: &P, them: &P::Peer, theirs: &P) {
    let (listener, bell) = ours.doorbell(them).expect("doorbell");
    let ringer = theirs.ringer(bell).expect("ringer");
    while listener.wait(Duration::ZERO) {} // Some platforms ring once when the bell is hung.
    ringer.ring();
    ringer.ring();
    assert!(listener.wait(LIVENESS), "nobody heard the doorbell");
    assert!(!listener.wait(Duration::ZERO), "two rings before the first wait are one");
    ringer.ring();
    assert!(listener.wait(LIVENESS), "the doorbell works only once");
}

fn records_and_pieces_cross<P: Platform>(ours: &P, them: &P::Peer, theirs: &P) {
    let geometry = Geometry { slab: SlabSize::new(SLAB_BYTES_MIN).expect("the smallest slab is one") };
    let memory = ours.allocate(geometry.size()).expect("allocate");
    let own = Window::new(ours.map_own(&memory).expect("map_own"));
    let grant = ours.grant(&memory, them, Access::ReadWrite).expect("grant");
    let peer = Window::new(theirs.map(grant, geometry.size(), Access::ReadWrite).expect("map"));
    let at = geometry.direction(Direction::Zero);
    let (mut producer, mut consumer) = (Producer::new(own.clone(), at), Consumer::new(peer.clone(), at));
    let mut slab_out = SlabProducer::new(own.clone(), at, geometry.slab);
    let mut slab_in = SlabConsumer::new(peer.clone(), at, geometry.slab);
    let mut record = RecordBuffer::default();
    for round in 0..1000_u32 {
        let message: Vec<u8> = (0..round % 128).map(|at| (at + round) as u8).collect();
        let piece = slab_out.reserve(1, 3000).expect("no fault").expect("everything came back");
        own.copy_in(slab_out.byte(piece), &[round as u8; 3000]);
        producer.push(7, &[round, piece.offset, piece.len], &message).expect("everything was consumed");
        assert!(!producer.wake());
        assert!(consumer.pop(&mut record).expect("no fault"), "record {round} did not arrive");
        assert_eq!((record.kind(), record.words()[0]), (7, round));
        let arrived: Vec<u8> = record.words()[3..].iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(arrived[..message.len()], message);
        let span = slab_in.span(piece).expect("inside");
        let mut bytes = [0; 3000];
        peer.copy_out(span.start(), &mut bytes);
        assert_eq!(bytes, [round as u8; 3000]);
        if slab_in.give_back(piece) | consumer.owes() {
            slab_in.publish();
            assert!(!consumer.publish());
        }
    }
    assert!(consumer.park().expect("no fault"));
    producer.push(7, &[], &[]).expect("room");
    assert!(producer.wake(), "a parked consumer was not noticed");
    assert!(!producer.wake(), "noticed twice");
}

fn both_sides_can_grant<P: Platform>(ours: &P, them: &P::Peer, theirs: &P) {
    memory_starts_as_zeroes_and_is_shared(ours, them, theirs);
}

#[cfg(test)]
mod tests {
    use crate::Local;

    #[test]
    fn local_passes() {
        super::check_all(&Local, &(), &Local, &());
    }
}
