//! The sample packets of the specification (15) as values. `vectors.txt` has them as bytes.

use isthmus_layout::NicId;
use isthmus_mx::wire::{
    Announcement, BROADCAST, BoardName, ConnectReply, ConnectRequest, ConnectStatus, Dialect, Eager, EndpointNumber,
    Header, HostQuery, HostReply, Liback, Medium, MessageHead, Nack, NackLib, NackMcp, Notify, Packet, PeerIndex, Pull,
    PullHandle, PullReply, Raw, Rndv, SeqNum, SessionId,
};

/// A frame of the specification, and its contents.
pub(crate) struct Sample {
    /// The specification's number, from 1.
    pub(crate) number: usize,
    /// The dialects in which the frame has these contents.
    pub(crate) dialects: &'static [Dialect],
    pub(crate) header: Header,
    pub(crate) packet: Packet<Vec<u8>>,
    pub(crate) frame: Vec<u8>,
}

pub(crate) const A: NicId = NicId::from_octets([0x00, 0x1b, 0x21, 0xaa, 0x00, 0x01]);
pub(crate) const B: NicId = NicId::from_octets([0x00, 0x1b, 0x21, 0xbb, 0x00, 0x02]);
const A_ENDPOINT: EndpointNumber = EndpointNumber(1);
const B_ENDPOINT: EndpointNumber = EndpointNumber(3);
const A_SESSION: SessionId = SessionId(0x1122_3344);
const B_SESSION: SessionId = SessionId(0x5566_7788);
const PULLER: PullHandle = PullHandle { handle: 0x23, magic: 0x2107_1983 };
const MX: &[Dialect] = &[Dialect::Mx];
const OPEN_MX: &[Dialect] = &[Dialect::OPEN_MX];

/// Returns the frames, in the specification's order.
fn frames() -> Vec<Vec<u8>> {
    let mut frames: Vec<Vec<u8>> = Vec::new();
    for line in include_str!("vectors.txt").lines() {
        let mut words = line.split_whitespace();
        if line.starts_with('V') {
            words.next();
            frames.push(Vec::new());
        }
        let frame = frames.last_mut().unwrap();
        let at = usize::from_str_radix(words.next().unwrap(), 16).unwrap();
        assert_eq!(at, frame.len());
        frame.extend(words.map(|byte| u8::from_str_radix(byte, 16).unwrap()));
    }
    frames
}

fn index(number: u16) -> Option<PeerIndex> {
    PeerIndex::new(number)
}

/// Returns a header from A to B, after A has learned that it is number 2 of B.
fn a_to_b(number: u16) -> Header {
    Header { dst: B, src: A, peer_index: index(number) }
}

fn b_to_a(number: u16) -> Header {
    Header { dst: A, src: B, peer_index: index(number) }
}

/// Returns a message head from A to B.
fn head(seqnum: u16, piggyack: u16, match_info: u64) -> MessageHead {
    MessageHead {
        dst_endpoint: B_ENDPOINT,
        src_endpoint: A_ENDPOINT,
        lib_seqnum: SeqNum::from_bits(seqnum),
        lib_piggyack: SeqNum::from_bits(piggyack),
        match_info,
        session: B_SESSION,
    }
}

fn between_hosts() -> Vec<(Header, Packet<Vec<u8>>)> {
    let announcement = Announcement { nic_id: A, serial: 0x0a0b_0c0d };
    let announced = Header { dst: BROADCAST, src: A, peer_index: index(0) };
    let query = HostQuery { src_dst_peer_index: index(1), magic: 0x1305_2008 };
    let reply =
        HostReply { src_dst_peer_index: index(2), magic: 0x1305_2008, hostname: BoardName::new(b"nodeB:0").unwrap() };
    vec![
        (announced, Packet::Raw(Raw { data: announcement.emit().to_vec() })),
        (a_to_b(0), Packet::HostQuery(query)),
        (b_to_a(0), Packet::HostReply(reply)),
    ]
}

fn connects() -> Vec<(Header, Packet<Vec<u8>>)> {
    let request = ConnectRequest {
        dst_endpoint: B_ENDPOINT,
        src_endpoint: A_ENDPOINT,
        src_dst_peer_index: index(1),
        src_session_id: A_SESSION,
        app_key: 0x0001_2345,
        target_recv_seqnum_start: SeqNum::FIRST,
        connect_seqnum: 0,
    };
    let reply = |status| ConnectReply {
        dst_endpoint: A_ENDPOINT,
        src_endpoint: B_ENDPOINT,
        src_dst_peer_index: index(2),
        src_session_id: A_SESSION,
        target_session_id: B_SESSION,
        target_recv_seqnum_start: SeqNum::FIRST,
        connect_seqnum: 0,
        status,
    };
    vec![
        (Header { peer_index: None, ..a_to_b(0) }, Packet::ConnectRequest(request)),
        (b_to_a(1), Packet::ConnectReply(reply(ConnectStatus::Success))),
        (b_to_a(1), Packet::ConnectReply(reply(ConnectStatus::BadKey))),
    ]
}

fn messages() -> Vec<(Header, Packet<Vec<u8>>)> {
    let hello = Eager { head: head(1, 1, 0x0000_2222_1111_0000), data: b"hello".to_vec() };
    let small = Eager { head: head(2, 1, 0x12), data: (0..=0x20).collect() };
    let fragment = |length, frag_pipeline| Medium {
        head: head(3, 1, 0x12),
        length,
        frag_seqnum: 1,
        frag_pipeline,
        data: vec![0xde, 0xad, 0xbe, 0xef],
    };
    let rndv = Rndv {
        head: head(4, 1, 0x12),
        msg_length: 1 << 20,
        pulled_rdma_id: 7,
        pulled_rdma_seqnum: 23,
        pulled_rdma_offset: 0,
    };
    vec![
        (a_to_b(2), Packet::Tiny(hello)),
        (a_to_b(2), Packet::Small(small)),
        (a_to_b(2), Packet::Medium(fragment(4100, Medium::<Vec<u8>>::PIPELINE))),
        (a_to_b(2), Packet::Medium(fragment(1456, 0))),
        (a_to_b(2), Packet::Rndv(rndv)),
    ]
}

fn pulls() -> Vec<(Header, Packet<Vec<u8>>)> {
    let pull = Pull {
        dst_endpoint: A_ENDPOINT,
        src_endpoint: B_ENDPOINT,
        session: A_SESSION,
        total_length: 1 << 20,
        pulled_rdma_id: 7,
        pulled_rdma_seqnum: 23,
        pulled_rdma_offset: 0,
        puller: PULLER,
        first_frame_offset: 0,
        block_length: 0x8000,
        frame_index: 0,
    };
    let in_page = Pull { pulled_rdma_offset: 0x123, first_frame_offset: 0x123, block_length: 0x7edd, ..pull };
    let reply = |frame_seqnum, msg_offset, data| PullReply { frame_seqnum, msg_offset, puller: PULLER, data };
    vec![
        (b_to_a(1), Packet::Pull(pull)),
        (b_to_a(1), Packet::Pull(Pull { frame_index: 24, ..pull })),
        (b_to_a(1), Packet::Pull(in_page)),
        (b_to_a(1), Packet::Pull(Pull { block_length: 0x46100, frame_index: 32, ..pull })),
        (a_to_b(0), Packet::PullReply(reply(8, 32768, (1..=8).collect()))),
        // The specification shows only the header, without the 4096 bytes of data.
        (a_to_b(0), Packet::PullReply(reply(1, 0x0010_1000, vec![0x5a; 4096]))),
    ]
}

fn endings() -> Vec<(Header, Packet<Vec<u8>>)> {
    let notify = Notify {
        dst_endpoint: A_ENDPOINT,
        src_endpoint: B_ENDPOINT,
        session: A_SESSION,
        total_length: 1 << 20,
        pulled_rdma_id: 7,
        pulled_rdma_seqnum: 23,
        lib_seqnum: SeqNum::FIRST,
        lib_piggyack: SeqNum::from_bits(5),
    };
    let liback = Liback {
        dst_endpoint: A_ENDPOINT,
        src_endpoint: B_ENDPOINT,
        session: A_SESSION,
        lib_seqnum: SeqNum::from_bits(4),
        acknum: 1,
    };
    let nack_lib = NackLib {
        dst_endpoint: A_ENDPOINT,
        src_endpoint: B_ENDPOINT,
        nack_type: Nack::EndpointClosed,
        lib_seqnum: SeqNum::FIRST,
    };
    let nack_mcp = NackMcp { src_endpoint: B_ENDPOINT, nack_type: Nack::BadRdmaWindow, puller: PULLER };
    vec![
        (b_to_a(1), Packet::Notify(notify)),
        (b_to_a(1), Packet::Liback(liback)),
        (b_to_a(1), Packet::NackLib(nack_lib)),
        (a_to_b(2), Packet::NackMcp(nack_mcp)),
        (a_to_b(2), Packet::Tiny(Eager { head: head(0x4002, 0x3fff, 0), data: Vec::new() })),
    ]
}

/// Returns all samples.
pub(crate) fn samples() -> Vec<Sample> {
    let values = [between_hosts(), connects(), messages(), pulls(), endings()].concat();
    let frames = frames();
    assert_eq!((values.len(), frames.len()), (22, 22));
    let numbered = (1..).zip(values.into_iter().zip(frames));
    numbered.map(|(number, ((header, packet), frame))| sample(number, header, packet, frame)).collect()
}

fn sample(number: usize, header: Header, packet: Packet<Vec<u8>>, mut frame: Vec<u8>) -> Sample {
    let dialects = match number {
        9 | 12..=14 => MX,
        10 | 15 => OPEN_MX,
        _ => &super::DIALECTS,
    };
    if number == 17 {
        frame.extend_from_slice(packet.data().unwrap());
    }
    Sample { number, dialects, header, packet, frame }
}
