//! State of streams without sockets.
