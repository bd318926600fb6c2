//! The listed page: the addresses at which some program listens, as bits of a hash.
//!
//! ```text
//! word 0..4      KEY    of the hash; the daemon draws it when it starts
//! word 16..2064  BITS   65,536 bits, one for each value of the hash
//! ```
//!
//! Only the daemon writes the page. A program that connects checks two bits: that of the address, and that of the wildcard address. If both
//! are clear, no program that the daemon knows listens there, and the socket need not be shown. A set bit may be that of another
//! address.

use core::hash::Hasher;
use core::net::{IpAddr, Ipv6Addr};
use siphasher::sip::SipHasher24;

use crate::limits::PAGE_BYTES;
use crate::span::RegionSize;

/// First word of the key.
pub const LISTED_KEY: u32 = 0;
/// The number of words of the key.
pub const LISTED_KEY_WORDS: u32 = 4;
/// First word of the bits.
pub const LISTED_BITS: u32 = 16;
/// The number of bits.
pub const LISTED_BITS_COUNT: u32 = 1 << 16;
/// The size of the page's region in bytes.
pub const LISTED_SIZE: RegionSize =
    RegionSize((4 * LISTED_BITS + LISTED_BITS_COUNT / 8).next_multiple_of(PAGE_BYTES) as u64);

/// The bit of a listener's address: SipHash-2-4 of the address and the port, modulo 65,536.
///
/// An IPv4 address is hashed as its IPv6-mapped form, and the wildcard address of either family as `::`. The hash covers 18 bytes: the
/// address and the port, both in network byte order. The bytes of the key are its words, each in little endian.
pub fn listed_bit(key: [u32; LISTED_KEY_WORDS as usize], address: IpAddr, port: u16) -> u16 {
    let mut bytes = [0; 16];
    for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(key) {
        *bytes = word.to_le_bytes();
    }
    let mut hasher = SipHasher24::new_with_key(&bytes);
    hasher.write(&hashed_address(address).octets());
    hasher.write(&port.to_be_bytes());
    hasher.finish() as u16
}

fn hashed_address(address: IpAddr) -> Ipv6Addr {
    let address = address.to_canonical();
    match address {
        _ if address.is_unspecified() => Ipv6Addr::UNSPECIFIED,
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// The word of the page that holds a bit.
pub const fn listed_word(bit: u16) -> u32 {
    LISTED_BITS + bit as u32 / 32
}

/// The bit within its word.
pub const fn listed_mask(bit: u16) -> u32 {
    1 << (bit % 32)
}

const _: () = assert!(LISTED_KEY + LISTED_KEY_WORDS <= LISTED_BITS && LISTED_SIZE.0 == 3 * PAGE_BYTES as u64);

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;

    const KEY: [u32; 4] = [0x0302_0100, 0x0706_0504, 0x0b0a_0908, 0x0f0e_0d0c];

    fn bit(address: &str, port: u16) -> u16 {
        listed_bit(KEY, address.parse().unwrap(), port)
    }

    #[test]
    fn an_address_of_either_family_has_one_bit() {
        assert_eq!(bit("10.0.0.1", 80), bit("::ffff:10.0.0.1", 80));
        assert_eq!(bit("0.0.0.0", 80), bit("::", 80));
        assert_eq!(bit("::ffff:0.0.0.0", 80), bit("::", 80));
        let all = [bit("10.0.0.1", 80), bit("10.0.0.1", 81), bit("10.0.0.2", 80), bit("::", 80), bit("::1", 80)];
        assert!((1..all.len()).all(|at| !all[..at].contains(&all[at])), "{all:?}");
        let other_key = [KEY[0] ^ 1, KEY[1], KEY[2], KEY[3]];
        assert_ne!(bit("10.0.0.1", 80), listed_bit(other_key, IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 80));
    }

    #[test]
    fn the_hash_is_siphash_2_4() {
        // The published vector of 15 bytes, 00 to 0e, shows that the words of the key are read in little endian.
        let mut hasher = SipHasher24::new_with_key(&core::array::from_fn(|at| at as u8));
        hasher.write(&core::array::from_fn::<u8, 15, _>(|at| at as u8));
        assert_eq!(hasher.finish(), 0xa129_ca61_49be_45e5);
        let mut hasher = SipHasher24::new_with_key(&core::array::from_fn(|at| at as u8));
        let mut bytes = [0; 18];
        bytes[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 1, 0, 80]);
        hasher.write(&bytes);
        assert_eq!(bit("10.0.0.1", 80), hasher.finish() as u16);
    }

    #[test]
    fn every_bit_lies_in_the_page() {
        assert_eq!((listed_word(0), listed_mask(0)), (16, 1));
        assert_eq!((listed_word(u16::MAX), listed_mask(u16::MAX)), (16 + 2047, 1 << 31));
        assert!(4 * u64::from(listed_word(u16::MAX)) < LISTED_SIZE.0);
    }
}
