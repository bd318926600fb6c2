//! The open endpoints of a domain.

use isthmus_layout::control::Name;
use isthmus_layout::ids::EndpointIndex;
use isthmus_layout::limits::ENDPOINTS_MAX;
use isthmus_layout::mx::MxOpen;

const _: () = assert!(ENDPOINTS_MAX <= u32::BITS as u8);

/// Which endpoints are open, and what they are for.
#[derive(Debug, Default)]
pub(crate) struct Endpoints {
    /// A bit for each that is open.
    open: u32,
    labels: [Option<Name>; ENDPOINTS_MAX as usize],
    /// MX endpoint numbers they have, to be claimed again from a daemon after this one.
    claims: [Option<MxOpen>; ENDPOINTS_MAX as usize],
}

impl Endpoints {
    pub(crate) fn open(&mut self, index: EndpointIndex, label: Option<Name>) {
        self.open |= 1 << index.number();
        self.labels[usize::from(index.number())] = label;
        self.claims[usize::from(index.number())] = None;
    }

    /// The endpoint has this MX endpoint number now.
    pub(crate) fn claim(&mut self, claim: MxOpen) {
        let index = usize::from(claim.index.number());
        self.claims[index] = Some(claim);
    }

    /// The MX endpoint numbers of those that are open.
    pub(crate) fn claims(&self) -> impl Iterator<Item = &MxOpen> {
        self.claims.iter().flatten().filter(|claim| self.is_open(claim.index))
    }

    /// True if it was open.
    pub(crate) fn close(&mut self, index: EndpointIndex) -> bool {
        let was = self.is_open(index);
        self.open &= !(1 << index.number());
        was
    }

    #[inline]
    pub(crate) fn is_open(&self, index: EndpointIndex) -> bool {
        self.open & 1 << index.number() != 0
    }

    /// Those that are open, with their labels.
    pub(crate) fn all(&self) -> impl Iterator<Item = (EndpointIndex, Option<&Name>)> {
        let indices = (0..ENDPOINTS_MAX).filter_map(EndpointIndex::new);
        indices
            .filter(|index| self.is_open(*index))
            .map(|index| (index, self.labels[usize::from(index.number())].as_ref()))
    }
}
