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
use crate::run::{Setting, installed_folder, shell_quoted};

/// The file that libibverbs opens. The path is compiled in.
pub(super) const DEVICE_FILE: &str = "/dev/infiniband/uverbs0";

/// The device number of /dev/null.
const NULL: (u32, u32) = (1, 3);

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
    let mut missing: Vec<Missing> = device_file(Path::new(DEVICE_FILE)).into_iter().collect();
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

/// Checks that the device file is /dev/null.
pub(super) fn device_file(path: &Path) -> Option<Missing> {
    let folder = path.parent().unwrap_or(path).display();
    let path = path.display();
    match fs::metadata(path.to_string()) {
        Ok(found) if found.file_type().is_char_device() => {
            let number = (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
            (number != NULL).then(|| Missing {
                what: format!("{path} belongs to a device of this machine"),
                remedy: "Run the programs in a container, or under bwrap, with a /dev of their own.".to_owned(),
            })
        }
        _ => Some(Missing {
            what: format!("{path}, a link to /dev/null"),
            remedy: format!(
                "One of these makes it:\n\
                 root, until the next boot:  mkdir -p {folder} && ln -s /dev/null {path}\n\
                 root, for each boot:        echo 'L {path} - - - - /dev/null' > /etc/tmpfiles.d/isthmus-verbs.conf\n\
                 any user, for one program:  bwrap --bind / / --dev /dev --dir {folder} --symlink /dev/null {path} PROGRAM"
            ),
        }),
    }
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

    #[test]
    fn device_file_is_a_link_to_null() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("uverbs0");
        let missing = device_file(&path).unwrap();
        assert!(missing.remedy.contains(&format!("ln -s /dev/null {}", path.display())), "{missing:?}");
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        assert_eq!(device_file(&path), None);
        assert!(device_file(Path::new("/dev/zero")).unwrap().what.contains("belongs to a device"));
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
