//! Checks of verbs: the libraries, the device files, the files of the device, and the interface that each libibverbs expects of plug-ins.
//!
//! Nothing here is a problem on a host without RDMA programs, except a library that is installed and cannot be loaded.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use isthmus_client::{Options, Reason, Refusal, Topic};
use isthmus_report::VerbsReport;

use super::device::{Device, InvalidField, REMEDY};
use super::enable::{DEVICE_FILES, Missing, missing_files};
use super::sysfs::{difference, is_of_gid};
use super::{DRIVER, LIBRARY, PRELOADED, sys_folder};
use crate::daemon::{Daemon, read};
use crate::doctor::{CheckPlace, Finding, preload, unexpected};
use crate::program_file::defined_versions;
use crate::run::{DeviceFile, installed_folder};

/// The library of rdma-core, and the paths under which the dynamic linker knows libraries.
const LIBIBVERBS: &str = "libibverbs.so.1";
const CACHE: &str = "/etc/ld.so.cache";

/// The name of the version that only plug-ins use, without its number.
const PRIVATE: &str = "IBVERBS_PRIVATE_";

/// The files that a kernel with InfiniBand has.
const INFINIBAND: [&str; 2] = ["/sys/class/infiniband_verbs", "/sys/module/ib_uverbs"];

/// Queries the daemon's report about verbs.
fn report(options: &Options) -> Result<VerbsReport> {
    read(&Daemon::connect(options)?.ask(Topic::Verbs, &[])?)
}

pub(super) fn check(place: &CheckPlace<'_>, findings: &mut Vec<Finding>) {
    let [DeviceFile { path, .. }, _] = DEVICE_FILES;
    if installed_folder(LIBRARY).is_err() && !Path::new(path).exists() {
        let result = format!("not used: neither {LIBRARY} nor {path} is there");
        findings.push(Finding::ok("verbs.plug-in", "finding the plug-in of libibverbs", result));
        return;
    }
    findings.push(library("verbs.plug-in", LIBRARY));
    findings.push(library("verbs.preload", PRELOADED));
    findings.extend(device_files(&DEVICE_FILES));
    let report = match place.daemon.map(report) {
        Some(Ok(report)) => Some(report),
        Some(Err(error)) => {
            findings.push(unexpected("verbs.enabled", "querying the daemon's report about verbs", &error));
            if error.downcast_ref::<Refusal>().is_some_and(|refusal| refusal.reason == Reason::NotInGuestsYet) {
                return; // The host's daemon is older. The files would be of no use.
            }
            None
        }
        None => None,
    };
    findings.extend(report.as_ref().map(enabled));
    findings.push(match report.as_ref().map(Device::parse).transpose() {
        Ok(device) => files(sys_folder(place.socket), device.as_ref()),
        Err(error) => invalid(&error),
    });
    findings.extend(libibverbs());
    findings.push(kernel(INFINIBAND.into_iter().find(|path| Path::new(path).exists())));
}

/// Checks that a program starts with the library.
fn library(id: &'static str, name: &str) -> Finding {
    let library = match installed_folder(name) {
        Ok(folder) => folder.join(name),
        Err(error) => {
            return Finding::note(id, format!("finding {name}"), crate::output::causes(&error))
                .remedy("Run `make build`, or `make install` for an installation.");
        }
    };
    let tried = format!("starting a program that loads {}", library.display());
    match preload(&library) {
        Ok(()) => Finding::ok(id, tried, format!("{} can be loaded", library.display())),
        Err(why) => Finding::problem(id, tried, why).remedy(
            "Build the library where programs run: `make build`, then `make install`. A container needs a C library as new as the host's.",
        ),
    }
}

/// Reports on the files that libibverbs and librdmacm open.
fn device_files(files: &[DeviceFile]) -> Vec<Finding> {
    let each = |word: &str| {
        let each: Vec<_> = files.iter().map(|file| format!("{} {word} {}", file.path, file.target)).collect();
        each.join(", and ")
    };
    let (id, tried) = ("verbs.device-file", format!("comparing {}", each("with")));
    let missing = missing_files(files);
    if missing.is_empty() {
        return vec![Finding::ok(id, tried, each("is"))];
    }
    let finding = |Missing { what, remedy }| {
        let remedy = format!("{remedy}\n`isthmus verbs enable` checks again.");
        Finding::note(id, tried.clone(), format!("missing: {what}")).remedy(remedy)
    };
    missing.into_iter().map(finding).collect()
}

fn enabled(report: &VerbsReport) -> Finding {
    let (id, tried) = ("verbs.enabled", "querying whether the daemon serves RDMA programs");
    match report.enabled {
        true => Finding::ok(id, tried, format!("it does, with the device {}", report.device)),
        false => Finding::note(id, tried, "disabled: RDMA programs cannot open the device")
            .remedy("Set `verbs.enabled = true` in the configuration of the daemon (in a guest: of the host's), and restart it."),
    }
}

fn invalid(error: &InvalidField) -> Finding {
    Finding::problem("verbs.files", "reading the device in the daemon's report", error.to_string()).remedy(REMEDY)
}

/// Compares the files that `isthmus run` finds with the daemon's report.
fn files(folder: Option<PathBuf>, device: Option<&Device>) -> Finding {
    let (id, tried) = ("verbs.files", "comparing the files of the device with the daemon's report");
    let remedy = "Run `isthmus verbs enable` as the daemon's user.";
    let Some(folder) = folder else {
        return Finding::note(id, tried, "no files of the device: libibverbs does not find it").remedy(remedy);
    };
    let found = folder.display();
    match device.map(|device| difference(&folder, device)) {
        None => Finding::ok(id, tried, format!("{found} has a device; no daemon confirms it")),
        Some(Ok(None)) => Finding::ok(id, tried, format!("{found} has the device and its GIDs")),
        Some(Ok(Some(path))) => {
            let file = folder.join(&path);
            let what = match is_of_gid(&path) {
                true => "the GIDs of this machine have changed since `isthmus verbs enable`",
                false if !file.exists() => "a file is missing",
                false => "the files are not those of this daemon",
            };
            Finding::note(id, tried, format!("{what}: {}", file.display())).remedy(remedy)
        }
        Some(Err(error)) => {
            Finding::note(id, tried, format!("cannot read {found}: {}", crate::output::causes(&error))).remedy(remedy)
        }
    }
}

/// Checks that there is a plug-in for each libibverbs.
fn libibverbs() -> Vec<Finding> {
    let (id, tried) = ("verbs.libibverbs", format!("reading the versions of each {LIBIBVERBS}"));
    let found = libraries(&fs::read(CACHE).unwrap_or_default());
    let findings: Vec<_> = found
        .iter()
        .filter_map(|path| {
            let number = File::open(path).and_then(|file| private_number(&file)).transpose()?;
            Some(plug_in(path, number, |plug_in| installed_folder(plug_in).is_ok()))
        })
        .collect();
    match findings.is_empty() {
        true => vec![Finding::ok(id, tried, format!("no {LIBIBVERBS} outside of programs and containers"))],
        false => findings,
    }
}

/// Returns the plug-in that is missing, if each libibverbs of the host expects one that is not installed.
pub(crate) fn missing_plug_in() -> Option<String> {
    let found = libraries(&fs::read(CACHE).unwrap_or_default());
    let number = |path: &PathBuf| File::open(path).and_then(|file| private_number(&file)).ok().flatten();
    let expected: BTreeSet<String> =
        found.iter().filter_map(number).map(|number| format!("{DRIVER}-rdmav{number}.so")).collect();
    let is_installed = |plug_in: &String| installed_folder(plug_in).is_ok();
    (!expected.iter().any(is_installed)).then(|| expected.into_iter().next())?
}

fn plug_in(path: &Path, number: io::Result<u32>, is_installed: impl Fn(&str) -> bool) -> Finding {
    let (id, tried) = ("verbs.libibverbs", format!("reading the versions of {}", path.display()));
    let number = match number {
        Ok(number) => number,
        Err(error) => {
            return Finding::note(id, tried, format!("cannot find the private ABI of {}: {error}", path.display()))
                .remedy("Use the libibverbs of rdma-core 34 or later.");
        }
    };
    let plug_in = format!("{DRIVER}-rdmav{number}.so");
    let expects = format!("{} expects private ABI {number}", path.display());
    if is_installed(&plug_in) {
        return Finding::ok(id, tried, format!("{expects}, for which {plug_in} is installed"));
    }
    let remedy = match plug_in == LIBRARY {
        true => "Run `make install`.".to_owned(),
        false => format!("Use a libibverbs for which there is a plug-in ({LIBRARY}), for example in a container."),
    };
    Finding::note(id, tried, format!("{expects}, and {plug_in} is not installed: its programs find no device"))
        .remedy(remedy)
}

/// Finds the private ABI that a libibverbs expects. None if it is for another machine.
fn private_number(file: &File) -> io::Result<Option<u32>> {
    let Some(versions) = defined_versions(file)? else { return Ok(None) };
    let number = versions.iter().find_map(|version| version.strip_prefix(PRIVATE)?.parse().ok());
    number.map(Some).ok_or_else(|| io::Error::other(format!("the library has no version {PRIVATE}…")))
}

/// Finds each libibverbs that the dynamic linker knows, or that lies in a usual folder or directly below one. Links count once.
fn libraries(cache: &[u8]) -> BTreeSet<PathBuf> {
    let strings = cache.split(|&byte| byte == 0).filter(|string| string.ends_with(LIBIBVERBS.as_bytes()));
    let known = strings.filter(|string| string.starts_with(b"/")).map(|path| PathBuf::from(OsStr::from_bytes(path)));
    let below = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_library_folder = |path: &PathBuf| path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"lib"));
    let usual = ["/", "/usr", "/usr/local"].map(Path::new).into_iter().flat_map(below).filter(is_library_folder);
    let usual = usual.flat_map(|folder| below(&folder).chain([folder.clone()]).collect::<Vec<_>>());
    let usual = usual.map(|folder| folder.join(LIBIBVERBS));
    known.chain(usual).filter_map(|path| path.canonicalize().ok()).collect()
}

/// Reports on a kernel with InfiniBand. libibverbs then asks the kernel for devices, and not the files.
fn kernel(found: Option<&str>) -> Finding {
    let (id, tried) = ("verbs.kernel", format!("finding {}", INFINIBAND.join(" or ")));
    match found {
        None => Finding::ok(id, tried, "the kernel has no InfiniBand: libibverbs reads the files of the device"),
        Some(path) => {
            Finding::note(id, tried, format!("the kernel has InfiniBand ({path}): programs need {PRELOADED}")).remedy(
                format!("Start RDMA programs by `isthmus run`, or with LD_PRELOAD={PRELOADED} (with its folder)."),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sysfs::{self, replace};
    use super::*;
    use crate::doctor::Severity::{Ok as Fine, Warning};

    fn report(enabled: bool) -> VerbsReport {
        VerbsReport { enabled, ..super::super::device::tests::report(&[("a", None)]) }
    }

    fn device(gid: &str) -> Device {
        Device::parse(&super::super::device::tests::report(&[(gid, None)])).unwrap()
    }

    #[track_caller]
    fn assert_says(finding: &Finding, severity: crate::doctor::Severity, said: &str) {
        assert_eq!((finding.severity, finding.remedy.is_some()), (severity, severity != Fine), "{finding:?}");
        assert!(finding.result.contains(said), "{finding:?}");
    }

    #[test]
    fn each_restriction_is_a_warning_with_remedy() {
        assert_says(&enabled(&report(true)), Fine, "isthmus0");
        assert_says(&enabled(&report(false)), Warning, "disabled");
        assert_says(&kernel(None), Fine, "no InfiniBand");
        assert_says(&kernel(Some("/sys/module/ib_uverbs")), Warning, PRELOADED);
        let [null, full] = DEVICE_FILES.map(|file| DeviceFile { path: file.target, ..file });
        let of = |path| device_files(&[null, DeviceFile { path, ..full }]).pop().unwrap();
        assert_says(&of("/dev/full"), Fine, "/dev/null is /dev/null, and /dev/full is /dev/full");
        for (path, said) in [("/nonexistent/rdma_cm", "a link to /dev/full"), ("/dev/tty", "belongs to a device")] {
            assert_says(&of(path), Warning, said);
            assert!(of(path).remedy.is_some_and(|remedy| remedy.contains("`isthmus verbs enable`")), "{path}");
        }
        assert_says(&files(None, Some(&device("a"))), Warning, "no files of the device");
    }

    #[test]
    fn report_with_an_invalid_field_is_a_problem_with_the_name_of_the_field() {
        let error = Device::parse(&VerbsReport { device: "../../x".to_owned(), ..report(true) }).unwrap_err();
        let finding = invalid(&error);
        assert_says(&finding, crate::doctor::Severity::Problem, r#""../../x" as device"#);
    }

    #[test]
    fn gids_that_have_changed_are_a_warning() {
        let scratch = tempfile::tempdir().unwrap();
        let sys = scratch.path().join("sys");
        let gids = sys.join("class/infiniband/isthmus0/ports/1/gids");
        fs::create_dir_all(&gids).unwrap();
        fs::write(gids.join("0"), "b\n").unwrap();
        fs::write(sys.join("class/infiniband/isthmus0/node_desc"), "other0\n").unwrap();
        assert_says(&files(Some(sys.clone()), None), Fine, "no daemon");
        assert_says(&files(Some(sys.clone()), Some(&device("a"))), Warning, "not those of this daemon");
        replace(&sys, &sysfs::files(&device("b"), |_| false)).unwrap();
        assert_says(&files(Some(sys.clone()), Some(&device("b"))), Fine, "its GIDs");
        assert_says(&files(Some(sys.clone()), Some(&device("a"))), Warning, "have changed");
    }

    #[test]
    fn files_of_an_older_version_are_a_warning() {
        let scratch = tempfile::tempdir().unwrap();
        let sys = scratch.path().join("sys");
        replace(&sys, &sysfs::files(&device("a"), |_| false)).unwrap();
        fs::remove_dir_all(sys.join("class/misc")).unwrap();
        let finding = files(Some(sys), Some(&device("a")));
        assert_says(&finding, Warning, "a file is missing: ");
        assert!(finding.result.contains("class/misc/rdma_cm/abi_version"), "{finding:?}");
        assert!(finding.remedy.is_some_and(|remedy| remedy.contains("`isthmus verbs enable`")));
    }

    #[test]
    fn plug_in_of_another_number_is_missing() {
        let of = |number| plug_in(Path::new("/x/libibverbs.so.1"), number, |plug_in| plug_in == LIBRARY);
        assert_says(&of(Ok(34)), Fine, "private ABI 34");
        assert_says(&of(Ok(59)), Warning, "libisthmus-rdmav59.so is not installed");
        assert_says(&of(Err(io::Error::other("no number"))), Warning, "no number");
    }

    #[test]
    fn cache_names_each_library_once() {
        let scratch = tempfile::tempdir().unwrap();
        let library = scratch.path().canonicalize().unwrap().join(LIBIBVERBS);
        fs::write(&library, "").unwrap();
        std::os::unix::fs::symlink(scratch.path(), scratch.path().join("link")).unwrap();
        let paths = [library.clone(), scratch.path().join("link").join(LIBIBVERBS), "/gone/libibverbs.so.1".into()];
        let cache: String = paths.iter().map(|path| format!("{LIBIBVERBS}\0{}\0", path.display())).collect();
        let found = libraries(cache.as_bytes());
        assert_eq!(found.difference(&libraries(b"")).collect::<Vec<_>>(), [&library]);
    }
}
