//! Two guests of Xen, with cards on a bridge of domain 0.
//!
//! ```text
//!  ┌ guest0 ──────────────────────┐     ┌ domain 0 ──────────────┐     ┌ guest1 ──────────────────┐
//!  │ program ── isthmusd --guest ═══ window ═ isthmusd ═ window ═══ isthmusd --guest ── program   │
//!  │     └───── isthmusd ── eth0 ═══ netfront/back ═ br0 ═══════════ eth0 ── isthmusd ──┘         │
//!  └──────────────────────────────┘     └────────────────────────┘     └──────────────────────────┘
//! ```
//!
//! The primitives are channels inside a guest, and bare event channels.

use anyhow::Result;
use isthmus_bench::result_table::{ResultTable, Row, Runs, Target, Unit, Versus};
use isthmus_guests_tests::{XenKit, XenMachine};

use crate::bench_lab::{BenchPlan, Case, PINGS};
use crate::rows::{BANDWIDTH_PATHS, SleepLatencies, bandwidth};
use crate::task::{MessagePath, Place, Task, Wait, number, ping, run_for_lines, serve};

const MTU: u32 = 9000;

/// The number of rounds of a bare event channel for one value.
const BELLS: u32 = 300;

/// The machine with Xen.
#[derive(Debug)]
pub(crate) struct XenLab {
    machine: XenMachine,
    /// The domain numbers of the guests.
    domains: [u16; 2],
    pace: BenchPlan,
}

/// A primitive of Xen.
#[derive(Clone, Copy, Debug)]
enum Bare {
    /// An event from guest0 to domain 0 and one back, both sides sleeping, in µs.
    DoorbellOfZero,
    /// An event from guest0 to guest1 and one back, both sides sleeping, in µs.
    DoorbellOfGuests,
}

impl XenLab {
    /// Starts both guests and all daemons, and waits until all boards know each other.
    pub(crate) fn start(kit: &XenKit, pace: BenchPlan) -> Self {
        pace.report_progress("starting a machine with Xen");
        let mut machine = XenMachine::boot(kit);
        machine.run(&format!("bridge {MTU}"));
        machine.configure("dom0", "", &["guest0", "guest1"]);
        let domains = [0, 1].map(|number| {
            let card = format!("vif = [ \"mac=00:16:3e:86:df:{number:02x},bridge=br0,script=/bin/vif\" ]");
            let domain = machine.create_with(&format!("guest{number}"), "pv", &card);
            machine.run(&format!("isthmus guest allow guest{number}"));
            domain
        });
        machine.run("backend");
        let board = "[[mx.board]]\\nlinks = [{ interface = \\\"eth0\\\" }]\\n";
        for number in 0..2 {
            let name = format!("guest{number}");
            machine.run_in_guest(
                &name,
                &format!("card && network {number} {MTU} && printf \"{board}\" >/etc/isthmusd.toml"),
            );
            machine.may_grant(&name);
            machine.run_in_guest(&name, "by isthmus && daemon && window");
        }
        for [guest, other] in [["guest0", "guest1:0"], ["guest1", "guest0:0"]] {
            machine.run_in_guest(
                guest,
                &format!("until isthmus peer list | grep -q '{other}.*eth0'; do usleep 20000; done"),
            );
        }
        Self { machine, domains, pace }
    }

    pub(crate) fn guests(&mut self) -> &mut XenMachine {
        &mut self.machine
    }

    fn measure_in_turns<const N: usize>(&mut self, what: &str, cases: [Case<Bare>; N]) -> [Runs; N] {
        let pace = self.pace;
        pace.measure_in_turns(what, cases, |case| match case {
            Case::Task(task) => task.run(&mut self.machine, pace.ms),
            Case::Echo => ping(&mut self.machine, PINGS),
            Case::Bare(Bare::DoorbellOfZero) => self.doorbells_of_zero(),
            Case::Bare(Bare::DoorbellOfGuests) => self.doorbells_of_guests(),
        })
    }

    fn doorbells_of_zero(&mut self) -> Result<f64, String> {
        self.machine.run(&format!("begin bounce xen-test-agent echo-events {}", self.domains[0]));
        let said = self.machine.run("await bounce endpoint");
        let bell = said.iter().find_map(|line| line.strip_prefix("endpoint ")).ok_or_else(|| said.join("; "))?;
        let told = run_for_lines(&mut self.machine, 0, &format!("xen-test-agent ring {bell} {BELLS}"));
        self.machine.run("strike bounce");
        Ok(number(&told?, "there_and_back_ns")? / 1e3)
    }

    fn doorbells_of_guests(&mut self) -> Result<f64, String> {
        let bell = serve(&mut self.machine, 1, &format!("serve xen-test-agent echo-events {}", self.domains[0]))?;
        let said = run_for_lines(&mut self.machine, 0, &format!("xen-test-agent ring {bell} {BELLS}"));
        drop(run_for_lines(&mut self.machine, 1, "kill $served_pid; served"));
        Ok(number(&said?, "there_and_back_ns")? / 1e3)
    }
}

/// Moves the server of a task to guest0, so that both programs are in one guest.
fn inside(task: Task) -> Case<Bare> {
    Case::Task(Task { server: Place::Guest(0), ..task })
}

/// Measures 8 bytes between two guests, and the primitives of the path.
pub(crate) fn latency(bench_lab: &mut XenLab, result_table: &mut ResultTable) -> Result<()> {
    let cases = [
        Case::latency(MessagePath::Window, Wait::Poll),
        Case::latency(MessagePath::Bridged, Wait::Poll),
        inside(Task::latency(MessagePath::Window, Wait::Poll)),
        Case::latency(MessagePath::Window, Wait::Sleep),
        Case::latency(MessagePath::Bridged, Wait::Sleep),
        Case::latency(MessagePath::Daemon, Wait::Sleep),
        inside(Task::latency(MessagePath::Window, Wait::Sleep)),
        Case::latency(MessagePath::Window, Wait::Adaptive),
        Case::latency(MessagePath::Bridged, Wait::Adaptive),
        Case::latency(MessagePath::Tcp, Wait::Sleep),
        Case::Echo,
        Case::Bare(Bare::DoorbellOfZero),
        Case::Bare(Bare::DoorbellOfGuests),
    ];
    let [poll, bridged_poll, inside_poll, sleep, bridged_sleep, daemon_sleep, inside_sleep, rest @ ..] =
        bench_lab.measure_in_turns("8 bytes", cases);
    let [adaptive, bridged_adaptive, tcp, echo, bells, bells_of_guests] = rest;
    let row = |name, runs: &Runs| Row::new(name, Unit::Microseconds, runs.clone());
    let poll = row("guest.xen.half_rtt.8b.poll", &poll)
        .with_baseline("bridged.half_rtt.8b.poll", bridged_poll)
        .with_baseline("bridged.half_rtt.8b.sleep", bridged_sleep.clone())
        .with_baseline("tcp.half_rtt.8b", tcp.clone())
        .with_baseline("icmp.half_rtt.8b", echo.clone());
    result_table.take(poll)?;
    let asleep = SleepLatencies {
        window: sleep.clone(),
        bridged: bridged_sleep.clone(),
        daemon: daemon_sleep,
        adaptive,
        bridged_adaptive,
        tcp,
        echo: echo.clone(),
    };
    result_table.take(asleep.row("guest.xen"))?;
    let added = row("guest.xen.half_rtt.8b.added", &sleep)
        .with_target(Target::at_most(1.25, Versus::Floor))
        .with_floor("guest.xen.doorbell", bells.clone())
        .with_baseline("doorbell.guests.there_and_back", bells_of_guests.clone());
    result_table.take(added)?;
    let bell = row("guest.xen.doorbell", &bells);
    let bell = bell.with_baseline("icmp.half_rtt.8b", echo.clone());
    result_table.take(bell.with_baseline("doorbell.guests.there_and_back", bells_of_guests))?;
    let within = row("guest.xen.inside.half_rtt.8b.poll", &inside_poll);
    result_table.take(within.with_baseline("bridged.half_rtt.8b.sleep", bridged_sleep.clone()))?;
    let within = row("guest.xen.inside.half_rtt.8b.sleep", &inside_sleep)
        .with_baseline("bridged.half_rtt.8b.sleep", bridged_sleep)
        .with_baseline("doorbell.there_and_back", bells);
    result_table.take(within)
}

/// Measures 1 MiB from one guest to another, and between two programs of a guest.
pub(crate) fn one_direction(bench_lab: &mut XenLab, result_table: &mut ResultTable) -> Result<()> {
    let [window, plain, daemon, bridged, tcp] = BANDWIDTH_PATHS.map(Case::bandwidth);
    let cases = [window, plain, daemon, bridged, tcp, inside(Task::bandwidth(MessagePath::Window))];
    let [runs @ .., within] = bench_lab.measure_in_turns("1 MiB one way", cases);
    let [.., bridged, _] = runs.clone();
    bandwidth("guest.xen", runs, result_table)?;
    let within = Row::new("guest.xen.inside.bandwidth.1m", Unit::GigabytesPerSecond, within);
    result_table.take(within.with_baseline("bridged.bandwidth.1m", bridged))
}
