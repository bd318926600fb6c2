//! How a message is declared: once, with its number, its fields and what travels with it. From that come the struct, `emit`,
//! `parse` and the row of the documentation.

use alloc::string::String;

use super::codec::Width;

/// A field, for the documentation.
#[derive(Clone, Copy, Debug)]
pub struct FieldInfo {
    /// Its name.
    pub name: &'static str,
    /// What it means.
    pub doc: &'static str,
    /// How it stands in the message.
    pub describe: fn() -> String,
    /// Bytes it takes.
    pub width: Width,
}

/// File descriptors that go with a message only if one of its fields is set.
#[derive(Clone, Copy, Debug)]
pub struct OptionalDescriptors {
    /// The field.
    pub field: &'static str,
    /// What they are.
    pub what: &'static [&'static str],
}

/// A message, for the documentation.
#[derive(Clone, Copy, Debug)]
pub struct MessageInfo {
    /// Its number.
    pub kind: u16,
    /// Its name.
    pub name: &'static str,
    /// What it says.
    pub doc: &'static str,
    /// The minor version that brought it.
    pub since: u16,
    /// What is answered; empty where nothing is.
    pub reply: &'static str,
    /// File descriptors that go with it.
    pub descriptors: &'static [&'static str],
    /// And those that go with it sometimes.
    pub optional: Option<OptionalDescriptors>,
    /// Its fields in order.
    pub fields: &'static [FieldInfo],
    /// Bytes it takes, without the header.
    pub width: Width,
}

/// Declares a struct whose fields stand one after the other.
macro_rules! record {
    ($(#[doc = $doc:literal])* $name:ident { $( $(#[doc = $field_doc:literal])* $field:ident: $type:ty, )* }) => {
        $(#[doc = $doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            $( $(#[doc = $field_doc])* pub $field: $type, )*
        }

        impl $name {
            /// The fields, for the documentation.
            pub const FIELDS: &'static [FieldInfo] = &[
                $( FieldInfo {
                    name: stringify!($field),
                    doc: concat!($($field_doc),*),
                    describe: <$type as Field>::describe,
                    width: <$type as Field>::WIDTH,
                }, )*
            ];
        }

        impl Field for $name {
            const WIDTH: Width = Width::fixed(0)$( .then(<$type as Field>::WIDTH) )*;

            fn describe() -> String {
                String::from(stringify!($name))
            }

            fn emit(&self, _out: &mut Vec<u8>) {
                $( self.$field.emit(_out); )*
            }

            fn parse(_from: &mut FieldReader<'_>) -> Result<Self, MalformedControl> {
                Ok(Self { $( $field: Field::parse(_from)?, )* })
            }
        }
    };
}

/// Declares all messages that go one way.
macro_rules! messages {
    (
        $(#[doc = $way_doc:literal])* $way:ident, the other way $other:ident;
        $(
            $(#[doc = $doc:literal])*
            $kind:literal $name:ident since $since:literal,
            reply $reply:literal,
            descriptors [$($descriptor:literal),*] $( if $flag:ident [$($more:literal),*] )?
            { $($fields:tt)* }
        )*
    ) => {
        $( record! { $(#[doc = $doc])* $name { $($fields)* } } )*

        $(#[doc = $way_doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $way {
            $( #[doc = concat!("See [`", stringify!($name), "`].")] $name($name), )*
        }

        $( impl $name {
            /// The minor version that brought the message.
            pub const SINCE: u16 = $since;
        }

        impl From<$name> for $way {
            fn from(message: $name) -> Self {
                Self::$name(message)
            }
        } )*

        impl $way {
            /// All of them, for the documentation.
            pub const TABLE: &'static [MessageInfo] = &[
                $( MessageInfo {
                    kind: $kind,
                    name: stringify!($name),
                    doc: concat!($($doc),*),
                    since: $since,
                    reply: $reply,
                    descriptors: &[$($descriptor),*],
                    optional: [$( Some(OptionalDescriptors { field: stringify!($flag), what: &[$($more),*] }), )? None][0],
                    fields: $name::FIELDS,
                    width: <$name as Field>::WIDTH,
                }, )*
            ];

            /// The message's number.
            pub const fn kind(&self) -> u16 {
                match self {
                    $( Self::$name(_) => $kind, )*
                }
            }

            /// The message's name, for logs and counters.
            pub const fn name(&self) -> &'static str {
                match self {
                    $( Self::$name(_) => stringify!($name), )*
                }
            }

            /// The minor version that brought the message: it is not sent to who speaks a lower one.
            pub const fn since(&self) -> u16 {
                match self {
                    $( Self::$name(_) => $since, )*
                }
            }

            /// How many file descriptors go with it.
            pub fn descriptors(&self) -> usize {
                match self {
                    $( Self::$name(_message) => {
                        <[&str]>::len(&[$($descriptor),*])
                            $( + if _message.$flag.is_set() { <[&str]>::len(&[$($more),*]) } else { 0 } )?
                    } )*
                }
            }

            /// The packet. `serial` ties a reply to its request.
            pub fn emit(&self, serial: Option<RequestSerial>) -> Vec<u8> {
                let mut out = Vec::with_capacity(64);
                Header { kind: self.kind(), serial }.emit(&mut out);
                match self {
                    $( Self::$name(message) => message.emit(&mut out), )*
                }
                out
            }

            /// Reads a packet that came with so many file descriptors.
            pub fn parse(packet: &[u8], descriptors: usize) -> Result<(Option<RequestSerial>, Self), MalformedControl> {
                if packet.len() > CONTROL_BYTES_MAX {
                    return Err(MalformedControl::TooLong(packet.len()));
                }
                let mut from = FieldReader::new(packet);
                let Header { kind, serial } = Header::parse(&mut from)?;
                let message = match kind {
                    $( $kind => Self::$name(Field::parse(&mut from)?), )*
                    _ if $other::TABLE.iter().any(|info| info.kind == kind) => return Err(MalformedControl::WrongDirection(kind)),
                    _ => return Err(MalformedControl::Kind(kind)),
                };
                from.end()?;
                match message.descriptors() {
                    want if want == descriptors => Ok((serial, message)),
                    want => Err(MalformedControl::Descriptors { kind, have: descriptors, want }),
                }
            }
        }
    };
}

pub(super) use {messages, record};
