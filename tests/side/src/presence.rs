//! Who is there.

use anyhow::Result;
use isthmus_platform_xen::presence::{Announcement, Lookout, News};
use isthmus_platform_xen::{DeviceWire, Domid, Store};
use std::time::{Duration, Instant};

/// Says that we are there, until somebody kills us.
pub(crate) fn announce(store: &mut Store<DeviceWire>, incarnation: u64, readers: &[Domid]) -> Result<()> {
    let mut announcement = Announcement::new(incarnation, b"hello".to_vec(), readers)?;
    announcement.renew(store, Instant::now())?;
    println!("announced");
    loop {
        let due = announcement.renew(store, Instant::now())?;
        store.event(due.saturating_duration_since(Instant::now()))?; // Nothing is watched: this waits.
    }
}

/// Says who comes and goes, of these or of all, until somebody kills us.
pub(crate) fn lookout(store: Store<DeviceWire>, others: Option<&[Domid]>) -> Result<()> {
    let mut lookout = Lookout::new(store);
    match others {
        Some(others) => others.iter().try_for_each(|other| lookout.follow(*other))?,
        None => lookout.follow_all()?,
    }
    println!("looking");
    loop {
        for news in lookout.look(Duration::from_secs(60))? {
            match news {
                News::Came(domid, advert) => println!("came {domid} as {}", advert.incarnation),
                News::Went(domid, why) => println!("went {domid}: {why}"),
            }
        }
    }
}
