//! Numbers that Xen gives: three kinds of `u32` that never meet in an argument list.

use core::fmt;

/// A domain of this host, as Xen counts them; 0 is the one that started all others. A number is not used again soon, but it is used
/// again: whoever keeps one watches whether its domain is still the same ([`crate::presence`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Domid(u16);

impl Domid {
    /// The domain that started all others.
    pub const ZERO: Self = Self(0);

    /// None for numbers that are no domain's: Xen keeps those from 0x7ff0 for itself.
    pub const fn new(number: u16) -> Option<Self> {
        if number < 0x7ff0 { Some(Self(number)) } else { None }
    }

    /// The same, of what somebody wrote into XenStore: digits and nothing else.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = str::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
        Self::new(text.parse().ok()?)
    }

    /// Its number.
    pub const fn number(self) -> u16 {
        self.0
    }
}

impl fmt::Display for Domid {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// A place in the grant table of the domain that grants: what the other one names a page by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantRef(pub u32);

/// An end of an event channel. Each domain counts its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EvtchnPort(pub u32);
