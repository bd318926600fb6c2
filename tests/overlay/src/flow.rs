//! A TCP stream between two containers that runs while something happens to the network. Its content is compared.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use isthmus_testbed::{Deadline, SeededRandom, eventually};

use crate::stage::Container;

/// The longest time for which a stream may stand still.
const STILL: Duration = Duration::from_secs(60);

/// A running stream.
#[derive(Debug)]
pub struct Flow {
    is_ending: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
    sender: JoinHandle<u64>,
    receiver: JoinHandle<()>,
}

impl Flow {
    /// Starts a stream from a container to an address of another.
    pub fn start(from: &Container, to: &Container, address: Ipv4Addr) -> Self {
        let listener = to.network().with(|| TcpListener::bind((address, 0))).unwrap().unwrap();
        let target = listener.local_addr().unwrap();
        let mut sending = from.network().with(|| TcpStream::connect(target)).unwrap().unwrap();
        sending.set_write_timeout(Some(STILL)).unwrap();
        let mut receiving = listener.accept().unwrap().0;
        receiving.set_read_timeout(Some(STILL)).unwrap();
        let (is_ending, received) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (ending, count) = (Arc::clone(&is_ending), Arc::clone(&received));
        let sender = std::thread::spawn(move || {
            let block = block();
            let mut sent = 0;
            for piece in block.chunks(1 << 16).cycle() {
                if ending.load(Ordering::Relaxed) {
                    break;
                }
                sending.write_all(piece).unwrap();
                sent += piece.len() as u64;
            }
            sending.shutdown(Shutdown::Write).unwrap();
            sent
        });
        let receiver = std::thread::spawn(move || {
            let (block, mut buffer, mut at) = (block(), vec![0; 1 << 16], 0);
            loop {
                let left = buffer.len().min(block.len() - at);
                let len = receiving.read(&mut buffer[..left]).unwrap();
                if len == 0 {
                    break;
                }
                assert!(buffer[..len] == block[at..at + len], "the stream differs within {len} bytes from {at} on");
                at = (at + len) % block.len();
                count.fetch_add(len as u64, Ordering::Relaxed);
            }
        });
        Self { is_ending, received, sender, receiver }
    }

    /// Waits until the stream has moved on by some bytes.
    #[track_caller]
    pub fn wait_for_progress(&self) {
        let before = self.received.load(Ordering::Relaxed);
        let has_moved = || self.received.load(Ordering::Relaxed) > before + 100_000 || self.receiver.is_finished();
        eventually(Deadline::after(STILL), has_moved).unwrap();
    }

    /// Ends the stream, all of which must have arrived.
    #[track_caller]
    pub fn finish(self) {
        self.is_ending.store(true, Ordering::Relaxed);
        let sent = self.sender.join().unwrap();
        self.receiver.join().unwrap();
        assert_eq!(self.received.load(Ordering::Relaxed), sent);
    }
}

/// The content, again and again. Its length is prime, so a lost, doubled or moved part shows.
fn block() -> Vec<u8> {
    let mut random = SeededRandom::seeded(7);
    (0..125_001).flat_map(|_| random.bits().to_le_bytes()).take(1_000_003).collect()
}
