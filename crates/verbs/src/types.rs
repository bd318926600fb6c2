//! The values of the verbs interface: numbers, flags, work requests and completions, with the codes that the standard's C interface gives
//! them.

use bitflags::bitflags;

/// The number of a queue pair: 24 bits, unique on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QpNumber(pub u32);

impl QpNumber {
    /// The bits of a number.
    pub const MASK: u32 = 0xff_ffff;
}

/// A GID, in the byte order of the wire. All zeroes means that an address has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

/// The key of a memory region. The local and the remote key are one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key(pub u32);

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(pub(crate) u32);

        impl $name {
            /// The number of the object, unique among live objects of its kind.
            pub const fn number(self) -> u32 {
                self.0
            }

            /// The object with this number, as [`Self::number`] returned it. A number of no object is refused where it is used.
            pub const fn from_number(number: u32) -> Self {
                Self(number)
            }
        }
    )*};
}

handles! {
    /// A protection domain.
    Pd;
    /// A completion queue.
    Cq;
    /// A shared receive queue.
    Srq;
}

/// The transport of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

/// The state of a queue pair, with the codes of `ibv_qp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the states of the standard")]
pub enum QpState {
    Reset = 0,
    Init = 1,
    ReadyToReceive = 2,
    ReadyToSend = 3,
    SendQueueDrained = 4,
    SendQueueError = 5,
    Error = 6,
}

impl QpState {
    /// Returns the state of a code of `ibv_qp_state`.
    pub const fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            0 => Self::Reset,
            1 => Self::Init,
            2 => Self::ReadyToReceive,
            3 => Self::ReadyToSend,
            4 => Self::SendQueueDrained,
            5 => Self::SendQueueError,
            6 => Self::Error,
            _ => return None,
        })
    }
}

bitflags! {
    /// Rights of a memory region or a queue pair, with the bits of `ibv_access_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Access: u32 {
        /// The adapter may write the memory on behalf of its owner.
        const LOCAL_WRITE = 1;
        /// Peers may write.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may read.
        const REMOTE_READ = 1 << 2;
        /// Peers may perform atomic operations.
        const REMOTE_ATOMIC = 1 << 3;
    }

    /// Flags of a send request, with the bits of `ibv_send_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u32 {
        /// The request waits for earlier reads and atomic operations.
        const FENCE = 1;
        /// The request reports its completion also if the queue pair does not ask for all.
        const SIGNALED = 1 << 1;
        /// The completion at the receiver is a solicited event.
        const SOLICITED = 1 << 2;
        /// The bytes are copied while the request is posted.
        const INLINE = 1 << 3;
    }
}

/// One range of a scatter or gather list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// The address of the first byte.
    pub addr: u64,
    /// The length in bytes.
    pub len: u32,
    /// The local key of the region that holds the bytes.
    pub lkey: u32,
}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressVector {
    /// The GID of the port; zero if the address has none, which means this host.
    pub gid: Gid,
    /// The GID of the sender's port, which the receiver sees; zero if the address has none.
    pub source_gid: Gid,
    /// The service level, which the receiver sees.
    pub service_level: u8,
}

/// The operation of a send request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A message to a receive request of the peer.
    Send {
        /// Immediate data, in the byte order of the wire.
        immediate: Option<u32>,
    },
    /// A write into memory of the peer.
    Write {
        /// The address in the peer.
        remote_addr: u64,
        /// The key of the region in the peer.
        rkey: Key,
        /// Immediate data, which consume a receive request of the peer.
        immediate: Option<u32>,
    },
    /// A read from memory of the peer.
    Read {
        /// The address in the peer.
        remote_addr: u64,
        /// The key of the region in the peer.
        rkey: Key,
    },
    /// An atomic operation on 8 bytes of the peer.
    Atomic {
        /// The address in the peer, a multiple of 8.
        remote_addr: u64,
        /// The key of the region in the peer.
        rkey: Key,
        /// The operation.
        atomic: AtomicOperation,
    },
}

impl Operation {
    /// The kind of the completion of the request.
    pub const fn completion_kind(&self) -> CompletionKind {
        match self {
            Self::Send { .. } => CompletionKind::Send,
            Self::Write { .. } => CompletionKind::Write,
            Self::Read { .. } => CompletionKind::Read,
            Self::Atomic { atomic: AtomicOperation::FetchAdd(_), .. } => CompletionKind::FetchAdd,
            Self::Atomic { atomic: AtomicOperation::CompareSwap { .. }, .. } => CompletionKind::CompareSwap,
        }
    }
}

/// An atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOperation {
    /// Adds a number, wrapping around.
    FetchAdd(u64),
    /// Replaces the number if it equals `compare`.
    CompareSwap {
        /// The number to compare with.
        compare: u64,
        /// The number to store.
        swap: u64,
    },
}

/// A send request.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// The program's number for the request.
    pub wr_id: u64,
    /// The operation.
    pub operation: Operation,
    /// Flags.
    pub flags: SendFlags,
    /// The ranges that hold the bytes, or that take the bytes read.
    pub sges: &'a [Sge],
    /// The destination of a datagram: address, queue pair and Q_Key.
    pub datagram: Option<(AddressVector, QpNumber, u32)>,
}

/// A receive request.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveRequest<'a> {
    /// The program's number for the request.
    pub wr_id: u64,
    /// The ranges that take the bytes.
    pub sges: &'a [Sge],
}

/// How a request ended, with the codes of `ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the statuses of the standard")]
pub enum Status {
    Success = 0,
    LocalLength = 1,
    LocalQpOperation = 2,
    LocalProtection = 4,
    Flushed = 5,
    RemoteInvalidRequest = 9,
    RemoteAccess = 10,
    RemoteOperation = 11,
    RetryExceeded = 12,
    RnrRetryExceeded = 13,
}

/// The operation that a completion reports, with the codes of `ibv_wc_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the opcodes of the standard")]
pub enum CompletionKind {
    Send = 0,
    Write = 1,
    Read = 2,
    CompareSwap = 3,
    FetchAdd = 4,
    Receive = 128,
    ReceiveWriteImmediate = 129,
}

/// An entry of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The program's number for the request.
    pub wr_id: u64,
    /// How the request ended. Of a failed one, only this, `wr_id` and `qp` are defined.
    pub status: Status,
    /// The operation of the request.
    pub kind: CompletionKind,
    /// Bytes received, read or replaced.
    pub len: u32,
    /// Immediate data, in the byte order of the wire.
    pub immediate: Option<u32>,
    /// The queue pair of the request.
    pub qp: QpNumber,
    /// The sender's queue pair, of a datagram; else 0.
    pub source_qp: QpNumber,
    /// A GRH lies in the first 40 bytes of the receive buffer.
    pub has_grh: bool,
    /// The service level of a datagram.
    pub service_level: u8,
    /// The sender asked for a solicited event.
    pub solicited: bool,
}

/// Why a call is refused, with the error number that the C interface returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// An argument, or a combination of arguments, is invalid (`EINVAL`).
    Invalid,
    /// A queue has no room, or a limit is reached (`ENOMEM`).
    Full,
    /// Other objects use the object (`EBUSY`).
    Busy,
    /// There are no queue pair numbers; [`Engine::add_numbers`](crate::Engine::add_numbers) adds some.
    NumbersMissing,
    /// The destination was never resolved; [`Engine::add_route`](crate::Engine::add_route) records the result of a look-up.
    RouteMissing(Gid, QpNumber),
    /// The adapter does not have this operation (`EOPNOTSUPP`).
    Unsupported,
}
