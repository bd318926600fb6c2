//! A guest with Debian, systemd and podman, in which Isthmus is installed as `make install` does it.
//!
//! ```text
//!  guest/systemd-root ──► target/guests/podman/root.ext4 ──► first disk, which each guest changes for itself
//!  packaging/install  ──► an archive                     ──► second disk
//! ```

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use isthmus_testbed::{Scratch, binary, link_library, run_tool, workspace_root};

use crate::cpio::Archive;
use crate::guest::Guest;
use crate::guest_kit::{self, GuestKit};
use crate::system::{name, read, stripped};

const PREFIX: &str = "/usr/local";

/// The sources that `packaging/install` copies. Without the version scripts, it links no libraries.
const SOURCES: [&str; 6] =
    ["CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT", "abi/myriexpress/include", "kmod", "packaging"];

const PROGRAMS: [&str; 4] = ["isthmus", "isthmusd", "isthmus-bench", "isthmus-helper"];

/// The libraries: the folder of the package, the file, and the folder in which `make build` puts it.
const LIBRARIES: [(&str, &str, &str); 5] = [
    ("abi/myriexpress", "libmyriexpress.so", "abi"),
    ("abi/libfabric", "libisthmus-fi.so", "abi"),
    ("abi/preload", "libisthmus-sockets.so", "release"),
    ("abi/ibverbs", "libisthmus-rdmav34.so", "release"),
    ("abi/ibverbs-preload", "libisthmus-verbs.so", "release"),
];

/// A guest with systemd. Dropping it ends QEMU and removes what the guest has written.
#[derive(Debug)]
pub struct SystemdGuest {
    /// The guest.
    pub guest: Guest,
    _scratch: Scratch,
}

impl SystemdGuest {
    /// Boots a guest, in which no service of Isthmus runs yet. `files` are put into `/test` there. The first call makes the disk, which takes
    /// minutes and needs Debian's archive. The error says what is missing.
    pub fn boot(kit: &GuestKit, files: &[(&str, &[u8])]) -> Result<Self, String> {
        let modules = workspace_root().join("target/guests/kernel/lib/modules").join(kit.release());
        let disk = disk(&modules)?;
        let scratch = Scratch::new().unwrap_or_else(|error| panic!("{error}"));
        let (early, installed) = (scratch.join("early.cpio"), scratch.join("installed.tar"));
        write_early(kit, &modules, &early)?;
        write_installed(files, &scratch, &installed);
        let drive = |file: &Path, how: &str| {
            ["-drive".to_owned(), format!("file={},if=virtio,format=raw,{how}", file.display())]
        };
        let drives = [drive(&disk, "snapshot=on,cache=unsafe"), drive(&installed, "readonly=on")].concat();
        // These options replace those of smaller guests.
        let larger = ["-smp", "2", "-m", "2048"].map(str::to_owned);
        let mut guest = Guest::boot(kit, 0, &early, &[drives.as_slice(), &larger].concat());
        let uptime_s = guest.ready();
        println!("# the guest with systemd is up after {uptime_s} s of its time");
        guest.run("tar -xf /dev/vdb -C / && ldconfig && systemctl daemon-reload && systemd-sysusers");
        Ok(Self { guest, _scratch: scratch })
    }
}

/// Returns the file of the first disk, which is made if this kernel or the script has changed.
fn disk(modules: &Path) -> Result<PathBuf, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest/systemd-root");
    let folder = workspace_root().join("target/guests/podman");
    let made_from = format!("{}\n{}{}", name(modules), text(&script), text(&script.with_file_name("orders")));
    let disk = folder.join("root.ext4");
    if disk.is_file() && fs::read_to_string(folder.join("made-from")).is_ok_and(|before| before == made_from) {
        return Ok(disk);
    }
    if !rustix::process::geteuid().is_root() {
        return Err("only root makes the disk of a guest with podman".to_owned());
    }
    for tool in ["/usr/bin/mmdebstrap", "/usr/sbin/mkfs.ext4"] {
        if !Path::new(tool).is_file() {
            return Err(format!("{tool} is not installed: `make test-guests` installs it"));
        }
    }
    println!("# making target/guests/podman, which takes minutes");
    let in_progress = folder.with_extension("incomplete");
    for folder in [&folder, &in_progress] {
        _ = fs::remove_dir_all(folder);
    }
    fs::create_dir_all(&in_progress).unwrap_or_else(|error| panic!("{}: {error}", in_progress.display()));
    let made = Command::new("nice").arg(&script).args([&in_progress, modules]).output();
    let made = made.unwrap_or_else(|error| panic!("{}: {error}", script.display()));
    if !made.status.success() {
        return Err(format!("no disk of a guest with podman: {}", String::from_utf8_lossy(&made.stderr).trim_end()));
    }
    fs::write(in_progress.join("made-from"), made_from).expect("a file in our folder");
    fs::rename(&in_progress, &folder).expect("both names are in one folder");
    Ok(disk)
}

/// Copies a library with its other names and its static form from the folder that `make build` fills.
fn copy_library(built: &Path, library: &str, to: &Path) {
    let stem = library.strip_suffix("so").expect("the name of a library");
    let files = fs::read_dir(built).unwrap_or_else(|error| panic!("{}: {error}", built.display()));
    for file in files.flatten().map(|file| file.path()).filter(|file| name(file).starts_with(stem)) {
        fs::copy(&file, to.join(name(&file))).expect("a file in our folder");
    }
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Writes the archive that the kernel unpacks. It mounts the disk.
fn write_early(kit: &GuestKit, modules: &Path, to: &Path) -> Result<(), String> {
    let mut archive = Archive::default();
    for path in ["bin", "dev", "disk", "modules", "proc"] {
        archive.folder(path);
    }
    archive.file("init", include_bytes!("../guest/systemd-init"));
    archive.file("bin/busybox", &read(&kit.busybox));
    let mut order = String::new();
    for module in kit.modules.iter().chain(&guest_kit::modules(modules, &["virtio_blk", "ext4"])?) {
        archive.file(&format!("modules/{}", name(module)), &read(module));
        order += &format!("{}\n", name(module));
    }
    archive.file("modules/order", order.as_bytes());
    fs::write(to, archive.finish()).unwrap_or_else(|error| panic!("{}: {error}", to.display()));
    Ok(())
}

/// Writes the archive of an installation, made from a source tree after `make build`.
fn write_installed(files: &[(&str, &[u8])], scratch: &Scratch, to: &Path) {
    let (tree, installed) = (scratch.join("tree"), scratch.join("installed"));
    let place = |folder: &Path, below: &str| {
        let path = folder.join(below);
        fs::create_dir_all(path.parent().expect("it lies in a folder")).expect("a folder in our folder");
        path
    };
    for source in SOURCES {
        symlink(workspace_root().join(source), place(&tree, source)).expect("the folder is new");
    }
    let permit = |path: &Path| run_tool(Command::new("chmod").arg("755").arg(path));
    for program in PROGRAMS {
        let path = place(&tree, &format!("target/release/{program}"));
        let built = binary(program, program).unwrap_or_else(|error| panic!("{error}"));
        fs::write(&path, stripped(&built, scratch.path())).expect("a file in our folder");
        permit(&path);
    }
    for (package, library, folder) in LIBRARIES {
        let path = place(&tree, &format!("target/{folder}/{library}"));
        let folder = path.parent().expect("it lies in a folder");
        match std::env::var_os("ISTHMUS_BIN_DIR") {
            Some(built) => copy_library(Path::new(&built), library, folder),
            None => link_library(package, library, folder),
        }
    }
    run_tool(Command::new(tree.join("packaging/install")).arg(&installed).arg(PREFIX));
    for (name, content) in files {
        fs::write(place(&installed, &format!("test/{name}")), content).expect("a file in our folder");
    }
    run_tool(Command::new("tar").args(["--owner=0", "--group=0", "-cf"]).arg(to).arg("-C").arg(&installed).arg("."));
}
