//! The files of a folder that stands for `/sys`, as libibverbs reads them.
//!
//! ```text
//! class/infiniband_verbs/abi_version, uverbs0/…     the file in /dev/infiniband, and the device that belongs to it
//! class/infiniband/isthmus0/…                       the device: identity, port 1, its GIDs with their types and interfaces
//! ```
//!
//! libibverbs takes the modification time of the device's folder for the identity of the device. So files that are right stay as they
//! are, and others are replaced all at once.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use isthmus_report::VerbsReport;
use rustix::fs::{CWD, RenameFlags, renameat_with};

/// The folder of the device file.
pub(super) const UVERBS: &str = "class/infiniband_verbs/uverbs0";

/// The contents of files, by path.
type Files = BTreeMap<PathBuf, String>;

/// Returns the files of a device. An interface is named only if it exists for this process: libibverbs refuses a GID with an interface
/// that it does not find.
pub(super) fn files(report: &VerbsReport, has_interface: impl Fn(&str) -> bool) -> BTreeMap<PathBuf, String> {
    let VerbsReport { device, node_guid, gids, .. } = report;
    let mut files = Files::new();
    let mut add = |path: String, line: &str| drop(files.insert(path.into(), format!("{line}\n")));
    add("class/infiniband_verbs/abi_version".to_owned(), "6");
    add(format!("{UVERBS}/ibdev"), device);
    add(format!("{UVERBS}/dev"), "1:3"); // That of /dev/null.
    add(format!("{UVERBS}/abi_version"), "1");
    let folder = format!("class/infiniband/{device}");
    for (name, line) in [
        ("node_type", "1: CA"),
        ("node_guid", node_guid),
        ("sys_image_guid", node_guid),
        ("node_desc", device),
        ("ports/1/link_layer", "Ethernet"),
        ("ports/1/state", "4: ACTIVE"),
        ("ports/1/phys_state", "5: LinkUp"),
        ("ports/1/pkeys/0", "0xffff"),
    ] {
        add(format!("{folder}/{name}"), line);
    }
    for row in gids {
        let index = row.index;
        add(format!("{folder}/ports/1/gids/{index}"), &row.gid);
        add(format!("{folder}/ports/1/gid_attrs/types/{index}"), &row.kind);
        if let Some(interface) = row.interface.as_deref().filter(|interface| has_interface(interface)) {
            add(format!("{folder}/ports/1/gid_attrs/ndevs/{index}"), interface);
        }
    }
    files
}

/// Returns a file that is not as the report says, one of a GID only if all others are right. Names of interfaces are left out, because a container has others.
pub(super) fn difference(folder: &Path, report: &VerbsReport) -> io::Result<Option<PathBuf>> {
    let (present, expected) = (read(folder)?, files(report, |_| false));
    let is_interface = |path: &Path| path.parent().is_some_and(|folder| folder.ends_with("gid_attrs/ndevs"));
    let paths = present.keys().chain(expected.keys()).filter(|path| !is_interface(path));
    let different = paths.filter(|path| present.get(*path) != expected.get(*path));
    Ok(different.min_by_key(|path| is_of_gid(path)).cloned())
}

/// Returns whether a file is about a GID.
pub(super) fn is_of_gid(path: &Path) -> bool {
    path.iter().any(|part| part == "gids" || part == "gid_attrs")
}

/// Makes a folder have these files and no others. Returns false if it has them already. Programs find the old files or the new ones, and
/// never a part of both.
pub(super) fn replace(folder: &Path, files: &Files) -> io::Result<bool> {
    if read(folder).is_ok_and(|present| present == *files) {
        return Ok(false);
    }
    let parent = folder.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(parent)?;
    let new = tempfile::Builder::new().prefix(".new-").tempdir_in(parent)?;
    fs::set_permissions(new.path(), PermissionsExt::from_mode(0o755))?; // Any program may look for devices.
    write(new.path(), files)?;
    match renameat_with(CWD, new.path(), CWD, folder, RenameFlags::EXCHANGE) {
        // The old folder has the temporary name now.
        Ok(()) => new.close()?,
        Err(rustix::io::Errno::NOENT) => fs::rename(new.keep(), folder)?,
        Err(error) => return Err(error.into()),
    }
    Ok(true)
}

fn write(folder: &Path, files: &Files) -> io::Result<()> {
    for (path, text) in files {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap_or(folder))?;
        fs::write(path, text)?;
    }
    Ok(())
}

/// Reads all files below a folder.
fn read(folder: &Path) -> io::Result<Files> {
    let (mut files, mut folders) = (Files::new(), vec![folder.to_owned()]);
    while let Some(of) = folders.pop() {
        for entry in fs::read_dir(&of)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(below) = path.strip_prefix(folder) {
                files.insert(below.to_owned(), fs::read_to_string(&path)?);
            }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use isthmus_report::VerbsGidRow;

    use super::*;

    fn report(gids: &[(&str, Option<&str>)]) -> VerbsReport {
        let gid = |(index, (gid, interface)): (usize, &(&str, Option<&str>))| VerbsGidRow {
            index: index as u32,
            gid: (*gid).to_owned(),
            interface: interface.map(str::to_owned),
            kind: "RoCE v2".to_owned(),
        };
        VerbsReport {
            schema: 1,
            enabled: true,
            device: "isthmus0".to_owned(),
            node_guid: "0211:2233:4455:6677".to_owned(),
            gids: gids.iter().enumerate().map(gid).collect(),
            hidden: None,
            domains: Vec::new(),
        }
    }

    #[test]
    fn files_have_one_line_each() {
        let gids = [("fe80:…", None), ("…:0001", Some("eth0")), ("…:0002", Some("gone0"))];
        let files = files(&report(&gids), |interface| interface == "eth0");
        let text: String = files.iter().map(|(path, text)| format!("{}: {text}", path.display())).collect();
        insta::assert_snapshot!("sysfs", text);
    }

    #[test]
    fn difference_is_a_file_but_not_an_interface() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("sys");
        assert!(difference(&folder, &report(&[])).is_err(), "no folder");
        let before = report(&[("a", None), ("b", Some("eth0"))]);
        replace(&folder, &files(&before, |_| true)).unwrap();
        assert_eq!(difference(&folder, &before).unwrap(), None);
        assert_eq!(difference(&folder, &report(&[("a", None), ("b", Some("eth1"))])).unwrap(), None);
        let gid = |index: u32| Some(PathBuf::from(format!("class/infiniband/isthmus0/ports/1/gids/{index}")));
        assert_eq!(difference(&folder, &report(&[("x", None), ("b", None)])).unwrap(), gid(0));
        for changed in [&[("a", None)][..], &[("a", None), ("b", None), ("c", None)]] {
            assert!(difference(&folder, &report(changed)).unwrap().is_some(), "{changed:?}");
        }
    }

    #[test]
    fn files_that_are_right_keep_their_times() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("verbs/sys");
        let files = |gids: &[(&str, Option<&str>)]| files(&report(gids), |_| true);
        let of = || fs::metadata(folder.join("class/infiniband/isthmus0")).map(|found| found.ino());
        assert!(replace(&folder, &files(&[("a", None)])).unwrap());
        let first = of().unwrap();
        assert!(!replace(&folder, &files(&[("a", None)])).unwrap());
        assert_eq!(of().unwrap(), first);
        assert!(replace(&folder, &files(&[("b", None), ("c", None)])).unwrap());
        assert!(replace(&folder, &files(&[("b", None)])).unwrap(), "a GID that is gone");
        assert!(read(&folder).unwrap() == files(&[("b", None)]));
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o755);
        let beside = fs::read_dir(folder.parent().unwrap()).unwrap().count();
        assert_eq!(beside, 1, "no temporary folder is left");
    }
}
