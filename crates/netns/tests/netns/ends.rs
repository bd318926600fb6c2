//! The end of a testbed: dropped, unwound by a panic, or with its program killed. Nothing stays.
//!
//! Whether a namespace is gone is seen from outside: a veth pair ends with either of its namespaces.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, Stdio};

use isthmus_netns::{Host, Impairments, Testbed, Wire};
use isthmus_testbed::{Deadline, eventually};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::{Done, TIMEOUT, packets, two_hosts};

/// A program that starts another one, both without end; it says the other's pid.
fn spawn_pair() -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $!; exec sleep 1000"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

fn life(pid: u32) -> OwnedFd {
    let pid = Pid::from_raw(pid.cast_signed()).expect("no pid is 0");
    pidfd_open(pid, PidfdFlags::empty()).expect("the process runs")
}

fn first_number(child: &mut Child) -> u32 {
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    line.trim().parse().expect("a pid")
}

fn wait_for_exit(lives: &[OwnedFd]) {
    for life in lives {
        Deadline::after(TIMEOUT).readable([life.as_fd()]).expect("the process has ended");
    }
}

fn wait_until_removed(observer: &Host, interface: &str) {
    let gone = || !packets(observer).contains_key(interface);
    eventually(Deadline::after(TIMEOUT), gone).expect("the namespace at the other end is gone");
}

/// Makes hosts of `bed` with wires, one of them to the observer, and programs in them.
fn build_network(bed: &mut Testbed, observer: &Host) -> Done<(Child, Vec<OwnedFd>, Host)> {
    let (a, b) = (bed.host("a")?, bed.host("b")?);
    bed.link(&a, observer, &Wire::default())?;
    bed.impaired(&b, observer, &Wire::default(), Impairments::default())?;
    bed.impaired(&a, &b, &Wire::default(), Impairments { delay_us: 100, ..Impairments::default() })?;
    let mut child = a.spawn(spawn_pair())?;
    let lives = vec![life(child.id()), life(first_number(&mut child))];
    assert!(packets(observer).contains_key("wire0") && packets(observer).contains_key("wire1"));
    Ok((child, lives, a))
}

#[test]
fn dropped_testbed_leaves_nothing() {
    let Some((_other, observer, _)) = two_hosts() else { return };
    let mut bed = Testbed::new().unwrap();
    let (mut child, lives, a) = build_network(&mut bed, &observer).unwrap();
    drop(bed);
    wait_for_exit(&lives);
    child.wait().unwrap();
    wait_until_removed(&observer, "wire0");
    wait_until_removed(&observer, "wire1");
    let error = a.with(|| ()).unwrap_err();
    assert!(error.to_string().contains("the testbed of host a is gone"), "{error}");
    assert!(a.spawn(Command::new("true")).is_err());
}

#[test]
fn panic_leaves_no_testbed_behind() {
    let Some((_other, observer, _)) = two_hosts() else { return };
    let mut lives = Vec::new();
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let mut bed = Testbed::new().unwrap();
        let (child, started, _) = build_network(&mut bed, &observer).unwrap();
        lives = started;
        drop(child);
        panic!("as tests do");
    }));
    assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"as tests do"));
    wait_for_exit(&lives);
    wait_until_removed(&observer, "wire0");
    wait_until_removed(&observer, "wire1");
}

#[test]
#[ignore = "a role in killed_program_leaves_nothing, which starts it as a program"]
fn child_program_with_testbed() {
    let mut bed = Testbed::new().unwrap();
    let (a, b) = (bed.host("a").unwrap(), bed.host("b").unwrap());
    bed.impaired(&a, &b, &Wire::default(), Impairments::default()).unwrap();
    let mut child = a.spawn(spawn_pair()).unwrap();
    println!("\npids {} {} end", child.id(), first_number(&mut child));
    // Until it is killed, or the test that started it has ended.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

#[test]
fn killed_program_leaves_nothing() {
    let Some((_bed, observer, _)) = two_hosts() else { return };
    let mut role = Command::new(std::env::current_exe().unwrap());
    role.args(["--exact", "ends::child_program_with_testbed", "--ignored", "--nocapture"]);
    role.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut program = role.spawn().unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines().map(Result::unwrap);
    let line = lines.find(|line| line.starts_with("pids ")).expect("it tells its programs");
    let pids = line.split(' ').filter_map(|word| word.parse().ok()).collect::<Vec<u32>>();
    let lives = pids.iter().map(|pid| life(*pid)).collect::<Vec<_>>();
    assert_eq!(lives.len(), 2);
    let mut pair = Command::new("ip");
    let (child, peer) = (pids[0].to_string(), "seen0");
    pair.args(["link", "add", peer, "type", "veth", "peer", "name", peer, "netns", &child]);
    let made = observer.output(pair).unwrap();
    assert!(made.status.success() && packets(&observer).contains_key(peer), "{made:?}");
    program.kill().unwrap();
    wait_for_exit(&lives);
    wait_until_removed(&observer, peer);
    program.wait().unwrap();
}
