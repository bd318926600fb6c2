//! Why something was refused, took the slower path, broke, or came to an end: one table, and everything that names a reason
//! (the enum, control messages, logs, JSON, metric labels, `docs/operate/reasons.md`) comes from it.
//!
//! A code is never used for something else and never taken out; none of them means "unknown". The reasons stand in `reason/table.rs`.

use core::fmt;

/// What kind of event a reason explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReasonKind {
    /// Something that was asked for is not done.
    Refusal,
    /// It is done, by a slower path.
    Fallback,
    /// Somebody broke the contract: what they shared is closed, and counted.
    Fault,
    /// Something that was there is over.
    Ended,
}

impl ReasonKind {
    /// As it stands in JSON and in the documentation.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Refusal => "refusal",
            Self::Fallback => "fallback",
            Self::Fault => "fault",
            Self::Ended => "ended",
        }
    }
}

macro_rules! reasons {
    ($(
        $(#[doc = $group:literal])?
        $code:literal $variant:ident, $name:literal, $kind:ident:
        $summary:literal; $remedy:literal;
    )*) => {
        /// A reason. [`Reason::summary`] says what happened and [`Reason::remedy`] what would change it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Reason {
            $( #[doc = concat!($summary, ".")] $variant = $code, )*
        }

        impl Reason {
            /// All of them, in the order of their codes.
            pub const ALL: &'static [Self] = &[$( Self::$variant, )*];

            /// None for a code that the table does not have.
            pub const fn from_code(code: u16) -> Option<Self> {
                match code {
                    $( $code => Some(Self::$variant), )*
                    _ => None,
                }
            }

            /// The identifier: in JSON, as metric label, and as anchor in the documentation.
            pub const fn name(self) -> &'static str {
                match self {
                    $( Self::$variant => $name, )*
                }
            }

            /// What kind of event it explains.
            pub const fn kind(self) -> ReasonKind {
                match self {
                    $( Self::$variant => ReasonKind::$kind, )*
                }
            }

            /// What happened, as part of a sentence.
            pub const fn summary(self) -> &'static str {
                match self {
                    $( Self::$variant => $summary, )*
                }
            }

            /// What a person can do about it, as a sentence.
            pub const fn remedy(self) -> &'static str {
                match self {
                    $( Self::$variant => $remedy, )*
                }
            }
        }

        /// Reasons that begin a group of the documentation, with the group's heading.
        #[cfg(test)]
        pub(super) const GROUPS: &[(u16, &str)] = &[$( $( ($code, $group), )? )*];
    };
}

mod table;
pub use table::Reason;

impl Reason {
    /// The code, in control messages and in shared memory.
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// The reason with this identifier.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.name() == name)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests;
