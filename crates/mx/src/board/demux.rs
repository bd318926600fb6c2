//! Dispatch of received frames: checks the destination, finds the sender, and selects the endpoint (mxoe-wire 3.13, 4).

use super::table::{Peer, is_valid_nic};
use super::{Board, Dropped, LinkNumber, PeerOrigin};
use crate::net::{Time, nack_for};
use crate::wire::{self, Announcement, BROADCAST, EndpointNumber, Header, Nack, Packet, PeerIndex, PullHandle, Raw};

/// The action to take for a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameAction<'f> {
    /// The frame is for an open endpoint.
    ForEndpoint {
        /// The endpoint.
        endpoint: EndpointNumber,
        /// The sender.
        peer: PeerIndex,
        /// The packet.
        packet: Packet<&'f [u8]>,
    },
    /// For the program that opened the raw endpoint: the frame as received, at most [`wire::RAW_FRAME_BYTES_MAX`] bytes. The board
    /// has not looked up its sender. The caller limits how many frames may wait.
    Raw {
        /// The frame.
        frame: &'f [u8],
    },
    /// The board itself handled the frame.
    Consumed,
    /// No action: the frame was dropped and counted.
    Dropped(Dropped),
}

impl Board {
    /// Returns the endpoint of this board that a frame names. Does not check that the endpoint is open, and changes no
    /// state.
    pub fn destination_endpoint(&self, frame: &[u8]) -> Option<EndpointNumber> {
        let (header, packet) = wire::parse(self.setup.dialect, frame).ok()?;
        destination_endpoint(&packet).filter(|_| header.dst == self.setup.nic)
    }

    /// Handles a frame that arrived on a link. No contents make this panic.
    pub fn receive<'f>(&mut self, now: Time, link: LinkNumber, frame: &'f [u8]) -> FrameAction<'f> {
        match self.classify(now, link, frame) {
            Ok(received) => received,
            Err(reason) => {
                self.counters.add_dropped(reason);
                FrameAction::Dropped(reason)
            }
        }
    }

    fn classify<'f>(&mut self, now: Time, link: LinkNumber, frame: &'f [u8]) -> Result<FrameAction<'f>, Dropped> {
        if !self.links.has(link) {
            return Err(Dropped::NoSuchLink);
        }
        let (header, packet) = wire::parse(self.setup.dialect, frame)?;
        self.check_addresses(&header, &packet)?;
        let kind = packet.kind();
        let received = match &packet {
            Packet::Raw(raw) => self.receive_raw(now, link, &header, raw, frame)?,
            Packet::HostQuery(query) => {
                self.receive_query(now, link, &header, query).map(|()| FrameAction::Consumed)?
            }
            Packet::HostReply(reply) => {
                self.receive_reply(now, link, &header, reply).map(|()| FrameAction::Consumed)?
            }
            _ => self.find_endpoint(now, link, &header, packet)?,
        };
        self.counters.add_received(kind);
        Ok(received)
    }

    fn check_addresses(&self, header: &Header, packet: &Packet<&[u8]>) -> Result<(), Dropped> {
        let for_all = header.dst == BROADCAST && matches!(packet, Packet::Raw(_));
        if header.dst != self.setup.nic && !for_all {
            return Err(Dropped::NotForUs);
        }
        if !is_valid_nic(header.src) {
            return Err(Dropped::BadSource);
        }
        Ok(())
    }

    fn receive_raw<'f>(
        &mut self,
        now: Time,
        link: LinkNumber,
        header: &Header,
        raw: &Raw<&'f [u8]>,
        frame: &'f [u8],
    ) -> Result<FrameAction<'f>, Dropped> {
        if self.is_local(header.src) {
            // Several links into one network return our own announcements. Another host's announcement has another serial.
            let said = Announcement::parse(raw.data).ok().filter(|said| said.nic_id == self.setup.nic);
            let is_another = said.is_some_and(|said| said.nic_id == header.src && said.serial != self.setup.serial);
            return Err(if is_another { Dropped::DuplicateAddress } else { Dropped::OwnSource });
        }
        let is_raw_open = self.is_open(EndpointNumber::RAW);
        // Raw packets of other mappers look the same. The bytes at the address's position rarely equal the sender's
        // address.
        match Announcement::parse(raw.data) {
            Ok(said) if self.setup.discovery && (said.nic_id == header.src || !is_raw_open) => {
                self.receive_announcement(now, link, header, said).map(|()| FrameAction::Consumed)
            }
            _ if is_raw_open => Ok(FrameAction::Raw { frame }),
            _ => Err(Dropped::NoRawEndpoint),
        }
    }

    /// Returns the sender of a packet that names its sender by address.
    pub(super) fn sender_by_address(&self, header: &Header) -> Result<PeerIndex, Dropped> {
        let index = self.table.index_of(header.src).ok_or(Dropped::UnknownSource)?;
        let peer = self.table.get(index).ok_or(Dropped::UnknownSource)?;
        check_sender(peer).map(|()| index)
    }

    /// Returns the sender of a packet that names its sender by our index for it.
    fn sender_by_index(&mut self, now: Time, header: &Header) -> Result<PeerIndex, Dropped> {
        let refused = match header.peer_index {
            None => Dropped::NoIndex,
            Some(index) => match self.table.get(index) {
                Some(peer) if peer.nic == header.src => return check_sender(peer).map(|()| index),
                Some(_) => Dropped::IndexMismatch,
                None => Dropped::UnusedIndex,
            },
        };
        // The peer does not know that we restarted: its index for us is from before.
        let sender = self.sender_by_address(header)?;
        self.restart_query(now, sender);
        Err(refused)
    }

    /// Returns the sender of a packet in which the index may be wrong. The index is usually right, and then needs no search by
    /// address.
    fn sender_by_index_hint(&self, header: &Header) -> Result<PeerIndex, Dropped> {
        match header.peer_index.and_then(|index| Some((index, self.table.get(index)?))) {
            Some((index, peer)) if peer.nic == header.src => check_sender(peer).map(|()| index),
            _ => self.sender_by_address(header),
        }
    }

    /// Finds the destination endpoint of a packet.
    fn find_endpoint<'f>(
        &mut self,
        now: Time,
        link: LinkNumber,
        header: &Header,
        packet: Packet<&'f [u8]>,
    ) -> Result<FrameAction<'f>, Dropped> {
        let (peer, reverse) = match &packet {
            Packet::ConnectRequest(body) => (self.sender_by_address(header)?, body.src_dst_peer_index),
            Packet::ConnectReply(body) => (self.sender_by_address(header)?, body.src_dst_peer_index),
            Packet::PullReply(_) => (self.sender_by_index_hint(header)?, None),
            Packet::NackLib(_) | Packet::NackMcp(_) if header.peer_index.is_none() => {
                (self.sender_by_address(header)?, None)
            }
            _ => (self.sender_by_index(now, header)?, None),
        };
        self.update_peer(now, link, peer, reverse);
        let endpoint = destination_endpoint(&packet).ok_or(Dropped::BadEndpoint)?;
        if !self.is_valid_endpoint(endpoint) {
            self.queue_nack(now, peer, &packet, Nack::BadEndpoint);
            return Err(Dropped::BadEndpoint);
        }
        if !self.is_open(endpoint) {
            self.queue_nack(now, peer, &packet, Nack::EndpointClosed);
            return Err(Dropped::EndpointClosed);
        }
        Ok(FrameAction::ForEndpoint { endpoint, peer, packet })
    }

    /// Queues the negative acknowledgement of a packet, if it gets one and the rate limit permits it.
    fn queue_nack(&mut self, now: Time, peer: PeerIndex, packet: &Packet<&[u8]>, nack_type: Nack) {
        let Some(nack) = nack_for(packet, nack_type) else { return };
        let (Some(header), Some(link)) = (self.header_to(peer), self.link_to(peer)) else { return };
        // Negative acknowledgements have no data.
        let nack = nack.map(|_| [0; Announcement::BYTES]);
        if !self.rate_limiters.nacks.try_acquire(now) || !self.send(link, header, nack) {
            self.counters.add_suppressed_nack();
        }
    }
}

/// Returns the destination endpoint of a packet, or `None` if the packet names none.
fn destination_endpoint(packet: &Packet<&[u8]>) -> Option<EndpointNumber> {
    match packet {
        Packet::PullReply(body) => Some(pulling_endpoint(body.puller)),
        Packet::NackMcp(body) => Some(pulling_endpoint(body.puller)),
        other => other.dst_endpoint(),
    }
}

/// Returns the endpoint of a pull, from the words that the peer returns (1.2).
const fn pulling_endpoint(words: PullHandle) -> EndpointNumber {
    EndpointNumber(words.magic as u8 ^ 0x80)
}

/// Checks that frames of this peer are accepted from the wire.
fn check_sender(peer: &Peer) -> Result<(), Dropped> {
    match peer.origin {
        PeerOrigin::Local => Err(Dropped::OwnSource),
        _ if peer.forgotten => Err(Dropped::ForgottenSource),
        _ => Ok(()),
    }
}
