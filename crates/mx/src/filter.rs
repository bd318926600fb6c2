//! Filters by match info for receives, probes and tests: a match info, and a mask of the bits to compare.

/// A match info, and the mask of the bits to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Filter {
    match_info: u64,
    mask: u64,
}

/// A match info with bits outside its mask, which no message could match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("match info {match_info:#x} has bits outside of its mask {mask:#x}")]
pub struct InvalidMask {
    /// The match info.
    pub match_info: u64,
    /// The mask.
    pub mask: u64,
}

impl Filter {
    /// The filter that accepts everything.
    pub const ANY: Self = Self { match_info: 0, mask: 0 };

    /// Creates a filter. This is the only way to create one with wildcards.
    #[inline]
    pub const fn new(match_info: u64, mask: u64) -> Result<Self, InvalidMask> {
        if match_info & !mask == 0 { Ok(Self { match_info, mask }) } else { Err(InvalidMask { match_info, mask }) }
    }

    /// Returns the filter that accepts only this match info.
    #[inline]
    pub const fn exactly(match_info: u64) -> Self {
        Self { match_info, mask: u64::MAX }
    }

    /// Returns the match info.
    #[inline]
    pub const fn match_info(self) -> u64 {
        self.match_info
    }

    /// Returns the mask.
    #[inline]
    pub const fn mask(self) -> u64 {
        self.mask
    }

    /// Returns true if the filter compares all bits.
    #[inline]
    pub const fn is_exact(self) -> bool {
        self.mask == u64::MAX
    }

    /// Returns true if the filter accepts this match info.
    #[inline]
    pub const fn accepts(self, match_info: u64) -> bool {
        match_info & self.mask == self.match_info
    }
}

/// The bits of the match info that every receive must compare, chosen when an endpoint is opened: its context id.
///
/// MX uses context ids to speed up matching; they do not change its results. This engine finds receives by hash under
/// any mask, so it gains nothing from them and only checks them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextIdBits {
    bits: u8,
    shift: u8,
}

/// Context id bits that do not fit into a match info.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bits} bits of context id, shifted by {shift}: at most 16 bits, within 64")]
pub struct BadContextIdBits {
    /// The number of bits.
    pub bits: u8,
    /// The position of the lowest bit.
    pub shift: u8,
}

impl ContextIdBits {
    /// No context ids.
    pub const NONE: Self = Self { bits: 0, shift: 0 };

    /// The maximum number of bits.
    pub const BITS_MAX: u8 = 16;

    /// Creates a context id of `bits` bits, from bit `shift` on.
    pub const fn new(bits: u8, shift: u8) -> Result<Self, BadContextIdBits> {
        if bits <= Self::BITS_MAX && shift <= 64 - bits {
            Ok(Self { bits, shift })
        } else {
            Err(BadContextIdBits { bits, shift })
        }
    }

    /// Returns the mask of the context id in a match info.
    #[inline]
    pub const fn mask(self) -> u64 {
        // Without bits, the shift has no meaning and may be 64.
        if self.bits == 0 { 0 } else { ((1 << self.bits) - 1) << self.shift }
    }

    /// Returns true if this mask covers the whole context id.
    #[inline]
    pub const fn is_covered_by(self, mask: u64) -> bool {
        mask & self.mask() == self.mask()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_rejects_match_bits_outside_its_mask() {
        assert_eq!(Filter::new(0x11, 0x0f), Err(InvalidMask { match_info: 0x11, mask: 0x0f }));
        let filter = Filter::new(0x01, 0x0f).unwrap();
        assert!(filter.accepts(0xf1) && !filter.accepts(0xf2));
        assert!(Filter::ANY.accepts(u64::MAX));
        assert!(Filter::exactly(7).accepts(7) && !Filter::exactly(7).accepts(7 | 1 << 63));
    }

    #[test]
    fn context_ids_fit_into_a_match_info() {
        for (bits, shift) in [(0, 0), (0, 64), (1, 63), (16, 48), (16, 0)] {
            assert!(ContextIdBits::new(bits, shift).is_ok(), "{bits} {shift}");
        }
        for (bits, shift) in [(17, 0), (1, 64), (16, 49), (0, 65), (255, 255)] {
            assert_eq!(ContextIdBits::new(bits, shift), Err(BadContextIdBits { bits, shift }));
        }
    }

    #[test]
    fn a_mask_names_the_context_id_in_full_or_not() {
        let contexts = ContextIdBits::new(16, 48).unwrap();
        assert_eq!(contexts.mask(), 0xffff << 48);
        assert!(contexts.is_covered_by(u64::MAX) && contexts.is_covered_by(0xffff << 48));
        assert!(!contexts.is_covered_by(0x7fff << 48) && !contexts.is_covered_by(0));
        assert_eq!(ContextIdBits::new(1, 63).unwrap().mask(), 1 << 63);
        assert!(ContextIdBits::NONE.is_covered_by(0) && ContextIdBits::new(0, 64).unwrap().is_covered_by(0));
    }
}
