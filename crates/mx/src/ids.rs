//! The identifiers that the engine returns. Each fits into 48 bits and is never 0, so that a handle has room for other
//! bits.

use crate::slab::SlabKey;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub(crate) SlabKey);

        impl $name {
            /// Returns the identifier as a number below 2^48, never 0.
            #[inline]
            pub const fn to_bits(self) -> u64 {
                self.0.to_bits()
            }

            /// Converts a number to an identifier. Returns `None` for 0. Any other number may name no object.
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
    /// A partner: another endpoint, or this one. After a disconnect the identifier is invalid, even if the endpoint is
    /// connected again.
    PartnerId
}

id! {
    /// A send, receive or connect, from its post until it is consumed or cancelled, or has ended after it was
    /// forgotten.
    RequestId
}

id! {
    /// An unexpected message, until a receive takes it or it is dropped.
    MessageId
}
