//! Cases: the C program (`program.c`), for what perftest does not measure.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::rc::Rc;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::device::Device;
use crate::case::{Case, Reading, Unit, size_name};
use crate::cpu::cpu_ns_during;
use crate::pair::Bench;
use crate::programs::{KillOnDrop, Place};

/// The name of the program in errors.
const PROGRAM: &str = "the C program of verbs";

/// The measurement.
enum Work {
    /// A number of one process, in nanoseconds, by its name.
    Alone { role: [String; 2], key: &'static str },
    /// Half a round trip between two processes with this number of connected queue pairs, of which one is used.
    PingPong { queue_pairs: usize },
    /// CPU time of two processes and their daemon, with this number of connected queue pairs on either side, scaled to a minute.
    Idle { queue_pairs: usize },
    /// The time of an addition to one word of a third process, to which both sides add.
    Add,
    /// The time of a write into memory that cannot move. Its owner sleeps, and a thread of it is woken.
    ServedWrite,
}

/// The time of a run without messages. Five runs, which is the usual number, take half a minute in all.
const IDLE_MS: u64 = 5000;
const IDLE_QUICK_MS: u64 = 1000;
/// Until all have gone to sleep.
const SETTLE_MS: u64 = 500;
const MINUTE_MS: u64 = 60_000;

/// The size of each of many regions.
const REGION_OF_MANY_BYTES: usize = 16 << 10;

/// One measurement.
pub(super) struct Measured {
    name: String,
    device: Rc<Device>,
    work: Work,
}

impl Measured {
    fn new(device: &Rc<Device>, name: String, work: Work) -> Self {
        Self { name, device: Rc::clone(device), work }
    }

    fn alone(device: &Rc<Device>, name: String, role: &str, bytes: usize, key: &'static str) -> Self {
        Self::new(device, name, Work::Alone { role: [role.to_owned(), bytes.to_string()], key })
    }

    /// The registration of memory that was never registered.
    pub(super) fn first(device: &Rc<Device>, bytes: usize) -> Self {
        Self::alone(device, format!("verbs.register.{}.first", size_name(bytes)), "register", bytes, "first_ns")
    }

    /// The next registration of the same memory.
    pub(super) fn again(device: &Rc<Device>, bytes: usize) -> Self {
        Self::alone(device, format!("verbs.register.{}.again", size_name(bytes)), "register", bytes, "again_ns")
    }

    /// The registration of memory while many regions exist.
    pub(super) fn nth(device: &Rc<Device>) -> Self {
        Self::alone(device, "verbs.register.nth".to_owned(), "register_many", REGION_OF_MANY_BYTES, "nth_ns")
    }

    /// The registration of memory while few regions exist.
    pub(super) fn one_of_few(device: &Rc<Device>) -> Self {
        Self::alone(device, "verbs.register.few".to_owned(), "register_many", REGION_OF_MANY_BYTES, "first_ns")
    }

    /// Memory that is copied into a file, which takes its place.
    pub(super) fn remap(device: &Rc<Device>, bytes: usize) -> Self {
        Self::alone(device, format!("copy_and_remap.{}", size_name(bytes)), "remap", bytes, "remap_ns")
    }

    pub(super) fn ping_pong(device: &Rc<Device>, queue_pairs: usize) -> Self {
        let name = format!("verbs.half_rtt.2b.{queue_pairs}qps");
        Self::new(device, name, Work::PingPong { queue_pairs })
    }

    pub(super) fn idle(device: &Rc<Device>, queue_pairs: usize) -> Self {
        Self::new(device, format!("verbs.idle_cpu.{queue_pairs}qps"), Work::Idle { queue_pairs })
    }

    pub(super) fn served_write(device: &Rc<Device>) -> Self {
        Self::new(device, "verbs.write.served".to_owned(), Work::ServedWrite)
    }

    pub(super) fn add(device: &Rc<Device>) -> Self {
        Self::new(device, "verbs.add.both".to_owned(), Work::Add)
    }
}

impl Case for Measured {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn unit(&self) -> Unit {
        if matches!(self.work, Work::Idle { .. }) { Unit::Milliseconds } else { Unit::Microseconds }
    }

    fn run(&self, bench: &Bench) -> Result<Reading> {
        if let Some(why) = self.device.unavailable_reason() {
            return Ok(Reading::Unavailable(why));
        }
        let program = match self.device.program()? {
            Ok(program) => program,
            Err(why) => return Ok(Reading::Unavailable(why)),
        };
        let start = Start { device: &self.device, bench, program };
        Ok(Reading::value(match &self.work {
            Work::Alone { role: [role, bytes], key } => start.alone(role, bytes, key)? / 1e3,
            Work::PingPong { queue_pairs } => start.ping_pong(*queue_pairs)? / 1e3,
            Work::Idle { queue_pairs } => start.idle(*queue_pairs)?,
            Work::Add => start.add()? / 1e3,
            Work::ServedWrite => start.served_write()? / 1e3,
        }))
    }
}

/// Everything that starting the program needs.
struct Start<'a> {
    device: &'a Device,
    bench: &'a Bench,
    program: &'a Path,
}

impl Start<'_> {
    fn side(&self, cpu: usize, role: &str, words: &[&dyn ToString]) -> Result<Side> {
        self.side_with(cpu, role, words, &[])
    }

    fn side_with(&self, cpu: usize, role: &str, words: &[&dyn ToString], variables: &[(&str, &str)]) -> Result<Side> {
        let mut command = self.device.command(self.bench, cpu, self.program)?;
        command.envs(variables.iter().copied());
        command.arg(role).args(words.iter().map(|word| word.to_string()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start {PROGRAM}"))?;
        let stdin = child.stdin.take().context("a program without input")?;
        let stdout = child.stdout.take().map(BufReader::new).context("a program without output")?;
        Ok(Side { child: KillOnDrop(child), stdin, stdout })
    }

    fn budget_ms(&self) -> u128 {
        self.bench.budget.as_millis()
    }

    fn cpus(&self) -> [usize; 2] {
        [self.bench.placement.lead(0), self.bench.placement.follow(0)]
    }

    fn alone(&self, role: &str, bytes: &str, key: &str) -> Result<f64> {
        self.side(self.cpus()[0], role, &[&bytes, &self.budget_ms()])?.number(key)
    }

    fn ping_pong(&self, queue_pairs: usize) -> Result<f64> {
        let [lead, follow] = self.cpus();
        let mut ping = self.side(lead, "ping", &[&queue_pairs, &self.budget_ms()])?;
        let mut pong = self.side(follow, "pong", &[&queue_pairs])?;
        connect(&mut ping, &mut pong)?;
        ping.say("go")?;
        ping.number("half_rtt_ns")
    }

    /// CPU time is read from outside while both sleep, so that start and end do not count.
    fn idle(&self, queue_pairs: usize) -> Result<f64> {
        let [lead, follow] = self.cpus();
        let mut one = self.side(lead, "idle", &[&queue_pairs])?;
        let mut other = self.side(follow, "idle", &[&queue_pairs])?;
        let sides = connect(&mut one, &mut other)?;
        let all = [&sides[..], &[self.device.daemon()?.process()]].concat();
        let ms = if self.bench.quick { IDLE_QUICK_MS } else { IDLE_MS };
        sleep(Duration::from_millis(SETTLE_MS));
        let used = cpu_ns_during(&all, || sleep(Duration::from_millis(ms)))?;
        Ok(used as f64 / 1e6 * MINUTE_MS as f64 / ms as f64)
    }

    /// The mean, because a side that has the word in its cache adds several times. Also checks that the word has the sum.
    fn add(&self) -> Result<f64> {
        let cpus = self.cpus();
        let mut owner = self.side(cpus[0], "own", &[&2])?;
        let done = self.requests(&mut owner, "add", &cpus, "mean_ns")?;
        owner.say("sum")?;
        let (sum, adds) = (owner.number("word")?, done.iter().map(|done| done.0).sum::<f64>());
        ensure!(sum == adds, "{adds} additions have made {sum}");
        Ok(done.iter().map(|done| done.1).sum::<f64>() / 2.0)
    }

    fn served_write(&self) -> Result<f64> {
        let [lead, follow] = self.cpus();
        let mut owner = self.side_with(follow, "own", &[&1], &[("ISTHMUS_RCACHE", "0")])?;
        let done = self.requests(&mut owner, "write", &[lead], "median_ns")?;
        done.first().map(|done| done.1).context("one side has requests")
    }

    /// Starts a side on each of these CPUs, which requests what its role says of the owner's word, all at the same time. Returns their
    /// numbers of requests, and the nanoseconds of one by their name.
    fn requests(&self, owner: &mut Side, role: &str, cpus: &[usize], key: &str) -> Result<Vec<(f64, f64)>> {
        let start = |&cpu: &usize| self.side(cpu, role, &[&self.budget_ms()]);
        let mut sides = cpus.iter().map(start).collect::<Result<Vec<_>>>()?;
        let word = owner.line()?;
        let [address, rkey, queue_pairs @ ..] = &word.split(' ').collect::<Vec<_>>()[..] else {
            bail!("{PROGRAM} says {word:?} instead of its word")
        };
        let mut theirs = format!("{address} {rkey}");
        for (side, queue_pair) in sides.iter_mut().zip(queue_pairs) {
            side.say(&format!("{address} {rkey} {queue_pair}"))?;
            let own = side.line()?;
            let (_, own) = own.rsplit_once(' ').with_context(|| format!("{own:?} names no queue pair"))?;
            theirs.push_str(&format!(" {own}"));
        }
        owner.say(&theirs)?;
        owner.number("connected")?;
        sides.iter_mut().try_for_each(|side| side.number("connected").map(drop))?;
        sides.iter_mut().try_for_each(|side| side.say("go"))?;
        sides.iter_mut().map(|side| Ok((side.number("requests")?, side.number(key)?))).collect()
    }
}

/// Has two sides connect all their queue pairs, and returns their processes.
fn connect(one: &mut Side, other: &mut Side) -> Result<[u32; 2]> {
    let places = [one.line()?, other.line()?];
    one.say(&places[1])?;
    other.say(&places[0])?;
    Ok([one.number("connected")? as u32, other.number("connected")? as u32])
}

/// A running program. Dropping it ends it.
struct Side {
    child: KillOnDrop,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Side {
    /// Returns the next line of its output. If it has ended, its errors.
    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).with_context(|| format!("cannot read what {PROGRAM} says"))?;
        if !line.is_empty() {
            return Ok(line.trim_end().to_owned());
        }
        let mut errors = String::new();
        if let Some(mut stderr) = self.child.0.stderr.take() {
            stderr.read_to_string(&mut errors).context("cannot read a program's errors")?;
        }
        let status = self.child.0.wait().context("cannot wait for a program")?;
        bail!("{PROGRAM} ended with {status}: {}", errors.trim_end())
    }

    /// Returns the number in the first of the next lines that has this name.
    fn number(&mut self, name: &str) -> Result<f64> {
        loop {
            let line = self.line()?;
            if let Some((found, number)) = line.split_once(' ')
                && found == name
            {
                return number.parse().with_context(|| format!("{name} is no number in {line:?}"));
            }
        }
    }

    fn say(&mut self, line: &str) -> Result<()> {
        writeln!(self.stdin, "{line}").with_context(|| format!("cannot write to {PROGRAM}"))
    }
}
