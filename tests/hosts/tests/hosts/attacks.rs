//! Somebody on the wire who wants to harm: forged addresses, broken frames, floods.

use isthmus_hosts::lan::{Guise, Stranger, extremes, truncated};
use isthmus_hosts::{Flow, Party, Side, World};
use isthmus_layout::NicId;
use isthmus_mx::wire::{BROADCAST, EndpointNumber, PeerIndex, SessionId};
use isthmus_netbed::Cable;

/// What a daemon may grow by under any attack.
const GROWTH_BYTES_MAX: u64 = 48 << 20;

/// An endpoint number that no honest program of these tests has.
const FOREIGN: EndpointNumber = EndpointNumber(21);

/// Two honest programs, and somebody who has the wire at b's end and wants to harm a.
struct Siege {
    world: World,
    a: Party,
    b: Party,
    stranger: Stranger,
    /// As the honest program on b, but for the session.
    as_b: Guise,
    streams: u32,
}

impl Siege {
    fn begin() -> Option<(Self, Cable)> {
        let (world, cable) = World::plain(1500, "resend_ms = 100\ngive_up_s = 10\n")?;
        let (a, b) = Party::pair(&world.a, &world.b);
        let index = PeerIndex::new(1); // Our own board has the first place of the table, and the only peer the next.
        let [from, to] = [cable.b(), cable.a()].map(|end| NicId::from_octets(end.mac));
        let [endpoint, victim] = [&b, &a].map(|party| EndpointNumber(party.at.1 as u8));
        let as_b = Guise { from, index, to, endpoint, victim, session: SessionId(0x0bad_5e55) };
        let stranger = Stranger::at(cable.b());
        Some((Self { world, a, b, stranger, as_b, streams: 1 }, cable))
    }

    /// Honest messages in both directions, while frames come in between.
    fn meanwhile(&mut self, frames: &[Vec<u8>]) {
        const COUNT: u64 = 300;
        let streams = [self.streams, self.streams + 1];
        self.streams += 2;
        self.a.begin(COUNT, 8, "mixed", 0, &[Flow::To(0, streams[0]), Flow::From(streams[1])]);
        self.b.begin(COUNT, 8, "mixed", 0, &[Flow::To(0, streams[1]), Flow::From(streams[0])]);
        self.stranger.send(frames);
        self.a.done(2 * COUNT);
        self.b.done(2 * COUNT);
    }

    fn end(self) {
        self.a.leave();
        self.b.leave();
        self.world.settle();
    }
}

/// A frame of another type, whatever is in it.
fn of_type(kind: u8, frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[16] = kind;
    frame
}

#[test]
fn frames_of_every_type_cut_and_bent_harm_nobody() {
    let Some((mut siege, _cable)) = Siege::begin() else { return };
    let as_b = siege.as_b;
    let unknown = Guise { from: NicId::from_octets([2, 0x66, 0, 0, 0, 1]), index: PeerIndex::new(9), ..as_b };
    let nameless = Guise { index: None, endpoint: FOREIGN, ..as_b };
    let before = siege.world.a.rss_bytes();
    for guise in [as_b, Guise { endpoint: FOREIGN, ..as_b }, unknown, nameless] {
        let mut whole: Vec<Vec<u8>> = guise.one_of_each().iter().map(|packet| guise.frame(packet)).collect();
        if guise.from == unknown.from {
            whole.remove(0); // Who announces itself is not unknown any more.
        }
        let typed: Vec<Vec<u8>> = (0..=u8::MAX).map(|kind| of_type(kind, &whole[0])).collect();
        whole.extend(typed);
        let mut frames: Vec<Vec<u8>> = whole.iter().flat_map(|frame| truncated(frame)).collect();
        frames.extend(whole.iter().flat_map(|frame| extremes(frame)));
        frames.extend(whole);
        siege.meanwhile(&frames);
    }
    let side = &siege.world.a;
    for reason in ["short", "type", "not_spoken", "data_missing", "too_long", "too_short", "truc_type", "truc_sessions"]
    {
        side.await_that(reason, |side| side.dropped(reason) > 0);
    }
    for reason in ["connect_kind", "connect_status", "nack_type", "no_index", "index_of_another", "unknown_source"] {
        side.await_that(reason, |side| side.dropped(reason) > 0);
    }
    let after = side.rss_bytes();
    assert!(after < before + GROWTH_BYTES_MAX, "a's daemon grew from {before} to {after} bytes");
    siege.end();
}

#[test]
fn packets_for_another_session_change_nothing() {
    let Some((mut siege, _cable)) = Siege::begin() else { return };
    let as_b = siege.as_b;
    // Every number and every session of a kind that could be meant: acknowledgements of everything, ends of transfers.
    let sessions = [0, 1, 0x0bad_5e55, 0x7fff_ffff, 0x8000_0000, u32::MAX - 1, u32::MAX].map(SessionId);
    let guises = sessions.map(|session| Guise { session, ..as_b });
    let packets = guises.iter().flat_map(|guise| guise.one_of_each().into_iter().map(|packet| (*guise, packet)));
    let one_round: Vec<Vec<u8>> = packets.map(|(guise, packet)| guise.frame(&packet)).collect();
    let many: Vec<Vec<u8>> = (0..20).flat_map(|_| one_round.clone()).collect();
    for _ in 0..4 {
        siege.meanwhile(&many);
    }
    siege.end();
}

/// An address that nobody has.
fn made_up(number: u32) -> NicId {
    let [a, b, c, d] = number.to_be_bytes();
    NicId::from_octets([2, 0x66, a, b, c, d])
}

fn grown(side: &Side, before: u64) {
    let after = side.rss_bytes();
    assert!(after < before + GROWTH_BYTES_MAX, "the daemon grew from {before} to {after} bytes");
}

#[test]
fn floods_of_boards_fill_no_memory() {
    const BOARDS: u32 = 20_000;
    let Some((mut siege, _cable)) = Siege::begin() else { return };
    let before = siege.world.a.rss_bytes();
    let announced = |number| {
        let guise = Guise { from: made_up(number), to: BROADCAST, index: PeerIndex::new(0), ..siege.as_b };
        guise.frame(&guise.announcement(number))
    };
    let frames: Vec<Vec<u8>> = (0..BOARDS).map(announced).collect();
    siege.meanwhile(&frames);
    let query = siege.as_b.frame(&siege.as_b.query());
    siege.meanwhile(&vec![query; BOARDS as usize]);
    let side = &siege.world.a;
    side.await_that("peers found too often", |side| side.dropped("found_too_often") > 0);
    side.await_that("too many questions", |side| side.dropped("queried_too_often") > 0);
    let known = side.list("peer")["peers"].as_array().map_or(0, Vec::len);
    assert!(known <= 1024, "{known} peers");
    grown(side, before);
    siege.end();
}

#[test]
fn floods_of_connects_fill_no_memory() {
    const CONNECTS: u32 = 20_000;
    let Some((mut siege, _cable)) = Siege::begin() else { return };
    let before = siege.world.a.rss_bytes();
    let connect = |number: u32| {
        // All endpoints but the honest one, all keys, new sessions each time; some for endpoints that are closed or cannot be.
        let endpoint = EndpointNumber(1 + (number % 250) as u8);
        let victim =
            EndpointNumber(if number.is_multiple_of(4) { (number / 4 % 256) as u8 } else { siege.as_b.victim.0 });
        let guise = Guise { endpoint, victim, ..siege.as_b };
        guise.frame(&guise.connect(SessionId(2 * number), if number.is_multiple_of(2) { 7 } else { number }))
    };
    let frames: Vec<Vec<u8>> = (0..CONNECTS).map(connect).collect();
    siege.meanwhile(&frames);
    let side = &siege.world.a;
    for reason in ["endpoint_closed", "bad_endpoint"] {
        side.await_that(reason, |side| side.dropped(reason) > 0);
    }
    grown(side, before);
    siege.end();
}

/// A CONNECT in another session says that the program at that end was started anew. It is asked, and says that it was not; so what
/// is under way goes on, and it is not kept out for having been replaced.
#[test]
fn a_forged_connect_ends_nothing_and_keeps_nobody_out() {
    let Some((mut siege, _cable)) = Siege::begin() else { return };
    let as_b = siege.as_b;
    let forged = (0..50).map(|count| as_b.frame(&as_b.connect(SessionId(0x0bad_5e00 + count), 7)));
    let frames: Vec<Vec<u8>> = forged.collect();
    siege.meanwhile(&frames);
    let (a, b) = (&mut siege.a, &mut siege.b);
    b.reconnect(0, a);
    a.reconnect(0, b);
    siege.meanwhile(&frames);
    siege.end();
}
