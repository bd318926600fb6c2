//! A machine of QEMU with Xen. Domain 0 runs commands from a serial line. It starts guests, and runs commands in them by their consoles.
//!
//! ```text
//!  ┌ QEMU ─────────────────────────────────────────────────────────┐
//!  │ ┌ domain 0 ─────────────────┐  ┌ a ────────┐  ┌ b ────────┐   │
//!  │ │ xl, xenstored             │  │ xen-test-agent  │  │ xen-test-agent  │   │
//!  │ │ isthmusd, mx_…            │  │ isthmusd, mx_…           │   │
//!  │ │ xen-test-agent      consoles ───┼──┤ hvc0      │  │           │   │
//!  │ └───────▲───────────────────┘  └───────────┘  └───────────┘   │
//!  │         │ second serial line        Xen                       │
//!  └─────────┼─────────────────────────────────────────────────────┘
//!       XenMachine
//! ```
//!
//! Xen, its tools and a kernel come from Debian's packages (`scripts/setup guests`).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use isthmus_testbed::{Launch, Scratch, run_tool, short_or_long, workspace_root};

use crate::cpio::Archive;
use crate::guest_kit::{self, missing};
use crate::shell::{CommandOutput, Shell};
use crate::system::{loaded, name, programs, read, stripped};

/// Modules that each domain needs, in the order in which it loads them.
const MODULES: [&str; 5] = ["xen-privcmd", "xenfs", "xen-evtchn", "xen-gntdev", "xen-gntalloc"];

/// Modules for cards, which are loaded on request: those of domain 0, in order, and those of a guest.
const BRIDGE: [&str; 4] = ["llc", "stp", "bridge", "xen-netback"];
const CARD: [&str; 1] = ["xen-netfront"];

/// Xen's programs that domain 0 needs, from any folder of their packages.
const TOOLS: [&str; 11] = [
    "xl",
    "libxl-save-helper",
    "xenstored",
    "xenconsoled",
    "xen-init-dom0",
    "xenstore-read",
    "xenstore-write",
    "xenstore-chmod",
    "xenstore-rm",
    "xenstore-ls",
    "xenstore-exists",
];

/// The processor. It has no AVX, because some versions of QEMU confuse AVX registers between processes of Xen's domains, and programs of
/// guests then crash. It has no SMAP, which crashes domain 0 in QEMU before 9.1. It has SVM, for PVH guests, and no RDTSCP, which QEMU reports
/// inconsistently to Xen when such a guest uses it.
const CPU: &str = "phenom,-rdtscp";

/// The command lines of Xen and of domain 0's kernel. They disable what is slow on an emulated processor. Messages go to the first serial
/// line. Xen's report of grants has a line for each page. Domain 0 unpacks its files, 140 MB, to half of the memory that the kernel leaves.
const XEN: &str = "console=com1 com1=115200,8n1 conring_size=1m loglvl=warning guest_loglvl=warning dom0_mem=768M,max:768M spec-ctrl=no";
const DOM0: &str = "console=hvc0 quiet mitigations=off nowatchdog random.trust_cpu=on";

/// The parts of a machine with Xen, as found on this machine.
#[derive(Debug)]
pub struct XenKit {
    qemu: PathBuf,
    xen: PathBuf,
    kernel: PathBuf,
    busybox: PathBuf,
    modules: Vec<PathBuf>,
    /// The modules for cards of domain 0, and those of a guest.
    cards: [Vec<PathBuf>; 2],
    tools: Vec<PathBuf>,
    /// The folders of the tools' libraries.
    libraries: [PathBuf; 2],
    /// Further programs of guests.
    programs: Vec<PathBuf>,
    /// The number of processors of the machine.
    processors: u32,
    /// Whether the machine runs at normal priority.
    eager: bool,
    /// The versions of Xen and of the kernel.
    pub versions: String,
}

impl XenKit {
    /// Finds the parts. The error names the missing one.
    pub fn find() -> Result<Self, String> {
        let folder = workspace_root().join("target/guests");
        let needed = |path: PathBuf| if path.is_file() { Ok(path) } else { Err(missing(&path)) };
        let (packages, kernel) = (folder.join("xen"), folder.join("xen-kernel"));
        let qemu = needed(guest_kit::QEMU.into())?;
        let busybox = needed(folder.join("busybox/bin/busybox"))?;
        let xen = needed(packages.join("boot/xen"))?;
        let modules = only_folder(&kernel.join("lib/modules"))?;
        let version = only_folder(&packages.join("usr/lib/xen-*"))?;
        let places = [version.join("bin"), packages.join("usr/bin"), packages.join("usr/sbin")];
        let tool = |tool: &&str| {
            let found = places.iter().map(|place| place.join(tool)).find(|path| path.is_file());
            found.ok_or_else(|| missing(&places[0].join(tool)))
        };
        let tools = TOOLS.iter().map(tool).collect::<Result<_, _>>()?;
        let libraries = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"].map(|path| packages.join(path));
        let versions = format!("{}, Linux {}", name(&version), name(&modules));
        let cards = [guest_kit::modules(&modules, &BRIDGE)?, guest_kit::modules(&modules, &CARD)?];
        let modules = guest_kit::modules(&modules, &MODULES)?;
        let kernel = needed(kernel.join("boot/vmlinux"))?;
        let (programs, processors, eager) = (Vec::new(), 1, false);
        Ok(Self { qemu, xen, kernel, busybox, modules, cards, tools, libraries, programs, processors, eager, versions })
    }

    /// Adds further programs to guests.
    pub fn with(self, programs: Vec<PathBuf>) -> Self {
        Self { programs, ..self }
    }

    /// Sets the number of processors and runs the machine at normal priority, for measurements.
    pub fn eager(self, processors: u32) -> Self {
        Self { processors, eager: true, ..self }
    }

    /// Describes the domains in a few words.
    pub fn describe(&self) -> String {
        let processors = self.processors;
        format!(
            "{} in {}, TCG, {processors} processors phenom; PV, 192 MiB each",
            self.versions,
            guest_kit::version(&self.qemu)
        )
    }

    /// Writes the file system of domain 0, which contains that of guests. `folder` is for temporary files.
    fn write(&self, folder: &Path) -> PathBuf {
        let mut ours = programs();
        let statics = if self.eager || short_or_long(true, false) {
            linked_statically(&["isthmus-xen-test-agent"])
        } else {
            // As they are packaged for guests. Building them takes minutes.
            let statics = linked_statically(&["isthmus-xen-test-agent", "isthmusd", "isthmus"]);
            for program in &mut ours {
                let packaged = statics.join(name(program));
                if packaged.is_file() {
                    *program = packaged;
                }
            }
            statics
        };
        let side = stripped(&statics.join("xen-test-agent"), folder);
        let common = |init: &[u8], cards: &[PathBuf]| {
            let mut archive = Archive::default();
            for path in ["bin", "lib", "lib64", "modules", "guest", "etc", "etc/xen", "var", "var/lib", "var/log"] {
                archive.folder(path);
            }
            archive.folder("var/log/xen");
            archive.file("init", init);
            archive.file("orders", include_bytes!("../guest/xen-orders"));
            archive.file("bin/busybox", &read(&self.busybox));
            archive.file("bin/xen-test-agent", &side);
            let mut order = String::new();
            for module in &self.modules {
                archive.file(&format!("modules/{}", name(module)), &read(module));
                order += &format!("{}\n", name(module));
            }
            archive.file("modules/order", order.as_bytes());
            for module in cards {
                archive.file(&format!("modules/{}", name(module)), &read(module));
            }
            archive
        };
        let mut guest = common(include_bytes!("../guest/xen-domu"), &self.cards[1]);
        guest.file("measure", include_bytes!("../guest/measure"));
        add_programs(&mut guest, folder, ("bin", ""), ours.iter().chain(&self.programs));
        let guest = guest.finish();
        let mut archive = common(include_bytes!("../guest/xen-dom0"), &self.cards[0]);
        archive.file("bin/vif", include_bytes!("../guest/xen-vif"));
        archive.file("guest/kernel", &read(&self.kernel));
        archive.file("guest/files", &guest);
        archive.file("etc/xen/xl.conf", b"");
        for tool in &self.tools {
            archive.file(&format!("bin/{}", name(tool)), &read(tool));
        }
        for (library, path) in self.loaded() {
            archive.file(&format!("lib/{library}"), &read(&path));
        }
        archive.file("lib64/ld-linux-x86-64.so.2", &read(&self.libraries[0].join("ld-linux-x86-64.so.2")));
        add_wrapped(&mut archive, folder);
        let path = folder.join("dom0.cpio");
        fs::write(&path, archive.finish()).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path
    }

    /// Returns the libraries that the tools load, directly or not, from Debian's packages.
    fn loaded(&self) -> BTreeMap<String, PathBuf> {
        let find = |library: &str| {
            let found = self.libraries.iter().map(|folder| folder.join(library)).find(|path| path.is_file());
            found.unwrap_or_else(|| panic!("{library} is in none of the packages"))
        };
        let mut found = BTreeMap::new();
        let mut open = self.tools.clone();
        let mut wanted = vec!["libgcc_s.so.1".to_owned()]; // The C library loads it when a thread of xl is cancelled.
        while let Some(file) = open.pop() {
            wanted.append(&mut needed_by(&file));
            for library in wanted.drain(..) {
                if let Entry::Vacant(place) = found.entry(library) {
                    let path = find(place.key());
                    open.push(path.clone());
                    place.insert(path);
                }
            }
        }
        found
    }
}

/// Adds programs to `bin` of the archive, and the libraries of this machine that they load, below `root`.
fn add_programs<'a>(
    archive: &mut Archive,
    folder: &Path,
    (bin, root): (&str, &str),
    programs: impl Iterator<Item = &'a PathBuf>,
) {
    let mut libraries = BTreeMap::new();
    for program in programs {
        archive.file(&format!("{bin}/{}", name(program)), &stripped(program, folder));
        libraries.extend(loaded(program));
    }
    for (inside, outside) in libraries {
        archive.file(&format!("{root}{inside}"), &stripped(&outside, folder));
    }
}

/// Adds our programs to domain 0 with their own libraries, because those of Debian's Xen may be of other versions.
fn add_wrapped(archive: &mut Archive, folder: &Path) {
    for path in ["isthmus", "isthmus/bin", "isthmus/lib", "isthmus/lib64"] {
        archive.folder(path);
    }
    let ours = programs();
    add_programs(archive, folder, ("isthmus/bin", "isthmus/"), ours.iter());
    for program in ours.iter().map(|program| name(program)) {
        let starts = format!(
            "#!/bin/sh\nexec /isthmus/lib64/ld-linux-x86-64.so.2 --library-path /isthmus/lib /isthmus/bin/{program} \"$@\"\n"
        );
        archive.file(&format!("bin/{program}"), starts.as_bytes());
    }
}

/// Returns the one folder that matches a pattern ending in `*`, or the one folder in this folder.
fn only_folder(pattern: &Path) -> Result<PathBuf, String> {
    let (folder, start) = match pattern.to_str().and_then(|text| text.strip_suffix('*')) {
        Some(text) => (pattern.parent().expect("it has one"), text.rsplit('/').next().unwrap_or("")),
        None => (pattern, ""),
    };
    let entries = fs::read_dir(folder).map_err(|_| missing(folder))?;
    let mut found =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir() && name(path).starts_with(start));
    found.next().ok_or_else(|| missing(pattern))
}

/// Returns the libraries that a file names.
fn needed_by(file: &Path) -> Vec<String> {
    let output = Command::new("readelf").arg("-d").arg(file).output().expect("binutils are there");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let named = said.lines().filter(|line| line.contains("(NEEDED)"));
    named.filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0.to_owned())).collect()
}

/// Builds the programs of these packages, linked statically, so that they need no library of a guest. Returns their folder.
fn linked_statically(packages: &[&str]) -> PathBuf {
    let folder = workspace_root().join("target/guests/static");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace_root()).env("RUSTFLAGS", "-C target-feature=+crt-static");
    cargo.args(["build", "--quiet", "--target", "x86_64-unknown-linux-gnu"]);
    cargo.args(packages.iter().flat_map(|package| ["--package", package]));
    run_tool(cargo.arg("--target-dir").arg(&folder));
    folder.join("x86_64-unknown-linux-gnu/debug")
}

/// A machine with Xen. Dropping it ends QEMU and removes all files. Methods panic on failure, which fails the test.
#[derive(Debug)]
pub struct XenMachine {
    shell: Shell,
    console: PathBuf,
    _scratch: Scratch,
}

impl XenMachine {
    /// Boots the machine, and waits until domain 0 accepts commands.
    pub fn boot(kit: &XenKit) -> Self {
        let scratch = Scratch::new().unwrap_or_else(|error| panic!("{error}"));
        let (files, console) = (kit.write(scratch.path()), scratch.path().join("console"));
        let launch =
            Launch::new("/usr/bin/nice").args(["-n", if kit.eager { "0" } else { "10" }]).arg(&kit.qemu).with_stdin();
        let launch =
            launch.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-machine", "pc"]);
        let launch = launch.args(["-accel", "tcg,thread=multi", "-cpu", CPU, "-m", "1792"]);
        let launch = launch.args(["-smp", &kit.processors.to_string()]);
        let launch = launch.arg("-serial").arg(format!("file:{}", console.display())).args(["-serial", "stdio"]);
        let launch = launch.arg("-kernel").arg(&kit.xen).args(["-append", XEN, "-initrd"]);
        let launch = launch.arg(format!("{} {DOM0},{}", kit.kernel.display(), files.display()));
        let qemu = launch.spawn().unwrap_or_else(|error| panic!("{error}"));
        let mut machine =
            Self { shell: Shell::new("domain 0".to_owned(), qemu).with_keepalive(), console, _scratch: scratch };
        println!("# domain 0 is up after {} s of its time", machine.shell.ready());
        machine
    }

    /// Runs a command in domain 0 and returns its result.
    #[track_caller]
    pub fn done(&mut self, order: &str) -> CommandOutput {
        self.shell.start_command(order);
        self.shell.finish_command()
    }

    /// Runs a command in domain 0, which must succeed, and returns its output.
    #[track_caller]
    pub fn run(&mut self, order: &str) -> Vec<String> {
        self.shell.run(order)
    }

    /// Runs a command in domain 0, which must succeed, and returns its one line of output.
    #[track_caller]
    pub fn run_for_line(&mut self, order: &str) -> String {
        let lines = self.run(order);
        assert_eq!(lines.len(), 1, "{order}: {lines:?}");
        lines.into_iter().next().unwrap_or_default()
    }

    /// Starts a `pv` or `pvh` guest, waits until it accepts commands, and returns its domain number.
    #[track_caller]
    pub fn create(&mut self, name: &str, kind: &str) -> u16 {
        self.create_with(name, kind, "")
    }

    /// Starts a guest with one more line in its configuration.
    #[track_caller]
    pub fn create_with(&mut self, name: &str, kind: &str, line: &str) -> u16 {
        let number = self.run_for_line(&format!("create {name} {kind} '{line}'"));
        number.parse().unwrap_or_else(|_| panic!("{number}"))
    }

    /// Writes the configuration of a backend daemon, in domain 0 (`dom0`) or in a guest: `head`, and guests with these names.
    #[track_caller]
    pub fn configure(&mut self, backend: &str, head: &str, guests: &[&str]) {
        let guests: Vec<_> = guests.iter().map(|name| (*name, "")).collect();
        self.configure_each(backend, head, &guests);
    }

    /// Writes the configuration of a backend daemon, with settings for each guest.
    #[track_caller]
    pub fn configure_each(&mut self, backend: &str, head: &str, guests: &[(&str, &str)]) {
        let guest = |(name, own): &(&str, &str)| format!("[[xen.guest]]\\nname = \\\"{name}\\\"\\nuser = 0\\n{own}\\n");
        let guests: String = guests.iter().map(guest).collect();
        // Emulated domains sometimes stop for a second.
        let limits = "[limits]\\nhandshake_timeout_ms = 60000";
        self.run_in_guest(backend, &format!("printf \"{limits}\\n{head}\\n{guests}\" >/tmp/isthmusd.toml"));
    }

    /// Raises the limit of pages that a guest may grant, to the size of windows.
    #[track_caller]
    pub fn may_grant(&mut self, name: &str) {
        self.run_in_guest(name, "echo 30000 >/sys/module/xen_gntalloc/parameters/limit");
    }

    /// Runs a command in a guest or in domain 0 (`dom0`), which must succeed, and returns its output.
    #[track_caller]
    pub fn run_in_guest(&mut self, name: &str, order: &str) -> Vec<String> {
        match name {
            "dom0" => self.run(order),
            _ => self.run(&run_in_guest(name, order)),
        }
    }

    /// Starts a command in a guest. No other command runs until [`Self::finish_command`].
    #[track_caller]
    pub fn start_command(&mut self, name: &str, order: &str) {
        self.shell.start_command(&run_in_guest(name, order));
    }

    /// Waits until the command has ended, and returns its result.
    #[track_caller]
    pub fn finish_command(&mut self) -> CommandOutput {
        self.shell.finish_command()
    }

    /// Returns the number of pages of each domain that other domains map, as Xen counts them. Pages of consoles and stores are always mapped.
    pub fn grants(&mut self) -> BTreeMap<u16, usize> {
        let mut counted = BTreeMap::new();
        for ((owner, _), pages) in self.grants_to() {
            *counted.entry(owner).or_insert(0) += pages;
        }
        counted
    }

    /// Returns the number of mapped pages by their owner and the domain that maps them. A domain without any is listed as mapping its own.
    pub fn grants_to(&mut self) -> BTreeMap<(u16, u16), usize> {
        let counted = self.run("grants").into_iter().map(|line| {
            let numbers: Result<Vec<u16>, _> = line.split_whitespace().map(str::parse).collect();
            match numbers.as_deref() {
                Ok(&[owner, mapper, pages]) => ((owner, mapper), pages.into()),
                _ => panic!("{line}"),
            }
        });
        let counted: BTreeMap<_, _> = counted.collect();
        assert!(counted.len() >= 2, "{counted:?}");
        counted
    }

    /// Returns the messages of Xen and of domain 0's kernel.
    pub fn console(&self) -> String {
        fs::read(&self.console).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }
}

/// Returns the command for domain 0 that runs a command in a guest.
fn run_in_guest(name: &str, order: &str) -> String {
    format!("on {name} '{}'", order.replace('\'', r"'\''"))
}

impl Drop for XenMachine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("# the last lines of the console:");
            let console = self.console();
            let lines: Vec<&str> = console.lines().collect();
            lines[lines.len().saturating_sub(20)..].iter().for_each(|line| println!("# {line}"));
        }
    }
}
