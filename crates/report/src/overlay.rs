//! The reports about overlay networks.

use serde::{Deserialize, Serialize};

reports! {
    /// The report of `isthmus overlay list`.
    OverlayReport {
        /// Schema number, see [`SCHEMA`](crate::SCHEMA).
        schema: u32,
        /// The networks, in the order of the configuration.
        networks: Vec<OverlayNetworkRow>,
        /// The sockets of the edges.
        sockets: Vec<OverlaySocketRow>,
        /// Number of networks that are not listed, because the asker may not see them.
        hidden: Option<u32>,
    }

    /// A socket of edges.
    OverlaySocketRow {
        /// Address and port of this host.
        bound: String,
        /// `fast`, `vxlan` or `udp`.
        kind: String,
        /// Received datagrams that belong to no edge, by reason.
        refused: Vec<OverlayLoss>,
        /// The last of them from an address without an edge in the network that it names.
        last_unknown: Option<OverlayUnknownRow>,
    }

    /// A datagram that belongs to no edge.
    OverlayUnknownRow {
        /// The address of its sender.
        from: String,
        /// The network that it names. None if the encapsulation names none.
        vni: Option<u32>,
        /// The edges to that address, if there are any.
        edges: Vec<String>,
        /// Milliseconds since it came.
        age_ms: u64,
    }

    /// An overlay network.
    OverlayNetworkRow {
        /// The name of the network on this host.
        name: String,
        /// The number of the network on the wire.
        vni: u32,
        /// True if the network learns MAC addresses.
        learning: bool,
        /// The interfaces of this host.
        interfaces: Vec<OverlayInterfaceRow>,
        /// The edges to other hosts.
        edges: Vec<OverlayEdgeRow>,
        /// The routes, in the order of their numbers.
        routes: Vec<String>,
        /// The MAC addresses that the network has learned.
        learned: Vec<OverlayLearnedRow>,
        /// The latest warnings about addresses, the oldest first.
        warnings: Vec<OverlayWarningRow>,
    }

    /// A warning about a MAC address.
    OverlayWarningRow {
        /// `flapping`: the address moves too often. `loop`: its frames come back from another host. `circulating`: a frame of
        /// it comes again and again.
        kind: String,
        /// The address.
        mac: String,
        /// The problem, with the interfaces and edges.
        problem: String,
        /// The remedy.
        remedy: String,
        /// Number of reports of the worker, which sends one every ten seconds at most.
        count: u64,
        /// Milliseconds since the last report.
        age_ms: u64,
    }

    /// An interface of an overlay network.
    OverlayInterfaceRow {
        /// Name of the interface, followed by that of its network namespace if it is not the host's: `eth0@web`.
        name: String,
        /// MAC address.
        mac: String,
        /// MTU in bytes.
        mtu: u16,
        /// True if the interface exists.
        exists: bool,
        /// The reason why the interface does not exist, and what to do.
        missing: Option<String>,
        /// Frames and bytes that passed.
        traffic: OverlayTraffic,
    }

    /// An edge of an overlay network.
    OverlayEdgeRow {
        /// Address and port of the other host.
        to: String,
        /// `fast`, `vxlan` or `udp`.
        kind: String,
        /// Length of the longest datagram to the host, in bytes. None if there is no route.
        datagram_bytes: Option<u64>,
        /// Milliseconds since the last frame from the host. None if there was none.
        heard_ms: Option<u64>,
        /// Frames and bytes that passed.
        traffic: OverlayTraffic,
    }

    /// Frames that passed an interface or an edge, as seen from the network. A frame that is cut later counts once.
    OverlayTraffic {
        /// Frames that came from it.
        received: u64,
        /// Bytes in them.
        received_bytes: u64,
        /// Frames that left by it.
        sent: u64,
        /// Bytes in them.
        sent_bytes: u64,
        /// Frames that were lost, by reason.
        lost: Vec<OverlayLoss>,
    }

    /// Lost frames.
    OverlayLoss {
        /// Identifier of the reason.
        reason: String,
        /// Number of frames.
        count: u64,
    }

    /// A learned MAC address.
    OverlayLearnedRow {
        /// The address.
        mac: String,
        /// The VLAN in which it was learned. None without a tag.
        vlan: Option<u16>,
        /// The interface or edge that has it.
        port: String,
        /// Milliseconds since its last frame.
        age_ms: u64,
    }

    /// The reply to a change of the networks.
    OverlayChanged {
        /// Schema number, see [`SCHEMA`](crate::SCHEMA).
        schema: u32,
        /// The networks that the change names, as the configuration would have them.
        toml: String,
    }

    /// The reply to commands of VNET.
    OverlayRan {
        /// Schema number, see [`SCHEMA`](crate::SCHEMA).
        schema: u32,
        /// The output of `LIST`.
        output: String,
        /// The number of entries that were added or deleted.
        changes: u64,
        /// The network, as the configuration would have it. Empty without changes.
        toml: String,
    }

    /// The report of `isthmus overlay show`.
    OverlayTable {
        /// Schema number, see [`SCHEMA`](crate::SCHEMA).
        schema: u32,
        /// The running networks, as the configuration would have them.
        toml: String,
        /// The number of changes since the configuration was read.
        changes: u64,
    }

    /// The report of `isthmus overlay monitor`: the traffic matrices.
    OverlayMonitor {
        /// Schema number, see [`SCHEMA`](crate::SCHEMA).
        schema: u32,
        /// The time of the daemon in milliseconds, for rates between two reports.
        time_ms: u64,
        /// The networks, in the order of the configuration.
        networks: Vec<OverlayMonitorRow>,
    }

    /// The forwarded frames of a network.
    OverlayMonitorRow {
        /// The name of the network.
        network: String,
        /// The pairs of addresses, those with the most bytes first.
        pairs: Vec<OverlayPairRow>,
        /// Frames of pairs that are no longer in the table, because it was full.
        other_frames: u64,
        /// Bytes in them.
        other_bytes: u64,
    }

    /// The forwarded frames from one address to another.
    OverlayPairRow {
        /// Source MAC address.
        source: String,
        /// Destination MAC address. `ff:ff:ff:ff:ff:ff` stands for all groups.
        destination: String,
        /// Number of frames. A frame that is cut later counts once.
        frames: u64,
        /// Bytes in them.
        bytes: u64,
    }

    /// The report of `isthmus overlay explain`.
    OverlayExplanation {
        /// Schema number, see [`SCHEMA`](crate::SCHEMA).
        schema: u32,
        /// The network.
        network: String,
        /// The interface or edge that the frame comes from.
        from: String,
        /// Source MAC address of the frame.
        source: String,
        /// Destination MAC address of the frame.
        destination: String,
        /// The rule that decides.
        rule: String,
        /// The path of each copy.
        copies: Vec<OverlayCopy>,
        /// Every route with its part in the decision.
        routes: Vec<OverlayRouteOutcome>,
    }

    /// A copy of a frame.
    OverlayCopy {
        /// The interface or edge that gets it.
        to: String,
        /// The way it takes there.
        path: String,
    }

    /// The part of a route in a decision.
    OverlayRouteOutcome {
        /// Number of the route.
        number: u32,
        /// The route, as VNET's language writes it.
        route: String,
        /// True if a copy leaves by the route.
        wins: bool,
        /// Its part in the decision.
        outcome: String,
    }
}
