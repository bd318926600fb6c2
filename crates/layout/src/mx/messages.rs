//! The control messages of MX: claims of endpoint numbers, and questions about them.

use alloc::string::String;
use alloc::vec::Vec;

use crate::control::codec::{Field, FieldReader, MalformedControl, Width};
use crate::control::table::{FieldInfo, MessageInfo, concat_tables, messages, record};
use crate::control::{ToClient, ToDaemon};
use crate::ids::{DomainId, EndpointIndex};

messages! {
    /// A message about MX endpoint numbers, from a library to its daemon.
    MxToDaemon;

    /// Claims an MX endpoint number for an open endpoint, so that MX programs find the endpoint there. The number is released when the
    /// endpoint closes or its domain ends. If neither board nor number is given, the daemon takes the lowest number that is free on any
    /// MX board, on the lowest such MX board.
    16 MxOpen since 2, reply "`MxOpened`", descriptors [] {
        /// The number of the MX board; any board if absent.
        board: Option<u32>,
        /// The endpoint number on the MX board; the lowest free number if absent.
        endpoint: Option<u32>,
        /// The key that connecting programs have to show.
        key: u32,
        /// The endpoint that claims the number.
        index: EndpointIndex,
    }

    /// Asks which endpoint has an MX endpoint number.
    17 MxConnect since 2, reply "`MxFound`", descriptors [] {
        /// The NIC ID of the MX board.
        nic: u64,
        /// The endpoint number on that MX board.
        endpoint: u32,
        /// The key with which the number was claimed.
        key: u32,
    }

    /// Asks which MX endpoint number an endpoint has, or had if its domain left recently.
    18 MxResolve since 2, reply "`MxResolved`", descriptors [] {
        /// The domain of the endpoint.
        domain: DomainId,
        /// The index of the endpoint in its domain.
        endpoint: EndpointIndex,
    }
}

messages! {
    /// A message about MX endpoint numbers, from a daemon to a library.
    MxToClient;

    /// The endpoint has an MX endpoint number now.
    144 MxOpened since 2, reply "", descriptors [] {
        /// The number of the MX board.
        board: u32,
        /// The endpoint number on the MX board.
        endpoint: u32,
        /// The NIC ID of the MX board: six octets, the first in bits 47 to 40.
        nic: u64,
    }

    /// The endpoint that has the MX endpoint number.
    145 MxFound since 2, reply "", descriptors [] {
        /// The domain of the endpoint.
        domain: DomainId,
        /// The index of the endpoint in its domain.
        endpoint: EndpointIndex,
    }

    /// The MX endpoint number that an endpoint has or had.
    146 MxResolved since 2, reply "", descriptors [] {
        /// The NIC ID of the MX board.
        nic: u64,
        /// The endpoint number on that MX board.
        endpoint: u32,
    }
}

macro_rules! conversions {
    ($($message:ident by $nested:ident into $way:ident;)*) => {$(
        impl From<$message> for $way {
            fn from(message: $message) -> Self {
                Self::Mx($nested::from(message))
            }
        }
    )*};
}

conversions! {
    MxOpen by MxToDaemon into ToDaemon;
    MxConnect by MxToDaemon into ToDaemon;
    MxResolve by MxToDaemon into ToDaemon;
    MxOpened by MxToClient into ToClient;
    MxFound by MxToClient into ToClient;
    MxResolved by MxToClient into ToClient;
}
