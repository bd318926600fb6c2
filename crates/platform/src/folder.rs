//! Opens folders in which another user may have a hand, without being led elsewhere.
//!
//! ```text
//! "/" ─▶ run ─▶ isthmus ─▶ …      each step is one name below a folder that is open
//! ```
//!
//! * No step follows a symbolic link of another user.
//! * Root writes only where root alone can write: the folder and all above it belong to root. A folder in which users cannot remove the
//!   files of others, as `/tmp`, may be above it. So nothing on the path changes under root's hands.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fd::OwnedFd;
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, mkdirat, openat, readlinkat};
use rustix::io::Errno;

/// The maximum number of symbolic links on the way to a folder.
const LINKS_MAX: usize = 16;

const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const ANYTHING: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The purpose for which a folder is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Its files are read.
    Read,
    /// Files are made in it.
    Write,
    /// Files are made in it, and folders of its path that are missing, with this mode.
    Make(Mode),
}

/// The reason why a folder was not opened.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct FolderError {
    /// The folder or link on the path that is refused.
    pub path: PathBuf,
    /// The reason.
    pub reason: FolderProblem,
}

/// A problem of one folder or link on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FolderProblem {
    /// The system refused.
    #[error("{0}")]
    Refused(Errno),
    /// A file of another type.
    #[error("the path is not a folder")]
    NotAFolder,
    /// A link of another user.
    #[error("the path is a symbolic link of user {owner}, which may lead anywhere: remove it, or name another folder")]
    LinkOfUser {
        /// The user.
        owner: u32,
    },
    /// The links on the way may be a loop.
    #[error("there are more than {LINKS_MAX} symbolic links on the way")]
    TooManyLinks,
    /// Another user than root can replace what is in it.
    #[error("the folder belongs to user {owner} and could lead root to other files")]
    OwnedBy {
        /// The user.
        owner: u32,
    },
    /// Users other than root can write to it.
    #[error("others can write to it (mode {mode:04o})")]
    WritableByOthers {
        /// The permissions.
        mode: u32,
    },
}

/// Opens a folder. The second value is whether this call has made it.
pub fn open(path: &Path, purpose: Purpose) -> Result<(OwnedFd, bool), FolderError> {
    let refused = |errno| FolderError { path: path.to_owned(), reason: FolderProblem::Refused(errno) };
    let at = openat(CWD, "/", ANYTHING, Mode::empty()).map_err(refused)?;
    let root = fstat(&at).map_err(refused)?.st_uid;
    let mut walk = Walk { at, path: "/".into(), names: Vec::new(), links: 0, purpose, root, is_made: false };
    walk.add(
        &std::path::absolute(path).map_err(|error| refused(Errno::from_io_error(&error).unwrap_or(Errno::INVAL)))?,
    );
    walk.folder()
}

/// The way to a folder, from `/` on.
struct Walk {
    at: OwnedFd,
    /// The path of `at`.
    path: PathBuf,
    /// The names that follow, the next one last.
    names: Vec<OsString>,
    links: usize,
    purpose: Purpose,
    /// The owner of `/`.
    root: u32,
    /// Whether this walk made the folder `at`.
    is_made: bool,
}

impl Walk {
    fn add(&mut self, path: &Path) {
        let names = path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
        self.names.extend(names.rev().map(|part| part.as_os_str().to_owned()));
    }

    fn folder(mut self) -> Result<(OwnedFd, bool), FolderError> {
        while let Some(name) = self.names.pop() {
            let path = self.path.join(&name);
            self.step(&name).map_err(|reason| FolderError { path, reason })?;
        }
        match openat(&self.at, ".", FOLDER, Mode::empty()) {
            Ok(folder) => Ok((folder, self.is_made)),
            Err(errno) => Err(FolderError { path: self.path, reason: FolderProblem::Refused(errno) }),
        }
    }

    fn step(&mut self, name: &OsStr) -> Result<(), FolderProblem> {
        let open = |at: &OwnedFd| openat(at, name, ANYTHING, Mode::empty()).map_err(FolderProblem::Refused);
        let mut is_made = false;
        let found = match (open(&self.at), self.purpose) {
            (Err(FolderProblem::Refused(Errno::NOENT)), Purpose::Make(mode)) => {
                match mkdirat(&self.at, name, mode) {
                    Ok(()) => is_made = true,
                    Err(Errno::EXIST) => {}
                    Err(errno) => return Err(FolderProblem::Refused(errno)),
                }
                open(&self.at)?
            }
            (found, _) => found?,
        };
        let stat = fstat(&found).map_err(FolderProblem::Refused)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => self.check(&stat)?,
            FileType::Symlink => return self.follow(&found, stat.st_uid),
            _ => return Err(FolderProblem::NotAFolder),
        }
        self.at = found;
        self.is_made = is_made;
        self.path.push(name);
        Ok(())
    }

    /// Follows a link of this user or of root.
    fn follow(&mut self, link: &OwnedFd, owner: u32) -> Result<(), FolderProblem> {
        let own = rustix::process::geteuid().as_raw();
        if ![own, self.root].contains(&owner) {
            return Err(FolderProblem::LinkOfUser { owner });
        }
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(FolderProblem::TooManyLinks);
        }
        let target = readlinkat(link, "", Vec::new()).map_err(FolderProblem::Refused)?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        if target.is_absolute() {
            self.at = openat(CWD, "/", ANYTHING, Mode::empty()).map_err(FolderProblem::Refused)?;
            self.path = "/".into();
        }
        self.add(&target);
        Ok(())
    }

    /// Checks that root writes only where no other user can.
    fn check(&self, found: &Stat) -> Result<(), FolderProblem> {
        // The root of a user namespace is an ordinary user, and `/` is not its own.
        let is_root = rustix::process::geteuid().is_root() && self.root == 0;
        if is_root && self.purpose != Purpose::Read {
            check_root_alone(found.st_uid, found.st_mode, self.names.is_empty())
        } else {
            Ok(())
        }
    }
}

/// Checks that root alone can write to a folder. If it is not the last one, others may write to it as long as they cannot remove files of root.
fn check_root_alone(owner: u32, mode: u32, is_last: bool) -> Result<(), FolderProblem> {
    let is_sticky = mode & 0o1000 != 0 && !is_last;
    if owner != 0 {
        Err(FolderProblem::OwnedBy { owner })
    } else if mode & 0o022 != 0 && !is_sticky {
        Err(FolderProblem::WritableByOthers { mode: mode & 0o7777 })
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_writes_only_where_root_alone_can_write() {
        assert_eq!(check_root_alone(0, 0o040755, true), Ok(()));
        assert_eq!(check_root_alone(0, 0o041777, false), Ok(()));
        assert_eq!(check_root_alone(4711, 0o040755, false), Err(FolderProblem::OwnedBy { owner: 4711 }));
        for (mode, is_last) in [(0o777, false), (0o775, false), (0o1777, true)] {
            assert_eq!(check_root_alone(0, mode, is_last), Err(FolderProblem::WritableByOthers { mode }));
        }
    }
}
