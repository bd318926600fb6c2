//! Presence of domains.

use anyhow::Result;
use isthmus_platform_xen::presence::{PresenceAnnouncer, PresenceEvent, PresenceWatcher};
use isthmus_platform_xen::{DeviceStoreTransport, Domid, Store};
use std::time::{Duration, Instant};

/// Advertises this domain until the process is killed.
pub(crate) fn announce(store: &mut Store<DeviceStoreTransport>, incarnation: u64, readers: &[Domid]) -> Result<()> {
    let mut announcement = PresenceAnnouncer::new(incarnation, b"hello".to_vec(), readers)?;
    announcement.renew(store, Instant::now())?;
    println!("announced");
    loop {
        let due = announcement.renew(store, Instant::now())?;
        store.event(due.saturating_duration_since(Instant::now()))?; // Nothing is watched, so this only waits.
    }
}

/// Reports domains that appear and disappear, either these or all, until the process is killed.
pub(crate) fn watch_presence(store: Store<DeviceStoreTransport>, others: Option<&[Domid]>) -> Result<()> {
    let mut watcher = PresenceWatcher::new(store);
    match others {
        Some(others) => others.iter().try_for_each(|other| watcher.follow(*other))?,
        None => watcher.follow_all()?,
    }
    println!("looking");
    loop {
        for event in watcher.poll(Duration::from_secs(60))? {
            match event {
                PresenceEvent::Appeared(domid, advertisement) => {
                    println!("came {domid} as {}", advertisement.incarnation)
                }
                PresenceEvent::Disappeared(domid, why) => println!("went {domid}: {why}"),
            }
        }
    }
}
