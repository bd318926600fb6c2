//! The address of an endpoint, as `fi_getname()` returns it and `fi_av_insert()` takes it. Programs treat it as opaque.
//!
//! ```text
//!   0  "ISFI"   4  version (2)   6  MX endpoint number, 0xffff for none (2)   8  nic id of the daemon's board (8)   16  domain (4)   20  zero
//! ```
//!
//! All fields are little-endian. The nic id identifies the daemon. Within one daemon, the domain number is the address.
//! From another host, the nic id and the MX endpoint number are, as for any MX endpoint.

use isthmus_client::DomainId;

/// The size of a name in bytes.
pub(crate) const NAME_BYTES: usize = 24;

const MAGIC: [u8; 4] = *b"ISFI";
const VERSION: u16 = 1;
const NO_NUMBER: u16 = 0xffff;

/// The location of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    pub(crate) nic: u64,
    pub(crate) number: Option<u16>,
    pub(crate) domain: DomainId,
}

impl Name {
    pub(crate) fn emit(&self) -> [u8; NAME_BYTES] {
        let mut bytes = [0; NAME_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.number.unwrap_or(NO_NUMBER).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.nic.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.domain.number().to_le_bytes());
        bytes
    }

    /// Parses a name. Returns `None` if the bytes are not a name of this provider.
    pub(crate) fn parse(bytes: &[u8; NAME_BYTES]) -> Option<Self> {
        let [m0, m1, m2, m3, v0, v1, n0, n1, c0, c1, c2, c3, c4, c5, c6, c7, d0, d1, d2, d3, ..] = *bytes;
        if [m0, m1, m2, m3] != MAGIC || u16::from_le_bytes([v0, v1]) != VERSION {
            return None;
        }
        let number = Some(u16::from_le_bytes([n0, n1])).filter(|number| *number != NO_NUMBER);
        let nic = u64::from_le_bytes([c0, c1, c2, c3, c4, c5, c6, c7]);
        Some(Self { nic, number, domain: DomainId::new(u32::from_le_bytes([d0, d1, d2, d3]))? })
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "isthmus://{:012x}/{}", self.nic, self.domain)?;
        self.number.map_or(Ok(()), |number| write!(f, "/{number}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_round_trips() {
        let domain = DomainId::new(7).expect("not zero");
        for number in [None, Some(0), Some(254)] {
            let name = Name { nic: 0x0260_dd00_0001, number, domain };
            assert_eq!(Name::parse(&name.emit()), Some(name));
        }
        let name = Name { nic: 0x0260_dd00_0001, number: Some(3), domain };
        assert_eq!(name.to_string(), "isthmus://0260dd000001/d7/3");
    }

    #[test]
    fn rejects_bytes_that_are_no_name() {
        assert_eq!(Name::parse(&[0; NAME_BYTES]), None);
        let mut bytes = Name { nic: 1, number: None, domain: DomainId::new(1).expect("not zero") }.emit();
        bytes[16] = 0;
        assert_eq!(Name::parse(&bytes), None, "there is no domain 0");
        bytes[4] = 2;
        assert_eq!(Name::parse(&bytes), None, "another version");
    }
}
