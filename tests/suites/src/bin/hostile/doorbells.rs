//! Doorbells: made to block, filled to the brim, and used to pass what should not be passed.

use crate::descriptors::unread_socket;
use crate::memory::map;
use crate::raw::RawConnection;
use crate::{Attack, Done, print_fact};
use isthmus_layout::channel::{ChannelGeometry, PARKED};
use isthmus_layout::ready_map::{self, SLEEPING};
use isthmus_platform::seqpacket;
use isthmus_shm::{SharedMapping, Words as _};
use rustix::fd::{AsFd as _, OwnedFd};
use rustix::fs::OFlags;
use rustix::net::SendFlags;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Fills a doorbell, so that a careless ringer blocks. Returns the kind of the doorbell.
fn fill_eventfd(bell: &OwnedFd) -> anyhow::Result<&'static str> {
    let flags = rustix::fs::fcntl_getfl(bell)?;
    let kind = match rustix::net::sockopt::socket_type(bell) {
        Ok(_) => {
            while rustix::net::send(bell, &[1; 8], SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok() {}
            "a socket"
        }
        Err(_) => {
            rustix::fs::fcntl_setfl(bell, flags | OFlags::NONBLOCK)?;
            // Whatever its counter holds already: halves of what is left, down to one.
            for shift in (0..64).rev() {
                let _ = rustix::io::write(bell, &(1_u64 << shift).to_ne_bytes());
            }
            "an event descriptor"
        }
    };
    rustix::fs::fcntl_setfl(bell, flags - OFlags::NONBLOCK)?;
    Ok(kind)
}

/// Fills every doorbell we hold, makes it blocking, and claims to sleep on all of ours: a domain that sends us anything has to ring.
pub(crate) fn fill(attack: &mut Attack) -> Done {
    let mut us = RawConnection::connect_and_attach(Some("bells"))?;
    us.raw
        .ask(isthmus_layout::control::OpenEndpoint { index: None, label: None }, &[])?
        .map_err(|reason| anyhow::anyhow!("{reason}"))?;
    let victim = us.raw.lookup(&attack.victim)?;
    let (offer, offered) = us.raw.channel(victim)?;
    let mut bells = vec![("the daemon's", &us.fds[2]), ("the peer's", &offered[2]), ("our own", &us.fds[4])];
    bells.extend(offered.get(4).map(|bell| ("our own for the peer", bell)));
    for (owner, bell) in &bells {
        print_fact(&format!("{owner} is {}", fill_eventfd(bell)?));
    }
    let geometry = ChannelGeometry { slab: offer.slab };
    let channel = map(&offered[0], geometry.size())?;
    let boards = [Some(&us.fds[3]), offered.get(3)].into_iter().flatten().map(|fd| map(fd, ready_map::SIZE));
    let boards: Vec<SharedMapping> = boards.collect::<Result<_, _>>()?;
    let parked = geometry.direction(offer.direction.other()).consumer + PARKED;
    let bells: Vec<OwnedFd> = bells.into_iter().map(|(_, bell)| bell.try_clone()).collect::<Result<_, _>>()?;
    let mut chance = isthmus_testbed::SeededRandom::seeded(attack.chance.bits());
    std::thread::spawn(move || {
        loop {
            boards.iter().for_each(|board| board.store(SLEEPING, 1, Relaxed));
            channel.store(parked, 1, Relaxed);
            bells.iter().for_each(|bell| drop(fill_eventfd(bell)));
            chance.sleep_random(Duration::from_micros(400));
        }
    });
    std::mem::forget((us, offered)); // Nothing that comes on the control socket is read any more.
    Ok(())
}

/// Sends descriptors that take forever to close to a peer that expects rings.
pub(crate) fn pass_fds_in_doorbell(attack: &mut Attack) -> Done {
    let mut us = RawConnection::connect_and_attach(None)?;
    let victim = us.raw.lookup(&attack.victim)?;
    let (_, offered) = us.raw.channel(victim)?;
    for _ in 0..4 {
        let socket = unread_socket()?;
        let sent = seqpacket::send(&offered[2], &[143, 0, 0, 0, 0, 0, 0, 0], &[socket.as_fd()]).is_ok();
        print_fact(if sent { "sent" } else { "refused" });
    }
    std::mem::forget(us);
    Ok(())
}
