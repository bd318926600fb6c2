//! The checks, each in its two halves.

use super::border::Message;
use super::{Conform, Party};
use crate::{Listen, Platform, Ring};
use isthmus_layout::RegionSize;
use isthmus_layout::channel::{Direction, Geometry, SlabSize};
use isthmus_layout::limits::SLAB_BYTES_MIN;
use isthmus_layout::record::Piece;
use isthmus_shm::{
    Access, Consumer, Payload, Producer, PushError, RecordBuffer, SlabConsumer, SlabProducer, Window, Words,
};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Long enough for any platform, emulated ones too; only a missing wake-up ever waits for it.
const LIVENESS: Duration = Duration::from_secs(60);

const PAGE: u64 = 4096;

/// A check: what the owner does, and what the side does that is let in.
pub(super) struct Check<P: Platform> {
    pub(super) name: &'static str,
    pub(super) owner: fn(&mut Party<'_, P>),
    pub(super) guest: fn(&mut Party<'_, P>),
}

/// All checks, in order.
pub(super) fn all<P: Conform>() -> [Check<P>; 7] {
    let check = |name, owner: fn(&mut Party<'_, P>), guest: fn(&mut Party<'_, P>)| Check { name, owner, guest };
    [
        check("memory starts as zeroes and is shared", fresh::owner, fresh::guest),
        check("memory that comes back is zeroes again", again::owner, again::guest),
        check("read-only grants show later writes", later::owner, later::guest),
        check("more than there is cannot be mapped", beyond::owner, beyond::guest),
        check("what was not granted cannot be mapped", forged::owner, forged::guest),
        check("a doorbell wakes once for many rings", bell::owner, bell::guest),
        check("records and pieces cross", records::owner, records::guest),
    ]
}

/// Memory of `pages`, our window of it, and the other side let in.
fn share<P: Platform>(party: &mut Party<'_, P>, size: RegionSize, access: Access) -> (P::Memory, Window) {
    let memory = party.platform.allocate(size, party.them, access).expect("allocate");
    let own = Window::new(party.platform.map_own(&memory).expect("map_own"));
    let grant = party.platform.grant(&memory, party.them, access).expect("grant");
    party.tell(Message::Grant(grant));
    (memory, own)
}

/// What the other side let us into.
fn enter<P: Platform>(party: &mut Party<'_, P>, size: RegionSize, access: Access) -> Window {
    let grant = party.grant();
    Window::new(party.platform.map(grant, size, access).expect("map"))
}

fn is_zero(window: &Window, page: u64) -> bool {
    let mut bytes = [0xff; PAGE as usize];
    window.copy_out(page * PAGE, &mut bytes);
    bytes.iter().all(|&byte| byte == 0)
}

mod fresh {
    use super::*;

    const SIZE: RegionSize = RegionSize(4 * PAGE);

    pub(super) fn owner<P: Platform>(party: &mut Party<'_, P>) {
        let (_memory, own) = share(party, SIZE, Access::ReadWrite);
        party.meet(); // They have looked for zeroes.
        for page in 0..4 {
            own.store(page * 1024 + 1, page + 10, Relaxed);
        }
        party.meet();
        for page in 0..4 {
            assert_eq!(own.load(page * 1024 + 2, Relaxed), page + 20, "page {page}");
        }
    }

    pub(super) fn guest<P: Platform>(party: &mut Party<'_, P>) {
        let window = enter(party, SIZE, Access::ReadWrite);
        assert!((0..4).all(|page| is_zero(&window, page)), "fresh memory is not zeroed");
        party.meet();
        for page in 0..4 {
            window.store(page * 1024 + 2, page + 20, Relaxed);
        }
        party.meet();
        for page in 0..4 {
            assert_eq!(window.load(page * 1024 + 1, Relaxed), page + 10, "page {page}");
        }
    }
}

mod again {
    use super::*;

    const SIZE: RegionSize = RegionSize(2 * PAGE);
    const ROUNDS: usize = 3;

    pub(super) fn owner<P: Platform>(party: &mut Party<'_, P>) {
        for _ in 0..ROUNDS {
            let (memory, own) = share(party, SIZE, Access::ReadWrite);
            party.meet(); // They have written and unmapped.
            assert!(!is_zero(&own, 0) && !is_zero(&own, 1), "what they wrote is not there");
            drop((own, memory));
        }
    }

    pub(super) fn guest<P: Platform>(party: &mut Party<'_, P>) {
        for round in 0..ROUNDS {
            let window = enter(party, SIZE, Access::ReadWrite);
            assert!(is_zero(&window, 0) && is_zero(&window, 1), "round {round}: somebody else's bytes");
            window.copy_in(0, &[0xa5; 2 * PAGE as usize]);
            drop(window);
            party.meet();
        }
    }
}

mod later {
    use super::*;

    pub(super) fn owner<P: Platform>(party: &mut Party<'_, P>) {
        let (memory, own) = share(party, RegionSize(PAGE), Access::Read);
        party.meet(); // They have mapped.
        own.copy_in(100, b"later");
        party.meet();
        let grant = party.platform.grant(&memory, party.them, Access::Read).expect("grant");
        party.tell(Message::Grant(grant));
        party.meet();
    }

    pub(super) fn guest<P: Platform>(party: &mut Party<'_, P>) {
        let window = enter(party, RegionSize(PAGE), Access::Read);
        party.meet();
        party.meet(); // They have written.
        let mut bytes = [0; 5];
        window.copy_out(100, &mut bytes);
        assert_eq!(&bytes, b"later");
        let grant = party.grant();
        let mapped = party.platform.map(grant, RegionSize(PAGE), Access::ReadWrite);
        assert!(mapped.is_err(), "a read-only grant was mapped writable");
        party.meet();
    }
}

mod beyond {
    use super::*;

    pub(super) fn owner<P: Platform>(party: &mut Party<'_, P>) {
        let _kept = share(party, RegionSize(PAGE), Access::ReadWrite);
        party.meet();
    }

    pub(super) fn guest<P: Platform>(party: &mut Party<'_, P>) {
        let grant = party.grant();
        let mapped = party.platform.map(grant, RegionSize(2 * PAGE), Access::ReadWrite);
        assert!(mapped.is_err(), "mapped beyond the grant");
        party.meet();
    }
}

mod forged {
    use super::*;

    const SIZE: RegionSize = RegionSize(PAGE);

    pub(super) fn owner<P: Conform>(party: &mut Party<'_, P>) {
        let (memory, own) = share(party, SIZE, Access::ReadWrite);
        let mut held = Vec::new();
        let forgeries = party.platform.forgeries(&memory, party.them, SIZE, &mut held).expect("forgeries");
        party.tell(Message::Word(u32::try_from(forgeries.len()).expect("a few")));
        for (what, grant) in forgeries {
            party.tell(Message::Grant(grant));
            assert_eq!(party.word(), 0, "{what}: it was mapped");
        }
        party.meet();
        assert_eq!(own.load(0, Relaxed), 5, "what was granted is of use no more");
    }

    pub(super) fn guest<P: Conform>(party: &mut Party<'_, P>) {
        let window = enter(party, SIZE, Access::ReadWrite);
        for _ in 0..party.word() {
            let forged = party.grant();
            let mapped = party.platform.map(forged, SIZE, Access::ReadWrite);
            party.tell(Message::Word(u32::from(mapped.is_ok())));
        }
        window.store(0, 5, Relaxed);
        party.meet();
    }
}

mod bell {
    use super::*;

    /// The owner listens.
    pub(super) fn owner<P: Platform>(party: &mut Party<'_, P>) {
        let (listener, bell) = party.platform.doorbell(party.them).expect("doorbell");
        party.tell(Message::Bell(bell));
        party.meet(); // They can ring, and have not.
        while listener.wait(Duration::ZERO) {} // Some platforms ring once when the bell is hung.
        party.meet();
        party.meet(); // They have rung twice.
        assert!(listener.wait(LIVENESS), "nobody heard the doorbell");
        // Where rings travel for a while, the second may come when the first was heard: what counts is that they end.
        let begun = Instant::now();
        while listener.wait(Duration::from_millis(50)) {
            assert!(begun.elapsed() < LIVENESS, "two rings never end");
        }
        party.meet();
        assert!(listener.wait(LIVENESS), "the doorbell works only once");
        party.meet();
    }

    pub(super) fn guest<P: Platform>(party: &mut Party<'_, P>) {
        let bell = party.bell();
        let ringer = party.platform.ringer(bell).expect("ringer");
        party.meet();
        party.meet();
        ringer.ring();
        ringer.ring();
        party.meet();
        party.meet(); // They have heard, and then nothing more.
        ringer.ring();
        party.meet();
    }
}

mod records {
    use super::*;

    const ROUNDS: u32 = 1000;
    const BYTES: u32 = 3000;

    fn geometry() -> Geometry {
        Geometry { slab: SlabSize::new(SLAB_BYTES_MIN).expect("the smallest slab is one") }
    }

    fn message(round: u32) -> Vec<u8> {
        (0..round % 128).map(|at| (at + round) as u8).collect()
    }

    /// Tries until there is something.
    fn until<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            match attempt() {
                Some(found) => return found,
                None => assert!(begun.elapsed() < LIVENESS, "{what}"),
            }
            std::thread::yield_now();
        }
    }

    /// The owner produces.
    pub(super) fn owner<P: Platform>(party: &mut Party<'_, P>) {
        let geometry = geometry();
        let (_memory, own) = share(party, geometry.size(), Access::ReadWrite);
        let at = geometry.direction(Direction::Zero);
        let mut producer = Producer::new(own.clone(), at);
        let mut slab = SlabProducer::new(own.clone(), at, geometry.slab);
        for round in 0..ROUNDS {
            let piece = until("no piece came back", || slab.reserve(BYTES, BYTES).expect("no fault"));
            own.copy_in(slab.byte(piece), &[round as u8; BYTES as usize]);
            until("no record was consumed", || {
                match producer.push(7, &[round, piece.offset, piece.len], &message(round)) {
                    Ok(()) => Some(()),
                    Err(PushError::Full) => None,
                    Err(fault) => panic!("{fault}"),
                }
            });
            assert!(!producer.wake(), "nobody is parked");
        }
        party.meet(); // They are parked.
        until("no record was consumed", || producer.push(7, &[], &[]).ok());
        assert!(producer.wake(), "a parked consumer was not noticed");
        assert!(!producer.wake(), "noticed twice");
        party.meet();
    }

    pub(super) fn guest<P: Platform>(party: &mut Party<'_, P>) {
        let geometry = geometry();
        let window = enter(party, geometry.size(), Access::ReadWrite);
        let at = geometry.direction(Direction::Zero);
        let mut consumer = Consumer::new(window.clone(), at);
        let mut slab = SlabConsumer::new(window.clone(), at, geometry.slab);
        let mut record = RecordBuffer::default();
        for round in 0..ROUNDS {
            until("no record arrives", || consumer.pop(&mut record).expect("no fault").then_some(()));
            let &[number, offset, len, ref words @ ..] = record.words() else {
                panic!("a record of {} words", record.words().len())
            };
            assert_eq!((record.kind(), number, len), (7, round, BYTES));
            let message = message(round);
            let arrived: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            assert_eq!(arrived[..message.len()], message);
            let piece = Piece { offset, len };
            let span = slab.span(piece).expect("inside");
            let mut bytes = [0; BYTES as usize];
            window.copy_out(span.start(), &mut bytes);
            assert_eq!(bytes, [round as u8; BYTES as usize], "round {round}");
            if slab.give_back(piece) | consumer.owes() {
                slab.publish();
                assert!(!consumer.publish(), "nobody waits for room");
            }
        }
        assert!(consumer.park().expect("no fault"), "a record too many");
        party.meet();
        party.meet();
        consumer.unpark();
        assert!(consumer.pop(&mut record).expect("no fault"), "the last record does not arrive");
    }
}
