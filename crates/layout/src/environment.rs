//! The variables a program that links the library is configured by, in one table.
//!
//! Nothing here reads a variable: who does takes its name from here, so that `isthmus environment list` can show every
//! variable there is. Variables of the daemon (`ISTHMUS_DAEMON_…`, one for each key of its file) are in
//! `isthmus_config`.

/// A variable of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    /// `ISTHMUS_…`.
    pub name: &'static str,
    /// What holds when it is not set, as it would be written; words in angle brackets stand for what they say.
    pub default: &'static str,
    /// What it does.
    pub effect: &'static str,
}

/// The socket of the daemon.
pub const SOCKET: Variable = Variable {
    name: "ISTHMUS_SOCKET",
    default: "<the first that answers>",
    effect: "the socket of the daemon to attach to; by default /run/isthmus/isthmus.sock, then \
             $XDG_RUNTIME_DIR/isthmus/isthmus.sock, then /tmp/isthmus-<uid>/isthmus.sock",
};

/// Whether the library starts a daemon.
pub const AUTOSTART: Variable = Variable {
    name: "ISTHMUS_AUTOSTART",
    default: "1",
    effect: "whether a daemon of the user's own is started when none answers: 1 yes, 0 no",
};

/// The name of the domain.
pub const DOMAIN: Variable =
    Variable { name: "ISTHMUS_DOMAIN", default: "<program>-<pid>", effect: "the name this program takes as a domain" };

/// How the library waits.
pub const WAIT: Variable = Variable {
    name: "ISTHMUS_WAIT",
    default: "adaptive",
    effect: "how this program waits for messages: adaptive looks for a while and then sleeps, spin looks for ever, \
             sleep sleeps at once",
};

/// How long the library spins.
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

/// Whether channels are used.
pub const CHANNELS: Variable = Variable {
    name: "ISTHMUS_CHANNELS",
    default: "1",
    effect: "whether messages to domains of the same host go through channels: 1 yes, 0 always through the daemon",
};

/// All of them.
pub const VARIABLES: &[Variable] = &[SOCKET, AUTOSTART, DOMAIN, WAIT, SPIN_US, RCACHE, CHANNELS];
