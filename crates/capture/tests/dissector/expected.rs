//! The fields that the dissector must show of a packet, according to the parser.

use std::collections::BTreeMap;
use std::fmt::Write;

use isthmus_mx::wire::{
    Announcement, ConnectReply, ConnectRequest, Dialect, EndpointNumber, Header, Medium, MessageHead, Packet,
    PeerIndex, PullHandle, SeqNum,
};

/// All fields that packets have.
pub(crate) const COLUMNS: &[&str] = &[
    "eth.dst",
    "eth.src",
    "mxoe.acknum",
    "mxoe.ack_session_id",
    "mxoe.announced_nic",
    "mxoe.announced_serial",
    "mxoe.app_key",
    "mxoe.block_length",
    "mxoe.connect_seqnum",
    "mxoe.data",
    "mxoe.dst_endpoint",
    "mxoe.dst_src_peer_index",
    "mxoe.first_frame_offset",
    "mxoe.frag_length",
    "mxoe.frag_offset",
    "mxoe.frag_pipeline",
    "mxoe.frag_seqnum",
    "mxoe.frame_index",
    "mxoe.frame_length",
    "mxoe.frame_seqnum",
    "mxoe.host_magic",
    "mxoe.hostname",
    "mxoe.is_reply",
    "mxoe.length",
    "mxoe.lib_piggyack",
    "mxoe.lib_seqnum",
    "mxoe.lib_seqnum.number",
    "mxoe.lib_seqnum.sesnum",
    "mxoe.magic",
    "mxoe.match_info",
    "mxoe.msg_length",
    "mxoe.msg_offset",
    "mxoe.nack_type",
    "mxoe.padding",
    "mxoe.pull_handle",
    "mxoe.pulled_rdma_id",
    "mxoe.pulled_rdma_offset",
    "mxoe.pulled_rdma_seqnum",
    "mxoe.session",
    "mxoe.src_dst_peer_index",
    "mxoe.src_endpoint",
    "mxoe.src_session_id",
    "mxoe.status",
    "mxoe.target_recv_seqnum_start",
    "mxoe.target_session_id",
    "mxoe.total_length",
    "mxoe.truc_type",
    "mxoe.type",
];

/// Columns and their values. Each column begins with the empty string: a field that a packet has not must not be shown.
struct Fields(BTreeMap<&'static str, String>);

impl Fields {
    fn put(&mut self, name: &str, value: impl ToString) -> &mut Self {
        let column = COLUMNS.iter().find(|column| column.strip_prefix("mxoe.") == Some(name));
        self.0.insert(column.unwrap_or_else(|| panic!("{name} is no column")), value.to_string());
        self
    }

    /// The frame has it, and the parser does not say what is in it.
    fn skip(&mut self, name: &str) -> &mut Self {
        let column = format!("mxoe.{name}");
        assert!(self.0.remove(column.as_str()).is_some(), "{name}");
        self
    }

    fn hex(&mut self, name: &str, value: u32) -> &mut Self {
        self.put(name, format!("{value:#010x}"))
    }

    fn bytes(&mut self, name: &str, bytes: &[u8]) -> &mut Self {
        self.put(name, hex(bytes))
    }

    fn index(&mut self, name: &str, index: Option<PeerIndex>) -> &mut Self {
        self.put(name, index.map_or(u16::MAX, PeerIndex::number))
    }

    fn endpoints(&mut self, dst: EndpointNumber, src: EndpointNumber) -> &mut Self {
        self.put("dst_endpoint", dst.0).put("src_endpoint", src.0)
    }

    fn seqnum(&mut self, seqnum: SeqNum) -> &mut Self {
        self.put("lib_seqnum", format!("{:#06x}", seqnum.to_bits()))
            .put("lib_seqnum.number", seqnum.number())
            .put("lib_seqnum.sesnum", seqnum.sesnum().number())
    }

    fn piggyack(&mut self, seqnum: SeqNum) -> &mut Self {
        self.put("lib_piggyack", format!("{:#06x}", seqnum.to_bits()))
    }

    fn puller(&mut self, puller: PullHandle) -> &mut Self {
        self.hex("pull_handle", puller.handle).hex("magic", puller.magic)
    }

    fn head(&mut self, head: &MessageHead) -> &mut Self {
        self.endpoints(head.dst_endpoint, head.src_endpoint)
            .seqnum(head.lib_seqnum)
            .piggyack(head.lib_piggyack)
            .put("match_info", format!("{:#018x}", head.match_info))
            .hex("session", head.session.0)
    }

    fn fragment(&mut self, dialect: Dialect, body: &Medium<&[u8]>) -> &mut Self {
        self.head(&body.head).put("length", body.length).put("frag_length", body.data.len());
        self.put("frag_seqnum", body.frag_seqnum).bytes("data", body.data);
        if dialect == Dialect::Mx {
            let offset = u64::from(body.frag_seqnum) << body.frag_pipeline.min(32);
            self.put("frag_pipeline", body.frag_pipeline).put("frag_offset", offset)
        } else {
            self.put("frag_offset", u64::from(body.frag_seqnum) * 8192)
        }
    }

    fn connect_request(&mut self, body: &ConnectRequest) -> &mut Self {
        self.endpoints(body.dst_endpoint, body.src_endpoint)
            .index("src_dst_peer_index", body.src_dst_peer_index)
            .hex("src_session_id", body.src_session_id.0)
            .hex("app_key", body.app_key)
            .put("target_recv_seqnum_start", format!("{:#06x}", body.target_recv_seqnum_start.to_bits()))
            .put("is_reply", 0)
            .put("connect_seqnum", body.connect_seqnum)
            .unread_of_connect()
    }

    fn connect_reply(&mut self, body: &ConnectReply) -> &mut Self {
        self.endpoints(body.dst_endpoint, body.src_endpoint)
            .index("src_dst_peer_index", body.src_dst_peer_index)
            .hex("src_session_id", body.src_session_id.0)
            .hex("target_session_id", body.target_session_id.0)
            .put("target_recv_seqnum_start", format!("{:#06x}", body.target_recv_seqnum_start.to_bits()))
            .put("is_reply", 1)
            .put("connect_seqnum", body.connect_seqnum)
            .put("status", body.status as u8)
            .unread_of_connect()
    }

    fn unread_of_connect(&mut self) -> &mut Self {
        self.skip("length").skip("lib_seqnum").skip("lib_seqnum.number").skip("lib_seqnum.sesnum")
    }

    /// An announcement, where the rest of what Open-MX sends is as it sends it; else only bytes.
    fn raw(&mut self, data: &[u8]) -> &mut Self {
        match Announcement::parse(data) {
            Ok(announcement) if data[..17].iter().all(|byte| *byte == 0) => {
                let octets = announcement.nic_id.number().to_be_bytes();
                self.put("announced_nic", address(&octets[2..])).hex("announced_serial", announcement.serial)
            }
            _ => self.bytes("data", data),
        }
    }
}

/// Returns the expected value of each column.
pub(crate) fn expected(
    dialect: Dialect,
    header: &Header,
    packet: &Packet<&[u8]>,
    frame: &[u8],
) -> BTreeMap<&'static str, String> {
    let mut fields = Fields(COLUMNS.iter().map(|column| (*column, String::new())).collect());
    fields.0.insert("eth.dst", address(&header.dst.number().to_be_bytes()[2..]));
    fields.0.insert("eth.src", address(&header.src.number().to_be_bytes()[2..]));
    fields.index("dst_src_peer_index", header.peer_index).put("type", packet.kind().number());
    body(&mut fields, dialect, packet);
    let ends = match packet {
        // The name has as many bytes as it declares, however early its NUL comes.
        Packet::HostReply(_) => 32 + usize::from(frame[17]),
        Packet::Raw(raw) if fields.0["mxoe.announced_nic"].is_empty() => 17 + raw.data.len(),
        Packet::Raw(_) => 44,
        other => other.head_bytes(dialect) + other.data().map_or(0, |data| data.len()),
    };
    fields.bytes("padding", &frame[ends..]);
    fields.0
}

fn body(fields: &mut Fields, dialect: Dialect, packet: &Packet<&[u8]>) {
    match packet {
        Packet::Raw(body) => fields.raw(body.data),
        Packet::HostQuery(body) => {
            fields.index("src_dst_peer_index", body.src_dst_peer_index).hex("host_magic", body.magic)
        }
        Packet::HostReply(body) => {
            fields.index("src_dst_peer_index", body.src_dst_peer_index).hex("host_magic", body.magic).skip("length");
            let shown = |byte: &u8| {
                if (32..127).contains(byte) { char::from(*byte).to_string() } else { format!("\\x{byte:02x}") }
            };
            fields.put("hostname", body.hostname.as_bytes().iter().map(shown).collect::<String>())
        }
        Packet::Liback(body) => fields
            .endpoints(body.dst_endpoint, body.src_endpoint)
            .hex("session", body.session.0)
            .hex("ack_session_id", body.session.0)
            .seqnum(body.lib_seqnum)
            .put("acknum", body.acknum)
            .put("truc_type", "0x55")
            .skip("length"),
        Packet::ConnectRequest(body) => fields.connect_request(body),
        Packet::ConnectReply(body) => fields.connect_reply(body),
        Packet::Tiny(body) | Packet::Small(body) => {
            fields.head(&body.head).put("length", body.data.len()).bytes("data", body.data)
        }
        Packet::Medium(body) => fields.fragment(dialect, body),
        Packet::Rndv(body) => fields
            .head(&body.head)
            .put("msg_length", body.msg_length)
            .put("pulled_rdma_id", body.pulled_rdma_id)
            .put("pulled_rdma_seqnum", body.pulled_rdma_seqnum)
            .put("pulled_rdma_offset", body.pulled_rdma_offset)
            .skip("length"),
        Packet::Pull(body) => fields
            .endpoints(body.dst_endpoint, body.src_endpoint)
            .hex("session", body.session.0)
            .put("total_length", body.total_length)
            .put("pulled_rdma_id", body.pulled_rdma_id)
            .put("pulled_rdma_seqnum", body.pulled_rdma_seqnum)
            .put("pulled_rdma_offset", body.pulled_rdma_offset)
            .puller(body.puller)
            .put("first_frame_offset", body.first_frame_offset)
            .put("block_length", body.block_length)
            .put("frame_index", body.frame_index),
        Packet::PullReply(body) => fields
            .put("frame_seqnum", body.frame_seqnum)
            .put("frame_length", body.data.len())
            .put("msg_offset", body.msg_offset)
            .puller(body.puller)
            .bytes("data", body.data),
        Packet::Notify(body) => fields
            .endpoints(body.dst_endpoint, body.src_endpoint)
            .hex("session", body.session.0)
            .put("total_length", body.total_length)
            .put("pulled_rdma_id", body.pulled_rdma_id)
            .put("pulled_rdma_seqnum", body.pulled_rdma_seqnum)
            .seqnum(body.lib_seqnum)
            .piggyack(body.lib_piggyack),
        Packet::NackLib(body) => fields
            .endpoints(body.dst_endpoint, body.src_endpoint)
            .put("nack_type", body.nack_type.number())
            .seqnum(body.lib_seqnum),
        Packet::NackMcp(body) => fields
            .put("src_endpoint", body.src_endpoint.0)
            .put("nack_type", body.nack_type.number())
            .puller(body.puller),
    };
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn address(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect::<Vec<_>>().join(":")
}
