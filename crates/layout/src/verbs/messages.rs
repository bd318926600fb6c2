//! The control messages of verbs: blocks of queue pair numbers, and the domain that has a number.

use alloc::string::String;
use alloc::vec::Vec;

use crate::control::codec::{Field, FieldReader, MalformedControl, Width};
use crate::control::table::{FieldInfo, MessageInfo, concat_tables, messages, record};
use crate::control::{ToClient, ToDaemon};
use crate::ids::{DomainId, EndpointIndex};

messages! {
    /// A message about queue pair numbers, from a library to its daemon.
    VerbsToDaemon;

    /// Takes a block of queue pair numbers for an open endpoint. The block is returned when the endpoint closes or its domain ends. A
    /// domain that resumes takes its blocks again by their first numbers.
    48 VerbsTake since 4, reply "`VerbsTaken`", descriptors [] {
        /// The endpoint that receives the messages for these queue pairs.
        index: EndpointIndex,
        /// The first number of the block; if absent, the daemon takes the block that was returned the longest time ago.
        first: Option<u32>,
    }

    /// Asks which endpoint has a queue pair number. From then on, `PeerGone` notifies the sender when the domain of that endpoint leaves.
    49 VerbsResolve since 4, reply "`VerbsFound`", descriptors [] {
        /// The first eight bytes of the GID, as a big-endian number. A GID of zeros stands for this host.
        gid_high: u64,
        /// The last eight bytes of the GID, as a big-endian number.
        gid_low: u64,
        /// The queue pair number.
        qpn: u32,
    }
}

messages! {
    /// A message about queue pair numbers, from a daemon to a library.
    VerbsToClient;

    /// The domain has this block of queue pair numbers.
    176 VerbsTaken since 4, reply "", descriptors [] {
        /// The first number.
        first: u32,
        /// The number of queue pair numbers.
        count: u32,
    }

    /// The endpoint that has the queue pair number.
    177 VerbsFound since 4, reply "", descriptors [] {
        /// The domain of the endpoint.
        domain: DomainId,
        /// The index of the endpoint in its domain.
        endpoint: EndpointIndex,
    }
}

macro_rules! conversions {
    ($($message:ident by $nested:ident into $way:ident;)*) => {$(
        impl From<$message> for $way {
            fn from(message: $message) -> Self {
                Self::Verbs($nested::from(message))
            }
        }
    )*};
}

conversions! {
    VerbsTake by VerbsToDaemon into ToDaemon;
    VerbsResolve by VerbsToDaemon into ToDaemon;
    VerbsTaken by VerbsToClient into ToClient;
    VerbsFound by VerbsToClient into ToClient;
}
