//! Letters S1 to S16: bytes, switches and state of a stream, and ends that wait.

use super::words::{Builder, Handle, Weaken};
use super::{DEADLOCK, FORGOTTEN, RACE, Setting, TORN, UNPUBLISHED, UNSEEN, WHOLE, WRONG_PATH, only, receives, sends};
use isthmus_layout::ready_map::ReadyBit;
use isthmus_layout::sockets::{
    HEAD, HEAD_HIGH, Interest, READS_TCP, STATE, SWITCH_AT, SWITCH_PATH, SWITCHES, StreamEndIndex, StreamPath,
    StreamState, TAIL, TAIL_HIGH, TAKEN, TCP_BYTES, WANT_DATA, WANT_ROOM, WaiterIndex, Want,
};
use isthmus_shm::stream::PeerProgress;
use isthmus_shm::{Board, StreamMemory};
use loom::sync::Notify;
use loom::thread;
use std::sync::Arc;

/// The end that sends bytes in every model. "Sends" is this end, "receives" the other one, also where room is published.
const SENDER: StreamEndIndex = StreamEndIndex::Connector;
const RECEIVER: StreamEndIndex = StreamEndIndex::Acceptor;

const SMALL: StreamPath = StreamPath::Small;
const LARGE: StreamPath = StreamPath::Large;

/// The region with the board of the end that waits.
const BOARD: u32 = 1;
const READY_BIT: ReadyBit = ReadyBit::DOMAIN_RING;

type End = StreamMemory<Handle>;

/// Returns the word of the sender's block, and of the receiver's.
fn sender(word: u32) -> u32 {
    SENDER.block() + word
}
fn receiver(word: u32) -> u32 {
    RECEIVER.block() + word
}

/// The memory of a stream, without the rings but for a byte at position 0 of both. The words of a switch must not race.
fn memory() -> Handle {
    let plain = [SWITCH_AT, SWITCH_AT + 1, SWITCH_PATH, SWITCH_PATH + 1].map(sender);
    let sent = [TAIL, TAIL_HIGH, SWITCHES, TCP_BYTES, TCP_BYTES + 1, STATE, HEAD, HEAD_HIGH].map(sender);
    let received = [HEAD, HEAD_HIGH, TAKEN, READS_TCP, STATE].map(receiver);
    Builder::default()
        .atomics(sent.into_iter().chain(received))
        .plains(plain)
        .flags([WANT_DATA, WANT_ROOM].into_iter().flat_map(|wish| [sender(wish), receiver(wish)]))
        .bytes([SMALL, LARGE].map(|path| path.ring_start(SENDER).unwrap()))
        .ready_map(BOARD, &[READY_BIT])
        .build()
}

fn ends(memory: &Handle, setting: &Setting) -> [End; 2] {
    [
        StreamMemory::new(memory.weakened(setting.sends.clone()), SENDER),
        StreamMemory::new(memory.weakened(setting.receives.clone()), RECEIVER),
    ]
}

fn read(end: &End, path: StreamPath, at: u64) -> u8 {
    let mut byte = [0];
    end.read(path, at, &mut byte);
    byte[0]
}

// S1 and S2.

fn a_byte_crosses(setting: &Setting) {
    let [sends, receives] = ends(&memory(), setting);
    let sender = thread::spawn(move || {
        sends.write(SMALL, 0, &[7]);
        sends.publish_tail(1);
    });
    if receives.peer_tail() == 1 {
        assert_eq!(read(&receives, SMALL, 0), 7);
    }
    sender.join().unwrap();
}

#[test]
fn a_byte_is_there_when_the_tail_is_seen() {
    WHOLE.passes(a_byte_crosses);
}

#[test]
fn a_byte_is_not_there_without_s1_or_s2() {
    sends(Weaken::Store(only(sender(TAIL)))).fails(RACE, a_byte_crosses);
    receives(Weaken::Load(only(sender(TAIL)))).fails(RACE, a_byte_crosses);
}

// S3 and S4.

/// A full ring: its first byte is written again while it is read.
fn a_byte_is_written_again(setting: &Setting) {
    let [sends, receives] = ends(&memory(), setting);
    sends.write(SMALL, 0, &[1]);
    let sender = thread::spawn(move || {
        if sends.peer_head() == 1 {
            sends.write(SMALL, u64::from(SMALL.bytes()), &[2]);
        }
    });
    assert_eq!(read(&receives, SMALL, 0), 1);
    receives.publish_head(1);
    sender.join().unwrap();
}

#[test]
fn a_byte_is_not_written_before_it_was_copied() {
    WHOLE.passes(a_byte_is_written_again);
}

#[test]
fn a_byte_is_written_before_it_was_copied_without_s3_or_s4() {
    receives(Weaken::Store(only(receiver(HEAD)))).fails(RACE, a_byte_is_written_again);
    sends(Weaken::Load(only(receiver(HEAD)))).fails(RACE, a_byte_is_written_again);
}

// S1, S2, S5 and S6.

/// A byte in the small ring, a switch, and a byte in the large ring. `fetch` fetches the words of the sender.
fn the_path_changes_under(setting: &Setting, fetch: fn(&End) -> PeerProgress) {
    let [sends, receives] = ends(&memory(), setting);
    let sender = thread::spawn(move || {
        sends.publish_tail(1);
        sends.announce(1, 1, LARGE, 0);
        sends.publish_tail(2);
    });
    let PeerProgress { tail, switches } = fetch(&receives);
    if switches == 1 {
        assert_eq!(receives.peer_switch(1), (1, LARGE.word()));
        assert!(receives.peer_tail() >= 1, "announced before the old path was published");
    } else {
        assert!(tail < 2, "a byte of the wrong path");
    }
    sender.join().unwrap();
}

fn the_path_changes(setting: &Setting) {
    the_path_changes_under(setting, StreamMemory::peer_progress);
}

/// The order that [`StreamMemory::peer_progress`] avoids.
fn the_path_changes_and_switches_are_fetched_first(setting: &Setting) {
    the_path_changes_under(setting, |end| {
        let switches = end.peer_switches();
        PeerProgress { tail: end.peer_tail(), switches }
    });
}

#[test]
fn a_byte_behind_a_switch_comes_with_the_switch() {
    WHOLE.passes(the_path_changes);
}

#[test]
fn a_byte_behind_a_switch_comes_without_it_if_the_switches_are_fetched_first() {
    WHOLE.fails(WRONG_PATH, the_path_changes_and_switches_are_fetched_first);
}

#[test]
fn a_byte_behind_a_switch_comes_without_it_without_s1_or_s2() {
    sends(Weaken::Store(only(sender(TAIL)))).fails(WRONG_PATH, the_path_changes);
    receives(Weaken::Load(only(sender(TAIL)))).fails(WRONG_PATH, the_path_changes);
}

#[test]
fn a_switch_is_torn_without_s5_or_s6() {
    sends(Weaken::Store(only(sender(SWITCHES)))).fails(RACE, the_path_changes);
    receives(Weaken::Load(only(sender(SWITCHES)))).fails(RACE, the_path_changes);
}

// S7 and S8.

/// A switch is taken, and the next one is announced.
fn a_switch_follows_another(setting: &Setting) {
    let [sends, receives] = ends(&memory(), setting);
    sends.announce(1, 1, LARGE, 0);
    let sender = thread::spawn(move || {
        sends.announce(2, 2, StreamPath::Tcp, 0);
        if sends.peer_taken() == 1 {
            assert_eq!(sends.peer_head(), 1);
            sends.announce(3, 2, SMALL, 0);
        }
    });
    assert_eq!(receives.peer_switch(1), (1, LARGE.word()));
    receives.publish_head(1);
    receives.take(1);
    sender.join().unwrap();
}

#[test]
fn a_switch_is_not_written_before_the_last_one_was_taken() {
    WHOLE.passes(a_switch_follows_another);
}

#[test]
fn the_head_of_a_switch_is_unknown_without_s7_or_s8() {
    receives(Weaken::Store(only(receiver(TAKEN)))).fails(TORN, a_switch_follows_another);
    sends(Weaken::Load(only(receiver(TAKEN)))).fails(TORN, a_switch_follows_another);
}

/// Switches without the head, because its own ordering would cover the words of the switch.
fn the_words_of_a_switch_are_written_again(setting: &Setting) {
    let [sends, receives] = ends(&memory(), setting);
    sends.announce(1, 1, LARGE, 0);
    let sender = thread::spawn(move || {
        sends.announce(2, 2, StreamPath::Tcp, 0);
        if sends.peer_taken() == 1 {
            sends.announce(3, 2, SMALL, 0);
        }
    });
    assert_eq!(receives.peer_switch(1), (1, LARGE.word()));
    receives.take(1);
    sender.join().unwrap();
}

#[test]
fn the_words_of_a_switch_are_not_written_before_they_were_read() {
    WHOLE.passes(the_words_of_a_switch_are_written_again);
}

#[test]
fn the_words_of_a_switch_are_written_before_they_were_read_without_s7_or_s8() {
    receives(Weaken::Store(only(receiver(TAKEN)))).fails(RACE, the_words_of_a_switch_are_written_again);
    sends(Weaken::Load(only(receiver(TAKEN)))).fails(RACE, the_words_of_a_switch_are_written_again);
}

// S13 to S16.

/// A receiver begins to read TCP while a switch comes.
fn a_switch_meets_a_call_that_reads_tcp(setting: &Setting) {
    let [sends, receives] = ends(&memory(), setting);
    let sender = thread::spawn(move || {
        sends.announce(1, 1, SMALL, 0);
        sends.peer_reads_tcp()
    });
    receives.set_reads_tcp(true);
    let is_limited = receives.peer_switches() == 1;
    let is_seen = sender.join().unwrap();
    assert!(is_limited || is_seen, "neither the switch nor the call is seen");
}

#[test]
fn a_call_that_reads_tcp_sees_the_switch_or_is_seen() {
    WHOLE.passes(a_switch_meets_a_call_that_reads_tcp);
}

#[test]
fn a_call_that_reads_tcp_is_forgotten_without_s15_or_s16() {
    for weak in [receives(Weaken::Fence), sends(Weaken::Fence)] {
        weak.fails(UNSEEN, a_switch_meets_a_call_that_reads_tcp);
    }
}

/// A receiver ends a call. The words of the second switch stand for the bytes on TCP.
fn a_call_that_reads_tcp_ends(setting: &Setting) {
    let [sends, receives] = ends(&memory(), setting);
    sends.announce(1, 1, SMALL, 0);
    receives.set_reads_tcp(true);
    let sender = thread::spawn(move || {
        if !sends.peer_reads_tcp() {
            sends.announce(2, 1, StreamPath::Tcp, 0);
        }
    });
    receives.peer_switch(2);
    receives.set_reads_tcp(false);
    sender.join().unwrap();
}

#[test]
fn bytes_come_after_the_end_of_a_call_that_reads_tcp() {
    WHOLE.passes(a_call_that_reads_tcp_ends);
}

#[test]
fn bytes_come_within_a_call_that_reads_tcp_without_s13_or_s14() {
    receives(Weaken::Store(only(receiver(READS_TCP)))).fails(RACE, a_call_that_reads_tcp_ends);
    sends(Weaken::Load(only(receiver(READS_TCP)))).fails(RACE, a_call_that_reads_tcp_ends);
}

// S9 and S10.

fn a_sender_closes(setting: &Setting) {
    let [sends, receives] = ends(&memory(), setting);
    let sender = thread::spawn(move || {
        sends.publish_tail(1);
        sends.add_state(StreamState::HALF_CLOSED);
    });
    if receives.peer_state() == StreamState::HALF_CLOSED {
        assert_eq!(receives.peer_tail(), 1, "the last byte is not published");
    }
    sender.join().unwrap();
}

fn a_sender_takes_a_request_back(setting: &Setting) {
    let [sends, receives] = ends(&memory(), setting);
    let sender = thread::spawn(move || {
        sends.add_state(StreamState::TCP_PLEASE);
        sends.publish_tail(1);
        sends.clear_state(StreamState::TCP_PLEASE);
    });
    if receives.peer_state() == StreamState::TCP_PLEASE && receives.peer_state() == 0 {
        assert_eq!(receives.peer_tail(), 1, "the last byte is not published");
    }
    sender.join().unwrap();
}

#[test]
fn the_last_byte_is_published_when_the_state_is_seen() {
    WHOLE.passes(a_sender_closes);
    WHOLE.passes(a_sender_takes_a_request_back);
}

#[test]
fn the_last_byte_is_not_published_without_s9_or_s10() {
    sends(Weaken::Or(only(sender(STATE)))).fails(UNPUBLISHED, a_sender_closes);
    receives(Weaken::Load(only(sender(STATE)))).fails(UNPUBLISHED, a_sender_closes);
    sends(Weaken::CompareExchange(only(sender(STATE)))).fails(UNPUBLISHED, a_sender_takes_a_request_back);
    receives(Weaken::Load(only(sender(STATE)))).fails(UNPUBLISHED, a_sender_takes_a_request_back);
}

// S11 and S12.

fn waiter() -> WaiterIndex {
    WaiterIndex::new(0).unwrap()
}

fn other_waiter() -> WaiterIndex {
    WaiterIndex::new(1).unwrap()
}

fn parked() -> Want {
    parked_on(waiter())
}

fn parked_on(waiter: WaiterIndex) -> Want {
    Want::Parked { waiter, ready_bit: READY_BIT }
}

fn a_receiver_waits_for_data(setting: &Setting) {
    let [sends, receives] = ends(&memory(), setting);
    let sender = thread::spawn(move || {
        sends.publish_tail(1);
        sends.peer_wants(Interest::Data).is_some()
    });
    receives.set_want(Interest::Data, parked());
    let asleep = receives.peer_tail() == 0;
    let woken = sender.join().unwrap();
    assert!(woken || !asleep, "asleep, and nothing will say that there is a byte");
}

fn a_sender_waits_for_room(setting: &Setting) {
    let [sends, receives] = ends(&memory(), setting);
    let sender = thread::spawn(move || {
        sends.set_want(Interest::Room, parked());
        sends.peer_head() == 0
    });
    receives.publish_head(1);
    let woken = receives.peer_wants(Interest::Room).is_some();
    let asleep = sender.join().unwrap();
    assert!(woken || !asleep, "asleep, and nothing will say that there is room");
}

fn a_sender_waits_for_its_switch(setting: &Setting) {
    let [sends, receives] = ends(&memory(), setting);
    let sender = thread::spawn(move || {
        sends.set_want(Interest::Room, parked());
        sends.peer_taken() == 0
    });
    receives.take(1);
    let woken = receives.peer_wants(Interest::Room).is_some();
    let asleep = sender.join().unwrap();
    assert!(woken || !asleep, "asleep, and nothing will say that the switch was taken");
}

/// Two threads of one end grant the same wish of the peer.
fn two_threads_grant_a_wish(setting: &Setting) {
    let [sends, receives] = ends(&memory(), setting);
    receives.set_want(Interest::Data, parked());
    let other = sends.clone();
    let sender = thread::spawn(move || sends.peer_wants(Interest::Data));
    let granted = [other.peer_wants(Interest::Data), sender.join().unwrap()];
    assert!(granted == [Some(parked()), None] || granted == [None, Some(parked())], "{granted:?}");
    assert_eq!(receives.want_raw(Interest::Data), 0);
}

/// Two threads of one end wait for what `publish` of the peer publishes: one as `first` says, the other as `second` says.
fn two_waiters_under(
    setting: &Setting,
    publish: fn(&End) -> [Option<Want>; 2],
    [first, second]: [(Interest, fn(&End) -> bool); 2],
) {
    let [sends, receives] = ends(&memory(), setting);
    let wait = |(of, is_there): (Interest, fn(&End) -> bool), waiter| {
        let end = receives.clone();
        thread::spawn(move || {
            end.set_want(of, parked_on(waiter));
            !is_there(&end)
        })
    };
    let waiters = [(wait(first, waiter()), waiter()), (wait(second, other_waiter()), other_waiter())];
    let granted = publish(&sends);
    for (thread, waiter) in waiters {
        let asleep = thread.join().unwrap();
        let woken = granted.contains(&Some(parked_on(waiter)));
        assert!(woken || !asleep, "asleep, and nothing will say that there is data or room");
    }
}

/// The peer publishes data and then room.
fn publish_data_and_room(end: &End) -> [Option<Want>; 2] {
    end.publish_tail(1);
    let data = end.peer_wants(Interest::Data);
    end.publish_head(1);
    [data, end.peer_wants(Interest::Room)]
}

/// The peer closes, which concerns both wishes.
fn close(end: &End) -> [Option<Want>; 2] {
    end.add_state(StreamState::HALF_CLOSED);
    Interest::ALL.map(|of| end.peer_wants(of))
}

fn has_data(end: &End) -> bool {
    end.peer_tail() == 1
}

fn has_room(end: &End) -> bool {
    end.peer_head() == 1
}

fn is_closed(end: &End) -> bool {
    end.peer_state() == StreamState::HALF_CLOSED
}

fn two_waiters_wait_for_data_and_for_room(setting: &Setting) {
    two_waiters_under(setting, publish_data_and_room, [(Interest::Data, has_data), (Interest::Room, has_room)]);
}

fn two_waiters_wait_while_the_peer_closes(setting: &Setting) {
    two_waiters_under(setting, close, Interest::ALL.map(|of| (of, is_closed as fn(&End) -> bool)));
}

/// The violation of the rule that a wish names one waiter.
fn two_waiters_share_a_wish(setting: &Setting) {
    two_waiters_under(setting, publish_data_and_room, [(Interest::Data, has_data); 2]);
}

#[test]
fn an_end_that_waits_is_notified() {
    WHOLE.passes(a_receiver_waits_for_data);
    WHOLE.passes(a_sender_waits_for_room);
    WHOLE.passes(a_sender_waits_for_its_switch);
    WHOLE.passes(two_threads_grant_a_wish);
}

#[test]
fn two_waiters_of_an_end_are_notified() {
    WHOLE.passes(two_waiters_wait_for_data_and_for_room);
    WHOLE.passes(two_waiters_wait_while_the_peer_closes);
}

#[test]
fn one_of_two_waiters_is_forgotten_if_both_use_one_wish() {
    WHOLE.fails(FORGOTTEN, two_waiters_share_a_wish);
}

#[test]
fn an_end_that_waits_is_forgotten_without_s11_or_s12() {
    for weak in [receives(Weaken::Fence), sends(Weaken::Fence)] {
        weak.clone().fails(FORGOTTEN, a_receiver_waits_for_data);
        weak.clone().fails(FORGOTTEN, a_sender_waits_for_room);
        weak.clone().fails(FORGOTTEN, a_sender_waits_for_its_switch);
        weak.clone().fails(FORGOTTEN, two_waiters_wait_for_data_and_for_room);
        weak.fails(FORGOTTEN, two_waiters_wait_while_the_peer_closes);
    }
}

/// A waiter that checks its stream, with a wish that stays, sleeps behind the board.
fn a_hot_waiter_sleeps(setting: &Setting) {
    let memory = memory();
    let [sends, receives] = ends(&memory, setting);
    let [theirs, own] = [setting.sends.clone(), setting.receives.clone()]
        .map(|weak| Board::new(memory.in_region(BOARD).weakened(weak)));
    receives.set_want(Interest::Data, Want::Hot(waiter()));
    let sender = thread::spawn(move || {
        sends.publish_tail(1);
        sends.peer_wants(Interest::Data).is_some_and(|want| theirs.notify(want))
    });
    let asleep = own.ready_map(waiter()).begin_sleep() && receives.peer_tail() == 0;
    let rung = sender.join().unwrap();
    assert!(rung || !asleep, "asleep, and nothing will ring");
}

#[test]
fn a_hot_waiter_is_rung() {
    WHOLE.passes(a_hot_waiter_sleeps);
}

#[test]
fn a_hot_waiter_is_forgotten_without_o_or_s12() {
    receives(Weaken::Fence).fails(FORGOTTEN, a_hot_waiter_sleeps);
    sends(Weaken::Fence).fails(FORGOTTEN, a_hot_waiter_sleeps);
}

/// The whole path: a receiver reads two bytes, and sleeps on its board in between, first hot and then parked.
fn bytes_wake_their_receiver(setting: &Setting) {
    let memory = memory();
    let [sends, receives] = ends(&memory, setting);
    let [theirs, own] = [0, 1].map(|_| Board::new(memory.in_region(BOARD)));
    let doorbell = Arc::new(Notify::new());
    let bell = doorbell.clone();
    let sender = thread::spawn(move || {
        for position in 1..=2 {
            sends.publish_tail(position);
            if sends.peer_wants(Interest::Data).is_some_and(|want| theirs.notify(want)) {
                bell.notify();
            }
        }
    });
    let ready_map = own.ready_map(waiter());
    for (position, want) in [(1, Want::Hot(waiter())), (2, parked())] {
        // A wish for a ready bit is granted once, so it is set again before each sleep.
        let is_there = || {
            receives.set_want(Interest::Data, want);
            receives.peer_tail() >= position
        };
        while !is_there() {
            // What is hot is checked again behind `begin_sleep`.
            if ready_map.begin_sleep() && (want == parked() || receives.peer_tail() < position) {
                doorbell.wait();
            }
            ready_map.end_sleep();
            ready_map.drain(|_| {});
        }
    }
    sender.join().unwrap();
}

#[test]
fn a_byte_reaches_a_receiver_whenever_it_sleeps() {
    WHOLE.bounded().passes(bytes_wake_their_receiver);
}

#[test]
fn a_byte_does_not_reach_a_sleeping_receiver_without_s11_or_s12() {
    for weak in [receives(Weaken::Fence), sends(Weaken::Fence)] {
        weak.bounded().fails(DEADLOCK, bytes_wake_their_receiver);
    }
}
