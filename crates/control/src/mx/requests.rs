//! Requests about MX endpoint numbers. MX messages do not pass here: endpoints that are connected send plain messages.

use isthmus_layout::Capability;
use isthmus_layout::Refusal;
use isthmus_layout::control::Refused;
use isthmus_layout::ids::{DomainId, EndpointAddress, NicId};
use isthmus_layout::mx::{MxConnect, MxFound, MxOpen, MxOpened, MxResolve, MxResolved, MxToClient, MxToDaemon};
use isthmus_layout::reason::Reason;
use isthmus_mx::wire::SessionId as MxSession;
use isthmus_service::{MxBoardNumber, MxCommand, NewMxEndpoint};

use super::{Mx, MxNumber, board_command, network};
use crate::core::Core;
use crate::core::requester::{Answer, Requester};
use crate::directory::Directory;
use crate::places::Taker;

impl Mx {
    /// Handles a request of a domain.
    pub(crate) fn request(
        &mut self,
        core: &mut Core,
        from: &Requester,
        request: &MxToDaemon,
    ) -> Result<Answer, Refusal> {
        let domain = from.domain()?;
        let reply: MxToClient = match request {
            MxToDaemon::MxOpen(open) => self.claim_number(core, domain, open)?.into(),
            MxToDaemon::MxConnect(connect) => match self.connect(core, from, domain, connect)? {
                Some(found) => found.into(),
                None => return Ok(Answer::Later),
            },
            MxToDaemon::MxResolve(resolve) => self.resolve(core, domain, resolve)?.into(),
        };
        Ok(Answer::now(reply))
    }

    /// Releases the numbers of a domain that has left, or that will not resume.
    pub(crate) fn left(&mut self, core: &mut Core, domain: DomainId) {
        for number in self.numbers.remove_domain(domain) {
            self.unpublish(core, number, domain);
        }
    }

    /// Releases the number of an endpoint that was closed.
    pub(crate) fn endpoint_closed(&mut self, core: &mut Core, at: EndpointAddress) {
        if let Some(number) = self.numbers.close(at) {
            core.tickets.release_claims(Capability::Mx, at.domain, &[number.to_string()]);
            self.unpublish(core, number, at.domain);
        }
    }

    fn claim_number(&mut self, core: &mut Core, domain: DomainId, open: &MxOpen) -> Result<MxOpened, Refusal> {
        let MxOpen { board, endpoint, key, index: at } = *open;
        let at = EndpointAddress { domain, endpoint: at };
        let taker = core.taker_of(domain).ok_or(Reason::NoSuchDomain)?;
        let claimed = self.claim(&core.directory, taker, (board, endpoint, key), at);
        let number = claimed.map_err(|reason| {
            let any = |number: Option<u32>| number.map_or_else(|| "any".to_owned(), |number| number.to_string());
            let target = format!("board {}, endpoint {}", any(board), any(endpoint));
            match reason {
                Reason::RequestInvalid => Refusal::new(reason, format!("{at} has an MX endpoint number already")),
                reason => Refusal::new(reason, format!("{}: {target}", reason.summary())),
            }
        })?;
        let nic = self.numbers.board(number.board).expect("it was claimed there").nic;
        core.tickets.claim(Capability::Mx, &number.to_string(), domain);
        self.publish(core, number, at, key)?;
        tracing::debug!(%at, board = number.board, endpoint = number.endpoint, "has an MX endpoint number");
        Ok(MxOpened { board: number.board, endpoint: number.endpoint, nic: nic.number() })
    }

    /// Claims a number for an open endpoint: see [`EndpointNumbers::open`](super::EndpointNumbers::open).
    pub(super) fn claim(
        &mut self,
        directory: &Directory,
        taker: Taker,
        (board, endpoint, key): (Option<u32>, Option<u32>, u32),
        at: EndpointAddress,
    ) -> Result<MxNumber, Reason> {
        let domain = directory.get(at.domain).ok_or(Reason::NoSuchDomain)?;
        if !domain.endpoints.contains_key(&at.endpoint) {
            return Err(Reason::EndpointClosed);
        }
        self.numbers.open(board, endpoint, key, at, taker)
    }

    /// Connects to an MX endpoint number. None if the endpoint is on another host: the reply is sent later.
    fn connect(
        &mut self,
        core: &mut Core,
        from: &Requester,
        domain: DomainId,
        connect: &MxConnect,
    ) -> Result<Option<MxFound>, Refusal> {
        let MxConnect { nic, endpoint, key } = *connect;
        let numbers = &self.numbers;
        if numbers.boards().iter().all(|board| board.nic.number() != nic) {
            return self.connect_remote(core, from, domain, connect).map(|()| None);
        }
        let refused = |reason: Reason| Refusal::new(reason, format!("{}: {}", reason.summary(), describe(connect)));
        let may_connect = |at: EndpointAddress| match core.identity(domain).zip(core.identity(at.domain)) {
            Some((from, to)) if at.domain != domain => core.policy.may_send(&from, &to),
            _ => Ok(()),
        };
        let found = numbers.connect((nic, endpoint, key), may_connect).map_err(refused)?;
        core.directory.watch(domain, found.domain);
        Ok(Some(MxFound { domain: found.domain, endpoint: found.endpoint }))
    }

    /// Returns the endpoint number of an endpoint. A domain may ask for it if it may send to the endpoint or receive from it.
    fn resolve(&self, core: &Core, asker: DomainId, request: &MxResolve) -> Result<MxResolved, Refusal> {
        let at = EndpointAddress { domain: request.domain, endpoint: request.endpoint };
        let refused = |reason: Reason| Refusal::new(reason, format!("{}: {at}", reason.summary()));
        if at.domain.is_remote() {
            let (nic, number) = self.remote.address_of(at.domain).map_err(refused)?;
            return Ok(MxResolved { nic: nic.number(), endpoint: number.into() });
        }
        if at.domain != asker
            && let Some((asker, asked)) = core.identity(asker).zip(core.identity(at.domain))
        {
            let policy = &core.policy;
            policy.may_send(&asker, &asked).or_else(|_| policy.may_send(&asked, &asker)).map_err(refused)?;
        }
        let number = self.numbers.last_number_of(at).map_err(refused)?;
        let nic = self.numbers.board(number.board).expect("it was claimed there").nic;
        Ok(MxResolved { nic: nic.number(), endpoint: number.endpoint })
    }

    /// Makes an endpoint reachable: if the board of its number has links, other hosts can connect to it from now on.
    fn publish(&self, core: &Core, number: MxNumber, at: EndpointAddress, key: u32) -> Result<(), Refusal> {
        if !self.board_has_links(number.board) {
            return Ok(());
        }
        let refused = |error| Refusal::new(Reason::OutOfMemory, format!("drawing random numbers: {error}"));
        let [session, secret] = network::random_u32s().map_err(refused)?;
        let ring_slab = core.attachments.get(&at.domain).ok_or(Reason::NoSuchDomain)?.ring_slab;
        let board = MxBoardNumber(number.board);
        let open = MxCommand::OpenEndpoint(Box::new(NewMxEndpoint {
            board,
            number: number.endpoint as u8, // A board has at most 255.
            domain: at.domain,
            at: at.endpoint,
            credit: ring_slab.bytes() / 4 * 3,
            key,
            session: MxSession(session & !1), // Never the one that stands for none.
            secret,
        }));
        core.workers.send(board_command(board, open));
        Ok(())
    }

    /// Makes an endpoint unreachable, and refuses its pending connects.
    fn unpublish(&mut self, core: &mut Core, number: MxNumber, domain: DomainId) {
        if !self.board_has_links(number.board) {
            return;
        }
        let (board, endpoint) = (MxBoardNumber(number.board), number.endpoint as u8);
        core.workers.send(board_command(board, MxCommand::CloseEndpoint { board, endpoint }));
        for remote_peer in core.remote_peers.remove_of(domain) {
            self.remote.depart(remote_peer);
        }
        for closed in self.connects.remove_of(domain, |connect| connect.own_number == number) {
            let text = format!("the endpoint that connects was closed: {}", describe(&closed.details.target));
            let refused = Refused::from(&Refusal::new(Reason::MxNumberMissing, text));
            core.send(closed.session, closed.serial, refused.into(), Vec::new());
        }
    }
}

/// Describes the target of a connect, for people.
pub(super) fn describe(target: &MxConnect) -> String {
    match NicId::new(target.nic) {
        Some(nic) => format!("{nic}, endpoint {}", target.endpoint),
        None => format!("{:#x}, endpoint {}", target.nic, target.endpoint),
    }
}
