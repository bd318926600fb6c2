//! Garbage in shared memory: domain rings, channels, boards.

use crate::raw::{Attached, Raw};
use crate::{Deed, Done, say};
use anyhow::Context as _;
use isthmus_layout::RegionSize;
use isthmus_layout::board;
use isthmus_layout::channel::{Direction, DirectionLayout, Geometry};
use isthmus_layout::control::ToClient;
use isthmus_layout::ids::{DomainId, EndpointIndex};
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Record, Route};
use isthmus_platform::{Doorbell, Ring as _};
use isthmus_shm::{Access, Mapping, Marker, Payload as _, Producer, Window};
use rustix::fd::OwnedFd;

/// Rings and channels that are spoilt, one after the other.
const ROUNDS: u64 = 12;

/// Longest that random words are written into something that is being used.
const SCRIBBLES: usize = 4000;

pub(crate) fn map(memory: &OwnedFd, size: RegionSize) -> anyhow::Result<Window> {
    Ok(Window::new(Mapping::new(memory, size, Access::ReadWrite)?))
}

/// Random words anywhere, or everywhere.
fn scribble(deed: &mut Deed, window: &Window, rounds: usize) {
    let bytes = window.size().0;
    for _ in 0..rounds {
        let garbage = match deed.chance.below(4) {
            0 => vec![0xff; 4],
            1 => vec![0; 4],
            _ => deed.bytes(4),
        };
        window.copy_in(4 * deed.chance.below(bytes / 4), &garbage);
    }
}

/// Our side of a shared memory: where we mark and what we ring.
struct Side {
    window: Window,
    out: DirectionLayout,
    marker: Marker<Window>,
    bell: Doorbell,
}

impl Side {
    fn notify(&self) {
        self.marker.mark();
        self.bell.ring(); // Whether somebody sleeps there or not.
    }
}

/// Our side of our domain ring.
fn own_ring(us: &Attached) -> anyhow::Result<Side> {
    let geometry = Geometry { slab: us.welcome.slab };
    Ok(Side {
        window: map(&us.fds[0], geometry.size())?,
        out: geometry.direction(Direction::Zero),
        marker: Marker::new(map(&us.fds[1], board::SIZE)?, us.welcome.daemon_place),
        bell: Doorbell::from(us.fds[2].try_clone()?),
    })
}

/// Our side of a channel with the victim; it is open, and the victim listens to it.
fn with_victim(deed: &Deed, us: &mut Attached) -> anyhow::Result<Side> {
    let victim = us.raw.lookup(&deed.victim)?;
    let (offer, fds) = us.raw.channel(victim)?;
    switch(us, victim)?;
    let geometry = Geometry { slab: offer.slab };
    Ok(Side {
        window: map(&fds[0], geometry.size())?,
        out: geometry.direction(offer.direction),
        marker: Marker::new(map(&fds[1], board::SIZE)?, offer.peer_place),
        bell: Doorbell::from(fds[2].try_clone()?),
    })
}

/// Garbage over the whole domain ring, again and again. The daemon ends the domain each time.
pub(crate) fn ring(deed: &mut Deed) -> Done {
    for _ in 0..ROUNDS {
        let us = Raw::attached(None)?;
        let ring = own_ring(&us)?;
        let garbage = deed.bytes(ring.window.size().0 as usize);
        ring.window.copy_in(0, &garbage);
        ring.notify();
        say(&format!("ended {}", us.raw.ended()?.map_or("WITHOUT A REASON", Reason::name)));
    }
    Ok(())
}

/// Garbage over a channel toward the victim, which ends it each time.
pub(crate) fn channel(deed: &mut Deed) -> Done {
    for round in 0..ROUNDS {
        let mut us = Raw::attached(None)?;
        let channel = with_victim(deed, &mut us)?;
        match round % 3 {
            0 => {
                let garbage = deed.bytes(channel.window.size().0 as usize);
                channel.window.copy_in(0, &garbage);
            }
            1 => {
                scribble(deed, &channel.window, SCRIBBLES);
                channel.window.copy_in(4 * u64::from(channel.out.ring), &[0xdd; 4]);
            }
            // The first cell not taken yet gets a lap that cannot be.
            _ => channel.window.copy_in(4 * u64::from(channel.out.ring), &vec![0xee; 8192]),
        }
        channel.notify();
        say(&format!("closed {}", closed(&mut us)?.name()));
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
    let heard = us.raw.hear(|heard| matches!(heard.message, ToClient::ChannelClosed(_)))?;
    let ToClient::ChannelClosed(closed) = heard.message else { unreachable!("looked for above") };
    Ok(closed.reason)
}

/// Records that stand in the ring as they should and say what they should not: on the domain ring and on a channel.
pub(crate) fn records(deed: &mut Deed) -> Done {
    let (mut pushed, mut ended) = (0, 0);
    for round in 0..20 * ROUNDS {
        let mut us = Raw::attached(None)?;
        let side = if round % 2 == 0 { own_ring(&us)? } else { with_victim(deed, &mut us)? };
        let mut producer = Producer::new(side.window.clone(), side.out);
        let victim = us.raw.lookup(&deed.victim)?.number();
        for _ in 0..1 + deed.chance.below(40) {
            let words: Vec<u32> = (0..deed.chance.below(14)).map(|at| word(deed, at, victim)).collect();
            let len = 4 * deed.chance.below(20) as usize;
            let message = deed.bytes(len);
            let kind = deed.chance.below(11) as u8;
            pushed += u32::from(producer.push(kind, &words, &message).is_ok());
        }
        side.notify();
        if round % 2 == 0 {
            // Most of them cannot be; the few that can reach nobody, or somebody who counts them.
            ended += u32::from(!us.raw.throw(&[0; 3], &[]));
        }
    }
    say(&format!("pushed {pushed}, {ended} ended early"));
    Ok(())
}

/// A word that may mean something where it stands.
fn word(deed: &mut Deed, at: u64, victim: u32) -> u32 {
    match (at, deed.chance.below(4)) {
        (1, 0..3) => victim, // Whom it is for, on the ordinary path: never one of the honest pair.
        (1, _) => u32::MAX - deed.chance.below(3) as u32,
        (_, 0) => deed.chance.bits() as u32,
        (_, 1) => deed.chance.below(70_000) as u32,
        (_, 2) => u32::MAX - deed.chance.below(3) as u32,
        _ => deed.chance.below(4) as u32,
    }
}

/// Garbage over every board we can write: our own, the daemon's, the victim's.
pub(crate) fn boards(deed: &mut Deed) -> Done {
    let mut us = Raw::attached(None)?;
    let victim = us.raw.lookup(&deed.victim)?;
    let (_, fds) = us.raw.channel(victim)?;
    let boards = [&us.fds[1], &us.fds[3], &fds[1]].map(|fd| map(fd, board::SIZE));
    let bells = [&us.fds[2], &us.fds[4], &fds[2]].map(OwnedFd::try_clone);
    let bells: Vec<Doorbell> = bells.into_iter().map(|fd| fd.map(Doorbell::from)).collect::<Result<_, _>>()?;
    for board in boards {
        let board = board.context("a board")?;
        for _ in 0..50 {
            scribble(deed, &board, 400);
            bells.iter().for_each(isthmus_platform::Ring::ring);
        }
    }
    say("scribbled");
    Ok(())
}

/// Reads the victim's memory by its process number, as cross memory attach does.
pub(crate) fn peek(deed: &mut Deed, address: Option<&String>) -> Done {
    use nix::sys::uio::{RemoteIoVec, process_vm_readv};
    let pid = nix::unistd::Pid::from_raw(deed.victim.parse().context("a process number")?);
    let base = usize::from_str_radix(address.context("an address")?, 16)?;
    let mut copy = [0; 64];
    let len = copy.len();
    let outcome = process_vm_readv(pid, &mut [std::io::IoSliceMut::new(&mut copy)], &[RemoteIoVec { base, len }]);
    let outcome = outcome.map_or_else(|errno| format!("{errno:?}"), |bytes| format!("READ {bytes}"));
    say(&format!("process_vm_readv {outcome}"));
    let file = std::fs::File::open(format!("/proc/{pid}/mem"));
    say(&format!("mem {}", file.map_or_else(|error| format!("{:?}", error.kind()), |_| "OPENED".into())));
    Ok(())
}
