//! TCP sockets of this host, as /proc shows them.
//!
//! ```text
//! PID:FD ─ /proc/PID/fd/FD ─▶ inode ─ /proc/PID/net/tcp, tcp6 ─▶ Socket: addresses, state
//! Socket ─ the same files of each network namespace ─▶ the socket with these addresses mirrored ─ /proc/*/fd ─▶ processes
//! ```

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::process::printable;

/// A row of the tables of TCP sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Socket {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) state: &'static str,
    /// 0 if no program has the socket any more.
    pub(super) inode: u64,
}

/// The socket at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OtherEnd {
    /// No socket of this host has the addresses of the other end.
    NotHere,
    /// Sockets of several network namespaces have them.
    Ambiguous,
    /// The program has closed the socket.
    Closed,
    /// The program has not accepted the connection yet.
    Queued,
    /// The socket is here, and its program is not visible to this user.
    Hidden,
    /// Processes with the socket: at least one.
    Held(Vec<u32>),
}

/// The states of TCP, in the order of the kernel's numbers from 1.
const STATES: [&str; 12] = [
    "established",
    "syn-sent",
    "syn-received",
    "fin-wait-1",
    "fin-wait-2",
    "time-wait",
    "closed",
    "close-wait",
    "last-ack",
    "listening",
    "closing",
    "syn-received",
];

/// The state of a socket that is in no table.
pub(super) const CLOSED: &str = "closed";
pub(super) const LISTENING: &str = "listening";

impl Socket {
    /// Finds the TCP socket of a descriptor. The error says what the descriptor is otherwise.
    pub(super) fn of_descriptor(pid: u32, fd: u32) -> Result<Self> {
        let inode = inode_of(pid, fd)?;
        let all = table(&format!("/proc/{pid}"))
            .with_context(|| format!("cannot list the TCP sockets of the network namespace of process {pid}"))?;
        let unspecified = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let unconnected = || Self { local: unspecified, remote: unspecified, state: CLOSED, inode };
        Ok(all.into_iter().find(|socket| socket.inode == inode).unwrap_or_else(unconnected))
    }

    /// True if the socket has another end.
    pub(super) fn is_connected(&self) -> bool {
        ![CLOSED, LISTENING].contains(&self.state)
    }

    /// Finds the socket at the other end of a connection of a process.
    pub(super) fn other_end(&self, pid: u32) -> OtherEnd {
        let mirrored = |socket: &Self| socket.local == self.remote && socket.remote == self.local;
        let own = table(&format!("/proc/{pid}")).unwrap_or_default().into_iter().find(mirrored);
        let ends = match own {
            Some(end) => vec![end],
            // A loopback address of another namespace is another machine's.
            None if self.remote.ip().is_loopback() => Vec::new(),
            None => other_namespaces(pid).filter_map(|all| all.into_iter().find(mirrored)).collect(),
        };
        match ends.as_slice() {
            [] => OtherEnd::NotHere,
            // A socket that was closed leaves these states, and one that waits in a queue has no inode.
            [end] if end.inode == 0 && ["established", "close-wait"].contains(&end.state) => OtherEnd::Queued,
            [end] if end.inode == 0 => OtherEnd::Closed,
            [end] => match holders(end.inode) {
                none if none.is_empty() => OtherEnd::Hidden,
                pids => OtherEnd::Held(pids),
            },
            _ => OtherEnd::Ambiguous,
        }
    }

    fn parse(row: &str) -> Option<Self> {
        let fields: Vec<&str> = row.split_whitespace().collect();
        let state = usize::from_str_radix(fields.get(3)?, 16).ok()?;
        Some(Self {
            local: address(fields.get(1)?)?,
            remote: address(fields.get(2)?)?,
            state: STATES.get(state.checked_sub(1)?)?,
            inode: fields.get(9)?.parse().ok()?,
        })
    }
}

/// Returns the inode of a TCP socket.
fn inode_of(pid: u32, fd: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/fd/{fd}");
    let target = match std::fs::read_link(&path) {
        Ok(target) => printable(&target.to_string_lossy()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => bail!(
            "the descriptors of process {pid} are not visible to this user; run `isthmus why` as root, or as the user of the process"
        ),
        Err(_) if !PathBuf::from(format!("/proc/{pid}")).exists() => bail!("there is no process {pid}"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!("process {pid} has no descriptor {fd}; `ls -l /proc/{pid}/fd` lists those it has")
        }
        Err(error) => return Err(error).context(format!("cannot read {path}")),
    };
    let Some(inode) = inode_in(&target) else { bail!("{pid}:{fd} is {target}, not a socket") };
    match protocol(&path).as_deref() {
        Some("TCP" | "TCPv6") | None => Ok(inode),
        Some(other) => bail!("{pid}:{fd} is a socket of {other}, not of TCP"),
    }
}

fn inode_in(target: &str) -> Option<u64> {
    target.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Returns the kernel's name of a socket's protocol.
fn protocol(path: &str) -> Option<String> {
    let mut name = [0u8; 64];
    let length = rustix::fs::getxattr(path, "system.sockprotoname", &mut name).ok()?;
    Some(String::from_utf8_lossy(&name[..length]).trim_end_matches('\0').to_owned())
}

/// Lists the TCP sockets of the network namespace of a process.
fn table(process: &str) -> io::Result<Vec<Socket>> {
    let mut all = Vec::new();
    for name in ["tcp", "tcp6"] {
        match std::fs::read_to_string(format!("{process}/net/{name}")) {
            Ok(text) => all.extend(text.lines().skip(1).filter_map(Socket::parse)),
            // A kernel without IPv6.
            Err(error) if name == "tcp6" && error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

fn namespace(pid: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/net")).ok()
}

/// Returns whether two processes are in different network namespaces, as far as this user can see.
pub(super) fn are_in_two_namespaces(one: u32, other: u32) -> bool {
    namespace(one).zip(namespace(other)).is_some_and(|(one, other)| one != other)
}

/// Lists the TCP sockets of each network namespace but that of this process.
fn other_namespaces(pid: u32) -> impl Iterator<Item = Vec<Socket>> {
    let mut known: BTreeSet<PathBuf> = namespace(pid).into_iter().collect();
    let is_new = move |pid: &u32| namespace(*pid).is_some_and(|found| known.insert(found));
    processes().into_iter().filter(is_new).filter_map(|pid| table(&format!("/proc/{pid}")).ok())
}

/// Returns the processes with a descriptor of a socket.
pub(super) fn holders(inode: u64) -> Vec<u32> {
    let holds = |pid: &u32| {
        let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let target = |path: PathBuf| inode_in(&std::fs::read_link(path).ok()?.to_string_lossy());
        fds.map(|entry| entry.path()).any(|path| target(path) == Some(inode))
    };
    processes().into_iter().filter(holds).collect()
}

fn processes() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    pids
}

/// Reads an address as the tables show it: words of memory in hexadecimal digits, and the port. IPv4 in IPv6 becomes IPv4.
fn address(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.split_once(':')?;
    let words = host.as_bytes().chunks(8).map(|digits| u32::from_str_radix(str::from_utf8(digits).ok()?, 16).ok());
    let bytes: Vec<u8> = words.collect::<Option<Vec<u32>>>()?.into_iter().flat_map(u32::to_ne_bytes).collect();
    let host = match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
        16 => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
        _ => return None,
    };
    Some(SocketAddr::new(host.to_canonical(), u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn rows_of_both_tables_are_read() {
        let row = |text: &str| Socket::parse(text).expect("a row");
        let v4 = row(
            "  12: 0100007F:C43D 0200000A:0050 08 00000000:00000000 00:00000000 00000000  1000        0 4198603 1 0 100",
        );
        assert_eq!((v4.local.to_string(), v4.remote.to_string()), ("127.0.0.1:50237".into(), "10.0.0.2:80".into()));
        assert_eq!((v4.state, v4.inode, v4.is_connected()), ("close-wait", 4_198_603, true));
        let v6 = row(
            "0: 00000000000000000000000001000000:0016 0000000000000000FFFF00000100007F:0017 0A 0:0 00:0 0 0 0 7 1 0 100",
        );
        assert_eq!((v6.local.to_string(), v6.remote.to_string()), ("[::1]:22".into(), "127.0.0.1:23".into()));
        assert_eq!((v6.state, v6.is_connected()), (LISTENING, false));
        for bad in [
            "",
            "0: 0100007F:C43D 0200000A:0050 00 0 0 0 0 0 7",
            "0: 0100007F:C43D 0200000A:0050 0D 0 0 0 0 0 7",
            "0: 0100007F0A:1 02000000:2 01 0 0 0 0 0 7",
        ] {
            assert_eq!(Socket::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn other_end_of_a_connection_of_this_process_is_found() {
        let own = std::process::id();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let connected = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
        let of = |fd: i32| Socket::of_descriptor(own, u32::try_from(fd).expect("a descriptor")).expect("a socket");
        let end = of(connected.as_raw_fd());
        assert_eq!(end.other_end(own), OtherEnd::Queued);
        let (accepted, _) = listener.accept().expect("accepted");
        assert_eq!((end.remote, end.state), (accepted.local_addr().expect("an address"), "established"));
        assert_eq!(end.other_end(own), OtherEnd::Held(vec![own]));
        assert_eq!(of(listener.as_raw_fd()).state, LISTENING);
        drop(accepted);
        assert!(matches!(end.other_end(own), OtherEnd::Closed | OtherEnd::NotHere));
    }
}
