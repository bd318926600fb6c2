//! The standard output of a child, line by line, without a thread and without losing lines that were not awaited.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, read};

use crate::deadline::{Deadline, TimedOut};

/// The number of lines already handed out that are kept for error texts.
const SEEN_MAX: usize = 20;
/// Asked for as the pipe's size, so that a chatty child seldom waits for us; a refusal costs nothing but that.
const PIPE_BYTES: usize = 1 << 20;

/// Reads lines from a pipe.
#[derive(Debug)]
pub(crate) struct Lines {
    pipe: OwnedFd,
    partial_line: Vec<u8>,
    complete: VecDeque<String>,
    recent: VecDeque<String>,
    ended: bool,
}

impl Lines {
    pub(crate) fn new(pipe: OwnedFd) -> std::io::Result<Self> {
        let flags = fcntl_getfl(&pipe)?;
        fcntl_setfl(&pipe, flags | OFlags::NONBLOCK)?;
        let _bigger_or_not = rustix::pipe::fcntl_setpipe_size(&pipe, PIPE_BYTES);
        Ok(Self { pipe, partial_line: Vec::new(), complete: VecDeque::new(), recent: VecDeque::new(), ended: false })
    }

    /// The next line, or none when the output has ended: closed, or drained after the child's death, which `pidfd`
    /// tells; a grandchild that keeps the pipe open does not delay us.
    pub(crate) fn next(&mut self, pidfd: BorrowedFd<'_>, deadline: Deadline) -> Result<Option<String>, TimedOut> {
        loop {
            if let Some(line) = self.complete.pop_front() {
                self.remember(&line);
                return Ok(Some(line));
            }
            if self.ended {
                return Ok(None);
            }
            let [_, dead] = deadline.readable([self.pipe.as_fd(), pidfd])?;
            self.drain(dead);
        }
    }

    /// The last lines handed out, for error texts.
    pub(crate) fn seen(&self) -> String {
        self.recent.iter().map(|line| format!("\n  | {line}")).collect()
    }

    /// Reads what is there. `dead` was learnt before: whatever the child wrote is in the pipe by now.
    fn drain(&mut self, dead: bool) {
        let mut buffer = [0; 16384];
        loop {
            match read(&self.pipe, &mut buffer) {
                Ok(0) => break self.end(),
                Ok(bytes) => self.take(&buffer[..bytes]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if dead => break self.end(),
                Err(Errno::AGAIN) => break,
                Err(error) => panic!("read of a child's output: {error}"),
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            match byte {
                b'\n' => self.complete(),
                byte => self.partial_line.push(byte),
            }
        }
    }

    fn end(&mut self) {
        if !self.partial_line.is_empty() {
            self.complete();
        }
        self.ended = true;
    }

    fn complete(&mut self) {
        let line = String::from_utf8_lossy(&self.partial_line).into_owned();
        self.partial_line.clear();
        self.complete.push_back(line);
    }

    fn remember(&mut self, line: &str) {
        if self.recent.len() == SEEN_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(line.to_owned());
    }
}
