//! What each lettered ordering is good for: a model that loom explores in full, and that fails once the letter is left out.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p isthmus-shm --test loom --release`
//!
//! | letters | promise | left out: A, C, E… or B, D, F… |
//! | --- | --- | --- |
//! | A, B | a record is whole when its stamp is seen | old words are read |
//! | C, D | a cell is not written again before it was copied | both at once, found on plain cells; on atomic ones loom passes |
//! | E, F | a parked consumer is woken or sees the record | neither |
//! | G, H | a blocked producer is told or sees the room | neither |
//! | I, J | slab bytes are not written again before they were copied | both at once |
//! | K, L | whoever takes ANY sees all marks before it | a mark that nobody looks for |
//! | M, N | whoever takes a mark sees what was published before it | old words are read |
//! | O, P | a sleeping receiver is rung or sees the mark | neither |
//!
//! Loom tries no order in which a load is answered by a store that comes later in time (load buffering). An ordering that
//! forbids only that, as C, D, I and J do, shows on memory that must not race: see [`loom_words`].
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "tests")]

mod loom_words;

use isthmus_layout::board::{ANY, MARKS, Place};
use isthmus_layout::channel::{CELL_WORDS, HEAD, SLAB_HEAD};
use isthmus_layout::limits::{RING_CELLS, SLAB_BYTES_MIN};
use isthmus_layout::record::Piece;
use isthmus_shm::{Board, Consumer, Marker, Payload, Producer, RecordBuffer, Words};
use loom::sync::Notify;
use loom::sync::atomic::AtomicU32;
use loom::thread;
use loom_words::{Bodies, Builder, Handle, Weaken, layout};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// What is left out, on either side of a model. "Sends" is who publishes something, "receives" is who takes it.
#[derive(Clone)]
struct Setting {
    sends: Option<Weaken>,
    receives: Option<Weaken>,
    bodies: Bodies,
}

const WHOLE: Setting = Setting { sends: None, receives: None, bodies: Bodies::Plain };

fn sends(weak: Weaken) -> Setting {
    Setting { sends: Some(weak), ..WHOLE }
}

fn receives(weak: Weaken) -> Setting {
    Setting { receives: Some(weak), ..WHOLE }
}

fn atomic(setting: Setting) -> Setting {
    Setting { bodies: Bodies::Atomic, ..setting }
}

/// Runs `model` in every order that loom knows; at most so many of them with a thread interrupted, if there is a limit.
fn passes(setting: Setting, preemptions: Option<usize>, model: fn(&Setting)) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 10_000;
    builder.check(move || model(&setting));
}

/// Loom must find an order in which `model` ends with the words `why`.
fn fails(setting: Setting, preemptions: Option<usize>, why: &str, model: fn(&Setting)) {
    let outcome = catch_unwind(AssertUnwindSafe(|| passes(setting, preemptions, model)));
    let panic = outcome.expect_err("loom does not see the difference");
    let said = panic.downcast_ref::<String>().cloned().or(panic.downcast_ref::<&str>().map(|said| said.to_string()));
    let said = said.expect("panics say something");
    assert!(said.contains(why), "loom fails for another reason: {said}");
}

// How models fail.
const RACE: &str = "Causality violation";
const TORN: &str = "assertion `left == right` failed";
const FORGOTTEN: &str = "asleep, and nobody will";
const EARLY: &str = "marked before it was written";
const LOST: &str = "a mark is left, and nobody looks";
const DEADLOCK: &str = "deadlock";

fn stamps() -> std::ops::RangeInclusive<u32> {
    layout().ring..=layout().ring + RING_CELLS * CELL_WORDS - 1
}

fn only(word: u32) -> std::ops::RangeInclusive<u32> {
    word..=word
}

fn marks() -> std::ops::RangeInclusive<u32> {
    MARKS..=MARKS + 127
}

// A and B.

/// A record of one cell, and one whose second cell is the ring's first again.
fn records_cross(setting: &Setting) {
    let memory = Builder::default().ring(CELL_WORDS, setting.bodies).build();
    let mut producer = memory.weakened(setting.sends.clone()).producer();
    let mut consumer = memory.weakened(setting.receives.clone()).consumer();
    fill(&mut producer, &mut consumer, RING_CELLS - 2);
    let message: Vec<u8> = (100..164).collect();
    let sent = message.clone();
    let sender = thread::spawn(move || {
        producer.push(3, &[7, 8], &[]).unwrap();
        producer.push(4, &[9], &sent).unwrap();
    });
    let mut record = RecordBuffer::default();
    if consumer.pop(&mut record).unwrap() {
        assert_eq!((record.kind(), record.words()), (3, &[7, 8][..]));
        if consumer.pop(&mut record).unwrap() {
            assert_eq!((record.kind(), record.bytes(), record.words()[0]), (4, 4 + 64, 9));
            let bytes: Vec<u8> = record.words()[1..].iter().flat_map(|word| word.to_le_bytes()).collect();
            assert_eq!(bytes, message);
        }
    }
    sender.join().unwrap();
}

/// Moves both sides of a ring forward, before anybody else looks.
fn fill(producer: &mut Producer<Handle>, consumer: &mut Consumer<Handle>, cells: u32) {
    for _ in 0..cells {
        producer.push(1, &[0], &[]).unwrap();
        assert!(consumer.pop(&mut RecordBuffer::default()).unwrap());
    }
    consumer.publish();
}

#[test]
fn records_cross_whole() {
    passes(WHOLE, None, records_cross);
    passes(atomic(WHOLE), None, records_cross);
}

#[test]
fn records_do_not_cross_whole_without_a() {
    fails(receives(Weaken::Load(stamps())), None, RACE, records_cross);
    fails(atomic(receives(Weaken::Load(stamps()))), None, TORN, records_cross);
}

#[test]
fn records_do_not_cross_whole_without_b() {
    fails(sends(Weaken::Store(stamps())), None, RACE, records_cross);
    fails(atomic(sends(Weaken::Store(stamps()))), None, TORN, records_cross);
}

// C and D.

/// A full ring, whose first cell is written again while it is taken.
fn a_cell_is_used_again(setting: &Setting) {
    let memory = Builder::default().ring(3, setting.bodies).build();
    let mut producer = memory.weakened(setting.sends.clone()).producer();
    let mut consumer = memory.weakened(setting.receives.clone()).consumer();
    for number in 0..RING_CELLS {
        producer.push(1, &[number], &[]).unwrap();
    }
    let sender = thread::spawn(move || producer.push(1, &[100], &[]).is_ok());
    let mut record = RecordBuffer::default();
    assert!(consumer.pop(&mut record).unwrap());
    assert_eq!(record.words(), [0]);
    consumer.publish();
    let sent = sender.join().unwrap();
    for number in 1..RING_CELLS {
        assert!(consumer.pop(&mut record).unwrap());
        assert_eq!(record.words(), [number]);
    }
    assert_eq!(consumer.pop(&mut record).unwrap(), sent);
}

#[test]
fn a_cell_is_not_written_before_it_was_copied() {
    passes(WHOLE, None, a_cell_is_used_again);
    passes(atomic(WHOLE), None, a_cell_is_used_again);
}

#[test]
fn a_cell_is_written_before_it_was_copied_without_c() {
    let weak = receives(Weaken::Store(only(layout().consumer + HEAD)));
    fails(weak.clone(), None, RACE, a_cell_is_used_again);
    passes(atomic(weak), None, a_cell_is_used_again); // Would need load buffering.
}

#[test]
fn a_cell_is_written_before_it_was_copied_without_d() {
    let weak = sends(Weaken::Load(only(layout().consumer + HEAD)));
    fails(weak.clone(), None, RACE, a_cell_is_used_again);
    passes(atomic(weak), None, a_cell_is_used_again); // Would need load buffering.
}

// E and F.

fn a_consumer_parks(setting: &Setting) {
    let memory = Builder::default().ring(3, setting.bodies).build();
    let mut producer = memory.weakened(setting.sends.clone()).producer();
    let mut consumer = memory.weakened(setting.receives.clone()).consumer();
    let sender = thread::spawn(move || {
        producer.push(1, &[7], &[]).unwrap();
        (producer.wake(), producer.wake())
    });
    let parked = consumer.park().unwrap();
    let (woken, again) = sender.join().unwrap();
    assert!(woken || again || !parked, "asleep, and nobody will say that a record waits");
    assert!(!(woken && again), "told twice");
    let mut record = RecordBuffer::default();
    assert!(consumer.pop(&mut record).unwrap());
}

#[test]
fn a_parked_consumer_is_woken() {
    passes(WHOLE, None, a_consumer_parks);
}

#[test]
fn a_parked_consumer_is_forgotten_without_e() {
    fails(receives(Weaken::Fence), None, FORGOTTEN, a_consumer_parks);
}

#[test]
fn a_parked_consumer_is_forgotten_without_f() {
    fails(sends(Weaken::Fence), None, FORGOTTEN, a_consumer_parks);
}

// G and H.

fn a_producer_blocks(setting: &Setting) {
    let memory = Builder::default().ring(3, setting.bodies).build();
    let mut producer = memory.weakened(setting.sends.clone()).producer();
    let mut consumer = memory.weakened(setting.receives.clone()).consumer();
    for number in 0..RING_CELLS {
        producer.push(1, &[number], &[]).unwrap();
    }
    let sender = thread::spawn(move || {
        producer.block();
        producer.has_room().unwrap()
    });
    let mut told = 0;
    for _ in 0..RING_CELLS {
        assert!(consumer.pop(&mut RecordBuffer::default()).unwrap());
        if consumer.owes() && consumer.publish() {
            told += 1;
        }
    }
    let room = sender.join().unwrap();
    assert!(room || told > 0, "asleep, and nobody will say that there is room");
    assert!(told <= 1, "told twice");
}

#[test]
fn a_blocked_producer_is_told() {
    passes(WHOLE, None, a_producer_blocks);
}

#[test]
fn a_blocked_producer_is_forgotten_without_g() {
    fails(sends(Weaken::Fence), None, FORGOTTEN, a_producer_blocks);
}

#[test]
fn a_blocked_producer_is_forgotten_without_h() {
    fails(receives(Weaken::Fence), None, FORGOTTEN, a_producer_blocks);
}

/// A consumer that empties the ring again and again and publishes without a fence each time; none of that need have reached
/// the producer when it blocks. The two take turns by a variable that orders nothing.
fn a_producer_blocks_behind_an_eager_consumer(_: &Setting) {
    const RECORDS: u32 = RING_CELLS - 3;
    let memory = Builder::default().ring(3, Bodies::Atomic).build();
    let (mut producer, mut consumer) = (memory.producer(), memory.consumer());
    let turn = Arc::new(AtomicU32::new(0));
    let theirs = turn.clone();
    let until = |turn: &AtomicU32, at| {
        while turn.load(Relaxed) != at {
            thread::yield_now();
        }
    };
    let sender = thread::spawn(move || {
        for number in 0..RECORDS {
            until(&theirs, 2 * number);
            producer.push(1, &[number], &[]).unwrap();
            theirs.store(2 * number + 1, Relaxed);
        }
        until(&theirs, 2 * RECORDS);
        producer.block();
        producer.has_room().unwrap()
    });
    let mut told = false;
    let mut record = RecordBuffer::default();
    for number in 0..RECORDS {
        until(&turn, 2 * number + 1);
        while !consumer.pop(&mut record).unwrap() {
            thread::yield_now();
        }
        told |= consumer.owes() && consumer.publish();
        assert!(!consumer.pop(&mut record).unwrap());
        turn.store(2 * number + 2, Relaxed);
    }
    assert!(consumer.park().unwrap());
    let room = sender.join().unwrap();
    assert!(room || told, "asleep, and nobody will say that there is room");
}

#[test]
fn a_blocked_producer_is_told_by_an_eager_consumer() {
    passes(WHOLE, None, a_producer_blocks_behind_an_eager_consumer);
}

// I and J.

/// A piece whose bytes are reserved again while they are taken.
fn slab_bytes_are_used_again(setting: &Setting) {
    const LEN: u32 = SLAB_BYTES_MIN / 4;
    let memory = Builder::default().slab([0]).build();
    let (sending, receiving) = (memory.weakened(setting.sends.clone()), memory.weakened(setting.receives.clone()));
    let (mut producer, mut consumer) = (sending.slab_producer(), receiving.slab_consumer());
    let piece = producer.reserve(LEN, LEN).unwrap().unwrap();
    sending.copy_in(producer.byte(piece), &[1]);
    let sender = thread::spawn(move || match producer.reserve(LEN, LEN).unwrap() {
        Some(Piece { offset: 0, .. }) => sending.copy_in(producer.byte(piece), &[2]),
        _ => {}
    });
    let mut bytes = [0];
    receiving.copy_out(consumer.span(piece).unwrap().start(), &mut bytes);
    assert_eq!(bytes, [1]);
    consumer.give_back(piece);
    consumer.publish();
    sender.join().unwrap();
}

#[test]
fn slab_bytes_are_not_written_before_they_were_copied() {
    passes(WHOLE, None, slab_bytes_are_used_again);
}

#[test]
fn slab_bytes_are_written_before_they_were_copied_without_i() {
    fails(receives(Weaken::Store(only(layout().consumer + SLAB_HEAD))), None, RACE, slab_bytes_are_used_again);
}

#[test]
fn slab_bytes_are_written_before_they_were_copied_without_j() {
    fails(sends(Weaken::Load(only(layout().consumer + SLAB_HEAD))), None, RACE, slab_bytes_are_used_again);
}

// K to P.

/// A word that the marker of a place writes before it marks.
fn note(place: Place) -> u32 {
    1000 + u32::from(place.number())
}

fn place(number: u16) -> Place {
    Place::new(number).unwrap()
}

fn board(places: &[Place]) -> Handle {
    Builder::default().board(0, places).atomics(places.iter().map(|place| note(*place))).build()
}

fn mark(memory: Handle, place: Place) -> bool {
    memory.store(note(place), 1, Relaxed);
    Marker::new(memory, place).mark()
}

/// Takes the marks; what was written before each must be there.
fn take(memory: &Handle) -> Vec<Place> {
    let mut taken = Vec::new();
    Board::new(memory).take(|place| {
        assert_eq!(memory.load(note(place), Relaxed), 1, "marked before it was written");
        taken.push(place);
    });
    taken
}

/// Two markers, whose places are in one word of the board or in two.
fn places_are_marked(setting: &Setting, places: [Place; 2]) {
    let memory = board(&places);
    let sending = memory.weakened(setting.sends.clone());
    let markers = places.map(|place| {
        let memory = sending.clone();
        thread::spawn(move || mark(memory, place))
    });
    let receiving = memory.weakened(setting.receives.clone());
    let mut taken = take(&receiving);
    for marker in markers {
        assert!(!marker.join().unwrap(), "nobody sleeps");
    }
    taken.extend(take(&memory));
    taken.sort();
    assert_eq!(taken, places, "a mark is left, and nobody looks");
}

fn places_of_one_word(setting: &Setting) {
    places_are_marked(setting, [place(2), place(33 - 2)]);
}

fn places_of_two_words(setting: &Setting) {
    places_are_marked(setting, [place(2), place(32)]);
}

const PREEMPTIONS: Option<usize> = None;

#[test]
fn every_mark_is_taken_once() {
    passes(WHOLE, PREEMPTIONS, places_of_one_word);
    passes(WHOLE, PREEMPTIONS, places_of_two_words);
}

#[test]
fn marks_are_lost_without_k() {
    fails(receives(Weaken::Swap(only(ANY))), PREEMPTIONS, LOST, places_of_two_words);
}

#[test]
fn marks_are_lost_without_l() {
    fails(sends(Weaken::Or(only(ANY))), PREEMPTIONS, LOST, places_of_two_words);
}

#[test]
fn marks_are_lost_where_l_only_stores() {
    fails(sends(Weaken::OrIsStore(only(ANY))), PREEMPTIONS, LOST, places_of_one_word);
    fails(sends(Weaken::OrIsStore(only(ANY))), PREEMPTIONS, LOST, places_of_two_words);
}

#[test]
fn marks_come_before_what_they_announce_without_m() {
    fails(receives(Weaken::Swap(marks())), PREEMPTIONS, EARLY, places_of_two_words);
}

#[test]
fn marks_come_before_what_they_announce_without_n() {
    fails(sends(Weaken::Or(marks())), PREEMPTIONS, EARLY, places_of_two_words);
}

fn a_receiver_sleeps(setting: &Setting) {
    let memory = board(&[place(2)]);
    let sending = memory.weakened(setting.sends.clone());
    let marker = thread::spawn(move || mark(sending, place(2)));
    let board = Board::new(memory.weakened(setting.receives.clone()));
    let asleep = board.sleep();
    let rung = marker.join().unwrap();
    assert!(rung || !asleep, "asleep, and nobody will ring");
    board.wake();
    assert_eq!(take(&memory), [place(2)]);
}

#[test]
fn a_sleeping_receiver_is_rung() {
    passes(WHOLE, None, a_receiver_sleeps);
}

#[test]
fn a_sleeping_receiver_is_forgotten_without_o() {
    fails(receives(Weaken::Fence), None, FORGOTTEN, a_receiver_sleeps);
}

#[test]
fn a_sleeping_receiver_is_forgotten_without_p() {
    fails(sends(Weaken::Fence), None, FORGOTTEN, a_receiver_sleeps);
}

/// Of two markers that find the receiver asleep, one rings.
fn two_markers_wake_a_receiver(_: &Setting) {
    let places = [place(2), place(32)];
    let memory = board(&places);
    let markers = places.map(|place| {
        let memory = memory.clone();
        thread::spawn(move || mark(memory, place))
    });
    let asleep = Board::new(&memory).sleep();
    let rings = markers.into_iter().map(|marker| u32::from(marker.join().unwrap())).sum::<u32>();
    assert!(rings <= 1 && (rings == 1 || !asleep));
    assert_eq!(take(&memory), places);
}

#[test]
fn one_marker_rings() {
    passes(WHOLE, PREEMPTIONS, two_markers_wake_a_receiver);
}

// The whole path.

/// One end of a path: the ring's memory, the board that this end sleeps on, the other end's board, and the doorbells of both.
struct End {
    ring: Handle,
    own: Handle,
    theirs: Handle,
    doorbell: Arc<Notify>,
    their_doorbell: Arc<Notify>,
}

impl End {
    /// Sender and receiver; `ring` and `boards` leave something out of either.
    fn both(ring: &Setting, boards: &Setting) -> [Self; 2] {
        let places = [place(2)];
        let memory = Builder::default().ring(3, Bodies::Plain).board(1, &places).board(2, &places).build();
        let boards_of = [memory.in_region(1), memory.in_region(2)];
        let doorbells = [Arc::new(Notify::new()), Arc::new(Notify::new())];
        [0, 1].map(|end| {
            let weak = |setting: &Setting| if end == 0 { setting.sends.clone() } else { setting.receives.clone() };
            Self {
                ring: memory.weakened(weak(ring)),
                own: boards_of[end].weakened(weak(boards)),
                theirs: boards_of[1 - end].weakened(weak(boards)),
                doorbell: doorbells[end].clone(),
                their_doorbell: doorbells[1 - end].clone(),
            }
        })
    }

    fn notify(&self) {
        if Marker::new(&self.theirs, place(2)).mark() {
            self.their_doorbell.notify();
        }
    }

    /// As the inbox of a domain sleeps, until it finds a mark. Loom reports a deadlock if that is for good.
    fn sleep(&self) {
        let board = Board::new(&self.own);
        let mut is_marked = false;
        while !is_marked {
            if board.sleep() {
                self.doorbell.wait();
            }
            board.wake();
            board.take(|place| is_marked |= place.number() == 2);
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
        if consumer.owes() && consumer.publish() {
            self.notify();
        }
    }
}

fn messages_wake_their_receiver(ring: &Setting, boards: &Setting) {
    let [sends, receives] = End::both(ring, boards);
    let mut producer = sends.ring.producer();
    let mut consumer = receives.ring.consumer();
    let sender = thread::spawn(move || (0..2).for_each(|number| sends.send(&mut producer, number)));
    (0..2).for_each(|number| receives.receive(&mut consumer, number));
    sender.join().unwrap();
}

fn room_wakes_its_sender(ring: &Setting, boards: &Setting) {
    let [sends, receives] = End::both(ring, boards);
    let mut producer = sends.ring.producer();
    let mut consumer = receives.ring.consumer();
    for number in 0..RING_CELLS {
        producer.push(1, &[number], &[]).unwrap();
    }
    let sender = thread::spawn(move || sends.send(&mut producer, RING_CELLS));
    (0..=RING_CELLS).for_each(|number| receives.receive(&mut consumer, number));
    sender.join().unwrap();
}

const PATH_PREEMPTIONS: Option<usize> = Some(4);

#[test]
fn a_message_reaches_a_receiver_whenever_it_sleeps() {
    passes(WHOLE, PATH_PREEMPTIONS, |_| messages_wake_their_receiver(&WHOLE, &WHOLE));
}

#[test]
fn a_message_does_not_reach_a_sleeping_receiver_without_e_f_k_l_o_or_p() {
    let any = only(ANY);
    for ring in [receives(Weaken::Fence), sends(Weaken::Fence)] {
        fails(ring, PATH_PREEMPTIONS, DEADLOCK, |ring| messages_wake_their_receiver(ring, &WHOLE));
    }
    for board in
        [receives(Weaken::Swap(any.clone())), sends(Weaken::Or(any)), receives(Weaken::Fence), sends(Weaken::Fence)]
    {
        fails(board, PATH_PREEMPTIONS, DEADLOCK, |boards| messages_wake_their_receiver(&WHOLE, boards));
    }
}

#[test]
fn room_reaches_a_sender_whenever_it_sleeps() {
    passes(WHOLE, PATH_PREEMPTIONS, |_| room_wakes_its_sender(&WHOLE, &WHOLE));
}

#[test]
fn room_does_not_reach_a_sleeping_sender_without_g_or_h() {
    for ring in [receives(Weaken::Fence), sends(Weaken::Fence)] {
        fails(ring, PATH_PREEMPTIONS, DEADLOCK, |ring| room_wakes_its_sender(ring, &WHOLE));
    }
}
