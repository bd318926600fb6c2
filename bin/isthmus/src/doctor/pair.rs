//! Checks with two domains of this process, which the daemon treats like any others.

use std::time::{Duration, Instant};

use isthmus_client::{
    Buffer, Completion, Domain, DomainId, EndpointAddress, EndpointIndex, Options, Outcome, PathKind, Reason, Refusal,
    Topic,
};
use isthmus_layout::control::Name;
use isthmus_report::Why;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Finding, Severity};

/// The time after which a step counts as hanging.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);
const LARGE_BYTES: usize = 4 << 20;
/// The number of uses of the buffer. It is moved onto shared pages at its second use, then granted, then mapped.
const LARGE_REPEATS: usize = 6;

pub(super) fn check(options: &Options, findings: &mut Vec<Finding>) {
    let tried = "attaching two domains and opening an endpoint of each";
    let mut pair = match Pair::attach(options) {
        Ok(pair) => pair,
        Err(refusal) => return findings.push(Finding::refused("domain.attach", tried, &refusal)),
    };
    let result = format!("attached as {} and {}", pair.a.domain.id(), pair.b.domain.id());
    findings.push(Finding::ok("domain.attach", tried, result));
    findings.push(pair.loopback());
    let message = pair.message();
    let talks = message.severity == Severity::Ok;
    findings.push(message);
    if talks {
        findings.push(pair.channel(options));
        findings.push(pair.large());
    }
    pair.leave();
}

/// A domain and its one endpoint.
struct DoctorDomain {
    domain: Domain,
    endpoint: EndpointIndex,
}

struct Pair {
    a: DoctorDomain,
    b: DoctorDomain,
}

/// The reason why an exchange did not complete.
enum ExchangeError {
    Refused(Refusal),
    /// A part was missing after the timeout.
    TimedOut(&'static str),
    /// The exchange completed with a wrong result.
    Unexpected(String),
}

impl From<Refusal> for ExchangeError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl DoctorDomain {
    fn attach(options: &Options, letter: char) -> Result<Self, Refusal> {
        let name = Name::new(&format!("isthmus-doctor.{}.{letter}", std::process::id()));
        let options = Options { name: name.ok(), ..options.clone() };
        let mut domain = Domain::attach_with(&options).map_err(|error| match error {
            isthmus_client::AttachError::Refused(refusal) => refusal,
            other => Refusal::new(Reason::OutOfMemory, other.to_string()),
        })?;
        let endpoint = domain.open(None, "doctor")?;
        Ok(Self { domain, endpoint })
    }

    fn address(&self) -> EndpointAddress {
        EndpointAddress { domain: self.domain.id(), endpoint: self.endpoint }
    }
}

impl Pair {
    fn attach(options: &Options) -> Result<Self, Refusal> {
        Ok(Self { a: DoctorDomain::attach(options, 'a')?, b: DoctorDomain::attach(options, 'b')? })
    }

    /// Checks that a domain can send to itself.
    fn loopback(&mut self) -> Finding {
        let (id, tried) = ("domain.loopback", "sending a message to the own endpoint");
        let (endpoint, to) = (self.a.endpoint, self.a.address());
        let mut exchange = || -> Result<(), ExchangeError> {
            self.a.domain.receive(endpoint, vec![0; 8].into()).map_err(|(refusal, _)| refusal)?;
            self.a.domain.send(endpoint, to, 1, vec![7; 8].into()).map_err(|(refusal, _)| refusal)?;
            let deadline = Instant::now() + STEP_TIMEOUT;
            let mut received = false;
            while !received {
                let left = deadline.saturating_duration_since(Instant::now());
                let completion = self.a.domain.wait(Some(left)).ok_or(ExchangeError::TimedOut("the message"))?;
                received = is_message(&completion, 8)?;
            }
            Ok(())
        };
        finding(id, tried, exchange(), || "arrived".to_owned())
    }

    /// Checks the first message between the two.
    fn message(&mut self) -> Finding {
        let (id, tried) = ("domain.message", "sending a message from one domain to the other");
        let exchange = self.exchange(vec![7; 64].into()).map(drop);
        finding(id, tried, exchange, || "arrived".to_owned())
    }

    /// Exchanges messages until the channel is open, or cannot be opened.
    fn channel(&mut self, options: &Options) -> Finding {
        let (id, tried) = ("domain.channel", "exchanging messages until both domains have a channel");
        let deadline = Instant::now() + STEP_TIMEOUT;
        loop {
            let path = path(&mut self.a.domain, self.b.domain.id());
            match path {
                Some(PathKind::Channel(channel)) => {
                    return Finding::ok(id, tried, format!("channel {channel} is open"));
                }
                Some(PathKind::Daemon(Reason::ChannelPending | Reason::ChannelNotRequested)) | None => {}
                Some(PathKind::Daemon(Reason::ChannelRefused)) if options.no_channels => {
                    let result = "switched off by ISTHMUS_CHANNELS=0: messages go through the daemon";
                    return Finding::note(id, tried, result).because(Reason::ChannelRefused);
                }
                Some(PathKind::Daemon(reason)) => return self.no_channel(id, tried, reason),
            }
            if Instant::now() >= deadline {
                let result = format!("no channel after {} s; messages go through the daemon", STEP_TIMEOUT.as_secs());
                return Finding::problem(id, tried, result).because(Reason::ChannelTimeout);
            }
            if let Err(stuck) = self.exchange(vec![7; 64].into()) {
                return finding(id, tried, Err(stuck), String::new);
            }
        }
    }

    /// Reports why no channel can be opened. The daemon knows more about the reason than the two domains.
    fn no_channel(&mut self, id: &'static str, tried: &str, reason: Reason) -> Finding {
        let reported = self.why().ok().and_then(|why| why.reason).and_then(|row| Reason::from_name(&row.reason));
        let reason = reported.filter(|reported| *reported != Reason::ChannelNotRequested).unwrap_or(reason);
        let result = format!("messages go through the daemon: {} [{reason}]", reason.summary());
        let finding = match reason {
            // The configuration forbids it.
            Reason::ChannelsForbidden => Finding::note(id, tried, result),
            _ => Finding::problem(id, tried, result),
        };
        finding.because(reason)
    }

    /// Checks large messages from one buffer.
    fn large(&mut self) -> Finding {
        let id = "domain.large-messages";
        let tried = format!("sending {} MiB from the same buffer {LARGE_REPEATS} times", LARGE_BYTES >> 20);
        let mut buffer = Buffer::from(vec![7; LARGE_BYTES]);
        for _ in 0..LARGE_REPEATS {
            buffer = match self.exchange(buffer) {
                Ok(buffer) => buffer,
                Err(stuck) => return finding(id, tried, Err(stuck), String::new),
            };
        }
        match self.why() {
            Ok(why) if why.from_a.grants > 0 => {
                Finding::ok(id, tried, "arrived whole each time, copied once, out of pages that the receiver maps")
            }
            Ok(why) => {
                let finding = Finding::note(id, tried, "arrived whole each time, but copied twice");
                match why.large {
                    Some(large) => Finding { remedy: Some(large.remedy), ..finding },
                    None => finding.remedy("See `memory.migration` below."),
                }
            }
            Err(error) => {
                finding(id, tried, Err(ExchangeError::Unexpected(crate::output::causes(&error))), String::new)
            }
        }
    }

    /// Queries the daemon about the path between the two.
    fn why(&mut self) -> anyhow::Result<Why> {
        let (a, b) = (self.a.domain.id().to_string(), self.b.domain.id().to_string());
        let answer = self.a.domain.query(Topic::Why, &[&a, &b])?;
        crate::daemon::read(&serde_json::from_str(&answer)?)
    }

    /// Sends a message from `a` to `b`, and checks it. Returns the buffer.
    fn exchange(&mut self, buffer: Buffer) -> Result<Buffer, ExchangeError> {
        let (bytes, to) = (buffer.len(), self.b.address());
        let Self { a, b } = self;
        b.domain.receive(b.endpoint, vec![0; bytes].into()).map_err(|(refusal, _)| refusal)?;
        a.domain.send(a.endpoint, to, 1, buffer).map_err(|(refusal, _)| refusal)?;
        let deadline = Instant::now() + STEP_TIMEOUT;
        let (mut back, mut received) = (None, false);
        loop {
            while let Some(completion) = a.domain.poll() {
                match completion.outcome {
                    Outcome::Sent { .. } => back = Some(completion.buffer),
                    Outcome::Failed(reason) => return Err(ExchangeError::Refused(reason.into())),
                    other => return Err(ExchangeError::Unexpected(format!("the send ended as {other:?}"))),
                }
            }
            while let Some(completion) = b.domain.poll() {
                received |= is_message(&completion, bytes)?;
            }
            match back {
                Some(buffer) if received => return Ok(buffer),
                _ if Instant::now() >= deadline => {
                    return Err(ExchangeError::TimedOut(if received { "the end of the send" } else { "the message" }));
                }
                _ => sleep(a, b, deadline),
            }
        }
    }

    fn leave(self) {
        for end in [self.a, self.b] {
            drop(end.domain.detach(Duration::from_secs(1)));
        }
    }
}

/// Sleeps until one of the two has something to do.
fn sleep(a: &mut DoctorDomain, b: &mut DoctorDomain, deadline: Instant) {
    if !a.domain.arm() || !b.domain.arm() {
        return;
    }
    let left = deadline.saturating_duration_since(Instant::now());
    let mut fds = [a.domain.fd(), b.domain.fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    // The result does not matter, because both are polled again.
    let _: rustix::io::Result<usize> = poll(&mut fds, Timespec::try_from(left).ok().as_ref());
}

fn path(domain: &mut Domain, peer: DomainId) -> Option<PathKind> {
    domain.channels().into_iter().find(|status| status.peer == peer).map(|status| status.path)
}

/// Returns true for the received message, and false for a completed send.
fn is_message(completion: &Completion, bytes: usize) -> Result<bool, ExchangeError> {
    match completion.outcome {
        Outcome::Sent { .. } => Ok(false),
        Outcome::Received { len, .. } if len != bytes as u64 => {
            Err(ExchangeError::Unexpected(format!("{len} bytes of {bytes} arrived")))
        }
        Outcome::Received { .. } if completion.buffer.as_slice().iter().any(|&byte| byte != 7) => {
            Err(ExchangeError::Unexpected("other bytes arrived than were sent".to_owned()))
        }
        Outcome::Received { .. } => Ok(true),
        Outcome::Failed(reason) => Err(ExchangeError::Refused(reason.into())),
        Outcome::Cancelled => Err(ExchangeError::Unexpected("the receive was cancelled".to_owned())),
    }
}

fn finding(
    id: &'static str,
    tried: impl Into<String>,
    outcome: Result<(), ExchangeError>,
    result: impl FnOnce() -> String,
) -> Finding {
    match outcome {
        Ok(()) => Finding::ok(id, tried, result()),
        Err(ExchangeError::Refused(refusal)) => Finding::refused(id, tried, &refusal),
        Err(ExchangeError::TimedOut(missing)) => {
            let result = format!("{missing} did not arrive within {} s", STEP_TIMEOUT.as_secs());
            Finding::problem(id, tried, result).remedy("See the daemon's log, and report this with it.")
        }
        Err(ExchangeError::Unexpected(what)) => {
            Finding::problem(id, tried, what).remedy("Report this with the daemon's log.")
        }
    }
}
