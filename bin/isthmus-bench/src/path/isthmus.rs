//! Isthmus itself: two domains of one daemon, and the path that they find to each other.
//!
//! The daemon is the one that `ISTHMUS_SOCKET` names, or the first that answers, or one that the library starts.

use anyhow::{Context, Result};
use isthmus_client::{Domain, EndpointAddress, EndpointIndex, Options, PathKind, QueryClient, Topic};

use super::{Link, Transport};
use crate::control_pipe::ControlPipe;
use crate::job::{Setup, Side, Wait};

/// The option that says how many peers which never say anything the following side has besides.
pub(crate) const IDLE_PEERS: &str = "idle_peers";

/// Descriptors that one more domain and its channel take in this process, on both of their ends.
const FDS_EACH: u64 = 24;

/// A message that only makes a channel: no measured message has this tag.
const HELLO: u64 = 1;

pub(crate) struct Isthmus {
    domain: Domain,
    endpoint: EndpointIndex,
    options: Options,
    idle_peers: usize,
}

pub(crate) struct IsthmusLink {
    domain: Domain,
    endpoint: EndpointIndex,
    peer: EndpointAddress,
    /// Silent peers; they stay attached, and their channels stay open.
    _idle: Vec<Domain>,
}

impl Transport for Isthmus {
    type Link = IsthmusLink;

    fn open(setup: &Setup) -> Result<Self> {
        let wait = match setup.wait {
            Wait::Poll => isthmus_client::WaitMode::Spin,
            Wait::Adaptive => isthmus_client::WaitMode::default(),
            Wait::Sleep => isthmus_client::WaitMode::Sleep,
        };
        let options = Options { wait, ..Options::from_environment()? };
        let mut domain = Domain::attach_with(&options).context("cannot attach to the daemon")?;
        let endpoint = domain.open(None, "bench")?;
        let idle_peers = setup.options.get(IDLE_PEERS).map_or(Ok(0), |count| count.parse()).context(IDLE_PEERS)?;
        Ok(Self { domain, endpoint, options, idle_peers })
    }

    fn connect(mut self, side: Side, control_pipe: &ControlPipe) -> Result<IsthmusLink> {
        let silent = match side {
            Side::Lead => Vec::new(),
            Side::Follow => self.idle_peers()?,
        };
        control_pipe.send(&(self.domain.id().number(), self.endpoint.number()))?;
        let (domain, endpoint): (u32, u8) = control_pipe.recv()?;
        let domain = isthmus_client::DomainId::new(domain).context("the other side has no number")?;
        let endpoint = EndpointIndex::new(endpoint).context("the other side has no endpoint")?;
        let peer = EndpointAddress { domain, endpoint };
        Ok(IsthmusLink { domain: self.domain, endpoint: self.endpoint, peer, _idle: silent })
    }
}

impl Isthmus {
    /// Domains that have a channel to ours and then say nothing more.
    fn idle_peers(&mut self) -> Result<Vec<Domain>> {
        let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let need = FDS_EACH * self.idle_peers as u64 + 1024;
        if limit.current.is_some_and(|current| current < need) {
            limit.current = Some(limit.maximum.map_or(need, |maximum| maximum.min(need)));
            rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).context("cannot open more files")?;
        }
        let to = EndpointAddress { domain: self.domain.id(), endpoint: self.endpoint };
        (0..self.idle_peers)
            .map(|number| self.one_idle_peer(to).with_context(|| format!("idle peer {number}")))
            .collect()
    }

    fn one_idle_peer(&mut self, to: EndpointAddress) -> Result<Domain> {
        let options = Options { wait: isthmus_client::WaitMode::Sleep, name: None, ..self.options.clone() };
        let mut domain = Domain::attach_with(&options)?;
        let endpoint = domain.open(None, "idle")?;
        let token = self.domain.receive(self.endpoint, vec![0; 8].into()).map_err(|(refusal, _)| refusal)?;
        domain.send(endpoint, to, HELLO, vec![0; 8].into()).map_err(|(refusal, _)| refusal)?;
        let mut arrived = false;
        // Both sides are ours, so both have to be driven.
        while !(arrived && domain.channels().iter().all(|peer| matches!(peer.path, PathKind::Channel(_)))) {
            arrived |= self.domain.poll().is_some_and(|completion| completion.token == token);
            domain.poll();
        }
        Ok(domain)
    }
}

impl Link for IsthmusLink {
    fn send(&mut self, message: &[u8]) -> Result<()> {
        Ok(self.domain.send_from(self.endpoint, self.peer, 0, message)?)
    }

    fn recv(&mut self, into: &mut [u8]) -> Result<()> {
        let received = self.domain.receive_into(self.endpoint, into)?;
        anyhow::ensure!(
            received.len == into.len() as u64,
            "a message of {} bytes came instead of {}",
            received.len,
            into.len()
        );
        Ok(())
    }
}

/// The daemon's process.
pub(crate) fn daemon() -> Result<u32> {
    let mut inquirer = QueryClient::connect(&Options::from_environment()?)?;
    let status: serde_json::Value = serde_json::from_str(&inquirer.query(Topic::Status, &[])?)?;
    let pid = status.get("pid").and_then(serde_json::Value::as_u64).context("the daemon does not say its process")?;
    Ok(u32::try_from(pid)?)
}
