//! How values stand in a control message: little-endian, one after the other, no padding, nothing optional that is not marked.
//!
//! A [`Field`] knows how to `emit` itself, how to `parse` itself out of a [`FieldReader`], and how the documentation names it.
//! `parse` is the only way from bytes to values, so whoever holds a value need not check it again.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::name::InvalidText;

/// Bytes that a field takes on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Width {
    /// At least.
    pub min: usize,
    /// At most.
    pub max: usize,
}

impl Width {
    /// Always the same.
    pub const fn fixed(bytes: usize) -> Self {
        Self { min: bytes, max: bytes }
    }

    /// This, and that after it.
    pub const fn then(self, next: Self) -> Self {
        Self { min: self.min + next.min, max: self.max + next.max }
    }
}

/// A value that can stand in a control message.
pub trait Field: Sized {
    /// Bytes it takes.
    const WIDTH: Width;

    /// As the documentation calls it.
    fn describe() -> String;

    /// Appends it.
    fn emit(&self, out: &mut Vec<u8>);

    /// Takes it from the front.
    fn parse(from: &mut FieldReader<'_>) -> Result<Self, MalformedControl>;
}

/// A field that says whether something else is there.
pub(super) trait Flag {
    /// True where it is there.
    fn is_set(&self) -> bool;
}

impl Flag for bool {
    fn is_set(&self) -> bool {
        *self
    }
}

impl<T> Flag for Option<T> {
    fn is_set(&self) -> bool {
        self.is_some()
    }
}

/// A control message that no correct library or daemon writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedControl {
    /// The packet ends inside a field.
    #[error("the message ends {missing} bytes too early")]
    Short {
        /// Bytes that were still to come.
        missing: usize,
    },
    /// The packet goes on after its last field.
    #[error("{0} bytes follow the message")]
    Trailing(usize),
    /// The packet is larger than any message.
    #[error("a message of {0} bytes is larger than any")]
    TooLong(usize),
    /// The reserved half-word of the header is not zero.
    #[error("the reserved bits are {0:#x}, not zero")]
    Reserved(u16),
    /// Not one of the kinds.
    #[error("message kind {0} does not exist")]
    Kind(u16),
    /// A kind that only the other side sends.
    #[error("message kind {0} goes the other way")]
    WrongDirection(u16),
    /// More or fewer file descriptors than the message asks for.
    #[error("message kind {kind} came with {have} file descriptors, it takes {want}")]
    Descriptors {
        /// The message's kind.
        kind: u16,
        /// What came with it.
        have: usize,
        /// What belongs to it.
        want: usize,
    },
    /// The handshake does not begin with our four letters.
    #[error("the handshake begins with {0:02x?}, not with ISTH")]
    Magic([u8; 4]),
    /// A library that claims to be older than the oldest it can speak.
    #[error("minor version {minor} is below the oldest, {oldest}")]
    Versions {
        /// What it is.
        minor: u16,
        /// What it says it can go back to.
        oldest: u16,
    },
    /// A truth value other than 0 and 1.
    #[error("{0} is no truth value")]
    Bool(u8),
    /// The mark before an optional field is neither 0 nor 1.
    #[error("{0} does not say whether an optional field is there")]
    Option(u8),
    /// A name that cannot be one.
    #[error("name: {0}")]
    Name(InvalidText),
    /// A text that cannot be one.
    #[error("text: {0}")]
    Text(InvalidText),
    /// More entries than the list may have.
    #[error("a list of {have} entries where {max} are allowed")]
    List {
        /// What it said.
        have: usize,
        /// Its maximum.
        max: usize,
    },
    /// More bytes than the field may have.
    #[error("a field of {have} bytes where {max} are allowed")]
    Bytes {
        /// What it said.
        have: usize,
        /// Its maximum.
        max: usize,
    },
    /// Domain number zero.
    #[error("domain number zero names no domain")]
    Domain,
    /// Region number zero.
    #[error("region number zero names nothing")]
    Region,
    /// An endpoint number at or above the limit.
    #[error("endpoint number {0} is beyond the limit")]
    Endpoint(u8),
    /// A ready map number at or above the limit.
    #[error("ready map number {0} is beyond the limit")]
    ReadyMap(u8),
    /// A bit that no ready map has.
    #[error("bit {0} is beyond the ready map")]
    ReadyBit(u16),
    /// Neither of the two directions.
    #[error("direction {0} does not exist")]
    Direction(u8),
    /// A slab that is no power of two or outside the limits.
    #[error("a slab cannot have {0} bytes")]
    SlabSize(u32),
    /// A code that the table of reasons does not have.
    #[error("reason {0} does not exist")]
    Reason(u16),
    /// Not one of the topics.
    #[error("topic {0} does not exist")]
    Topic(u8),
}

/// What is left of a packet.
#[derive(Debug)]
pub struct FieldReader<'a> {
    rest: &'a [u8],
}

impl<'a> FieldReader<'a> {
    /// Begins at the front of `packet`.
    pub fn new(packet: &'a [u8]) -> Self {
        Self { rest: packet }
    }

    /// Takes so many bytes.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], MalformedControl> {
        let short = MalformedControl::Short { missing: count.saturating_sub(self.rest.len()) };
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(short)?;
        self.rest = rest;
        Ok(taken)
    }

    /// Takes so many bytes as an array.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], MalformedControl> {
        let short = MalformedControl::Short { missing: N.saturating_sub(self.rest.len()) };
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(short)?;
        self.rest = rest;
        Ok(*taken)
    }

    /// Takes all that is left.
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// Refuses anything that is left.
    pub fn end(self) -> Result<(), MalformedControl> {
        if self.rest.is_empty() { Ok(()) } else { Err(MalformedControl::Trailing(self.rest.len())) }
    }
}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl Field for $number {
            const WIDTH: Width = Width::fixed(size_of::<$number>());

            fn describe() -> String {
                String::from(stringify!($number))
            }

            fn emit(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn parse(from: &mut FieldReader<'_>) -> Result<Self, MalformedControl> {
                from.array().map(Self::from_le_bytes)
            }
        }
    )*};
}
numbers!(u8 u16 u32 u64);

impl Field for bool {
    const WIDTH: Width = Width::fixed(1);

    fn describe() -> String {
        String::from("bool: 0 or 1")
    }

    fn emit(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn parse(from: &mut FieldReader<'_>) -> Result<Self, MalformedControl> {
        match u8::parse(from)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(MalformedControl::Bool(other)),
        }
    }
}

impl<T: Field> Field for Option<T> {
    const WIDTH: Width = Width { min: 1, max: 1 + T::WIDTH.max };

    fn describe() -> String {
        format!("u8 (0: not there, 1: there), then {}", T::describe())
    }

    fn emit(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.is_some()));
        if let Some(value) = self {
            value.emit(out);
        }
    }

    fn parse(from: &mut FieldReader<'_>) -> Result<Self, MalformedControl> {
        match u8::parse(from)? {
            0 => Ok(None),
            1 => T::parse(from).map(Some),
            other => Err(MalformedControl::Option(other)),
        }
    }
}

/// At most `MAX` values of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List<T, const MAX: usize>(Vec<T>);

impl<T, const MAX: usize> List<T, MAX> {
    /// None where there are too many.
    pub fn new(values: Vec<T>) -> Option<Self> {
        (values.len() <= MAX).then_some(Self(values))
    }
}

impl<T, const MAX: usize> core::ops::Deref for List<T, MAX> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: Field, const MAX: usize> Field for List<T, MAX> {
    const WIDTH: Width = Width { min: 2, max: 2 + MAX * T::WIDTH.max };

    fn describe() -> String {
        format!("u16 count (at most {MAX}), then so many: {}", T::describe())
    }

    fn emit(&self, out: &mut Vec<u8>) {
        (self.0.len() as u16).emit(out);
        for value in &self.0 {
            value.emit(out);
        }
    }

    fn parse(from: &mut FieldReader<'_>) -> Result<Self, MalformedControl> {
        let have = usize::from(u16::parse(from)?);
        if have > MAX {
            return Err(MalformedControl::List { have, max: MAX });
        }
        let mut values = Vec::new();
        for _ in 0..have {
            values.push(T::parse(from)?);
        }
        Ok(Self(values))
    }
}

/// At most `MAX` bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundedBytes<const MAX: usize>(Vec<u8>);

impl<const MAX: usize> BoundedBytes<MAX> {
    /// None where there are too many.
    pub fn new(bytes: Vec<u8>) -> Option<Self> {
        (bytes.len() <= MAX).then_some(Self(bytes))
    }
}

impl<const MAX: usize> core::ops::Deref for BoundedBytes<MAX> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl<const MAX: usize> Field for BoundedBytes<MAX> {
    const WIDTH: Width = Width { min: 2, max: 2 + MAX };

    fn describe() -> String {
        format!("u16 length (at most {MAX}), then so many bytes")
    }

    fn emit(&self, out: &mut Vec<u8>) {
        (self.0.len() as u16).emit(out);
        out.extend_from_slice(&self.0);
    }

    fn parse(from: &mut FieldReader<'_>) -> Result<Self, MalformedControl> {
        let have = usize::from(u16::parse(from)?);
        if have > MAX {
            return Err(MalformedControl::Bytes { have, max: MAX });
        }
        Ok(Self(from.bytes(have)?.to_vec()))
    }
}
