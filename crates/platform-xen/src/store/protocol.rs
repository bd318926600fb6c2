//! The wire protocol of XenStore. All encoding and parsing is here, without I/O.
//!
//! ```text
//!  offset  bytes
//!       0      4  kind of packet
//!       4      4  request: chosen by the requester, repeated in the reply; 0 in events
//!       8      4  transaction, 0 for none
//!      12      4  bytes that follow, 4096 at most
//!      16      …  strings, each ended by a zero byte; values of nodes are not
//! ```
//!
//! Numbers are in the machine's byte order. Packets come from the store, which may be buggy, and contain values of other domains, which may
//! be hostile. No code here panics or allocates according to their contents.

/// The maximum number of bytes after the head of a packet.
pub const BODY_BYTES_MAX: usize = 4096;

/// The maximum length of a path that begins with `/`, and of one relative to the domain's own directory.
const ABSOLUTE_BYTES_MAX: usize = 3072;
const RELATIVE_BYTES_MAX: usize = 2048;

/// The size of a packet's head in bytes.
pub const HEAD_BYTES: usize = 16;

/// The kind of a request, a reply or an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum PacketKind {
    /// Returns the names of a node's children.
    Directory = 1,
    /// Returns a node's value.
    Read = 2,
    /// Returns the permissions of a node.
    Permissions = 3,
    /// Watches a node and all nodes below it.
    Watch = 4,
    /// Ends a watch.
    Unwatch = 5,
    /// Begins a transaction.
    TransactionStart = 6,
    /// Ends a transaction.
    TransactionEnd = 7,
    /// Writes a node, and creates it if it does not exist.
    Write = 11,
    /// Creates a node without a value.
    Mkdir = 12,
    /// Removes a node and all below it.
    Remove = 13,
    /// Sets the permissions of a node.
    SetPermissions = 14,
    /// Reports a change of a watched node. Sent by the store without a request.
    WatchEvent = 15,
    /// Reports that a request failed. Sent in place of its reply.
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

    /// Describes a request for a node, for error messages.
    pub fn describe(self, path: &str) -> String {
        match self {
            Self::Directory => format!("list {path}"),
            Self::Read => format!("read {path}"),
            Self::Permissions => format!("read the permissions of {path}"),
            Self::Watch => format!("watch {path}"),
            Self::Unwatch => format!("stop watching {path}"),
            Self::TransactionStart => "begin a transaction".to_owned(),
            Self::TransactionEnd => "end a transaction".to_owned(),
            Self::Write => format!("write {path}"),
            Self::Mkdir => format!("make {path}"),
            Self::Remove => format!("remove {path}"),
            Self::SetPermissions => format!("set the permissions of {path}"),
            Self::WatchEvent | Self::Error => "send a reply".to_owned(),
        }
    }

    fn of(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u32 == number)
    }
}

/// The reason why a request cannot be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnencodableRequest {
    /// The path is empty, too long, or contains a character that paths cannot have.
    #[error("not a path of XenStore")]
    Path,
    /// A token or permission contains a zero byte.
    #[error("a string with a zero byte")]
    Zero,
    /// Path and value together are longer than any packet.
    #[error("{0} bytes, and {BODY_BYTES_MAX} fit into a packet")]
    TooLong(usize),
}

/// The reason why a packet cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedPacket {
    /// The packet is longer than any valid one. The start of the next packet is then unknown.
    #[error("a packet of {0} bytes, and there are none above {BODY_BYTES_MAX}")]
    TooLong(u32),
    /// The contents are not a reply to this request.
    #[error("an answer that is none")]
    Body,
}

/// Checks that these bytes name a node, or are one of the two names that exist only for watches (`@releaseDomain`, `@introduceDomain`).
pub fn check_path(path: &str) -> Result<(), UnencodableRequest> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-/_@".contains(&byte);
    let longest = if path.starts_with('/') { ABSOLUTE_BYTES_MAX } else { RELATIVE_BYTES_MAX };
    let ends = path.is_empty() || (path.len() > 1 && path.ends_with('/'));
    let good = !ends && path.len() <= longest && path.bytes().all(plain) && !path.contains("//");
    if good { Ok(()) } else { Err(UnencodableRequest::Path) }
}

/// Encodes a packet with these strings, followed by bytes without a terminator.
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

/// A received packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorePacket {
    /// The kind, or `None` if it is unknown.
    pub kind: Option<PacketKind>,
    /// The number of the request to which this replies.
    pub request: u32,
    /// The number of the transaction.
    pub transaction: u32,
    /// The bytes after the head.
    pub body: Vec<u8>,
}

/// Received bytes that are not a complete packet yet: at most one packet and the bytes read together with it.
#[derive(Debug, Default)]
pub struct Incoming {
    bytes: Vec<u8>,
}

impl Incoming {
    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next packet, if it is complete. No packets follow after an error, because the start of the next one is unknown.
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

/// The reason why the store refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreRefusal {
    /// The node does not exist.
    #[error("ENOENT: no such node")]
    Missing,
    /// This domain may not access the node. Also reported for a missing node if this domain may not access its parent.
    #[error("EACCES: not permitted, or gone")]
    Forbidden,
    /// The node exists already.
    #[error("EEXIST: exists")]
    Exists,
    /// The transaction conflicts with another one.
    #[error("EAGAIN: the transaction met another one")]
    Conflict,
    /// The store considers the request invalid.
    #[error("EINVAL: invalid")]
    Invalid,
    /// The domain has reached its quota of nodes, watches or bytes.
    #[error("ENOSPC, E2BIG or EQUOTA: the domain's quota is used up")]
    Quota,
    /// Another reason.
    #[error("a refusal of another kind")]
    Other,
}

impl StoreRefusal {
    /// Parses the name in a packet of kind [`PacketKind::Error`].
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

    /// Returns the first of those names.
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

/// Returns the strings of a body, each ended by a zero byte. Bytes that are not text are an error.
pub fn strings(body: &[u8]) -> Result<Vec<&str>, MalformedPacket> {
    if body.is_empty() {
        return Ok(Vec::new());
    }
    let body = body.strip_suffix(&[0]).ok_or(MalformedPacket::Body)?;
    body.split(|byte| *byte == 0).map(|part| str::from_utf8(part).map_err(|_| MalformedPacket::Body)).collect()
}

/// The rights of one domain on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeRights {
    /// No access.
    None,
    /// Reading, and receiving the events of watches.
    Read,
    /// Writing.
    Write,
    /// Reading and writing.
    Both,
}

/// A permission: a domain and its rights. The first permission of a node names the owner, which may do everything; its rights apply to all
/// domains that are not listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permission {
    /// The domain.
    pub domid: super::Domid,
    /// The rights.
    pub rights: NodeRights,
}

impl Permission {
    /// Returns the store's notation.
    pub fn emit(self) -> String {
        let letter = match self.rights {
            NodeRights::None => 'n',
            NodeRights::Read => 'r',
            NodeRights::Write => 'w',
            NodeRights::Both => 'b',
        };
        format!("{letter}{}", self.domid)
    }

    /// Parses the store's notation.
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

/// Returns the path that changed and the token of the watch, from the body of an event.
pub fn event(body: &[u8]) -> Result<(&str, &str), MalformedPacket> {
    match strings(body)?[..] {
        [path, token, ..] => Ok((path, token)),
        _ => Err(MalformedPacket::Body),
    }
}

/// Returns the number of a new transaction, which is never 0.
pub fn transaction(body: &[u8]) -> Result<u32, MalformedPacket> {
    match strings(body)?[..] {
        [number] => number.parse().ok().filter(|number| *number != 0).ok_or(MalformedPacket::Body),
        _ => Err(MalformedPacket::Body),
    }
}

#[cfg(test)]
mod tests;
