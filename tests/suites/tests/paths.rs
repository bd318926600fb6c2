//! Messages of every length class, by every path, arrive whole and in order and touch nothing else.
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_suites::actor::program;
use isthmus_suites::{Actor, PATIENCE, daemon};
use isthmus_testbed::{Daemon, Deadline, Mapping, Schedule, Scratch, Signal};
use std::time::Duration;

/// Every border of the ways a message can go: in the record, through the slab, announced.
const LENGTHS: &str =
    "0-200,250-260,2040-2056,4095-4097,8186-8200,16384,32760-32776,3x65536,65537,1048575-1048577,5242883";

/// The same without the longest, for what is done often.
const SHORTER: &str = "0-140,2047-2049,8191-8193,32767-32769,2x65536,300001";

const NO_CHANNELS: &str = "policy.channels = false\n";

struct Bed {
    a: Actor,
    b: Actor,
    daemon: Daemon,
    scratch: Scratch,
}

impl Bed {
    fn new(config: &str, options: &str) -> Self {
        let scratch = Scratch::new().expect("a folder of our own");
        let daemon = daemon(&scratch, config);
        let a = Actor::attached(daemon.beside(program()), "a", options);
        let b = Actor::attached(daemon.beside(program()), "b", options);
        Self { a, b, daemon, scratch }
    }

    /// The first messages make the channel.
    fn connected(config: &str, options: &str) -> Self {
        let mut bed = Self::new(config, options);
        for round in 0.. {
            bed.both("2x8", "2x8", "");
            if bed.a.ask("channels").contains(" channel ") && bed.b.ask("channels").contains(" channel ") {
                return bed;
            }
            assert!(round < 1000, "no channel: {} {}", bed.a.ask("channels"), bed.b.ask("channels"));
        }
        unreachable!()
    }

    /// Both sides send at once.
    fn both(&mut self, from_a: &str, from_b: &str, options: &str) {
        self.a.say(&format!("exchange 0 b.e0 1000 {from_a} 500000 {from_b} {options}"));
        self.b.say(&format!("exchange 0 a.e0 500000 {from_b} 1000 {from_a} {options}"));
        let answers = [self.a.answer(), self.b.answer()];
        assert!(answers.iter().all(|answer| answer.starts_with("exchanged ")), "{options}: {answers:#?}");
    }

    fn path(&mut self) -> [String; 2] {
        [self.a.ask("channels"), self.b.ask("channels")]
    }
}

#[test]
fn every_length_arrives_by_channel() {
    let mut bed = Bed::connected("", "");
    for options in ["window=1", "window=4", "window=4 room=more", "window=4 room=less", "window=16 buffers=reused"] {
        bed.both(LENGTHS, LENGTHS, options);
    }
    bed.both(LENGTHS, "-", "window=3");
    bed.both("-", LENGTHS, "window=3");
    assert!(bed.path().iter().all(|path| path.contains(" channel ")));
}

#[test]
fn every_length_arrives_through_the_daemon_where_the_library_wants_it() {
    let mut bed = Bed::new("", "channels=no");
    for options in ["window=1", "window=4 room=more", "window=16 room=less"] {
        bed.both(LENGTHS, LENGTHS, options);
    }
    assert!(bed.path().iter().all(|path| path.contains("ordinary channels-switched-off")), "{:?}", bed.path());
}

#[test]
fn every_length_arrives_through_the_daemon_where_policy_wants_it() {
    let mut bed = Bed::new(NO_CHANNELS, "");
    bed.both(LENGTHS, LENGTHS, "window=4");
    assert!(bed.path().iter().all(|path| path.contains("ordinary channels-forbidden")), "{:?}", bed.path());
}

#[test]
fn nothing_is_lost_or_overtaken_when_the_path_changes() {
    for round in 0..12 {
        let mut bed = Bed::new("", "");
        match round % 3 {
            0 => bed.both(SHORTER, SHORTER, "window=8 ms=20000"),
            1 => bed.both(SHORTER, "-", "window=32 ms=20000"),
            _ => bed.both("400x8,40x40000,400x3000", "1x0", "window=300 ms=20000"),
        }
        bed.both(SHORTER, SHORTER, "window=8");
    }
}

#[test]
fn waiting_asleep_and_spinning_lose_nothing() {
    for wait in ["wait=sleep", "wait=spin"] {
        let mut bed = Bed::connected("", wait);
        bed.both(SHORTER, SHORTER, "window=4");
        bed.both("2000x8", "2000x100", "window=1");
        let mut bed = Bed::new(NO_CHANNELS, wait);
        bed.both(SHORTER, SHORTER, "window=4");
        bed.both("500x8", "500x100", "window=1");
    }
}

#[test]
fn messages_nobody_waits_for_yet_are_kept() {
    for config in ["", NO_CHANNELS] {
        let mut bed = Bed::new(config, "");
        for lengths in ["0-130,2048,8192,32768", "32769,65536,1048576", "3x0,1048576,8,40000,2x5242883,1"] {
            bed.a.say(&format!("exchange 0 b.e0 77 {lengths} 1 - window=200"));
            bed.b.expect("tend 30", "tended");
            bed.b.expect(&format!("exchange 0 a.e0 1 - 77 {lengths} room=more window=1"), &received(lengths));
            assert!(bed.a.answer().starts_with("exchanged "));
        }
    }
}

fn received(lengths: &str) -> String {
    let count = isthmus_suites::pattern::lengths(lengths).expect("a list of lengths").len();
    format!("exchanged sent 0 of 0 received {count} of {count}")
}

/// Mappings of other domains' buffers.
fn peer_regions(actor: &Actor) -> usize {
    let region = |map: &&Mapping| map.name.contains("isthmus-rehomed") && !map.is_writable();
    actor.view().shared_maps().expect("the process is there").iter().filter(region).count()
}

#[test]
fn large_messages_from_the_same_buffer_are_copied_out_of_its_pages() {
    let mut bed = Bed::connected("", "");
    bed.both("12x1000001", "-", "window=1 buffers=reused");
    assert_eq!((peer_regions(&bed.a), peer_regions(&bed.b)), (0, 1));
    bed.both("-", "12x300000", "window=2 buffers=reused room=more");
    assert!(peer_regions(&bed.a) > 0);
}

#[test]
fn no_buffer_is_moved_where_that_is_switched_off() {
    let mut bed = Bed::connected("", "rehoming=no");
    bed.both("12x1000001", "12x300000", "window=2 buffers=reused");
    for actor in [&bed.a, &bed.b] {
        let fds = actor.view().fds().unwrap();
        assert!(fds.iter().all(|fd| !fd.target.contains("rehomed")), "{fds:?}");
    }
    bed.a.expect("pieces", "pieces d2 buffer-cache-off");
    // The other switch: the daemon's policy.
    let mut bed = Bed::connected("policy.grants = \"never\"\n", "");
    bed.both("12x1000001", "12x300000", "window=2 buffers=reused");
    assert_eq!((peer_regions(&bed.a), peer_regions(&bed.b)), (0, 0));
    let deadline = Deadline::secs(PATIENCE);
    while bed.b.ask("pieces") != "pieces d1 grants-forbidden" {
        assert!(!deadline.passed(), "{}", bed.b.ask("pieces"));
        bed.both("8", "12x300000", "window=2 buffers=reused"); // The daemon may take longer than messages do.
    }
}

#[test]
fn memory_given_back_and_got_again_never_delivers_what_was_there_before() {
    let mut bed = Bed::connected("", "");
    // Vectors of these lengths are mapped and unmapped one by one: the next one is at the same addresses.
    bed.both("60x1000000", "60x200000", "window=1 buffers=fresh");
    bed.both("40x300000,40x299999,40x1048576", "20x1048576", "window=3 buffers=fresh");
    bed.both("10x1000000", "10x1000000", "window=2 buffers=reused");
    bed.both("10x1000000", "10x1000000", "window=2 buffers=fresh");
}

#[test]
fn a_policy_that_ends_channels_loses_nothing() {
    let mut schedule = Schedule::new();
    for round in 0..10 {
        let messages = ["3000x8,300x3000,30x40000,3000x16", "10x1000000,20x300000"][round % 2];
        let mut bed = if round < 6 { Bed::connected("", "") } else { Bed::new("", "") };
        bed.a.say(&format!("exchange 0 d2.e0 1 {messages} 500000 {messages} window=8 buffers=reused"));
        bed.b.say(&format!("exchange 0 d1.e0 500000 {messages} 1 {messages} window=8 buffers=reused"));
        let file = bed.scratch.join("isthmusd.toml");
        let before = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, format!("{before}{NO_CHANNELS}")).unwrap();
        schedule.loiter(Duration::from_millis(10));
        bed.daemon.proc().signal(Signal::HUP).unwrap();
        let answers = [bed.a.answer(), bed.b.answer()];
        assert!(
            answers.iter().all(|answer| answer.starts_with("exchanged ")),
            "{round}: {answers:#?} {:?}",
            bed.path()
        );
        bed.both(SHORTER, SHORTER, "window=8");
        let paths = bed.path();
        assert!(paths.iter().all(|path| path.contains("ordinary channels-forbidden")), "{round}: {paths:?}");
    }
}
