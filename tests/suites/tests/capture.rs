//! `isthmus capture` on one of two real hosts (network namespaces) with an MX program on each, and what Wireshark makes of the file.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use isthmus_client::{Options, QueryClient, Topic};
use isthmus_mx_tests::build;
use isthmus_netns::{Host, Testbed, Wire};
use isthmus_suites::TIMEOUT_S;
use isthmus_testbed::{DaemonProcess, Deadline, Proc, Scratch, binary, eventually, eventually_some};
use rustix::process::Signal;
use serde_json::Value;

/// The packets that any exchange of long and short messages shows, as the dissector calls them.
const NAMES: [&str; 6] = ["CONNECT", "TINY", "RNDV", "PULL", "PULL_REPLY", "NOTIFY"];

fn patience() -> Deadline {
    Deadline::secs(TIMEOUT_S)
}

fn isthmus() -> PathBuf {
    binary("isthmus", "isthmus").unwrap()
}

/// A host with its daemon, which has one board with one link.
struct CaptureHost {
    daemon: DaemonProcess,
    scratch: Scratch,
}

impl CaptureHost {
    fn start(host: &Host, board: &str) -> Self {
        let scratch = Scratch::new().unwrap();
        let config = format!(
            "[daemon]\nsocket = \"{{socket}}\"\nruntime_dir = \"{{state}}\"\n\
             [[mx.board]]\nname = \"{board}\"\nlinks = [{{ interface = \"wire0\" }}]\n"
        );
        let daemon = DaemonProcess::on(&scratch).config(&config).host(host).start(patience()).unwrap();
        Self { daemon, scratch }
    }

    fn ask(&self, topic: Topic) -> Value {
        let options = Options { socket: Some(self.daemon.socket()), no_autostart: true, ..Options::default() };
        serde_json::from_str(&QueryClient::connect(&options).unwrap().query(topic, &[]).unwrap()).unwrap()
    }

    fn await_peer(&self, name: &str) {
        let known = || {
            let peers = self.ask(Topic::Mx)["peers"].as_array().cloned().unwrap_or_default();
            peers.iter().any(|peer| peer["name"] == name && peer["link"].is_string())
        };
        eventually(patience(), known).unwrap();
    }

    /// A running `isthmus capture`, and its file.
    fn capture(&self, name: &str, arguments: &[&str]) -> (Proc, PathBuf) {
        let file = self.scratch.join(name);
        let capture =
            self.daemon.launch_on_host(isthmus()).args(["capture", "-w"]).arg(&file).args(arguments).spawn().unwrap();
        // Its beginning is written when frames are seen.
        let begun = || std::fs::metadata(&file).is_ok_and(|file| file.len() > 100);
        eventually(patience(), begun).unwrap();
        (capture, file)
    }

    fn example(&self, name: &str, arguments: &[&str]) -> Proc {
        let is_ours = |name: &str| name.starts_with("MX_") || name.starts_with("OMX_");
        let set = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).filter(|name| is_ours(name));
        let launch = set.fold(self.daemon.launch_on_host(build::example(name)), isthmus_testbed::Launch::env_remove);
        launch.args(arguments).spawn().unwrap()
    }
}

/// Ends a capture; what it says.
fn end(capture: Proc) -> String {
    capture.signal(Signal::INT).unwrap();
    capture.finish(patience()).unwrap().expect_success().join("\n")
}

/// A tshark with Lua, if there is one.
fn has_tshark() -> bool {
    let version = Command::new("tshark").arg("--version").output();
    version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("with Lua"))
}

/// Returns the given fields of each frame as tshark shows them.
fn shown<const N: usize>(scratch: &Scratch, file: &Path, fields: [&str; N]) -> Vec<[String; N]> {
    let script = isthmus_testbed::workspace_root().join("packaging/wireshark/mxoe.lua");
    let mut tshark = Command::new("tshark");
    tshark.env("HOME", scratch.path()).env("XDG_CONFIG_HOME", scratch.path()).env("LC_ALL", "C.UTF-8");
    tshark.arg("-X").arg(format!("lua_script:{}", script.display())).args(["-n", "-T", "fields", "-r"]).arg(file);
    for field in fields {
        tshark.args(["-e", field]);
    }
    let output = tshark.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let row = |line: &str| {
        let mut columns = line.split('\t').map(str::to_owned);
        std::array::from_fn(|_| columns.next().unwrap_or_default())
    };
    text.lines().map(row).collect()
}

/// The first words of the lines that a list of packets shows.
fn words(rows: &[[String; 4]]) -> BTreeSet<&str> {
    rows.iter().filter_map(|row| row[0].split(' ').next()).collect()
}

#[test]
fn wireshark_dissects_the_traffic_of_two_hosts() {
    let made = Testbed::new().and_then(|mut bed| Ok((bed.host("a")?, bed.host("b")?, bed)));
    let (a, b, mut bed) = match made {
        Ok(made) => made,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    if !has_tshark() {
        return eprintln!("skipped: no tshark with Lua in PATH (apt-get install tshark)");
    }
    let _cable = bed.link(&a, &b, &Wire::mtu(9000)).unwrap();
    build::example("mx_pingpong"); // Compiled before any deadline runs; and so are these.
    drop((isthmus(), binary("isthmusd", "isthmusd").unwrap()));
    let (a, b) = (CaptureHost::start(&a, "a:0"), CaptureHost::start(&b, "b:0"));
    a.await_peer("b:0");
    b.await_peer("a:0");

    let (all, all_file) = a.capture("all.pcapng", &[]);
    let mut serving = b.example("mx_pingpong", &[]);
    let endpoint = serving.wait_prefix("endpoint ", patience()).unwrap();
    let server = || b.ask(Topic::Domains)["domains"][0]["id"].as_u64();
    let server = format!("d{}", eventually_some(patience(), server).unwrap());
    let (its_own, own_file) = b.capture("own.pcapng", &["--domain", &server, "--snap", "80"]);
    let client = ["-d", "b:0", "-r", &endpoint, "-n", "2", "-W", "1", "-v", "-S", "0", "-E", "1048576"];
    a.example("mx_pingpong", &client).finish(patience()).unwrap().expect_success();
    serving.finish(patience()).unwrap().expect_success();
    let said = [end(all), end(its_own)];

    let fields = ["_ws.col.Info", "mxoe.malformed", "frame.packet_flags_direction", "frame.cap_len"];
    let rows = shown(&a.scratch, &all_file, fields);
    let own = shown(&b.scratch, &own_file, fields);
    for (rows, said) in [&rows, &own].into_iter().zip(&said) {
        assert!(NAMES.iter().all(|name| words(rows).contains(name)), "{:?}", words(rows));
        assert!(rows.iter().all(|row| row[1].is_empty()), "a frame that every board drops");
        let directions: BTreeSet<&str> = rows.iter().map(|row| row[2].as_str()).collect();
        assert_eq!(directions, BTreeSet::from(["0x00000001", "0x00000002"]));
        assert!(said.starts_with(&format!("{} frames, ", rows.len())), "{said}");
    }
    assert!(!words(&own).contains("RAW"), "what boards tell each other is no domain's");
    let lengths = own.iter().map(|row| row[3].parse::<u32>().unwrap());
    assert_eq!(lengths.max(), Some(80));
}
