//! A peer that speaks as VNET/P does: bare frames in UDP, received at port 9000 and sent from any other port.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use isthmus_overlay_tests::{Container, Daemon, Stage, timeout};

/// The port of VNET/P.
const PORT: u16 = 9000;

const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x99];

/// A host with VNET/P, behind which one guest has the address 10.9.0.2.
struct Peer<'a> {
    stage: &'a Stage,
    receiver: UdpSocket,
    /// The address and the port at which the daemon receives.
    daemon: SocketAddr,
}

impl<'a> Peer<'a> {
    fn new(stage: &'a Stage) -> Self {
        let own = stage.address(1, 0);
        let receiver = stage.host(1).with(|| UdpSocket::bind((own, PORT))).unwrap().unwrap();
        Self { stage, receiver, daemon: (stage.address(0, 1), PORT).into() }
    }

    /// Sends a frame, each from another port.
    fn send(&self, frame: &[u8]) {
        let own = self.stage.address(1, 0);
        let sender = self.stage.host(1).with(|| UdpSocket::bind((own, 0))).unwrap().unwrap();
        assert_ne!(sender.local_addr().unwrap().port(), PORT);
        sender.send_to(frame, self.daemon).unwrap();
    }

    /// Receives frames until `done` returns a value. They come from one port.
    fn until<T>(&self, mut done: impl FnMut(&[u8]) -> Option<T>) -> T {
        let (mut buffer, deadline) = (vec![0; 1 << 16], timeout());
        loop {
            assert!(!deadline.has_passed(), "the frame does not come");
            self.receiver.set_read_timeout(Some(deadline.remaining())).unwrap();
            let (len, from) = self.receiver.recv_from(&mut buffer).unwrap();
            assert_eq!(from, self.daemon);
            if let Some(value) = done(&buffer[..len]) {
                return value;
            }
        }
    }

    /// Replies to ARP and ping as the guest does, until it has replied to pings.
    fn reply_to_pings(&self, mut pings: u32) {
        self.until(|frame| {
            let mut reply = frame.to_vec();
            reply[..6].copy_from_slice(&frame[6..12]);
            reply[6..12].copy_from_slice(&PEER_MAC);
            if frame[12..14] == [8, 6] && frame[38..42] == [10, 9, 0, 2] {
                reply[20..28].copy_from_slice(&[0, 2, 2, 0, 0, 0, 0, 0x99]);
                reply[28..32].copy_from_slice(&[10, 9, 0, 2]);
                reply[32..42].copy_from_slice(&frame[22..32]);
                self.send(&reply);
            } else if is_icmp(frame, 8) && frame[30..34] == [10, 9, 0, 2] {
                swap_addresses(&mut reply);
                set_type(&mut reply, 0);
                self.send(&reply);
                pings -= 1;
            }
            (pings == 0).then_some(())
        });
    }

    /// Resolves the address of the container and pings it.
    fn ping(&self, target: [u8; 4]) {
        let arp = [&[0, 1, 8, 0, 6, 4, 0, 1][..], &PEER_MAC, &[10, 9, 0, 2], &[0; 6], &target].concat();
        self.send(&[&[0xff; 6][..], &PEER_MAC, &[8, 6], &arp].concat());
        let is_reply = |frame: &[u8]| frame[12..14] == [8, 6] && frame[20..22] == [0, 2] && frame[28..32] == target;
        let mac = self.until(|frame| is_reply(frame).then(|| frame[22..28].to_vec()));
        let ip = [0x45, 0, 0, 60, 0, 1, 0x40, 0, 64, 1, 0, 0, 10, 9, 0, 2];
        let mut echo = [&mac[..], &PEER_MAC, &[8, 0], &ip, &target, &[8, 0, 0, 0, 0x12, 0x34, 0, 1], &[7; 32]].concat();
        let sum = checksum(&echo[14..34]);
        echo[24..26].copy_from_slice(&sum);
        set_type(&mut echo, 8);
        self.send(&echo);
        self.until(|frame| (is_icmp(frame, 0) && frame[38..74] == echo[38..74]).then_some(()));
    }
}

fn is_icmp(frame: &[u8], kind: u8) -> bool {
    frame[12..14] == [8, 0] && frame.get(23) == Some(&1) && frame.get(34) == Some(&kind)
}

fn swap_addresses(frame: &mut [u8]) {
    let (source, destination) = frame[26..34].split_at_mut(4);
    source.swap_with_slice(destination);
}

/// Sets the type of an ICMP message, with its checksum.
fn set_type(frame: &mut [u8], kind: u8) {
    frame[34..38].copy_from_slice(&[kind, 0, 0, 0]);
    let sum = checksum(&frame[34..]);
    frame[36..38].copy_from_slice(&sum);
}

fn checksum(bytes: &[u8]) -> [u8; 2] {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
    let sum: u32 = bytes.chunks(2).map(word).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    (!(folded + (folded >> 16)) as u16).to_be_bytes()
}

/// A daemon with a container on host 0, and a network with further lines.
fn start(stage: &mut Stage, lines: &str) -> (Container, Daemon) {
    let container = stage.container(0, "container0");
    // With an MTU of its own, the interface stays when a link is added, which has less room than the default.
    let interface = container.interface(", mtu = 1400, addresses = [\"10.9.0.1/24\"]");
    let daemon = stage.start(0, &format!("[[overlay.network]]\nname = \"lan\"\ninterfaces = [{interface}]\n{lines}"));
    daemon.wait_for_interfaces();
    (container, daemon)
}

/// Pings both ways.
fn pings(stage: &Stage, container: &Container) {
    let peer = Peer::new(stage);
    std::thread::scope(|scope| {
        scope.spawn(|| peer.reply_to_pings(3));
        container.ping("10.9.0.2");
    });
    peer.ping(Ipv4Addr::new(10, 9, 0, 1).octets());
}

#[test]
fn a_peer_that_sends_from_any_port_is_reached_both_ways() {
    let Some(mut stage) = Stage::new(2, 1500) else { return };
    let edges = format!("edges = [{{ to = \"{}\", kind = \"udp\" }}]\n", stage.address(1, 0));
    let (container, daemon) = start(&mut stage, &edges);
    pings(&stage, &container);
    let edge = daemon.wait(|network| network["edges"][0]["traffic"]["received"].as_u64().unwrap() >= 6);
    assert_eq!(edge["edges"][0]["kind"], "udp");
}

#[test]
fn links_and_routes_of_vnet_connect_a_peer() {
    let Some(mut stage) = Stage::new(2, 1500) else { return };
    let (container, daemon) = start(&mut stage, "learning = false\n");
    let (peer, file) = (stage.address(1, 0), stage.file("commands"));
    let run = |text: &str| {
        std::fs::write(&file, text).unwrap();
        daemon.isthmus(&["overlay", "run", "lan", file.to_str().unwrap()])
    };
    let interface = daemon.network()["interfaces"][0]["name"].as_str().unwrap().to_owned();
    run(&format!(
        "ADD {peer} {PORT}\nADD any any edge {peer} interface {interface}\nADD any any interface {interface} edge {peer}\n"
    ));
    pings(&stage, &container);
    let both = run("LIST");
    assert!(both.starts_with(&format!("links\n1\t{peer}\t{PORT}\n")), "{both}");
    let counters: Vec<u64> = both.lines().nth(2).unwrap().split('\t').map(|count| count.parse().unwrap()).collect();
    assert_eq!(counters.len(), 4, "{both}");
    let routes = format!("routes\n2:\nSrc: any\nDst: any\nDst-Type: INTERFACE 1\nSrc-Type: EDGE {peer}");
    assert!(both.contains(&routes), "{both}");

    run("routes\nDEL 1\nDEL 2\nlinks\nDEL 1\n");
    assert!(daemon.network()["edges"].as_array().unwrap().is_empty());
    assert_eq!(run("LIST").trim_end(), "links\nroutes");
}
