//! `mx_get_info()`: queries about boards.

use crate::codes::Return;
use crate::environment::{EAGER_MAX, Settings};
use crate::errors::{Failure, call};
use crate::types::EndpointHandle;
use crate::{boards, table};
use isthmus_client::MxBoards;
use std::ffi::c_void;

/// `MX_MAX_STR_LEN`.
const LABEL_LEN: usize = 128;

/// The longest message that travels in its announcing record.
const PIO_SEND_MAX: u32 = 128;

/// The value of facts that are unlimited or unknown: limits of requests, and the board's NUMA node.
const UNKNOWN: u32 = u32::MAX;

/// `MX_NET_ETHER` and `MX_SPEED_10G`. Programs compare these values to find boards of one network, so they are the same
/// on every host.
const NET_ETHER: u32 = 1;
const SPEED_10G: u32 = 1;

/// The counters of a board.
const COUNTERS: [(&str, Counter); 4] = [
    ("endpoints open", |report, board| {
        board_of(report, board).map_or(0, |board| board.endpoints.len() as u32 + board.endpoints_hidden)
    }),
    ("endpoints at most", |report, board| board_of(report, board).map_or(0, |board| board.endpoints_max)),
    ("boards of this host", |report, _| report.boards.len() as u32),
    ("boards that can be reached", |report, _| report.peers.len() as u32),
];

type Counter = fn(&MxBoards, u32) -> u32;

fn board_of(report: &MxBoards, number: u32) -> Option<&isthmus_client::MxBoard> {
    report.boards.iter().find(|board| board.number == number)
}

/// The key of a query: `mx_get_info_key_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    NicCount,
    NicIds,
    EndpointsMax,
    Requests,
    CountersCount,
    CountersLabels,
    CountersValues,
    ProductCode,
    PartNumber,
    SerialNumber,
    PortCount,
    PioSendMax,
    CopySendMax,
    NumaNode,
    NetType,
    LineSpeed,
}

impl Key {
    const ALL: [Self; 16] = [
        Self::NicCount,
        Self::NicIds,
        Self::EndpointsMax,
        Self::Requests,
        Self::CountersCount,
        Self::CountersLabels,
        Self::CountersValues,
        Self::ProductCode,
        Self::PartNumber,
        Self::SerialNumber,
        Self::PortCount,
        Self::PioSendMax,
        Self::CopySendMax,
        Self::NumaNode,
        Self::NetType,
        Self::LineSpeed,
    ];

    fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number.checked_sub(1)? as usize).copied()
    }

    /// Returns true if the query is about one board.
    fn needs_board(self) -> bool {
        use Key::{CopySendMax, EndpointsMax, NicCount, NicIds, PioSendMax, Requests};
        !matches!(self, NicCount | NicIds | EndpointsMax | Requests | PioSendMax | CopySendMax)
    }

    /// Returns the result as it is laid out in memory.
    fn answer(self, report: &MxBoards, board: u32) -> Vec<u8> {
        let number = |value: u32| value.to_ne_bytes().to_vec();
        let here = board_of(report, board);
        match self {
            Self::NicCount => number(report.boards.len() as u32),
            Self::NicIds => report.boards.iter().map(|board| board.nic).chain([0]).flat_map(u64::to_ne_bytes).collect(),
            Self::EndpointsMax => number(report.boards.iter().map(|board| board.endpoints_max).max().unwrap_or(0)),
            Self::Requests | Self::NumaNode => number(UNKNOWN),
            Self::CountersCount => number(COUNTERS.len() as u32),
            Self::CountersLabels => COUNTERS.iter().flat_map(|(label, _)| padded(label)).collect(),
            Self::CountersValues => COUNTERS.iter().flat_map(|(_, count)| count(report, board).to_ne_bytes()).collect(),
            Self::ProductCode => text("Isthmus"),
            Self::PartNumber => text(concat!("isthmus-", env!("CARGO_PKG_VERSION"))),
            Self::SerialNumber => text(&here.map(|board| mac(board.nic)).unwrap_or_default()),
            Self::PortCount => number(1),
            Self::PioSendMax => number(PIO_SEND_MAX),
            Self::CopySendMax => number(Settings::of_process().eager_max.min(EAGER_MAX)),
            Self::NetType => number(NET_ETHER),
            Self::LineSpeed => number(SPEED_10G),
        }
    }

    /// Returns true if a truncated result is better than none.
    fn is_text(self) -> bool {
        matches!(self, Self::ProductCode | Self::PartNumber | Self::SerialNumber)
    }
}

fn text(text: &str) -> Vec<u8> {
    text.bytes().chain([0]).collect()
}

fn padded(label: &str) -> [u8; LABEL_LEN] {
    std::array::from_fn(|at| label.as_bytes().get(at).copied().unwrap_or(0))
}

fn mac(nic: u64) -> String {
    let octets: Vec<String> = nic.to_be_bytes()[2..].iter().map(|octet| format!("{octet:02x}")).collect();
    octets.join(":")
}

/// Answers a query about boards.
///
/// # Safety
///
/// `in_val` is null, or `in_len` bytes can be read there. `out_val` is null, or has room for `out_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_get_info(
    endpoint: EndpointHandle,
    key: u32,
    in_val: *const c_void,
    in_len: u32,
    out_val: *mut c_void,
    out_len: u32,
) -> Return {
    call("mx_get_info", endpoint, || {
        let key = Key::from_number(key).ok_or(Return::BAD_INFO_KEY)?;
        if out_val.is_null() {
            return Err(Return::BAD_INFO_VAL.into());
        }
        let board = if endpoint == 0 {
            // SAFETY: as the caller promised.
            unsafe { number(in_val, in_len)? }
        } else {
            table::lock(endpoint)?.board
        };
        let report = boards::report()?;
        if key.needs_board() && board_of(&report, board).is_none() {
            return Err(Return::BOARD_UNKNOWN.into());
        }
        let mut answer = key.answer(&report, board);
        if answer.len() > out_len as usize {
            if !key.is_text() || out_len == 0 {
                return Err(Return::BAD_INFO_LENGTH.into());
            }
            answer.truncate(out_len as usize - 1);
            answer.push(0);
        }
        // SAFETY: there is room for `out_len` bytes by the caller's promise, and the check above leaves `answer` no longer than that.
        unsafe { std::ptr::copy_nonoverlapping(answer.as_ptr(), out_val.cast(), answer.len()) };
        Ok(())
    })
}

/// Reads a board number, in the width that the program passed. Without a number, returns the first board.
///
/// # Safety
///
/// `value` is null, or `len` bytes can be read there.
unsafe fn number(value: *const c_void, len: u32) -> Result<u32, Failure> {
    if value.is_null() || len == 0 {
        return Ok(0);
    }
    // SAFETY: not null, so readable as promised; the read assumes no alignment.
    let number = unsafe {
        match len {
            1 => Ok(u64::from(value.cast::<u8>().read())),
            2 => Ok(u64::from(value.cast::<u16>().read_unaligned())),
            4 => Ok(u64::from(value.cast::<u32>().read_unaligned())),
            8 => Ok(value.cast::<u64>().read_unaligned()),
            _ => Err(Return::BAD_INFO_LENGTH),
        }
    };
    Ok(u32::try_from(number?).map_err(|_| Return::BOARD_UNKNOWN)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_width_are_read() {
        let (byte, word, long) = (7_u8, 7_u32, 7_u64);
        // SAFETY: each is as wide as said.
        unsafe {
            assert_eq!(number((&raw const byte).cast(), 1).unwrap(), 7);
            assert_eq!(number((&raw const word).cast(), 4).unwrap(), 7);
            assert_eq!(number((&raw const long).cast(), 8).unwrap(), 7);
            assert_eq!(number(std::ptr::null(), 4).unwrap(), 0);
            assert_eq!(number((&raw const long).cast(), 3).unwrap_err().code, Return::BAD_INFO_LENGTH);
        }
    }

    #[test]
    fn mac_addresses_are_formatted_with_colons() {
        assert_eq!(mac(0x0200_dead_beef), "02:00:de:ad:be:ef");
    }
}
