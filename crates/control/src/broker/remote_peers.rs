//! Endpoints of other hosts: connecting to them, and the numbers by which local domains know them.
//!
//! The data plane finds the endpoints and assigns the numbers. The broker keeps the addresses, to answer requests.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use isthmus_layout::control::{Grant, Owner, PeerGone, Refused, RequestSerial, Revoke, Text};
use isthmus_layout::ids::{DomainId, EndpointAddress, EndpointIndex, NicId, RegionId};
use isthmus_layout::limits::PEER_REGIONS_MAX;
use isthmus_layout::mx::{MxConnect, MxFound};
use isthmus_layout::reason::Reason;
use isthmus_mx::wire::SessionId as MxSession;
use isthmus_service::{Command, Event, MxBoardNumber, MxCommand, MxView, NewMxConnect, NewMxEndpoint};
use isthmus_shm::regcache::PeerRegion;

use super::grants::sealed;
use super::{Broker, ControlSessionId, Refusal};
use crate::directory::mx::MxNumber;
use crate::fd_reaper::ReceivedFd;
use crate::network;

/// The number of remote peers that are remembered after they are gone.
const DEPARTED_MAX: usize = 4096;

/// Unanswered connects: of one domain, of all domains of one user, and of all together. A connect without a reply stays until the peer is
/// given up, so one user must not be able to take all places.
const CONNECTS_PER_DOMAIN_MAX: usize = 1024;
const CONNECTS_PER_USER_MAX: usize = 4 * CONNECTS_PER_DOMAIN_MAX;
const CONNECTS_MAX: usize = 2 * CONNECTS_PER_USER_MAX;

/// The largest accepted size of a region in bytes, as a plausibility check.
const REGION_BYTES_MAX: u64 = 64 << 30;

/// An endpoint on another host.
#[derive(Debug)]
struct RemotePeer {
    domain: DomainId,
    nic: NicId,
    number: u8,
    regions: Vec<RegionId>,
}

#[derive(Debug)]
struct PendingConnect {
    domain: DomainId,
    owner: Owner,
    /// The local MX endpoint number that connects.
    own_number: MxNumber,
    session: ControlSessionId,
    serial: Option<RequestSerial>,
    target: MxConnect,
}

/// The remote peers of all domains, and the connects to other hosts.
#[derive(Debug, Default)]
pub(crate) struct RemotePeers {
    /// The visible state of each board; none for boards without links.
    pub(crate) views: Vec<Option<Arc<Mutex<MxView>>>>,
    known: BTreeMap<DomainId, RemotePeer>,
    departed: VecDeque<(DomainId, NicId, u8)>,
    connects: BTreeMap<u64, PendingConnect>,
    next: u64,
}

impl RemotePeers {
    /// Creates the state for boards with these views.
    pub(crate) fn new(views: Vec<Option<Arc<Mutex<MxView>>>>) -> Self {
        Self { views, ..Self::default() }
    }

    /// The number of connects without a reply.
    pub(crate) fn connects(&self) -> usize {
        self.connects.len()
    }

    fn has_links(&self, board: u32) -> bool {
        self.views.get(board as usize).is_some_and(Option::is_some)
    }

    /// True if one of the local boards knows the board `nic`.
    fn is_known(&self, nic: NicId) -> bool {
        let views = self.views.iter().flatten().filter_map(|view| view.lock().ok());
        views.into_iter().any(|view| view.peers.iter().any(|peer| peer.nic == nic && !peer.forgotten))
    }

    /// Checks whether a domain may begin another connect. The error names the limit that is reached.
    fn check_connect_limits(&self, domain: DomainId, owner: Owner) -> Result<(), String> {
        let count = |of: fn(&PendingConnect, DomainId, Owner) -> bool| {
            self.connects.values().filter(|connect| of(connect, domain, owner)).count()
        };
        let (of, max) = match () {
            () if count(|connect, domain, _| connect.domain == domain) >= CONNECTS_PER_DOMAIN_MAX => {
                (" of this domain", CONNECTS_PER_DOMAIN_MAX)
            }
            () if count(|connect, _, owner| connect.owner == owner) >= CONNECTS_PER_USER_MAX => {
                (" of this user", CONNECTS_PER_USER_MAX)
            }
            () if self.connects.len() >= CONNECTS_MAX => ("", CONNECTS_MAX),
            () => return Ok(()),
        };
        Err(format!("{max} connects{of} to other hosts are without an answer"))
    }

    /// Returns the address of a remote peer, also if it left recently.
    pub(super) fn address_of(&self, remote_peer: DomainId) -> Result<(NicId, u8), Reason> {
        let left = || {
            self.departed.iter().rev().find(|(left, ..)| *left == remote_peer).map(|&(_, nic, number)| (nic, number))
        };
        let known = self.known.get(&remote_peer).map(|known| (known.nic, known.number));
        known.or_else(left).ok_or(Reason::MxNumberMissing)
    }
}

impl Broker {
    /// Makes an endpoint reachable: if the board of its MX number has links, other hosts can connect to it from now on.
    pub(super) fn publish_mx_endpoint(&self, number: MxNumber, at: EndpointAddress, key: u32) -> Result<(), Refusal> {
        if !self.remote_peers.has_links(number.board) {
            return Ok(());
        }
        let refused = |error| Refusal::new(Reason::OutOfMemory, format!("drawing random numbers: {error}"));
        let [session, secret] = network::random_u32s().map_err(refused)?;
        let ring_slab = self.attachments.get(&at.domain).ok_or(Reason::NoSuchDomain)?.ring_slab;
        self.workers.send(Command::Mx(MxCommand::OpenEndpoint(Box::new(NewMxEndpoint {
            board: MxBoardNumber(number.board),
            number: number.endpoint as u8, // A board has at most 255.
            domain: at.domain,
            at: at.endpoint,
            credit: ring_slab.bytes() / 4 * 3,
            key,
            session: MxSession(session & !1), // Never the one that stands for none.
            secret,
        }))));
        Ok(())
    }

    /// Makes an endpoint unreachable, and refuses its pending connects.
    pub(super) fn unpublish_mx_endpoint(&mut self, number: MxNumber, domain: DomainId) {
        if self.remote_peers.has_links(number.board) {
            let (board, endpoint) = (MxBoardNumber(number.board), number.endpoint as u8);
            self.workers.send(Command::Mx(MxCommand::CloseEndpoint { board, endpoint }));
            let gone: Vec<DomainId> =
                self.remote_peers.known.iter().filter(|(_, known)| known.domain == domain).map(|(id, _)| *id).collect();
            for remote_peer in gone {
                self.forget_remote_peer(remote_peer);
            }
            let closed: Vec<PendingConnect> = self
                .remote_peers
                .connects
                .extract_if(.., |_, connect| connect.own_number == number)
                .map(|(_, closed)| closed)
                .collect();
            for PendingConnect { session, serial, target, .. } in closed {
                let text = format!("the endpoint that connects was closed: {}", describe(&target));
                let refused = Refused { reason: Reason::MxNumberMissing, text: Text::clip(&text) };
                self.send(session, serial, refused.into(), Vec::new());
            }
        }
    }

    /// Connects a domain to a board of another host. The reply is sent later.
    pub(super) fn connect_remote(
        &mut self,
        session: ControlSessionId,
        serial: Option<RequestSerial>,
        domain: DomainId,
        target: &MxConnect,
    ) -> Result<(), Refusal> {
        let refused = |reason: Reason| Refusal::new(reason, format!("{}: {}", reason.summary(), describe(target)));
        let nic = NicId::new(target.nic).ok_or_else(|| refused(Reason::MxNicUnknown))?;
        let mut own_number = self.directory.mx().claims().filter(|(_, claim)| claim.at.domain == domain);
        let own_number =
            own_number.find(|(number, _)| self.remote_peers.has_links(number.board)).map(|(number, _)| number);
        // The board's worker decides whether the remote board is known, because the view here may be old.
        let own_number = own_number.ok_or_else(|| {
            refused(if self.remote_peers.is_known(nic) { Reason::MxNumberMissing } else { Reason::MxNicUnknown })
        })?;
        let number = u8::try_from(target.endpoint).map_err(|_| refused(Reason::MxEndpointOutOfRange))?;
        let owner = self.directory.get(domain).ok_or(Reason::NoSuchDomain)?.owner;
        let full = |text| Refusal::new(Reason::TooManyRequests, format!("{text}: {}", describe(target)));
        self.remote_peers.check_connect_limits(domain, owner).map_err(full)?;
        let request = self.remote_peers.next;
        self.remote_peers.next += 1;
        let (key, target) = (target.key, target.clone());
        self.remote_peers
            .connects
            .insert(request, PendingConnect { domain, owner, own_number, session, serial, target });
        let (board, endpoint, key) = (MxBoardNumber(own_number.board), own_number.endpoint as u8, key);
        let connect = NewMxConnect { request, board, endpoint, nic, number, key };
        self.workers.send(Command::Mx(MxCommand::Connect(connect)));
        Ok(())
    }

    /// Handles an event of the data plane about other hosts.
    pub(super) fn handle_mx_event(&mut self, event: &Event) {
        match *event {
            Event::RemoteConnected { request, outcome } => self.remote_connected(request, outcome),
            Event::RemoteAdded { remote_peer, domain, nic, number } => {
                self.remote_peers.known.insert(remote_peer, RemotePeer { domain, nic, number, regions: Vec::new() });
            }
            Event::RemoteRemoved { remote_peer, domain, reason } => {
                if self.forget_remote_peer(remote_peer) {
                    self.notify(domain, PeerGone { peer: remote_peer, reason }.into());
                }
            }
            Event::Fault { .. } | Event::Removed { .. } | Event::Stopped { .. } => {}
        }
    }

    fn remote_connected(&mut self, request: u64, outcome: Result<DomainId, Reason>) {
        let Some(PendingConnect { session, serial, target, .. }) = self.remote_peers.connects.remove(&request) else {
            return;
        };
        match outcome {
            Ok(domain) => {
                let endpoint = EndpointIndex::new(0).expect("the first endpoint is one");
                self.send(session, serial, MxFound { domain, endpoint }.into(), Vec::new());
            }
            Err(reason) => {
                let refusal = Refusal::new(reason, format!("{}: {}", reason.summary(), describe(&target)));
                self.refuse(session, serial, &refusal);
            }
        }
    }

    /// Returns true if the remote peer was known.
    fn forget_remote_peer(&mut self, remote_peer: DomainId) -> bool {
        let Some(RemotePeer { nic, number, .. }) = self.remote_peers.known.remove(&remote_peer) else { return false };
        let left = &mut self.remote_peers.departed;
        if left.len() == DEPARTED_MAX {
            left.pop_front();
        }
        left.push_back((remote_peer, nic, number));
        true
    }

    /// Lets messages to a remote peer be sent directly from a domain's memory. Only the data plane maps that memory.
    pub(super) fn grant_remote(&mut self, domain: DomainId, grant: &Grant, memory: ReceivedFd) -> Result<(), Refusal> {
        let Grant { peer, region, start, bytes } = *grant;
        let known = self.remote_peers.known.get_mut(&peer).filter(|known| known.domain == domain);
        let known = known.ok_or(Reason::NoSuchDomain)?;
        if known.regions.len() >= PEER_REGIONS_MAX {
            return Err(Reason::RegionsFull.into());
        }
        sealed(&memory, start.checked_add(bytes))?;
        let mapped = PeerRegion::map(&memory.into_fd(), start, bytes, REGION_BYTES_MAX);
        let memory = mapped.map_err(|error| Refusal::new(Reason::RegionNotSealed, error.to_string()))?;
        known.regions.push(region);
        self.workers.send(Command::GrantRemote { remote_peer: peer, region, memory: Arc::new(memory) });
        Ok(())
    }

    pub(super) fn revoke_remote(&mut self, domain: DomainId, revoke: &Revoke) -> Result<(), Refusal> {
        let Revoke { peer, region } = *revoke;
        let known = self.remote_peers.known.get_mut(&peer).filter(|known| known.domain == domain);
        let regions = &mut known.ok_or(Reason::RegionNotGranted)?.regions;
        let at = regions.iter().position(|granted| *granted == region).ok_or(Reason::RegionNotGranted)?;
        regions.swap_remove(at);
        self.workers.send(Command::RevokeRemote { remote_peer: peer, region });
        Ok(())
    }
}

fn describe(target: &MxConnect) -> String {
    match NicId::new(target.nic) {
        Some(nic) => format!("{nic}, endpoint {}", target.endpoint),
        None => format!("{:#x}, endpoint {}", target.nic, target.endpoint),
    }
}
