//! The part of the daemon's state that a program may see. Every report is made for a viewer.
//!
//! ```text
//!   root and the daemon's user, on this host    everything
//!   another user of this host                   the domains, sockets and numbers of the user
//!   a program of a guest                        the domains of the guest; nothing of the host
//!   a user that the daemon cannot identify      counts
//! ```
//!
//! All viewers get the counts of everything, and the number of rows that they do not see. The peer of a visible domain is shown by its
//! number and name if the policy lets one of the two send to the other one.

use isthmus_layout::Refusal;
use isthmus_layout::control::{Name, Owner};
use isthmus_layout::reason::Reason;
use isthmus_report::DomainName;

use crate::core::Core;
use crate::core::types::ControlSessionId;
use crate::directory::DomainEntry;

/// The program that a report is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Viewer {
    /// Root or the user of the daemon, on this host.
    All,
    /// Another user of this host.
    User(Owner),
    /// A program of this guest.
    Guest(Name),
    /// One of several users of this host with the same UID.
    Unidentified,
}

impl Viewer {
    /// The viewer at the other end of a connection.
    pub(crate) fn of(core: &Core, session: ControlSessionId) -> Self {
        let Some(peer) = core.socket_peer(session) else { return Self::Unidentified };
        match peer.allocator.guest() {
            Some(guest) => Self::Guest(guest.clone()),
            None if core.settings.overflow_uid == Some(peer.uid) => Self::Unidentified,
            None if core.policy.may_see_all(peer.uid) => Self::All,
            None => Self::User(Owner(peer.uid)),
        }
    }

    /// True if the viewer sees everything.
    pub(crate) fn sees_all(&self) -> bool {
        *self == Self::All
    }

    /// The guest of which the viewer is a program.
    pub(crate) fn guest(&self) -> Option<&Name> {
        match self {
            Self::Guest(guest) => Some(guest),
            _ => None,
        }
    }

    /// True if the viewer is a program of this host. Others do not see its interfaces, paths and processes.
    pub(crate) fn is_on_host(&self) -> bool {
        self.guest().is_none()
    }

    /// True if the viewer sees the programs of a user of this host.
    pub(crate) fn sees_owner(&self, owner: Owner) -> bool {
        self.sees_all() || *self == Self::User(owner)
    }

    /// True if the viewer sees a domain.
    pub(crate) fn sees_domain(&self, core: &Core, domain: &DomainEntry) -> bool {
        match self {
            Self::Guest(guest) => {
                let attachment = core.attachments.get(&domain.id);
                attachment.is_some_and(|attachment| attachment.allocator.guest() == Some(guest))
            }
            _ => self.sees_owner(domain.owner),
        }
    }

    /// True if the viewer sees a guest.
    pub(crate) fn sees_guest(&self, guest: &Name, owner: Owner) -> bool {
        self.sees_owner(owner) || self.guest() == Some(guest)
    }

    /// True if the viewer may know the name of a domain that is the peer of another one.
    pub(crate) fn knows_peer(&self, core: &Core, domain: &DomainEntry, of: &DomainEntry) -> bool {
        let may_talk = || {
            let identities = core.identity(domain.id).zip(core.identity(of.id));
            identities.is_some_and(|(domain, of)| {
                [(&domain, &of), (&of, &domain)].iter().any(|(from, to)| core.policy.may_send(from, to).is_ok())
            })
        };
        self.sees_domain(core, domain) || may_talk()
    }

    /// Returns the number and the name of a domain that is the peer of another one. The number stands for a name that the viewer may not
    /// know.
    pub(crate) fn peer_name(&self, core: &Core, domain: &DomainEntry, of: &DomainEntry) -> DomainName {
        match self.knows_peer(core, domain, of) {
            true => DomainName::from(domain),
            false => DomainName { id: domain.id.number(), name: domain.id.to_string() },
        }
    }
}

/// The refusal of a report about something that the viewer may not see.
pub(crate) fn not_yours(what: impl std::fmt::Display) -> Refusal {
    Refusal::new(Reason::NotYours, what.to_string())
}
