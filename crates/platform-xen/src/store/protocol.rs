//! XenStore's wire protocol: packets out, packets in. Pure: bytes become values here and nowhere else.
//!
//! ```text
//!  offset  bytes
//!       0      4  kind of packet
//!       4      4  request: chosen by whoever asks, repeated in the answer; 0 in events
//!       8      4  transaction, 0 for none
//!      12      4  bytes that follow, 4096 at most
//!      16      …  strings, each ended by a zero byte; values of nodes are not
//! ```
//!
//! Numbers are in the machine's own order. What comes is written by the store, which may be buggy, and holds what other domains wrote,
//! which may be hostile: nothing here panics or allocates by what it says.

/// Bytes that follow the head of a packet at most.
pub const BODY_BYTES_MAX: usize = 4096;

/// Bytes of a path that begins with `/`, and of one that begins at the own domain's directory.
const ABSOLUTE_BYTES_MAX: usize = 3072;
const RELATIVE_BYTES_MAX: usize = 2048;

/// Bytes of a packet's head.
pub const HEAD_BYTES: usize = 16;

/// What is asked, and what comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum PacketKind {
    /// Names of a node's children.
    Directory = 1,
    /// A node's value.
    Read = 2,
    /// Who may do what with a node.
    Permissions = 3,
    /// From now on say when a node, or one below it, changes.
    Watch = 4,
    /// No longer.
    Unwatch = 5,
    /// Begin a transaction.
    TransactionStart = 6,
    /// End one.
    TransactionEnd = 7,
    /// Write a node, and make it where it is not.
    Write = 11,
    /// Make a node without a value.
    Mkdir = 12,
    /// Remove a node and all below it.
    Remove = 13,
    /// Set who may do what with a node.
    SetPermissions = 14,
    /// Comes unasked: something watched has changed.
    WatchEvent = 15,
    /// Comes in place of an answer.
    Error = 16,
}

impl PacketKind {
    const ALL: [Self; 13] = [
        Self::Directory,
        Self::Read,
        Self::Permissions,
        Self::Watch,
        Self::Unwatch,
        Self::TransactionStart,
        Self::TransactionEnd,
        Self::Write,
        Self::Mkdir,
        Self::Remove,
        Self::SetPermissions,
        Self::WatchEvent,
        Self::Error,
    ];

    /// What is asked by it, of a node, for people.
    pub fn describe(self, path: &str) -> String {
        match self {
            Self::Directory => format!("list {path}"),
            Self::Read => format!("read {path}"),
            Self::Permissions => format!("say who may use {path}"),
            Self::Watch => format!("watch {path}"),
            Self::Unwatch => format!("stop watching {path}"),
            Self::TransactionStart => "begin a transaction".to_owned(),
            Self::TransactionEnd => "end a transaction".to_owned(),
            Self::Write => format!("write {path}"),
            Self::Mkdir => format!("make {path}"),
            Self::Remove => format!("remove {path}"),
            Self::SetPermissions => format!("set who may use {path}"),
            Self::WatchEvent | Self::Error => "do what nobody asks".to_owned(),
        }
    }

    fn of(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u32 == number)
    }
}

/// Why a request cannot be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnencodableRequest {
    /// Not a path: empty, too long, or with a sign that paths have not.
    #[error("not a path of XenStore")]
    Path,
    /// A token or permission with a zero byte.
    #[error("a string with a zero byte")]
    Zero,
    /// Path and value together are longer than any packet.
    #[error("{0} bytes, and {BODY_BYTES_MAX} fit into a packet")]
    TooLong(usize),
}

/// What came cannot be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedPacket {
    /// Longer than any packet: where the next one begins, nobody knows.
    #[error("a packet of {0} bytes, and there are none above {BODY_BYTES_MAX}")]
    TooLong(u32),
    /// Not what an answer to this request looks like.
    #[error("an answer that is none")]
    Body,
}

/// Whether these bytes name a node, or are one of the two names that only watches know (`@releaseDomain`, `@introduceDomain`).
pub fn check_path(path: &str) -> Result<(), UnencodableRequest> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-/_@".contains(&byte);
    let longest = if path.starts_with('/') { ABSOLUTE_BYTES_MAX } else { RELATIVE_BYTES_MAX };
    let ends = path.is_empty() || (path.len() > 1 && path.ends_with('/'));
    let good = !ends && path.len() <= longest && path.bytes().all(plain) && !path.contains("//");
    if good { Ok(()) } else { Err(UnencodableRequest::Path) }
}

/// A packet with these strings, and bytes after them that need no end.
pub fn emit(
    kind: PacketKind,
    request: u32,
    transaction: u32,
    strings: &[&str],
    rest: &[u8],
) -> Result<Vec<u8>, UnencodableRequest> {
    let mut body = Vec::new();
    for string in strings {
        if string.bytes().any(|byte| byte == 0) {
            return Err(UnencodableRequest::Zero);
        }
        body.extend_from_slice(string.as_bytes());
        body.push(0);
    }
    body.extend_from_slice(rest);
    if body.len() > BODY_BYTES_MAX {
        return Err(UnencodableRequest::TooLong(body.len()));
    }
    let mut packet = Vec::with_capacity(HEAD_BYTES + body.len());
    for number in [kind as u32, request, transaction, body.len() as u32] {
        packet.extend_from_slice(&number.to_ne_bytes());
    }
    packet.append(&mut body);
    Ok(packet)
}

/// A packet that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorePacket {
    /// None for kinds that nobody knows.
    pub kind: Option<PacketKind>,
    /// Which request it answers.
    pub request: u32,
    /// In which transaction.
    pub transaction: u32,
    /// What follows its head.
    pub body: Vec<u8>,
}

/// Bytes that came and are not a whole packet yet. Holds one packet and what was read with it at most.
#[derive(Debug, Default)]
pub struct Incoming {
    bytes: Vec<u8>,
}

impl Incoming {
    /// Bytes as they were read.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next packet, if it is there in full. After an error there is no more: nobody knows where a packet begins.
    pub fn packet(&mut self) -> Result<Option<StorePacket>, MalformedPacket> {
        let Some((head, rest)) = self.bytes.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let [kind, request, transaction, len] =
            core::array::from_fn(|at| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| head[4 * at + byte])));
        if len as usize > BODY_BYTES_MAX {
            return Err(MalformedPacket::TooLong(len));
        }
        let Some(body) = rest.get(..len as usize) else { return Ok(None) };
        let packet = StorePacket { kind: PacketKind::of(kind), request, transaction, body: body.to_vec() };
        self.bytes.drain(..HEAD_BYTES + len as usize);
        Ok(Some(packet))
    }
}

/// Why the store refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreRefusal {
    /// There is no such node.
    #[error("ENOENT: no such node")]
    Missing,
    /// The node is not for us. Also of a node that is gone, where the one above it is not for us.
    #[error("EACCES: not permitted, or gone")]
    Forbidden,
    /// It is there already.
    #[error("EEXIST: exists")]
    Exists,
    /// The transaction met another one.
    #[error("EAGAIN: the transaction met another one")]
    Conflict,
    /// The request makes no sense to the store.
    #[error("EINVAL: invalid")]
    Invalid,
    /// This domain has as many nodes, watches or bytes as it may.
    #[error("ENOSPC, E2BIG or EQUOTA: the domain's quota is used up")]
    Quota,
    /// Anything else.
    #[error("a refusal of another kind")]
    Other,
}

impl StoreRefusal {
    /// By the name that a packet of kind [`PacketKind::Error`] has in it.
    pub fn parse(body: &[u8]) -> Self {
        match body.strip_suffix(&[0]).unwrap_or(body) {
            b"ENOENT" => Self::Missing,
            b"EACCES" | b"EPERM" | b"EROFS" => Self::Forbidden,
            b"EEXIST" => Self::Exists,
            b"EAGAIN" => Self::Conflict,
            b"EINVAL" => Self::Invalid,
            b"ENOSPC" | b"E2BIG" | b"EQUOTA" => Self::Quota,
            _ => Self::Other,
        }
    }

    /// The first of those names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Missing => "ENOENT",
            Self::Forbidden => "EACCES",
            Self::Exists => "EEXIST",
            Self::Conflict => "EAGAIN",
            Self::Invalid => "EINVAL",
            Self::Quota => "ENOSPC",
            Self::Other => "EIO",
        }
    }
}

/// The strings of a body, each ended by a zero byte. What is not text is not taken for some.
pub fn strings(body: &[u8]) -> Result<Vec<&str>, MalformedPacket> {
    if body.is_empty() {
        return Ok(Vec::new());
    }
    let body = body.strip_suffix(&[0]).ok_or(MalformedPacket::Body)?;
    body.split(|byte| *byte == 0).map(|part| str::from_utf8(part).map_err(|_| MalformedPacket::Body)).collect()
}

/// What a node may be used for by one domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeRights {
    /// Nothing.
    None,
    /// Reading, and watching with success.
    Read,
    /// Writing.
    Write,
    /// Both.
    Both,
}

/// Who, and what. The first of a node's list is its owner, who may do everything; what stands there is for all who are not named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permission {
    /// Who.
    pub domid: super::Domid,
    /// May what.
    pub rights: NodeRights,
}

impl Permission {
    /// As the store wants it.
    pub fn emit(self) -> String {
        let letter = match self.rights {
            NodeRights::None => 'n',
            NodeRights::Read => 'r',
            NodeRights::Write => 'w',
            NodeRights::Both => 'b',
        };
        format!("{letter}{}", self.domid)
    }

    /// As the store says it.
    pub fn parse(text: &str) -> Result<Self, MalformedPacket> {
        let (letter, number) = text.split_at_checked(1).ok_or(MalformedPacket::Body)?;
        let rights = match letter {
            "n" => NodeRights::None,
            "r" => NodeRights::Read,
            "w" => NodeRights::Write,
            "b" => NodeRights::Both,
            _ => return Err(MalformedPacket::Body),
        };
        let domid = super::Domid::parse(number.as_bytes()).ok_or(MalformedPacket::Body)?;
        Ok(Self { domid, rights })
    }
}

/// What an event says: the node that changed, and the token of the watch that sees it.
pub fn event(body: &[u8]) -> Result<(&str, &str), MalformedPacket> {
    match strings(body)?[..] {
        [path, token, ..] => Ok((path, token)),
        _ => Err(MalformedPacket::Body),
    }
}

/// The number of a transaction that has begun; never 0.
pub fn transaction(body: &[u8]) -> Result<u32, MalformedPacket> {
    match strings(body)?[..] {
        [number] => number.parse().ok().filter(|number| *number != 0).ok_or(MalformedPacket::Body),
        _ => Err(MalformedPacket::Body),
    }
}

#[cfg(test)]
mod tests;
