//! The encoding of values in control messages: little-endian, without padding. A mark precedes each optional value.
//!
//! A [`Field`] can `emit` itself, `parse` itself from a [`FieldReader`], and `describe` itself for the documentation. `parse` is the only
//! way from bytes to values, so a value needs no further check.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::name::InvalidText;

/// The number of bytes of a field on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Width {
    /// The minimum.
    pub min: usize,
    /// The maximum.
    pub max: usize,
}

impl Width {
    /// Returns the width of a field that always has this number of bytes.
    pub const fn fixed(bytes: usize) -> Self {
        Self { min: bytes, max: bytes }
    }

    /// Returns the width of this field followed by another one.
    pub const fn then(self, next: Self) -> Self {
        Self { min: self.min + next.min, max: self.max + next.max }
    }
}

/// A value in a control message.
pub trait Field: Sized {
    /// The number of bytes of the value.
    const WIDTH: Width;

    /// Describes the type for the documentation.
    fn describe() -> String;

    /// Appends the bytes of the value.
    fn emit(&self, out: &mut Vec<u8>);

    /// Parses the value from the next bytes.
    fn parse(from: &mut FieldReader<'_>) -> Result<Self, MalformedControl>;
}

/// A field that tells whether optional descriptors are present.
pub(crate) trait Flag {
    /// Returns true if they are present.
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

/// The error of a control message that no correct library or daemon sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedControl {
    /// The packet ends inside a field.
    #[error("the message ends {missing} bytes too early")]
    Short {
        /// The number of missing bytes.
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
    /// The kind does not exist.
    #[error("message kind {0} does not exist")]
    Kind(u16),
    /// Only the other side sends messages of this kind.
    #[error("message kind {0} goes the other way")]
    WrongDirection(u16),
    /// More or fewer file descriptors than the message asks for.
    #[error("message kind {kind} came with {have} file descriptors, it takes {want}")]
    Descriptors {
        /// The message's kind.
        kind: u16,
        /// The number of descriptors that were received.
        have: usize,
        /// The number of descriptors of such a message.
        want: usize,
    },
    /// The handshake does not begin with the four letters.
    #[error("the handshake begins with {0:02x?}, not with ISTH")]
    Magic([u8; 4]),
    /// The version of the library is below the oldest version that it claims to support.
    #[error("minor version {minor} is below the oldest, {oldest}")]
    Versions {
        /// The minor version of the library.
        minor: u16,
        /// The oldest minor version that the library claims to support.
        oldest: u16,
    },
    /// An end of a stream other than 0 and 1.
    #[error("{0} is no end of a stream")]
    StreamEnd(u8),
    /// A truth value other than 0 and 1.
    #[error("{0} is no truth value")]
    Bool(u8),
    /// The mark before an optional field is neither 0 nor 1.
    #[error("{0} does not say whether an optional field is there")]
    Option(u8),
    /// A name is invalid.
    #[error("name: {0}")]
    Name(InvalidText),
    /// A text is invalid.
    #[error("text: {0}")]
    Text(InvalidText),
    /// More entries than the list may have.
    #[error("a list of {have} entries where {max} are allowed")]
    List {
        /// The number in the message.
        have: usize,
        /// The maximum.
        max: usize,
    },
    /// More bytes than the field may have.
    #[error("a field of {have} bytes where {max} are allowed")]
    Bytes {
        /// The number in the message.
        have: usize,
        /// The maximum.
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
    /// The topic does not exist.
    #[error("topic {0} does not exist")]
    Topic(u8),
}

/// The unread rest of a packet.
#[derive(Debug)]
pub struct FieldReader<'a> {
    rest: &'a [u8],
}

impl<'a> FieldReader<'a> {
    /// Creates a reader of a packet.
    pub fn new(packet: &'a [u8]) -> Self {
        Self { rest: packet }
    }

    /// Takes `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], MalformedControl> {
        let short = MalformedControl::Short { missing: count.saturating_sub(self.rest.len()) };
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(short)?;
        self.rest = rest;
        Ok(taken)
    }

    /// Takes `N` bytes as an array.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], MalformedControl> {
        let short = MalformedControl::Short { missing: N.saturating_sub(self.rest.len()) };
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(short)?;
        self.rest = rest;
        Ok(*taken)
    }

    /// Takes all remaining bytes.
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// Returns an error if bytes remain.
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

/// A list of at most `MAX` values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List<T, const MAX: usize>(Vec<T>);

impl<T, const MAX: usize> List<T, MAX> {
    /// Creates the field. None if there are more than `MAX`.
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
        format!("u16 count (at most {MAX}), then the values: {}", T::describe())
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

/// A field of at most `MAX` bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundedBytes<const MAX: usize>(Vec<u8>);

impl<const MAX: usize> BoundedBytes<MAX> {
    /// Creates the field. None if there are more than `MAX`.
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
        format!("u16 length (at most {MAX}), then the bytes")
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
