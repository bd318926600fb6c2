//! SIGKILL at random moments: each survivor soon gets an error or goes on, and keeps nothing of the dead.
//!
//! A hundred in all, three thousand in the long form. A failure prints its seed.
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_layout::limits::PEER_REGIONS_MAX;
use isthmus_suites::test_program::program;
use isthmus_suites::{TIMEOUT_S, TestProgram, daemon};
use isthmus_testbed::{
    DaemonProcess, Deadline, Leftovers, ProcMapping, Scratch, SeededRandom, View, eventually, short_or_long,
};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a survivor may take to notice, in milliseconds: what is promised. So that nothing else disturbs it, each test waits
/// for [`exclusive`].
const NOTICE_MS: u64 = 2000;

/// Messages of every kind, without end as far as a kill is concerned.
const ENDLESS: &str = "500x8,50x1000,20x9000,40x0,10x70000,300x100,9000x8,900x3000,300x33000,20x1100000,100000x64";

/// As many, to their end: some tenths of a second.
const MANY: &str = "500x8,50x1000,20x9000,40x0,10x70000,300x100,900x8,100x3000,30x33000,6x1100000,2000x64";

/// Returns the number of kills that a test makes, given its share of them.
fn kills(tenths: u64) -> u64 {
    short_or_long(10, 300) * tenths
}

/// One test at a time.
fn exclusive() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// More than a survivor may have in the end, however many have died: what is under way at once, and its buffers in shared memory.
const SURVIVOR_BYTES_MAX: u64 = 160 << 20;

/// The memory of its own that a process has at the least, early and late in a test: what each death left in it would show.
#[derive(Debug)]
struct LowWaterMark {
    rounds: u64,
    early: u64,
    late: u64,
}

impl LowWaterMark {
    fn new_over(rounds: u64) -> Self {
        Self { rounds, early: u64::MAX, late: u64::MAX }
    }

    fn record(&mut self, round: u64, view: &View) {
        let memory = view.memory().expect("the process is there");
        let floor = match 4 * round / self.rounds {
            1 => &mut self.early,
            3 => &mut self.late,
            _ => return,
        };
        *floor = (*floor).min(memory.rss_bytes.saturating_sub(memory.rss_shmem_bytes));
    }

    #[track_caller]
    fn assert_not_risen(&self, process: &str, bytes_max: u64) {
        println!("{process}: {} KiB of its own early, {} KiB late", self.early >> 10, self.late >> 10);
        assert!(self.late <= self.early.saturating_add(bytes_max), "{process}: {self:?}");
    }
}

/// Its own buffers in shared memory: kept to be used again, up to a limit of the cache's. They need its /proc/self/maps, once.
const OWN_BUFFERS: &str = "isthmus-migrated";

/// The resources that a process holds, apart from its own buffers.
#[derive(Debug, PartialEq, Eq)]
struct HeldResources {
    fds: usize,
    shared: usize,
}

impl HeldResources {
    fn of(view: &View) -> Self {
        let fds = view.fds().expect("the process is there").into_iter();
        // What is opened once in /proc stays open: the maps, and the load when a wait first has to know it.
        let fds = fds.filter(|fd| !fd.target.contains(OWN_BUFFERS) && !fd.target.starts_with("/proc/"));
        let own = |map: &ProcMapping| map.name.contains(OWN_BUFFERS) && map.is_writable();
        let shared = view.shared_maps().expect("the process is there").into_iter().filter(|map| !own(map));
        Self { fds: fds.count(), shared: shared.count() }
    }
}

/// Takes what is left of the last round out of a program: by closing the endpoint it was on.
fn drain_endpoint(actor: &mut TestProgram) {
    actor.expect("wait 20", "nothing");
    actor.expect("close 0", "closed e0");
    actor.expect("open 0", "open e0");
}

/// Waits until `view` holds no more than `before`.
#[track_caller]
fn assert_no_more_than(process: &str, view: &View, before: &HeldResources) {
    let fits = || {
        let now = HeldResources::of(view);
        now.fds <= before.fds && now.shared <= before.shared
    };
    let last = eventually(Deadline::secs(TIMEOUT_S / 6), fits);
    assert!(last.is_ok(), "{process} holds {:?}, before {before:?}: {:#?}", HeldResources::of(view), view.fds());
}

fn is_end_of_peer(answer: &str) -> bool {
    ["failed peer-connection-lost", "failed no-such-domain", "refused no domain", "refused the other domain"]
        .iter()
        .any(|begin| answer.starts_with(begin))
}

#[test]
fn killed_peer_is_reported_and_its_resources_are_freed() {
    let _alone = exclusive();
    let mut schedule = SeededRandom::new();
    println!("ISTHMUS_SEED={:#x}", schedule.seed());
    let scratch = Scratch::new().unwrap();
    let daemon = daemon(&scratch, "");
    let mut survivor = TestProgram::launch_on_host(&daemon, "survivor");
    let (mut before, rounds) = (None, kills(4));
    let mut floors = [LowWaterMark::new_over(rounds), LowWaterMark::new_over(rounds)];
    for round in 0..rounds {
        let path = if schedule.one_in(4) { "channels=no" } else { "" };
        let mut victim = TestProgram::start_attached(daemon.launch_on_host(program()), "victim", path);
        let warm = schedule.one_in(2);
        if warm {
            survivor.send_line("exchange 0 victim.e0 1 20x8,2x50000 1 20x8");
            victim.expect("exchange 0 survivor.e0 1 20x8 1 20x8,2x50000", "exchanged sent 20 of 20 received 22 of 22");
            survivor.answer();
        }
        survivor.send_line(&format!("exchange 0 victim.e0 9000 {ENDLESS} 70000 {ENDLESS} window=8"));
        victim.send_line(&format!("exchange 0 survivor.e0 70000 {ENDLESS} 9000 {ENDLESS} window=8"));
        schedule.sleep_random(Duration::from_millis(30));
        victim.kill();
        let answer = survivor.answer_within(Deadline::after(Duration::from_millis(NOTICE_MS)));
        let answer = answer.unwrap_or_else(|error| panic!("round {round} {path}: {error}"));
        assert!(is_end_of_peer(&answer), "round {round} {path} warm {warm}: {answer}");
        if answer.starts_with("failed") {
            survivor.expect(&format!("drain {NOTICE_MS}"), "drained");
        }
        drain_endpoint(&mut survivor);
        floors[0].record(round, &survivor.view());
        floors[1].record(round, &daemon.view().unwrap());
        match &before {
            Some(before) => {
                assert_no_more_than("survivor", &survivor.view(), before);
            }
            None if round >= 2 => before = Some(HeldResources::of(&survivor.view())),
            None => {}
        }
    }
    let memory = survivor.view().memory().unwrap();
    assert!(memory.rss_bytes < SURVIVOR_BYTES_MAX, "{memory:?}");
    floors[0].assert_not_risen("survivor", 4 << 20);
    floors[1].assert_not_risen("daemon", 2 << 20);
}

#[test]
fn simultaneous_kills_are_all_noticed() {
    let _alone = exclusive();
    let scratch = Scratch::new().unwrap();
    let daemon = daemon(&scratch, "");
    for round in 0..3 {
        let mut pairs: Vec<_> = (0..6)
            .map(|number| {
                let (victim, survivor) = (format!("victim{number}"), format!("survivor{number}"));
                let mut pair =
                    (TestProgram::launch_on_host(&daemon, &victim), TestProgram::launch_on_host(&daemon, &survivor));
                pair.1.send_line(&format!("exchange 0 {victim}.e0 9000 {ENDLESS} 70000 {ENDLESS} window=8"));
                pair.0.send_line(&format!("exchange 0 {survivor}.e0 70000 {ENDLESS} 9000 {ENDLESS} window=8"));
                pair
            })
            .collect();
        pairs.iter_mut().for_each(|(victim, _)| victim.proc().kill().unwrap());
        let deadline = Deadline::after(Duration::from_millis(NOTICE_MS));
        for (number, (_, survivor)) in pairs.iter_mut().enumerate() {
            let answer = survivor.answer_within(deadline).unwrap_or_else(|error| panic!("{round}, {number}: {error}"));
            assert!(is_end_of_peer(&answer), "{round}, {number}: {answer}");
        }
    }
}

#[test]
fn stopped_peer_keeps_its_channel_until_it_dies() {
    let _alone = exclusive();
    let scratch = Scratch::new().unwrap();
    let daemon = daemon(&scratch, "");
    let (mut survivor, mut other) =
        (TestProgram::launch_on_host(&daemon, "survivor"), TestProgram::launch_on_host(&daemon, "other"));
    for lengths in [ENDLESS, "9000x8", "300x1100000"] {
        let mut victim = TestProgram::launch_on_host(&daemon, "victim");
        survivor.send_line(&format!("exchange 0 victim.e0 9000 {lengths} 70000 {lengths} window=8"));
        victim.send_line(&format!("exchange 0 survivor.e0 70000 {lengths} 9000 {lengths} window=8"));
        victim.proc().freeze().unwrap();
        // The daemon and others go on meanwhile.
        let found = other.ask("lookup survivor");
        assert!(found.starts_with("found d"), "{found}");
        victim.proc().kill().unwrap();
        let answer = survivor.answer_within(Deadline::after(Duration::from_millis(NOTICE_MS)));
        let answer = answer.unwrap_or_else(|error| panic!("{lengths}: {error}"));
        assert!(is_end_of_peer(&answer) || answer.starts_with("exchanged "), "{lengths}: {answer}");
        if answer.starts_with("failed") {
            survivor.expect(&format!("drain {NOTICE_MS}"), "drained");
        }
        drain_endpoint(&mut survivor);
    }
}

#[test]
fn daemon_frees_domains_killed_while_attaching() {
    let _alone = exclusive();
    let mut schedule = SeededRandom::new();
    println!("ISTHMUS_SEED={:#x}", schedule.seed());
    let scratch = Scratch::new().unwrap();
    let daemon = daemon(&scratch, "");
    let mut other = TestProgram::launch_on_host(&daemon, "other");
    let view = daemon.view().unwrap();
    let (before, rounds) = (HeldResources::of(&view), kills(3));
    let mut floor = LowWaterMark::new_over(rounds);
    for round in 0..rounds {
        let mut victim = TestProgram::start(daemon.launch_on_host(program()));
        for order in ["attach name=victim", "open", "exchange 0 other.e0 1 9x8,2x50000 1 9x8", "drop"] {
            victim.send_line(order);
        }
        other.send_line("exchange 0 victim.e0 1 9x8 1 9x8,2x50000 ms=20");
        schedule.sleep_random(Duration::from_millis(15));
        victim.kill();
        other.answer();
        let settled = other.ask(&format!("drain {NOTICE_MS}"));
        assert!(settled == "drained" || settled.starts_with("invalid order: nothing"), "{settled}");
        drain_endpoint(&mut other);
        floor.record(round, &view);
    }
    floor.assert_not_risen("daemon", 2 << 20);
    let mut last = TestProgram::launch_on_host(&daemon, "victim");
    last.send_line("exchange 0 other.e0 1 9x8,2x50000 1 9x8");
    other.expect("exchange 0 victim.e0 1 9x8 1 9x8,2x50000", "exchanged sent 9 of 9 received 11 of 11");
    last.answer();
    last.kill();
    assert_no_more_than("daemon", &view, &before);
}

/// Waits until the daemon that came back has them again.
fn wait_for_reattach(actors: &mut [&mut TestProgram]) {
    for actor in actors {
        let report = actor.ask("query status"); // A program that was busy on its channels has not looked for its daemon.
        assert!(report.starts_with("report "), "{report}");
        actor.expect(&format!("connected {NOTICE_MS}"), "connected true");
    }
}

/// Both do the same at the same time.
fn run_both(a: &mut TestProgram, b: &mut TestProgram, order: &str) -> [String; 2] {
    a.send_line(order);
    b.send_line(order);
    [a.answer(), b.answer()]
}

/// Ends what a failed exchange left under way, on both sides.
#[track_caller]
fn recover(a: &mut TestProgram, b: &mut TestProgram) {
    wait_for_reattach(&mut [a, b]);
    let settled = run_both(a, b, "drain 300");
    // Messages that are only announced wait for a receive, and these are taken back: their endpoint has to go.
    run_both(a, b, "poll 50");
    for actor in [&mut *a, &mut *b] {
        actor.expect("close 0", "closed e0");
        actor.expect("open 0", "open e0");
    }
    for (at, settled) in settled.into_iter().enumerate().filter(|(_, settled)| settled.starts_with("stuck")) {
        let (stuck, other) = if at == 0 { (&mut *a, &mut *b) } else { (&mut *b, &mut *a) };
        other.send_line("poll 500");
        let now = stuck.ask(&format!("drain {NOTICE_MS}"));
        other.answer();
        assert_eq!(now, "drained", "{settled}; {}; {}", stuck.ask("channels"), other.ask("channels"));
    }
}

fn connect(a: &mut TestProgram, b: &mut TestProgram) {
    for _ in 0..1000 {
        a.send_line("exchange 0 b.e0 1 2x8 1 2x8");
        b.expect("exchange 0 a.e0 1 2x8 1 2x8", "exchanged sent 2 of 2 received 2 of 2");
        a.answer();
        if a.ask("channels").contains(" channel ") && b.ask("channels").contains(" channel ") {
            return;
        }
    }
    panic!("no channel: {}", a.ask("channels"));
}

#[test]
fn channels_do_not_notice_that_the_daemon_is_killed() {
    let _alone = exclusive();
    let mut schedule = SeededRandom::new();
    println!("ISTHMUS_SEED={:#x}", schedule.seed());
    let scratch = Scratch::new().unwrap();
    let mut daemon = daemon(&scratch, "");
    let (mut a, mut b) = (TestProgram::launch_on_host(&daemon, "a"), TestProgram::launch_on_host(&daemon, "b"));
    connect(&mut a, &mut b);
    let before = [&a, &b].map(|actor| HeldResources::of(&actor.view()));
    for round in 0..kills(2) {
        a.send_line(&format!("exchange 0 d2.e0 9000 {MANY} 70000 {MANY} window=8 buffers=reused"));
        b.send_line(&format!("exchange 0 d1.e0 70000 {MANY} 9000 {MANY} window=8 buffers=reused"));
        schedule.sleep_random(Duration::from_millis(60));
        if schedule.one_in(2) {
            daemon.kill_and_restart(Deadline::secs(TIMEOUT_S)).unwrap();
        } else {
            let stopped = daemon.kill(Deadline::secs(TIMEOUT_S)).unwrap();
            schedule.sleep_random(Duration::from_millis(100));
            daemon = stopped.start(Deadline::secs(TIMEOUT_S)).unwrap();
        }
        for actor in [&mut a, &mut b] {
            let answer = actor.answer();
            assert!(answer.starts_with("exchanged "), "round {round}: {answer}");
        }
        wait_for_reattach(&mut [&mut a, &mut b]);
        let report = a.ask("query channels");
        assert!(report.contains("\"a\"") && report.contains("\"b\""), "round {round}: not re-adopted: {report}");
        a.expect("lookup b", "found d2");
    }
    // Regions of the peer's buffers stay mapped, up to a limit.
    for (actor, before) in [&a, &b].into_iter().zip(before) {
        let now = HeldResources::of(&actor.view());
        let fits = now.fds <= before.fds && now.shared <= before.shared + PEER_REGIONS_MAX;
        assert!(fits, "{now:?} {before:?} {:#?}", actor.view().fds());
    }
}

#[test]
fn daemon_path_fails_with_the_daemon_and_recovers_with_the_next() {
    let _alone = exclusive();
    let mut schedule = SeededRandom::new();
    println!("ISTHMUS_SEED={:#x}", schedule.seed());
    let scratch = Scratch::new().unwrap();
    let mut daemon = daemon(&scratch, "policy.channels = false\n");
    let (mut a, mut b) = (TestProgram::launch_on_host(&daemon, "a"), TestProgram::launch_on_host(&daemon, "b"));
    for round in 0..kills(1) {
        a.send_line(&format!("exchange 0 b.e0 9000 {ENDLESS} 70000 {ENDLESS} window=8 ms=1000"));
        b.send_line(&format!("exchange 0 a.e0 70000 {ENDLESS} 9000 {ENDLESS} window=8 ms=1000"));
        schedule.sleep_random(Duration::from_millis(30));
        daemon.kill_and_restart(Deadline::secs(TIMEOUT_S)).unwrap();
        for actor in [&mut a, &mut b] {
            let answer = actor.answer();
            // A program with nothing under way at that moment waits for what the other one will not send.
            let right = answer.starts_with("failed daemon-connection-lost") || answer.starts_with("late");
            // The program that comes back first finds the other one not there yet.
            let right = right || answer.starts_with("failed no-such-domain");
            let early = answer.starts_with("refused the connection to the daemon broke");
            assert!(right || early || answer.starts_with("receive "), "round {round}: {answer}");
        }
        recover(&mut a, &mut b);
        a.send_line("exchange 0 b.e0 1 20x8,2x50000 1 20x8 ms=10000");
        b.send_line("exchange 0 a.e0 1 20x8 1 20x8,2x50000 ms=10000");
        let answers = [a.answer(), b.answer()];
        assert!(answers.iter().all(|answer| answer.starts_with("exchanged ")), "round {round}: {answers:#?}");
    }
}

#[test]
fn a_daemon_killed_while_channels_are_made_leaves_no_pair_broken() {
    let _alone = exclusive();
    let mut schedule = SeededRandom::new();
    println!("ISTHMUS_SEED={:#x}", schedule.seed());
    let scratch = Scratch::new().unwrap();
    let mut daemon = daemon(&scratch, "");
    for round in 0..kills(1) {
        let (mut a, mut b) = (TestProgram::launch_on_host(&daemon, "a"), TestProgram::launch_on_host(&daemon, "b"));
        let [to_a, to_b] = ["a", "b"].map(|name| a.ask(&format!("lookup {name}")).replace("found ", ""));
        a.send_line(&format!("exchange 0 {to_b}.e0 1 {MANY} 70000 {MANY} window=8 ms=2000"));
        b.send_line(&format!("exchange 0 {to_a}.e0 70000 {MANY} 1 {MANY} window=8 ms=2000"));
        schedule.sleep_random(Duration::from_millis(2));
        daemon.kill_and_restart(Deadline::secs(TIMEOUT_S)).unwrap();
        let answers = [a.answer(), b.answer()];
        let fair = |answer: &String| {
            ["exchanged", "failed daemon-connection-lost", "failed no-such-domain", "late", "receive "]
                .iter()
                .any(|begin| answer.starts_with(begin))
        };
        assert!(answers.iter().all(fair), "round {round}: {answers:#?}");
        recover(&mut a, &mut b);
        for _ in 0..3 {
            a.send_line(&format!("exchange 0 {to_b}.e0 1 20x8,2x50000 1 20x8 ms=10000"));
            b.send_line(&format!("exchange 0 {to_a}.e0 1 20x8 1 20x8,2x50000 ms=10000"));
            let answers = [a.answer(), b.answer()];
            let exchanged = answers.iter().all(|answer| answer.starts_with("exchanged "));
            assert!(exchanged, "round {round}: {answers:#?} {} {}", a.ask("channels"), b.ask("channels"));
        }
        connect(&mut a, &mut b);
    }
}

/// While the two change paths, one of them uses the channel both ways already, and the other one is not told that any more.
#[test]
fn channel_close_is_seen_when_the_channel_is_full() {
    let _alone = exclusive();
    let scratch = Scratch::new().unwrap();
    let mut daemon = daemon(&scratch, "");
    let (mut listener, mut connector) =
        (TestProgram::launch_on_host(&daemon, "a"), TestProgram::launch_on_host(&daemon, "b"));
    let [to_a, to_b] = ["a", "b"].map(|name| listener.ask(&format!("lookup {name}")).replace("found ", ""));
    assert!(connector.ask(&format!("send 0 {to_a}.e0 8 1")).starts_with("posted "));
    let accepted = eventually(Deadline::secs(TIMEOUT_S), || {
        listener.expect("poll 5", "polled");
        listener.ask("query channels").contains("\"path\":\"channel\"")
    });
    accepted.unwrap();
    assert!(connector.ask(&format!("wait {}", 1000 * TIMEOUT_S)).starts_with("sent "));
    let uses = |actor: &mut TestProgram| {
        actor.expect("poll 20", "polled");
        actor.ask("channels").contains(" channel ")
    };
    eventually(Deadline::secs(TIMEOUT_S), || uses(&mut connector)).unwrap();
    let answered = eventually(Deadline::secs(TIMEOUT_S), || {
        daemon.proc().freeze().unwrap();
        let view = daemon.view().unwrap();
        eventually(Deadline::secs(TIMEOUT_S), || view.status("State").unwrap().starts_with('T')).unwrap();
        let answered = uses(&mut listener);
        if !answered {
            daemon.proc().thaw().unwrap();
        }
        answered
    });
    answered.unwrap();
    while connector.ask(&format!("inject 0 {to_a}.e0 8 2")) == "injected true" {}
    daemon.kill_and_restart(Deadline::secs(TIMEOUT_S)).unwrap();
    wait_for_reattach(&mut [&mut connector]); // While the channel is full.
    recover(&mut listener, &mut connector);
    listener.send_line(&format!("exchange 0 {to_b}.e0 1 20x8,2x50000 1 20x8 ms=10000"));
    connector.send_line(&format!("exchange 0 {to_a}.e0 1 20x8 1 20x8,2x50000 ms=10000"));
    let answers = [listener.answer(), connector.answer()];
    assert!(answers.iter().all(|answer| answer.starts_with("exchanged ")), "{answers:#?}");
}

#[test]
fn domain_with_an_invalid_ticket_attaches_as_new() {
    let _alone = exclusive();
    let scratch = Scratch::new().unwrap();
    let daemon = daemon(&scratch, "");
    let (mut a, mut b) = (TestProgram::launch_on_host(&daemon, "a"), TestProgram::launch_on_host(&daemon, "b"));
    connect(&mut a, &mut b);
    let kept = daemon.state_dir().join("resume");
    let stopped = daemon.kill(Deadline::secs(TIMEOUT_S)).unwrap();
    std::fs::remove_file(kept).unwrap();
    let _daemon = stopped.start(Deadline::secs(TIMEOUT_S)).unwrap();
    wait_for_reattach(&mut [&mut a, &mut b]);
    // By name, since no domain has its former number.
    connect(&mut a, &mut b);
}

#[test]
fn nothing_is_left_when_all_processes_are_killed() {
    let _alone = exclusive();
    let scratch = Scratch::new().unwrap();
    let before = Leftovers::snapshot().unwrap();
    let daemon: DaemonProcess = daemon(&scratch, "");
    let (mut a, mut b) = (TestProgram::launch_on_host(&daemon, "a"), TestProgram::launch_on_host(&daemon, "b"));
    connect(&mut a, &mut b);
    let pids: Vec<i32> = [a.view().pid(), b.view().pid(), daemon.view().unwrap().pid()].to_vec();
    a.send_line(&format!("exchange 0 b.e0 1 {ENDLESS} 2 {ENDLESS}"));
    b.send_line(&format!("exchange 0 a.e0 2 {ENDLESS} 1 {ENDLESS}"));
    a.kill();
    drop(daemon.kill(Deadline::secs(TIMEOUT_S)).unwrap());
    b.kill();
    let place = scratch.path().to_owned();
    drop(scratch);
    let left = Leftovers::snapshot().unwrap().since(&before);
    assert!(left.memfds.iter().all(|memfd| !pids.contains(&memfd.pid)), "{left}");
    assert!(left.files.iter().all(|file| !file.starts_with(&place)), "{left}");
    assert!(left.sysv.is_empty() && left.abstract_sockets.iter().all(|name| !name.contains("isthmus")), "{left}");
}
