//! `isthmus run` and `isthmus cdi`, from an installation in a temporary folder.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

/// An installation: this program in `bin`, and these files, which stand for libraries.
struct Installation(TempDir);

impl Installation {
    fn with(libraries: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::create_dir(folder.path().join("bin")).expect("the folder is new");
        // A program of its own copies: a child of another test would hold a file open that this process writes, and it could not
        // be started.
        let copied =
            Command::new("cp").arg(env!("CARGO_BIN_EXE_isthmus")).arg(folder.path().join("bin/isthmus")).status();
        assert!(copied.expect("cp is installed").success());
        for library in libraries {
            let file = folder.path().join(library);
            fs::create_dir_all(file.parent().expect("it lies in a folder")).expect("the folder is ours");
            fs::write(file, "").expect("the folder is ours");
        }
        Self(folder)
    }

    fn path(&self, below: &str) -> String {
        self.0.path().join(below).display().to_string()
    }

    fn run(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        let mut command = Command::new(Path::new(&self.path("bin/isthmus")));
        for name in [
            "LD_LIBRARY_PATH",
            "LD_PRELOAD",
            "FI_PROVIDER",
            "FI_PROVIDER_PATH",
            "ISTHMUS_SOCKET",
            "ISTHMUS_VERBS",
            "SYSFS_PATH",
        ] {
            command.env_remove(name);
        }
        command.args(arguments).envs(variables.iter().copied()).output().expect("the program starts")
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const BOTH: [&str; 2] = ["lib/libmyriexpress.so", "lib/libfabric/libisthmus-fi.so"];

#[test]
fn program_gets_the_variables_of_what_is_installed_and_keeps_its_exit_status() {
    let installed = Installation::with(&BOTH);
    let script = "echo $LD_LIBRARY_PATH $FI_PROVIDER_PATH $FI_PROVIDER $ISTHMUS_SOCKET; exit 7";
    let variables = [("LD_LIBRARY_PATH", "/mine"), ("FI_PROVIDER", "tcp")];
    let output = installed.run(&["--socket", "/s", "run", "--", "sh", "-c", script], &variables);
    assert_eq!(output.status.code(), Some(7));
    let expected = format!("{}:/mine {} tcp /s\n", installed.path("lib"), installed.path("lib/libfabric"));
    assert_eq!(text(&output.stdout), expected);
    let said = text(&output.stderr);
    assert!(
        said.starts_with("isthmus: on: mx (") && said.contains(", fabric (") && said.lines().count() == 1,
        "{said}"
    );
}

#[test]
fn program_replaces_isthmus_and_dies_by_its_own_signal() {
    use std::os::unix::process::ExitStatusExt;
    let installed = Installation::with(&BOTH);
    let output = installed.run(&["run", "--quiet", "--", "sh", "-c", "kill -TERM $$"], &[]);
    assert_eq!((output.status.signal(), text(&output.stderr)), (Some(15), String::new()));
}

#[test]
fn capabilities_are_left_off_when_missing_or_unwanted() {
    let installed = Installation::with(&BOTH[..1]);
    let said = |arguments: &[&str]| text(&installed.run(arguments, &[]).stderr);
    assert!(said(&["run", "--", "true"]).contains("off: fabric (not installed: libisthmus-fi.so is in none of"));
    let nothing = installed.run(&["run", "--without", "mx", "--", "true"], &[]);
    assert_eq!(nothing.status.code(), Some(1));
    assert!(text(&nothing.stderr).contains("nothing to switch on: mx (--without)"), "{}", text(&nothing.stderr));
}

#[test]
fn dry_run_prints_what_would_be_set_and_starts_nothing() {
    let installed = Installation::with(&BOTH[..1]);
    let output = installed.run(&["run", "--dry-run", "--", "false", "a b"], &[]);
    assert_eq!(output.status.code(), Some(0));
    let printed = text(&output.stdout);
    assert!(printed.starts_with(&format!("export LD_LIBRARY_PATH={} # ", installed.path("lib"))), "{printed}");
    assert!(printed.ends_with("exec false 'a b'\n"), "{printed}");
    let json = installed.run(&["--json", "run", "--dry-run", "--", "false"], &[]);
    let json: Value = serde_json::from_slice(&json.stdout).expect("one JSON object");
    assert_eq!((&json["kind"], &json["on"][0]["capability"]), (&"run".into(), &"mx".into()));
}

#[test]
fn library_of_sockets_is_loaded_before_those_that_are_set() {
    let installed = Installation::with(&["lib/libisthmus-sockets.so"]);
    let output = installed.run(&["run", "--with", "sockets", "--dry-run", "--", "true"], &[("LD_PRELOAD", "")]);
    let (printed, library) = (text(&output.stdout), installed.path("lib/libisthmus-sockets.so"));
    assert!(printed.starts_with(&format!("export LD_PRELOAD={library} # ")), "{printed}");
}

const OFF: &str = "sockets (ask for it with `--with sockets`)";

#[test]
fn sockets_are_off_unless_they_are_asked_for() {
    let installed = Installation::with(&["lib/libmyriexpress.so", "lib/libisthmus-sockets.so"]);
    let output = installed.run(&["run", "--", "sh", "-c", "echo ${LD_PRELOAD-unset}"], &[]);
    let said = text(&output.stderr);
    assert_eq!(text(&output.stdout), "unset\n");
    assert!(said.starts_with("isthmus: on: mx (") && said.contains("; off: ") && said.contains(OFF), "{said}");
    let json = installed.run(&["--json", "run", "--dry-run", "--", "true"], &[]);
    let json: Value = serde_json::from_slice(&json.stdout).expect("one JSON object");
    assert!(json["off"].as_array().expect("a list").contains(&OFF.into()), "{json}");
    // All others are on without the option, and may be named.
    let said = text(&installed.run(&["run", "--with", "mx", "--with", "sockets", "--", "true"], &[]).stderr);
    assert!(said.contains("on: mx (") && said.contains(", sockets (") && !said.contains("sockets (ask"), "{said}");
    let nowhere = ["--socket", "/nowhere", "run", "--with", "sockets", "--", "true"];
    let said = text(&installed.run(&nowhere, &[]).stderr);
    assert!(said.contains(&format!(", sockets ({}; no daemon answers)", installed.path("lib"))), "{said}");
    let only = Installation::with(&["lib/libisthmus-sockets.so"]).run(&["run", "--", "true"], &[]);
    assert!(only.status.code() == Some(1) && text(&only.stderr).contains(OFF), "{only:?}");
}

#[test]
fn sockets_that_an_outer_run_has_switched_on_stay_on() {
    let installed = Installation::with(&["lib/libmyriexpress.so", "lib/libisthmus-sockets.so"]);
    let (library, folder) = (installed.path("lib/libisthmus-sockets.so"), installed.path("lib"));
    let run = |options: &[&str]| {
        let arguments = [&["--json", "run", "--dry-run"], options, &["--", "true"]].concat();
        let output = installed.run(&arguments, &[("LD_PRELOAD", &library)]);
        serde_json::from_slice::<Value>(&output.stdout).expect("one JSON object")
    };
    let inherited = run(&[]);
    let sockets = json!({ "capability": "sockets", "folder": folder, "variables": [] });
    assert!(inherited["on"].as_array().expect("a list").contains(&sockets), "{inherited}");
    let unwanted = run(&["--without", "sockets"]);
    assert!(unwanted["off"].as_array().expect("a list").contains(&"sockets (--without)".into()), "{unwanted}");
}

#[test]
fn capability_that_does_not_exist_or_is_on_and_off_is_wrong_usage() {
    let installed = Installation::with(&ALL);
    for command in [&["run"][..], &["cdi"]] {
        let program: &[&str] = if command == ["run"] { &["--", "true"] } else { &[] };
        let unknown = installed.run(&[command, &["--with", "socket"], program].concat(), &[]);
        let said = text(&unknown.stderr);
        assert_eq!(unknown.status.code(), Some(2), "{said}");
        let names = ["'socket'", "mx", "fabric", "sockets", "verbs"];
        assert!(names.iter().all(|name| said.contains(name)), "{said}");
        let both = installed.run(&[command, &["--with", "sockets", "--without", "sockets"], program].concat(), &[]);
        let said = text(&both.stderr);
        assert!(both.status.code() == Some(2) && said.contains("exclude each other"), "{said}");
    }
}

/// An installation with the plug-in of verbs, and the device's files beside a socket.
fn with_verbs() -> (Installation, String) {
    let device = "run/verbs/sys/class/infiniband_verbs/uverbs0/ibdev";
    let installed = Installation::with(&["lib/libisthmus-rdmav34.so", device]);
    let socket = installed.path("run/isthmus.sock");
    (installed, socket)
}

#[test]
fn rdma_program_gets_the_device_and_the_plug_in() {
    let (installed, socket) = with_verbs();
    let script = "echo ${SYSFS_PATH-unset} ${IBV_DRIVERS-unset}";
    let shown = |arguments: &[&str], variables: &[(&str, &str)]| {
        let output = installed.run(&[arguments, &["--", "sh", "-c", script]].concat(), variables);
        (text(&output.stdout), text(&output.stderr))
    };
    let driver = installed.path("lib/libisthmus");
    let on = format!("{} {driver}\n", installed.path("run/verbs/sys"));
    assert_eq!(shown(&["--socket", &socket, "run"], &[]).0, on);
    assert_eq!(shown(&["run"], &[("ISTHMUS_SOCKET", &socket)]).0, on);
    let elsewhere = shown(&["run"], &[("SYSFS_PATH", &installed.path("run/verbs/sys")), ("IBV_DRIVERS", "mlx5")]);
    assert_eq!(elsewhere.0, format!("{} {driver}:mlx5\n", installed.path("run/verbs/sys")));
}

#[test]
fn rdma_program_gets_nothing_without_files_or_when_switched_off() {
    let (installed, socket) = with_verbs();
    fs::write(installed.path("lib/libmyriexpress.so"), "").expect("the folder is ours");
    let script = "echo ${SYSFS_PATH-unset} ${IBV_DRIVERS-unset}";
    for (socket, off, reason) in
        [(installed.path("other/isthmus.sock"), "on", "off: fabric"), (socket, "off", "verbs (ISTHMUS_VERBS=off)")]
    {
        let arguments = ["--socket", &socket, "run", "--", "sh", "-c", script];
        let output = installed.run(&arguments, &[("ISTHMUS_VERBS", off)]);
        assert_eq!(text(&output.stdout), "unset unset\n");
        assert!(text(&output.stderr).contains(reason), "{}", text(&output.stderr));
    }
    let missing = installed.run(&["--socket", "/nonexistent/isthmus.sock", "run", "--", "true"], &[]);
    assert!(text(&missing.stderr).contains("`isthmus verbs enable` writes them"), "{}", text(&missing.stderr));
}

#[test]
fn doctor_starts_a_program_with_the_library_of_sockets() {
    let finding = |installed: &Installation| {
        let output = installed.run(&["--json", "--socket", "/nonexistent/isthmus.sock", "doctor"], &[]);
        let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        let findings = report["findings"].as_array().expect("a list");
        findings.iter().find(|finding| finding["id"] == "sockets.library").expect("the finding").clone()
    };
    let missing = finding(&Installation::with(&[]));
    assert_eq!(missing["severity"], "warning", "{missing}");
    // An empty file is no library.
    let installed = Installation::with(&["lib/libisthmus-sockets.so"]);
    let broken = finding(&installed);
    assert_eq!(broken["severity"], "problem", "{broken}");
    assert!(broken["result"].as_str().is_some_and(|said| said.contains("cannot be preloaded")), "{broken}");
    let maps = fs::read_to_string("/proc/self/maps").expect("a process has mappings");
    let library = maps.lines().filter_map(|line| line.split_whitespace().last()).find(|file| file.contains("libc.so"));
    fs::copy(library.expect("tests are linked with the C library"), installed.path("lib/libisthmus-sockets.so"))
        .expect("copied");
    assert_eq!(finding(&installed)["severity"], "ok");
}

#[test]
fn doctor_checks_verbs_where_the_plug_in_is_installed() {
    let doctor = |installed: &Installation, sys: &str| -> Vec<Value> {
        let arguments = ["--json", "--socket", "/nonexistent/isthmus.sock", "doctor"];
        let output = installed.run(&arguments, &[("SYSFS_PATH", sys)]);
        let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        let findings = report["findings"].as_array().expect("a list");
        findings
            .iter()
            .filter(|found| found["id"].as_str().is_some_and(|id| id.starts_with("verbs.")))
            .cloned()
            .collect()
    };
    if !Path::new("/dev/infiniband/uverbs0").exists() {
        let unused = doctor(&Installation::with(&[]), "");
        assert_eq!((unused.len(), &unused[0]["severity"]), (1, &Value::from("ok")), "{unused:?}");
    }
    let (installed, _) = with_verbs();
    let found = doctor(&installed, &installed.path("run/verbs/sys"));
    let severity = |id: &str| {
        let finding = found.iter().find(|finding| finding["id"] == id);
        finding.unwrap_or_else(|| panic!("no {id}: {found:?}"))["severity"].clone()
    };
    // An empty file is no library, and the other one is not installed.
    let severities = ["verbs.plug-in", "verbs.preload", "verbs.files"].map(severity);
    assert_eq!(severities, ["problem", "warning", "ok"], "{found:?}");
    if !Path::new("/dev/infiniband").exists() {
        let files = found.iter().find(|finding| finding["id"] == "verbs.device-file").expect("the finding");
        let says = |key: &str, part| files[key].as_str().is_some_and(|said| said.contains(part));
        assert!(files["severity"] == "warning" && says("result", "/dev/infiniband/rdma_cm"), "{files}");
        assert!(
            says("remedy", "/dev/full /dev/infiniband/rdma_cm") && says("remedy", "isthmus verbs enable"),
            "{files}"
        );
    }
    let others = ["verbs.device-file", "verbs.libibverbs", "verbs.kernel"].map(severity);
    assert!(others.iter().all(|severity| severity != "problem"), "{found:?}");
    let document = include_str!("../../../docs/operate/cli.md");
    assert!(found.iter().all(|found| document.contains(&format!("`{}`", found["id"].as_str().unwrap()))), "{found:?}");
    assert!(found.iter().all(|found| found["severity"] == "ok" || found["remedy"].is_string()), "{found:?}");
}

#[test]
fn program_that_cannot_be_started_has_the_exit_status_of_a_shell() {
    let installed = Installation::with(&BOTH[..1]);
    let missing = installed.run(&["run", "--", "no-such-program-anywhere"], &[]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(text(&missing.stderr).contains("cannot run no-such-program-anywhere"), "{}", text(&missing.stderr));
    let folder = installed.path("lib");
    assert_eq!(installed.run(&["run", "--", &folder], &[]).status.code(), Some(126));
}

/// Compiles a C program into a folder. Returns none, with the reason on standard error, if there is no such compiler.
fn compiled(folder: &Path, compiler: &str, options: &[&str], source: &str) -> Option<String> {
    let (file, program) = (folder.join("program.c"), folder.join(format!("{compiler}{}", options.concat())));
    fs::write(&file, source).expect("the folder is ours");
    let output = match Command::new(compiler).args(options).arg("-o").arg(&program).arg(&file).output() {
        Ok(output) => output,
        Err(error) => {
            eprintln!("skipped: {compiler}: {error}");
            return None;
        }
    };
    assert!(output.status.success(), "{compiler}: {}", text(&output.stderr));
    Some(program.display().to_string())
}

/// Prints LD_PRELOAD, and fails to start with a library that another C library was linked with.
const SHOW_PRELOAD: &str = r#"
#include <stdio.h>
#include <stdlib.h>
int main(void)
{
    const char *set = getenv("LD_PRELOAD");
    return puts(set ? set : "none") < 0;
}
"#;

/// An installation with a library that needs glibc.
fn with_library_of_glibc() -> Option<Installation> {
    let installed = Installation::with(&["lib/placeholder"]);
    let source = "#include <string.h>\nconst char *name(int n) { return strerrorname_np(n); }\n";
    let folder = installed.0.path().join("lib");
    // musl has no function of this name, so its linker refuses the library.
    let library = compiled(&folder, "cc", &["-D_GNU_SOURCE", "-shared", "-fPIC"], source)?;
    fs::rename(library, folder.join("libisthmus-sockets.so")).expect("the folder is ours");
    Some(installed)
}

#[test]
fn program_of_musl_starts_without_the_library_of_sockets() {
    let Some(installed) = with_library_of_glibc() else { return };
    let Some(program) = compiled(installed.0.path(), "musl-gcc", &[], SHOW_PRELOAD) else { return };
    let library = installed.path("lib/libisthmus-sockets.so");
    let plain = Command::new(&program).env("LD_PRELOAD", &library).output().expect("the program starts");
    assert!(!plain.status.success(), "this library keeps the program from its start: {}", text(&plain.stdout));

    let script = installed.path("script");
    fs::write(&script, format!("#!{program}\n")).expect("the folder is ours");
    fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("the file is ours");
    for started in [&program, &script] {
        let output = installed.run(&["run", "--with", "sockets", "--", started], &[]);
        let said = text(&output.stderr);
        assert!(output.status.success() && text(&output.stdout) == "none\n", "{output:?}");
        assert!(said.contains("sockets (") && said.contains("is loaded by /lib/ld-musl-"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let quiet = installed.run(&["run", "--with", "sockets", "--quiet", "--", &program], &[]);
    assert_eq!((quiet.status.code(), text(&quiet.stderr)), (Some(0), String::new()));
    let inherited = installed.run(&["run", "--", &program], &[("LD_PRELOAD", &format!("{library}:"))]);
    assert_eq!((inherited.status.code(), text(&inherited.stdout)), (Some(0), "\n".to_owned()), "{inherited:?}");
}

#[test]
fn static_program_is_off_and_its_children_get_the_library() {
    let Some(installed) = with_library_of_glibc() else { return };
    let Some(program) = compiled(installed.0.path(), "cc", &["-static"], SHOW_PRELOAD) else { return };
    let output = installed.run(&["run", "--with", "sockets", "--", &program], &[]);
    let library = installed.path("lib/libisthmus-sockets.so");
    let (said, off) =
        (text(&output.stderr), format!("sockets ({program} is a static executable, which loads no library"));
    assert!(said.starts_with("isthmus: off: ") && said.contains(&off) && !said.contains("on: "), "{said}");
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), format!("{library}\n")), "{output:?}");
}

#[test]
fn setuid_program_starts_without_the_library() {
    use std::os::unix::fs::PermissionsExt as _;
    let Some(installed) = with_library_of_glibc() else { return };
    let source = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
int main(void)
{
    char line[512];
    int loaded = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        loaded |= strstr(line, "libisthmus-sockets") != NULL;
    return printf("secure %lu loaded %d\n", getauxval(AT_SECURE), loaded) < 0;
}
"#;
    let Some(program) = compiled(installed.0.path(), "cc", &[], source) else { return };
    let run = || installed.run(&["run", "--with", "sockets", "--", &program], &[]);
    assert!(text(&run().stderr).contains("on: sockets ("), "{}", text(&run().stderr));
    assert_eq!(text(&run().stdout), "secure 0 loaded 1\n");
    // The file belongs to another user than the one of this test.
    let owner = if rustix::process::geteuid().is_root() { 65534 } else { return };
    std::os::unix::fs::chown(&program, Some(owner), None).expect("root may");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("root may");
    for folder in [installed.0.path().to_owned(), installed.0.path().join("lib")] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("the folder is ours");
    }
    let output = run();
    assert_eq!(text(&output.stdout), "secure 1 loaded 0\n");
    let (said, off) = (text(&output.stderr), format!("sockets ({program} has the rights of its file"));
    assert!(said.starts_with("isthmus: off: ") && said.contains(&off), "{said}");
}

/// The libraries of all capabilities.
const ALL: [&str; 5] =
    [BOTH[0], BOTH[1], "lib/libisthmus-sockets.so", "lib/libisthmus-rdmav34.so", "lib/libisthmus-verbs.so"];

/// Returns whether the standard permits this name of a vendor or a class: letters, digits, `_` and `-`, and a letter first and
/// a letter or a digit last. (A vendor may have dots, too.)
fn is_cdi_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.ends_with(|last: char| last.is_ascii_alphanumeric())
        && name.chars().all(|sign| sign.is_ascii_alphanumeric() || "_-".contains(sign))
}

/// Checks the rules of the standard. Returns the variables and the mounts (container, host) of the one device.
fn checked_device(specification: &Value) -> (Vec<String>, Vec<(String, String)>) {
    let keys = |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(specification), ["cdiVersion", "devices", "kind"]);
    assert_eq!(specification["cdiVersion"], "0.3.0", "each field exists since this version");
    let (vendor, class) = specification["kind"].as_str().and_then(|kind| kind.split_once('/')).expect("vendor/class");
    assert!(is_cdi_name(vendor) && is_cdi_name(class) && (vendor, class) == ("isthmus", "host"));
    let [device] = specification["devices"].as_array().expect("a list").as_slice() else { panic!("{specification}") };
    assert_eq!((keys(device), &device["name"]), (vec!["containerEdits".into(), "name".into()], &"all".into()));
    let edits = &device["containerEdits"];
    if edits.get("deviceNodes").is_some() {
        let copy = |path: &str, minor: u32| json!({ "path": path, "type": "c", "major": 1, "minor": minor, "fileMode": 0o666, "permissions": "rw" });
        let (null, full) = (copy("/dev/infiniband/uverbs0", 3), copy("/dev/infiniband/rdma_cm", 7));
        assert_eq!(edits["deviceNodes"], Value::Array(vec![null, full]), "copies of /dev/null and /dev/full");
    }
    let expected = ["deviceNodes", "env", "mounts"];
    assert!(expected.ends_with(&keys(edits).iter().map(String::as_str).collect::<Vec<_>>()), "{edits}");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let variables: Vec<String> = edits["env"].as_array().expect("a list").iter().map(text).collect();
    let names: Vec<&str> = variables.iter().map(|set| set.split_once('=').expect("NAME=VALUE").0).collect();
    assert!(names.iter().all(|name| !name.is_empty()), "{names:?}");
    assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len(), "{names:?}");
    let mounts = edits["mounts"].as_array().expect("a list").iter().map(|mount| {
        assert_eq!(keys(mount), ["containerPath", "hostPath", "options"]);
        let options: Vec<String> = mount["options"].as_array().expect("a list").iter().map(text).collect();
        assert!(options.contains(&"rbind".to_owned()) && options.contains(&"ro".to_owned()), "{options:?}");
        let (within, host) = (text(&mount["containerPath"]), text(&mount["hostPath"]));
        assert!(Path::new(&within).is_absolute() && Path::new(&host).is_absolute(), "{mount}");
        (within, host)
    });
    let mounts: Vec<_> = mounts.collect();
    (variables, mounts)
}

#[test]
fn cdi_device_has_the_socket_the_libraries_and_the_variables() {
    let installed = Installation::with(&ALL);
    let socket = installed.path("run/isthmus.sock");
    fs::create_dir(installed.path("run")).expect("the folder is new");
    let plain = installed.run(&["--socket", &socket, "cdi"], &[]);
    let (variables, mounts) = checked_device(&serde_json::from_slice(&plain.stdout).expect("JSON"));
    let preload = "LD_PRELOAD=/opt/isthmus/verbs/libisthmus-verbs.so";
    assert!(variables.iter().any(|found| found == preload), "{variables:?}");
    assert!(!mounts.iter().any(|(within, _)| within.contains("sockets")), "{mounts:?}");
    let output = installed.run(&["--socket", &socket, "cdi", "--with", "sockets"], &[]);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
    let (variables, mounts) = checked_device(&serde_json::from_slice(&output.stdout).expect("JSON"));
    for set in [
        "ISTHMUS_SOCKET=/run/isthmus/isthmus.sock",
        "ISTHMUS_AUTOSTART=0",
        "LD_PRELOAD=/opt/isthmus/sockets/libisthmus-sockets.so:/opt/isthmus/verbs/libisthmus-verbs.so",
        "SYSFS_PATH=/run/isthmus/verbs/sys",
        "IBV_DRIVERS=/opt/isthmus/verbs/libisthmus",
        "LD_LIBRARY_PATH=/opt/isthmus/mx",
        "FI_PROVIDER_PATH=/opt/isthmus/fabric",
        "FI_PROVIDER=isthmus",
    ] {
        assert!(variables.iter().any(|found| found == set), "{set} in {variables:?}");
    }
    let expected = [
        ("/run/isthmus", "run"),
        ("/opt/isthmus/mx/libmyriexpress.so.0", BOTH[0]),
        ("/opt/isthmus/mx/libopen-mx.so", BOTH[0]),
        ("/opt/isthmus/mx/libopen-mx.so.0", BOTH[0]),
        ("/opt/isthmus/mx/libmyriexpress.so", BOTH[0]),
        ("/opt/isthmus/fabric/libisthmus-fi.so", BOTH[1]),
        ("/opt/isthmus/sockets/libisthmus-sockets.so", ALL[2]),
        ("/opt/isthmus/verbs/libisthmus-rdmav34.so", ALL[3]),
        ("/opt/isthmus/verbs/libisthmus-verbs.so", ALL[4]),
    ];
    let expected: Vec<_> = expected.iter().map(|(within, host)| ((*within).to_owned(), installed.path(host))).collect();
    assert_eq!(mounts, expected);
}

#[test]
fn cdi_specification_is_written_for_all_users_and_replaces_the_old_one() {
    let installed = Installation::with(&ALL);
    let file = installed.path("etc/cdi/isthmus.json");
    let write = format!("--write={}", installed.path("etc/cdi"));
    for variable in ["/nonexistent/other.sock", "/nonexistent/isthmus.sock"] {
        let output = installed.run(&["cdi", &write], &[("ISTHMUS_SOCKET", variable)]);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), format!("written: {file}\n")));
        assert!(text(&output.stderr).contains("/nonexistent: "), "{}", text(&output.stderr));
    }
    assert_eq!(fs::metadata(&file).expect("it is written").permissions().mode() & 0o777, 0o644);
    let written: Value = serde_json::from_slice(&fs::read(&file).expect("it is written")).expect("JSON");
    assert_eq!(checked_device(&written).1[0], ("/run/isthmus".to_owned(), "/nonexistent".to_owned()));
    assert_eq!(fs::read_dir(installed.path("etc/cdi")).expect("the folder").count(), 1, "no other file is left");
    let json = installed.run(&["--json", "cdi"], &[]);
    let json: Value = serde_json::from_slice(&json.stdout).expect("one JSON object");
    assert_eq!((&json["kind"], &json["file"]), (&"cdi".into(), &Value::Null));
    assert_eq!(checked_device(&json["specification"]).1[0].1, "/run/isthmus", "the system's daemon");
}

#[test]
fn cdi_names_the_libraries_that_are_missing() {
    let installed = Installation::with(&BOTH[..1]);
    let write = format!("--write={}", installed.path("cdi"));
    let output = installed.run(&["cdi", "--with", "sockets", &write], &[]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for part in ["libisthmus-fi.so is in none of ", "libisthmus-sockets.so is in none of ", "`make install`"] {
        assert!(said.contains(part), "{part} in {said}");
    }
    assert!(
        said.contains("--with sockets") && said.contains("--without fabric") && !said.contains("libmyriexpress"),
        "{said}"
    );
    assert!(!Path::new(&installed.path("cdi")).exists());
    let output = installed.run(&["cdi", "--without", "fabric", "--without", "verbs"], &[]);
    let specification: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(specification["devices"][0]["containerEdits"].get("deviceNodes"), None);
    let (variables, mounts) = checked_device(&specification);
    assert_eq!((variables.len(), mounts.len()), (3, 5), "{variables:?} {mounts:?}");
}

#[test]
fn cdi_refuses_a_socket_in_a_folder_that_is_not_the_daemons_own() {
    let installed = Installation::with(&ALL);
    for (socket, why) in
        [("/tmp/isthmus.sock", "all of /tmp,"), ("/isthmus.sock", "all of /,"), ("/", "not the path of a socket")]
    {
        let output = installed.run(&["--socket", socket, "cdi"], &[]);
        assert_eq!(output.status.code(), Some(1), "{socket}");
        assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
    }
    let output = installed.run(&["cdi", "--write=/proc/none"], &[]);
    assert!(text(&output.stderr).contains("cannot write /proc/none/isthmus.json: "), "{}", text(&output.stderr));
}
