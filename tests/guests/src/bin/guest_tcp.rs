//! Measures the kernel's TCP between two machines: a ping-pong or a stream, with the arguments and the output of `mx_measure`.
//!
//! ```text
//!   guest_tcp [-w]                                             serves one client; prints: endpoint 9
//!   guest_tcp [-w] -d ADDRESS -r PORT -k KIND -s BYTES -t MS   measures; prints `half_rtt_ns 123.4`, or `elapsed_ns` and `messages`
//! ```
//!
//! Sockets block, with and without `-w`. A server returns the messages of a ping-pong, and the number of bytes of a stream.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

const PORT: u16 = 9;

/// The longest message.
const BYTES_MAX: usize = 64 << 20;

/// The number of batches of a ping-pong, the median of which is its time.
const BATCHES: u32 = 40;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "-w").collect();
    let given: BTreeMap<&str, &str> = words.chunks(2).filter_map(|pair| Some((&*pair[0], &**pair.get(1)?))).collect();
    let option = |name: &str| given.get(name).copied().ok_or_else(|| format!("{name} is missing"));
    if given.is_empty() {
        return serve();
    }
    let mut stream = TcpStream::connect((option("-d")?, option("-r")?.parse()?))?;
    stream.set_nodelay(true)?;
    let (size, budget) = (option("-s")?.parse::<usize>()?, Duration::from_millis(option("-t")?.parse()?));
    let is_stream = option("-k")? == "stream";
    stream.write_all(&[u64::from(is_stream), size as u64].map(u64::to_le_bytes).concat())?;
    let mut message = vec![0x5a; size];
    if is_stream { send(&mut stream, &message, budget) } else { ping(&mut stream, &mut message, budget) }
}

fn serve() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
    println!("endpoint {PORT}");
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let (is_stream, size) = (word(&mut stream)? != 0, usize::try_from(word(&mut stream)?)?);
    if size > BYTES_MAX {
        return Err("the client asks for too much".into());
    }
    let mut message = vec![0; size];
    if is_stream {
        let mut bytes = 0;
        loop {
            match stream.read(&mut message)? {
                0 => break,
                some => bytes += some as u64,
            }
        }
        stream.write_all(&bytes.to_le_bytes())?;
        return Ok(());
    }
    while stream.read_exact(&mut message).is_ok() {
        stream.write_all(&message)?;
    }
    Ok(())
}

fn word(stream: &mut TcpStream) -> Result<u64, std::io::Error> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Sends messages for the time of `budget`, and waits until the server has received all of them.
fn send(stream: &mut TcpStream, message: &[u8], budget: Duration) -> Result<(), Box<dyn Error>> {
    let (begun, mut messages) = (Instant::now(), 0);
    while begun.elapsed() < budget {
        stream.write_all(message)?;
        messages += 1;
    }
    stream.shutdown(Shutdown::Write)?;
    if word(stream)? != messages * message.len() as u64 {
        return Err("bytes were lost".into());
    }
    println!("elapsed_ns {}\nmessages {messages}", begun.elapsed().as_nanos());
    Ok(())
}

fn ping(stream: &mut TcpStream, message: &mut [u8], budget: Duration) -> Result<(), Box<dyn Error>> {
    let mut rounds = |count: u32| -> Result<Duration, std::io::Error> {
        let begun = Instant::now();
        for _ in 0..count {
            stream.write_all(message)?;
            stream.read_exact(message)?;
        }
        Ok(begun.elapsed())
    };
    let mut count = 1;
    while rounds(count)? < budget / 20 {
        count *= 2;
    }
    let batch = (count * 20 / BATCHES).max(1);
    let mut halves =
        (0..BATCHES).map(|_| Ok(rounds(batch)? / (2 * batch))).collect::<Result<Vec<_>, std::io::Error>>()?;
    halves.sort_unstable();
    println!("half_rtt_ns {}", halves[halves.len() / 2].as_nanos());
    Ok(())
}
