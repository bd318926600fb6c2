//! The files of a folder that stands for `/sys`, as libibverbs and librdmacm read them.
//!
//! ```text
//! class/infiniband_verbs/abi_version, uverbs0/…     the file in /dev/infiniband, and the device that belongs to it
//! class/misc/rdma_cm/…                              the file in /dev/infiniband that librdmacm opens
//! class/infiniband/isthmus0/…                       the device: identity, port 1, its GIDs with their types and interfaces
//! ```
//!
//! libibverbs takes the modification time of the device's folder for the identity of the device. So files that are right stay as they
//! are, and others are replaced all at once.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use isthmus_layout::verbs::{DEVICE, GID_KIND};

use super::device::Device;
use super::enable::DEVICE_FILES;
use super::folder::{Files, Folder};
use crate::run::DeviceFile;

/// The folders of the device files.
pub(super) const UVERBS: &str = "class/infiniband_verbs/uverbs0";
const RDMA_CM: &str = "class/misc/rdma_cm";

/// Returns the files of a device. An interface is named only if it exists for this process: libibverbs refuses a GID with an interface
/// that it does not find.
pub(super) fn files(device: &Device, has_interface: impl Fn(&str) -> bool) -> Files {
    let mut files = Files::new();
    let mut add = |path: String, line: &str| drop(files.insert(path.into(), format!("{line}\n")));
    add("class/infiniband_verbs/abi_version".to_owned(), "6");
    add(format!("{UVERBS}/ibdev"), DEVICE);
    for (DeviceFile { number: (major, minor), .. }, (folder, version)) in
        DEVICE_FILES.iter().zip([(UVERBS, "1"), (RDMA_CM, "4")])
    {
        add(format!("{folder}/dev"), &format!("{major}:{minor}"));
        add(format!("{folder}/abi_version"), version);
    }
    let (folder, node_guid) = (format!("class/infiniband/{DEVICE}"), device.node_guid());
    for (name, line) in [
        ("node_type", "1: CA"),
        ("node_guid", &node_guid),
        ("sys_image_guid", &node_guid),
        ("node_desc", DEVICE),
        ("ports/1/link_layer", "Ethernet"),
        ("ports/1/state", "4: ACTIVE"),
        ("ports/1/phys_state", "5: LinkUp"),
        ("ports/1/pkeys/0", "0xffff"),
    ] {
        add(format!("{folder}/{name}"), line);
    }
    for (index, gid) in device.gids.iter().enumerate() {
        add(format!("{folder}/ports/1/gids/{index}"), &gid.full());
        add(format!("{folder}/ports/1/gid_attrs/types/{index}"), GID_KIND);
        let interface = gid.interface.as_ref().map(|interface| interface.as_str());
        if let Some(interface) = interface.filter(|interface| has_interface(interface)) {
            add(format!("{folder}/ports/1/gid_attrs/ndevs/{index}"), interface);
        }
    }
    files
}

/// Returns a file that is not as the device's, one of a GID only if all others are right. Names of interfaces are left out, because a container has others.
pub(super) fn difference(folder: &Path, device: &Device) -> Result<Option<PathBuf>> {
    let (present, expected) = (Folder::open(folder)?.read()?, files(device, |_| false));
    let is_interface = |path: &Path| path.parent().is_some_and(|folder| folder.ends_with("gid_attrs/ndevs"));
    let paths = present.keys().chain(expected.keys()).filter(|path| !is_interface(path));
    let different = paths.filter(|path| present.get(*path) != expected.get(*path));
    Ok(different.min_by_key(|path| is_of_gid(path)).cloned())
}

/// Returns whether a file is about a GID.
pub(super) fn is_of_gid(path: &Path) -> bool {
    path.iter().any(|part| part == "gids" || part == "gid_attrs")
}

/// Makes a folder have these files and no others. Returns false if it has them already.
pub(super) fn replace(folder: &Path, files: &Files) -> Result<bool> {
    let name = folder.file_name().and_then(|name| name.to_str()).context("the path has no name")?;
    let parent = Folder::make(folder.parent().context("the path has no parent folder")?)?;
    if parent.below(name).and_then(Folder::read).is_ok_and(|present| present == *files) {
        return Ok(false);
    }
    parent.replace(name, files)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::super::device::tests::report;
    use super::*;

    fn device(gids: &[(&str, Option<&str>)]) -> Device {
        Device::parse(&report(gids)).unwrap()
    }

    #[test]
    fn files_have_one_line_each() {
        let device = device(&[("0", None), ("1", Some("eth0")), ("2", Some("gone0"))]);
        let files = files(&device, |interface| interface == "eth0");
        let text: String = files.iter().map(|(path, text)| format!("{}: {text}", path.display())).collect();
        insta::assert_snapshot!("sysfs", text);
    }

    #[test]
    fn difference_is_a_file_but_not_an_interface() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("sys");
        assert!(difference(&folder, &device(&[])).is_err(), "no folder");
        let before = device(&[("a", None), ("b", Some("eth0"))]);
        replace(&folder, &files(&before, |_| true)).unwrap();
        assert_eq!(difference(&folder, &before).unwrap(), None);
        assert_eq!(difference(&folder, &device(&[("a", None), ("b", Some("eth1"))])).unwrap(), None);
        let gid = |index: u32| Some(PathBuf::from(format!("class/infiniband/isthmus0/ports/1/gids/{index}")));
        assert_eq!(difference(&folder, &device(&[("f", None), ("b", None)])).unwrap(), gid(0));
        for changed in [&[("a", None)][..], &[("a", None), ("b", None), ("c", None)]] {
            assert!(difference(&folder, &device(changed)).unwrap().is_some(), "{changed:?}");
        }
        std::os::unix::fs::symlink(scratch.path(), folder.join("class/link")).unwrap();
        let error = difference(&folder, &before).unwrap_err();
        assert!(format!("{error:#}").contains("class/link"), "{error:#}");
    }

    #[test]
    fn files_that_are_right_keep_their_times() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("verbs/sys");
        let files = |gids: &[(&str, Option<&str>)]| files(&device(gids), |_| true);
        let of = || fs::metadata(folder.join("class/infiniband/isthmus0")).map(|found| found.ino());
        assert!(replace(&folder, &files(&[("a", None)])).unwrap());
        let first = of().unwrap();
        assert!(!replace(&folder, &files(&[("a", None)])).unwrap());
        assert_eq!(of().unwrap(), first);
        assert!(replace(&folder, &files(&[("b", None), ("c", None)])).unwrap());
        assert!(replace(&folder, &files(&[("b", None)])).unwrap(), "a GID that is gone");
        assert!(Folder::open(&folder).unwrap().read().unwrap() == files(&[("b", None)]));
    }
}
