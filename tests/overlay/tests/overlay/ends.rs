//! The namespace of a container is missing, and the helper ends while networks are in use, or is not installed.

use isthmus_overlay_tests::{Lan, Path, Stage, timeout};
use isthmus_testbed::{Signal, eventually};
use serde_json::Value;

fn interface(network: &Value) -> &Value {
    &network["interfaces"][0]
}

/// Returns the process by which a daemon, of this number, starts helpers.
pub(crate) fn starter_of(daemon: i32) -> Option<i32> {
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

/// Returns the helper that serves a daemon.
pub(crate) fn helper_of(daemon: i32) -> Option<i32> {
    starter_of(starter_of(daemon)?) // A child of the same name.
}

/// A daemon that `isthmusd --detach` has left running. It ends with the test.
struct DetachedDaemon(i32);

impl DetachedDaemon {
    /// Starts it on host 0 of a stage.
    fn start(stage: &Stage, config: &std::path::Path) -> Self {
        let program = isthmus_testbed::binary("isthmusd", "isthmusd").unwrap();
        stage.run(0, &format!("{} --config {} --detach", program.display(), config.display()));
        let is_it = |folder: &std::path::Path| {
            let line = std::fs::read(folder.join("cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|argument| argument == config.as_os_str().as_encoded_bytes())
        };
        let folders = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
        let found = folders.into_iter().find(|folder| is_it(folder)).unwrap();
        Self(found.file_name().unwrap().to_str().unwrap().parse().unwrap())
    }
}

impl Drop for DetachedDaemon {
    fn drop(&mut self) {
        let _ = std::process::Command::new("kill").args(["-KILL", &self.0.to_string()]).status();
    }
}

/// The command that started the daemon has gone, and with it the reader of what the daemon and its helper wrote at their start.
#[test]
fn helper_of_a_detached_daemon_logs_to_a_file_and_goes_on() {
    let Some(mut stage) = Stage::new(1, 1500) else { return };
    let [a, b] = ["a", "b"].map(|name| stage.container(0, name));
    let (config, socket, log) = (stage.file("detached.toml"), stage.file("run/s.sock"), stage.file("run/s.log"));
    std::fs::create_dir(stage.file("run")).unwrap();
    let configure = |interfaces: &str| {
        let (run, socket) = (stage.file("run"), socket.display());
        let run = run.display();
        let text = format!(
            "[daemon]\nsocket = \"{socket}\"\nruntime_dir = \"{run}\"\n[overlay]\nhelper = \"{run}/helper.sock\"\n\
             [[overlay.network]]\nname = \"lan\"\ninterfaces = [{interfaces}]\n"
        );
        std::fs::write(&config, text).unwrap();
    };
    configure(&a.interface(""));
    let daemon = DetachedDaemon::start(&stage, &config);
    let wait = |is_reached: &dyn Fn(&[Value]) -> bool| {
        let program = isthmus_testbed::binary("isthmus", "isthmus").unwrap();
        let ask = format!("{} --socket {} overlay list --json", program.display(), socket.display());
        let mut report = Value::Null;
        let waited = eventually(timeout(), || {
            report = serde_json::from_str(&stage.run(0, &ask)).unwrap();
            is_reached(report["networks"][0]["interfaces"].as_array().unwrap())
        });
        waited.unwrap_or_else(|error| panic!("{error}: {report:#}"));
    };
    // The helper refuses an interface, which it logs, and then creates that interface.
    b.run("ip link add eth0 type veth peer name other");
    configure(&format!("{}, {}", a.interface(""), b.interface("")));
    stage.run(0, &format!("kill -HUP {}", daemon.0));
    wait(&|interfaces| interfaces.iter().any(|one| one["missing"].is_string()));
    b.run("ip link del eth0");
    wait(&|interfaces| interfaces.len() == 2 && interfaces.iter().all(|one| one["exists"] == true));
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.contains("starting") && text.contains("ready") && text.contains("refused: "), "{text}");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&log).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    // A helper that was killed is started again for the next interface.
    stage.run(0, &format!("kill -KILL {}", helper_of(daemon.0).unwrap()));
    b.run("ip link del eth0");
    wait(&|interfaces| interfaces.iter().any(|one| one["exists"] == false));
    wait(&|interfaces| interfaces.iter().all(|one| one["exists"] == true));
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.contains("the helper before this one has ended: signal: 9"), "{text}");
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
fn frames_go_on_without_the_helper_which_is_started_again_for_a_new_interface() {
    let Some(mut lan) = Lan::new(Path::Fast) else { return };
    lan.a.ping("10.9.0.2");
    let daemon = lan.daemons[0].process.proc().pid().unwrap();
    let starter = starter_of(daemon).unwrap();
    lan.stage.run(0, &format!("kill -KILL {}", helper_of(daemon).unwrap()));
    lan.a.ping("10.9.0.2");
    lan.b.ping("10.9.0.1");
    lan.a.run("ip link delete eth0");
    lan.daemons[0].wait(|network| interface(network)["missing"].is_string());
    lan.daemons[0].wait_for_interfaces();
    lan.a.ping("10.9.0.2");
    // Nothing can start a helper any more.
    lan.stage.run(0, &format!("kill -KILL {starter} {}", helper_of(daemon).unwrap()));
    lan.a.ping("10.9.0.2");
    lan.a.run("ip link delete eth0");
    let is_named = |reason: &str| reason.contains("isthmus-helper --starter") && reason.contains("restart the daemon");
    let network = lan.daemons[0].wait(|network| interface(network)["missing"].as_str().is_some_and(is_named));
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
