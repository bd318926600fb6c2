//! The values of requests, checked when they are made.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// The maximum number of addresses in one request.
pub const ADDRESSES_MAX: usize = 8;

/// The number of bytes of the longest name, without a terminating zero.
pub(crate) const NAME_BYTES_MAX: usize = 15;

/// The reason why a value cannot stand in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidValue {
    /// The name of an interface.
    #[error("an interface name has 1 to 15 of the characters A-Z a-z 0-9 . _ -, and is not `.` or `..`")]
    Name,
    /// The MAC address of an interface.
    #[error("the MAC address of an interface is neither zero nor a group address")]
    Mac,
    /// The MTU of an interface.
    #[error("an MTU has 68 to 65535 bytes")]
    Mtu,
    /// An IP address with the length of its prefix.
    #[error("an interface has a unicast IP address with a prefix of at most 32 bits (IPv4) or 128 bits (IPv6)")]
    Address,
    /// A list of addresses.
    #[error("a request has at most {ADDRESSES_MAX} addresses")]
    TooManyAddresses,
}

/// The name of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InterfaceName(String);

impl InterfaceName {
    /// Checks a name.
    pub fn new(name: &str) -> Result<Self, InvalidValue> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let is_name = (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_allowed);
        if is_name && name != "." && name != ".." { Ok(Self(name.to_owned())) } else { Err(InvalidValue::Name) }
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The MAC address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MacAddress([u8; 6]);

impl MacAddress {
    /// Checks an address.
    pub fn new(octets: [u8; 6]) -> Result<Self, InvalidValue> {
        if octets[0] & 1 == 0 && octets != [0; 6] { Ok(Self(octets)) } else { Err(InvalidValue::Mac) }
    }

    /// Returns the six octets in the order in which they are sent.
    pub fn octets(self) -> [u8; 6] {
        self.0
    }
}

/// The maximum number of bytes after the Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mtu(u32);

impl Mtu {
    /// Checks an MTU.
    pub fn new(bytes: u32) -> Result<Self, InvalidValue> {
        if (68..=65535).contains(&bytes) { Ok(Self(bytes)) } else { Err(InvalidValue::Mtu) }
    }

    /// Returns the number of bytes.
    pub fn bytes(self) -> u32 {
        self.0
    }
}

/// An IP address of an interface, with the length of the prefix that it shares with its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InterfaceAddress {
    address: IpAddr,
    prefix_len: u8,
}

impl InterfaceAddress {
    /// Checks an address.
    pub fn new(address: IpAddr, prefix_len: u8) -> Result<Self, InvalidValue> {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let is_unicast = !address.is_unspecified() && !address.is_multicast();
        if is_unicast && prefix_len <= bits { Ok(Self { address, prefix_len }) } else { Err(InvalidValue::Address) }
    }

    /// Returns the address.
    pub fn address(self) -> IpAddr {
        self.address
    }

    /// Returns the number of bits of the prefix.
    pub fn prefix_len(self) -> u8 {
        self.prefix_len
    }
}

impl FromStr for InterfaceAddress {
    type Err = InvalidValue;

    /// Parses `10.0.0.1/24`.
    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let (address, prefix_len) = text.split_once('/').ok_or(InvalidValue::Address)?;
        let address = address.parse().map_err(|_| InvalidValue::Address)?;
        Self::new(address, prefix_len.parse().map_err(|_| InvalidValue::Address)?)
    }
}

impl fmt::Display for InterfaceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_len)
    }
}

/// The addresses of a new interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressList(Vec<InterfaceAddress>);

impl AddressList {
    /// Checks the number of addresses.
    pub fn new(addresses: Vec<InterfaceAddress>) -> Result<Self, InvalidValue> {
        if addresses.len() <= ADDRESSES_MAX { Ok(Self(addresses)) } else { Err(InvalidValue::TooManyAddresses) }
    }

    /// Returns the addresses.
    pub fn as_slice(&self) -> &[InterfaceAddress] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_few_characters_and_are_no_folders() {
        for name in ["tap0", "a", "web.front_1-b", "fifteen-bytes-x", "..."] {
            assert_eq!(InterfaceName::new(name).unwrap().as_str(), name);
        }
        for name in ["", ".", "..", "sixteen-bytes-xx", "a/b", "a b", "tap%d", "a:b", "é", "a\0"] {
            assert_eq!(InterfaceName::new(name), Err(InvalidValue::Name), "{name:?}");
        }
    }

    #[test]
    fn numbers_have_ranges() {
        assert_eq!([67, 68, 65535, 65536].map(|bytes| Mtu::new(bytes).is_ok()), [false, true, true, false]);
        assert!(MacAddress::new([2, 0, 0, 0, 0, 1]).is_ok());
        for octets in [[0; 6], [1, 0, 0, 0, 0, 1], [0xFF; 6]] {
            assert_eq!(MacAddress::new(octets), Err(InvalidValue::Mac));
        }
    }

    #[test]
    fn addresses_are_unicast_with_a_prefix_that_fits() {
        for text in ["10.0.0.1/24", "10.0.0.1/0", "10.0.0.1/32", "fd00::1/64", "fe80::1/128"] {
            assert_eq!(text.parse::<InterfaceAddress>().unwrap().to_string(), text);
        }
        for text in ["10.0.0.1", "10.0.0.1/33", "fd00::1/129", "0.0.0.0/0", "::/0", "224.0.0.1/4", "ff02::1/64", "x/1"]
        {
            assert_eq!(text.parse::<InterfaceAddress>(), Err(InvalidValue::Address), "{text}");
        }
        let one = "10.0.0.1/24".parse().unwrap();
        assert!(AddressList::new(vec![one; ADDRESSES_MAX]).is_ok());
        assert_eq!(AddressList::new(vec![one; ADDRESSES_MAX + 1]), Err(InvalidValue::TooManyAddresses));
    }
}
