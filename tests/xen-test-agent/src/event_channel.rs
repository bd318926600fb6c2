//! Measures a bare event channel: an event there and one back, with both sides sleeping.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use isthmus_platform::Platform;
use isthmus_platform::conformance::WireValue;
use isthmus_platform_xen::kernel::Port;
use isthmus_platform_xen::{Devices, Domid, DoorbellToken, Xen};

use crate::pages::{hex, unhex};

/// The number of rounds that are timed together, because clocks of emulated guests sometimes stop for a moment.
const BATCH: u32 = 10;

/// The interval at which waiting for an event starts again.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// The time without events before rounds are timed. Binding raises an event, which is returned, too.
const SETTLE_TIME: Duration = Duration::from_millis(300);

pub(crate) fn bounce(xen: &Xen<Devices>, peer: Domid) -> Result<()> {
    let (listener, bell) = xen.doorbell(&peer)?;
    println!("endpoint {}", hex(&WireValue::emit(&bell)));
    loop {
        if listener.0.wait(WAIT_LIMIT)? {
            listener.0.notify()?;
        }
    }
}

pub(crate) fn measure(xen: &Xen<Devices>, bell: &str, rounds: u32) -> Result<()> {
    let port = xen.doorbell_sender(unhex::<DoorbellToken>(bell)?)?.0;
    while port.wait(SETTLE_TIME)? {}
    let mut batches = Vec::new();
    for _ in 0..rounds.div_ceil(BATCH) {
        let begun = Instant::now();
        for _ in 0..BATCH {
            port.notify()?;
            ensure!(port.wait(WAIT_LIMIT)?, "no event comes back");
        }
        batches.push(begun.elapsed() / BATCH);
    }
    batches.sort_unstable();
    println!("there_and_back_ns {}", batches[batches.len() / 2].as_nanos());
    Ok(())
}
