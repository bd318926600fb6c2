//! Boards of other hosts: connects to them, and the addresses of remote peers.
//!
//! The data plane finds the endpoints and assigns the numbers of remote peers. The addresses are kept here, to answer requests.

use std::collections::{BTreeMap, VecDeque};

use isthmus_layout::Refusal;
use isthmus_layout::ids::{DomainId, EndpointIndex, NicId};
use isthmus_layout::mx::{MxConnect, MxFound};
use isthmus_layout::reason::Reason;
use isthmus_service::{Event, MxBoardNumber, MxCommand, NewMxConnect, RemoteAddress};

use super::requests::describe;
use super::{Mx, MxNumber, board_command};
use crate::core::Core;
use crate::core::pending_requests::PendingRequest;
use crate::core::requester::Requester;

/// The number of remote peers that are remembered after they are gone.
const DEPARTED_MAX: usize = 4096;

/// A connect to another host, in addition to what every pending request has.
#[derive(Debug)]
pub(super) struct Connect {
    /// The local MX endpoint number that connects.
    pub(super) own_number: MxNumber,
    pub(super) target: MxConnect,
}

/// The boards and endpoint numbers of remote peers.
#[derive(Debug, Default)]
pub(super) struct RemoteAddresses {
    known: BTreeMap<DomainId, (NicId, u8)>,
    departed: VecDeque<(DomainId, NicId, u8)>,
}

impl RemoteAddresses {
    /// Returns the address of a remote peer, also if it left recently.
    pub(super) fn address_of(&self, remote_peer: DomainId) -> Result<(NicId, u8), Reason> {
        let left = || {
            self.departed.iter().rev().find(|(left, ..)| *left == remote_peer).map(|&(_, nic, number)| (nic, number))
        };
        self.known.get(&remote_peer).copied().or_else(left).ok_or(Reason::MxNumberMissing)
    }

    /// Notes that a remote peer is gone. Its address is remembered for a while.
    pub(super) fn depart(&mut self, remote_peer: DomainId) {
        let Some((nic, number)) = self.known.remove(&remote_peer) else { return };
        if self.departed.len() == DEPARTED_MAX {
            self.departed.pop_front();
        }
        self.departed.push_back((remote_peer, nic, number));
    }
}

impl Mx {
    /// Connects a domain to a board of another host. The reply is sent later.
    pub(super) fn connect_remote(
        &mut self,
        core: &mut Core,
        from: &Requester,
        domain: DomainId,
        target: &MxConnect,
    ) -> Result<(), Refusal> {
        let refused = |reason: Reason| Refusal::new(reason, format!("{}: {}", reason.summary(), describe(target)));
        let nic = NicId::new(target.nic).ok_or_else(|| refused(Reason::MxNicUnknown))?;
        let own_numbers = self.numbers.of_domain(domain).map(|(_, number)| number);
        let own_number = own_numbers.filter(|number| self.board_has_links(number.board)).min();
        // The board's worker decides whether the remote board is known, because the view here may be old.
        let own_number = own_number
            .ok_or_else(|| refused(if self.is_known(nic) { Reason::MxNumberMissing } else { Reason::MxNicUnknown }))?;
        let number = u8::try_from(target.endpoint).map_err(|_| refused(Reason::MxEndpointOutOfRange))?;
        let taker = core.taker(from.session).ok_or(Reason::NoSuchDomain)?;
        let details = Connect { own_number, target: target.clone() };
        let pending = PendingRequest { domain, taker, session: from.session, serial: from.serial, details };
        let request = self.connects.insert(pending).map_err(|full| {
            let text = format!("too many connects to other hosts are without an answer: {full}");
            Refusal::new(Reason::TooManyRequests, format!("{text}: {}", describe(target)))
        })?;
        let (board, endpoint) = (MxBoardNumber(own_number.board), own_number.endpoint as u8);
        let connect = NewMxConnect { request, board, endpoint, nic, number, key: target.key };
        core.workers.send(board_command(board, MxCommand::Connect(connect)));
        Ok(())
    }

    /// Handles an event of the data plane about other hosts.
    pub(crate) fn event(&mut self, core: &mut Core, event: &Event) {
        match *event {
            Event::RemoteConnected { request, outcome } => self.connected(core, request, outcome),
            Event::RemoteAdded { remote_peer, address: RemoteAddress::Mx { nic, number }, .. } => {
                self.remote.known.insert(remote_peer, (nic, number));
            }
            Event::RemoteRemoved { remote_peer, .. } => self.remote.depart(remote_peer),
            _ => {}
        }
    }

    fn connected(&mut self, core: &mut Core, request: u64, outcome: Result<DomainId, Reason>) {
        let Some(PendingRequest { session, serial, details, .. }) = self.connects.remove(request) else { return };
        match outcome {
            Ok(domain) => {
                let endpoint = EndpointIndex::new(0).expect("the first endpoint is one");
                core.send(session, serial, MxFound { domain, endpoint }.into(), Vec::new());
            }
            Err(reason) => {
                let refusal = Refusal::new(reason, format!("{}: {}", reason.summary(), describe(&details.target)));
                core.refuse(session, serial, &refusal);
            }
        }
    }

    /// True if one of the local boards knows the board `nic`.
    fn is_known(&self, nic: NicId) -> bool {
        let views = self.views.iter().flatten().filter_map(|view| view.lock().ok());
        views.into_iter().any(|view| view.peers.iter().any(|peer| peer.nic == nic && !peer.forgotten))
    }
}
