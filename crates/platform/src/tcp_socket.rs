//! Facts about a TCP socket of another process, as the kernel records them.
//!
//! Some of these calls wait for the lock of the socket. Its process can hold that lock for any time, so a thread that serves other
//! processes does not call them.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd as _};

use rustix::io::Errno;

/// The state of a connected socket (`TCP_ESTABLISHED`).
pub const ESTABLISHED: u8 = 1;
/// The state of a listening socket (`TCP_LISTEN`).
pub const LISTEN: u8 = 10;

/// The option of a listener that makes it keep the SYN of each connection (`TCP_SAVE_SYN`).
const TCP_SAVE_SYN: c_int = 27;
/// The headers of the SYN that began a connection (`TCP_SAVED_SYN`).
const TCP_SAVED_SYN: c_int = 28;
/// The index of the interface that the socket is bound to (`SO_BINDTOIFINDEX`).
const SO_BINDTOIFINDEX: c_int = 62;
/// The cookie of the socket's network namespace (`SO_NETNS_COOKIE`).
const SO_NETNS_COOKIE: c_int = 71;

/// The offset of `tcpi_options` in `struct tcp_info`, and the bit of a SYN with data.
const TCPI_OPTIONS: usize = 5;
const TCPI_OPT_SYN_DATA: u8 = 32;

/// The offset of `tcpi_bytes_received` in `struct tcp_info` (linux/tcp.h).
const TCPI_BYTES_RECEIVED: usize = 128;

/// The largest IP header, with options, and the largest TCP header.
const SYN_BYTES_MAX: usize = 256;

/// Returns the state of a TCP socket, as in `TCP_INFO`.
pub fn state(socket: impl AsFd) -> Result<u8, Errno> {
    let mut info = [0; 8];
    let bytes = option(&socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info)?;
    if bytes == 0 { Err(Errno::INVAL) } else { Ok(info[0]) }
}

/// Returns whether the connection began with data in its SYN (TCP Fast Open), as in `TCP_INFO`.
pub fn had_data_in_syn(socket: impl AsFd) -> Result<bool, Errno> {
    let mut info = [0; 8];
    let bytes = option(&socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info)?;
    if bytes == info.len() { Ok(info[TCPI_OPTIONS] & TCPI_OPT_SYN_DATA != 0) } else { Err(Errno::INVAL) }
}

/// Returns the number of bytes that a connection has received from the network, as in `TCP_INFO`.
pub fn bytes_received(socket: impl AsFd) -> Result<u64, Errno> {
    let mut info = [0; TCPI_BYTES_RECEIVED + 8];
    let bytes = option(&socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info)?;
    match info.last_chunk() {
        Some(count) if bytes == info.len() => Ok(u64::from_ne_bytes(*count)),
        _ => Err(Errno::INVAL),
    }
}

/// Returns the present value of the clock of the socket's TCP timestamps, in milliseconds.
pub fn timestamp_ms(socket: impl AsFd) -> Result<u32, Errno> {
    let mut value = [0; 4];
    option(&socket, libc::IPPROTO_TCP, libc::TCP_TIMESTAMP, &mut value)?;
    Ok(u32::from_ne_bytes(value))
}

/// Returns the headers of the SYN of an accepted connection, and frees the kernel's copy. Empty if the listener did not keep it.
pub fn take_saved_syn(socket: impl AsFd) -> Result<Vec<u8>, Errno> {
    let mut headers = vec![0; SYN_BYTES_MAX];
    let bytes = option(&socket, libc::IPPROTO_TCP, TCP_SAVED_SYN, &mut headers)?;
    headers.truncate(bytes);
    Ok(headers)
}

/// Makes a listener keep the SYN of each connection.
pub fn save_syns(listener: impl AsFd) -> Result<(), Errno> {
    let on: c_int = 1;
    let (socket, bytes) = (listener.as_fd().as_raw_fd(), size_of_val(&on) as libc::socklen_t);
    // SAFETY: the kernel reads one number, and keeps nothing of it.
    let outcome = unsafe { libc::setsockopt(socket, libc::IPPROTO_TCP, TCP_SAVE_SYN, (&raw const on).cast(), bytes) };
    if outcome == 0 { Ok(()) } else { Err(last_error()) }
}

/// Returns the index of the interface that the socket is bound to; 0 if it is bound to none.
pub fn bound_interface(socket: impl AsFd) -> Result<u32, Errno> {
    let mut value = [0; 4];
    option(&socket, libc::SOL_SOCKET, SO_BINDTOIFINDEX, &mut value)?;
    Ok(u32::from_ne_bytes(value))
}

/// Returns the cookie of the socket's network namespace. Unlike an inode number, it is never used for a later one. Linux before 5.14
/// refuses.
pub fn netns_cookie(socket: impl AsFd) -> Result<u64, Errno> {
    let mut value = [0; 8];
    option(&socket, libc::SOL_SOCKET, SO_NETNS_COOKIE, &mut value)?;
    Ok(u64::from_ne_bytes(value))
}

/// Reads an option as bytes. Returns their number.
fn option(socket: &impl AsFd, level: c_int, name: c_int, into: &mut [u8]) -> Result<usize, Errno> {
    let mut bytes = libc::socklen_t::try_from(into.len()).map_err(|_| Errno::INVAL)?;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `bytes` bytes, which `into` has. It keeps nothing of it.
    let outcome = unsafe { libc::getsockopt(socket, level, name, into.as_mut_ptr().cast(), &raw mut bytes) };
    if outcome != 0 {
        return Err(last_error());
    }
    Ok((bytes as usize).min(into.len()))
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    #[test]
    fn connection_keeps_its_syn_and_counts_milliseconds() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        save_syns(&listener).unwrap();
        let connector = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (acceptor, _) = listener.accept().unwrap();
        assert_eq!([state(&listener), state(&connector), state(&acceptor)], [Ok(LISTEN), Ok(1), Ok(ESTABLISHED)]);
        assert_eq!(netns_cookie(&connector).unwrap(), netns_cookie(&acceptor).unwrap());
        assert_eq!((bound_interface(&connector), bound_interface(&acceptor)), (Ok(0), Ok(0)));
        let syn = take_saved_syn(&acceptor).unwrap();
        assert_eq!((syn[0] >> 4, syn.len() > 40), (4, true), "{syn:?}");
        assert!(take_saved_syn(&acceptor).unwrap().is_empty(), "it is read once");
        assert_eq!((&connector).write(&[0; 1000]).unwrap(), 1000);
        (&acceptor).read_exact(&mut [0; 1000]).unwrap();
        assert_eq!((bytes_received(&acceptor), bytes_received(&connector)), (Ok(1000), Ok(0)));
        let first = timestamp_ms(&connector).unwrap();
        assert!(timestamp_ms(&connector).unwrap().wrapping_sub(first) < 60_000);
    }

    /// Connects with data in the SYN, in a network namespace where that needs no cookie.
    #[test]
    fn data_in_the_syn_is_seen_at_both_ends() {
        let connect = || {
            // SAFETY: a call without pointers. Only this thread leaves the namespace of the process.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return eprintln!("skipped: a network namespace cannot be made");
            }
            let up = std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status();
            if !up.is_ok_and(|status| status.success())
                || std::fs::write("/proc/sys/net/ipv4/tcp_fastopen", "1543").is_err()
            {
                return eprintln!("skipped: the kernel's setting cannot be changed");
            }
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let client =
                rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
            let fast_open = rustix::net::SendFlags::from_bits_retain(libc::MSG_FASTOPEN as u32);
            rustix::net::sendto(&client, b"hello", fast_open, &listener.local_addr().unwrap()).unwrap();
            let (server, _) = listener.accept().unwrap();
            assert_eq!([had_data_in_syn(&client), had_data_in_syn(&server)], [Ok(true); 2]);
            let plain = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (accepted, _) = listener.accept().unwrap();
            assert_eq!([had_data_in_syn(&plain), had_data_in_syn(&accepted)], [Ok(false); 2]);
        };
        std::thread::spawn(connect).join().unwrap();
    }

    #[test]
    fn no_socket_has_no_state() {
        let (pipe, _) = rustix::pipe::pipe().unwrap();
        assert_eq!((state(&pipe), netns_cookie(&pipe)), (Err(Errno::NOTSOCK), Err(Errno::NOTSOCK)));
    }
}
