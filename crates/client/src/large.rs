//! Messages too long for the slab: announced first, so that they are copied only when their receiver knows where to.
//!
//! ```text
//!   sender                                   receiver
//!   Announce { region, offset, edges } ────►  maps the region (once), copies straight out of it
//!                             ◄──── Taken
//!   Announce { no region } ────────────────►  has a receive for it
//!                             ◄──── Pull
//!   More, More, More … ────────────────────►  copies each piece out of the slab while the next one is copied in
//! ```
//!
//! The first is for buffers that are used again, between domains of one owner; everything else goes in pieces.

use crate::core::Core;
use crate::matcher::{Announced, Envelope, Matcher, Posted};
use crate::peer::{Granted, Incoming, Into, Making, Outgoing, Path, Peer, PeerIndex};
use crate::send::Stop;
use isthmus_layout::arena::REGION;
use isthmus_layout::channel::Slower;
use isthmus_layout::control::Grant;
use isthmus_layout::ids::RegionId;
use isthmus_layout::limits::PEER_REGIONS_MAX;
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Mapped, Outcome, Piece, Record, Serial};
use isthmus_shm::rehome::{GrantError, Onto, PeerRegion, Prepared, RegionKey, Warm};
use rustix::fd::{AsFd, OwnedFd};

/// Bytes of one region of a peer, an end of the plausible.
const REGION_BYTES_MAX: u64 = 64 << 30;

/// An announcement's own words.
struct Announcement {
    piece: Piece,
    mapped: Option<Mapped>,
}

impl<M: Matcher> Core<M> {
    /// Announces a message and keeps it until its receiver takes it.
    pub(crate) fn announce(&mut self, at: PeerIndex, mut message: Outgoing) -> Result<(), (Stop, Outgoing)> {
        let warm = self.warm(at, &message);
        match self.try_announce(at, &message, warm.as_ref()) {
            Ok(()) => {
                message.held = warm.map(|warm| warm.held);
                self.peers[at].announced.insert(message.serial, message);
                Ok(())
            }
            Err(stop) => Err((stop, message)),
        }
    }

    fn try_announce(&mut self, at: PeerIndex, message: &Outgoing, warm: Option<&Warm>) -> Result<(), Stop> {
        let bytes = message.buffer.as_slice();
        let mut lane = self.peers[at].lane(&mut self.inbox, self.ring).ok_or(Stop::NoPath)?;
        if !lane.channel.has_room_for_record()? {
            return Err(Stop::Full);
        }
        let mut announcement = Announcement { piece: Piece { offset: 0, len: 0 }, mapped: None };
        if let Some(warm) = warm {
            let (head, tail) = (&bytes[warm.head.clone()], &bytes[warm.tail.clone()]);
            let edges = (head.len() + tail.len()) as u32;
            if edges > 0 {
                announcement.piece = lane.reserve(edges, edges)?.ok_or(Stop::Full)?;
                lane.channel.fill(announcement.piece, 0, head);
                lane.channel.fill(announcement.piece, head.len() as u32, tail);
            }
            announcement.mapped = Some(Mapped {
                region: RegionId(warm.region.number()),
                offset: warm.offset,
                head: head.len() as u16,
                tail: tail.len() as u16,
            });
        }
        let Announcement { piece, mapped } = announcement;
        let record =
            Record::Announce { tag: message.tag, len: bytes.len() as u64, serial: message.serial, piece, mapped };
        lane.send(message.between, &record, &[], piece.len)?;
        Ok(())
    }

    /// The message's buffer in a region that the peer has, if there is one; otherwise sees to it that there will be.
    fn warm(&mut self, at: PeerIndex, message: &Outgoing) -> Option<Warm> {
        let peer = &self.peers[at];
        if !matches!(peer.out, Path::Channel(_)) && !peer.id.is_remote() {
            return None; // That path has a reason of its own.
        }
        let found = self.find_warm(at, message);
        let in_pieces = &mut self.peers[at].in_pieces;
        match found {
            Ok(_) => *in_pieces = None,
            // After something stood in its way a buffer counts as new for some time, and what stood there is still the reason.
            Err(Reason::BufferNew) => *in_pieces = in_pieces.or(Some(Reason::BufferNew)),
            Err(reason) => *in_pieces = Some(reason),
        }
        self.show_slower(at);
        found.ok()
    }

    /// Lets the daemon know, for its reports, why slower ways are taken to a peer.
    pub(crate) fn show_slower(&mut self, at: PeerIndex) {
        let Peer { making, in_pieces, asked, .. } = self.peers[at];
        if let Making::Made { key, .. } = making
            && let Some(channel) = self.inbox.channel(key)
        {
            channel.show_slower(Slower { pieces: in_pieces, asked });
        }
    }

    fn find_warm(&mut self, at: PeerIndex, message: &Outgoing) -> Result<Warm, Reason> {
        let peer = &self.peers[at];
        // For somebody on another host it is the daemon that gets the region, and it keeps it to itself.
        if peer.owner != Some(self.me.owner) && !peer.id.is_remote() {
            return Err(Reason::OtherOwner);
        }
        if self.is_in_guest() {
            return self.find_warm_in_guest(at, message);
        }
        let warm = match message.buffer.rehome(&self.rehome, Onto::Files) {
            Prepared::Warm(warm) => warm,
            Prepared::Cold(cold) => return Err(cold.reason()),
            Prepared::Wanted { .. } => return Err(Reason::BufferNew), // Never: files are ours to make.
        };
        match peer.granted.get(&RegionId(warm.region.number())) {
            Some(Granted::Yes) => Ok(warm),
            Some(Granted::Asked(_)) => Err(Reason::BufferNew), // To the peer it is.
            Some(&Granted::Refused(reason)) => Err(reason),
            None => Err(self.grant(at, warm.region).err().unwrap_or(Reason::BufferNew)),
        }
    }

    /// Asks the daemon to pass a region on to a peer.
    fn grant(&mut self, at: PeerIndex, region: RegionKey) -> Result<(), Reason> {
        self.revoke_released(); // What is new often takes the place of something old.
        let grant = self.rehome.grant(region).map_err(|error| match error {
            GrantError::Gone | GrantError::NotOurs => Reason::BufferNew,
            GrantError::Descriptor(_) => Reason::BufferOutOfFds,
        })?;
        let peer = self.peers[at].id;
        let id = RegionId(region.number());
        let message = Grant { peer, region: id, start: grant.start, bytes: grant.len };
        let serial = self.try_tell(message.into(), &[grant.fd.as_fd()])?;
        self.peers[at].granted.insert(id, Granted::Asked(serial));
        Ok(())
    }

    /// Regions that were given back are not granted any more.
    pub(crate) fn revoke_released(&mut self) {
        for region in self.rehome.take_released() {
            let region = RegionId(region.number());
            self.hide(region);
            let holders: Vec<_> =
                self.peers.iter_mut().filter_map(|peer| peer.granted.remove(&region).map(|_| peer.id)).collect();
            for peer in holders {
                self.tell(isthmus_layout::control::Revoke { peer, region }.into(), &[]);
            }
        }
    }

    /// Takes what a peer has granted us, and leaves all other news where they are: we are in the middle of something.
    pub(crate) fn take_grants(&mut self, at: PeerIndex) {
        let peer = self.peers[at].id;
        let came = self.control.as_mut().map(|control| control.take_grants(peer)).unwrap_or_default();
        for (granted, fd) in came {
            self.granted(at, granted.region, granted.start, granted.bytes, fd);
        }
    }

    /// A peer lets us map memory of its.
    pub(crate) fn granted(&mut self, at: PeerIndex, region: RegionId, start: u64, bytes: u64, fd: OwnedFd) {
        if region == REGION {
            return self.arena_granted(at, fd);
        }
        // A region that cannot be mapped is one that was never granted: its messages come in pieces.
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
    pub(crate) fn take_announced(
        &mut self,
        at: PeerIndex,
        envelope: Envelope,
        announced: &Announced,
        mut posted: Posted,
    ) {
        let between = self.back(&envelope);
        let serial = announced.serial;
        let bytes = envelope.len.min(posted.buffer.len() as u64);
        if bytes == 0 {
            self.received(posted, &envelope);
            return self.urgent(at, between, Record::Taken { serial, outcome: Outcome::Copied, bytes });
        }
        if let Some(mapped) = announced.mapped {
            if self.copy_mapped(at, &envelope, mapped, &announced.edges, &mut posted).is_some() {
                self.received(posted, &envelope);
                return self.urgent(at, between, Record::Taken { serial, outcome: Outcome::Copied, bytes });
            }
            self.pulled(at, envelope, serial, posted);
            return self.urgent(at, between, Record::Taken { serial, outcome: Outcome::NoRegion, bytes });
        }
        self.pulled(at, envelope, serial, posted);
        self.urgent(at, between, Record::Pull { serial, bytes });
    }

    fn pulled(&mut self, at: PeerIndex, envelope: Envelope, serial: Serial, posted: Posted) {
        let expected = envelope.len.min(posted.buffer.len() as u64);
        let incoming = Incoming { envelope, expected, received: 0, into: Into::Posted(posted) };
        // A peer that gives two messages one name loses the first, and its receive must not wait for ever.
        if let Some(Incoming { envelope, into: Into::Posted(posted), .. }) =
            self.peers[at].pulled.insert(serial, incoming)
        {
            self.complete(posted, envelope.to, crate::matcher::Outcome::Failed(Reason::PeerFault));
        }
    }

    /// Copies a message out of its sender's region. None if we do not have the region, or it does not hold the message.
    fn copy_mapped(
        &mut self,
        at: PeerIndex,
        envelope: &Envelope,
        mapped: Mapped,
        edges: &[u8],
        posted: &mut Posted,
    ) -> Option<()> {
        if !self.peers[at].regions.contains_key(&mapped.region) {
            self.take_grants(at); // It may wait on the control socket: it was sent before the announcement.
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
        if !region.is_there() {
            return None; // Perhaps not while we copied.
        }
        let tail = &tail[..tail.len().min(rest.len())];
        rest[..tail.len()].copy_from_slice(tail);
        Some(())
    }

    /// The receiver wants an announced message in pieces.
    pub(crate) fn pull(&mut self, at: PeerIndex, serial: Serial, bytes: u64) {
        if let Some(mut message) = self.peers[at].announced.remove(&serial) {
            message.held = None;
            message.wanted = message.buffer.len().min(usize::try_from(bytes).unwrap_or(usize::MAX));
            self.peers[at].streams.push_back(message);
            self.advance(at);
        }
    }

    /// The receiver is done with an announced message.
    pub(crate) fn taken(&mut self, at: PeerIndex, serial: Serial, outcome: Outcome, bytes: u64) {
        match outcome {
            Outcome::NoRegion => {
                self.peers[at].granted.clear(); // It lost some; the next use grants anew.
                self.pull(at, serial, bytes);
            }
            Outcome::Copied | Outcome::Dropped => {
                let Some(mut message) = self.peers[at].announced.remove(&serial) else { return };
                message.wanted = message.buffer.len().min(usize::try_from(bytes).unwrap_or(usize::MAX));
                let len = message.wanted as u64;
                if let Some(lane) = self.peers[at].lane(&mut self.inbox, self.ring) {
                    lane.channel.count(len);
                }
                match outcome {
                    Outcome::Dropped => self.failed(message, Reason::EndpointClosed),
                    _ => self.sent(message),
                }
            }
        }
    }
}
