//! Decides about domains by the configured policy, and returns reasons. The decisions depend on nothing but the settings from [`config`].

use std::sync::Arc;

use isthmus_layout::Refusal;
use isthmus_layout::control::{Name, Owner};
use isthmus_layout::reason::Reason;

use crate::credentials::Credentials;
use isthmus_config::{self as config, Grants, PolicySubject, Verdict};

/// The properties of a domain that the policy depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its name.
    pub name: Name,
    /// Its owner.
    pub owner: Owner,
    /// The groups, the cgroup and the guest of its program.
    pub credentials: Arc<Credentials>,
}

impl Identity {
    /// Whether both are known to be in one container. Programs of guests are in none: they grant only what they ask for by
    /// `ISTHMUS_RCACHE=1`, in windows that both have.
    fn is_known_in_container_of(&self, other: &Self) -> bool {
        let (own, other) = (&*self.credentials, &*other.credentials);
        own.guest.is_some() && other.guest.is_some() || own.container.is_some() && own.container == other.container
    }

    fn as_subject(&self) -> PolicySubject<'_> {
        let Credentials { gids, cgroup, container: _, guest } = &*self.credentials;
        PolicySubject {
            name: self.name.as_str(),
            uid: self.owner.0,
            gids,
            cgroup: cgroup.as_deref(),
            guest: guest.as_ref().map(Name::as_str),
        }
    }
}

/// The policy in force.
#[derive(Clone, Debug)]
pub struct Policy {
    settings: config::PolicyConfig,
    own_uid: u32,
}

impl Policy {
    /// Creates the policy for a daemon of the user `own_uid`.
    pub fn new(settings: config::PolicyConfig, own_uid: u32) -> Self {
        Self { settings, own_uid }
    }

    /// The settings.
    pub fn settings(&self) -> &config::PolicyConfig {
        &self.settings
    }

    /// Checks whether a user may attach.
    pub fn may_attach(&self, uid: u32) -> Result<(), Reason> {
        if self.settings.may_attach(uid, self.own_uid) { Ok(()) } else { Err(Reason::AttachForbidden) }
    }

    /// Checks whether a domain may have its name, and whether the policy can be applied to it.
    pub fn may_be_domain(&self, identity: &Identity) -> Result<(), Refusal> {
        let credentials = &identity.credentials;
        if credentials.guest.is_none() && credentials.cgroup.is_none() && self.settings.uses_cgroups() {
            let text = "the policy depends on cgroups, and that of this program is not known: that takes Linux 6.5, \
                        cgroups of version 2, and the process that has connected, with one user and visible to the daemon";
            return Err(Refusal::new(Reason::AttachForbidden, text));
        }
        let Some(binding) = self.settings.forbidding_name(identity.as_subject()) else { return Ok(()) };
        let (name, pattern, summary) = (&identity.name, binding.name.as_str(), Reason::NameForbidden.summary());
        Err(Refusal::new(Reason::NameForbidden, format!("{name} matches \"{pattern}\" in policy.names: {summary}")))
    }

    /// Returns whether a user of this host may see what belongs to single users, and frames, which are those of all users.
    pub fn may_see_all(&self, uid: u32) -> bool {
        uid == 0 || uid == self.own_uid
    }

    /// Returns the settings' verdict about one direction.
    pub fn verdict(&self, from: &Identity, to: &Identity) -> Verdict {
        self.settings.verdict(from.as_subject(), to.as_subject())
    }

    /// Checks whether one domain may send messages to the other.
    pub fn may_send(&self, from: &Identity, to: &Identity) -> Result<(), Reason> {
        if self.verdict(from, to).talk { Ok(()) } else { Err(Reason::TalkForbidden) }
    }

    /// Checks whether two domains may have a channel. A channel carries both directions, so both have to be allowed.
    pub fn may_open_channel(&self, a: &Identity, b: &Identity) -> Result<(), Reason> {
        let (forward, backward) = (self.verdict(a, b), self.verdict(b, a));
        match (forward.talk && backward.talk, forward.channel && backward.channel) {
            (false, _) => Err(Reason::TalkForbidden),
            (_, false) => Err(Reason::ChannelsForbidden),
            _ => Ok(()),
        }
    }

    /// Checks whether a region of one domain may stay granted to the other.
    pub fn may_grant(&self, owner: &Identity, reader: &Identity) -> Result<(), Reason> {
        if owner.owner != reader.owner {
            return Err(Reason::DifferentOwner);
        }
        self.may_open_channel(owner, reader)?;
        match self.settings.grants {
            Grants::Never => Err(Reason::GrantsForbidden),
            Grants::SameContainer if !owner.is_known_in_container_of(reader) => Err(Reason::DifferentContainer),
            Grants::SameContainer | Grants::SameUser => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isthmus_config::{ConfigFile, Inputs, Role};

    fn policy(toml: &str) -> Policy {
        let file = ConfigFile::Given { path: "test.toml".into(), bytes: toml.as_bytes().to_vec() };
        let inputs = Inputs { file, ..Inputs::bare(Role::System) };
        Policy::new(config::load(&inputs).unwrap().config.policy, 0)
    }

    fn identity(name: &str, uid: u32) -> Identity {
        Identity { name: Name::new(name).unwrap(), owner: Owner(uid), credentials: Arc::default() }
    }

    #[test]
    fn default_policy_isolates_users() {
        let (policy, a, b, c) = (policy(""), identity("a", 5), identity("b", 5), identity("c", 6));
        assert_eq!([policy.may_attach(0), policy.may_attach(5)], [Ok(()), Err(Reason::AttachForbidden)]);
        assert_eq!(policy.may_open_channel(&a, &b), Ok(()));
        assert_eq!(policy.may_grant(&a, &b), Err(Reason::DifferentContainer), "their containers are not known");
        assert_eq!([policy.may_send(&a, &c), policy.may_open_channel(&a, &c)], [Err(Reason::TalkForbidden); 2]);
    }

    #[test]
    fn root_and_the_daemon_s_own_user_see_everything() {
        let policy = Policy { own_uid: 9, ..policy("[policy]\nattach = \"any-user\"\n") };
        assert!(policy.may_see_all(0) && policy.may_see_all(9));
        assert_eq!((policy.may_attach(5), policy.may_see_all(5)), (Ok(()), false));
    }

    #[test]
    fn denies_a_channel_when_one_direction_is_denied() {
        let policy = policy("[policy]\ntalk = \"all\"\n[[policy.rules]]\nfrom = \"a*\"\nchannel = false\n");
        let (a, b) = (identity("a1", 5), identity("b", 5));
        assert_eq!(policy.may_send(&a, &b), Ok(()));
        assert_eq!(
            [policy.may_open_channel(&a, &b), policy.may_open_channel(&b, &a)],
            [Err(Reason::ChannelsForbidden); 2]
        );
    }

    #[test]
    fn name_is_refused_to_domains_of_another_identity() {
        let policy = policy("[policy]\nnames = [{ name = \"web-*\", user = 5 }]\n");
        let may = |name, uid| policy.may_be_domain(&identity(name, uid)).map_err(|refusal| refusal.reason);
        assert_eq!([may("web-1", 5), may("db", 6)], [Ok(()); 2]);
        assert_eq!(may("web-1", 6), Err(Reason::NameForbidden));
    }

    #[test]
    fn program_without_a_known_cgroup_is_refused_if_the_policy_depends_on_it() {
        let policy = policy("[policy]\n[[policy.rules]]\nto = { cgroup = \"/a\" }\nallow = false\n");
        let with = |credentials| {
            let domain = Identity { credentials: Arc::new(credentials), ..identity("x", 5) };
            policy.may_be_domain(&domain).map_err(|refusal| refusal.reason)
        };
        assert_eq!(with(Credentials::default()), Err(Reason::AttachForbidden));
        assert_eq!(with(Credentials { cgroup: Some("/b".to_owned()), ..Credentials::default() }), Ok(()));
        assert_eq!(with(Credentials { guest: Name::new("vm").ok(), ..Credentials::default() }), Ok(()));
    }

    #[test]
    fn denies_grants_between_containers() {
        let policy = policy("");
        let of = |container: Option<&str>, guest: Option<&str>| {
            let container = container.map(str::to_owned);
            let guest = guest.map(|guest| Name::new(guest).unwrap());
            let credentials = Arc::new(Credentials { container, guest, ..Credentials::default() });
            Identity { credentials, ..identity("x", 5) }
        };
        let [a, b, unknown] = [Some("a"), Some("b"), None].map(|container| of(container, None));
        let [vm, other] = ["vm", "other"].map(|guest| of(None, Some(guest)));
        for (one, reader) in [(&a, &b), (&a, &unknown), (&unknown, &unknown), (&vm, &a), (&vm, &unknown)] {
            assert_eq!(policy.may_grant(one, reader), Err(Reason::DifferentContainer));
            assert_eq!(policy.may_grant(reader, one), Err(Reason::DifferentContainer));
        }
        assert_eq!(
            [(&a, &a), (&vm, &vm), (&vm, &other)].map(|(one, reader)| policy.may_grant(one, reader)),
            [Ok(()); 3]
        );
    }

    #[test]
    fn denies_grants_between_owners() {
        let all = policy("[policy]\ntalk = \"all\"\n");
        assert_eq!(all.may_grant(&identity("a", 5), &identity("b", 6)), Err(Reason::DifferentOwner));
        let same_user = policy("[policy]\ngrants = \"same-user\"\n");
        assert_eq!(same_user.may_grant(&identity("a", 5), &identity("b", 5)), Ok(()));
        let never = policy("[policy]\ngrants = \"never\"\n");
        assert_eq!(never.may_grant(&identity("a", 5), &identity("b", 5)), Err(Reason::GrantsForbidden));
    }
}
