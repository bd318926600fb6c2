//! Garbage in shared memory: domain rings, channels, boards.

use crate::raw::{Attached, RawConnection};
use crate::{Attack, Done, print_fact};
use anyhow::Context as _;
use isthmus_layout::RegionSize;
use isthmus_layout::channel::{ChannelGeometry, Direction, DirectionLayout};
use isthmus_layout::control::{CloseChannel, ToClient};
use isthmus_layout::ids::{DomainId, EndpointIndex};
use isthmus_layout::ready_map;
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Record, Route};
use isthmus_platform::{Doorbell, Ring as _};
use isthmus_shm::{Access, Mapping, Payload as _, PeerReadyBit, Producer, SharedMapping, Words as _};
use rustix::fd::OwnedFd;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// Rings and channels that are spoilt, one after the other.
const ROUNDS: u64 = 12;

/// Floods of a ready map: enough for a receiver that stores each bit to use up gigabytes.
const FLOODS: usize = 200_000;

/// Longest that random words are written into something that is being used.
const GARBAGE_WRITES: usize = 4000;

pub(crate) fn map(memory: &OwnedFd, size: RegionSize) -> anyhow::Result<SharedMapping> {
    Ok(SharedMapping::new(Mapping::new(memory, size, Access::ReadWrite)?))
}

/// Random words anywhere, or everywhere.
fn write_garbage(attack: &mut Attack, window: &SharedMapping, rounds: usize) {
    let bytes = window.size().0;
    for _ in 0..rounds {
        let garbage = match attack.chance.below(4) {
            0 => vec![0xff; 4],
            1 => vec![0; 4],
            _ => attack.bytes(4),
        };
        window.copy_in(4 * attack.chance.below(bytes / 4), &garbage);
    }
}

/// Our side of a shared memory: where we mark and what we ring.
struct AttackerSide {
    window: SharedMapping,
    out: DirectionLayout,
    peer_ready_bit: PeerReadyBit<SharedMapping>,
    bell: Doorbell,
}

impl AttackerSide {
    fn notify(&self) {
        self.peer_ready_bit.set();
        self.bell.ring(); // Whether the peer sleeps there or not.
    }
}

/// Our side of our domain ring.
fn own_ring(us: &Attached) -> anyhow::Result<AttackerSide> {
    let geometry = ChannelGeometry { slab: us.welcome.slab };
    Ok(AttackerSide {
        window: map(&us.fds[0], geometry.size())?,
        out: geometry.direction(Direction::Zero),
        peer_ready_bit: PeerReadyBit::new(map(&us.fds[1], ready_map::SIZE)?, us.welcome.daemon_ready_bit),
        bell: Doorbell::from(us.fds[2].try_clone()?),
    })
}

/// Our side of a channel with the victim; it is open, and the victim listens to it.
fn with_victim(attack: &Attack, us: &mut Attached) -> anyhow::Result<AttackerSide> {
    let victim = us.raw.lookup(&attack.victim)?;
    let (offer, fds) = us.raw.channel(victim)?;
    switch(us, victim)?;
    let geometry = ChannelGeometry { slab: offer.slab };
    Ok(AttackerSide {
        window: map(&fds[0], geometry.size())?,
        out: geometry.direction(offer.direction),
        peer_ready_bit: PeerReadyBit::new(map(&fds[1], ready_map::SIZE)?, offer.peer_ready_bit),
        bell: Doorbell::from(fds[2].try_clone()?),
    })
}

/// Garbage over the whole domain ring, again and again. The daemon ends the domain each time.
pub(crate) fn ring(attack: &mut Attack) -> Done {
    for _ in 0..ROUNDS {
        let us = RawConnection::connect_and_attach(None)?;
        let ring = own_ring(&us)?;
        let garbage = attack.bytes(ring.window.size().0 as usize);
        ring.window.copy_in(0, &garbage);
        ring.notify();
        print_fact(&format!("ended {}", us.raw.ended()?.map_or("WITHOUT A REASON", Reason::name)));
    }
    Ok(())
}

/// Garbage over a channel toward the victim, which ends it each time.
pub(crate) fn channel(attack: &mut Attack) -> Done {
    for round in 0..ROUNDS {
        let mut us = RawConnection::connect_and_attach(None)?;
        let channel = with_victim(attack, &mut us)?;
        match round % 3 {
            0 => {
                let garbage = attack.bytes(channel.window.size().0 as usize);
                channel.window.copy_in(0, &garbage);
            }
            1 => {
                write_garbage(attack, &channel.window, GARBAGE_WRITES);
                channel.window.copy_in(4 * u64::from(channel.out.ring), &[0xdd; 4]);
            }
            // The first cell not taken yet gets a lap that cannot be.
            _ => channel.window.copy_in(4 * u64::from(channel.out.ring), &vec![0xee; 8192]),
        }
        channel.notify();
        print_fact(&format!("closed {}", closed(&mut us)?.name()));
    }
    Ok(())
}

/// Says on the domain ring that we change to the channel, as a library does: only then does the other side look into it.
fn switch(us: &Attached, victim: DomainId) -> Done {
    let ring = own_ring(us)?;
    let nobody = EndpointIndex::new(0).context("an endpoint")?;
    let emitted = Record::Switch.emit(Route { from: nobody, to: nobody, epoch: 0, peer: Some(victim) });
    Producer::new(ring.window.clone(), ring.out).push(emitted.kind, &emitted.words[..emitted.count], &[])?;
    ring.notify();
    Ok(())
}

/// Waits until the daemon tells that a channel of ours is over.
fn closed(us: &mut Attached) -> anyhow::Result<Reason> {
    let received = us.raw.receive_matching(|received| matches!(received.message, ToClient::ChannelClosed(_)))?;
    let ToClient::ChannelClosed(closed) = received.message else { unreachable!("looked for above") };
    Ok(closed.reason)
}

/// Records that stand in the ring as they should and say what they should not: on the domain ring and on a channel.
pub(crate) fn records(attack: &mut Attack) -> Done {
    let (mut pushed, mut ended) = (0, 0);
    for round in 0..20 * ROUNDS {
        let mut us = RawConnection::connect_and_attach(None)?;
        let side = if round % 2 == 0 { own_ring(&us)? } else { with_victim(attack, &mut us)? };
        let mut producer = Producer::new(side.window.clone(), side.out);
        let victim = us.raw.lookup(&attack.victim)?.number();
        for _ in 0..1 + attack.chance.below(40) {
            let words: Vec<u32> = (0..attack.chance.below(14)).map(|at| word(attack, at, victim)).collect();
            let len = 4 * attack.chance.below(20) as usize;
            let message = attack.bytes(len);
            let kind = attack.chance.below(11) as u8;
            pushed += u32::from(producer.push(kind, &words, &message).is_ok());
        }
        side.notify();
        if round % 2 == 0 {
            // Most of them cannot be; the few that can have no receiver, or one that counts them.
            ended += u32::from(!us.raw.send_raw(&[0; 3], &[]));
        }
    }
    print_fact(&format!("pushed {pushed}, {ended} ended early"));
    Ok(())
}

/// A word that may mean something where it stands.
fn word(attack: &mut Attack, at: u64, victim: u32) -> u32 {
    match (at, attack.chance.below(4)) {
        (1, 0..3) => victim, // The destination, on the daemon path: never one of the honest pair.
        (1, _) => u32::MAX - attack.chance.below(3) as u32,
        (_, 0) => attack.chance.bits() as u32,
        (_, 1) => attack.chance.below(70_000) as u32,
        (_, 2) => u32::MAX - attack.chance.below(3) as u32,
        _ => attack.chance.below(4) as u32,
    }
}

/// Garbage over every board we can write: our own, the daemon's, the victim's.
pub(crate) fn ready_maps(attack: &mut Attack) -> Done {
    let mut us = RawConnection::connect_and_attach(None)?;
    let victim = us.raw.lookup(&attack.victim)?;
    let (_, fds) = us.raw.channel(victim)?;
    let boards = [&us.fds[1], &us.fds[3], &fds[1]].map(|fd| map(fd, ready_map::SIZE));
    let bells = [&us.fds[2], &us.fds[4], &fds[2]].map(OwnedFd::try_clone);
    let bells: Vec<Doorbell> = bells.into_iter().map(|fd| fd.map(Doorbell::from)).collect::<Result<_, _>>()?;
    for board in boards {
        let board = board.context("a board")?;
        for _ in 0..50 {
            write_garbage(attack, &board, 400);
            bells.iter().for_each(isthmus_platform::Ring::ring);
        }
    }
    print_fact("scribbled");
    Ok(())
}

/// Sets all bits of the victim's and of the daemon's ready map, without pause. Nothing ends because of that.
pub(crate) fn flood_ready_maps(attack: &mut Attack) -> Done {
    let mut us = RawConnection::connect_and_attach(None)?;
    let victim = us.raw.lookup(&attack.victim)?;
    let (offer, fds) = us.raw.channel(victim)?;
    let (theirs, daemons) = (map(&fds[1], ready_map::SIZE)?, map(&us.fds[1], ready_map::SIZE)?);
    let bells = [Doorbell::from(fds[2].try_clone()?), Doorbell::from(us.fds[2].try_clone()?)];
    let flood = |map: &SharedMapping| {
        for word in 0..ready_map::READY_BIT_WORDS {
            map.store(ready_map::READY_BITS + word, u32::MAX, Relaxed);
        }
        map.store(ready_map::SUMMARY, ready_map::ANY_GROUP, Release);
    };
    for (name, map) in [("the victim's", &theirs), ("the daemon's", &daemons)] {
        for _ in 0..FLOODS {
            flood(map);
            bells.iter().for_each(isthmus_platform::Ring::ring);
        }
        print_fact(&format!("flooded {name}"));
    }
    // Closing the channel succeeds, so it and the connection are still there.
    match us.raw.send_and_check(CloseChannel { channel: offer.channel, reason: Reason::ClosedLocally })? {
        None => print_fact("nothing ended"),
        Some(reason) => print_fact(&format!("ended: {}", reason.name())),
    }
    Ok(())
}

/// Reads the victim's memory by its process number, as cross memory attach does.
pub(crate) fn peek(attack: &mut Attack, address: Option<&String>) -> Done {
    use nix::sys::uio::{RemoteIoVec, process_vm_readv};
    let pid = nix::unistd::Pid::from_raw(attack.victim.parse().context("a process number")?);
    let base = usize::from_str_radix(address.context("an address")?, 16)?;
    let mut copy = [0; 64];
    let len = copy.len();
    let outcome = process_vm_readv(pid, &mut [std::io::IoSliceMut::new(&mut copy)], &[RemoteIoVec { base, len }]);
    let outcome = outcome.map_or_else(|errno| format!("{errno:?}"), |bytes| format!("READ {bytes}"));
    print_fact(&format!("process_vm_readv {outcome}"));
    let file = std::fs::File::open(format!("/proc/{pid}/mem"));
    print_fact(&format!("mem {}", file.map_or_else(|error| format!("{:?}", error.kind()), |_| "OPENED".into())));
    Ok(())
}
