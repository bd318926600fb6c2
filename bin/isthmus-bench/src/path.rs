//! The paths that messages can take between two processes, each behind one pair of traits.
//!
//! ```text
//! worker:   Transport::open ──▶ Transport::connect ──▶ Link::{send, recv, stream_out, stream_in}
//!            (alone, timed)      (both sides, timed)    (measured by drive.rs, which is generic over the link)
//! ```
//!
//! To add a path: a module with its [`Transport`] and its [`Link`], a variant of [`Path`], and a line in each `match` below.
//! Libraries for C are measured by programs of their own, and bare frames by the crate of links.
//! Drivers are generic rather than dynamic: an indirect call would be seen in a half round trip of 100 ns.

mod cma;
mod eventfd;
mod fds;
mod isthmus;
mod raw;
mod ring;
mod sockets;
pub(crate) mod tcp;
mod unix;

use std::ffi::OsString;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::ValueEnum;
use isthmus_netns::WireInterface;
use serde::{Deserialize, Serialize};

use crate::control_pipe::ControlPipe;
use crate::drive;
use crate::hosts::WireSpec;
use crate::job::{Job, Setup, Side, SideResult, Wait, Work};
use crate::mx;
use crate::pool::Pool;

/// One side of a path that is open, but not yet connected to the other side.
pub(crate) trait Transport: Sized {
    /// The connected path.
    type Link: Link;

    /// Does what can be done alone: attaches, opens an endpoint. Its time is reported as `open_ns`.
    fn open(setup: &Setup) -> Result<Self>;

    /// Connects to the other side; both exchange their addresses over `control_pipe`. Both call it at about the same time.
    fn connect(self, side: Side, control_pipe: &ControlPipe) -> Result<Self::Link>;
}

/// One side of a connected path.
pub(crate) trait Link {
    /// Sends one message; on return the caller may change the buffer.
    fn send(&mut self, message: &[u8]) -> Result<()>;

    /// Receives the next message, which is as long as `into`.
    fn recv(&mut self, into: &mut [u8]) -> Result<()>;

    /// Sends the messages of a stream as fast as this path can; those behind may still be under way on return. The driver
    /// stops the clock when the answer of the receiver has come. Paths that keep several sends under way override it.
    fn stream_out(&mut self, pool: &mut Pool) -> Result<()> {
        for message in 0..pool.messages() {
            self.send(pool.fill(message))?;
        }
        Ok(())
    }

    /// Receives them; on return all lie in the pool.
    fn stream_in(&mut self, pool: &mut Pool) -> Result<()> {
        for message in 0..pool.messages() {
            self.recv(pool.slot_mut(message))?;
        }
        Ok(())
    }

    /// Fails after the work if it went another way than this path's.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// The paths there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Path {
    /// Isthmus, between two domains.
    Isthmus,
    /// MX over Isthmus: programs in C that are linked with libmyriexpress.
    Mx,
    /// Loopback TCP, with TCP_NODELAY.
    Tcp,
    /// Loopback TCP between programs with the library of sockets.
    Sockets,
    /// A Unix stream socket.
    Unix,
    /// A Unix sequenced-packet socket; long messages go in packets of 64 KiB.
    Seqpacket,
    /// Two pipes.
    Pipe,
    /// Two eventfds: no data, only a bare sleep and wake. Ping-pong of 8 bytes only.
    Eventfd,
    /// process_vm_readv: the receiver copies out of the sender's memory, at addresses sent over a socket. Streams only.
    Cma,
    /// One shared ring of 1 MiB in each direction, without a protocol.
    Ring,
    /// Bare frames by packet sockets, without a protocol: between hosts only.
    #[value(skip)]
    Raw,
    /// Bare frames as UDP datagrams.
    #[value(skip)]
    RawUdp,
}

impl Path {
    /// The path that this project is about.
    pub(crate) const ISTHMUS: Option<Self> = Some(Self::Isthmus);

    /// The paths of a sweep that names none.
    pub(crate) const USUAL: [Self; 5] = [Self::Isthmus, Self::Mx, Self::Tcp, Self::Unix, Self::Pipe];

    /// The name in names of cases and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Isthmus => "isthmus",
            Self::Mx => "mx",
            Self::Tcp => "tcp",
            Self::Sockets => "sockets",
            Self::Unix => "unix",
            Self::Seqpacket => "seqpacket",
            Self::Pipe => "pipe",
            Self::Eventfd => "eventfd",
            Self::Cma => "cma",
            Self::Ring => "ring",
            Self::Raw => "raw",
            Self::RawUdp => "raw_udp",
        }
    }

    /// Returns true if this path does this kind of work.
    pub(crate) const fn supports(self, work: Work, wait: Wait) -> bool {
        if matches!(wait, Wait::Adaptive) && !matches!(self, Self::Isthmus | Self::Mx | Self::Sockets) {
            return false;
        }
        match self {
            Self::Mx => matches!(work, Work::PingPong { .. } | Work::Stream { .. } | Work::Match { .. }),
            Self::Isthmus | Self::Tcp | Self::Sockets | Self::Unix | Self::Seqpacket | Self::Pipe => {
                !matches!(work, Work::Match { .. })
            }
            Self::Eventfd => matches!(work, Work::PingPong { size: 8 } | Work::Open) && matches!(wait, Wait::Sleep),
            Self::Cma => matches!(work, Work::Stream { .. } | Work::Open) && matches!(wait, Wait::Poll),
            Self::Ring => {
                matches!(work, Work::PingPong { .. } | Work::Stream { .. } | Work::Open) && matches!(wait, Wait::Poll)
            }
            Self::Raw | Self::RawUdp => matches!(work, Work::PingPong { .. } | Work::Stream { .. }),
        }
    }

    /// The options in [`Setup::options`] that it understands. `idle_peers` is the number of silent peers that the following side
    /// has besides the leading one; a path that knows it gets a row.
    pub(crate) const fn options(self) -> &'static [&'static str] {
        match self {
            Self::Isthmus => &[isthmus::IDLE_PEERS],
            Self::Mx => &[mx::path::WAIT, mx::path::BOARD],
            Self::Tcp => &[tcp::AT, tcp::CONGESTION],
            Self::Raw => &[raw::INTERFACE],
            Self::RawUdp => &[raw::FROM, raw::AT],
            Self::Sockets | Self::Unix | Self::Seqpacket | Self::Pipe | Self::Eventfd | Self::Cma | Self::Ring => &[],
        }
    }

    /// The options that lead from one host to another; none where this path does not go there.
    pub(crate) fn between(self, from: &WireInterface, to: &WireInterface) -> Vec<(&'static str, String)> {
        match self {
            Self::Mx => vec![(mx::path::BOARD, mx::wire::board(to))],
            Self::Tcp => vec![(tcp::AT, to.v4.to_string())],
            Self::Raw => vec![(raw::INTERFACE, from.name.clone())],
            Self::RawUdp => vec![(raw::FROM, from.v4.to_string()), (raw::AT, to.v4.to_string())],
            _ => Vec::new(),
        }
    }

    /// The reason that this installation cannot measure it, if there is one.
    pub fn unavailable_reason(self) -> Option<String> {
        match self {
            Self::Mx => mx::path::unavailable_reason(),
            Self::Sockets => sockets::unavailable_reason(),
            _ => None,
        }
    }

    /// The variables of its workers.
    pub(crate) fn environment(self, wait: Wait) -> Result<Vec<(&'static str, OsString)>> {
        if self == Self::Sockets { sockets::environment(wait) } else { Ok(Vec::new()) }
    }

    /// Returns true if messages go through Isthmus, for which there are rows of capabilities.
    pub(crate) const fn is_ours(self) -> bool {
        matches!(self, Self::Isthmus | Self::Mx)
    }

    /// Returns true if it needs a daemon on each host to go between hosts.
    pub(crate) const fn needs_host_daemons(self) -> bool {
        matches!(self, Self::Mx)
    }

    /// The configuration of a host's daemon, for the paths that need one.
    pub(crate) fn host_config(between: &WireSpec, own: &WireInterface, other: &WireInterface) -> Result<String> {
        mx::wire::host_config(between, own, other)
    }

    /// Processes besides the workers that spend CPU time for this path: a daemon.
    pub(crate) fn server_processes(self) -> Result<Vec<u32>> {
        if self.is_ours() || self == Self::Sockets { Ok(vec![isthmus::daemon()?]) } else { Ok(Vec::new()) }
    }

    /// Does one side of the work. `ready` is called when both sides are connected, and returns when the measurement may
    /// begin; where the job says hold, once more before they part.
    pub(crate) fn run(
        self,
        job: &Job,
        control_pipe: &ControlPipe,
        ready: impl FnMut() -> Result<()>,
    ) -> Result<SideResult> {
        match self {
            Self::Isthmus => run::<isthmus::Isthmus>(job, control_pipe, ready),
            Self::Mx => mx::path::run(job, control_pipe, ready),
            Self::Tcp => run::<tcp::Tcp>(job, control_pipe, ready),
            Self::Sockets => run::<sockets::Sockets>(job, control_pipe, ready),
            Self::Unix => run::<unix::Stream>(job, control_pipe, ready),
            Self::Seqpacket => run::<unix::Seqpacket>(job, control_pipe, ready),
            Self::Pipe => run::<unix::Pipe>(job, control_pipe, ready),
            Self::Eventfd => run::<eventfd::Eventfd>(job, control_pipe, ready),
            Self::Cma => run::<cma::Cma>(job, control_pipe, ready),
            Self::Ring => run::<ring::Ring>(job, control_pipe, ready),
            Self::Raw | Self::RawUdp => raw::run(job, control_pipe, ready),
        }
    }
}

fn run<T: Transport>(
    job: &Job,
    control_pipe: &ControlPipe,
    mut ready: impl FnMut() -> Result<()>,
) -> Result<SideResult> {
    check_options(job)?;
    let before = Instant::now();
    let transport = T::open(&job.setup)?;
    let opened = Instant::now();
    control_pipe.barrier()?;
    let connecting = Instant::now();
    let mut link = transport.connect(job.side, control_pipe)?;
    let connect_ns = connecting.elapsed().as_nanos() as u64;
    ready()?;
    let done = drive::run(&mut link, job, control_pipe)?;
    link.check()?;
    // Neither side leaves before both are done: a socket that closes early would be an error on the other side.
    control_pipe.barrier()?;
    if job.hold {
        ready()?;
    }
    Ok(SideResult { open_ns: (opened - before).as_nanos() as u64, connect_ns, ..done })
}

pub(crate) fn check_options(job: &Job) -> Result<()> {
    match job.setup.options.keys().find(|name| !job.path.options().contains(&name.as_str())) {
        Some(name) => bail!("the path {} has no option {name:?}", job.path.name()),
        None => Ok(()),
    }
}
