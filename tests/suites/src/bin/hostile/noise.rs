//! Noise: bytes that mean nothing, connections that say nothing, connections without number.

use crate::raw::{Raw, name};
use crate::{Deed, Done, say};
use isthmus_layout::control::{Lookup, RequestSerial, ToDaemon};
use isthmus_platform::seqpacket;
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// Connections that are thrown at the daemon, each with a few packets.
const ROUNDS: usize = 400;

/// More than any daemon of the tests takes.
const CROWD: usize = 3000;

/// Random bytes, valid heads before garbage, true messages cut or changed, with descriptors or without; at each stage of a
/// connection.
pub(crate) fn noise(deed: &mut Deed) -> Done {
    let spare: Vec<OwnedFd> = vec![
        std::fs::File::open("/dev/null")?.into(),
        rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?,
    ];
    let mut thrown = 0;
    for round in 0..ROUNDS {
        let raw = match round % 3 {
            0 => Raw::connect()?,
            1 => Raw::greeted()?,
            _ => Raw::attached(None)?.raw,
        };
        for _ in 0..=deed.chance.below(4) {
            let packet = packet(deed);
            let fds: Vec<BorrowedFd<'_>> = match deed.chance.below(4) {
                0 => (0..=deed.chance.below(7)).map(|at| spare[at as usize % 2].as_fd()).collect(),
                _ => Vec::new(),
            };
            thrown += usize::from(raw.throw(&packet, &fds));
        }
        if deed.chance.once_in(4) {
            // Leaves with the daemon's answers unread.
            continue;
        }
        raw.drain();
    }
    say(&format!("thrown {thrown}"));
    Ok(())
}

fn packet(deed: &mut Deed) -> Vec<u8> {
    let len = deed.chance.below(120) as usize;
    let mut bytes = deed.bytes(len);
    match deed.chance.below(5) {
        0 => bytes, // Never zero bytes long twice in a row: an empty packet is the end of a connection.
        1 => [&[deed.chance.below(20) as u8, 0, 0, 0, 1, 0, 0, 0][..], &bytes].concat(),
        2 => {
            let len = deed.chance.below(17_000) as usize;
            deed.bytes(len)
        }
        3 => {
            let mut packet = ToDaemon::from(Lookup { name: name("somebody") }).emit(RequestSerial::new(7));
            packet.truncate(deed.chance.below(packet.len() as u64 + 1) as usize);
            packet
        }
        _ => {
            let mut packet = ToDaemon::from(Lookup { name: name("somebody") }).emit(RequestSerial::new(7));
            let at = deed.chance.below(packet.len() as u64) as usize;
            packet[at] ^= 1 << deed.chance.below(8);
            bytes.clear();
            packet
        }
    }
}

/// Connections that never say hello, until the daemon ends them; and as many more.
pub(crate) fn mute() -> Done {
    let (mut held, mut refused) = (0, 0);
    let connections: Vec<Raw> = (0..200).map(|_| Raw::connect()).collect::<Result<_, _>>()?;
    for raw in &connections {
        match raw.ended()? {
            Some(isthmus_layout::reason::Reason::HandshakeTimeout) => held += 1,
            _ => refused += 1,
        }
    }
    say(&format!("timed out {held} refused {refused}"));
    Ok(())
}

/// Thousands of connections, all kept.
pub(crate) fn crowd() -> Done {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    rustix::process::setrlimit(
        rustix::process::Resource::Nofile,
        rustix::process::Rlimit { current: limit.maximum, ..limit },
    )?;
    let mut connections = Vec::new();
    for _ in 0..CROWD {
        match seqpacket::connect(&crate::raw::socket()) {
            Ok(socket) => connections.push(socket),
            Err(rustix::io::Errno::MFILE) => break,
            // The daemon is slow to accept: that is its right.
            Err(_) => std::thread::yield_now(),
        }
    }
    say(&format!("connections {}", connections.len()));
    std::mem::forget(connections); // Kept until this process ends.
    Ok(())
}
