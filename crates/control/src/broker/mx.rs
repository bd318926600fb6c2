//! Requests about MX endpoint numbers. MX messages do not pass here: endpoints that are connected send plain messages.

use isthmus_layout::control::RequestSerial;
use isthmus_layout::ids::{DomainId, EndpointAddress, EndpointIndex, NicId};
use isthmus_layout::mx::{MxConnect, MxFound, MxOpen, MxOpened, MxResolve, MxResolved, MxToDaemon};
use isthmus_layout::reason::Reason;

use super::{Broker, ControlSessionId, Refusal};

impl Broker {
    pub(super) fn mx_request(
        &mut self,
        id: ControlSessionId,
        serial: Option<RequestSerial>,
        domain: DomainId,
        request: &MxToDaemon,
    ) -> Result<(), Refusal> {
        let reply = match request {
            MxToDaemon::MxOpen(open) => self.mx_open(domain, open)?.into(),
            MxToDaemon::MxConnect(connect) => match self.mx_connect(id, serial, domain, connect)? {
                Some(found) => found.into(),
                None => return Ok(()),
            },
            MxToDaemon::MxResolve(resolve) => self.mx_resolve(resolve)?.into(),
        };
        self.send(id, serial, reply, Vec::new());
        Ok(())
    }

    fn mx_open(&mut self, domain: DomainId, open: &MxOpen) -> Result<MxOpened, Refusal> {
        let MxOpen { board, endpoint, key, index: at } = *open;
        let at = EndpointAddress { domain, endpoint: at };
        let number = self.directory.open_mx(board, endpoint, key, at).map_err(|reason| {
            let any = |number: Option<u32>| number.map_or_else(|| "any".to_owned(), |number| number.to_string());
            let target = format!("board {}, endpoint {}", any(board), any(endpoint));
            match reason {
                Reason::RequestInvalid => Refusal::new(reason, format!("{at} has an MX endpoint number already")),
                reason => Refusal::new(reason, format!("{}: {target}", reason.summary())),
            }
        })?;
        let nic = self.directory.mx().board(number.board).expect("it was claimed there").nic;
        self.tickets.claim(number, domain);
        self.publish_mx_endpoint(number, at, key)?;
        tracing::debug!(%at, board = number.board, endpoint = number.endpoint, "has an MX endpoint number");
        Ok(MxOpened { board: number.board, endpoint: number.endpoint, nic: nic.number() })
    }

    /// Closes an endpoint, and releases its MX endpoint number.
    pub(super) fn close_endpoint(&mut self, domain: DomainId, endpoint: EndpointIndex) -> Result<(), Refusal> {
        let number = self.directory.mx().number_of(EndpointAddress { domain, endpoint });
        self.directory.close_endpoint(domain, endpoint)?;
        if let Some(number) = number {
            self.tickets.release_claim(number);
            self.unpublish_mx_endpoint(number, domain);
        }
        Ok(())
    }

    /// Connects to an MX endpoint number. None if the endpoint is on another host: the reply is sent later.
    fn mx_connect(
        &mut self,
        session: ControlSessionId,
        serial: Option<RequestSerial>,
        domain: DomainId,
        connect: &MxConnect,
    ) -> Result<Option<MxFound>, Refusal> {
        let MxConnect { nic, endpoint, key } = *connect;
        if self.directory.mx().boards().iter().all(|board| board.nic.number() != nic) {
            return self.connect_remote(session, serial, domain, connect).map(|()| None);
        }
        let target = || match NicId::new(nic) {
            Some(nic) => format!("{nic}, endpoint {endpoint}"),
            None => format!("{nic:#x}, endpoint {endpoint}"),
        };
        let refused = |reason: Reason| Refusal::new(reason, format!("{}: {}", reason.summary(), target()));
        let found = self.directory.mx().connect(nic, endpoint, key).map_err(refused)?;
        if found.domain != domain
            && let Some((from, to)) = self.identity(domain).zip(self.identity(found.domain))
        {
            self.policy.may_send(&from, &to).map_err(refused)?;
        }
        self.directory.watch(domain, found.domain);
        Ok(Some(MxFound { domain: found.domain, endpoint: found.endpoint }))
    }

    /// Returns the endpoint number of an endpoint. Any domain may ask for it, as for the names of domains.
    fn mx_resolve(&self, request: &MxResolve) -> Result<MxResolved, Refusal> {
        let at = EndpointAddress { domain: request.domain, endpoint: request.endpoint };
        let mx = self.directory.mx();
        let refused = |reason: Reason| Refusal::new(reason, format!("{}: {at}", reason.summary()));
        if at.domain.is_remote() {
            let (nic, number) = self.remote_peers.address_of(at.domain).map_err(refused)?;
            return Ok(MxResolved { nic: nic.number(), endpoint: number.into() });
        }
        let number = mx.last_number_of(at).map_err(refused)?;
        let nic = mx.board(number.board).expect("it was claimed there").nic;
        Ok(MxResolved { nic: nic.number(), endpoint: number.endpoint })
    }
}
