//! One measurement by `mx_measure` or `guest_tcp`: a client in a guest, and a server in another guest or on the far host.

use std::path::PathBuf;

use isthmus_guests_tests::{CommandOutput, GuestLab, XenMachine, example, timeout};
use isthmus_hosts::TestHost;
use isthmus_testbed::Proc;

/// Guests that run commands, each one at a time.
pub(crate) trait Guests {
    /// Starts a command.
    fn start_command(&mut self, guest: usize, order: &str);

    /// Waits until the command has ended.
    fn finish_command(&mut self, guest: usize) -> CommandOutput;

    /// Returns the other host, if there is one.
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

/// Only one guest at a time runs a command. Guests are named guest0 and so on.
impl Guests for XenMachine {
    fn start_command(&mut self, guest: usize, order: &str) {
        XenMachine::start_command(self, &format!("guest{guest}"), order);
    }

    fn finish_command(&mut self, _guest: usize) -> CommandOutput {
        XenMachine::finish_command(self)
    }
}

/// The maximum time of a client in seconds of its guest. A client that takes longer is ended, and has no value.
const LIMIT_S: u32 = 60;

/// The path of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessagePath {
    /// The pair window of two guests. To another host: the guest's own window and the host daemon. Between guests of Xen: the daemon path of
    /// the backend, or the direct path.
    Window,
    /// The path of `Window` with `MX_RCACHE=0`, so that large buffers are not registered.
    Plain,
    /// The guests' own windows and the daemon path, on which the host daemon copies.
    Daemon,
    /// The guests' cards, with a daemon in each guest.
    Bridged,
    /// The guests' cards and the kernel's TCP.
    Tcp,
}

/// The place of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Guest(usize),
    Remote,
}

/// The wait mode of MX programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Polls without a pause.
    Poll,
    /// Sleeps at once.
    Sleep,
    /// Polls for a moment if polling has recently paid off, and then sleeps. This is the default of `mx_wait`.
    Adaptive,
}

impl Wait {
    /// Returns the argument of the programs.
    fn argument(self) -> &'static str {
        if self == Self::Poll { "" } else { " -w" }
    }

    /// Returns the library's variable and its value, if it is not the default.
    fn variable(self) -> Option<(&'static str, &'static str)> {
        (self == Self::Sleep).then_some(("ISTHMUS_WAIT", "sleep"))
    }
}

/// The kind of a measurement.
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
    /// The server's process, on the far host.
    process: Option<Proc>,
}

impl MessagePath {
    /// Returns the shell commands that select the path for a program.
    fn setting(self) -> &'static str {
        match self {
            Self::Window => "by window; unset ISTHMUS_CHANNELS; export MX_RCACHE=1",
            Self::Plain => "by window; unset ISTHMUS_CHANNELS; export MX_RCACHE=0",
            Self::Daemon => "by window; unset MX_RCACHE; export ISTHMUS_CHANNELS=0",
            Self::Bridged | Self::Tcp => "by isthmus; unset MX_RCACHE ISTHMUS_CHANNELS",
        }
    }

    /// Returns the client's argument for the address of its server.
    fn address(self, server: Place) -> String {
        match (self, server) {
            (Self::Tcp, Place::Guest(number)) => format!("-d 10.86.223.{}", number + 1),
            (Self::Tcp, Place::Remote) => format!("-d {}", GuestLab::REMOTE_ADDRESS),
            (_, Place::Remote) => "-d far:0".to_owned(),
            (Self::Bridged, Place::Guest(number)) => format!("-d guest{number}:0"),
            (Self::Window | Self::Plain | Self::Daemon, Place::Guest(_)) => String::new(), // The client's own board.
        }
    }

    fn program(self) -> &'static str {
        if self == Self::Tcp { "guest_tcp" } else { "mx_measure" }
    }
}

impl Task {
    /// Creates the measurement of half a round trip of 8 bytes from guest0 to guest1.
    pub(crate) fn latency(way: MessagePath, wait: Wait) -> Self {
        Self { way, kind: Kind::PingPong, size: 8, wait, client: 0, server: Place::Guest(1) }
    }

    /// Creates the measurement of messages of 1 MiB from guest0 to guest1.
    pub(crate) fn bandwidth(way: MessagePath) -> Self {
        Self { kind: Kind::Stream, size: 1 << 20, ..Self::latency(way, Wait::Adaptive) }
    }

    /// Measures. The error is the output of a program that has failed.
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
            Place::Remote => self.serve_far(guests.far().expect("tasks with another host run in a lab with one")),
        };
        let kind = if self.kind == Kind::Stream { "stream" } else { "pingpong" };
        let (address, endpoint, size) = (self.way.address(self.server), &serving.endpoint, self.size);
        let order = format!("timeout {LIMIT_S} {program}{wait} {address} -r {endpoint} -k {kind} -s {size} -t {ms}");
        // The single round trips are too much output for a serial line.
        let said = ">/tmp/said 2>&1; code=$?; grep -v trips /tmp/said; return $code";
        guests.start_command(self.client, &format!("{setting}; measured() {{ {order} {said}; }}; measured"));
        Ok(serving)
    }

    /// Waits for the client, ends the server, and returns the value.
    pub(crate) fn finish(self, guests: &mut impl Guests, serving: Serving) -> Result<f64, String> {
        let done = guests.finish_command(self.client);
        let ended_well = done.code == 0;
        match (self.server, serving.process) {
            // A server that has lost its client may wait for another one.
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
            // Bytes per nanosecond are GB per second.
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

/// Runs a command in a guest, and returns its output, as the error if the command fails.
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

/// Returns the number that follows a name.
pub(crate) fn number(said: &[String], name: &str) -> Result<f64, String> {
    let found = said.iter().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    found.ok_or_else(|| format!("no {name} in: {}", said.join("; ")))
}

/// Returns half the average time of `pings` ICMP echoes of 8 bytes from guest0 to guest1, in µs. Busybox prints the minimum, the average and
/// the maximum, in ms.
pub(crate) fn ping(guests: &mut impl Guests, pings: u32) -> Result<f64, String> {
    let said = run_for_lines(guests, 0, &format!("ping -q -c {pings} -A -s 8 10.86.223.2"))?;
    let times = said.last().and_then(|last| last.rsplit(" = ").next());
    let average = times.and_then(|times| times.split('/').nth(1)?.parse::<f64>().ok());
    Ok(average.ok_or_else(|| said.join("; "))? * 1e3 / 2.0)
}

/// Measures the time from the start of a guest daemon until programs can attach, in ms, by the clock of guest0.
pub(crate) fn attach(guests: &mut impl Guests) -> Result<f64, String> {
    timed(guests, "by window; kill -9 $window_pid; wait $window_pid; clock window")
}

/// Measures the time from the start of a program in guest0 until its first message to guest1 has returned, by this daemon, in ms.
pub(crate) fn first_message(guests: &mut impl Guests, by: &str, address: &str) -> Result<f64, String> {
    let setting = format!("by {by}; unset MX_RCACHE ISTHMUS_CHANNELS ISTHMUS_WAIT");
    let endpoint = serve(guests, 1, &format!("{setting}; serve mx_pingpong -w"))?;
    let first = format!("mx_pingpong -w {address} -r {endpoint} -n 1 -W 0 -S 8 -E 8");
    let took = timed(guests, &format!("{setting}; clock '{first}'"));
    run_for_lines(guests, 1, if took.is_ok() { "served" } else { "kill $served_pid; served" })?;
    took
}

/// Returns the time of a command in ms, by the clock of guest0, which counts hundredths of a second.
fn timed(guests: &mut impl Guests, order: &str) -> Result<f64, String> {
    Ok(number(&run_for_lines(guests, 0, order)?, "centiseconds")? * 10.0)
}
