//! As much of netlink as switching offloads takes: messages of attributes to the ethtool family, and their answers.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with};

const HEAD_BYTES: usize = 20; // nlmsghdr (16) and genlmsghdr (4)
const NLMSG_ERROR: u16 = 2;
const REQUEST_ACK: u16 = 1 | 4; // NLM_F_REQUEST, NLM_F_ACK
const NESTED: u16 = 1 << 15; // NLA_F_NESTED
const KIND_MASK: u16 = 0x3FFF;

/// The family that looks up families, and what we ask it.
const CONTROL: u16 = 0x10;
const CONTROL_GET_FAMILY: u8 = 3;
const CONTROL_FAMILY_ID: u16 = 1;
const CONTROL_FAMILY_NAME: u16 = 2;

/// Attributes, one behind the other.
#[derive(Default)]
pub(crate) struct Attributes(Vec<u8>);

/// A socket of generic netlink that knows one family.
pub(crate) struct Family {
    socket: OwnedFd,
    id: u16,
}

impl Attributes {
    pub(crate) fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        self.0.extend_from_slice(&((4 + value.len()) as u16).to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub(crate) fn text(self, kind: u16, value: &str) -> Self {
        self.bytes(kind, format!("{value}\0").as_bytes())
    }

    pub(crate) fn nest(self, kind: u16, inner: Self) -> Self {
        self.bytes(kind | NESTED, &inner.0)
    }
}

/// The attributes in `bytes`: kind and value of each.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (length, kind) = (read_u16(bytes, 0)?, read_u16(bytes, 2)?);
        let value = bytes.get(4..usize::from(length))?;
        bytes = bytes.get(usize::from(length).next_multiple_of(4)..).unwrap_or_default();
        Some((kind & KIND_MASK, value))
    })
}

fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

impl Family {
    /// Opens a socket in this thread's network namespace.
    pub(crate) fn open(name: &str) -> io::Result<Self> {
        let protocol = Some(netlink::GENERIC);
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
        let control = Self { socket, id: CONTROL };
        let found = control.ask(CONTROL_GET_FAMILY, Attributes::default().text(CONTROL_FAMILY_NAME, name))?;
        let id = attributes(&found).find(|(kind, _)| *kind == CONTROL_FAMILY_ID).and_then(|(_, id)| read_u16(id, 0));
        let id = id.ok_or_else(|| io::Error::other(format!("the kernel has no {name} over netlink")))?;
        Ok(Self { id, ..control })
    }

    /// Sends a request and waits until the kernel has acknowledged it; returns the attributes it answered with, if any.
    pub(crate) fn ask(&self, command: u8, request: Attributes) -> io::Result<Vec<u8>> {
        let length = (HEAD_BYTES + request.0.len()) as u32;
        let mut message = length.to_ne_bytes().to_vec();
        message.extend([self.id, REQUEST_ACK].map(u16::to_ne_bytes).concat());
        message.extend([0; 8]); // Sequence number and port: one question at a time, to the kernel.
        message.extend([command, 1, 0, 0]);
        message.extend(request.0);
        send(&self.socket, &message, SendFlags::empty())?;
        let mut answer = Vec::new();
        let mut buffer = vec![0; 32 << 10];
        loop {
            let (bytes, _) = recv(&self.socket, &mut buffer[..], RecvFlags::empty())?;
            let mut rest = &buffer[..bytes];
            while let Some((kind, body, after)) = split(rest) {
                rest = after;
                match kind {
                    NLMSG_ERROR => return acknowledged(body).map(|()| answer),
                    _ => answer.extend_from_slice(body.get(4..).unwrap_or_default()),
                }
            }
        }
    }
}

/// Kind and body of the first message, and the messages behind it.
fn split(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let body = bytes.get(16..length)?;
    Some((read_u16(bytes, 4)?, body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

fn acknowledged(body: &[u8]) -> io::Result<()> {
    let code = body.get(..4).and_then(|code| code.try_into().ok()).map(i32::from_ne_bytes);
    match code {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(-code)),
        None => Err(io::Error::other("an answer of netlink is cut short")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_parsed() {
        let inner = Attributes::default().bytes(3, &[]);
        let all = Attributes::default().text(2, "ab").nest(1, inner).bytes(7, &[9; 5]);
        assert_eq!(all.0.len() % 4, 0);
        let seen = attributes(&all.0).collect::<Vec<_>>();
        assert_eq!(seen[0], (2, &b"ab\0"[..]));
        assert_eq!((seen[1].0, attributes(seen[1].1).collect::<Vec<_>>()), (1, vec![(3, &[][..])]));
        assert_eq!(seen[2], (7, &[9; 5][..]));
    }

    #[test]
    fn cut_attributes_end_the_list() {
        let all = Attributes::default().bytes(7, &[9; 5]).0;
        assert!((0..9).all(|cut| attributes(&all[..cut]).count() == 0));
        assert_eq!(attributes(&[1, 0, 0, 0]).count(), 0, "a length that is too small for itself");
    }

    #[test]
    fn unknown_family_is_an_error() {
        let error = Family::open("no-such-family").map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
    }
}
