//! An attacker on the wire: whole frames from any address, by a packet socket on the far host's interface.

use isthmus_layout::NicId;
use isthmus_link::{Frame, Link, PacketLink, PacketOptions, SEND_MAX};
use isthmus_mx::wire::{
    Announcement, BoardName, ConnectReply, ConnectRequest, ConnectStatus, Dialect, ETHERTYPE, Eager, EndpointNumber,
    Header, HostQuery, HostReply, Liback, Medium, MessageHead, Nack, NackLib, NackMcp, Notify, Packet, PeerIndex, Pull,
    PullHandle, PullReply, Raw, Rndv, SeqNum, SessionId, emit,
};
use isthmus_netns::WireInterface;

/// The dialect of the boards under attack.
const DIALECT: Dialect = Dialect::OPEN_MX;

/// An attacker on the wire.
#[derive(Debug)]
pub struct RawSender {
    link: PacketLink,
}

/// The source and the destination of forged frames.
#[derive(Clone, Copy, Debug)]
pub struct SpoofedSource {
    /// The source address of the frames.
    pub from: NicId,
    /// The number that the victim has for that address.
    pub index: Option<PeerIndex>,
    /// The victim.
    pub to: NicId,
    /// The endpoint that they claim to come from.
    pub endpoint: EndpointNumber,
    /// The endpoint they are for.
    pub victim_endpoint: EndpointNumber,
    /// The session that they are for.
    pub session: SessionId,
}

impl RawSender {
    /// Opens the far end of a wire, which its host uses, too.
    pub fn at(end: &WireInterface) -> Self {
        let options = PacketOptions::default();
        let opened = end.host.with(|| PacketLink::open(&end.name, ETHERTYPE, &options));
        let link = opened.unwrap_or_else(|error| panic!("{error}")).unwrap_or_else(|error| panic!("{error}"));
        Self { link }
    }

    /// Sends frames as they are, in order.
    pub fn send(&mut self, frames: &[Vec<u8>]) {
        for batch in frames.chunks(SEND_MAX) {
            let whole: Vec<Frame<'_>> = batch.iter().map(|bytes| Frame::whole(bytes)).collect();
            let mut left = &whole[..];
            while !left.is_empty() {
                let sent = self.link.send(left).unwrap_or_else(|error| panic!("{error}"));
                left = &left[sent.accepted..]; // Full sockets of a veth pair are empty again by the next call.
            }
        }
    }
}

impl SpoofedSource {
    /// A frame of this one.
    pub fn frame(&self, packet: &Packet<Vec<u8>>) -> Vec<u8> {
        let header = Header { dst: self.to, src: self.from, peer_index: self.index };
        let mut frame = vec![0; packet.parts(DIALECT).frame()];
        let bytes = emit(DIALECT, &header, packet, &mut frame).unwrap_or_else(|error| panic!("{error}"));
        frame.truncate(bytes);
        frame
    }

    fn head(&self, seqnum: u16) -> MessageHead {
        MessageHead {
            dst_endpoint: self.victim_endpoint,
            src_endpoint: self.endpoint,
            lib_seqnum: SeqNum::from_bits(seqnum),
            lib_piggyack: SeqNum::from_bits(0x1fff),
            match_info: 1 << 32,
            session: self.session,
        }
    }

    /// A request to be connected, in a session of its own.
    pub fn connect(&self, own: SessionId, key: u32) -> Packet<Vec<u8>> {
        Packet::ConnectRequest(ConnectRequest {
            dst_endpoint: self.victim_endpoint,
            src_endpoint: self.endpoint,
            src_dst_peer_index: PeerIndex::new(0),
            src_session_id: own,
            app_key: key,
            target_recv_seqnum_start: SeqNum::FIRST,
            connect_seqnum: 1,
        })
    }

    /// A board that announces itself under this address.
    pub fn announcement(&self, serial: u32) -> Packet<Vec<u8>> {
        Packet::Raw(Raw { data: Announcement { nic_id: self.from, serial }.emit().to_vec() })
    }

    /// A question for a board's name.
    pub fn query(&self) -> Packet<Vec<u8>> {
        Packet::HostQuery(HostQuery { src_dst_peer_index: PeerIndex::new(0), magic: 1 })
    }

    /// A packet of each type, well formed, for the session.
    pub fn one_packet_of_each_type(&self) -> Vec<Packet<Vec<u8>>> {
        let mut all = vec![self.announcement(7), self.connect(SessionId(0x0bad_5e55), 7)];
        all.extend(self.of_boards());
        all.extend(self.of_messages());
        all.extend(self.of_transfers());
        all
    }

    fn of_boards(&self) -> [Packet<Vec<u8>>; 4] {
        let hostname = BoardName::new(b"forger:0").expect("a name");
        let reply = ConnectReply {
            dst_endpoint: self.victim_endpoint,
            src_endpoint: self.endpoint,
            src_dst_peer_index: PeerIndex::new(0),
            src_session_id: self.session,
            target_session_id: SessionId(0x0bad_5e55),
            target_recv_seqnum_start: SeqNum::FIRST,
            connect_seqnum: 1,
            status: ConnectStatus::Success,
        };
        let nack_type = Nack::EndpointClosed;
        [
            self.query(),
            Packet::HostReply(HostReply { src_dst_peer_index: PeerIndex::new(0), magic: 1, hostname }),
            Packet::ConnectReply(reply),
            Packet::NackLib(NackLib {
                dst_endpoint: self.victim_endpoint,
                src_endpoint: self.endpoint,
                nack_type,
                lib_seqnum: SeqNum::FIRST,
            }),
        ]
    }

    fn of_messages(&self) -> [Packet<Vec<u8>>; 5] {
        let data = vec![0x66; 24];
        let rndv = Rndv {
            head: self.head(4),
            msg_length: 1 << 30,
            pulled_rdma_id: 0,
            pulled_rdma_seqnum: 0,
            pulled_rdma_offset: 0,
        };
        let fragment =
            Medium { head: self.head(3), length: 4000, frag_seqnum: 0, frag_pipeline: 0, data: vec![0x66; 64] };
        let ack = Liback {
            dst_endpoint: self.victim_endpoint,
            src_endpoint: self.endpoint,
            session: self.session,
            lib_seqnum: SeqNum::from_bits(0x1fff),
            acknum: u32::MAX,
        };
        [
            Packet::Tiny(Eager { head: self.head(1), data: data.clone() }),
            Packet::Small(Eager { head: self.head(2), data: [&data[..], &data].concat() }),
            Packet::Medium(fragment),
            Packet::Rndv(rndv),
            Packet::Liback(ack),
        ]
    }

    fn of_transfers(&self) -> [Packet<Vec<u8>>; 4] {
        let puller = PullHandle { handle: 0, magic: u32::from(self.victim_endpoint.0) ^ 0x80 };
        let pull = Pull {
            dst_endpoint: self.victim_endpoint,
            src_endpoint: self.endpoint,
            session: self.session,
            total_length: 1 << 20,
            pulled_rdma_id: 0,
            pulled_rdma_seqnum: 0,
            pulled_rdma_offset: 0,
            puller,
            first_frame_offset: 0,
            block_length: 1 << 15,
            frame_index: 0,
        };
        let notify = Notify {
            dst_endpoint: self.victim_endpoint,
            src_endpoint: self.endpoint,
            session: self.session,
            total_length: 1 << 20,
            pulled_rdma_id: 0,
            pulled_rdma_seqnum: 0,
            lib_seqnum: SeqNum::FIRST,
            lib_piggyack: SeqNum::from_bits(0x1fff),
        };
        [
            Packet::Pull(pull),
            Packet::PullReply(PullReply { frame_seqnum: 0, msg_offset: 0, puller, data: vec![0x66; 64] }),
            Packet::Notify(notify),
            Packet::NackMcp(NackMcp { src_endpoint: self.endpoint, nack_type: Nack::BadRdmaWindow, puller }),
        ]
    }
}

/// A frame cut at every length that an Ethernet header leaves.
pub fn truncated(frame: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    (14..frame.len()).map(|bytes| frame[..bytes].to_vec())
}

/// A frame with each of its fields, whatever their width, at its extremes: everything behind the addresses and the ethertype.
pub fn extremes(frame: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let end = frame.len().min(60);
    for width in [1, 2, 4] {
        for at in (14..end - width + 1).step_by(width) {
            for (first, rest) in [(0x00, 0x00), (0x7f, 0xff), (0x80, 0x00), (0xff, 0xff)] {
                let mut changed = frame.to_vec();
                changed[at..at + width].fill(rest);
                changed[at] = first;
                all.push(changed);
            }
        }
    }
    all
}
