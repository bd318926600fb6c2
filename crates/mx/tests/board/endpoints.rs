//! Endpoints on boards: packets with the header of the sending board reach their destination, in every type that a long
//! message uses.

use crate::network::{NetConditions, Network};
use crate::{DIALECTS, LINK, SECOND, nic, setup};
use isthmus_mx::StatusCode;
use isthmus_mx::board::{Board, BoardSetup, FrameAction};
use isthmus_mx::net::{
    Address, ConnectId, Endpoint, EndpointEvent, EndpointSetup, EndpointTuning, SendId, SendMode, Time,
};
use isthmus_mx::wire::{self, Dialect, EndpointNumber, SessionId, Sizes};

const LENGTH: u32 = 500_000;

/// Each host has the same two numbers: only the board distinguishes their packets.
const NUMBERS: [EndpointNumber; 2] = [EndpointNumber(3), EndpointNumber(254)];

struct Host {
    board: Board,
    endpoints: [Endpoint; 2],
    events: Vec<(usize, EndpointEvent)>,
    bytes: Vec<u8>,
}

fn endpoint(dialect: Dialect, number: EndpointNumber, host: u32) -> Endpoint {
    let sizes = if dialect == Dialect::Mx { Sizes::MX } else { Sizes::open_mx(9000).unwrap() };
    let session = SessionId(100 * host + u32::from(number.0));
    Endpoint::new(EndpointSetup {
        dialect,
        sizes,
        number,
        session,
        key: 9,
        secret: 0x1234_5600,
        tuning: EndpointTuning::DEFAULT,
    })
}

/// Returns two hosts with boards that have found each other.
fn hosts(dialect: Dialect) -> Vec<Host> {
    let mut network = Network::new(0, 1, NetConditions::default(), 1);
    network.boards =
        [1, 2].map(|number| network.start(BoardSetup { dialect, ..setup(number) }, 1)).into_iter().collect();
    network.run_until(Time::from_us(20 * SECOND));
    assert!(network.all_know_all());
    let host = |(number, mut board): (u32, Board)| {
        NUMBERS.into_iter().for_each(|number| board.open(number).unwrap());
        let endpoints = NUMBERS.map(|endpoint_number| endpoint(dialect, endpoint_number, number));
        Host { board, endpoints, events: Vec::new(), bytes: vec![0; LENGTH as usize] }
    };
    (1..).zip(network.boards).map(host).collect()
}

fn sent_bytes() -> Vec<u8> {
    (0..LENGTH).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// Passes all frames of one host to the other.
fn pass(hosts: &mut [Host], from: usize, now: Time, data: &[u8]) -> bool {
    let mut is_busy = false;
    for at in 0..NUMBERS.len() {
        while let Some(transmit) = hosts[from].endpoints[at].transmit(now) {
            is_busy = true;
            let board = &hosts[from].board;
            let header = board.header_to(transmit.to).unwrap();
            assert_eq!(board.link_to(transmit.to), Some(LINK));
            let packet = transmit.packet.map(|source| &data[source.at as usize..][..source.len as usize]);
            let mut buffer = vec![0; 9000];
            let bytes = wire::emit(board.setup().dialect, &header, &packet, &mut buffer).unwrap();
            deliver(&mut hosts[1 - from], now, &buffer[..bytes]);
        }
    }
    is_busy
}

fn deliver(host: &mut Host, now: Time, frame: &[u8]) {
    let received = host.board.receive(now, LINK, frame);
    let FrameAction::ForEndpoint { endpoint, peer, packet } = received else { panic!("{received:?}") };
    let at = NUMBERS.iter().position(|number| *number == endpoint).unwrap();
    host.endpoints[at].receive(now, peer, &packet).unwrap();
    while let Some(event) = host.endpoints[at].event() {
        if let EndpointEvent::Bytes { at, len, .. } = event {
            let (at, len) = (at as usize, len as usize);
            host.bytes[at..at + len].copy_from_slice(&packet.data().unwrap()[..len]);
        }
        host.events.push((at, event));
    }
}

#[test]
#[cfg_attr(miri, ignore = "no unsafe code, and many bytes")]
fn a_long_message_passes_through_the_boards() {
    for dialect in DIALECTS {
        let (mut hosts, data) = (hosts(dialect), sent_bytes());
        let mut now = Time::from_us(20 * SECOND);
        let to = Address { peer: hosts[0].board.find(nic(2)).unwrap(), endpoint: NUMBERS[1] };
        hosts[0].endpoints[0].connect(now, to, 9, ConnectId(1)).unwrap();
        let (mut is_sent, mut is_pulled) = (false, false);
        let sent = (0, EndpointEvent::Sent { send: SendId(5), code: StatusCode::Success, xfer_length: LENGTH });
        for _ in 0..10_000 {
            if hosts[0].events.contains(&sent) {
                break;
            }
            now = now.after_us(1000);
            hosts.iter_mut().flat_map(|host| &mut host.endpoints).for_each(|endpoint| endpoint.tick(now));
            while pass(&mut hosts, 0, now, &data) | pass(&mut hosts, 1, now, &data) {}
            if !is_sent && hosts[0].events.iter().any(|(_, event)| matches!(event, EndpointEvent::Connected { .. })) {
                hosts[0].endpoints[0].send(now, to, SendId(5), 77, LENGTH, SendMode::Standard).unwrap();
                is_sent = true;
            }
            let begun = hosts[1].events.iter().find_map(|(at, event)| match event {
                EndpointEvent::Begun { message, source, large: true, .. } => Some((*at, *message, *source)),
                _ => None,
            });
            if let Some((at, message, source)) = begun.filter(|_| !is_pulled) {
                let from = hosts[1].board.find(nic(1)).unwrap();
                assert_eq!((at, source), (1, Address { peer: from, endpoint: NUMBERS[0] }));
                hosts[1].endpoints[1].pull(now, message, LENGTH, u32::MAX).unwrap();
                is_pulled = true;
            }
            let whole = hosts[1].events.iter().find_map(|(_, event)| match event {
                EndpointEvent::Received { message, code: StatusCode::Success, .. } => Some(*message),
                _ => None,
            });
            whole.into_iter().for_each(|message| hosts[1].endpoints[1].notify(now, message));
        }
        assert!(hosts[0].events.contains(&sent));
        let is_whole = |event: &EndpointEvent| {
            matches!(event, EndpointEvent::Received { code: StatusCode::Success, xfer_length: LENGTH, .. })
        };
        assert!(hosts[1].events.iter().any(|(at, event)| *at == 1 && is_whole(event)));
        assert!(hosts[1].bytes == data);
    }
}
