//! The namespace of a container is missing, and the helper ends while networks are in use, or is not installed.

use isthmus_overlay_tests::{Lan, Path, Stage, timeout};
use isthmus_testbed::Signal;
use serde_json::Value;

fn interface(network: &Value) -> &Value {
    &network["interfaces"][0]
}

/// Returns the helper that a daemon has started.
pub(crate) fn helper_of(daemon: i32) -> Option<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{daemon}/task")).ok()?;
    let children = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok());
    let children: Vec<i32> = children
        .flat_map(|text| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .filter_map(|pid| pid.parse().ok())
        .collect();
    let is_helper = |pid: &i32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "isthmus-helper")
    };
    children.into_iter().find(is_helper)
}

#[test]
fn an_interface_is_missing_until_the_namespace_of_its_container_exists() {
    let Some(mut stage) = Stage::new(1, 1500) else { return };
    let container = stage.container(0, "container");
    let name = stage.file("short-lived");
    let networks = format!(
        "[[overlay.network]]\nname = \"lan\"\ninterfaces = [{{ name = \"eth0\", namespace = \"{}\" }}]\n",
        name.display()
    );
    let daemon = stage.start(0, &networks);
    let network = daemon.wait(|network| interface(network)["exists"] == false);
    let reason = interface(&network)["missing"].as_str().unwrap();
    assert!(reason.contains("short-lived: No such file") && reason.contains("the daemon waits for it"), "{reason}");
    std::fs::write(&name, "").unwrap();
    stage.name_namespace(0, container.file(), &name);
    daemon.wait_for_interfaces();
    container.run("ip link show dev eth0");
}

#[test]
fn an_interface_ends_with_the_namespace_of_its_container() {
    let Some(mut stage) = Stage::new(1, 1500) else { return };
    let outer = stage.container(0, "outer");
    let file = stage.file("pid");
    let script = stage.file("container.sh");
    std::fs::write(&script, format!("echo $$ > {}\nexec sleep 100000\n", file.display())).unwrap();
    let process = outer.spawn(&format!("unshare -n sh {}", script.display()));
    let deadline = timeout();
    let pid = loop {
        match std::fs::read_to_string(&file).unwrap_or_default().trim().parse::<u32>() {
            Ok(pid) => break pid,
            Err(_) if !deadline.has_passed() => std::thread::yield_now(),
            Err(error) => panic!("no process in a namespace of its own: {error}"),
        }
    };
    let networks = format!(
        "[[overlay.network]]\nname = \"lan\"\ninterfaces = [{{ name = \"eth0\", namespace = \"/proc/{pid}/ns/net\" }}]\n"
    );
    let daemon = stage.start(0, &networks);
    daemon.wait_for_interfaces();
    process.signal(Signal::KILL).unwrap();
    let network = daemon.wait(|network| interface(network)["missing"].is_string());
    assert_eq!(interface(&network)["exists"], false);
}

#[test]
fn frames_go_on_without_the_helper_and_a_new_interface_names_it() {
    let Some(mut lan) = Lan::new(Path::Fast) else { return };
    lan.a.ping("10.9.0.2");
    let daemon = lan.daemons[0].process.proc().pid().unwrap();
    let helper = helper_of(daemon).unwrap();
    lan.stage.run(0, &format!("kill -KILL {helper}"));
    lan.a.ping("10.9.0.2");
    lan.b.ping("10.9.0.1");
    lan.a.run("ip link delete eth0");
    let network = lan.daemons[0]
        .wait(|network| interface(network)["missing"].as_str().is_some_and(|reason| reason.contains("isthmus-helper")));
    assert_eq!(interface(&network)["exists"], false);
    lan.daemons[0].process.proc().signal(Signal::TERM).unwrap();
    assert!(lan.daemons[0].process.proc().wait(timeout()).unwrap().success());
}

#[test]
fn a_daemon_without_the_helper_starts_and_says_what_is_missing() {
    let Some(mut stage) = Stage::new(1, 1500) else { return };
    let container = stage.container(0, "container");
    let alone = stage.file("isthmusd");
    // Another process copies it. A process that another test starts now would inherit a descriptor of ours that is open for writing,
    // and the kernel would refuse to execute the file.
    let mut cp = std::process::Command::new("cp");
    cp.arg(isthmus_testbed::binary("isthmusd", "isthmusd").unwrap()).arg(&alone);
    assert!(cp.status().unwrap().success());
    let networks = format!("[[overlay.network]]\nname = \"lan\"\ninterfaces = [{}]\n", container.interface(""));
    let daemon = stage.start_program(0, alone, &networks);
    let network = daemon.wait(|network| interface(network)["missing"].is_string());
    let reason = interface(&network)["missing"].as_str().unwrap();
    assert!(reason.contains("isthmus-helper"), "{reason}");
    let text = daemon.isthmus(&["overlay", "list"]);
    assert!(text.contains(&format!("eth0@container is missing: {reason}")), "{text}");
    daemon.isthmus(&["status"]);
}
