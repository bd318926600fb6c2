//! Packets that transfer a large message (3.8, 3.9, 3.12). They are not numbered: lost ones are requested again.

use super::fields::{Fields, FieldsMut};
use super::malformed::narrow;
use super::message::declared;
use super::{Dialect, EmitError, EndpointNumber, HEADER_BYTES, Malformed, Nack, PacketType, PullHandle, SessionId};

/// The size of the body in MX mode, in bytes.
pub(super) const MX_PULL_BYTES: usize = 32;

/// The size of the body in Open-MX mode, in bytes.
pub(super) const OPEN_MX_PULL_BYTES: usize = 44;

/// The offset of the data in a PULL_REPLY's frame, in bytes.
pub(super) const REPLY_HEAD_BYTES: usize = HEADER_BYTES + 16;

/// PULL (3.8): requests one block of a region. In MX mode four of the fields are narrower than here; a value that does
/// not fit is an error when it is emitted. The number of frames is not checked here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pull {
    /// The region's owner.
    pub dst_endpoint: EndpointNumber,
    /// The endpoint that pulls.
    pub src_endpoint: EndpointNumber,
    /// The session of the destination endpoint.
    pub session: SessionId,
    /// The length of the whole transfer in bytes.
    pub total_length: u32,
    /// The region of the RNDV; 8 bits in MX mode.
    pub pulled_rdma_id: u32,
    /// The use of the region of the RNDV.
    pub pulled_rdma_seqnum: u8,
    /// The offset of the RNDV; 16 bits in MX mode.
    pub pulled_rdma_offset: u32,
    /// `src_pull_handle` and `src_magic`, which the replies repeat.
    pub puller: PullHandle,
    /// The number of bytes at the start of the block's first frame that are not requested; 16 bits in MX mode.
    pub first_frame_offset: u32,
    /// The number of requested bytes; 16 bits in MX mode.
    pub block_length: u32,
    /// The index in the region of the block's first frame.
    pub frame_index: u32,
}

impl Pull {
    pub(super) const fn bytes(dialect: Dialect) -> usize {
        match dialect {
            Dialect::Mx => MX_PULL_BYTES,
            Dialect::OpenMx { .. } => OPEN_MX_PULL_BYTES,
        }
    }

    pub(super) fn parse(dialect: Dialect, body: &[u8]) -> Result<Self, Malformed> {
        match dialect {
            Dialect::Mx => Self::parse_mx(body),
            Dialect::OpenMx { .. } => Self::parse_open_mx(body),
        }
    }

    fn parse_mx(body: &[u8]) -> Result<Self, Malformed> {
        let (fields, _) = Fields::<MX_PULL_BYTES>::split(body, HEADER_BYTES)?;
        Ok(Self {
            dst_endpoint: EndpointNumber(fields.u8::<1>()),
            src_endpoint: EndpointNumber(fields.u8::<2>()),
            session: SessionId(fields.u32::<4>()),
            total_length: fields.u32::<8>(),
            pulled_rdma_id: u32::from(fields.u8::<12>()),
            pulled_rdma_seqnum: fields.u8::<13>(),
            pulled_rdma_offset: u32::from(fields.u16::<14>()),
            puller: PullHandle { handle: fields.u32::<16>(), magic: fields.u32::<20>() },
            first_frame_offset: u32::from(fields.u16::<24>()),
            block_length: u32::from(fields.u16::<26>()),
            frame_index: fields.u32::<28>(),
        })
    }

    fn parse_open_mx(body: &[u8]) -> Result<Self, Malformed> {
        let (fields, _) = Fields::<OPEN_MX_PULL_BYTES>::split(body, HEADER_BYTES)?;
        Ok(Self {
            dst_endpoint: EndpointNumber(fields.u8::<1>()),
            src_endpoint: EndpointNumber(fields.u8::<2>()),
            session: SessionId(fields.u32::<4>()),
            total_length: fields.u32::<8>(),
            pulled_rdma_id: fields.u32::<12>(),
            pulled_rdma_seqnum: fields.u8::<16>(),
            pulled_rdma_offset: fields.u32::<20>(),
            puller: PullHandle { handle: fields.u32::<24>(), magic: fields.u32::<28>() },
            first_frame_offset: fields.u32::<32>(),
            block_length: fields.u32::<36>(),
            frame_index: fields.u32::<40>(),
        })
    }

    /// Writes the common fields of both dialects.
    fn head<const N: usize>(&self) -> FieldsMut<N> {
        FieldsMut::zeroed()
            .u8::<0>(PacketType::Pull.number())
            .u8::<1>(self.dst_endpoint.0)
            .u8::<2>(self.src_endpoint.0)
            .u32::<4>(self.session.0)
            .u32::<8>(self.total_length)
    }

    pub(super) fn emit_mx(&self) -> Result<[u8; MX_PULL_BYTES], EmitError> {
        let fields = self
            .head()
            .u8::<12>(narrow("pulled_rdma_id", u64::from(self.pulled_rdma_id), u8::MAX)?)
            .u8::<13>(self.pulled_rdma_seqnum)
            .u16::<14>(narrow("pulled_rdma_offset", u64::from(self.pulled_rdma_offset), u16::MAX)?)
            .u32::<16>(self.puller.handle)
            .u32::<20>(self.puller.magic)
            .u16::<24>(narrow("first_frame_offset", u64::from(self.first_frame_offset), u16::MAX)?)
            .u16::<26>(narrow("block_length", u64::from(self.block_length), u16::MAX)?)
            .u32::<28>(self.frame_index);
        Ok(fields.finish())
    }

    pub(super) fn emit_open_mx(&self) -> [u8; OPEN_MX_PULL_BYTES] {
        self.head()
            .u32::<12>(self.pulled_rdma_id)
            .u8::<16>(self.pulled_rdma_seqnum)
            .u32::<20>(self.pulled_rdma_offset)
            .u32::<24>(self.puller.handle)
            .u32::<28>(self.puller.magic)
            .u32::<32>(self.first_frame_offset)
            .u32::<36>(self.block_length)
            .u32::<40>(self.frame_index)
            .finish()
    }
}

/// PULL_REPLY (3.9): one frame of the requested block, sent to the board that requested it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullReply<D> {
    /// The index of the frame, modulo 256.
    pub frame_seqnum: u8,
    /// The offset of the data in the transfer.
    pub msg_offset: u32,
    /// `dst_pull_handle` and `dst_magic`, repeated from the PULL.
    pub puller: PullHandle,
    /// The data; `frame_length` is how many bytes it has.
    pub data: D,
}

impl<'a> PullReply<&'a [u8]> {
    #[inline]
    pub(super) fn parse(body: &'a [u8]) -> Result<Self, Malformed> {
        let (fields, rest) = Fields::<16>::split(body, HEADER_BYTES)?;
        Ok(Self {
            frame_seqnum: fields.u8::<1>(),
            msg_offset: fields.u32::<4>(),
            puller: PullHandle { handle: fields.u32::<8>(), magic: fields.u32::<12>() },
            data: declared(rest, u32::from(fields.u16::<2>()))?,
        })
    }
}

impl<D> PullReply<D> {
    #[inline]
    pub(super) fn emit(&self, bytes: usize) -> Result<[u8; 16], EmitError> {
        let fields = FieldsMut::zeroed()
            .u8::<0>(PacketType::PullReply.number())
            .u8::<1>(self.frame_seqnum)
            .u16::<2>(narrow("frame_length", bytes as u64, u16::MAX)?)
            .u32::<4>(self.msg_offset)
            .u32::<8>(self.puller.handle)
            .u32::<12>(self.puller.magic);
        Ok(fields.finish())
    }
}

/// NACK_MCP (3.12): a PULL was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NackMcp {
    /// Linux writes the puller's endpoint here, and this code does, too. The handle alone identifies the pull.
    pub src_endpoint: EndpointNumber,
    /// The reason.
    pub nack_type: Nack,
    /// `src_pull_handle` and `src_magic`, repeated from the PULL.
    pub puller: PullHandle,
}

impl NackMcp {
    pub(super) fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let (fields, _) = Fields::<16>::split(body, HEADER_BYTES)?;
        Ok(Self {
            src_endpoint: EndpointNumber(fields.u8::<1>()),
            nack_type: Nack::from_number(fields.u8::<3>())?,
            puller: PullHandle { handle: fields.u32::<8>(), magic: fields.u32::<12>() },
        })
    }

    pub(super) fn emit(&self) -> [u8; 16] {
        FieldsMut::zeroed()
            .u8::<0>(PacketType::NackMcp.number())
            .u8::<1>(self.src_endpoint.0)
            .u8::<3>(self.nack_type.number())
            .u32::<8>(self.puller.handle)
            .u32::<12>(self.puller.magic)
            .finish()
    }
}
