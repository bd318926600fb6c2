//! Noise: bytes that mean nothing, connections that say nothing, connections without number.

use crate::raw::{RawConnection, name};
use crate::{Attack, Done, print_fact};
use isthmus_layout::control::{Lookup, RequestSerial, ToDaemon};
use isthmus_platform::seqpacket;
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// Connections that are thrown at the daemon, each with a few packets.
const ROUNDS: usize = 400;

/// More than any daemon of the tests takes.
const CROWD: usize = 3000;

/// Random bytes, valid heads before garbage, true messages cut or changed, with descriptors or without; at each stage of a
/// connection.
pub(crate) fn send_noise(attack: &mut Attack) -> Done {
    let spare: Vec<OwnedFd> = vec![
        std::fs::File::open("/dev/null")?.into(),
        rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?,
    ];
    let mut thrown = 0;
    for round in 0..ROUNDS {
        let raw = match round % 3 {
            0 => RawConnection::connect()?,
            1 => RawConnection::connect_and_greet()?,
            _ => RawConnection::connect_and_attach(None)?.raw,
        };
        for _ in 0..=attack.chance.below(4) {
            let packet = packet(attack);
            let fds: Vec<BorrowedFd<'_>> = match attack.chance.below(4) {
                0 => (0..=attack.chance.below(7)).map(|at| spare[at as usize % 2].as_fd()).collect(),
                _ => Vec::new(),
            };
            thrown += usize::from(raw.send_raw(&packet, &fds));
        }
        if attack.chance.one_in(4) {
            // Leaves with the daemon's answers unread.
            continue;
        }
        raw.drain();
    }
    print_fact(&format!("thrown {thrown}"));
    Ok(())
}

fn packet(attack: &mut Attack) -> Vec<u8> {
    let len = attack.chance.below(120) as usize;
    let mut bytes = attack.bytes(len);
    match attack.chance.below(5) {
        0 => bytes, // Never zero bytes long twice in a row: an empty packet is the end of a connection.
        1 => [&[attack.chance.below(20) as u8, 0, 0, 0, 1, 0, 0, 0][..], &bytes].concat(),
        2 => {
            let len = attack.chance.below(17_000) as usize;
            attack.bytes(len)
        }
        3 => {
            let mut packet = ToDaemon::from(Lookup { name: name("another") }).emit(RequestSerial::new(7));
            packet.truncate(attack.chance.below(packet.len() as u64 + 1) as usize);
            packet
        }
        _ => {
            let mut packet = ToDaemon::from(Lookup { name: name("another") }).emit(RequestSerial::new(7));
            let at = attack.chance.below(packet.len() as u64) as usize;
            packet[at] ^= 1 << attack.chance.below(8);
            bytes.clear();
            packet
        }
    }
}

/// Connections that never say hello, until the daemon ends them; and as many more.
pub(crate) fn connect_silently() -> Done {
    let (mut held, mut refused) = (0, 0);
    let connections: Vec<RawConnection> = (0..200).map(|_| RawConnection::connect()).collect::<Result<_, _>>()?;
    for raw in &connections {
        match raw.ended()? {
            Some(isthmus_layout::reason::Reason::HandshakeTimeout) => held += 1,
            _ => refused += 1,
        }
    }
    print_fact(&format!("timed out {held} refused {refused}"));
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
    print_fact(&format!("connections {}", connections.len()));
    std::mem::forget(connections); // Kept until this process ends.
    Ok(())
}
