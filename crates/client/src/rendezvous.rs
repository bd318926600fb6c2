//! Messages too long for the slab: announced first, so that they are copied only when their receiver knows where to.
//!
//! ```text
//!   sender                                   receiver
//!   Announce { region, offset, edges } ────►  maps the region (once), copies straight out of it
//!                         ◄──── Completed
//!   Announce { no region } ────────────────►  has a receive for it
//!                             ◄──── Pull
//!   NextFragment … ────────────────────────►  copies each fragment out of the slab while the next one is copied in
//! ```
//!
//! The first is for buffers that are used again, between domains of one owner; everything else goes in fragments.

use crate::core::Core;
use crate::matcher::{Announced, Envelope, Matcher, Posted};
use crate::peer::{ChannelState, Destination, GrantState, Incoming, Outgoing, Path, Peer, PeerIndex};
use crate::send::SendStop;
use isthmus_layout::arena::REGION;
use isthmus_layout::channel::SlowPathReasons;
use isthmus_layout::control::Grant;
use isthmus_layout::ids::RegionId;
use isthmus_layout::limits::PEER_REGIONS_MAX;
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Fragment, MappablePages, ReceiveOutcome, Record, Serial};
use isthmus_shm::regcache::{MigrationTarget, PeerRegion, Prepared, RegionGrantError, RegionKey, Warm};
use rustix::fd::{AsFd, OwnedFd};

/// Bytes of one region of a peer, an end of the plausible.
const REGION_BYTES_MAX: u64 = 64 << 30;

/// An announcement's own words.
struct AnnounceFields {
    fragment: Fragment,
    mapped: Option<MappablePages>,
}

impl<M: Matcher> Core<M> {
    /// Announces a message and keeps it until its receiver takes it.
    pub(crate) fn announce(&mut self, at: PeerIndex, mut message: Outgoing) -> Result<(), (SendStop, Outgoing)> {
        let warm = self.region_for(at, &message);
        match self.try_send_announce(at, &message, warm.as_ref()) {
            Ok(()) => {
                message.region_use = warm.map(|warm| warm.region_use);
                self.peers[at].announced.insert(message.serial, message);
                Ok(())
            }
            Err(stop) => Err((stop, message)),
        }
    }

    fn try_send_announce(&mut self, at: PeerIndex, message: &Outgoing, warm: Option<&Warm>) -> Result<(), SendStop> {
        let bytes = message.buffer.as_slice();
        let mut send_path = self.peers[at].send_path(&mut self.inbox, self.ring).ok_or(SendStop::NoPath)?;
        if !send_path.channel.has_room_for_record()? {
            return Err(SendStop::Full);
        }
        let mut announcement = AnnounceFields { fragment: Fragment { offset: 0, len: 0 }, mapped: None };
        if let Some(warm) = warm {
            let (head, tail) = (&bytes[warm.head.clone()], &bytes[warm.tail.clone()]);
            let edges = (head.len() + tail.len()) as u32;
            if edges > 0 {
                announcement.fragment = send_path.reserve(edges, edges)?.ok_or(SendStop::Full)?;
                send_path.channel.copy_in(announcement.fragment, 0, head);
                send_path.channel.copy_in(announcement.fragment, head.len() as u32, tail);
            }
            announcement.mapped = Some(MappablePages {
                region: RegionId(warm.region.number()),
                offset: warm.offset,
                head: head.len() as u16,
                tail: tail.len() as u16,
            });
        }
        let AnnounceFields { fragment, mapped } = announcement;
        let record =
            Record::Announce { tag: message.tag, len: bytes.len() as u64, serial: message.serial, fragment, mapped };
        send_path.send(message.endpoints, &record, &[], fragment.len)?;
        Ok(())
    }

    /// Returns the message's buffer in a region that the peer has. If there is none, starts to grant one.
    fn region_for(&mut self, at: PeerIndex, message: &Outgoing) -> Option<Warm> {
        let peer = &self.peers[at];
        if !matches!(peer.path_out, Path::Channel(_)) && !peer.id.is_remote() {
            return None; // That path has a reason of its own.
        }
        let found = self.find_region(at, message);
        let fragmented = &mut self.peers[at].fragmented;
        match found {
            Ok(_) => *fragmented = None,
            // After something stood in its way a buffer counts as new for some time, and what stood there is still the reason.
            Err(Reason::BufferNew) => *fragmented = fragmented.or(Some(Reason::BufferNew)),
            Err(reason) => *fragmented = Some(reason),
        }
        self.publish_slow_path_reasons(at);
        found.ok()
    }

    /// Publishes why slower paths to a peer are used, for the daemon's reports.
    pub(crate) fn publish_slow_path_reasons(&mut self, at: PeerIndex) {
        let Peer { channel_state, fragmented, assisted, .. } = self.peers[at];
        if let ChannelState::Made { key, .. } = channel_state
            && let Some(channel) = self.inbox.channel(key)
        {
            channel.publish_slow_path_reasons(SlowPathReasons { fragmented, assisted });
        }
    }

    fn find_region(&mut self, at: PeerIndex, message: &Outgoing) -> Result<Warm, Reason> {
        let peer = &self.peers[at];
        // For a remote peer it is the daemon that gets the region, and it keeps it to itself.
        if peer.owner != Some(self.identity.owner) && !peer.id.is_remote() {
            return Err(Reason::DifferentOwner);
        }
        if let Some(reason) = peer.grants_refused {
            return Err(reason);
        }
        if self.is_in_guest() {
            return self.find_region_in_guest(at, message);
        }
        let warm = match message.buffer.migrate(&self.registration_cache, MigrationTarget::Memfds) {
            Prepared::Warm(warm) => warm,
            Prepared::Cold(cold) => return Err(cold.reason()),
            Prepared::NeedsExtent { .. } => return Err(Reason::BufferNew), // Never: files are ours to make.
        };
        match peer.granted.get(&RegionId(warm.region.number())) {
            Some(GrantState::Yes) => Ok(warm),
            Some(GrantState::Asked(_)) => Err(Reason::BufferNew), // To the peer it is.
            Some(&GrantState::Refused(reason)) => Err(reason),
            None => Err(self.grant(at, warm.region).err().unwrap_or(Reason::BufferNew)),
        }
    }

    /// Asks the daemon to pass a region on to a peer.
    fn grant(&mut self, at: PeerIndex, region: RegionKey) -> Result<(), Reason> {
        self.revoke_released(); // What is new often takes the place of something old.
        let grant = self.registration_cache.grant(region).map_err(|error| match error {
            RegionGrantError::Gone | RegionGrantError::HostOwned => Reason::BufferNew,
            RegionGrantError::Descriptor(_) => Reason::BufferOutOfFds,
        })?;
        let peer = self.peers[at].id;
        let id = RegionId(region.number());
        let message = Grant { peer, region: id, start: grant.start, bytes: grant.len };
        let serial = self.try_send_request(message.into(), &[grant.fd.as_fd()])?;
        self.peers[at].granted.insert(id, GrantState::Asked(serial));
        Ok(())
    }

    /// Revokes the grants of regions that were released.
    pub(crate) fn revoke_released(&mut self) {
        for region in self.registration_cache.take_released() {
            let region = RegionId(region.number());
            self.hide_region(region);
            let holders: Vec<_> =
                self.peers.iter_mut().filter_map(|peer| peer.granted.remove(&region).map(|_| peer.id)).collect();
            for peer in holders {
                self.send_request(isthmus_layout::control::Revoke { peer, region }.into(), &[]);
            }
        }
    }

    /// Processes the grants of one peer. All other notifications stay pending, because the caller is in the middle of an operation.
    pub(crate) fn process_grants_of(&mut self, at: PeerIndex) {
        let peer = self.peers[at].id;
        let came = self.control.as_mut().map(|control| control.take_grants_of(peer)).unwrap_or_default();
        for (granted, fd) in came {
            self.map_granted_region(at, granted.region, granted.start, granted.bytes, fd);
        }
    }

    /// Maps a region that a peer has granted.
    pub(crate) fn map_granted_region(&mut self, at: PeerIndex, region: RegionId, start: u64, bytes: u64, fd: OwnedFd) {
        if region == REGION {
            return self.handle_arena_granted(at, fd);
        }
        // A region that cannot be mapped counts as not granted: its messages come in fragments.
        let Ok(mapped) = PeerRegion::map(&fd, start, bytes, REGION_BYTES_MAX) else { return };
        self.clock += 1;
        let regions = &mut self.peers[at].regions;
        if regions.len() >= PEER_REGIONS_MAX {
            let oldest = regions.iter().min_by_key(|(_, (_, used))| *used).map(|(&region, _)| region);
            oldest.and_then(|region| regions.remove(&region));
        }
        regions.insert(region, (mapped, self.clock));
    }

    /// A receive for an announced message.
    pub(crate) fn receive_announced(
        &mut self,
        at: PeerIndex,
        envelope: Envelope,
        announced: &Announced,
        mut posted: Posted,
    ) {
        let endpoints = self.reply_endpoints(&envelope);
        let serial = announced.serial;
        let bytes = envelope.len.min(posted.buffer.len() as u64);
        if bytes == 0 {
            self.received(posted, &envelope);
            return self.send_urgent(
                at,
                endpoints,
                Record::Completed { serial, outcome: ReceiveOutcome::Copied, bytes },
            );
        }
        if let Some(mapped) = announced.mapped {
            if self.copy_mapped(at, &envelope, mapped, &announced.edges, &mut posted).is_some() {
                self.received(posted, &envelope);
                return self.send_urgent(
                    at,
                    endpoints,
                    Record::Completed { serial, outcome: ReceiveOutcome::Copied, bytes },
                );
            }
            self.start_pulled_receive(at, envelope, serial, posted);
            return self.send_urgent(
                at,
                endpoints,
                Record::Completed { serial, outcome: ReceiveOutcome::NoRegion, bytes },
            );
        }
        self.start_pulled_receive(at, envelope, serial, posted);
        self.send_urgent(at, endpoints, Record::Pull { serial, bytes });
    }

    fn start_pulled_receive(&mut self, at: PeerIndex, envelope: Envelope, serial: Serial, posted: Posted) {
        let expected = envelope.len.min(posted.buffer.len() as u64);
        let incoming = Incoming { envelope, expected, received: 0, destination: Destination::Posted(posted) };
        // A peer that uses one serial for two messages loses the first, and its receive must not wait for ever.
        if let Some(Incoming { envelope, destination: Destination::Posted(posted), .. }) =
            self.peers[at].pulled.insert(serial, incoming)
        {
            self.complete(posted, envelope.to, crate::matcher::Outcome::Failed(Reason::PeerFault));
        }
    }

    /// Copies a message out of its sender's region. None if the region is not mapped here, or does not hold the message.
    fn copy_mapped(
        &mut self,
        at: PeerIndex,
        envelope: &Envelope,
        mapped: MappablePages,
        edges: &[u8],
        posted: &mut Posted,
    ) -> Option<()> {
        if !self.peers[at].regions.contains_key(&mapped.region) {
            self.process_grants_of(at); // The grant may still be in the control socket: it was sent before the announcement.
        }
        self.clock += 1;
        let clock = self.clock;
        let (region, used) = self.peers[at].regions.get_mut(&mapped.region)?;
        *used = clock;
        let (head, tail) = edges.split_at_checked(usize::from(mapped.head))?;
        let body = usize::try_from(envelope.len).ok()?.checked_sub(edges.len())?;
        let into = posted.buffer.as_mut_slice();
        let (into_head, rest) = into.split_at_mut(head.len().min(into.len()));
        into_head.copy_from_slice(&head[..into_head.len()]);
        let (into_body, rest) = rest.split_at_mut(body.min(rest.len()));
        region.copy_out(mapped.offset, into_body).ok()?;
        if !region.is_valid() {
            return None; // Perhaps not while we copied.
        }
        let tail = &tail[..tail.len().min(rest.len())];
        rest[..tail.len()].copy_from_slice(tail);
        Some(())
    }

    /// The receiver wants an announced message in fragments.
    pub(crate) fn handle_pull(&mut self, at: PeerIndex, serial: Serial, bytes: u64) {
        if let Some(mut message) = self.peers[at].announced.remove(&serial) {
            message.region_use = None;
            message.wanted = message.buffer.len().min(usize::try_from(bytes).unwrap_or(usize::MAX));
            self.peers[at].streams.push_back(message);
            self.advance(at);
        }
    }

    /// The receiver is done with an announced message.
    pub(crate) fn handle_completed(&mut self, at: PeerIndex, serial: Serial, outcome: ReceiveOutcome, bytes: u64) {
        match outcome {
            ReceiveOutcome::NoRegion => {
                self.peers[at].granted.clear(); // It lost some; the next use grants anew.
                self.handle_pull(at, serial, bytes);
            }
            ReceiveOutcome::Copied | ReceiveOutcome::Dropped => {
                let Some(mut message) = self.peers[at].announced.remove(&serial) else { return };
                message.wanted = message.buffer.len().min(usize::try_from(bytes).unwrap_or(usize::MAX));
                let len = message.wanted as u64;
                if let Some(send_path) = self.peers[at].send_path(&mut self.inbox, self.ring) {
                    send_path.channel.count(len);
                }
                match outcome {
                    ReceiveOutcome::Dropped => self.fail_send(message, Reason::EndpointClosed),
                    _ => self.complete_send(message),
                }
            }
        }
    }
}
