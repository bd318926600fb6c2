//! A capture under way: frames from a worker's tap, as a stream into a socket, as fast as its reader takes them.
//!
//! ```text
//!   worker ─► Tap ══ Tapped ─► stream messages, 64 KiB at a time ─► socket ─► the program that asked
//!                                    reader closes its sending half: what was seen until then, statistics, the end
//! ```
//!
//! A reader that is slow finds frames missing and their number in the statistics; nobody waits for it. It is a task of the control plane, which
//! gives way to others after each piece.

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix;
use std::sync::Arc;
use std::time::Duration;

use isthmus_capture::stream::{Message, emit};
use isthmus_capture::{Interface, Statistics, Tapped};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::Instant;

use crate::broker::Broker;
use crate::disposal::Given;
use crate::server::Server;

/// Bytes of messages that are made before they are written.
const PIECE_BYTES: usize = 64 << 10;

/// While frames go, statistics go with them this often.
const TOLD_EVERY: Duration = Duration::from_millis(500);

/// What a capture is made of.
#[derive(Debug)]
pub struct Capturing {
    pub(crate) socket: Given,
    pub(crate) tapped: Tapped,
    pub(crate) interfaces: Vec<Interface>,
    /// Notified when there is something to look at.
    pub(crate) awake: Arc<Notify>,
}

/// What the reader does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    Reads,
    /// It wants no further frames.
    HasEnough,
}

impl Capturing {
    /// A capture's life.
    pub(crate) async fn serve(self: Box<Self>, server: Server) {
        if let Err(error) = self.run().await {
            tracing::debug!(%error, "the reader of a capture is gone");
        }
        server.with(Broker::captured);
    }

    /// Carries frames until the reader has enough or is gone, or there are no boards any more.
    async fn run(mut self) -> io::Result<()> {
        // The last one to be closed is the reader's own, and that may take time: it is `Given` to the thread for that.
        let stream = unix::net::UnixStream::from(self.socket.as_fd().try_clone_to_owned()?);
        stream.set_nonblocking(true)?;
        let stream = UnixStream::from_std(stream)?;
        let mut bytes = Vec::with_capacity(2 * PIECE_BYTES);
        emit(&Message::Begin, &mut bytes);
        for interface in self.interfaces.drain(..) {
            emit(&Message::Interface(interface), &mut bytes);
        }
        let (mut sent, mut told) = (0, Instant::now());
        let statistics = loop {
            sent += self.fill(&mut bytes, u64::MAX);
            if bytes.is_empty() {
                if self.tapped.is_over() {
                    break self.tapped.statistics();
                }
                if self.idle(&stream).await? == Reader::HasEnough {
                    break self.last(&stream, &mut bytes, sent).await?;
                }
                continue;
            }
            if told.elapsed() > TOLD_EVERY {
                tell(&self.tapped.statistics(), &mut bytes);
                told = Instant::now();
            }
            if write(&stream, &mut bytes).await? == Reader::HasEnough {
                break self.last(&stream, &mut bytes, sent).await?;
            }
            yield_now().await;
        };
        tell(&statistics, &mut bytes);
        emit(&Message::End, &mut bytes);
        while !bytes.is_empty() {
            write(&stream, &mut bytes).await?;
        }
        Ok(())
    }

    /// Makes messages of frames that have come, so many at most. Answers how many.
    fn fill(&mut self, bytes: &mut Vec<u8>, most: u64) -> u64 {
        let mut taken = 0;
        while bytes.len() < PIECE_BYTES
            && taken < most
            && let Some(record) = self.tapped.take()
        {
            emit(&Message::Frame(record), bytes);
            taken += 1;
        }
        taken
    }

    /// What was seen until now is still sent, and nothing else.
    async fn last(&mut self, stream: &UnixStream, bytes: &mut Vec<u8>, mut sent: u64) -> io::Result<Vec<Statistics>> {
        let statistics = self.tapped.statistics();
        let all: u64 = statistics.iter().map(|told| told.seen - told.dropped).sum();
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
    async fn idle(&mut self, stream: &UnixStream) -> io::Result<Reader> {
        let mut reader = Reader::Reads;
        if self.tapped.sleep() {
            tokio::select! {
                () = self.awake.notified() => {}
                said = heard(stream) => reader = said?,
            }
            self.tapped.awake();
        }
        Ok(reader)
    }
}

fn tell(statistics: &[Statistics], bytes: &mut Vec<u8>) {
    statistics.iter().for_each(|told| emit(&Message::Statistics(*told), bytes));
}

/// Writes all of it, unless the reader has enough first. The error is that of a reader that is gone.
async fn write(stream: &UnixStream, bytes: &mut Vec<u8>) -> io::Result<Reader> {
    let mut written = 0;
    while written < bytes.len() {
        // The reader may have changed how its socket behaves: it must not make us wait.
        let put = || Ok(send(stream, &bytes[written..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?);
        match stream.try_io(Interest::WRITABLE, put) {
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.writable().await?,
            Err(error) => return Err(error),
        }
    }
    bytes.clear();
    has_said(stream)
}

/// Waits until the reader does something.
async fn heard(stream: &UnixStream) -> io::Result<Reader> {
    loop {
        stream.readable().await?;
        if has_said(stream)? == Reader::HasEnough {
            return Ok(Reader::HasEnough);
        }
    }
}

/// What the reader has done meanwhile. What it says has no meaning.
fn has_said(stream: &UnixStream) -> io::Result<Reader> {
    let mut said = [0; 64];
    let take = || Ok(recv(stream, &mut said, RecvFlags::DONTWAIT)?.1);
    match stream.try_io(Interest::READABLE, take) {
        Ok(0) => Ok(Reader::HasEnough),
        Ok(_) => Ok(Reader::Reads),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Reader::Reads),
        Err(error) => Err(error),
    }
}
