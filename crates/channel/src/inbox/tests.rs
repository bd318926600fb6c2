use super::*;
use crate::channel::{ChannelParts, ChannelSendError};
use isthmus_layout::channel::{CELL_WORDS, ChannelGeometry, Direction, SlabSize};
use isthmus_layout::limits::READY_MAP_BITS;
use isthmus_layout::record::{Record, Route};
use isthmus_layout::{EndpointIndex, ready_map};
use isthmus_shm::{Mapping, Words as _};
use std::sync::atomic::Ordering;

const GEOMETRY: ChannelGeometry = ChannelGeometry { slab: SlabSize::MIN };

/// A receiver and the peers' ends of its channels.
struct InboxFixture {
    inbox: Inbox,
    keys: Vec<ChannelKey>,
    peers: Vec<Channel>,
    memories: Vec<SharedMapping>,
    /// The receiver's ready map.
    ready_map_memory: SharedMapping,
    record: RecordBuffer,
}

impl InboxFixture {
    /// Creates a receiver with this number of channels, all of them unmuted.
    fn with_channels(channels: usize) -> Self {
        let mut fixture = Self::muted(channels);
        fixture.keys.clone().into_iter().for_each(|key| fixture.inbox.unmute(key));
        fixture
    }

    fn muted(channels: usize) -> Self {
        let [ready_map_memory, theirs] = [(), ()].map(|()| SharedMapping::new(Mapping::private(ready_map::SIZE)));
        let doorbell = Doorbell::new().unwrap();
        let mut inbox = Inbox::new();
        let at = inbox.add_ready_map(ready_map_memory.clone(), doorbell.clone());
        let (mut keys, mut peers, mut memories) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..channels {
            let memory = SharedMapping::new(Mapping::private(GEOMETRY.size()));
            let ready_bit = ReadyBit::new(ReadyBit::FIRST_CHANNEL + number as u16).unwrap();
            let end = |send_direction, peer_ready_map: &SharedMapping| {
                let peer_ready_map = peer_ready_map.clone();
                Channel::new(ChannelParts {
                    memory: memory.clone(),
                    geometry: GEOMETRY,
                    send_direction,
                    peer_ready_map,
                    ready_bit,
                    peer_doorbell: doorbell.clone(),
                })
            };
            keys.push(inbox.add(end(Direction::Zero, &theirs), at, ready_bit));
            peers.push(end(Direction::One, &ready_map_memory));
            memories.push(memory);
        }
        Self { inbox, keys, peers, memories, ready_map_memory, record: RecordBuffer::default() }
    }

    fn send(&mut self, from: usize) -> Result<(), ChannelSendError> {
        let end = EndpointIndex::new(0).unwrap();
        let route = Route { from: end, to: end, epoch: 0, peer: None };
        self.peers[from].send(route, &Record::Switch, &[])?;
        self.peers[from].flush();
        Ok(())
    }

    fn set_bit(&self, ready_bit: ReadyBit) {
        isthmus_shm::PeerReadyBit::new(self.ready_map_memory.clone(), ready_bit).set();
    }

    /// Sets every bit of the ready map, and polls. Returns what came of it.
    fn flood(&mut self) -> Polled {
        for word in 0..ready_map::READY_BIT_WORDS {
            self.ready_map_memory.store(ready_map::READY_BITS + word, u32::MAX, Ordering::Release);
        }
        self.ready_map_memory.store(ready_map::SUMMARY, ready_map::ANY_GROUP, Ordering::Release);
        self.poll()
    }

    /// Floods the ready map as [`Self::flood`] does, until a record comes. Returns the index of its channel, and the number of polls.
    fn next_in_flood(&mut self) -> (usize, u64) {
        for polls in 1.. {
            match self.flood() {
                Polled::Record(key) => return (self.keys.iter().position(|known| *known == key).unwrap(), polls),
                Polled::Nothing | Polled::Control(_) => {}
                fault @ Polled::Fault(..) => panic!("{fault:?}"),
            }
        }
        unreachable!("the loop has no end")
    }

    fn poll(&mut self) -> Polled {
        self.inbox.poll(&mut self.record)
    }

    /// Returns the index of the channel of the next record, which must arrive within `polls` polls.
    #[track_caller]
    fn next(&mut self, polls: u32) -> usize {
        for _ in 0..polls {
            match self.poll() {
                Polled::Record(key) => return self.keys.iter().position(|known| *known == key).unwrap(),
                Polled::Nothing => {}
                other => panic!("{other:?}"),
            }
        }
        panic!("no record in {polls} polls");
    }

    /// Polls until silent channels are parked.
    fn poll_until_parked(&mut self) {
        for _ in 0..2 * PARK_AFTER_POLLS as usize * (HOT_MAX + 1) {
            assert_eq!(self.poll(), Polled::Nothing);
        }
    }
}

#[test]
fn thousand_silent_channels_are_not_polled() {
    const ALL: usize = 1001;
    let mut fixture = InboxFixture::with_channels(ALL);
    let mut seen = vec![false; ALL];
    (0..ALL).for_each(|from| fixture.send(from).unwrap());
    for _ in 0..ALL {
        let from = fixture.next(2); // One poll of the ready map and one of the channel, for any number of channels.
        assert!(!std::mem::replace(&mut seen[from], true));
    }
    fixture.poll_until_parked();
    assert_eq!(fixture.inbox.count(), (ALL, 1), "one is looked at, for it may be the only one");
    for round in 0..3 {
        for from in [1000, 3, 500] {
            fixture.send(from).unwrap();
            assert_eq!(fixture.next(2), from, "round {round}");
            // While records arrive, the receiver does not need the ready map for this channel.
            for _ in 0..10 {
                fixture.send(from).unwrap();
                assert!(!fixture.inbox.maps[0].ready_map.is_any_set());
                assert_eq!(fixture.next(1), from);
            }
        }
        assert!(fixture.inbox.count().1 <= 4);
        fixture.poll_until_parked();
    }
}

#[test]
fn busy_channels_are_served_fairly() {
    const BUSY: usize = 3 * HOT_MAX;
    let mut fixture = InboxFixture::with_channels(BUSY);
    let mut taken = vec![0_u32; BUSY];
    for _ in 0..200 {
        for from in 0..BUSY {
            while fixture.send(from).is_ok() {}
        }
        for _ in 0..BUSY * 8 {
            taken[fixture.next(2)] += 1;
        }
    }
    let (least, most) = (taken.iter().min().unwrap(), taken.iter().max().unwrap());
    assert!(*least > 0 && *most < 40 * least, "{taken:?}");
}

#[test]
fn flooding_channel_does_not_starve_others() {
    let mut fixture = InboxFixture::with_channels(3);
    fixture.poll_until_parked();
    while fixture.send(0).is_ok() {}
    assert_eq!(fixture.next(2), 0);
    fixture.send(2).unwrap();
    let mut polls = 0;
    while fixture.next(1) != 2 {
        polls += 1;
        fixture.send(0).unwrap();
        assert!(polls <= MAP_POLL_INTERVAL + 1);
    }
}

#[test]
fn ready_bits_without_a_channel_are_only_counted() {
    let mut fixture = InboxFixture::with_channels(2);
    fixture.poll_until_parked();
    for (strays, ready_bit) in [(1, ReadyBit::FIRST_CHANNEL + 7), (2, (READY_MAP_BITS - 1) as u16)] {
        fixture.set_bit(ReadyBit::new(ready_bit).unwrap());
        assert_eq!((fixture.poll(), fixture.inbox.strays()), (Polled::Nothing, strays));
        assert!(fixture.inbox.begin_sleep());
        fixture.inbox.end_sleep();
    }
    fixture.set_bit(ReadyBit::CONTROL);
    fixture.set_bit(ReadyBit::CONTROL);
    assert_eq!(fixture.poll(), Polled::Control(InboxMapIndex(0)));
    assert_eq!((fixture.poll(), fixture.inbox.strays()), (Polled::Nothing, 2));
    // A ready bit without a record causes an empty poll.
    fixture.peers[1].signal_peer();
    assert_eq!(fixture.poll(), Polled::Nothing);
    fixture.send(1).unwrap();
    assert_eq!(fixture.next(1), 1);
}

#[test]
fn muted_channel_is_not_polled_whatever_bits_its_peer_sets() {
    let mut fixture = InboxFixture::muted(2);
    fixture.send(0).unwrap();
    fixture.peers[0].signal_peer();
    for _ in 0..2 * MAP_POLL_INTERVAL {
        assert_eq!(fixture.poll(), Polled::Nothing);
    }
    fixture.inbox.unmute(fixture.keys[0]);
    assert_eq!(fixture.next(1), 0);
}

#[test]
fn muting_a_channel_keeps_its_records() {
    let mut fixture = InboxFixture::with_channels(2);
    for round in 0..20 {
        fixture.send(0).unwrap();
        assert_eq!(fixture.next(1), 0);
        if round % 2 == 1 {
            fixture.poll_until_parked();
        }
        fixture.inbox.mute(fixture.keys[0]);
        fixture.send(0).unwrap();
        fixture.send(1).unwrap();
        assert_eq!(fixture.next(2), 1, "the other channel goes on");
        assert_eq!(fixture.poll(), Polled::Nothing);
        fixture.inbox.unmute(fixture.keys[0]);
        assert_eq!(fixture.next(1), 0);
    }
}

#[test]
fn removed_channel_is_not_found_by_key_or_ready_bit() {
    let mut fixture = InboxFixture::with_channels(2);
    fixture.send(0).unwrap();
    assert!(fixture.inbox.remove(fixture.keys[0]).is_some());
    assert!(fixture.inbox.remove(fixture.keys[0]).is_none() && fixture.inbox.channel(fixture.keys[0]).is_none());
    fixture.peers[0].signal_peer();
    assert_eq!((fixture.poll(), fixture.inbox.strays()), (Polled::Nothing, 1));
    fixture.inbox.unmute(fixture.keys[0]);
    fixture.send(1).unwrap();
    assert_eq!(fixture.next(1), 1);
    assert_eq!(fixture.inbox.count(), (1, 1));
}

#[test]
fn fault_is_reported_once_and_other_channels_continue() {
    let mut fixture = InboxFixture::with_channels(3);
    let ring = GEOMETRY.direction(Direction::One).ring;
    for word in 0..CELL_WORDS {
        fixture.memories[1].store(ring + word, u32::MAX, Ordering::Release);
    }
    fixture.send(2).unwrap();
    let polled: Vec<Polled> = (0..8).map(|_| fixture.poll()).filter(|polled| *polled != Polled::Nothing).collect();
    let faults: Vec<_> =
        polled.iter().filter(|polled| matches!(polled, Polled::Fault(key, _) if *key == fixture.keys[1])).collect();
    assert_eq!((faults.len(), polled.len()), (1, 2), "{polled:?}");
    assert!(polled.contains(&Polled::Record(fixture.keys[2])));
    fixture.poll_until_parked();
}

#[test]
fn sleep_is_refused_while_records_wait() {
    for channels in [1, 40] {
        let mut fixture = InboxFixture::with_channels(channels);
        for from in [0, channels - 1] {
            fixture.send(from).unwrap();
            assert!(fixture.inbox.is_ready() && !fixture.inbox.begin_sleep());
            fixture.inbox.end_sleep();
            assert_eq!(fixture.next(2), from);
            let slept = (0..3).any(|_| fixture.inbox.begin_sleep());
            assert!(slept && !fixture.inbox.is_ready());
            assert_eq!(fixture.inbox.count().1, 0, "a sleeping receiver polls no channel");
            fixture.send(from).unwrap(); // While the receiver sleeps.
            assert!(fixture.inbox.is_ready());
            fixture.inbox.end_sleep();
            assert_eq!(fixture.next(2), from);
        }
    }
}

/// Polls for which a flood of a ready map with all bits can delay a parked channel: the strays of one look at it, and the false wakes.
fn delay_max(channels: u64) -> u64 {
    u64::from(READY_MAP_BITS) / STRAYS_PER_POLL + channels + 2
}

#[test]
fn a_flood_of_strays_ends_no_channel_and_loses_no_record() {
    const ROUNDS: usize = 200;
    let mut fixture = InboxFixture::with_channels(3);
    for round in 0..ROUNDS {
        let from = round % 3;
        if round % 20 == 0 {
            (0..2 * PARK_AFTER_POLLS).for_each(|_| assert!(!matches!(fixture.flood(), Polled::Record(_))));
        }
        fixture.send(from).unwrap();
        let (came, polls) = fixture.next_in_flood();
        assert_eq!(came, from);
        assert!(polls <= delay_max(3), "round {round}: {polls}");
    }
    // A hot channel is polled as without a flood.
    for _ in 0..100 {
        fixture.send(1).unwrap();
        fixture.flood();
        fixture.send(1).unwrap();
        assert!(fixture.next_in_flood().1 <= 3);
        while fixture.poll() != Polled::Nothing {}
    }
}

#[test]
fn a_flood_of_strays_takes_a_bounded_share_of_polls() {
    let mut fixture = InboxFixture::with_channels(3);
    // Another map with a channel. Its peers follow the protocol.
    let [memory, theirs, channel_memory] =
        [ready_map::SIZE, ready_map::SIZE, GEOMETRY.size()].map(|size| SharedMapping::new(Mapping::private(size)));
    let (doorbell, ready_bit) = (Doorbell::new().unwrap(), ReadyBit::new(ReadyBit::FIRST_CHANNEL).unwrap());
    let honest_map = fixture.inbox.add_ready_map(memory.clone(), doorbell.clone());
    let end = |send_direction, peer_ready_map| ChannelParts {
        memory: channel_memory.clone(),
        geometry: GEOMETRY,
        send_direction,
        peer_ready_map,
        ready_bit,
        peer_doorbell: doorbell.clone(),
    };
    let honest = fixture.inbox.add(Channel::new(end(Direction::Zero, theirs)), honest_map, ready_bit);
    fixture.inbox.unmute(honest);
    fixture.keys.push(honest);
    fixture.peers.push(Channel::new(end(Direction::One, memory)));
    let (mut polls, mut delay) = (0, 0);
    for _ in 0..200 {
        (0..2 * PARK_AFTER_POLLS).for_each(|_| assert!(!matches!(fixture.flood(), Polled::Record(_))));
        fixture.send(3).unwrap();
        let (came, needed) = fixture.next_in_flood();
        assert_eq!(came, 3);
        delay = delay.max(needed);
        polls += u64::from(2 * PARK_AFTER_POLLS) + needed;
    }
    assert!(delay <= 2, "the channel of another owner waited for {delay} polls");
    let strays = fixture.inbox.strays();
    assert!(strays > 0 && strays <= STRAYS_PER_POLL * polls + u64::from(READY_MAP_BITS), "{strays} in {polls} polls");
    // Once the flood is over, the receiver sleeps at once.
    (0..2).for_each(|_| _ = fixture.inbox.begin_sleep());
    fixture.poll();
    assert!((0..3).any(|_| fixture.inbox.begin_sleep()));
}

#[test]
fn a_ready_map_without_channels_is_not_polled() {
    let mut fixture = InboxFixture::with_channels(1);
    assert!(fixture.inbox.has_channels(InboxMapIndex(0)));
    let channel = fixture.inbox.remove(fixture.keys[0]).unwrap();
    assert!(!fixture.inbox.has_channels(InboxMapIndex(0)) && fixture.inbox.ready_map_of(fixture.keys[0]).is_none());
    (0..100).for_each(|_| assert_eq!(fixture.flood(), Polled::Nothing));
    assert!(fixture.inbox.is_idle() && !fixture.inbox.is_ready() && fixture.inbox.begin_sleep());
    fixture.inbox.end_sleep();
    assert_eq!(fixture.inbox.strays(), 0);
    // A new channel begins with an empty map.
    let ready_bit = ReadyBit::new(ReadyBit::FIRST_CHANNEL).unwrap();
    let key = fixture.inbox.add(channel, InboxMapIndex(0), ready_bit);
    assert_eq!(fixture.inbox.ready_map_of(key), Some(InboxMapIndex(0)));
    assert!(!fixture.inbox.maps[0].is_any_set());
    fixture.keys = vec![key];
    fixture.inbox.unmute(key);
    fixture.send(0).unwrap();
    assert_eq!(fixture.next(2), 0);
}
