//! The needs of the RDMA programs of `isthmus try`: the files of the device, the variables, and the device file where the host has none.

use std::path::Path;

use anyhow::{Context, Result, bail};
use isthmus_client::Topic;
use isthmus_report::VerbsReport;

use super::doctor::missing_plug_in;
use super::enable::{DEVICE_FILE, device_file, has_interface};
use super::{FOLDER, LIBRARY, SYS, is_preloaded, settings, sysfs};
use crate::daemon::{ask, read};
use crate::run::{Setting, installed_folder};

/// Writes the files of the device beside the daemon's socket. Returns the variables that programs need, and the words in front of a
/// program.
pub(crate) fn trial_place(socket: &Path) -> Result<(Vec<Setting>, Vec<&'static str>)> {
    let folder = installed_folder(LIBRARY).context("not installed")?;
    if let Some(missing) = missing_plug_in() {
        bail!("not installed: {missing}");
    }
    let report: VerbsReport = read(&ask(Some(socket.to_owned()), Topic::Verbs, &[])?)?;
    let sys = socket.with_file_name(FOLDER).join(SYS);
    sysfs::replace(&sys, &sysfs::files(&report, has_interface))
        .with_context(|| format!("cannot write {}", sys.display()))?;
    let enclosure = match device_file(Path::new(DEVICE_FILE)) {
        None => Vec::new(),
        Some(_) => {
            let file = ["--dir", "/dev/infiniband", "--symlink", "/dev/null", DEVICE_FILE];
            [&["bwrap", "--die-with-parent", "--bind", "/", "/", "--dev", "/dev"][..], &file].concat()
        }
    };
    Ok((settings(&folder, &sys, is_preloaded(&folder)), enclosure))
}
