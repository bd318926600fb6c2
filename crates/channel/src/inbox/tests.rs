use super::*;
use crate::channel::{Ends, SendError};
use isthmus_layout::channel::{CELL_WORDS, Direction, Geometry, SlabSize};
use isthmus_layout::limits::BOARD_PLACES;
use isthmus_layout::record::{Record, Route};
use isthmus_layout::{EndpointIndex, board};
use isthmus_shm::{Mapping, Words as _};
use std::sync::atomic::Ordering;

const GEOMETRY: Geometry = Geometry { slab: SlabSize::LEAST };

/// A receiver, and the other ends of its channels.
struct Bed {
    inbox: Inbox,
    keys: Vec<ChannelKey>,
    peers: Vec<Channel>,
    memories: Vec<Window>,
    /// The receiver's board.
    marks: Window,
    record: RecordBuffer,
}

impl Bed {
    /// With so many channels, all of them taken from.
    fn of(channels: usize) -> Self {
        let mut bed = Self::muted(channels);
        bed.keys.clone().into_iter().for_each(|key| bed.inbox.unmute(key));
        bed
    }

    fn muted(channels: usize) -> Self {
        let [marks, theirs] = [(), ()].map(|()| Window::new(Mapping::private(board::SIZE)));
        let doorbell = Doorbell::new().unwrap();
        let mut inbox = Inbox::new();
        let at = inbox.add_board(marks.clone(), doorbell.clone());
        let (mut keys, mut peers, mut memories) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..channels {
            let memory = Window::new(Mapping::private(GEOMETRY.size()));
            let place = Place::new(Place::FIRST + number as u16).unwrap();
            let end = |sends, peer_board: &Window| {
                let (window, peer_board) = (memory.clone(), peer_board.clone());
                Channel::new(Ends {
                    window,
                    geometry: GEOMETRY,
                    sends,
                    peer_board,
                    place,
                    peer_doorbell: doorbell.clone(),
                })
            };
            keys.push(inbox.add(end(Direction::Zero, &theirs), at, place));
            peers.push(end(Direction::One, &marks));
            memories.push(memory);
        }
        Self { inbox, keys, peers, memories, marks, record: RecordBuffer::default() }
    }

    fn send(&mut self, from: usize) -> Result<(), SendError> {
        let end = EndpointIndex::new(0).unwrap();
        let route = Route { from: end, to: end, epoch: 0, peer: None };
        self.peers[from].send(route, &Record::Switch, &[])?;
        self.peers[from].flush();
        Ok(())
    }

    fn poll(&mut self) -> Polled {
        self.inbox.poll(&mut self.record)
    }

    /// Which channel the next record is of, within so many polls.
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

    /// Polls for so long that whoever is silent is looked at no more.
    fn pass(&mut self) {
        for _ in 0..2 * PATIENCE as usize * (HOT_MAX + 1) {
            assert_eq!(self.poll(), Polled::Nothing);
        }
    }
}

#[test]
fn a_thousand_silent_channels_are_not_looked_at() {
    const ALL: usize = 1001;
    let mut bed = Bed::of(ALL);
    let mut seen = vec![false; ALL];
    (0..ALL).for_each(|from| bed.send(from).unwrap());
    for _ in 0..ALL {
        let from = bed.next(2); // One look at the board, one at the channel, however many there are.
        assert!(!std::mem::replace(&mut seen[from], true));
    }
    bed.pass();
    assert_eq!(bed.inbox.count(), (ALL, 1), "one is looked at, for it may be the only one");
    for round in 0..3 {
        for from in [1000, 3, 500] {
            bed.send(from).unwrap();
            assert_eq!(bed.next(2), from, "round {round}");
            // As long as it goes on, no board has to be looked at for it.
            for _ in 0..10 {
                bed.send(from).unwrap();
                assert!(!bed.inbox.boards[0].board.any());
                assert_eq!(bed.next(1), from);
            }
        }
        assert!(bed.inbox.count().1 <= 4);
        bed.pass();
    }
}

#[test]
fn all_that_are_busy_have_their_turn() {
    const BUSY: usize = 3 * HOT_MAX;
    let mut bed = Bed::of(BUSY);
    let mut taken = vec![0_u32; BUSY];
    for _ in 0..200 {
        for from in 0..BUSY {
            while bed.send(from).is_ok() {}
        }
        for _ in 0..BUSY * 8 {
            taken[bed.next(2)] += 1;
        }
    }
    let (least, most) = (taken.iter().min().unwrap(), taken.iter().max().unwrap());
    assert!(*least > 0 && *most < 40 * least, "{taken:?}");
}

#[test]
fn who_floods_does_not_keep_the_others_out() {
    let mut bed = Bed::of(3);
    bed.pass();
    while bed.send(0).is_ok() {}
    assert_eq!(bed.next(2), 0);
    bed.send(2).unwrap();
    let mut polls = 0;
    while bed.next(1) != 2 {
        polls += 1;
        bed.send(0).unwrap();
        assert!(polls <= BOARDS_EVERY + 1);
    }
}

#[test]
fn marks_where_no_channel_is_are_told_and_cost_nothing_else() {
    let mut bed = Bed::of(2);
    bed.pass();
    for place in [Place::CONTROL, Place::new(Place::FIRST + 7).unwrap(), Place::new((BOARD_PLACES - 1) as u16).unwrap()]
    {
        isthmus_shm::Marker::new(bed.marks.clone(), place).mark();
        assert_eq!(bed.poll(), Polled::Marked(BoardIndex(0), place));
        assert_eq!(bed.poll(), Polled::Nothing);
    }
    // A mark without a record is a look that finds nothing.
    bed.peers[1].nudge();
    assert_eq!(bed.poll(), Polled::Nothing);
    bed.send(1).unwrap();
    assert_eq!(bed.next(1), 1);
}

#[test]
fn a_muted_channel_waits_whatever_its_peer_marks() {
    let mut bed = Bed::muted(2);
    bed.send(0).unwrap();
    bed.peers[0].nudge();
    for _ in 0..2 * BOARDS_EVERY {
        assert_eq!(bed.poll(), Polled::Nothing);
    }
    bed.inbox.unmute(bed.keys[0]);
    assert_eq!(bed.next(1), 0);
}

#[test]
fn a_channel_that_is_gone_is_not_found_by_its_key_nor_by_its_place() {
    let mut bed = Bed::of(2);
    bed.send(0).unwrap();
    assert!(bed.inbox.remove(bed.keys[0]).is_some());
    assert!(bed.inbox.remove(bed.keys[0]).is_none() && bed.inbox.channel(bed.keys[0]).is_none());
    bed.peers[0].nudge();
    let place = Place::new(Place::FIRST).unwrap();
    assert_eq!(bed.poll(), Polled::Marked(BoardIndex(0), place));
    bed.inbox.unmute(bed.keys[0]);
    bed.send(1).unwrap();
    assert_eq!(bed.next(1), 1);
    assert_eq!(bed.inbox.count(), (1, 1));
}

#[test]
fn a_fault_is_told_once_and_the_others_go_on() {
    let mut bed = Bed::of(3);
    let ring = GEOMETRY.direction(Direction::One).ring;
    for word in 0..CELL_WORDS {
        bed.memories[1].store(ring + word, u32::MAX, Ordering::Release);
    }
    bed.send(2).unwrap();
    let polled: Vec<Polled> = (0..8).map(|_| bed.poll()).filter(|polled| *polled != Polled::Nothing).collect();
    let faults: Vec<_> =
        polled.iter().filter(|polled| matches!(polled, Polled::Fault(key, _) if *key == bed.keys[1])).collect();
    assert_eq!((faults.len(), polled.len()), (1, 2), "{polled:?}");
    assert!(polled.contains(&Polled::Record(bed.keys[2])));
    bed.pass();
}

#[test]
fn whoever_has_something_is_not_slept_through() {
    for channels in [1, 40] {
        let mut bed = Bed::of(channels);
        for from in [0, channels - 1] {
            bed.send(from).unwrap();
            assert!(bed.inbox.is_ready() && !bed.inbox.sleep());
            bed.inbox.awake();
            assert_eq!(bed.next(2), from);
            let slept = (0..3).any(|_| bed.inbox.sleep());
            assert!(slept && !bed.inbox.is_ready());
            assert_eq!(bed.inbox.count().1, 0, "who sleeps looks at nobody");
            bed.send(from).unwrap(); // While it sleeps.
            assert!(bed.inbox.is_ready());
            bed.inbox.awake();
            assert_eq!(bed.next(2), from);
        }
    }
}
