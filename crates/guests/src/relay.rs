//! Requests of a guest's programs: those that the host cannot take are refused by name. The addresses of a guest, which no request has, are
//! stated beside them.
//!
//! ```text
//!   program ── request ──────────────► guest's daemon ── request ──► host's daemon ── decide ──► session
//!           ── request, descriptors ─► decide: a refusal
//! ```
//!
//! Descriptors end with the guest's daemon, so that one decides about requests with them. The host's daemon decides about all others, whatever
//! the guest's daemon has let pass, so no session gets a request for a capability that guests do not have.

pub(crate) mod addresses;
mod memory;

use isthmus_layout::control::{Query, Refused, RequestSerial, ToClient, ToDaemon};
use isthmus_layout::{Capability, Refusal};

/// Decides about a request that comes with a number of descriptors: the host takes it, or the program gets the refusal.
pub(crate) fn decide(request: &ToDaemon, descriptors: usize) -> Result<(), Refusal> {
    let capability = match request {
        ToDaemon::Query(Query { topic, .. }) => Capability::of_topic(*topic),
        request => Capability::of_message(request),
    };
    match capability.filter(|capability| !capability.is_in_guests()) {
        Some(capability) => Err(Refusal::not_in_guests_yet(capability)),
        None if descriptors > 0 => Err(memory::refusal(request)),
        None => Ok(()),
    }
}

/// Returns the message that tells a program of a refusal.
pub(crate) fn refused(refusal: &Refusal, serial: Option<RequestSerial>) -> Vec<u8> {
    ToClient::from(Refused::from(refusal)).emit(serial)
}

#[cfg(test)]
mod tests {
    use super::*;
    use isthmus_layout::control::{Grant, List, Topic};
    use isthmus_layout::ids::{DomainId, RegionId};
    use isthmus_layout::overlay::OverlayChange;
    use isthmus_layout::reason::Reason;
    use isthmus_layout::sockets::{StreamAttach, StreamShow};
    use isthmus_layout::verbs::VerbsResolve;

    fn reason(request: impl Into<ToDaemon>, descriptors: usize) -> Option<Reason> {
        decide(&request.into(), descriptors).err().map(|refusal| refusal.reason)
    }

    #[test]
    fn requests_are_refused_by_what_they_are_about() {
        let show = StreamShow { token: 1, connector: false, since_ms: 0, until_ms: 0 };
        assert_eq!(reason(show, 1), Some(Reason::NotInGuestsYet));
        assert_eq!(reason(StreamAttach {}, 0), Some(Reason::NotInGuestsYet));
        assert_eq!(reason(OverlayChange {}, 1), Some(Reason::NotInGuestsYet));
        assert_eq!(reason(VerbsResolve { gid_high: 0, gid_low: 0, qpn: 300 }, 0), None);
        let grant = Grant { peer: DomainId::new(1).unwrap(), region: RegionId(1), start: 0, bytes: 4096 };
        assert_eq!(reason(grant, 1), Some(Reason::NoSharedMemory));
    }

    #[test]
    fn reports_of_capabilities_that_guests_do_not_have_are_refused() {
        let refused = |topic| reason(Query { topic, arguments: List::new(Vec::new()).unwrap() }, 0);
        assert_eq!([Topic::Streams, Topic::Overlay].map(refused), [Some(Reason::NotInGuestsYet); 2]);
        assert_eq!([Topic::Status, Topic::Verbs, Topic::Mx].map(refused), [None; 3]);
    }
}
