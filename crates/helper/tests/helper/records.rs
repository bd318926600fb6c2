//! The program that records connections.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};

use isthmus_helper::{HelperClient, HelperError, RefusalReason};
use isthmus_link::connection_record::Recorder;
use isthmus_platform::seqpacket;
use isthmus_testbed::FdStore;
use rustix::io::FdFlags;

use crate::{PROGRAM, Running, bed, reason, start};

fn connection() -> [TcpStream; 2] {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let connector = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    [connector, listener.accept().unwrap().0]
}

fn is_recorded(recorder: &Recorder, [a, b]: &[TcpStream; 2]) -> bool {
    let [a, b] = [a, b].map(|socket| recorder.map.read(socket).unwrap());
    a.zip(b).is_some_and(|(a, b)| a.is_other_end_of(&b))
}

/// None, with the reason, where the kernel does not let this process load the program.
fn recorder(client: &mut HelperClient) -> Option<Recorder> {
    match client.record_connections() {
        Ok(recorder) => Some(recorder),
        Err(HelperError::Refused(refusal))
            if matches!(refusal.reason, RefusalReason::PermissionDenied | RefusalReason::NoCgroups) =>
        {
            eprintln!("skipped: {refusal}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn records_are_refused_without_the_option() {
    let Some(bed) = bed() else { return };
    let (_helper, mut client) = start(&bed.a, &[]);
    assert_eq!(reason(client.record_connections()), RefusalReason::ConnectionRecordsOff);
}

#[test]
fn connections_are_recorded_for_a_helper_that_may() {
    // Not in a host of a testbed, which has no cgroup file system.
    let folder = tempfile::tempdir().unwrap();
    let (helper, mut client) = start_kept(&FdStore::default(), &folder.path().join("no-manager"));
    let Some(recorder) = recorder(&mut client) else { return };
    let again = client.record_connections().unwrap();
    let first = connection();
    assert!(is_recorded(&recorder, &first) && is_recorded(&again, &first), "it is one map");
    drop((helper, client, again));
    let second = connection();
    assert!(is_recorded(&recorder, &second), "the link of this process keeps the program");
    let Recorder { map, links } = recorder;
    drop(links);
    let [third, _other] = connection();
    assert_eq!(map.read(&third).unwrap(), None, "nothing keeps it any more");
}

/// Runs a helper under a service manager that keeps descriptors, and has kept these.
fn start_kept(stored: &FdStore, manager: &Path) -> (Running, HelperClient) {
    let (ours, theirs) = seqpacket::pair().unwrap();
    let (names, kept): (Vec<String>, Vec<OwnedFd>) = stored.copies().unwrap().into_iter().unzip();
    let moved = |(place, fd): (usize, &OwnedFd)| {
        rustix::io::fcntl_setfd(fd, FdFlags::empty()).unwrap(); // The shell inherits it.
        format!(" {}<&{}", place + 3, fd.as_raw_fd())
    };
    // High numbers, so that no move takes the place of another descriptor.
    let kept: Vec<OwnedFd> = kept.iter().map(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 100).unwrap()).collect();
    let moves: String = kept.iter().enumerate().map(moved).collect();
    let mut command = Command::new("bash");
    command.arg("-c").arg(format!("exec{moves}; LISTEN_PID=$$ exec {PROGRAM} --stdin --connection-records"));
    command.env("LISTEN_FDS", kept.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
    command.env("NOTIFY_SOCKET", manager).env("FDSTORE", "3").stdin(theirs).stderr(Stdio::null());
    let helper = Running(command.spawn().unwrap());
    (helper, HelperClient::from_socket(ours).unwrap())
}

#[test]
fn helper_that_is_started_again_has_the_same_records() {
    let folder = tempfile::tempdir().unwrap();
    let manager = folder.path().join("notify");
    let socket: OwnedFd = UnixDatagram::bind(&manager).unwrap().into();
    let mut store = FdStore::default();
    let (helper, mut client) = start_kept(&store, &manager);
    let Some(recorder) = recorder(&mut client) else { return };
    let first = connection();
    while store.names().len() < 3 {
        let (mut packet, mut fds) = ([0; 256], Vec::new());
        let bytes = seqpacket::receive(&socket, &mut packet, &mut fds, false).unwrap();
        store.take(str::from_utf8(&packet[..bytes]).unwrap(), fds);
    }
    drop((helper, client, recorder));
    let between = connection();
    let (_helper, mut client) = start_kept(&store, &manager);
    let recorder = client.record_connections().unwrap();
    assert!(is_recorded(&recorder, &first) && is_recorded(&recorder, &between));
}
