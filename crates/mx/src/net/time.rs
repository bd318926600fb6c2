//! Points in time, in microseconds since whatever the caller likes. No clock is looked at here.

/// A point in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The beginning of time.
    pub const ZERO: Self = Self(0);

    /// Returns the time `us` microseconds after the start of the clock.
    pub const fn from_us(us: u64) -> Self {
        Self(us)
    }

    /// Microseconds since the beginning.
    pub const fn us(self) -> u64 {
        self.0
    }

    /// Returns the time `us` microseconds later.
    #[must_use]
    pub const fn after_us(self, us: u64) -> Self {
        Self(self.0.saturating_add(us))
    }

    /// Microseconds since an earlier point; 0 if it is not earlier.
    pub const fn since_us(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
