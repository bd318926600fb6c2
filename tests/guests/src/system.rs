//! What a guest finds when it starts: our programs with the libraries they load, a busybox, and `guest/init`.
//!
//! ```text
//!  /init  /bin/busybox  /bin/{isthmusd,isthmus,mx_…}  /lib/{libmyriexpress,libc,…}  /modules  /etc/isthmusd.toml
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use isthmus_mx_tests::build;
use isthmus_testbed::binary;

use crate::cpio::Archive;
use crate::kit::Kit;

/// The C programs that guests run.
const EXAMPLES: [&str; 2] = ["mx_pingpong", "mx_stream"];

const INIT: &[u8] = include_bytes!("../guest/init");

/// What differs between guests.
#[derive(Debug)]
pub(crate) struct Content<'a> {
    /// The daemon's configuration.
    pub(crate) config: &'a str,
    /// What is in `/bin`, beside the busybox.
    pub(crate) programs: Vec<PathBuf>,
    /// What is in `/modules` and not loaded by itself.
    pub(crate) modules: Vec<PathBuf>,
}

/// Writes the archive that the kernel unpacks. `folder` is for what is on the way.
pub(crate) fn write(kit: &Kit, content: &Content<'_>, folder: &Path, to: &Path) {
    let mut archive = Archive::default();
    for path in ["bin", "lib", "lib64", "modules", "etc"] {
        archive.folder(path);
    }
    archive.file("init", INIT);
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
    for program in &content.programs {
        archive.file(&format!("bin/{}", name(program)), &stripped(program, folder));
        libraries.extend(loaded(program));
    }
    for (inside, outside) in libraries {
        archive.file(&inside, &stripped(&outside, folder));
    }
    fs::write(to, archive.finish()).unwrap_or_else(|error| panic!("{}: {error}", to.display()));
}

/// Ours as the other suites use them; or those of `$ISTHMUS_BIN_DIR`.
pub(crate) fn programs() -> Vec<PathBuf> {
    let ours = ["isthmusd", "isthmus"];
    let ours = ours.map(|program| binary(program, program).unwrap_or_else(|error| panic!("{error}")));
    let built = std::env::var_os("ISTHMUS_BIN_DIR").map(PathBuf::from);
    let examples = EXAMPLES.map(|example| match &built {
        Some(folder) => folder.join(example),
        None => build::example(example),
    });
    ours.into_iter().chain(examples).collect()
}

/// What the loader would map for a program: where a guest has it, and where we have it.
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

/// A file without what only debuggers read: it would fill a guest's memory.
pub(crate) fn stripped(path: &Path, folder: &Path) -> Vec<u8> {
    let copy = folder.join("stripped");
    let mut objcopy = Command::new("objcopy");
    objcopy.arg("--strip-all").arg(path).arg(&copy);
    build::done(&mut objcopy);
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
