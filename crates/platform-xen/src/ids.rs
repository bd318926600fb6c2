//! Numbers assigned by Xen, as distinct types so that they cannot be confused in an argument list.

use core::fmt;

/// The number of a domain of this host. 0 is the domain that started all others. Xen reuses a number only after a long time, but it does
/// reuse it. Code that keeps a number has to watch whether it still belongs to the same domain ([`crate::presence`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Domid(u16);

impl Domid {
    /// The domain that started all others.
    pub const ZERO: Self = Self(0);

    /// Returns `None` for numbers from 0x7ff0, which Xen reserves.
    pub const fn new(number: u16) -> Option<Self> {
        if number < 0x7ff0 { Some(Self(number)) } else { None }
    }

    /// Parses a number from XenStore: digits and nothing else.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = str::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
        Self::new(text.parse().ok()?)
    }

    /// Returns the number.
    pub const fn number(self) -> u16 {
        self.0
    }
}

impl fmt::Display for Domid {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// An index into the grant table of the granting domain. The mapping domain names a page by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantRef(pub u32);

/// The number of an end of an event channel, local to its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EvtchnPort(pub u32);
