//! Packets parse to what was emitted. Any bytes are refused, or emit to an equal packet.

use isthmus_layout::NicId;
use isthmus_mx::wire::{
    BoardName, ConnectReply, ConnectRequest, ConnectStatus, Dialect, Eager, EndpointNumber, HEADER_BYTES, Header,
    HostQuery, HostReply, Liback, MX_FRAGMENT_BYTES_MAX, Medium, MessageHead, Nack, NackLib, NackMcp, Notify, Packet,
    PeerIndex, Pull, PullHandle, PullReply, RAW_FRAME_BYTES_MAX, Raw, Rndv, SMALL_BYTES_MAX, SeqNum, SessionId,
    TINY_BYTES_MAX, parse,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::frame;
use crate::samples::samples;

type Owned = Packet<Vec<u8>>;

fn header() -> impl Strategy<Value = Header> {
    let nic = || any::<[u8; 6]>().prop_map(NicId::from_octets);
    (nic(), nic(), index()).prop_map(|(dst, src, peer_index)| Header { dst, src, peer_index })
}

fn index() -> impl Strategy<Value = Option<PeerIndex>> {
    any::<u16>().prop_map(PeerIndex::new)
}

fn endpoint() -> impl Strategy<Value = EndpointNumber> {
    any::<u8>().prop_map(EndpointNumber)
}

fn session() -> impl Strategy<Value = SessionId> {
    any::<u32>().prop_map(SessionId)
}

fn seqnum() -> impl Strategy<Value = SeqNum> {
    any::<u16>().prop_map(SeqNum::from_bits)
}

fn puller() -> impl Strategy<Value = PullHandle> {
    any::<(u32, u32)>().prop_map(|(handle, magic)| PullHandle { handle, magic })
}

fn nack() -> impl Strategy<Value = Nack> {
    prop_oneof![Just(Nack::BadEndpoint), Just(Nack::EndpointClosed), Just(Nack::BadSession), Just(Nack::BadRdmaWindow)]
}

fn bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![vec(any::<u8>(), 0..=most.min(80)), vec(any::<u8>(), 0..=most), vec(any::<u8>(), most)]
}

fn message_head() -> impl Strategy<Value = MessageHead> {
    (endpoint(), endpoint(), seqnum(), seqnum(), any::<u64>(), session()).prop_map(
        |(dst_endpoint, src_endpoint, lib_seqnum, lib_piggyack, match_info, session)| MessageHead {
            dst_endpoint,
            src_endpoint,
            lib_seqnum,
            lib_piggyack,
            match_info,
            session,
        },
    )
}

fn between_hosts() -> impl Strategy<Value = Owned> {
    // A raw packet shorter than the shortest frame returns with its padding, because it has no length.
    let raw = vec(any::<u8>(), 43..=RAW_FRAME_BYTES_MAX - HEADER_BYTES - 1).prop_map(|data| Packet::Raw(Raw { data }));
    let query = (index(), any::<u32>())
        .prop_map(|(src_dst_peer_index, magic)| Packet::HostQuery(HostQuery { src_dst_peer_index, magic }));
    let name = vec(1..=u8::MAX, 0..=BoardName::BYTES_MAX).prop_map(|name| BoardName::new(&name).unwrap());
    let reply = (index(), any::<u32>(), name).prop_map(|(src_dst_peer_index, magic, hostname)| {
        Packet::HostReply(HostReply { src_dst_peer_index, magic, hostname })
    });
    prop_oneof![raw, query, reply]
}

fn connect_request() -> impl Strategy<Value = Owned> {
    (endpoint(), endpoint(), index(), session(), any::<u32>(), seqnum(), any::<u8>()).prop_map(
        |(dst_endpoint, src_endpoint, src_dst_peer_index, src_session_id, app_key, start, connect_seqnum)| {
            Packet::ConnectRequest(ConnectRequest {
                dst_endpoint,
                src_endpoint,
                src_dst_peer_index,
                src_session_id,
                app_key,
                target_recv_seqnum_start: start,
                connect_seqnum,
            })
        },
    )
}

fn connect_reply() -> impl Strategy<Value = Owned> {
    let status = prop_oneof![Just(ConnectStatus::Success), Just(ConnectStatus::BadKey)];
    ((endpoint(), endpoint(), index()), (session(), session()), (seqnum(), any::<u8>(), status)).prop_map(
        |((dst_endpoint, src_endpoint, src_dst_peer_index), sessions, (start, connect_seqnum, status))| {
            Packet::ConnectReply(ConnectReply {
                dst_endpoint,
                src_endpoint,
                src_dst_peer_index,
                src_session_id: sessions.0,
                target_session_id: sessions.1,
                target_recv_seqnum_start: start,
                connect_seqnum,
                status,
            })
        },
    )
}

fn answers() -> impl Strategy<Value = Owned> {
    let liback = (endpoint(), endpoint(), session(), seqnum(), any::<u32>()).prop_map(
        |(dst_endpoint, src_endpoint, session, lib_seqnum, acknum)| {
            Packet::Liback(Liback { dst_endpoint, src_endpoint, session, lib_seqnum, acknum })
        },
    );
    let nack_lib =
        (endpoint(), endpoint(), nack(), seqnum()).prop_map(|(dst_endpoint, src_endpoint, nack_type, lib_seqnum)| {
            Packet::NackLib(NackLib { dst_endpoint, src_endpoint, nack_type, lib_seqnum })
        });
    let nack_mcp = (endpoint(), nack(), puller())
        .prop_map(|(src_endpoint, nack_type, puller)| Packet::NackMcp(NackMcp { src_endpoint, nack_type, puller }));
    prop_oneof![liback, nack_lib, nack_mcp]
}

fn eager() -> impl Strategy<Value = Owned> {
    let tiny = (message_head(), bytes(TINY_BYTES_MAX)).prop_map(|(head, data)| Packet::Tiny(Eager { head, data }));
    let small = (message_head(), bytes(SMALL_BYTES_MAX)).prop_map(|(head, data)| Packet::Small(Eager { head, data }));
    prop_oneof![tiny, small]
}

/// Generates a fragment that lies within its message.
fn fragment(dialect: Dialect) -> BoxedStrategy<Owned> {
    let of = |(head, frag_seqnum, frag_pipeline, data, more): (MessageHead, u8, u8, Vec<u8>, u32)| {
        let length = (u32::from(frag_seqnum) << frag_pipeline) + data.len() as u32;
        let length = length.saturating_add(more);
        Packet::Medium(Medium { head, length, frag_seqnum, frag_pipeline, data })
    };
    match dialect {
        Dialect::Mx => {
            (message_head(), 0_u8..8, 0_u8..=12, bytes(MX_FRAGMENT_BYTES_MAX), 0_u32..0x7000).prop_map(of).boxed()
        }
        Dialect::OpenMx { .. } => {
            // The sizes of the network determine the offset, so the fragment's number is independent of the length.
            (message_head(), any::<u8>(), Just(0), bytes(9000), any::<u32>()).prop_map(of).boxed()
        }
    }
}

fn large() -> impl Strategy<Value = Owned> {
    let rndv = (message_head(), any::<(u32, u8, u8, u16)>()).prop_map(|(head, (msg_length, id, seqnum, offset))| {
        Packet::Rndv(Rndv {
            head,
            msg_length,
            pulled_rdma_id: id,
            pulled_rdma_seqnum: seqnum,
            pulled_rdma_offset: offset,
        })
    });
    let notify = ((endpoint(), endpoint(), session()), any::<(u32, u8, u8)>(), seqnum(), seqnum()).prop_map(
        |((dst_endpoint, src_endpoint, session), (total_length, id, seqnum), lib_seqnum, lib_piggyack)| {
            Packet::Notify(Notify {
                dst_endpoint,
                src_endpoint,
                session,
                total_length,
                pulled_rdma_id: id,
                pulled_rdma_seqnum: seqnum,
                lib_seqnum,
                lib_piggyack,
            })
        },
    );
    let reply =
        (any::<u8>(), any::<u32>(), puller(), bytes(8968)).prop_map(|(frame_seqnum, msg_offset, puller, data)| {
            Packet::PullReply(PullReply { frame_seqnum, msg_offset, puller, data })
        });
    prop_oneof![rndv, notify, reply]
}

fn pull(dialect: Dialect) -> impl Strategy<Value = Owned> {
    let is_wide = dialect != Dialect::Mx;
    let narrow = |most: u32| if is_wide { 0..=u32::MAX } else { 0..=most };
    let (id, short) = (narrow(0xff), || narrow(0xffff));
    ((endpoint(), endpoint(), session()), any::<(u32, u8, u32)>(), puller(), (id, short(), short(), short())).prop_map(
        |((dst_endpoint, src_endpoint, session), (total_length, seqnum, frame_index), puller, narrow)| {
            Packet::Pull(Pull {
                dst_endpoint,
                src_endpoint,
                session,
                total_length,
                pulled_rdma_id: narrow.0,
                pulled_rdma_seqnum: seqnum,
                pulled_rdma_offset: narrow.1,
                puller,
                first_frame_offset: narrow.2,
                block_length: narrow.3,
                frame_index,
            })
        },
    )
}

fn packet(dialect: Dialect) -> impl Strategy<Value = Owned> {
    prop_oneof![
        between_hosts(),
        connect_request(),
        connect_reply(),
        answers(),
        eager(),
        fragment(dialect),
        large(),
        pull(dialect),
    ]
}

/// Generates dialects, one with another ethertype, and a packet of each.
fn spoken() -> impl Strategy<Value = (Dialect, Owned)> {
    let own = Dialect::OpenMx { ethertype: 0x86dd };
    prop_oneof![Just(Dialect::Mx), Just(Dialect::OPEN_MX), Just(own)]
        .prop_flat_map(|dialect| packet(dialect).prop_map(move |packet| (dialect, packet)))
}

/// Checks that each packet that parses can be emitted, and parses as the same packet again.
fn assert_round_trip(dialect: Dialect, bytes: &[u8]) {
    if let Ok((header, packet)) = parse(dialect, bytes) {
        let again = frame(dialect, &header, &packet).unwrap();
        let (header_again, packet_again) = parse(dialect, &again).unwrap();
        assert_eq!(header_again, header);
        match (packet, packet_again) {
            (Packet::Raw(raw), Packet::Raw(padded)) => assert!(padded.data.starts_with(raw.data)),
            (packet, again) => assert_eq!(again, packet),
        }
    }
}

proptest! {
    #[test]
    fn emitted_packets_parse_to_themselves(header in header(), (dialect, packet) in spoken()) {
        let frame = frame(dialect, &header, &packet).unwrap();
        prop_assert!(frame.len() >= 60);
        let (parsed_header, parsed) = parse(dialect, &frame).unwrap();
        prop_assert_eq!(parsed_header, header);
        prop_assert_eq!(parsed.dst_endpoint(), packet.dst_endpoint());
        prop_assert_eq!(parsed.map(<[u8]>::to_vec), packet);
    }

    #[test]
    fn prefixes_are_refused_or_parsed(header in header(), (dialect, packet) in spoken()) {
        let frame = frame(dialect, &header, &packet).unwrap();
        for bytes in 0..frame.len().min(200) {
            assert_round_trip(dialect, &frame[..bytes]);
        }
    }

    #[test]
    fn random_bytes_are_refused_or_reemitted(
        is_mx: bool, kind in prop_oneof![1_u8..5, 32_u8..47, any::<u8>()], mut noise in vec(any::<u8>(), 0..200),
    ) {
        let dialect = if is_mx { Dialect::Mx } else { Dialect::OPEN_MX };
        for (at, byte) in [(12, 0x86), (13, 0xdf), (16, kind)] {
            noise.get_mut(at).into_iter().for_each(|place| *place = byte);
        }
        assert_round_trip(dialect, &noise);
    }

    #[test]
    fn damaged_samples_are_refused_or_reemitted(
        sample in 0..22_usize, damage in vec((16..64_usize, any::<u8>()), 1..6), cut in 0..80_usize,
    ) {
        let sample = &samples()[sample];
        let mut frame = sample.frame.clone();
        for (at, byte) in damage {
            frame.get_mut(at).into_iter().for_each(|place| *place = byte);
        }
        frame.truncate(frame.len() - cut.min(frame.len()));
        assert_round_trip(sample.dialects[0], &frame);
    }
}
