//! The addresses of a guest's interfaces, which only the guest can read. The host makes names for RDMA programs of them (GIDs). The guest's
//! daemon states them before each connection of a program if they have changed: programs find GIDs in files that are written over such a
//! connection.

use std::io;

use isthmus_control::interfaces::{self, AddressChanges};
use isthmus_layout::control::Name;
use isthmus_layout::proxy::addresses::{GuestAddresses, InterfaceAddress};

/// The addresses that a guest's daemon has stated.
#[derive(Debug, Default)]
pub(crate) struct StatedAddresses {
    stated: Option<GuestAddresses>,
    /// The addresses as they were read last.
    read: Option<GuestAddresses>,
    /// Says when they have to be read again. None before they are read, and after an error.
    changes: Option<AddressChanges>,
    /// True if they could not be read the last time.
    has_failed: bool,
}

impl StatedAddresses {
    /// Returns the addresses if they are not the stated ones.
    pub(crate) fn changed(&mut self) -> Option<GuestAddresses> {
        if self.changes.as_ref().is_none_or(AddressChanges::any) {
            let read = self.read_again();
            let had_failed = std::mem::replace(&mut self.has_failed, read.is_err());
            if let Err(error) = read
                && !had_failed
            {
                tracing::warn!(%error, "cannot read the addresses of interfaces: programs find those that were read before");
            }
        }
        self.read.clone().filter(|read| self.stated.as_ref() != Some(read))
    }

    fn read_again(&mut self) -> io::Result<()> {
        // Taken, so that an error makes the next call read again.
        let changes = self.changes.take().map_or_else(AddressChanges::new, Ok)?;
        // The kernel allows neither slashes nor spaces in the name of an interface.
        let named =
            |(address, interface): (_, String)| Some(InterfaceAddress::new(address, Name::new(&interface).ok()?));
        self.read = Some(GuestAddresses::clip(interfaces::addresses()?.into_iter().filter_map(named).collect()));
        self.changes = Some(changes);
        Ok(())
    }

    /// Records that the host has been told.
    pub(crate) fn set_stated(&mut self, addresses: GuestAddresses) {
        self.stated = Some(addresses);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_stated_until_the_host_has_been_told() {
        let mut addresses = StatedAddresses::default();
        let first = addresses.changed().unwrap();
        assert_eq!(addresses.changed(), Some(first.clone()));
        addresses.set_stated(first);
        assert_eq!(addresses.changed(), None);
        let other = InterfaceAddress::new(std::net::Ipv6Addr::LOCALHOST, Name::new("other").unwrap());
        addresses.set_stated(GuestAddresses::clip(vec![other]));
        assert!(addresses.changed().is_some());
    }
}
