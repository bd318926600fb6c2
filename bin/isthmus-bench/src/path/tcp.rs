//! TCP over the loopback interface, as every program without shared memory has it; or from host to host.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use anyhow::{Context, Result};
use rustix::net::sockopt::set_tcp_congestion;

use super::Transport;
use super::fds::FdLink;
use crate::control_pipe::ControlPipe;
use crate::job::{Setup, Side};

/// The option that says where the following side is, if it is on another host.
pub(crate) const AT: &str = "at";

/// The option that names how it reacts to congestion, if not as this machine is set to: `cubic`.
pub(crate) const CONGESTION: &str = "congestion";

/// Both sides listen; the leading one then connects to the other.
pub(crate) struct Tcp {
    setup: Setup,
    listener: TcpListener,
    at: IpAddr,
}

impl Transport for Tcp {
    type Link = FdLink;

    fn open(setup: &Setup) -> Result<Self> {
        let (own, at) = match setup.options.get(AT) {
            Some(at) => (Ipv4Addr::UNSPECIFIED, at.parse().context("the address of the following side")?),
            None => (Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST.into()),
        };
        let listener = TcpListener::bind((own, 0)).with_context(|| format!("cannot listen on {own}"))?;
        Ok(Self { setup: setup.clone(), listener, at })
    }

    fn connect(self, side: Side, control_pipe: &ControlPipe) -> Result<FdLink> {
        let stream = self.stream(side, control_pipe)?;
        FdLink::both_ways(stream.into(), &self.setup, usize::MAX)
    }
}

impl Tcp {
    /// Connects to the other side.
    pub(super) fn stream(&self, side: Side, control_pipe: &ControlPipe) -> Result<TcpStream> {
        let stream = match side {
            Side::Lead => {
                let address = SocketAddr::from((self.at, control_pipe.recv()?));
                TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?
            }
            Side::Follow => {
                control_pipe.send(&self.listener.local_addr().context("cannot ask for our own address")?.port())?;
                self.listener.accept().context("cannot accept a connection")?.0
            }
        };
        if let Some(control) = self.setup.options.get(CONGESTION) {
            set_tcp_congestion(&stream, control).with_context(|| format!("cannot set TCP_CONGESTION to {control}"))?;
        }
        stream.set_nodelay(true).context("cannot set TCP_NODELAY")?;
        Ok(stream)
    }
}
