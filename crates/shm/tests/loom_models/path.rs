//! The whole path: a sleeping side is woken, by a record or by room for one.

use super::words::{Bodies, Builder, Handle, Weaken};
use super::{DEADLOCK, Setting, WHOLE, only, receives, sends};
use isthmus_layout::limits::RING_CELLS;
use isthmus_layout::ready_map::{ReadyBit, SUMMARY};
use isthmus_shm::{Consumer, PeerReadyBit, Producer, ReadyMap, RecordBuffer};
use loom::sync::Notify;
use loom::thread;
use std::sync::Arc;

/// One end of a path: the ring's memory, the ready map that this end sleeps on, the other end's ready map, and the doorbells of both.
struct End {
    ring: Handle,
    own: Handle,
    theirs: Handle,
    doorbell: Arc<Notify>,
    their_doorbell: Arc<Notify>,
}

impl End {
    /// Sender and receiver; `ring` and `ready_maps` leave something out of either.
    fn both(ring: &Setting, ready_maps: &Setting) -> [Self; 2] {
        let bits = [ReadyBit::DOMAIN_RING];
        let memory = Builder::default().ring(3, Bodies::Plain).ready_map(1, &bits).ready_map(2, &bits).build();
        let maps_of = [memory.in_region(1), memory.in_region(2)];
        let doorbells = [Arc::new(Notify::new()), Arc::new(Notify::new())];
        [0, 1].map(|end| {
            let weak = |setting: &Setting| if end == 0 { setting.sends.clone() } else { setting.receives.clone() };
            Self {
                ring: memory.weakened(weak(ring)),
                own: maps_of[end].weakened(weak(ready_maps)),
                theirs: maps_of[1 - end].weakened(weak(ready_maps)),
                doorbell: doorbells[end].clone(),
                their_doorbell: doorbells[1 - end].clone(),
            }
        })
    }

    fn notify(&self) {
        if PeerReadyBit::new(&self.theirs, ReadyBit::DOMAIN_RING).set() {
            self.their_doorbell.notify();
        }
    }

    /// Sleeps as the inbox of a domain does, until it finds a ready bit. Loom reports a deadlock if none ever comes.
    fn sleep(&self) {
        let ready_map = ReadyMap::new(&self.own);
        let mut is_set = false;
        while !is_set {
            if ready_map.begin_sleep() {
                self.doorbell.wait();
            }
            ready_map.end_sleep();
            ready_map.drain(|bit| is_set |= bit == ReadyBit::DOMAIN_RING);
        }
    }

    fn send(&self, producer: &mut Producer<Handle>, number: u32) {
        while producer.push(1, &[number], &[]).is_err() {
            producer.block();
            if !producer.has_room().unwrap() {
                self.sleep();
            }
        }
        if producer.wake() {
            self.notify();
        }
    }

    fn receive(&self, consumer: &mut Consumer<Handle>, number: u32) {
        let mut record = RecordBuffer::default();
        while !consumer.pop(&mut record).unwrap() {
            if consumer.park().unwrap() {
                self.sleep();
                consumer.unpark();
            }
        }
        assert_eq!(record.words(), [number]);
        if consumer.needs_publish() && consumer.publish() {
            self.notify();
        }
    }
}

fn messages_wake_their_receiver(ring: &Setting, ready_maps: &Setting) {
    let [sends, receives] = End::both(ring, ready_maps);
    let mut producer = sends.ring.producer();
    let mut consumer = receives.ring.consumer();
    let sender = thread::spawn(move || (0..2).for_each(|number| sends.send(&mut producer, number)));
    (0..2).for_each(|number| receives.receive(&mut consumer, number));
    sender.join().unwrap();
}

fn room_wakes_its_sender(ring: &Setting, ready_maps: &Setting) {
    let [sends, receives] = End::both(ring, ready_maps);
    let mut producer = sends.ring.producer();
    let mut consumer = receives.ring.consumer();
    for number in 0..RING_CELLS {
        producer.push(1, &[number], &[]).unwrap();
    }
    let sender = thread::spawn(move || sends.send(&mut producer, RING_CELLS));
    (0..=RING_CELLS).for_each(|number| receives.receive(&mut consumer, number));
    sender.join().unwrap();
}

#[test]
fn a_message_reaches_a_receiver_whenever_it_sleeps() {
    WHOLE.bounded().passes(|_| messages_wake_their_receiver(&WHOLE, &WHOLE));
}

#[test]
fn a_message_does_not_reach_a_sleeping_receiver_without_e_f_k_l_o_or_p() {
    let summary = only(SUMMARY);
    for ring in [receives(Weaken::Fence), sends(Weaken::Fence)] {
        ring.bounded().fails(DEADLOCK, |ring| messages_wake_their_receiver(ring, &WHOLE));
    }
    for ready_maps in [
        receives(Weaken::Swap(summary.clone())),
        sends(Weaken::Or(summary)),
        receives(Weaken::Fence),
        sends(Weaken::Fence),
    ] {
        ready_maps.bounded().fails(DEADLOCK, |ready_maps| messages_wake_their_receiver(&WHOLE, ready_maps));
    }
}

#[test]
fn room_reaches_a_sender_whenever_it_sleeps() {
    WHOLE.bounded().passes(|_| room_wakes_its_sender(&WHOLE, &WHOLE));
}

#[test]
fn room_does_not_reach_a_sleeping_sender_without_g_or_h() {
    for ring in [receives(Weaken::Fence), sends(Weaken::Fence)] {
        ring.bounded().fails(DEADLOCK, |ring| room_wakes_its_sender(ring, &WHOLE));
    }
}
