//! Reading and writing numbers at fixed offsets of a header. An offset beyond the header does not compile.

use super::Malformed;

/// The bytes of a header.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a, const N: usize>(&'a [u8; N]);

impl<'a, const N: usize> Fields<'a, N> {
    /// Splits the header at the start of `bytes` from the rest. `at` is the offset of `bytes` in the frame.
    #[inline]
    pub(super) fn split(bytes: &'a [u8], at: usize) -> Result<(Self, &'a [u8]), Malformed> {
        match bytes.split_first_chunk() {
            Some((head, rest)) => Ok((Self(head), rest)),
            None => Err(Malformed::Short { have: at + bytes.len(), need: at + N }),
        }
    }

    #[inline]
    pub(super) fn bytes<const AT: usize, const W: usize>(self) -> [u8; W] {
        const { assert!(AT + W <= N) };
        core::array::from_fn(|index| self.0[AT + index])
    }

    #[inline]
    pub(super) fn u8<const AT: usize>(self) -> u8 {
        u8::from_be_bytes(self.bytes::<AT, 1>())
    }

    #[inline]
    pub(super) fn u16<const AT: usize>(self) -> u16 {
        u16::from_be_bytes(self.bytes::<AT, 2>())
    }

    #[inline]
    pub(super) fn u32<const AT: usize>(self) -> u32 {
        u32::from_be_bytes(self.bytes::<AT, 4>())
    }

    #[inline]
    pub(super) fn u64<const AT: usize>(self) -> u64 {
        u64::from_be_bytes(self.bytes::<AT, 8>())
    }
}

/// A header under construction. Fields that are not written stay zero.
pub(super) struct FieldsMut<const N: usize>([u8; N]);

impl<const N: usize> FieldsMut<N> {
    pub(super) const fn zeroed() -> Self {
        Self([0; N])
    }

    #[must_use]
    #[inline]
    pub(super) fn bytes<const AT: usize, const W: usize>(mut self, bytes: [u8; W]) -> Self {
        const { assert!(AT + W <= N) };
        self.0[AT..AT + W].copy_from_slice(&bytes);
        self
    }

    #[must_use]
    #[inline]
    pub(super) fn u8<const AT: usize>(self, value: u8) -> Self {
        self.bytes::<AT, 1>(value.to_be_bytes())
    }

    #[must_use]
    #[inline]
    pub(super) fn u16<const AT: usize>(self, value: u16) -> Self {
        self.bytes::<AT, 2>(value.to_be_bytes())
    }

    #[must_use]
    #[inline]
    pub(super) fn u32<const AT: usize>(self, value: u32) -> Self {
        self.bytes::<AT, 4>(value.to_be_bytes())
    }

    #[must_use]
    #[inline]
    pub(super) fn u64<const AT: usize>(self, value: u64) -> Self {
        self.bytes::<AT, 8>(value.to_be_bytes())
    }

    /// Returns the complete header.
    #[inline]
    pub(super) fn finish(self) -> [u8; N] {
        self.0
    }
}
