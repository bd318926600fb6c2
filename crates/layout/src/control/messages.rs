//! The messages between a library and its daemon. The tables in `docs/spec/control.md` are printed from these declarations.

use alloc::string::String;
use alloc::vec::Vec;

use super::codec::{BoundedBytes, Field, FieldReader, Flag, List, MalformedControl, Width};
use super::name::{Name, Text};
use super::table::{FieldInfo, MessageInfo, OptionalDescriptors, concat_tables, messages, packets, record};
use super::values::{Magic, Owner, ReadyMapIndex, Ticket, Topic};
use super::version::VersionRange;
use super::{Header, RequestSerial};
use crate::channel::{Direction, SlabSize};
use crate::ids::{ChannelId, DomainId, EndpointIndex, RegionId};
use crate::limits::{CONTROL_BYTES_MAX, CONTROL_FDS_MAX};
use crate::mx::{MxToClient, MxToDaemon};
use crate::overlay::OverlayToDaemon;
use crate::ready_map::ReadyBit;
use crate::reason::Reason;
use crate::sockets::{SocketsToClient, SocketsToDaemon};
use crate::verbs::{VerbsToClient, VerbsToDaemon};

/// The maximum number of bytes of JSON in one [`QueryReply`].
pub const QUERY_REPLY_BYTES_MAX: usize = 12 << 10;

record! {
    /// The identity of a domain that resumes after a restart of its daemon.
    Resume {
        /// The number of the domain.
        domain: DomainId,
        /// The ticket that the previous daemon gave to the domain as a proof.
        ticket: Ticket,
    }
}

record! {
    /// A descriptor that is an end of an event channel.
    EventChannelEnd {
        /// The index of the descriptor in its message.
        descriptor: u8,
        /// The channel's port in this guest.
        port: u32,
    }
}

messages! {
    /// A message from a library to its daemon.
    ToDaemon, capability Mx: MxToDaemon, capability Sockets: SocketsToDaemon, capability Verbs: VerbsToDaemon, capability Overlay: OverlayToDaemon;

    /// The first message of a connection. Its bytes never change.
    1 Hello since 0, reply "`HelloReply`", descriptors [] {
        /// The mark of the protocol.
        magic: Magic,
        /// The versions that the library supports.
        versions: VersionRange,
        /// The name and version of the library, for the log.
        library: Name,
    }

    /// Attaches the connection as a domain. The domain lives until the connection ends.
    2 Attach since 0, reply "`Welcome`",
    descriptors [] if resume ["own ready map's memory", "own doorbell"] {
        /// The name of the domain. If absent, the daemon derives a name from the program and the process number.
        name: Option<Name>,
        /// The proof that the domain was attached to a previous daemon.
        resume: Option<Resume>,
    }

    /// Registers a ready map of a resumed domain with the new daemon, which can then offer it to further peers. The ready map for the daemon
    /// comes with `Attach`.
    3 AdoptReadyMap since 0, reply "`Done`", descriptors ["the ready map's memory", "the ready map's doorbell"] {
        /// The index of the ready map.
        ready_map: ReadyMapIndex,
        /// The owner of the domains that set bits in it.
        owner: Owner,
    }

    /// Registers a channel of a resumed domain with the new daemon, which then lists the channel and closes it in time.
    4 AdoptChannel since 0, reply "`Done`", descriptors ["the channel's memory"] {
        /// The channel.
        channel: ChannelId,
        /// The domain at the other end.
        peer: DomainId,
        /// The direction on which the domain sends.
        direction: Direction,
        /// The size of each slab in bytes.
        slab: SlabSize,
        /// The ready map of the domain in which the peer sets a bit.
        ready_map: ReadyMapIndex,
        /// The channel's bit in that ready map.
        ready_bit: ReadyBit,
        /// The channel's bit in the peer's ready map.
        peer_ready_bit: ReadyBit,
    }

    /// Opens an endpoint.
    5 OpenEndpoint since 0, reply "`EndpointOpened`", descriptors [] {
        /// The index of the endpoint; the lowest free index if absent.
        index: Option<EndpointIndex>,
        /// The label of the endpoint, for people.
        label: Option<Name>,
    }

    /// Closes an endpoint.
    6 CloseEndpoint since 0, reply "`Done`", descriptors [] {
        /// The index of the endpoint.
        index: EndpointIndex,
    }

    /// Asks for the domain of this name.
    7 Lookup since 0, reply "`Found`", descriptors [] {
        /// A domain's name, or its number as in `d7`.
        name: Name,
    }

    /// Asks for a channel.
    8 RequestChannel since 0, reply "`ChannelOffer`, or `ChannelRefused`", descriptors [] {
        /// The peer.
        peer: DomainId,
        /// The attempt number, starting at 1. After an attempt failed for lack of address space, the slabs are smaller.
        attempt: u8,
    }

    /// Accepts an offered channel, which the domain has mapped and listens to.
    9 AcceptChannel since 0, reply "", descriptors [] {
        /// The channel.
        channel: ChannelId,
    }

    /// Refuses an offered channel.
    10 RefuseChannel since 0, reply "", descriptors [] {
        /// The channel.
        channel: ChannelId,
        /// The reason.
        reason: Reason,
    }

    /// Closes a channel. The daemon notifies the peer. In a guest, the notified peer also sends this message, after it has received the last
    /// records of the channel.
    11 CloseChannel since 0, reply "", descriptors [] {
        /// The channel.
        channel: ChannelId,
        /// The reason.
        reason: Reason,
    }

    /// Grants a region to one peer, which may map it for reading. The memory is sealed against shrinking and against writes by others. An
    /// arena is region 2⁶³: the peer may also write to it, and only its header is declared here.
    12 Grant since 0, reply "`Done`", descriptors ["the region, opened for reading, or an arena"] {
        /// The peer.
        peer: DomainId,
        /// The number of the region, which the sender never uses twice.
        region: RegionId,
        /// The offset of the region in the file, in bytes.
        start: u64,
        /// The size of the region in bytes.
        bytes: u64,
    }

    /// Revokes a grant: the peer has to unmap the region.
    13 Revoke since 0, reply "", descriptors [] {
        /// The peer.
        peer: DomainId,
        /// The region.
        region: RegionId,
    }

    /// Asks for a report. The connection need not be attached. The report has what the program may see: all of it for root and the user of
    /// the daemon, otherwise what belongs to the user or to the guest, and counts.
    14 Query since 0, reply "`QueryReply`, several until the last", descriptors [] {
        /// The topic of the report.
        topic: Topic,
        /// The arguments of the report.
        arguments: List<Name, 4>,
    }

    /// Detaches in order. Peers are notified with the reason `peer-detached`.
    15 Detach since 0, reply "`Done`, then the end of the connection", descriptors [] {}

    /// Asks for a copy of the frames that MX boards receive and send from now on, until the reader is gone. The frames belong to all users,
    /// so only root and the user of the daemon may ask. The connection need not be attached.
    19 Capture since 3, reply "`Done`", descriptors ["a stream socket of the Unix domain, where the frames go"] {
        /// The number of the MX board; all boards with links if absent.
        board: Option<u32>,
        /// The domain that sends or receives the frames; all frames if absent.
        domain: Option<DomainId>,
        /// The maximum number of bytes of each frame.
        snap_bytes: u32,
    }

    /// Asks for the memory of a region, in a guest. A peer in the same guest, or in a guest with a pair window, may map the region for
    /// reading. For an existing region, this message adds a peer. The region is revoked like any other, and freed when no peer has it.
    20 CreateRegion since 3, reply "`RegionCreated`", descriptors [] {
        /// The peer that may map the region. `Granted` notifies it.
        peer: DomainId,
        /// The number of the region, which the sender never uses for another region.
        region: RegionId,
        /// The size of the region in bytes: whole pages.
        bytes: u64,
    }

    /// Reports messages that the program was told are over, and that the domain leaves behind because their receiver did not take them in time.
    /// The daemon logs and counts them, and ends the channel to the receiver with the reason `messages-undelivered`.
    21 Undelivered since 4, reply "`Done`", descriptors [] {
        /// The receiver of the messages.
        peer: DomainId,
        /// The number of the messages.
        messages: u32,
    }
}

messages! {
    /// A message from a daemon to a library.
    ToClient, capability Mx: MxToClient, capability Sockets: SocketsToClient, capability Verbs: VerbsToClient;

    /// The handshake succeeded. The bytes of this message never change.
    129 HelloReply since 0, reply "", descriptors [] {
        /// The mark of the protocol.
        magic: Magic,
        /// The major version in use from now on.
        major: u16,
        /// The minor version in use from now on.
        minor: u16,
        /// The name and version of the daemon.
        daemon: Name,
    }

    /// A request was refused, or, without a serial, the connection. The bytes of this message never change.
    130 Refused since 0, reply "", descriptors [] {
        /// The reason.
        reason: Reason,
        /// The reason as text, with the numbers of this case.
        text: Text,
    }

    /// A request without a reply of its own was carried out.
    131 Done since 0, reply "", descriptors [] {}

    /// The connection is attached as a domain.
    132 Welcome since 0, reply "",
    descriptors ["domain ring's memory", "daemon's ready map's memory", "daemon's doorbell"]
    if fresh ["own ready map's memory", "own doorbell"] {
        /// The number of the domain.
        domain: DomainId,
        /// The proof for a later daemon that the library was this domain.
        ticket: Ticket,
        /// The name of the domain.
        name: Name,
        /// The owner of the domain.
        owner: Owner,
        /// A number that is different for each start of a daemon.
        epoch: u64,
        /// The size of each slab of the domain ring in bytes.
        slab: SlabSize,
        /// The bit of the domain in the daemon's ready map.
        daemon_ready_bit: ReadyBit,
        /// The number of message bytes that may be in flight to one peer on the daemon path.
        credit_bytes: u32,
        /// False if the policy keeps all messages of the domain on the daemon path.
        channels: bool,
        /// True for a new domain. False for a resumed domain, which keeps its ready map and its doorbell. The domain ring is always new,
        /// because only the previous daemon knew its position in the old one.
        fresh: bool,
    }

    /// The endpoint is open.
    133 EndpointOpened since 0, reply "", descriptors [] {
        /// The index of the endpoint.
        index: EndpointIndex,
    }

    /// The domain that was looked up.
    134 Found since 0, reply "", descriptors [] {
        /// The number of the domain.
        domain: DomainId,
        /// The name of the domain.
        name: Name,
        /// The owner of the domain.
        owner: Owner,
    }

    /// A new channel. The listener, which sends on direction 1, maps the channel first and accepts it. The connector waits for `ChannelOpen`.
    135 ChannelOffer since 0, reply "`AcceptChannel` or `RefuseChannel`, from the listener",
    descriptors ["the channel's memory", "peer's ready map's memory", "peer's doorbell"]
    if new_ready_map ["new own ready map's memory", "new own doorbell"] {
        /// The channel.
        channel: ChannelId,
        /// The domain at the other end.
        peer: DomainId,
        /// The name of the peer.
        peer_name: Name,
        /// The owner of the peer.
        peer_owner: Owner,
        /// The direction on which the receiver of the offer sends.
        direction: Direction,
        /// The size of each slab in bytes.
        slab: SlabSize,
        /// The ready map of the receiver in which the peer sets a bit.
        ready_map: ReadyMapIndex,
        /// The channel's bit in that ready map.
        ready_bit: ReadyBit,
        /// The channel's bit in the peer's ready map.
        peer_ready_bit: ReadyBit,
        /// True if that ready map is new and its descriptors come with the message.
        new_ready_map: bool,
    }

    /// The listener has accepted the channel, and the connector may use it.
    136 ChannelOpen since 0, reply "", descriptors [] {
        /// The channel.
        channel: ChannelId,
    }

    /// The request for a channel was refused.
    137 ChannelRefused since 0, reply "", descriptors [] {
        /// The peer.
        peer: DomainId,
        /// The reason.
        reason: Reason,
        /// True if another request is useless. Messages stay on the daemon path.
        permanent: bool,
    }

    /// A channel was closed.
    138 ChannelClosed since 0, reply "", descriptors [] {
        /// The channel.
        channel: ChannelId,
        /// The reason.
        reason: Reason,
    }

    /// A peer has granted a region.
    139 Granted since 0, reply "", descriptors ["the region, opened for reading, or an arena"] {
        /// The peer.
        peer: DomainId,
        /// The number that the peer gave to the region.
        region: RegionId,
        /// The offset of the region in the file, in bytes.
        start: u64,
        /// The size of the region in bytes, as checked by the daemon.
        bytes: u64,
    }

    /// A peer has revoked a grant.
    140 Revoked since 0, reply "", descriptors [] {
        /// The peer.
        peer: DomainId,
        /// The region.
        region: RegionId,
    }

    /// A peer has left.
    141 PeerGone since 0, reply "", descriptors [] {
        /// The peer.
        peer: DomainId,
        /// The reason.
        reason: Reason,
    }

    /// Wakes the domain, which then polls its ring. The daemon does not ring a doorbell instead, because the domain could make the doorbell block.
    143 Wakeup since 0, reply "", descriptors [] {}

    /// A part of a report.
    142 QueryReply since 0, reply "", descriptors [] {
        /// True for the last part.
        last: bool,
        /// A part of the JSON text. The library joins all parts before it parses the text.
        json: BoundedBytes<QUERY_REPLY_BYTES_MAX>,
    }

    /// The memory of the region. Its bytes stay when the region is freed.
    147 RegionCreated since 3, reply "", descriptors ["the region, opened for reading and writing"] {
        /// The region.
        region: RegionId,
    }

    /// The doorbells of the next message that are ends of event channels, in a guest of Xen. The library rings such a doorbell by notifying
    /// its port. It reads the ports that have rung from the descriptor, and writes them back.
    148 EventChannels since 4, reply "", descriptors [] {
        /// The ends of event channels.
        ends: List<EventChannelEnd, CONTROL_FDS_MAX>,
    }

    // 149 is retired: it said where memory begins in the files of the next message.
}

packets! { ToDaemon, the other way ToClient }
packets! { ToClient, the other way ToDaemon }

/// Returns true if every message of the table fits into one packet, with its header and its descriptors.
const fn fits(table: &[MessageInfo]) -> bool {
    let mut index = 0;
    while index < table.len() {
        let more = match table[index].optional {
            Some(more) => more.what.len(),
            None => 0,
        };
        let bytes = super::HEADER_BYTES + table[index].width.max;
        if bytes > CONTROL_BYTES_MAX || table[index].descriptors.len() + more > CONTROL_FDS_MAX {
            return false;
        }
        index += 1;
    }
    true
}
const _: () = assert!(fits(ToDaemon::TABLE) && fits(ToClient::TABLE));
