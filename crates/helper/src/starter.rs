//! The starter: keeps the privileges of a helper for a daemon that has given up its own, and starts a helper for each connection.
//!
//! ```text
//!   isthmusd ── HelperStarter ══ START and a socket ══ isthmus-helper --starter
//!      └─────── HelperClient ═══ that socket ═════════ isthmus-helper --stdin     one at a time
//! ```
//!
//! It handles no request, reads nothing but the byte of `START`, and starts nothing but its own program. Its helpers enter the sandbox of any
//! helper. It cannot have their filter of system calls, because it starts programs.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use isthmus_platform::seqpacket::{self, ReceiveError};

use crate::permissions::Permissions;
use crate::protocol::START;
use crate::server::wait_readable;

/// Starts `program` with each socket that arrives, until the daemon closes `socket`.
pub fn serve(socket: &OwnedFd, program: &Path, permissions: Permissions) -> io::Result<()> {
    let mut helper = None;
    let (mut packet, mut descriptors) = ([0; START.len()], Vec::new());
    loop {
        wait_readable(socket)?;
        match seqpacket::receive(socket, &mut packet, &mut descriptors, false) {
            Ok(_) if packet == *START && descriptors.len() == 1 => {}
            Err(ReceiveError::Empty) => continue,
            Err(ReceiveError::Closed) => break,
            Ok(_) => return Err(io::Error::other("isthmusd and isthmus-helper are of different versions")),
            Err(error) => return Err(io::Error::other(error)),
        }
        end(helper.take());
        let connection = descriptors.pop().expect("counted above");
        let mut command = Command::new(program);
        command.arg("--stdin").args(permissions.options()).stdin(connection).stdout(Stdio::null());
        match command.spawn() {
            Ok(child) => helper = Some(child),
            Err(error) => tracing::error!("starting {}: {error}", program.display()), // The daemon sees its connection end.
        }
    }
    end(helper);
    Ok(())
}

/// Ends a helper that no connection needs any more, or says how it has ended.
fn end(helper: Option<Child>) {
    let Some(mut helper) = helper else { return };
    match helper.try_wait() {
        Ok(Some(status)) if !status.success() => tracing::error!("the helper before this one has ended: {status}"),
        Ok(Some(_)) => {}
        _ => {
            // Errors mean that it has ended.
            let _ = helper.kill();
            let _ = helper.wait();
        }
    }
}
