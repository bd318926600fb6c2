//! Limits and costs: many domains, many channels, few descriptors, nothing to do.
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_layout::channel::{ChannelGeometry, SlabSize};
use isthmus_layout::limits::{SLAB_BYTES_DEFAULT, SLAB_BYTES_MIN};
use isthmus_suites::test_program::program;
use isthmus_suites::{TIMEOUT_S, TestProgram, daemon};
use isthmus_testbed::{DaemonProcess, Deadline, Scratch, View, eventually};
use std::os::unix::fs::MetadataExt;

#[test]
fn two_hundred_and_fifty_six_domains_of_thirty_two_endpoints() {
    let scratch = Scratch::new().unwrap();
    let daemon = daemon(&scratch, "");
    let mut actors: Vec<_> = (0..8).map(|_| TestProgram::start(daemon.launch_on_host(program()))).collect();
    for actor in &mut actors {
        for place in 0..32 {
            actor.send_line(&format!("@{place} attach"));
            (0..32).for_each(|_| actor.send_line(&format!("@{place} open")));
        }
    }
    for actor in &mut actors {
        for _ in 0..32 {
            let answer = actor.answer();
            assert!(answer.starts_with("attached "), "{answer}");
            for endpoint in 0..32 {
                assert_eq!(actor.answer(), format!("open e{endpoint}"));
            }
        }
    }
    let status: serde_json::Value = report(&mut actors[0], "status");
    assert_eq!((status["domains"].as_u64(), status["endpoints"].as_u64()), (Some(256), Some(8192)), "{status}");
    // The last reaches the first, at the last endpoint of each.
    let [first, .., last] = &mut actors[..] else { unreachable!() };
    let names = [("@0", &mut *first), ("@31", &mut *last)].map(|(place, actor)| {
        let found = actor.ask(&format!("{place} id"));
        found.strip_prefix("domain ").expect("its number").to_owned()
    });
    last.send_line(&format!("@31 exchange 31 {}.e31 5 8,5000,100000 9 7", names[0]));
    let answer = first.ask(&format!("@0 exchange 31 {}.e31 9 7 5 8,5000,100000", names[1]));
    assert_eq!(answer, "exchanged sent 1 of 1 received 3 of 3");
    assert_eq!(last.answer(), "exchanged sent 3 of 3 received 1 of 1");
}

fn report(actor: &mut TestProgram, topic: &str) -> serde_json::Value {
    let answer = actor.ask(&format!("query {topic}"));
    serde_json::from_str(answer.strip_prefix("report ").unwrap_or_else(|| panic!("{answer}"))).unwrap()
}

/// Bytes of each piece of shared memory that a process holds by descriptor: how large it is, and how much of it there is.
fn memory(view: &View) -> Vec<(u64, u64)> {
    let folder = format!("/proc/{}/fd", view.pid());
    let files = view.fds().unwrap().into_iter().filter(|fd| fd.target.contains("memfd:isthmus"));
    let files = files.filter_map(|fd| std::fs::metadata(format!("{folder}/{}", fd.number)).ok());
    let mut all: Vec<_> = files.map(|file| (file.ino(), (file.size(), file.blocks() * 512))).collect();
    all.sort_unstable();
    all.dedup();
    all.into_iter().map(|(_, sizes)| sizes).collect()
}

/// Has programs make progress without an operation of their own, for `ms` milliseconds.
fn poll_all(actors: &mut [TestProgram], ms: u32) {
    actors.iter_mut().for_each(|actor| actor.send_line(&format!("poll {ms}")));
    actors.iter_mut().for_each(|actor| assert_eq!(actor.answer(), "polled"));
}

#[test]
fn sixty_four_programs_talking_all_to_all_stay_small() {
    const PROGRAMS: usize = 64;
    const ALL_MAX: u64 = 128 << 20;
    const IDLE_CHANNEL_MAX: u64 = 32 << 10;
    let scratch = Scratch::new().unwrap();
    let daemon = daemon(&scratch, "");
    let view = daemon.view().unwrap();
    let mut actors: Vec<_> =
        (0..PROGRAMS).map(|number| TestProgram::launch_on_host(&daemon, &format!("p{number}"))).collect();
    for len in [8, 3000, 8] {
        for actor in &mut actors {
            actor.send_line(&format!("mesh 0 {PROGRAMS} {len} 50000"));
        }
        for actor in &mut actors {
            assert_eq!(actor.answer(), format!("meshed {}", PROGRAMS - 1));
        }
        let all: u64 = memory(&view).iter().map(|(_, bytes)| bytes).sum();
        println!("after {len} bytes: {} KiB shared", all >> 10);
        assert!(all < ALL_MAX, "{all} bytes of shared memory");
    }
    // The last are made after all programs have stopped waiting for them.
    let mut pairs = 0;
    let made = eventually(Deadline::secs(TIMEOUT_S), || {
        poll_all(&mut actors, 10);
        pairs = report(&mut actors[0], "channels")["pairs"].as_array().map_or(0, Vec::len);
        pairs == PROGRAMS * (PROGRAMS - 1) / 2
    });
    made.unwrap_or_else(|late| panic!("{pairs} pairs: {late}"));
    // Given back when they are silent.
    assert!(largest_channel(&view) > 0, "or this shows nothing");
    let trimmed = eventually(Deadline::secs(TIMEOUT_S), || {
        poll_all(&mut actors, 1200);
        largest_channel(&view) <= IDLE_CHANNEL_MAX
    });
    trimmed.unwrap_or_else(|late| panic!("an idle channel has {} bytes: {late}", largest_channel(&view)));
}

#[test]
fn without_descriptors_messages_use_the_daemon_path_and_name_the_limit() {
    let scratch = Scratch::new().unwrap();
    let daemon = daemon(&scratch, "");
    for limited in ["a", "b"] {
        let (mut a, mut b) = (TestProgram::launch_on_host(&daemon, "a"), TestProgram::launch_on_host(&daemon, "b"));
        let actor = if limited == "a" { &mut a } else { &mut b };
        assert!(actor.ask("limit-fds 0").starts_with("limited to "));
        for _ in 0..3 {
            a.send_line("exchange 0 b.e0 1 20x8,5x20000,2x100000 1 20x8 buffers=reused");
            b.expect("exchange 0 a.e0 1 20x8 1 20x8,5x20000,2x100000", "exchanged sent 20 of 20 received 27 of 27");
            assert!(a.answer().starts_with("exchanged"));
        }
        let paths = [&mut a, &mut b].map(|actor| {
            actor.expect("poll 20", "polled"); // It may not have looked for the daemon's news yet.
            actor.ask("channels")
        });
        let why = a.ask("query why a b");
        assert!(paths.iter().all(|path| path.contains("daemon out-of-fds")), "{limited}: {paths:?} {why}");
        assert!(why.contains("out-of-fds") && why.contains("RLIMIT_NOFILE"), "{why}");
    }
}

#[test]
fn attach_without_descriptors_names_the_limit() {
    let scratch = Scratch::new().unwrap();
    let daemon = daemon(&scratch, "");
    let mut told = 0;
    for more in 0..16 {
        let mut actor = TestProgram::start(daemon.launch_on_host(program()));
        assert!(actor.ask(&format!("limit-fds {more}")).starts_with("limited to "));
        let answer = actor.ask("attach");
        if answer.starts_with("attached ") {
            break;
        }
        let names = answer.contains("RLIMIT_NOFILE") || answer.contains("file descriptor");
        assert!(answer.starts_with("refused ") && names, "{more}: {answer}");
        told += 1;
    }
    assert!((1..16).contains(&told), "{told}");
}

/// Returns the slab size of a channel, or the reason why there is none.
fn channel_of(actor: &mut TestProgram) -> Result<u64, String> {
    let report = report(actor, "channels");
    let pair = &report["pairs"][0];
    match pair["channel"]["slab_bytes"].as_u64() {
        Some(bytes) if pair["path"] == "channel" => Ok(bytes),
        _ => Err(pair["reason"]["reason"].as_str().unwrap_or("nothing").to_owned()),
    }
}

/// Exchanges messages until `a` and `b` have a channel or a reason for none; returns what the one without a limit reports.
fn channel_size(a: &mut TestProgram, b: &mut TestProgram, limited: &str) -> Result<u64, String> {
    for _ in 0..1000 {
        a.send_line("exchange 0 b.e0 1 20x8,5x5000 1 20x8 window=2");
        b.expect("exchange 0 a.e0 1 20x8 1 20x8,5x5000 window=2", "exchanged sent 20 of 20 received 25 of 25");
        assert!(a.answer().starts_with("exchanged"));
        let made = channel_of(if limited == "a" { &mut *b } else { &mut *a });
        if made
            .as_ref()
            .err()
            .is_none_or(|reason| !["channel-pending", "channel-not-requested"].contains(&reason.as_str()))
        {
            return made;
        }
    }
    panic!("neither a channel nor a reason");
}

#[test]
fn with_little_address_space_channels_are_smaller_and_then_the_reason_names_the_limit() {
    let scratch = Scratch::new().unwrap();
    let daemon = daemon(&scratch, "");
    let usual = u64::from(SLAB_BYTES_DEFAULT);
    for limited in ["a", "b"] {
        let mut seen = Vec::new();
        for more_kib in (64..1024).step_by(64) {
            let (mut a, mut b) = (TestProgram::launch_on_host(&daemon, "a"), TestProgram::launch_on_host(&daemon, "b"));
            let actor = if limited == "a" { &mut a } else { &mut b };
            assert!(actor.ask(&format!("limit-memory {more_kib}")).starts_with("limited to "));
            let made = channel_size(&mut a, &mut b, limited);
            if made.as_ref() == Err(&"out-of-address-space".to_owned()) {
                let why = (if limited == "a" { &mut b } else { &mut a }).ask("query why a b");
                assert!(why.contains("RLIMIT_AS"), "{why}");
            }
            seen.push(made.clone());
            if made == Ok(usual) {
                break;
            }
        }
        let smaller = |made: &Result<u64, String>| made.as_ref().is_ok_and(|bytes| *bytes < usual);
        assert!(seen.iter().any(smaller) && seen.last() == Some(&Ok(usual)), "{limited}: {seen:?}");
        assert!(
            seen.first().is_some_and(|made| made == &Err("out-of-address-space".to_owned())),
            "{limited}: {seen:?}"
        );
    }
}

#[test]
fn attach_without_address_space_names_the_limit() {
    let scratch = Scratch::new().unwrap();
    let daemon = daemon(&scratch, "");
    let mut actor = TestProgram::start(daemon.launch_on_host(program()));
    assert!(actor.ask("limit-memory 64").starts_with("limited to "));
    let answer = actor.ask("attach");
    assert!(answer.starts_with("refused ") && answer.contains("RLIMIT_AS"), "{answer}");
}

/// Limits the files that the daemon makes to `kib` KiB, or removes the limit.
fn limit_files(daemon: &DaemonProcess, kib: Option<u64>) {
    use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
    let limit = Rlimit { current: kib.map(|kib| kib << 10), maximum: getrlimit(Resource::Fsize).maximum };
    prlimit(Pid::from_raw(daemon.view().unwrap().pid()), Resource::Fsize, limit).unwrap();
}

#[test]
fn a_daemon_that_may_not_make_long_files_makes_smaller_channels_and_then_names_the_limit() {
    let scratch = Scratch::new().unwrap();
    let daemon = daemon(&scratch, "");
    for (kib, slab) in [(Some(200), SLAB_BYTES_MIN), (None, SLAB_BYTES_DEFAULT)] {
        limit_files(&daemon, kib);
        let (mut a, mut b) = (TestProgram::launch_on_host(&daemon, "a"), TestProgram::launch_on_host(&daemon, "b"));
        for _ in 0..3 {
            a.send_line("exchange 0 b.e0 1 20x8,5x20000,2x100000 1 20x8");
            b.expect("exchange 0 a.e0 1 20x8 1 20x8,5x20000,2x100000", "exchanged sent 20 of 20 received 27 of 27");
            assert!(a.answer().starts_with("exchanged"));
        }
        assert_eq!(channel_of(&mut a), Ok(u64::from(slab)));
    }
    limit_files(&daemon, Some(50));
    let refused = TestProgram::start(daemon.launch_on_host(program())).ask("attach");
    assert!(refused.contains("RLIMIT_FSIZE") && refused.ends_with("[kernel-refused]"), "{refused}");
    limit_files(&daemon, None);
    assert!(TestProgram::start(daemon.launch_on_host(program())).ask("attach").starts_with("attached "));
}

/// Bytes that the largest channel takes.
fn largest_channel(view: &View) -> u64 {
    let channel = ChannelGeometry { slab: SlabSize::new(SLAB_BYTES_DEFAULT).unwrap() }.size().0;
    memory(view).into_iter().filter(|(size, _)| *size == channel).map(|(_, bytes)| bytes).max().unwrap_or(0)
}

#[test]
fn a_channel_grows_with_its_traffic_and_shrinks_again() {
    const IDLE_CHANNEL_MAX: u64 = 32 << 10;
    let scratch = Scratch::new().unwrap();
    let daemon = daemon(&scratch, "policy.grants = \"never\"\n");
    let view = daemon.view().unwrap();
    let (mut a, mut b) = (TestProgram::launch_on_host(&daemon, "a"), TestProgram::launch_on_host(&daemon, "b"));
    let mut largest = 0;
    for _ in 0..2 {
        a.send_line("exchange 0 b.e0 1 20x8,200x30000,20x300000 1 20x8,200x30000 window=16");
        b.send_line("exchange 0 a.e0 1 20x8,200x30000 1 20x8,200x30000,20x300000 window=16");
        for actor in [&mut a, &mut b] {
            let answer = actor.answer();
            assert!(answer.starts_with("exchanged "), "{answer}");
        }
        let grown = largest_channel(&view);
        assert!(grown > 2 * IDLE_CHANNEL_MAX, "{grown} bytes after {largest}");
        largest = largest.max(grown);
        let idle = eventually(Deadline::secs(TIMEOUT_S), || {
            for actor in [&mut a, &mut b] {
                actor.expect("poll 1200", "polled");
            }
            largest_channel(&view) <= IDLE_CHANNEL_MAX
        });
        idle.unwrap_or_else(|late| panic!("an idle channel has {} bytes: {late}", largest_channel(&view)));
    }
    println!("{} KiB at most", largest >> 10);
}

/// Lets time pass: an uninvolved program waits for `ms` milliseconds.
fn sleep_ms(clock: &mut TestProgram, ms: u64) {
    let answer = clock.ask(&format!("sleep-on-fd {ms}"));
    assert!(answer.starts_with("nothing after "), "{answer}");
}

#[test]
fn idle_processes_use_no_cpu_time() {
    let scratch = Scratch::new().unwrap();
    let (daemon, apart): (DaemonProcess, _) = (daemon(&scratch, ""), Scratch::new().unwrap());
    let other = isthmus_suites::daemon(&apart, "");
    let mut clock = TestProgram::launch_on_host(&other, "clock");
    sleep_ms(&mut clock, 10);
    let mut actors: Vec<_> =
        (0..10).map(|number| TestProgram::launch_on_host(&daemon, &format!("p{number}"))).collect();
    for actor in &mut actors {
        actor.send_line("mesh 0 10 3000 50000");
    }
    for actor in &mut actors {
        assert_eq!(actor.answer(), "meshed 9");
    }
    for actor in &mut actors {
        actor.send_line("wait 7000");
    }
    sleep_ms(&mut clock, 2500); // Slabs are given back after a second; then nothing is left to do.
    let views: Vec<_> = actors.iter().map(TestProgram::view).chain([daemon.view().unwrap()]).collect();
    let look = || views.iter().map(|view| (view.sleeps().unwrap(), view.cpu_fine().unwrap())).collect::<Vec<_>>();
    let before = look();
    sleep_ms(&mut clock, 2000);
    assert_eq!(look(), before);
    for actor in &mut actors {
        assert_eq!(actor.answer(), "nothing");
    }
}
