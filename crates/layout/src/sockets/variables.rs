//! The environment variables of programs that use streams.

use crate::environment::Variable;

/// Switches streams off for a program.
pub const SOCKETS: Variable = Variable {
    name: "ISTHMUS_SOCKETS",
    default: "on",
    effect: "whether TCP connections of this program may use shared memory: on or off",
};

/// Forces switches, for tests.
pub const TEST_SWITCH: Variable = Variable {
    name: "ISTHMUS_SOCKETS_TEST_SWITCH",
    default: "0",
    effect: "for tests of streams: how often each direction moves to TCP and back in a second",
};
