//! Interprets bytes as steps of a board: received frames, passing time, and commands of an operator. The fuzz target
//! `mxoe_board` and the test of its corpus share it.

use isthmus_layout::NicId;
use isthmus_mx::board::{Board, BoardSetup, BoardTuning, FrameAction, LinkNumber};
use isthmus_mx::net::Time;
use isthmus_mx::wire::{self, BoardName, Dialect, EndpointNumber};

/// The board is B of the specification's samples, and A is its peer 2.
const OWN: NicId = NicId::from_octets([0x00, 0x1b, 0x21, 0xbb, 0x00, 0x02]);
const A: NicId = NicId::from_octets([0x00, 0x1b, 0x21, 0xaa, 0x00, 0x01]);
const OTHER: NicId = NicId::from_octets([0x02, 0, 0, 0, 0, 0x09]);

const PEERS_MAX: usize = 16;

/// Begins the step of a frame: a byte of link, two of length, and the frame follow.
pub(crate) const FRAME: u8 = 0;
/// Begins the step of passing time: two bytes of tens of milliseconds follow.
pub(crate) const TIME: u8 = 4;

fn born(dialect: Dialect, discovery: bool) -> Board {
    let name = |text: &str| BoardName::new(text.as_bytes()).expect("it is short");
    let tuning = BoardTuning { peers_max: PEERS_MAX, announced_max: 10, endpoints_max: 32, ..BoardTuning::DEFAULT };
    let setup = BoardSetup { discovery, tuning, ..BoardSetup::new(OWN, name("nodeB:0"), dialect, 7, 0x1305_2008) };
    let mut board = Board::new(setup);
    for link in 0..2 {
        board.add_link(Time::ZERO, LinkNumber(link), u32::from(link)).expect("it can have eight");
    }
    board.add_static(Time::ZERO, OTHER, name("other")).expect("there is room");
    board.add_static(Time::ZERO, A, name("nodeA:0")).expect("there is room");
    for endpoint in [1, 3] {
        board.open(EndpointNumber(endpoint)).expect("it can have 32");
    }
    board
}

/// Runs one input, and returns the number of frames that were not dropped. Panics if an invariant of the board is
/// violated.
pub(crate) fn live(bytes: &[u8]) -> usize {
    let Some((first, mut rest)) = bytes.split_first() else { return 0 };
    let dialect = if first & 1 == 0 { Dialect::Mx } else { Dialect::OPEN_MX };
    let mut board = born(dialect, first & 2 == 0);
    let (mut now, mut taken) = (Time::ZERO, 0);
    let mut nics: Vec<NicId> = Vec::new();
    while let [step, one, two, after @ ..] = rest {
        let number = u16::from_be_bytes([*one, *two]);
        rest = after;
        match step % 8 {
            FRAME..TIME => {
                let Some((frame, after)) = rest.split_at_checked(usize::from(number)) else { break };
                rest = after;
                taken += receive(&mut board, now, LinkNumber(step / 8 % 2), frame);
            }
            TIME => {
                now = now.after_us(u64::from(number) * 10_000);
                transmit(&mut board, now);
            }
            5 => operate(&mut board, now, *one, *two),
            6 => _ = board.ask(now, NicId::from_octets([0x02, 0, 0, 0, *one, *two])),
            _ => while board.event().is_some() {},
        }
        let seen: Vec<NicId> = board.peers().map(|peer| peer.nic).collect();
        assert!(seen.len() <= PEERS_MAX && seen.starts_with(&nics));
        nics = seen;
    }
    taken
}

fn receive(board: &mut Board, now: Time, link: LinkNumber, frame: &[u8]) -> usize {
    let reverses = |board: &Board| -> Vec<_> { board.peers().map(|peer| (peer.nic, peer.remote_index)).collect() };
    let before = reverses(board);
    let is_taken = match board.receive(now, link, frame) {
        FrameAction::ForEndpoint { endpoint, peer, .. } => {
            assert!(endpoint.0 < 32 && board.header_to(peer).is_some());
            true
        }
        FrameAction::Raw { frame: same } => {
            assert_eq!(same, frame);
            true
        }
        FrameAction::Consumed => true,
        FrameAction::Dropped(_) => false,
    };
    // No host can change the index that another host has for us.
    let source = frame.get(6..12).and_then(|octets| Some(NicId::from_octets(octets.try_into().ok()?)));
    for ((nic, before), (_, after)) in before.into_iter().zip(reverses(board)) {
        assert!(before == after || Some(nic) == source);
    }
    usize::from(is_taken)
}

/// Checks that a board sends valid packets only, each to a peer or to all.
fn transmit(board: &mut Board, now: Time) {
    let mut buffer = [0; wire::RAW_FRAME_BYTES_MAX];
    let dialect = board.setup().dialect;
    while let Some((link, header, packet)) = board.transmit(now) {
        assert!(link.0 < 2 && header.src == OWN);
        assert!(header.dst == wire::BROADCAST || board.find(header.dst).is_some());
        let bytes = wire::emit(dialect, &header, &packet, &mut buffer).expect("a board says what can be said");
        assert!(wire::parse(dialect, &buffer[..bytes]).is_ok());
    }
    assert!(board.next_deadline().is_none_or(|due| due > now));
}

fn operate(board: &mut Board, now: Time, what: u8, with: u8) {
    let link = LinkNumber(with % 2);
    let endpoint = EndpointNumber(with);
    match what % 6 {
        0 => _ = board.open(endpoint),
        1 => board.close(endpoint),
        2 => board.link_down(now, link).expect("it has two"),
        3 => board.link_up(now, link).expect("it has two"),
        4 => board.clear_names(now),
        _ => {
            let nic = board.peers().nth(usize::from(with) % PEERS_MAX).map(|peer| peer.nic);
            _ = nic.is_some_and(|nic| board.forget(nic));
        }
    }
}
