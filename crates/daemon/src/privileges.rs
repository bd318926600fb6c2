//! The capabilities of the daemon, which it drops as soon as its sockets are open.

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs};

/// The capabilities that an AF_XDP link keeps. When its interface is replaced, it has to open its sockets, pinned memory and program again.
const XDP_CAPABILITIES: CapabilitySet =
    CapabilitySet::NET_RAW.union(CapabilitySet::NET_ADMIN).union(CapabilitySet::BPF).union(CapabilitySet::IPC_LOCK);

/// Drops every capability that open links do not need again, and prevents this thread and those that it starts from gaining any. Packet and
/// datagram sockets need no capability once they are open, also if they move to another interface.
pub(crate) fn drop_unneeded(has_xdp_links: bool) {
    let kept = if has_xdp_links { XDP_CAPABILITIES } else { CapabilitySet::empty() };
    if let Err(error) = set_no_new_privs(true).and_then(|()| limit_capabilities(kept)) {
        tracing::warn!(%error, "cannot give up capabilities that are not needed any more");
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

    #[test]
    fn dropped_capabilities_are_gone_in_later_threads() {
        let inside = std::thread::spawn(|| {
            let before = capabilities(None).unwrap().permitted;
            limit_capabilities(XDP_CAPABILITIES).unwrap();
            let between = std::thread::spawn(|| capabilities(None).unwrap().permitted).join().unwrap();
            assert_eq!(between, before & XDP_CAPABILITIES);
            drop_unneeded(false);
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
