//! A machine of QEMU's with Xen on it: domain 0, told what to do on a serial line, starts guests and tells them by their consoles.
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

use isthmus_mx_tests::build;
use isthmus_testbed::{Launch, Scratch};

use crate::cpio::Archive;
use crate::guest_kit::{self, missing};
use crate::shell::{CommandOutput, Shell};
use crate::system::{loaded, name, programs, read, stripped};

/// Modules that each domain needs, in the order in which it loads them.
const MODULES: [&str; 5] = ["xen-privcmd", "xenfs", "xen-evtchn", "xen-gntdev", "xen-gntalloc"];

/// Modules for cards, which are loaded when they are asked for: domain 0's, in order, and a guest's.
const BRIDGE: [&str; 4] = ["llc", "stp", "bridge", "xen-netback"];
const CARD: [&str; 1] = ["xen-netfront"];

/// Programs of Xen's that domain 0 needs, wherever their packages have them.
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

/// A processor of before AVX, whose registers some versions of QEMU mix up between processes of Xen's domains: a program of a guest
/// crashes now and then. Nor does it have SMAP, on which a domain 0 dies in QEMU before 9.1. It has SVM, for guests of the kind PVH, and not
/// RDTSCP, about which QEMU tells Xen something else when such a guest uses it.
const CPU: &str = "phenom,-rdtscp";

/// What Xen and domain 0's kernel are told: nothing that takes time where time is emulated. Messages go to the first serial line. What Xen
/// says of grants is a line for each page.
const XEN: &str = "console=com1 com1=115200,8n1 conring_size=1m loglvl=warning guest_loglvl=warning dom0_mem=512M,max:512M spec-ctrl=no";
const DOM0: &str = "console=hvc0 quiet mitigations=off nowatchdog random.trust_cpu=on";

/// The parts of a machine with Xen, as they are on this one.
#[derive(Debug)]
pub struct XenKit {
    qemu: PathBuf,
    xen: PathBuf,
    kernel: PathBuf,
    busybox: PathBuf,
    modules: Vec<PathBuf>,
    /// Modules for cards: domain 0's, and a guest's.
    cards: [Vec<PathBuf>; 2],
    tools: Vec<PathBuf>,
    /// Where libraries of the tools are.
    libraries: [PathBuf; 2],
    /// Further programs that guests have.
    programs: Vec<PathBuf>,
    /// Processors of the machine.
    processors: u32,
    /// It takes its turns with whatever else is done here, and is not behind that.
    eager: bool,
    /// Which versions these are.
    pub versions: String,
}

impl XenKit {
    /// The parts, or which of them is missing.
    pub fn find() -> Result<Self, String> {
        let folder = build::root().join("target/guests");
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

    /// The same with further programs in guests.
    pub fn with(self, programs: Vec<PathBuf>) -> Self {
        Self { programs, ..self }
    }

    /// The same with more processors, for a machine that takes its turns with everybody: where it is measured.
    pub fn eager(self, processors: u32) -> Self {
        Self { processors, eager: true, ..self }
    }

    /// What its domains are, in a few words.
    pub fn describe(&self) -> String {
        let processors = self.processors;
        format!(
            "{} in {}, TCG, {processors} processors phenom; PV, 192 MiB each",
            self.versions,
            guest_kit::version(&self.qemu)
        )
    }

    /// Writes what a guest finds when it starts, and what domain 0 does. `folder` is for what is on the way.
    fn write(&self, folder: &Path) -> PathBuf {
        let ours = programs();
        let (statics, ours) = match self.eager {
            true => (linked_statically(&["isthmus-xen-test-agent"]), ours),
            false => {
                // As they are packaged for guests.
                let statics = linked_statically(&["isthmus-xen-test-agent", "isthmusd", "isthmus"]);
                let packaged = |program: PathBuf| match statics.join(name(&program)) {
                    found if found.is_file() => found,
                    _ => program,
                };
                let ours = ours.into_iter().map(packaged).collect();
                (statics, ours)
            }
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

    /// The libraries that the tools load, and those load, from Debian's packages.
    fn loaded(&self) -> BTreeMap<String, PathBuf> {
        let find = |library: &str| {
            let found = self.libraries.iter().map(|folder| folder.join(library)).find(|path| path.is_file());
            found.unwrap_or_else(|| panic!("{library} is in none of the packages"))
        };
        let mut found = BTreeMap::new();
        let mut open = self.tools.clone();
        let mut wanted = vec!["libgcc_s.so.1".to_owned()]; // The C library loads it by itself when a thread of xl's is cancelled.
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

/// Programs, in `bin` of the archive, and the libraries of this machine that they need in `lib` and where they are loaded from, below `root`.
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

/// The same for domain 0, whose own libraries are those of Debian's Xen, which may be others.
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

/// The one folder of a pattern whose last part may end in `*`, or that is in this folder.
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

/// The libraries that a file names.
fn needed_by(file: &Path) -> Vec<String> {
    let output = Command::new("readelf").arg("-d").arg(file).output().expect("binutils are there");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let named = said.lines().filter(|line| line.contains("(NEEDED)"));
    named.filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0.to_owned())).collect()
}

/// The folder of these packages' programs, linked statically: what is in it needs nothing of a guest.
fn linked_statically(packages: &[&str]) -> PathBuf {
    let folder = build::root().join("target/guests/static");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(build::root()).env("RUSTFLAGS", "-C target-feature=+crt-static");
    cargo.args(["build", "--quiet", "--target", "x86_64-unknown-linux-gnu"]);
    cargo.args(packages.iter().flat_map(|package| ["--package", package]));
    build::done(cargo.arg("--target-dir").arg(&folder));
    folder.join("x86_64-unknown-linux-gnu/debug")
}

/// A machine with Xen, gone with all its files when dropped. Methods panic where something fails: that fails the test.
#[derive(Debug)]
pub struct XenMachine {
    shell: Shell,
    console: PathBuf,
    _scratch: Scratch,
}

impl XenMachine {
    /// Switches it on, and waits until domain 0 obeys.
    pub fn boot(kit: &XenKit) -> Self {
        let scratch = Scratch::new().unwrap_or_else(|error| panic!("{error}"));
        let (files, console) = (kit.write(scratch.path()), scratch.path().join("console"));
        let launch =
            Launch::new("/usr/bin/nice").args(["-n", if kit.eager { "0" } else { "10" }]).arg(&kit.qemu).with_stdin();
        let launch =
            launch.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-machine", "pc"]);
        let launch = launch.args(["-accel", "tcg,thread=multi", "-cpu", CPU, "-m", "1536"]);
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

    /// Has domain 0 do something, and says what came of it.
    #[track_caller]
    pub fn done(&mut self, order: &str) -> CommandOutput {
        self.shell.start_command(order);
        self.shell.finish_command()
    }

    /// Has domain 0 do something that has to end well, and returns what it says.
    #[track_caller]
    pub fn run(&mut self, order: &str) -> Vec<String> {
        self.shell.run(order)
    }

    /// The same of something that says one line.
    #[track_caller]
    pub fn run_for_line(&mut self, order: &str) -> String {
        let lines = self.run(order);
        assert_eq!(lines.len(), 1, "{order}: {lines:?}");
        lines.into_iter().next().unwrap_or_default()
    }

    /// Starts a guest, of the kind `pv` or `pvh`, waits until it obeys, and says its number.
    #[track_caller]
    pub fn create(&mut self, name: &str, kind: &str) -> u16 {
        self.create_with(name, kind, "")
    }

    /// The same with one more line in its configuration.
    #[track_caller]
    pub fn create_with(&mut self, name: &str, kind: &str, line: &str) -> u16 {
        let number = self.run_for_line(&format!("create {name} {kind} '{line}'"));
        number.parse().unwrap_or_else(|_| panic!("{number}"))
    }

    /// Writes what a backend's daemon is told, in domain 0, which is called `dom0`, or in a guest: this, and guests of these names.
    #[track_caller]
    pub fn configure(&mut self, backend: &str, head: &str, guests: &[&str]) {
        let guests: Vec<_> = guests.iter().map(|name| (*name, "")).collect();
        self.configure_each(backend, head, &guests);
    }

    /// The same with settings of each.
    #[track_caller]
    pub fn configure_each(&mut self, backend: &str, head: &str, guests: &[(&str, &str)]) {
        let guest = |(name, own): &(&str, &str)| format!("[[xen.guest]]\\nname = \\\"{name}\\\"\\nuser = 0\\n{own}\\n");
        let guests: String = guests.iter().map(guest).collect();
        // Emulated domains stand still for a second now and then.
        let limits = "[limits]\\nhandshake_timeout_ms = 60000";
        self.run_in_guest(backend, &format!("printf \"{limits}\\n{head}\\n{guests}\" >/tmp/isthmusd.toml"));
    }

    /// Lets a guest grant as many pages as windows have.
    #[track_caller]
    pub fn may_grant(&mut self, name: &str) {
        self.run_in_guest(name, "echo 30000 >/sys/module/xen_gntalloc/parameters/limit");
    }

    /// Has a guest do something, or domain 0, which is called `dom0`, and says what it says.
    #[track_caller]
    pub fn run_in_guest(&mut self, name: &str, order: &str) -> Vec<String> {
        match name {
            "dom0" => self.run(order),
            _ => self.run(&run_in_guest(name, order)),
        }
    }

    /// Has a guest begin something; it is waited for by [`Self::finish_command`], and nothing else is done meanwhile.
    #[track_caller]
    pub fn start_command(&mut self, name: &str, order: &str) {
        self.shell.start_command(&run_in_guest(name, order));
    }

    /// What came of it.
    #[track_caller]
    pub fn finish_command(&mut self) -> CommandOutput {
        self.shell.finish_command()
    }

    /// How many pages of each domain are mapped by others, as Xen counts them: those of consoles and stores are always there.
    pub fn grants(&mut self) -> BTreeMap<u16, usize> {
        let mut counted = BTreeMap::new();
        for ((whose, _), pages) in self.grants_to() {
            *counted.entry(whose).or_insert(0) += pages;
        }
        counted
    }

    /// The same by whose they are and who maps them. Who has none is there as well, as if it had mapped its own.
    pub fn grants_to(&mut self) -> BTreeMap<(u16, u16), usize> {
        let counted = self.run("grants").into_iter().map(|line| {
            let numbers: Result<Vec<u16>, _> = line.split_whitespace().map(str::parse).collect();
            match numbers.as_deref() {
                Ok(&[whose, by, pages]) => ((whose, by), pages.into()),
                _ => panic!("{line}"),
            }
        });
        let counted: BTreeMap<_, _> = counted.collect();
        assert!(counted.len() >= 2, "{counted:?}");
        counted
    }

    /// What Xen and domain 0's kernel said.
    pub fn console(&self) -> String {
        fs::read(&self.console).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }
}

/// What domain 0 is told so that a guest is told this.
fn run_in_guest(name: &str, order: &str) -> String {
    format!("on {name} '{}'", order.replace('\'', r"'\''"))
}

impl Drop for XenMachine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("# the console's last words:");
            let console = self.console();
            let lines: Vec<&str> = console.lines().collect();
            lines[lines.len().saturating_sub(20)..].iter().for_each(|line| println!("# {line}"));
        }
    }
}
