//! A guest with a window: the conformance suite between it and its host, its driver, and unplugged devices.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use isthmus_guests_tests::{GuestKit, GuestParts, Monitor, WindowGuest, timeout};
use isthmus_layout::RegionSize;
use isthmus_platform::conformance::{CheckRole, check_side};
use isthmus_platform_kvm::{AcceptError, CloseReason, DeviceLayout, IvshmemServer, Kvm, ServerEvent, ServerGuest};
use isthmus_testbed::eventually_some;
use rustix::event::{PollFd, PollFlags};
use serde_json::json;

/// Only one test runs guests at a time, because each emulated processor takes a whole one.
static MACHINE: Mutex<()> = Mutex::new(());

fn parts(kit: Result<GuestKit, String>) -> Option<(GuestKit, GuestParts, MutexGuard<'static, ()>)> {
    let found = kit.and_then(|kit| GuestParts::build(&kit).map(|parts| (kit, parts)));
    match found {
        Ok((kit, parts)) => Some((kit, parts, MACHINE.lock().unwrap_or_else(PoisonError::into_inner))),
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

/// The size of a window that firmware maps above 4 GiB, where a processor may cache it. Memory is allocated only for pages that are used.
const LARGE: RegionSize = RegionSize(4 << 30);

/// The size of a window that firmware maps below 4 GiB, if there is room.
const SMALL: RegionSize = RegionSize(16 << 20);

const VECTORS: u16 = 4;

/// Starts a guest and the server of its device. Returns them with the host's side of the device.
fn start(kit: &GuestKit, parts: GuestParts, window: RegionSize) -> (WindowGuest, IvshmemServer, ServerGuest) {
    let path = parts.socket();
    let mut server = IvshmemServer::listen(&path, None, DeviceLayout::new(window, VECTORS, VECTORS).unwrap()).unwrap();
    let socket = format!("socket,id=window,path={}", path.display());
    let device = format!("ivshmem-doorbell,chardev=window,vectors={VECTORS}");
    let mut windowed = parts.boot(kit, &["-chardev", &socket, "-device", &device]);
    let guest = match next(&mut server) {
        ServerEvent::Connected(guest) => guest,
        other => panic!("{other:?}"),
    };
    windowed.ready();
    (windowed, server, guest)
}

/// Starts a guest and plugs the device in while the guest runs.
fn plug(kit: &GuestKit, parts: GuestParts, window: RegionSize) -> (WindowGuest, IvshmemServer, ServerGuest) {
    let path = parts.socket();
    let mut server = IvshmemServer::listen(&path, None, DeviceLayout::new(window, VECTORS, VECTORS).unwrap()).unwrap();
    let mut windowed = parts.boot(kit, &[]);
    windowed.ready();
    let mut monitor = windowed.monitor();
    let address = json!({ "type": "unix", "data": { "path": path } });
    let backend = json!({ "type": "socket", "data": { "server": false, "addr": address } });
    monitor.command("chardev-add", &json!({ "id": "window", "backend": backend }));
    let device = json!({ "driver": "ivshmem-doorbell", "id": "device", "chardev": "window", "vectors": VECTORS });
    // QEMU replies once it has the window.
    let event = std::thread::scope(|scope| {
        scope.spawn(|| monitor.command("device_add", &device));
        next(&mut server)
    });
    let ServerEvent::Connected(guest) = event else { panic!("{event:?}") };
    windowed.guest.run("until test -c /dev/isthmus0; do usleep 20000; done");
    (windowed, server, guest)
}

/// Waits for the next event.
fn next(server: &mut IvshmemServer) -> ServerEvent {
    let event = eventually_some(timeout(), || {
        let mut fds = [PollFd::new(&*server, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 10_000_000 })).unwrap();
        server.poll()
    });
    event.unwrap_or_else(|late| panic!("the server: {late}"))
}

/// Connects other clients to the socket of a guest that is connected.
fn send_bad_connections(server: &mut IvshmemServer, path: &Path) {
    for said in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", &[0xff; 4096]] {
        let mut other_client = UnixStream::connect(path).unwrap();
        other_client.write_all(said).unwrap();
        let event = next(server);
        assert!(matches!(event, ServerEvent::Failed { error: AcceptError::AlreadyConnected, .. }), "{event:?}");
        drop(event);
        // It has received nothing.
        assert_eq!(other_client.read(&mut [0; 8]).unwrap_or(0), 0);
    }
}

/// Runs the conformance suite of platforms between the guest and its host.
fn suite(windowed: &mut WindowGuest, kvm: &Kvm<ServerGuest>) {
    let mut line = windowed.line("stty -F /dev/ttyS1 raw -echo && guest_half suite /dev/isthmus0 /dev/ttyS1");
    let mut passed = 0;
    check_side(CheckRole::One, kvm, &(), &mut line, &mut |_| passed += 1);
    let done = windowed.guest.finish_command().expect_success("the suite");
    print(&done);
    assert_eq!(done.iter().filter(|line| line.starts_with("ok ")).count(), passed);
    assert!(done.contains(&"memory type write-back, seen in a mapping: true".to_owned()), "{done:?}");
}

/// Unplugs a device without doorbells from a program that uses it, `times` times, and plugs in another one each time.
fn unplug(windowed: &mut WindowGuest, node: &str, times: u32) {
    let mut monitor = windowed.monitor();
    for time in 1..=times {
        windowed.guest.start_command(&format!("guest_half unplug {node}"));
        windowed.guest.wait_for_line("mapped");
        monitor.command("device_del", &json!({ "id": "window" }));
        monitor.wait("DEVICE_DELETED", "window");
        let lines = windowed.guest.finish_command().expect_success("unplug");
        assert!(lines.iter().any(|line| line == "gone"), "{lines:?}");
        windowed.guest.run(&format!("! test -e {node}"));
        plug_plain(windowed, &mut monitor, &format!("memory{time}"), node);
    }
}

/// Plugs in a device without doorbells, with its own memory, because QEMU aborts if a second device shows the same memory.
fn plug_plain(windowed: &mut WindowGuest, monitor: &mut Monitor, memory: &str, node: &str) {
    let object = json!({ "qom-type": "memory-backend-memfd", "id": memory, "share": true, "size": SMALL.0 });
    monitor.command("object-add", &object);
    let device = json!({ "driver": "ivshmem-plain", "id": "window", "memdev": memory });
    monitor.command("device_add", &device);
    windowed.guest.run(&format!("until test -c {node}; do usleep 20000; done"));
}

fn print(lines: &[String]) {
    lines.iter().for_each(|line| println!("# {line}"));
}

#[test]
fn guest_and_host_pass_the_conformance_suite() {
    let Some((kit, parts, _alone)) = parts(GuestKit::find()) else { return };
    let path = parts.socket();
    let (mut windowed, mut server, guest) = start(&kit, parts, LARGE);
    send_bad_connections(&mut server, &path);
    let kvm = Kvm::new(guest);
    suite(&mut windowed, &kvm);
    let (bell, word) = windowed.bounce(kvm.device_side(), 300, 10_000);
    println!("# doorbell, both sides sleeping: {bell:?} there and back (median)");
    println!("# window, both sides polling: {word:?} there and back (median)");
    assert_eq!(windowed.guest.complaints(), [""; 0]);
    assert!(server.poll().is_none(), "the guest left");
    // A power cut.
    windowed.guest.kill();
    let event = next(&mut server);
    assert!(matches!(event, ServerEvent::Disconnected { reason: CloseReason::Closed, .. }), "{event:?}");
}

#[test]
fn driver_refuses_invalid_requests() {
    let Some((kit, parts, _alone)) = parts(GuestKit::find()) else { return };
    let (mut windowed, _server, _guest) = plug(&kit, parts, SMALL);
    let lines = windowed.guest.run("guest_half driver /dev/isthmus0");
    print(&lines);
    // `isthmus doctor` finds the device by this list, with and without the driver.
    for (before, driver) in [("true", " isthmus"), ("rmmod isthmus", " none")] {
        let functions = windowed.guest.run(&format!("{before} && guest_half functions"));
        assert!(functions.len() == 1 && functions[0].ends_with(driver), "{functions:?}");
    }
    windowed.guest.run("insmod /modules/isthmus.ko && guest_half driver /dev/isthmus0");
    assert_eq!(windowed.guest.complaints(), [""; 0]);
}

#[test]
fn unplugging_a_window_ends_no_process() {
    let Some((kit, parts, _alone)) = parts(GuestKit::find()) else { return };
    // Without doorbells, because QEMU with emulated processors may crash after a device with doorbells was unplugged.
    let memory = format!("memory-backend-memfd,id=memory,share=on,size={}", SMALL.0);
    // With two processors, so that the unplugged memory is in use on the other one.
    let device = ["-smp", "2", "-object", &memory, "-device", "ivshmem-plain,id=window,memdev=memory"];
    let mut windowed = parts.boot(&kit, &device);
    windowed.ready();
    windowed.guest.run("test $(grep -c ^processor /proc/cpuinfo) = 2");
    unplug(&mut windowed, "/dev/isthmus0", 2);
    windowed.guest.run("rmmod isthmus");
    assert_eq!(windowed.guest.complaints(), [""; 0]);
}

#[test]
fn suite_passes_with_the_backports_kernel() {
    let Some((kit, parts, _alone)) = parts(GuestKit::backported()) else { return };
    println!("# Linux {}", kit.release());
    let (mut windowed, mut server, guest) = start(&kit, parts, LARGE);
    suite(&mut windowed, &Kvm::new(guest));
    print(&windowed.guest.run("guest_half driver /dev/isthmus0"));
    // A second device without doorbells.
    let mut monitor = windowed.monitor();
    plug_plain(&mut windowed, &mut monitor, "first", "/dev/isthmus1");
    drop(monitor);
    unplug(&mut windowed, "/dev/isthmus1", 1);
    windowed.guest.run("rmmod isthmus");
    assert_eq!(windowed.guest.complaints(), [""; 0]);
    assert!(server.poll().is_none(), "the guest left");
}
