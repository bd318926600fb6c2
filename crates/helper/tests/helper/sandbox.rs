//! The rights that a helper keeps after its start, as the kernel shows them.

use std::fs;

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use isthmus_helper::HelperClient;
use isthmus_platform::seqpacket;

use crate::{PROGRAM, Running, bed, link, open, open_in, start, tap};

/// The value of a line in the status of each thread of a process, sorted and without repetition.
fn statuses(process: u32, key: &str) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let status = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("status")).unwrap();
    let value = |text: String| {
        let line =
            text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':').map(str::trim).map(str::to_owned));
        line.unwrap()
    };
    let mut values: Vec<String> = threads.map(|thread| value(status(thread.unwrap()))).collect();
    values.sort();
    values.dedup();
    values
}

#[test]
fn helper_keeps_its_capabilities_and_a_filter_and_nothing_else() {
    let Some(bed) = bed() else { return };
    // CAP_NET_ADMIN is number 12, CAP_SYS_ADMIN 21, CAP_BPF 39.
    for (options, capabilities) in [
        (&[][..], "0000000000001000"),
        (&["--namespaces"], "0000000000201000"),
        (&["--connection-records"], "0000008000001000"),
    ] {
        let (helper, mut client) = start(&bed.a, options);
        let _here = open(&mut client, "tap0");
        if options == ["--namespaces"] {
            open_in(&mut client, tap("tap0", &[]), &bed.b).unwrap();
        }
        let process = helper.0.id();
        for set in ["CapEff", "CapPrm", "CapBnd"] {
            assert_eq!(statuses(process, set), [capabilities], "{set} {options:?}");
        }
        for set in ["CapInh", "CapAmb"] {
            assert_eq!(statuses(process, set), ["0000000000000000"], "{set} {options:?}");
        }
        assert_eq!(
            (statuses(process, "Seccomp"), statuses(process, "NoNewPrivs")),
            (vec!["2".into()], vec!["1".into()])
        );
        assert_eq!(statuses(process, "Seccomp_filters"), ["2"]);
    }
}

/// The service runs as a user without rights, with one ambient capability.
#[test]
fn user_with_one_ambient_capability_suffices() {
    let Some(bed) = bed() else { return };
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = folder.path().join("isthmus-helper");
    assert!(Command::new("cp").args([PROGRAM.as_ref(), program.as_path()]).status().unwrap().success());
    let as_user = |program: &std::path::Path| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all,+net_admin"]);
        command.args(["--inh-caps=-all,+net_admin", "--ambient-caps=-all,+net_admin"]).arg(program);
        command
    };
    if !bed.a.output(as_user("true".as_ref())).is_ok_and(|output| output.status.success()) {
        return eprintln!("skipped: setpriv cannot start programs as another user here");
    }
    let (ours, theirs) = seqpacket::pair().unwrap();
    let mut command = as_user(&program);
    command.arg("--stdin").stdin(theirs).stderr(Stdio::null());
    let helper = Running(bed.a.spawn(command).unwrap());
    let mut client = HelperClient::from_socket(ours).unwrap();
    let _tap = open(&mut client, "tap0");
    assert!(link(&bed.a, "tap0").contains(",UP,"));
    for set in ["CapEff", "CapPrm", "CapBnd"] {
        assert_eq!(statuses(helper.0.id(), set), ["0000000000001000"], "{set}");
    }
    assert_eq!(statuses(helper.0.id(), "CapAmb"), ["0000000000000000"]);
    assert!(statuses(helper.0.id(), "Uid")[0].starts_with("65534"));
}
