//! Any control message, as a proptest strategy.

use isthmus_layout::channel::{Direction, SlabSize};
use isthmus_layout::control::*;
use isthmus_layout::ids::{ChannelId, DomainId, EndpointIndex, RegionId};
use isthmus_layout::mx::*;
use isthmus_layout::overlay::*;
use isthmus_layout::ready_map::ReadyBit;
use isthmus_layout::reason::Reason;
use isthmus_layout::sockets::*;
use isthmus_layout::verbs::*;
use proptest::prelude::*;
use proptest::sample::select;

/// Any value of a field's type.
trait Sample: Sized + std::fmt::Debug + Clone + 'static {
    fn sample() -> BoxedStrategy<Self>;
}

macro_rules! samples {
    ($($type:ty: $strategy:expr;)*) => {$(
        impl Sample for $type {
            fn sample() -> BoxedStrategy<Self> {
                $strategy.boxed()
            }
        }
    )*};
}

samples! {
    u8: any::<u8>();
    u16: any::<u16>();
    u32: any::<u32>();
    u64: any::<u64>();
    bool: any::<bool>();
    Magic: Just(Magic);
    VersionRange: (any::<u16>(), any::<u16>(), any::<u16>())
        .prop_map(|(major, a, b)| VersionRange::new(Version { major, minor: a.max(b) }, a.min(b)).unwrap());
    Name: "[a-zA-Z0-9._ΩЖ]{1,16}".prop_map(|name| Name::new(&name).unwrap());
    Text: "[ -~é]{0,300}".prop_map(|text| Text::clip(&text));
    DomainId: (1..u32::MAX).prop_map(|n| DomainId::new(n).unwrap());
    EndpointIndex: (0..32_u8).prop_map(|n| EndpointIndex::new(n).unwrap());
    ChannelId: any::<u64>().prop_map(ChannelId);
    RegionId: (1..u64::MAX).prop_map(RegionId);
    ReadyMapIndex: (0..16_u8).prop_map(|n| ReadyMapIndex::new(n).unwrap());
    ReadyBit: (0..4096_u16).prop_map(|n| ReadyBit::new(n).unwrap());
    Owner: any::<u32>().prop_map(Owner);
    Ticket: any::<[u8; 32]>().prop_map(Ticket);
    SlabSize: (16..23_u32).prop_map(|n| SlabSize::new(1 << n).unwrap());
    Direction: select(&[Direction::Zero, Direction::One][..]);
    StreamEndIndex: select(&StreamEndIndex::ALL[..]);
    Reason: select(Reason::ALL);
    Topic: select(&Topic::ALL[..]);
    Resume: (DomainId::sample(), Ticket::sample()).prop_map(|(domain, ticket)| Resume { domain, ticket });
    EventChannelEnd: (any::<u8>(), any::<u32>()).prop_map(|(descriptor, port)| EventChannelEnd { descriptor, port });
    BoundedBytes<QUERY_REPLY_BYTES_MAX>: proptest::collection::vec(any::<u8>(), 0..QUERY_REPLY_BYTES_MAX)
        .prop_map(|bytes| BoundedBytes::new(bytes).unwrap());
}

impl<T: Sample> Sample for Option<T> {
    fn sample() -> BoxedStrategy<Self> {
        proptest::option::of(T::sample()).boxed()
    }
}

impl<T: Sample, const MAX: usize> Sample for List<T, MAX> {
    fn sample() -> BoxedStrategy<Self> {
        proptest::collection::vec(T::sample(), 0..=MAX).prop_map(|values| List::new(values).unwrap()).boxed()
    }
}

/// Any message of one way: the `match` keeps the list complete.
macro_rules! any_message {
    ($function:ident, $way:ident $(, $capability:ident by $nested:ident)*: $($name:ident { $($field:ident),* })*) => {
        pub(crate) fn $function() -> impl Strategy<Value = $way> {
            let complete = |message: $way| match message { $( $way::$name(_) => (), )* $( $way::$capability(_) => (), )* };
            let _ = complete;
            let messages: Vec<BoxedStrategy<$way>> = vec![$( {
                // One field after the other, so that messages may have any number of them.
                let empty = Just(()).boxed();
                $( let empty = any_message!(@and empty, $field); )*
                any_message!(@unpack empty, $way, $name, [$($field),*])
            }, )* $( $nested().prop_map($way::from).boxed(), )*];
            proptest::strategy::Union::new(messages)
        }
    };
    (@and $strategy:ident, $field:ident) => { ($strategy, Sample::sample()).boxed() };
    (@unpack $strategy:ident, $way:ident, $name:ident, [$($field:ident),*]) => {
        $strategy.prop_map(|any_message!(@pattern (()) $($field),*)| $way::from($name { $($field),* })).boxed()
    };
    (@pattern ($($done:tt)*) ) => { $($done)* };
    (@pattern ($($done:tt)*) $first:ident $(, $rest:ident)*) => { any_message!(@pattern (($($done)*, $first)) $($rest),*) };
}

any_message! { mx_to_daemon, MxToDaemon:
    MxOpen { board, endpoint, key, index }
    MxConnect { nic, endpoint, key }
    MxResolve { domain, endpoint }
}

any_message! { mx_to_client, MxToClient:
    MxOpened { board, endpoint, nic }
    MxFound { domain, endpoint }
    MxResolved { nic, endpoint }
}

any_message! { sockets_to_daemon, SocketsToDaemon:
    StreamAttach {}
    StreamWaiter { waiter }
    StreamListen { token }
    StreamUnlisten { token }
    StreamShow { token, connector, since_ms, until_ms }
    StreamEnded { stream, violation }
    StreamGone { token }
    StreamBoardWaiter { board, waiter }
    StreamKept { token, inode, local, peer }
}

any_message! { sockets_to_client, SocketsToClient:
    StreamAttached { session, after_bytes }
    StreamListening { token }
    StreamWaiting { token }
    StreamPaired { token, stream, end, peer, new_peer }
    StreamRefused { token, reason }
    PeerWaiter { peer, waiter }
    PeerLeft { peer }
    StreamBoard { peer, board, new_board }
}

any_message! { verbs_to_daemon, VerbsToDaemon:
    VerbsTake { index, first }
    VerbsResolve { gid_high, gid_low, qpn }
}

any_message! { verbs_to_client, VerbsToClient:
    VerbsTaken { first, count }
    VerbsFound { domain, endpoint }
}

any_message! { overlay_to_daemon, OverlayToDaemon:
    OverlayChange {}
}

any_message! { to_daemon, ToDaemon, Mx by mx_to_daemon, Sockets by sockets_to_daemon, Verbs by verbs_to_daemon, Overlay by overlay_to_daemon:
    Hello { magic, versions, library }
    Attach { name, resume }
    AdoptReadyMap { ready_map, owner }
    AdoptChannel { channel, peer, direction, slab, ready_map, ready_bit, peer_ready_bit }
    OpenEndpoint { index, label }
    CloseEndpoint { index }
    Lookup { name }
    RequestChannel { peer, attempt }
    AcceptChannel { channel }
    RefuseChannel { channel, reason }
    CloseChannel { channel, reason }
    Grant { peer, region, start, bytes }
    Revoke { peer, region }
    Query { topic, arguments }
    Detach {}
    Capture { board, domain, snap_bytes }
    CreateRegion { peer, region, bytes }
    Undelivered { peer, messages }
}

any_message! { to_client, ToClient, Mx by mx_to_client, Sockets by sockets_to_client, Verbs by verbs_to_client:
    HelloReply { magic, major, minor, daemon }
    Refused { reason, text }
    Done {}
    Welcome { domain, ticket, name, owner, epoch, slab, daemon_ready_bit, credit_bytes, channels, fresh }
    EndpointOpened { index }
    Found { domain, name, owner }
    ChannelOffer { channel, peer, peer_name, peer_owner, direction, slab, ready_map, ready_bit, peer_ready_bit, new_ready_map }
    ChannelOpen { channel }
    ChannelRefused { peer, reason, permanent }
    ChannelClosed { channel, reason }
    Granted { peer, region, start, bytes }
    Revoked { peer, region }
    PeerGone { peer, reason }
    Wakeup {}
    QueryReply { last, json }
    RegionCreated { region }
    EventChannels { ends }
}
