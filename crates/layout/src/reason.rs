//! The reasons for refusals, slower paths, faults and ends, in one table. Everything that names a reason comes from it: the enum, control
//! messages, logs, JSON, metric labels, `docs/operate/reasons.md`.
//!
//! A code keeps its meaning and is never removed. No code means "unknown". The table is `reason/table.rs`.

use core::fmt;

/// The kind of event that a reason explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReasonKind {
    /// A request is not carried out.
    Refusal,
    /// A request is carried out by a slower path.
    Fallback,
    /// A peer violated the protocol. Its shared memory is closed, and the fault is counted.
    Fault,
    /// A connection, a channel or a domain has ended.
    Ended,
}

impl ReasonKind {
    /// Returns the name, as in JSON and in the documentation.
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
            /// All reasons, in the order of their codes.
            pub const ALL: &'static [Self] = &[$( Self::$variant, )*];

            /// Returns the reason with this code. None if the table does not have the code.
            pub const fn from_code(code: u16) -> Option<Self> {
                match code {
                    $( $code => Some(Self::$variant), )*
                    _ => None,
                }
            }

            /// Returns the identifier, as in JSON, metric labels, and anchors of the documentation.
            pub const fn name(self) -> &'static str {
                match self {
                    $( Self::$variant => $name, )*
                }
            }

            /// Returns the kind of event that the reason explains.
            pub const fn kind(self) -> ReasonKind {
                match self {
                    $( Self::$variant => ReasonKind::$kind, )*
                }
            }

            /// Returns a description of the event, as part of a sentence.
            pub const fn summary(self) -> &'static str {
                match self {
                    $( Self::$variant => $summary, )*
                }
            }

            /// Returns the remedy, as a sentence.
            pub const fn remedy(self) -> &'static str {
                match self {
                    $( Self::$variant => $remedy, )*
                }
            }
        }

        /// The reasons that begin a group of the documentation, with the heading of the group.
        #[cfg(test)]
        pub(super) const GROUPS: &[(u16, &str)] = &[$( $( ($code, $group), )? )*];
    };
}

mod table;
pub use table::Reason;

impl Reason {
    /// Returns the code, as in control messages and in shared memory.
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// Returns the reason with this identifier.
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
