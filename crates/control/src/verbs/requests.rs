//! Requests about queue pair numbers. What queue pairs exchange does not pass here.

use std::net::Ipv6Addr;

use isthmus_layout::ids::{DomainId, EndpointAddress};
use isthmus_layout::proxy::addresses::InterfaceAddress;
use isthmus_layout::reason::Reason;
use isthmus_layout::verbs::{
    BLOCK_NUMBERS, BLOCKS_MAX, VerbsFound, VerbsResolve, VerbsTake, VerbsTaken, VerbsToClient, VerbsToDaemon,
};
use isthmus_layout::{Capability, Refusal};

use isthmus_window::GuestWindow;

use super::Verbs;
use super::peers::NumberPeer;
use crate::capabilities::Capabilities;
use crate::core::Core;
use crate::core::requester::{Answer, Requester};

impl Capabilities {
    /// Takes the addresses of a guest's interfaces. They replace those that it had.
    pub(crate) fn set_guest_addresses(&mut self, window: &GuestWindow, addresses: &[InterfaceAddress]) {
        self.verbs.gids.set_guest(window.number(), window.name(), addresses);
    }
}

impl Verbs {
    /// Handles a request of a domain.
    pub(crate) fn request(
        &mut self,
        core: &mut Core,
        from: &Requester,
        request: &VerbsToDaemon,
    ) -> Result<Answer, Refusal> {
        let reply = self.reply(core, from.domain()?, request).inspect_err(|refusal| {
            *self.counts.refused.entry(refusal.reason).or_default() += 1;
        })?;
        Ok(Answer::now(reply))
    }

    /// Releases the numbers of a domain that has left, or that will not resume.
    pub(crate) fn left(&mut self, domain: DomainId) {
        let Self { numbers, peers, .. } = self;
        numbers.remove_domain(domain).into_iter().for_each(|first| peers.remove_block(first));
        peers.remove_domain(domain);
    }

    /// Releases the numbers of an endpoint that was closed.
    pub(crate) fn endpoint_closed(&mut self, core: &mut Core, at: EndpointAddress) {
        let closed = self.numbers.close(at);
        closed.iter().for_each(|first| self.peers.remove_block(*first));
        let items: Vec<String> = closed.iter().map(u32::to_string).collect();
        core.tickets.release_claims(Capability::Verbs, at.domain, &items);
    }

    fn reply(&mut self, core: &mut Core, domain: DomainId, request: &VerbsToDaemon) -> Result<VerbsToClient, Refusal> {
        if !self.is_enabled {
            return Err(Reason::VerbsDisabled.into());
        }
        match request {
            VerbsToDaemon::VerbsTake(take) => self.take(core, domain, take).map(VerbsToClient::from),
            VerbsToDaemon::VerbsResolve(resolve) => self.resolve(core, domain, resolve).map(VerbsToClient::from),
        }
    }

    fn take(&mut self, core: &mut Core, domain: DomainId, take: &VerbsTake) -> Result<VerbsTaken, Refusal> {
        let at = EndpointAddress { domain, endpoint: take.index };
        if !core.directory.get(domain).is_some_and(|entry| entry.endpoints.contains_key(&take.index)) {
            return Err(Refusal::new(Reason::EndpointClosed, format!("{at} is not open")));
        }
        let taker = core.taker_of(domain).ok_or(Reason::NoSuchDomain)?;
        let taken = self.numbers.take(take.first, at, taker);
        let first = taken.map_err(|reason| match take.first {
            Some(first) => Refusal::new(reason, format!("{}: {first:#08x}", reason.summary())),
            None => Refusal::new(
                reason,
                format!("{}: the maximum is {BLOCKS_MAX} blocks of {BLOCK_NUMBERS}", reason.summary()),
            ),
        })?;
        core.tickets.claim(Capability::Verbs, &first.to_string(), domain);
        tracing::debug!(%at, first, "has a block of queue pair numbers");
        Ok(VerbsTaken { first, count: BLOCK_NUMBERS })
    }

    /// Finds the domain that has a number. The number decides, and the GID has to be one of the place that has it. A domain that may not send
    /// to the holder does not learn which GIDs that place has.
    fn resolve(&mut self, core: &mut Core, domain: DomainId, resolve: &VerbsResolve) -> Result<VerbsFound, Refusal> {
        let VerbsResolve { gid_high, gid_low, qpn } = *resolve;
        let gid = Ipv6Addr::from_bits(u128::from(gid_high) << 64 | u128::from(gid_low));
        let refused = |reason: Reason| {
            let on = if gid.is_unspecified() { "this host".to_owned() } else { gid.to_string() };
            Refusal::new(reason, format!("{}: queue pair {qpn:#08x} on {on}", reason.summary()))
        };
        let found = self.numbers.holder_of(qpn).ok_or_else(|| refused(Reason::VerbsNumberUnknown))?;
        let allowed = match core.identity(domain).zip(core.identity(found.domain)) {
            Some((from, to)) if found.domain != domain => core.policy.may_send(&from, &to),
            _ => Ok(()),
        };
        if allowed.is_ok() && !gid.is_unspecified() {
            let allocator = core.attachments.get(&found.domain).map(|attachment| &attachment.allocator);
            let guest = allocator.and_then(|of| Some((of.number(), of.guest()?)));
            if !self.gids.contains(guest, gid, core.now) {
                return Err(refused(Reason::VerbsGidUnknown));
            }
        }
        self.peers.add(qpn, NumberPeer { domain, refused: allowed.err() });
        allowed.map_err(refused)?;
        core.directory.watch(domain, found.domain);
        self.counts.resolved += 1;
        Ok(VerbsFound { domain: found.domain, endpoint: found.endpoint })
    }
}
