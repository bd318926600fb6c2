//! Verbs: the virtual RDMA device, and the files by which the stock libibverbs finds it.
//!
//! ```text
//! list ────▶ isthmus verbs list      the daemon's report about verbs
//! enable ──▶ isthmus verbs enable    DIR/sys, from the report; what else a program needs
//!    ├─ device ─ the values of the report, none of which is a path
//!    ├─ sysfs ── the files of the device
//!    └─ folder ─ writes and reads them without being led elsewhere
//! why ─────▶ isthmus why qp:NUMBER    a queue pair, its peers and the paths to them
//! PROGRAMS ▶ isthmus run             SYSFS_PATH, IBV_DRIVERS and LD_PRELOAD
//!    └─ doctor ─ the checks of `isthmus doctor`
//! ```

mod device;
mod doctor;
mod enable;
mod folder;
mod list;
mod sysfs;
mod why;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Subcommand;
use isthmus_config::Role;
use isthmus_layout::environment;
use isthmus_layout::verbs::VERBS;

use crate::daemon::usual_socket;
use crate::output::{Outcome, Output};
use crate::run::{ProgramCapability, Setting};

/// The plug-in of libibverbs.
const LIBRARY: &str = "libisthmus-rdmav34.so";

/// The name by which libibverbs knows the plug-in: it appends the rest of the file name, which has the number of its interface.
const DRIVER: &str = "libisthmus";

/// The library that is preloaded for completion channels, and for kernels with InfiniBand.
const PRELOADED: &str = "libisthmus-verbs.so";

/// The variables of libibverbs: the folder that stands for `/sys`, and the plug-ins to load.
const SYSFS: &str = "SYSFS_PATH";
const DRIVERS: &str = "IBV_DRIVERS";

/// The folder beside the daemon's socket that has the device's files.
const FOLDER: &str = "verbs";

/// The folder below it that stands for `/sys`.
const SYS: &str = "sys";

/// The commands of verbs.
#[derive(Subcommand)]
pub(crate) enum VerbsCommand {
    /// The virtual RDMA device, for programs that use libibverbs.
    #[command(subcommand)]
    Verbs(VerbsVerb),
}

#[derive(Subcommand)]
pub(crate) enum VerbsVerb {
    /// Lists the GIDs of the device, and the domains that have queue pair numbers.
    List,
    /// Writes the files by which libibverbs finds the device, and prints what else programs need.
    ///
    /// libibverbs looks for devices in `/sys`, which programs cannot write. These files stand for it: `isthmus run` names them in
    /// SYSFS_PATH. Run the command again when the addresses of interfaces have changed. Files that are right stay as they
    /// are, so programs that run do not notice.
    Enable(enable::EnableArgs),
}

impl VerbsCommand {
    pub(crate) fn run(self, output: Output, socket: Option<PathBuf>) -> Result<Outcome> {
        match self {
            Self::Verbs(VerbsVerb::List) => list::list(output, socket),
            Self::Verbs(VerbsVerb::Enable(args)) => enable::enable(output, socket, args),
        }
    }
}

pub(crate) use doctor::missing_plug_in;
pub(crate) use why::explain_queue_pair;

/// The row of `isthmus run`.
pub(crate) const PROGRAMS: ProgramCapability = ProgramCapability {
    name: "verbs",
    users: "Programs that use RDMA",
    library: LIBRARY,
    other_names: &[],
    other_libraries: &[PRELOADED],
    device_files: &enable::DEVICE_FILES,
    is_opt_in: false,
    is_in_guests: true,
    settings: |place| {
        if let Some(beside_socket) = place.container {
            return Ok(settings(place.folder, &beside_socket.join(FOLDER).join(SYS), true));
        }
        if std::env::var_os(VERBS.name).is_some_and(|value| value == "off") {
            return Err(format!("{}=off", VERBS.name));
        }
        let sys = sys_folder(place.socket).ok_or("no files of the device: `isthmus verbs enable` writes them")?;
        Ok(settings(place.folder, &sys, is_preloaded(place.folder)))
    },
    unfit: |program| program.unfit(PRELOADED),
    doctor: Some(doctor::check),
};

/// Finds the folder with the files of the device.
fn sys_folder(socket: Option<&Path>) -> Option<PathBuf> {
    let set = std::env::var_os(SYSFS).map(PathBuf::from);
    let folders = folders_of(socket);
    let mut found = set.into_iter().chain(folders.iter().map(|folder| folder.join(SYS)));
    found.find(|sys| sys.join(sysfs::UVERBS).is_dir())
}

/// Returns whether a folder has the library for completion channels.
fn is_preloaded(folder: &Path) -> bool {
    folder.join(PRELOADED).is_file()
}

fn settings(folder: &Path, sys: &Path, is_preloaded: bool) -> Vec<Setting> {
    let preload = is_preloaded.then(|| Setting {
        name: "LD_PRELOAD",
        value: folder.join(PRELOADED).to_string_lossy().into_owned(),
        effect: "makes completion channels, and keeps libibverbs from asking the kernel for devices",
        is_list: true,
    });
    let variables = [
        Setting {
            name: SYSFS,
            value: sys.to_string_lossy().into_owned(),
            effect: "where libibverbs finds the virtual RDMA device",
            is_list: false,
        },
        Setting {
            name: DRIVERS,
            value: folder.join(DRIVER).to_string_lossy().into_owned(),
            effect: "the plug-in of libibverbs for the device",
            is_list: true,
        },
    ];
    variables.into_iter().chain(preload).collect()
}

/// The folders in which the files may be: beside the given socket, or beside that of any usual daemon. The folder of this user's daemon
/// may be below `/tmp`, where another user could have made it, with a device of their own.
fn folders_of(socket: Option<&Path>) -> Vec<PathBuf> {
    let given = socket.map(Path::to_owned).or_else(|| std::env::var_os(environment::SOCKET.name).map(PathBuf::from));
    let sockets = match given {
        Some(socket) => vec![socket],
        None => {
            let own = Some(usual_socket(Role::User)).filter(|socket| socket.parent().is_some_and(is_own));
            std::iter::once(usual_socket(Role::System)).chain(own).collect()
        }
    };
    sockets.iter().filter_map(|socket| folder_beside(socket)).collect()
}

fn folder_beside(socket: &Path) -> Option<PathBuf> {
    let socket = std::path::absolute(socket).ok()?;
    Some(socket.parent()?.join(FOLDER))
}

fn is_own(folder: &Path) -> bool {
    std::fs::symlink_metadata(folder).is_ok_and(|found| found.uid() == rustix::process::geteuid().as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_variables_name_what_libibverbs_completes() {
        let values = settings(Path::new("/opt/lib"), Path::new("/run/isthmus/verbs/sys"), false);
        let values: Vec<_> = values.iter().map(|set| (set.name, set.value.as_str(), set.is_list)).collect();
        let expected = [("SYSFS_PATH", "/run/isthmus/verbs/sys", false), ("IBV_DRIVERS", "/opt/lib/libisthmus", true)];
        assert_eq!(values, expected);
        assert_eq!(LIBRARY.strip_prefix(DRIVER), Some("-rdmav34.so"));
    }

    #[test]
    fn library_for_channels_is_preloaded_where_it_is_installed() {
        let scratch = tempfile::tempdir().unwrap();
        assert!(!is_preloaded(scratch.path()));
        std::fs::write(scratch.path().join(PRELOADED), "").unwrap();
        assert!(is_preloaded(scratch.path()));
        let preload = settings(scratch.path(), Path::new("/sys"), true).pop().unwrap();
        let library = scratch.path().join(PRELOADED).to_string_lossy().into_owned();
        assert_eq!((preload.name, preload.value, preload.is_list), ("LD_PRELOAD", library, true));
    }

    #[test]
    fn files_lie_beside_the_socket() {
        assert_eq!(folders_of(Some(Path::new("/srv/x.sock"))), [PathBuf::from("/srv/verbs")]);
    }
}
