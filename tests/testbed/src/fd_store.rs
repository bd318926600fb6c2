//! The file descriptor store that a service manager keeps for a daemon: systemd's, as far as sd_notify(3) describes it.

use std::os::fd::OwnedFd;

/// Descriptors that outlive the process that stored them, by the names given to them.
#[derive(Debug, Default)]
pub struct FdStore {
    kept: Vec<(String, OwnedFd)>,
}

impl FdStore {
    /// Does what a message says that came with these descriptors. Those that it does not leave here are closed.
    pub fn take(&mut self, message: &str, fds: Vec<OwnedFd>) {
        let says = |word: &str| message.lines().any(|line| line == word);
        let name = message.lines().find_map(|line| line.strip_prefix("FDNAME=")).unwrap_or("stored");
        if says("FDSTORE=1") {
            self.kept.extend(fds.into_iter().map(|fd| (name.to_owned(), fd)));
        }
        if says("FDSTOREREMOVE=1") {
            self.kept.retain(|(kept, _)| kept != name);
        }
    }

    /// Copies for the next daemon; the store keeps what it has.
    pub fn copies(&self) -> std::io::Result<Vec<(String, OwnedFd)>> {
        self.kept.iter().map(|(name, fd)| Ok((name.clone(), fd.try_clone()?))).collect()
    }

    /// Returns the names of the stored descriptors.
    pub fn names(&self) -> Vec<&str> {
        self.kept.iter().map(|(name, _)| name.as_str()).collect()
    }
}
