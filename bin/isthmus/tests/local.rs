//! Commands that need no daemon.

use assert_cmd::Command;
use serde_json::Value;

fn isthmus(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_isthmus"));
    let ours = std::env::vars_os().map(|(name, _)| name).filter(|name| name.to_string_lossy().starts_with("ISTHMUS_"));
    for name in ours {
        command.env_remove(name);
    }
    command.args(arguments).env("XDG_RUNTIME_DIR", "/nonexistent").env("HOME", "/nonexistent");
    command
}

/// The one object on standard output.
fn object(command: &mut Command, code: i32) -> Value {
    let output = command.assert().code(code).get_output().stdout.clone();
    let value: Value = serde_json::from_slice(&output).expect("one JSON object");
    assert_eq!(value["schema"], 1, "{value}");
    value
}

#[test]
fn reasons_are_listed_and_shown_by_name_and_by_code() {
    let listed = object(&mut isthmus(&["reason", "list", "--json"]), 0);
    let reasons = listed["reasons"].as_array().expect("a list");
    assert!(reasons.iter().all(|reason| reason["remedy"].as_str().is_some_and(|remedy| !remedy.is_empty())));
    let first = &reasons[0];
    let by_name = object(&mut isthmus(&["reason", "show", "daemon-unreachable", "--json"]), 0);
    let by_code = object(&mut isthmus(&["--json", "reason", "show", "1"]), 0);
    assert_eq!((&by_name["reason"], &by_code["reason"]), (first, first));
    assert_eq!((&listed["kind"], &by_name["kind"]), (&"reasons".into(), &"reason".into()));
}

#[test]
fn unknown_reason_is_a_usage_error() {
    let stderr = isthmus(&["reason", "show", "grant-forbidden"]).assert().code(2).get_output().stderr.clone();
    let said = String::from_utf8_lossy(&stderr);
    assert!(said.contains("grants-forbidden") || said.contains("attach-forbidden"), "{said}");
}

#[test]
fn environment_list_shows_every_variable_with_its_value() {
    let listed = object(isthmus(&["environment", "list", "--json"]).env("ISTHMUS_WAIT", "sleep"), 0);
    let variables = listed["variables"].as_array().expect("a list");
    let wait = variables.iter().find(|row| row["name"] == "ISTHMUS_WAIT").expect("is there");
    assert_eq!(
        (&wait["value"], &wait["origin"], &wait["reader"]),
        (&"sleep".into(), &"environment".into(), &"library".into())
    );
    assert!(variables.iter().any(|row| row["name"] == "ISTHMUS_DAEMON_WORKERS" && row["value"].is_null()));
}

#[test]
fn misspelt_variable_is_reported_with_a_suggestion() {
    let stdout =
        isthmus(&["environment", "list"]).env("ISTHMUS_SOKET", "/x").assert().success().get_output().stdout.clone();
    let said = String::from_utf8_lossy(&stdout);
    assert!(said.contains("ISTHMUS_SOKET") && said.contains("did you mean ISTHMUS_SOCKET?"), "{said}");
}

#[test]
fn without_a_daemon_the_configuration_is_that_of_one_started_now() {
    let home = tempfile::tempdir().expect("a folder");
    let folder = home.path().join("isthmus");
    std::fs::create_dir(&folder).expect("made");
    std::fs::write(folder.join("isthmus.toml"), "[wait]\nmode = \"sleep\"\n").expect("written");
    let config = |arguments: &[&str]| {
        let mut command = isthmus(arguments);
        command.env("XDG_CONFIG_HOME", home.path()).env("ISTHMUS_DAEMON_WORKERS", "2");
        command
    };
    let output = config(&["config", "show", "--origin", "--user"]).assert().success().get_output().stdout.clone();
    let text = String::from_utf8(output).expect("UTF-8");
    let line = |key: &str| text.lines().find(|line| line.starts_with(key)).unwrap_or_default().to_owned();
    assert!(line("wait.mode = \"sleep\"").ends_with("isthmus.toml:2"), "{text}");
    assert!(line("daemon.workers = 2").contains("environment ISTHMUS_DAEMON_WORKERS"), "{text}");
    let shown = object(&mut config(&["config", "show", "--user", "--json"]), 0);
    let rows = shown["entries"].as_array().expect("a list");
    assert!(
        rows.iter().any(|row| row["key"] == "wait.mode" && row["value"] == "sleep" && row["origin"]["kind"] == "file")
    );
    std::fs::write(folder.join("isthmus.toml"), "[wait]\nmod = 1\n").expect("written");
    let stderr = config(&["config", "show", "--user"]).assert().code(1).get_output().stderr.clone();
    assert!(String::from_utf8_lossy(&stderr).contains("there is no key wait.mod"));
}

#[test]
fn no_daemon_is_a_failure_that_names_its_remedy() {
    for arguments in [
        &["status"][..],
        &["domain", "list"],
        &["channel", "list"],
        &["endpoint", "list"],
        &["board", "list"],
        &["peer", "list"],
        &["why", "a", "b"],
    ] {
        let socket = ["--socket", "/nonexistent/isthmus.sock"];
        let output = isthmus(arguments).args(socket).assert().code(1).get_output().clone();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("[daemon-unreachable]") && said.contains("remedy:"), "{said}");
        assert!(output.stdout.is_empty());
    }
    let output =
        isthmus(&["status", "--json", "--socket", "/nonexistent/isthmus.sock"]).assert().code(1).get_output().clone();
    let said: Value = serde_json::from_slice(&output.stderr).expect("one JSON object");
    assert_eq!((&said["kind"], &said["reason"]), (&"error".into(), &"daemon-unreachable".into()));
}

#[test]
fn status_without_a_daemon_names_the_sockets_and_the_way_to_start_one() {
    let stderr = |arguments: &[&str]| {
        let output = isthmus(arguments).assert().code(1).get_output().stderr.clone();
        String::from_utf8(output).expect("UTF-8")
    };
    assert_eq!(
        stderr(&["status", "--socket", "/nonexistent/isthmus.sock"]),
        "isthmus: no daemon answers at /nonexistent/isthmus.sock: No such file or directory (os error 2) \
         [daemon-unreachable]\n  remedy: Start one: `isthmusd --user` for this user, or `systemctl start isthmusd` for all \
         users of the host. In a guest: `systemctl start isthmusd-guest`.\n"
    );
    if !std::path::Path::new("/run/isthmus").exists() {
        let usual = stderr(&["status"]);
        let sockets = "at /run/isthmus/isthmus.sock and /nonexistent/isthmus/isthmus.sock [";
        assert!(usual.contains(sockets) && usual.lines().count() == 2, "{usual}");
    }
}

#[test]
fn doctor_reports_problems_with_remedies() {
    let report =
        object(isthmus(&["doctor", "--json", "--socket", "/nonexistent/isthmus.sock"]).env("ISTHMUS_SOKET", "1"), 1);
    let findings = report["findings"].as_array().expect("a list");
    let of = |id: &str| findings.iter().find(|finding| finding["id"] == id).unwrap_or(&Value::Null);
    assert_eq!(
        (&of("daemon.reachable")["severity"], &of("daemon.reachable")["reason"]),
        (&"problem".into(), &"daemon-unreachable".into())
    );
    assert_eq!(of("process.environment")["severity"], "warning");
    assert_eq!(of("memory.sealed")["severity"], "ok");
    let needs_remedy = |finding: &Value| finding["severity"] != "ok";
    assert!(
        findings.iter().filter(|finding| needs_remedy(finding)).all(|finding| finding["remedy"].is_string()),
        "{report}"
    );
    assert_eq!(report["severity"], "problem");
}

#[test]
fn invalid_variable_is_a_problem() {
    let report = object(isthmus(&["doctor", "--json"]).env("ISTHMUS_WAIT", "poll"), 1);
    let finding = report["findings"]
        .as_array()
        .and_then(|findings| findings.iter().find(|finding| finding["id"] == "process.options"));
    assert!(
        finding
            .is_some_and(|finding| finding["result"].as_str().is_some_and(|said| said.contains("ISTHMUS_WAIT=poll"))),
        "{report}"
    );
}

#[test]
fn usage_errors_have_a_distinct_exit_status() {
    for wrong in [
        &["nonsense"][..],
        &["domain"],
        &["why"],
        &["why", "a"],
        &["why", "4711:"],
        &["why", "qp:x"],
        &["why", "a", "b", "c"],
        &["status", "--nonsense"],
        &["config", "show", "--user", "--system"],
    ] {
        isthmus(wrong).assert().code(2);
    }
}

#[test]
fn foreign_folder_is_not_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    isthmus(&["remove-on-exit"]).arg(folder.path()).write_stdin("").assert().code(1);
    assert!(folder.path().is_dir());
    let ours = tempfile::Builder::new().prefix("isthmus-try-").tempdir().expect("a folder").keep();
    std::fs::write(ours.join("file"), "x").expect("written");
    isthmus(&["remove-on-exit"]).arg(&ours).write_stdin("").assert().success();
    assert!(!ours.exists());
}

#[test]
fn guest_allow_dry_run_prints_xenstore_commands() {
    let said = object(&mut isthmus(&["--json", "guest", "allow", "7", "--backend", "5", "--dry-run"]), 0);
    let commands = serde_json::json!([
        "xenstore-write /local/domain/7/isthmus/backends '5'",
        "xenstore-chmod /local/domain/7/isthmus/backends n0 r7 r5",
        "xenstore-write /local/domain/5/isthmus/guests/7 ''",
        "xenstore-chmod /local/domain/5/isthmus/guests/7 n0 r5",
    ]);
    assert_eq!((&said["commands"], &said["done"]), (&commands, &false.into()));
    let stdout = isthmus(&["guest", "allow", "7", "--dry-run"]).assert().success().get_output().stdout.clone();
    assert!(stdout.starts_with(b"xenstore-write /local/domain/7/isthmus/backends '0'\n"));
}

#[test]
fn guests_are_allowed_on_xen_only() {
    if std::path::Path::new("/dev/xen/xenbus").exists() {
        return println!("skipped: this is a domain of Xen, and its guests are left alone");
    }
    for verb in ["allow", "deny"] {
        let stderr = isthmus(&["guest", verb, "7"]).assert().code(1).get_output().stderr.clone();
        let said = String::from_utf8_lossy(&stderr);
        assert!(said.contains("there is no XenStore at /dev/xen/xenbus"), "{said}");
    }
    isthmus(&["guest", "allow", "web", "--dry-run"]).assert().code(2);
    isthmus(&["guest", "allow", "7", "--backend", "7", "--dry-run"]).assert().code(2);
}
