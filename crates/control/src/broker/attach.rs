//! Attaching: a connection becomes a new domain, or resumes one that was attached to the previous daemon.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::Arc;

use isthmus_channel::ChannelParts;
use isthmus_layout::Refusal;
use isthmus_layout::channel::{ChannelGeometry, Direction};
use isthmus_layout::control::{Attach, Name, Owner, ReadyMapIndex, RequestSerial, Resume, Version, Welcome};
use isthmus_layout::ids::DomainId;
use isthmus_layout::limits::DAEMON_PATH_CREDIT_BYTES;
use isthmus_layout::ready_map::{self, ReadyBit};
use isthmus_layout::reason::Reason;
use isthmus_platform::{Doorbell, copy_fd};
use isthmus_service::{DomainCounters, NewDomain};
use isthmus_shm::SharedMapping;

use super::Broker;
use crate::core::SessionStage;
use crate::core::attachment::{Attachment, NewReadyMap, PeerMemory, ReadyMapFds};
use crate::core::granted_memory::sealed;
use crate::core::types::{ControlSessionId, Outgoing};
use crate::core::workers::WorkerSlot;
use crate::credentials::Credentials;
use crate::directory::AttachRequest;
use crate::fd_reaper::ReceivedFd;
use crate::policy::Identity;
use crate::tickets::{Process, ResumableDomain};
use isthmus_window::{Allocator, Resource};

/// Nanoseconds that the other end of a channel from before a restart has to resume and show the channel, if its process cannot be watched.
pub(super) const OTHER_HALF_TIMEOUT: u64 = 10_000_000_000;

/// Nanoseconds that the other end has once its domain has resumed. A domain shows its channels at once, so after this time it does not have
/// the channel.
pub(super) const ADOPT_TIMEOUT: u64 = 2_000_000_000;

/// The daemon's side of a domain's resources, and the resources that are sent to the domain.
struct DomainResources {
    attachment: Attachment,
    ready_map: SharedMapping,
    slot: WorkerSlot,
    resources: Vec<Resource>,
}

impl Broker {
    pub(super) fn attach(
        &mut self,
        id: ControlSessionId,
        serial: Option<RequestSerial>,
        request: Attach,
        fds: Vec<ReceivedFd>,
    ) -> Result<(), Refusal> {
        let session = &self.core.sessions[&id];
        let SessionStage::Greeted { version, library } = session.stage.clone() else {
            return Err(Reason::UnexpectedMessageType.into());
        };
        self.core.may_attach(id)?;
        let owner = Owner(session.socket_peer.uid);
        let credentials =
            Arc::new(Credentials::of_peer(&session.socket_peer, self.core.settings.overflow_uid.is_some()));
        let fallback = session.socket_peer.fallback_name();
        let resumed =
            request.resume.map(|resume| self.verify_resume(id, owner, request.name.as_ref(), &resume)).transpose()?;
        self.end_dead_holders(request.name.as_ref(), resumed);
        if resumed.is_none() {
            let pid = self.core.sessions[&id].socket_peer.pid;
            self.release_name_of_same_process(request.name.as_ref(), owner, pid);
        }
        let taker = self.core.taker(id).ok_or(Reason::PeerConnectionLost)?;
        let attach_request = AttachRequest { name: request.name, fallback, owner, taker, resumed };
        let domain = self.core.directory.attach(attach_request)?;
        let (domain, name) = (domain.id, domain.name.clone());
        let identity = Identity { name, owner, credentials };
        // A name that the daemon has chosen is checked as well.
        let allowed = self.core.policy.may_be_domain(&identity);
        let allocated = allowed.and_then(|()| self.allocate_resources(id, domain, &identity, (version, library), fds));
        let domain_resources = match allocated {
            Ok(domain_resources) => domain_resources,
            Err(refusal) => {
                self.core.directory.detach(domain);
                self.reserve_names();
                let (capabilities, core) = self.lend();
                capabilities.left(core, domain);
                self.core.sessions[&id].socket_peer.allocator.release_vector(domain);
                return Err(refusal);
            }
        };
        self.send_welcome(id, serial, identity, domain, domain_resources);
        if resumed.is_some() {
            self.resumed(domain);
            self.channels.set_peer_deadline(domain, self.core.now + ADOPT_TIMEOUT);
        }
        Ok(())
    }

    /// Checks the ticket of a domain that resumes.
    fn verify_resume(
        &self,
        id: ControlSessionId,
        owner: Owner,
        name: Option<&Name>,
        resume: &Resume,
    ) -> Result<DomainId, Refusal> {
        let name =
            name.ok_or_else(|| Refusal::new(Reason::RequestInvalid, "a domain that comes back says its name"))?;
        if self.core.sessions[&id].socket_peer.allocator.guest().is_some() {
            return Err(Refusal::new(Reason::TicketInvalid, "the memory of a guest's domain was in an earlier window"));
        }
        if self.core.tickets.verify(&resume.ticket, resume.domain, owner, name) {
            Ok(resume.domain)
        } else {
            let text = format!(
                "this daemon did not give it: the file of resumable domains was removed or is another one; {name} may attach anew, and \
                 messages that were under way between it and its peers are lost"
            );
            Err(Refusal::new(Reason::TicketInvalid, text))
        }
    }

    /// Ends a domain of this name or number if its connection is broken. The server may not have handled its end yet, although the new
    /// request has arrived.
    fn end_dead_holders(&mut self, name: Option<&Name>, number: Option<DomainId>) {
        let holder = name.and_then(|name| self.core.directory.find(name)).map(|domain| domain.id);
        for domain in [holder, number].into_iter().flatten() {
            if let Some(attachment) = self.core.attachments.get(&domain).filter(|attachment| attachment.hung_up()) {
                self.connection_lost(attachment.session, Reason::PeerConnectionLost);
            }
        }
    }

    /// Allocates or adopts all resources of a domain.
    fn allocate_resources(
        &mut self,
        id: ControlSessionId,
        domain: DomainId,
        identity: &Identity,
        (version, library): (Version, Name),
        fds: Vec<ReceivedFd>,
    ) -> Result<DomainResources, Refusal> {
        let owner = identity.owner;
        let allocator = self.core.sessions[&id].socket_peer.allocator.clone();
        let mut rings = allocator.allocate_rings(self.core.settings.ring_slab)?;
        if let Some(refusal) = rings.refused.take() {
            self.core.log_smaller_slabs(id, &rings, &refusal);
        }
        let (geometry, ring) = (ChannelGeometry { slab: rings.slab }, rings.memory);
        let (own_map, listener) = match <[ReceivedFd; 2]>::try_from(fds) {
            Ok([memory, doorbell]) => (adopt_ready_map(memory, doorbell)?, None),
            Err(_) => {
                let ready_map = NewReadyMap::own(&allocator, domain)?;
                (ready_map.peers, Some(ready_map.listener))
            }
        };
        let mapping = ring.map(geometry.size())?;
        let ready_map = own_map.memory.map(ready_map::SIZE)?;
        let socket_peer = &self.core.sessions[&id].socket_peer;
        let wakeup = match &allocator {
            Allocator::Host => Doorbell::from(copy_fd(&socket_peer.socket)?),
            Allocator::Guest(guest_window) => guest_window.wakeup(domain)?,
        };
        let held_resources = vec![ring.clone(), own_map.memory.clone()];
        let slot = self.core.workers.allocate_slot(domain, owner, &allocator, held_resources)?; // This comes after everything else that can fail.
        let counters = Arc::new(DomainCounters::default());
        let parts = ChannelParts {
            memory: mapping,
            geometry,
            send_direction: Direction::One,
            peer_ready_map: ready_map.clone(),
            ready_bit: ReadyBit::DOMAIN_RING,
            peer_doorbell: wakeup.clone(),
        };
        let (worker, ready_bit) = (slot.worker, slot.ready_bit);
        let mut resources = vec![ring, slot.memory.clone(), slot.doorbell.clone()];
        resources.extend(listener.map(|listener| [own_map.memory.clone(), listener]).into_iter().flatten());
        let attachment = Attachment {
            session: id,
            pid: socket_peer.pid,
            credentials: Arc::clone(&identity.credentials),
            library,
            version,
            since: self.core.now,
            worker,
            counters: Arc::clone(&counters),
            ready_maps: BTreeMap::from([(ReadyMapIndex::DAEMON, own_map)]),
            allocator,
            wakeup,
            ring_slab: geometry.slab,
            peer_memory: PeerMemory::default(),
        };
        self.core.workers.add(NewDomain { domain, owner, parts, ready_map: slot.ready_map, ready_bit, counters });
        Ok(DomainResources { attachment, ready_map, slot, resources })
    }

    fn send_welcome(
        &mut self,
        id: ControlSessionId,
        serial: Option<RequestSerial>,
        identity: Identity,
        domain: DomainId,
        domain_resources: DomainResources,
    ) {
        let DomainResources { attachment, ready_map, slot, resources } = domain_resources;
        let Identity { name, owner, .. } = identity.clone();
        match attachment.allocator {
            Allocator::Host => {
                let process = attachment.pid.and_then(Process::of_pid);
                self.core.tickets.record(ResumableDomain { domain, name: name.clone(), owner, process });
            }
            Allocator::Guest(_) => self.core.tickets.record_number(domain),
        }
        let message = Welcome {
            domain,
            ticket: self.core.tickets.ticket(domain, owner, &name),
            name,
            owner,
            epoch: self.core.settings.epoch,
            slab: attachment.ring_slab,
            daemon_ready_bit: slot.ready_bit,
            credit_bytes: DAEMON_PATH_CREDIT_BYTES,
            channels: self.core.policy.settings().channels || !self.core.policy.settings().rules.as_slice().is_empty(),
            fresh: resources.len() > 3,
        };
        tracing::debug!(%domain, name = %message.name, %owner, fresh = message.fresh, "attached");
        self.change_identities(|identities| drop(identities.insert(domain, identity)));
        if let Some(session) = self.core.sessions.get_mut(&id) {
            session.stage = SessionStage::Attached { domain };
        }
        self.core.outgoing.push_back(Outgoing::ReadyMap { to: id, ready_map, pid: attachment.pid });
        self.core.attachments.insert(domain, attachment);
        self.core.send(id, serial, message.into(), resources);
    }
}

/// Adopts the ready map of a domain that resumes. Its doorbell is checked, because the daemon will send it to other domains of the owner.
fn adopt_ready_map(memory: ReceivedFd, doorbell: ReceivedFd) -> Result<ReadyMapFds, Refusal> {
    let kind = std::fs::read_link(format!("/proc/self/fd/{}", doorbell.as_fd().as_raw_fd()));
    if !kind.is_ok_and(|kind| kind.as_os_str() == "anon_inode:[eventfd]") {
        return Err(Reason::DoorbellInvalid.into());
    }
    sealed(&memory, Some(ready_map::SIZE.0))?;
    Ok(ReadyMapFds { memory: memory.into_fd().into(), doorbell: doorbell.into_fd().into(), event_channel: None })
}
