//! The server against QEMU's side of the protocol, over real sockets.

use super::*;
use isthmus_platform::seqpacket::ReceiveError;
use isthmus_platform::{Listen, Ring};
use isthmus_shm::{Payload, Window};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::FdFlags;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

const MIB: u64 = 1 << 20;

fn shape() -> Shape {
    Shape::new(RegionSize(MIB), 3, 4).unwrap()
}

/// A server in a folder of its own.
struct Bed {
    server: IvshmemServer,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Bed {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("guest");
        Self { server: IvshmemServer::listen(&path, None, shape()).unwrap(), path, _folder: folder }
    }

    /// Another server takes the place of this one, elsewhere: two of them cannot be at one path.
    fn replace(&mut self) {
        self.path = self.path.with_extension("next");
        self.server = IvshmemServer::listen(&self.path, None, shape()).unwrap();
    }

    fn connect(&self) -> Qemu {
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(&self.path).unwrap()).unwrap();
        Qemu { socket }
    }

    /// Whether the server asks to be polled.
    fn is_ready(&self) -> bool {
        let mut fds = [PollFd::new(&self.server, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
    }

    /// What happened, which the descriptor must have told of.
    #[track_caller]
    fn event(&mut self) -> Event {
        assert!(self.is_ready());
        self.server.poll().expect("something happened")
    }

    #[track_caller]
    fn quiet(&mut self) {
        let event = self.server.poll();
        assert!(event.is_none(), "{event:?}");
        assert!(!self.is_ready());
    }

    #[track_caller]
    fn guest(&mut self) -> Guest {
        match self.event() {
            Event::Connected(guest) => guest,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn failure(&mut self) -> ConnectError {
        match self.event() {
            Event::Failed { why, .. } => why,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn departure(&mut self) -> Departure {
        match self.event() {
            Event::Gone { how, .. } => how,
            other => panic!("{other:?}"),
        }
    }
}

/// QEMU's side.
struct Qemu {
    socket: OwnedFd,
}

/// What QEMU made of it.
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

    /// Takes all that a device of this shape needs.
    fn plug(&self) -> Plugged {
        assert!(matches!(self.message(), (0, None)));
        assert!(matches!(self.message(), (1, None)));
        let (-1, Some(window)) = self.message() else { panic!("no window") };
        let bells = |peer: i64, count: u16| {
            let bell = |_| match self.message() {
                (from, Some(bell)) if from == peer => bell,
                other => panic!("{other:?}"),
            };
            (0..count).map(bell).collect()
        };
        let host = bells(0, shape().host_vectors());
        let own = bells(1, shape().guest_vectors());
        Plugged { window, host, own }
    }

    fn is_over(&self) -> bool {
        matches!(seqpacket::receive(&self.socket, &mut [0; 8], &mut Vec::new(), false), Err(ReceiveError::Closed))
    }
}

#[test]
fn a_guest_gets_its_window_and_bells() {
    let mut bed = Bed::new();
    bed.quiet();
    let qemu = bed.connect();
    let guest = bed.guest();
    bed.quiet();
    assert_eq!(guest.process, Some(std::process::id() as i32));
    let plugged = qemu.plug();
    let size = guest.size;
    let theirs = Window::new(Mapping::window(&plugged.window, 0, size, Access::ReadWrite).unwrap());
    let ours = Window::new(guest.map(4096, RegionSize(4096), Access::ReadWrite).unwrap());
    theirs.copy_in(4096, b"hello");
    let mut bytes = [0; 5];
    ours.copy_out(0, &mut bytes);
    assert_eq!(&bytes, b"hello");
    for (vector, bell) in (0..).zip(plugged.host) {
        let listener = guest.listener(vector).unwrap().unwrap();
        assert!(!listener.wait(Duration::ZERO));
        Doorbell::from(bell).ring();
        assert!(listener.wait(Duration::ZERO), "vector {vector}");
    }
    for (vector, bell) in (0..).zip(plugged.own) {
        guest.ringer(vector).unwrap().unwrap().ring();
        assert!(Doorbell::from(bell).wait(Duration::ZERO), "vector {vector}");
    }
    assert!(guest.ringer(4).is_none() && guest.listener(3).is_none());
    assert!(!qemu.is_over());
}

#[test]
fn the_window_can_neither_shrink_nor_grow() {
    let mut bed = Bed::new();
    let qemu = bed.connect();
    let guest = bed.guest();
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
    let mut bed = Bed::new();
    let first = bed.connect();
    let guest = bed.guest();
    let old = first.plug();
    let secret = Window::new(guest.map(0, guest.size, Access::ReadWrite).unwrap());
    secret.copy_in(0, &[0xa5; 4096]);
    drop(first);
    assert_eq!(bed.departure(), Departure::Closed);
    bed.quiet();
    let second = bed.connect();
    let guest = bed.guest();
    let plugged = second.plug();
    let window = Window::new(Mapping::window(&plugged.window, 0, guest.size, Access::ReadWrite).unwrap());
    let mut bytes = vec![1; MIB as usize];
    window.copy_out(0, &mut bytes);
    assert!(bytes.iter().all(|&byte| byte == 0));
    // What the first one still holds rings nobody.
    old.host.into_iter().map(Doorbell::from).for_each(|bell| bell.ring());
    for vector in 0..shape().host_vectors() {
        assert!(!guest.listener(vector).unwrap().unwrap().wait(Duration::ZERO));
    }
}

#[test]
fn whoever_comes_second_is_sent_away() {
    let mut bed = Bed::new();
    let first = bed.connect();
    let guest = bed.guest();
    let second = bed.connect();
    assert!(matches!(bed.failure(), ConnectError::Occupied));
    bed.quiet();
    assert!(second.is_over());
    first.plug();
    assert!(!first.is_over());
    assert!(guest.map(0, guest.size, Access::ReadWrite).is_ok());
}

#[test]
fn a_guest_that_left_makes_room_for_one_that_waits() {
    let mut bed = Bed::new();
    let first = bed.connect();
    bed.guest();
    let second = bed.connect();
    drop(first);
    assert_eq!(bed.departure(), Departure::Closed);
    bed.guest();
    second.plug();
}

#[test]
fn a_device_that_speaks_is_over() {
    let mut bed = Bed::new();
    let qemu = bed.connect();
    bed.guest();
    let carried = local::memory(RegionSize(4096)).unwrap();
    seqpacket::send(&qemu.socket, b"x", &[carried.as_fd()]).unwrap();
    assert_eq!(bed.departure(), Departure::Spoke);
    bed.quiet();
    qemu.plug();
    assert!(qemu.is_over());
}

#[test]
fn whoever_leaves_before_it_has_all_was_never_there() {
    let mut bed = Bed::new();
    drop(bed.connect());
    match bed.failure() {
        ConnectError::Early(Departure::Closed) => {}
        ConnectError::Send(SendError::Closed) => {}
        other => panic!("{other}"),
    }
    bed.quiet();
    let spoke = bed.connect();
    rustix::io::write(&spoke.socket, b"GET / HTTP/1.1\r\n\r\n").unwrap();
    // It has its device before anybody looks at what it says, or never.
    match bed.event() {
        Event::Connected(_) => assert_eq!(bed.departure(), Departure::Spoke),
        Event::Failed { why: ConnectError::Early(Departure::Spoke), .. } => {}
        other => panic!("{other:?}"),
    }
    bed.quiet();
}

#[test]
fn a_dismissed_guest_hears_that_nobody_is_there() {
    let mut bed = Bed::new();
    assert!(bed.server.dismiss().is_none());
    let qemu = bed.connect();
    bed.guest();
    qemu.plug();
    assert!(matches!(bed.server.dismiss(), Some(Event::Gone { how: Departure::Dismissed, .. })));
    assert!(qemu.is_over());
    bed.quiet();
}

#[test]
fn a_slow_device_is_waited_for_by_nobody() {
    // A connection that holds few messages.
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::empty(), None).unwrap();
    rustix::fs::fcntl_setfl(&ours, rustix::fs::OFlags::NONBLOCK).unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(&ours, 1).unwrap();
    let mut bed = Bed::new();
    let guest = Guest::new(shape(), None).unwrap();
    epoll::add(&bed.server.ready, &ours, epoll::EventData::new_u64(1), ARRIVING).unwrap();
    bed.server.connection = Some(Connection::Arriving { socket: ours, guest, sent: 0 });
    let qemu = Qemu { socket: theirs };
    bed.quiet();
    let plugged = std::thread::scope(|scope| {
        let plugged = scope.spawn(|| qemu.plug());
        let mut connected = false;
        while !connected {
            let mut fds = [PollFd::new(&bed.server, PollFlags::IN)];
            rustix::event::poll(&mut fds, None).unwrap();
            connected = matches!(bed.server.poll(), Some(Event::Connected(_)));
        }
        plugged.join().unwrap()
    });
    assert_eq!((plugged.host.len(), plugged.own.len()), (3, 4));
}

#[test]
fn descriptors_of_a_guest_end_with_their_program() {
    let guest = Guest::new(shape(), None).unwrap();
    let all = std::iter::once(&guest.window).chain(&guest.inward).chain(&guest.outward);
    for fd in all {
        assert!(rustix::io::fcntl_getfd(fd).unwrap().contains(FdFlags::CLOEXEC));
    }
}

#[test]
fn the_socket_is_for_whom_it_is_meant_and_leaves_nothing_behind() {
    let mut bed = Bed::new();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&bed.path), 0o600);
    let taken = IvshmemServer::listen(&bed.path, None, shape());
    assert!(matches!(taken, Err(ServerError::Taken(_))));
    // Who asked counts as a connection that ended.
    assert!(matches!(bed.failure(), ConnectError::Early(_) | ConnectError::Send(_)));
    let path = bed.path.clone();
    drop(bed.server);
    assert!(!path.exists());
    // What a killed process leaves.
    let dead = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&dead, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    drop(dead);
    let server = IvshmemServer::listen(&path, None, shape()).unwrap();
    // A file that is another's stays.
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "another's").unwrap();
    drop(server);
    assert!(path.exists());
}

#[test]
fn beside_the_owner_it_is_for_one_more_user_and_for_nobody_else() {
    use rustix::thread::{Uid, set_thread_res_uid};
    if !rustix::process::geteuid().is_root() {
        return; // Who is not cannot be somebody else.
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
    let server = IvshmemServer::listen(&path, None, shape()).unwrap();
    assert_eq!([connects(0), connects(qemu)], [Ok(()), Err(Errno::ACCESS)]);
    drop(server);
    let _server = IvshmemServer::listen(&path, Some(qemu), shape()).unwrap();
    assert_eq!([connects(0), connects(qemu), connects(another)], [Ok(()), Ok(()), Err(Errno::ACCESS)]);
}

#[test]
fn a_kept_connection_goes_on_with_the_next_server() {
    let mut bed = Bed::new();
    let qemu = bed.connect();
    let guest = bed.guest();
    let plugged = qemu.plug();
    let theirs = Window::new(Mapping::window(&plugged.window, 0, guest.size, Access::ReadWrite).unwrap());
    let kept = bed.server.keep(&guest).unwrap().unwrap();
    // The server ends as if it was killed: nothing is said to anybody.
    drop(guest);
    bed.replace();
    theirs.copy_in(0, b"written meanwhile");
    Doorbell::from(rustix::io::fcntl_dupfd_cloexec(&plugged.host[1], 0).unwrap()).ring();
    assert!(bed.server.resume(&kept[1]).unwrap().is_none(), "it lies at the other end");
    let guest = bed.server.resume(&kept[0]).unwrap().unwrap();
    assert!(matches!(bed.server.resume(&kept[0]), Err(ResumeError::Occupied)));
    bed.quiet();
    assert_eq!((guest.size, guest.inward.len(), guest.outward.len()), (RegionSize(MIB), 3, 4));
    assert_eq!(guest.process, Some(std::process::id() as i32));
    let ours = Window::new(guest.map(0, guest.size, Access::ReadWrite).unwrap());
    let mut bytes = [0; 17];
    ours.copy_out(0, &mut bytes);
    assert_eq!(&bytes, b"written meanwhile");
    assert!(guest.listener(1).unwrap().unwrap().wait(Duration::ZERO), "rung while nobody was there");
    for (vector, bell) in (0..).zip(plugged.own) {
        guest.ringer(vector).unwrap().unwrap().ring();
        assert!(Doorbell::from(bell).wait(Duration::ZERO), "vector {vector}");
    }
    assert!(!qemu.is_over());
    let another = bed.connect();
    assert!(matches!(bed.failure(), ConnectError::Occupied));
    drop(another);
    drop(qemu);
    assert_eq!(bed.departure(), Departure::Closed);
}

#[test]
fn a_kept_connection_whose_guest_has_left_meanwhile_is_over() {
    let mut bed = Bed::new();
    let qemu = bed.connect();
    let guest = bed.guest();
    let [kept, _other] = bed.server.keep(&guest).unwrap().unwrap();
    drop(guest);
    bed.replace();
    drop(qemu);
    let guest = bed.server.resume(&kept).unwrap().unwrap();
    assert_eq!(bed.departure(), Departure::Closed);
    assert!(bed.server.keep(&guest).unwrap().is_none());
}

#[test]
fn what_was_kept_by_somebody_else_is_refused() {
    let mut bed = Bed::new();
    let window = local::memory(RegionSize(MIB)).unwrap();
    let odd = local::memory(RegionSize(MIB + 4096)).unwrap();
    let bell = event().unwrap();
    let pack = |label: &str, fds: &[&OwnedFd]| {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        isthmus_platform::parcel::pack(label.as_bytes(), &fds).unwrap()
    };
    let all = |window| [&bell, window, &bell, &bell, &bell, &bell];
    for label in ["x", "isthmus guest 2 2 2", "isthmus guest 1 2 3", "isthmus guest 1 1 3", "isthmus guest 1 2 2 2"] {
        let parcel = pack(label, &all(&window));
        assert!(matches!(bed.server.resume(&parcel[0]), Err(ResumeError::Foreign)), "{label}");
    }
    for window in [&odd, &bell] {
        let parcel = pack("isthmus guest 1 2 2", &all(window));
        assert!(matches!(bed.server.resume(&parcel[0]), Err(ResumeError::Window)));
    }
}

#[test]
fn a_guest_that_is_introduced_is_rung_without_the_host_until_it_goes() {
    let mut bed = Bed::new();
    bed.server.introduce(7, Vec::new());
    assert!(!bed.server.is_heard(), "nobody is there");
    let qemu = bed.connect();
    let _guest = bed.guest();
    let plugged = qemu.plug();
    assert!(bed.server.is_heard());
    let bells = [event().unwrap(), event().unwrap()];
    let ringers = bells.iter().map(|bell| bell.try_clone().unwrap()).collect();
    bed.server.introduce(7, ringers);
    assert!(!bed.server.is_heard());
    assert!(bed.is_ready());
    assert!(bed.server.poll().is_none());
    bed.quiet();
    assert!(!bed.server.is_heard(), "it has read nothing");
    for bell in bells {
        let (7, Some(ringer)) = qemu.message() else { panic!("no bell") };
        Doorbell::from(ringer).ring();
        assert!(Doorbell::from(bell).wait(Duration::ZERO));
    }
    assert!(bed.server.is_heard());
    // Who was not introduced does not go.
    bed.server.part(8);
    bed.server.part(7);
    bed.server.part(7);
    assert!(bed.server.poll().is_none());
    assert!(matches!(qemu.message(), (7, None)));
    assert!(bed.server.is_heard());
    drop((qemu, plugged));
    assert_eq!(bed.departure(), Departure::Closed);
}
