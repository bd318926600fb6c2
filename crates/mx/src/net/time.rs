//! Points in time, in microseconds from an origin that the caller chooses. This module reads no clock.

/// A point in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The origin.
    pub const ZERO: Self = Self(0);

    /// Returns the time `us` microseconds after the start of the clock.
    pub const fn from_us(us: u64) -> Self {
        Self(us)
    }

    /// Returns the microseconds since the origin.
    pub const fn us(self) -> u64 {
        self.0
    }

    /// Returns the time `us` microseconds later.
    #[must_use]
    pub const fn after_us(self, us: u64) -> Self {
        Self(self.0.saturating_add(us))
    }

    /// Returns the microseconds since an earlier point; 0 if it is not earlier.
    pub const fn since_us(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
