//! Jobs on two hosts: every other rank is on the other one, and what ranks of both say to each other crosses the wire between them.
//!
//! ```text
//!  mpirun on a ══ what starts ranks on b        by TCP, which is its own
//!  ranks 0 and 2 ── provider ── isthmusd ── wire0 ── isthmusd ── provider ── ranks 1 and 3
//! ```

use isthmus_hosts::{TestHost, TwoHosts, testbed};
use isthmus_netns::{Cable, Host, RemoteHost, RemoteLauncher, Wire, WireInterface};
use isthmus_testbed::{Launch, Scratch};

use crate::build::{library, program};
use crate::mpis::Mpi;
use crate::run::{launched, run_cases, timeout, with_provider};

/// How frames go.
#[derive(Clone, Copy, Debug)]
enum Carrier {
    Packets,
    Datagrams,
}

/// Two hosts that ranks can be started on.
struct Hosts {
    world: TwoHosts,
    cable: Cable,
    remote: RemoteLauncher,
    _scratch: Scratch,
}

/// The bytes that the link of a side's board has sent: MX alone, nothing of the launchers.
fn sent(side: &TestHost) -> u64 {
    side.board(0)["links"][0]["sent_bytes"].as_u64().unwrap()
}

impl Hosts {
    /// None where there can be none: that has been said.
    fn new(carrier: Carrier) -> Option<Self> {
        if let Some(tool) = RemoteLauncher::missing_tool() {
            eprintln!("skipped: there is no {tool}");
            return None;
        }
        let mut bed = testbed()?;
        let [a, b] = ["a", "b"].map(|name| bed.host(name).unwrap());
        let cable = bed.link(&a, &b, &Wire::mtu(9000)).unwrap();
        let start = |host: &Host, own, other, mac: &str| {
            let links = match carrier {
                Carrier::Packets => "links = [{ interface = \"wire0\" }]".to_owned(),
                Carrier::Datagrams => {
                    format!("mac = \"{mac}\"\nlinks = [{{ udp = \"{own}\", peers = [\"{other}\"] }}]")
                }
            };
            TestHost::start(host, &format!("[[mx.board]]\nname = \"{}:0\"\n{links}\n", host.name()))
        };
        let [to_a, to_b] = [cable.a().v4, cable.b().v4];
        let a = start(&a, to_a, to_b, "02:00:00:00:00:0a");
        let b = start(&b, to_b, to_a, "02:00:00:00:00:0b");
        let world = TwoHosts { a, b, bed };
        world.wait_for_peers();
        let kind = if matches!(carrier, Carrier::Packets) { "packet" } else { "udp" };
        assert_eq!(world.a.board(0)["links"][0]["kind"], kind);
        let scratch = Scratch::new().unwrap();
        let station = |side: &TestHost, end: &WireInterface| RemoteHost {
            name: end.host.name().to_owned(),
            address: end.v4,
            process: side.view().pid().unsigned_abs(),
            own: side.daemon.run_dir(),
        };
        let stations = [station(&world.a, cable.a()), station(&world.b, cable.b())];
        let variables = [("ISTHMUS_SOCKET", "{common}/isthmus.sock"), ("ISTHMUS_AUTOSTART", "0")];
        let remote = RemoteLauncher::write(scratch.path(), &stations, &variables).unwrap();
        Some(Self { world, cable, remote, _scratch: scratch })
    }

    /// An MPI's launcher on host a, told of both hosts; ranks go to one and the other by turns.
    fn job(&self, mpi: &Mpi, ranks: u32) -> Launch {
        let [a, b] = [self.cable.a().v4, self.cable.b().v4];
        let launch = with_provider(Launch::new(self.remote.on())).arg(a.to_string()).arg(&mpi.launcher);
        let launch = launch.env("ISTHMUS_SOCKET", self.remote.common().join("isthmus.sock"));
        let launch = launched(launch.env("ISTHMUS_AUTOSTART", "0"), mpi, ranks);
        if mpi.name == "mpich" {
            let launch = launch.env("HYDRA_LAUNCHER", "rsh").env("HYDRA_LAUNCHER_EXEC", self.remote.agent());
            return launch.args(["-hosts", &format!("{a},{b}"), "-ppn", "1", "-iface", "wire0"]);
        }
        let half = ranks.div_ceil(2);
        launch
            .env("OMPI_MCA_plm_rsh_agent", self.remote.agent())
            .env("PRTE_MCA_plm_ssh_agent", self.remote.agent())
            .args(["--host", &format!("{a}:{half},{b}:{half}"), "--map-by", "node", "-x", "FI_PROVIDER_PATH"])
    }
}

/// Runs a program of ours with four ranks. Each host must have sent at least `bytes` bytes to the other.
#[track_caller]
fn run(mpi: Option<Mpi>, carrier: Carrier, name: &str, cases: &[&str], bytes: u64) {
    let Some(mpi) = mpi else { return };
    let program = program(name, &mpi);
    library(); // Built before the time limit of a test starts.
    let Some(hosts) = Hosts::new(carrier) else { return };
    let sides = [&hosts.world.a, &hosts.world.b];
    let before = sides.map(sent);
    let finished = run_cases(&mpi, hosts.job(&mpi, 4), &program, cases);
    for (side, before) in sides.into_iter().zip(before) {
        let (host, now) = (side.host().name(), sent(side));
        assert!(now - before >= bytes, "{}: host {host} has sent {} bytes", mpi.name, now - before);
        // Open MPI says for each process what it uses, and on which machine that is.
        let said = |line: &&str| line.starts_with(&format!("[{host}:")) && line.contains(mpi.proof);
        let ranks = finished.lines.iter().map(String::as_str).chain(finished.stderr.lines()).filter(said).count();
        assert!(mpi.name == "mpich" || ranks >= 2, "{ranks} on {host}: {}", finished.stderr);
    }
}

/// The cases of `c/messages.c`, but for `long_sends_both_ways`.
const MESSAGES: [&str; 16] = [
    "ring_of_lengths",
    "unexpected_lengths",
    "order_across_lengths",
    "kinds_of_sends",
    "synchronous_waits",
    "wildcards",
    "tags_up_to_the_highest",
    "probes",
    "truncation",
    "cancellation",
    "derived_datatypes",
    "communicators",
    "to_oneself",
    "persistent",
    "buffers_come_and_go",
    "many_at_once",
];

/// Each program on each MPI by each carrier.
macro_rules! everywhere {
    ($($name:ident: $program:literal, $carrier:ident, $cases:expr, $bytes:literal;)*) => {
        mod debian_open_mpi {
            $(#[test]
            fn $name() {
                super::run(super::Mpi::debian_open_mpi(), super::Carrier::$carrier, $program, &$cases, $bytes);
            })*
        }

        mod open_mpi_wheel {
            $(#[test]
            fn $name() {
                super::run(super::Mpi::open_mpi_wheel(), super::Carrier::$carrier, $program, &$cases, $bytes);
            })*
        }

        mod mpich_wheel {
            $(#[test]
            fn $name() {
                super::run(super::Mpi::mpich_wheel(), super::Carrier::$carrier, $program, &$cases, $bytes);
            })*
        }
    };
}

// Ranks 0 and 1 are on different hosts, and so are 2 and 3.
everywhere! {
    messages_by_packets: "messages", Packets, crate::hosts::MESSAGES, 10_000_000;
    messages_by_datagrams: "messages", Datagrams, crate::hosts::MESSAGES, 10_000_000;
    long_sends_by_packets: "messages", Packets, ["long_sends_both_ways"], 240_000_000;
    long_sends_by_datagrams: "messages", Datagrams, ["long_sends_both_ways"], 240_000_000;
    collective_by_packets: "collective", Packets, [], 1_000_000;
    collective_by_datagrams: "collective", Datagrams, [], 1_000_000;
}

/// A rank that is killed on one host ends the job on both; the next job finds the hosts as if nothing had been.
#[test]
fn a_killed_rank_ends_the_job_on_both_hosts() {
    let Some(mpi) = Mpi::debian_open_mpi() else { return };
    let [stress, messages] = ["stress", "messages"].map(|name| program(name, &mpi));
    library();
    let Some(hosts) = Hosts::new(Carrier::Packets) else { return };
    let finished = hosts.job(&mpi, 4).arg(stress).arg("killed").spawn().unwrap().finish(timeout()).unwrap();
    assert!(!finished.exit.success(), "{:?}", finished.lines);
    assert!(!finished.lines.iter().any(|line| line.starts_with("done")), "{:?}", finished.lines);
    hosts.world.wait_until_idle();
    run_cases(&mpi, hosts.job(&mpi, 4), &messages, &["ring_of_lengths"]);
}
