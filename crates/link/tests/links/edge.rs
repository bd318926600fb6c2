//! Sockets of overlay edges, between two hosts.

use std::io::IoSlice;
use std::net::SocketAddr;

use isthmus_link::{EdgeSend, EdgeSocket};
use rustix::event::{PollFd, PollFlags, poll};

use crate::testbed::{Host, Testbed};

const PORT: u16 = 9001;

/// The sockets of both hosts, bound to all addresses.
fn both(bed: &Testbed, may_fragment: bool) -> [EdgeSocket; 2] {
    let open = |host: &Host| host.run(move || EdgeSocket::open(any(PORT), may_fragment).unwrap());
    [open(&bed.a), open(&bed.b)]
}

fn any(port: u16) -> SocketAddr {
    SocketAddr::new("::".parse().unwrap(), port)
}

fn address(ip: &str) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), PORT)
}

/// Receives messages until they hold `bytes` bytes. Returns the datagrams.
fn receive(socket: &mut EdgeSocket, from: &str, bytes: usize) -> Vec<Vec<u8>> {
    let mut datagrams: Vec<Vec<u8>> = Vec::new();
    while datagrams.iter().map(Vec::len).sum::<usize>() < bytes {
        poll(&mut [PollFd::new(socket, PollFlags::IN)], None).unwrap();
        for n in 0..socket.receive().unwrap() {
            let message = socket.message(n).expect("whole messages with a sender");
            assert_eq!((message.from.ip().to_canonical(), message.from.port()), (from.parse().unwrap(), PORT));
            datagrams.extend(message.bytes.chunks(message.datagram_bytes).map(<[u8]>::to_vec));
        }
    }
    datagrams
}

#[test]
fn one_send_is_several_datagrams() {
    let Some(bed) = Testbed::new(1500) else { return };
    let [mut a, mut b] = both(&bed, false);
    for (from, to) in [("192.0.2.1", "192.0.2.2"), ("2001:db8::1", "2001:db8::2")] {
        let bytes: Vec<u8> = (0..10_500_u32).map(|at| (at % 251) as u8).collect();
        let parts: Vec<IoSlice<'_>> = bytes.chunks(300).map(IoSlice::new).collect();
        assert_eq!(a.send(address(to), &parts, Some(1000)), EdgeSend::Sent);
        let datagrams = receive(&mut b, from, bytes.len());
        assert_eq!(datagrams.iter().map(Vec::len).collect::<Vec<_>>(), [[1000; 10].as_slice(), &[500]].concat());
        assert_eq!(datagrams.concat(), bytes);
    }
}

#[test]
fn the_path_limits_a_datagram() {
    let Some(bed) = Testbed::new(1500) else { return };
    let [mut a, mut b] = both(&bed, false);
    assert_eq!(a.datagram_bytes_to(address("192.0.2.2")), Some(1472));
    assert_eq!(a.datagram_bytes_to(address("2001:db8::2")), Some(1452));
    assert_eq!(a.datagram_bytes_to(address("203.0.113.1")), None);
    let bytes = vec![7; 1473];
    let whole = [IoSlice::new(&bytes)];
    assert_eq!(a.send(address("192.0.2.2"), &whole, None), EdgeSend::TooLong);
    assert_eq!(a.send(address("203.0.113.1"), &whole, None), EdgeSend::Unreachable);
    assert_eq!(a.send(address("192.0.2.2"), &[IoSlice::new(&bytes[..1472])], None), EdgeSend::Sent);
    assert_eq!(receive(&mut b, "192.0.2.1", 1472), [bytes[..1472].to_vec()]);
}

#[test]
fn long_datagrams_are_fragmented_where_allowed() {
    let Some(bed) = Testbed::new(1500) else { return };
    let [mut a, mut b] = both(&bed, true);
    for (from, to) in [("192.0.2.1", "192.0.2.2"), ("2001:db8::1", "2001:db8::2")] {
        let bytes: Vec<u8> = (0..9000_u32).map(|at| (at % 251) as u8).collect();
        assert_eq!(a.send(address(to), &[IoSlice::new(&bytes)], Some(4500)), EdgeSend::Unsplit);
        assert_eq!(a.send(address(to), &[IoSlice::new(&bytes)], None), EdgeSend::Sent);
        assert_eq!(receive(&mut b, from, bytes.len()), std::slice::from_ref(&bytes));
    }
}

#[test]
fn a_full_buffer_is_reported_and_counted() {
    let Some(bed) = Testbed::new(1500) else { return };
    let [mut a, mut b] = both(&bed, true);
    let bytes = vec![1; 60_000];
    // The receiver reads nothing until its kernel has dropped a datagram.
    while b.overruns() == 0 {
        assert!(matches!(a.send(address("192.0.2.2"), &[IoSlice::new(&bytes)], None), EdgeSend::Sent | EdgeSend::Full));
    }
    assert_eq!(receive(&mut b, "192.0.2.1", bytes.len())[0], bytes);
}
