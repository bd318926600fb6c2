//! A host with its daemon.

use isthmus_mx_tests::build;
use isthmus_netns::Host;
use isthmus_testbed::{DaemonProcess, Deadline, Launch, Proc, Scratch, View, binary, eventually_some};
use serde_json::Value;
use std::path::PathBuf;

/// The configuration of every daemon of these tests.
const CONFIG: &str = "[daemon]\nsocket = \"{socket}\"\nruntime_dir = \"{state}\"\n";

/// The longest time that something may take that must happen; it never judges speed.
pub fn timeout() -> Deadline {
    Deadline::secs(120)
}

/// A host with its daemon. Methods panic where the daemon fails: that fails the test.
#[derive(Debug)]
pub struct TestHost {
    /// The daemon.
    pub daemon: DaemonProcess,
    host: Host,
    _scratch: Scratch,
}

impl TestHost {
    /// A daemon on `host` with these boards (`[[mx.board]]`, as in its configuration).
    pub fn start(host: &Host, boards: &str) -> Self {
        Self::try_start(host, boards).unwrap_or_else(|error| panic!("host {}: {error}", host.name()))
    }

    /// Starts a daemon as [`start`](Self::start) does; the error is the output of a daemon that did not start.
    pub fn try_start(host: &Host, boards: &str) -> Result<Self, String> {
        let scratch = Scratch::new().map_err(|error| error.to_string())?;
        program("isthmusd"); // Built before its time runs.
        let plan = DaemonProcess::on(&scratch).config(&format!("{CONFIG}{boards}")).host(host);
        let daemon = plan.start(timeout()).map_err(|error| error.to_string())?;
        Ok(Self { daemon, host: host.clone(), _scratch: scratch })
    }

    /// Returns the host that the daemon runs on.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// A program beside the daemon, with none of the variables for MX that the caller of the tests may have set.
    pub fn launch(&self, program: impl Into<PathBuf>) -> Launch {
        let is_ours = |name: &str| name.starts_with("MX_") || name.starts_with("OMX_");
        let set = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).filter(|name| is_ours(name));
        set.fold(self.daemon.launch_on_host(program), Launch::env_remove)
    }

    /// An example of `examples/mx` with arguments and variables.
    pub fn example(&self, name: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Proc {
        let launch = self.launch(build::example(name)).args(arguments);
        let launch = variables.iter().fold(launch, |launch, (variable, value)| launch.env(variable, value));
        launch.spawn().unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Returns the report of `isthmus NOUN list --json`.
    pub fn list(&self, noun: &str) -> Value {
        let launch = self.launch(program("isthmus")).args([noun, "list", "--json"]);
        let finished = launch.spawn().map(|proc| proc.finish(timeout()));
        let finished = finished.unwrap_or_else(|error| panic!("{error}")).unwrap_or_else(|error| panic!("{error}"));
        let text = finished.expect_success().join("\n");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("isthmus {noun} list: {error}\n{text}"))
    }

    /// Returns the report of board `number`.
    pub fn board(&self, number: usize) -> Value {
        self.list("board")["boards"][number].clone()
    }

    /// The peer of that name, as listed, if it is known.
    pub fn peer(&self, name: &str) -> Option<Value> {
        let peers = self.list("peer")["peers"].as_array().cloned().unwrap_or_default();
        peers.into_iter().find(|peer| peer["name"] == name)
    }

    /// Waits until a peer of that name is known and can be sent to.
    pub fn wait_for_peer(&self, name: &str) {
        self.wait_until(&format!("the peer {name}"), |side| {
            side.peer(name).is_some_and(|peer| peer["link"].is_string())
        });
    }

    /// Waits until something is to be seen of the daemon.
    #[track_caller]
    pub fn wait_until(&self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let late = eventually_some(timeout(), || is_so(self).then_some(()));
        assert!(late.is_ok(), "{what} on host {}: {}\n{:#}", self.host.name(), self.stderr(), self.list("peer"));
    }

    /// Frames that the links of all boards have sent and received.
    pub fn frames(&self) -> u64 {
        let boards = self.list("board")["boards"].as_array().cloned().unwrap_or_default();
        let links = boards.iter().filter_map(|board| board["links"].as_array()).flatten();
        links.flat_map(|link| ["sent_frames", "received_frames"].map(|count| link[count].as_u64())).flatten().sum()
    }

    /// Frames that board 0 dropped, for one reason.
    pub fn dropped(&self, reason: &str) -> u64 {
        let board = self.board(0);
        let all = board["dropped"].as_array().cloned().unwrap_or_default();
        let found = all.iter().find(|dropped| dropped["reason"] == reason);
        found.and_then(|dropped| dropped["count"].as_u64()).unwrap_or(0)
    }

    /// Returns the daemon's state as shown by /proc.
    pub fn view(&self) -> View {
        self.daemon.view().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Resident bytes of the daemon.
    pub fn rss_bytes(&self) -> u64 {
        self.view().memory().unwrap_or_else(|error| panic!("{error}")).rss_bytes
    }

    /// All that the daemon wrote to its standard error.
    pub fn stderr(&self) -> String {
        let path = format!("/proc/{}/fd/2", self.view().pid());
        std::fs::read_to_string(path).unwrap_or_default()
    }

    /// SIGKILL, and its next life.
    pub fn kill_and_restart(&mut self) {
        self.daemon.kill_and_restart(timeout()).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// A program of ours.
pub(crate) fn program(name: &str) -> PathBuf {
    binary(name, name).unwrap_or_else(|error| panic!("{error}"))
}
