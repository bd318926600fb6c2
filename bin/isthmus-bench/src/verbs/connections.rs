//! Cases: connections of rdma_cm each second, by `cmtime` of rdmacm-utils, and of TCP.
//!
//! `cmtime` makes all identifiers, then resolves all addresses, and so on, and prints a line for each step. A connection of TCP is accepted
//! by a thread; a request and a reply cross it, as they cross one of rdma_cm.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::Stdio;
use std::rc::Rc;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::device::Device;
use crate::case::{Case, Reading, Unit, not_installed};
use crate::pair::Bench;
use crate::programs::{KillOnDrop, Place, TIMEOUT, find_program, free_port, run_client};

const PROGRAM: &str = "cmtime";

/// The connections of a run, which are all open at once at the end.
const COUNT: u32 = 200;

/// The steps of `cmtime` that make a connection with its queue pair.
const STEPS: [&str; 5] = ["create id", "resolve addr", "resolve route", "create qp", "connect"];

/// Connections of rdma_cm.
#[derive(Debug)]
pub(super) struct Connections(pub(super) Rc<Device>);

impl Connections {
    fn measure(&self, bench: &Bench) -> Result<f64> {
        let program = find_program(PROGRAM).context("cmtime is gone")?;
        let (port, count) = (free_port()?.to_string(), COUNT.to_string());
        let command = |cpu: usize, errors: &str| -> Result<_> {
            let mut command = self.0.command(bench, cpu, &program)?;
            let errors = File::create(self.0.folder()?.join(errors)).context("cannot write a file of errors")?;
            command.args(["-p", &port, "-c", &count]).stdin(Stdio::null()).stderr(errors);
            Ok(command)
        };
        // It never ends. The client waits for it: a question without a listener is asked again.
        let mut server = command(bench.placement.follow(0), "cmtime.server")?;
        let _server = KillOnDrop(server.stdout(Stdio::null()).spawn().context("cannot start the server")?);
        let mut client = command(bench.placement.lead(0), "cmtime.client")?;
        client.args(["-s", "127.0.0.1"]);
        let (status, printed) = run_client(client, None, TIMEOUT)?;
        ensure!(status.success(), "the client ended with {status}: {printed}");
        Ok(f64::from(COUNT) * 1e3 / total_ms(&printed)?)
    }
}

/// The sum of the total times of the steps.
fn total_ms(printed: &str) -> Result<f64> {
    let of_step = |step: &str| -> Result<f64> {
        let line =
            printed.lines().find_map(|line| line.trim_start().strip_prefix(step)?.trim_start().strip_prefix(':'));
        let total = line.and_then(|numbers| numbers.split_whitespace().next()?.parse::<f64>().ok());
        total.with_context(|| format!("no line of {step} in {printed:?}"))
    };
    let total = STEPS.into_iter().map(of_step).sum::<Result<f64>>()?;
    ensure!(total > 0.0, "no time has passed: {printed:?}");
    Ok(total)
}

impl Case for Connections {
    fn name(&self) -> String {
        "cmtime.connect".to_owned()
    }

    fn unit(&self) -> Unit {
        Unit::RequestsPerSecond
    }

    fn run(&self, bench: &Bench) -> Result<Reading> {
        if find_program(PROGRAM).is_none() {
            return Ok(Reading::Unavailable(not_installed(PROGRAM, "package rdmacm-utils")));
        }
        if let Some(why) = self.0.unavailable_reason() {
            return Ok(Reading::Unavailable(why));
        }
        Ok(Reading::value(self.measure(bench).context(PROGRAM)?))
    }
}

/// Connections of TCP.
#[derive(Debug)]
pub(super) struct TcpConnections;

impl TcpConnections {
    fn measure() -> Result<f64> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen")?;
        let address = listener.local_addr()?;
        let server = thread::spawn(move || -> Result<Vec<TcpStream>> {
            let mut open = Vec::new();
            for _ in 0..COUNT {
                let (mut stream, _) = listener.accept()?;
                let mut request = [0; 64];
                stream.read_exact(&mut request)?;
                stream.write_all(&request)?;
                open.push(stream);
            }
            Ok(open)
        });
        let begun = Instant::now();
        let mut open = Vec::new();
        for _ in 0..COUNT {
            let mut stream = TcpStream::connect(address).context("cannot connect")?;
            let mut reply = [0; 64];
            stream.write_all(&reply)?;
            stream.read_exact(&mut reply)?;
            open.push(stream);
        }
        let taken = begun.elapsed().as_secs_f64();
        server.join().map_err(|_| anyhow::anyhow!("the server panicked"))??;
        Ok(f64::from(COUNT) / taken)
    }
}

impl Case for TcpConnections {
    fn name(&self) -> String {
        "tcp.connect".to_owned()
    }

    fn unit(&self) -> Unit {
        Unit::RequestsPerSecond
    }

    fn run(&self, _: &Bench) -> Result<Reading> {
        Ok(Reading::value(Self::measure()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read_by_their_names() {
        let printed = "\
step              total ms     max ms     min us  us / conn
create id    :        0.50       0.01       1.00       1.98
resolve addr :       20.00      18.77   18421.00     208.50
resolve route:        2.50       0.27      59.00      24.78
create qp    :        1.00       0.07      10.00      12.85
connect      :       35.00      34.79   20282.00     352.25
disconnect   :        9.72       7.63     231.00      97.25
";
        assert!(total_ms(printed).is_ok_and(|total| (total - 59.0).abs() < 1e-9));
        assert!(total_ms(&printed.replace("create qp ", "make qp ")).is_err());
        assert!(total_ms("").is_err());
    }

    #[test]
    fn connections_of_tcp_have_a_rate() {
        assert!(TcpConnections::measure().is_ok_and(|rate| rate > 0.0));
    }
}
