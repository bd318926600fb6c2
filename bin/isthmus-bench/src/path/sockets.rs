//! TCP over the loopback interface between two programs with the library of sockets, which puts the bytes into shared memory.
//!
//! The library replaces calls of the C library. So this link makes those calls, by the standard library, and none of its own.

use std::ffi::OsString;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result, bail, ensure};
use isthmus_platform::tcp_socket;

use super::tcp::Tcp;
use super::{Link, Transport, isthmus};
use crate::control_pipe::ControlPipe;
use crate::job::{Setup, Side, Wait};
use crate::programs::library;
use crate::sockets::check_share;

const LIBRARY: &str = "libisthmus-sockets.so";

/// Round trips in a row of which TCP has carried no byte: both directions use shared memory then.
const STEADY: u32 = 8;
/// Round trips after which the connection is taken for one that stays on TCP.
const ROUNDS_MAX: u32 = 10_000;

/// Bytes of the round trips before the work.
const LAST: u8 = 0;
const BY_TCP: u8 = 1;
const SHARED: u8 = 2;

/// Returns the reason that sockets cannot be measured here, if there is one.
pub(super) fn unavailable_reason() -> Option<String> {
    library(LIBRARY).err().map(|error| error.to_string())
}

/// The variables of a worker.
pub(super) fn environment(wait: Wait) -> Result<Vec<(&'static str, OsString)>> {
    let wait = if wait == Wait::Sleep { "sleep" } else { "adaptive" }; // A worker that polls never waits in the library.
    Ok(vec![("LD_PRELOAD", library(LIBRARY)?.into()), ("ISTHMUS_WAIT", wait.into())])
}

/// Both sides listen, as on TCP.
pub(super) struct Sockets {
    tcp: Tcp,
    wait: Wait,
}

impl Transport for Sockets {
    type Link = SocketLink;

    fn open(setup: &Setup) -> Result<Self> {
        isthmus::daemon().context("sockets need a daemon: start isthmusd")?;
        Ok(Self { tcp: Tcp::open(setup)?, wait: setup.wait })
    }

    fn connect(self, side: Side, control_pipe: &ControlPipe) -> Result<SocketLink> {
        let mut link = SocketLink { tcp: self.tcp.stream(side, control_pipe)?, received: 0, by_tcp_before: 0 };
        match side {
            Side::Lead => link.await_stream()?,
            Side::Follow => link.answer()?,
        }
        link.tcp.set_nonblocking(self.wait == Wait::Poll).context("cannot choose whether to block")?;
        (link.received, link.by_tcp_before) = (0, tcp_socket::bytes_received(&link.tcp)?);
        Ok(link)
    }
}

/// A connection that is used by the C library's calls.
pub(super) struct SocketLink {
    tcp: TcpStream,
    /// Bytes of the work that were received.
    received: u64,
    /// Bytes that TCP had carried before the work.
    by_tcp_before: u64,
}

impl SocketLink {
    /// Goes back and forth until both directions use shared memory.
    fn await_stream(&mut self) -> Result<()> {
        let mut steady = 0;
        for _ in 0..ROUNDS_MAX {
            let is_last = steady == STEADY;
            let before = tcp_socket::bytes_received(&self.tcp)?;
            let mut answer = [if is_last { LAST } else { BY_TCP }];
            self.send(&answer)?;
            self.recv(&mut answer)?;
            let is_shared = answer == [SHARED] && tcp_socket::bytes_received(&self.tcp)? == before;
            if is_last {
                ensure!(is_shared, "the connection went back to TCP");
                return Ok(());
            }
            steady = if is_shared { steady + 1 } else { 0 };
        }
        bail!("the connection stayed on TCP: `isthmus stream list` counts the reasons")
    }

    fn answer(&mut self) -> Result<()> {
        loop {
            let before = tcp_socket::bytes_received(&self.tcp)?;
            let mut word = [0];
            self.recv(&mut word)?;
            let is_shared = tcp_socket::bytes_received(&self.tcp)? == before;
            self.send(&[if is_shared { SHARED } else { BY_TCP }])?;
            if word == [LAST] {
                return Ok(());
            }
        }
    }
}

impl Link for SocketLink {
    fn send(&mut self, message: &[u8]) -> Result<()> {
        let mut rest = if message.is_empty() { &[0] } else { message };
        while !rest.is_empty() {
            match self.tcp.write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if is_again(&error) => {}
                Err(error) => return Err(error).context("cannot send"),
            }
        }
        Ok(())
    }

    fn recv(&mut self, into: &mut [u8]) -> Result<()> {
        let mut empty = [0];
        let into = if into.is_empty() { &mut empty[..] } else { into };
        let mut filled = 0;
        while filled < into.len() {
            match self.tcp.read(&mut into[filled..]) {
                Ok(0) => bail!("the other side has closed its end"),
                Ok(got) => filled += got,
                Err(error) if is_again(&error) => {}
                Err(error) => return Err(error).context("cannot receive"),
            }
        }
        self.received += into.len() as u64;
        Ok(())
    }

    /// The kernel counts what TCP has carried. A side that only sends has received one answer.
    fn check(&self) -> Result<()> {
        if self.received == 0 {
            return Ok(()); // The work has no messages.
        }
        let by_tcp = tcp_socket::bytes_received(&self.tcp)? - self.by_tcp_before;
        check_share(self.received.saturating_sub(by_tcp), self.received)
    }
}

fn is_again(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
