//! The capabilities of the daemon, which it drops as soon as its sockets are open.

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs};

use isthmus_config::{Carrier, MxBoardPlan};

/// The capabilities that an AF_XDP link keeps. When its interface is replaced, it has to open its sockets, pinned memory and program again.
const XDP_CAPABILITIES: CapabilitySet =
    CapabilitySet::NET_RAW.union(CapabilitySet::NET_ADMIN).union(CapabilitySet::BPF).union(CapabilitySet::IPC_LOCK);

/// Drops every capability that open links do not need again, and prevents this thread and those that it starts from gaining any. Packet and
/// datagram sockets need no capability once they are open, also if they move to another interface.
pub(crate) fn drop_unneeded(plans: &[MxBoardPlan]) {
    let kept = needed(plans);
    if let Err(error) = set_no_new_privs(true).and_then(|()| limit_capabilities(kept)) {
        tracing::warn!(%error, "cannot give up capabilities that are not needed any more");
    }
}

fn needed(plans: &[MxBoardPlan]) -> CapabilitySet {
    let links = plans.iter().filter_map(|plan| plan.network.as_ref()).flat_map(|network| &network.links);
    match links.into_iter().any(|link| matches!(link.carrier, Carrier::Xdp { .. })) {
        true => XDP_CAPABILITIES,
        false => CapabilitySet::empty(),
    }
}

fn limit_capabilities(kept: CapabilitySet) -> rustix::io::Result<()> {
    let CapabilitySets { effective, permitted, .. } = capabilities(None)?;
    let inheritable = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: effective & kept, permitted: permitted & kept, inheritable })
}

#[cfg(test)]
mod tests {
    use super::*;
    use isthmus_config::{ConfigFile, Inputs, MxHost, Role, load};

    fn needed_by(links: &str) -> CapabilitySet {
        let bytes = format!("[[mx.board]]\nlinks = [{links}]\n").into_bytes();
        let file = ConfigFile::Given { path: "test.toml".into(), bytes };
        let config = load(&Inputs { file, ..Inputs::bare(Role::System) }).unwrap().config;
        needed(&config.mx.plans(&MxHost { name: "node7".to_owned(), id: [7; 32] }).unwrap())
    }

    #[test]
    fn only_xdp_links_need_capabilities() {
        assert_eq!(needed_by(""), CapabilitySet::empty());
        assert_eq!(needed_by("{ interface = 'eth0' }"), CapabilitySet::empty());
        assert_eq!(needed_by("{ udp = '10.0.0.1', peers = ['10.0.0.2'] }"), CapabilitySet::empty());
        assert_eq!(needed_by("{ interface = 'eth0' }, { interface = 'eth1', kind = 'xdp' }"), XDP_CAPABILITIES);
    }

    #[test]
    fn dropped_capabilities_are_gone_in_later_threads() {
        let inside = std::thread::spawn(|| {
            let before = capabilities(None).unwrap().permitted;
            limit_capabilities(XDP_CAPABILITIES).unwrap();
            let between = std::thread::spawn(|| capabilities(None).unwrap().permitted).join().unwrap();
            assert_eq!(between, before & XDP_CAPABILITIES);
            drop_unneeded(&[]);
            std::thread::spawn(|| (capabilities(None).unwrap(), rustix::thread::no_new_privs().unwrap()))
                .join()
                .unwrap()
        });
        let (left, no_new_privs) = inside.join().unwrap();
        let none = CapabilitySet::empty();
        assert_eq!(left, CapabilitySets { effective: none, permitted: none, inheritable: none });
        assert!(no_new_privs);
    }
}
