//! Numbers that name things. Each is a type of its own, so that two of them never change places in an argument list.

use core::fmt;
use core::num::NonZeroU32;

/// A domain attached to a daemon: a process, a container, a guest. The daemon hands the numbers out and never hands one
/// out twice in its lifetime; zero is no domain, so that zeroed memory names nobody.
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

    /// The number as it stands on the wire and in shared memory.
    pub const fn number(self) -> u32 {
        self.0.get()
    }
}

impl fmt::Display for DomainId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "d{}", self.0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_names_no_domain() {
        assert_eq!(DomainId::new(0), None);
        assert_eq!(DomainId::new(7).map(DomainId::number), Some(7));
    }

    #[test]
    fn endpoint_numbers_stop_at_the_limit() {
        assert!(EndpointIndex::new(crate::limits::ENDPOINTS_MAX - 1).is_some());
        assert_eq!(EndpointIndex::new(crate::limits::ENDPOINTS_MAX), None);
    }
}
