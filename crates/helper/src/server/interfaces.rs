//! The interfaces of a connection: creates them, and changes those that still are what it created.
//!
//! ```text
//!   created as isthmusN ── alias, MAC, MTU, limits ── moved and renamed ── bridge ── addresses ── up ──► descriptor
//! ```
//!
//! An interface is created under a passing name and renamed once it has its alias. udev sees the passing name in the first event and the alias
//! in the next one, so its rules recognize the interface in both (`packaging/network/70-isthmus.rules`). The alias contains a random number.
//! It proves that the interface behind an index is still the one that was created.
//!
//! The descriptor of a TAP keeps the network namespace alive in which `/dev/net/tun` was opened. So the helper opens it in its own namespace
//! and moves the interface, and it keeps no descriptor of the other namespace: a container's namespace ends with its last process.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use isthmus_layout::limits::TAP_INTERFACES_MAX;
use isthmus_link::{CreateTapError, TapOffloads, create_tap};
use netlink_packet_route::link::LinkAttribute;
use rustix::fd::OwnedFd;
use rustix::io::Errno;

use super::namespace::work_in;
use super::route_socket::RouteSocket;
use crate::protocol::{InterfaceNumber, TapInfo, TapRequest};
use crate::refusal::{Refusal, RefusalReason};
use crate::values::{InterfaceAddress, InterfaceName, Mtu};

/// The passing name of a new interface; the kernel replaces `%d`.
const PASSING_NAME: &str = "isthmus%d";

/// The interfaces that a helper has created and that may exist still, those of all its connections.
///
/// A client may keep an interface that it has released, or that has outlived its connection. So an interface counts until the kernel does not
/// know it any more.
#[derive(Default)]
pub(super) struct Existing(Mutex<Count>);

#[derive(Default)]
struct Count {
    interfaces: Vec<Interface>,
    /// The number of interfaces that are being created.
    begun: usize,
}

impl Existing {
    /// Creates an interface, if there is room for it.
    fn create(&self, create: impl FnOnce() -> Result<(Interface, Created), Refusal>) -> Result<Created, Refusal> {
        {
            let mut count = self.lock();
            if count.interfaces.len() + count.begun >= TAP_INTERFACES_MAX {
                let routes = open_routes()?;
                count.interfaces.retain(|interface| interface.may_exist(&routes));
            }
            if count.interfaces.len() + count.begun >= TAP_INTERFACES_MAX {
                return Err(RefusalReason::TooManyInterfaces.into());
            }
            count.begun += 1;
        }
        let created = create();
        let mut count = self.lock();
        count.begun -= 1;
        let (interface, created) = created?;
        count.interfaces.push(interface);
        Ok(created)
    }

    fn lock(&self) -> MutexGuard<'_, Count> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The interfaces of one connection.
pub(super) struct Interfaces {
    made: BTreeMap<InterfaceNumber, Interface>,
    next_number: u32,
    existing: Arc<Existing>,
}

/// An interface that was created.
#[derive(Clone)]
struct Interface {
    index: u32,
    alias: String,
    /// The kernel's number for the namespace of the interface, if it is not that of the helper. The number does not keep the namespace alive.
    namespace: Option<i32>,
}

impl Interface {
    /// Returns false if the interface is gone, or was moved away by another program.
    fn may_exist(&self, routes: &RouteSocket) -> bool {
        match routes.alias(self.index, self.namespace) {
            Ok(alias) => alias == self.alias,
            // The kernel knows no such interface, or no such namespace.
            Err(errno) => ![Errno::NODEV, Errno::INVAL].contains(&errno),
        }
    }
}

impl Interfaces {
    pub(super) fn new(existing: Arc<Existing>) -> Self {
        Self { made: BTreeMap::new(), next_number: 0, existing }
    }

    /// Creates a TAP interface. Returns the only descriptor of its device.
    pub(super) fn open_tap(
        &mut self,
        tap: &TapRequest,
        namespace: Option<OwnedFd>,
    ) -> Result<(TapInfo, OwnedFd), Refusal> {
        if self.next_number == u32::MAX {
            return Err(RefusalReason::TooManyInterfaces.into());
        }
        let alias = new_alias()?;
        let created = self.existing.create(|| {
            let created = create(tap, &alias, namespace.as_ref())?;
            Ok((Interface { index: created.index, alias: alias.clone(), namespace: created.namespace }, created))
        })?;
        let interface = InterfaceNumber(self.next_number);
        self.next_number += 1;
        let info = TapInfo {
            interface,
            index: created.index,
            has_udp_offloads: created.has_udp_offloads,
            has_gso_max_size: created.has_gso_max_size,
        };
        self.made.insert(interface, Interface { index: created.index, alias, namespace: created.namespace });
        Ok((info, created.descriptor))
    }

    pub(super) fn set_mtu(&self, number: InterfaceNumber, mtu: Mtu) -> Result<(), Refusal> {
        self.change(number, |routes, index| set_mtu(routes, index, mtu))
    }

    pub(super) fn set_up(&self, number: InterfaceNumber, is_up: bool) -> Result<(), Refusal> {
        self.change(number, |routes, index| set_up(routes, index, is_up))
    }

    pub(super) fn add_address(&self, number: InterfaceNumber, address: InterfaceAddress) -> Result<(), Refusal> {
        self.change(number, |routes, index| add_address(routes, index, address))
    }

    pub(super) fn del_address(&self, number: InterfaceNumber, address: InterfaceAddress) -> Result<(), Refusal> {
        self.change(number, |routes, index| {
            routes.del_address(index, address).map_err(|errno| match errno {
                Errno::ADDRNOTAVAIL => RefusalReason::NoSuchAddress.by(errno),
                errno => Refusal::of(errno, RefusalReason::AddressRefused),
            })
        })
    }

    /// Forgets the number of an interface. The interface counts as long as it exists.
    pub(super) fn release(&mut self, number: InterfaceNumber) -> Result<(), Refusal> {
        self.made.remove(&number).map(drop).ok_or(RefusalReason::NoSuchInterface.into())
    }

    /// Changes an interface, if it still is the one that was created.
    fn change(
        &self,
        number: InterfaceNumber,
        change: impl FnOnce(&RouteSocket, u32) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let interface = self.made.get(&number).ok_or(RefusalReason::NoSuchInterface)?;
        if interface.namespace.is_some() {
            return Err(RefusalReason::InterfaceElsewhere.into());
        }
        let routes = open_routes()?;
        let alias =
            routes.alias(interface.index, None).map_err(|errno| Refusal::of(errno, RefusalReason::KernelRefused))?;
        if alias != interface.alias {
            return Err(RefusalReason::InterfaceGone.into());
        }
        change(&routes, interface.index)
    }
}

struct Created {
    descriptor: OwnedFd,
    index: u32,
    /// As in [`Interface`].
    namespace: Option<i32>,
    has_udp_offloads: bool,
    has_gso_max_size: bool,
}

/// Creates a TAP interface in this namespace, or in another one. If a step fails, the interface goes with its descriptor.
fn create(tap: &TapRequest, alias: &str, namespace: Option<&OwnedFd>) -> Result<Created, Refusal> {
    work_in(namespace, || Ok(()))?; // The namespace is checked before the kernel is asked to move something there.
    let routes = open_routes()?;
    let device = create_tap(PASSING_NAME).map_err(|error| match error {
        CreateTapError::Open(errno) => RefusalReason::NoTunDevice.by(errno),
        CreateTapError::Create(errno) | CreateTapError::SetUp(errno) => {
            Refusal::of(errno, RefusalReason::KernelRefused)
        }
    })?;
    let kernel_refused = |errno| Refusal::of(errno, RefusalReason::KernelRefused);
    let index = routes.index(&device.name).map_err(kernel_refused)?;
    routes.set(index, LinkAttribute::IfAlias(alias.to_owned())).map_err(kernel_refused)?;
    routes.set(index, LinkAttribute::Address(tap.mac.octets().to_vec())).map_err(kernel_refused)?;
    set_mtu(&routes, index, tap.mtu)?;
    let set_gso = |size: NonZeroU32| routes.set(index, LinkAttribute::GsoMaxSize(size.get())).is_ok();
    let has_gso_max_size = tap.gso_max_size.is_some_and(set_gso);
    routes.rename(index, tap.name.as_str(), namespace).map_err(|errno| match errno {
        Errno::EXIST => RefusalReason::NameTaken.by(errno),
        errno => kernel_refused(errno),
    })?;
    let index = work_in(namespace, || finish(tap))?;
    let namespace =
        namespace.map(|namespace| routes.namespace_number(namespace)).transpose().map_err(kernel_refused)?;
    let has_udp_offloads = device.offloads.contains(TapOffloads::UDP);
    Ok(Created { descriptor: device.descriptor, index, namespace, has_udp_offloads, has_gso_max_size })
}

/// Gives a new interface its addresses, in its own namespace. Returns its index there.
fn finish(tap: &TapRequest) -> Result<u32, Refusal> {
    let routes = open_routes()?;
    let index = routes.index(tap.name.as_str()).map_err(|errno| Refusal::of(errno, RefusalReason::KernelRefused))?;
    if let Some(bridge) = &tap.bridge {
        join_bridge(&routes, index, bridge)?;
    }
    for address in tap.addresses.as_slice() {
        add_address(&routes, index, *address)?;
    }
    if tap.is_up {
        set_up(&routes, index, true)?;
    }
    Ok(index)
}

fn open_routes() -> Result<RouteSocket, Refusal> {
    RouteSocket::open().map_err(|errno| Refusal::of(errno, RefusalReason::KernelRefused))
}

fn set_mtu(routes: &RouteSocket, index: u32, mtu: Mtu) -> Result<(), Refusal> {
    let set = routes.set(index, LinkAttribute::Mtu(mtu.bytes()));
    set.map_err(|errno| Refusal::of(errno, RefusalReason::MtuRefused))
}

/// Makes an interface a port of a bridge. Other kinds of interfaces with ports, such as bonds, are refused.
fn join_bridge(routes: &RouteSocket, index: u32, bridge: &InterfaceName) -> Result<(), Refusal> {
    let bridge = routes.index(bridge.as_str()).map_err(|errno| RefusalReason::NoBridge.by(errno))?;
    if !routes.is_bridge(bridge).map_err(|errno| Refusal::of(errno, RefusalReason::KernelRefused))? {
        return Err(RefusalReason::NoBridge.into());
    }
    let joined = routes.set(index, LinkAttribute::Controller(bridge));
    joined.map_err(|errno| Refusal::of(errno, RefusalReason::KernelRefused))
}

fn set_up(routes: &RouteSocket, index: u32, is_up: bool) -> Result<(), Refusal> {
    routes.set_up(index, is_up).map_err(|errno| Refusal::of(errno, RefusalReason::KernelRefused))
}

fn add_address(routes: &RouteSocket, index: u32, address: InterfaceAddress) -> Result<(), Refusal> {
    routes.add_address(index, address).map_err(|errno| match errno {
        Errno::EXIST => RefusalReason::AddressTaken.by(errno),
        errno => Refusal::of(errno, RefusalReason::AddressRefused),
    })
}

/// Returns an alias that no other interface has.
fn new_alias() -> Result<String, Refusal> {
    let mut random = [0_u8; 8];
    let filled = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    let filled = filled.map_err(|errno| RefusalReason::KernelRefused.by(errno))?;
    assert_eq!(filled, random.len(), "the kernel fills up to 256 bytes at once");
    Ok(format!("isthmus {:016x}", u64::from_ne_bytes(random)))
}
