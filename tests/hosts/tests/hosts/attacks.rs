//! An attacker on the wire: forged addresses, broken frames, floods.

use isthmus_hosts::spoofing::{RawSender, SpoofedSource, extremes, truncated};
use isthmus_hosts::{Flow, MxProgram, TestHost, TwoHosts};
use isthmus_layout::NicId;
use isthmus_mx::wire::{BROADCAST, EndpointNumber, PeerIndex, SessionId};
use isthmus_netns::Cable;

/// The maximum growth of a daemon's memory under any attack.
const GROWTH_BYTES_MAX: u64 = 48 << 20;

/// An endpoint number that no honest program of these tests has.
const UNUSED_ENDPOINT: EndpointNumber = EndpointNumber(21);

/// Two honest programs, and an attacker that has the wire at b's end and attacks a.
struct AttackBed {
    world: TwoHosts,
    a: MxProgram,
    b: MxProgram,
    attacker: RawSender,
    /// As the honest program on b, but for the session.
    as_b: SpoofedSource,
    streams: u32,
}

impl AttackBed {
    fn begin() -> Option<(Self, Cable)> {
        let (world, cable) = TwoHosts::plain(1500, "resend_ms = 100\ngive_up_s = 10\n")?;
        let (a, b) = MxProgram::pair(&world.a, &world.b);
        let index = PeerIndex::new(1); // Our own board has the first place of the table, and the only peer the next.
        let [from, to] = [cable.b(), cable.a()].map(|end| NicId::from_octets(end.mac));
        let [endpoint, victim_endpoint] = [&b, &a].map(|program| EndpointNumber(program.at.1 as u8));
        let as_b = SpoofedSource { from, index, to, endpoint, victim_endpoint, session: SessionId(0x0bad_5e55) };
        let attacker = RawSender::at(cable.b());
        Some((Self { world, a, b, attacker, as_b, streams: 1 }, cable))
    }

    /// Honest messages in both directions, while frames come in between.
    fn exchange_during(&mut self, frames: &[Vec<u8>]) {
        const COUNT: u64 = 300;
        let streams = [self.streams, self.streams + 1];
        self.streams += 2;
        self.a.begin(COUNT, 8, "mixed", 0, &[Flow::To(0, streams[0]), Flow::From(streams[1])]);
        self.b.begin(COUNT, 8, "mixed", 0, &[Flow::To(0, streams[1]), Flow::From(streams[0])]);
        self.attacker.send(frames);
        self.a.done(2 * COUNT);
        self.b.done(2 * COUNT);
    }

    fn end(self) {
        self.a.close();
        self.b.close();
        self.world.wait_until_idle();
    }
}

/// A frame of another type, whatever is in it.
fn of_type(kind: u8, frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[16] = kind;
    frame
}

#[test]
fn truncated_and_mutated_frames_do_no_harm() {
    let Some((mut attack_bed, _cable)) = AttackBed::begin() else { return };
    let as_b = attack_bed.as_b;
    let unknown = SpoofedSource { from: NicId::from_octets([2, 0x66, 0, 0, 0, 1]), index: PeerIndex::new(9), ..as_b };
    let nameless = SpoofedSource { index: None, endpoint: UNUSED_ENDPOINT, ..as_b };
    let before = attack_bed.world.a.rss_bytes();
    for source in [as_b, SpoofedSource { endpoint: UNUSED_ENDPOINT, ..as_b }, unknown, nameless] {
        let mut whole: Vec<Vec<u8>> =
            source.one_packet_of_each_type().iter().map(|packet| source.frame(packet)).collect();
        if source.from == unknown.from {
            whole.remove(0); // A host that announces itself is not unknown any more.
        }
        let typed: Vec<Vec<u8>> = (0..=u8::MAX).map(|kind| of_type(kind, &whole[0])).collect();
        whole.extend(typed);
        let mut frames: Vec<Vec<u8>> = whole.iter().flat_map(|frame| truncated(frame)).collect();
        frames.extend(whole.iter().flat_map(|frame| extremes(frame)));
        frames.extend(whole);
        attack_bed.exchange_during(&frames);
    }
    let side = &attack_bed.world.a;
    for reason in
        ["short", "type", "unsupported_type", "data_missing", "too_long", "too_short", "truc_type", "truc_sessions"]
    {
        side.wait_until(reason, |side| side.dropped(reason) > 0);
    }
    for reason in ["connect_kind", "connect_status", "nack_type", "no_index", "index_mismatch", "unknown_source"] {
        side.wait_until(reason, |side| side.dropped(reason) > 0);
    }
    let after = side.rss_bytes();
    assert!(after < before + GROWTH_BYTES_MAX, "a's daemon grew from {before} to {after} bytes");
    attack_bed.end();
}

#[test]
fn packets_of_another_session_are_ignored() {
    let Some((mut attack_bed, _cable)) = AttackBed::begin() else { return };
    let as_b = attack_bed.as_b;
    // Every number and every session of a kind that could be meant: acknowledgements of everything, ends of transfers.
    let sessions = [0, 1, 0x0bad_5e55, 0x7fff_ffff, 0x8000_0000, u32::MAX - 1, u32::MAX].map(SessionId);
    let sources = sessions.map(|session| SpoofedSource { session, ..as_b });
    let packets =
        sources.iter().flat_map(|source| source.one_packet_of_each_type().into_iter().map(|packet| (*source, packet)));
    let one_round: Vec<Vec<u8>> = packets.map(|(source, packet)| source.frame(&packet)).collect();
    let many: Vec<Vec<u8>> = (0..20).flat_map(|_| one_round.clone()).collect();
    for _ in 0..4 {
        attack_bed.exchange_during(&many);
    }
    attack_bed.end();
}

/// Returns an address that no host has.
fn unused_address(number: u32) -> NicId {
    let [a, b, c, d] = number.to_be_bytes();
    NicId::from_octets([2, 0x66, a, b, c, d])
}

fn check_growth(side: &TestHost, before: u64) {
    let after = side.rss_bytes();
    assert!(after < before + GROWTH_BYTES_MAX, "the daemon grew from {before} to {after} bytes");
}

#[test]
fn floods_of_boards_fill_no_memory() {
    const BOARDS: u32 = 20_000;
    let Some((mut attack_bed, _cable)) = AttackBed::begin() else { return };
    let before = attack_bed.world.a.rss_bytes();
    let announced = |number| {
        let source =
            SpoofedSource { from: unused_address(number), to: BROADCAST, index: PeerIndex::new(0), ..attack_bed.as_b };
        source.frame(&source.announcement(number))
    };
    let frames: Vec<Vec<u8>> = (0..BOARDS).map(announced).collect();
    attack_bed.exchange_during(&frames);
    let query = attack_bed.as_b.frame(&attack_bed.as_b.query());
    attack_bed.exchange_during(&vec![query; BOARDS as usize]);
    let side = &attack_bed.world.a;
    side.wait_until("peers found too often", |side| side.dropped("discovery_rate_limited") > 0);
    side.wait_until("too many questions", |side| side.dropped("query_rate_limited") > 0);
    let known = side.list("peer")["peers"].as_array().map_or(0, Vec::len);
    assert!(known <= 1024, "{known} peers");
    check_growth(side, before);
    attack_bed.end();
}

#[test]
fn floods_of_connects_fill_no_memory() {
    const CONNECTS: u32 = 20_000;
    let Some((mut attack_bed, _cable)) = AttackBed::begin() else { return };
    let before = attack_bed.world.a.rss_bytes();
    let connect = |number: u32| {
        // All endpoints but the honest one, all keys, new sessions each time; some for endpoints that are closed or cannot be.
        let endpoint = EndpointNumber(1 + (number % 250) as u8);
        let victim_endpoint = EndpointNumber(if number.is_multiple_of(4) {
            (number / 4 % 256) as u8
        } else {
            attack_bed.as_b.victim_endpoint.0
        });
        let source = SpoofedSource { endpoint, victim_endpoint, ..attack_bed.as_b };
        source.frame(&source.connect(SessionId(2 * number), if number.is_multiple_of(2) { 7 } else { number }))
    };
    let frames: Vec<Vec<u8>> = (0..CONNECTS).map(connect).collect();
    attack_bed.exchange_during(&frames);
    let side = &attack_bed.world.a;
    for reason in ["endpoint_closed", "bad_endpoint"] {
        side.wait_until(reason, |side| side.dropped(reason) > 0);
    }
    check_growth(side, before);
    attack_bed.end();
}

/// A CONNECT in another session says that the program at that end was started anew. It is asked, and says that it was not; so what
/// is under way goes on, and it is not kept out for having been replaced.
#[test]
fn forged_connect_does_not_disconnect_or_block() {
    let Some((mut attack_bed, _cable)) = AttackBed::begin() else { return };
    let as_b = attack_bed.as_b;
    let forged = (0..50).map(|count| as_b.frame(&as_b.connect(SessionId(0x0bad_5e00 + count), 7)));
    let frames: Vec<Vec<u8>> = forged.collect();
    attack_bed.exchange_during(&frames);
    let (a, b) = (&mut attack_bed.a, &mut attack_bed.b);
    b.reconnect(0, a);
    a.reconnect(0, b);
    attack_bed.exchange_during(&frames);
    attack_bed.end();
}
