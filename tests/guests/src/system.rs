//! The file system of a guest: our programs with their libraries, a busybox, and `guest/init`.
//!
//! ```text
//!  /init  /bin/busybox  /bin/{isthmusd,isthmus,mx_…}  /lib/{libmyriexpress,libc,…}  /modules  /etc/isthmusd.toml
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use isthmus_mx_tests::build;
use isthmus_testbed::{binary, run_tool};

use crate::cpio::Archive;
use crate::guest_kit::GuestKit;

/// The example programs in C that guests run.
const EXAMPLES: [&str; 3] = ["mx_measure", "mx_pingpong", "mx_stream"];

const INIT: &[u8] = include_bytes!("../guest/init");

/// The content that differs between guests.
#[derive(Debug)]
pub(crate) struct Content<'a> {
    /// The daemon's configuration.
    pub(crate) config: &'a str,
    /// The programs in `/bin`, besides the busybox.
    pub(crate) programs: Vec<PathBuf>,
    /// The modules in `/modules` that are not loaded at boot.
    pub(crate) modules: Vec<PathBuf>,
    /// Additional content.
    pub(crate) extra: &'a Extra,
}

/// Additional content of some guests.
#[derive(Debug, Default)]
pub struct Extra {
    /// Programs in `/bin`, with their libraries in `/lib`.
    pub programs: Vec<PathBuf>,
    /// Libraries that are found by their path: the path in the guest, and the path here. The libraries that they load are in `/lib`.
    pub libraries: Vec<(String, PathBuf)>,
    /// The paths and contents of further files.
    pub files: Vec<(String, Vec<u8>)>,
}

/// Writes the archive that the kernel unpacks. `folder` is for temporary files.
pub(crate) fn write(kit: &GuestKit, content: &Content<'_>, folder: &Path, to: &Path) {
    let mut archive = Archive::default();
    for path in ["bin", "lib", "lib64", "modules", "etc"] {
        archive.folder(path);
    }
    archive.file("init", INIT);
    archive.file("measure", include_bytes!("../guest/measure"));
    archive.file("etc/isthmusd.toml", content.config.as_bytes());
    archive.file("bin/busybox", &read(&kit.busybox));
    let mut order = String::new();
    for module in &kit.modules {
        archive.file(&format!("modules/{}", name(module)), &read(module));
        order += &format!("{}\n", name(module));
    }
    archive.file("modules/order", order.as_bytes());
    for module in &content.modules {
        archive.file(&format!("modules/{}", name(module)), &read(module));
    }
    let mut libraries = BTreeMap::new();
    for program in content.programs.iter().chain(&content.extra.programs) {
        archive.file(&format!("bin/{}", name(program)), &stripped(program, folder));
        libraries.extend(loaded(program));
    }
    let (found, written) = (&content.extra.libraries, &content.extra.files);
    for inside in above(found.iter().map(|(inside, _)| inside).chain(written.iter().map(|(inside, _)| inside))) {
        archive.folder(&inside);
    }
    for (inside, outside) in found {
        archive.file(inside, &read(outside));
        libraries.extend(loaded(outside));
    }
    for (inside, bytes) in written {
        archive.file(inside, bytes);
    }
    for (inside, outside) in libraries {
        archive.file(&inside, &stripped(&outside, folder));
    }
    fs::write(to, archive.finish()).unwrap_or_else(|error| panic!("{}: {error}", to.display()));
}

/// Returns the folders that contain files, outer ones first.
fn above<'a>(files: impl Iterator<Item = &'a String>) -> BTreeSet<String> {
    let folders = files.flat_map(|file| Path::new(file).ancestors().skip(1));
    folders.map(|folder| folder.display().to_string()).filter(|folder| !folder.is_empty()).collect()
}

/// Returns our programs, as the other suites use them, or those of `$ISTHMUS_BIN_DIR`.
pub(crate) fn programs() -> Vec<PathBuf> {
    let ours = ["isthmusd", "isthmus"];
    let ours = ours.map(|program| binary(program, program).unwrap_or_else(|error| panic!("{error}")));
    ours.into_iter().chain(EXAMPLES.map(example)).collect()
}

/// Returns the path of a program of `examples/mx`, from the folder of the others.
pub fn example(name: &str) -> PathBuf {
    match std::env::var_os("ISTHMUS_BIN_DIR") {
        Some(folder) => Path::new(&folder).join(name),
        None => build::example(name),
    }
}

/// Returns the libraries that the loader maps for a program: the path in the guest, and the path here.
pub(crate) fn loaded(program: &Path) -> BTreeMap<String, PathBuf> {
    let output = Command::new("ldd").arg(program).output().expect("ldd comes with the C library");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !said.contains("not found"), "ldd {}: {said}", program.display());
    let mut found = BTreeMap::new();
    for line in said.lines() {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            [library, "=>", path, _] => drop(found.insert(format!("lib/{library}"), path.into())),
            // The loader itself, which programs name by its path.
            [path, _] if path.starts_with('/') => drop(found.insert(path[1..].to_owned(), path.into())),
            _ => {} // The kernel's own.
        }
    }
    found
}

/// Returns a file without its debug information, which would fill a guest's memory.
pub(crate) fn stripped(path: &Path, folder: &Path) -> Vec<u8> {
    let copy = folder.join("stripped");
    let mut objcopy = Command::new("objcopy");
    objcopy.arg("--strip-all").arg(path).arg(&copy);
    run_tool(&mut objcopy);
    let bytes = read(&copy);
    fs::remove_file(copy).expect("a file in our folder");
    bytes
}

pub(crate) fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) fn name(path: &Path) -> String {
    path.file_name().expect("the path of a file").to_string_lossy().into_owned()
}
