//! The header of VXLAN (RFC 7348, section 5): 8 bytes between UDP and the inner frame.
//!
//! ```text
//!   0 flags: 0x08, the VNI is valid   1 reserved (3)   4 VNI (3)   7 reserved
//! ```
//!
//! A receiver ignores the reserved bits, as the RFC demands. It refuses a header without the flag.

use thiserror::Error;

/// Bytes of the header.
pub const VXLAN_BYTES: usize = 8;

const VNI_VALID: u8 = 0x08;

/// The number of a network on the wire: 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vni(u32);

impl Vni {
    /// The smallest number.
    pub const MIN: Self = Self(0);

    /// The largest number.
    pub const MAX: Self = Self(0xff_ffff);

    /// A number of at most 24 bits.
    pub const fn new(number: u32) -> Option<Self> {
        if number <= Self::MAX.0 { Some(Self(number)) } else { None }
    }

    /// The number.
    pub const fn number(self) -> u32 {
        self.0
    }

    pub(crate) const fn from_bytes(bytes: [u8; 3]) -> Self {
        Self(u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]))
    }

    pub(crate) const fn to_bytes(self) -> [u8; 3] {
        let [_, high, middle, low] = self.0.to_be_bytes();
        [high, middle, low]
    }
}

/// Why a datagram is not VXLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum VxlanError {
    /// Less than a header.
    #[error("datagram of {0} bytes has no VXLAN header")]
    Short(usize),
    /// The flag of the VNI is not set.
    #[error("flags {0:#04x} state no VNI")]
    NoVni(u8),
}

/// The header for a network.
pub const fn emit(vni: Vni) -> [u8; VXLAN_BYTES] {
    let [high, middle, low] = vni.to_bytes();
    [VNI_VALID, 0, 0, 0, high, middle, low, 0]
}

/// Splits a datagram into the number of the network and the inner frame.
///
/// # Errors
/// The datagram is too short, or names no network.
pub const fn parse(datagram: &[u8]) -> Result<(Vni, &[u8]), VxlanError> {
    match datagram {
        [flags, ..] if datagram.len() >= VXLAN_BYTES && *flags & VNI_VALID == 0 => Err(VxlanError::NoVni(*flags)),
        [_, _, _, _, high, middle, low, _, inner @ ..] => Ok((Vni::from_bytes([*high, *middle, *low]), inner)),
        _ => Err(VxlanError::Short(datagram.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emits_the_bytes_of_the_rfc() {
        assert_eq!(emit(Vni(0x12_3456)), [8, 0, 0, 0, 0x12, 0x34, 0x56, 0]);
        for vni in [Vni(0), Vni(42), Vni::MAX] {
            assert_eq!(parse(&emit(vni)), Ok((vni, &[][..])));
        }
        assert_eq!(Vni::new(0x100_0000), None);
    }

    #[test]
    fn tolerates_reserved_bits() {
        let datagram = [0xff, 1, 2, 3, 0, 0, 7, 0xff, 0xaa];
        assert_eq!(parse(&datagram), Ok((Vni(7), &[0xaa][..])));
    }

    #[test]
    fn refuses_short_datagrams_and_those_without_a_vni() {
        assert_eq!(parse(&[8; 7]), Err(VxlanError::Short(7)));
        assert_eq!(parse(&[]), Err(VxlanError::Short(0)));
        assert_eq!(parse(&[0xf7, 0, 0, 0, 0, 0, 7, 0]), Err(VxlanError::NoVni(0xf7)));
    }
}
