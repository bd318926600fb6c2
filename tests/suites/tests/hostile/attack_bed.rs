//! A daemon under attack: an honest pair that never stops, hostile programs, and what must be true afterwards.

use isthmus_client::{Options, QueryClient, Topic};
use isthmus_report::{MetricsText, StatusReport, Why};
use isthmus_suites::{TIMEOUT_S, TestProgram, daemon, test_program};
use isthmus_testbed::{DaemonProcess, Deadline, Limit, Proc, Scratch, View, binary, eventually};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;

/// A uid that no user has, for hostile programs of another owner.
pub(crate) const OTHER_UID: u32 = 61_401;

/// A uid that no user has, for a daemon without privileges.
const DAEMON_UID: u32 = 61_402;

/// Everybody may attach and talk.
pub(crate) const OPEN: &str = "policy.attach = \"any-user\"\npolicy.talk = \"all\"\n";

/// The messages that the honest pair sends each other in a round, both ways at once.
const ROUND: &str = "40x8,100,128,129,1000,5000,32768,40000,3x131072,20x24";

/// Bytes that a daemon may hold more than before an attack: an allocator gives back in its own time.
const GROWTH_MAX: u64 = 12 << 20;

/// A domain that has had a channel with another owner's keeps the ready map for that owner: memory, and what rings for it.
const READY_MAP_FDS: usize = 2;

/// Two domains that exchange messages until they are told to stop.
struct HonestPair {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: JoinHandle<[TestProgram; 2]>,
}

impl HonestPair {
    fn start(daemon: &DaemonProcess) -> Self {
        let mut pair = ["alice", "bob"].map(|name| {
            TestProgram::start_attached(daemon.launch_on_host(test_program::program()), name, "wait=sleep")
        });
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (told, count) = (Arc::clone(&stop), Arc::clone(&rounds));
        let thread = std::thread::spawn(move || {
            let [alice, bob] = &mut pair;
            while !told.load(SeqCst) {
                let seed = 1000 * count.load(SeqCst);
                alice.send_line(&format!("exchange 0 bob.e0 {seed} {ROUND} {seed} {ROUND} buffers=reused"));
                bob.send_line(&format!("exchange 0 alice.e0 {seed} {ROUND} {seed} {ROUND} buffers=reused"));
                let answers = [alice.answer(), bob.answer()];
                assert!(answers.iter().all(|answer| answer.starts_with("exchanged ")), "honest ones: {answers:?}");
                count.fetch_add(1, SeqCst);
            }
            pair
        });
        Self { stop, rounds, thread }
    }

    /// Waits until the pair has got through two more rounds.
    #[track_caller]
    fn wait_for_progress(&self) {
        let before = self.rounds.load(SeqCst);
        let there = || self.rounds.load(SeqCst) >= before + 2 || self.thread.is_finished();
        eventually(Deadline::secs(TIMEOUT_S), there).expect("the honest pair goes on");
        assert!(!self.thread.is_finished(), "the honest pair has failed");
    }

    fn stop(self) -> [TestProgram; 2] {
        self.stop.store(true, SeqCst);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// The whole of it.
pub(crate) struct AttackBed {
    // In this order they end.
    attackers: Vec<Proc>,
    honest_pair: HonestPair,
    pub(crate) daemon: DaemonProcess,
    fds: usize,
    rss_bytes: u64,
    _scratch: Scratch,
}

impl AttackBed {
    /// A daemon with this configuration, and the honest pair on its channel.
    pub(crate) fn new(toml: &str) -> Self {
        let scratch = Scratch::shared().expect("a scratch directory");
        let daemon = daemon(&scratch, toml);
        Self::around(scratch, daemon)
    }

    /// A daemon of a user without privileges, which may have this number of descriptors, where hostile programs can be another user.
    pub(crate) fn with_users_and_fds(fds: u64) -> Option<Self> {
        let root = rustix::process::geteuid().is_root();
        if !root {
            eprintln!("skipped: only root can start processes of other users");
            return None;
        }
        let scratch = Scratch::shared().expect("a scratch directory");
        let plan = test_program::plan(&scratch, OPEN).owner(DAEMON_UID).limit(Limit::OpenFiles(fds));
        let daemon = plan.start(Deadline::secs(TIMEOUT_S)).unwrap_or_else(|error| panic!("{error}"));
        Some(Self::around(scratch, daemon))
    }

    fn around(scratch: Scratch, daemon: DaemonProcess) -> Self {
        let honest_pair = HonestPair::start(&daemon);
        honest_pair.wait_for_progress();
        let view = daemon.view().expect("the daemon is there");
        let (fds, rss_bytes) =
            (view.fds().expect("its descriptors").len(), view.memory().expect("its memory").rss_bytes);
        Self { attackers: Vec::new(), honest_pair, daemon, fds, rss_bytes, _scratch: scratch }
    }

    /// Where a hostile program can be another user. Says so if not.
    pub(crate) fn with_users() -> Option<Self> {
        let root = rustix::process::geteuid().is_root();
        if !root {
            eprintln!("skipped: only root can start processes of other users");
        }
        root.then(|| Self::new(OPEN))
    }

    /// Runs a hostile program of the honest pair's owner. Returns the facts that it printed; the program stays.
    #[track_caller]
    pub(crate) fn run_attack(&mut self, args: &[&str]) -> Vec<String> {
        self.run_attack_as(None, args)
    }

    /// Runs a hostile program as [`run_attack`](Self::run_attack) does, but of another owner.
    #[track_caller]
    pub(crate) fn run_attack_as(&mut self, owner: Option<u32>, args: &[&str]) -> Vec<String> {
        let program = binary("isthmus-suites", "isthmus-hostile").unwrap_or_else(|error| panic!("{error}"));
        let mut launch = self.daemon.launch_on_host(program).args(args).with_stdin();
        if let Some(owner) = owner {
            launch = launch.owner(owner);
        }
        let mut hostile = launch.spawn().unwrap_or_else(|error| panic!("{error}"));
        let mut facts = Vec::new();
        loop {
            match hostile.line(Deadline::secs(TIMEOUT_S)).unwrap_or_else(|error| panic!("{args:?}: {error}")) {
                line if line == "done" => break,
                line => facts.push(line),
            }
        }
        eprintln!("{args:?}: {facts:#?}");
        self.attackers.push(hostile);
        self.check_daemon();
        facts
    }

    /// Waits until the honest pair has exchanged further messages.
    #[track_caller]
    pub(crate) fn wait_for_progress(&self) {
        self.honest_pair.wait_for_progress();
    }

    /// The daemon is there and answers, and the honest pair goes on.
    #[track_caller]
    pub(crate) fn check_daemon(&mut self) {
        assert_eq!(
            self.daemon.proc().try_wait().ok().flatten(),
            None,
            "the daemon has ended: {}",
            self.daemon.proc().stderr()
        );
        self.honest_pair.wait_for_progress();
        self.status();
        let mut newcomer = TestProgram::launch_on_host(&self.daemon, "newcomer");
        newcomer.expect("detach 1000", "detached 0");
    }

    /// The daemon's report on itself.
    #[track_caller]
    pub(crate) fn status(&self) -> StatusReport {
        serde_json::from_str(&self.ask(Topic::Status)).expect("a report of this schema")
    }

    /// Returns the number of times that the daemon met a reason on the control socket.
    #[track_caller]
    pub(crate) fn reason_count(&self, reason: &str) -> u64 {
        self.status().reasons.iter().filter(|row| row.reason == reason).map(|row| row.count).sum()
    }

    /// Returns the number of domains that the workers cut off because of the content of their rings.
    #[track_caller]
    pub(crate) fn ring_violations(&self) -> u64 {
        self.status().workers.iter().flat_map(|worker| &worker.faults).map(|row| row.count).sum()
    }

    /// Returns the number of the channel of the honest pair.
    #[track_caller]
    pub(crate) fn channel_of_honest_pair(&self) -> String {
        let report: Why = serde_json::from_str(&self.ask_about(Topic::Why, &["alice", "bob"])).expect("a report");
        report.channel.expect("the honest pair has a channel").id
    }

    fn ask(&self, topic: Topic) -> String {
        self.ask_about(topic, &[])
    }

    fn ask_about(&self, topic: Topic, arguments: &[&str]) -> String {
        let options = Options { socket: Some(self.daemon.socket()), ..Options::default() };
        let mut inquirer = QueryClient::connect(&options).unwrap_or_else(|error| panic!("{error}"));
        inquirer.query(topic, arguments).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Returns the daemon's state as shown by /proc.
    pub(crate) fn view(&self) -> View {
        self.daemon.view().expect("the daemon is there")
    }

    /// The hostile programs are killed. What the daemon needs from now on it keeps: the next attack is measured against that.
    #[track_caller]
    pub(crate) fn reset_baseline(&mut self) {
        self.kill_attackers();
        self.rss_bytes = self.view().memory().expect("its memory").rss_bytes;
    }

    /// The hostile programs are killed, and the daemon has closed what it had for them.
    #[track_caller]
    fn kill_attackers(&mut self) {
        for mut hostile in self.attackers.drain(..) {
            hostile.kill().expect("ours to kill");
            hostile.wait(Deadline::secs(TIMEOUT_S)).expect("it was killed");
        }
        self.check_daemon();
        let view = self.view();
        let fds = || view.fds().expect("its descriptors");
        let settled = eventually(Deadline::secs(TIMEOUT_S), || fds().len() <= self.fds + READY_MAP_FDS);
        settled.unwrap_or_else(|late| panic!("{late}: {} descriptors before, now {:#?}", self.fds, fds()));
    }

    /// The hostile programs are gone. The daemon is what it was before, and the honest pair has never had a wrong byte.
    #[track_caller]
    pub(crate) fn finish(mut self) {
        self.kill_attackers();
        let rss_bytes = self.view().memory().expect("its memory").rss_bytes;
        assert!(rss_bytes < self.rss_bytes + GROWTH_MAX, "the daemon had {} bytes, now {rss_bytes}", self.rss_bytes);
        let metrics: MetricsText = serde_json::from_str(&self.ask(Topic::Metrics)).expect("a report of this schema");
        assert!(metrics.text.contains("isthmus_control_reasons_total"), "{}", metrics.text);
        let [alice, bob] = self.honest_pair.stop();
        drop((alice, bob));
        let stopped = self.daemon.stop(Deadline::secs(TIMEOUT_S)).unwrap_or_else(|error| panic!("{error}"));
        assert!(stopped.exit.success(), "{:?}: {}", stopped.exit, stopped.stderr);
        assert!(!stopped.stderr.contains("panicked"), "{}", stopped.stderr);
    }
}
