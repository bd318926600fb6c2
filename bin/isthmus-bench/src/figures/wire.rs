//! Cases between hosts that several lists of rows have in common: messages one way, and bare frames by the same system calls.
//!
//! Hosts are network namespaces of this machine and the wire is a veth pair. Where namespaces may not be made, each case reports
//! that. Frames are as long as the MTU allows, on both sides of a ratio.

use std::rc::Rc;

use isthmus_link::raw::RAW_MESSAGE_BYTES;

use super::MIB;
use crate::case::LinkCase;
use crate::hosts::{HostPairs, LinkKind, WireSpec};
use crate::job::{Buffers, Wait};
use crate::path::Path;

/// A veth pair that carries frames as a plain network card does.
pub(crate) const VETH: WireSpec = WireSpec {
    name: "veth",
    mtu: 9000,
    offloads: false,
    conditions: None,
    link_kind: LinkKind::Packet,
    silent_links: 0,
};

/// Messages of 1 MiB one way.
pub(crate) fn goodput(path: Path, wait: Wait, host_pairs: &Rc<HostPairs>, between: WireSpec) -> LinkCase {
    LinkCase::bandwidth(path, wait, MIB, Buffers::Warm).between(host_pairs, between)
}

/// Bare frames one way, as long as those of the messages.
pub(crate) fn frames(wait: Wait, host_pairs: &Rc<HostPairs>, between: WireSpec) -> LinkCase {
    let path = match between.link_kind {
        LinkKind::Packet => Path::Raw,
        LinkKind::Udp => Path::RawUdp,
    };
    LinkCase::bandwidth(path, wait, between.frame_bytes(), Buffers::Warm).between(host_pairs, between)
}

/// A bare frame there and back, as short as one can be.
pub(crate) fn frame_there_and_back(wait: Wait, host_pairs: &Rc<HostPairs>) -> LinkCase {
    LinkCase::half_rtt(Path::Raw, wait, RAW_MESSAGE_BYTES).between(host_pairs, VETH)
}
