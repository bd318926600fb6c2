//! Numbers that name things. Each is a type of its own, so that two of them never change places in an argument list.

use core::fmt;
use core::num::NonZeroU32;

/// A domain attached to a daemon: a process, a container, a guest. The daemon hands the numbers out and never hands one
/// out twice in its lifetime; zero is no domain, so that zeroed memory names no domain.
///
/// A remote peer has a number too, as long as a domain here talks to it: one of the upper half, known to that domain and
/// the daemon. It is reached by the daemon path alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DomainId(NonZeroU32);

impl DomainId {
    /// None for zero.
    pub const fn new(number: u32) -> Option<Self> {
        match NonZeroU32::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// Number `count` of those for other hosts' endpoints. None where there are no more.
    pub const fn remote(count: u32) -> Option<Self> {
        if count < Self::REMOTE { Self::new(Self::REMOTE | count) } else { None }
    }

    /// The first number that stands for a remote peer.
    const REMOTE: u32 = 1 << 31;

    /// Whether it stands for a remote peer.
    pub const fn is_remote(self) -> bool {
        self.0.get() >= Self::REMOTE
    }

    /// The number as it stands on the wire and in shared memory.
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

/// One of a domain's endpoints, below [`limits::ENDPOINTS_MAX`](crate::limits::ENDPOINTS_MAX).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointIndex(u8);

impl EndpointIndex {
    /// None where the number is at or above the limit.
    pub const fn new(number: u8) -> Option<Self> {
        if number < crate::limits::ENDPOINTS_MAX { Some(Self(number)) } else { None }
    }

    /// The number as it stands on the wire and in shared memory.
    pub const fn number(self) -> u8 {
        self.0
    }
}

impl fmt::Display for EndpointIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}", self.0)
    }
}

/// Where a message can be sent: an endpoint of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointAddress {
    /// The domain that opened the endpoint.
    pub domain: DomainId,
    /// Which of its endpoints.
    pub endpoint: EndpointIndex,
}

impl fmt::Display for EndpointAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.domain, self.endpoint)
    }
}

/// A channel between two domains, unique for as long as its daemon and the daemons before it on the same host remember.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelId(pub u64);

impl fmt::Display for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{:x}", self.0)
    }
}

/// Memory that its owner offers to one peer. Chosen by the owner, never used twice by the same domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionId(pub u64);

impl fmt::Display for RegionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{:x}", self.0)
    }
}

/// The address of an MX board: six octets as of a network card, in the lower 48 bits, the first in bits 47 to 40.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NicId(u64);

impl NicId {
    /// None where the number has more than 48 bits.
    pub const fn new(number: u64) -> Option<Self> {
        if number >> 48 == 0 { Some(Self(number)) } else { None }
    }

    /// Of six octets, as they stand in a frame.
    pub const fn from_octets([a, b, c, d, e, f]: [u8; 6]) -> Self {
        Self(u64::from_be_bytes([0, 0, a, b, c, d, e, f]))
    }

    /// The number as it stands in control messages and in the interface of MX.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// As of a network card: `00:11:22:33:44:55`.
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
