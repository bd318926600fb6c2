//! The packets between a daemon and its helper: one request or one reply each, of fixed fields in little-endian order.
//!
//! ```text
//!   request    kind:2  0:2  body                                                                      descriptors
//!     1 Hello        version:4
//!     2 OpenTap      mac:6  flags:1  addresses:1  mtu:4  gso_max_size:4  name:16  bridge:16            0, or the namespace
//!                  address × addresses
//!     3 SetMtu       interface:4  mtu:4
//!     4 SetUp        interface:4  up:4
//!     5 AddAddress   interface:4  address
//!     6 DelAddress   interface:4  address
//!     7 Release      interface:4
//!     8 RecordConnections
//!   bridge     a name, or zeros
//!   address    family:1 (4, 6)  prefix:1  0:2  octets:16
//!
//!   reply      kind:2  0:2  body
//!     0 Refused      reason:2  errno:2
//!     1 Hello        version:4  flags:4
//!     2 TapOpened    interface:4  index:4  flags:4                                                     the TAP device
//!     3 Done
//!     4 ConnectionsRecorded                                                                            the map of records, two links
//! ```
//!
//! A daemon that starts its own helpers sends a starter `START` with the helper's end of a connection, for each.
//!
//! Both programs are on one host and are installed together, so there is one version and no negotiation.

mod packet;

use std::num::NonZeroU32;

use rustix::io::Errno;

use crate::refusal::{Refusal, RefusalReason};
use crate::values::{ADDRESSES_MAX, AddressList, InterfaceAddress, InterfaceName, InvalidValue, MacAddress, Mtu};
use packet::{PacketReader, PacketWriter};

/// The version of this protocol.
pub const VERSION: u32 = 2;

/// The packet by which a starter is asked for a helper.
pub(crate) const START: &[u8; 1] = b"S";

/// The maximum number of bytes of a packet. The longest request is an `OpenTap` with all addresses.
pub(crate) const PACKET_BYTES_MAX: usize = 4 + 48 + ADDRESSES_MAX * 20;

const HELLO: u16 = 1;
const OPEN_TAP: u16 = 2;
const SET_MTU: u16 = 3;
const SET_UP: u16 = 4;
const ADD_ADDRESS: u16 = 5;
const DEL_ADDRESS: u16 = 6;
const RELEASE: u16 = 7;
const RECORD_CONNECTIONS: u16 = 8;

const REFUSED: u16 = 0;
const HELLO_REPLY: u16 = 1;
const TAP_OPENED: u16 = 2;
const DONE: u16 = 3;
const CONNECTIONS_RECORDED: u16 = 4;

/// The flags of `OpenTap`.
const TAP_IS_UP: u8 = 1;
const TAP_IN_NAMESPACE: u8 = 2;

/// The flags of the reply to `Hello`.
const HAS_NET_ADMIN: u32 = 1;
const HAS_NAMESPACES: u32 = 2;
const HAS_TUN: u32 = 4;

/// The flags of `TapOpened`.
const UDP_OFFLOADS: u32 = 1;
const GSO_MAX_SIZE_SET: u32 = 2;

/// The number of an interface on one connection, which never returns on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceNumber(pub u32);

/// The properties of a new TAP interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapRequest {
    /// The name, which no interface of that network namespace has.
    pub name: InterfaceName,
    /// The MAC address.
    pub mac: MacAddress,
    /// The MTU.
    pub mtu: Mtu,
    /// True if the interface is to be up.
    pub is_up: bool,
    /// The IP addresses.
    pub addresses: AddressList,
    /// The maximum number of bytes of a frame that the kernel leaves to be segmented.
    pub gso_max_size: Option<NonZeroU32>,
    /// The bridge that it becomes a port of, in its network namespace.
    pub bridge: Option<InterfaceName>,
}

/// The network namespace in which an interface is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceChoice {
    /// The namespace of the helper.
    Here,
    /// The namespace of the descriptor that the packet carries.
    Attached,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Asks for version and abilities of the helper.
    Hello {
        /// The version of the client.
        version: u32,
    },
    /// Creates a TAP interface.
    OpenTap {
        /// Its properties.
        tap: TapRequest,
        /// Its network namespace.
        namespace: NamespaceChoice,
    },
    /// Changes the MTU of an interface.
    SetMtu {
        /// The interface.
        interface: InterfaceNumber,
        /// The new MTU.
        mtu: Mtu,
    },
    /// Sets an interface up or down.
    SetUp {
        /// The interface.
        interface: InterfaceNumber,
        /// True for up.
        is_up: bool,
    },
    /// Adds an address to an interface.
    AddAddress {
        /// The interface.
        interface: InterfaceNumber,
        /// The address.
        address: InterfaceAddress,
    },
    /// Deletes an address of an interface.
    DelAddress {
        /// The interface.
        interface: InterfaceNumber,
        /// The address.
        address: InterfaceAddress,
    },
    /// Has the helper forget an interface and close its descriptor of the namespace. The interface goes with its own descriptors.
    Release {
        /// The interface.
        interface: InterfaceNumber,
    },
    /// Makes the kernel record connections, if it does not yet.
    RecordConnections,
}

/// Version and abilities of a helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelperInfo {
    /// The version of its protocol.
    pub version: u32,
    /// True if it has CAP_NET_ADMIN, without which it creates no interfaces.
    pub has_net_admin: bool,
    /// True if it enters other network namespaces.
    pub has_namespaces: bool,
    /// True if it could open `/dev/net/tun`.
    pub has_tun: bool,
}

/// The properties of a TAP interface that the kernel determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapInfo {
    /// The number of the interface in later requests.
    pub interface: InterfaceNumber,
    /// The kernel's index of the interface in its network namespace.
    pub index: u32,
    /// True if the device has offloads for UDP; those for TCP it always has.
    pub has_udp_offloads: bool,
    /// True if the kernel accepted `gso_max_size`.
    pub has_gso_max_size: bool,
}

/// A reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The request had no effect.
    Refused(Refusal),
    /// The reply to `Hello`.
    Hello(HelperInfo),
    /// The interface was created. The packet carries the descriptor of the TAP device.
    TapOpened(TapInfo),
    /// The request was carried out.
    Done,
    /// The kernel records connections. The packet carries three descriptors: the map of the records, and the links that keep the programs
    /// that make them.
    ConnectionsRecorded,
}

/// The reason why a packet is neither request nor reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The packet is too short or too long.
    #[error("a packet of {have} bytes")]
    Length {
        /// Its number of bytes.
        have: usize,
    },
    /// The kind is unknown.
    #[error("a packet of the unknown kind {0}")]
    Kind(u16),
    /// A flag or a number with few values has another one.
    #[error("the unknown value {0} in a field of flags")]
    Flags(u32),
    /// A reserved field is not zero.
    #[error("a reserved field that is not zero")]
    Reserved,
    /// The packet has another number of descriptors than its kind.
    #[error("{have} descriptors in a packet that has {expected}")]
    Descriptors {
        /// The number of descriptors.
        have: usize,
        /// The number that belongs to it.
        expected: usize,
    },
    /// A value is invalid.
    #[error(transparent)]
    Value(#[from] InvalidValue),
}

impl Request {
    /// Returns the packet, without descriptor.
    pub fn emit(&self) -> Vec<u8> {
        match self {
            Self::Hello { version } => PacketWriter::new(HELLO).u32(*version),
            Self::OpenTap { tap, namespace } => tap.emit(*namespace),
            Self::SetMtu { interface, mtu } => PacketWriter::new(SET_MTU).u32(interface.0).u32(mtu.bytes()),
            Self::SetUp { interface, is_up } => PacketWriter::new(SET_UP).u32(interface.0).u32((*is_up).into()),
            Self::AddAddress { interface, address } => {
                PacketWriter::new(ADD_ADDRESS).u32(interface.0).address(*address)
            }
            Self::DelAddress { interface, address } => {
                PacketWriter::new(DEL_ADDRESS).u32(interface.0).address(*address)
            }
            Self::Release { interface } => PacketWriter::new(RELEASE).u32(interface.0),
            Self::RecordConnections => PacketWriter::new(RECORD_CONNECTIONS),
        }
        .into_bytes()
    }

    /// Checks a packet that came with this number of descriptors.
    pub fn parse(packet: &[u8], descriptors: usize) -> Result<Self, Malformed> {
        let (kind, mut body) = PacketReader::new(packet)?;
        let request = match kind {
            HELLO => Self::Hello { version: body.u32()? },
            OPEN_TAP => TapRequest::parse(&mut body)?,
            SET_MTU => Self::SetMtu { interface: InterfaceNumber(body.u32()?), mtu: Mtu::new(body.u32()?)? },
            SET_UP => Self::SetUp { interface: InterfaceNumber(body.u32()?), is_up: body.boolean()? },
            ADD_ADDRESS => Self::AddAddress { interface: InterfaceNumber(body.u32()?), address: body.address()? },
            DEL_ADDRESS => Self::DelAddress { interface: InterfaceNumber(body.u32()?), address: body.address()? },
            RELEASE => Self::Release { interface: InterfaceNumber(body.u32()?) },
            RECORD_CONNECTIONS => Self::RecordConnections,
            kind => return Err(Malformed::Kind(kind)),
        };
        let carries = matches!(request, Self::OpenTap { namespace: NamespaceChoice::Attached, .. });
        body.end(descriptors, carries.into())?;
        Ok(request)
    }
}

impl TapRequest {
    fn emit(&self, namespace: NamespaceChoice) -> PacketWriter {
        let up = if self.is_up { TAP_IS_UP } else { 0 };
        let attached = if namespace == NamespaceChoice::Attached { TAP_IN_NAMESPACE } else { 0 };
        let addresses = self.addresses.as_slice();
        let writer = PacketWriter::new(OPEN_TAP)
            .bytes(&self.mac.octets())
            .bytes(&[up | attached, addresses.len() as u8]) // At most ADDRESSES_MAX.
            .u32(self.mtu.bytes())
            .u32(self.gso_max_size.map_or(0, NonZeroU32::get))
            .name(&self.name)
            .optional_name(self.bridge.as_ref());
        addresses.iter().fold(writer, |writer, address| writer.address(*address))
    }

    fn parse(body: &mut PacketReader<'_>) -> Result<Request, Malformed> {
        let mac = MacAddress::new(body.array()?)?;
        let [flags, address_count] = body.array()?;
        if flags & !(TAP_IS_UP | TAP_IN_NAMESPACE) != 0 {
            return Err(Malformed::Flags(flags.into()));
        }
        let mtu = Mtu::new(body.u32()?)?;
        let gso_max_size = NonZeroU32::new(body.u32()?);
        let name = body.name()?;
        let bridge = body.optional_name()?;
        if usize::from(address_count) > ADDRESSES_MAX {
            return Err(InvalidValue::TooManyAddresses.into());
        }
        let addresses = (0..address_count).map(|_| body.address()).collect::<Result<Vec<_>, _>>()?;
        let addresses = AddressList::new(addresses)?;
        let namespace = if flags & TAP_IN_NAMESPACE != 0 { NamespaceChoice::Attached } else { NamespaceChoice::Here };
        let tap = Self { name, mac, mtu, is_up: flags & TAP_IS_UP != 0, addresses, gso_max_size, bridge };
        Ok(Request::OpenTap { tap, namespace })
    }
}

impl Reply {
    /// Returns the packet, without descriptor.
    pub fn emit(&self) -> Vec<u8> {
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        match self {
            Self::Refused(refusal) => {
                let errno = refusal.errno.map_or(0, |errno| errno.raw_os_error() as u16); // Below 4096.
                PacketWriter::new(REFUSED).u16(refusal.reason.number()).u16(errno)
            }
            Self::Hello(info) => {
                let abilities = flag(info.has_net_admin, HAS_NET_ADMIN)
                    | flag(info.has_namespaces, HAS_NAMESPACES)
                    | flag(info.has_tun, HAS_TUN);
                PacketWriter::new(HELLO_REPLY).u32(info.version).u32(abilities)
            }
            Self::TapOpened(tap) => {
                let flags = flag(tap.has_udp_offloads, UDP_OFFLOADS) | flag(tap.has_gso_max_size, GSO_MAX_SIZE_SET);
                PacketWriter::new(TAP_OPENED).u32(tap.interface.0).u32(tap.index).u32(flags)
            }
            Self::Done => PacketWriter::new(DONE),
            Self::ConnectionsRecorded => PacketWriter::new(CONNECTIONS_RECORDED),
        }
        .into_bytes()
    }

    /// Checks a packet that came with this number of descriptors.
    pub fn parse(packet: &[u8], descriptors: usize) -> Result<Self, Malformed> {
        let (kind, mut body) = PacketReader::new(packet)?;
        let reply = match kind {
            REFUSED => {
                let (number, errno) = (body.u16()?, body.u16()?);
                let reason = RefusalReason::from_number(number).ok_or(Malformed::Flags(number.into()))?;
                let errno = (errno != 0).then(|| Errno::from_raw_os_error(i32::from(errno % 4096)));
                Self::Refused(Refusal { reason, errno })
            }
            HELLO_REPLY => {
                let version = body.u32()?;
                let has = body.flags(HAS_NET_ADMIN | HAS_NAMESPACES | HAS_TUN)?;
                Self::Hello(HelperInfo {
                    version,
                    has_net_admin: has & HAS_NET_ADMIN != 0,
                    has_namespaces: has & HAS_NAMESPACES != 0,
                    has_tun: has & HAS_TUN != 0,
                })
            }
            TAP_OPENED => {
                let (interface, index) = (InterfaceNumber(body.u32()?), body.u32()?);
                let has = body.flags(UDP_OFFLOADS | GSO_MAX_SIZE_SET)?;
                let (has_udp_offloads, has_gso_max_size) = (has & UDP_OFFLOADS != 0, has & GSO_MAX_SIZE_SET != 0);
                Self::TapOpened(TapInfo { interface, index, has_udp_offloads, has_gso_max_size })
            }
            DONE => Self::Done,
            CONNECTIONS_RECORDED => Self::ConnectionsRecorded,
            kind => return Err(Malformed::Kind(kind)),
        };
        let carries = match reply {
            Self::TapOpened(_) => 1,
            Self::ConnectionsRecorded => 3,
            Self::Refused(_) | Self::Hello(_) | Self::Done => 0,
        };
        body.end(descriptors, carries)?;
        Ok(reply)
    }
}

#[cfg(test)]
mod tests;
