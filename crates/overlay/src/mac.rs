//! MAC addresses, and hash maps keyed by them.
//!
//! Guests choose MAC addresses. An unkeyed hash would let a guest choose addresses that collide, so the maps use SipHash with a secret key.

use core::fmt;
use core::hash::{BuildHasher, Hash, Hasher};
use core::str::FromStr;

use hashbrown::HashMap;
use siphasher::sip::SipHasher13;

/// The address of an Ethernet station or group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// The address of all stations.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Whether this is the address of a group: multicast or broadcast.
    #[inline]
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Whether this is the address of all stations.
    pub fn is_broadcast(self) -> bool {
        self == Self::BROADCAST
    }

    /// Whether one station can have this address: neither a group nor all zeros.
    #[inline]
    pub const fn is_station(self) -> bool {
        !self.is_group() && self.bits() != 0
    }

    /// The address as a number below 2^48.
    #[inline]
    pub(crate) const fn bits(self) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }

    /// Returns the address with a number; only the low 48 bits count.
    pub(crate) const fn from_bits(bits: u64) -> Self {
        let [_, _, a, b, c, d, e, f] = bits.to_be_bytes();
        Self([a, b, c, d, e, f])
    }
}

impl Hash for MacAddr {
    /// Hashes one word in place of a slice with its length.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.bits());
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The error of a text that is no MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a MAC address is six hexadecimal numbers of one or two digits, separated by colons")]
pub struct MacParseError;

impl FromStr for MacAddr {
    type Err = MacParseError;

    /// Reads the form of `Display`. Numbers may have one digit, as in VNET's commands.
    fn from_str(text: &str) -> Result<Self, MacParseError> {
        let mut octets = [0; 6];
        let mut numbers = text.split(':');
        for octet in &mut octets {
            let number = numbers.next().ok_or(MacParseError)?;
            let is_hex = number.len() <= 2 && number.bytes().all(|digit| digit.is_ascii_hexdigit());
            *octet = u8::from_str_radix(number, 16).ok().filter(|_| is_hex).ok_or(MacParseError)?;
        }
        if numbers.next().is_some() { Err(MacParseError) } else { Ok(Self(octets)) }
    }
}

/// A hash map with keys that contain addresses of guests.
pub(crate) type MacMap<K, V> = HashMap<K, V, KeyedHash>;

/// Makes hashers with a secret key.
#[derive(Clone, Copy)]
pub(crate) struct KeyedHash([u64; 2]);

impl KeyedHash {
    pub(crate) const fn new(key: [u64; 2]) -> Self {
        Self(key)
    }
}

impl BuildHasher for KeyedHash {
    type Hasher = SipHasher13;

    #[inline]
    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0[0], self.0[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    const MAC: MacAddr = MacAddr([0x02, 0xab, 0, 0x10, 0, 0x01]);

    #[test]
    fn prints_two_digits_an_octet_and_reads_one_or_two() {
        assert_eq!(MAC.to_string(), "02:ab:00:10:00:01");
        assert_eq!("02:ab:00:10:00:01".parse(), Ok(MAC));
        assert_eq!("2:AB:0:10:0:1".parse(), Ok(MAC));
    }

    #[test]
    fn refuses_texts_that_are_no_address() {
        for text in [
            "",
            "02:ab:00:10:00",
            "02:ab:00:10:00:01:02",
            "02:ab:00:10:00:",
            "02:ab:00:10:00:+1",
            "002:ab:00:10:00:01",
            "02:ag:00:10:00:01",
        ] {
            assert_eq!(text.parse::<MacAddr>(), Err(MacParseError), "{text}");
        }
    }

    #[test]
    fn tells_groups_and_stations_apart() {
        assert!(!MAC.is_group() && !MAC.is_broadcast() && MAC.is_station());
        let group = MacAddr([0x01, 0, 0x5e, 0, 0, 1]);
        assert!(group.is_group() && !group.is_broadcast() && !group.is_station());
        assert!(MacAddr::BROADCAST.is_group() && MacAddr::BROADCAST.is_broadcast() && !MacAddr::BROADCAST.is_station());
        assert!(!MacAddr([0; 6]).is_group() && !MacAddr([0; 6]).is_station());
        assert!(MacAddr([0, 0, 0, 0, 0, 1]).is_station());
    }

    #[test]
    fn survives_the_way_to_a_number_and_back() {
        assert_eq!(MAC.bits(), 0x02ab_0010_0001);
        assert_eq!(MacAddr::from_bits(MAC.bits()), MAC);
    }

    #[test]
    fn hashes_with_the_key() {
        let hash = |key: [u64; 2]| KeyedHash::new(key).hash_one(MAC);
        assert_eq!(hash([1, 2]), hash([1, 2]));
        assert_ne!(hash([1, 2]), hash([3, 2]));
        assert_ne!(hash([1, 2]), hash([1, 3]));
        assert_ne!(hash([1, 2]), KeyedHash::new([1, 2]).hash_one(MacAddr([0; 6])));
    }
}
