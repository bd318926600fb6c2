//! A container of RDMA programs: a sandbox with an end of a wire, and the device files that programs open.

use isthmus_netns::Host;
use isthmus_testbed::{Proc, Sandbox, eventually};

use crate::{build, timeout};

/// The files that libibverbs and librdmacm open. Their paths are compiled in.
const DEVICE_FILES: [(&str, &str); 2] =
    [("/dev/null", "/dev/infiniband/uverbs0"), ("/dev/full", "/dev/infiniband/rdma_cm")];

/// The states of sockets of TCP that listen, and of sockets of UDP without a destination.
const LISTENING: &str = "0A";
const NOT_CONNECTED: &str = "07";

/// The processors of the machine. Without this folder UCX aborts.
const PROCESSORS: &str = "/sys/devices/system/cpu";

/// The folder of compiled programs, as containers see it.
pub(crate) const PROGRAMS: &str = "/programs";

/// A network; each program in it has a sandbox of its own.
#[derive(Debug)]
pub struct Container {
    host: Host,
}

impl Container {
    pub(crate) fn new(host: Host) -> Self {
        Self { host }
    }

    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    pub(crate) fn sandbox() -> Sandbox {
        let sandbox = Sandbox::new().host_network();
        let sandbox = DEVICE_FILES.into_iter().fold(sandbox, |sandbox, (target, file)| sandbox.symlink(target, file));
        sandbox.bind(PROCESSORS, PROCESSORS).bind(build::folder(), PROGRAMS)
    }

    /// Waits until a program listens at a port, or has ended. Connecting would not do: such servers accept once.
    pub(crate) fn wait_for_listener(&self, port: u16, server: &mut Proc) {
        self.wait_for_socket(["tcp", "tcp6"], LISTENING, port, server);
    }

    /// Waits until a program listens at a port by rdma_cm, or has ended.
    pub fn wait_for_rdma_listener(&self, port: u16, server: &mut Proc) {
        self.wait_for_socket(["udp", "udp6"], NOT_CONNECTED, port, server);
    }

    fn wait_for_socket(&self, files: [&str; 2], state: &str, port: u16, server: &mut Proc) {
        let listens = || {
            let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
            let table = || files.map(|name| read(&format!("/proc/thread-self/net/{name}"))).concat();
            let table = self.host.with(table).unwrap_or_else(|error| panic!("{error}"));
            table.lines().any(|line| is_socket(line, state, port))
        };
        let listens_or_ended = || listens() || server.try_wait().is_ok_and(|exit| exit.is_some());
        eventually(timeout(), listens_or_ended).unwrap_or_else(|error| panic!("port {port}: {error}"));
    }
}

/// Returns whether a line of `/proc/net/tcp` or `udp` is a socket in this state at this port: `0: 00000000:1F90 00000000:0000 0A …`.
fn is_socket(line: &str, state: &str, port: u16) -> bool {
    let mut words = line.split_whitespace().skip(1);
    let local = words.next().and_then(|address| address.rsplit_once(':'));
    local.is_some_and(|(_, number)| u16::from_str_radix(number, 16) == Ok(port)) && words.nth(1) == Some(state)
}
