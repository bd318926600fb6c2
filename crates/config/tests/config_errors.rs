//! The report about each kind of mistake, in full.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use insta::assert_snapshot;
use isthmus_config::{ConfigError, ConfigFile, Inputs, PROBLEMS_MAX, Role, Users, load};

fn inputs(file: impl Into<Vec<u8>>) -> Inputs {
    Inputs {
        file: ConfigFile::Given { path: "isthmus.toml".into(), bytes: file.into() },
        users: Users::from_passwd("root:x:0:0::/:\nann:x:1000:1000::/:\n"),
        ..Inputs::bare(Role::System)
    }
}

fn error(inputs: &Inputs) -> ConfigError {
    load(inputs).expect_err("it is wrong")
}

/// Returns the report about a file.
fn refusal(file: &str) -> String {
    error(&inputs(file)).to_string()
}

/// Returns the report about one `--set`.
fn set_refusal(set: &str) -> String {
    error(&Inputs { sets: vec![set.to_owned()], ..inputs("") }).to_string()
}

/// Returns the report about one variable.
fn variable_refusal(name: &str, value: &str) -> String {
    error(&Inputs { environment: vec![(name.into(), value.into())], ..inputs("") }).to_string()
}

#[test]
fn rejects_unknown_tables() {
    assert_snapshot!(refusal("[demon]\nworkers = 2\n[zzz]\n"), @r#"
    isthmus.toml:1:2: there is no table [demon]
        1 | [demon]
          |  ^^^^^
          = did you mean [daemon]?
    isthmus.toml:3:2: there is no table [zzz]
        3 | [zzz]
          |  ^^^
          = the tables are daemon, wait, policy, limits, mx, sockets, verbs, overlay, kvm, xen, metrics
    "#);
    assert_snapshot!(refusal("wait = 5\n[[policy]]\n"), @r#"
    isthmus.toml:1:1: wait is 5, but must be a table of keys
        1 | wait = 5
          | ^^^^
          = its keys follow a line [wait]
    isthmus.toml:2:3: policy is a list, but must be a table of keys
        2 | [[policy]]
          |   ^^^^^^
          = its keys follow a line [policy]
    "#);
}

#[test]
fn rejects_unknown_keys() {
    // Misspelt; at home in another table; without a table; like nothing.
    assert_snapshot!(refusal("[daemon]\nworker = 2\nspin_us = 3\n"), @r#"
    isthmus.toml:2:1: there is no key daemon.worker
        2 | worker = 2
          | ^^^^^^
          = did you mean daemon.workers?
    isthmus.toml:3:1: there is no key daemon.spin_us
        3 | spin_us = 3
          | ^^^^^^^
          = did you mean wait.spin_us?
    "#);
    assert_snapshot!(refusal("workers = 2\nwait.mood = 'spin'\n[limits]\nzzz = 1\n"), @r#"
    isthmus.toml:1:1: there is no key workers
        1 | workers = 2
          | ^^^^^^^
          = did you mean daemon.workers?
    isthmus.toml:2:6: there is no key wait.mood
        2 | wait.mood = 'spin'
          |      ^^^^
          = did you mean wait.mode?
    isthmus.toml:4:1: there is no key limits.zzz
        4 | zzz = 1
          | ^^^
          = the keys of [limits] are domains_max, domains_per_user_max, endpoints_per_domain_max, mx_endpoints_per_user_max, channels_per_domain_max, slab_kib, handshake_timeout_ms
    "#);
    assert_snapshot!(refusal("zzz = 1\n"), @r#"
    isthmus.toml:1:1: there is no key zzz
        1 | zzz = 1
          | ^^^
          = isthmus config show lists all keys
    "#);
}

#[test]
fn rejects_wrong_types() {
    assert_snapshot!(refusal("[daemon]\nworkers = \"2\"\nworker_cpus = 3\nlog = 5\nidle_exit_s = 1.5\n"), @r#"
    isthmus.toml:2:11: daemon.workers is "2", but must be an integer from 1 to 64
        2 | workers = "2"
          |           ^^^
          = numbers are written without quotes: 2
    isthmus.toml:3:15: daemon.worker_cpus is 3, but must be a list of different CPU numbers from 0 to 4095
        3 | worker_cpus = 3
          |               ^
          = lists are written in brackets: [3]
    isthmus.toml:4:7: daemon.log is 5, but must be a level (off, error, warn, info, debug, trace) or levels for parts, as in info,isthmus_control=debug
        4 | log = 5
          |       ^
          = strings are written in quotes: "5"
    isthmus.toml:5:15: daemon.idle_exit_s is 1.5, but must be an integer from 0 to 604800 s
        5 | idle_exit_s = 1.5
          |               ^^^
    "#);
    assert_snapshot!(refusal("[policy]\nchannels = \"yes\"\nrules = 'x'\nattach = 1000\n[wait.mode]\na = 1\n"), @r#"
    isthmus.toml:2:12: policy.channels is "yes", but must be true or false
        2 | channels = "yes"
          |            ^^^^^
          = write true, without quotes
    isthmus.toml:3:9: policy.rules is "x", but must be a list of at most 1024 tables { from, to, allow, channel }
        3 | rules = 'x'
          |         ^^^
          = rules are written as in [{ from = { user = "www" }, to = { user = "postgres" }, allow = true }]
    isthmus.toml:4:10: policy.attach is 1000, but must be "same-user", "any-user" or a list of users (names or numbers)
        4 | attach = 1000
          |          ^^^^
          = lists are written in brackets: [1000]
    isthmus.toml:5:1: wait.mode is a table, but must be "adaptive", "spin" or "sleep"
        5 | [wait.mode]
          | ^^^^^^^^^^^
    "#);
}

#[test]
fn rejects_numbers_out_of_range() {
    assert_snapshot!(refusal("[daemon]\nworkers = 0\nidle_exit_s = -1\n[wait]\nspin_us = 1001\n"), @r#"
    isthmus.toml:2:11: daemon.workers is 0, but must be an integer from 1 to 64
        2 | workers = 0
          |           ^
    isthmus.toml:3:15: daemon.idle_exit_s is -1, but must be an integer from 0 to 604800 s
        3 | idle_exit_s = -1
          |               ^^
    isthmus.toml:5:11: wait.spin_us is 1001, but must be an integer from 0 to 1000 µs
        5 | spin_us = 1001
          |           ^^^^
    "#);
    assert_snapshot!(refusal("[limits]\nslab_kib = 300\ndomains_max = 99999999999999999999\nchannels_per_domain_max = 0xffff\n"), @r#"
    isthmus.toml:2:12: limits.slab_kib is 300, but must be a power of two from 64 to 4096 KiB
        2 | slab_kib = 300
          |            ^^^
          = the nearest are 256 and 512
    isthmus.toml:3:15: limits.domains_max is 99999999999999999999, but must be an integer from 1 to 4096
        3 | domains_max = 99999999999999999999
          |               ^^^^^^^^^^^^^^^^^^^^
    isthmus.toml:4:27: limits.channels_per_domain_max is 0xffff, but must be an integer from 0 to 4096
        4 | channels_per_domain_max = 0xffff
          |                           ^^^^^^
    "#);
}

#[test]
fn rejects_wrong_words() {
    assert_snapshot!(refusal("[wait]\nmode = \"adaptve\"\n[policy]\ntalk = \"everybody\"\ngrants = ''\n"), @r#"
    isthmus.toml:2:8: wait.mode is "adaptve", but must be "adaptive", "spin" or "sleep"
        2 | mode = "adaptve"
          |        ^^^^^^^^^
          = did you mean "adaptive"?
    isthmus.toml:4:8: policy.talk is "everybody", but must be "same-user" or "all"
        4 | talk = "everybody"
          |        ^^^^^^^^^^^
    isthmus.toml:5:10: policy.grants is "", but must be "same-container", "same-user" or "never"
        5 | grants = ''
          |          ^^
    "#);
}

#[test]
fn rejects_wrong_paths_and_addresses() {
    assert_snapshot!(refusal("[daemon]\nsocket = \"run/isthmus.sock\"\nruntime_dir = \"~/run\"\n"), @r#"
    isthmus.toml:2:10: daemon.socket is "run/isthmus.sock", but must be the absolute path of a socket, of at most 107 bytes
        2 | socket = "run/isthmus.sock"
          |          ^^^^^^^^^^^^^^^^^^
    isthmus.toml:3:15: daemon.runtime_dir is "~/run", but must be an absolute path
        3 | runtime_dir = "~/run"
          |               ^^^^^^^
          = neither ~ nor variables are expanded here
    "#);
    assert_snapshot!(refusal("[daemon]\nruntime_dir = \"/a\\nb\"\n"), @r#"
    isthmus.toml:2:15: daemon.runtime_dir is "/a\nb", but must be an absolute path
        2 | runtime_dir = "/a\nb"
          |               ^^^^^^^
    "#);
    assert_snapshot!(refusal(&format!("[daemon]\nsocket = \"/{}\"\n", "a".repeat(107))), @r#"
    isthmus.toml:2:10: daemon.socket is "/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…", but must be the absolute path of a socket, of at most 107 bytes
        2 | socket = "/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…
          |          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          = it has 108 bytes
    "#);
    assert_snapshot!(refusal("[metrics]\nlisten = \"0.0.0.0:9419\"\n"), @r#"
    isthmus.toml:2:10: metrics.listen is "0.0.0.0:9419", but must be "" (off), the absolute path of a socket, or a loopback address with a port, as in 127.0.0.1:9419
        2 | listen = "0.0.0.0:9419"
          |          ^^^^^^^^^^^^^^
          = metrics have no passwords, so other hosts do not reach them: put a proxy in front
    "#);
    assert_snapshot!(refusal("[metrics]\nlisten = \"localhost:9419\"\n"), @r#"
    isthmus.toml:2:10: metrics.listen is "localhost:9419", but must be "" (off), the absolute path of a socket, or a loopback address with a port, as in 127.0.0.1:9419
        2 | listen = "localhost:9419"
          |          ^^^^^^^^^^^^^^^^
          = did you mean "127.0.0.1:9419"?
    "#);
    assert_snapshot!(refusal("[metrics]\nlisten = \"127.0.0.1:0\"\n"), @r#"
    isthmus.toml:2:10: metrics.listen is "127.0.0.1:0", but must be "" (off), the absolute path of a socket, or a loopback address with a port, as in 127.0.0.1:9419
        2 | listen = "127.0.0.1:0"
          |          ^^^^^^^^^^^^^
          = name a port from 1 to 65535
    "#);
}

#[test]
fn rejects_wrong_log_filters() {
    assert_snapshot!(refusal("[daemon]\nlog = \"inof\"\n"), @r#"
    isthmus.toml:2:7: daemon.log is "inof", but must be a level (off, error, warn, info, debug, trace) or levels for parts, as in info,isthmus_control=debug
        2 | log = "inof"
          |       ^^^^^^
          = did you mean "info"?
    "#);
    assert_snapshot!(refusal("[daemon]\nlog = \"info,[span]=debug\"\n"), @r#"
    isthmus.toml:2:7: daemon.log is "info,[span]=debug", but must be a level (off, error, warn, info, debug, trace) or levels for parts, as in info,isthmus_control=debug
        2 | log = "info,[span]=debug"
          |       ^^^^^^^^^^^^^^^^^^^
    "#);
}

#[test]
fn rejects_wrong_lists() {
    assert_snapshot!(refusal("[daemon]\nworkers = 2\nworker_cpus = [1, \"2\", 9999, 1]\n"), @r#"
    isthmus.toml:3:19: daemon.worker_cpus[1] is "2", but must be an integer from 0 to 4095
        3 | worker_cpus = [1, "2", 9999, 1]
          |                   ^^^
          = numbers are written without quotes: 2
    isthmus.toml:3:24: daemon.worker_cpus[2] is 9999, but must be an integer from 0 to 4095
        3 | worker_cpus = [1, "2", 9999, 1]
          |                        ^^^^
    isthmus.toml:3:30: daemon.worker_cpus repeats 1
        3 | worker_cpus = [1, "2", 9999, 1]
          |                              ^
    "#);
}

#[test]
fn rejects_wrong_users() {
    assert_snapshot!(refusal("[policy]\nattach = [\"anne\", \"1000\", \"zoe\", -1, \"ann\", 1000]\n"), @r#"
    isthmus.toml:2:11: policy.attach[0] names the user "anne", but no such user is known here
        2 | attach = ["anne", "1000", "zoe", -1, "ann", 1000]
          |           ^^^^^^
          = did you mean "ann"?
    isthmus.toml:2:19: policy.attach[1] names the user "1000", but no such user is known here
        2 | attach = ["anne", "1000", "zoe", -1, "ann", 1000]
          |                   ^^^^^^
          = numbers are written without quotes: 1000
    isthmus.toml:2:27: policy.attach[2] names the user "zoe", but no such user is known here
        2 | attach = ["anne", "1000", "zoe", -1, "ann", 1000]
          |                           ^^^^^
          = names are looked up in /etc/passwd; another user can be given as a number
    isthmus.toml:2:34: policy.attach[3] is -1, but must be an integer from 0 to 4294967294
        2 | attach = ["anne", "1000", "zoe", -1, "ann", 1000]
          |                                  ^^
    isthmus.toml:2:45: policy.attach repeats the user 1000
        2 | attach = ["anne", "1000", "zoe", -1, "ann", 1000]
          |                                             ^^^^
    "#);
    assert_snapshot!(refusal("[policy]\nattach = \"ann\"\n"), @r#"
    isthmus.toml:2:10: policy.attach is "ann", but must be "same-user", "any-user" or a list of users (names or numbers)
        2 | attach = "ann"
          |          ^^^^^
          = users are written as a list: ["ann"]
    "#);
}

#[test]
fn rejects_rules_that_allow_by_names_that_programs_choose() {
    let file =
        "[policy]\nattach = \"any-user\"\nrules = [{ from = \"web-*\", to = { name = \"db\" }, allow = true }]\n";
    assert_snapshot!(refusal(file), @r#"
    isthmus.toml:3:19: policy.rules[0].from allows domains by the name "web-*", which programs of all users can choose
        3 | rules = [{ from = "web-*", to = { name = "db" }, allow = true }]
          |                   ^^^^^^^
          = add a user, group, cgroup or guest: from = { name = "web-*", user = "www" }; or bind the name in policy.names: { name = "web-*", user = "www" }
    isthmus.toml:3:33: policy.rules[0].to allows domains by the name "db", which programs of all users can choose
        3 | rules = [{ from = "web-*", to = { name = "db" }, allow = true }]
          |                                 ^^^^^^^^^^^^^^^
          = add a user, group, cgroup or guest: to = { name = "db", user = "www" }; or bind the name in policy.names: { name = "db", user = "www" }
    "#);
    assert_snapshot!(refusal("[[policy.rules]]\nfrom = { guest = \"vm\" }\nallow = false\n"), @r#"
    isthmus.toml:2:8: policy.rules[0].from names the guest "vm", but no such guest is configured
        2 | from = { guest = "vm" }
          |        ^^^^^^^^^^^^^^^^
          = guests are configured in [[kvm.guest]] and [[xen.guest]]
    "#);
}

#[test]
fn rejects_wrong_identities() {
    let file = "[policy]\nnames = [{ name = \"a\" }, { user = 5 }, { name = \"b\", user = \"eve\", group = \"staf\" }]\n\
        [[policy.rules]]\nto = { cgroup = \"web.service\", gest = \"a\" }\nallow = false\n\
        [[policy.rules]]\nto = { cgroup = \"/a/../b\", group = 1.5 }\nfrom = 7\nallow = false\n";
    assert_snapshot!(refusal(file), @r#"
    isthmus.toml:2:10: policy.names[0] binds the name to no user, group, cgroup or guest
        2 | names = [{ name = "a" }, { user = 5 }, { name = "b", user = "eve", group = "staf" }…
          |          ^^^^^^^^^^^^^^
          = add one of them, as in { name = "web-*", user = "www" }
    isthmus.toml:2:26: policy.names[1] has no name
        2 | names = [{ name = "a" }, { user = 5 }, { name = "b", user = "eve", group = "staf" }]
          |                          ^^^^^^^^^^^^
          = name is a name or pattern (* and ?) of 1 to 64 bytes without spaces
    isthmus.toml:2:61: policy.names[2].user names the user "eve", but no such user is known here
        2 | names = [{ name = "a" }, { user = 5 }, { name = "b", user = "eve", group = "staf" }]
          |                                                             ^^^^^
          = names are looked up in /etc/passwd; another user can be given as a number
    isthmus.toml:2:76: policy.names[2].group names the group "staf", but no such group is known here
        2 | … = "a" }, { user = 5 }, { name = "b", user = "eve", group = "staf" }]
          |                                                              ^^^^^^
          = names are looked up in /etc/group; another group can be given as a number
    isthmus.toml:4:17: policy.rules[0].to.cgroup is "web.service", but must be a path or pattern (* and ?) of up to 1024 bytes, as in "/system.slice/web.service"
        4 | to = { cgroup = "web.service", gest = "a" }
          |                 ^^^^^^^^^^^^^
          = isthmus domain list --json shows cgroups of programs
    isthmus.toml:4:32: there is no key policy.rules[0].to.gest
        4 | to = { cgroup = "web.service", gest = "a" }
          |                                ^^^^
          = did you mean "guest"?
    isthmus.toml:7:17: policy.rules[1].to.cgroup is "/a/../b", but must be a path or pattern (* and ?) of up to 1024 bytes, as in "/system.slice/web.service"
        7 | to = { cgroup = "/a/../b", group = 1.5 }
          |                 ^^^^^^^^^
          = isthmus domain list --json shows cgroups of programs
    isthmus.toml:7:36: policy.rules[1].to.group is 1.5, but must be the name or number of a group
        7 | to = { cgroup = "/a/../b", group = 1.5 }
          |                                    ^^^
          = strings are written in quotes: "1.5"
    isthmus.toml:8:8: policy.rules[1].from is 7, but must be a name or pattern (* and ?) of 1 to 64 bytes without spaces, or a table { name, user, group, cgroup, guest }
        8 | from = 7
          |        ^
    "#);
}

#[test]
fn rejects_wrong_rules() {
    assert_snapshot!(refusal(
        "[[policy.rules]]\nform = \"a\"\nallow = true\n[[policy.rules]]\nfrom = \"\"\nto = \"a b\"\nallow = 1\n\
         [[policy.rules]]\nfrom = \"a\"\n[[policy.rules]]\nallow = false\nchannel = true\n"
    ), @r#"
    isthmus.toml:2:1: there is no key policy.rules[0].form
        2 | form = "a"
          | ^^^^
          = did you mean "from"?
    isthmus.toml:5:8: policy.rules[1].from is "", but must be a name or pattern (* and ?) of 1 to 64 bytes without spaces
        5 | from = ""
          |        ^^
    isthmus.toml:6:6: policy.rules[1].to is "a b", but must be a name or pattern (* and ?) of 1 to 64 bytes without spaces
        6 | to = "a b"
          |      ^^^^^
    isthmus.toml:7:9: policy.rules[1].allow is 1, but must be true or false
        7 | allow = 1
          |         ^
          = write true
    isthmus.toml:8:1: policy.rules[2] says neither allow nor channel, so it decides nothing
        8 | [[policy.rules]]
          | ^^^^^^^^^^^^^^^^
    isthmus.toml:10:1: policy.rules[3] allows a channel to domains which it does not allow to talk
       10 | [[policy.rules]]
          | ^^^^^^^^^^^^^^^^
    "#);
    assert_snapshot!(refusal("policy.rules = [1, { zzz = 2 }]\n"), @r#"
    isthmus.toml:1:17: policy.rules[0] is 1, but must be a table { from, to, allow, channel }
        1 | policy.rules = [1, { zzz = 2 }]
          |                 ^
    isthmus.toml:1:22: there is no key policy.rules[1].zzz
        1 | policy.rules = [1, { zzz = 2 }]
          |                      ^^^
          = a rule has from, to, allow and channel
    "#);
    assert_snapshot!(refusal(&format!("policy.rules = [{}]\n", "{ allow = true },".repeat(1025))), @r#"
    isthmus.toml:1:16: policy.rules is a list of 1025, but must be a list of at most 1024 tables { from, to, allow, channel }
        1 | policy.rules = [{ allow = true },{ allow = true },{ allow = true },{ allow …
          |                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    "#);
}

#[test]
fn rejects_values_that_do_not_fit_each_other() {
    assert_snapshot!(refusal("[daemon]\nworkers = 3\nworker_cpus = [0, 1]\n"), @r#"
    isthmus.toml:3:15: daemon.worker_cpus does not fit daemon.workers: 3 workers, 2 CPUs
        3 | worker_cpus = [0, 1]
          |               ^^^^^^
    "#);
    assert_snapshot!(refusal("[metrics]\nlisten = \"/run/isthmus/isthmus.sock\"\n"), @r#"
    isthmus.toml:2:10: metrics.listen does not fit daemon.socket: both are the same socket
        2 | listen = "/run/isthmus/isthmus.sock"
          |          ^^^^^^^^^^^^^^^^^^^^^^^^^^^
    "#);
    // Said of the one that was written last.
    assert_snapshot!(error(&Inputs { sets: vec!["daemon.workers=1".to_owned()], ..inputs("daemon = { worker_cpus = [0, 1], workers = 2 }\n") }), @r#"
    command line: daemon.workers does not fit daemon.worker_cpus: 1 workers, 2 CPUs
          | --set daemon.workers=1
          |                      ^
    "#);
    // Not reported while one of them is wrong on its own.
    assert_snapshot!(refusal("[daemon]\nworkers = 99\nworker_cpus = [0, 1]\n"), @r#"
    isthmus.toml:2:11: daemon.workers is 99, but must be an integer from 1 to 64
        2 | workers = 99
          |           ^^
    "#);
}

#[test]
fn rejects_text_that_is_not_toml() {
    assert_snapshot!(refusal("[wait]\nmode = spin\nspin_us =\n[daemon\nworkers = 0\n"), @r#"
    isthmus.toml:2:8: a string must be in quotes
        2 | mode = spin
          |        ^^^^
          = write "spin"
    isthmus.toml:3:10: a value is missing
        3 | spin_us =
          |          ^
    isthmus.toml:4:8: unclosed table, expected `]`
        4 | [daemon
          |        ^
    "#);
    assert_snapshot!(refusal("[wait]\nspin_us = 1\nspin_us = 2\n"), @r#"
    isthmus.toml:3:1: duplicate key
        3 | spin_us = 2
          | ^^^^^^^
    "#);
    assert_snapshot!(refusal("[daemon]\nworkers = 99\nworker_cpus = [0, 1\nlog = \"info\"\n[wait]\nmode = \"x\"\n"), @r#"
    isthmus.toml:2:11: daemon.workers is 99, but must be an integer from 1 to 64
        2 | workers = 99
          |           ^^
    isthmus.toml:3:15: this list or table is never closed
        3 | worker_cpus = [0, 1
          |               ^
    "#);
    assert_snapshot!(refusal("[daemon]\nlog = \"info\n"), @r#"
    isthmus.toml:2:12: this string is never closed
        2 | log = "info
          |            ^
    "#);
}

#[test]
fn rejects_files_that_are_not_text() {
    assert_snapshot!(error(&inputs(b"[daemon]\nlog = \"\xff\"\n")), @r#"
    isthmus.toml:2:8: not UTF-8
        2 | log = "�"
          |        ^
    "#);
    assert_snapshot!(error(&inputs(vec![b'#'; 300 * 1024])), @"isthmus.toml: the configuration has more than 262144 bytes");
    assert_snapshot!(error(&Inputs { file: ConfigFile::Named("/".into()), ..Inputs::bare(Role::System) }), @"/: cannot read the configuration: Is a directory (os error 21)");
}

#[test]
fn rejects_wrong_sets() {
    assert_snapshot!(set_refusal("wait.mode"), @r#"
    command line: "wait.mode" is no assignment
          | --set wait.mode
          |       ^^^^^^^^^
          = write --set table.key=value
    "#);
    assert_snapshot!(set_refusal("wait.mood=spin"), @r#"
    command line: there is no key wait.mood
          | --set wait.mood=spin
          |       ^^^^^^^^^
          = did you mean wait.mode?
    "#);
    assert_snapshot!(set_refusal("spin_us=3"), @r#"
    command line: there is no key spin_us
          | --set spin_us=3
          |       ^^^^^^^
          = did you mean wait.spin_us?
    "#);
    assert_snapshot!(set_refusal("wait=3"), @r#"
    command line: there is no key wait
          | --set wait=3
          |       ^^^^
          = the keys of [wait] are mode, spin_us
    "#);
    assert_snapshot!(set_refusal("wait.mode=spinn"), @r#"
    command line: wait.mode is "spinn", but must be "adaptive", "spin" or "sleep"
          | --set wait.mode=spinn
          |                 ^^^^^
          = did you mean "spin"?
    "#);
    assert_snapshot!(set_refusal("daemon.workers=two"), @r#"
    command line: daemon.workers is "two", but must be an integer from 1 to 64
          | --set daemon.workers=two
          |                      ^^^
    "#);
    assert_snapshot!(set_refusal("daemon.worker_cpus=0,1"), @r#"
    command line: daemon.worker_cpus is "0,1", but must be a list of different CPU numbers from 0 to 4095
          | --set daemon.worker_cpus=0,1
          |                          ^^^
          = lists are written in brackets, as in [0, 1]
    "#);
    assert_snapshot!(set_refusal("daemon.worker_cpus=[0,x]"), @r#"
    command line: a string must be in quotes
          | --set daemon.worker_cpus=[0,x]
          |                             ^
          = write "x"
    "#);
}

#[test]
fn rejects_wrong_variables() {
    assert_snapshot!(variable_refusal("ISTHMUS_DAEMON_WORKERS", ""), @r#"
    environment ISTHMUS_DAEMON_WORKERS: daemon.workers is "", but must be an integer from 1 to 64
          | ISTHMUS_DAEMON_WORKERS=
          |                        ^
    "#);
    assert_snapshot!(variable_refusal("ISTHMUS_DAEMON_WAIT_MODE", "\u{1b}[31mspin"), @r#"
    environment ISTHMUS_DAEMON_WAIT_MODE: wait.mode is "\u{1b}[31mspin", but must be "adaptive", "spin" or "sleep"
          | ISTHMUS_DAEMON_WAIT_MODE=\u{1b}[31mspin
          |                          ^^^^^^^^^^^^^^
    "#);
    let not_utf8 = OsString::from_vec(vec![b'/', 0xff]);
    assert_snapshot!(error(&Inputs { environment: vec![("ISTHMUS_DAEMON_SOCKET".into(), not_utf8)], ..inputs("") }), @"environment ISTHMUS_DAEMON_SOCKET: not UTF-8");
}

#[test]
fn warns_about_unknown_variables() {
    let names = [
        "ISTHMUS_SOKET",
        "ISTHMUS_DAEMON_WAIT",
        "ISTHMUS_DAEMON_SPIN_US",
        "ISTHMUS_ZZZ",
        "ISTHMUS_LOG",
        "isthmus_x",
        "PATH",
    ];
    let environment = names.iter().map(|&name| (name.into(), "".into())).collect();
    let loaded = load(&Inputs { environment, ..inputs("") }).expect("a warning is no error");
    let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert_snapshot!(warnings.join("\n"), @r#"
    environment ISTHMUS_SOKET: nothing reads this variable
          = did you mean ISTHMUS_SOCKET?
    environment ISTHMUS_DAEMON_WAIT: nothing reads this variable
          = isthmus environment list lists all variables
    environment ISTHMUS_DAEMON_SPIN_US: nothing reads this variable
          = did you mean ISTHMUS_DAEMON_WAIT_SPIN_US?
    environment ISTHMUS_ZZZ: nothing reads this variable
          = isthmus environment list lists all variables
    environment ISTHMUS_LOG: nothing reads this variable
          = did you mean ISTHMUS_DAEMON_LOG?
    "#);
}

#[test]
fn reports_an_invalid_default() {
    let environment = vec![("XDG_RUNTIME_DIR".into(), format!("/{}", "r".repeat(100)).into())];
    assert_snapshot!(error(&Inputs { environment, ..Inputs::bare(Role::User) }), @r#"
    default: daemon.socket is "/rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr…", but must be the absolute path of a socket, of at most 107 bytes
          | daemon.socket = /rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr…
          |                 ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          = it has 122 bytes
    "#);
}

#[test]
fn counts_problems_beyond_the_limit() {
    let file: String = (0..PROBLEMS_MAX + 7).map(|index| format!("zzz{index} = 1\n")).collect();
    let error = error(&inputs(file));
    assert_eq!((error.problems.len(), error.more), (PROBLEMS_MAX, 7));
    assert_eq!(error.problems[0].wrong.to_string(), "there is no key zzz0");
    assert!(error.to_string().ends_with("\nand 7 more"));
}

#[test]
fn problems_as_json_have_a_code() {
    let error = error(&inputs("[wait]\nmode = \"spinn\"\n"));
    let expected = serde_json::json!([{
        "code": "wrong-text",
        "message": "wait.mode is \"spinn\", but must be \"adaptive\", \"spin\" or \"sleep\"",
        "origin": { "kind": "file", "path": "isthmus.toml", "line": 2, "column": 8 },
        "help": "did you mean \"spin\"?",
    }]);
    assert_eq!(serde_json::to_value(&error.problems).expect("JSON"), expected);
}

#[test]
fn rejects_more_guests_than_the_limit() {
    let guests: String =
        (0..257).map(|guest| format!("[[kvm.guest]]\nname = \"g{guest}\"\nuser = \"ann\"\n")).collect();
    let refused = refusal(&guests);
    assert!(refused.contains("kvm.guest is a list of 257, but must be a list of at most 256 tables"), "{refused}");
    let fewer = guests.rsplit_once("[[").unwrap().0;
    assert_eq!(load(&inputs(fewer)).unwrap().config.kvm.guest.as_slice().len(), 256);
}
