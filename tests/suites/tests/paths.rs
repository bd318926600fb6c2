//! Messages of every length class, by every path, arrive whole and in order and touch nothing else.
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_suites::test_program::program;
use isthmus_suites::{TIMEOUT_S, TestProgram, daemon};
use isthmus_testbed::{DaemonProcess, Deadline, ProcMapping, Scratch, SeededRandom, Signal};
use std::time::Duration;

/// Every border of the ways a message can go: in the record, through the slab, announced.
const LENGTHS: &str =
    "0-200,250-260,2040-2056,4095-4097,8186-8200,16384,32760-32776,3x65536,65537,1048575-1048577,5242883";

/// A shorter list of lengths, without the longest, for frequent use.
const SHORTER: &str = "0-140,2047-2049,8191-8193,32767-32769,2x65536,300001";

const NO_CHANNELS: &str = "policy.channels = false\n";

struct PathPair {
    a: TestProgram,
    b: TestProgram,
    daemon: DaemonProcess,
    scratch: Scratch,
}

impl PathPair {
    fn new(config: &str, options: &str) -> Self {
        let scratch = Scratch::new().expect("a folder of our own");
        let daemon = daemon(&scratch, config);
        let a = TestProgram::start_attached(daemon.launch_on_host(program()), "a", options);
        let b = TestProgram::start_attached(daemon.launch_on_host(program()), "b", options);
        Self { a, b, daemon, scratch }
    }

    /// The first messages make the channel.
    fn connected(config: &str, options: &str) -> Self {
        let mut path_pair = Self::new(config, options);
        for round in 0.. {
            path_pair.exchange_both("2x8", "2x8", "");
            if path_pair.a.ask("channels").contains(" channel ") && path_pair.b.ask("channels").contains(" channel ") {
                return path_pair;
            }
            assert!(round < 1000, "no channel: {} {}", path_pair.a.ask("channels"), path_pair.b.ask("channels"));
        }
        unreachable!()
    }

    /// Both sides send at once.
    fn exchange_both(&mut self, from_a: &str, from_b: &str, options: &str) {
        self.a.send_line(&format!("exchange 0 b.e0 1000 {from_a} 500000 {from_b} {options}"));
        self.b.send_line(&format!("exchange 0 a.e0 500000 {from_b} 1000 {from_a} {options}"));
        let answers = [self.a.answer(), self.b.answer()];
        assert!(answers.iter().all(|answer| answer.starts_with("exchanged ")), "{options}: {answers:#?}");
    }

    fn path(&mut self) -> [String; 2] {
        [self.a.ask("channels"), self.b.ask("channels")]
    }
}

#[test]
fn every_length_arrives_by_channel() {
    let mut path_pair = PathPair::connected("", "");
    for options in
        ["window=1", "window=4", "window=4 buffer-size=more", "window=4 buffer-size=less", "window=16 buffers=reused"]
    {
        path_pair.exchange_both(LENGTHS, LENGTHS, options);
    }
    path_pair.exchange_both(LENGTHS, "-", "window=3");
    path_pair.exchange_both("-", LENGTHS, "window=3");
    assert!(path_pair.path().iter().all(|path| path.contains(" channel ")));
}

#[test]
fn every_length_arrives_by_daemon_path_when_the_library_disables_channels() {
    let mut path_pair = PathPair::new("", "channels=no");
    for options in ["window=1", "window=4 buffer-size=more", "window=16 buffer-size=less"] {
        path_pair.exchange_both(LENGTHS, LENGTHS, options);
    }
    assert!(path_pair.path().iter().all(|path| path.contains("daemon channels-disabled")), "{:?}", path_pair.path());
}

#[test]
fn every_length_arrives_by_daemon_path_when_policy_forbids_channels() {
    let mut path_pair = PathPair::new(NO_CHANNELS, "");
    path_pair.exchange_both(LENGTHS, LENGTHS, "window=4");
    assert!(path_pair.path().iter().all(|path| path.contains("daemon channels-forbidden")), "{:?}", path_pair.path());
}

#[test]
fn path_change_neither_loses_nor_reorders_messages() {
    for round in 0..12 {
        let mut path_pair = PathPair::new("", "");
        match round % 3 {
            0 => path_pair.exchange_both(SHORTER, SHORTER, "window=8 ms=20000"),
            1 => path_pair.exchange_both(SHORTER, "-", "window=32 ms=20000"),
            _ => path_pair.exchange_both("400x8,40x40000,400x3000", "1x0", "window=300 ms=20000"),
        }
        path_pair.exchange_both(SHORTER, SHORTER, "window=8");
    }
}

#[test]
fn all_wait_modes_lose_no_message() {
    for wait in ["wait=sleep", "wait=spin"] {
        let mut path_pair = PathPair::connected("", wait);
        path_pair.exchange_both(SHORTER, SHORTER, "window=4");
        path_pair.exchange_both("2000x8", "2000x100", "window=1");
        let mut path_pair = PathPair::new(NO_CHANNELS, wait);
        path_pair.exchange_both(SHORTER, SHORTER, "window=4");
        path_pair.exchange_both("500x8", "500x100", "window=1");
    }
}

#[test]
fn unexpected_messages_are_kept() {
    for config in ["", NO_CHANNELS] {
        let mut path_pair = PathPair::new(config, "");
        for lengths in ["0-130,2048,8192,32768", "32769,65536,1048576", "3x0,1048576,8,40000,2x5242883,1"] {
            path_pair.a.send_line(&format!("exchange 0 b.e0 77 {lengths} 1 - window=200"));
            path_pair.b.expect("poll 30", "polled");
            path_pair
                .b
                .expect(&format!("exchange 0 a.e0 1 - 77 {lengths} buffer-size=more window=1"), &received(lengths));
            assert!(path_pair.a.answer().starts_with("exchanged "));
        }
    }
}

fn received(lengths: &str) -> String {
    let count = isthmus_suites::pattern::lengths(lengths).expect("a list of lengths").len();
    format!("exchanged sent 0 of 0 received {count} of {count}")
}

/// Mappings of other domains' buffers.
fn peer_regions(actor: &TestProgram) -> usize {
    let region = |map: &&ProcMapping| map.name.contains("isthmus-migrated") && !map.is_writable();
    actor.view().shared_maps().expect("the process is there").iter().filter(region).count()
}

#[test]
fn large_messages_from_the_same_buffer_are_copied_out_of_its_pages() {
    let mut path_pair = PathPair::connected("", "");
    path_pair.exchange_both("12x1000001", "-", "window=1 buffers=reused");
    assert_eq!((peer_regions(&path_pair.a), peer_regions(&path_pair.b)), (0, 1));
    path_pair.exchange_both("-", "12x300000", "window=2 buffers=reused buffer-size=more");
    assert!(peer_regions(&path_pair.a) > 0);
}

#[test]
fn moves_no_buffer_when_the_cache_is_disabled() {
    let mut path_pair = PathPair::connected("", "migrate=no");
    path_pair.exchange_both("12x1000001", "12x300000", "window=2 buffers=reused");
    for actor in [&path_pair.a, &path_pair.b] {
        let fds = actor.view().fds().unwrap();
        assert!(fds.iter().all(|fd| !fd.target.contains("isthmus-migrated")), "{fds:?}");
    }
    path_pair.a.expect("fragments", "fragments d2 buffer-cache-disabled");
    // The other switch: the daemon's policy.
    let mut path_pair = PathPair::connected("policy.grants = \"never\"\n", "");
    path_pair.exchange_both("12x1000001", "12x300000", "window=2 buffers=reused");
    assert_eq!((peer_regions(&path_pair.a), peer_regions(&path_pair.b)), (0, 0));
    let deadline = Deadline::secs(TIMEOUT_S);
    while path_pair.b.ask("fragments") != "fragments d1 grants-forbidden" {
        assert!(!deadline.has_passed(), "{}", path_pair.b.ask("fragments"));
        path_pair.exchange_both("8", "12x300000", "window=2 buffers=reused"); // The daemon may take longer than messages do.
    }
}

#[test]
fn reused_addresses_never_deliver_stale_memory() {
    let mut path_pair = PathPair::connected("", "");
    // Vectors of these lengths are mapped and unmapped one by one: the next one is at the same addresses.
    path_pair.exchange_both("60x1000000", "60x200000", "window=1 buffers=fresh");
    path_pair.exchange_both("40x300000,40x299999,40x1048576", "20x1048576", "window=3 buffers=fresh");
    path_pair.exchange_both("10x1000000", "10x1000000", "window=2 buffers=reused");
    path_pair.exchange_both("10x1000000", "10x1000000", "window=2 buffers=fresh");
}

#[test]
fn policy_change_that_closes_channels_loses_no_message() {
    let mut schedule = SeededRandom::new();
    for round in 0..10 {
        let messages = ["3000x8,300x3000,30x40000,3000x16", "10x1000000,20x300000"][round % 2];
        let mut path_pair = if round < 6 { PathPair::connected("", "") } else { PathPair::new("", "") };
        path_pair.a.send_line(&format!("exchange 0 d2.e0 1 {messages} 500000 {messages} window=8 buffers=reused"));
        path_pair.b.send_line(&format!("exchange 0 d1.e0 500000 {messages} 1 {messages} window=8 buffers=reused"));
        let file = path_pair.scratch.join("isthmusd.toml");
        let before = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, format!("{before}{NO_CHANNELS}")).unwrap();
        schedule.sleep_random(Duration::from_millis(10));
        path_pair.daemon.proc().signal(Signal::HUP).unwrap();
        let answers = [path_pair.a.answer(), path_pair.b.answer()];
        assert!(
            answers.iter().all(|answer| answer.starts_with("exchanged ")),
            "{round}: {answers:#?} {:?}",
            path_pair.path()
        );
        path_pair.exchange_both(SHORTER, SHORTER, "window=8");
        let paths = path_pair.path();
        assert!(paths.iter().all(|path| path.contains("daemon channels-forbidden")), "{round}: {paths:?}");
    }
}
