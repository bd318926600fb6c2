//! A running capture: streams frames from a worker's tap into a socket, as fast as the reader takes them.
//!
//! ```text
//!   worker ─► Tap ══ TapReader ─► stream messages, 64 KiB at a time ─► socket ─► the program that asked
//!                                    reader closes its sending half: frames seen until then, statistics, the end
//! ```
//!
//! A slow reader loses frames; the statistics contain their number. No other part of the daemon waits for it. The capture is a task of the control
//! plane, which yields to other tasks after each chunk.

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix;
use std::sync::Arc;
use std::time::Duration;

use isthmus_capture::stream::{CaptureMessage, emit};
use isthmus_capture::{InterfaceStatistics, PcapInterface, TapReader};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::Instant;

use crate::fd_reaper::ReceivedFd;

/// The number of message bytes after which they are written.
const CHUNK_BYTES: usize = 64 << 10;

/// The interval at which statistics are sent while frames are sent.
const STATISTICS_INTERVAL: Duration = Duration::from_millis(500);

/// The resources of a capture.
#[derive(Debug)]
pub struct CaptureTask {
    pub(crate) socket: ReceivedFd,
    pub(crate) reader: TapReader,
    pub(crate) interfaces: Vec<PcapInterface>,
    /// Notified when the tap has frames or has ended.
    pub(crate) wakeup: Arc<Notify>,
}

/// The state of the reader's half of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReaderState {
    Open,
    /// The reader has closed its sending half: it wants no further frames.
    Closed,
}

impl CaptureTask {
    /// Runs the capture to its end.
    pub(crate) async fn serve(self: Box<Self>) {
        if let Err(error) = self.run().await {
            tracing::debug!(%error, "the reader of a capture is gone");
        }
    }

    /// Sends frames until the reader wants no more or is gone, or no tapped board is left.
    async fn run(mut self) -> io::Result<()> {
        // Closing the last descriptor of a received socket may block. `ReceivedFd` is that last descriptor, and has it closed on another thread.
        let stream = unix::net::UnixStream::from(self.socket.as_fd().try_clone_to_owned()?);
        stream.set_nonblocking(true)?;
        let stream = UnixStream::from_std(stream)?;
        let mut bytes = Vec::with_capacity(2 * CHUNK_BYTES);
        emit(&CaptureMessage::Begin, &mut bytes);
        for interface in self.interfaces.drain(..) {
            emit(&CaptureMessage::Interface(interface), &mut bytes);
        }
        let (mut sent, mut last_statistics) = (0, Instant::now());
        let statistics = loop {
            sent += self.fill(&mut bytes, u64::MAX);
            if bytes.is_empty() {
                if self.reader.is_over() {
                    break self.reader.statistics();
                }
                if self.wait(&stream).await? == ReaderState::Closed {
                    break self.drain(&stream, &mut bytes, sent).await?;
                }
                continue;
            }
            if last_statistics.elapsed() > STATISTICS_INTERVAL {
                emit_statistics(&self.reader.statistics(), &mut bytes);
                last_statistics = Instant::now();
            }
            if write(&stream, &mut bytes).await? == ReaderState::Closed {
                break self.drain(&stream, &mut bytes, sent).await?;
            }
            yield_now().await;
        };
        emit_statistics(&statistics, &mut bytes);
        emit(&CaptureMessage::End, &mut bytes);
        while !bytes.is_empty() {
            write(&stream, &mut bytes).await?;
        }
        Ok(())
    }

    /// Appends messages for up to `most` captured frames, and stops at [`CHUNK_BYTES`]. Returns the number of frames.
    fn fill(&mut self, bytes: &mut Vec<u8>, most: u64) -> u64 {
        let mut taken = 0;
        while bytes.len() < CHUNK_BYTES
            && taken < most
            && let Some(record) = self.reader.pop()
        {
            emit(&CaptureMessage::Frame(record), bytes);
            taken += 1;
        }
        taken
    }

    /// Sends the frames that were captured until now, and no later ones. Returns the statistics of this moment.
    async fn drain(
        &mut self,
        stream: &UnixStream,
        bytes: &mut Vec<u8>,
        mut sent: u64,
    ) -> io::Result<Vec<InterfaceStatistics>> {
        let statistics = self.reader.statistics();
        let all: u64 = statistics.iter().map(|of| of.seen - of.dropped).sum();
        loop {
            let taken = self.fill(bytes, all.saturating_sub(sent));
            sent += taken;
            if taken == 0 {
                return Ok(statistics);
            }
            write(stream, bytes).await?;
            yield_now().await;
        }
    }

    /// Waits until frames are available or the reader has closed its sending half.
    async fn wait(&mut self, stream: &UnixStream) -> io::Result<ReaderState> {
        let mut reader = ReaderState::Open;
        if self.reader.begin_sleep() {
            tokio::select! {
                () = self.wakeup.notified() => {}
                state = wait_for_reader(stream) => reader = state?,
            }
            self.reader.end_sleep();
        }
        Ok(reader)
    }
}

fn emit_statistics(statistics: &[InterfaceStatistics], bytes: &mut Vec<u8>) {
    statistics.iter().for_each(|of| emit(&CaptureMessage::Statistics(*of), bytes));
}

/// Writes all bytes, and returns the state of the reader. An error means that the reader is gone.
async fn write(stream: &UnixStream, bytes: &mut Vec<u8>) -> io::Result<ReaderState> {
    let mut written = 0;
    while written < bytes.len() {
        // The reader may have made the socket blocking, which must not block this thread.
        let write_some = || Ok(send(stream, &bytes[written..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?);
        match stream.try_io(Interest::WRITABLE, write_some) {
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.writable().await?,
            Err(error) => return Err(error),
        }
    }
    bytes.clear();
    poll_reader(stream)
}

/// Waits until the reader has closed its sending half.
async fn wait_for_reader(stream: &UnixStream) -> io::Result<ReaderState> {
    loop {
        stream.readable().await?;
        if poll_reader(stream)? == ReaderState::Closed {
            return Ok(ReaderState::Closed);
        }
    }
}

/// Returns the state of the reader without waiting. Data from the reader is ignored.
fn poll_reader(stream: &UnixStream) -> io::Result<ReaderState> {
    let mut received = [0; 64];
    let read_some = || Ok(recv(stream, &mut received, RecvFlags::DONTWAIT)?.1);
    match stream.try_io(Interest::READABLE, read_some) {
        Ok(0) => Ok(ReaderState::Closed),
        Ok(_) => Ok(ReaderState::Open),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(ReaderState::Open),
        Err(error) => Err(error),
    }
}
