//! Guests, windows and connections beyond the limits are refused with a reason, and everything else continues. These tests have a process of their
//! own, because they change the limits of the process.
#![allow(clippy::unwrap_used, reason = "tests")]

#[expect(dead_code, reason = "as above")]
#[path = "server/guest.rs"]
mod guest;
#[expect(dead_code, reason = "other tests use what this one does not")]
#[path = "../../control/tests/server/testbed.rs"]
mod testbed;

use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};

use isthmus_layout::control::*;
use isthmus_layout::proxy::ProxyFrameKind;
use isthmus_report::Domains;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use guest::{Guest, configured, row, until_row};
use testbed::{Testbed, descriptors, name};

/// Serializes the tests, because they all change limits of the same process.
static LIMITS_LOCK: Mutex<()> = Mutex::new(());

fn lock_limits() -> MutexGuard<'static, ()> {
    LIMITS_LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lowers a limit until dropped.
struct LoweredLimit(Resource, Rlimit);

impl LoweredLimit {
    fn to(resource: Resource, current: u64) -> Self {
        let before = getrlimit(resource);
        setrlimit(resource, Rlimit { current: Some(current), maximum: before.maximum }).unwrap();
        Self(resource, before)
    }
}

impl Drop for LoweredLimit {
    fn drop(&mut self) {
        setrlimit(self.0, self.1).unwrap();
    }
}

/// Connects a machine that the daemon refuses, and returns the reason.
fn refused(bed: &Testbed, guest: &str) -> String {
    let socket = bed.socket().with_file_name(format!("guest-{guest}.sock"));
    let mut qemu = UnixStream::connect(socket).unwrap();
    let why = until_row(bed, guest, |row| row.last_error.is_some()).last_error.unwrap();
    // QEMU receives the end of the stream, and too few bytes for a device.
    let mut said = Vec::new();
    let _ = std::io::Read::read_to_end(&mut qemu, &mut said);
    assert!(said.len() < 24, "{said:?}");
    why
}

/// Checks that a program of the guest is still served.
fn assert_still_works(guest: &mut Guest, itself: &str) {
    guest.send(1, Lookup { name: name(itself) });
    assert!(matches!(guest.receive_message(1).0, ToClient::Found(_)));
}

#[test]
fn a_second_machine_at_a_guests_socket_is_refused() {
    let _alone = lock_limits();
    let bed = Testbed::with(&configured("web", 32, 4));
    let mut web = Guest::start(&bed);
    web.attach(1, "solver").unwrap();
    assert_eq!(refused(&bed, "web"), "a guest is connected already");
    assert_still_works(&mut web, "solver");
    assert_eq!(row(&bed, "web").domains, 1);
    // The next successful connection clears the error.
    drop(web);
    until_row(&bed, "web", |row| row.state.as_deref() == Some("no device"));
    let _web = Guest::start(&bed);
    assert_eq!(row(&bed, "web").last_error, None);
}

#[test]
fn a_window_beyond_the_limit_for_memory_files_is_refused() {
    let _alone = lock_limits();
    let bed = Testbed::with(&(configured("web", 16, 4) + &configured("db", 64, 4)));
    let mut web = Guest::start(&bed);
    web.attach(1, "solver").unwrap();
    let lower = LoweredLimit::to(Resource::Fsize, 32 << 20);
    let why = refused(&bed, "db");
    assert!(why.contains("RLIMIT_FSIZE"), "{why}");
    assert_still_works(&mut web, "solver");
    drop(lower);
    Guest::start_as(&bed, "db").attach(1, "other").unwrap();
    assert_still_works(&mut web, "solver");
}

#[test]
fn bells_beyond_the_limit_for_descriptors_are_refused() {
    let _alone = lock_limits();
    let bed = Testbed::with(&(configured("web", 16, 4) + &configured("db", 16, 4)));
    let mut web = Guest::start(&bed);
    web.attach(1, "solver").unwrap();
    row(&bed, "web"); // Creates the resources that a query needs.
    // Leaves room for both ends of the connection, but not for a window and six doorbells.
    let open = descriptors().unwrap() as u64;
    let lower = LoweredLimit::to(Resource::Nofile, open + 4);
    let socket = bed.socket().with_file_name("guest-db.sock");
    let qemu = UnixStream::connect(socket).unwrap();
    assert_still_works(&mut web, "solver");
    let _ = std::io::Read::read(&mut &qemu, &mut [0; 8]);
    drop(lower);
    let why = row(&bed, "db").last_error.unwrap();
    assert!(why.contains("RLIMIT_NOFILE") || why.contains("accepting a connection"), "{why}");
    drop(qemu);
    Guest::start_as(&bed, "db").attach(1, "other").unwrap();
    assert_still_works(&mut web, "solver");
}

#[test]
fn connections_beyond_the_limit_are_closed_and_the_first_ones_stay() {
    let _alone = lock_limits();
    const MANY: u32 = 1200;
    let bed = Testbed::with(&configured("web", 16, 4));
    let mut web = Guest::start(&bed);
    web.attach(1, "solver").unwrap();
    let mut closed = 0;
    for connection in 2..MANY {
        web.open(connection);
    }
    // The last request is answered last, with success or a refusal.
    let mut heard = 0;
    while heard == 0 {
        let (frame, _) = web.next();
        closed += u32::from(frame.kind == ProxyFrameKind::Closed);
        heard = u32::from(frame.kind == ProxyFrameKind::Closed && frame.connection == MANY - 1);
    }
    assert!(closed > 100, "{closed}");
    web.send(1, Lookup { name: name("solver") });
    loop {
        match web.next() {
            (frame, _) if frame.connection == 1 => break assert_eq!(frame.kind, ProxyFrameKind::ControlPacket),
            (frame, _) => assert_ne!((frame.connection, frame.kind), (1, ProxyFrameKind::Closed)),
        }
    }
    // The idle connections belong to this test's own user. There is room for another one once the daemon has closed some of them.
    let hello = || Hello { magic: Magic, versions: VersionRange::CURRENT, library: name("test 1") };
    let begun = std::time::Instant::now();
    let mut local = bed.connect();
    while !matches!(local.try_request(hello()), Some(ToClient::HelloReply(_))) {
        assert!(begun.elapsed().as_secs() < 20, "there is never room");
        local = bed.connect();
    }
    local.attach(Some("local")).unwrap();
    // The attached client sends the query, because there may be no room for another connection yet.
    let known: Domains = local.report(Topic::Domains, &[]).unwrap();
    assert_eq!(known.domains.len(), 2, "{known:?}");
}
