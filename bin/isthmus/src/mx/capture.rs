//! `isthmus capture`: the frames that MX boards receive and send, as a file for Wireshark.
//!
//! ```text
//!   isthmusd ── stream of frames ──► Stream ──► Sink: pcapng ──► file, or the reader of standard output
//!                                      ▲ ends with Ctrl-C, --count, the reader's end, the daemon's end
//! ```
//!
//! Frames are written as they arrive. The file is complete after every kind of end, and states how many frames are missing.

mod signals;
mod sink;

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal as _, Read as _, Write};
use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use isthmus_capture::SNAP_BYTES_MAX;
use isthmus_capture::stream::{CaptureMessage, MalformedStream, ReadError, parse};
use isthmus_client::{DomainId, QueryClient, Reason, Refusal, Topic};
use isthmus_report::Domains;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::output::{Outcome, Output, UsageError, bytes, counted, note};
use signals::Signals;
use sink::{CaptureTotals, Sink};

#[derive(Args, Clone, Debug)]
pub(crate) struct CaptureArgs {
    /// The board to capture, as in `0` or `mx0` (`isthmus board list`) [default: all boards with links].
    #[arg(long, value_name = "BOARD", value_parser = board)]
    board: Option<u32>,

    /// The domain that frames are from or to, by name, or by number as in `d7` [default: all domains].
    #[arg(long, value_name = "DOMAIN")]
    domain: Option<String>,

    /// The number of bytes to keep of each frame, from its Ethernet header on.
    #[arg(long, value_name = "BYTES", default_value_t = SNAP_BYTES_MAX, hide_default_value = true,
        value_parser = clap::value_parser!(u32).range(14..=i64::from(SNAP_BYTES_MAX)))]
    snap: u32,

    /// The number of frames after which the capture ends.
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// The file to write [default: standard output, as with `-`, which must not be a terminal].
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
}

/// Parses the number of a board, as lists show it or bare.
fn board(given: &str) -> Result<u32, String> {
    let number = given.strip_prefix("mx").unwrap_or(given);
    number.parse().map_err(|_| "a board is named by its number, as in 0 or mx0".to_owned())
}

/// The maximum number of bytes of one read.
const READ_BYTES: usize = 256 << 10;

/// The interval at which a terminal shows the progress.
const DISPLAY_INTERVAL: Duration = Duration::from_millis(200);

/// The time in which the daemon must send the last frames and the statistics after the request to end.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn run(output: Output, socket: Option<PathBuf>, args: &CaptureArgs) -> Result<Outcome> {
    let file = args.write.as_deref().filter(|path| *path != Path::new("-"));
    if file.is_none() && io::stdout().is_terminal() {
        let how = "a capture is not text: name a file with `-w FILE`, or a program with `| tshark -r -`";
        return Err(UsageError(how.to_owned()).into());
    }
    if file.is_none() && output.json {
        return Err(
            UsageError("--json uses standard output: name a file for the frames with `-w FILE`".to_owned()).into()
        );
    }
    let signals = Signals::take().context("cannot listen to signals")?;
    let mut client = QueryClient::connect(&crate::daemon::options(socket)?)?;
    let domain = args.domain.as_deref().map(|name| find(&mut client, name)).transpose()?;
    let stream = client.capture(args.board, domain, args.snap)?;
    let to: Box<dyn Write> = match file {
        Some(path) => {
            let context = || format!("cannot write {}; name another file with -w", path.display());
            Box::new(BufWriter::new(File::create(path).with_context(context)?))
        }
        None => Box::new(BufWriter::new(io::stdout())),
    };
    let sink = Sink::new(to, args.count)?;
    let (total, outcome) = Stream::new(stream, signals, sink, file.is_none())?.run();
    let summary = summary(&total, file);
    outcome?;
    match file {
        Some(_) => output.result("capture", &total, || summary + "\n")?,
        None => note(&summary),
    }
    Ok(Outcome::Done)
}

/// Finds a domain by its name or number.
fn find(client: &mut QueryClient, name: &str) -> Result<DomainId> {
    let answer =
        serde_json::from_str(&client.query(Topic::Domains, &[])?).context("the daemon's report is not JSON")?;
    let domains: Domains = crate::daemon::read(&answer)?;
    let row = domains.domains.iter().find(|row| row.name == name || format!("d{}", row.id) == name);
    let found = row.and_then(|row| DomainId::new(row.id));
    found.ok_or_else(|| Refusal::new(Reason::NoSuchDomain, format!("no domain is called {name}")).into())
}

fn summary(total: &CaptureTotals, file: Option<&Path>) -> String {
    let place = file.map_or_else(String::new, |path| format!(" in {}", path.display()));
    let frames = counted(usize::try_from(total.frames).unwrap_or(usize::MAX), "frame");
    let missing = match total.dropped {
        0 => String::new(),
        dropped => format!("; {dropped} dropped, because they came faster than they were written: see --snap"),
    };
    format!("{frames}, {}{place}{missing}", bytes(total.bytes))
}

/// The state of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CaptureState {
    /// No message has arrived.
    NotStarted,
    Running,
    /// The daemon has the request to end, and must end by this time.
    Ending(Instant),
    Done,
}

/// Frames on their way from the daemon.
struct Stream {
    from: UnixStream,
    signals: Signals,
    sink: Sink<Box<dyn Write>>,
    /// Bytes of an incomplete message.
    bytes: Vec<u8>,
    stage: CaptureState,
    /// Whether frames go to standard output, where the reader may end.
    to_reader: bool,
    bar: ProgressBar,
}

impl Stream {
    fn new(from: UnixStream, signals: Signals, sink: Sink<Box<dyn Write>>, to_reader: bool) -> Result<Self> {
        from.set_nonblocking(true)?;
        let (bytes, stage) = (Vec::new(), CaptureState::NotStarted);
        Ok(Self { from, signals, sink, bytes, stage, to_reader, bar: bar() })
    }

    /// Captures until the end. Returns the totals, and the error if there was one.
    fn run(mut self) -> (CaptureTotals, Result<()>) {
        let outcome = self.step();
        self.bar.finish_and_clear();
        // A reader that ends early (`| tshark -c 5 -r -`) is no error.
        let (total, finished) = self.sink.finish();
        let gone = |error: &anyhow::Error| {
            let source = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
            source.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
        };
        let outcome = outcome.and(finished.map_err(Into::into));
        (total, if outcome.as_ref().is_err_and(gone) { Ok(()) } else { outcome })
    }

    fn step(&mut self) -> Result<()> {
        while self.stage != CaptureState::Done {
            let ready = self.wait()?;
            if ready.signal && self.signals.is_pending()? {
                self.end()?;
            }
            if ready.reader_gone {
                return Ok(());
            }
            if ready.frames {
                self.read()?;
                self.sink.flush()?;
            }
            if let CaptureState::Ending(until) = self.stage
                && until <= Instant::now()
            {
                note("the daemon did not report how many frames are missing");
                return Ok(());
            }
            let total = self.sink.total();
            self.bar.set_message(format!("{}, dropped {}", summary_short(&total), total.dropped));
        }
        Ok(())
    }

    /// Waits for a frame, a signal, or the time to show the progress.
    fn wait(&self) -> Result<Ready> {
        let stdout = io::stdout();
        let watched = if self.to_reader { stdout.as_fd() } else { self.from.as_fd() };
        let flags = if self.to_reader { PollFlags::empty() } else { PollFlags::IN };
        let mut fds = [
            PollFd::new(&self.from, PollFlags::IN),
            PollFd::new(&self.signals, PollFlags::IN),
            PollFd::from_borrowed_fd(watched, flags),
        ];
        let shows = !self.bar.is_hidden() || matches!(self.stage, CaptureState::Ending(_));
        let limit = shows.then(|| Timespec::try_from(DISPLAY_INTERVAL).expect("it is short"));
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("waiting for frames"),
        }
        let gone = PollFlags::ERR | PollFlags::HUP;
        Ok(Ready {
            frames: !fds[0].revents().is_empty(),
            signal: !fds[1].revents().is_empty(),
            reader_gone: self.to_reader && fds[2].revents().intersects(gone),
        })
    }

    /// Requests the daemon to end. The second call ends at once.
    fn end(&mut self) -> Result<()> {
        self.stage = match self.stage {
            CaptureState::NotStarted | CaptureState::Running => {
                self.from.shutdown(Shutdown::Write).context("telling the daemon to end")?;
                CaptureState::Ending(Instant::now() + FINISH_TIMEOUT)
            }
            CaptureState::Ending(_) | CaptureState::Done => CaptureState::Done,
        };
        Ok(())
    }

    /// Reads the messages that have arrived.
    fn read(&mut self) -> Result<()> {
        let start = self.bytes.len();
        self.bytes.resize(start + READ_BYTES, 0);
        let read = self.from.read(&mut self.bytes[start..]);
        self.bytes.truncate(start + read.as_ref().copied().unwrap_or(0));
        match read {
            Ok(0) => return Err(ReadError::Truncated.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(ReadError::Io(error).into()),
        }
        let bytes = std::mem::take(&mut self.bytes);
        let mut done = 0;
        while let Some((message, length)) = parse(&bytes[done..])? {
            done += length;
            self.handle_message(&message)?;
        }
        self.bytes = bytes;
        self.bytes.drain(..done);
        Ok(())
    }

    fn handle_message(&mut self, message: &CaptureMessage<'_>) -> Result<()> {
        match (self.stage, message) {
            (CaptureState::NotStarted, CaptureMessage::Begin) => self.stage = CaptureState::Running,
            (CaptureState::NotStarted, _) => return Err(MalformedStream::NoBegin.into()),
            (CaptureState::Ending(_), CaptureMessage::Begin) if self.sink.is_new() => {}
            (_, CaptureMessage::Begin) => return Err(MalformedStream::NoBegin.into()),
            (CaptureState::Done, _) => {}
            (_, CaptureMessage::End) => self.stage = CaptureState::Done,
            (_, message) => {
                if self.sink.handle_message(message)? && self.stage == CaptureState::Running {
                    self.end()?;
                }
            }
        }
        Ok(())
    }
}

/// The events of a wait.
struct Ready {
    frames: bool,
    signal: bool,
    reader_gone: bool,
}

fn summary_short(total: &CaptureTotals) -> String {
    format!("{} frames, {}", total.frames, bytes(total.bytes))
}

/// Returns the progress bar, which is visible on a terminal only.
fn bar() -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    let style = ProgressStyle::with_template("{spinner} {msg}  (Ctrl-C ends it)");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
}

#[cfg(test)]
mod tests {
    use super::board;

    #[test]
    fn board_is_accepted_in_the_form_of_lists() {
        assert_eq!([board("3"), board("mx12")], [Ok(3), Ok(12)]);
        assert!(board("mx").is_err() && board("eth0").is_err() && board("-1").is_err());
    }
}
