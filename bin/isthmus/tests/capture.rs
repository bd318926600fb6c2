//! `isthmus capture` against a real daemon. Its board has a link over UDP to another host, which is a socket of the test.

use std::io::Read as _;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use isthmus_testbed::{DaemonProcess, Deadline, Scratch, binary, eventually};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const CONFIG: &str = "daemon.socket = \"{socket}\"\ndaemon.runtime_dir = \"{state}\"\n";

/// Address of the board, and of the other host's.
const BOARD_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn deadline() -> Deadline {
    Deadline::secs(30)
}

/// A daemon with a board that other hosts reach, and one of them.
struct CaptureTestbed {
    scratch: Scratch,
    daemon: DaemonProcess,
    host: UdpSocket,
    board: (Ipv4Addr, u16),
}

impl CaptureTestbed {
    fn new(number: u16) -> Self {
        let host = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
        // Other runs of these tests have other addresses of the loopback interface.
        let [_, high, middle, low] = std::process::id().to_be_bytes();
        let board = (Ipv4Addr::new(127, 64 | high, middle, low.clamp(1, 254)), 20_000 + number);
        let other = host.local_addr().expect("its address");
        let config = format!(
            "{CONFIG}[[mx.board]]\nmac = \"02:00:00:00:00:01\"\nlinks = [{{ udp = \"{}:{}\", peers = [\"{other}\"] }}]\n",
            board.0, board.1
        );
        let scratch = Scratch::new().expect("a folder");
        binary("isthmusd", "isthmusd").expect("it is built"); // Outside of the deadline.
        let daemon = DaemonProcess::on(&scratch).config(&config).arg("--user").start(deadline()).expect("a daemon");
        Self { scratch, daemon, host, board }
    }

    /// A frame of the other host that means nothing.
    fn send_junk_frame(&self) {
        let mut frame = [&BOARD_MAC[..], &PEER_MAC, &[0x86, 0xdf]].concat();
        frame.resize(1000, 0xaa);
        self.host.send_to(&frame, self.board).expect("sent");
    }

    fn capture(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_isthmus"));
        command.arg("capture").args(arguments).arg("--socket").arg(self.daemon.socket());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Babbles until the program has ended.
    fn until_it_ends(&self, child: &mut Child) -> Option<i32> {
        let mut status = None;
        let ended = || {
            self.send_junk_frame();
            status = child.try_wait().expect("a child");
            status.is_some()
        };
        eventually(deadline(), ended).expect("it ends");
        status.and_then(|status| status.code())
    }
}

/// How many blocks of each type a file has: interfaces, packets, statistics. Every one is whole.
fn blocks(file: &[u8]) -> [usize; 3] {
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("four bytes"));
    assert_eq!((word(0), word(8)), (0x0a0d_0d0a, 0x1a2b_3c4d), "a section begins");
    let (mut at, mut counts) = (0, [0; 3]);
    while at < file.len() {
        let bytes = word(at + 4) as usize;
        assert_eq!(word(at + bytes - 4) as usize, bytes);
        match word(at) {
            1 => counts[0] += 1,
            6 => counts[1] += 1,
            5 => counts[2] += 1,
            _ => {}
        }
        at += bytes;
    }
    counts
}

fn text(mut from: impl std::io::Read) -> String {
    let mut text = String::new();
    from.read_to_string(&mut text).expect("text");
    text
}

fn contents(file: &Path) -> Vec<u8> {
    std::fs::read(file).unwrap_or_default()
}

#[test]
fn capture_count_limits_the_frames_written() {
    let testbed = CaptureTestbed::new(0);
    let file = testbed.scratch.join("frames.pcapng");
    let arguments = ["--json", "--count", "5", "--snap", "100", "--board", "mx0", "-w", file.to_str().expect("UTF-8")];
    let mut child = testbed.capture(&arguments).spawn().expect("it starts");
    assert_eq!(testbed.until_it_ends(&mut child), Some(0), "{}", text(child.stderr.take().expect("piped")));
    assert_eq!(blocks(&contents(&file)), [1, 5, 1]);
    let answer: Value = serde_json::from_str(&text(child.stdout.take().expect("piped"))).expect("JSON");
    assert_eq!((&answer["kind"], &answer["frames"], &answer["dropped"]), (&"capture".into(), &5.into(), &0.into()));
    assert!(answer["bytes"].as_u64().expect("a number") < 5001, "{answer}");
}

#[test]
fn a_signal_ends_a_whole_file() {
    let testbed = CaptureTestbed::new(1);
    let file = testbed.scratch.join("frames.pcapng");
    for signal in [Signal::INT, Signal::TERM] {
        let mut child = testbed.capture(&["--write", file.to_str().expect("UTF-8")]).spawn().expect("it starts");
        let written = || {
            testbed.send_junk_frame();
            contents(&file).len() > 3000
        };
        eventually(deadline(), written).expect("frames are written as they come");
        let pid = Pid::from_raw(child.id() as i32).expect("a child's number");
        kill_process(pid, signal).expect("it is there");
        assert_eq!(testbed.until_it_ends(&mut child), Some(0));
        let said = text(child.stdout.take().expect("piped"));
        let [interfaces, packets, statistics] = blocks(&contents(&file));
        assert_eq!((interfaces, statistics), (1, 1));
        assert!(said.contains(&format!("{packets} frames, ")) && said.contains("frames.pcapng"), "{said}");
        std::fs::remove_file(&file).expect("it was there");
    }
}

#[test]
fn capture_ends_when_its_reader_closes() {
    let testbed = CaptureTestbed::new(2);
    let mut child = testbed.capture(&[]).spawn().expect("it starts");
    let mut reader = child.stdout.take().expect("piped");
    let mut beginning = [0; 400];
    // Something to read, or this waits for ever.
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| reader.read_exact(&mut beginning));
        eventually(deadline(), || {
            testbed.send_junk_frame();
            reading.is_finished()
        })
        .expect("frames come");
        reading.join().expect("no panic").expect("400 bytes");
    });
    assert_eq!(beginning[..4], 0x0a0d_0d0a_u32.to_le_bytes());
    drop(reader);
    assert_eq!(testbed.until_it_ends(&mut child), Some(0), "{}", text(child.stderr.take().expect("piped")));
}

#[test]
fn the_end_of_the_daemon_is_the_end_of_the_file() {
    let testbed = CaptureTestbed::new(3);
    let file = testbed.scratch.join("frames.pcapng");
    let mut child = testbed.capture(&["-w", file.to_str().expect("UTF-8")]).spawn().expect("it starts");
    let written = || {
        testbed.send_junk_frame();
        contents(&file).len() > 1000
    };
    eventually(deadline(), written).expect("frames are written as they come");
    let CaptureTestbed { daemon, scratch: _scratch, .. } = testbed;
    daemon.stop(deadline()).expect("it ends");
    assert!(child.wait().expect("a child").success());
    let [interfaces, packets, statistics] = blocks(&contents(&file));
    assert!((interfaces, statistics) == (1, 1) && packets > 0);
}

#[test]
fn killed_daemon_leaves_a_valid_file_and_an_error() {
    let testbed = CaptureTestbed::new(4);
    let file = testbed.scratch.join("frames.pcapng");
    let mut child = testbed.capture(&["-w", file.to_str().expect("UTF-8")]).spawn().expect("it starts");
    let written = || {
        testbed.send_junk_frame();
        contents(&file).len() > 1000
    };
    eventually(deadline(), written).expect("frames are written as they come");
    let CaptureTestbed { daemon, scratch: _scratch, .. } = testbed;
    daemon.kill(deadline()).expect("it ends");
    assert_eq!(child.wait().expect("a child").code(), Some(1));
    let said = text(child.stderr.take().expect("piped"));
    assert!(said.contains("stopped without an end"), "{said}");
    assert!(blocks(&contents(&file))[1] > 0);
}

#[test]
fn capture_errors_have_a_remedy() {
    let testbed = CaptureTestbed::new(5);
    let run = |arguments: &[&str]| {
        let output = testbed.capture(arguments).output().expect("it runs");
        assert_eq!(output.stdout, b"", "{arguments:?}");
        (output.status.code(), String::from_utf8(output.stderr).expect("UTF-8"))
    };
    let (code, said) = run(&["--board", "7"]);
    assert!(
        code == Some(1) && said.contains("there is no MX board with this number: mx7, where there are 1"),
        "{said}"
    );
    assert!(said.contains("remedy: See the boards with `isthmus board list`"), "{said}");
    let (code, said) = run(&["--domain", "absent"]);
    assert!(code == Some(1) && said.contains("no domain is called absent") && said.contains("remedy:"), "{said}");
    let nowhere = testbed.scratch.join("no/folder/frames.pcapng");
    let (code, said) = run(&["-w", nowhere.to_str().expect("UTF-8")]);
    assert!(code == Some(1) && said.contains("name another file with -w"), "{said}");
    for wrong in [&["--snap", "3"][..], &["--count", "0"], &["--board", "eth0"], &["--json"]] {
        assert_eq!(run(wrong).0, Some(2), "{wrong:?}");
    }
    let scratch = Scratch::new().expect("a folder");
    let plain = DaemonProcess::on(&scratch).config(CONFIG).arg("--user").start(deadline()).expect("a daemon");
    let mut command = Command::new(env!("CARGO_BIN_EXE_isthmus"));
    let output = command.args(["capture", "--socket"]).arg(plain.socket()).output().expect("it runs");
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(said.contains("no MX board of this host has links to other hosts"), "{said}");
    assert!(output.status.code() == Some(1) && said.contains("remedy: Configure `links`"), "{said}");
}

#[test]
fn frames_are_never_shown_on_a_terminal() {
    let testbed = CaptureTestbed::new(6);
    let pty =
        rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY).expect("a terminal");
    rustix::pty::grantpt(&pty).expect("a terminal");
    rustix::pty::unlockpt(&pty).expect("a terminal");
    let name = rustix::pty::ptsname(&pty, Vec::new()).expect("its name");
    let terminal =
        std::fs::File::options().write(true).open(Path::new(name.to_str().expect("UTF-8"))).expect("its other end");
    let output = testbed.capture(&[]).stdout(terminal).output().expect("it runs");
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(output.status.code() == Some(2) && said.contains("-w FILE"), "{said}");
}

#[test]
fn capture_of_an_idle_wire_ends_at_once_on_a_signal() {
    let testbed = CaptureTestbed::new(7);
    let file = testbed.scratch.join("frames.pcapng");
    let mut child =
        testbed.capture(&["--domain", "d1", "-w", file.to_str().expect("UTF-8")]).spawn().expect("it starts");
    assert_eq!(testbed.until_it_ends(&mut child), Some(1), "there is no such domain");
    let mut child = testbed.capture(&["-w", file.to_str().expect("UTF-8")]).spawn().expect("it starts");
    let ready = eventually(deadline(), || contents(&file).len() > 100);
    ready.expect("the interface is written before any frame");
    let pid = Pid::from_raw(child.id() as i32).expect("a child's number");
    kill_process(pid, Signal::INT).expect("it is there");
    let ended = eventually(Deadline::secs(20), || child.try_wait().expect("a child").is_some());
    ended.expect("it ends though no frame comes");
    assert_eq!(blocks(&contents(&file))[0], 1);
}
