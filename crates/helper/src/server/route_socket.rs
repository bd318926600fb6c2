//! A netlink socket that asks the kernel about interfaces and addresses, one request at a time.

use std::io;
use std::net::IpAddr;

use netlink_packet_core::{
    DefaultNla, NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use rustix::fd::{AsRawFd as _, OwnedFd};
use rustix::io::Errno;

use crate::values::InterfaceAddress;

/// More than the kernel's description of an interface.
const REPLY_BYTES_MAX: usize = 32 << 10;

/// The namespace in which an interface is looked for, from linux/if_link.h.
const IFLA_TARGET_NETNSID: u16 = 46;

/// A netlink socket of the network namespace in which it was opened.
pub(super) struct RouteSocket(Socket);

impl RouteSocket {
    /// Opens a socket in the network namespace of this thread.
    pub(super) fn open() -> Result<Self, Errno> {
        let socket = Socket::new(NETLINK_ROUTE).map_err(errno_of)?;
        socket.connect(&SocketAddr::new(0, 0)).map_err(errno_of)?;
        Ok(Self(socket))
    }

    /// Returns the index of the interface with this name.
    pub(super) fn index(&self, name: &str) -> Result<u32, Errno> {
        rustix::net::netdevice::name_to_index(&self.0, name)
    }

    /// Sets one attribute of an interface.
    pub(super) fn set(&self, index: u32, attribute: LinkAttribute) -> Result<(), Errno> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes.push(attribute);
        self.ask(RouteNetlinkMessage::SetLink(message), 0).map(drop)
    }

    /// Gives an interface another name, and moves it to a network namespace if there is one.
    pub(super) fn rename(&self, index: u32, name: &str, namespace: Option<&OwnedFd>) -> Result<(), Errno> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes.extend(namespace.map(|namespace| LinkAttribute::NetNsFd(namespace.as_raw_fd())));
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        self.ask(RouteNetlinkMessage::SetLink(message), 0).map(drop)
    }

    /// Sets an interface up or down.
    pub(super) fn set_up(&self, index: u32, is_up: bool) -> Result<(), Errno> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.flags = if is_up { LinkFlags::Up } else { LinkFlags::empty() };
        message.header.change_mask = LinkFlags::Up;
        self.ask(RouteNetlinkMessage::SetLink(message), 0).map(drop)
    }

    /// Returns the alias of an interface, empty if it has none. `namespace` is the kernel's number of its network namespace, if it has another one.
    pub(super) fn alias(&self, index: u32, namespace: Option<i32>) -> Result<String, Errno> {
        let alias = self.attributes(index, namespace)?.into_iter().find_map(|attribute| match attribute {
            LinkAttribute::IfAlias(alias) => Some(alias),
            _ => None,
        });
        Ok(alias.unwrap_or_default())
    }

    /// Returns true if an interface is a bridge.
    pub(super) fn is_bridge(&self, index: u32) -> Result<bool, Errno> {
        let is_kind = |info: &LinkInfo| matches!(info, LinkInfo::Kind(InfoKind::Bridge));
        let attributes = self.attributes(index, None)?;
        Ok(attributes
            .iter()
            .any(|attribute| matches!(attribute, LinkAttribute::LinkInfo(info) if info.iter().any(is_kind))))
    }

    /// Returns the number that the kernel has for a network namespace here, where an interface has been moved to it.
    pub(super) fn namespace_number(&self, namespace: &OwnedFd) -> Result<i32, Errno> {
        let mut message = NsidMessage::default();
        message.attributes.push(NsidAttribute::Fd(namespace.as_raw_fd() as u32));
        let replies = self.ask(RouteNetlinkMessage::GetNsId(message), 0)?;
        let attributes = replies.into_iter().flat_map(|reply| match reply {
            RouteNetlinkMessage::NewNsId(message) => message.attributes,
            _ => Vec::new(),
        });
        let mut numbers = attributes.filter_map(|attribute| match attribute {
            NsidAttribute::Id(number @ 0..) => Some(number),
            _ => None,
        });
        numbers.next().ok_or(Errno::NOENT)
    }

    /// Returns the attributes of an interface.
    fn attributes(&self, index: u32, namespace: Option<i32>) -> Result<Vec<LinkAttribute>, Errno> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        let target =
            |number: i32| LinkAttribute::Other(DefaultNla::new(IFLA_TARGET_NETNSID, number.to_ne_bytes().into()));
        message.attributes.extend(namespace.map(target));
        let replies = self.ask(RouteNetlinkMessage::GetLink(message), 0)?;
        let attributes = replies.into_iter().flat_map(|reply| match reply {
            RouteNetlinkMessage::NewLink(link) => link.attributes,
            _ => Vec::new(),
        });
        Ok(attributes.collect())
    }

    /// Adds an address to an interface.
    pub(super) fn add_address(&self, index: u32, address: InterfaceAddress) -> Result<(), Errno> {
        self.ask(RouteNetlinkMessage::NewAddress(address_message(index, address)), NLM_F_CREATE | NLM_F_EXCL).map(drop)
    }

    /// Deletes an address of an interface.
    pub(super) fn del_address(&self, index: u32, address: InterfaceAddress) -> Result<(), Errno> {
        self.ask(RouteNetlinkMessage::DelAddress(address_message(index, address)), 0).map(drop)
    }

    /// Sends a request and waits until the kernel has acknowledged it. Returns the messages before that.
    fn ask(&self, request: RouteNetlinkMessage, flags: u16) -> Result<Vec<RouteNetlinkMessage>, Errno> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(request));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.0.send(&bytes, 0).map_err(errno_of)?;
        let mut replies = Vec::new();
        let mut buffer = Vec::with_capacity(REPLY_BYTES_MAX);
        loop {
            buffer.clear();
            self.0.recv(&mut buffer, 0).map_err(errno_of)?;
            let mut rest = &buffer[..];
            while !rest.is_empty() {
                let reply = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(|_| Errno::BADMSG)?;
                let length = (reply.header.length as usize).next_multiple_of(4);
                rest = rest.get(length..).unwrap_or_default();
                match reply.payload {
                    NetlinkPayload::Error(error) => {
                        return acknowledged(error.code.map_or(0, i32::from)).map(|()| replies);
                    }
                    NetlinkPayload::InnerMessage(inner) => replies.push(inner),
                    _ => {}
                }
            }
        }
    }
}

fn acknowledged(code: i32) -> Result<(), Errno> {
    if code == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(-code)) }
}

fn address_message(index: u32, address: InterfaceAddress) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.index = index;
    message.header.prefix_len = address.prefix_len();
    message.header.family = match address.address() {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    message.attributes = vec![AddressAttribute::Local(address.address()), AddressAttribute::Address(address.address())];
    message
}

fn errno_of(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}
