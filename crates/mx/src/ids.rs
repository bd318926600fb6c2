//! The names that the engine gives out. Each packs into 48 bits, never 0, so that a handle has room for more.

use crate::slab::SlabKey;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub(crate) SlabKey);

        impl $name {
            /// As a number: below 2^48, never 0.
            #[inline]
            pub const fn to_bits(self) -> u64 {
                self.0.to_bits()
            }

            /// Back from a number. None for 0; any other may name nothing, or nothing any more.
            #[inline]
            pub const fn from_bits(bits: u64) -> Option<Self> {
                match SlabKey::from_bits(bits) {
                    Some(id) => Some(Self(id)),
                    None => None,
                }
            }
        }
    };
}

id! {
    /// Another endpoint, or this one, as the destination of sends. After a disconnect the identifier names no partner, even if the
    /// endpoint is connected again.
    PartnerId
}

id! {
    /// A send, receive or connect, from its post until it is consumed, cancelled, or over after it was forgotten.
    RequestId
}

id! {
    /// An unexpected message, until a receive takes it or it is dropped.
    MessageId
}
