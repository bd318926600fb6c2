//! One measurement by `mx_measure` or `guest_tcp`, unchanged: a client in a guest, a server in another one or on the far host.

use std::path::PathBuf;

use isthmus_guests::{CommandOutput, GuestLab, XenMachine, example, timeout};
use isthmus_hosts::TestHost;
use isthmus_testbed::Proc;

/// Guests that are told what to do, one order at a time each.
pub(crate) trait Guests {
    /// Gives an order.
    fn start_command(&mut self, guest: usize, order: &str);

    /// Waits until that is done.
    fn finish_command(&mut self, guest: usize) -> CommandOutput;

    /// The other host, if there is one.
    fn far(&self) -> Option<&TestHost> {
        None
    }
}

impl Guests for GuestLab {
    fn start_command(&mut self, guest: usize, order: &str) {
        self.guests[guest].start_command(order);
    }

    fn finish_command(&mut self, guest: usize) -> CommandOutput {
        self.guests[guest].finish_command()
    }

    fn far(&self) -> Option<&TestHost> {
        Some(&self.remote)
    }
}

/// One of them at a time does what it is told. They are called guest0 and so on.
impl Guests for XenMachine {
    fn start_command(&mut self, guest: usize, order: &str) {
        XenMachine::start_command(self, &format!("guest{guest}"), order);
    }

    fn finish_command(&mut self, _guest: usize) -> CommandOutput {
        XenMachine::finish_command(self)
    }
}

/// A client that has not ended after so many seconds of its guest is ended: that value is none.
const LIMIT_S: u32 = 60;

/// How messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessagePath {
    /// By the window that the two guests have in common; to another host by the guest's own, and its host's daemon. Between guests of Xen
    /// as it goes: by their backend's daemon, or past it.
    Window,
    /// The same, with `MX_RCACHE=0`: large buffers are not kept registered.
    Plain,
    /// By the guests' own windows: their host's daemon copies.
    Daemon,
    /// By the guests' cards, a whole daemon in each guest.
    Bridged,
    /// By the guests' cards and the kernel's TCP.
    Tcp,
}

/// Who serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Guest(usize),
    Remote,
}

/// How programs of MX wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// They look without a pause.
    Poll,
    /// They sleep at once.
    Sleep,
    /// They look for a moment, where that has lately paid, and then sleep: as `mx_wait` does by itself.
    Adaptive,
}

impl Wait {
    /// The argument of the programs.
    fn argument(self) -> &'static str {
        if self == Self::Poll { "" } else { " -w" }
    }

    /// The library's variable, where it is not as it is by itself.
    fn variable(self) -> Option<(&'static str, &'static str)> {
        (self == Self::Sleep).then_some(("ISTHMUS_WAIT", "sleep"))
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Half a round trip, in µs.
    PingPong,
    /// Messages one way, in GB/s.
    Stream,
}

/// A measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task {
    pub(crate) way: MessagePath,
    pub(crate) kind: Kind,
    pub(crate) size: usize,
    pub(crate) wait: Wait,
    pub(crate) client: usize,
    pub(crate) server: Place,
}

/// A server that waits for its client.
#[derive(Debug)]
pub(crate) struct Serving {
    endpoint: String,
    /// On the far host.
    process: Option<Proc>,
}

impl MessagePath {
    /// What a guest's shell is told before a program.
    fn setting(self) -> &'static str {
        match self {
            Self::Window => "by window; unset ISTHMUS_CHANNELS; export MX_RCACHE=1",
            Self::Plain => "by window; unset ISTHMUS_CHANNELS; export MX_RCACHE=0",
            Self::Daemon => "by window; unset MX_RCACHE; export ISTHMUS_CHANNELS=0",
            Self::Bridged | Self::Tcp => "by isthmus; unset MX_RCACHE ISTHMUS_CHANNELS",
        }
    }

    /// How a client in a guest names where its server is.
    fn address(self, server: Place) -> String {
        match (self, server) {
            (Self::Tcp, Place::Guest(number)) => format!("-d 10.86.223.{}", number + 1),
            (Self::Tcp, Place::Remote) => format!("-d {}", GuestLab::REMOTE_ADDRESS),
            (_, Place::Remote) => "-d far:0".to_owned(),
            (Self::Bridged, Place::Guest(number)) => format!("-d guest{number}:0"),
            (Self::Window | Self::Plain | Self::Daemon, Place::Guest(_)) => String::new(), // The board that it has itself.
        }
    }

    fn program(self) -> &'static str {
        if self == Self::Tcp { "guest_tcp" } else { "mx_measure" }
    }
}

impl Task {
    /// Half a round trip of 8 bytes from guest0 to guest1.
    pub(crate) fn latency(way: MessagePath, wait: Wait) -> Self {
        Self { way, kind: Kind::PingPong, size: 8, wait, client: 0, server: Place::Guest(1) }
    }

    /// Messages of 1 MiB from guest0 to guest1.
    pub(crate) fn bandwidth(way: MessagePath) -> Self {
        Self { kind: Kind::Stream, size: 1 << 20, ..Self::latency(way, Wait::Adaptive) }
    }

    /// Measures; or what a program said that failed.
    pub(crate) fn run(self, guests: &mut impl Guests, ms: u32) -> Result<f64, String> {
        let serving = self.start(guests, ms)?;
        self.finish(guests, serving)
    }

    /// Starts both sides.
    pub(crate) fn start(self, guests: &mut impl Guests, ms: u32) -> Result<Serving, String> {
        let (program, wait) = (self.way.program(), self.wait.argument());
        let waiting = match self.wait.variable() {
            Some((name, value)) => format!("export {name}={value}"),
            None => "unset ISTHMUS_WAIT".to_owned(),
        };
        let setting = format!("{}; {waiting}", self.way.setting());
        let serving = match self.server {
            Place::Guest(number) => {
                let endpoint = serve(guests, number, &format!("{setting}; serve {program}{wait}"))?;
                Serving { endpoint, process: None }
            }
            Place::Remote => self.serve_far(guests.far().expect("whoever asks for another host has one")),
        };
        let kind = if self.kind == Kind::Stream { "stream" } else { "pingpong" };
        let (address, endpoint, size) = (self.way.address(self.server), &serving.endpoint, self.size);
        let order = format!("timeout {LIMIT_S} {program}{wait} {address} -r {endpoint} -k {kind} -s {size} -t {ms}");
        // Each single round trip is more than a serial line needs to carry.
        let said = ">/tmp/said 2>&1; code=$?; grep -v trips /tmp/said; return $code";
        guests.start_command(self.client, &format!("{setting}; measured() {{ {order} {said}; }}; measured"));
        Ok(serving)
    }

    /// What came of it.
    pub(crate) fn finish(self, guests: &mut impl Guests, serving: Serving) -> Result<f64, String> {
        let done = guests.finish_command(self.client);
        let ended_well = done.code == 0;
        match (self.server, serving.process) {
            // Whoever lost its client may wait for another one.
            (Place::Guest(number), _) => {
                drop(run_for_lines(guests, number, if ended_well { "served" } else { "kill $served_pid; served" }))
            }
            (Place::Remote, Some(process)) if ended_well => {
                drop(process.finish(timeout()).map_err(|error| error.to_string())?)
            }
            (Place::Remote, _) => {}
        }
        if !ended_well {
            return Err(done.lines.join("; "));
        }
        Ok(match self.kind {
            Kind::PingPong => number(&done.lines, "half_rtt_ns")? / 1e3,
            // Bytes by nanoseconds are GB by seconds.
            Kind::Stream => number(&done.lines, "messages")? * self.size as f64 / number(&done.lines, "elapsed_ns")?,
        })
    }

    fn serve_far(self, remote: &TestHost) -> Serving {
        let program = match self.way {
            MessagePath::Tcp => PathBuf::from(env!("CARGO_BIN_EXE_guest_tcp")),
            _ => example(self.way.program()),
        };
        let launch = remote.launch(program).args(self.wait.argument().split_whitespace());
        let launch = self.wait.variable().iter().fold(launch, |launch, (name, value)| launch.env(name, value));
        let mut process = launch.spawn().unwrap_or_else(|error| panic!("{error}"));
        let endpoint = process.wait_prefix("endpoint ", timeout()).unwrap_or_else(|error| panic!("{error}"));
        Serving { endpoint: endpoint.trim().to_owned(), process: Some(process) }
    }
}

/// Gives a guest an order: what it says, or that as the error.
pub(crate) fn run_for_lines(guests: &mut impl Guests, guest: usize, order: &str) -> Result<Vec<String>, String> {
    guests.start_command(guest, order);
    let done = guests.finish_command(guest);
    if done.code == 0 { Ok(done.lines) } else { Err(done.lines.join("; ")) }
}

/// Starts a server in a guest, and returns its endpoint.
pub(crate) fn serve(guests: &mut impl Guests, guest: usize, order: &str) -> Result<String, String> {
    let said = run_for_lines(guests, guest, order)?;
    let endpoint = said.iter().find_map(|line| line.strip_prefix("endpoint "));
    endpoint.map(str::to_owned).ok_or_else(|| said.join("; "))
}

/// The number behind a name.
pub(crate) fn number(said: &[String], name: &str) -> Result<f64, String> {
    let found = said.iter().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    found.ok_or_else(|| format!("no {name} in: {}", said.join("; ")))
}

/// Half of an ICMP echo of 8 bytes from guest0 to guest1, on average over so many, in µs. Busybox tells the least, the average and the
/// greatest, in ms.
pub(crate) fn ping(guests: &mut impl Guests, pings: u32) -> Result<f64, String> {
    let said = run_for_lines(guests, 0, &format!("ping -q -c {pings} -A -s 8 10.86.223.2"))?;
    let times = said.last().and_then(|last| last.rsplit(" = ").next());
    let average = times.and_then(|times| times.split('/').nth(1)?.parse::<f64>().ok());
    Ok(average.ok_or_else(|| said.join("; "))? * 1e3 / 2.0)
}

/// What it takes from the start of a guest's daemon until its programs can attach, in ms, by the clock of guest0.
pub(crate) fn attach(guests: &mut impl Guests) -> Result<f64, String> {
    timed(guests, "by window; kill -9 $window_pid; wait $window_pid; clock window")
}

/// What it takes from the start of a program in guest0 until its first message to one in guest1 has come back, by this daemon; the same.
pub(crate) fn first_message(guests: &mut impl Guests, by: &str, address: &str) -> Result<f64, String> {
    let setting = format!("by {by}; unset MX_RCACHE ISTHMUS_CHANNELS ISTHMUS_WAIT");
    let endpoint = serve(guests, 1, &format!("{setting}; serve mx_pingpong -w"))?;
    let first = format!("mx_pingpong -w {address} -r {endpoint} -n 1 -W 0 -S 8 -E 8");
    let took = timed(guests, &format!("{setting}; clock '{first}'"));
    run_for_lines(guests, 1, if took.is_ok() { "served" } else { "kill $served_pid; served" })?;
    took
}

/// How many ms the clock of guest0 says, which tells hundredths of a second.
fn timed(guests: &mut impl Guests, order: &str) -> Result<f64, String> {
    Ok(number(&run_for_lines(guests, 0, order)?, "centiseconds")? * 10.0)
}
