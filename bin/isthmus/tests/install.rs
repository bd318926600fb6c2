//! `packaging/install` with files that stand for what `make build` makes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

const PREFIX: &str = "/usr/local";

/// The files of the source tree that are installed. Without the version scripts, the other libraries are not linked.
const SOURCES: [&str; 8] = [
    "abi/myriexpress/include",
    "kmod",
    "packaging/network",
    "packaging/systemd",
    "packaging/sysusers.d",
    "packaging/wireshark",
    "packaging/isthmus.toml",
    "CHANGELOG.md",
];

/// The libraries of capabilities that an installation has to have.
const LIBRARIES: [&str; 3] = ["libisthmus-sockets.so.0", "libisthmus-rdmav34.so", "libisthmus-verbs.so.0"];

/// A source tree after `make build`, and the folder of an installation.
struct Tree {
    folder: TempDir,
}

/// Copies a program with another one: a child of another test would hold a file open that this process writes, and it could not
/// be started.
fn copy(program: &Path, to: &Path) {
    let copied = Command::new("cp").args([program, to]).status();
    assert!(copied.expect("cp is installed").success(), "{}", program.display());
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

impl Tree {
    fn built() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let tree = Self { folder };
        for source in SOURCES.into_iter().chain(["LICENSE-APACHE", "LICENSE-MIT"]) {
            let link = tree.file(source);
            symlink(root().join(source), &link).expect("the folder is new");
        }
        copy(&root().join("packaging/install"), &tree.file("packaging/install"));
        let isthmus = Path::new(env!("CARGO_BIN_EXE_isthmus"));
        copy(isthmus, &tree.file("target/release/isthmus"));
        for program in ["isthmusd", "isthmus-bench", "isthmus-helper"] {
            fs::copy("/bin/true", tree.file(&format!("target/release/{program}"))).expect("a program");
        }
        for library in LIBRARIES {
            fs::write(tree.file(&format!("target/release/{library}")), "a library").expect("the folder is ours");
        }
        tree
    }

    /// Returns a path below the tree, in a folder that exists.
    fn file(&self, below: &str) -> PathBuf {
        let file = self.folder.path().join(below);
        fs::create_dir_all(file.parent().expect("it lies in a folder")).expect("the folder is ours");
        file
    }

    fn installed(&self, below: &str) -> PathBuf {
        self.folder.path().join(format!("installed{PREFIX}")).join(below)
    }

    fn install(&self, options: &[&str]) -> Output {
        let mut script = Command::new(self.folder.path().join("packaging/install"));
        script.args(options).arg(self.folder.path().join("installed")).arg(PREFIX);
        script.output().expect("the script starts")
    }
}

#[track_caller]
fn expect_success(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn installed_isthmus_run_uses_sockets_until_they_are_removed() {
    let tree = Tree::built();
    expect_success(&tree.install(&[]));
    let library = tree.installed("lib/libisthmus-sockets.so");
    assert_eq!(fs::read_to_string(&library).expect("it is installed"), "a library");
    let mut run = Command::new(tree.installed("bin/isthmus"));
    let printed = expect_success(
        &run.args(["run", "--with", "sockets", "--dry-run", "--", "true"])
            .env_remove("LD_PRELOAD")
            .output()
            .expect("it starts"),
    );
    assert!(printed.contains(&format!("export LD_PRELOAD={} # ", library.display())), "{printed}");
    expect_success(&tree.install(&["--remove"]));
    assert_eq!(files(&tree.installed("")), Vec::<PathBuf>::new());
}

#[test]
fn installed_plug_in_of_verbs_lies_where_isthmus_run_looks() {
    let tree = Tree::built();
    expect_success(&tree.install(&[]));
    let device = tree.file("run/verbs/sys/class/infiniband_verbs/uverbs0/ibdev");
    fs::write(device, "isthmus0\n").expect("the folder is ours");
    let mut run = Command::new(tree.installed("bin/isthmus"));
    run.args(["run", "--dry-run", "--", "true"]).env("ISTHMUS_SOCKET", tree.file("run/isthmus.sock"));
    let printed = expect_success(&run.env_remove("IBV_DRIVERS").env_remove("SYSFS_PATH").output().expect("it starts"));
    let driver = tree.installed("lib/libisthmus");
    assert!(printed.contains(&format!("export IBV_DRIVERS={} # ", driver.display())), "{printed}");
    assert!(tree.installed("lib/libisthmus-rdmav34.so").is_file());
    assert!(tree.installed("lib/libisthmus-verbs.so").is_file());
}

/// The files that keep network managers from the interfaces of the helper, below the folder of the installation.
const NETWORK_FILES: [&str; 3] = [
    "lib/udev/rules.d/70-isthmus.rules",
    "lib/systemd/network/05-isthmus.link",
    "lib/systemd/network/05-isthmus.network",
];

#[test]
fn installation_has_the_helper_with_its_units_and_the_files_for_network_managers() {
    let tree = Tree::built();
    expect_success(&tree.install(&[]));
    assert!(tree.installed("bin/isthmus-helper").is_file());
    let read = |below: &str| fs::read_to_string(tree.installed(below)).expect("it is installed");
    let service = read("lib/systemd/system/isthmus-helper.service");
    assert!(service.contains(&format!("\nExecStart={PREFIX}/bin/isthmus-helper --connection-records\n")), "{service}");
    assert!(!service.contains("=@bindir@"), "{service}");
    let socket = read("lib/systemd/system/isthmus-helper.socket");
    assert!(socket.contains("\nSocketUser=isthmus\n") && socket.contains("\nSocketMode=0600\n"), "{socket}");
    assert!(read("lib/sysusers.d/isthmus.conf").contains("\nu isthmus "));
    let marked = NETWORK_FILES.map(|below| read(below).contains("ID_ISTHMUS"));
    assert_eq!(marked, [true; 3]);
    let allowed = read("share/isthmus/systemd/other-hosts.conf");
    assert!(allowed.contains("\n[Service]\n") && allowed.contains("\nIPAddressAllow="), "{allowed}");
    expect_success(&tree.install(&["--remove"]));
    assert_eq!(files(&tree.installed("")), Vec::<PathBuf>::new());
}

#[test]
fn installation_fails_without_the_library_of_a_capability() {
    for library in LIBRARIES {
        let tree = Tree::built();
        fs::remove_file(tree.file(&format!("target/release/{library}"))).expect("it was there");
        let output = tree.install(&[]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && stderr.contains(&format!("{library} is not there: make build")),
            "{stderr}"
        );
    }
}
