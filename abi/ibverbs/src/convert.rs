//! Requests, attributes and completions: from the structures of the interface to the values of the engine, and back.
//!
//! The program's structures are read once. Nothing here allocates for a request of up to [`requests::SGES_INLINE`] ranges.

mod attributes;
mod creation;
mod requests;

pub(crate) use attributes::{address_of_handle, attributes, qp_attributes};
pub(crate) use creation::{
    access, completion_vector, is_zero_based, qp_capacities, qp_init, qp_send_operations, srq_init,
};
pub(crate) use requests::{SgeBuffer, completion, receive_request, send_request};

use isthmus_verbs::Refused;
use rustix::io::Errno;

/// The error number of a refusal.
pub(crate) const fn errno(refused: Refused) -> Errno {
    match refused {
        Refused::Invalid => Errno::INVAL,
        Refused::Full | Refused::NumbersMissing => Errno::NOMEM,
        Refused::Busy => Errno::BUSY,
        Refused::RouteMissing(..) => Errno::HOSTUNREACH,
        Refused::Unsupported => Errno::OPNOTSUPP,
    }
}

#[cfg(test)]
mod tests;
