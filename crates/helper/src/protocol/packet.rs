//! Reads and writes the fields of packets.

use std::net::{IpAddr, Ipv4Addr};

use super::Malformed;
use crate::values::{InterfaceAddress, InterfaceName, InvalidValue, NAME_BYTES_MAX};

const FAMILY_V4: u8 = 4;
const FAMILY_V6: u8 = 6;

/// The bytes of a name: padded with zeros, of which there is at least one.
const NAME_FIELD_BYTES: usize = NAME_BYTES_MAX + 1;

/// Appends fields to a packet.
pub(super) struct PacketWriter(Vec<u8>);

impl PacketWriter {
    pub(super) fn new(kind: u16) -> Self {
        Self(Vec::new()).u16(kind).u16(0)
    }

    pub(super) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(super) fn u16(self, value: u16) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn name(self, name: &InterfaceName) -> Self {
        self.optional_name(Some(name))
    }

    pub(super) fn optional_name(self, name: Option<&InterfaceName>) -> Self {
        let mut field = [0; NAME_FIELD_BYTES];
        let name = name.map_or("", InterfaceName::as_str);
        field[..name.len()].copy_from_slice(name.as_bytes());
        self.bytes(&field)
    }

    pub(super) fn address(self, address: InterfaceAddress) -> Self {
        let mut octets = [0; 16];
        let family = match address.address() {
            IpAddr::V4(v4) => {
                octets[..4].copy_from_slice(&v4.octets());
                FAMILY_V4
            }
            IpAddr::V6(v6) => {
                octets = v6.octets();
                FAMILY_V6
            }
        };
        self.bytes(&[family, address.prefix_len(), 0, 0]).bytes(&octets)
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Takes fields from a packet.
pub(super) struct PacketReader<'a> {
    rest: &'a [u8],
    packet_bytes: usize,
}

impl<'a> PacketReader<'a> {
    /// Returns the kind of a packet, and its body.
    pub(super) fn new(packet: &'a [u8]) -> Result<(u16, Self), Malformed> {
        let mut reader = Self { rest: packet, packet_bytes: packet.len() };
        let kind = reader.u16()?;
        if reader.u16()? == 0 { Ok((kind, reader)) } else { Err(Malformed::Reserved) }
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (field, rest) = self.rest.split_first_chunk().ok_or(Malformed::Length { have: self.packet_bytes })?;
        self.rest = rest;
        Ok(*field)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    /// Takes a field of which only the bits of `known` may be set.
    pub(super) fn flags(&mut self, known: u32) -> Result<u32, Malformed> {
        let flags = self.u32()?;
        if flags & !known == 0 { Ok(flags) } else { Err(Malformed::Flags(flags)) }
    }

    pub(super) fn boolean(&mut self) -> Result<bool, Malformed> {
        self.flags(1).map(|flag| flag == 1)
    }

    pub(super) fn name(&mut self) -> Result<InterfaceName, Malformed> {
        self.optional_name()?.ok_or(InvalidValue::Name.into())
    }

    /// Takes a name, or none if the field is zero.
    pub(super) fn optional_name(&mut self) -> Result<Option<InterfaceName>, Malformed> {
        let field: [u8; NAME_FIELD_BYTES] = self.array()?;
        let len = field.iter().position(|byte| *byte == 0).ok_or(InvalidValue::Name)?;
        if field[len..].iter().any(|byte| *byte != 0) {
            return Err(Malformed::Reserved);
        }
        let name = std::str::from_utf8(&field[..len]).map_err(|_| InvalidValue::Name)?;
        if name.is_empty() { Ok(None) } else { Ok(Some(InterfaceName::new(name)?)) }
    }

    pub(super) fn address(&mut self) -> Result<InterfaceAddress, Malformed> {
        let [family, prefix_len, zeros @ ..]: [u8; 4] = self.array()?;
        let octets: [u8; 16] = self.array()?;
        let ([a, b, c, d, padding @ ..], mut is_padded) = (octets, zeros == [0; 2]);
        let address = match family {
            FAMILY_V4 => {
                is_padded &= padding == [0; 12];
                Ipv4Addr::new(a, b, c, d).into()
            }
            FAMILY_V6 => IpAddr::from(octets),
            family => return Err(Malformed::Flags(family.into())),
        };
        if is_padded { Ok(InterfaceAddress::new(address, prefix_len)?) } else { Err(Malformed::Reserved) }
    }

    /// Checks that the packet ends here, and the number of its descriptors.
    pub(super) fn end(self, descriptors: usize, expected: usize) -> Result<(), Malformed> {
        if !self.rest.is_empty() {
            return Err(Malformed::Length { have: self.packet_bytes });
        }
        if descriptors == expected { Ok(()) } else { Err(Malformed::Descriptors { have: descriptors, expected }) }
    }
}
