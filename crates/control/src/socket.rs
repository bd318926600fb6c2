//! The socket that programs attach to: one daemon at a time, taken over from a dead one, gone when the daemon leaves in order.
//!
//! ```text
//!   <folder>/isthmus.lock   held (flock) by the daemon that serves the socket, for as long as it lives
//!   <folder>/isthmus.sock   appears ready to use: bound beside, then renamed over what a dead daemon left
//! ```

use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use isthmus_layout::reason::Reason;
use isthmus_platform::seqpacket;
use rustix::io::Errno;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another daemon has it.
    #[error("{path}: {}", Reason::DaemonSocketTaken.summary())]
    Taken {
        /// The socket.
        path: PathBuf,
    },
    /// Others could put their own socket there.
    #[error("{path}: {}", Reason::SocketUntrusted.summary())]
    Untrusted {
        /// The folder.
        path: PathBuf,
    },
    /// The system refused.
    #[error("{operation} {path}: {source}")]
    Refused {
        /// What was tried.
        operation: &'static str,
        /// With what.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
}

impl SocketError {
    /// Its entry in the table of reasons, if it has one.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self::Taken { .. } => Some(Reason::DaemonSocketTaken),
            Self::Untrusted { .. } => Some(Reason::SocketUntrusted),
            Self::Refused { .. } => None,
        }
    }

    fn refused(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Refused { operation, path: path.to_owned(), source }
    }
}

/// Who may connect, before the policy asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The daemon's own user.
    Own,
    /// Everybody; the policy decides.
    Everybody,
}

/// A socket that listens.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    place: Option<Place>,
}

/// What is removed in the end.
#[derive(Debug)]
struct Place {
    path: PathBuf,
    lock_path: PathBuf,
    /// The folder, if it was not there before.
    folder: Option<PathBuf>,
    _lock: File,
}

impl Listener {
    /// Listens at `path`.
    pub fn open(path: &Path, reach: Reach) -> Result<Self, SocketError> {
        let folder = path.parent().unwrap_or(Path::new("/"));
        let made = make_folder(folder, reach)?;
        let lock_path = path.with_extension("lock");
        let taken = || SocketError::Taken { path: path.to_owned() };
        let lock = lock(&lock_path)?.ok_or_else(taken)?;
        // Whoever answers here without the lock is another kind of daemon, or was started by systemd.
        if seqpacket::connect(path).is_ok() {
            return Err(taken());
        }
        let socket = bind(path, reach)?;
        let place = Place { path: path.to_owned(), lock_path, folder: made.then(|| folder.to_owned()), _lock: lock };
        Ok(Self { socket, place: Some(place) })
    }

    /// A socket that somebody else opened and looks after.
    pub fn given(socket: OwnedFd) -> Self {
        Self { socket, place: None }
    }

    /// The next connection.
    pub fn accept(&self) -> Result<OwnedFd, Errno> {
        seqpacket::accept(&self.socket)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Some(place) = &self.place else { return };
        // The lock goes last, and while it is held: nobody can have taken it over.
        let _ = std::fs::remove_file(&place.path);
        let _ = std::fs::remove_file(&place.lock_path);
        if let Some(folder) = &place.folder {
            let _ = std::fs::remove_dir(folder); // Unless something else is in it.
        }
    }
}

/// True if the folder was not there.
fn make_folder(folder: &Path, reach: Reach) -> Result<bool, SocketError> {
    let mode = if reach == Reach::Own { 0o700 } else { 0o755 };
    let made = match std::fs::DirBuilder::new().mode(mode).create(folder) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        Err(error) => return Err(SocketError::refused("making", folder)(error)),
    };
    let found = std::fs::symlink_metadata(folder).map_err(SocketError::refused("looking at", folder))?;
    let own = rustix::process::geteuid().as_raw();
    let trusted = found.is_dir() && (found.uid() == own || found.uid() == 0) && found.mode() & 0o022 == 0;
    if trusted { Ok(made) } else { Err(SocketError::Untrusted { path: folder.to_owned() }) }
}

/// The lock, or none if somebody has it. The file may be removed by its holder just as we take it: then it is not this one any more.
fn lock(path: &Path) -> Result<Option<File>, SocketError> {
    loop {
        let file = File::options().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(SocketError::refused("opening", path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(SocketError::refused("locking", path)(error)),
        }
        let ours = file.metadata().map_err(SocketError::refused("looking at", path))?;
        if std::fs::metadata(path).is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())) {
            return Ok(Some(file));
        }
    }
}

/// Binds beside and renames, so that the socket has its mode and listens before anybody sees it.
fn bind(path: &Path, reach: Reach) -> Result<OwnedFd, SocketError> {
    let beside = path.with_extension("new");
    let _ = std::fs::remove_file(&beside); // What a daemon left that died in this very place.
    let mode = if reach == Reach::Own { 0o600 } else { 0o666 };
    let bound = (|| {
        let socket = seqpacket::listen(&beside, BACKLOG)?;
        std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(mode))?;
        std::fs::rename(&beside, path)?;
        Ok(socket)
    })();
    bound.map_err(|error| {
        let _ = std::fs::remove_file(&beside);
        SocketError::refused("binding", path)(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn one_daemon_at_a_time_and_nothing_left_behind() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("isthmus");
        let path = folder.join("isthmus.sock");
        let first = Listener::open(&path, Reach::Own).unwrap();
        assert_eq!(names(&folder), ["isthmus.lock", "isthmus.sock"]);
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(Listener::open(&path, Reach::Own).unwrap_err().reason(), Some(Reason::DaemonSocketTaken));
        drop(first);
        assert!(names(root.path()).is_empty());
    }

    #[test]
    fn what_a_dead_daemon_left_is_taken_over() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("isthmus.sock");
        drop(seqpacket::listen(&path, 1).unwrap());
        std::fs::write(path.with_extension("lock"), "").unwrap();
        let listener = Listener::open(&path, Reach::Everybody).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o666);
        seqpacket::connect(&path).unwrap();
        listener.accept().unwrap();
    }

    #[test]
    fn a_folder_that_others_can_write_to_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("open");
        std::fs::create_dir(&folder).unwrap();
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
        let refused = Listener::open(&folder.join("isthmus.sock"), Reach::Own).unwrap_err();
        assert_eq!(refused.reason(), Some(Reason::SocketUntrusted));
    }
}
