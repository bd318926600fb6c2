use super::*;

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};

/// Standard error of which the test decides whether a line is written.
struct Gate {
    verdicts: Receiver<bool>,
    written: Sender<String>,
}

impl Write for Gate {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let has_room = self.verdicts.recv().unwrap_or(false);
        if !has_room {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.written.send(String::from_utf8_lossy(line).into_owned()).map_err(io::Error::other)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn gated(log: &'static Log) -> (Sender<bool>, Receiver<String>) {
    let ((decide, verdicts), (written, lines)) = (channel(), channel());
    std::thread::spawn(move || log.write_to(&mut Gate { verdicts, written }));
    (decide, lines)
}

#[test]
fn counts_lines_that_find_no_room_and_never_waits() {
    static FULL: Log = Log::new();
    let (decide, lines) = gated(&FULL);
    let line = vec![b'x'; 1000];
    let most = QUEUE_BYTES_MAX / line.len();
    FULL.push(line.clone());
    // The log's thread takes the first line before the queue is full. Later, it would make room for a line that reports lost ones.
    while !FULL.queue().is_writing {
        std::thread::yield_now();
    }
    for _ in 0..most + 100 {
        FULL.push(line.clone());
    }
    let lost = FULL.queue().lost;
    assert_eq!(lost, 100);
    assert!(FULL.queue().bytes <= QUEUE_BYTES_MAX);
    for _ in 0..=most {
        decide.send(true).unwrap();
        assert_eq!(lines.recv().unwrap().len(), line.len());
    }
    FULL.push(b"after\n".to_vec());
    decide.send(true).unwrap();
    let after = lines.recv().unwrap();
    assert!(
        after.starts_with(&format!("isthmusd: {lost} log lines were lost")) && after.ends_with("\nafter\n"),
        "{after}"
    );
    assert_eq!(FULL.queue().lost, 0);
}

#[test]
fn counts_lines_that_cannot_be_written() {
    static BROKEN: Log = Log::new();
    let (decide, lines) = gated(&BROKEN);
    for verdict in [false, false, false, true] {
        BROKEN.push(b"line\n".to_vec());
        decide.send(verdict).unwrap();
        BROKEN.flush(Duration::from_secs(60));
    }
    let written = lines.recv().unwrap();
    assert!(written.starts_with("isthmusd: 3 log lines were lost") && written.ends_with("\nline\n"), "{written}");
}

/// Not a test: the process of the tests below. One of its threads panics, and the others would live on.
#[test]
#[ignore = "run by the tests below"]
fn act_as_a_daemon_with_a_panic() {
    start().unwrap();
    let panicked =
        std::thread::Builder::new().name("worker-0".into()).spawn(|| panic!("an invariant is false")).unwrap();
    let _ = panicked.join();
}

fn daemon_with_a_panic() -> Command {
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args(["--exact", "log::tests::act_as_a_daemon_with_a_panic", "--ignored", "--nocapture"]);
    process.env_remove("RUST_BACKTRACE").stdout(Stdio::null());
    process
}

#[test]
fn panic_of_a_thread_is_logged_and_ends_the_process() {
    let output = daemon_with_a_panic().output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(rustix::process::Signal::ABORT.as_raw()), "{text}");
    assert!(
        text.contains("isthmusd: thread worker-0: panicked at") && text.contains("an invariant is false"),
        "{text}"
    );
}

#[test]
fn panic_ends_the_process_when_standard_error_cannot_be_written() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let status = daemon_with_a_panic().stderr(full).status().unwrap();
    assert_eq!(status.signal(), Some(rustix::process::Signal::ABORT.as_raw()));
}
