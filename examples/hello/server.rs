//! Replies to each line that a client sends. The client is client.rs or client.c.
//!
//! ```text
//! cargo run --example hello-server -- [NAME]
//! ```
//!
//! The server attaches under NAME ("hello" by default) and runs until it is interrupted with Ctrl-C.
#![forbid(unsafe_code)]

use std::convert::Infallible;
use std::error::Error;
use std::process::ExitCode;

use isthmus_client::{Domain, EndpointIndex, Name, Options};

/// The number of the server's endpoint. The clients use the same number.
const SERVER_ENDPOINT: u8 = 0;
const LINE_BYTES_MAX: usize = 256;

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_else(|| "hello".to_owned());
    let Err(error) = serve(&name);
    eprintln!("server: {error}");
    ExitCode::FAILURE
}

fn serve(name: &str) -> Result<Infallible, Box<dyn Error>> {
    let options = Options { name: Some(Name::new(name)?), ..Options::from_environment()? };
    let mut domain = Domain::attach_with(&options)?;
    let endpoint = domain.open(EndpointIndex::new(SERVER_ENDPOINT), "hello")?;
    println!("{} is ready", domain.name());

    let mut line = [0; LINE_BYTES_MAX];
    loop {
        let received = domain.receive_into(endpoint, &mut line)?;
        let client = received.from.domain;
        // `len` is the length of the whole message. The buffer holds its first bytes if it was longer.
        let len = usize::try_from(received.len)?.min(line.len());
        let text = String::from_utf8_lossy(&line[..len]);
        println!("{client}: {text}");
        let reply = format!("hello, {client}, you said: {text}");
        // The call returns when the bytes may change again. It fails if the client is gone.
        if let Err(refusal) = domain.send_from(endpoint, received.from, 0, reply.as_bytes()) {
            eprintln!("server: send: {refusal}");
        }
    }
}
