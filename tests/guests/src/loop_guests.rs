//! Two guests with loop devices: a pair window and doorbells, without daemons.
//!
//! ```text
//!  ┌ guest0 ─────────────────────────┐                  ┌ guest1 ─────────────────────────┐
//!  │ /dev/isthmus0 (doorbells) ══════╪════ eventfds ════╪═══════ /dev/isthmus0            │
//!  │ /dev/isthmus1 (pair window) ════╪═══ memory file ══╪═══════ /dev/isthmus1            │
//!  │ loop make ── loop0              │                  │              loop0 ── loop make │
//!  └─────────────────────────────────┘                  └─────────────────────────────────┘
//! ```
//!
//! The pair window is a device of its own without doorbells, because QEMU without KVM may crash after one with doorbells was unplugged.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use isthmus_testbed::{Scratch, build_folder, compile, workspace_root};

use crate::bells::Bells;
use crate::connected_guests::card;
use crate::guest::Guest;
use crate::guest_kit::GuestKit;
use crate::qmp::Monitor;
use crate::system::{self, Content, Extra};

const PAIR_BYTES: u64 = 16 << 20;

/// Only one test runs guests at a time, because each emulated processor takes a whole one.
static MACHINE: Mutex<()> = Mutex::new(());

/// Two guests. Dropping it ends them and removes their files. Methods panic on failure, which fails the test.
#[derive(Debug)]
pub struct LoopGuests {
    /// The guests, which are called `guest0` and `guest1`.
    pub guests: [Guest; 2],
    scratch: Scratch,
    _bells: [UnixStream; 2],
    _alone: MutexGuard<'static, ()>,
}

impl LoopGuests {
    /// Boots both guests with these kernels and the number of processors. Returns once they have the driver. None, with the reason on standard
    /// output, if something is missing.
    pub fn start(kits: [Result<GuestKit, String>; 2], processors: u32) -> Option<Self> {
        let [one, other] = kits;
        let started = one.and_then(|one| Self::boot([&one, &other?], processors));
        started.inspect_err(|why| println!("skipped: {why}")).ok()
    }

    fn boot(kits: [&GuestKit; 2], processors: u32) -> Result<Self, String> {
        let alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        let scratch = Scratch::new().unwrap_or_else(|error| panic!("{error}"));
        let memory = File::create(scratch.join("pair")).and_then(|file| file.set_len(PAIR_BYTES));
        memory.expect("a file in our folder");
        for kit in kits {
            let files = files(kit, &scratch);
            if !files.exists() {
                let modules = vec![kit.driver(scratch.path())?];
                let content = Content {
                    config: "",
                    programs: vec![program("loop"), program("steer"), holder()],
                    modules,
                    extra: &Extra::default(),
                };
                system::write(kit, &content, scratch.path(), &files);
            }
        }
        let bells = Bells::listen(scratch.path());
        let mut served = Vec::new();
        let guests = [0, 1].map(|number: u32| {
            let at = number as usize;
            let devices = devices(&scratch, &bells, number, processors);
            let guest = Guest::boot(kits[at], number, &files(kits[at], &scratch), &devices);
            served.push(bells.serve(at));
            guest
        });
        let mut pair = Self { guests, scratch, _bells: served.try_into().expect("two guests"), _alone: alone };
        for guest in &mut pair.guests {
            let uptime_s = guest.ready();
            println!("# guest{} is up after {uptime_s} s of its time", guest.number);
            guest.run("insmod /modules/isthmus.ko && test -c /dev/isthmus0 && test -c /dev/isthmus1");
        }
        Ok(pair)
    }

    /// Makes the loop device of a guest. `$made_pid` is the process that holds it. Frames arrive on `lower`, or on the device if it is empty.
    pub fn make(&mut self, number: usize, lower: &str) {
        let peer = 2 - number;
        let order = format!("serve loop make /dev/isthmus0 /dev/isthmus1 {number} {peer} {lower}");
        self.guests[number].run(&format!("{order} && made_pid=$served_pid && mv /tmp/served /tmp/made"));
    }

    /// Makes both loop devices, with the addresses 10.99.0.1 and fd00::1 of `guest0`, and 10.99.0.2 and fd00::2 of `guest1`.
    pub fn connect(&mut self) {
        for number in [0, 1] {
            self.make(number, "");
            let own = number + 1;
            self.guests[number].run(&format!(
                "echo 0 >/proc/sys/net/ipv6/conf/loop0/accept_dad && ip addr add 10.99.0.{own}/24 dev loop0 && \
                 ip -6 addr add fd00::{own}/64 dev loop0 && ip link set loop0 up"
            ));
        }
    }

    /// Connects the guests, sends every kind of traffic, and compares what arrives.
    pub fn exchange(&mut self) {
        self.connect();
        for mtu in [1500, 9000] {
            self.guests.iter_mut().for_each(|guest| drop(guest.run(&format!("ip link set loop0 mtu {mtu}"))));
            // As long as one frame can be, and of several frames.
            for (address, bytes) in [("10.99.0.2", mtu - 28), ("fd00::2", mtu - 48), ("10.99.0.2", 40_000)] {
                self.guests[0].run(&format!("ping -q -A -c 100 -W 20 -s {bytes} {address} | grep ' 0% packet loss'"));
            }
            self.datagrams();
            self.stream(0);
            self.stream(1);
        }
        self.guests[1].run("serve loop tagged loop0");
        self.guests[0].run("loop tag loop0 77");
        assert_eq!(self.guests[1].run("served").last().map(String::as_str), Some("tag 77"));
        for number in [0, 1] {
            assert_eq!(self.counter(number, "violations"), 0);
            for name in ["interrupts", "polls", "doorbells_for_frames", "doorbells_for_room", "stalls"] {
                println!("# guest{number}: {name} {}", self.counter(number, name));
            }
            assert_eq!(self.guests[number].complaints(), [""; 0]);
        }
    }

    /// Sends a stream from one guest to the other, and compares all of it.
    pub fn stream(&mut self, from: usize) {
        let to = 1 - from;
        // An input that does not end, because nc would close the connection.
        self.guests[to]
            .run("test -e /tmp/silence || mkfifo /tmp/silence; nc -l -p 9 <>/tmp/silence >/tmp/got & sink_pid=$!");
        self.guests[to].run("until netstat -ltn | grep -q :9; do usleep 20000; done");
        let address = format!("10.99.0.{}", to + 1);
        let sent = self.guests[from].run(&format!(
            "dd if=/dev/urandom of=/tmp/sent bs=1M count=24 2>/dev/null; nc {address} 9 </tmp/sent; sha256sum </tmp/sent"
        ));
        let got = self.guests[to].run("wait $sink_pid; sha256sum </tmp/got");
        assert_eq!(sent, got);
    }

    /// Sends datagrams there and back, and compares all of them.
    pub(crate) fn datagrams(&mut self) {
        self.guests[1].run("serve loop echo 7");
        for (bytes, count) in [(1, 100), (1400, 500), (65507, 40)] {
            self.guests[0].run(&format!("loop udp 10.99.0.2 7 {bytes} {count}"));
        }
        self.guests[1].end_server();
    }

    /// Returns a counter of a guest's loop device.
    pub fn counter(&mut self, number: usize, name: &str) -> u64 {
        let said = self.guests[number].run(&format!("loop counter loop0 {name}")).concat();
        said.parse().unwrap_or_else(|_| panic!("{name}: {said}"))
    }

    /// Returns QEMU's monitor of a guest.
    pub fn monitor(&self, number: u32) -> Monitor {
        Monitor::connect(&self.scratch.join(format!("monitor{number}")))
    }
}

fn files(kit: &GuestKit, scratch: &Scratch) -> PathBuf {
    scratch.join(format!("files-{}.cpio", kit.release()))
}

fn devices(scratch: &Scratch, bells: &Bells, number: u32, processors: u32) -> Vec<String> {
    let path = |name: &str| scratch.join(name).display().to_string();
    let memory = format!("memory-backend-file,id=memory,share=on,size={PAIR_BYTES},mem-path={}", path("pair"));
    let monitor = format!("unix:{},server=on,wait=off", path(&format!("monitor{number}")));
    let own = ["-object", &memory, "-device", "ivshmem-plain,id=pair,memdev=memory", "-qmp", &monitor];
    let more = if processors > 1 { vec!["-smp".to_owned(), processors.to_string()] } else { Vec::new() };
    let card = card(scratch.path(), number, 9000);
    bells.device(number as usize).into_iter().chain(own.map(str::to_owned)).chain(card).chain(more).collect()
}

/// Returns the path of the program that holds a steering.
fn holder() -> PathBuf {
    isthmus_testbed::example("isthmus-platform-kvm", "guest_steering").unwrap_or_else(|error| panic!("{error}"))
}

/// Compiles a program of guests, and returns its path.
fn program(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("guest/{name}.c"));
    let program = build_folder("guests").join(name);
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-I"]).arg(workspace_root().join("kmod"));
    compile(&mut cc, &source, &program, &[] as &[&str]);
    program
}
