//! Servers and clients as they are packaged: nginx, iperf3, memcached, and Redis with its fork for saving and its replication.
//!
//! Each test runs on the kernel alone and with the library. Servers listen at an address of their own, at fixed ports.

use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};

use isthmus_sockets_tests::{Stage, timeout};
use isthmus_testbed::{Deadline, Finished, Launch, Proc, Scratch, eventually, eventually_some, short_or_long};
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::Signal;
use serde_json::Value;

/// A client of memcached, which checks every value. Standard Python has all that it needs.
const MEMCACHED_CLIENT: &str = r#"
import random, socket, sys
idle = [socket.create_connection((sys.argv[1], 7000)) for _ in range(200)]
used = [socket.create_connection((sys.argv[1], 7000)) for _ in range(40)]
random.seed(5)
for number in range(4000):
    key, value = b"key%d" % (number % 500), random.randbytes(random.choice([1, 50, 3000]))
    one, other = random.choice(used), random.choice(used)
    one.sendall(b"set %s 0 0 %d\r\n%s\r\n" % (key, len(value), value))
    assert one.recv(100) == b"STORED\r\n"
    other.sendall(b"get %s\r\n" % key)
    wanted = b"VALUE %s 0 %d\r\n%s\r\nEND\r\n" % (key, len(value), value)
    got = b""
    while len(got) < len(wanted):
        got += other.recv(65536)
    assert got == wanted
print("all values are right", flush=True)
sys.stdin.read()
"#;

/// The programs of one test.
pub(crate) struct Programs {
    pub(crate) stage: Stage,
    pub(crate) folder: Scratch,
    pub(crate) address: String,
    variables: Vec<(&'static str, &'static str)>,
}

impl Programs {
    /// Returns none, with the reason on standard error, if a program is not installed.
    pub(crate) fn new(stage: Stage, needed: &[&str]) -> Option<Self> {
        if let Some(missing) = needed.iter().find(|program| !Path::new(program).exists()) {
            eprintln!("skipped: {missing} is not installed (scripts/setup installs it)");
            return None;
        }
        static LAST: AtomicU8 = AtomicU8::new(1);
        let [.., high, low] = std::process::id().to_be_bytes();
        let address = format!("127.{high}.{low}.{}", LAST.fetch_add(1, Ordering::Relaxed));
        Some(Self { stage, folder: Scratch::new().unwrap(), address, variables: Vec::new() })
    }

    /// Sets a variable of all programs.
    pub(crate) fn env(mut self, name: &'static str, value: &'static str) -> Self {
        self.variables.push((name, value));
        self
    }

    /// Gives the programs a folder that other users can enter.
    pub(crate) fn shared(self) -> Self {
        Self { folder: Scratch::shared().unwrap(), ..self }
    }

    pub(crate) fn launch(&self, program: &str, words: &[&str]) -> Launch {
        let launch = self.stage.launch(program).args(words);
        self.variables.iter().fold(launch, |launch, (name, value)| launch.env(name, value))
    }

    pub(crate) fn start(&self, program: &str, words: &[&str]) -> Proc {
        self.launch(program, words).spawn().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs a program to its end, and returns its lines.
    #[track_caller]
    pub(crate) fn run(&self, program: &str, words: &[&str]) -> Vec<String> {
        let finished = self.start(program, words).finish(timeout());
        finished.map(Finished::expect_success).unwrap_or_else(|error| panic!("{program} {words:?}: {error}"))
    }

    /// Waits until a server accepts connections.
    pub(crate) fn wait_for_port(&self, port: u16) {
        let connects = || std::net::TcpStream::connect((self.address.as_str(), port)).is_ok();
        eventually(Deadline::secs(60), connects).unwrap_or_else(|error| panic!("port {port}: {error}"));
    }

    /// Writes a file in the folder of the test.
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        self.folder.write(name, content).unwrap().to_string_lossy().into_owned()
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.join(name).to_string_lossy().into_owned()
    }
}

/// Ends a server that ends by this signal.
pub(crate) fn stop(server: Proc) {
    server.signal(Signal::TERM).unwrap();
    server.finish(timeout()).unwrap_or_else(|error| panic!("{error}"));
}

/// Bytes without a period that a lost or doubled fragment would keep.
pub(crate) fn content(len: u64) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(len as usize);
    while (bytes.len() as u64) < len {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&state.to_be_bytes());
    }
    bytes
}

/// Reads as many bytes as `expected` has and asserts that they are the same.
#[track_caller]
fn expect_bytes(from: &mut impl Read, expected: &[u8], number: usize) {
    let mut buffer = vec![0; 1 << 16];
    for (block, expected) in expected.chunks(buffer.len()).enumerate() {
        let got = &mut buffer[..expected.len()];
        from.read_exact(got).unwrap_or_else(|error| panic!("part {number}, block {block}: {error}"));
        assert!(got == expected, "part {number}, block {block}: the bytes differ");
    }
}

/// Starts nginx, which serves the folder of the test. `in_background` is `on` or `off`. Returns the file of its log, too.
fn start_nginx(programs: &Programs, in_background: &str) -> (Proc, String) {
    let (folder, errors, address) = (programs.path(""), programs.path("errors"), &programs.address);
    let kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]; // The default folders are those of root.
    let temporary: String = kinds.iter().map(|kind| format!("{kind}_temp_path {folder}/{kind}; ")).collect();
    let config = programs.write(
        "nginx.conf",
        format!(
            "user root; daemon {in_background}; worker_processes 2; pid {folder}/pid; error_log {errors} notice;\n\
             env LD_PRELOAD; env ISTHMUS_SOCKET; env ISTHMUS_AUTOSTART;\n\
             events {{ worker_connections 512; }}\n\
             http {{ access_log off; sendfile on; keepalive_requests 1000000; {temporary}\n\
             server {{ listen {address}:7000; root {folder}; }} }}\n"
        ),
    );
    let server = programs.start("/usr/sbin/nginx", &["-e", &errors, "-c", &config]);
    programs.wait_for_port(7000);
    (server, errors)
}

/// A master process of nginx in the background, which ends with the test.
struct Master(rustix::process::Pid);

impl Drop for Master {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.0, Signal::TERM); // It may have ended.
    }
}

/// Replaces the program of a server that runs in the background: a new one inherits the listening socket.
fn nginx_upgrade(stage: Stage) {
    let Some(programs) = Programs::new(stage, &["/usr/sbin/nginx", "/usr/bin/ab"]) else { return };
    programs.write("small", content(4096));
    // Not dropped before its end: that would kill its process group, which the server leaves when it goes to the background.
    let (mut command, _) = start_nginx(&programs, "on");
    let ended = command.wait(timeout()).unwrap_or_else(|error| panic!("{error}"));
    assert!(ended.success(), "{ended:?}");
    let master = |name: &str| {
        let pid = std::fs::read_to_string(programs.path(name)).ok()?.trim().parse().ok()?;
        rustix::process::Pid::from_raw(pid)
    };
    let requests = || {
        let url = format!("http://{}:7000/small", programs.address);
        let lines = programs.run("/usr/bin/ab", &["-k", "-q", "-n", "2000", "-c", "4", &url]);
        assert!(lines.iter().any(|line| line.starts_with("Failed requests:") && line.ends_with(" 0")), "{lines:#?}");
        programs.stage.streams()["paired"].as_u64()
    };
    let old = Master(eventually_some(timeout(), || master("pid")).unwrap());
    let before = requests();
    rustix::process::kill_process(old.0, Signal::USR2).unwrap();
    let new = eventually_some(timeout(), || master("pid.oldbin").and(master("pid"))).map(Master).unwrap();
    assert_ne!(new.0, old.0);
    rustix::process::kill_process(old.0, Signal::QUIT).unwrap();
    eventually(timeout(), || master("pid.oldbin").is_none()).unwrap();
    let after = requests();
    assert!(!programs.stage.has_library() || after > before, "{before:?}: {:#}", programs.stage.streams());
    drop(new);
    eventually(timeout(), || master("pid").is_none()).unwrap();
}

/// Downloads with curl while the server reloads, and many short requests on few connections.
fn nginx(stage: Stage) {
    const CURL: &str = "/usr/bin/curl";
    let Some(programs) = Programs::new(stage, &["/usr/sbin/nginx", CURL, "/usr/bin/ab"]) else { return };
    let file = content(short_or_long(64, 1024) << 20);
    programs.write("large", &file);
    programs.write("small", &file[..4096]);
    let (server, errors) = start_nginx(&programs, "off");
    let address = &programs.address;
    let wait_for_log = |line: &str, count: usize| {
        let log = || std::fs::read_to_string(&errors).unwrap();
        let found = eventually(timeout(), || log().matches(line).count() >= count);
        found.unwrap_or_else(|error| panic!("{count} times {line:?}: {error}\n{}", log()));
    };
    let url = |name: &str| format!("http://{address}:7000/{name}");

    // The download goes into a FIFO, so that it is under way as long as the test does not read.
    let fifo = programs.path("fifo");
    mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
    let get = ["-s", "-S", "-f", "-o"];
    let download = programs.start(CURL, &[&get[..], &[&fifo, &url("large")]].concat());
    let mut received = std::fs::File::open(&fifo).unwrap();
    for (number, part) in file.chunks(file.len() / 4).enumerate() {
        expect_bytes(&mut received, part, number);
        if number < 3 {
            programs.stage.wait_for_download("7000");
            server.signal(Signal::HUP).unwrap();
            wait_for_log("start worker processes", 2 + number); // The first workers have the first line.
            let copy = programs.path("copy");
            programs.run(CURL, &[&get[..], &[&copy, &url("small")]].concat());
            assert!(std::fs::read(&copy).unwrap() == file[..4096], "reload {number}: the small file differs");
        }
    }
    assert_eq!(received.read(&mut [0]).unwrap(), 0, "the download is longer than the file");
    download.finish(timeout()).map(Finished::expect_success).unwrap_or_else(|error| panic!("{error}"));
    wait_for_log("exited with code 0", 3 * 2); // A worker that ends may reset connections that wait for it.

    let lines = programs.run("/usr/bin/ab", &["-k", "-q", "-n", "20000", "-c", "20", &url("small")]);
    for wanted in ["Complete requests: 20000", "Failed requests: 0", "Keep-Alive requests: 20000"] {
        let words = |line: &String| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(lines.iter().map(words).any(|line| line == wanted), "{wanted}: {lines:#?}");
    }
    programs.stage.expect_paired();
    stop(server);
}

/// One direction, the other, and both, each on several connections.
fn iperf3(stage: Stage) {
    const IPERF: &str = "/usr/bin/iperf3";
    let Some(programs) = Programs::new(stage, &[IPERF]) else { return };
    for (port, direction) in [("7000", &[][..]), ("7001", &["--reverse"]), ("7002", &["--bidir"])] {
        let mut server = programs.start(IPERF, &["-s", "-1", "--forceflush", "-B", &programs.address, "-p", port]);
        let listens = server.find_line(timeout(), "a server that listens", |line| line.contains("Server listening"));
        listens.unwrap_or_else(|error| panic!("{error}"));
        let words = ["-c", &programs.address, "-p", port, "-P", "4", "-n", "50M", "-J"];
        let lines = programs.run(IPERF, &[&words, direction].concat());
        let report: Value = serde_json::from_str(&lines.join("\n")).unwrap();
        let bytes = |name: &str| report["end"][name]["bytes"].as_u64();
        let both = [("sum_sent", "sum_received"), ("sum_sent_bidir_reverse", "sum_received_bidir_reverse")];
        let directions = if port == "7002" { &both[..] } else { &both[..1] };
        for (sent, received) in directions.iter().map(|(sent, received)| (bytes(sent), bytes(received))) {
            assert!(received > Some(0) && received <= sent, "{direction:?}: {:#}", report["end"]);
        }
        // The number of bytes is that of all connections of a direction, and the first direction that has sent them ends both.
        let most = directions.iter().filter_map(|(sent, _)| bytes(sent)).max();
        assert!(most >= Some(50 << 20), "{direction:?}: {:#}", report["end"]);
        server.finish(timeout()).map(Finished::expect_success).unwrap_or_else(|error| panic!("{error}"));
    }
    programs.stage.expect_paired();
}

/// A server with an epoll set for each of its threads, and clients of which most are idle.
fn memcached(stage: Stage) {
    let needed = ["/usr/bin/memcached", "/usr/bin/python3"];
    let Some(programs) = Programs::new(stage, &needed) else { return };
    let client = programs.write("client.py", MEMCACHED_CLIENT);
    let server = programs.start(needed[0], &["-u", "root", "-t", "4", "-l", &programs.address, "-p", "7000"]);
    programs.wait_for_port(7000);
    let client = programs.launch(needed[1], &[&client, &programs.address]).with_stdin().spawn();
    let mut client = client.unwrap_or_else(|error| panic!("{error}"));
    client.wait_line("all values are right", timeout()).unwrap_or_else(|error| panic!("{error}"));
    programs.stage.wait_for_stream("7000"); // The client keeps its connections until its standard input ends.
    client.close_stdin();
    client.finish(timeout()).map(Finished::expect_success).unwrap_or_else(|error| panic!("{error}"));
    stop(server);
}

/// A primary that saves by fork while clients write, a replica, and a server that loads what was saved.
fn redis(stage: Stage) {
    const SERVER: &str = "/usr/bin/redis-server";
    const CLI: &str = "/usr/bin/redis-cli";
    const BENCHMARK: &str = "/usr/bin/redis-benchmark";
    let Some(programs) = Programs::new(stage, &[SERVER, CLI, BENCHMARK]) else { return };
    let address = &programs.address;
    let folder = programs.path("");
    let serve = |port: &str, file: &str, more: &[&str]| {
        let words = ["--bind", address, "--port", port, "--dir", &folder, "--dbfilename", file, "--save", ""];
        let debug = ["--enable-debug-command", "yes", "--repl-diskless-sync-delay", "0"];
        let mut server = programs.start(SERVER, &[&words[..], &debug, more].concat());
        let ready = |line: &str| line.contains("Ready to accept connections");
        server.find_line(timeout(), "a server that is ready", ready).unwrap_or_else(|error| panic!("{error}"));
        server
    };
    let ask =
        |port: &str, words: &[&str]| programs.run(CLI, &[&["-h", address, "-p", port], words].concat()).join("\n");
    let saved = |of: &Stage| {
        let is_idle = || ask("7000", &["info", "persistence"]).contains("rdb_bgsave_in_progress:0");
        eventually(timeout(), is_idle).unwrap_or_else(|error| panic!("library: {}: {error}", of.has_library()));
        assert!(ask("7000", &["info", "persistence"]).contains("rdb_last_bgsave_status:ok"));
    };

    let primary = serve("7000", "primary.rdb", &[]);
    let replica = serve("7001", "replica.rdb", &["--replicaof", &format!("{address} 7000")]);
    let load = ["-h", address, "-p", "7000", "-t", "set,incr,lpush", "-r", "1000", "-c", "50", "-n", "100000", "--csv"];
    let benchmark = programs.start(BENCHMARK, &load);
    programs.stage.wait_for_stream("7000");
    ask("7000", &["bgsave", "schedule"]);
    saved(&programs.stage);
    benchmark.finish(timeout()).map(Finished::expect_success).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(ask("7000", &["set", "last", "value"]), "OK");
    let has_all = || ask("7001", &["get", "last"]) == "value";
    eventually(timeout(), has_all).unwrap_or_else(|error| panic!("the replica: {error}"));
    let digest = ask("7000", &["debug", "digest"]);
    assert_eq!(ask("7001", &["debug", "digest"]), digest, "right: the primary's data");

    ask("7000", &["bgsave", "schedule"]);
    saved(&programs.stage);
    let loaded = serve("7002", "primary.rdb", &[]);
    assert_eq!(ask("7002", &["debug", "digest"]), digest, "right: the data that was saved");
    programs.stage.expect_paired();
    for server in [loaded, replica, primary] {
        server.kill().unwrap();
    }
}

macro_rules! on_both_stages {
    ($($program:ident)*) => {
        mod kernel_serves {
            $(#[test]
            fn $program() {
                super::$program(super::Stage::Kernel);
            })*
        }

        mod library_serves {
            $(#[test]
            fn $program() {
                if let Some(stage) = super::Stage::library() {
                    super::$program(stage);
                }
            })*
        }
    };
}

pub(crate) use on_both_stages;

on_both_stages! { nginx nginx_upgrade iperf3 memcached redis }
