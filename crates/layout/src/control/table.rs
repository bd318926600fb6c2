//! The declaration of a message: once, with its number, its fields and its descriptors. The struct, `emit`, `parse` and the row of
//! the documentation are made from it.

use alloc::string::String;

use super::codec::Width;

/// A field, for the documentation.
#[derive(Clone, Copy, Debug)]
pub struct FieldInfo {
    /// The name of the field.
    pub name: &'static str,
    /// The meaning of the field.
    pub doc: &'static str,
    /// The description of its type.
    pub describe: fn() -> String,
    /// The number of bytes of the field.
    pub width: Width,
}

/// The file descriptors that a message carries only if one of its fields is set.
#[derive(Clone, Copy, Debug)]
pub struct OptionalDescriptors {
    /// The name of the field.
    pub field: &'static str,
    /// The descriptors.
    pub what: &'static [&'static str],
}

/// A message, for the documentation.
#[derive(Clone, Copy, Debug)]
pub struct MessageInfo {
    /// The number of the message.
    pub kind: u16,
    /// The name of the message.
    pub name: &'static str,
    /// The meaning of the message.
    pub doc: &'static str,
    /// The minor version that brought it.
    pub since: u16,
    /// The reply; empty if there is none.
    pub reply: &'static str,
    /// The file descriptors that the message always carries.
    pub descriptors: &'static [&'static str],
    /// The file descriptors that the message carries sometimes.
    pub optional: Option<OptionalDescriptors>,
    /// The fields, in order.
    pub fields: &'static [FieldInfo],
    /// The number of bytes of the message, without the header.
    pub width: Width,
}

/// Declares a struct of fields that follow each other on the wire.
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

/// Returns the rows of all tables as one array. `N` is the number of rows.
pub(crate) const fn concat_tables<const N: usize>(tables: &[&[MessageInfo]]) -> [MessageInfo; N] {
    let mut rows = [tables[0][0]; N];
    let (mut table, mut row, mut count) = (0, 0, 0);
    while table < tables.len() {
        if row == tables[table].len() {
            (table, row) = (table + 1, 0);
        } else {
            rows[count] = tables[table][row];
            (row, count) = (row + 1, count + 1);
        }
    }
    assert!(count == N);
    rows
}

/// Declares messages that go one way: as structs, and as one enum. The enum has one more variant for each capability that has messages.
macro_rules! messages {
    (
        $(#[doc = $way_doc:literal])* $way:ident $(, capability $capability:ident: $nested:ident)*;
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
            $( #[doc = concat!("A message of a capability: see [`", stringify!($nested), "`].")] $capability($nested), )*
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

        $( impl From<$nested> for $way {
            fn from(message: $nested) -> Self {
                Self::$capability(message)
            }
        } )*

        impl $way {
            const OWN_TABLE: &'static [MessageInfo] = &[
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

            /// All messages, for the documentation.
            pub const TABLE: &'static [MessageInfo] =
                &concat_tables::<{ Self::OWN_TABLE.len() $( + $nested::TABLE.len() )* }>(&[Self::OWN_TABLE $( , $nested::TABLE )*]);

            /// Returns the number of the message.
            pub const fn kind(&self) -> u16 {
                match self {
                    $( Self::$name(_) => $kind, )*
                    $( Self::$capability(message) => message.kind(), )*
                }
            }

            /// Returns the name of the message, for logs and counters.
            pub const fn name(&self) -> &'static str {
                match self {
                    $( Self::$name(_) => stringify!($name), )*
                    $( Self::$capability(message) => message.name(), )*
                }
            }

            /// Returns the minor version that brought the message. A peer of a lower version does not receive it.
            pub const fn since(&self) -> u16 {
                match self {
                    $( Self::$name(_) => $since, )*
                    $( Self::$capability(message) => message.since(), )*
                }
            }

            /// Returns the number of file descriptors that the message carries.
            pub fn descriptors(&self) -> usize {
                match self {
                    $( Self::$name(_message) => {
                        <[&str]>::len(&[$($descriptor),*])
                            $( + if _message.$flag.is_set() { <[&str]>::len(&[$($more),*]) } else { 0 } )?
                    } )*
                    $( Self::$capability(message) => message.descriptors(), )*
                }
            }

            pub(crate) fn emit_fields(&self, out: &mut Vec<u8>) {
                match self {
                    $( Self::$name(message) => message.emit(out), )*
                    $( Self::$capability(message) => message.emit_fields(out), )*
                }
            }

            /// Parses the fields of a message of this kind. Returns none for any other kind.
            pub(crate) fn parse_fields(kind: u16, from: &mut FieldReader<'_>) -> Result<Option<Self>, MalformedControl> {
                match kind {
                    $( $kind => return Ok(Some(Self::$name(Field::parse(from)?))), )*
                    _ => {}
                }
                $( if let Some(message) = $nested::parse_fields(kind, from)? {
                    return Ok(Some(Self::$capability(message)));
                } )*
                Ok(None)
            }
        }
    };
}

/// Makes packets of all messages that go one way.
macro_rules! packets {
    ($way:ident, the other way $other:ident) => {
        impl $way {
            /// Returns the packet. `serial` ties a reply to its request.
            pub fn emit(&self, serial: Option<RequestSerial>) -> Vec<u8> {
                let mut out = Vec::with_capacity(64);
                Header { kind: self.kind(), serial }.emit(&mut out);
                self.emit_fields(&mut out);
                out
            }

            /// Parses a packet that carried this number of file descriptors.
            pub fn parse(packet: &[u8], descriptors: usize) -> Result<(Option<RequestSerial>, Self), MalformedControl> {
                if packet.len() > CONTROL_BYTES_MAX {
                    return Err(MalformedControl::TooLong(packet.len()));
                }
                let mut from = FieldReader::new(packet);
                let Header { kind, serial } = Header::parse(&mut from)?;
                let Some(message) = Self::parse_fields(kind, &mut from)? else {
                    let is_of_other_way = $other::TABLE.iter().any(|info| info.kind == kind);
                    return Err(if is_of_other_way {
                        MalformedControl::WrongDirection(kind)
                    } else {
                        MalformedControl::Kind(kind)
                    });
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

pub(super) use packets;
pub(crate) use {messages, record};
