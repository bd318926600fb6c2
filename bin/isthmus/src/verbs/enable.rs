//! `isthmus verbs enable`: writes the files of the device, and says what else programs need.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use isthmus_client::Topic;
use isthmus_report::VerbsReport;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};
use serde::Serialize;

use super::device::{Device, REMEDY};
use super::{DRIVERS, LIBRARY, SYS, folder_beside, is_preloaded, settings, sysfs};
use crate::daemon::{Daemon, options, read};
use crate::output::{Outcome, Output};
use crate::run::{DeviceFile, Setting, installed_folder, shell_quoted};

/// The files that libibverbs and librdmacm open. The paths are compiled in. A program that writes to the latter without the
/// preloaded library fails, because that device is full.
pub(super) const DEVICE_FILES: [DeviceFile; 2] = [
    DeviceFile { path: "/dev/infiniband/uverbs0", target: "/dev/null", number: (1, 3) },
    DeviceFile { path: "/dev/infiniband/rdma_cm", target: "/dev/full", number: (1, 7) },
];

/// The folder of the device files.
const FOLDER: &str = "/dev/infiniband";

/// The major number of memory devices.
const MEMORY: u32 = 1;

#[derive(Args, Clone, Debug)]
pub(crate) struct EnableArgs {
    /// The folder for the files [default: `verbs` beside the daemon's socket].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// The result of the command.
#[derive(Debug, Serialize)]
struct Enabled {
    /// The folder that stands for `/sys`.
    sysfs: PathBuf,
    /// True for the folder in which `isthmus run` looks.
    is_default: bool,
    /// False if it had these files already.
    changed: bool,
    /// The list of things that programs lack, with remedies.
    missing: Vec<Missing>,
    /// The variables that programs need. `isthmus run` sets them.
    variables: Vec<Setting>,
}

/// A thing that programs lack.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Missing {
    pub(super) what: String,
    pub(super) remedy: String,
}

pub(super) fn enable(output: Output, socket: Option<PathBuf>, args: EnableArgs) -> Result<Outcome> {
    let options = options(socket)?;
    let mut daemon = Daemon::connect(&options)?;
    let report: VerbsReport = read(&daemon.ask(Topic::Verbs, &[])?)?;
    if !report.enabled {
        bail!("verbs are disabled by the daemon: set `verbs.enabled = true` in its configuration, and restart it");
    }
    let is_default = args.dir.is_none();
    let folder = match args.dir {
        Some(folder) => std::path::absolute(folder).context("cannot find the folder")?,
        None => {
            let socket = daemon.socket();
            folder_beside(socket).with_context(|| format!("{} is not the path of a socket", socket.display()))?
        }
    };
    let sysfs = folder.join(SYS);
    let changed = write_files(&sysfs, &report)?;
    let library = installed_folder(LIBRARY);
    let mut missing = missing_files(&DEVICE_FILES);
    if let Err(error) = &library {
        let what = format!("the plug-in of libibverbs: {error}");
        missing.push(Missing { what, remedy: "`make install` installs it.".to_owned() });
    }
    let installed = library.as_deref().unwrap_or(Path::new(""));
    let mut variables = settings(installed, &sysfs, is_preloaded(installed));
    variables.retain(|set| library.is_ok() || set.name != DRIVERS);
    let enabled = Enabled { sysfs, is_default, changed, missing, variables };
    output.result("verbs enable", &enabled, || text(&enabled))?;
    Ok(Outcome::Done)
}

/// Writes the files of the device. Returns false if they are there already.
fn write_files(sysfs: &Path, report: &VerbsReport) -> Result<bool> {
    let device = Device::parse(report).with_context(|| format!("nothing was written. {REMEDY} The cause"))?;
    sysfs::replace(sysfs, &sysfs::files(&device, has_interface)).map_err(|error| cannot_write(sysfs, error))
}

/// Says which folder cannot be written. A refusal of the kernel gets a remedy; others have one.
fn cannot_write(sysfs: &Path, error: anyhow::Error) -> anyhow::Error {
    let is_denied = matches!(error.downcast_ref(), Some(&(Errno::ACCESS | Errno::PERM | Errno::ROFS)));
    let remedy = if is_denied { ": run this as the daemon's user, or name another folder with --dir" } else { "" };
    error.context(format!("cannot write {}{remedy}", sysfs.display()))
}

/// Returns whether an interface exists in the network namespace of this process.
pub(super) fn has_interface(name: &str) -> bool {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::DGRAM, None);
    socket.is_ok_and(|socket| rustix::net::netdevice::name_to_index(&socket, name).is_ok())
}

/// Checks the device files. Commands that make files are named only if no other file is in the way.
pub(super) fn missing_files(files: &[DeviceFile]) -> Vec<Missing> {
    let wrong = files.iter().filter(|file| device_number(file.path) != Some(file.number));
    let (others, missing): (Vec<_>, Vec<_>) = wrong.partition(|file| fs::symlink_metadata(file.path).is_ok());
    let each = |part: fn(&DeviceFile) -> String| files.iter().map(part).collect::<String>();
    let links = each(|file| format!(" --symlink {} {}", file.target, file.path));
    let bwrap = format!("bwrap --bind / / --dev /dev --dir {FOLDER}{links} PROGRAM");
    if !others.is_empty() {
        return others.into_iter().map(|file| other(file, &bwrap)).collect();
    }
    if missing.is_empty() {
        return Vec::new();
    }
    let what: Vec<_> = missing.iter().map(|file| link(file)).collect();
    let made: String = missing.iter().map(|file| format!(" && ln -s {} {}", file.target, file.path)).collect();
    let lines = each(|file| format!(" {} {}", file.path, file.target));
    let remedy = format!(
        "One of these commands is enough:\n\
         root, until the next boot:  mkdir -p {FOLDER}{made}\n\
         root, for each boot:        printf 'L %s - - - - %s\\n'{lines} > /etc/tmpfiles.d/isthmus-verbs.conf\n\
         any user, for one program:  {bwrap}"
    );
    vec![Missing { what: what.join("; "), remedy }]
}

/// A file in place of a device file.
fn other(file: &DeviceFile, bwrap: &str) -> Missing {
    let (found, start) = match device_number(file.path) {
        Some((major, _)) if major != MEMORY => ("the file belongs to a device of this machine", "Start"),
        _ => ("there is another file", "Remove that file, or start"),
    };
    let remedy = format!("{start} the programs in a container, or with a /dev of their own:\n{bwrap}");
    Missing { what: format!("{} ({found})", link(file)), remedy }
}

fn link(file: &DeviceFile) -> String {
    format!("{}, a link to {}", file.path, file.target)
}

/// Returns the number of a device. None if the file is no device.
fn device_number(path: &str) -> Option<(u32, u32)> {
    let found = fs::metadata(path).ok().filter(|found| found.file_type().is_char_device())?;
    Some((rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev())))
}

fn text(enabled: &Enabled) -> String {
    let done = if enabled.changed { "written" } else { "unchanged" };
    let mut text = format!("{done}: {}\n", enabled.sysfs.display());
    for Missing { what, remedy } in &enabled.missing {
        let remedy: String = remedy.lines().map(|line| format!("  {line}\n")).collect();
        text += &format!("\nmissing: {what}\n{remedy}");
    }
    text += match enabled.is_default {
        true => "\n`isthmus run -- PROGRAM` sets these variables:\n",
        false => "\nset these variables, or the first one and start programs with `isthmus run`:\n",
    };
    for set in &enabled.variables {
        text += &format!("  export {}={} # {}\n", set.name, shell_quoted(&set.value), set.effect);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::device::tests::report;
    use super::*;

    #[test]
    fn report_whose_device_is_a_path_writes_nothing() {
        let scratch = tempfile::tempdir().unwrap();
        let sysfs = scratch.path().join("a/b/verbs/sys");
        let hostile = VerbsReport { device: "../../x".to_owned(), ..report(&[("1", None)]) };
        let error = format!("{:#}", write_files(&sysfs, &hostile).unwrap_err());
        assert!(error.contains(r#""../../x" as device"#) && error.contains(REMEDY), "{error}");
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
        assert!(write_files(&sysfs, &report(&[("1", None)])).unwrap());
    }

    #[test]
    fn refusal_of_the_kernel_has_a_remedy() {
        let text = |error: anyhow::Error| format!("{:#}", cannot_write(Path::new("/x"), error));
        assert!(text(anyhow::Error::from(Errno::ACCESS).context("/x")).contains("run this as the daemon's user"));
        assert_eq!(text(anyhow::anyhow!("the file is a link")), "cannot write /x: the file is a link");
    }

    /// A device file in a folder.
    fn below(folder: &Path, file: DeviceFile) -> DeviceFile {
        let name = Path::new(file.path).file_name().unwrap();
        DeviceFile { path: folder.join(name).display().to_string().leak(), ..file }
    }

    #[test]
    fn missing_device_files_are_links_that_root_or_bwrap_makes() {
        let scratch = tempfile::tempdir().unwrap();
        let files = DEVICE_FILES.map(|file| below(scratch.path(), file));
        let [null, full] = files.map(|file| format!("{} {}", file.target, file.path));
        let [missing] = &missing_files(&files)[..] else { panic!("both can be made") };
        assert!(missing.remedy.contains(&format!("&& ln -s {null} && ln -s {full}\n")), "{missing:?}");
        assert!(missing.remedy.contains(&format!(" --symlink {null} --symlink {full} PROGRAM")), "{missing:?}");
        std::os::unix::fs::symlink("/dev/null", files[0].path).unwrap();
        let [missing] = &missing_files(&files)[..] else { panic!("one is left") };
        assert_eq!(missing.what, format!("{}, a link to /dev/full", files[1].path));
        assert!(!missing.remedy.contains(&format!("ln -s {null}")), "{missing:?}");
        assert!(missing.remedy.contains(&format!(" --symlink {null} --symlink {full} PROGRAM")), "{missing:?}");
        std::os::unix::fs::symlink("/dev/full", files[1].path).unwrap();
        assert_eq!(missing_files(&files), []);
    }

    #[test]
    fn other_files_are_not_replaced() {
        let scratch = tempfile::tempdir().unwrap();
        let [null, full] = DEVICE_FILES.map(|file| below(scratch.path(), file));
        let what = |files: &[DeviceFile]| -> Vec<_> {
            let missing = missing_files(files);
            assert!(missing.iter().all(|missing| !missing.remedy.contains("ln -s")), "{missing:?}");
            missing.into_iter().map(|missing| missing.what).collect()
        };
        let device = DeviceFile { path: "/dev/tty", ..full };
        assert_eq!(
            what(&[null, device]),
            ["/dev/tty, a link to /dev/full (the file belongs to a device of this machine)"]
        );
        for target in ["/dev/null", "/nonexistent", "/etc/passwd"] {
            std::os::unix::fs::symlink(target, full.path).unwrap();
            assert_eq!(what(&[null, full]), [format!("{}, a link to /dev/full (there is another file)", full.path)]);
            fs::remove_file(full.path).unwrap();
        }
    }

    #[test]
    fn text_names_what_is_missing_and_the_variables() {
        let missing = vec![Missing { what: "a".to_owned(), remedy: "b\nc".to_owned() }];
        let sysfs = PathBuf::from("/run/isthmus/verbs/sys");
        let variables = settings(Path::new("/opt/lib"), &sysfs, false);
        insta::assert_snapshot!(
            "enable",
            text(&Enabled { sysfs, is_default: true, changed: true, missing, variables })
        );
    }
}
