//! Real processes as domains: killed, and with children that inherited their connection.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use isthmus_layout::control::*;
use isthmus_layout::reason::Reason;
use isthmus_platform::seqpacket;

use crate::testbed::{Client, Testbed, name};

/// Not a test: the program of the other processes. It attaches, starts a child that inherits the connection, reports this, and waits.
#[test]
#[ignore = "run by the tests below"]
fn act_as_a_domain() {
    let socket = std::env::var_os("TEST_SOCKET").unwrap();
    let mut client = Client::new(seqpacket::connect(Path::new(&socket)).unwrap());
    client.greet();
    client.attach(Some("victim")).unwrap();
    let inherited = client.socket.try_clone().unwrap();
    rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty()).unwrap();
    let mut child = Command::new("sleep").arg("1000").stdout(Stdio::null()).spawn().unwrap();
    println!("\nchild {}", child.id());
    let _ = child.wait();
    loop {
        std::thread::park();
    }
}

/// Starts the process. Returns it with the process ID of its child.
fn start(bed: &Testbed) -> (Child, u32) {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "processes::act_as_a_domain", "--ignored", "--nocapture"])
        .env("TEST_SOCKET", bed.socket())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let child = lines.map(Result::unwrap).find_map(|line| line.strip_prefix("child ")?.parse().ok());
    (process, child.unwrap())
}

/// Not a test: a daemon with a low limit of open files.
#[test]
#[ignore = "run by the test below"]
fn act_as_a_poor_daemon() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let bed = Testbed::new();
    let open = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let room: u64 = std::env::var("TEST_ROOM").unwrap().parse().unwrap();
    let most = Some(open.max().unwrap_or(0_u64) + room);
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).unwrap();
    println!("\nsocket {}", bed.socket().display());
    loop {
        std::thread::park();
    }
}

/// Tests each point at which the descriptors may run out.
#[test]
fn a_daemon_without_descriptors_refuses_and_goes_on() {
    (64..76).for_each(refuses_and_goes_on);
}

fn refuses_and_goes_on(room: u32) {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "processes::act_as_a_poor_daemon", "--ignored", "--nocapture"])
        .env("TEST_ROOM", room.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map(Result::unwrap);
    let socket = lines.find_map(|line| Some(line.strip_prefix("socket ")?.to_owned())).unwrap();
    let attached = |number: usize| {
        let mut client = Client::new(seqpacket::connect(Path::new(&socket)).unwrap());
        client.greet();
        client.attach(Some(&format!("domain-{number}"))).map(|welcomed| (client, welcomed))
    };
    let mut domains = Vec::new();
    let refused = loop {
        match attached(domains.len()) {
            Ok(domain) => domains.push(domain),
            Err(reason) => break reason,
        }
    };
    assert_eq!(refused, Reason::DaemonOutOfFds);
    assert!(domains.len() >= 5, "only {}", domains.len());
    // Attached domains are served, and when one detaches there is room again.
    let peer = domains[1].1.id();
    domains[0].0.request(Lookup { name: name("domain-1") }, &[]).unwrap();
    domains.pop();
    domains.pop();
    let (client, _) = &mut domains[0];
    client.send(RequestChannel { peer, attempt: 1 }, &[]);
    client.offered();
    process.kill().unwrap();
    process.wait().unwrap();
    std::fs::remove_dir_all(Path::new(&socket).ancestors().nth(2).unwrap()).unwrap();
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn a_child_that_inherited_the_connection_does_not_keep_the_domain_alive() {
    let bed = Testbed::new();
    let (mut watcher, _) = bed.attached("watcher");
    let (mut victim, child) = start(&bed);
    let found = watcher.request(Lookup { name: name("victim") }, &[]).unwrap().message;
    let ToClient::Found(Found { domain, .. }) = found else { panic!("{found:?}") };
    victim.kill().unwrap();
    victim.wait().unwrap();
    let gone = watcher.receive_message();
    kill(child);
    assert_eq!(gone.message, PeerGone { peer: domain, reason: Reason::PeerConnectionLost }.into());
}

#[test]
fn restarted_daemon_notices_dead_resumable_domains() {
    let mut bed = Testbed::new();
    let (mut a, ours) = bed.attached("a");
    let (mut victim, child) = start(&bed);
    kill(child);
    let found = a.request(Lookup { name: name("victim") }, &[]).unwrap().message;
    let ToClient::Found(Found { domain: peer, .. }) = found else { panic!("{found:?}") };
    a.send(RequestChannel { peer, attempt: 1 }, &[]);
    let (offer, fds) = a.offered();
    bed.stop();
    bed.start("", VersionRange::CURRENT);
    let mut a = bed.greeted();
    let Welcome { domain, ticket, name, .. } = ours.message;
    let attach = Attach { name: Some(name), resume: Some(Resume { domain, ticket }) };
    let back = [&ours.fds[3], &ours.fds[4]].map(std::os::fd::AsFd::as_fd);
    a.attach_with(attach, &back).unwrap();
    let ChannelOffer { channel, direction, slab, ready_map, ready_bit, peer_ready_bit, .. } = offer;
    let adopt = AdoptChannel { channel, peer, direction, slab, ready_map, ready_bit, peer_ready_bit };
    let memory = [std::os::fd::AsFd::as_fd(&fds[0])];
    // The process of the other end is alive, so the daemon waits for it, but only as long as it lives.
    a.request(adopt, &memory).unwrap();
    let lookup = a.send(Lookup { name: crate::testbed::name("victim") }, &[]);
    a.expect_no_message();
    victim.kill().unwrap();
    victim.wait().unwrap();
    let answer = a.receive_matching(|heard| heard.serial == Some(lookup)).message;
    assert!(matches!(&answer, ToClient::Refused(refused) if refused.reason == Reason::NoSuchDomain), "{answer:?}");
    bed.attached("victim"); // Its name is free again.
    let reason = Reason::PeerConnectionLost;
    assert_eq!(a.receive_message().message, ChannelClosed { channel, reason }.into());
    assert_eq!(a.receive_message().message, PeerGone { peer, reason }.into());
}
