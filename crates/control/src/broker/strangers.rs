//! Endpoints of other hosts: connecting to them, and by which number a domain of ours knows whom.
//!
//! The data plane finds them and hands the numbers out; here it is remembered who is who, for those who ask.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use isthmus_layout::control::{Grant, MxConnect, MxFound, Owner, PeerGone, Refused, RequestSerial, Revoke, Text};
use isthmus_layout::ids::{DomainId, EndpointAddress, EndpointIndex, NicId, RegionId};
use isthmus_layout::limits::PEER_REGIONS_MAX;
use isthmus_layout::reason::Reason;
use isthmus_mx::wire::SessionId as MxSession;
use isthmus_service::{Command, Event, MxBoardNumber, MxConnect as ConnectOrder, MxEndpoint, MxView};
use isthmus_shm::rehome::PeerRegion;

use super::grants::sealed;
use super::{Broker, Refusal, SessionId};
use crate::directory::mx::MxNumber;
use crate::disposal::Given;
use crate::network;

/// Those who are gone and are remembered.
const LEFT_MAX: usize = 4096;

/// Connects without an answer: of one domain, of all domains of one user, and of all together. Whom nobody answers keeps theirs for as
/// long as a peer is waited for, so one user must not have all.
const CONNECTS_PER_DOMAIN_MAX: usize = 1024;
const CONNECTS_PER_USER_MAX: usize = 4 * CONNECTS_PER_DOMAIN_MAX;
const CONNECTS_MAX: usize = 2 * CONNECTS_PER_USER_MAX;

/// Bytes of one region, an end of the plausible.
const REGION_BYTES_MAX: u64 = 64 << 30;

/// Somebody on another host.
#[derive(Debug)]
struct Stranger {
    domain: DomainId,
    nic: NicId,
    number: u8,
    regions: Vec<RegionId>,
}

#[derive(Debug)]
struct Connect {
    domain: DomainId,
    owner: Owner,
    /// The number of ours that connects.
    own: MxNumber,
    session: SessionId,
    serial: Option<RequestSerial>,
    asked: MxConnect,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Strangers {
    /// What is to be seen of each board; none for those without links.
    pub(crate) views: Vec<Option<Arc<Mutex<MxView>>>>,
    known: BTreeMap<DomainId, Stranger>,
    left: VecDeque<(DomainId, NicId, u8)>,
    connects: BTreeMap<u64, Connect>,
    next: u64,
}

impl Strangers {
    /// Over boards of which this is to be seen.
    pub(crate) fn new(views: Vec<Option<Arc<Mutex<MxView>>>>) -> Self {
        Self { views, ..Self::default() }
    }

    /// Connects without an answer.
    pub(crate) fn connects(&self) -> usize {
        self.connects.len()
    }

    fn is_wired(&self, board: u32) -> bool {
        self.views.get(board as usize).is_some_and(Option::is_some)
    }

    /// Whether a board of ours has heard of that one.
    fn is_known(&self, nic: NicId) -> bool {
        let views = self.views.iter().flatten().filter_map(|view| view.lock().ok());
        views.into_iter().any(|view| view.peers.iter().any(|peer| peer.nic == nic && !peer.forgotten))
    }

    /// Whether a domain may begin another connect; says whose limit is reached if not.
    fn connects_left(&self, domain: DomainId, owner: Owner) -> Result<(), String> {
        let count = |of: fn(&Connect, DomainId, Owner) -> bool| {
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

    /// Who somebody is, or was until lately.
    pub(super) fn who(&self, stranger: DomainId) -> Result<(NicId, u8), Reason> {
        let left =
            || self.left.iter().rev().find(|(left, ..)| *left == stranger).map(|&(_, nic, number)| (nic, number));
        let known = self.known.get(&stranger).map(|known| (known.nic, known.number));
        known.or_else(left).ok_or(Reason::MxNoNumber)
    }
}

impl Broker {
    /// An endpoint has an MX number: if its board has links, others reach it from now on.
    pub(super) fn open_to_others(&self, number: MxNumber, at: EndpointAddress, key: u32) -> Result<(), Refusal> {
        if !self.strangers.is_wired(number.board) {
            return Ok(());
        }
        let refused = |error| Refusal::new(Reason::OutOfMemory, format!("drawing random numbers: {error}"));
        let [session, secret] = network::random().map_err(refused)?;
        let ring_slab = self.homes.get(&at.domain).ok_or(Reason::NoSuchDomain)?.ring_slab;
        self.workers.tell(Command::OpenMx(Box::new(MxEndpoint {
            board: MxBoardNumber(number.board),
            number: number.endpoint as u8, // A board has at most 255.
            domain: at.domain,
            at: at.endpoint,
            credit: ring_slab.bytes() / 4 * 3,
            key,
            session: MxSession(session & !1), // Never the one that stands for none.
            secret,
        })));
        Ok(())
    }

    /// It has not any more.
    pub(super) fn close_to_others(&mut self, number: MxNumber, domain: DomainId) {
        if self.strangers.is_wired(number.board) {
            let (board, endpoint) = (MxBoardNumber(number.board), number.endpoint as u8);
            self.workers.tell(Command::CloseMx { board, endpoint });
            let gone: Vec<DomainId> =
                self.strangers.known.iter().filter(|(_, known)| known.domain == domain).map(|(id, _)| *id).collect();
            for stranger in gone {
                self.forget_stranger(stranger);
            }
            let over: Vec<Connect> = self
                .strangers
                .connects
                .extract_if(.., |_, connect| connect.own == number)
                .map(|(_, over)| over)
                .collect();
            for Connect { session, serial, asked, .. } in over {
                let text = format!("the endpoint that connects was closed: {}", told(&asked));
                let refused = Refused { reason: Reason::MxNoNumber, text: Text::clip(&text) };
                self.send(session, serial, refused.into(), Vec::new());
            }
        }
    }

    /// A domain connects to a board that is none of ours. The answer comes later.
    pub(super) fn connect_to_others(
        &mut self,
        session: SessionId,
        serial: Option<RequestSerial>,
        domain: DomainId,
        asked: &MxConnect,
    ) -> Result<(), Refusal> {
        let refused = |reason: Reason| Refusal::new(reason, format!("{}: {}", reason.summary(), told(asked)));
        let nic = NicId::new(asked.nic).ok_or_else(|| refused(Reason::MxNoNic))?;
        let mut own = self.directory.mx().claims().filter(|(_, claim)| claim.at.domain == domain);
        let own = own.find(|(number, _)| self.strangers.is_wired(number.board)).map(|(number, _)| number);
        // Whom the board of that number knows is its worker's to say: what is seen of it here may be old.
        let own = own
            .ok_or_else(|| refused(if self.strangers.is_known(nic) { Reason::MxNoNumber } else { Reason::MxNoNic }))?;
        let number = u8::try_from(asked.endpoint).map_err(|_| refused(Reason::MxEndpointBeyond))?;
        let owner = self.directory.get(domain).ok_or(Reason::NoSuchDomain)?.owner;
        let full = |text| Refusal::new(Reason::TooManyRequests, format!("{text}: {}", told(asked)));
        self.strangers.connects_left(domain, owner).map_err(full)?;
        let request = self.strangers.next;
        self.strangers.next += 1;
        let (key, asked) = (asked.key, asked.clone());
        self.strangers.connects.insert(request, Connect { domain, owner, own, session, serial, asked });
        let (board, endpoint, key) = (MxBoardNumber(own.board), own.endpoint as u8, key);
        let connect = ConnectOrder { request, board, endpoint, nic, number, key };
        self.workers.tell(Command::ConnectMx(connect));
        Ok(())
    }

    /// What the data plane has to say about other hosts.
    pub(super) fn event_of_others(&mut self, event: &Event) {
        match *event {
            Event::MxConnected { request, outcome } => self.connected_to_others(request, outcome),
            Event::MxMet { stranger, domain, nic, number } => {
                self.strangers.known.insert(stranger, Stranger { domain, nic, number, regions: Vec::new() });
            }
            Event::MxParted { stranger, domain, reason } => {
                if self.forget_stranger(stranger) {
                    self.tell(domain, PeerGone { peer: stranger, reason }.into());
                }
            }
            Event::Fault { .. } | Event::Removed { .. } | Event::Stopped { .. } => {}
        }
    }

    fn connected_to_others(&mut self, request: u64, outcome: Result<DomainId, Reason>) {
        let Some(Connect { session, serial, asked, .. }) = self.strangers.connects.remove(&request) else { return };
        match outcome {
            Ok(domain) => {
                let endpoint = EndpointIndex::new(0).expect("the first endpoint is one");
                self.send(session, serial, MxFound { domain, endpoint }.into(), Vec::new());
            }
            Err(reason) => {
                let refusal = Refusal::new(reason, format!("{}: {}", reason.summary(), told(&asked)));
                self.refuse(session, serial, &refusal);
            }
        }
    }

    /// True if it was known.
    fn forget_stranger(&mut self, stranger: DomainId) -> bool {
        let Some(Stranger { nic, number, .. }) = self.strangers.known.remove(&stranger) else { return false };
        let left = &mut self.strangers.left;
        if left.len() == LEFT_MAX {
            left.pop_front();
        }
        left.push_back((stranger, nic, number));
        true
    }

    /// Messages to a stranger may be sent straight out of a domain's memory: the data plane maps it, and nobody else does.
    pub(super) fn grant_stranger(&mut self, domain: DomainId, grant: &Grant, memory: Given) -> Result<(), Refusal> {
        let Grant { peer, region, start, bytes } = *grant;
        let known = self.strangers.known.get_mut(&peer).filter(|known| known.domain == domain);
        let known = known.ok_or(Reason::NoSuchDomain)?;
        if known.regions.len() >= PEER_REGIONS_MAX {
            return Err(Reason::RegionsFull.into());
        }
        sealed(&memory, start.checked_add(bytes))?;
        let mapped = PeerRegion::map(&memory.keep(), start, bytes, REGION_BYTES_MAX);
        let memory = mapped.map_err(|error| Refusal::new(Reason::RegionNotSealed, error.to_string()))?;
        known.regions.push(region);
        self.workers.tell(Command::GrantStranger { stranger: peer, region, memory: Arc::new(memory) });
        Ok(())
    }

    pub(super) fn revoke_stranger(&mut self, domain: DomainId, revoke: &Revoke) -> Result<(), Refusal> {
        let Revoke { peer, region } = *revoke;
        let known = self.strangers.known.get_mut(&peer).filter(|known| known.domain == domain);
        let regions = &mut known.ok_or(Reason::RegionNotGranted)?.regions;
        let at = regions.iter().position(|granted| *granted == region).ok_or(Reason::RegionNotGranted)?;
        regions.swap_remove(at);
        self.workers.tell(Command::RevokeStranger { stranger: peer, region });
        Ok(())
    }
}

fn told(asked: &MxConnect) -> String {
    match NicId::new(asked.nic) {
        Some(nic) => format!("{nic}, endpoint {}", asked.endpoint),
        None => format!("{:#x}, endpoint {}", asked.nic, asked.endpoint),
    }
}
