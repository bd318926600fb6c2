//! The checks, each in its two halves.

use super::transport::CheckMessage;
use super::{CheckSide, ConformancePlatform};
use crate::{Listen, Platform, Ring};
use isthmus_layout::RegionSize;
use isthmus_layout::channel::{ChannelGeometry, Direction, SlabSize};
use isthmus_layout::limits::SLAB_BYTES_MIN;
use isthmus_layout::record::Fragment;
use isthmus_shm::{
    Access, Consumer, Payload, Producer, PushError, RecordBuffer, SharedMapping, SlabConsumer, SlabProducer, Words,
};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Long enough for any platform, emulated ones too; only a missing wake-up ever waits for it.
const CHECK_TIMEOUT: Duration = Duration::from_secs(60);

const PAGE: u64 = 4096;

/// A check: what the owner does, and what the side does that is let in.
pub(super) struct Check<P: Platform> {
    pub(super) name: &'static str,
    pub(super) owner: fn(&mut CheckSide<'_, P>),
    pub(super) peer: fn(&mut CheckSide<'_, P>),
}

/// All checks, in order.
pub(super) fn all<P: ConformancePlatform>() -> [Check<P>; 7] {
    let check = |name, owner: fn(&mut CheckSide<'_, P>), peer: fn(&mut CheckSide<'_, P>)| Check { name, owner, peer };
    [
        check("memory starts as zeroes and is shared", zeroed::owner, zeroed::peer),
        check("memory that comes back is zeroes again", reused::owner, reused::peer),
        check("read-only grants show later writes", later_writes::owner, later_writes::peer),
        check("more than there is cannot be mapped", out_of_bounds::owner, out_of_bounds::peer),
        check("what was not granted cannot be mapped", forged::owner, forged::peer),
        check("a doorbell wakes once for many rings", doorbell::owner, doorbell::peer),
        check("records and fragments cross", records::owner, records::peer),
    ]
}

/// Memory of `size`, our mapping of it, and the other side let in.
fn allocate_and_grant<P: Platform>(
    side: &mut CheckSide<'_, P>,
    size: RegionSize,
    access: Access,
) -> (P::Memory, SharedMapping) {
    let memory = side.platform.allocate(size, side.peer, access).expect("allocate");
    let own = SharedMapping::new(side.platform.map_own(&memory).expect("map_own"));
    let grant = side.platform.grant(&memory, side.peer, access).expect("grant");
    side.send(CheckMessage::Grant(grant));
    (memory, own)
}

/// Receives a grant from the other side and maps it.
fn receive_and_map<P: Platform>(side: &mut CheckSide<'_, P>, size: RegionSize, access: Access) -> SharedMapping {
    let grant = side.receive_grant();
    SharedMapping::new(side.platform.map(grant, size, access).expect("map"))
}

fn is_zero(mapping: &SharedMapping, page: u64) -> bool {
    let mut bytes = [0xff; PAGE as usize];
    mapping.copy_out(page * PAGE, &mut bytes);
    bytes.iter().all(|&byte| byte == 0)
}

mod zeroed {
    use super::*;

    const SIZE: RegionSize = RegionSize(4 * PAGE);

    pub(super) fn owner<P: Platform>(side: &mut CheckSide<'_, P>) {
        let (_memory, own) = allocate_and_grant(side, SIZE, Access::ReadWrite);
        side.synchronize(); // They have looked for zeroes.
        for page in 0..4 {
            own.store(page * 1024 + 1, page + 10, Relaxed);
        }
        side.synchronize();
        for page in 0..4 {
            assert_eq!(own.load(page * 1024 + 2, Relaxed), page + 20, "page {page}");
        }
    }

    pub(super) fn peer<P: Platform>(side: &mut CheckSide<'_, P>) {
        let mapping = receive_and_map(side, SIZE, Access::ReadWrite);
        assert!((0..4).all(|page| is_zero(&mapping, page)), "fresh memory is not zeroed");
        side.synchronize();
        for page in 0..4 {
            mapping.store(page * 1024 + 2, page + 20, Relaxed);
        }
        side.synchronize();
        for page in 0..4 {
            assert_eq!(mapping.load(page * 1024 + 1, Relaxed), page + 10, "page {page}");
        }
    }
}

mod reused {
    use super::*;

    const SIZE: RegionSize = RegionSize(2 * PAGE);
    const ROUNDS: usize = 3;

    pub(super) fn owner<P: Platform>(side: &mut CheckSide<'_, P>) {
        for _ in 0..ROUNDS {
            let (memory, own) = allocate_and_grant(side, SIZE, Access::ReadWrite);
            side.synchronize(); // They have written and unmapped.
            assert!(!is_zero(&own, 0) && !is_zero(&own, 1), "what they wrote is not there");
            drop((own, memory));
        }
    }

    pub(super) fn peer<P: Platform>(side: &mut CheckSide<'_, P>) {
        for round in 0..ROUNDS {
            let mapping = receive_and_map(side, SIZE, Access::ReadWrite);
            assert!(is_zero(&mapping, 0) && is_zero(&mapping, 1), "round {round}: bytes of another process");
            mapping.copy_in(0, &[0xa5; 2 * PAGE as usize]);
            drop(mapping);
            side.synchronize();
        }
    }
}

mod later_writes {
    use super::*;

    pub(super) fn owner<P: Platform>(side: &mut CheckSide<'_, P>) {
        let (memory, own) = allocate_and_grant(side, RegionSize(PAGE), Access::Read);
        side.synchronize(); // They have mapped.
        own.copy_in(100, b"later");
        side.synchronize();
        let grant = side.platform.grant(&memory, side.peer, Access::Read).expect("grant");
        side.send(CheckMessage::Grant(grant));
        side.synchronize();
    }

    pub(super) fn peer<P: Platform>(side: &mut CheckSide<'_, P>) {
        let mapping = receive_and_map(side, RegionSize(PAGE), Access::Read);
        side.synchronize();
        side.synchronize(); // They have written.
        let mut bytes = [0; 5];
        mapping.copy_out(100, &mut bytes);
        assert_eq!(&bytes, b"later");
        let grant = side.receive_grant();
        let mapped = side.platform.map(grant, RegionSize(PAGE), Access::ReadWrite);
        assert!(mapped.is_err(), "a read-only grant was mapped writable");
        side.synchronize();
    }
}

mod out_of_bounds {
    use super::*;

    pub(super) fn owner<P: Platform>(side: &mut CheckSide<'_, P>) {
        let _kept = allocate_and_grant(side, RegionSize(PAGE), Access::ReadWrite);
        side.synchronize();
    }

    pub(super) fn peer<P: Platform>(side: &mut CheckSide<'_, P>) {
        let grant = side.receive_grant();
        let mapped = side.platform.map(grant, RegionSize(2 * PAGE), Access::ReadWrite);
        assert!(mapped.is_err(), "mapped beyond the grant");
        side.synchronize();
    }
}

mod forged {
    use super::*;

    const SIZE: RegionSize = RegionSize(PAGE);

    pub(super) fn owner<P: ConformancePlatform>(side: &mut CheckSide<'_, P>) {
        let (memory, own) = allocate_and_grant(side, SIZE, Access::ReadWrite);
        let mut held = Vec::new();
        let forged = side.platform.forged_grants(&memory, side.peer, SIZE, &mut held).expect("forged grants");
        side.send(CheckMessage::Word(u32::try_from(forged.len()).expect("a few")));
        for (what, grant) in forged {
            side.send(CheckMessage::Grant(grant));
            assert_eq!(side.receive_word(), 0, "{what}: it was mapped");
        }
        side.synchronize();
        assert_eq!(own.load(0, Relaxed), 5, "what was granted is of use no more");
    }

    pub(super) fn peer<P: ConformancePlatform>(side: &mut CheckSide<'_, P>) {
        let mapping = receive_and_map(side, SIZE, Access::ReadWrite);
        for _ in 0..side.receive_word() {
            let forged = side.receive_grant();
            let mapped = side.platform.map(forged, SIZE, Access::ReadWrite);
            side.send(CheckMessage::Word(u32::from(mapped.is_ok())));
        }
        mapping.store(0, 5, Relaxed);
        side.synchronize();
    }
}

mod doorbell {
    use super::*;

    /// The owner listens.
    pub(super) fn owner<P: Platform>(side: &mut CheckSide<'_, P>) {
        let (receiver, token) = side.platform.doorbell(side.peer).expect("doorbell");
        side.send(CheckMessage::DoorbellToken(token));
        side.synchronize(); // The other side can ring, and has not.
        while receiver.wait(Duration::ZERO) {} // Some platforms ring once when the doorbell is created.
        side.synchronize();
        side.synchronize(); // The other side has rung twice.
        assert!(receiver.wait(CHECK_TIMEOUT), "the doorbell was not received");
        // Where rings take time to arrive, the second may come after the first was received. The check is that they end.
        let begun = Instant::now();
        while receiver.wait(Duration::from_millis(50)) {
            assert!(begun.elapsed() < CHECK_TIMEOUT, "two rings never end");
        }
        side.synchronize();
        assert!(receiver.wait(CHECK_TIMEOUT), "the doorbell works only once");
        side.synchronize();
    }

    pub(super) fn peer<P: Platform>(side: &mut CheckSide<'_, P>) {
        let token = side.receive_doorbell_token();
        let sender = side.platform.doorbell_sender(token).expect("doorbell sender");
        side.synchronize();
        side.synchronize();
        sender.ring();
        sender.ring();
        side.synchronize();
        side.synchronize(); // They have heard, and then nothing more.
        sender.ring();
        side.synchronize();
    }
}

mod records {
    use super::*;

    const ROUNDS: u32 = 1000;
    const BYTES: u32 = 3000;

    fn geometry() -> ChannelGeometry {
        ChannelGeometry { slab: SlabSize::new(SLAB_BYTES_MIN).expect("the smallest slab is one") }
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
                None => assert!(begun.elapsed() < CHECK_TIMEOUT, "{what}"),
            }
            std::thread::yield_now();
        }
    }

    /// The owner produces.
    pub(super) fn owner<P: Platform>(side: &mut CheckSide<'_, P>) {
        let geometry = geometry();
        let (_memory, own) = allocate_and_grant(side, geometry.size(), Access::ReadWrite);
        let at = geometry.direction(Direction::Zero);
        let mut producer = Producer::new(own.clone(), at);
        let mut slab = SlabProducer::new(own.clone(), at, geometry.slab);
        for round in 0..ROUNDS {
            let fragment = until("no fragment came back", || slab.reserve(BYTES, BYTES).expect("no fault"));
            own.copy_in(slab.region_offset(fragment), &[round as u8; BYTES as usize]);
            until("no record was consumed", || {
                match producer.push(7, &[round, fragment.offset, fragment.len], &message(round)) {
                    Ok(()) => Some(()),
                    Err(PushError::Full) => None,
                    Err(fault) => panic!("{fault}"),
                }
            });
            assert!(!producer.wake(), "the consumer is not parked");
        }
        side.synchronize(); // The other side is parked.
        until("no record was consumed", || producer.push(7, &[], &[]).ok());
        assert!(producer.wake(), "a parked consumer was not noticed");
        assert!(!producer.wake(), "noticed twice");
        side.synchronize();
    }

    pub(super) fn peer<P: Platform>(side: &mut CheckSide<'_, P>) {
        let geometry = geometry();
        let mapping = receive_and_map(side, geometry.size(), Access::ReadWrite);
        let at = geometry.direction(Direction::Zero);
        let mut consumer = Consumer::new(mapping.clone(), at);
        let mut slab = SlabConsumer::new(mapping.clone(), at, geometry.slab);
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
            let fragment = Fragment { offset, len };
            let span = slab.span(fragment).expect("inside");
            let mut bytes = [0; BYTES as usize];
            mapping.copy_out(span.start(), &mut bytes);
            assert_eq!(bytes, [round as u8; BYTES as usize], "round {round}");
            if slab.release(fragment) | consumer.needs_publish() {
                slab.publish();
                assert!(!consumer.publish(), "the producer does not wait for room");
            }
        }
        assert!(consumer.park().expect("no fault"), "a record too many");
        side.synchronize();
        side.synchronize();
        consumer.unpark();
        assert!(consumer.pop(&mut record).expect("no fault"), "the last record does not arrive");
    }
}
