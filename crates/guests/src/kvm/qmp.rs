//! A client of QEMU's monitor (QMP): commands and their responses, one line of JSON each, over a Unix socket.
//!
//! ```text
//!   connect ──► greeting ──► qmp_capabilities ──► command, answer ──► … ──► closed
//! ```
//!
//! A connection is used for a few commands and then closed. The client does not trust the monitor: the length of lines is limited, events are
//! skipped, and a response must carry the number of its command. The caller enforces time limits.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use isthmus_platform::seqpacket::{self, SendError};
use serde_json::{Value, json};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// The maximum length of a line in bytes. The list of all PCI devices of a large machine has about 100 KiB.
const LINE_BYTES_MAX: usize = 1 << 20;

/// The maximum number of lines that are read while waiting for a response.
const EVENTS_MAX: usize = 1024;

/// The reason why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MonitorError {
    /// The socket does not accept connections, or does not permit them.
    #[error("connecting: {0}")]
    Connect(#[source] io::Error),
    /// The connection broke.
    #[error("{0}")]
    Broken(#[source] io::Error),
    /// The monitor has closed the connection.
    #[error("the monitor has closed the connection")]
    Closed,
    /// The response is not valid QMP.
    #[error("the reply is no valid QMP: {0}")]
    Malformed(String),
    /// The monitor has refused the command.
    #[error("{command}: {text}")]
    Refused {
        /// The command.
        command: &'static str,
        /// The monitor's description of the error.
        text: String,
    },
}

/// A connection to a monitor.
#[derive(Debug)]
pub(crate) struct Monitor {
    socket: UnixStream,
    /// Received bytes that were not yet consumed as a line.
    received: Vec<u8>,
    serial: u64,
}

impl Monitor {
    /// Connects, and waits until the monitor accepts commands. If another client is connected, this takes until it disconnects.
    pub(crate) async fn connect(path: &Path) -> Result<Self, MonitorError> {
        let socket = UnixStream::connect(path).await.map_err(MonitorError::Connect)?;
        let mut monitor = Self { socket, received: Vec::new(), serial: 0 };
        let greeting = monitor.read_line().await?;
        if greeting.get("QMP").is_none() {
            return Err(MonitorError::Malformed(clipped(&greeting.to_string())));
        }
        monitor.command("qmp_capabilities", json!({})).await?;
        Ok(monitor)
    }

    /// Sends a command, and returns the result.
    pub(crate) async fn command(&mut self, name: &'static str, arguments: Value) -> Result<Value, MonitorError> {
        self.command_with(name, arguments, &[]).await
    }

    /// Sends a descriptor to the monitor under a name, which is valid until a command uses it or this connection ends.
    pub(crate) async fn add_fd(&mut self, name: &str, descriptor: BorrowedFd<'_>) -> Result<(), MonitorError> {
        self.command_with("getfd", json!({ "fdname": name }), &[descriptor]).await.map(drop)
    }

    async fn command_with(
        &mut self,
        command: &'static str,
        arguments: Value,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Value, MonitorError> {
        self.serial += 1;
        let line = json!({ "execute": command, "arguments": arguments, "id": self.serial });
        self.send(format!("{line}\n").as_bytes(), descriptors).await?;
        for _ in 0..EVENTS_MAX {
            let mut response = self.read_line().await?;
            if response.get("event").is_some() || response.get("id") != Some(&json!(self.serial)) {
                continue;
            }
            if let Some(error) = response.get("error") {
                let text = error.get("desc").and_then(Value::as_str).unwrap_or("the monitor does not say why");
                return Err(MonitorError::Refused { command, text: clipped(text) });
            }
            return match response.get_mut("return") {
                Some(return_value) => Ok(return_value.take()),
                None => Err(MonitorError::Malformed(clipped(&response.to_string()))),
            };
        }
        Err(MonitorError::Malformed(format!("no answer to {command} among {EVENTS_MAX} lines")))
    }

    async fn send(&mut self, line: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), MonitorError> {
        let refused = |error| match error {
            SendError::Full => io::ErrorKind::WouldBlock.into(),
            SendError::Closed => io::ErrorKind::BrokenPipe.into(),
            other => io::Error::other(other.to_string()),
        };
        loop {
            self.socket.writable().await.map_err(MonitorError::Broken)?;
            // The line is short and all previous ones were answered, so the socket buffer has room for the whole line.
            let sent = self.socket.try_io(Interest::WRITABLE, || {
                seqpacket::send(self.socket.as_fd(), line, descriptors).map_err(refused)
            });
            match sent {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(MonitorError::Broken(error)),
            }
        }
    }

    async fn read_line(&mut self) -> Result<Value, MonitorError> {
        loop {
            if let Some(end) = self.received.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                let malformed = |_| MonitorError::Malformed(clipped(&String::from_utf8_lossy(&line)));
                return serde_json::from_slice(&line).map_err(malformed);
            }
            if self.received.len() > LINE_BYTES_MAX {
                return Err(MonitorError::Malformed(format!("a line of more than {LINE_BYTES_MAX} bytes")));
            }
            self.socket.readable().await.map_err(MonitorError::Broken)?;
            match self.socket.try_read_buf(&mut self.received) {
                Ok(0) => return Err(MonitorError::Closed),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(MonitorError::Broken(error)),
            }
        }
    }
}

/// Shortens a text for a log line and removes control characters.
fn clipped(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::os::unix::net::UnixListener;

    use super::*;

    const GREETING: &str = "{\"QMP\": {\"version\": {}, \"capabilities\": []}}\n";

    /// Connects to a monitor that sends `greeting` and then one of `answers` for each line, and runs one command.
    fn run_command(greeting: &str, answers: &[&str]) -> Result<Value, MonitorError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("qmp");
        let listener = UnixListener::bind(&path).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut to, _) = listener.accept().unwrap();
                let from = BufReader::new(to.try_clone().unwrap());
                let _ = to.write_all(greeting.as_bytes());
                for (answer, _) in answers.iter().zip(from.lines()) {
                    let _ = to.write_all(answer.as_bytes());
                }
            });
            runtime.block_on(async { Monitor::connect(&path).await?.command("query-status", json!({})).await })
        })
    }

    #[test]
    fn skips_events_and_responses_to_other_commands() {
        let answer =
            "{\"event\": \"STOP\", \"data\": {}}\n{\"return\": 1, \"id\": 77}\n{\"return\": {\"a\": 2}, \"id\": 2}\n";
        assert_eq!(run_command(GREETING, &["{\"return\": {}, \"id\": 1}\n", answer]).unwrap(), json!({ "a": 2 }));
    }

    #[test]
    fn reports_the_error_text_of_the_monitor() {
        let answer = "{\"error\": {\"class\": \"GenericError\", \"desc\": \"Bus 'pcie.0' does not support hotplugging\"}, \"id\": 2}\n";
        let refused = run_command(GREETING, &["{\"return\": {}, \"id\": 1}\n", answer]).unwrap_err();
        assert_eq!(refused.to_string(), "query-status: Bus 'pcie.0' does not support hotplugging");
    }

    #[test]
    fn rejects_malformed_responses() {
        let first = "{\"return\": {}, \"id\": 1}\n";
        for (greeting, answers) in [
            ("", &[][..]),
            ("SSH-2.0-OpenSSH_9.2\r\n", &[]),
            ("{\"hello\": 1}\n", &[]),
            (GREETING, &["\n"]),
            (GREETING, &[first, "{\"id\": 2}\n"]),
            (GREETING, &[first, "{\"return\": "]),
            (GREETING, &[first, "[]\n[]\n"]),
        ] {
            let error = run_command(greeting, answers).unwrap_err();
            assert!(
                matches!(error, MonitorError::Closed | MonitorError::Malformed(_) | MonitorError::Broken(_)),
                "{error}"
            );
        }
    }

    #[test]
    fn gives_up_on_endless_lines_and_events() {
        let first = "{\"return\": {}, \"id\": 1}\n";
        let long = "x".repeat(2 * LINE_BYTES_MAX);
        assert!(matches!(run_command(GREETING, &[first, &long]).unwrap_err(), MonitorError::Malformed(_)));
        let events = "{\"event\": \"STOP\"}\n".repeat(EVENTS_MAX);
        assert!(matches!(run_command(GREETING, &[first, &events]).unwrap_err(), MonitorError::Malformed(_)));
    }
}
