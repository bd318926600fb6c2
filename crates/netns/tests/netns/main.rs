//! Hosts and wires as they are used: real packets between namespaces, and nothing left behind.
//!
//! Where no testbed can be made, each test says "skipped" and why.

mod ends;
mod hosts;
mod impaired_wire;
mod plain;
mod unprivileged;

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use isthmus_netns::{Host, Testbed, WireInterface};

type Done<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Bounds a hang; nothing here takes as long.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A testbed with two hosts, or the reason for having none on standard error.
fn two_hosts() -> Option<(Testbed, Host, Host)> {
    let made = Testbed::new().and_then(|mut bed| {
        let (a, b) = (bed.host("a")?, bed.host("b")?);
        Ok((bed, a, b))
    });
    made.map_err(|why| eprintln!("skipped: {why}")).ok()
}

/// A socket at one end of a wire.
fn udp(end: &WireInterface) -> UdpSocket {
    bound(&end.host, (end.v4, 0).into())
}

fn bound(host: &Host, at: SocketAddr) -> UdpSocket {
    let socket = host.with(|| UdpSocket::bind(at)).expect("the host is there").expect("a socket in it");
    socket.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    socket
}

/// One datagram each way.
fn exchange(one: &UdpSocket, other: &UdpSocket) -> io::Result<()> {
    let mut buffer = [0; 100];
    for (from, to, text) in [(one, other, &b"there"[..]), (other, one, b"and back")] {
        from.send_to(text, to.local_addr()?)?;
        let (bytes, sender) = to.recv_from(&mut buffer)?;
        assert_eq!((&buffer[..bytes], sender), (text, from.local_addr()?));
    }
    Ok(())
}

/// Packets that each interface of a host has (received, sent).
fn packets(host: &Host) -> BTreeMap<String, (u64, u64)> {
    let text = host.with(|| std::fs::read_to_string("/proc/thread-self/net/dev")).expect("the host is there");
    let text = text.expect("/proc is there");
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let counts = lines.map(|(name, counts)| {
        let counts = counts.split_whitespace().map(|count| count.parse().expect("a count")).collect::<Vec<u64>>();
        (name.trim().to_owned(), (counts[1], counts[9]))
    });
    counts.collect()
}
