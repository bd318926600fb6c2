//! The kernel's record of a TCP connection: the initial sequence numbers of both directions, and the time, as one end of it has them.
//!
//! ```text
//!   isthmus-helper ── Recorder::load ──► program of the root cgroup ── at the end of a handshake ──► record on the socket
//!   isthmusd ───────── RecordMap::read(socket) ◄───────────────────────────────────────────────────────┘
//! ```
//!
//! The two ends of one connection have the same numbers, one as sent and the other as received. Addresses do not matter, so that holds
//! across network namespaces and address translation, too. The kernel draws each number from a secret, the addresses and a clock of 64 ns.
//! A program that sees the packets of a connection knows them, and can inject data into the connection anyway. Another one that knows the
//! addresses can measure their part of the secret, in a namespace of its own. It still has to guess both times, and to have a socket with
//! these numbers established in [`APART_NS_MAX`] of the connection.
//!
//! By `TCP_REPAIR` a program could put a socket into the established state, or set the number of its next connection. A second program
//! marks each socket on which that option is set. The number of a socket that connects again follows from that of its connection before, and
//! from the bytes that it has sent, so such a socket is marked, too. A marked socket has no record. The record lies in the socket's own storage: it goes with the socket, and its readers need no privilege.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd, RawFd};

use rustix::fd::BorrowedFd;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::bpf::{
    self, A_MAP, CALL, EXIT, JUMP_UNLESS, LINK_CREATE, LOAD_CONSTANT, LOAD_WORD, MAP_CREATE, MOVE, PROG_LOAD, SET,
    address, attribute, descriptor, op, pair,
};
use crate::sys;

/// The nanoseconds by which the ends of one connection may be established apart. It is short, because it is the time that another program
/// has for guessing. A connection of which a packet of the handshake was lost and repeated stays without a pair.
pub const APART_NS_MAX: u64 = 250_000_000;

/// Folders where the hierarchy of cgroups of version 2 is mounted, alone or beside those of version 1.
const CGROUP_FOLDERS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// `CGROUP2_SUPER_MAGIC` (linux/magic.h).
const CGROUP2_MAGIC: u64 = 0x6367_7270;

/// The record of one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionRecord {
    /// The number of the first byte that this end sends.
    pub sent: u32,
    /// The number of the first byte that this end receives.
    pub received: u32,
    /// The time at which this end was established, in nanoseconds of `CLOCK_MONOTONIC`.
    pub at_ns: u64,
}

impl ConnectionRecord {
    /// The numbers of this end.
    pub fn numbers(&self) -> (u32, u32) {
        (self.sent, self.received)
    }

    /// The numbers that the other end of the connection has.
    pub fn mirrored(&self) -> (u32, u32) {
        (self.received, self.sent)
    }

    /// Returns whether the two are records of one connection.
    pub fn is_other_end_of(&self, other: &Self) -> bool {
        self.numbers() == other.mirrored() && self.at_ns.abs_diff(other.at_ns) <= APART_NS_MAX
    }
}

/// The step that the kernel refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// No hierarchy of cgroups of version 2 is mounted where it usually is.
    #[error("no cgroup2 file system is mounted at /sys/fs/cgroup or /sys/fs/cgroup/unified")]
    NoCgroups,
    /// The kernel refused a step.
    #[error("{step}: {errno}")]
    Refused {
        /// The step.
        step: &'static str,
        /// The error of the kernel.
        errno: Errno,
    },
}

/// The programs that make records, as long as a descriptor of each is open.
#[derive(Debug)]
pub struct Recorder {
    /// The records.
    pub map: RecordMap,
    /// Keep the programs attached: the one that writes records, and the one that marks sockets.
    pub links: [OwnedFd; 2],
}

impl Recorder {
    /// Loads the programs, and attaches them to the root of the hierarchy of cgroups that this process sees. Needs `CAP_BPF` and
    /// `CAP_NET_ADMIN`.
    pub fn load() -> Result<Self, LoadError> {
        let cgroup = open_cgroups().ok_or(LoadError::NoCgroups)?;
        let refused = |step| move |errno| LoadError::Refused { step, errno };
        let types = load_types().map_err(refused("describing the record to the kernel"))?;
        let map = create_map(&types).map_err(refused("creating the storage of records"))?;
        // Marks come first, so that no socket is recorded without.
        let marking = attach(SETTING_OPTIONS, &marking_instructions(map.as_raw_fd()), cgroup.as_fd());
        let marking = marking.map_err(refused("attaching the program for socket options to the root cgroup"))?;
        let recording = attach(SOCKET_EVENTS, &recording_instructions(map.as_raw_fd()), cgroup.as_fd());
        let recording = recording.map_err(refused("attaching the program for connections to the root cgroup"))?;
        Ok(Self { map: RecordMap(map), links: [recording, marking] })
    }
}

/// The storage of records.
#[derive(Debug)]
pub struct RecordMap(OwnedFd);

impl TryFrom<OwnedFd> for RecordMap {
    type Error = Errno;

    /// Takes the map of a [`Recorder`], as received from another process. The error is `INVAL` for any other map.
    fn try_from(map: OwnedFd) -> Result<Self, Errno> {
        // The first words of `struct bpf_map_info`: the type and a number, the sizes of the key and of the value.
        let mut info = [0_u64; 2];
        let length = size_of_val(&info) as u32;
        let mut attribute = attribute([pair(map.as_raw_fd().cast_unsigned(), length), info.as_mut_ptr() as u64]);
        // SAFETY: the kernel writes at most `length` bytes, which the words have.
        unsafe { sys::bpf(OBJECT_INFO, &mut attribute)? };
        let kind = info[0] as u32;
        if kind == SOCKET_STORAGE && info[1] == pair(KEY_BYTES, VALUE_BYTES) {
            Ok(Self(map))
        } else {
            Err(Errno::INVAL)
        }
    }
}

impl AsFd for RecordMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl RecordMap {
    /// Reads the record of a socket. None if it has none: the socket is not connected, was established before the program was attached, is
    /// marked, or belongs to another hierarchy of cgroups.
    pub fn read(&self, socket: impl AsFd) -> Result<Option<ConnectionRecord>, Errno> {
        let (key, mut value) = ([socket.as_fd().as_raw_fd()], [0_u64; 2]);
        let mut attribute =
            attribute([pair(self.0.as_raw_fd().cast_unsigned(), 0), address(&key), value.as_mut_ptr() as u64]);
        // SAFETY: the kernel reads a descriptor and writes two words. These are the sizes of the map, which were checked when it was
        // taken, or with which it was created.
        match unsafe { sys::bpf(MAP_LOOKUP, &mut attribute) } {
            Ok(_) => {}
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        // The first word holds two numbers in the order of memory.
        let [a, b, c, d, e, f, g, h] = value[0].to_ne_bytes();
        let [sent, received] = [[a, b, c, d], [e, f, g, h]].map(u32::from_ne_bytes);
        let is_recorded = value[1] != 0 && value[1].cast_signed() != i64::from(MARK);
        Ok(is_recorded.then_some(ConnectionRecord { sent, received, at_ns: value[1] }))
    }
}

/// Opens the root of the hierarchy of cgroups of version 2.
fn open_cgroups() -> Option<OwnedFd> {
    CGROUP_FOLDERS.into_iter().find_map(|folder| {
        let opened = rustix::fs::openat(CWD, folder, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let is_cgroup2 = rustix::fs::fstatfs(&opened).is_ok_and(|found| found.f_type as u64 == CGROUP2_MAGIC);
        is_cgroup2.then_some(opened)
    })
}

const MAP_LOOKUP: u32 = 1;
const OBJECT_INFO: u32 = 15;
const SOCKET_STORAGE: u32 = 24;
const KEY_BYTES: u32 = size_of::<RawFd>() as u32;
const VALUE_BYTES: u32 = size_of::<[u64; 2]>() as u32;
const TYPES_LOAD: u32 = 18;

/// The numbers of the types in [`load_types`].
const NUMBER_TYPE: u32 = 1;
const RECORD_TYPE: u32 = 3;

/// Describes the key, a number, and the value, an array of two words of 64 bits (BTF, linux/btf.h).
fn load_types() -> Result<OwnedFd, Errno> {
    const NAMES: &[u8; 9] = b"\0int\0u64\0";
    const INTEGER: u32 = 1 << 24;
    const ARRAY: u32 = 3 << 24;
    const SIGNED: u32 = 1 << 24;
    const TYPES: [u32; 14] = [1, INTEGER, 4, SIGNED | 32, 5, INTEGER, 8, 64, 0, ARRAY, 0, 2, NUMBER_TYPE, 2];
    let (types_bytes, names_bytes) = (size_of_val(&TYPES) as u32, NAMES.len() as u32);
    let mut description = Vec::from(0xEB9F_u16.to_ne_bytes());
    description.extend([1, 0]); // Version, flags.
    let head = [24, 0, types_bytes, types_bytes, names_bytes]; // The length of the head, then places and lengths.
    description.extend(head.into_iter().chain(TYPES).flat_map(u32::to_ne_bytes));
    description.extend(NAMES);
    let mut attribute = attribute([address(&description), 0, description.len() as u64]);
    // SAFETY: the kernel reads the description, in its length.
    descriptor(unsafe { sys::bpf(TYPES_LOAD, &mut attribute)? })
}

fn create_map(types: &OwnedFd) -> Result<OwnedFd, Errno> {
    const WITHOUT_PREALLOCATION: u64 = 1;
    let types = pair(types.as_raw_fd().cast_unsigned(), NUMBER_TYPE);
    let head = [pair(SOCKET_STORAGE, KEY_BYTES), VALUE_BYTES.into(), WITHOUT_PREALLOCATION];
    bpf::made(MAP_CREATE, [head[0], head[1], head[2], 0, 0, 0, types, RECORD_TYPE.into()])
}

const LOAD_LONG: u8 = 0x79;
const STORE_WORD: u8 = 0x63;
const STORE_LONG: u8 = 0x7B;
const JUMP_IF: u8 = 0x15;
const STORAGE_GET: i32 = 107;
const CREATE: i32 = 1;

const RETURN_1: u64 = op(SET, 0, 0, 0, 1);
const RETURN: u64 = op(EXIT, 0, 0, 0, 0);

/// At the end of a handshake, they write the record of the socket. They mark a socket that connects or is established again, or without a
/// packet: its number is not drawn by the kernel alone.
fn recording_instructions(map: RawFd) -> [u64; 45] {
    // Fields of `struct bpf_sock_ops`.
    const EVENT: i16 = 0;
    const RECEIVED_NEXT: i16 = 100;
    const SENT_NEXT: i16 = 104;
    const SOCKET: i16 = 184;
    const PACKET_BYTES: i16 = 208;
    const CONNECTS: i32 = 3;
    const CONNECTOR_ESTABLISHED: i32 = 4;
    const ACCEPTOR_ESTABLISHED: i32 = 5;
    const KTIME_GET_NS: i32 = 5;
    // Fields of a record, as long words: both numbers, the time.
    const NUMBERS: i16 = 0;
    const TIME: i16 = 8;
    [
        op(MOVE, 6, 1, 0, 0),           // r6: the context
        op(LOAD_WORD, 7, 6, EVENT, 0),  // r7: the event
        op(LOAD_LONG, 2, 6, SOCKET, 0), // r2: the socket
        op(JUMP_IF, 7, 0, 4, CONNECTS),
        op(JUMP_IF, 7, 0, 3, CONNECTOR_ESTABLISHED),
        op(JUMP_IF, 7, 0, 2, ACCEPTOR_ESTABLISHED),
        RETURN_1,
        RETURN,
        op(JUMP_UNLESS, 2, 0, 2, 0),
        RETURN_1,
        RETURN,
        op(LOAD_CONSTANT, 1, A_MAP, 0, map), // r1: the map, in two instructions
        op(0, 0, 0, 0, 0),
        op(SET, 3, 0, 0, 0), // r3: no first value
        op(SET, 4, 0, 0, CREATE),
        op(JUMP_UNLESS, 7, 0, 1, CONNECTOR_ESTABLISHED),
        op(SET, 4, 0, 0, 0), // the connect has created it, or was before this program
        op(CALL, 0, 0, 0, STORAGE_GET),
        op(JUMP_UNLESS, 0, 0, 2, 0), // without memory there is no record
        RETURN_1,
        RETURN,
        op(MOVE, 9, 0, 0, 0), // r9: the record
        op(LOAD_LONG, 1, 9, TIME, 0),
        op(JUMP_IF, 1, 0, 4, 0),
        op(SET, 1, 0, 0, MARK), // established before, or marked
        op(STORE_LONG, 9, 1, TIME, 0),
        RETURN_1,
        RETURN,
        op(JUMP_UNLESS, 7, 0, 6, CONNECTS),
        op(LOAD_LONG, 1, 9, NUMBERS, 0),
        op(JUMP_UNLESS, 1, 0, -7, 0), // connected before: marks it
        op(SET, 1, 0, 0, 1),
        op(STORE_LONG, 9, 1, NUMBERS, 0),
        RETURN_1,
        RETURN,
        op(LOAD_WORD, 1, 6, PACKET_BYTES, 0), // 0 without a packet
        op(JUMP_IF, 1, 0, -13, 0),            // marks it
        op(LOAD_WORD, 1, 6, SENT_NEXT, 0),
        op(STORE_WORD, 9, 1, NUMBERS, 0),
        op(LOAD_WORD, 1, 6, RECEIVED_NEXT, 0),
        op(STORE_WORD, 9, 1, NUMBERS + 4, 0),
        op(CALL, 0, 0, 0, KTIME_GET_NS),
        op(STORE_LONG, 9, 0, TIME, 0),
        RETURN_1,
        RETURN,
    ]
}

/// The time of a marked socket, with the sign extended.
const MARK: i32 = -1;

/// They mark a socket when `TCP_REPAIR` is set on it, and refuse that without memory for the mark. They change no other option.
fn marking_instructions(map: RawFd) -> [u64; 18] {
    // Fields of `struct bpf_sockopt`.
    const SOCKET: i16 = 0;
    const LEVEL: i16 = 24;
    const OPTION: i16 = 28;
    const VALUE_BYTES: i16 = 32;
    const TCP: i32 = 6;
    const REPAIR: i32 = 19;
    [
        op(MOVE, 6, 1, 0, 0), // r6: the call
        op(SET, 1, 0, 0, 0),
        op(STORE_WORD, 6, 1, VALUE_BYTES, 0), // the kernel uses the value of the caller
        op(LOAD_WORD, 2, 6, LEVEL, 0),
        op(JUMP_UNLESS, 2, 0, 11, TCP),
        op(LOAD_WORD, 2, 6, OPTION, 0),
        op(JUMP_UNLESS, 2, 0, 9, REPAIR),
        op(LOAD_LONG, 2, 6, SOCKET, 0),      // r2: the socket
        op(LOAD_CONSTANT, 1, A_MAP, 0, map), // r1: the map, in two instructions
        op(0, 0, 0, 0, 0),
        op(SET, 3, 0, 0, 0), // r3: no first value
        op(SET, 4, 0, 0, CREATE),
        op(CALL, 0, 0, 0, STORAGE_GET),
        op(JUMP_IF, 0, 0, 3, 0), // returns 0, which refuses
        op(SET, 1, 0, 0, MARK),
        op(STORE_LONG, 0, 1, 8, 0),
        RETURN_1,
        RETURN,
    ]
}

/// A type of program, and the place where it is attached.
#[derive(Clone, Copy)]
struct ProgramKind {
    kind: u32,
    place: u32,
}

/// Events of the sockets of a cgroup.
const SOCKET_EVENTS: ProgramKind = ProgramKind { kind: 13, place: 3 };
/// Calls of `setsockopt` by programs of a cgroup.
const SETTING_OPTIONS: ProgramKind = ProgramKind { kind: 25, place: 22 };

/// Loads a program, and attaches it to a cgroup. Returns the link.
fn attach(ProgramKind { kind, place }: ProgramKind, code: &[u64], cgroup: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    const LICENCE: &CStr = c"GPL"; // The program alone: helpers of the kernel ask for it.
    let mut attribute = attribute([pair(kind, code.len() as u32), address(code), LICENCE.as_ptr() as u64]);
    attribute[8] = pair(0, place);
    // SAFETY: as many instructions as it says, and a text that ends with a zero; there is no log.
    let program = descriptor(unsafe { sys::bpf(PROG_LOAD, &mut attribute)? })?;
    let [program, cgroup] = [program.as_raw_fd().cast_unsigned(), cgroup.as_raw_fd().cast_unsigned()];
    bpf::made(LINK_CREATE, [pair(program, cgroup), place.into()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketType};
    use std::ffi::c_int;
    use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};

    /// None where this process may not load the program, which the test then says.
    fn recorder() -> Option<Recorder> {
        match Recorder::load() {
            Ok(recorder) => Some(recorder),
            Err(error @ (LoadError::NoCgroups | LoadError::Refused { errno: Errno::PERM | Errno::NOSYS, .. })) => {
                eprintln!("skipped: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let connector = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (connector, listener.accept().unwrap().0)
    }

    fn set<T>(socket: &OwnedFd, name: c_int, value: T) {
        let bytes = size_of::<T>() as libc::socklen_t;
        // SAFETY: the kernel reads the value, and keeps nothing of it.
        let outcome =
            unsafe { libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, name, (&raw const value).cast(), bytes) };
        assert_eq!(outcome, 0, "{name}: {}", std::io::Error::last_os_error());
    }

    #[test]
    fn ends_of_a_connection_have_mirrored_records() {
        let older = connection();
        let Some(recorder) = recorder() else { return };
        let read = |socket: &TcpStream| recorder.map.read(socket).unwrap();
        assert_eq!([read(&older.0), read(&older.1)], [None; 2], "they are older than the program");
        let (a, b) = connection();
        let (a, b) = (read(&a).unwrap(), read(&b).unwrap());
        assert!(a.is_other_end_of(&b) && b.is_other_end_of(&a), "{a:?} {b:?}");
        assert!(!a.is_other_end_of(&a) && a.at_ns > 0);
        assert!(!a.is_other_end_of(&ConnectionRecord { at_ns: b.at_ns + APART_NS_MAX + 1, ..b }));
        let other = connection();
        assert!(!read(&other.0).unwrap().is_other_end_of(&b));
        let pipe = rustix::pipe::pipe().unwrap().0;
        assert!(recorder.map.read(pipe).is_err());
    }

    #[test]
    fn only_a_map_of_records_is_taken() {
        let Some(recorder) = recorder() else { return };
        let again = RecordMap::try_from(recorder.map.as_fd().try_clone_to_owned().unwrap()).unwrap();
        let (a, _b) = connection();
        assert!(again.read(&a).unwrap().is_some());
        // Two long words for a key and four for a value.
        let other = bpf::made(MAP_CREATE, [pair(1, 8), pair(32, 1)]).unwrap();
        let [link, _] = recorder.links;
        for wrong in [other, link, rustix::pipe::pipe().unwrap().0] {
            assert!(RecordMap::try_from(wrong).is_err());
        }
    }

    #[test]
    fn program_stops_with_its_descriptors() {
        let Some(Recorder { map, links }) = recorder() else { return };
        let (a, _b) = connection();
        drop(links);
        let (later, _d) = connection();
        assert!(map.read(&a).unwrap().is_some(), "a record stays");
        assert_eq!(map.read(&later).unwrap(), None);
    }

    const TCP_REPAIR: c_int = 19;
    const TCP_REPAIR_QUEUE: c_int = 20;
    const TCP_QUEUE_SEQ: c_int = 21;

    fn disconnect(socket: &OwnedFd) {
        let unspecified = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
        // SAFETY: the kernel reads an address of this size.
        let outcome = unsafe { libc::connect(socket.as_raw_fd(), &raw const unspecified, 16) };
        assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
    }

    /// A program that knows the numbers of a connection can set them. It gets no record, and loses that of an earlier connection.
    #[test]
    fn repaired_socket_has_no_record() {
        let Some(recorder) = recorder() else { return };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let genuine = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let numbers = recorder.map.read(&genuine).unwrap().unwrap();
        let forged: OwnedFd = TcpStream::connect(listener.local_addr().unwrap()).unwrap().into();
        assert!(recorder.map.read(&forged).unwrap().is_some());
        set(&forged, TCP_REPAIR, 1);
        assert_eq!(recorder.map.read(&forged).unwrap(), None);
        disconnect(&forged);
        set(&forged, TCP_REPAIR, 1);
        for (queue, number) in [(2, numbers.sent), (1, numbers.received)] {
            set(&forged, TCP_REPAIR_QUEUE, queue);
            set(&forged, TCP_QUEUE_SEQ, number);
        }
        rustix::net::bind(&forged, &SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 9), 0)).unwrap();
        rustix::net::connect(&forged, &listener.local_addr().unwrap()).unwrap();
        assert!(rustix::net::getpeername(&forged).is_ok(), "it is connected");
        assert_eq!(recorder.map.read(&forged).unwrap(), None);
        assert_eq!(recorder.map.read(&genuine).unwrap(), Some(numbers));
    }

    /// The number that a program has set is that of a connection which the kernel establishes by packets.
    #[test]
    fn connection_with_a_set_number_has_no_record() {
        const CHOSEN: u32 = 0x1234_5678;
        let Some(recorder) = recorder() else { return };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        set(&socket, TCP_REPAIR, 1);
        set(&socket, TCP_REPAIR_QUEUE, 2);
        set(&socket, TCP_QUEUE_SEQ, CHOSEN);
        set(&socket, TCP_REPAIR, 0);
        rustix::net::connect(&socket, &listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        assert_eq!(recorder.map.read(&server).unwrap().unwrap().received, CHOSEN + 1, "the kernel uses it");
        assert_eq!(recorder.map.read(&socket).unwrap(), None);
        disconnect(&socket);
        rustix::net::connect(&socket, &listener.local_addr().unwrap()).unwrap();
        assert_eq!(recorder.map.read(&socket).unwrap(), None, "the mark stays");
    }

    /// The number of the second connection is that of the first one, moved on by what the program has sent.
    #[test]
    fn socket_that_connects_again_has_no_record() {
        let Some(recorder) = recorder() else { return };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        rustix::net::connect(&socket, &address).unwrap();
        let first = recorder.map.read(&socket).unwrap().unwrap();
        disconnect(&socket);
        rustix::net::connect(&socket, &address).unwrap();
        assert_eq!(recorder.map.read(&socket).unwrap(), None);
        let (_first, second) = (listener.accept().unwrap(), listener.accept().unwrap().0);
        let seen = recorder.map.read(&second).unwrap().unwrap().received;
        assert!(seen.wrapping_sub(first.sent) < 1 << 20, "it is not drawn: {seen} after {first:?}");
        // A connection that was refused counts, too.
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        rustix::net::connect(&socket, &closed).unwrap_err();
        rustix::net::connect(&socket, &address).unwrap();
        assert_eq!(recorder.map.read(&socket).unwrap(), None);
    }

    #[test]
    fn other_options_work_as_before() {
        let Some(_recorder) = recorder() else { return };
        let (a, _b) = connection();
        rustix::net::sockopt::set_tcp_nodelay(&a, true).unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(&a, 65_536).unwrap();
        assert_eq!(rustix::net::sockopt::tcp_nodelay(&a), Ok(true));
        assert!(rustix::net::sockopt::socket_recv_buffer_size(&a).unwrap() >= 65_536);
        let a = OwnedFd::from(a);
        // Longer than a page, and a wrong one.
        let long = [0_u8; 8192];
        // SAFETY: the kernel reads the value, and keeps nothing of it.
        let outcome = unsafe {
            libc::setsockopt(a.as_raw_fd(), libc::SOL_SOCKET, libc::SO_KEEPALIVE, long.as_ptr().cast(), 8192)
        };
        assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: as above.
        let outcome = unsafe { libc::setsockopt(a.as_raw_fd(), libc::IPPROTO_TCP, 999, long.as_ptr().cast(), 4) };
        assert_eq!((outcome, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ENOPROTOOPT)));
    }
}
