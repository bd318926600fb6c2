//! A capture under way: frames from a worker's tap, as a stream into a socket, as fast as its reader takes them.
//!
//! ```text
//!   worker ─► Tap ══ TapReader ─► stream messages, 64 KiB at a time ─► socket ─► the program that asked
//!                                    reader closes its sending half: what was seen until then, statistics, the end
//! ```
//!
//! A reader that is slow finds frames missing and their number in the statistics; nobody waits for it. It is a task of the control plane, which
//! gives way to others after each chunk.

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

use crate::broker::Broker;
use crate::fd_reaper::ReceivedFd;
use crate::server::Server;

/// Bytes of messages that are made before they are written.
const CHUNK_BYTES: usize = 64 << 10;

/// While frames go, statistics go with them this often.
const STATISTICS_INTERVAL: Duration = Duration::from_millis(500);

/// What a capture is made of.
#[derive(Debug)]
pub struct CaptureTask {
    pub(crate) socket: ReceivedFd,
    pub(crate) reader: TapReader,
    pub(crate) interfaces: Vec<PcapInterface>,
    /// Notified when there is something to look at.
    pub(crate) wakeup: Arc<Notify>,
}

/// What the reader does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReaderState {
    Open,
    /// It wants no further frames.
    Closed,
}

impl CaptureTask {
    /// A capture's life.
    pub(crate) async fn serve(self: Box<Self>, server: Server) {
        if let Err(error) = self.run().await {
            tracing::debug!(%error, "the reader of a capture is gone");
        }
        server.with(Broker::capture_ended);
    }

    /// Carries frames until the reader has enough or is gone, or there are no boards any more.
    async fn run(mut self) -> io::Result<()> {
        // The last one to be closed is the reader's own, and that may take time: it is `ReceivedFd` to the thread for that.
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

    /// Makes messages of frames that have come, so many at most. Answers how many.
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

    /// What was seen until now is still sent, and nothing else.
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

    /// Waits until there is something to look at, or the reader does something.
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

/// Writes all of it, unless the reader has enough first. The error is that of a reader that is gone.
async fn write(stream: &UnixStream, bytes: &mut Vec<u8>) -> io::Result<ReaderState> {
    let mut written = 0;
    while written < bytes.len() {
        // The reader may have changed how its socket behaves: it must not make us wait.
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

/// Waits until the reader does something.
async fn wait_for_reader(stream: &UnixStream) -> io::Result<ReaderState> {
    loop {
        stream.readable().await?;
        if poll_reader(stream)? == ReaderState::Closed {
            return Ok(ReaderState::Closed);
        }
    }
}

/// What the reader has done meanwhile. What it says has no meaning.
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
