//! Requests about queue pair numbers. What queue pairs exchange does not pass here.

use std::net::Ipv6Addr;

use isthmus_layout::control::RequestSerial;
use isthmus_layout::ids::{DomainId, EndpointAddress};
use isthmus_layout::reason::Reason;
use isthmus_layout::verbs::{
    BLOCK_NUMBERS, BLOCKS_MAX, VerbsFound, VerbsResolve, VerbsTake, VerbsTaken, VerbsToClient, VerbsToDaemon,
};
use isthmus_layout::{Capability, Refusal};

use super::Verbs;
use super::peers::NumberPeer;
use crate::broker::{Broker, ControlSessionId};

impl Verbs {
    /// Handles a request of a domain.
    pub(crate) fn request(
        broker: &mut Broker,
        session: ControlSessionId,
        serial: Option<RequestSerial>,
        domain: DomainId,
        request: &VerbsToDaemon,
    ) -> Result<(), Refusal> {
        let reply = Self::reply(broker, domain, request).inspect_err(|refusal| {
            *broker.capabilities.verbs.counts.refused.entry(refusal.reason).or_default() += 1;
        })?;
        broker.send(session, serial, reply.into(), Vec::new());
        Ok(())
    }

    /// Releases the numbers of a domain that has left, or that will not resume.
    pub(crate) fn left(broker: &mut Broker, domain: DomainId) {
        let Self { numbers, peers, .. } = &mut broker.capabilities.verbs;
        numbers.remove_domain(domain).into_iter().for_each(|first| peers.remove_block(first));
        peers.remove_domain(domain);
    }

    /// Releases the numbers of an endpoint that was closed.
    pub(crate) fn endpoint_closed(broker: &mut Broker, at: EndpointAddress) {
        let closed = broker.capabilities.verbs.numbers.close(at);
        closed.iter().for_each(|first| broker.capabilities.verbs.peers.remove_block(*first));
        let items: Vec<String> = closed.iter().map(u32::to_string).collect();
        broker.tickets.release_claims(Capability::Verbs, at.domain, &items);
    }

    fn reply(broker: &mut Broker, domain: DomainId, request: &VerbsToDaemon) -> Result<VerbsToClient, Refusal> {
        if !broker.capabilities.verbs.is_enabled {
            return Err(Reason::VerbsDisabled.into());
        }
        match request {
            VerbsToDaemon::VerbsTake(take) => Self::take(broker, domain, take).map(VerbsToClient::from),
            VerbsToDaemon::VerbsResolve(resolve) => Self::resolve(broker, domain, resolve).map(VerbsToClient::from),
        }
    }

    fn take(broker: &mut Broker, domain: DomainId, take: &VerbsTake) -> Result<VerbsTaken, Refusal> {
        let at = EndpointAddress { domain, endpoint: take.index };
        if !broker.directory.get(domain).is_some_and(|entry| entry.endpoints.contains_key(&take.index)) {
            return Err(Refusal::new(Reason::EndpointClosed, format!("{at} is not open")));
        }
        let taker = broker.taker_of(domain).ok_or(Reason::NoSuchDomain)?;
        let taken = broker.capabilities.verbs.numbers.take(take.first, at, taker);
        let first = taken.map_err(|reason| match take.first {
            Some(first) => Refusal::new(reason, format!("{}: {first:#08x}", reason.summary())),
            None => Refusal::new(
                reason,
                format!("{}: the maximum is {BLOCKS_MAX} blocks of {BLOCK_NUMBERS}", reason.summary()),
            ),
        })?;
        broker.tickets.claim(Capability::Verbs, &first.to_string(), domain);
        tracing::debug!(%at, first, "has a block of queue pair numbers");
        Ok(VerbsTaken { first, count: BLOCK_NUMBERS })
    }

    fn resolve(broker: &mut Broker, domain: DomainId, resolve: &VerbsResolve) -> Result<VerbsFound, Refusal> {
        let VerbsResolve { gid_high, gid_low, qpn } = *resolve;
        let gid = Ipv6Addr::from_bits(u128::from(gid_high) << 64 | u128::from(gid_low));
        let refused = |reason: Reason| {
            let on = if gid.is_unspecified() { "this host".to_owned() } else { gid.to_string() };
            Refusal::new(reason, format!("{}: queue pair {qpn:#08x} on {on}", reason.summary()))
        };
        let verbs = &mut broker.capabilities.verbs;
        if !gid.is_unspecified() && !verbs.gids.contains(gid, broker.now) {
            return Err(refused(Reason::VerbsGidUnknown));
        }
        let found = verbs.numbers.holder_of(qpn).ok_or_else(|| refused(Reason::VerbsNumberUnknown))?;
        let allowed = match broker.identity(domain).zip(broker.identity(found.domain)) {
            Some((from, to)) if found.domain != domain => broker.policy.may_send(&from, &to),
            _ => Ok(()),
        };
        broker.capabilities.verbs.peers.add(qpn, NumberPeer { domain, refused: allowed.err() });
        allowed.map_err(refused)?;
        broker.directory.watch(domain, found.domain);
        broker.capabilities.verbs.counts.resolved += 1;
        Ok(VerbsFound { domain: found.domain, endpoint: found.endpoint })
    }
}
