//! Numbers that identify objects. Each has a type of its own, so that two of them cannot be confused in an argument list.

use core::fmt;
use core::num::NonZeroU32;

/// The number of a domain: a program attached to a daemon. The daemon assigns the numbers and never uses one twice in its lifetime. Zero is
/// no domain, so that zeroed memory names no domain.
///
/// A remote peer also has a number, in the upper half, while a local domain communicates with it. Only that domain and the daemon know the
/// number. Messages to a remote peer take the daemon path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DomainId(NonZeroU32);

impl DomainId {
    /// Returns the domain with this number. None for zero.
    pub const fn new(number: u32) -> Option<Self> {
        match NonZeroU32::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// Returns remote peer `count`. None if there are no more numbers.
    pub const fn remote(count: u32) -> Option<Self> {
        if count < Self::REMOTE { Self::new(Self::REMOTE | count) } else { None }
    }

    /// The first number of a remote peer.
    const REMOTE: u32 = 1 << 31;

    /// Returns true for a remote peer.
    pub const fn is_remote(self) -> bool {
        self.0.get() >= Self::REMOTE
    }

    /// Returns the number, as on the wire and in shared memory.
    pub const fn number(self) -> u32 {
        self.0.get()
    }
}

impl fmt::Display for DomainId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_remote() {
            true => write!(f, "r{}", self.0.get() - Self::REMOTE),
            false => write!(f, "d{}", self.0),
        }
    }
}

/// The index of an endpoint of a domain, below [`limits::ENDPOINTS_MAX`](crate::limits::ENDPOINTS_MAX).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointIndex(u8);

impl EndpointIndex {
    /// The first index.
    pub const MIN: Self = Self(0);

    /// The last index.
    pub const MAX: Self = Self(crate::limits::ENDPOINTS_MAX - 1);

    /// Returns the index with this number. None at or above the limit.
    pub const fn new(number: u8) -> Option<Self> {
        if number < crate::limits::ENDPOINTS_MAX { Some(Self(number)) } else { None }
    }

    /// Returns the number, as on the wire and in shared memory.
    pub const fn number(self) -> u8 {
        self.0
    }
}

impl fmt::Display for EndpointIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}", self.0)
    }
}

/// The address of a message: an endpoint of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointAddress {
    /// The domain that opened the endpoint.
    pub domain: DomainId,
    /// The index of the endpoint in its domain.
    pub endpoint: EndpointIndex,
}

impl fmt::Display for EndpointAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.domain, self.endpoint)
    }
}

/// The number of a channel between two domains. It is unique among this daemon and the previous daemons of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelId(pub u64);

impl fmt::Display for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{:x}", self.0)
    }
}

/// The number of memory that a domain grants to a peer. The domain chooses the number, and never uses it twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionId(pub u64);

impl fmt::Display for RegionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{:x}", self.0)
    }
}

/// The address of a real or virtual network card: six octets in the lower 48 bits, the first in bits 47 to 40.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NicId(u64);

impl NicId {
    /// Returns the address with this number. None for more than 48 bits.
    pub const fn new(number: u64) -> Option<Self> {
        if number >> 48 == 0 { Some(Self(number)) } else { None }
    }

    /// Returns the address of six octets, in the order of a frame.
    pub const fn from_octets([a, b, c, d, e, f]: [u8; 6]) -> Self {
        Self(u64::from_be_bytes([0, 0, a, b, c, d, e, f]))
    }

    /// Returns the number, as in control messages.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// The usual form: `00:11:22:33:44:55`.
impl fmt::Display for NicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [_, _, a, b, c, d, e, g] = self.0.to_be_bytes();
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domain_id_rejects_zero() {
        assert_eq!(DomainId::new(0), None);
        assert_eq!(DomainId::new(7).map(DomainId::number), Some(7));
    }

    #[test]
    fn endpoint_numbers_stop_at_the_limit() {
        assert!(EndpointIndex::new(crate::limits::ENDPOINTS_MAX - 1).is_some());
        assert_eq!(EndpointIndex::new(crate::limits::ENDPOINTS_MAX), None);
    }

    #[test]
    fn a_nic_id_is_six_octets() {
        let nic = NicId::from_octets([0x02, 0, 0, 0xab, 0xcd, 0xef]);
        assert_eq!((nic.number(), alloc::format!("{nic}").as_str()), (0x0200_00ab_cdef, "02:00:00:ab:cd:ef"));
        assert_eq!((NicId::new(nic.number()), NicId::new(1 << 48)), (Some(nic), None));
    }
}
