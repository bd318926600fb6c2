//! A domain that does what it is told: one order a line on standard input, one line of answer on standard output.
//!
//! ```text
//! attach [name=N] [wait=spin|sleep|adaptive] [channels=no] [migrate=no]   attached d3 N   (once more: another domain, @1)
//! open [INDEX] | close INDEX | lookup NAME | id                           open e0 | closed e0 | found d7 | domain d3
//! send AT TO LEN TAG | receive AT LEN                                     posted 5
//! inject AT TO LEN TAG                                                    injected true
//! wait MS | cancel AT TOKEN | channels | arm | sleep-on-fd MS
//! exchange AT TO SEED LENGTHS SEED LENGTHS [window=W] [buffer-size=exact|less|more] [buffers=fresh|reused] [ms=MS]
//! drain MS              ends what a failed exchange left under way
//! poll MS               calls the library for this long, as if more messages were to come
//! mesh AT N LEN MS      one message to each of the domains d1 … dN, and one from each of them
//! query TOPIC [ARGS]    the report, on one line
//! fragments             why large messages to each peer go in fragments        fragments d2 buffer-denied; d3 none
//! detach MS | drop | exit CODE | spin MS | connected MS
//! limit-fds N | limit-memory KIB   may open or map so much more than it has              limited to 20 | limited to 7000 KiB
//! in-flight-fds N       keeps N descriptors in flight, in place of those before
//! ```
//!
//! `@K` before an order is for domain K instead of 0. A refusal is `refused REASON: text`, a mistake in the order `invalid order: …`.

#![forbid(unsafe_code)]

use isthmus_client::{
    Buffer, Completion, Domain, DomainId, EndpointAddress, EndpointIndex, Options, Outcome, PathKind, Refusal, Token,
    Topic, WaitMode,
};
use isthmus_suites::exchange::{Buffers, Exchange, Receives, Room, Sends};
use isthmus_suites::in_flight_fds::InFlightFds;
use isthmus_suites::pattern::{self, GUARD};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::HashMap;
use std::fmt::Display;
use std::io::{BufRead as _, Write as _};
use std::time::{Duration, Instant};

/// A line that is the answer whatever became of the order.
type Answer = Result<String, String>;

#[derive(Default)]
struct TestProgram {
    slots: Vec<Slot>,
    in_flight: InFlightFds,
}

/// A domain and what is under way in it.
#[derive(Default)]
struct Slot {
    domain: Option<Domain>,
    exchange: Option<Exchange>,
    tokens: HashMap<u64, Token>,
}

fn main() {
    let mut actor = TestProgram::default();
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let answer = actor.order(&line).unwrap_or_else(|answer| answer);
        println!("{}", answer.replace('\n', " "));
        let _ = std::io::stdout().flush(); // The reader has gone if this fails: the end of the input follows.
    }
}

impl TestProgram {
    fn order(&mut self, line: &str) -> Answer {
        let (place, line) = match line.strip_prefix('@').and_then(|line| line.split_once(' ')) {
            Some((place, line)) => (number(place)? as usize, line),
            None => (0, line),
        };
        let words: Vec<&str> = line.split_whitespace().collect();
        let order = Order { words: &words };
        while self.slots.len() <= place {
            self.slots.push(Slot::default());
        }
        let place = &mut self.slots[place];
        match order.word(0)? {
            "attach" => place.attach(&order),
            "drop" => {
                *place = Slot::default();
                Ok("dropped".into())
            }
            "exit" => std::process::exit(order.number(1)? as i32),
            "spin" => {
                let end = Instant::now() + order.ms(1)?;
                while Instant::now() < end {
                    std::hint::spin_loop();
                }
                Ok("spun".into())
            }
            "limit-fds" => limit_fds(order.number(1)?),
            "limit-memory" => limit_memory(order.number(1)?),
            "in-flight-fds" => {
                let count = order.number(1)?;
                self.in_flight = InFlightFds::default();
                self.in_flight = InFlightFds::of(count as usize).map_err(order_error)?;
                Ok(format!("in-flight-fds {count}"))
            }
            "detach" => place.detach(&order),
            _ => place.order(&order),
        }
    }
}

impl Slot {
    fn attach(&mut self, order: &Order<'_>) -> Answer {
        let mut options = Options::from_environment().map_err(refused)?;
        if let Some(name) = order.option("name") {
            options.name = Some(isthmus_layout::control::Name::new(name).map_err(order_error)?);
        }
        options.no_channels |= order.option("channels") == Some("no");
        options.no_regcache |= order.option("migrate") == Some("no");
        options.wait = match order.option("wait") {
            Some("spin") => WaitMode::Spin,
            Some("sleep") => WaitMode::Sleep,
            _ => options.wait,
        };
        let domain = Domain::attach_with(&options).map_err(refused)?;
        let answer = format!("attached {} {}", domain.id(), domain.name());
        *self = Self { domain: Some(domain), ..Self::default() };
        Ok(answer)
    }

    fn detach(&mut self, order: &Order<'_>) -> Answer {
        let domain = self.domain.take().ok_or("invalid order: not attached")?;
        let over = domain.detach(order.ms(1)?);
        let said: Vec<_> = over.iter().map(|completion| describe(completion, false)).collect();
        Ok(format!("detached {} {}", over.len(), said.join("; ")).trim_end().to_owned())
    }

    fn order(&mut self, order: &Order<'_>) -> Answer {
        let domain = self.domain.as_mut().ok_or("invalid order: not attached")?;
        match order.word(0)? {
            "open" => {
                let index = if order.words.len() > 1 { Some(order.endpoint(1)?) } else { None };
                domain.open(index, "").map(|index| format!("open {index}")).map_err(refused)
            }
            "close" => {
                let index = order.endpoint(1)?;
                domain.close(index).map(|()| format!("closed {index}")).map_err(refused)
            }
            "id" => Ok(format!("domain {}", domain.id())),
            "lookup" => domain.lookup(order.word(1)?).map(|found| format!("found {found}")).map_err(refused),
            "send" => {
                let (at, to, tag) = (order.endpoint(1)?, order.address(2, domain)?, order.number(4)?);
                let bytes = pattern::message(tag, order.number(3)? as usize);
                let posted = domain.send(at, to, tag, bytes.into());
                self.posted(posted)
            }
            "inject" => {
                let (at, to, tag) = (order.endpoint(1)?, order.address(2, domain)?, order.number(4)?);
                let bytes = pattern::message(tag, order.number(3)? as usize);
                Ok(format!("injected {}", domain.inject(at, to, tag, &bytes)))
            }
            "receive" => {
                let posted = domain.receive(order.endpoint(1)?, vec![GUARD; order.number(2)? as usize].into());
                self.posted(posted)
            }
            "wait" => {
                let completion = domain.wait(Some(order.ms(1)?));
                Ok(completion.map_or_else(|| "nothing".into(), |completion| describe(&completion, true)))
            }
            "cancel" => {
                let token = self.tokens.get(&order.number(2)?).ok_or("invalid order: no such token")?;
                Ok(format!("cancelled {}", domain.cancel(order.endpoint(1)?, *token)))
            }
            "channels" => Ok(channels(domain)),
            "fragments" => Ok(fragment_reasons(domain)),
            "connected" => {
                let end = Instant::now() + order.ms(1)?;
                while !domain.is_connected() && Instant::now() < end {
                    if let Some(completion) = domain.wait(Some(Duration::from_millis(10))) {
                        return Err(format!("invalid order: {}", describe(&completion, true)));
                    }
                }
                Ok(format!("connected {}", domain.is_connected()))
            }
            "arm" => Ok(format!("armed {}", domain.arm())),
            "sleep-on-fd" => sleep_on_fd(domain, order.ms(1)?),
            "exchange" => self.exchange(order),
            "drain" => self.drain(order.ms(1)?),
            "poll" => self.call_for(order.ms(1)?),
            "mesh" => mesh(domain, order),
            "query" => {
                let report = domain.query(topic(order.word(1)?)?, &order.words[2..]).map_err(refused)?;
                Ok(format!("report {report}"))
            }
            other => Err(format!("invalid order: {other}")),
        }
    }

    fn posted(&mut self, posted: Result<Token, (Refusal, Buffer)>) -> Answer {
        let token = posted.map_err(|(refusal, _)| refused(refusal))?;
        self.tokens.insert(token.number(), token);
        Ok(format!("posted {}", token.number()))
    }

    fn exchange(&mut self, order: &Order<'_>) -> Answer {
        let domain = self.domain.as_mut().ok_or("invalid order: not attached")?;
        let lengths = |at: usize| pattern::lengths(order.word(at)?).ok_or_else(|| "invalid order: lengths".to_owned());
        let window = order.option("window").map_or(Ok(4), number)? as usize;
        let sends = Sends {
            to: order.address(2, domain)?,
            seed: order.number(3)?,
            lengths: lengths(4)?,
            window,
            buffers: if order.option("buffers") == Some("reused") { Buffers::Reused } else { Buffers::Fresh },
        };
        let room = match order.option("buffer-size") {
            Some("less") => Room::Less,
            Some("more") => Room::More,
            _ => Room::Exact,
        };
        let receives = Receives { seed: order.number(5)?, lengths: lengths(6)?, window, room };
        let mut exchange = Exchange::new(order.endpoint(1)?, sends, receives);
        let limit = order.option("ms").map_or(Ok(50_000), number)?;
        let outcome = exchange.run(domain, Duration::from_millis(limit));
        let progress = exchange.progress();
        self.exchange = Some(exchange);
        outcome.map(|()| format!("exchanged {progress}"))
    }

    fn drain(&mut self, limit: Duration) -> Answer {
        let (Some(domain), Some(mut exchange)) = (self.domain.as_mut(), self.exchange.take()) else {
            return Err("invalid order: nothing to drain".into());
        };
        match exchange.drain(domain, limit) {
            Ok(()) => Ok("drained".into()),
            Err(left) => {
                self.exchange = Some(exchange);
                Err(left)
            }
        }
    }
}

/// All do this at once, so everybody talks with everybody.
fn mesh(domain: &mut Domain, order: &Order<'_>) -> Answer {
    let (at, domains, len) = (order.endpoint(1)?, order.number(2)? as u32, order.number(3)? as usize);
    let end = Instant::now() + order.ms(4)?;
    let (own, others) = (domain.id(), domains as usize - 1);
    for _ in 0..others {
        domain.receive(at, vec![GUARD; len].into()).map_err(|(refusal, _)| refused(refusal))?;
    }
    for peer in (1..=domains).filter_map(DomainId::new).filter(|peer| *peer != own) {
        let tag = u64::from(own.number()) << 32 | u64::from(peer.number());
        let to = EndpointAddress { domain: peer, endpoint: at };
        domain.send(at, to, tag, pattern::message(tag, len).into()).map_err(|(refusal, _)| refused(refusal))?;
    }
    let (mut sent, mut received) = (0, 0);
    while sent < others || received < others {
        let left = end.saturating_duration_since(Instant::now());
        let Some(completion) = domain.wait(Some(left)) else {
            return Err(format!("late: sent {sent} received {received} of {others} {}", channels(domain)));
        };
        match completion.outcome {
            Outcome::Sent { .. } => sent += 1,
            Outcome::Received { from, tag, .. } => {
                let right = u64::from(from.domain.number()) << 32 | u64::from(own.number());
                if tag != right || pattern::first_wrong(tag, len, completion.buffer.as_slice()).is_some() {
                    return Err(describe(&completion, true));
                }
                received += 1;
            }
            _ => return Err(describe(&completion, true)),
        }
    }
    Ok(format!("meshed {others}"))
}

impl Slot {
    fn call_for(&mut self, time: Duration) -> Answer {
        let domain = self.domain.as_mut().ok_or("invalid order: not attached")?;
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match (domain.wait(Some(left)), &mut self.exchange) {
                (Some(completion), Some(exchange)) => exchange.forget(&completion)?,
                (Some(completion), None) => return Err(format!("invalid order: {}", describe(&completion, true))),
                (None, _) if left.is_zero() => return Ok("polled".into()),
                (None, _) => {}
            }
        }
    }
}

/// Arms, sleeps on the descriptor, and says what woke us.
fn sleep_on_fd(domain: &mut Domain, limit: Duration) -> Answer {
    let end = Instant::now() + limit;
    let mut wakes = 0;
    loop {
        if let Some(completion) = domain.poll() {
            return Ok(format!("{} after {wakes}", describe(&completion, true)));
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(format!("nothing after {wakes}"));
        }
        if domain.arm() {
            let descriptor = domain.fd();
            let mut polled = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
            rustix::event::poll(&mut polled, Timespec::try_from(left).ok().as_ref())
                .map_err(|errno| errno.to_string())?;
            wakes += usize::from(!polled[0].revents().is_empty());
        }
    }
}

fn channels(domain: &mut Domain) -> String {
    let say = |status: isthmus_client::ChannelStatus| {
        let path = match status.path {
            PathKind::Channel(_) => "channel".to_owned(),
            PathKind::Daemon(reason) => format!("daemon {}", reason.name()),
        };
        format!("{} {path} messages {} queued {}", status.peer, status.sent.messages, status.queued)
    };
    let all: Vec<_> = domain.channels().into_iter().map(say).collect();
    format!("channels {} {}", all.len(), all.join("; ")).trim_end().to_owned()
}

fn fragment_reasons(domain: &mut Domain) -> String {
    let say = |status: isthmus_client::ChannelStatus| {
        format!("{} {}", status.peer, status.fragmented.map_or("none", isthmus_client::Reason::name))
    };
    let all: Vec<_> = domain.channels().into_iter().map(say).collect();
    format!("fragments {}", all.join("; "))
}

fn describe(completion: &Completion, check: bool) -> String {
    let number = completion.token.number();
    match completion.outcome {
        Outcome::Sent { .. } => format!("sent {number}"),
        Outcome::Cancelled => format!("cancelled {number}"),
        Outcome::Failed(reason) => format!("failed {number} {}", reason.name()),
        Outcome::Received { from, tag, len } => {
            let wrong =
                if check { pattern::first_wrong(tag, len as usize, completion.buffer.as_slice()) } else { None };
            let verdict = wrong.map_or_else(|| "good".to_owned(), |at| format!("WRONG at {at}"));
            format!("received {number} from {from} tag {tag} len {len} {verdict}")
        }
    }
}

fn topic(name: &str) -> Result<Topic, String> {
    Ok(match name {
        "status" => Topic::Status,
        "domains" => Topic::Domains,
        "channels" => Topic::Channels,
        "endpoints" => Topic::Endpoints,
        "why" => Topic::Why,
        "metrics" => Topic::Metrics,
        other => return Err(format!("invalid order: topic {other}")),
    })
}

fn limit_fds(more: u64) -> Answer {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let open = std::fs::read_dir("/proc/self/fd").map_err(order_error)?.count() as u64 - 1; // The one we look through.
    let limit = Rlimit { current: Some(open + more), maximum: getrlimit(Resource::Nofile).maximum };
    setrlimit(Resource::Nofile, limit).map_err(order_error)?;
    Ok(format!("limited to {}", open + more))
}

/// Limits the address space to `more_kib` KiB more than now. The 100 KiB freed before stay on the heap, so that a few messages need no new
/// mapping.
fn limit_memory(more_kib: u64) -> Answer {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    drop(std::hint::black_box(vec![1_u8; 100 << 10]));
    let sizes = std::fs::read_to_string("/proc/self/statm").map_err(order_error)?;
    let pages = number(sizes.split(' ').next().unwrap_or_default())?;
    let limit_kib = pages * (rustix::param::page_size() as u64 >> 10) + more_kib;
    let limit = Rlimit { current: Some(limit_kib << 10), maximum: getrlimit(Resource::As).maximum };
    setrlimit(Resource::As, limit).map_err(order_error)?;
    Ok(format!("limited to {limit_kib} KiB"))
}

fn refused(refusal: impl Display) -> String {
    format!("refused {refusal}")
}

fn order_error(error: impl Display) -> String {
    format!("invalid order: {error}")
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("invalid order: {text} is no number"))
}

/// An order, word by word.
struct Order<'a> {
    words: &'a [&'a str],
}

impl Order<'_> {
    fn word(&self, at: usize) -> Result<&str, String> {
        self.words.get(at).copied().ok_or_else(|| format!("invalid order: word {at} is missing"))
    }

    fn number(&self, at: usize) -> Result<u64, String> {
        number(self.word(at)?)
    }

    fn ms(&self, at: usize) -> Result<Duration, String> {
        self.number(at).map(Duration::from_millis)
    }

    fn endpoint(&self, at: usize) -> Result<EndpointIndex, String> {
        endpoint(self.word(at)?)
    }

    /// `d3.e0`, or `NAME.e0`, which asks the daemon.
    fn address(&self, at: usize, domain: &mut Domain) -> Result<EndpointAddress, String> {
        let word = self.word(at)?;
        let (name, index) = word.rsplit_once('.').ok_or("invalid order: an address is NAME.e0")?;
        let known = name.strip_prefix('d').and_then(|number| number.parse().ok()).and_then(DomainId::new);
        let domain = known.map_or_else(|| domain.lookup(name).map_err(refused), Ok)?;
        Ok(EndpointAddress { domain, endpoint: endpoint(index)? })
    }

    fn option(&self, name: &str) -> Option<&str> {
        self.words.iter().find_map(|word| word.split_once('=').filter(|(is, _)| *is == name).map(|(_, value)| value))
    }
}

fn endpoint(word: &str) -> Result<EndpointIndex, String> {
    let index = word.trim_start_matches('e').parse().ok().and_then(EndpointIndex::new);
    index.ok_or_else(|| format!("invalid order: {word} is no endpoint"))
}
