//! A daemon under siege: an honest pair that never stops, hostile programs, and what must be true afterwards.

use isthmus_client::{Inquirer, Options, Topic};
use isthmus_control::schema::{MetricsText, Status};
use isthmus_suites::{Actor, PATIENCE, actor, daemon};
use isthmus_testbed::{Daemon, Deadline, Proc, Scratch, View, binary, eventually};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;

/// A uid that is nobody's, for hostile programs of another owner.
pub(crate) const STRANGER: u32 = 61_401;

/// Everybody may attach and talk.
pub(crate) const OPEN: &str = "policy.attach = \"any-user\"\npolicy.talk = \"all\"\n";

/// What the honest pair sends each other in a round, both ways at once.
const ROUND: &str = "40x8,100,128,129,1000,5000,32768,40000,3x131072,20x24";

/// Bytes that a daemon may hold more than before a deed: an allocator gives back in its own time.
const GROWTH_MAX: u64 = 12 << 20;

/// A domain that has had a channel with another owner's keeps the board for that owner: memory, and what rings for it.
const BOARD_FDS: usize = 2;

/// Two domains that exchange messages until they are told to stop.
struct Honest {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: JoinHandle<[Actor; 2]>,
}

impl Honest {
    fn start(daemon: &Daemon) -> Self {
        let mut pair =
            ["alice", "bob"].map(|name| Actor::attached(daemon.beside(actor::program()), name, "wait=sleep"));
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (told, count) = (Arc::clone(&stop), Arc::clone(&rounds));
        let thread = std::thread::spawn(move || {
            let [alice, bob] = &mut pair;
            while !told.load(SeqCst) {
                let seed = 1000 * count.load(SeqCst);
                alice.say(&format!("exchange 0 bob.e0 {seed} {ROUND} {seed} {ROUND} buffers=reused"));
                bob.say(&format!("exchange 0 alice.e0 {seed} {ROUND} {seed} {ROUND} buffers=reused"));
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
    fn go_on(&self) {
        let before = self.rounds.load(SeqCst);
        let there = || self.rounds.load(SeqCst) >= before + 2 || self.thread.is_finished();
        eventually(Deadline::secs(PATIENCE), there).expect("the honest pair goes on");
        assert!(!self.thread.is_finished(), "the honest pair has failed");
    }

    fn stop(self) -> [Actor; 2] {
        self.stop.store(true, SeqCst);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// The whole of it.
pub(crate) struct Siege {
    // In this order they end.
    hostile: Vec<Proc>,
    honest: Honest,
    pub(crate) daemon: Daemon,
    fds: usize,
    rss_bytes: u64,
    _scratch: Scratch,
}

impl Siege {
    /// A daemon with this configuration, and the honest pair on its channel.
    pub(crate) fn new(toml: &str) -> Self {
        let scratch = Scratch::shared().expect("a scratch directory");
        let daemon = daemon(&scratch, toml);
        let honest = Honest::start(&daemon);
        honest.go_on();
        let view = daemon.view().expect("the daemon is there");
        let (fds, rss_bytes) =
            (view.fds().expect("its descriptors").len(), view.memory().expect("its memory").rss_bytes);
        Self { hostile: Vec::new(), honest, daemon, fds, rss_bytes, _scratch: scratch }
    }

    /// Where a hostile program can be another user. Says so if not.
    pub(crate) fn of_users() -> Option<Self> {
        let root = rustix::process::geteuid().is_root();
        if !root {
            eprintln!("skipped: only root can start processes of other users");
        }
        root.then(|| Self::new(OPEN))
    }

    /// Has a hostile program do something, of the honest pair's owner. Its facts; it stays.
    #[track_caller]
    pub(crate) fn suffers(&mut self, args: &[&str]) -> Vec<String> {
        self.suffers_from(None, args)
    }

    /// The same, of another owner.
    #[track_caller]
    pub(crate) fn suffers_from(&mut self, owner: Option<u32>, args: &[&str]) -> Vec<String> {
        let program = binary("isthmus-suites", "isthmus-hostile").unwrap_or_else(|error| panic!("{error}"));
        let mut launch = self.daemon.beside(program).args(args).talking();
        if let Some(owner) = owner {
            launch = launch.owner(owner);
        }
        let mut hostile = launch.spawn().unwrap_or_else(|error| panic!("{error}"));
        let mut facts = Vec::new();
        loop {
            match hostile.line(Deadline::secs(PATIENCE)).unwrap_or_else(|error| panic!("{args:?}: {error}")) {
                line if line == "done" => break,
                line => facts.push(line),
            }
        }
        eprintln!("{args:?}: {facts:#?}");
        self.hostile.push(hostile);
        self.holds();
        facts
    }

    /// The daemon is there and answers, and the honest pair goes on.
    #[track_caller]
    pub(crate) fn holds(&mut self) {
        assert_eq!(
            self.daemon.proc().try_wait().ok().flatten(),
            None,
            "the daemon has ended: {}",
            self.daemon.proc().stderr()
        );
        self.honest.go_on();
        self.status();
        let mut newcomer = Actor::beside(&self.daemon, "newcomer");
        newcomer.expect("detach 1000", "detached 0");
    }

    /// The daemon's report on itself.
    #[track_caller]
    pub(crate) fn status(&self) -> Status {
        serde_json::from_str(&self.ask(Topic::Status)).expect("a report of this schema")
    }

    /// How often the daemon met a reason on the control socket.
    #[track_caller]
    pub(crate) fn met(&self, reason: &str) -> u64 {
        self.status().reasons.iter().filter(|row| row.reason == reason).map(|row| row.count).sum()
    }

    /// How many domains the workers cut off because of what stood in their rings.
    #[track_caller]
    pub(crate) fn ring_faults(&self) -> u64 {
        self.status().workers.iter().flat_map(|worker| &worker.faults).map(|row| row.count).sum()
    }

    fn ask(&self, topic: Topic) -> String {
        let options = Options { socket: Some(self.daemon.socket()), ..Options::default() };
        let mut inquirer = Inquirer::connect(&options).unwrap_or_else(|error| panic!("{error}"));
        inquirer.ask(topic, &[]).unwrap_or_else(|error| panic!("{error}"))
    }

    /// What /proc says of the daemon.
    pub(crate) fn view(&self) -> View {
        self.daemon.view().expect("the daemon is there")
    }

    /// The hostile programs are killed. What the daemon needs from now on it keeps: the next deed is measured against that.
    #[track_caller]
    pub(crate) fn begins_anew(&mut self) {
        self.drives_out();
        self.rss_bytes = self.view().memory().expect("its memory").rss_bytes;
    }

    /// The hostile programs are killed, and the daemon has closed what it had for them.
    #[track_caller]
    fn drives_out(&mut self) {
        for mut hostile in self.hostile.drain(..) {
            hostile.kill().expect("ours to kill");
            hostile.wait(Deadline::secs(PATIENCE)).expect("it was killed");
        }
        self.holds();
        let view = self.view();
        let fds = || view.fds().expect("its descriptors");
        let settled = eventually(Deadline::secs(PATIENCE), || fds().len() <= self.fds + BOARD_FDS);
        settled.unwrap_or_else(|late| panic!("{late}: {} descriptors before, now {:#?}", self.fds, fds()));
    }

    /// The hostile programs are gone. The daemon is what it was before, and the honest pair has never had a wrong byte.
    #[track_caller]
    pub(crate) fn ends(mut self) {
        self.drives_out();
        let rss_bytes = self.view().memory().expect("its memory").rss_bytes;
        assert!(rss_bytes < self.rss_bytes + GROWTH_MAX, "the daemon had {} bytes, now {rss_bytes}", self.rss_bytes);
        let metrics: MetricsText = serde_json::from_str(&self.ask(Topic::Metrics)).expect("a report of this schema");
        assert!(metrics.text.contains("isthmus_control_reasons_total"), "{}", metrics.text);
        let [alice, bob] = self.honest.stop();
        drop((alice, bob));
        let stopped = self.daemon.stop(Deadline::secs(PATIENCE)).unwrap_or_else(|error| panic!("{error}"));
        assert!(stopped.exit.success(), "{:?}: {}", stopped.exit, stopped.stderr);
        assert!(!stopped.stderr.contains("panicked"), "{}", stopped.stderr);
    }
}
