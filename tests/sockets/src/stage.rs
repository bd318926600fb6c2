//! The kernel alone, or a daemon and the library.

use std::io;
use std::path::PathBuf;

use isthmus_testbed::{DaemonProcess, Deadline, Finished, Launch, Scratch, binary, eventually};
use serde_json::Value;

use crate::{build, timeout};

const CONFIG: &str = "[daemon]\nsocket = \"{socket}\"\nruntime_dir = \"{state}\"\n";

/// The way by which programs of a test communicate.
#[derive(Debug)]
pub enum Stage {
    /// The kernel's TCP.
    Kernel,
    /// The library, with a daemon. (The folder goes after the daemon.)
    Library(Box<DaemonProcess>, Scratch),
}

impl Stage {
    /// Starts a daemon for programs with the library. Returns none, with the reason on standard error, while there is no library.
    pub fn library() -> Option<Self> {
        Self::library_with("")
    }

    /// As [`Self::library`], with additional configuration of the daemon.
    pub fn library_with(config: &str) -> Option<Self> {
        Self::with_daemon(Scratch::new, config)
    }

    /// As [`Self::library`], for programs in two containers. Returns none, with the reason, if the daemon may not have connections recorded.
    pub fn library_across() -> Option<Self> {
        let stage = Self::library()?;
        match stage.streams()["unrecorded"].as_str() {
            None => Some(stage),
            Some(why) => {
                assert!(why.contains("not permitted") || why.contains("no cgroup2"), "{why}");
                eprintln!("skipped: {why}");
                None
            }
        }
    }

    /// As [`Self::library`], for programs of all users.
    pub fn library_for_all_users() -> Option<Self> {
        Self::with_daemon(Scratch::shared, "[policy]\nattach = \"any-user\"\n")
    }

    /// As [`Self::library`], for programs of all users, which may have streams with one another.
    pub fn library_between_users() -> Option<Self> {
        Self::with_daemon(Scratch::shared, "[policy]\nattach = \"any-user\"\nrules = [{ allow = true }]\n")
    }

    fn with_daemon(scratch: fn() -> io::Result<Scratch>, config: &str) -> Option<Self> {
        if let Err(why) = build::library() {
            eprintln!("skipped: {why}");
            return None;
        }
        let scratch = scratch().unwrap_or_else(|error| panic!("{error}"));
        binary("isthmusd", "isthmusd").unwrap_or_else(|error| panic!("{error}")); // Built before the time of its start runs.
        let daemon = DaemonProcess::on(&scratch).config(&format!("{CONFIG}{config}")).start(timeout());
        Some(Self::Library(Box::new(daemon.unwrap_or_else(|error| panic!("{error}"))), scratch))
    }

    /// Launches a program on this host.
    pub fn launch(&self, program: impl Into<PathBuf>) -> Launch {
        match self {
            Self::Kernel => Launch::new(program),
            Self::Library(daemon, _) => {
                let library = build::library().expect("a stage has been made with it").join(build::LIBRARY);
                daemon.launch_on_host(program).env("LD_PRELOAD", library)
            }
        }
    }

    /// Returns whether programs use the library.
    pub fn has_library(&self) -> bool {
        matches!(self, Self::Library(..))
    }

    /// Returns the daemon's process, if there is one.
    pub fn daemon(&mut self) -> Option<&mut DaemonProcess> {
        match self {
            Self::Kernel => None,
            Self::Library(daemon, _) => Some(daemon),
        }
    }

    /// Waits until both directions of the connection with a server at this port go through shared memory. On the kernel alone,
    /// returns at once.
    pub fn wait_for_stream(&self, port: &str) {
        self.wait_for_senders(port, &["connector", "acceptor"]);
    }

    /// Waits until bytes that a server at this port sends on a connection have gone through shared memory. While the client does not read,
    /// the next ones go by TCP. On the kernel alone, returns at once.
    pub fn wait_for_download(&self, port: &str) {
        self.wait_for_ends(port, &["acceptor"], |end| end["shared_bytes"].as_u64().is_some_and(|bytes| bytes > 0));
    }

    /// Waits until these ends of a connection with a server at this port send through shared memory.
    fn wait_for_senders(&self, port: &str, senders: &[&str]) {
        self.wait_for_ends(port, senders, |end| end["path"] == "small" || end["path"] == "large");
    }

    fn wait_for_ends(&self, port: &str, ends: &[&str], is_shared: impl Fn(&Value) -> bool) {
        if !self.has_library() {
            return;
        }
        let port = format!(":{port}");
        let fits = |stream: &Value| {
            stream["acceptor"]["address"].as_str().is_some_and(|address| address.ends_with(&port))
                && ends.iter().all(|end| stream[end]["state"] == "attached" && is_shared(&stream[end]))
        };
        let awaited = format!("stream with shared memory from {}", ends.join(" and "));
        self.wait_for_streams(&awaited, |streams| streams.iter().any(fits));
    }

    /// Asserts that the daemon has made a stream of some connection. On the kernel alone, there is nothing to assert.
    pub fn expect_paired(&self) {
        let report = self.streams();
        assert!(!self.has_library() || report["paired"].as_u64().is_some_and(|count| count > 0), "{report:#}");
    }

    /// Waits until the streams of the daemon are as a test wants them.
    pub fn wait_for_streams(&self, awaited: &str, mut fit: impl FnMut(&[Value]) -> bool) {
        let found = eventually(Deadline::secs(6), || self.streams()["streams"].as_array().is_some_and(|all| fit(all)));
        assert!(found.is_ok(), "no {awaited}: {:#}", self.streams());
    }

    /// Returns the report of `isthmus stream list`; null on the kernel alone.
    pub fn streams(&self) -> Value {
        if !self.has_library() {
            return Value::Null;
        }
        let text = self.isthmus(&["stream", "list", "--json"]).expect_success().join("\n");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    /// Runs `isthmus` to its end. On the kernel alone, no daemon answers it.
    pub fn isthmus(&self, words: &[&str]) -> Finished {
        let isthmus = binary("isthmus", "isthmus").unwrap_or_else(|error| panic!("{error}"));
        let launch = match self {
            Self::Kernel => Launch::new(isthmus).env("ISTHMUS_SOCKET", "/nowhere/isthmus.sock"),
            Self::Library(daemon, _) => daemon.launch_on_host(isthmus),
        };
        let proc = launch.args(words).spawn().unwrap_or_else(|error| panic!("{error}"));
        proc.finish(timeout()).unwrap_or_else(|error| panic!("{error}"))
    }
}
