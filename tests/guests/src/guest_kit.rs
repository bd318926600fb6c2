//! The parts of a guest: QEMU, a kernel and a busybox of Debian, which `scripts/setup guests` puts into `target/guests`.
//!
//! The kernel is the one for clouds: it is small, has virtio, and unpacks quickly, because its image is made with LZ4. A second kernel is
//! that of Debian's backports, if there is one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use isthmus_testbed::{run_tool, workspace_root};

/// Modules that a guest needs, in the order in which it loads them. Some kernels have some of them built in.
const MODULES: [&str; 8] = [
    "virtio_ring",
    "virtio",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "failover",
    "net_failover",
    "virtio_net",
];

pub(crate) const QEMU: &str = "/usr/bin/qemu-system-x86_64";

/// The parts of a guest, as they are on this machine.
#[derive(Debug)]
pub struct GuestKit {
    pub(crate) qemu: PathBuf,
    pub(crate) busybox: PathBuf,
    pub(crate) kernel: PathBuf,
    pub(crate) modules: Vec<PathBuf>,
    /// The nice value of guests, so that other work on this machine goes first.
    pub(crate) nice: u32,
    headers: PathBuf,
    release: String,
}

impl GuestKit {
    /// Finds the parts. The error names the missing one.
    pub fn find() -> Result<Self, String> {
        Self::with("kernel", "headers")
    }

    /// Finds the parts, with the kernel of backports.
    pub fn backported() -> Result<Self, String> {
        Self::with("backports-kernel", "backports-headers")
    }

    /// Finds the parts, with the kernel and the headers in these folders.
    fn with(kernel: &str, headers: &str) -> Result<Self, String> {
        let folder = workspace_root().join("target/guests");
        if let Ok(why) = fs::read_to_string(folder.join(kernel).join("lacking")) {
            return Err(why.trim_end().to_owned());
        }
        let needed = |path: PathBuf| match path.is_file() {
            true => Ok(path),
            false => Err(missing(&path)),
        };
        let qemu = needed(QEMU.into())?;
        let busybox = needed(folder.join("busybox/bin/busybox"))?;
        let boot = folder.join(kernel).join("boot");
        let files = fs::read_dir(&boot).map_err(|_| missing(&boot))?;
        let mut names = files.flatten().filter_map(|file| file.file_name().into_string().ok());
        let release = names.find_map(|name| name.strip_prefix("vmlinuz-").map(str::to_owned));
        let release = release.ok_or_else(|| missing(&boot.join("vmlinuz")))?;
        let modules = modules(&folder.join(kernel).join("lib/modules").join(&release), &MODULES)?;
        let headers = folder.join(headers).join("usr/src").join(format!("linux-headers-{release}"));
        let kernel = boot.join(format!("vmlinuz-{release}"));
        Ok(Self { qemu, busybox, kernel, modules, nice: 10, headers, release })
    }

    /// Builds the driver of `kmod/` for the guests' kernel, in a folder below this one. The error says what is missing.
    pub fn driver(&self, folder: &Path) -> Result<PathBuf, String> {
        if !self.headers.is_dir() {
            return Err(missing(&self.headers));
        }
        let built = folder.join(format!("kmod-{}", self.release));
        fs::create_dir_all(&built).expect("a folder in our folder");
        for entry in fs::read_dir(workspace_root().join("kmod")).expect("the driver's sources").flatten() {
            if entry.path().extension().is_none_or(|extension| extension == "c" || extension == "h") {
                fs::copy(entry.path(), built.join(entry.file_name())).expect("a file in our folder");
            }
        }
        let mut make = Command::new("make");
        // Without debug information, which needs that of the kernel, and tools.
        make.arg("-C").arg(&built).arg(format!("KDIR={}", self.headers.display()));
        make.args(["W=1", "CONFIG_DEBUG_INFO_BTF_MODULES="]);
        run_tool(&mut make);
        Ok(built.join("isthmus.ko"))
    }

    /// Makes guests run at normal priority, for measurements.
    pub fn eager(self) -> Self {
        Self { nice: 0, ..self }
    }

    /// Describes the guests in a few words.
    pub fn describe(&self) -> String {
        format!("{}, TCG, one Nehalem, 512 MiB, Linux {}", version(&self.qemu), self.release)
    }

    /// Returns the version of the guests' kernel.
    pub fn release(&self) -> &str {
        &self.release
    }
}

/// Returns the version of QEMU.
pub(crate) fn version(qemu: &Path) -> String {
    let output = Command::new(qemu).arg("--version").output();
    let said = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    format!("QEMU {}", said.split_whitespace().nth(3).unwrap_or("of some version"))
}

pub(crate) fn missing(path: &Path) -> String {
    let path = path.strip_prefix(workspace_root()).unwrap_or(path);
    format!("{} is not there: `make test-guests` fetches what guests need", path.display())
}

/// Returns the files of those modules that are not built into the kernel.
pub(crate) fn modules(folder: &Path, wanted: &[&str]) -> Result<Vec<PathBuf>, String> {
    let list = |name: &str| {
        let path = folder.join(name);
        fs::read_to_string(&path).map_err(|_| missing(&path))
    };
    let (separate, built_in) = (list("modules.order")?, list("modules.builtin")?);
    let mut files = Vec::new();
    for module in wanted {
        let named = |path: &&str| path.ends_with(&format!("/{module}.ko"));
        match separate.lines().find(named) {
            Some(path) => files.push(folder.join(path)),
            None if built_in.lines().any(|path| named(&path)) => {}
            None => return Err(format!("the kernel in {} has no {module}", folder.display())),
        }
    }
    Ok(files)
}
