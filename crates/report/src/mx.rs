//! The reports of MX: boards, their links and endpoint numbers, and the peers that can be reached.

use serde::{Deserialize, Serialize};

use super::DomainName;

reports! {
    /// An MX endpoint number.
    MxNumber {
        /// Number of the MX board.
        board: u32,
        /// Endpoint number on that board.
        endpoint: u32,
    }

    /// The report of `isthmus board list` and `isthmus peer list`.
    MxReport {
        /// Schema number, see [`SCHEMA`](crate::SCHEMA).
        schema: u32,
        /// The MX boards of this host, ordered by number.
        boards: Vec<MxBoardRow>,
        /// MX boards that can be reached, those of this host first.
        peers: Vec<MxPeerRow>,
    }

    /// An MX board.
    MxBoardRow {
        /// Number of the board.
        number: u32,
        /// The board's address as an integer.
        nic: u64,
        /// The board's address in MAC notation.
        mac: String,
        /// Name of the board.
        name: String,
        /// Endpoint numbers that are in use.
        endpoints: Vec<MxEndpointRow>,
        /// Number of taken endpoint numbers that are not listed, because the asker may not see them.
        endpoints_hidden: Option<u32>,
        /// Number of endpoint numbers that the board has.
        endpoints_max: u32,
        /// The board's links to other hosts, in the order of the configuration.
        links: Vec<MxLinkRow>,
        /// Received frames that were dropped, by reason; reasons that never occurred are not listed.
        dropped: Vec<MxDropped>,
        /// Packets for the board's endpoints that had no effect, by reason.
        ignored: Vec<MxDropped>,
        /// Number of endpoints of this host that the board serves. An endpoint that is closed counts until its pending traffic is done.
        served_endpoints: u64,
        /// Number of endpoints of other hosts known to the local endpoints, summed over the local endpoints.
        remote_peers: u64,
        /// Message bytes sent, retransmissions included.
        sent_bytes: u64,
        /// Message bytes received and accepted.
        received_bytes: u64,
        /// Packets of messages that were retransmitted because they had not been acknowledged.
        retransmitted: u64,
        /// Frames of long messages that were requested again because they had not arrived.
        rerequested: u64,
    }

    /// A count of frames or packets that were dropped or lost.
    MxDropped {
        /// Reason of the drop; for the frames of a board as in docs/spec/mxoe.md.
        reason: String,
        /// Number of frames or packets.
        count: u64,
    }

    /// A link of an MX board.
    MxLinkRow {
        /// Name of the interface, or the address.
        name: String,
        /// `packet`, `xdp` or `udp`.
        kind: String,
        /// `up`, `down`, `gone`, or `broken` when the daemon does not try the link any more.
        state: String,
        /// The longest frame that the link carries, Ethernet header included.
        frame_bytes_max: u32,
        /// Number of frames sent.
        sent_frames: u64,
        /// Bytes of the frames sent.
        sent_bytes: u64,
        /// Number of frames received.
        received_frames: u64,
        /// Bytes of the frames received.
        received_bytes: u64,
        /// Frames that the link lost, by reason; reasons that never occurred are not listed.
        lost: Vec<MxDropped>,
        /// Names of configured hosts that do not resolve. The daemon tries again every 5 s.
        unresolved: Vec<String>,
    }

    /// An MX endpoint number that is in use.
    MxEndpointRow {
        /// The endpoint number.
        number: u32,
        /// The domain that uses the number.
        domain: DomainName,
        /// Index of the domain's endpoint.
        index: u8,
        /// The user ID that the endpoint belongs to.
        uid: u32,
    }

    /// An MX board that can be reached.
    MxPeerRow {
        /// The board's address as an integer.
        nic: u64,
        /// The board's address in MAC notation.
        mac: String,
        /// Name of the board; its address while the name is unknown.
        name: String,
        /// Source of the entry: `local` (of this host), `static`, `announced` or `requested`.
        origin: String,
        /// Number of the board of this host that knows the peer.
        board: u32,
        /// The link that frames to the peer use; none for boards of this host, and none if no link works.
        link: Option<String>,
        /// Milliseconds since the peer was last heard; none if it never was.
        last_seen_ms: Option<u64>,
        /// Number of times the peer's daemon has restarted since the peer became known.
        restarts: u64,
    }
}
