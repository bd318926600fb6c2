//! A configuration is read, overridden, printed and documented as its table of keys says.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use isthmus_config::{
    self, AttachPolicy, Config, ConfigFile, Grants, Inputs, KEYS, Loaded, MetricsListen, Origin, PolicySubject, Role,
    TABLES, Users, Verdict, WorkerWaitMode, document, load, variables, variables_text,
};
use isthmus_layout::environment::VARIABLES;
use isthmus_layout::limits;
use proptest::prelude::*;

const PASSWD: &str =
    "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\nbob:x:1001:1001::/home/bob:/bin/sh\n";

fn inputs(file: &str) -> Inputs {
    Inputs {
        file: ConfigFile::Given { path: "isthmus.toml".into(), bytes: file.into() },
        users: Users::from_passwd(PASSWD).with_groups("staff:x:50:\n"),
        ..Inputs::bare(Role::System)
    }
}

fn environment(variables: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    variables.iter().map(|(name, value)| (name.into(), value.into())).collect()
}

fn loaded(inputs: &Inputs) -> Loaded {
    load(inputs).unwrap_or_else(|error| panic!("{error}"))
}

fn origin(loaded: &Loaded, path: &str) -> String {
    loaded.entries.iter().find(|entry| entry.key.path == path).expect("a key").origin.to_string()
}

/// The file [`EVERYTHING`], for a daemon of one user: some keys are only for such a one.
fn everything() -> Inputs {
    Inputs { role: Role::User, ..inputs(EVERYTHING) }
}

/// A file in which no key has its default.
const EVERYTHING: &str = r#"
[daemon]
socket = "/srv/isthmus/é \"s\".sock"
workers = 2
worker_cpus = [3, 0x1]
idle_exit_s = 5
log = "warn,isthmus_control=debug"
runtime_dir = "/srv/it's"
[wait]
mode = "spin"
spin_us = 1_000
[policy]
attach = ["ann", 1001, 4294967294]
talk = "all"
channels = false
grants = "never"
[[policy.names]]
name = "web-*"
cgroup = "/system.slice/web-*.service"
[[policy.names]]
name = "db-?"
guest = "db"
[[policy.rules]]
from = "web-*"
to = "db-?"
allow = true
channel = false
[[policy.rules]]
from = { group = "staff" }
to = { name = "log", user = "ann", group = 7 }
allow = true
[[policy.rules]]
to = "vault"
allow = false
[limits]
domains_max = 4000
domains_per_user_max = 100
endpoints_per_domain_max = 1
mx_endpoints_per_user_max = 16
channels_per_domain_max = 0
slab_kib = 4096
handshake_timeout_ms = 60000
[[mx.board]]
mac = "00:60:DD:00:00:01"
name = "myri0"
endpoints_max = 255
[[mx.board]]
[[mx.board]]
dialect = "mx"
links = [{ interface = "eth0", kind = "xdp" }]
[sockets]
enabled = false
connection_records = false
across = true
streams_max = 5
after_bytes = 4096
allow = ["10.1.0.0/16"]
deny = ["10.0.0.0/8", "[fd00::1]:443"]
[overlay]
listen = "0.0.0.0"
helper = "/tmp/helper.sock"
network = [{ name = "lan", vni = 7, learning = false, interfaces = [{ name = "eth0", namespace = "web", mac = "02:00:00:00:00:01", mtu = 1450, addresses = ["10.0.0.1/24"], bridge = "br0" }], edges = [{ to = "[fd00::2]:8472", kind = "vxlan" }] }]

[verbs]
enabled = false
[kvm]
pair_window_mib = 16
pair_window_idle_s = 5
pair_window_timeout_s = 20
[[kvm.guest]]
name = "web"
user = "ann"
socket = "/srv/web.sock"
qemu_user = "ann"
window_mib = 128
vectors = 32
monitor = "/srv/web.qmp"
[[kvm.guest]]
name = "db"
user = 1001
[xen]
pair_window_mib = 8
pair_window_idle_s = 4
pair_window_timeout_s = 6
[[xen.guest]]
name = "vm"
user = "ann"
window_mib = 16
vectors = 128
maps = false
[[xen.guest]]
name = "7"
user = 1001
[metrics]
listen = "[::1]:9419"
"#;

#[test]
fn load_gives_typed_values() {
    let config = loaded(&everything()).config;
    assert_eq!(config.daemon.socket.path(), Path::new("/srv/isthmus/é \"s\".sock"));
    assert_eq!(config.daemon.worker_cpus.numbers(), [3, 1]);
    assert_eq!(config.daemon.idle_exit_s.duration(), Some(Duration::from_secs(5)));
    assert_eq!(config.wait.mode, WorkerWaitMode::Spin);
    assert_eq!(config.wait.spin_us.duration(), Duration::from_millis(1));
    assert_eq!(config.limits.slab_kib.bytes(), 4 << 20);
    assert_eq!(config.limits.handshake_timeout_ms.duration(), Duration::from_secs(60));
    assert_eq!(config.metrics.listen, MetricsListen::Tcp("[::1]:9419".parse().expect("an address")));
    let boards = config.mx.board.as_slice();
    assert_eq!(boards[0].endpoints_max.map(|endpoints| endpoints.get()), Some(255));
    assert!(boards[1].mac.is_none() && boards[1].name.is_none());
    let guests = config.kvm.guest.as_slice();
    let daemon = config.daemon.socket.path();
    assert_eq!(guests.iter().map(|guest| guest.user.uid).collect::<Vec<_>>(), [1000, 1001]);
    assert_eq!(guests.iter().map(|guest| guest.window_bytes() >> 20).collect::<Vec<_>>(), [128, 64]);
    assert_eq!(guests.iter().map(|guest| guest.vectors()).collect::<Vec<_>>(), [32, 16]);
    assert_eq!(guests[0].socket(daemon), Path::new("/srv/web.sock"));
    assert_eq!(guests.iter().map(|guest| guest.monitor()).collect::<Vec<_>>(), [Some(Path::new("/srv/web.qmp")), None]);
    assert_eq!(guests[1].socket(daemon), Path::new("/srv/isthmus/guest-db.sock"));
    let of_xen = config.xen.guest.as_slice();
    assert_eq!(of_xen.iter().map(|guest| guest.name.name().as_str()).collect::<Vec<_>>(), ["vm", "7"]);
    assert_eq!(of_xen.iter().map(|guest| guest.user.uid).collect::<Vec<_>>(), [1000, 1001]);
    assert_eq!(of_xen.iter().map(|guest| guest.window_bytes() >> 20).collect::<Vec<_>>(), [16, 64]);
    assert_eq!(of_xen.iter().map(|guest| guest.vectors()).collect::<Vec<_>>(), [128, 64]);
    let AttachPolicy::Users(users) = &config.policy.attach else { panic!("a list") };
    assert_eq!(users.iter().map(|user| user.uid).collect::<Vec<_>>(), [1000, 1001, 4_294_967_294]);
}

#[test]
fn defaults_are_right_for_both_roles() {
    let system = loaded(&Inputs::bare(Role::System)).config;
    assert_eq!(system.daemon.socket.path(), Path::new("/run/isthmus/isthmus.sock"));
    assert_eq!(system.daemon.idle_exit_s.duration(), None);
    assert_eq!(system.metrics.listen, MetricsListen::Off);
    assert_eq!(system.limits.slab_kib.bytes(), limits::SLAB_BYTES_DEFAULT);

    let at_home = Inputs { uid: 1000, environment: environment(&[("HOME", "/home/ann")]), ..Inputs::bare(Role::User) };
    let user = loaded(&at_home).config;
    assert_eq!(user.daemon.socket.path(), Path::new("/tmp/isthmus-1000/isthmus.sock"));
    assert_eq!(at_home.role_defaults().config_file, Some(PathBuf::from("/home/ann/.config/isthmus/isthmus.toml")));

    let xdg = [("XDG_RUNTIME_DIR", "/run/user/1000"), ("XDG_CONFIG_HOME", "not/absolute"), ("HOME", "/c")];
    let places = Inputs { uid: 1000, environment: environment(&xdg), ..Inputs::bare(Role::User) }.role_defaults();
    assert_eq!(places.runtime_dir, Path::new("/run/user/1000/isthmus"));
    assert_eq!(places.config_file, Some(PathBuf::from("/c/.config/isthmus/isthmus.toml")));
}

#[test]
fn later_source_overrides_earlier_ones() {
    let file = "[wait]\nmode = \"sleep\"\nspin_us = 10\n[daemon]\nworkers = 2\n";
    let mut inputs = inputs(file);
    inputs.environment =
        environment(&[("ISTHMUS_DAEMON_WAIT_MODE", "spin"), ("ISTHMUS_DAEMON_WORKERS", "3"), ("PATH", "/")]);
    inputs.sets = vec!["daemon.workers=4".to_owned(), " daemon.workers = 5".to_owned()];
    let loaded = loaded(&inputs);
    assert_eq!(loaded.config.daemon.workers.get(), 5);
    assert_eq!(loaded.config.wait.mode, WorkerWaitMode::Spin);
    assert_eq!(loaded.config.wait.spin_us.get(), 10);
    assert_eq!(origin(&loaded, "daemon.workers"), "command line");
    assert_eq!(origin(&loaded, "wait.mode"), "environment ISTHMUS_DAEMON_WAIT_MODE");
    assert_eq!(origin(&loaded, "wait.spin_us"), "isthmus.toml:3");
    assert_eq!(origin(&loaded, "daemon.log"), "default");
    let shown = loaded.show_text(true);
    let workers = shown.lines().find(|line| line.starts_with("daemon.workers")).expect("a line for each key");
    assert!(
        workers
            .ends_with("# command line (instead of isthmus.toml:5, environment ISTHMUS_DAEMON_WORKERS, command line)"),
        "{workers}"
    );
}

#[test]
fn variables_and_sets_accept_words_and_toml() {
    let config = |key: &str, value: &str| {
        let bare = Inputs { users: Users::from_passwd(PASSWD), ..Inputs::bare(Role::System) };
        let by_set = loaded(&Inputs { sets: vec![format!("{key}={value}")], ..bare.clone() }).config;
        let variable = isthmus_config::key(key).expect("a key").environment();
        let by_variable = loaded(&Inputs { environment: environment(&[(&variable, value)]), ..bare }).config;
        assert_eq!(by_set, by_variable, "{key}={value}");
        by_set
    };
    assert_eq!(config("daemon.log", "off").daemon.log.as_str(), "off");
    assert_eq!(config("daemon.log", "\"debug\"").daemon.log.as_str(), "debug");
    assert_eq!(config("daemon.worker_cpus", "[7]").daemon.worker_cpus.numbers(), [7]);
    assert_eq!(config("daemon.socket", "/s").daemon.socket.path(), Path::new("/s"));
    assert_eq!(config("policy.attach", "any-user").policy.attach, AttachPolicy::AnyUser);
    assert!(
        matches!(config("policy.attach", "['bob', 0]").policy.attach, AttachPolicy::Users(users) if users.len() == 2)
    );
    assert!(!config("policy.channels", "false").policy.channels);
    assert_eq!(
        config("policy.rules", "[{ from = 'a=b', allow = true }]").policy.rules.as_slice()[0].from.name.as_str(),
        "a=b"
    );
    assert_eq!(config("metrics.listen", "").metrics.listen, MetricsListen::Off);
    assert_eq!(config("metrics.listen", "/m").metrics.listen, config("metrics.listen", "'/m'").metrics.listen);
}

#[test]
fn check_text_reads_back_as_the_same_configuration() {
    for file in ["", EVERYTHING] {
        let of_user = |file: &str| loaded(&Inputs { role: Role::User, ..inputs(file) });
        let first = of_user(file);
        let again = of_user(&first.check_text());
        assert_eq!(again.config, first.config);
        assert_eq!(again.check_text(), first.check_text());
        let all_from_the_file = again.entries.iter().all(|entry| matches!(entry.origin, Origin::File { .. }));
        assert!(all_from_the_file, "check_text leaves no key out");
        for with_origin in [false, true] {
            assert_eq!(of_user(&first.show_text(with_origin)).config, first.config);
        }
    }
}

#[test]
fn sample_configuration_changes_every_key() {
    let differences = loaded(&everything()).config.differences(&loaded(&inputs("")).config);
    assert_eq!(differences.len(), KEYS.len(), "a new key belongs into EVERYTHING, so that the round trip sees it");
}

#[test]
fn show_json_has_each_key_with_value_and_origin() {
    let rows = loaded(&inputs("[limits]\nslab_kib = 64\n")).show_json();
    let rows = rows.as_array().expect("a list");
    assert_eq!(rows.iter().map(|row| row["key"].as_str().expect("a string")).collect::<Vec<_>>(), paths());
    let slab = rows.iter().find(|row| row["key"] == "limits.slab_kib").expect("is there");
    let expected = serde_json::json!({
        "key": "limits.slab_kib",
        "value": 64,
        "unit": "KiB",
        "origin": { "kind": "file", "path": "isthmus.toml", "line": 2, "column": 12 },
        "overridden": [],
        "environment": "ISTHMUS_DAEMON_LIMITS_SLAB_KIB",
        "effect": "restart",
        "after_restart": null,
    });
    assert_eq!(*slab, expected);
}

#[test]
fn connections_cross_namespaces_without_records_only_for_a_daemon_of_one_user() {
    let across = inputs("[sockets]\nacross = true\n");
    let text = load(&across).unwrap_err().to_string();
    assert!(
        text.contains("sockets.across") && text.contains("--user") && text.contains("connection_records"),
        "{text}"
    );
    assert!(loaded(&Inputs { role: Role::User, ..across }).config.sockets.across);
}

fn paths() -> Vec<&'static str> {
    KEYS.iter().map(|key| key.path).collect()
}

#[test]
fn keys_have_a_table_a_text_and_a_unique_variable() {
    let mut names = BTreeSet::new();
    for key in KEYS {
        assert!(TABLES.iter().any(|table| table.name == key.table), "{}", key.path);
        assert!(key.text().ends_with('.'), "{}", key.path);
        assert!(names.insert(key.environment()), "{} is the variable of two keys", key.environment());
    }
    for variable in VARIABLES {
        assert!(names.insert(variable.name.to_owned()), "{} is read by library and daemon", variable.name);
        assert!(variable.name.starts_with("ISTHMUS_") && !variable.effect.is_empty());
    }
}

#[test]
fn lists_variables_of_library_and_daemon_with_their_origin() {
    let set = environment(&[("ISTHMUS_WAIT", "spin"), ("ISTHMUS_DAEMON_SOCKET", "/\u{1b}[2J")]);
    let rows = variables(&Inputs { environment: set, ..Inputs::bare(Role::System) });
    assert_eq!(rows.len(), VARIABLES.len() + KEYS.len());
    let row = |name: &str| rows.iter().find(|row| row.name == name).expect("is there");
    assert_eq!((row("ISTHMUS_WAIT").reader, row("ISTHMUS_WAIT").origin), ("library", "environment"));
    assert_eq!(row("ISTHMUS_WAIT").value.as_deref(), Some("spin"));
    assert_eq!((row("ISTHMUS_SPIN_US").origin, row("ISTHMUS_SPIN_US").default.as_str()), ("default", "50"));
    assert_eq!(row("ISTHMUS_DAEMON_RUNTIME_DIR").default, "/run/isthmus");
    let text = variables_text(&rows);
    assert!(text.contains("ISTHMUS_DAEMON_SOCKET=/\\u{1b}[2J  # daemon, environment"), "{text}");
}

#[test]
fn policy_decides_by_the_first_rule_that_matches() {
    let file = r#"
        [policy]
        rules = [
            { from = "web-*", to = "db", channel = false },
            { from = "web-1", allow = true },
            { to = "vault", allow = false },
        ]
    "#;
    let policy = loaded(&inputs(file)).config.policy;
    let verdict = |from, from_uid, to, to_uid| {
        let subject = |name, uid| PolicySubject { name, uid, ..PolicySubject::default() };
        policy.verdict(subject(from, from_uid), subject(to, to_uid))
    };
    let (talk, channel) = (true, true);
    assert_eq!(verdict("a", 1, "b", 1), Verdict { talk, channel, rule: None });
    assert_eq!(verdict("a", 1, "b", 2), Verdict { talk: false, channel: false, rule: None });
    assert_eq!(verdict("web-1", 1, "db", 1), Verdict { talk, channel: false, rule: Some(0) });
    assert_eq!(verdict("web-1", 1, "db", 2), Verdict { talk: false, channel: false, rule: Some(0) });
    assert_eq!(verdict("web-1", 1, "vault", 2), Verdict { talk, channel, rule: Some(1) });
    assert_eq!(verdict("a", 1, "vault", 1), Verdict { talk: false, channel: false, rule: Some(2) });
    assert!(policy.may_attach(7, 7) && !policy.may_attach(0, 7));
    let policy = loaded(&inputs("policy = { attach = ['ann'], grants = 'never' }")).config.policy;
    assert!(policy.may_attach(1000, 7) && !policy.may_attach(7, 7));
    assert_eq!(policy.grants, Grants::Never);
}

#[test]
fn memory_stays_granted_between_containers_only_by_daemons_of_one_user() {
    let of_role = |role| loaded(&Inputs::bare(role)).config.policy.grants;
    assert_eq!([Role::System, Role::User].map(of_role), [Grants::SameContainer, Grants::SameUser]);
}

/// A policy with each kind of identity.
const IDENTITIES: &str = r#"
[policy]
attach = "any-user"
names = [{ name = "web-admin", guest = "vm" }, { name = "web-*", user = 5 }, { name = "grp-*", group = 50 }]
rules = [
    { from = { user = 5 }, to = { user = 6 }, allow = true },
    { from = { group = 50 }, to = { user = 6 }, allow = true, channel = false },
    { from = { cgroup = "/system.slice/web-*.service" }, to = { user = 6 }, allow = true },
    { from = { guest = "vm" }, to = { user = 6 }, allow = true },
    { from = { name = "web-*", group = 50 }, to = { user = 7 }, allow = true },
    { from = "web-*", to = { user = 8 }, allow = true },
]
[[kvm.guest]]
name = "vm"
user = "ann"
"#;

#[test]
fn rules_match_the_identity_of_a_domain() {
    let policy = loaded(&inputs(IDENTITIES)).config.policy;
    let plain = PolicySubject { name: "x", uid: 9, ..PolicySubject::default() };
    let to = |uid| PolicySubject { name: "db", uid, ..PolicySubject::default() };
    let rule_of = |from, uid| policy.verdict(from, to(uid)).rule;
    let senders = [
        (plain, None),
        (PolicySubject { name: "web-1", ..plain }, None),
        (PolicySubject { uid: 5, ..plain }, Some(0)),
        (PolicySubject { gids: &[7, 50], ..plain }, Some(1)),
        (PolicySubject { gids: &[5, 7], ..plain }, None),
        (PolicySubject { cgroup: Some("/system.slice/web-1.service/worker"), ..plain }, Some(2)),
        (PolicySubject { cgroup: Some("/user.slice/system.slice/web-1.service"), ..plain }, None),
        (PolicySubject { guest: Some("vm"), ..plain }, Some(3)),
        (PolicySubject { guest: Some("vm2"), ..plain }, None),
        (PolicySubject { guest: Some("vm"), uid: 5, ..plain }, Some(0)),
    ];
    for (from, rule) in senders {
        assert_eq!((rule_of(from, 6), policy.verdict(from, to(6)).talk), (rule, rule.is_some()), "{from:?}");
    }
    // All properties of a table have to match.
    let both = PolicySubject { name: "web-1", gids: &[50], ..plain };
    assert_eq!(rule_of(both, 7), Some(4));
    assert_eq!(
        [rule_of(PolicySubject { name: "x", ..both }, 7), rule_of(PolicySubject { gids: &[], ..both }, 7)],
        [None; 2]
    );
    assert!(policy.uses_cgroups() && !loaded(&inputs("")).config.policy.uses_cgroups());
}

#[test]
fn bound_name_is_for_domains_of_its_identity_only() {
    let policy = loaded(&inputs(IDENTITIES)).config.policy;
    let may = |domain| policy.forbidding_name(domain).is_none();
    for (name, uid, gids, guest, expected) in [
        ("web-1", 5, &[][..], None, true),
        ("web-1", 6, &[50], Some("vm"), false),
        ("web-admin", 5, &[], None, false),
        ("web-admin", 6, &[], Some("vm"), true),
        ("grp-a", 5, &[50], None, true),
        ("grp-a", 5, &[51], None, false),
        ("web", 6, &[], None, true),
    ] {
        let domain = PolicySubject { name, uid, gids, guest, ..PolicySubject::default() };
        assert_eq!(may(domain), expected, "{domain:?}");
    }
}

#[test]
fn allow_rule_needs_an_identity_or_a_bound_name_on_both_sides() {
    let accepts = |rest: &str| load(&inputs(&format!("[policy]\n{rest}"))).is_ok();
    let any_user = "attach = \"any-user\"\nnames = [{ name = \"w-*\", user = 5 }]\n";
    let cases = [
        ("{ from = { user = 5 }, to = { user = 6 }, allow = true }", true),
        ("{ from = { user = 5 }, allow = true }", true),
        ("{ from = \"*\", to = { name = \"db\", group = 6 }, allow = true }", true),
        ("{ from = \"w-*\", to = { user = 6 }, allow = true }", true),
        ("{ from = \"w-1?\", to = { user = 6 }, allow = true }", true),
        ("{ from = \"w*\", to = { user = 6 }, allow = true }", false),
        ("{ from = { user = 5 }, to = \"db\", allow = true }", false),
        ("{ from = { name = \"db\" }, allow = true }", false),
        ("{ from = \"db\", allow = false }", true),
        ("{ from = \"db\", channel = true }", true),
    ];
    for (rule, expected) in cases {
        assert_eq!(accepts(&format!("{any_user}rules = [{rule}]")), expected, "{rule}");
        assert!(accepts(&format!("rules = [{rule}]")), "one user only: {rule}");
    }
    // Where all may talk, such a rule gives programs of other users shared memory.
    assert!(!accepts(&format!("{any_user}talk = \"all\"\nrules = [{{ from = \"db\", channel = true }}]")));
}

#[test]
fn missing_file_is_an_error_only_if_it_was_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let home = folder.path().to_str().expect("UTF-8");
    let usual = Inputs {
        file: ConfigFile::Usual,
        environment: environment(&[("XDG_CONFIG_HOME", home)]),
        ..Inputs::bare(Role::User)
    };
    assert_eq!(loaded(&usual).file, None);

    let path = folder.path().join("isthmus/isthmus.toml");
    let named = Inputs { file: ConfigFile::Named(path.clone()), ..usual.clone() };
    let error = load(&named).expect_err("it is not there").to_string();
    assert_eq!(
        error,
        format!("{}: cannot read the configuration: No such file or directory (os error 2)", path.display())
    );

    std::fs::create_dir(folder.path().join("isthmus")).expect("a folder");
    std::fs::write(&path, "[daemon]\nworkers = 7\n").expect("a file");
    for inputs in [&usual, &named] {
        assert_eq!(loaded(inputs).config.daemon.workers.get(), 7);
        assert_eq!(loaded(inputs).file, Some(path.clone()));
    }
}

#[test]
fn document_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operate/configuration.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, document()).expect("the document can be written");
    }
    let written = std::fs::read_to_string(&path).expect("the document is there");
    assert_eq!(written, document(), "run UPDATE=1 cargo test -p isthmus-config --test config");
}

/// Pieces of which a random file is more likely to get past the first check.
const PIECES: &[&str] = &[
    "[",
    "]",
    "[[",
    "]]",
    "{",
    "}",
    "=",
    ",",
    ".",
    "\n",
    " ",
    "\"",
    "'",
    "'''",
    "\\",
    "#",
    "\u{feff}",
    "\r\n",
    "é",
    "\u{202e}",
    "\0",
    "daemon",
    "wait",
    "policy",
    "rules",
    "mx",
    "board",
    "mac",
    "endpoints_max",
    "limits",
    "mode",
    "workers",
    "worker_cpus",
    "attach",
    "from",
    "to",
    "allow",
    "channel",
    "spin",
    "adaptive",
    "\"same-user\"",
    "true",
    "0",
    "-1",
    "65536",
    "1e9",
    "inf",
    "0x",
    "99999999999999999999",
    "1979-05-27",
    "[daemon]\n",
    "[[policy.rules]]\n",
    "[[policy.names]]\n",
    "cgroup = \"/a/*\"\n",
    "guest = \"web\"\n",
    "from = { user = 5, group = 7 }\n",
    "[[mx.board]]\n",
    "name = \"é:0\"\n",
    "mac = \"02:00:00:00:00:0\"\n",
    "mac = \"02:00:00:00:00:01\"\n",
    "[[mx.board.links]]\n",
    "links = [{ interface = \"eth0\" }]\n",
    "links = [{ udp = \"10.0.0.1\", peers = [\"10.0.0.2\"] }]\n",
    "interface = \"eth1\"\n",
    "kind = \"xdp\"\n",
    "udp = \"[::1]:7\"\n",
    "peers = [\"::2\", \"a\"]\n",
    "peers = [{ mac = \"02:00:00:00:00:01\", name = \"a\" }]\n",
    "rank = 3\n",
    "dialect = \"mx\"\n",
    "ethertype = 0x88b5\n",
    "frame_bytes_max = 65510\n",
    "discovery = false\n",
    "resend_ms = 2000\n",
    "give_up_s = 1\n",
    "workers = ",
    "worker_cpus = [",
    "slab_kib = 300\n",
    "attach = [\"ann\", 7, \"zoe\"]\n",
];

proptest! {
    #[test]
    fn load_never_panics_on_any_file(pieces in prop::collection::vec(prop::sample::select(PIECES), 0..40)) {
        answers(&inputs(&pieces.concat()))?;
    }

    #[test]
    fn load_never_panics_on_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let file = ConfigFile::Given { path: "f".into(), bytes };
        answers(&Inputs { file, ..Inputs::bare(Role::System) })?;
    }

    #[test]
    fn load_never_panics_on_any_value_of_any_key(
        index in 0..KEYS.len(),
        by_variable in any::<bool>(),
        value in prop_oneof![".*", prop::collection::vec(prop::sample::select(PIECES), 0..12).prop_map(|pieces| pieces.concat())],
    ) {
        let mut inputs = inputs("");
        if by_variable {
            inputs.environment = environment(&[(&KEYS[index].environment(), &value)]);
        } else {
            inputs.sets = vec![format!("{}={value}", KEYS[index].path)];
        }
        answers(&inputs)?;
    }

    #[test]
    fn load_never_panics_on_any_set_and_variable(set in ".*", name in "ISTHMUS_.*") {
        let sets = vec![set];
        answers(&Inputs { sets, environment: environment(&[(&name, "")]), ..Inputs::bare(Role::User) })?;
    }
}

/// Checks that a load gives a configuration that prints and reads back, or problems with texts that no input can break.
fn answers(inputs: &Inputs) -> Result<(), TestCaseError> {
    match load(inputs) {
        Ok(loaded) => {
            let again = self::inputs(&loaded.check_text());
            prop_assert_eq!(
                load(&again).map(|again| again.config).map_err(|error| error.to_string()),
                Ok::<Config, _>(loaded.config)
            );
        }
        Err(error) => {
            prop_assert!(!error.problems.is_empty());
            let text = error.to_string();
            prop_assert!(!text.contains(|c: char| c.is_control() && c != '\n' || c == '\u{202e}'), "{:?}", text);
        }
    }
    Ok(())
}
