//! The server against QEMU's side of the protocol, over real sockets.

use super::*;
use isthmus_platform::seqpacket::ReceiveError;
use isthmus_platform::{Listen, Ring};
use isthmus_shm::{Payload, SharedMapping};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::FdFlags;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

const MIB: u64 = 1 << 20;

fn layout() -> DeviceLayout {
    DeviceLayout::new(RegionSize(MIB), 3, 4).unwrap()
}

/// A server with a socket in a folder of its own.
struct ServerTest {
    server: IvshmemServer,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl ServerTest {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("guest");
        Self { server: IvshmemServer::listen(&path, None, layout()).unwrap(), path, _folder: folder }
    }

    /// Replaces this server by another one at another path, because two cannot share one path.
    fn replace(&mut self) {
        self.path = self.path.with_extension("next");
        self.server = IvshmemServer::listen(&self.path, None, layout()).unwrap();
    }

    fn connect(&self) -> Qemu {
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(&self.path).unwrap()).unwrap();
        Qemu { socket }
    }

    /// Returns true if the server asks to be polled.
    fn is_ready(&self) -> bool {
        let mut fds = [PollFd::new(&self.server, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
    }

    /// Returns the next event, which the descriptor must have announced.
    #[track_caller]
    fn event(&mut self) -> ServerEvent {
        assert!(self.is_ready());
        self.server.poll().expect("something happened")
    }

    #[track_caller]
    fn expect_no_event(&mut self) {
        let event = self.server.poll();
        assert!(event.is_none(), "{event:?}");
        assert!(!self.is_ready());
    }

    #[track_caller]
    fn guest(&mut self) -> ServerGuest {
        match self.event() {
            ServerEvent::Connected(guest) => guest,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn failure(&mut self) -> AcceptError {
        match self.event() {
            ServerEvent::Failed { error, .. } => error,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn close_reason(&mut self) -> CloseReason {
        match self.event() {
            ServerEvent::Disconnected { reason, .. } => reason,
            other => panic!("{other:?}"),
        }
    }
}

/// QEMU's side.
struct Qemu {
    socket: OwnedFd,
}

/// The device as QEMU received it.
struct Plugged {
    window: OwnedFd,
    host: Vec<OwnedFd>,
    own: Vec<OwnedFd>,
}

impl Qemu {
    fn message(&self) -> (i64, Option<OwnedFd>) {
        let (mut bytes, mut fds) = ([0; 8], Vec::new());
        assert_eq!(seqpacket::receive(&self.socket, &mut bytes, &mut fds, true).unwrap(), 8);
        assert!(fds.len() < 2);
        (i64::from_le_bytes(bytes), fds.pop())
    }

    /// Receives all messages that a device of this layout needs.
    fn plug(&self) -> Plugged {
        assert!(matches!(self.message(), (0, None)));
        assert!(matches!(self.message(), (1, None)));
        let (-1, Some(window)) = self.message() else { panic!("no window") };
        let doorbells = |peer: i64, count: u16| {
            let doorbell = |_| match self.message() {
                (from, Some(doorbell)) if from == peer => doorbell,
                other => panic!("{other:?}"),
            };
            (0..count).map(doorbell).collect()
        };
        let host = doorbells(0, layout().host_vectors());
        let own = doorbells(1, layout().guest_vectors());
        Plugged { window, host, own }
    }

    fn is_over(&self) -> bool {
        matches!(seqpacket::receive(&self.socket, &mut [0; 8], &mut Vec::new(), false), Err(ReceiveError::Closed))
    }
}

#[test]
fn a_guest_gets_its_window_and_bells() {
    let mut test = ServerTest::new();
    test.expect_no_event();
    let qemu = test.connect();
    let guest = test.guest();
    test.expect_no_event();
    assert_eq!(guest.process, Some(std::process::id() as i32));
    let plugged = qemu.plug();
    let size = guest.size;
    let theirs = SharedMapping::new(Mapping::window(&plugged.window, 0, size, Access::ReadWrite).unwrap());
    let ours = SharedMapping::new(guest.map(4096, RegionSize(4096), Access::ReadWrite).unwrap());
    theirs.copy_in(4096, b"hello");
    let mut bytes = [0; 5];
    ours.copy_out(0, &mut bytes);
    assert_eq!(&bytes, b"hello");
    for (vector, doorbell) in (0..).zip(plugged.host) {
        let listener = guest.listener(vector).unwrap().unwrap();
        assert!(!listener.wait(Duration::ZERO));
        Doorbell::from(doorbell).ring();
        assert!(listener.wait(Duration::ZERO), "vector {vector}");
    }
    for (vector, doorbell) in (0..).zip(plugged.own) {
        guest.doorbell_sender(vector).unwrap().unwrap().ring();
        assert!(Doorbell::from(doorbell).wait(Duration::ZERO), "vector {vector}");
    }
    assert!(guest.doorbell_sender(4).is_none() && guest.listener(3).is_none());
    assert!(!qemu.is_over());
}

#[test]
fn the_window_can_neither_shrink_nor_grow() {
    let mut test = ServerTest::new();
    let qemu = test.connect();
    let guest = test.guest();
    let window = qemu.plug().window;
    for size in [0, MIB - 4096, 2 * MIB] {
        assert_eq!(rustix::fs::ftruncate(&window, size), Err(Errno::PERM), "{size}");
    }
    assert!(guest.map(0, RegionSize(MIB + 4096), Access::Read).is_err());
    assert!(guest.map(MIB, RegionSize(4096), Access::Read).is_err());
    assert!(guest.map(u64::MAX - 4095, RegionSize(8192), Access::Read).is_err());
}

#[test]
fn each_connection_has_a_window_of_its_own() {
    let mut test = ServerTest::new();
    let first = test.connect();
    let guest = test.guest();
    let old = first.plug();
    let secret = SharedMapping::new(guest.map(0, guest.size, Access::ReadWrite).unwrap());
    secret.copy_in(0, &[0xa5; 4096]);
    drop(first);
    assert_eq!(test.close_reason(), CloseReason::Closed);
    test.expect_no_event();
    let second = test.connect();
    let guest = test.guest();
    let plugged = second.plug();
    let window = SharedMapping::new(Mapping::window(&plugged.window, 0, guest.size, Access::ReadWrite).unwrap());
    let mut bytes = vec![1; MIB as usize];
    window.copy_out(0, &mut bytes);
    assert!(bytes.iter().all(|&byte| byte == 0));
    // The descriptors of the previous connection ring no listener.
    old.host.into_iter().map(Doorbell::from).for_each(|doorbell| doorbell.ring());
    for vector in 0..layout().host_vectors() {
        assert!(!guest.listener(vector).unwrap().unwrap().wait(Duration::ZERO));
    }
}

#[test]
fn refuses_a_second_connection() {
    let mut test = ServerTest::new();
    let first = test.connect();
    let guest = test.guest();
    let second = test.connect();
    assert!(matches!(test.failure(), AcceptError::AlreadyConnected));
    test.expect_no_event();
    assert!(second.is_over());
    first.plug();
    assert!(!first.is_over());
    assert!(guest.map(0, guest.size, Access::ReadWrite).is_ok());
}

#[test]
fn accepts_a_waiting_connection_after_the_guest_has_left() {
    let mut test = ServerTest::new();
    let first = test.connect();
    test.guest();
    let second = test.connect();
    drop(first);
    assert_eq!(test.close_reason(), CloseReason::Closed);
    test.guest();
    second.plug();
}

#[test]
fn closes_a_connection_that_sends_data() {
    let mut test = ServerTest::new();
    let qemu = test.connect();
    test.guest();
    let carried = local::memory(RegionSize(4096)).unwrap();
    seqpacket::send(&qemu.socket, b"x", &[carried.as_fd()]).unwrap();
    assert_eq!(test.close_reason(), CloseReason::UnexpectedData);
    test.expect_no_event();
    qemu.plug();
    assert!(qemu.is_over());
}

#[test]
fn connection_that_closes_early_is_a_failure() {
    let mut test = ServerTest::new();
    drop(test.connect());
    match test.failure() {
        AcceptError::ClosedEarly(CloseReason::Closed) => {}
        AcceptError::Send(SendError::Closed) => {}
        other => panic!("{other}"),
    }
    test.expect_no_event();
    let spoke = test.connect();
    rustix::io::write(&spoke.socket, b"GET / HTTP/1.1\r\n\r\n").unwrap();
    // The device is set up before the data is noticed, or never.
    match test.event() {
        ServerEvent::Connected(_) => assert_eq!(test.close_reason(), CloseReason::UnexpectedData),
        ServerEvent::Failed { error: AcceptError::ClosedEarly(CloseReason::UnexpectedData), .. } => {}
        other => panic!("{other:?}"),
    }
    test.expect_no_event();
}

#[test]
fn disconnect_closes_the_guest_connection() {
    let mut test = ServerTest::new();
    assert!(test.server.disconnect().is_none());
    let qemu = test.connect();
    test.guest();
    qemu.plug();
    assert!(matches!(test.server.disconnect(), Some(ServerEvent::Disconnected { reason: CloseReason::Dismissed, .. })));
    assert!(qemu.is_over());
    test.expect_no_event();
}

#[test]
fn does_not_block_on_a_slow_device() {
    // A connection that holds few messages.
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::empty(), None).unwrap();
    rustix::fs::fcntl_setfl(&ours, rustix::fs::OFlags::NONBLOCK).unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(&ours, 1).unwrap();
    let mut test = ServerTest::new();
    let guest = ServerGuest::new(layout(), None).unwrap();
    epoll::add(&test.server.ready, &ours, epoll::EventData::new_u64(1), HANDSHAKE_EVENTS).unwrap();
    test.server.connection = Some(Connection::Handshake { socket: ours, guest, sent: 0 });
    let qemu = Qemu { socket: theirs };
    test.expect_no_event();
    let plugged = std::thread::scope(|scope| {
        let plugged = scope.spawn(|| qemu.plug());
        let mut connected = false;
        while !connected {
            let mut fds = [PollFd::new(&test.server, PollFlags::IN)];
            rustix::event::poll(&mut fds, None).unwrap();
            connected = matches!(test.server.poll(), Some(ServerEvent::Connected(_)));
        }
        plugged.join().unwrap()
    });
    assert_eq!((plugged.host.len(), plugged.own.len()), (3, 4));
}

#[test]
fn closes_guest_descriptors_when_its_program_ends() {
    let guest = ServerGuest::new(layout(), None).unwrap();
    let all = std::iter::once(&guest.window).chain(&guest.from_guest).chain(&guest.to_guest);
    for fd in all {
        assert!(rustix::io::fcntl_getfd(fd).unwrap().contains(FdFlags::CLOEXEC));
    }
}

#[test]
fn socket_has_its_permissions_and_is_removed() {
    let mut test = ServerTest::new();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&test.path), 0o600);
    let taken = IvshmemServer::listen(&test.path, None, layout());
    assert!(matches!(taken, Err(ServerError::Taken(_))));
    // The client of the check counts as a connection that ended.
    assert!(matches!(test.failure(), AcceptError::ClosedEarly(_) | AcceptError::Send(_)));
    let path = test.path.clone();
    drop(test.server);
    assert!(!path.exists());
    // What a killed process leaves.
    let dead = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&dead, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    drop(dead);
    let server = IvshmemServer::listen(&path, None, layout()).unwrap();
    // A file that is another's stays.
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "another's").unwrap();
    drop(server);
    assert!(path.exists());
}

#[test]
fn access_list_admits_one_more_user() {
    use rustix::thread::{Uid, set_thread_res_uid};
    if !rustix::process::geteuid().is_root() {
        return; // Only root can change its user.
    }
    let (qemu, another) = (64055, 64056);
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = folder.path().join("guest");
    let connects = |user: u32| {
        let path = path.clone();
        // A user of this thread alone.
        let connect = move || {
            let user = Uid::from_raw(user);
            set_thread_res_uid(user, user, user).unwrap();
            let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
            rustix::net::connect(&socket, &SocketAddrUnix::new(&path).unwrap())
        };
        std::thread::spawn(connect).join().unwrap()
    };
    let server = IvshmemServer::listen(&path, None, layout()).unwrap();
    assert_eq!([connects(0), connects(qemu)], [Ok(()), Err(Errno::ACCESS)]);
    drop(server);
    let _server = IvshmemServer::listen(&path, Some(qemu), layout()).unwrap();
    assert_eq!([connects(0), connects(qemu), connects(another)], [Ok(()), Ok(()), Err(Errno::ACCESS)]);
}

#[test]
fn next_server_resumes_a_stored_connection() {
    let mut test = ServerTest::new();
    let qemu = test.connect();
    let guest = test.guest();
    let plugged = qemu.plug();
    let theirs = SharedMapping::new(Mapping::window(&plugged.window, 0, guest.size, Access::ReadWrite).unwrap());
    let kept = test.server.pack(&guest).unwrap().unwrap();
    // The server ends as if it was killed: it sends no message.
    drop(guest);
    test.replace();
    theirs.copy_in(0, b"written meanwhile");
    Doorbell::from(rustix::io::fcntl_dupfd_cloexec(&plugged.host[1], 0).unwrap()).ring();
    assert!(test.server.resume(&kept[1]).unwrap().is_none(), "it lies at the other end");
    let guest = test.server.resume(&kept[0]).unwrap().unwrap();
    assert!(matches!(test.server.resume(&kept[0]), Err(ResumeError::AlreadyConnected)));
    test.expect_no_event();
    assert_eq!((guest.size, guest.from_guest.len(), guest.to_guest.len()), (RegionSize(MIB), 3, 4));
    assert_eq!(guest.process, Some(std::process::id() as i32));
    let ours = SharedMapping::new(guest.map(0, guest.size, Access::ReadWrite).unwrap());
    let mut bytes = [0; 17];
    ours.copy_out(0, &mut bytes);
    assert_eq!(&bytes, b"written meanwhile");
    assert!(guest.listener(1).unwrap().unwrap().wait(Duration::ZERO), "rung while no guest was connected");
    for (vector, doorbell) in (0..).zip(plugged.own) {
        guest.doorbell_sender(vector).unwrap().unwrap().ring();
        assert!(Doorbell::from(doorbell).wait(Duration::ZERO), "vector {vector}");
    }
    assert!(!qemu.is_over());
    let another = test.connect();
    assert!(matches!(test.failure(), AcceptError::AlreadyConnected));
    drop(another);
    drop(qemu);
    assert_eq!(test.close_reason(), CloseReason::Closed);
}

#[test]
fn resumed_connection_reports_a_guest_that_has_left() {
    let mut test = ServerTest::new();
    let qemu = test.connect();
    let guest = test.guest();
    let [kept, _other] = test.server.pack(&guest).unwrap().unwrap();
    drop(guest);
    test.replace();
    drop(qemu);
    let guest = test.server.resume(&kept).unwrap().unwrap();
    assert_eq!(test.close_reason(), CloseReason::Closed);
    assert!(test.server.pack(&guest).unwrap().is_none());
}

#[test]
fn resume_rejects_foreign_descriptors() {
    let mut test = ServerTest::new();
    let window = local::memory(RegionSize(MIB)).unwrap();
    let odd = local::memory(RegionSize(MIB + 4096)).unwrap();
    let doorbell = event().unwrap();
    let pack = |label: &str, fds: &[&OwnedFd]| {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        isthmus_platform::fd_bundle::pack(label.as_bytes(), &fds).unwrap()
    };
    let all = |window| [&doorbell, window, &doorbell, &doorbell, &doorbell, &doorbell];
    for label in ["x", "isthmus guest 2 2 2", "isthmus guest 1 2 3", "isthmus guest 1 1 3", "isthmus guest 1 2 2 2"] {
        let fds = pack(label, &all(&window));
        assert!(matches!(test.server.resume(&fds[0]), Err(ResumeError::NotOurs)), "{label}");
    }
    for window in [&odd, &doorbell] {
        let fds = pack("isthmus guest 1 2 2", &all(window));
        assert!(matches!(test.server.resume(&fds[0]), Err(ResumeError::Window)));
    }
}

#[test]
fn added_peer_rings_the_guest_directly_until_it_is_removed() {
    let mut test = ServerTest::new();
    test.server.add_peer(7, Vec::new());
    assert!(!test.server.is_drained(), "no guest is connected");
    let qemu = test.connect();
    let _guest = test.guest();
    let plugged = qemu.plug();
    assert!(test.server.is_drained());
    let doorbells = [event().unwrap(), event().unwrap()];
    let ringers = doorbells.iter().map(|doorbell| doorbell.try_clone().unwrap()).collect();
    test.server.add_peer(7, ringers);
    assert!(!test.server.is_drained());
    assert!(test.is_ready());
    assert!(test.server.poll().is_none());
    test.expect_no_event();
    assert!(!test.server.is_drained(), "it has read nothing");
    for doorbell in doorbells {
        let (7, Some(ringer)) = qemu.message() else { panic!("no bell") };
        Doorbell::from(ringer).ring();
        assert!(Doorbell::from(doorbell).wait(Duration::ZERO));
    }
    assert!(test.server.is_drained());
    // Removing an unknown peer sends nothing.
    test.server.remove_peer(8);
    test.server.remove_peer(7);
    test.server.remove_peer(7);
    assert!(test.server.poll().is_none());
    assert!(matches!(qemu.message(), (7, None)));
    assert!(test.server.is_drained());
    drop((qemu, plugged));
    assert_eq!(test.close_reason(), CloseReason::Closed);
}
