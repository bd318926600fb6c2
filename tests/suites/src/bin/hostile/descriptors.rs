//! Descriptors of the wrong kind, in the wrong number, of memory that is not what it should be.

use crate::raw::{Attached, RawConnection, name};
use crate::{Attack, Done, print_fact};
use anyhow::Context as _;
use isthmus_layout::channel::{Direction, SlabSize};
use isthmus_layout::control::*;
use isthmus_layout::ids::{ChannelId, DomainId, RegionId};
use isthmus_layout::ready_map::ReadyBit;
use isthmus_layout::reason::Reason;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use std::fs::File;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

/// A descriptor and what it is.
type Kind = (&'static str, OwnedFd);

/// A memory file, sealed or not.
fn memory(bytes: u64, seals: SealFlags) -> anyhow::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, bytes)?;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file)
}

/// Everything that is no board, no channel and no region.
fn kinds() -> anyhow::Result<Vec<Kind>> {
    let (socket, other) = isthmus_platform::seqpacket::pair()?;
    let (reading, writing) = rustix::pipe::pipe()?;
    std::mem::forget((other, writing)); // So that these are whole as long as we are.
    let frozen = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    Ok(vec![
        ("a socket", socket),
        ("a pipe", reading),
        ("a connection to the daemon", RawConnection::connect_and_greet()?.socket),
        ("nothing", File::open("/dev/null")?.into()),
        ("endless zeroes", File::open("/dev/zero")?.into()),
        ("a folder", File::open("/")?.into()),
        ("a file", File::open("/proc/self/exe")?.into()),
        ("an event", eventfd(0, EventfdFlags::CLOEXEC)?),
        ("an epoll set", rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC)?),
        ("memory without a seal", memory(1 << 20, SealFlags::empty())?),
        ("memory of one byte", memory(1, SealFlags::SHRINK)?),
        ("memory without write permission", memory(1 << 20, frozen)?),
    ])
}

/// Shows each kind wherever a message takes a descriptor.
pub(crate) fn send_wrong_fds(attack: &mut Attack) -> Done {
    for at in 0..kinds()?.len() {
        let mut us = RawConnection::connect_and_attach(None)?;
        let victim = us.raw.lookup(&attack.victim)?;
        let (what, fd) = kinds()?.swap_remove(at);
        let fd = [fd.as_fd()];
        let answered = |where_: &str, outcome: Result<Result<(), Reason>, anyhow::Error>| {
            let outcome = outcome.map_or("ENDED", |outcome| outcome.map_or_else(|reason| reason.name(), |()| "TAKEN"));
            print_fact(&format!("{what} as {where_}: {outcome}"));
        };
        let grant = Grant { peer: victim, region: RegionId(5), start: 0, bytes: 4096 };
        answered("a region", us.raw.ask(grant, &fd).map(|answer| answer.map(drop)));
        answered("a channel", us.raw.ask(adopt(victim)?, &fd).map(|answer| answer.map(drop)));
        let welcome = us.welcome.clone();
        let (board, bell) = (us.fds[3].try_clone()?, us.fds[4].try_clone()?);
        drop(us);
        for (where_, fds) in [("a board", [fd[0], bell.as_fd()]), ("a doorbell", [board.as_fd(), fd[0]])] {
            answered(where_, resume_with(&welcome, &fds));
        }
    }
    too_many(attack)
}

/// Resumes a domain that lost its connection, as soon as the daemon has seen the loss.
fn resume_with(welcome: &Welcome, fds: &[BorrowedFd<'_>]) -> anyhow::Result<Result<(), Reason>> {
    loop {
        match RawConnection::connect_and_greet()?.attach(Attached::resume(welcome), fds)? {
            Err(Reason::StillAttached) => std::thread::yield_now(),
            answer => return Ok(answer.map(drop)),
        }
    }
}

fn adopt(peer: DomainId) -> anyhow::Result<AdoptChannel> {
    let (slab, ready_bit) = (SlabSize::new(64 << 10).context("a slab")?, ReadyBit::new(99).context("a place")?);
    let channel = ChannelId(12);
    Ok(AdoptChannel {
        channel,
        peer,
        direction: Direction::One,
        slab,
        ready_map: ReadyMapIndex::DAEMON,
        ready_bit,
        peer_ready_bit: ready_bit,
    })
}

/// More descriptors than belong to a message, or than any message has.
fn too_many(attack: &mut Attack) -> Done {
    let fd = File::open("/dev/null")?;
    for count in [1, 2, 8] {
        let mut us = RawConnection::connect_and_attach(None)?;
        us.raw.say(Lookup { name: name(&attack.victim) }, &vec![fd.as_fd(); count])?;
        print_fact(&format!("{count} descriptors too many: {}", us.raw.ended()?.map_or("ENDED", Reason::name)));
    }
    Ok(())
}

/// A connected socket that takes for ever to close: the other side reads nothing, and closing waits until it has.
pub(crate) fn unread_socket() -> anyhow::Result<OwnedFd> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let sender = TcpStream::connect(listener.local_addr()?)?;
    std::mem::forget(listener.accept()?);
    sender.set_nonblocking(true)?;
    while std::io::Write::write(&mut &sender, &[0; 1 << 16]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&sender, Some(Duration::from_secs(3600)))?;
    Ok(sender.into())
}

/// Sends descriptors and closes our copies: then the last one is the daemon's to close.
fn send_fds(raw: &RawConnection, packet: &[u8], fds: Vec<OwnedFd>) {
    let borrowed: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    if !raw.send_raw(packet, &borrowed) {
        // It has had enough; they are still all ours.
        for fd in &fds {
            let _ = rustix::net::sockopt::set_socket_linger(fd, None);
        }
    }
}

/// Sends descriptors that take forever to close: where one is expected, where none is, and too many at once.
pub(crate) fn keep_fds_in_flight() -> Done {
    for count in [1, 8] {
        let us = RawConnection::connect_and_attach(None)?;
        let fds: Vec<OwnedFd> = (0..count).map(|_| unread_socket()).collect::<Result<_, _>>()?;
        send_fds(&us.raw, &ToDaemon::from(Lookup { name: name("absent") }).emit(RequestSerial::new(1)), fds);
        std::mem::forget(us);
    }
    let mut us = RawConnection::connect_and_attach(None)?;
    let grant = Grant { peer: us.welcome.domain, region: RegionId(5), start: 0, bytes: 4096 };
    let serial = RequestSerial::new(9);
    send_fds(&us.raw, &ToDaemon::from(grant).emit(serial), vec![unread_socket()?]);
    us.raw.receive_matching(|received| received.serial == serial)?;
    // And some that lie in the socket unread when the daemon ends the connection.
    let us = RawConnection::connect_and_attach(None)?;
    us.raw.send_raw(b"nonsense", &[]);
    for _ in 0..4 {
        send_fds(&us.raw, b"nonsense", vec![unread_socket()?]);
    }
    std::mem::forget(us);
    Ok(())
}

/// Grants of memory that is not what a region has to be.
pub(crate) fn grants(attack: &mut Attack) -> Done {
    let mut us = RawConnection::connect_and_attach(None)?;
    let peer = us.raw.lookup(&attack.victim)?;
    let (sealed, part) = (SealFlags::SHRINK | SealFlags::FUTURE_WRITE, 1 << 16);
    let whole = memory(part, sealed)?;
    rustix::fs::fallocate(&whole, FallocateFlags::empty(), 0, part)?;
    let grants = [
        ("whole", whole.try_clone()?, 0, part),
        ("larger than it is", whole.try_clone()?, 0, part + 1),
        ("beyond its end", whole.try_clone()?, part, 4096),
        ("beyond all ends", whole.try_clone()?, u64::MAX - 4095, 8192),
        ("without seals", memory(part, SealFlags::empty())?, 0, part),
        ("with holes", memory(1 << 40, sealed)?, 0, 1 << 40),
        ("still writable", memory(part, SealFlags::SHRINK)?, 0, part),
        ("the daemon's board", us.fds[1].try_clone()?, 0, 4096),
        ("of no bytes", whole, 0, 0),
    ];
    for (at, (what, fd, start, bytes)) in grants.into_iter().enumerate() {
        let grant = Grant { peer, region: RegionId(at as u64 + 1), start, bytes };
        let outcome = us.raw.ask(grant, &[fd.as_fd()])?;
        print_fact(&format!("{what}: {}", outcome.map_or_else(|reason| reason.name(), |_| "passed on")));
    }
    Ok(())
}

/// Tries to shrink shared memory under the processes that have it mapped.
pub(crate) fn shrink(attack: &mut Attack) -> Done {
    let mut us = RawConnection::connect_and_attach(None)?;
    let victim = us.raw.lookup(&attack.victim)?;
    let (_, offered) = us.raw.channel(victim)?;
    let given = [
        ("the domain ring", &us.fds[0]),
        ("the daemon's board", &us.fds[1]),
        ("our board", &us.fds[3]),
        ("the channel", &offered[0]),
        ("the peer's board", &offered[1]),
    ];
    for (what, fd) in given {
        let size = rustix::fs::fstat(fd)?.st_size as u64;
        let outcome = |tried: rustix::io::Result<()>| {
            tried.map_or_else(
                |errno| if errno == Errno::PERM { "EPERM".into() } else { errno.to_string() },
                |()| "DONE".into(),
            )
        };
        print_fact(&format!("{what} shrinks: {}", outcome(rustix::fs::ftruncate(fd, 0))));
        print_fact(&format!("{what} grows: {}", outcome(rustix::fs::ftruncate(fd, 2 * size))));
        print_fact(&format!("{what} is sealed: {}", outcome(rustix::fs::fcntl_add_seals(fd, SealFlags::WRITE))));
        // Holes read as zeroes: its peer finds a fault, never a signal.
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        print_fact(&format!(
            "{what} gets a hole: {}",
            rustix::fs::fallocate(fd, punch, 0, size).map_or("refused", |()| "done")
        ));
    }
    Ok(())
}
