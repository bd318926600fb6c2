//! `cargo xtask link-abi <package> --map FILE --out libx.so`: a C library from a crate.
//!
//! ```text
//! crate ──cargo──► libx.a ──cc -shared, FILE──► target/abi/libx.so.0  ◄── libx.so (link)
//!                                                 │
//!                                                 nm -D: every name has a version
//! ```
//!
//! rustc passes a version script of its own to the linker, and ours would be silently dropped; so the crate becomes a
//! static library and `cc` links it. The linker refuses undefined symbols (`-z defs`) and names in the script that the
//! crate does not have; we refuse exported names without a version.
//!
//! A library with names that were published without versions lists them in its manifest, beside the version script:
//!
//! ```toml
//! [package.metadata.link-abi]
//! unversioned = "libx.names"   # a name on each line
//! also = ["liby.so.0"]         # further links to it
//! ```
//!
//! A plug-in, which is opened by its file name and never linked, has a `soname` there without the major version.
//!
//! A version script that hides all other names (`local: *`) would hide these too. So what the library needs is linked
//! into one object first, in which all names but the published ones become local; that object is also its static library.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::cmd;

/// Libraries that std needs beside libc's own; the linker keeps those that are used.
const SYSTEM_LIBRARIES: [&str; 6] = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The package whose library becomes a C library
    package: String,
    /// Version script: which names are exported, under which version
    #[arg(long)]
    map: PathBuf,
    /// Where it goes; a name without a folder goes to target/abi/
    #[arg(long)]
    out: PathBuf,
    /// Name under which programs find it [default: the file's name and the major version: libx.so.0]
    #[arg(long)]
    soname: Option<String>,
    /// Builds with optimisations
    #[arg(long, conflicts_with = "profile")]
    release: bool,
    /// Builds with this profile of the workspace
    #[arg(long)]
    profile: Option<String>,
}

impl Args {
    pub(crate) fn new(package: &str, map: PathBuf, out: PathBuf, release: bool) -> Self {
        Self { package: package.to_owned(), map, out, soname: None, release, profile: None }
    }
}

/// The result of the link.
#[derive(Debug)]
pub(crate) struct Linked {
    pub(crate) file: PathBuf,
    pub(crate) soname: String,
    /// `name@@VERSION`, sorted.
    pub(crate) symbols: Vec<String>,
    pub(crate) needed: Vec<String>,
    pub(crate) bytes: u64,
}

pub(crate) fn run(args: &Args) -> Result<bool> {
    let linked = link(&cmd::root(), args)?;
    let Linked { file, soname, symbols, needed, bytes } = linked;
    println!("{}: {soname}, {} names, {} KiB, needs {}", file.display(), symbols.len(), bytes / 1024, needed.join(" "));
    Ok(true)
}

/// Builds and links the package of the workspace at `root`.
pub(crate) fn link(root: &Path, args: &Args) -> Result<Linked> {
    let map = root.join(&args.map);
    ensure!(map.is_file(), "there is no version script {}", map.display());
    let out = output_file(root, &args.out)?;
    let archive = build(root, args)?;
    let name = out.file_name().map(|name| name.to_string_lossy().into_owned()).context("--out needs a file name")?;
    let published = ExportList::read_next_to(&map)?;
    let soname = args.soname.clone().or(published.soname).unwrap_or_else(|| format!("{name}.{}", archive.major));
    let file = out.with_file_name(&soname);
    let whole = match &published.unversioned {
        None => archive.file,
        Some(names) => one_object(&archive.file, &map, names, &out)?,
    };
    link_shared(&whole, &map, &soname, &file)?;
    if file != out {
        symlink(&out, &soname)?;
    }
    for link in &published.also {
        symlink(&out.with_file_name(link), &soname)?;
    }
    let symbols = exported(&file, &published.unversioned.unwrap_or_default())?;
    let bytes = fs::metadata(&file)?.len();
    Ok(Linked { needed: needed(&file)?, file, soname, symbols, bytes })
}

fn output_file(root: &Path, out: &Path) -> Result<PathBuf> {
    let is_bare = out.parent().is_none_or(|folder| folder.as_os_str().is_empty());
    let file = if is_bare { root.join("target/abi").join(out) } else { root.join(out) };
    let folder = file.parent().context("--out needs a file name")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(file)
}

struct Archive {
    file: PathBuf,
    /// First number of the package's version.
    major: String,
}

fn build(root: &Path, args: &Args) -> Result<Archive> {
    let mut cargo = cmd::command("cargo");
    cargo.current_dir(root).args([
        "rustc",
        "--quiet",
        "--lib",
        "--crate-type",
        "staticlib",
        "--package",
        &args.package,
    ]);
    cargo.args(["--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit());
    if args.release {
        cargo.arg("--release");
    }
    if let Some(profile) = &args.profile {
        cargo.args(["--profile", profile]);
    }
    let output = cargo.output().context("cannot start cargo")?;
    ensure!(output.status.success(), "{} does not build", args.package);
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut archives = lines.lines().filter_map(archive_in);
    archives.next_back().with_context(|| format!("cargo made no static library of {}", args.package))
}

/// The static library in one of cargo's messages.
fn archive_in(message: &str) -> Option<Archive> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let mut files = message.get("filenames")?.as_array()?.iter().filter_map(|file| file.as_str());
    let file = files.find(|file| file.ends_with(".a"))?;
    let version = message.get("package_id")?.as_str()?.rsplit(['#', '@']).next()?;
    let major = version.split('.').next()?.to_owned();
    Some(Archive { file: file.into(), major })
}

/// The names and links that a package's manifest lists for its library.
#[derive(Default)]
struct ExportList {
    /// Names that have no version; None for a library in which all have one.
    unversioned: Option<BTreeSet<String>>,
    also: Vec<String>,
    /// The name of the library in place of the file's name and the major version.
    soname: Option<String>,
}

impl ExportList {
    /// The manifest beside a version script, if there is one and it says something.
    fn read_next_to(map: &Path) -> Result<Self> {
        let Ok(text) = fs::read_to_string(map.with_file_name("Cargo.toml")) else { return Ok(Self::default()) };
        let manifest: toml::Table = text.parse()?;
        let said = manifest.get("package").and_then(|package| package.get("metadata")?.get("link-abi"));
        let unversioned = match said.and_then(|said| said.get("unversioned")?.as_str()) {
            None => None,
            Some(file) => {
                let file = map.with_file_name(file);
                let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
                Some(text.lines().filter(|line| !line.starts_with('#')).map(|line| line.trim().to_owned()).collect())
            }
        };
        let also = said.and_then(|said| said.get("also")?.as_array()).into_iter().flatten();
        let also = also.filter_map(|link| link.as_str().map(str::to_owned)).collect();
        let soname = said.and_then(|said| said.get("soname")?.as_str()).map(str::to_owned);
        Ok(Self { unversioned, also, soname })
    }
}

/// The names in a version script.
fn versioned(map: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(map)?;
    let names = text.lines().filter_map(|line| line.trim().strip_suffix(';'));
    let is_name = |name: &&str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    Ok(names.filter(is_name).map(str::to_owned).collect())
}

/// Links the part of the archive that the published names need into one object in a static library beside `out`: nothing else is global in
/// it.
fn one_object(archive: &Path, map: &Path, unversioned: &BTreeSet<String>, out: &Path) -> Result<PathBuf> {
    let names: BTreeSet<String> = versioned(map)?.into_iter().chain(unversioned.iter().cloned()).collect();
    let (object, list, library) = (out.with_extension("o"), out.with_extension("keep"), out.with_extension("a"));
    let mut ld = Command::new("ld");
    ld.args(["-r", "--gc-sections", "-o"]).arg(&object);
    ld.args(names.iter().map(|name| format!("--undefined={name}"))).arg(archive);
    run_checked(&mut ld, "ld")?;
    fs::write(&list, names.into_iter().collect::<Vec<_>>().join("\n") + "\n")?;
    let mut keep = std::ffi::OsString::from("--keep-global-symbols=");
    keep.push(&list);
    // Bitcode of the standard library, put together by a linker that does not know what it is, confuses other tools.
    let drop = ["--remove-section=.llvmbc", "--remove-section=.llvmcmd"];
    run_checked(Command::new("objcopy").arg(keep).args(drop).arg(&object), "objcopy")?;
    if library.exists() {
        fs::remove_file(&library)?;
    }
    run_checked(Command::new("ar").arg("rcs").arg(&library).arg(&object), "ar")?;
    fs::remove_file(&object)?;
    fs::remove_file(&list)?;
    Ok(library)
}

fn run_checked(command: &mut Command, program: &str) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot start {program}"))?;
    ensure!(output.status.success(), "{program}:\n{}", String::from_utf8_lossy(&output.stderr).trim_end());
    Ok(())
}

fn link_shared(archive: &Path, map: &Path, soname: &str, file: &Path) -> Result<()> {
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-o"]).arg(file);
    cc.arg(format!("-Wl,-soname,{soname}")).arg(format!("-Wl,--version-script={}", map.display()));
    cc.args([
        "-Wl,-z,defs",
        "-Wl,--no-undefined-version",
        "-Wl,-z,relro,-z,now",
        "-Wl,--gc-sections",
        "-Wl,--build-id",
    ]);
    cc.arg("-Wl,--whole-archive").arg(archive).args(["-Wl,--no-whole-archive", "-Wl,--as-needed"]);
    cc.args(SYSTEM_LIBRARIES);
    let output = cc.output().context("cannot start cc")?;
    if !output.status.success() {
        bail!("cc does not link {soname}:\n{}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    Ok(())
}

/// Makes `link` a symbolic link to the file `name` beside it.
fn symlink(link: &Path, name: &str) -> Result<()> {
    if link.symlink_metadata().is_ok() {
        fs::remove_file(link).with_context(|| format!("cannot replace {}", link.display()))?;
    }
    std::os::unix::fs::symlink(name, link).with_context(|| format!("cannot make {}", link.display()))
}

/// The names a library exports, each with its version; an error if one has none, but for those that are known not to have one.
fn exported(file: &Path, unversioned: &BTreeSet<String>) -> Result<Vec<String>> {
    let listing = tool("nm", &["-D", "--defined-only", "--with-symbol-versions"], file)?;
    let entries = listing.lines().filter_map(|line| line.split_whitespace().collect::<Vec<_>>().try_into().ok());
    let entries: Vec<[&str; 3]> = entries.filter(|[_, kind, _]: &[&str; 3]| *kind != "A").collect();
    let bare: BTreeSet<&str> = entries.iter().map(|[_, _, name]| *name).filter(|name| !name.contains('@')).collect();
    let published: BTreeSet<&str> = unversioned.iter().map(String::as_str).collect();
    let extra: Vec<&str> = bare.difference(&published).copied().collect();
    ensure!(extra.is_empty(), "exported without a version: {}", extra.join(" "));
    let missing: Vec<&str> = published.difference(&bare).copied().collect();
    ensure!(missing.is_empty(), "not exported: {}", missing.join(" "));
    ensure!(!entries.is_empty(), "{} exports nothing", file.display());
    let mut names: Vec<String> = entries.iter().map(|[_, _, name]| (*name).to_owned()).collect();
    names.sort();
    Ok(names)
}

fn needed(file: &Path) -> Result<Vec<String>> {
    let listing = tool("objdump", &["-p"], file)?;
    let lines = listing.lines().filter_map(|line| line.trim().strip_prefix("NEEDED"));
    Ok(lines.map(|name| name.trim().to_owned()).collect())
}

fn tool(program: &str, args: &[&str], file: &Path) -> Result<String> {
    let output =
        Command::new(program).args(args).arg(file).output().with_context(|| format!("cannot start {program}"))?;
    ensure!(output.status.success(), "{program} does not read {}", file.display());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIBRARY: &str = "#[unsafe(no_mangle)]\npub extern \"C\" fn tiny_add(a: i32, b: i32) -> i32 {\n    a.checked_add(b).unwrap_or(-1)\n}\n\
                           #[unsafe(no_mangle)]\npub extern \"C\" fn tiny_hidden() -> i32 {\n    7\n}\n";
    const PROGRAM: &str = "int tiny_add(int, int);\nint main(void) { return tiny_add(40, 2) == 42 ? 0 : 1; }\n";

    /// A package in a folder of its own, and what `link` says to this version script.
    fn linked(folder: &Path, map: &str) -> Result<Linked> {
        linked_with(folder, map, "")
    }

    /// Links a package as [`linked`] does, with `more` in its manifest.
    fn linked_with(folder: &Path, map: &str, more: &str) -> Result<Linked> {
        fs::create_dir_all(folder.join("src")).unwrap();
        let manifest = "[package]\nname = \"tiny\"\nversion = \"3.1.0\"\nedition = \"2024\"\n[workspace]\n";
        fs::write(folder.join("Cargo.toml"), format!("{manifest}{more}")).unwrap();
        fs::write(folder.join("src/lib.rs"), LIBRARY).unwrap();
        fs::write(folder.join("tiny.map"), map).unwrap();
        let args = Args::new("tiny", "tiny.map".into(), "libtiny.so".into(), false);
        link(folder, &args)
    }

    #[test]
    fn a_c_program_links_and_runs_with_the_library() {
        let folder = tempfile::tempdir().unwrap();
        let linked = linked(folder.path(), "TINY_3 { global: tiny_add; local: *; };\n").unwrap();
        assert_eq!(linked.soname, "libtiny.so.3");
        assert_eq!(linked.symbols, ["tiny_add@@TINY_3"]);
        let abi = folder.path().join("target/abi");
        assert_eq!(fs::read_link(abi.join("libtiny.so")).unwrap(), Path::new("libtiny.so.3"));

        fs::write(folder.path().join("main.c"), PROGRAM).unwrap();
        let mut cc = Command::new("cc");
        cc.current_dir(folder.path()).args(["-o", "main", "main.c", "-Ltarget/abi", "-ltiny"]);
        assert!(cc.status().unwrap().success());
        let mut main = Command::new(folder.path().join("main"));
        assert!(main.env("LD_LIBRARY_PATH", &abi).status().unwrap().success());
    }

    #[test]
    fn unversioned_symbols_match_the_list() {
        let folder = tempfile::tempdir().unwrap();
        let more = "[package.metadata.link-abi]\nunversioned = \"tiny.names\"\nalso = [\"libold.so.1\"]\n";
        let map = "TINY_2 {\n};\nTINY_3 {\n global:\n  tiny_add;\n};\n";
        fs::write(folder.path().join("tiny.names"), "# These.\ntiny_hidden\n").unwrap();
        let linked = linked_with(folder.path(), map, more).unwrap();
        assert_eq!(linked.symbols, ["tiny_add@@TINY_3", "tiny_hidden"]);
        let abi = folder.path().join("target/abi");
        assert_eq!(fs::read_link(abi.join("libold.so.1")).unwrap(), Path::new("libtiny.so.3"));
        // The static library brings nothing else into a program's names, either.
        let globals = tool("nm", &["--extern-only", "--defined-only"], &abi.join("libtiny.a")).unwrap();
        let names: Vec<_> = globals.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
        assert_eq!(names, ["tiny_add", "tiny_hidden"]);

        fs::write(folder.path().join("tiny.names"), "tiny_gone\ntiny_hidden\n").unwrap();
        let missing = linked_with(folder.path(), map, more).unwrap_err();
        assert!(missing.to_string().contains("tiny_gone"), "{missing}");
    }

    #[test]
    fn a_plug_in_has_the_soname_of_its_manifest() {
        let folder = tempfile::tempdir().unwrap();
        let more = "[package.metadata.link-abi]\nsoname = \"libtiny.so\"\n";
        let linked = linked_with(folder.path(), "TINY_3 { global: tiny_add; local: *; };\n", more).unwrap();
        assert_eq!((linked.soname.as_str(), linked.file), ("libtiny.so", folder.path().join("target/abi/libtiny.so")));
        assert!(folder.path().join("target/abi/libtiny.so").symlink_metadata().unwrap().is_file());
    }

    #[test]
    fn names_that_do_not_fit_the_script_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let missing = linked(folder.path(), "TINY_3 { global: tiny_add; tiny_gone; local: *; };\n").unwrap_err();
        assert!(missing.to_string().contains("tiny_gone"), "{missing}");
        let bare = linked(folder.path(), "{ global: tiny_add; local: *; };\n").unwrap_err();
        assert!(bare.to_string().contains("without a version: tiny_add"), "{bare}");
    }
}
