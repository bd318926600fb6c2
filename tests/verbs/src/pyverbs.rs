//! The suite of pyverbs, which Debian packages as documentation, some of its files packed.

use std::fs;
use std::path::Path;
use std::process::Command;

use isthmus_testbed::run_tool;

use crate::build::{folder, install};
use crate::container::PROGRAMS;

/// Where the package python3-pyverbs has the suite.
const SUITE: &str = "/usr/share/doc/rdma-core/tests";

/// The paths in containers of `pyverbs/run.py` and of the folder with the suite. None, with the reason on standard error, where the package
/// is not installed.
pub fn pyverbs_suite() -> Option<[String; 2]> {
    let Ok(files) = fs::read_dir(SUITE) else {
        eprintln!("skipped: there is no {SUITE}; it comes with the package python3-pyverbs");
        return None;
    };
    let tests = folder().join("pyverbs/tests");
    fs::create_dir_all(&tests).expect("a folder in the target directory");
    for file in files {
        unpack(&file.expect("a folder that can be read").path(), &tests);
    }
    install(&Path::new(env!("CARGO_MANIFEST_DIR")).join("pyverbs/run.py"), &folder().join("pyverbs/run.py"));
    Some(["pyverbs/run.py", "pyverbs"].map(|path| format!("{PROGRAMS}/{path}")))
}

/// Puts a file of the suite into a folder, unpacked.
fn unpack(file: &Path, folder: &Path) {
    let name = file.file_name().expect("a file of a folder has a name");
    if file.extension().is_none_or(|extension| extension != "gz") {
        return install(file, &folder.join(name));
    }
    let text = run_tool(Command::new("gzip").arg("-dc").arg(file));
    let unpacked = folder.join(name).with_extension(format!("gz.{}", std::process::id()));
    fs::write(&unpacked, text).expect("a file in the target directory");
    install(&unpacked, &folder.join(name).with_extension(""));
    fs::remove_file(&unpacked).expect("it was written");
}
