//! The kernel's information about a network interface.

use std::os::fd::AsFd;

use isthmus_layout::NicId;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::sys::{self, InterfaceQuery};

/// The state of an interface of this network namespace when it was queried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The index of the interface.
    pub index: u32,
    /// The MAC address.
    pub nic: NicId,
    /// The maximum number of bytes after the Ethernet header.
    pub mtu: u32,
    /// True if the interface is up and has a carrier.
    pub is_up: bool,
    /// The hardware type: 1 for Ethernet (`ARPHRD_…` in linux/if_arp.h).
    pub hardware: u16,
}

/// The reason why an interface cannot be queried.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InterfaceError {
    /// There is no interface with this name.
    #[error("there is no interface {name} in this network namespace (`ip link` lists them)")]
    None {
        /// The name.
        name: String,
    },
    /// The system refused the query.
    #[error("asking about {name}: {source}")]
    Refused {
        /// The name.
        name: String,
        /// The system's error.
        source: Errno,
    },
}

/// Queries an interface of the calling thread's network namespace.
pub fn interface(name: &str) -> Result<Interface, InterfaceError> {
    let any = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    any.and_then(|any| query(any, name)).map_err(|source| match source {
        Errno::NODEV => InterfaceError::None { name: name.to_owned() },
        source => InterfaceError::Refused { name: name.to_owned(), source },
    })
}

/// Queries an interface of the network namespace of a socket.
pub(crate) fn query(socket: impl AsFd, name: &str) -> Result<Interface, Errno> {
    let word = |answer: [u8; 24]| u32::from_ne_bytes([answer[0], answer[1], answer[2], answer[3]]);
    let index = word(sys::query_interface(&socket, name, InterfaceQuery::Index)?);
    let mtu = word(sys::query_interface(&socket, name, InterfaceQuery::Mtu)?);
    let hardware = sys::query_interface(&socket, name, InterfaceQuery::Hardware)?;
    let flags = sys::query_interface(&socket, name, InterfaceQuery::Flags)?;
    let flags = u32::from(u16::from_ne_bytes([flags[0], flags[1]]));
    Ok(Interface {
        index,
        mtu,
        nic: NicId::from_octets(hardware[2..8].try_into().expect("six octets were taken")),
        is_up: flags & sys::UP_AND_RUNNING == sys::UP_AND_RUNNING,
        hardware: u16::from_ne_bytes([hardware[0], hardware[1]]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_namespace_has_a_loopback_interface() {
        let lo = interface("lo").unwrap();
        assert!(lo.index > 0 && lo.mtu >= 1280, "{lo:?}");
        assert_eq!((lo.nic.number(), lo.hardware), (0, 772));
    }

    #[test]
    fn invalid_interface_name_is_not_found() {
        for name in ["", "no such", "a-name-that-is-much-too-long", "l\0o"] {
            assert_eq!(interface(name), Err(InterfaceError::None { name: name.to_owned() }));
        }
    }
}
