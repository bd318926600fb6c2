//! Load: each attack takes of the daemon as much as one user can, with many connections, and goes on until this process ends.

use crate::raw::{Attached, RawConnection, name, socket};
use crate::{Done, print_fact};
use isthmus_layout::control::*;
use isthmus_platform::seqpacket;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;

/// Threads that attack at once.
const THREADS: usize = 4;

/// Domains that ask and read the answers.
const FLOODING_DOMAINS: usize = 48;

/// Connections that ask for reports and read them.
const REPORT_READERS: usize = 16;

/// Domains that do not read their offers.
const DEAF_DOMAINS: usize = 40;

/// Rounds of requests for channels before the deaf domains count as loaded.
const REQUEST_ROUNDS: usize = 20;

/// Domains that make reports long.
const CROWD: usize = 300;

/// Connections that do not read their reports, and the reports that each of them asks for.
const REPORT_HOLDERS: usize = 120;
const REPORTS_HELD: usize = 8;

fn repeat_for_ever(act: impl Fn(usize) + Copy + Send + 'static) {
    for thread in 0..THREADS {
        std::thread::spawn(move || {
            loop {
                act(thread);
            }
        });
    }
}

/// Connects and closes again, without end.
pub(crate) fn connect_without_end() -> Done {
    repeat_for_ever(|_| drop(seqpacket::connect(&socket())));
    Ok(())
}

fn query(topic: Topic) -> Vec<u8> {
    ToDaemon::from(Query { topic, arguments: List::new(Vec::new()).expect("none") }).emit(RequestSerial::new(1))
}

/// Sends a packet as often as there is room, and drops all answers. Returns false if neither was possible.
fn exchange(socket: &OwnedFd, packet: &[u8], scratch: &mut [u8]) -> bool {
    let (mut fds, mut is_busy) = (Vec::new(), false);
    while seqpacket::send(socket, packet, &[]).is_ok() {
        is_busy = true;
    }
    while seqpacket::receive(socket, scratch, &mut fds, false).is_ok() {
        is_busy = true;
    }
    is_busy
}

/// Looks domains up and asks for reports on many connections at once, and reads all answers.
pub(crate) fn flood_requests() -> Done {
    let lookup = ToDaemon::from(Lookup { name: name("absent") }).emit(RequestSerial::new(1));
    let mut sockets = Vec::new();
    for _ in 0..FLOODING_DOMAINS {
        sockets.push((RawConnection::connect_and_attach(None)?.raw.socket, lookup.clone()));
    }
    for _ in 0..REPORT_READERS {
        sockets.push((RawConnection::connect_and_greet()?.socket, query(Topic::Domains)));
    }
    for (socket, _) in &sockets {
        rustix::io::ioctl_fionbio(socket, true)?;
    }
    let sockets: &'static [(OwnedFd, Vec<u8>)] = sockets.leak();
    repeat_for_ever(move |thread| {
        let own = || sockets.iter().skip(thread).step_by(THREADS);
        let mut scratch = vec![0; 64 << 10];
        let busy = own().filter(|(socket, packet)| exchange(socket, packet, &mut scratch)).count();
        if busy == 0 {
            let mut waits: Vec<_> =
                own().map(|(socket, _)| PollFd::new(socket, PollFlags::IN | PollFlags::OUT)).collect();
            let _ = poll(&mut waits, None);
        }
    });
    print_fact(&format!("connections {}", sockets.len()));
    Ok(())
}

/// Has the daemon send descriptors to domains that never read them.
pub(crate) fn hold_descriptors() -> Done {
    let domains: Vec<Attached> =
        (0..DEAF_DOMAINS).map(|_| RawConnection::connect_and_attach(None)).collect::<Result<_, _>>()?;
    let requests: Vec<Vec<u8>> = domains
        .iter()
        .map(|domain| ToDaemon::from(RequestChannel { peer: domain.welcome.domain, attempt: 1 }).emit(None))
        .collect();
    for domain in &domains {
        rustix::io::ioctl_fionbio(&domain.raw.socket, true)?;
    }
    let request_all = move || {
        for domain in &domains {
            for request in &requests {
                domain.raw.send_raw(request, &[]);
            }
        }
    };
    let mut canary = RawConnection::connect_and_attach(None)?;
    for _ in 0..REQUEST_ROUNDS {
        request_all();
        let _ = canary.raw.ask(Lookup { name: name("absent") }, &[])?;
    }
    std::mem::forget(canary);
    std::thread::spawn(move || {
        loop {
            request_all();
        }
    });
    Ok(())
}

/// Attaches domains with long names.
pub(crate) fn crowd() -> Done {
    for at in 0..CROWD {
        let called = format!("one-of-many-domains-that-make-reports-as-long-as-they-get-{at}");
        std::mem::forget(RawConnection::connect_and_attach(Some(&called))?);
    }
    Ok(())
}

/// Asks for reports on many connections, and reads none.
pub(crate) fn hold_reports() -> Done {
    let query = query(Topic::Domains);
    for _ in 0..REPORT_HOLDERS {
        let raw = RawConnection::connect_and_greet()?;
        for _ in 0..REPORTS_HELD {
            raw.send_raw(&query, &[]);
        }
        std::mem::forget(raw);
    }
    Ok(())
}
