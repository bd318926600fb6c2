//! TCP over the loopback interface, as every program without shared memory has it.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use anyhow::{Context, Result};

use super::Transport;
use super::fds::FdLink;
use crate::job::{Setup, Side};
use crate::talk::Talk;

/// Both sides listen; the leading one then connects to the other.
pub(crate) struct Tcp {
    setup: Setup,
    listener: TcpListener,
}

impl Transport for Tcp {
    type Link = FdLink;

    fn open(setup: &Setup) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen on 127.0.0.1")?;
        Ok(Self { setup: setup.clone(), listener })
    }

    fn connect(self, side: Side, talk: &Talk) -> Result<FdLink> {
        let stream = match side {
            Side::Lead => {
                let address: SocketAddr = talk.recv()?;
                TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?
            }
            Side::Follow => {
                talk.send(&self.listener.local_addr().context("cannot ask for our own address")?)?;
                self.listener.accept().context("cannot accept a connection")?.0
            }
        };
        stream.set_nodelay(true).context("cannot set TCP_NODELAY")?;
        FdLink::both_ways(stream.into(), &self.setup, usize::MAX)
    }
}
