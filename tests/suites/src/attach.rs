//! Domains of the test's own process, attached by the library.
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_client::{Domain, EndpointIndex, Options, Reason, Refusal};
use isthmus_layout::control::Name;
use isthmus_testbed::DaemonProcess;
use std::fmt::Debug;

/// How a client called `name` connects to `daemon`, which must be running.
pub fn options(daemon: &DaemonProcess, name: &str) -> Options {
    Options { name: Name::new(name).ok(), socket: Some(daemon.socket()), no_autostart: true, ..Options::default() }
}

/// Attaches a domain called `name` and opens one endpoint.
pub fn attach(daemon: &DaemonProcess, name: &str) -> (Domain, EndpointIndex) {
    let mut domain = Domain::attach_with(&options(daemon, name)).unwrap();
    let at = domain.open(None, "").unwrap();
    (domain, at)
}

/// The reason of a refusal that must have come.
pub fn reason<T: Debug>(outcome: Result<T, Refusal>) -> Reason {
    outcome.unwrap_err().reason
}
