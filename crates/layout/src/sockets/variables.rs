//! The environment variables of programs that use streams.

use crate::environment::Variable;

/// Switches streams off for a program.
pub const SOCKETS: Variable = Variable {
    name: "ISTHMUS_SOCKETS",
    default: "on",
    effect: "whether TCP connections of this program may use shared memory: on or off",
};

/// Sets when connections become streams.
pub const AFTER: Variable = Variable {
    name: "ISTHMUS_SOCKETS_AFTER",
    default: "sockets.after_bytes",
    effect: "the bytes after which a connection of this program becomes a stream; 0: with its first byte",
};

/// Forces switches, for tests.
pub const TEST_SWITCH: Variable = Variable {
    name: "ISTHMUS_SOCKETS_TEST_SWITCH",
    default: "0",
    effect: "for tests of streams: how often each direction moves to TCP and back in a second",
};
