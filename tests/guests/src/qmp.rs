//! QEMU's monitor. Each command and each reply is a line of JSON.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use isthmus_testbed::eventually_some;
use serde_json::{Value, json};

use crate::shell::timeout;

/// The timeout of each read.
const LIMIT: Duration = Duration::from_secs(1000);

/// A connection to the monitor. Methods panic on failure, which fails the test.
#[derive(Debug)]
pub struct Monitor {
    from: BufReader<UnixStream>,
    to: UnixStream,
    /// The events that arrived before a test waited for them.
    events: Vec<Value>,
}

impl Monitor {
    pub(crate) fn connect(path: &Path) -> Self {
        let to = connect(path);
        let from = BufReader::new(to.try_clone().expect("a descriptor"));
        let mut monitor = Self { from, to, events: Vec::new() };
        monitor.line(); // Its greeting.
        monitor.command("qmp_capabilities", &json!({}));
        monitor
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        let bytes = self.from.read_line(&mut line).unwrap_or_else(|error| panic!("the monitor: {error}"));
        assert_ne!(bytes, 0, "the monitor is gone");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("the monitor: {error}: {line}"))
    }

    /// Runs a command and returns its result.
    #[track_caller]
    pub fn command(&mut self, name: &str, arguments: &Value) -> Value {
        let command = json!({ "execute": name, "arguments": arguments });
        self.to.write_all(format!("{command}\n").as_bytes()).expect("the monitor listens");
        loop {
            let mut said = self.line();
            assert!(said["error"].is_null(), "{name}: {said}");
            match said.get_mut("return") {
                Some(answer) => return answer.take(),
                None => self.events.push(said),
            }
        }
    }

    /// Waits for an event of a device.
    pub fn wait(&mut self, event: &str, device: &str) {
        let is_it = |said: &Value| said["event"] == event && said["data"]["device"] == device;
        while !self.events.iter().any(is_it) {
            let said = self.line();
            self.events.push(said);
        }
    }
}

/// Connects to a socket that QEMU creates when it starts.
pub(crate) fn connect(path: &Path) -> UnixStream {
    let found = eventually_some(timeout(), || UnixStream::connect(path).ok());
    let socket = found.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    socket.set_read_timeout(Some(LIMIT)).expect("a duration that is not zero");
    socket
}
