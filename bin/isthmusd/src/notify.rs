//! Telling a supervisor that the daemon answers: `READY=1` to the socket that `NOTIFY_SOCKET` names, as systemd asks for it.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Says so, if somebody wants to know. A supervisor that cannot be told gives up on us by itself.
pub(crate) fn ready() {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let told = UnixDatagram::unbound().and_then(|socket| socket.send_to_addr(b"READY=1", &address?));
    if let Err(error) = told {
        tracing::warn!(%error, "cannot tell the supervisor that the daemon is ready");
    }
}
