//! The files of `packaging/` fit the helper: its units, and the rules that keep network managers from its interfaces.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use isthmus_helper::SOCKET_PATH;
use isthmus_netns::Host;

use crate::{PROGRAM, bed, ip_ok, open, start};

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging")
}

/// The properties that udev gives to an interface of a host, for an event of that kind.
fn properties(host: &Host, action: &str, name: &str) -> String {
    let mut command = Command::new("udevadm");
    command.args(["test", "--action", action]).arg(format!("/sys/class/net/{name}"));
    String::from_utf8(host.output(command).unwrap().stdout).unwrap()
}

#[test]
fn udev_marks_interfaces_of_the_helper_and_no_others() {
    let Some(bed) = bed() else { return };
    let folders = ["/etc/udev/rules.d", "/etc/systemd/network"].map(Path::new);
    if Command::new("udevadm").arg("--version").output().is_err() || !folders.iter().all(|folder| folder.is_dir()) {
        return eprintln!("skipped: udev is not installed");
    }
    let mut command = Command::new("sh");
    command.args(["-c", "set -e; for to in $1 $2; do mount -t tmpfs none $to; done; cp $0/*.rules $1; cp $0/05-* $2"]);
    command.arg(packaging().join("network")).args(folders);
    assert!(bed.a.output(command).unwrap().status.success(), "the mounts are those of the host alone");
    let (_helper, mut client) = start(&bed.a, &[]);
    let _tap = open(&mut client, "web");
    ip_ok(&bed.a, "tuntap add dev plain mode tap");
    ip_ok(&bed.a, "tuntap add dev isthmus7 mode tap"); // As an interface of the helper before it has its alias.
    ip_ok(&bed.a, "link add isthmus8 type veth peer name other");
    let marks = ["ID_ISTHMUS=1", "NM_UNMANAGED=1", "ID_NET_MANAGED_BY=io.isthmus", "/05-isthmus.link"];
    for (action, name, is_marked) in [
        ("move", "web", true),
        ("add", "web", true),
        ("add", "isthmus7", true),
        ("add", "plain", false),
        ("add", "isthmus8", false),
    ] {
        let found = properties(&bed.a, action, name);
        assert!(found.contains(&format!("INTERFACE={name}")), "{found}");
        assert_eq!(marks.map(|mark| found.contains(mark)), [is_marked; 4], "{action} {name}: {found}");
    }
}

#[test]
fn units_name_the_socket_of_the_client_and_pass_their_check() {
    let units = ["isthmus-helper.socket", "isthmus-helper.service"];
    let texts = units.map(|unit| fs::read_to_string(packaging().join("systemd").join(unit)).unwrap());
    assert!(texts[0].contains(&format!("\nListenSequentialPacket={SOCKET_PATH}\n")), "{}", texts[0]);
    assert!(texts[1].contains("\nExecStart=@bindir@/isthmus-helper --connection-records\n"), "{}", texts[1]);
    // The set lacks the calls by which the helper installs its own filter, and loads its program.
    assert!(texts[1].contains("\nSystemCallFilter=@system-service seccomp bpf\n"), "{}", texts[1]);
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return eprintln!("skipped: systemd-analyze is not installed");
    }
    let folder = tempfile::tempdir().unwrap();
    let program = Path::new(PROGRAM).parent().unwrap().to_str().unwrap();
    for (unit, text) in units.into_iter().zip(texts) {
        fs::write(folder.path().join(unit), text.replace("@bindir@", program)).unwrap();
    }
    let mut verify = Command::new("systemd-analyze");
    verify.args(["--man=no", "verify"]).args(units.map(|unit| folder.path().join(unit)));
    let said = String::from_utf8(verify.output().unwrap().stderr).unwrap();
    let wrong: Vec<&str> = said.lines().filter(|line| line.contains("isthmus")).collect();
    assert!(wrong.is_empty(), "{said}");
}
