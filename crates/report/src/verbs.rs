//! The report about verbs.

use serde::{Deserialize, Serialize};

use super::{DomainName, ReasonRow, Why};

reports! {
    /// The report of `isthmus verbs list`.
    VerbsReport {
        /// Schema number, see [`SCHEMA`](crate::SCHEMA).
        schema: u32,
        /// True if the configuration enables verbs.
        enabled: bool,
        /// Name of the virtual RDMA device.
        device: String,
        /// The node GUID of the device: four groups of four hexadecimal digits.
        node_guid: String,
        /// The GIDs of the device, ordered by index.
        gids: Vec<VerbsGidRow>,
        /// The domains that have queue pair numbers, ordered by domain.
        domains: Vec<VerbsDomainRow>,
        /// Number of domains that are not listed, because the asker may not see them.
        hidden: Option<u32>,
    }

    /// The report of `isthmus why qp:NUMBER`.
    QueuePairReport {
        /// Schema number, see [`SCHEMA`](crate::SCHEMA).
        schema: u32,
        /// The number of the queue pair.
        number: u32,
        /// The program that has the number.
        holder: QueuePairProgram,
        /// The programs that have asked for the number since the daemon started, the last one first. A queue pair of a connection has one.
        peers: Vec<QueuePairPeer>,
    }

    /// A program with an open device.
    QueuePairProgram {
        /// The domain.
        domain: DomainName,
        /// The user ID that the domain belongs to; none if the asker may not see it.
        uid: Option<u32>,
        /// The process, as the daemon sees it; none if the daemon cannot see it, or the asker may not.
        pid: Option<i32>,
    }

    /// A peer of a queue pair.
    QueuePairPeer {
        /// The program.
        program: QueuePairProgram,
        /// True if it belongs to the same user as the holder.
        same_owner: bool,
        /// The reason why its last request for the number was refused: the queue pairs are not connected.
        refused: Option<ReasonRow>,
        /// The path between the holder (`a`) and the peer (`b`).
        path: Why,
    }

    /// A GID.
    VerbsGidRow {
        /// Index of the GID.
        index: u32,
        /// The GID: eight groups of four hexadecimal digits.
        gid: String,
        /// The interface that has the address; none for the GID that is made of the node GUID.
        interface: Option<String>,
        /// `RoCE v2`.
        kind: String,
    }

    /// A domain that has queue pair numbers.
    VerbsDomainRow {
        /// The domain.
        domain: DomainName,
        /// The user ID that the domain belongs to.
        uid: u32,
        /// The blocks of numbers, ordered by number.
        blocks: Vec<VerbsBlockRow>,
    }

    /// A block of queue pair numbers.
    VerbsBlockRow {
        /// The first number.
        first: u32,
        /// The number of queue pair numbers.
        count: u32,
    }
}
