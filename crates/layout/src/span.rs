//! Ranges inside a region. Only the [`RegionSize`] of the region can make a [`Span`], so a span needs no further check.

/// Bytes from the start of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Offset(pub u64);

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Len(pub u64);

/// The size of a region in bytes, agreed on when it was offered and kept in our own memory ever since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RegionSize(pub u64);

/// Bytes that are known to lie inside the region with the size that made this span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    start: u64,
    len: u64,
}

/// A place that a peer named does not lie inside the region it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} bytes at offset {} do not lie inside a region of {} bytes", len.0, start.0, size.0)]
pub struct OutsideRegion {
    /// First byte named.
    pub start: Offset,
    /// How many bytes.
    pub len: Len,
    /// The size of the region.
    pub size: RegionSize,
}

impl RegionSize {
    /// The only way to a [`Span`].
    pub const fn span(self, start: Offset, len: Len) -> Result<Span, OutsideRegion> {
        match start.0.checked_add(len.0) {
            Some(end) if end <= self.0 => Ok(Span { start: start.0, len: len.0 }),
            _ => Err(OutsideRegion { start, len, size: self }),
        }
    }
}

impl Span {
    /// First byte, from the start of the region.
    pub const fn start(self) -> u64 {
        self.start
    }

    /// Bytes.
    pub const fn len(self) -> u64 {
        self.len
    }

    /// True for a span of no bytes.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn span_accepts_what_lies_inside_and_nothing_else() {
        let size = RegionSize(100);
        assert_eq!(size.span(Offset(0), Len(100)).map(Span::len), Ok(100));
        assert_eq!(size.span(Offset(100), Len(0)).map(Span::start), Ok(100));
        assert_eq!([0, 1].map(|len| size.span(Offset(50), Len(len)).unwrap().is_empty()), [true, false]);
        assert!(size.span(Offset(1), Len(100)).is_err());
        assert!(size.span(Offset(101), Len(0)).is_err());
        assert!(size.span(Offset(u64::MAX), Len(2)).is_err());
    }
}
