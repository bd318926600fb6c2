//! Where the headers of a TCP or UDP frame lie: Ethernet, VLAN tags, IPv4 with options or IPv6 with extension headers, transport.
//!
//! ```text
//!   0            network          transport       payload                     end
//!   │ MAC, tags  │ IP, extensions │ TCP, options  │ ...                       │ padding
//! ```
//!
//! Lengths come from the headers, never from the virtio-net header. [`Headers::parse`] reads at most [`HEADER_BYTES_MAX`] bytes, so a
//! head that is repeated for each segment is bounded. The IP header states `end`, and the frame may be
//! shorter: a caller that needs the payload compares.

use etherparse::{
    Ipv4HeaderSlice, Ipv6ExtensionSlice, Ipv6ExtensionsSlice, Ipv6HeaderSlice, TcpHeaderSlice, ip_number,
};
use thiserror::Error;

use crate::checksum::Sum;
use crate::virtio_net::ETHERNET_BYTES;

/// Bytes of the longest headers that are parsed.
pub const HEADER_BYTES_MAX: usize = 256;

const VLAN_TAGS_MAX: usize = 3;
const VLAN_BYTES: usize = 4;
const UDP_BYTES: usize = 8;

/// The parts of a frame, as offsets from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// The version of IP.
    pub version: IpVersion,
    /// The transport protocol.
    pub transport_kind: Transport,
    /// Where the IP header begins.
    pub network: usize,
    /// Where the transport header begins.
    pub transport: usize,
    /// Where the transport payload begins.
    pub payload: usize,
    /// Where the IP packet ends as its header states it. The frame may be shorter or longer.
    pub end: usize,
}

/// A version of the Internet Protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum IpVersion {
    V4,
    V6,
}

/// A transport protocol that can be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Transport {
    Tcp,
    Udp,
}

/// The state of the checksums of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketChecksum {
    /// All checksums are correct.
    Complete,
    /// The transport checksum holds the sum of the pseudo-header. The sender left the rest to its network card.
    Partial,
    /// A checksum is wrong, or UDP has none.
    Wrong,
}

/// Why a frame cannot be cut or coalesced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HeadersError {
    /// The EtherType is another, or there are more than three tags.
    #[error("not an IP packet")]
    NotIp,
    /// A header does not end within the frame, or within [`HEADER_BYTES_MAX`].
    #[error("headers are truncated or too long")]
    Truncated,
    /// A version or length is wrong.
    #[error("headers contradict each other")]
    Malformed,
    /// One fragment of several.
    #[error("a fragment of a packet")]
    Fragment,
    /// An authentication header protects what cutting changes.
    #[error("the packet has an authentication header")]
    Authenticated,
    /// The checksum covers a destination that is not in the IP header.
    #[error("the packet has a routing header with segments left")]
    Routed,
    /// Neither TCP nor UDP.
    #[error("neither TCP nor UDP")]
    NotTransport,
}

impl Headers {
    /// Finds the headers of a frame.
    ///
    /// # Errors
    /// Why the frame cannot be cut or coalesced.
    pub fn parse(frame: &[u8]) -> Result<Self, HeadersError> {
        let head = &frame[..frame.len().min(HEADER_BYTES_MAX)];
        let (version, network) = find_network(head)?;
        let (transport_kind, transport, end) = match version {
            IpVersion::V4 => parse_ipv4(head, network),
            IpVersion::V6 => parse_ipv6(head, network),
        }?;
        let rest = head.get(transport..).ok_or(HeadersError::Truncated)?;
        let length = match transport_kind {
            Transport::Tcp => TcpHeaderSlice::from_slice(rest).map_err(tcp_error)?.slice().len(),
            Transport::Udp if rest.len() < UDP_BYTES => return Err(HeadersError::Truncated),
            Transport::Udp => UDP_BYTES,
        };
        let payload = transport + length;
        if payload > end {
            return Err(HeadersError::Malformed);
        }
        Ok(Self { version, transport_kind, network, transport, payload, end })
    }

    /// Where the transport checksum lies from the start of the transport header.
    pub const fn checksum_offset(&self) -> usize {
        match self.transport_kind {
            Transport::Tcp => 16,
            Transport::Udp => 6,
        }
    }

    /// The sum of the pseudo-header, without the length.
    pub fn pseudo_sum(&self, frame: &[u8]) -> Sum {
        let (addresses, protocol) = match self.version {
            IpVersion::V4 => (self.network + 12..self.network + 20, self.protocol()),
            IpVersion::V6 => (self.network + 8..self.network + 40, self.protocol()),
        };
        Sum::of(&frame[addresses]).plus_word(protocol)
    }

    /// Examines the checksums of a whole packet. `frame` reaches at least to `end`.
    ///
    /// A field with the sum of the pseudo-header is [`Partial`](PacketChecksum::Partial), whatever the payload holds. If it is a complete
    /// checksum by chance, completing it again changes nothing.
    pub fn checksum(&self, frame: &[u8]) -> PacketChecksum {
        let at = self.transport + self.checksum_offset();
        let field = u16::from_be_bytes([frame[at], frame[at + 1]]);
        if self.transport_kind == Transport::Udp && (field == 0 || !self.has_equal_udp_length(frame)) {
            return PacketChecksum::Wrong;
        }
        if self.version == IpVersion::V4 && Sum::of(&frame[self.network..self.network_end()]).folded() != 0xffff {
            return PacketChecksum::Wrong;
        }
        let pseudo = self.pseudo_sum(frame).plus_double_word((self.end - self.transport) as u32);
        if field == pseudo.folded() {
            return PacketChecksum::Partial;
        }
        match pseudo.plus(Sum::of(&frame[self.transport..self.end])).folded() {
            0xffff => PacketChecksum::Complete,
            _ => PacketChecksum::Wrong,
        }
    }

    /// Writes the lengths for `payload_bytes` of payload, the checksum of IPv4, and the partial checksum of the transport.
    pub(crate) fn write_lengths(&self, head: &mut [u8], payload_bytes: usize) {
        let end = self.payload + payload_bytes;
        let put = |head: &mut [u8], at: usize, word: u16| head[at..at + 2].copy_from_slice(&word.to_be_bytes());
        match self.version {
            IpVersion::V4 => {
                put(head, self.network + 2, (end - self.network) as u16);
                put(head, self.network + 10, 0);
                let sum = Sum::of(&head[self.network..self.network_end()]);
                put(head, self.network + 10, sum.complement());
            }
            IpVersion::V6 => put(head, self.network + 4, (end - self.network - 40) as u16),
        }
        let length = end - self.transport;
        if self.transport_kind == Transport::Udp {
            put(head, self.transport + 4, length as u16);
        }
        let sum = self.pseudo_sum(head).plus_double_word(length as u32);
        put(head, self.transport + self.checksum_offset(), sum.folded());
    }

    const fn protocol(&self) -> u16 {
        match self.transport_kind {
            Transport::Tcp => ip_number::TCP.0 as u16,
            Transport::Udp => ip_number::UDP.0 as u16,
        }
    }

    /// Where the header of IPv4 ends, which has no extension headers.
    const fn network_end(&self) -> usize {
        self.transport
    }

    fn has_equal_udp_length(&self, frame: &[u8]) -> bool {
        let length = u16::from_be_bytes([frame[self.transport + 4], frame[self.transport + 5]]);
        usize::from(length) == self.end - self.transport
    }
}

/// The version by the EtherType behind the tags, and where the IP header begins.
fn find_network(head: &[u8]) -> Result<(IpVersion, usize), HeadersError> {
    for tags in 0..=VLAN_TAGS_MAX {
        let network = ETHERNET_BYTES + tags * VLAN_BYTES;
        let ether_type = head.get(network - 2..network).ok_or(HeadersError::Truncated)?;
        match ether_type {
            [0x08, 0x00] => return Ok((IpVersion::V4, network)),
            [0x86, 0xdd] => return Ok((IpVersion::V6, network)),
            [0x81, 0x00] | [0x88, 0xa8] => {}
            _ => return Err(HeadersError::NotIp),
        }
    }
    Err(HeadersError::NotIp)
}

fn parse_ipv4(head: &[u8], network: usize) -> Result<(Transport, usize, usize), HeadersError> {
    use etherparse::err::ipv4::HeaderSliceError;
    let ip = Ipv4HeaderSlice::from_slice(&head[network..]).map_err(|error| match error {
        HeaderSliceError::Len(_) => HeadersError::Truncated,
        HeaderSliceError::Content(_) => HeadersError::Malformed,
    })?;
    if ip.is_fragmenting_payload() {
        return Err(HeadersError::Fragment);
    }
    let transport = network + ip.slice().len();
    Ok((transport_of(ip.protocol())?, transport, network + usize::from(ip.total_len())))
}

fn parse_ipv6(head: &[u8], network: usize) -> Result<(Transport, usize, usize), HeadersError> {
    use etherparse::err::{ipv6, ipv6_exts};
    let ip = Ipv6HeaderSlice::from_slice(&head[network..]).map_err(|error| match error {
        ipv6::HeaderSliceError::Len(_) => HeadersError::Truncated,
        ipv6::HeaderSliceError::Content(_) => HeadersError::Malformed,
    })?;
    let extensions = network + ip.slice().len();
    let (list, next, _) =
        Ipv6ExtensionsSlice::from_slice(ip.next_header(), &head[extensions..]).map_err(|error| match error {
            ipv6_exts::HeaderSliceError::Len(_) => HeadersError::Truncated,
            ipv6_exts::HeaderSliceError::Content(_) => HeadersError::Malformed,
        })?;
    if list.is_fragmenting_payload() {
        return Err(HeadersError::Fragment);
    }
    let transport = extensions + list.slice().len();
    for extension in list {
        match extension {
            Ipv6ExtensionSlice::Authentication(_) => return Err(HeadersError::Authenticated),
            // The byte after the type: how many of the route's addresses are still ahead.
            Ipv6ExtensionSlice::Routing(route) if route.payload().get(1) != Some(&0) => {
                return Err(HeadersError::Routed);
            }
            _ => {}
        }
    }
    Ok((transport_of(next)?, transport, extensions + usize::from(ip.payload_length())))
}

fn transport_of(number: etherparse::IpNumber) -> Result<Transport, HeadersError> {
    match number {
        ip_number::TCP => Ok(Transport::Tcp),
        ip_number::UDP => Ok(Transport::Udp),
        _ => Err(HeadersError::NotTransport),
    }
}

fn tcp_error(error: etherparse::err::tcp::HeaderSliceError) -> HeadersError {
    match error {
        etherparse::err::tcp::HeaderSliceError::Len(_) => HeadersError::Truncated,
        etherparse::err::tcp::HeaderSliceError::Content(_) => HeadersError::Malformed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::Sample;

    fn parse_with(sample: &Sample, at: usize, value: u8) -> Result<Headers, HeadersError> {
        let mut frame = sample.frame();
        frame[at] = value;
        Headers::parse(&frame)
    }

    #[test]
    fn finds_the_headers_behind_tags_and_extensions() {
        let sample = Sample { tags: 2, is_v6: true, ip_options: 3, ..Sample::default() };
        let frame = sample.frame();
        let headers = Headers::parse(&frame).expect("valid");
        let expected = Headers {
            version: IpVersion::V6,
            transport_kind: Transport::Tcp,
            network: 22,
            transport: 22 + 40 + 24,
            payload: 22 + 40 + 24 + 32,
            end: frame.len(),
        };
        assert_eq!(headers, expected);
        assert_eq!(Headers::parse(&frame[..expected.payload]), Ok(expected));
        assert_eq!(Headers::parse(&frame[..expected.payload - 1]), Err(HeadersError::Truncated));
    }

    #[test]
    fn refuses_what_cannot_be_cut() {
        let plain = Sample { is_v6: true, ..Sample::default() };
        let routed = Sample { is_v6: true, ip_options: 2, ..Sample::default() };
        let (next, route) = (14 + 6, 14 + 40 + 8);
        assert_eq!(parse_with(&plain, next, 50), Err(HeadersError::NotTransport));
        assert_eq!(parse_with(&routed, route + 3, 1), Err(HeadersError::Routed));
        assert_eq!(parse_with(&routed, next, 51), Err(HeadersError::Malformed));
        assert_eq!(parse_with(&Sample { tags: 4, ..plain.clone() }, 0, 0), Err(HeadersError::NotIp));
        assert_eq!(parse_with(&routed, 14 + 40 + 1, 255), Err(HeadersError::Truncated));
        let mut authenticated = Sample { ip_options: 3, ..routed.clone() }.frame();
        authenticated[route - 8] = 51;
        authenticated[route..route + 2].copy_from_slice(&[6, 2]);
        assert_eq!(Headers::parse(&authenticated), Err(HeadersError::Authenticated));
        let mut fragment = routed.frame();
        fragment[route - 8] = 44;
        assert!(Headers::parse(&fragment).is_ok());
        fragment[route + 3] = 1;
        assert_eq!(Headers::parse(&fragment), Err(HeadersError::Fragment));
    }
}
