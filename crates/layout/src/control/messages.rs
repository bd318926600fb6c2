//! The messages between a library and its daemon. `docs/spec/control.md` shows them as a table printed from here.

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
use crate::ready_map::ReadyBit;
use crate::reason::Reason;

/// Bytes of JSON in one [`QueryReply`].
pub const QUERY_REPLY_BYTES_MAX: usize = 12 << 10;

record! {
    /// A domain that comes back after its daemon was restarted.
    Resume {
        /// What it was called by number.
        domain: DomainId,
        /// What the old daemon gave it as a proof.
        ticket: Ticket,
    }
}

record! {
    /// A descriptor that is an end of an event channel.
    EventChannelEnd {
        /// Which of its message's.
        descriptor: u8,
        /// The channel's port in this guest.
        port: u32,
    }
}

record! {
    /// A descriptor of memory that begins somewhere within its file.
    DescriptorOffset {
        /// Which of its message's.
        descriptor: u8,
        /// Its first byte in the file.
        offset: u64,
    }
}

messages! {
    /// A message from a library to its daemon.
    ToDaemon, capability Mx: MxToDaemon;

    /// The first message of a connection. Its bytes never change.
    1 Hello since 0, reply "`HelloReply`", descriptors [] {
        /// Says what this is.
        magic: Magic,
        /// What the library speaks.
        versions: VersionRange,
        /// What it calls itself: its own name and version, for the log.
        library: Name,
    }

    /// Makes the connection a domain. It stays one until the connection ends.
    2 Attach since 0, reply "`Welcome`",
    descriptors [] if resume ["own ready map's memory", "own doorbell"] {
        /// What the domain is to be called; without, the daemon makes a name of the program's and the process number.
        name: Option<Name>,
        /// Says that it was attached to a daemon before this one.
        resume: Option<Resume>,
    }

    /// After a resumption: one of the ready maps it has beside the daemon's, so that the daemon can offer it to further peers.
    3 AdoptReadyMap since 0, reply "`Done`", descriptors ["the ready map's memory", "the ready map's doorbell"] {
        /// Which ready map.
        ready_map: ReadyMapIndex,
        /// The owner of the domains that set bits in it.
        owner: Owner,
    }

    /// After a resumption: a channel it has, so that the daemon lists it again and closes it in time.
    4 AdoptChannel since 0, reply "`Done`", descriptors ["the channel's memory"] {
        /// Which channel.
        channel: ChannelId,
        /// The domain at the other end.
        peer: DomainId,
        /// The direction it sends on.
        direction: Direction,
        /// Bytes of each slab.
        slab: SlabSize,
        /// The ready map of its own in which the peer sets a bit.
        ready_map: ReadyMapIndex,
        /// The channel's bit in that ready map.
        ready_bit: ReadyBit,
        /// The channel's bit in the peer's ready map.
        peer_ready_bit: ReadyBit,
    }

    /// Opens an endpoint.
    5 OpenEndpoint since 0, reply "`EndpointOpened`", descriptors [] {
        /// Which; without, the lowest that is free.
        index: Option<EndpointIndex>,
        /// What it is for, for people.
        label: Option<Name>,
    }

    /// Closes an endpoint.
    6 CloseEndpoint since 0, reply "`Done`", descriptors [] {
        /// Which.
        index: EndpointIndex,
    }

    /// Asks who is called so.
    7 Lookup since 0, reply "`Found`", descriptors [] {
        /// A domain's name, or its number as in `d7`.
        name: Name,
    }

    /// Asks for a channel.
    8 RequestChannel since 0, reply "`ChannelOffer`, or `ChannelRefused`", descriptors [] {
        /// With whom.
        peer: DomainId,
        /// The how-manieth try it is, from 1. After one for which there was no address space, slabs are smaller.
        attempt: u8,
    }

    /// Says that an offered channel is mapped and listened to.
    9 AcceptChannel since 0, reply "", descriptors [] {
        /// Which.
        channel: ChannelId,
    }

    /// Says that an offered channel will not be used.
    10 RefuseChannel since 0, reply "", descriptors [] {
        /// Which.
        channel: ChannelId,
        /// Why.
        reason: Reason,
    }

    /// Ends a channel. The daemon tells the peer. In a guest whoever was told says so, too, once it has taken what was left in it.
    11 CloseChannel since 0, reply "", descriptors [] {
        /// Which.
        channel: ChannelId,
        /// Why.
        reason: Reason,
    }

    /// Offers memory to one peer, who may map it for reading. It is sealed against shrinking and against writing by others. An arena, which
    /// is region 2⁶³, may be written too, and of it only the header is said to be there.
    12 Grant since 0, reply "`Done`", descriptors ["the region, opened for reading, or an arena"] {
        /// To whom.
        peer: DomainId,
        /// What the sender calls it. Never used twice.
        region: RegionId,
        /// Where it begins in the file, in bytes.
        start: u64,
        /// How large it is.
        bytes: u64,
    }

    /// Takes an offer back: the peer is asked to forget the region.
    13 Revoke since 0, reply "", descriptors [] {
        /// From whom.
        peer: DomainId,
        /// Which.
        region: RegionId,
    }

    /// Asks for a report. No need to be attached.
    14 Query since 0, reply "`QueryReply`, several until the last", descriptors [] {
        /// About what.
        topic: Topic,
        /// What narrows it.
        arguments: List<Name, 4>,
    }

    /// Leaves in order. Peers are told that it was no accident.
    15 Detach since 0, reply "`Done`, then the end of the connection", descriptors [] {}

    /// Asks for a copy of the frames that MX boards receive and send from now on, until the reader is gone. They are frames of all
    /// users: only root and the daemon's own user get them. No need to be attached.
    19 Capture since 3, reply "`Done`", descriptors ["a stream socket of the Unix domain, where the frames go"] {
        /// Which MX board; without, all that have links.
        board: Option<u32>,
        /// Only frames from or to this domain; without, all.
        domain: Option<DomainId>,
        /// Bytes of each frame at most.
        snap_bytes: u32,
    }

    /// In a guest: asks for memory of a region, which a peer in this guest, or in one that has a pair window with it, may map for
    /// reading; or, of a region that is there, that a further peer may. It is revoked as any other, and gone when no peer has it.
    20 CreateRegion since 3, reply "`RegionCreated`", descriptors [] {
        /// Who may map it. `Granted` tells it.
        peer: DomainId,
        /// What the sender calls it. Never used twice for another one.
        region: RegionId,
        /// How large it is, in whole pages.
        bytes: u64,
    }
}

messages! {
    /// A message from a daemon to a library.
    ToClient, capability Mx: MxToClient;

    /// The versions get along. Its bytes never change.
    129 HelloReply since 0, reply "", descriptors [] {
        /// Says what this is.
        magic: Magic,
        /// The version both speak from now on.
        major: u16,
        /// See `major`.
        minor: u16,
        /// What the daemon calls itself: its own name and version.
        daemon: Name,
    }

    /// A request was refused. Without a serial, the connection is. Its bytes never change.
    130 Refused since 0, reply "", descriptors [] {
        /// Why.
        reason: Reason,
        /// The same with the numbers at hand, for people.
        text: Text,
    }

    /// A request without an answer of its own was carried out.
    131 Done since 0, reply "", descriptors [] {}

    /// The connection is a domain now.
    132 Welcome since 0, reply "",
    descriptors ["domain ring's memory", "daemon's ready map's memory", "daemon's doorbell"]
    if fresh ["own ready map's memory", "own doorbell"] {
        /// Its number.
        domain: DomainId,
        /// Shown to a later daemon, proves that it was this domain.
        ticket: Ticket,
        /// What it is called.
        name: Name,
        /// Whose it is.
        owner: Owner,
        /// Different for each start of a daemon.
        epoch: u64,
        /// Bytes of each slab of the domain ring.
        slab: SlabSize,
        /// Its bit in the daemon's ready map.
        daemon_ready_bit: ReadyBit,
        /// Message bytes that it may have under way to one peer on the daemon path.
        credit_bytes: u32,
        /// False where the policy keeps all its messages on the daemon path.
        channels: bool,
        /// True for a new domain. False for one that was resumed: it keeps the ready map and the doorbell it has. The domain ring is
        /// a new one each time, since nobody else knows how far the old daemon had come in the old one.
        fresh: bool,
    }

    /// The endpoint is open.
    133 EndpointOpened since 0, reply "", descriptors [] {
        /// Which.
        index: EndpointIndex,
    }

    /// The domain that was looked up.
    134 Found since 0, reply "", descriptors [] {
        /// Its number.
        domain: DomainId,
        /// Its name.
        name: Name,
        /// Whose it is.
        owner: Owner,
    }

    /// A channel, half made: the listener (who sends on direction 1) maps it first and accepts; the connector waits for `ChannelOpen`.
    135 ChannelOffer since 0, reply "`AcceptChannel` or `RefuseChannel`, from the listener",
    descriptors ["the channel's memory", "peer's ready map's memory", "peer's doorbell"]
    if new_ready_map ["new own ready map's memory", "new own doorbell"] {
        /// Which.
        channel: ChannelId,
        /// The domain at the other end.
        peer: DomainId,
        /// Its name.
        peer_name: Name,
        /// Whose it is.
        peer_owner: Owner,
        /// The direction to send on.
        direction: Direction,
        /// Bytes of each slab.
        slab: SlabSize,
        /// The receiver's own ready map in which the peer sets a bit.
        ready_map: ReadyMapIndex,
        /// The channel's bit in that ready map.
        ready_bit: ReadyBit,
        /// The channel's bit in the peer's ready map.
        peer_ready_bit: ReadyBit,
        /// True where that ready map is new and comes with the message.
        new_ready_map: bool,
    }

    /// The listener has accepted: the connector may use the channel.
    136 ChannelOpen since 0, reply "", descriptors [] {
        /// Which.
        channel: ChannelId,
    }

    /// There is no channel.
    137 ChannelRefused since 0, reply "", descriptors [] {
        /// With whom.
        peer: DomainId,
        /// Why.
        reason: Reason,
        /// True where asking again makes no sense: stay on the daemon path.
        permanent: bool,
    }

    /// A channel is over.
    138 ChannelClosed since 0, reply "", descriptors [] {
        /// Which.
        channel: ChannelId,
        /// Why.
        reason: Reason,
    }

    /// A peer offers memory.
    139 Granted since 0, reply "", descriptors ["the region, opened for reading, or an arena"] {
        /// Who.
        peer: DomainId,
        /// What the peer calls it.
        region: RegionId,
        /// Where it begins in the file, in bytes.
        start: u64,
        /// How large it is: checked by the daemon.
        bytes: u64,
    }

    /// A peer takes its offer back.
    140 Revoked since 0, reply "", descriptors [] {
        /// Who.
        peer: DomainId,
        /// Which.
        region: RegionId,
    }

    /// A peer is no longer there.
    141 PeerGone since 0, reply "", descriptors [] {
        /// Who.
        peer: DomainId,
        /// How it went.
        reason: Reason,
    }

    /// Wakes the domain to look at its ring: the daemon rings no doorbell that a domain could make it wait at.
    143 Wakeup since 0, reply "", descriptors [] {}

    /// A part of a report.
    142 QueryReply since 0, reply "", descriptors [] {
        /// True for the last part.
        last: bool,
        /// JSON; the parts are put together before it is read.
        json: BoundedBytes<QUERY_REPLY_BYTES_MAX>,
    }

    /// The region's memory. Its bytes stay when it is taken away from the region.
    147 RegionCreated since 3, reply "", descriptors ["the region, opened for reading and writing"] {
        /// Which.
        region: RegionId,
    }

    /// In a guest of Xen: which doorbells of the next message are ends of event channels. Such a one is rung by notifying its port; what rang
    /// it is read from it, and written back.
    148 EventChannels since 4, reply "", descriptors [] {
        /// Those.
        ends: List<EventChannelEnd, CONTROL_FDS_MAX>,
    }

    /// In a guest without the driver: which descriptors of the next message show all of the window, and where in it their memory begins.
    149 DescriptorOffsets since 4, reply "", descriptors [] {
        /// Those.
        memory: List<DescriptorOffset, CONTROL_FDS_MAX>,
    }
}

packets! { ToDaemon, the other way ToClient }
packets! { ToClient, the other way ToDaemon }

/// Every message fits a packet, with its header, and no more descriptors go with it than a packet takes.
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
