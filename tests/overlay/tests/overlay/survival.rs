//! Networks that lose their daemons, the helper, containers and the wire, or get a smaller MTU. Addresses that two hosts use, and loops.

use std::net::{Ipv4Addr, UdpSocket};

use isthmus_overlay_tests::{Container, Daemon, Flow, Lan, Path, Stage, is_installed, mesh, timeout};
use isthmus_testbed::{Proc, SeededRandom, Signal, eventually, short_or_long};
use serde_json::Value;

use crate::ends::{helper_of, starter_of};

const B: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

/// Returns the index of the interface of a container, which no other one gets.
fn index(container: &Container) -> String {
    let text = container.run("ip -o link show dev eth0");
    text.split(':').next().unwrap().to_owned()
}

/// The interface of a container, with the address 10.9.0.NUMBER and further fields.
fn member(container: &Container, number: usize, fields: &str) -> String {
    container.interface(&format!(", addresses = [\"10.9.0.{number}/24\"]{fields}"))
}

/// Returns the number of descriptors that the service manager of a daemon has.
fn stored(daemon: &mut Daemon) -> usize {
    daemon.process.notify().store().unwrap().names().len()
}

#[test]
fn a_stream_survives_a_daemon_that_is_killed_and_restarted() {
    let Some(stage) = Stage::new(2, 1500) else { return };
    let mut lan = Lan::fast(stage.with_service_manager(), "");
    lan.a.ping("10.9.0.2");
    let before = [index(&lan.a), index(&lan.b)];
    let flow = Flow::start(&lan.a, &lan.b, B);
    for kill in 0..short_or_long(3, 10) {
        flow.wait_for_progress();
        lan.daemons[kill % 2].kill_and_restart();
    }
    flow.wait_for_progress();
    flow.finish();
    assert_eq!([index(&lan.a), index(&lan.b)], before);
    assert!(lan.daemons.iter_mut().all(|daemon| stored(daemon) == 1));
}

#[test]
fn an_interface_with_another_configuration_is_created_anew_after_a_restart_and_a_reload() {
    let Some(mut stage) = Stage::new(1, 1500) else { return };
    let container = stage.container(0, "container");
    let stage = stage.with_service_manager();
    let network = |mtu: &str| {
        format!(
            "[[overlay.network]]\nname = \"lan\"\ninterfaces = [{}]\n",
            container.interface(&format!(", mtu = {mtu}"))
        )
    };
    let mut daemon = stage.start(0, &network("1500"));
    daemon.wait_for_interfaces();
    let mut before = index(&container);
    for mtu in ["1400", "1300"] {
        match mtu {
            "1400" => daemon.kill_and_restart_with(&network(mtu)),
            _ => daemon.reload(&network(mtu)),
        }
        // The service manager closes the old TAP once its messages are read.
        let is_new = || {
            stored(&mut daemon) == 1 && container.try_run("ip -o link show dev eth0").1.contains(&format!("mtu {mtu} "))
        };
        eventually(timeout(), is_new).unwrap();
        let now = index(&container);
        assert_ne!(std::mem::replace(&mut before, now.clone()), now);
    }
    let log = daemon.process.proc().stderr();
    assert!(!log.contains("is missing"), "{log}");
}

#[test]
fn a_stream_goes_on_after_the_mtu_of_the_container_and_of_the_wire_shrinks() {
    for (path, fields) in [(Path::Fast, ""), (Path::Fast, ", mtu = 9000"), (Path::Vxlan, "")] {
        let Some(lan) = Lan::with_wire(path, 1500, fields) else { return };
        lan.a.ping("10.9.0.2");
        let flow = Flow::start(&lan.a, &lan.b, B);
        flow.wait_for_progress();
        lan.stage.cable(0, 1).set_mtu(1400).unwrap();
        flow.wait_for_progress();
        lan.a.run("ip link set eth0 mtu 1300");
        flow.wait_for_progress();
        lan.b.run("ip link set eth0 mtu 1280");
        flow.wait_for_progress();
        flow.finish();
        lan.a.ping("10.9.0.2");
        let edge = lan.daemons[0].wait(|network| network["edges"][0]["datagram_bytes"] == 1372);
        let losses = edge["edges"][0]["traffic"]["lost"].as_array().unwrap().clone();
        assert!(
            losses.iter().all(|loss| loss["reason"] == "too-long" && loss["count"].as_u64() < Some(100)),
            "{path:?}: {losses:?}"
        );
    }
}

/// A service manager with `IPAddressDeny=any` and a firewall refuse a send with the same error.
#[test]
fn edge_whose_sends_are_not_permitted_says_so_and_works_when_they_are() {
    if !is_installed("nft", "nftables") {
        return;
    }
    for path in Path::ALL {
        let Some(lan) = Lan::new(path) else { return };
        lan.a.ping("10.9.0.2");
        let doctor = |severity: &str| {
            let (_, text) = lan.daemons[0].try_isthmus(&["doctor", "--json"]);
            let report: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
            let findings = report["findings"].as_array().unwrap();
            let edges = findings.iter().find(|row| row["id"] == "overlay.edges").unwrap_or_else(|| panic!("{text}"));
            assert_eq!(edges["severity"], severity, "{edges:#}");
            edges.to_string()
        };
        lan.daemons[0].wait(|network| !network["edges"][0]["datagram_bytes"].is_null());
        doctor("ok");
        let rules = lan.stage.file("rules");
        let address = lan.stage.address(1, 0);
        std::fs::write(
            &rules,
            format!("table ip t {{ chain out {{ type filter hook output priority 0; ip daddr {address} drop; }}; }}"),
        )
        .unwrap();
        lan.stage.run(0, &format!("nft -f {}", rules.display()));
        let (is_success, text) = lan.a.try_run("ping -n -q -c 3 -i 0.1 -W 1 10.9.0.2");
        assert!(!is_success, "{text}");
        let is_refused = |network: &Value| {
            let lost = network["edges"][0]["traffic"]["lost"].as_array().unwrap();
            lost.iter().any(|loss| loss["reason"] == "not-permitted" && loss["count"].as_u64() > Some(0))
        };
        lan.daemons[0].wait(is_refused);
        let said = doctor("warning");
        assert!(said.contains("IPAddressAllow=") && said.contains("other-hosts.conf"), "{path:?}: {said}");
        assert!(said.contains(&address.to_string()), "{path:?}: {said}");
        lan.stage.run(0, "nft delete table ip t");
        lan.a.ping("10.9.0.2");
    }
}

#[test]
fn a_stream_goes_on_after_the_wire_was_dead() {
    let Some(lan) = Lan::new(Path::Fast) else { return };
    lan.a.ping("10.9.0.2");
    let flow = Flow::start(&lan.a, &lan.b, B);
    flow.wait_for_progress();
    lan.stage.cable(0, 1).down().unwrap();
    let (is_success, text) = lan.b.try_run(&format!("ping -n -q -c {} -i 0.1 -W 1 10.9.0.1", short_or_long(10, 100)));
    assert!(!is_success, "{text}");
    lan.stage.cable(0, 1).up().unwrap();
    flow.wait_for_progress();
    flow.finish();
    lan.b.ping("10.9.0.1");
}

/// Waits for a warning about an address, or about any, and returns it.
fn warning(daemon: &Daemon, kind: &str, mac: Option<&str>) -> Value {
    let is_it = |row: &Value| row["kind"] == kind && mac.is_none_or(|mac| row["mac"] == mac);
    let network = daemon.wait(|network| network["warnings"].as_array().unwrap().iter().any(is_it));
    network["warnings"].as_array().unwrap().iter().find(|row| is_it(row)).unwrap().clone()
}

#[test]
fn an_address_that_two_hosts_use_is_reported_and_works_again_when_one_has_left() {
    let Some(mut stage) = Stage::new(3, 1500) else { return };
    let containers = [0, 1, 2].map(|host| stage.container(host, &format!("container{host}")));
    let mac = "02:00:00:00:00:77";
    let same = format!(", mac = \"{mac}\"");
    let [a, b, observer] = &containers;
    let daemons = mesh(&stage, &[member(a, 1, &same), member(b, 2, &same), member(observer, 3, "")]);
    observer.ping("10.9.0.1");
    // Both use the address at the same time: at the observer it moves with each frame.
    let others = [a, b].map(|container| container.spawn("ping -n -q -c 100 -i 0.01 -W 1 10.9.0.3"));
    let flapping = warning(&daemons[2], "flapping", Some(mac));
    for host in [0, 1] {
        let edge = stage.address(host, 2).to_string();
        assert!(flapping["problem"].as_str().unwrap().contains(&edge), "{flapping}");
    }
    assert!(flapping["remedy"].as_str().unwrap().contains("two stations"), "{flapping}");
    for ping in others {
        ping.finish(timeout()).unwrap();
    }
    // The owners see frames of the address from the other one.
    a.run("ip neigh flush all");
    b.run("ip neigh flush all");
    let pings = [a, b].map(|container| container.spawn("ping -n -q -c 50 -i 0.02 -W 1 10.9.0.99"));
    warning(&daemons[0], "loop", Some(mac));
    warning(&daemons[1], "loop", Some(mac));
    for ping in pings {
        ping.finish(timeout()).unwrap();
    }
    let network = daemons[2].network();
    assert!(network["interfaces"][0]["traffic"]["sent"].as_u64() < Some(2_000), "{network:#}");
    assert!(daemons[2].isthmus(&["overlay", "list"]).contains("flapping, "));

    b.run("ip link set eth0 down");
    // The first frame of the other one moves the address.
    let answers = || a.try_run("ping -n -q -c 1 -W 1 10.9.0.3").0;
    eventually(timeout(), answers).unwrap();
    observer.ping("10.9.0.1");
}

/// The field of an interface that a container makes a port of a bridge.
const ANY_SOURCE: &str = ", source_macs = \"any\"";

/// Sends broadcasts, and waits until the interfaces of the networks get no frames any more. Returns the number of frames that they have sent.
fn broadcast(from: &Container, daemons: &[Daemon]) -> u64 {
    let count = || {
        let networks: Vec<Value> = daemons.iter().map(Daemon::network).collect();
        let interfaces = networks.iter().flat_map(|network| network["interfaces"].as_array().unwrap());
        interfaces.map(|interface| interface["traffic"]["received"].as_u64().unwrap()).sum::<u64>()
    };
    let before = count();
    let socket = from.network().with(|| UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
    socket.set_broadcast(true).unwrap();
    for _ in 0..100 {
        socket.send_to(b"to all", "10.9.0.255:7").unwrap();
    }
    let (mut last, mut same) = (before, 0);
    let is_still = || {
        let now = count();
        same = if now == last { same + 1 } else { 0 };
        last = now;
        same == 4
    };
    eventually(timeout(), is_still).unwrap();
    last - before
}

#[test]
fn a_bridge_between_two_interfaces_of_a_host_is_cut_and_reported() {
    let Some(mut stage) = Stage::new(2, 1500) else { return };
    let [a, b, bridge] = [(0, "a"), (1, "b"), (0, "bridge")].map(|(host, name)| stage.container(host, name));
    let [eth1, eth2] = ["eth1", "eth2"].map(|name| bridge.interface_named(name, ANY_SOURCE));
    let daemons = mesh(&stage, &[format!("{}, {eth1}, {eth2}", member(&a, 1, "")), member(&b, 2, "")]);
    b.ping("10.9.0.1");
    bridge.bridge(["eth1", "eth2"]);
    for from in [&b, &a] {
        let frames = broadcast(from, &daemons);
        assert!(frames < 10_000, "{frames} frames for 100 broadcasts");
    }
    warning(&daemons[0], "flapping", None);
    bridge.run("ip link delete bridge0");
    eventually(timeout(), || a.try_run("ping -n -q -c 1 -W 1 10.9.0.2").0).unwrap();
    b.ping("10.9.0.1");
}

#[test]
fn a_bridge_between_two_hosts_beside_the_overlay_is_cut_and_reported() {
    let Some(mut stage) = Stage::new(2, 1500) else { return };
    let [a, b] = [0, 1].map(|host| stage.container(host, &format!("container{host}")));
    let bridges = [0, 1].map(|host| stage.container(host, &format!("bridge{host}")));
    let wire = stage.wire(&bridges[0], &bridges[1]);
    let interfaces = [(&a, 1, &bridges[0]), (&b, 2, &bridges[1])];
    let interfaces = interfaces.map(|(container, number, bridge)| {
        format!("{}, {}", member(container, number, ""), bridge.interface_named("eth1", ANY_SOURCE))
    });
    let daemons = mesh(&stage, &interfaces);
    b.ping("10.9.0.1");
    for (bridge, end) in bridges.iter().zip([wire.a(), wire.b()]) {
        bridge.bridge(["eth1", &end.name]);
    }
    for from in [&b, &a] {
        let frames = broadcast(from, &daemons);
        assert!(frames < 10_000, "{frames} frames for 100 broadcasts");
    }
    warning(&daemons[0], "loop", None);
    warning(&daemons[1], "loop", None);
    bridges[0].run("ip link delete bridge0");
    eventually(timeout(), || a.try_run("ping -n -q -c 1 -W 1 10.9.0.2").0).unwrap();
    b.ping("10.9.0.1");
}

/// Starts a container that is one process: its network namespace has a name on host 0, and ends with both.
fn start_container(stage: &Stage, outer: &Container, name: &std::path::Path) -> Proc {
    let process = outer.spawn("unshare -n sleep 100000");
    let folder = format!("/proc/{}", process.pid().unwrap());
    let has_namespace = || std::fs::read_to_string(format!("{folder}/comm")).is_ok_and(|comm| comm == "sleep\n");
    eventually(timeout(), has_namespace).unwrap();
    stage.name_namespace(0, format!("{folder}/ns/net").as_ref(), name);
    process
}

/// The helper of a daemon and the process that has started it.
fn helpers_of(daemon: &mut Daemon) -> Vec<i32> {
    let daemon = daemon.process.proc().pid().unwrap();
    [starter_of(daemon), helper_of(daemon)].into_iter().flatten().collect()
}

#[test]
fn nothing_is_left_after_daemons_a_container_and_the_helper_were_killed() {
    let Some(mut stage) = Stage::new(2, 1500) else { return };
    let [a, b, outer] = [(0, "a"), (1, "b"), (0, "outer")].map(|(host, name)| stage.container(host, name));
    let stage = stage.with_service_manager();
    let name = stage.file("short-lived");
    std::fs::write(&name, "").unwrap();
    let mut process = start_container(&stage, &outer, &name);
    let third = format!("{{ name = \"eth0\", namespace = \"{}\", addresses = [\"10.9.0.3/24\"] }}", name.display());
    let mut daemons = mesh(&stage, &[format!("{}, {third}", member(&a, 1, "")), member(&b, 2, "")]);
    let (mut random, mut helpers) = (SeededRandom::seeded(22), Vec::new());
    for _ in 0..short_or_long(20, 1_000) {
        helpers.extend(daemons.iter_mut().flat_map(helpers_of));
        match random.bits() % 4 {
            host @ (0 | 1) => daemons[host as usize].kill_and_restart(),
            2 => {
                process.kill().unwrap();
                stage.run(0, &format!("umount {}", name.display()));
                process = start_container(&stage, &outer, &name);
            }
            _ => {
                let own = helpers_of(&mut daemons[0]);
                let chosen = own.get(random.bits() as usize % own.len().max(1));
                chosen.inspect(|helper| drop(stage.run(0, &format!("kill -KILL {helper}"))));
            }
        }
    }
    // The helper that a daemon has started comes back with the daemon.
    daemons.iter_mut().for_each(Daemon::kill_and_restart);
    daemons.iter().for_each(Daemon::wait_for_interfaces);
    b.ping("10.9.0.1");
    b.ping("10.9.0.3");
    a.ping("10.9.0.2");
    assert_eq!([stored(&mut daemons[0]), stored(&mut daemons[1])], [2, 1]);

    helpers.extend(daemons.iter_mut().flat_map(helpers_of));
    for daemon in &mut daemons {
        daemon.process.proc().signal(Signal::TERM).unwrap();
        daemon.process.proc().wait(timeout()).unwrap();
        let files: Vec<_> =
            std::fs::read_dir(daemon.process.run_dir()).unwrap().map(|file| file.unwrap().path()).collect();
        assert!(files.is_empty(), "{files:?}");
    }
    drop(daemons); // With the service manager.
    for container in [&a, &b] {
        eventually(timeout(), || container.run("ip -o link").lines().count() == 1).unwrap();
    }
    let is_alive =
        |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.contains("helper"));
    eventually(timeout(), || !helpers.iter().any(is_alive)).unwrap();
}
