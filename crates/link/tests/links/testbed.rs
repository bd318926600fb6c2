//! Two hosts of one test.

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use isthmus_layout::NicId;
use isthmus_link::interface;
use rustix::event::{Timespec, poll};
use rustix::thread::{CpuSet, Pid, UnshareFlags, gettid, sched_getcpu, sched_setaffinity, unshare_unsafe};

/// The name of the interface on both sides.
pub(crate) const WIRE: &str = "w";
pub(crate) const ETHERTYPE: u16 = 0x86DF;
pub(crate) const ALL: NicId = NicId::from_octets([0xFF; 6]);

type Work = Box<dyn FnOnce() + Send>;

/// A thread in a network namespace of its own, which does what it is told. The namespace ends with it and with the sockets that
/// were opened in it.
pub(crate) struct Host {
    work: Option<Sender<Work>>,
    thread: Option<JoinHandle<()>>,
    tid: Pid,
}

impl Host {
    fn new() -> Result<Self, String> {
        let (work, orders) = channel::<Work>();
        let (ready, made) = channel();
        let thread = thread::spawn(move || {
            // SAFETY: no other thread shares what is unshared with this one: a network namespace belongs to each thread.
            let outcome = unsafe { unshare_unsafe(UnshareFlags::NEWNET) };
            ready.send(outcome.map(|()| gettid())).unwrap();
            orders.iter().for_each(|order| order());
        });
        match made.recv().unwrap() {
            Ok(tid) => Ok(Self { work: Some(work), thread: Some(thread), tid }),
            Err(error) => Err(format!("no network namespace: {error} (CAP_SYS_ADMIN is missing)")),
        }
    }

    /// Does something inside, and waits for what comes of it.
    pub(crate) fn run<T: Send + 'static>(&self, what: impl FnOnce() -> T + Send + 'static) -> T {
        let (give, take) = channel();
        let order: Work = Box::new(move || give.send(what()).unwrap());
        self.work.as_ref().unwrap().send(order).unwrap();
        take.recv().expect("the work inside failed")
    }

    /// Runs `ip` with these words.
    pub(crate) fn ip(&self, words: &str) {
        self.try_ip(words).unwrap_or_else(|why| panic!("ip {words}: {why}"));
    }

    /// Waits until the kernel has seen the carrier. It does so some time after the interfaces are up, and until then it drops
    /// what it is given to send.
    fn has_carrier(&self) {
        let end = Instant::now() + Duration::from_secs(20);
        self.run(move || {
            while !interface(WIRE).unwrap().is_up {
                assert!(Instant::now() < end, "no carrier");
                poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 })).unwrap();
            }
        });
    }

    /// Waits until what is for this address is taken in. The kernel makes the route for it some time after the address.
    fn reaches_itself(&self, address: SocketAddr) {
        let end = Instant::now() + Duration::from_secs(20);
        self.run(move || {
            let socket = UdpSocket::bind(address).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
            loop {
                socket.send_to(b"here", socket.local_addr().unwrap()).unwrap();
                if socket.recv(&mut [0; 4]).is_ok() {
                    return;
                }
                assert!(Instant::now() < end, "{address} does not reach itself");
            }
        });
    }

    pub(crate) fn try_ip(&self, words: &str) -> Result<(), String> {
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        self.run(move || match Command::new("ip").args(&words).output() {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
            Err(error) => Err(format!("{error} (Debian package iproute2)")),
        })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.work = None;
        let outcome = self.thread.take().unwrap().join();
        assert!(outcome.is_ok() || thread::panicking());
    }
}

/// Two hosts and the cable between them.
pub(crate) struct Testbed {
    pub(crate) a: Host,
    pub(crate) b: Host,
}

impl Testbed {
    /// A testbed for a test that looks at the order of frames: its thread stays on one processor, because each processor has a
    /// queue of its own between the ends of a cable, and frames sent from two may pass one another.
    pub(crate) fn new(mtu: u32) -> Option<Self> {
        let mut here = CpuSet::new();
        here.set(sched_getcpu());
        sched_setaffinity(None, &here).unwrap();
        Self::anywhere(mtu)
    }

    /// None where namespaces cannot be made: it says why. Under CI that is a failure.
    pub(crate) fn anywhere(mtu: u32) -> Option<Self> {
        match Self::make(mtu) {
            Ok(bed) => Some(bed),
            Err(why) if std::env::var_os("CI").is_none() => {
                eprintln!("skipped: {why}");
                None
            }
            Err(why) => panic!("no testbed: {why}"),
        }
    }

    fn make(mtu: u32) -> Result<Self, String> {
        let bed = Self { a: Host::new()?, b: Host::new()? };
        bed.cable(mtu)?;
        Ok(bed)
    }

    /// Lays the cable, with addresses of frames and of both IPs.
    pub(crate) fn cable(&self, mtu: u32) -> Result<(), String> {
        let tid = self.b.tid;
        let (mac_a, mac_b) = (nic(1), nic(2));
        self.a.try_ip(&format!(
            "link add name {WIRE} address {mac_a} mtu {mtu} type veth peer name {WIRE} address {mac_b} mtu {mtu} netns {tid}"
        ))?;
        for host in [&self.a, &self.b] {
            host.try_ip("link set lo up")?;
            host.try_ip(&format!("link set {WIRE} up"))?;
        }
        for (host, number) in [(&self.a, 1), (&self.b, 2)] {
            host.has_carrier();
            host.try_ip(&format!("address add 192.0.2.{number}/24 dev {WIRE}"))?;
            self.add_v6(host, number);
        }
        self.introduce(&self.a, 2);
        self.introduce(&self.b, 1);
        Ok(())
    }

    /// Tells a host where the other one is: what is sent while it has to ask is queued, dropped or overtaken.
    fn introduce(&self, host: &Host, other: u8) {
        let mac = nic(other);
        host.ip(&format!("neighbour replace 192.0.2.{other} lladdr {mac} dev {WIRE} nud permanent"));
        if has_v6() {
            host.ip(&format!("neighbour replace 2001:db8::{other} lladdr {mac} dev {WIRE} nud permanent"));
        }
    }

    /// An address of IPv6, which is lost when an interface goes down.
    pub(crate) fn add_v6(&self, host: &Host, number: u8) {
        host.has_carrier();
        if has_v6() {
            host.ip(&format!("address replace 2001:db8::{number}/64 dev {WIRE} nodad"));
            host.reaches_itself(format!("[2001:db8::{number}]:0").parse().unwrap());
        }
    }
}

fn has_v6() -> bool {
    std::path::Path::new("/proc/sys/net/ipv6").exists()
}

/// Returns the address of host 1 (a) or 2 (b), or an unused one.
pub(crate) fn nic(number: u8) -> NicId {
    NicId::from_octets([2, 0, 0, 0, 0, number])
}
