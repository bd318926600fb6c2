//! The reasons why the parser drops a frame, and why a packet cannot be sent.

use super::PacketType;

macro_rules! malformed {
    ($($(#[$doc:meta])* $variant:ident $body:tt $reason:literal $text:literal,)*) => {
        /// A frame that is dropped without an answer. Each variant is a reason to count under.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
        pub enum Malformed {
            $($(#[$doc])* #[error($text)] $variant $body,)*
        }

        impl Malformed {
            /// The reasons, in the order of [`Malformed::index`].
            pub const REASONS: &[&str] = &[$($reason),*];

            /// Which of [`Malformed::REASONS`] it is: counters stand in an array.
            pub const fn index(&self) -> usize {
                #[repr(usize)]
                enum Index { $($variant),* }
                match self {
                    $(Self::$variant { .. } => Index::$variant as usize,)*
                }
            }
        }
    };
}

malformed! {
    /// The frame ends before its header does.
    Short {
        /// Bytes of the frame.
        have: usize,
        /// Bytes up to the end of its header.
        need: usize,
    } "short" "a frame of {have} bytes; its header alone has {need}",
    /// Of another protocol, or of a network set up in another way.
    Ethertype (u16) "ethertype" "ethertype {0:#06x} is not this network's",
    /// Not one of the types, or one of the two that are never sent.
    Type (u8) "type" "packet type {0} does not exist",
    /// A type that exists and that we do not implement, as Open-MX does not.
    UnsupportedType (PacketType) "unsupported_type" "packets of type {0:?} are not spoken here",
    /// The frame declares more bytes than follow its header.
    DataMissing {
        /// Bytes that it declares.
        declared: u32,
        /// Bytes that are there, padding included.
        have: usize,
    } "data_missing" "{declared} bytes are declared and {have} are there",
    /// The frame declares more bytes than its type may have.
    TooLong {
        /// Its type.
        kind: PacketType,
        /// Bytes that it declares.
        declared: u32,
        /// Bytes that there may be.
        most: u32,
    } "too_long" "{kind:?} with {declared} bytes, of which there are at most {most}",
    /// The frame declares fewer bytes than its type must have.
    TooShort {
        /// Its type.
        kind: PacketType,
        /// Bytes that it declares.
        declared: u32,
        /// Bytes that there must be.
        least: u32,
    } "too_short" "{kind:?} with {declared} bytes, of which there are at least {least}",
    /// A fragment that does not lie in its message.
    FragmentOutside {
        /// Where it begins.
        offset: u64,
        /// Its bytes.
        bytes: u32,
        /// Bytes of the message.
        length: u32,
    } "fragment_outside" "a fragment of {bytes} bytes at {offset} of a message of {length}",
    /// A TRUC of a kind that is not acknowledgement.
    TrucType (u8) "truc_type" "TRUC of kind {0:#04x}",
    /// The two copies of the session in a TRUC differ.
    TrucSessions {
        /// The one of the header.
        header: u32,
        /// The one of the acknowledgement.
        inner: u32,
    } "truc_sessions" "TRUC for session {header:#010x} with an acknowledgement for {inner:#010x}",
    /// A CONNECT that is neither request nor reply.
    ConnectKind (u8) "connect_kind" "CONNECT with is_reply {0}",
    /// A CONNECT reply with an outcome that does not exist.
    ConnectStatus (u8) "connect_status" "CONNECT reply with status {0}",
    /// A negative answer for no reason, or for none that exists.
    NackType (u8) "nack_type" "negative answer of type {0}",
    /// An announcement of a board with an address of more than 48 bits.
    AnnouncedNic (u64) "announced_nic" "announcement of board {0:#018x}",
}

impl Malformed {
    /// Returns the name of this reason's counter.
    pub const fn reason(&self) -> &'static str {
        Self::REASONS[self.index()]
    }
}

/// A packet that cannot be said. Nothing of it is sent: this is a mistake of ours, or of what we were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmitError {
    /// The buffer is too small.
    #[error("a packet of {need} bytes into a buffer of {have}")]
    Room {
        /// Bytes that are to be written.
        need: usize,
        /// Bytes of the buffer.
        have: usize,
    },
    /// A value that the field has no room for in this dialect, or that a receiver would refuse.
    #[error("{field} of {value}, which is at most {most}")]
    Field {
        /// As the specification calls it.
        field: &'static str,
        /// The value that does not fit.
        value: u64,
        /// The highest value of the field.
        most: u64,
    },
}

/// Narrows a value to its field.
#[inline]
pub(super) fn narrow<T: TryFrom<u64> + Into<u64>>(field: &'static str, value: u64, most: T) -> Result<T, EmitError> {
    let most: u64 = most.into();
    match T::try_from(value) {
        Ok(narrow) if value <= most => Ok(narrow),
        _ => Err(EmitError::Field { field, value, most }),
    }
}
