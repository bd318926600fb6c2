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

    /// Sets every bit of the ready map, as often as `rounds` says, and polls after each round.
    fn flood(&mut self, rounds: u32) -> Vec<Polled> {
        let mut polled = Vec::new();
        for _ in 0..rounds {
            for word in 0..ready_map::READY_BIT_WORDS {
                self.ready_map_memory.store(ready_map::READY_BITS + word, u32::MAX, Ordering::Release);
            }
            self.ready_map_memory.store(ready_map::SUMMARY, ready_map::ANY_GROUP, Ordering::Release);
            polled.push(self.poll());
        }
        polled.extend((0..64).map(|_| self.poll()));
        polled.retain(|polled| !matches!(polled, Polled::Nothing | Polled::Control(_)));
        polled
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
fn muting_a_channel_keeps_its_records_and_the_limit_of_strays() {
    let rounds_until_fault = |mutes: u32| {
        let mut fixture = InboxFixture::with_channels(2);
        for round in 0..mutes {
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
        (1..).find(|_| !fixture.flood(1).is_empty())
    };
    assert_eq!(rounds_until_fault(0), rounds_until_fault(20));
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

#[test]
fn a_flood_of_strays_costs_no_memory_and_faults_the_channels_of_its_map_once() {
    let mut fixture = InboxFixture::with_channels(3);
    // Another map with a channel. Its peers follow the protocol.
    let [memory, theirs, channel_memory] =
        [ready_map::SIZE, ready_map::SIZE, GEOMETRY.size()].map(|size| SharedMapping::new(Mapping::private(size)));
    let (doorbell, ready_bit) = (Doorbell::new().unwrap(), ReadyBit::new(ReadyBit::FIRST_CHANNEL).unwrap());
    let honest_map = fixture.inbox.add_ready_map(memory, doorbell.clone());
    let parts = ChannelParts {
        memory: channel_memory,
        geometry: GEOMETRY,
        send_direction: Direction::Zero,
        peer_ready_map: theirs,
        ready_bit,
        peer_doorbell: doorbell,
    };
    let honest = fixture.inbox.add(Channel::new(parts), honest_map, ready_bit);
    fixture.inbox.unmute(honest);
    let rounds = 3 * STRAYS_PER_CHANNEL / READY_MAP_BITS;
    assert_eq!(fixture.flood(rounds), []);
    let polled = fixture.flood(20);
    let mut faulted: Vec<_> = polled
        .iter()
        .map(|polled| match polled {
            Polled::Fault(key, PeerFault::StrayReadyBits { strays }) if *strays > 0 => *key,
            other => panic!("{other:?}"),
        })
        .collect();
    faulted.sort();
    assert_eq!(faulted, fixture.keys);
    assert!(fixture.inbox.faulted.capacity() <= 64, "{}", fixture.inbox.faulted.capacity());
    // A faulted channel is not polled, whatever bits its peer sets.
    fixture.send(0).unwrap();
    fixture.peers[0].signal_peer();
    assert_eq!(fixture.flood(2), []);
    assert!(fixture.inbox.channel(honest).is_some());
}

#[test]
fn a_ready_map_without_channels_is_not_polled() {
    let mut fixture = InboxFixture::with_channels(1);
    assert!(fixture.inbox.has_channels(InboxMapIndex(0)));
    let channel = fixture.inbox.remove(fixture.keys[0]).unwrap();
    assert!(!fixture.inbox.has_channels(InboxMapIndex(0)) && fixture.inbox.ready_map_of(fixture.keys[0]).is_none());
    assert_eq!(fixture.flood(100), []);
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
