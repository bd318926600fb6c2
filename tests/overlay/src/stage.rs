//! Hosts with wires, their containers and their daemons.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use isthmus_netns::{Cable, Host, Testbed, Wire};
use isthmus_testbed::{DaemonProcess, Launch, Proc, Scratch, binary, eventually};
use serde_json::Value;

use crate::timeout;

/// The configuration of every daemon, before its networks.
const CONFIG: &str =
    "[daemon]\nsocket = \"{socket}\"\nruntime_dir = \"{state}\"\n[overlay]\nhelper = \"{run}/helper.sock\"\n";

/// Hosts with a wire between each two.
#[derive(Debug)]
pub struct Stage {
    hosts: Vec<Host>,
    /// The wires by their two hosts, of which the first has the lower number.
    cables: BTreeMap<(usize, usize), Cable>,
    scratch: Scratch,
    testbed: Testbed,
    has_service_manager: bool,
}

impl Stage {
    /// Hosts with wires of this MTU. None, with the reason on standard error, where they cannot be made.
    pub fn new(hosts: usize, wire_mtu: u32) -> Option<Self> {
        let mut testbed = Testbed::new().map_err(|why| eprintln!("skipped: {why}")).ok()?;
        let hosts: Vec<_> = (1..=hosts).map(|number| testbed.host(&format!("host{number}")).unwrap()).collect();
        let probe = testbed.host("probe").unwrap();
        for device in ["ip tuntap add probe mode tap", "ip link add probe-vxlan type vxlan id 1 dstport 4789"] {
            let (is_success, text) = run(&probe, device);
            if !is_success {
                eprintln!("skipped: {device}: {text}");
                return None;
            }
        }
        let mut cables = BTreeMap::new();
        for (a, first) in hosts.iter().enumerate() {
            for (b, second) in hosts.iter().enumerate().skip(a + 1) {
                let wire = Wire { offloads: true, ..Wire::mtu(wire_mtu) };
                cables.insert((a, b), testbed.link(first, second, &wire).unwrap());
            }
        }
        Some(Self { hosts, cables, scratch: Scratch::shared().unwrap(), testbed, has_service_manager: false })
    }

    /// Gives daemons that are started later a service manager that stores their descriptors.
    #[must_use]
    pub fn with_service_manager(self) -> Self {
        Self { has_service_manager: true, ..self }
    }

    /// Returns the number of hosts.
    pub fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// Returns a host by its number, from 0.
    pub fn host(&self, number: usize) -> &Host {
        &self.hosts[number]
    }

    /// Returns the wire between two hosts.
    pub fn cable(&self, a: usize, b: usize) -> &Cable {
        &self.cables[&(a.min(b), a.max(b))]
    }

    /// Returns the address of host `of` on its wire to host `from`.
    pub fn address(&self, of: usize, from: usize) -> Ipv4Addr {
        let cable = self.cable(of, from);
        if of < from { cable.a().v4 } else { cable.b().v4 }
    }

    /// A file of the stage's folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// Runs a command line on a host, which must be successful, and returns the output.
    #[track_caller]
    pub fn run(&self, host: usize, line: &str) -> String {
        let (is_success, text) = run(&self.hosts[host], line);
        assert!(is_success, "{line}\n{text}");
        text
    }

    /// A container on a host.
    pub fn container(&mut self, host: usize, name: &str) -> Container {
        let network = self.testbed.host(name).unwrap();
        let file = self.file(name);
        std::fs::write(&file, "").unwrap();
        let namespace = network.namespace().unwrap();
        let path = format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd());
        self.name_namespace(host, Path::new(&path), &file);
        Container { network, file }
    }

    /// A wire between two containers.
    pub fn wire(&mut self, a: &Container, b: &Container) -> Cable {
        self.testbed.link(&a.network, &b.network, &Wire { offloads: true, ..Wire::mtu(1500) }).unwrap()
    }

    /// Gives a namespace the name of an existing file, as `ip netns attach` does. Only the host sees it.
    pub fn name_namespace(&self, host: usize, namespace: &Path, file: &Path) {
        self.run(host, &format!("mount --bind {} {}", namespace.display(), file.display()));
    }

    /// Gives a container the interface `eth0` that is the VXLAN device of Linux, with options, between its host and another one.
    pub fn vxlan_device(&self, (host, other): (usize, usize), vni: u32, options: &str, container: &Container) {
        let (own, other) = (self.address(host, other), self.address(other, host));
        self.run(
            host,
            &format!("ip link add eth0 type vxlan id {vni} local {own} remote {other} dstport 4789 {options}"),
        );
        self.run(host, &format!("ip link set eth0 netns {}", container.file.display()));
        container.run("ip link set eth0 up");
    }

    /// Starts a daemon on a host, with these `[[overlay.network]]`.
    pub fn start(&self, host: usize, networks: &str) -> Daemon {
        program("isthmus-helper"); // Built beside the daemon, which starts it.
        self.start_program(host, program("isthmusd"), networks)
    }

    /// [`start`](Self::start) with the program of another place.
    pub fn start_program(&self, host: usize, program: PathBuf, networks: &str) -> Daemon {
        let folder = Scratch::new().unwrap();
        let plan = DaemonProcess::on(&folder).program(program).host(&self.hosts[host]);
        let plan = if self.has_service_manager { plan.with_fd_store() } else { plan };
        let started = plan.config(&format!("{CONFIG}{networks}")).start(timeout());
        Daemon { process: started.unwrap_or_else(|error| panic!("{error}")), _folder: folder }
    }
}

/// A container: a network namespace.
#[derive(Clone, Debug)]
pub struct Container {
    network: Host,
    file: PathBuf,
}

impl Container {
    /// Its network.
    pub fn network(&self) -> &Host {
        &self.network
    }

    /// The file by which its host finds its namespace.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// An interface `eth0` in it, as the configuration of a daemon has it, with further fields.
    pub fn interface(&self, fields: &str) -> String {
        self.interface_named("eth0", fields)
    }

    /// An interface in it.
    pub fn interface_named(&self, name: &str, fields: &str) -> String {
        format!("{{ name = \"{name}\", namespace = \"{}\"{fields} }}", self.file.display())
    }

    /// Connects two of its interfaces by a bridge `bridge0`.
    #[track_caller]
    pub fn bridge(&self, interfaces: [&str; 2]) {
        self.run("ip link add bridge0 type bridge");
        for interface in interfaces {
            self.run(&format!("ip link set {interface} master bridge0 up"));
        }
        self.run("ip link set bridge0 up");
    }

    /// Runs a command line in it, which must be successful, and returns the output.
    #[track_caller]
    pub fn run(&self, line: &str) -> String {
        let (is_success, text) = run(&self.network, line);
        assert!(is_success, "{}: {line}\n{text}", self.network.name());
        text
    }

    /// Runs a command line in it. Returns whether it was successful, and its output.
    pub fn try_run(&self, line: &str) -> (bool, String) {
        run(&self.network, line)
    }

    /// Starts a program in it.
    #[track_caller]
    pub fn spawn(&self, line: &str) -> Proc {
        let launch = Launch::new("/usr/bin/env").args(line.split_whitespace()).host(&self.network); // Which searches PATH.
        launch.spawn().unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    /// Waits until an address has replied three times.
    #[track_caller]
    pub fn ping(&self, address: &str) {
        self.run(&format!("ping -n -q -c 3 -i 0.02 -w 60 {address}"));
    }
}

/// A running daemon.
#[derive(Debug)]
pub struct Daemon {
    /// Its process.
    pub process: DaemonProcess,
    _folder: Scratch,
}

impl Daemon {
    /// Runs `isthmus` beside it and returns the output.
    #[track_caller]
    pub fn isthmus(&self, words: &[&str]) -> String {
        let launch = self.process.launch_on_host(program("isthmus")).args(words);
        launch.spawn().unwrap().finish(timeout()).unwrap().expect_success().join("\n")
    }

    /// Runs `isthmus` beside it. Returns whether it was successful, and its output.
    pub fn try_isthmus(&self, words: &[&str]) -> (bool, String) {
        let launch = self.process.launch_on_host(program("isthmus")).args(words);
        let finished = launch.spawn().unwrap().finish(timeout()).unwrap();
        (finished.exit.success(), [finished.lines.join("\n"), finished.stderr].concat())
    }

    /// Returns the first network of `isthmus overlay list`.
    #[track_caller]
    pub fn network(&self) -> Value {
        let report: Value = serde_json::from_str(&self.isthmus(&["overlay", "list", "--json"])).unwrap();
        report["networks"][0].clone()
    }

    /// Waits for a state of the first network.
    #[track_caller]
    pub fn wait(&self, state: impl Fn(&Value) -> bool) -> Value {
        let mut network = Value::Null;
        let waited = eventually(timeout(), || {
            network = self.network();
            state(&network)
        });
        waited.unwrap_or_else(|error| panic!("{error}: {network:#}"));
        network
    }

    /// Waits until all interfaces of the first network exist.
    #[track_caller]
    pub fn wait_for_interfaces(&self) {
        self.wait(|network| {
            network["interfaces"].as_array().unwrap().iter().all(|interface| interface["exists"] == true)
        });
    }

    /// Has it read other `[[overlay.network]]`.
    pub fn reload(&mut self, networks: &str) {
        self.process.reload(&format!("{CONFIG}{networks}")).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Ends it by SIGKILL, and starts it again with other `[[overlay.network]]`.
    pub fn kill_and_restart_with(&mut self, networks: &str) {
        self.process.set_config(&format!("{CONFIG}{networks}"));
        self.kill_and_restart();
    }

    /// Ends it by SIGKILL, and starts it again.
    pub fn kill_and_restart(&mut self) {
        self.process.kill_and_restart(timeout()).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Returns the path of a program of ours.
pub(crate) fn program(name: &str) -> PathBuf {
    binary(name, name).unwrap_or_else(|error| panic!("{error}"))
}

/// Whether a program is installed. If not, its package is named on standard error.
pub fn is_installed(program: &str, package: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    if !is_there {
        eprintln!("skipped: {program} is not installed; it comes with the package {package}");
    }
    is_there
}

/// Runs a command line on a host. Returns whether it was successful, and its output.
fn run(host: &Host, line: &str) -> (bool, String) {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().unwrap());
    command.args(words);
    let output = host.output(command).unwrap_or_else(|error| panic!("{line}: {error}"));
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}
