//! Each packet with all fields zero, and with one field at a time set to all ones: the input of the table in the
//! specification's page.

use isthmus_mx::wire::{
    BoardName, ConnectReply, ConnectRequest, ConnectStatus, Dialect, Eager, EndpointNumber, HostQuery, HostReply,
    Liback, Medium, MessageHead, Nack, NackLib, NackMcp, Notify, Packet, PeerIndex, Pull, PullHandle, PullReply, Raw,
    Rndv, SeqNum, SessionId,
};

type Owned = Packet<Vec<u8>>;
type Width = fn(Dialect) -> usize;
/// The name of a packet, and its parts in a dialect.
type Named = (&'static str, fn(Dialect) -> Bodies);

/// A packet and its fields.
pub(crate) struct Bodies {
    pub(crate) base: Owned,
    /// The meaning of each field, and the packet with that field at its maximum.
    pub(crate) fields: Vec<(&'static str, Owned)>,
    /// Fields that depend on the data of the packet, with their width.
    pub(crate) lengths: Vec<(&'static str, Width, Owned)>,
    /// The offset, bytes and meaning of constant fields.
    pub(crate) constants: &'static [(usize, usize, &'static str)],
}

const ZERO: EndpointNumber = EndpointNumber(0);
const FULL: EndpointNumber = EndpointNumber(255);
const NO_SESSION: SessionId = SessionId(0);
const SESSION: SessionId = SessionId(u32::MAX);
const SEQ_ZERO: SeqNum = SeqNum::from_bits(0);
const SEQ_FULL: SeqNum = SeqNum::from_bits(u16::MAX);
const NO_PULLER: PullHandle = PullHandle { handle: 0, magic: 0 };
const DST: &str = "`dst_endpoint`";
const SRC: &str = "`src_endpoint`";
const PIGGYACK: &str = "`lib_piggyack`: first number of the other direction that is not completely received";
const INDEX: &str = "`src_dst_peer_index`: what the receiver is to put into headers";

/// Lists variants of one packet, each with one field changed.
macro_rules! fields {
    ($variant:path, $base:expr, { $($what:expr => $($name:ident).+ = $value:expr),* $(,)? }) => {
        vec![$(($what, {
            let mut body = $base;
            body.$($name).+ = $value;
            $variant(body)
        })),*]
    };
}

fn raw(_: Dialect) -> Bodies {
    Bodies { base: Packet::Raw(Raw { data: Vec::new() }), fields: Vec::new(), lengths: Vec::new(), constants: &[] }
}

fn host_query(_: Dialect) -> Bodies {
    let base = HostQuery { src_dst_peer_index: PeerIndex::new(0), magic: 0 };
    let fields = fields!(Packet::HostQuery, base, {
        INDEX => src_dst_peer_index = None,
        "`magic`: comes back" => magic = u32::MAX,
    });
    Bodies { base: Packet::HostQuery(base), fields, lengths: Vec::new(), constants: &[] }
}

fn host_reply(_: Dialect) -> Bodies {
    let hostname = BoardName::new(b"").unwrap();
    let base = HostReply { src_dst_peer_index: PeerIndex::new(0), magic: 0, hostname };
    let fields = fields!(Packet::HostReply, base, {
        INDEX => src_dst_peer_index = None,
        "`magic`: the query's" => magic = u32::MAX,
    });
    // A packet with a name is longer from its head on, so only the length differs.
    let named = Packet::HostReply(HostReply { hostname: BoardName::new(&[b'a'; 79]).unwrap(), ..base });
    let lengths: Vec<(_, Width, _)> = vec![("`length`: the name's bytes and one, at most 80", |_| 1, named)];
    Bodies { base: Packet::HostReply(base), fields, lengths, constants: &[] }
}

fn liback(_: Dialect) -> Bodies {
    let base = Liback { dst_endpoint: ZERO, src_endpoint: ZERO, session: NO_SESSION, lib_seqnum: SEQ_ZERO, acknum: 0 };
    let fields = fields!(Packet::Liback, base, {
        DST => dst_endpoint = FULL,
        SRC => src_endpoint = FULL,
        "`session`: of the destination // `session_id`: the same again" => session = SESSION,
        "`lib_seqnum`: first number that is not completely received // `send_seq`: the same again, not looked at" =>
            lib_seqnum = SEQ_FULL,
        "`acknum`" => acknum = u32::MAX,
    });
    let constants = &[(4, 1, "`length`"), (12, 1, "kind")];
    Bodies { base: Packet::Liback(base), fields, lengths: Vec::new(), constants }
}

fn connect_request(_: Dialect) -> Bodies {
    let base = ConnectRequest {
        dst_endpoint: ZERO,
        src_endpoint: ZERO,
        src_dst_peer_index: PeerIndex::new(0),
        src_session_id: NO_SESSION,
        app_key: 0,
        target_recv_seqnum_start: SEQ_ZERO,
        connect_seqnum: 0,
    };
    let fields = fields!(Packet::ConnectRequest, base, {
        DST => dst_endpoint = FULL,
        SRC => src_endpoint = FULL,
        INDEX => src_dst_peer_index = None,
        "`src_session_id`: of the endpoint that asks" => src_session_id = SESSION,
        "`app_key`" => app_key = u32::MAX,
        "`target_recv_seqnum_start`: number that the sender of this packet expects next" =>
            target_recv_seqnum_start = SEQ_FULL,
        "`connect_seqnum`" => connect_seqnum = u8::MAX,
    });
    let constants = &[(4, 1, "`length`"), (26, 1, "`is_reply`")];
    Bodies { base: Packet::ConnectRequest(base), fields, lengths: Vec::new(), constants }
}

fn connect_reply(_: Dialect) -> Bodies {
    let base = ConnectReply {
        dst_endpoint: ZERO,
        src_endpoint: ZERO,
        src_dst_peer_index: PeerIndex::new(0),
        src_session_id: NO_SESSION,
        target_session_id: NO_SESSION,
        target_recv_seqnum_start: SEQ_ZERO,
        connect_seqnum: 0,
        status: ConnectStatus::Success,
    };
    let fields = fields!(Packet::ConnectReply, base, {
        DST => dst_endpoint = FULL,
        SRC => src_endpoint = FULL,
        INDEX => src_dst_peer_index = None,
        "`src_session_id`: the request's" => src_session_id = SESSION,
        "`target_session_id`: of the endpoint that replies" => target_session_id = SESSION,
        "`target_recv_seqnum_start`: number that the sender of this packet expects next" =>
            target_recv_seqnum_start = SEQ_FULL,
        "`connect_seqnum`: the request's" => connect_seqnum = u8::MAX,
        "`status`: 0 success, 11 bad key" => status = ConnectStatus::BadKey,
    });
    let constants = &[(4, 1, "`length`"), (26, 1, "`is_reply`")];
    Bodies { base: Packet::ConnectReply(base), fields, lengths: Vec::new(), constants }
}

const HEAD: MessageHead = MessageHead {
    dst_endpoint: ZERO,
    src_endpoint: ZERO,
    lib_seqnum: SEQ_ZERO,
    lib_piggyack: SEQ_ZERO,
    match_info: 0,
    session: NO_SESSION,
};

/// Lists the fields of the message head at the start of a packet, each changed alone.
fn head_fields(packet: impl Fn(MessageHead) -> Owned) -> Vec<(&'static str, Owned)> {
    vec![
        (DST, packet(MessageHead { dst_endpoint: FULL, ..HEAD })),
        (SRC, packet(MessageHead { src_endpoint: FULL, ..HEAD })),
        ("`lib_seqnum`: the message's number", packet(MessageHead { lib_seqnum: SEQ_FULL, ..HEAD })),
        (PIGGYACK, packet(MessageHead { lib_piggyack: SEQ_FULL, ..HEAD })),
        ("`match_a`, `match_b`: match information", packet(MessageHead { match_info: u64::MAX, ..HEAD })),
        ("`session`: of the destination", packet(MessageHead { session: SESSION, ..HEAD })),
    ]
}

fn eager(variant: fn(Eager<Vec<u8>>) -> Owned, what: &'static str, most: usize) -> Bodies {
    let fields = head_fields(|head| variant(Eager { head, data: Vec::new() }));
    let full = variant(Eager { head: HEAD, data: vec![0; most] });
    let base = variant(Eager { head: HEAD, data: Vec::new() });
    Bodies { base, fields, lengths: vec![(what, |_| 2, full)], constants: &[] }
}

fn tiny(_: Dialect) -> Bodies {
    eager(Packet::Tiny, "`length`: at most 32", 32)
}

fn small(_: Dialect) -> Bodies {
    eager(Packet::Small, "`length`: at most 128", 128)
}

fn medium(dialect: Dialect) -> Bodies {
    let of = |head, length, frag_seqnum, frag_pipeline, data: &[u8]| {
        Packet::Medium(Medium { head, length, frag_seqnum, frag_pipeline, data: data.to_vec() })
    };
    let length = if dialect == Dialect::Mx { u32::from(u16::MAX) } else { u32::MAX };
    let mut fields = head_fields(|head| of(head, length, 0, 0, &[]));
    fields.push(("`length`: of the whole message", of(HEAD, 0, 0, 0, &[])));
    fields.push(("`frag_seqnum`: which fragment, from 0", of(HEAD, length, u8::MAX, 0, &[])));
    if dialect == Dialect::Mx {
        fields.push(("`frag_pipeline`: log2 of the sender's fragments", of(HEAD, length, 0, u8::MAX, &[])));
    }
    let full = of(HEAD, length, 0, 0, &[0; 0xfff]);
    let lengths: Vec<(_, Width, _)> = vec![("`frag_length`", |_| 2, full)];
    Bodies { base: of(HEAD, length, 0, 0, &[]), fields, lengths, constants: &[] }
}

fn rndv(_: Dialect) -> Bodies {
    let base = Rndv { head: HEAD, msg_length: 0, pulled_rdma_id: 0, pulled_rdma_seqnum: 0, pulled_rdma_offset: 0 };
    let mut fields = head_fields(|head| Packet::Rndv(Rndv { head, ..base }));
    fields.extend(fields!(Packet::Rndv, base, {
        "`msg_length`" => msg_length = u32::MAX,
        "`pulled_rdma_id`: the region to pull from" => pulled_rdma_id = u8::MAX,
        "`pulled_rdma_seqnum`: which use of the region" => pulled_rdma_seqnum = u8::MAX,
        "`pulled_rdma_offset`: bytes before the message in the region's first frame" => pulled_rdma_offset = u16::MAX,
    }));
    Bodies { base: Packet::Rndv(base), fields, lengths: Vec::new(), constants: &[(4, 2, "`length`")] }
}

fn pull(dialect: Dialect) -> Bodies {
    let base = Pull {
        dst_endpoint: ZERO,
        src_endpoint: ZERO,
        session: NO_SESSION,
        total_length: 0,
        pulled_rdma_id: 0,
        pulled_rdma_seqnum: 0,
        pulled_rdma_offset: 0,
        puller: NO_PULLER,
        first_frame_offset: 0,
        block_length: 0,
        frame_index: 0,
    };
    let (id, short) = if dialect == Dialect::Mx { (0xff, 0xffff) } else { (u32::MAX, u32::MAX) };
    let fields = fields!(Packet::Pull, base, {
        "`dst_endpoint`: the region's owner" => dst_endpoint = FULL,
        "`src_endpoint`: the endpoint that pulls" => src_endpoint = FULL,
        "`session`: of the destination" => session = SESSION,
        "`total_length`: of the transfer" => total_length = u32::MAX,
        "`pulled_rdma_id`" => pulled_rdma_id = id,
        "`pulled_rdma_seqnum`" => pulled_rdma_seqnum = u8::MAX,
        "`pulled_rdma_offset`" => pulled_rdma_offset = short,
        "`src_pull_handle`: comes back" => puller.handle = u32::MAX,
        "`src_magic`: comes back" => puller.magic = u32::MAX,
        "`first_frame_offset`: bytes of the first frame that are not asked for" => first_frame_offset = short,
        "`block_length`: bytes that are asked for" => block_length = short,
        "`frame_index`: which frame of the region the block begins with" => frame_index = u32::MAX,
    });
    Bodies { base: Packet::Pull(base), fields, lengths: Vec::new(), constants: &[] }
}

fn pull_reply(_: Dialect) -> Bodies {
    let base = || PullReply { frame_seqnum: 0, msg_offset: 0, puller: NO_PULLER, data: Vec::new() };
    let fields = fields!(Packet::PullReply, base(), {
        "`frame_seqnum`: the frame's index, modulo 256" => frame_seqnum = u8::MAX,
        "`msg_offset`: where the data belongs in the transfer" => msg_offset = u32::MAX,
        "`dst_pull_handle`: the PULL's" => puller.handle = u32::MAX,
        "`dst_magic`: the PULL's" => puller.magic = u32::MAX,
    });
    let full = Packet::PullReply(PullReply { data: vec![0; 0xffff], ..base() });
    let lengths: Vec<(_, Width, _)> = vec![("`frame_length`", |_| 2, full)];
    Bodies { base: Packet::PullReply(base()), fields, lengths, constants: &[] }
}

fn notify(_: Dialect) -> Bodies {
    let base = Notify {
        dst_endpoint: ZERO,
        src_endpoint: ZERO,
        session: NO_SESSION,
        total_length: 0,
        pulled_rdma_id: 0,
        pulled_rdma_seqnum: 0,
        lib_seqnum: SEQ_ZERO,
        lib_piggyack: SEQ_ZERO,
    };
    let fields = fields!(Packet::Notify, base, {
        "`dst_endpoint`: the large message's sender" => dst_endpoint = FULL,
        "`src_endpoint`: its receiver" => src_endpoint = FULL,
        "`session`: of the destination" => session = SESSION,
        "`total_length`: bytes that were moved" => total_length = u32::MAX,
        "`pulled_rdma_id`: the RNDV's" => pulled_rdma_id = u8::MAX,
        "`pulled_rdma_seqnum`: the RNDV's" => pulled_rdma_seqnum = u8::MAX,
        "`lib_seqnum`: its own number" => lib_seqnum = SEQ_FULL,
        PIGGYACK => lib_piggyack = SEQ_FULL,
    });
    Bodies { base: Packet::Notify(base), fields, lengths: Vec::new(), constants: &[] }
}

fn nack_lib(_: Dialect) -> Bodies {
    let base = NackLib { dst_endpoint: ZERO, src_endpoint: ZERO, nack_type: Nack::BadEndpoint, lib_seqnum: SEQ_ZERO };
    let fields = fields!(Packet::NackLib, base, {
        "`dst_endpoint`: the sender of the refused packet" => dst_endpoint = FULL,
        "`src_endpoint`: the receiver of the refused packet" => src_endpoint = FULL,
        "`nack_type`: 1 bad endpoint, 2 endpoint closed, 3 bad session" => nack_type = Nack::BadRdmaWindow,
        "`lib_seqnum`: the refused packet's; 0 for a CONNECT" => lib_seqnum = SEQ_FULL,
    });
    Bodies { base: Packet::NackLib(base), fields, lengths: Vec::new(), constants: &[] }
}

fn nack_mcp(_: Dialect) -> Bodies {
    let base = NackMcp { src_endpoint: ZERO, nack_type: Nack::BadEndpoint, puller: NO_PULLER };
    let fields = fields!(Packet::NackMcp, base, {
        "`src_endpoint`: the puller's, as Linux has it; not to be relied on" => src_endpoint = FULL,
        "`nack_type`: as in NACK_LIB, and 4 no such region" => nack_type = Nack::BadRdmaWindow,
        "`src_pull_handle`: the PULL's" => puller.handle = u32::MAX,
        "`src_magic`: the PULL's" => puller.magic = u32::MAX,
    });
    Bodies { base: Packet::NackMcp(base), fields, lengths: Vec::new(), constants: &[] }
}

/// Returns all packets, by type.
pub(crate) fn bodies() -> Vec<Named> {
    vec![
        ("RAW", raw),
        ("HOST_QUERY", host_query),
        ("HOST_REPLY", host_reply),
        ("TRUC", liback),
        ("CONNECT, asking", connect_request),
        ("CONNECT, replying", connect_reply),
        ("TINY", tiny),
        ("SMALL", small),
        ("MEDIUM", medium),
        ("RNDV", rndv),
        ("PULL", pull),
        ("PULL_REPLY", pull_reply),
        ("NOTIFY", notify),
        ("NACK_LIB", nack_lib),
        ("NACK_MCP", nack_mcp),
    ]
}
