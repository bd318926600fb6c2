//! The reasons why the parser drops a frame, and why a packet cannot be sent.

use super::PacketType;

macro_rules! malformed {
    ($($(#[$doc:meta])* $variant:ident $body:tt $reason:literal $text:literal,)*) => {
        /// The reason why a frame is dropped without a reply. Each variant has a counter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
        pub enum Malformed {
            $($(#[$doc])* #[error($text)] $variant $body,)*
        }

        impl Malformed {
            /// The reasons, in the order of [`Malformed::index`].
            pub const REASONS: &[&str] = &[$($reason),*];

            /// Returns the index of the reason in [`Malformed::REASONS`], for arrays of counters.
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
        /// The size of the frame in bytes.
        have: usize,
        /// The end of the header in bytes.
        need: usize,
    } "short" "a frame of {have} bytes; its header alone has {need}",
    /// The frame is of another protocol, or of a network with other settings.
    Ethertype (u16) "ethertype" "ethertype {0:#06x} is not this network's",
    /// The type does not exist, or is one of the two that are never sent.
    Type (u8) "type" "packet type {0} does not exist",
    /// The type exists, but neither this implementation nor Open-MX supports it.
    UnsupportedType (PacketType) "unsupported_type" "packets of type {0:?} are not spoken here",
    /// The frame declares more bytes than follow its header.
    DataMissing {
        /// The declared number of bytes.
        declared: u32,
        /// The available bytes, including padding.
        have: usize,
    } "data_missing" "{declared} bytes are declared and {have} are there",
    /// The frame declares more bytes than its type may have.
    TooLong {
        /// The type of the packet.
        kind: PacketType,
        /// The declared number of bytes.
        declared: u32,
        /// The maximum.
        most: u32,
    } "too_long" "{kind:?} with {declared} bytes, of which there are at most {most}",
    /// The frame declares fewer bytes than its type must have.
    TooShort {
        /// The type of the packet.
        kind: PacketType,
        /// The declared number of bytes.
        declared: u32,
        /// The minimum.
        least: u32,
    } "too_short" "{kind:?} with {declared} bytes, of which there are at least {least}",
    /// The fragment exceeds its message.
    FragmentOutside {
        /// The offset of the fragment.
        offset: u64,
        /// The length of the fragment in bytes.
        bytes: u32,
        /// The length of the message in bytes.
        length: u32,
    } "fragment_outside" "a fragment of {bytes} bytes at {offset} of a message of {length}",
    /// The kind of the TRUC is not acknowledgement.
    TrucType (u8) "truc_type" "TRUC of kind {0:#04x}",
    /// The two copies of the session in a TRUC differ.
    TrucSessions {
        /// The session in the header.
        header: u32,
        /// The session in the acknowledgement.
        inner: u32,
    } "truc_sessions" "TRUC for session {header:#010x} with an acknowledgement for {inner:#010x}",
    /// The CONNECT is neither a request nor a reply.
    ConnectKind (u8) "connect_kind" "CONNECT with is_reply {0}",
    /// The outcome in the CONNECT reply does not exist.
    ConnectStatus (u8) "connect_status" "CONNECT reply with status {0}",
    /// The reason in the negative acknowledgement does not exist.
    NackType (u8) "nack_type" "negative answer of type {0}",
    /// The announced address has more than 48 bits.
    AnnouncedNic (u64) "announced_nic" "announcement of board {0:#018x}",
}

impl Malformed {
    /// Returns the name of this reason's counter.
    pub const fn reason(&self) -> &'static str {
        Self::REASONS[self.index()]
    }
}

/// The reason why a packet cannot be emitted. This is an error of this program, or of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmitError {
    /// The buffer is too small.
    #[error("a packet of {need} bytes into a buffer of {have}")]
    Room {
        /// The number of bytes to write.
        need: usize,
        /// The size of the buffer in bytes.
        have: usize,
    },
    /// The value does not fit into the field in this dialect, or receivers would refuse it.
    #[error("{field} of {value}, which is at most {most}")]
    Field {
        /// The specification's name of the field.
        field: &'static str,
        /// The value.
        value: u64,
        /// The highest value of the field.
        most: u64,
    },
}

/// Converts a value to the type of its field.
#[inline]
pub(super) fn narrow<T: TryFrom<u64> + Into<u64>>(field: &'static str, value: u64, most: T) -> Result<T, EmitError> {
    let most: u64 = most.into();
    match T::try_from(value) {
        Ok(narrow) if value <= most => Ok(narrow),
        _ => Err(EmitError::Field { field, value, most }),
    }
}
