//! The log on standard error. It never makes the daemon wait, and never ends it.
//!
//! ```text
//!   any thread ── line ──► queue, 1 MiB ──► the log's thread ──► standard error
//!                            └── full: the line is lost, and counted
//! ```
//!
//! Standard error may be a full disk, a pipe that is not read, or a pipe without a reader. Only the log's thread waits for it. Lines that
//! find no room and lines that cannot be written are lost. The next line that is written says how many.
//!
//! A panic of any thread is logged and ends the process, because a daemon without one of its threads would look alive and not serve.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::panic::PanicHookInfo;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

/// The number of bytes that may wait for standard error.
const QUEUE_BYTES_MAX: usize = 1 << 20;

/// The time that the end of the process waits for standard error.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The log of this process.
static LOG: Log = Log::new();

/// Starts the log's thread, and has a panic of any thread end the process.
pub(crate) fn start() -> io::Result<()> {
    std::thread::Builder::new().name("log".into()).spawn(|| {
        let none = CapabilitySet::empty();
        // Standard error is open already. The daemon keeps capabilities on its own threads only, and only while it needs them.
        let _ = set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none });
        LOG.write_to(&mut io::stderr());
    })?;
    std::panic::set_hook(Box::new(abort));
    Ok(())
}

/// Logs a panic and ends the process. A service manager restarts the daemon, and its domains resume.
fn abort(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    print(format_args!("isthmusd: thread {}: {panic}", thread.name().unwrap_or("without a name")));
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        print(format_args!("{backtrace}"));
    }
    flush();
    std::process::abort();
}

/// Queues a line that is no event of the log.
pub(crate) fn print(line: std::fmt::Arguments<'_>) {
    LOG.push(format!("{line}\n").into());
}

/// Waits until everything queued was written, for at most [`FLUSH_TIMEOUT`].
pub(crate) fn flush() {
    LOG.flush(FLUSH_TIMEOUT);
}

/// Returns a writer that queues each write as one line.
pub(crate) fn writer() -> impl Write {
    &LOG
}

/// A bounded queue of lines.
#[derive(Debug)]
struct Log {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug)]
struct Queue {
    lines: VecDeque<Line>,
    bytes: usize,
    /// The number of lost lines that no line has reported yet.
    lost: u64,
    is_writing: bool,
}

#[derive(Debug)]
struct Line {
    text: Vec<u8>,
    /// The number of lines that are lost if this one is: itself, and those that it reports.
    count: u64,
}

impl Log {
    const fn new() -> Self {
        let queue = Queue { lines: VecDeque::new(), bytes: 0, lost: 0, is_writing: false };
        Self { queue: Mutex::new(queue), changed: Condvar::new() }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a line, or counts it as lost.
    fn push(&self, mut text: Vec<u8>) {
        let mut queue = self.queue();
        if queue.bytes + text.len() > QUEUE_BYTES_MAX {
            queue.lost += 1;
            return;
        }
        let lost = std::mem::take(&mut queue.lost);
        if lost > 0 {
            let report = format!("isthmusd: {lost} log lines were lost, because standard error had no room for them\n");
            text.splice(..0, report.into_bytes());
        }
        queue.bytes += text.len();
        queue.lines.push_back(Line { text, count: lost + 1 });
        self.changed.notify_all();
    }

    /// Writes lines without end.
    fn write_to(&self, out: &mut impl Write) -> ! {
        loop {
            let line = self.next();
            let written = out.write_all(&line.text);
            let mut queue = self.queue();
            queue.is_writing = false;
            if written.is_err() {
                queue.lost += line.count;
            }
            self.changed.notify_all();
        }
    }

    fn next(&self) -> Line {
        let mut queue = self.queue();
        loop {
            if let Some(line) = queue.lines.pop_front() {
                queue.bytes -= line.text.len();
                queue.is_writing = true;
                return line;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn flush(&self, limit: Duration) {
        let is_pending = |queue: &mut Queue| queue.is_writing || !queue.lines.is_empty();
        drop(self.changed.wait_timeout_while(self.queue(), limit, is_pending));
    }
}

impl Write for &Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
