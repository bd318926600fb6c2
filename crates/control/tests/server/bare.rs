//! A guest in which no driver has the device: its daemon over files as the kernel's in sysfs, the window of which is the host's own.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use isthmus_control::daemon::Way;
use isthmus_control::schema::GuestRow;
use isthmus_layout::border::{PIECES_AT, WINDOW_BYTES_MIN};
use isthmus_layout::control::*;
use isthmus_layout::ids::RegionId;
use isthmus_layout::reason::Reason;
use isthmus_layout::{DomainId, board};
use isthmus_platform::{Doorbell, Listen as _, Ring as _, seqpacket};
use isthmus_platform_xen::fake::Host;
use isthmus_shm::{Access, Mapping, Payload as _, Window};

use crate::bed::{Bed, Client, Heard, speaks};
use crate::guest::{Guest, configured, row, until_row};
use crate::xen::{LONG, Running, WEB, domid, until};

const EVERYBODY: &str = "[policy]\nattach = \"any-user\"\n";

/// A host's daemon, a machine with a device, and the daemon in it.
struct World {
    bed: Bed,
    machine: Guest,
    function: tempfile::TempDir,
    daemon: Running,
    /// Rings the host now and then: nobody sees what is written to registers that are a file.
    _ringing: Ringing,
}

struct Ringing(Doorbell, Option<JoinHandle<()>>);

impl Ringing {
    fn of(machine: &Guest) -> Self {
        let bells: Vec<_> = machine.outward.iter().map(|bell| Doorbell::from(bell.try_clone().unwrap())).collect();
        let over = Doorbell::new().unwrap();
        let end = over.clone();
        let ring = move || {
            while !end.wait(Duration::from_millis(1)) {
                bells.iter().for_each(Doorbell::ring);
            }
        };
        Self(over, Some(std::thread::spawn(ring)))
    }
}

impl Drop for Ringing {
    fn drop(&mut self) {
        self.0.ring();
        self.1.take().unwrap().join().unwrap();
    }
}

impl World {
    fn start() -> Self {
        let bed = Bed::with(&configured("web", 32, 4));
        let machine = Guest::plug_in(&bed);
        machine.wait_for_head();
        let function = tempfile::tempdir().unwrap();
        let place = |name: &str| function.path().join(name);
        std::fs::write(place("enable"), "0\n").unwrap();
        let mut registers = vec![0; 4096];
        registers[8] = 1; // Our number among the device's peers.
        std::fs::write(place("resource0"), registers).unwrap();
        let window = format!("/proc/self/fd/{}", machine.window.as_raw_fd());
        std::os::unix::fs::symlink(window, place("resource2")).unwrap();
        let ringing = Ringing::of(&machine);
        let daemon = serve(&function);
        Self { bed, machine, function, daemon, _ringing: ringing }
    }

    fn program(&self, name: &str) -> Program {
        let mut client = self.daemon.served();
        let welcomed = client.attach(Some(name)).unwrap();
        let places = places(&mut client);
        Program { client, id: welcomed.id(), fds: welcomed.fds, places }
    }
}

/// The guest's daemon; it knows no domain of Xen's.
fn serve(function: &tempfile::TempDir) -> Running {
    Running::start(Host::new().start(domid(WEB)), EVERYBODY, Some(Way::Bare(function.path().to_owned())))
}

/// Which descriptors of its next message a program was told are memory, and where that begins.
fn places(client: &mut Client) -> Vec<(u8, u64)> {
    let heard = client.hear_that(|heard| matches!(heard.message, ToClient::Placed(_)));
    let ToClient::Placed(Placed { memory }) = heard.message else { panic!("{heard:?}") };
    memory.iter().map(|memory| (memory.descriptor, memory.at)).collect()
}

struct Program {
    client: Client,
    id: DomainId,
    fds: Vec<OwnedFd>,
    places: Vec<(u8, u64)>,
}

fn map(fd: &OwnedFd, at: u64) -> Window {
    Window::new(Mapping::window(fd, at, board::SIZE, Access::ReadWrite).unwrap())
}

/// Writes by one, and sees by the other.
#[track_caller]
fn is_seen(by: &Window, at: u64, window: &Window, said: &[u8]) {
    by.copy_in(0, said);
    let mut seen = vec![0; said.len()];
    window.copy_out(at, &mut seen);
    assert_eq!(seen, said);
}

#[test]
fn programs_map_their_memory_where_it_begins() {
    let world = World::start();
    let (mut a, mut b) = (world.program("a"), world.program("b"));
    for program in [&a, &b] {
        // The domain ring, the daemon's board, its own board.
        assert_eq!(program.places.iter().map(|(nth, _)| *nth).collect::<Vec<_>>(), [0, 1, 3]);
        for &(nth, at) in &program.places {
            assert!((PIECES_AT..32 << 20).contains(&at), "{at}");
            // Each of them is all of the window, and nothing of it is taken for it.
            let file = &program.fds[usize::from(nth)];
            assert!(rustix::fs::fstat(file).unwrap().st_size.unsigned_abs() >= WINDOW_BYTES_MIN);
            is_seen(&map(file, at), at, &world.machine.memory, b"seen by the host");
        }
    }
    assert_eq!(a.places[1], b.places[1], "the daemon's board is one");
    a.client.say(RequestChannel { peer: b.id, attempt: 1 }, &[]);
    let (at_a, at_b) = (places(&mut a.client), places(&mut b.client));
    let ((_, at_a_fds), (offer, at_b_fds)) = (a.client.offered(), b.client.offered());
    assert_eq!((at_a[0], at_a.len(), at_b.len()), (at_b[0], 2, 2), "the channel, and the other one's board");
    is_seen(&map(&at_a_fds[0], at_a[0].1), 0, &map(&at_b_fds[0], at_b[0].1), b"from a to b");
    // They ring each other without their daemon.
    let (heard, rings) = (Doorbell::from(a.fds.remove(4)), Doorbell::from(at_b_fds[2].try_clone().unwrap()));
    heard.clear();
    rings.ring();
    assert!(heard.wait(Duration::ZERO));
    // A region, which programs would have of their own, is not there.
    b.client.say(AcceptChannel { channel: offer.channel }, &[]);
    a.client.hear_that(|heard| matches!(heard.message, ToClient::ChannelOpen(_)));
    let used = row(&world.bed, "web").used_bytes;
    let region = MakeRegion { peer: b.id, region: RegionId(1), bytes: 1 << 20 };
    assert_eq!(a.client.ask(region, &[]).err(), Some(Reason::NoCommonMemory));
    a.client.hears_nothing();
    assert_eq!(row(&world.bed, "web").used_bytes, used, "the host has taken some for it");
}

#[test]
fn bells_are_passed_on_and_rung_at_intervals() {
    let world = World::start();
    let a = world.program("a");
    let registers = || std::fs::read(world.function.path().join("resource0")).unwrap()[12..16].to_vec();
    // The host's worker hears at vector 1; what is written for its daemon, at 0, may come after that.
    let worker = Doorbell::from(a.fds[2].try_clone().unwrap());
    until("no register is written", || {
        worker.ring();
        (registers() == [1, 0, 0, 0]).then_some(())
    });
    let heard = Doorbell::from(a.fds[4].try_clone().unwrap());
    for _ in 0..200 {
        heard.clear();
        assert!(heard.wait(LONG));
    }
}

#[test]
fn others_than_root_are_refused_and_libraries_that_know_no_places() {
    let world = World::start();
    drop(world.program("a"));
    let refused = world.daemon.greeted_by(speaks(Placed::SINCE - 1));
    let ToClient::Refused(refused) = refused.message else { panic!("{refused:?}") };
    assert_eq!(refused.reason, Reason::NotInVersion);
    assert!(refused.text.as_str().contains("2.4"), "{}", refused.text);
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can be other users");
    }
    let socket = world.daemon.socket();
    std::fs::set_permissions(socket.parent().unwrap(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let refused = as_user(70001, socket);
    let ToClient::Refused(refused) = refused.message else { panic!("{refused:?}") };
    assert_eq!(refused.reason, Reason::AttachForbidden);
    assert!(refused.text.as_str().contains("only root may"), "{}", refused.text);
}

/// The first that another user hears.
fn as_user(uid: u32, socket: PathBuf) -> Heard {
    // Who connects is whoever the connecting thread is.
    let connect = move || {
        let uid = rustix::process::Uid::from_raw(uid);
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        seqpacket::connect(&socket).unwrap()
    };
    Client::new(std::thread::spawn(connect).join().unwrap()).receive().unwrap()
}

/// What is written there is in no memory of a program's.
#[track_caller]
fn is_apart(window: &Window, program: &Program) {
    const SAID: &[u8] = b"written by who was here before";
    window.copy_in(0, SAID);
    for &(nth, at) in &program.places {
        let mut seen = [0; SAID.len()];
        map(&program.fds[usize::from(nth)], at).copy_out(0, &mut seen);
        assert_ne!(seen, SAID, "{:?}", program.places);
    }
}

#[test]
fn what_was_withdrawn_is_nobodys_as_long_as_anybody_maps_it() {
    let world = World::start();
    let (a, b) = (world.program("a"), world.program("b"));
    // Whose connection ends may have its memory still, be it a part.
    let board = map(&a.fds[3], a.places[2].1);
    drop(a);
    until_row(&world.bed, "web", |row| row.domains == 1);
    // What was withdrawn later is not kept with that, nor is what nobody maps.
    drop(b);
    let is_kept = |row: &GuestRow| row.used_bytes == Some(PIECES_AT + board::SIZE.0);
    until_row(&world.bed, "web", |row| row.domains == 0 && is_kept(row));
    let others: Vec<_> = ["c", "d", "e"].map(|name| world.program(name)).into();
    others.iter().for_each(|other| is_apart(&board, other));
    drop((others, board));
    until_row(&world.bed, "web", |row| row.used_bytes == Some(PIECES_AT));
}

#[test]
fn after_a_restart_nobody_gets_what_programs_of_before_still_have() {
    let mut world = World::start();
    let a = world.program("a");
    let [ring, board] = [(0, 0), (3, 2)].map(|(nth, place)| map(&a.fds[nth], a.places[place].1));
    world.daemon.stop();
    world.daemon = serve(&world.function);
    // For the host all is free. Whoever is handed any of it is sent away, until there is other memory.
    let b = until("nobody can attach", || {
        let mut client = world.daemon.served();
        let ToClient::Placed(Placed { memory }) = client.ask_anyway(Attach { name: None, resume: None })? else {
            return None;
        };
        let places = memory.iter().map(|memory| (memory.descriptor, memory.at)).collect();
        match client.receive().ok()? {
            Heard { message: ToClient::Welcome(welcome), fds, .. } => {
                Some(Program { client, id: welcome.domain, fds, places })
            }
            heard => panic!("{heard:?}"),
        }
    });
    is_apart(&ring, &b);
    is_apart(&board, &b);
    drop((a, b, ring, board));
    until_row(&world.bed, "web", |row| row.used_bytes == Some(PIECES_AT));
}

#[test]
fn a_device_that_is_gone_is_served_no_more() {
    let world = World::start();
    let mut a = world.program("a");
    let moved = world.function.path().with_extension("moved");
    std::fs::rename(world.function.path(), &moved).unwrap();
    assert_eq!(a.client.ended(), None);
    until("somebody serves", || {
        let heard = Client::new(seqpacket::connect(&world.daemon.socket()).unwrap()).receive().ok()?;
        matches!(heard.message, ToClient::Refused(refused) if refused.reason == Reason::HostSilent).then_some(())
    });
    std::fs::rename(&moved, world.function.path()).unwrap();
}
