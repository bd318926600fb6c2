//! Captures of frames by authorized programs. A board runs over UDP on the loopback interface; the other host is a socket of the test.

use std::collections::BTreeMap;
use std::io::BufReader;
use std::net::{Ipv4Addr, Shutdown, UdpSocket};
use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::atomic::{AtomicU8, Ordering};

use isthmus_capture::CaptureDirection;
use isthmus_capture::stream::{CaptureMessage, CaptureReader};
use isthmus_layout::control::*;
use isthmus_layout::ids::{DomainId, NicId};
use isthmus_layout::mx::MxOpen;
use isthmus_layout::reason::Reason;
use isthmus_mx::wire::{self, ConnectRequest, Dialect, EndpointNumber, Header, Packet, PacketType, SeqNum};
use isthmus_report::MxReport;

use crate::testbed::{Client, Testbed, name, versions_of};

const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];
const THEIRS: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// A daemon with a board over UDP, and the socket of the other host.
struct LinkedBoard {
    bed: Testbed,
    host: UdpSocket,
    board: (Ipv4Addr, u16),
}

impl LinkedBoard {
    fn new() -> Self {
        static TESTS: AtomicU8 = AtomicU8::new(0);
        let host = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        // Concurrent runs of these tests use different loopback addresses.
        let [_, high, middle, low] = std::process::id().to_be_bytes();
        let ours = Ipv4Addr::new(127, 64 | high, middle, low.clamp(1, 254));
        let board = (ours, 10_000 + u16::from(TESTS.fetch_add(1, Ordering::Relaxed)));
        let config = format!(
            "[policy]\nattach = \"any-user\"\n[[mx.board]]\nname = \"plain\"\n[[mx.board]]\nname = \"wired\"\nmac = \"{}\"\n\
             peers = [{{ mac = \"{}\", name = \"other:0\" }}]\nlinks = [{{ udp = \"{}:{}\", peers = [\"{}\"] }}]\n",
            NicId::from_octets(OURS),
            NicId::from_octets(THEIRS),
            board.0,
            board.1,
            host.local_addr().unwrap(),
        );
        Self { bed: Testbed::with(&config), host, board }
    }

    /// Sends a request of the other host to connect to this endpoint.
    fn connect_to(&self, endpoint: u8) {
        let body = ConnectRequest {
            dst_endpoint: EndpointNumber(endpoint),
            src_endpoint: EndpointNumber(1),
            src_dst_peer_index: None,
            src_session_id: wire::SessionId(0x1234_5678),
            app_key: 5,
            target_recv_seqnum_start: SeqNum::from_bits(1),
            connect_seqnum: 1,
        };
        let header = Header { dst: NicId::from_octets(OURS), src: NicId::from_octets(THEIRS), peer_index: None };
        let packet: Packet<&[u8]> = Packet::ConnectRequest(body);
        let mut frame = vec![0; packet.parts(Dialect::OPEN_MX).frame()];
        wire::emit(Dialect::OPEN_MX, &header, &packet, &mut frame).unwrap();
        self.host.send_to(&frame, self.board).unwrap();
    }

    /// Sends bytes that are not an MX packet, in a frame with the MX Ethernet type.
    fn send_garbage(&self, bytes: usize) {
        let mut frame = [&OURS[..], &THEIRS, &[0x86, 0xdf]].concat();
        frame.resize(bytes, 0xaa);
        self.host.send_to(&frame, self.board).unwrap();
    }
}

fn begin(client: &mut Client, capture: Capture) -> Result<UnixStream, Reason> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    client.request(capture, &[theirs.as_fd()])?;
    ours.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
    Ok(ours)
}

fn all() -> Capture {
    Capture { board: None, domain: None, snap_bytes: u32::MAX }
}

/// The direction of a frame, its type, its original length and its captured length.
type CapturedFrame = (CaptureDirection, Option<PacketType>, u32, usize);

fn kind(frame: &[u8]) -> Option<PacketType> {
    wire::parse(Dialect::OPEN_MX, frame).ok().map(|(_, packet)| packet.kind())
}

/// Reads `wanted` frames other than the board's own greetings, then ends the capture. Returns the frames and the statistics of seen and missing
/// ones.
fn frames(stream: UnixStream, wanted: usize) -> (Vec<CapturedFrame>, [u64; 2]) {
    let (mut frames, mut told, mut interfaces) = (Vec::new(), BTreeMap::new(), 0);
    let mut reader = CaptureReader::new(BufReader::new(stream.try_clone().unwrap()));
    if wanted == 0 {
        stream.shutdown(Shutdown::Write).unwrap();
    }
    while let Some(message) = reader.message().unwrap() {
        match message {
            CaptureMessage::Interface(interface) => {
                assert!(interface.name().starts_with("udp:127."), "{}", interface.name());
                assert!(interface.description().contains("mx1 (wired), udp"), "{}", interface.description());
                assert_eq!(interface.nic(), Some(NicId::from_octets(OURS)));
                interfaces += 1;
            }
            CaptureMessage::Frame(record) => {
                assert_eq!(record.interface.0, 0);
                let kind = kind(record.bytes);
                if !matches!(kind, Some(PacketType::Raw | PacketType::HostQuery)) {
                    frames.push((record.direction, kind, record.original_bytes, record.bytes.len()));
                    if frames.len() == wanted {
                        stream.shutdown(Shutdown::Write).unwrap();
                    }
                }
            }
            CaptureMessage::Statistics(statistics) => drop(told.insert(statistics.interface, statistics)),
            CaptureMessage::Begin | CaptureMessage::End => unreachable!(),
        }
    }
    assert_eq!((interfaces, told.len()), (1, 1));
    let told = told.pop_first().unwrap().1;
    (frames, [told.seen, told.dropped])
}

#[test]
fn frames_that_come_and_go_are_seen_also_those_that_are_dropped() {
    use CaptureDirection::{Received, Sent};
    let wired = LinkedBoard::new();
    let stream = begin(&mut wired.bed.greeted(), all()).unwrap();
    wired.send_garbage(200);
    wired.connect_to(9);
    let (frames, [seen, dropped]) = frames(stream, 3);
    assert_eq!(frames[0], (Received, None, 200, 200));
    assert_eq!(frames[1].1, Some(PacketType::Connect));
    assert_eq!((frames[2].0, frames[2].1), (Sent, Some(PacketType::NackLib)), "endpoint 9 is closed");
    assert!(seen >= 3 && dropped == 0);
}

#[test]
fn a_domain_s_frames_are_those_of_its_endpoints() {
    let wired = LinkedBoard::new();
    let (mut web, welcomed) = wired.bed.attached("web");
    let index = match web.request(OpenEndpoint { index: None, label: None }, &[]).unwrap().message {
        ToClient::EndpointOpened(opened) => opened.index,
        other => panic!("{other:?}"),
    };
    web.request(MxOpen { board: Some(1), endpoint: Some(4), key: 5, index }, &[]).unwrap();
    // A domain may request a capture, too.
    let stream = begin(&mut web, Capture { board: Some(1), domain: Some(welcomed.id()), snap_bytes: 40 }).unwrap();
    wired.send_garbage(200);
    wired.connect_to(9);
    wired.connect_to(4);
    let (frames, [seen, _]) = frames(stream, 2);
    let found: Vec<_> = frames.iter().map(|(direction, ..)| *direction).collect();
    assert_eq!(found, [CaptureDirection::Received, CaptureDirection::Sent]);
    assert!(frames.iter().all(|(_, kind, had, kept)| (*kind, *kept) == (None, 40) && *had >= 60), "{frames:?}");
    assert_eq!(seen, 2, "the others were none of its own");
}

#[test]
fn ended_captures_leave_nothing_and_others_continue() {
    let wired = LinkedBoard::new();
    let mut client = wired.bed.greeted();
    let mut held: Vec<_> = (0..4).map(|_| begin(&mut client, all()).unwrap()).collect();
    assert_eq!(begin(&mut client, all()).err(), Some(Reason::TooManyRequests));
    held.pop();
    // The slot is free once the daemon has noticed the end of the capture.
    let again = loop {
        match begin(&mut client, all()) {
            Ok(stream) => break stream,
            Err(reason) => assert_eq!(reason, Reason::TooManyRequests),
        }
    };
    drop(client); // A capture does not end with the connection that requested it.
    wired.connect_to(9);
    for stream in held.into_iter().chain([again]) {
        assert_eq!(frames(stream, 2).0.len(), 2);
    }
}

#[test]
fn a_reader_that_is_slow_misses_frames_and_is_told_how_many() {
    let wired = LinkedBoard::new();
    let mut client = wired.bed.greeted();
    let stream = begin(&mut client, all()).unwrap();
    // Sends more than all buffers hold. The daemon answers queries meanwhile.
    while client.report::<MxReport>(Topic::Mx, &[]).unwrap().boards[1].links[0].received_frames < 400 {
        (0..10).for_each(|_| wired.send_garbage(60_000));
    }
    let (frames, [seen, dropped]) = frames(stream, 1);
    assert!(frames.iter().all(|(.., had, kept)| (*had, *kept) == (60_000, 60_000)));
    assert!(dropped > 0 && !frames.is_empty() && frames.len() as u64 <= seen - dropped, "{seen} {dropped}");
}

#[test]
fn the_daemon_ends_a_capture_in_order() {
    let mut wired = LinkedBoard::new();
    let stream = begin(&mut wired.bed.greeted(), all()).unwrap();
    wired.connect_to(9);
    let reading = std::thread::spawn(move || {
        let mut reader = CaptureReader::new(BufReader::new(stream));
        let mut last = None;
        while let Some(message) = reader.message().unwrap() {
            last = Some(matches!(message, CaptureMessage::Statistics(_)));
        }
        last
    });
    wired.bed.stop();
    assert_eq!(reading.join().unwrap(), Some(true), "how much is missing, and the end");
}

#[test]
fn capture_is_empty_when_the_reader_closes_at_once() {
    let wired = LinkedBoard::new();
    let stream = begin(&mut wired.bed.greeted(), all()).unwrap();
    assert_eq!(frames(stream, 0).0.len(), 0);
}

#[test]
fn refuses_captures_with_the_reason() {
    let plain = Testbed::new();
    let mut client = plain.greeted();
    assert_eq!(begin(&mut client, all()).err(), Some(Reason::MxNoLinks), "no board has links");
    let wired = LinkedBoard::new();
    let mut client = wired.bed.greeted();
    let of = |board, domain| Capture { board, domain, snap_bytes: 100 };
    assert_eq!(begin(&mut client, of(Some(0), None)).err(), Some(Reason::MxNoLinks));
    assert_eq!(begin(&mut client, of(Some(2), None)).err(), Some(Reason::MxBoardUnknown));
    assert_eq!(begin(&mut client, of(None, DomainId::new(77))).err(), Some(Reason::NoSuchDomain));
    // Descriptors that could block the daemon are refused.
    let (datagrams, _other) = UnixDatagram::pair().unwrap();
    let (_, pipe) = std::io::pipe().unwrap();
    let tcp = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    for fd in [datagrams.as_fd(), pipe.as_fd(), tcp.as_fd()] {
        assert_eq!(client.request(all(), &[fd]).err(), Some(Reason::RequestInvalid));
    }
    assert!(begin(&mut client, of(Some(1), None)).is_ok());
}

#[test]
fn frames_are_not_for_other_users() {
    let wired = LinkedBoard::new();
    let Some(mut other) = wired.bed.greeted_as(12_345) else {
        return println!("skipped: only root can be another user");
    };
    assert_eq!(begin(&mut other, all()).err(), Some(Reason::CaptureForbidden));
}

#[test]
fn capture_is_not_in_the_previous_version() {
    let (before, bed) = (versions_of(Capture::SINCE - 1), Testbed::with_versions(versions_of(Capture::SINCE)));
    let mut old = bed.connect();
    old.request(Hello { magic: Magic, versions: before, library: name("old 1") }, &[]).unwrap();
    let (_ours, theirs) = UnixStream::pair().unwrap();
    old.send(all(), &[theirs.as_fd()]);
    assert_eq!(old.ended(), Some(Reason::MalformedControl));
    let mut old = bed.connect();
    old.request(Hello { magic: Magic, versions: before, library: name("old 1") }, &[]).unwrap();
    old.attach(Some("old")).unwrap();
    old.send(all(), &[theirs.as_fd()]);
    assert_eq!(old.ended(), Some(Reason::MalformedControl));
}
