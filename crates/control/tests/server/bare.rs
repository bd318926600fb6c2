//! A guest without a driver for the device. Its daemon uses files in place of those in sysfs; the window file is the host's own.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use isthmus_control::daemon::HostAccess;
use isthmus_layout::control::*;
use isthmus_layout::ids::RegionId;
use isthmus_layout::proxy::{EXTENTS_OFFSET, WINDOW_BYTES_MIN};
use isthmus_layout::reason::Reason;
use isthmus_layout::{DomainId, ready_map};
use isthmus_platform::{Doorbell, Listen as _, Ring as _, seqpacket};
use isthmus_platform_xen::fake::FakeHost;
use isthmus_report::GuestRow;
use isthmus_shm::{Access, Mapping, Payload as _, SharedMapping};

use crate::guest::{Guest, configured, row, until_row};
use crate::testbed::{Client, ReceivedMessage, Testbed, versions_of};
use crate::xen::{LONG, Running, WEB, domid, until};

const EVERYBODY: &str = "[policy]\nattach = \"any-user\"\n";

/// A host daemon, a machine with a device, and the guest daemon in it.
struct GuestMachine {
    bed: Testbed,
    machine: Guest,
    function: tempfile::TempDir,
    daemon: Running,
    /// Rings the host at intervals, because writes to a register file ring nothing.
    _ringing: PeriodicRinger,
}

struct PeriodicRinger(Doorbell, Option<JoinHandle<()>>);

impl PeriodicRinger {
    fn of(machine: &Guest) -> Self {
        let doorbells: Vec<_> =
            machine.to_host.iter().map(|doorbell| Doorbell::from(doorbell.try_clone().unwrap())).collect();
        let stop = Doorbell::new().unwrap();
        let stopped = stop.clone();
        let ring = move || {
            while !stopped.wait(Duration::from_millis(1)) {
                doorbells.iter().for_each(Doorbell::ring);
            }
        };
        Self(stop, Some(std::thread::spawn(ring)))
    }
}

impl Drop for PeriodicRinger {
    fn drop(&mut self) {
        self.0.ring();
        self.1.take().unwrap().join().unwrap();
    }
}

impl GuestMachine {
    fn start() -> Self {
        let bed = Testbed::with(&configured("web", 32, 4));
        let machine = Guest::plug_in(&bed);
        machine.wait_for_head();
        let function = tempfile::tempdir().unwrap();
        let file = |name: &str| function.path().join(name);
        std::fs::write(file("enable"), "0\n").unwrap();
        let mut registers = vec![0; 4096];
        registers[8] = 1; // The guest's peer number at the device.
        std::fs::write(file("resource0"), registers).unwrap();
        let window = format!("/proc/self/fd/{}", machine.window.as_raw_fd());
        std::os::unix::fs::symlink(window, file("resource2")).unwrap();
        let ringing = PeriodicRinger::of(&machine);
        let daemon = serve(&function);
        Self { bed, machine, function, daemon, _ringing: ringing }
    }

    fn program(&self, name: &str) -> Program {
        let mut client = self.daemon.served();
        let welcomed = client.attach(Some(name)).unwrap();
        let offsets = descriptor_offsets(&mut client);
        Program { client, id: welcomed.id(), fds: welcomed.fds, offsets }
    }
}

/// Starts the guest daemon. It uses no Xen backend.
fn serve(function: &tempfile::TempDir) -> Running {
    Running::start(FakeHost::new().start(domid(WEB)), EVERYBODY, Some(HostAccess::Bare(function.path().to_owned())))
}

/// Returns the descriptors of the next message that are memory, and the offset of each, as the program was notified.
fn descriptor_offsets(client: &mut Client) -> Vec<(u8, u64)> {
    let heard = client.receive_matching(|heard| matches!(heard.message, ToClient::DescriptorOffsets(_)));
    let ToClient::DescriptorOffsets(DescriptorOffsets { memory }) = heard.message else { panic!("{heard:?}") };
    memory.iter().map(|memory| (memory.descriptor, memory.offset)).collect()
}

struct Program {
    client: Client,
    id: DomainId,
    fds: Vec<OwnedFd>,
    offsets: Vec<(u8, u64)>,
}

fn map(fd: &OwnedFd, at: u64) -> SharedMapping {
    SharedMapping::new(Mapping::window(fd, at, ready_map::SIZE, Access::ReadWrite).unwrap())
}

/// Checks that bytes written through one mapping are visible through the other.
#[track_caller]
fn is_seen(by: &SharedMapping, at: u64, window: &SharedMapping, said: &[u8]) {
    by.copy_in(0, said);
    let mut seen = vec![0; said.len()];
    window.copy_out(at, &mut seen);
    assert_eq!(seen, said);
}

#[test]
fn programs_map_their_memory_where_it_begins() {
    let world = GuestMachine::start();
    let (mut a, mut b) = (world.program("a"), world.program("b"));
    for program in [&a, &b] {
        // The domain ring, the daemon's ready map, the domain's own ready map.
        assert_eq!(program.offsets.iter().map(|(nth, _)| *nth).collect::<Vec<_>>(), [0, 1, 3]);
        for &(nth, at) in &program.offsets {
            assert!((EXTENTS_OFFSET..32 << 20).contains(&at), "{at}");
            // Each file is the whole window, and takes no additional memory of it.
            let file = &program.fds[usize::from(nth)];
            assert!(rustix::fs::fstat(file).unwrap().st_size.unsigned_abs() >= WINDOW_BYTES_MIN);
            is_seen(&map(file, at), at, &world.machine.memory, b"seen by the host");
        }
    }
    assert_eq!(a.offsets[1], b.offsets[1], "the daemon's ready map is one");
    a.client.send(RequestChannel { peer: b.id, attempt: 1 }, &[]);
    let (at_a, at_b) = (descriptor_offsets(&mut a.client), descriptor_offsets(&mut b.client));
    let ((_, at_a_fds), (offer, at_b_fds)) = (a.client.offered(), b.client.offered());
    assert_eq!((at_a[0], at_a.len(), at_b.len()), (at_b[0], 2, 2), "the channel, and the other one's ready map");
    is_seen(&map(&at_a_fds[0], at_a[0].1), 0, &map(&at_b_fds[0], at_b[0].1), b"from a to b");
    // The programs ring each other without their daemon.
    let (heard, rings) = (Doorbell::from(a.fds.remove(4)), Doorbell::from(at_b_fds[2].try_clone().unwrap()));
    heard.clear();
    rings.ring();
    assert!(heard.wait(Duration::ZERO));
    // Regions are refused, because they would need private memory of the programs.
    b.client.send(AcceptChannel { channel: offer.channel }, &[]);
    a.client.receive_matching(|heard| matches!(heard.message, ToClient::ChannelOpen(_)));
    let used = row(&world.bed, "web").used_bytes;
    let region = CreateRegion { peer: b.id, region: RegionId(1), bytes: 1 << 20 };
    assert_eq!(a.client.request(region, &[]).err(), Some(Reason::NoSharedMemory));
    a.client.expect_no_message();
    assert_eq!(row(&world.bed, "web").used_bytes, used, "the host has taken some for it");
}

#[test]
fn passes_rings_on_and_rings_listeners_at_intervals() {
    let world = GuestMachine::start();
    let a = world.program("a");
    let registers = || std::fs::read(world.function.path().join("resource0")).unwrap()[12..16].to_vec();
    // The host's worker listens at vector 1. Writes for the host daemon, at vector 0, may follow.
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
fn refuses_other_users_and_libraries_without_placed_memory() {
    let world = GuestMachine::start();
    drop(world.program("a"));
    let refused = world.daemon.greeted_by(versions_of(DescriptorOffsets::SINCE - 1));
    let ToClient::Refused(refused) = refused.message else { panic!("{refused:?}") };
    assert_eq!(refused.reason, Reason::UnsupportedRequest);
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

/// Returns the first message that a connection of another user receives.
fn as_user(uid: u32, socket: PathBuf) -> ReceivedMessage {
    // The kernel reports the credentials of the connecting thread.
    let connect = move || {
        let uid = rustix::process::Uid::from_raw(uid);
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        seqpacket::connect(&socket).unwrap()
    };
    Client::new(std::thread::spawn(connect).join().unwrap()).receive().unwrap()
}

/// Checks that bytes written to the window are not visible in the memory of a program.
#[track_caller]
fn is_apart(window: &SharedMapping, program: &Program) {
    const SAID: &[u8] = b"written by who was here before";
    window.copy_in(0, SAID);
    for &(nth, at) in &program.offsets {
        let mut seen = [0; SAID.len()];
        map(&program.fds[usize::from(nth)], at).copy_out(0, &mut seen);
        assert_ne!(seen, SAID, "{:?}", program.offsets);
    }
}

#[test]
fn does_not_reuse_a_revoked_extent_while_it_is_mapped() {
    let world = GuestMachine::start();
    let (a, b) = (world.program("a"), world.program("b"));
    // After its connection has ended, a program may still map its memory, or a part of it.
    let ready_map_of_a = map(&a.fds[3], a.offsets[2].1);
    drop(a);
    until_row(&world.bed, "web", |row| row.domains == 1);
    // Extents that were revoked later are reclaimed, and so are extents without a mapping.
    drop(b);
    let is_kept = |row: &GuestRow| row.used_bytes == Some(EXTENTS_OFFSET + ready_map::SIZE.0);
    until_row(&world.bed, "web", |row| row.domains == 0 && is_kept(row));
    let others: Vec<_> = ["c", "d", "e"].map(|name| world.program(name)).into();
    others.iter().for_each(|other| is_apart(&ready_map_of_a, other));
    drop((others, ready_map_of_a));
    until_row(&world.bed, "web", |row| row.used_bytes == Some(EXTENTS_OFFSET));
}

#[test]
fn does_not_reuse_extents_that_old_programs_still_map_after_a_restart() {
    let mut world = GuestMachine::start();
    let a = world.program("a");
    let [ring, ready_map_of_a] = [(0, 0), (3, 2)].map(|(fd, nth)| map(&a.fds[fd], a.offsets[nth].1));
    world.daemon.stop();
    world.daemon = serve(&world.function);
    // The host considers all extents free. A program that would get a mapped one is refused, until other memory is allocated.
    let b = until("nobody can attach", || {
        let mut client = world.daemon.served();
        let ToClient::DescriptorOffsets(DescriptorOffsets { memory }) =
            client.try_request(Attach { name: None, resume: None })?
        else {
            return None;
        };
        let offsets = memory.iter().map(|memory| (memory.descriptor, memory.offset)).collect();
        match client.receive().ok()? {
            ReceivedMessage { message: ToClient::Welcome(welcome), fds, .. } => {
                Some(Program { client, id: welcome.domain, fds, offsets })
            }
            heard => panic!("{heard:?}"),
        }
    });
    is_apart(&ring, &b);
    is_apart(&ready_map_of_a, &b);
    drop((a, b, ring, ready_map_of_a));
    until_row(&world.bed, "web", |row| row.used_bytes == Some(EXTENTS_OFFSET));
}

#[test]
fn stops_serving_an_unplugged_device() {
    let world = GuestMachine::start();
    let mut a = world.program("a");
    let moved = world.function.path().with_extension("moved");
    std::fs::rename(world.function.path(), &moved).unwrap();
    assert_eq!(a.client.ended(), None);
    until("somebody serves", || {
        let heard = Client::new(seqpacket::connect(&world.daemon.socket()).unwrap()).receive().ok()?;
        matches!(heard.message, ToClient::Refused(refused) if refused.reason == Reason::HostDaemonUnreachable)
            .then_some(())
    });
    std::fs::rename(&moved, world.function.path()).unwrap();
}
