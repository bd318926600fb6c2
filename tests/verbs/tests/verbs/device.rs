//! The device as stock programs list it, and what they say where there is none.

use std::net::Ipv6Addr;

use isthmus_testbed::{Exit, Finished};
use isthmus_verbs_tests::{Stage, timeout};

const DEVICES: &str = "/usr/bin/ibv_devices";
const INFO: &str = "/usr/bin/ibv_devinfo";
const WATCH: &str = "/usr/bin/ibv_asyncwatch";

/// Returns the value of a field of `ibv_devinfo`.
fn field<'a>(lines: &'a [String], name: &str) -> &'a str {
    let fields = lines.iter().filter_map(|line| line.trim().split_once(':'));
    let found = fields.filter(|(field, _)| *field == name).map(|(_, value)| value.trim()).next();
    found.unwrap_or_else(|| panic!("no {name}: {lines:#?}"))
}

#[test]
fn device_is_listed_with_its_identity() {
    let Some(stage) = Stage::new() else { return };
    let listed = stage.run(DEVICES, &[], &[]).expect_success();
    let rows: Vec<Vec<&str>> = listed.iter().map(|line| line.split_whitespace().collect()).collect();
    let row = rows.iter().find(|row| row.first() == Some(&"isthmus0")).unwrap_or_else(|| panic!("{listed:#?}"));
    let info = stage.run(INFO, &["-d", "isthmus0"], &[]).expect_success();
    assert_eq!(field(&info, "node_guid").replace(':', ""), row[1]);
}

#[test]
fn asynchronous_events_of_the_device_can_be_watched() {
    let Some(stage) = Stage::new() else { return };
    let mut watch = stage.launch(stage.server(), WATCH, &["-d", "isthmus0"], &[]).spawn().unwrap();
    watch.wait_prefix("isthmus0: async event FD ", timeout()).unwrap();
    assert!(watch.try_wait().unwrap().is_none(), "{}", watch.stderr());
}

#[test]
fn device_reports_its_limits_its_port_and_its_gids() {
    let Some(stage) = Stage::new() else { return };
    let info = stage.run(INFO, &["-v"], &[]).expect_success();
    for (name, value) in [
        ("hca_id", "isthmus0"),
        ("transport", "InfiniBand (0)"),
        ("phys_port_cnt", "1"),
        ("state", "PORT_ACTIVE (4)"),
        ("max_mtu", "4096 (5)"),
        ("active_mtu", "4096 (5)"),
        ("link_layer", "Ethernet"),
        ("phys_state", "LINK_UP (5)"),
        ("atomic_cap", "ATOMIC_HCA (1)"),
        ("max_pkeys", "1"),
        ("max_mw", "0"),
    ] {
        assert_eq!(field(&info, name), value, "{name}: {info:#?}");
    }
    for (name, least) in [("max_qp", 1000), ("max_cq", 1000), ("max_mr", 1000), ("max_qp_wr", 1024), ("max_sge", 32)] {
        let value: i64 = field(&info, name).parse().unwrap();
        assert!(value >= least, "{name}: {value}");
    }
    let report = stage.isthmus(&["verbs", "list"]).expect_success();
    let listed: Vec<Ipv6Addr> = report.iter().filter_map(|line| line.split_whitespace().nth(1)?.parse().ok()).collect();
    let gids = info.iter().filter_map(|line| line.trim().strip_prefix("GID[")?.split_once(':'));
    let gids: Vec<Ipv6Addr> = gids.map(|(_, gid)| gid.split(',').next().unwrap().trim().parse().unwrap()).collect();
    assert!(gids.len() >= 2, "of the node, and of the address of the daemon's host: {info:#?}");
    assert_eq!(gids, listed);
}

/// Asserts that `ibv_devinfo` finds no device, or cannot open it, and that a message says why.
#[track_caller]
fn expect_refusal(finished: Finished, reason: &str) {
    let Finished { exit, lines, stderr } = finished;
    let said = format!("{}\n{stderr}", lines.join("\n"));
    assert!(exit != Exit::Code(0) && said.contains(reason), "{exit:?} {said}");
}

#[test]
fn program_without_a_daemon_says_so() {
    let Some(mut stage) = Stage::new() else { return };
    let daemon = stage.daemon().proc();
    daemon.kill().unwrap();
    daemon.wait(timeout()).unwrap();
    expect_refusal(stage.run(INFO, &[], &[]), "isthmus: cannot open the RDMA device: ");
}

#[test]
fn disabled_verbs_are_refused_with_the_setting() {
    let Some(stage) = Stage::without_files("[verbs]\nenabled = false\n") else { return };
    expect_refusal(stage.enable(), "set `verbs.enabled = true`");
}

#[test]
fn device_without_files_is_named() {
    let Some(stage) = Stage::without_files("") else { return };
    expect_refusal(stage.run(INFO, &[], &[]), "`isthmus verbs enable` writes them");
}

#[test]
fn device_that_is_off_is_not_found() {
    let Some(stage) = Stage::new() else { return };
    let off = [("ISTHMUS_VERBS", "off")];
    expect_refusal(stage.run(INFO, &[], &off), "ISTHMUS_VERBS=off");
}
