//! The addresses of a guest's interfaces. The host cannot read them, so the guest's daemon states them before each connection of a program if
//! they have changed.

use alloc::string::String;
use alloc::vec::Vec;
use core::net::Ipv6Addr;

use super::PROXY_FRAME_BYTES_MAX;
use crate::control::codec::Width;
use crate::control::table::{FieldInfo, record};
use crate::control::{Field, FieldReader, List, MalformedControl, Name};

/// The maximum number of addresses.
pub const ADDRESSES_MAX: usize = 128;
const _: () = assert!(<List<InterfaceAddress, ADDRESSES_MAX>>::WIDTH.max <= PROXY_FRAME_BYTES_MAX);

record! {
    /// An address of an interface.
    InterfaceAddress {
        /// The first eight bytes of the IPv6 address, as a big-endian number. An IPv4 address is mapped into IPv6.
        high: u64,
        /// The last eight bytes, as a big-endian number.
        low: u64,
        /// The name of the interface.
        interface: Name,
    }
}

impl InterfaceAddress {
    /// Creates the record.
    pub fn new(address: Ipv6Addr, interface: Name) -> Self {
        let bits = address.to_bits();
        Self { high: (bits >> 64) as u64, low: bits as u64, interface }
    }

    /// Returns the address.
    pub fn address(&self) -> Ipv6Addr {
        Ipv6Addr::from_bits(u128::from(self.high) << 64 | u128::from(self.low))
    }
}

list_frame! {
    /// All addresses of a guest. They replace those that it stated before.
    GuestAddresses of InterfaceAddress, at most ADDRESSES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString as _;

    fn of(number: u128) -> InterfaceAddress {
        InterfaceAddress::new(Ipv6Addr::from_bits(number), Name::new("eth0").unwrap())
    }

    #[test]
    fn parse_returns_what_was_emitted_and_refuses_more() {
        let address = of(0xFE80_u128 << 112 | 7);
        assert_eq!(address.address().to_string(), "fe80::7");
        let addresses = GuestAddresses::clip((0..1000).map(of).collect());
        assert_eq!(addresses.0.len(), ADDRESSES_MAX);
        let mut bytes = addresses.emit();
        assert_eq!(GuestAddresses::parse(&bytes), Ok(addresses));
        assert!(GuestAddresses::parse(&bytes[..bytes.len() - 1]).is_err());
        bytes[0] += 1;
        let have = ADDRESSES_MAX + 1;
        assert_eq!(GuestAddresses::parse(&bytes), Err(MalformedControl::List { have, max: ADDRESSES_MAX }));
    }
}
