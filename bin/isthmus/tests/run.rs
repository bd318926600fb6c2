//! `isthmus run`, from an installation in a temporary folder.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

/// An installation: this program in `bin`, and these files, which stand for libraries.
struct Installation(TempDir);

impl Installation {
    fn with(libraries: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::create_dir(folder.path().join("bin")).expect("the folder is new");
        fs::copy(env!("CARGO_BIN_EXE_isthmus"), folder.path().join("bin/isthmus")).expect("the program was built");
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
        for name in ["LD_LIBRARY_PATH", "LD_PRELOAD", "FI_PROVIDER", "FI_PROVIDER_PATH", "ISTHMUS_SOCKET"] {
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
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).expect("one JSON object");
    assert_eq!((&json["kind"], &json["on"][0]["capability"]), (&"run".into(), &"mx".into()));
}

#[test]
fn library_of_sockets_is_loaded_before_those_that_are_set() {
    let installed = Installation::with(&["lib/libisthmus-sockets.so"]);
    let output = installed.run(&["run", "--dry-run", "--", "true"], &[("LD_PRELOAD", "")]);
    let (printed, library) = (text(&output.stdout), installed.path("lib/libisthmus-sockets.so"));
    assert!(printed.starts_with(&format!("export LD_PRELOAD={library} # ")), "{printed}");
}

#[test]
fn doctor_starts_a_program_with_the_library_of_sockets() {
    let finding = |installed: &Installation| {
        let output = installed.run(&["--json", "--socket", "/nonexistent/isthmus.sock", "doctor"], &[]);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
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
fn program_that_cannot_be_started_has_the_exit_status_of_a_shell() {
    let installed = Installation::with(&BOTH[..1]);
    let missing = installed.run(&["run", "--", "no-such-program-anywhere"], &[]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(text(&missing.stderr).contains("cannot run no-such-program-anywhere"), "{}", text(&missing.stderr));
    let folder = installed.path("lib");
    assert_eq!(installed.run(&["run", "--", &folder], &[]).status.code(), Some(126));
}
