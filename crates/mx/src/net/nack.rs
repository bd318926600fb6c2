//! The negative acknowledgements of a board for an endpoint that it does not have (mxoe-wire 3.13).

use super::PayloadRange;
use crate::wire::{EndpointNumber, Nack, NackLib, NackMcp, Packet, SeqNum};

/// Returns the negative acknowledgement of a packet for an endpoint that is not open, or cannot exist. `None` for
/// packets that are dropped silently, among them negative acknowledgements.
pub fn nack_for<D>(packet: &Packet<D>, nack_type: Nack) -> Option<Packet<PayloadRange>> {
    let lib = |sender: EndpointNumber, addressed: EndpointNumber, lib_seqnum: SeqNum| {
        Some(Packet::NackLib(NackLib { dst_endpoint: sender, src_endpoint: addressed, nack_type, lib_seqnum }))
    };
    let head = match packet {
        Packet::Tiny(body) | Packet::Small(body) => &body.head,
        Packet::Medium(body) => &body.head,
        Packet::Rndv(body) => &body.head,
        Packet::Notify(body) => return lib(body.src_endpoint, body.dst_endpoint, body.lib_seqnum),
        Packet::ConnectRequest(body) => return lib(body.src_endpoint, body.dst_endpoint, SeqNum::ZERO),
        Packet::ConnectReply(body) => return lib(body.src_endpoint, body.dst_endpoint, SeqNum::ZERO),
        Packet::Pull(body) => {
            let nack = NackMcp { src_endpoint: body.src_endpoint, nack_type, puller: body.puller };
            return Some(Packet::NackMcp(nack));
        }
        Packet::Raw(_)
        | Packet::HostQuery(_)
        | Packet::HostReply(_)
        | Packet::Liback(_)
        | Packet::PullReply(_)
        | Packet::NackLib(_)
        | Packet::NackMcp(_) => return None,
    };
    lib(head.src_endpoint, head.dst_endpoint, head.lib_seqnum)
}
