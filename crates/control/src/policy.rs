//! What the configured policy says about two domains, as reasons. Pure: the settings come from [`config`].

use isthmus_layout::control::{Name, Owner};
use isthmus_layout::reason::Reason;

use crate::config::{self, Party, Verdict};

/// A domain, as far as the policy cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its name.
    pub name: Name,
    /// Whose it is.
    pub owner: Owner,
}

impl Identity {
    fn party(&self) -> Party<'_> {
        Party { name: self.name.as_str(), uid: self.owner.0 }
    }
}

/// The policy in force.
#[derive(Clone, Debug)]
pub struct Policy {
    settings: config::Policy,
    own_uid: u32,
}

impl Policy {
    /// For a daemon of that user.
    pub fn new(settings: config::Policy, own_uid: u32) -> Self {
        Self { settings, own_uid }
    }

    /// The settings.
    pub fn settings(&self) -> &config::Policy {
        &self.settings
    }

    /// May a user attach?
    pub fn attach(&self, uid: u32) -> Result<(), Reason> {
        if self.settings.may_attach(uid, self.own_uid) { Ok(()) } else { Err(Reason::AttachForbidden) }
    }

    /// May a user see frames, which are those of all users?
    pub fn capture(&self, uid: u32) -> Result<(), Reason> {
        if uid == 0 || uid == self.own_uid { Ok(()) } else { Err(Reason::CaptureForbidden) }
    }

    /// What the settings say about one direction.
    pub fn verdict(&self, from: &Identity, to: &Identity) -> Verdict {
        self.settings.verdict(from.party(), to.party())
    }

    /// May one send messages to the other?
    pub fn talk(&self, from: &Identity, to: &Identity) -> Result<(), Reason> {
        if self.verdict(from, to).talk { Ok(()) } else { Err(Reason::TalkForbidden) }
    }

    /// May they have a channel? It carries both directions, so both have to be allowed.
    pub fn channel(&self, a: &Identity, b: &Identity) -> Result<(), Reason> {
        let (there, back) = (self.verdict(a, b), self.verdict(b, a));
        match (there.talk && back.talk, there.channel && back.channel) {
            (false, _) => Err(Reason::TalkForbidden),
            (_, false) => Err(Reason::ChannelsForbidden),
            _ => Ok(()),
        }
    }

    /// May a region of the one stay granted to the other?
    pub fn grant(&self, owner: &Identity, reader: &Identity) -> Result<(), Reason> {
        if owner.owner != reader.owner {
            return Err(Reason::OtherOwner);
        }
        self.channel(owner, reader)?;
        let keeps = self.settings.keeps_grants(owner.owner.0, reader.owner.0);
        if keeps { Ok(()) } else { Err(Reason::GrantsForbidden) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ConfigFile, Inputs, Role};

    fn policy(toml: &str) -> Policy {
        let file = ConfigFile::Given { path: "test.toml".into(), bytes: toml.as_bytes().to_vec() };
        let inputs = Inputs { file, ..Inputs::bare(Role::System) };
        Policy::new(config::load(&inputs).unwrap().config.policy, 0)
    }

    fn identity(name: &str, uid: u32) -> Identity {
        Identity { name: Name::new(name).unwrap(), owner: Owner(uid) }
    }

    #[test]
    fn by_default_one_user_is_on_its_own() {
        let (policy, a, b, c) = (policy(""), identity("a", 5), identity("b", 5), identity("c", 6));
        assert_eq!([policy.attach(0), policy.attach(5)], [Ok(()), Err(Reason::AttachForbidden)]);
        assert_eq!([policy.channel(&a, &b), policy.grant(&a, &b)], [Ok(()); 2]);
        assert_eq!([policy.talk(&a, &c), policy.channel(&a, &c)], [Err(Reason::TalkForbidden); 2]);
    }

    #[test]
    fn frames_are_for_root_and_the_daemon_s_own_user() {
        let policy = Policy { own_uid: 9, ..policy("[policy]\nattach = \"any-user\"\n") };
        assert_eq!([policy.capture(0), policy.capture(9)], [Ok(()); 2]);
        assert_eq!((policy.attach(5), policy.capture(5)), (Ok(()), Err(Reason::CaptureForbidden)));
    }

    #[test]
    fn a_rule_for_one_direction_keeps_both_from_a_channel() {
        let policy = policy("[policy]\ntalk = \"all\"\n[[policy.rules]]\nfrom = \"a*\"\nchannel = false\n");
        let (a, b) = (identity("a1", 5), identity("b", 5));
        assert_eq!(policy.talk(&a, &b), Ok(()));
        assert_eq!([policy.channel(&a, &b), policy.channel(&b, &a)], [Err(Reason::ChannelsForbidden); 2]);
    }

    #[test]
    fn nothing_stays_granted_between_owners() {
        let all = policy("[policy]\ntalk = \"all\"\n");
        assert_eq!(all.grant(&identity("a", 5), &identity("b", 6)), Err(Reason::OtherOwner));
        let never = policy("[policy]\ngrants = \"never\"\n");
        assert_eq!(never.grant(&identity("a", 5), &identity("b", 5)), Err(Reason::GrantsForbidden));
    }
}
