//! Sends a line to the server (server.rs or server.c) and prints the reply.
//!
//! ```text
//! cargo run --example hello-client -- [SERVER [TEXT [SECONDS]]]
//! ```
//!
//! The client waits up to SECONDS (10 by default) for the server to start, and as long for its reply.
#![forbid(unsafe_code)]

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use isthmus_client::{Buffer, Domain, DomainId, EndpointAddress, EndpointIndex, Outcome, Reason, Refusal};

/// The number of the server's endpoint, as in server.rs.
const SERVER_ENDPOINT: u8 = 0;
const REPLY_BYTES_MAX: usize = 512;
/// The pause between two attempts to find the server.
const RETRY: Duration = Duration::from_millis(100);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |at: usize, default| arguments.get(at).map_or(default, String::as_str);
    match greet(argument(0, "hello"), argument(1, "good morning"), argument(2, "10")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("client: {}: {error}", argument(0, "hello"));
            ExitCode::FAILURE
        }
    }
}

fn greet(name: &str, text: &str, seconds: &str) -> Result<(), Box<dyn Error>> {
    let timeout = Duration::from_secs(seconds.parse()?);
    let mut domain = Domain::attach()?;
    let endpoint = domain.open(None, "hello")?;
    let server_endpoint = EndpointIndex::new(SERVER_ENDPOINT).ok_or("the endpoint number is too large")?;
    let server = EndpointAddress { domain: find(&mut domain, name, timeout)?, endpoint: server_endpoint };

    // The receive is posted first and completes later. The send returns when the bytes of `text` may change again.
    let buffer = Buffer::from(vec![0; REPLY_BYTES_MAX]);
    domain.receive(endpoint, buffer).map_err(|(refusal, _buffer)| refusal)?;
    domain.send_from(endpoint, server, 0, text.as_bytes())?;
    let completion = domain.wait(Some(timeout)).ok_or("no reply in time")?;
    match completion.outcome {
        Outcome::Received { len, .. } => {
            let len = usize::try_from(len)?.min(REPLY_BYTES_MAX);
            println!("{name}: {}", String::from_utf8_lossy(&completion.buffer.as_slice()[..len]));
        }
        Outcome::Failed(reason) => return Err(Refusal::from(reason).into()),
        Outcome::Sent { .. } | Outcome::Cancelled => return Err("the receive was cancelled".into()),
    }
    domain.detach(timeout);
    Ok(())
}

/// Returns the number of the domain called `name`, as soon as there is one.
fn find(domain: &mut Domain, name: &str, timeout: Duration) -> Result<DomainId, Refusal> {
    let deadline = Instant::now() + timeout;
    let mut is_waiting = false;
    loop {
        match domain.lookup(name) {
            Err(refusal) if refusal.reason == Reason::NoSuchDomain && Instant::now() < deadline => {}
            result => return result,
        }
        if !is_waiting {
            println!("waiting for {name}");
            is_waiting = true;
        }
        domain.wait(Some(RETRY)); // No operation is pending, so this waits for the whole time.
    }
}
