//! A program that has a stream with another one, and misuses all that comes with it.

use std::io::{self, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

use isthmus_client::Options;
use isthmus_client::sockets::{StreamEvent, StreamSession, SynTime};
use isthmus_layout::sockets::{BOARD_SIZE, WAITER_WORDS, WAITERS_MAX};
use isthmus_platform::{Doorbell, Ring as _};
use isthmus_shm::{Access, Mapping, SharedMapping, Words as _};
use rustix::process::Uid;
use rustix::time::{ClockId, clock_gettime};

use crate::deadline::{Deadline, eventually};

/// Bytes that are sent one by one before the other end has learned of the stream, and after that.
const BYTES_MAX: usize = 31;

/// After the first bytes, one is sent on one of this number of looks: a busy server may read many at once.
const EAGER_BYTES: usize = 8;
const RARE: usize = 16;

/// A program with a board and a doorbell of another one.
#[derive(Debug)]
pub struct HostileStreamPeer {
    _session: StreamSession,
    _connection: TcpStream,
    board: SharedMapping,
    doorbell: Doorbell,
}

impl HostileStreamPeer {
    /// Connects as a user to a server of the loopback interface that is worth a stream after one byte, and becomes the peer of its waiter.
    /// Sends some bytes, fewer than 64.
    pub fn connect(daemon: PathBuf, owner: u32, port: u16, deadline: Deadline) -> io::Result<Self> {
        let mut session = attach(Options { socket: Some(daemon), ..Options::default() }, owner)?;
        let since_ms = now_ms();
        let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        session
            .show(1, connection.as_fd(), Some(SynTime { since_ms, until_ms: now_ms() }))
            .map_err(|refusal| io::Error::other(refusal.to_string()))?;
        connection.set_nodelay(true)?;
        let (mut board, mut doorbell, mut sent, mut looks) = (None, None, 0, 0);
        let is_peer = || {
            match session.next_event() {
                Ok(Some(StreamEvent::Paired { board: file, .. })) => (board, sent) = (file, 0),
                Ok(Some(StreamEvent::Waiter { doorbell: bell, .. })) => doorbell = Some(bell),
                _ => {}
            }
            // The server learns of the stream, and attaches, in calls about this connection.
            looks += 1;
            let is_due = sent < EAGER_BYTES || looks % RARE == 0;
            if is_due && sent < BYTES_MAX && connection.write_all(&[0]).is_ok() {
                sent += 1;
            }
            board.is_some() && doorbell.is_some()
        };
        eventually(deadline, is_peer).map_err(|error| io::Error::other(error.to_string()))?;
        let missing = || io::Error::other("no board or no doorbell");
        let mapping = Mapping::new(&board.ok_or_else(missing)?, BOARD_SIZE, Access::ReadWrite);
        let board = SharedMapping::new(mapping.map_err(|error| io::Error::other(error.to_string()))?);
        let doorbell = doorbell.ok_or_else(missing)?;
        Ok(Self { _session: session, _connection: connection, board, doorbell })
    }

    /// Writes all words of the board, and rings until the doorbell takes no more.
    pub fn attack(&self, value: u32) {
        for word in 0..u32::from(WAITERS_MAX) * WAITER_WORDS {
            self.board.store(word, value, Relaxed);
        }
        for _ in 0..1000 {
            self.doorbell.ring();
        }
    }
}

/// Attaches to streams as a user. The kernel reports the credentials of the connecting thread, and a thread may have another user than its
/// process.
fn attach(options: Options, owner: u32) -> io::Result<StreamSession> {
    let attach = move || {
        let uid = Uid::from_raw(owner);
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
        let attached = StreamSession::attach(&options, |socket| socket);
        attached.map(|attached| attached.session).map_err(|refusal| io::Error::other(refusal.to_string()))
    };
    std::thread::spawn(attach).join().map_err(|_| io::Error::other("the thread panicked"))?
}

/// Milliseconds of the clock by which programs state the time of a SYN.
fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}
