//! The environment variables of a program that links the library, in one table.
//!
//! This module reads no variable. The code that does takes the name from here, so that `isthmus environment list` can show every variable.
//! The variables of the daemon (`ISTHMUS_DAEMON_…`, one for each key of its file) are in `isthmus_config`.

use crate::sockets::{AFTER, SOCKETS, TEST_SWITCH};
use crate::verbs::VERBS;

/// A variable of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    /// The name: `ISTHMUS_…`.
    pub name: &'static str,
    /// The default value, as a user would write it. Angle brackets contain a description of a value.
    pub default: &'static str,
    /// The effect of the variable.
    pub effect: &'static str,
}

/// The socket of the daemon.
pub const SOCKET: Variable = Variable {
    name: "ISTHMUS_SOCKET",
    default: "<the first that answers>",
    effect: "the socket of the daemon to attach to; by default /run/isthmus/isthmus.sock, then \
             $XDG_RUNTIME_DIR/isthmus/isthmus.sock, then /tmp/isthmus-<uid>/isthmus.sock",
};

/// Enables the start of a daemon by the library.
pub const AUTOSTART: Variable = Variable {
    name: "ISTHMUS_AUTOSTART",
    default: "1",
    effect: "whether a daemon of the user's own is started when none answers: 1 yes, 0 no",
};

/// The name of the domain.
pub const DOMAIN: Variable =
    Variable { name: "ISTHMUS_DOMAIN", default: "<program>-<pid>", effect: "the name this program takes as a domain" };

/// The mode in which the library waits.
pub const WAIT: Variable = Variable {
    name: "ISTHMUS_WAIT",
    default: "adaptive",
    effect: "how this program waits for messages: adaptive looks for a while and then sleeps, spin looks for ever, \
             sleep sleeps after 25 microseconds at most",
};

/// The time that the library spins.
pub const SPIN_US: Variable = Variable {
    name: "ISTHMUS_SPIN_US",
    default: "50",
    effect: "microseconds from 0 to 1000 that adaptive waiting looks before it sleeps",
};

/// The cache of migrated buffers.
pub const RCACHE: Variable = Variable {
    name: "ISTHMUS_RCACHE",
    default: "1",
    effect: "whether large buffers which are used again are moved onto shared pages, so that their reader copies them \
             once: 1 yes, 0 never; in guests only where 1 is set",
};

/// Enables channels.
pub const CHANNELS: Variable = Variable {
    name: "ISTHMUS_CHANNELS",
    default: "1",
    effect: "whether messages to domains of the same host go through channels: 1 yes, 0 always through the daemon",
};

/// The time that a closing endpoint waits for receivers.
pub const LINGER_S: Variable = Variable {
    name: "ISTHMUS_LINGER_S",
    default: "30",
    effect: "seconds from 0 to 3600 that a program which closes an MX or libfabric endpoint, or an MX program that exits, \
             waits for receivers of messages that are over for the sender",
};

/// All variables.
pub const VARIABLES: &[Variable] =
    &[SOCKET, AUTOSTART, DOMAIN, WAIT, SPIN_US, RCACHE, CHANNELS, LINGER_S, SOCKETS, AFTER, TEST_SWITCH, VERBS];
