use super::*;
use isthmus_layout::channel::{
    BYTES, DIRECT_ACCESSES, DOORBELLS, HEAD, MESSAGES, REFUSED_ACCESSES, SERVED_ACCESSES, SLAB_HEAD, SLOW_PATH_REASONS,
    SlabSize,
};
use isthmus_layout::limits::{FINAL_RECORD_CELLS, RING_CELLS};
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{ReceiveOutcome, Serial};
use isthmus_layout::{EndpointIndex, RegionSize, ready_map};
use isthmus_platform::local;
use isthmus_shm::{Access, Mapping, ReadyMap, Words as _};
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;

const GEOMETRY: ChannelGeometry = ChannelGeometry { slab: SlabSize::MIN };
const SLAB: u32 = SlabSize::MIN.bytes();

/// Both ends of a channel, each with mappings of its own, and the memory as a third process would see it.
struct ChannelFixture {
    ours: Channel,
    theirs: Channel,
    /// The ready map of `ours`, in which `theirs` sets a bit.
    our_map: Sleep,
    their_map: Sleep,
    memory: SharedMapping,
    record: RecordBuffer,
}

/// A ready map of one end, and the doorbell that ends its sleep.
struct Sleep {
    ready_map: ReadyMap<SharedMapping>,
    doorbell: Doorbell,
}

impl Sleep {
    /// Clears the ready map. Returns true if the bit of the channel was set.
    fn take_bit(&self) -> bool {
        let mut found = Vec::new();
        self.ready_map.drain(|ready_bit| found.push(ready_bit));
        assert!(found.is_empty() || found == [ready_bit()], "{found:?}");
        !found.is_empty()
    }

    /// Returns the number of rings since the last call.
    fn rings(&self) -> u64 {
        let mut file = File::from(self.doorbell.as_fd().try_clone_to_owned().unwrap());
        let mut count = [0; 8];
        file.read(&mut count).map_or(0, |_| u64::from_ne_bytes(count))
    }
}

fn ready_bit() -> ReadyBit {
    ReadyBit::new(ReadyBit::FIRST_CHANNEL + 70).unwrap()
}

fn map(file: &OwnedFd, size: RegionSize) -> SharedMapping {
    SharedMapping::new(Mapping::new(file, size, Access::ReadWrite).unwrap())
}

impl ChannelFixture {
    fn new() -> Self {
        let file = local::memory(GEOMETRY.size()).unwrap();
        let maps = [(); 2].map(|()| local::memory(ready_map::SIZE).unwrap());
        let [our_map, their_map] = maps.each_ref().map(|file| Sleep {
            ready_map: ReadyMap::new(map(file, ready_map::SIZE)),
            doorbell: Doorbell::new().unwrap(),
        });
        let end = |send_direction, peer: usize, doorbell: &Doorbell| {
            Channel::new(ChannelParts {
                memory: map(&file, GEOMETRY.size()),
                geometry: GEOMETRY,
                send_direction,
                peer_ready_map: map(&maps[peer], ready_map::SIZE),
                ready_bit: ready_bit(),
                peer_doorbell: doorbell.clone(),
            })
        };
        Self {
            ours: end(Direction::Zero, 1, &their_map.doorbell),
            theirs: end(Direction::One, 0, &our_map.doorbell),
            memory: map(&file, GEOMETRY.size()),
            our_map,
            their_map,
            record: RecordBuffer::default(),
        }
    }

    /// Returns true if `theirs` received a record.
    fn receive(&mut self) -> bool {
        self.theirs.receive(&mut self.record).unwrap()
    }

    fn received(&self) -> (Route, Record<'_>) {
        Record::parse(self.record.kind(), self.record.bytes(), self.record.words()).unwrap()
    }

    /// Sends records until there is no room, and returns their number.
    fn fill(&mut self) -> u32 {
        for sent in 0..=RING_CELLS {
            if let Err(error) = self.ours.send(route(), &CREDIT, &[]) {
                assert_eq!(error, ChannelSendError::Full);
                return sent;
            }
        }
        panic!("the ring takes more records than it has cells")
    }

    /// A word of the direction in which `ours` sends, in the producer's block.
    fn produced(&self, word: u32) -> u32 {
        self.memory.load(GEOMETRY.direction(Direction::Zero).producer + word, Relaxed)
    }

    /// A word of the same direction, in the consumer's block.
    fn consumed(&self, word: u32) -> u32 {
        self.memory.load(GEOMETRY.direction(Direction::Zero).consumer + word, Relaxed)
    }
}

const CREDIT: Record<'_> = Record::Credit { bytes: 7 };

fn route() -> Route {
    Route { from: EndpointIndex::new(3).unwrap(), to: EndpointIndex::new(5).unwrap(), epoch: 9, peer: None }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + 1) as u8).collect()
}

#[test]
fn records_arrive_in_order_in_both_directions() {
    let mut fixture = ChannelFixture::new();
    let completed = Record::Completed { serial: Serial(8), outcome: ReceiveOutcome::Dropped, bytes: 1 << 40 };
    assert!(!fixture.receive() && !fixture.theirs.has_record().unwrap() && fixture.theirs.is_idle());
    for record in [CREDIT, completed, Record::Switch] {
        fixture.ours.send(route(), &record, &[]).unwrap();
    }
    assert!(fixture.theirs.has_record().unwrap() && !fixture.theirs.is_idle() && !fixture.ours.has_record().unwrap());
    for record in [CREDIT, completed, Record::Switch] {
        assert!(fixture.receive());
        assert_eq!(fixture.received(), (route(), record));
    }
    // Nothing waits any more, but the sender does not know.
    assert!(!fixture.theirs.has_record().unwrap() && !fixture.theirs.is_idle() && !fixture.ours.is_drained());
    assert!(!fixture.receive() && fixture.theirs.is_idle() && fixture.ours.is_drained());
    fixture.theirs.send(route(), &completed, &[]).unwrap();
    assert!(fixture.ours.receive(&mut fixture.record).unwrap());
    assert_eq!(fixture.received(), (route(), completed));
}

#[test]
fn messages_carry_their_bytes_and_are_counted_in_the_memory() {
    let mut fixture = ChannelFixture::new();
    for len in [0, 1, 8, 100, 128] {
        fixture.ours.send_eager(route(), u64::MAX - 1, &bytes(len)).unwrap();
        assert!(fixture.receive());
        let (kind, bytes_len, words) = (fixture.record.kind(), fixture.record.bytes(), fixture.record.words());
        let (from, tag, parsed, words) = record::parse_eager(kind, bytes_len, words).unwrap();
        let message: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).take(len).collect();
        assert_eq!((from, tag, parsed as usize, message), (route(), u64::MAX - 1, len, bytes(len)));
    }
    fixture.ours.count(1 << 33);
    let total = 237 + (1 << 33);
    assert_eq!(fixture.ours.sent(), RingCounters { messages: 6, bytes: total, doorbells: 0 });
    assert_eq!(fixture.produced(MESSAGES), 6);
    assert_eq!([fixture.produced(BYTES), fixture.produced(BYTES + 1)], [total as u32, (total >> 32) as u32]);
    assert_eq!(fixture.theirs.sent(), RingCounters::default());
    let reasons = SlowPathReasons { fragmented: Some(Reason::MemoryForked), assisted: None };
    fixture.ours.publish_slow_path_reasons(reasons);
    assert_eq!(SlowPathReasons::parse(fixture.produced(SLOW_PATH_REASONS)), reasons);
    fixture.ours.publish_accesses(AccessCounters { direct: 1 << 32 | 2, served: 3 << 32 | 4, refused: 5 << 32 | 6 });
    for (at, count) in [(DIRECT_ACCESSES, [2, 1]), (SERVED_ACCESSES, [4, 3]), (REFUSED_ACCESSES, [6, 5])] {
        assert_eq!([fixture.produced(at), fixture.produced(at + 1)], count);
    }
    assert_eq!(fixture.produced(DOORBELLS), 0, "the word before");
}

#[test]
fn full_channel_has_room_for_one_final_record() {
    let mut fixture = ChannelFixture::new();
    assert!(fixture.ours.has_room_for_record().unwrap() && fixture.ours.has_room(1).unwrap());
    let sent = fixture.fill();
    assert_eq!(sent, RING_CELLS - FINAL_RECORD_CELLS);
    assert_eq!(fixture.ours.send_eager(route(), 1, &[]), Err(ChannelSendError::Full));
    assert_eq!(fixture.ours.sent().messages, 0, "a refused message is not counted");
    assert!(!fixture.ours.has_room_for_record().unwrap() && !fixture.ours.has_room(1).unwrap());
    assert!(fixture.theirs.has_room(1).unwrap());
    fixture.ours.send_final(route(), &Record::Switch).unwrap();
    assert_eq!(fixture.ours.send_final(route(), &Record::Switch), Err(ChannelSendError::Full));
    for _ in 0..sent {
        assert!(fixture.receive());
        assert_eq!(fixture.received().1, CREDIT);
    }
    assert!(fixture.receive());
    assert_eq!(fixture.received().1, Record::Switch);
    assert!(!fixture.receive());
    assert!(fixture.ours.has_room_for_record().unwrap() && fixture.ours.has_room(1).unwrap());
}

#[test]
fn impossible_heads_and_stamps_are_faults() {
    let mut fixture = ChannelFixture::new();
    let layout = GEOMETRY.direction(Direction::Zero);
    fixture.fill();
    fixture.memory.store(layout.consumer + HEAD, 4000, Relaxed);
    assert!(matches!(fixture.ours.send(route(), &CREDIT, &[]), Err(ChannelSendError::Fault(_))));
    assert!(fixture.ours.has_room_for_record().is_err() && fixture.ours.has_room(1).is_err());
    fixture.memory.store(layout.consumer + SLAB_HEAD, 64, Relaxed);
    assert!(matches!(fixture.ours.has_room(1), Err(PeerFault::HeadOverrun { .. })), "the ring is checked first");
    fixture.memory.store(layout.ring, 77, Relaxed);
    assert!(matches!(fixture.theirs.has_record(), Err(PeerFault::Stamp { position: 0, found: 77 })));
    assert!(fixture.theirs.receive(&mut fixture.record).is_err() && fixture.theirs.park().is_err());
}

#[test]
fn blocked_sender_is_notified_once_of_new_room() {
    let mut fixture = ChannelFixture::new();
    let sent = fixture.fill();
    for _ in 0..sent / 2 {
        assert!(fixture.receive());
    }
    assert!(!fixture.our_map.take_bit(), "a sender that does not wait is not notified");
    let queued = sent - sent / 2 + fixture.fill();
    fixture.ours.block();
    let mut notified = 0;
    for _ in 0..queued {
        assert!(fixture.receive());
        notified += u32::from(fixture.our_map.take_bit());
        assert!(notified == 0 || fixture.ours.has_room_for_record().unwrap());
    }
    assert_eq!(notified, 1);
    assert_eq!(fixture.our_map.rings(), 0, "it did not sleep");
}

#[test]
fn parked_receiver_is_woken_by_the_flush_after_a_record() {
    let mut fixture = ChannelFixture::new();
    fixture.ours.send(route(), &CREDIT, &[]).unwrap();
    fixture.ours.flush();
    assert!(!fixture.their_map.take_bit(), "it polls");
    assert!(!fixture.theirs.park().unwrap(), "a record is there");
    fixture.ours.send(route(), &CREDIT, &[]).unwrap();
    fixture.ours.flush();
    assert!(!fixture.their_map.take_bit(), "it has not parked");
    assert!(fixture.receive() && fixture.receive() && fixture.theirs.park().unwrap());
    fixture.ours.flush();
    assert!(!fixture.their_map.take_bit(), "nothing was sent");
    fixture.ours.send(route(), &CREDIT, &[]).unwrap();
    assert!(!fixture.their_map.take_bit(), "more may follow");
    fixture.ours.flush();
    assert!(fixture.their_map.take_bit());
    fixture.ours.send(route(), &CREDIT, &[]).unwrap();
    fixture.ours.flush();
    assert!(!fixture.their_map.take_bit(), "once for each parking");
    assert!(fixture.receive() && fixture.receive() && fixture.theirs.park().unwrap());
    fixture.theirs.unpark();
    fixture.ours.send_eager(route(), 1, &[]).unwrap();
    fixture.ours.flush();
    assert!(!fixture.their_map.take_bit(), "it polls again");
    assert!(fixture.receive() && fixture.theirs.park().unwrap());
    fixture.ours.send_eager(route(), 1, &[]).unwrap();
    fixture.ours.flush();
    assert!(fixture.their_map.take_bit());
    assert!(fixture.receive() && fixture.theirs.park().unwrap());
    fixture.ours.send_final(route(), &Record::Switch).unwrap();
    assert!(fixture.their_map.take_bit(), "the last record needs no flush");
}

#[test]
fn doorbell_rings_only_for_a_sleeping_receiver() {
    let mut fixture = ChannelFixture::new();
    assert!(fixture.theirs.park().unwrap());
    fixture.ours.send(route(), &CREDIT, &[]).unwrap();
    fixture.ours.flush();
    assert_eq!((fixture.their_map.rings(), fixture.ours.sent().doorbells), (0, 0));
    assert!(!fixture.their_map.ready_map.begin_sleep(), "the bit is set already");
    fixture.their_map.ready_map.end_sleep();
    assert!(fixture.their_map.take_bit() && fixture.receive() && fixture.theirs.park().unwrap());
    assert!(fixture.their_map.ready_map.begin_sleep());
    fixture.ours.send(route(), &CREDIT, &[]).unwrap();
    assert_eq!(fixture.their_map.rings(), 0);
    for _ in 0..3 {
        fixture.ours.flush();
    }
    assert_eq!((fixture.their_map.rings(), fixture.ours.sent().doorbells), (1, 1));
    assert_eq!((fixture.produced(DOORBELLS), fixture.produced(MESSAGES)), (1, 0));
    assert!(fixture.their_map.take_bit());
}

#[test]
fn signal_sets_the_bit_without_a_record() {
    let mut fixture = ChannelFixture::new();
    fixture.ours.signal_peer();
    assert!(fixture.their_map.take_bit() && !fixture.our_map.take_bit() && !fixture.receive());
    assert!(fixture.their_map.ready_map.begin_sleep());
    fixture.ours.signal_peer();
    assert_eq!(fixture.their_map.rings(), 1);
}

#[test]
fn fragments_carry_bytes_at_any_offset() {
    let mut fixture = ChannelFixture::new();
    let message = bytes(1000);
    let first = fixture.ours.reserve(10, 10).unwrap().unwrap();
    let fragment = fixture.ours.reserve(1000, 1000).unwrap().unwrap();
    assert!(first.len == 10 && fragment.len == 1000 && fragment.offset >= 10);
    fixture.ours.copy_in(first, 0, &[0xee; 10]);
    fixture.ours.copy_in(fragment, 300, &message[300..]);
    fixture.ours.copy_in(fragment, 0, &message[..300]);
    let [mut whole, mut part, mut before] = [vec![0; 1000], vec![0; 250], vec![0; 10]];
    fixture.theirs.copy_out(fragment, 0, &mut whole).unwrap();
    fixture.theirs.copy_out(fragment, 750, &mut part).unwrap();
    fixture.theirs.copy_out(first, 0, &mut before).unwrap();
    assert!(whole == message && part == message[750..] && before == [0xee; 10]);
    // The bytes are in the slab of this direction and at the place that the record names.
    let mut shown = vec![0; 1000];
    fixture.memory.copy_out(GEOMETRY.direction(Direction::Zero).slab + u64::from(fragment.offset), &mut shown);
    assert_eq!(shown, message);
    let outside = Fragment { offset: SLAB - 10, len: 11 };
    assert!(matches!(fixture.theirs.copy_out(outside, 0, &mut before), Err(PeerFault::FragmentOutside(_))));
}

#[test]
#[should_panic(expected = "assertion failed")]
fn copying_in_beyond_a_fragment_panics() {
    let mut fixture = ChannelFixture::new();
    let fragment = fixture.ours.reserve(100, 100).unwrap().unwrap();
    fixture.ours.copy_in(fragment, 41, &[0; 60]);
}

#[test]
#[should_panic(expected = "assertion failed")]
fn copying_out_beyond_a_fragment_panics() {
    let fixture = ChannelFixture::new();
    fixture.theirs.copy_out(Fragment { offset: 0, len: 100 }, 41, &mut [0; 60]).unwrap();
}

#[test]
fn released_fragments_make_room_and_wake_a_blocked_sender() {
    let mut fixture = ChannelFixture::new();
    let fragments = [(); 8].map(|()| fixture.ours.reserve(SLAB / 8, SLAB / 8).unwrap().unwrap());
    assert!(fragments.iter().all(|fragment| fragment.len == SLAB / 8));
    assert_eq!(fixture.ours.reserve(SLAB / 8, SLAB / 8), Ok(None));
    assert!(fixture.ours.has_room_for_record().unwrap() && !fixture.ours.has_room(1).unwrap());
    fixture.ours.block();
    fixture.theirs.release(fragments[0]);
    assert!(!fixture.our_map.take_bit() && fixture.consumed(SLAB_HEAD) == 0, "it is too little");
    fixture.theirs.release(fragments[1]);
    assert!(fixture.our_map.take_bit());
    assert_eq!(fixture.consumed(SLAB_HEAD), SLAB / 4);
    assert!(fixture.ours.has_room(SLAB / 4).unwrap());
    assert_eq!(fixture.ours.reserve(1, SLAB / 4).unwrap().map(|fragment| fragment.len), Some(SLAB / 4));
    fixture.theirs.release(fragments[2]);
    fixture.theirs.release(fragments[3]);
    assert!(!fixture.our_map.take_bit(), "it blocked once");
}

#[test]
fn idle_receiver_publishes_small_releases() {
    let mut fixture = ChannelFixture::new();
    let fragment = fixture.ours.reserve(100, 100).unwrap().unwrap();
    fixture.ours.send(route(), &Record::NextFragment { serial: Serial(1), fragment }, &[]).unwrap();
    fixture.ours.send(route(), &CREDIT, &[]).unwrap();
    assert!(fixture.receive());
    assert_eq!(fixture.received().1, Record::NextFragment { serial: Serial(1), fragment });
    fixture.theirs.release(fragment);
    assert!(fixture.receive() && fixture.consumed(SLAB_HEAD) == 0, "not while records come");
    assert!(!fixture.receive());
    assert_eq!(fixture.consumed(SLAB_HEAD), 128);
    assert!(fixture.theirs.is_idle());
    // A release alone is something to publish, though no record waits; parking publishes it too.
    let fragment = fixture.ours.reserve(100, 100).unwrap().unwrap();
    fixture.theirs.release(fragment);
    assert!(!fixture.theirs.is_idle() && fixture.theirs.park().unwrap() && fixture.theirs.is_idle());
    assert_ne!(fixture.consumed(SLAB_HEAD), 128);
}

#[test]
fn trim_returns_the_pages_of_an_idle_slab() {
    let mut fixture = ChannelFixture::new();
    let len = 3 * 4096 + 5;
    let fragment = fixture.ours.reserve(len, len).unwrap().unwrap();
    fixture.ours.copy_in(fragment, 0, &bytes(len as usize));
    assert_eq!(fixture.ours.dirty_bytes(), len);
    let shown = |fixture: &ChannelFixture| {
        let mut shown = vec![0; len as usize];
        fixture.memory.copy_out(GEOMETRY.direction(Direction::Zero).slab, &mut shown);
        shown
    };
    assert!(!fixture.ours.trim(0).unwrap(), "the fragment is in use");
    fixture.theirs.release(fragment);
    assert!(!fixture.receive() && !fixture.ours.trim(len).unwrap(), "no more than `keep` was used");
    assert_eq!((fixture.ours.dirty_bytes(), shown(&fixture)), (len, bytes(len as usize)));
    assert!(fixture.ours.trim(len - 1).unwrap());
    assert_eq!((fixture.ours.dirty_bytes(), shown(&fixture)), (0, vec![0; len as usize]));
    assert!(!fixture.ours.trim(0).unwrap());
}

#[test]
fn flight_recorder_notes_what_is_rare() {
    let mut fixture = ChannelFixture::new();
    fixture.ours.send_eager(route(), 1, &[]).unwrap();
    fixture.ours.block();
    assert!(fixture.ours.park().unwrap());
    fixture.ours.unpark();
    let fragment = fixture.ours.reserve(1, 1).unwrap().unwrap();
    fixture.theirs.release(fragment);
    assert!(fixture.receive() && !fixture.receive() && fixture.ours.trim(0).unwrap());
    fixture.ours.count(3);
    fixture.ours.record_fault();
    fixture.ours.flight_recorder().note(ChannelEvent::Closed, 9);
    let noted = fixture.ours.flight_recorder().to_string();
    assert_eq!(noted, "opened@0 blocked@1 parked@1 woken@1 trimmed@1 faulted@2 closed@9");
    // Parking that finds a record is none.
    fixture.ours.send(route(), &CREDIT, &[]).unwrap();
    assert!(!fixture.theirs.park().unwrap());
    assert_eq!(fixture.theirs.flight_recorder().to_string(), "opened@0");
}
