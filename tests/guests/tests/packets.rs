//! Packets between two guests past their wire: the daemons find the guests, and the kernels exchange frames through a pair window.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::{Mutex, MutexGuard, PoisonError};

use isthmus_guests_tests::{GuestKit, Monitors, TwoGuests};
use isthmus_testbed::{Deadline, short_or_long};
use serde_json::Value;

/// Only one test runs guests at a time, because each emulated processor takes a whole one.
static MACHINE: Mutex<()> = Mutex::new(());

/// Returns the length of a compared stream.
fn stream_mib() -> u64 {
    short_or_long(8, 48)
}

struct Packets {
    hosted: TwoGuests,
    _alone: MutexGuard<'static, ()>,
}

impl Packets {
    fn start() -> Option<Self> {
        let alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        let started = GuestKit::find().and_then(|kit| TwoGuests::start_with(&kit, Monitors::BothWithLoops));
        let mut hosted = started.inspect_err(|why| println!("skipped: {why}")).ok()?;
        for number in 0..2 {
            hosted.guests[number].run(&format!(
                "echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad; ip -6 addr add fd00::{}/64 dev eth0",
                1 + number
            ));
        }
        let mut packets = Self { hosted, _alone: alone };
        // Programs that have ended leave the vectors to loop devices.
        for guest in &mut packets.hosted.guests {
            guest.run("by window");
            guest.serve("mx_pingpong");
            guest.end_server();
        }
        Some(packets)
    }

    fn run(&mut self, guest: usize, order: &str) -> Vec<String> {
        self.hosted.guests[guest].run(order)
    }

    /// Sends frames until both guests have a loop device that works.
    fn until_joined(&mut self) {
        self.run(0, "until grep -qs 1 /sys/class/net/loop*/carrier; do ping -q -c 1 -W 1 10.86.223.2 >/dev/null; usleep 20000; done");
        self.run(1, "until grep -qs 1 /sys/class/net/loop*/carrier; do usleep 20000; done");
        // A frame passes when both have set their routes.
        let before = self.sent(0, "loop*");
        self.run(0, &format!(
            "until test $(cat /sys/class/net/loop*/statistics/tx_packets) -gt {before}; do ping -q -c 1 -W 1 10.86.223.2 >/dev/null; usleep 20000; done"
        ));
    }

    /// Sends echo requests until all of a series are answered. A guest that does not run for a second may lose some.
    fn ping(&mut self, to: &str, count: u32) {
        self.run(0, &format!("until ping -q -A -c {count} -W 20 {to} | grep ' 0% packet loss'; do usleep 20000; done"));
    }

    fn until_parted(&mut self, guest: usize) {
        self.run(guest, "until ! ls -d /sys/class/net/loop* 2>/dev/null; do usleep 20000; done");
    }

    /// Returns the number of packets that a guest has sent by an interface.
    fn sent(&mut self, guest: usize, interface: &str) -> u64 {
        self.counter(guest, interface, "tx_packets")
    }

    fn counter(&mut self, guest: usize, interface: &str, name: &str) -> u64 {
        let said = self.run(guest, &format!("cat /sys/class/net/{interface}/statistics/{name}"));
        said.concat().parse().unwrap()
    }

    /// Begins to receive a stream on a guest.
    fn sink(&mut self, guest: usize) {
        // An input that does not end, because nc would close the connection.
        self.run(
            guest,
            "test -e /tmp/silence || mkfifo /tmp/silence; nc -l -p 9 <>/tmp/silence >/tmp/got & sink_pid=$!",
        );
        self.run(guest, "until netstat -ltn | grep -q :9; do usleep 20000; done");
    }

    /// Begins to send a stream from a guest.
    fn source(&mut self, guest: usize) {
        let address = format!("10.86.223.{}", 2 - guest);
        self.run(
            guest,
            &format!(
                "dd if=/dev/urandom of=/tmp/sent bs=1M count={} 2>/dev/null; nc {address} 9 </tmp/sent & source_pid=$!",
                stream_mib()
            ),
        );
    }

    /// Waits for the end of a stream, and compares all of it.
    fn compare(&mut self, from: usize) {
        let sent = self.run(from, "wait $source_pid; sha256sum </tmp/sent");
        let got = self.run(1 - from, "wait $sink_pid; sha256sum </tmp/got");
        assert_eq!(sent, got);
    }

    fn stream(&mut self, from: usize) {
        self.sink(1 - from);
        self.source(from);
        self.compare(from);
    }

    fn log(&mut self, guest: usize) -> String {
        self.run(guest, "cat /tmp/window.log").join("\n")
    }

    /// Stops a guest daemon, takes an interface down, and changes its address.
    fn survive_more(&mut self) {
        // The kernel needs no daemon for frames.
        self.run(1, "kill -STOP $window_pid");
        let before = self.counter(0, "loop*", "tx_bytes");
        self.stream(0);
        assert!(self.counter(0, "loop*", "tx_bytes") - before >= stream_mib() << 20);
        self.run(1, "kill -CONT $window_pid");
        self.run(1, "ip link set eth0 down");
        self.until_parted(0);
        self.run(1, "ip link set eth0 up");
        self.until_joined();
        self.stream(1);
        // The configuration knows the old address only.
        self.run(1, "ip link set eth0 address 52:54:00:86:df:77");
        self.until_parted(0);
        self.stream(0);
        self.run(1, "ip link set eth0 address 52:54:00:86:df:01");
        self.until_joined();
        self.stream(1);
    }

    fn expect_no_complaints(&mut self) {
        for number in 0..2 {
            assert_eq!(self.hosted.guests[number].complaints(), [""; 0], "{}", self.log(number));
        }
    }
}

#[test]
fn frames_of_unmodified_programs_pass_through_shared_memory() {
    let Some(mut packets) = Packets::start() else { return };
    packets.until_joined();
    let listed: Value = serde_json::from_str(&packets.hosted.isthmus(&["loop", "list", "--json"])).unwrap();
    let pair = listed["loops"].as_array().unwrap().iter().find(|row| !row["peer"].is_null()).unwrap();
    assert_eq!((&pair["path"], &pair["why"]), (&"shared memory".into(), &Value::Null), "{listed}");
    for from in short_or_long(&[0][..], &[0, 1]).iter().copied() {
        let (loop_before, wire_before) =
            (packets.counter(from, "loop*", "tx_bytes"), packets.counter(from, "eth0", "tx_bytes"));
        packets.stream(from);
        let through = packets.counter(from, "loop*", "tx_bytes") - loop_before;
        let wire = packets.counter(from, "eth0", "tx_bytes") - wire_before;
        assert!(
            through >= stream_mib() << 20 && wire < 1 << 20,
            "{through} bytes by the loop device, {wire} by the wire"
        );
    }
    for address in ["-s 8972 10.86.223.2", "-s 8952 fd00::2", "-s 40000 10.86.223.2"] {
        packets.ping(address, 50);
    }
    packets.expect_no_complaints();
}

#[test]
fn streams_go_on_by_the_wire_when_a_daemon_ends() {
    let Some(mut packets) = Packets::start() else { return };
    packets.until_joined();
    for victim in short_or_long(&[1][..], &[0, 1]) {
        packets.sink(1);
        packets.source(0);
        packets.run(*victim, "kill -9 $window_pid");
        packets.compare(0);
        packets.until_parted(0);
        packets.until_parted(1);
        let before = packets.sent(0, "eth0");
        packets.ping("10.86.223.2", 20);
        assert!(packets.sent(0, "eth0") >= before + 20);
        // Guests that have found each other again use shared memory again.
        packets.run(*victim, "window");
        packets.until_joined();
    }
    // The guests keep their devices when the host's daemon is killed, and find each other again when it is back.
    packets.sink(1);
    packets.source(0);
    let before = packets.run(0, "cat /sys/class/net/loop*/ifindex").concat();
    packets.hosted.daemon.kill_and_restart(Deadline::secs(100)).unwrap();
    packets.compare(0);
    packets.run(0, &format!("while test \"$(cat /sys/class/net/loop*/ifindex)\" = {before}; do usleep 20000; done"));
    packets.until_joined();
    if short_or_long(false, true) {
        packets.survive_more();
    }
    packets.expect_no_complaints();
    packets.hosted.guests[1].kill();
    packets.until_parted(0);
}
