//! Frames between two containers: ARP and ping, VLAN tags, streams with compared content, long datagrams.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use isthmus_overlay_tests::{Container, Lan, Path};
use isthmus_testbed::{SeededRandom, short_or_long};

/// The length of a stream. The daemons of this test are not optimised.
fn stream_bytes() -> usize {
    short_or_long(64 << 20, 512 << 20)
}

/// The content of all streams: this block again and again. Its length is prime, so a lost, doubled or moved part shows.
fn block() -> Vec<u8> {
    let mut random = SeededRandom::seeded(7);
    (0..125_001).flat_map(|_| random.bits().to_le_bytes()).take(1_000_003).collect()
}

/// Sends a stream from a container to an address of another, and compares its content there.
fn stream(from: &Container, to: &Container, address: Ipv4Addr) {
    let listener = to.network().with(|| TcpListener::bind((address, 0))).unwrap().unwrap();
    let target = listener.local_addr().unwrap();
    let block = block();
    let pieces = || block.chunks(1 << 16).cycle();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = from.network().with(|| TcpStream::connect(target)).unwrap().unwrap();
            stream.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
            let mut left = stream_bytes();
            for piece in pieces() {
                let len = piece.len().min(left);
                stream.write_all(&piece[..len]).unwrap();
                left -= len;
                if left == 0 {
                    break;
                }
            }
            stream.shutdown(Shutdown::Write).unwrap();
        });
        let mut stream = listener.accept().unwrap().0;
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut buffer = vec![0; 1 << 16];
        let mut left = stream_bytes();
        for piece in pieces() {
            let len = piece.len().min(left);
            stream.read_exact(&mut buffer[..len]).unwrap();
            assert!(buffer[..len] == piece[..len], "the stream differs within the {len} bytes before the last {left}");
            left -= len;
            if left == 0 {
                break;
            }
        }
        assert_eq!(stream.read(&mut buffer).unwrap(), 0);
    });
}

fn stream_both_ways(lan: &Lan) {
    lan.a.ping("10.9.0.2");
    stream(&lan.a, &lan.b, Ipv4Addr::new(10, 9, 0, 2));
    stream(&lan.b, &lan.a, Ipv4Addr::new(10, 9, 0, 1));
}

#[test]
fn containers_ping_each_other_after_arp() {
    for path in Path::ALL {
        let Some(lan) = Lan::new(path) else { return };
        lan.a.ping("10.9.0.2");
        lan.b.ping("10.9.0.1");
        let mac = lan.daemons[0].network()["interfaces"][0]["mac"].as_str().unwrap().to_owned();
        let entries = lan.b.run("ip neigh show 10.9.0.1");
        assert!(entries.contains(&mac), "{path:?}: {entries}");
        lan.a.ping("fd09::2");
        lan.b.ping("fd09::1");
    }
}

#[test]
fn vlan_tags_pass() {
    for path in Path::ALL {
        let Some(lan) = Lan::new(path) else { return };
        let (has_vlans, text) = lan.a.try_run("ip link add link eth0 name probe type vlan id 8");
        if !has_vlans {
            eprintln!("skipped: the kernel has no VLAN devices: {text}");
            return;
        }
        for (container, address) in [(&lan.a, "10.7.0.1"), (&lan.b, "10.7.0.2")] {
            container.run("ip link add link eth0 name eth0.7 type vlan id 7");
            container.run(&format!("ip addr add {address}/24 dev eth0.7"));
            container.run("ip link set eth0.7 up");
        }
        lan.a.ping("10.7.0.2");
        stream(&lan.a, &lan.b, Ipv4Addr::new(10, 7, 0, 2));
        stream(&lan.b, &lan.a, Ipv4Addr::new(10, 7, 0, 1));
    }
}

#[test]
fn streams_arrive_unchanged_at_mtu_1500() {
    for path in Path::ALL {
        let Some(lan) = Lan::new(path) else { return };
        assert_eq!(lan.mtu(), if path == Path::Fast { 1500 } else { 1450 });
        stream_both_ways(&lan);
    }
}

#[test]
fn streams_arrive_unchanged_at_mtu_9000() {
    let Some(lan) = Lan::with_wire(Path::Fast, 1500, ", mtu = 9000") else { return };
    stream_both_ways(&lan);
    let Some(lan) = Lan::with_wire(Path::Vxlan, 9000, ", mtu = 8950") else { return };
    stream_both_ways(&lan);
}

/// Sends datagrams of this length, and compares them at both ends.
pub(crate) fn exchange_datagrams(lan: &Lan, bytes: usize) {
    lan.a.ping("10.9.0.2");
    let socket = |container: &Container, address: [u8; 4]| {
        let open = || UdpSocket::bind((Ipv4Addr::from(address), 5000));
        let socket = container.network().with(open).unwrap().unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        socket
    };
    let (a, b) = (socket(&lan.a, [10, 9, 0, 1]), socket(&lan.b, [10, 9, 0, 2]));
    let (block, mut buffer) = (block(), vec![0; 1 << 16]);
    for number in 0..20 {
        let datagram = &block[number * 40_000..][..bytes];
        a.send_to(datagram, b.local_addr().unwrap()).unwrap();
        let (len, from) = b.recv_from(&mut buffer).unwrap();
        assert!(buffer[..len] == *datagram, "datagram {number} of {len} bytes");
        b.send_to(&buffer[..len], from).unwrap();
        let len = a.recv(&mut buffer).unwrap();
        assert!(buffer[..len] == *datagram, "returned datagram {number} of {len} bytes");
    }
}

#[test]
fn datagrams_of_60000_bytes_arrive_in_fragments() {
    for path in Path::ALL {
        let Some(lan) = Lan::new(path) else { return };
        exchange_datagrams(&lan, 60_000);
    }
}
