//! Maps pages of one domain in another one, until either side ends.
//!
//! Each page has its number in its second word, and the mapper's reply in its third. When a side ends, its kernel clears its byte among the
//! first two bytes of the first page.

use anyhow::{Context, Result, bail};
use isthmus_layout::RegionSize;
use isthmus_platform::Platform;
use isthmus_platform::conformance::WireValue;
use isthmus_platform_xen::kernel::{PAGE_BYTES, Pages, Port, UnmapNotify};
use isthmus_platform_xen::{Devices, Domid, DoorbellToken, Xen, XenGrant};
use isthmus_shm::{Access, Payload, SharedMapping, Words};
use std::io::BufRead;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// The bytes that are cleared when the owner ends, and when the mapper ends.
const OWNER_NOTIFY_BYTE: u64 = 0;
const MAPPER_NOTIFY_BYTE: u64 = 1;

const PAGE_WORDS: u32 = PAGE_BYTES as u32 / 4;

/// The interval at which waiting for an event starts again.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

fn byte(window: &SharedMapping, at: u64) -> u8 {
    let mut bytes = [0];
    window.copy_out(at, &mut bytes);
    bytes[0]
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex<T: WireValue>(text: &str) -> Result<T> {
    let digits = text.as_bytes().chunks(2).map(|pair| Ok(u8::from_str_radix(str::from_utf8(pair)?, 16)?));
    T::parse(&digits.collect::<Result<Vec<u8>>>()?).context("no grant or bell")
}

/// Waits until the byte is cleared.
fn wait_unmap_notify(port: &impl Port, window: &SharedMapping, at: u64) -> Result<()> {
    while byte(window, at) != 0 {
        port.wait(WAIT_LIMIT)?;
    }
    println!("unmapped");
    Ok(())
}

pub(crate) fn grant_pages(xen: &Xen<Devices>, peer: Domid, pages: u32) -> Result<()> {
    let size = RegionSize(u64::from(pages) * PAGE_BYTES);
    let memory = xen.allocate(size, &peer, Access::ReadWrite)?;
    let own = SharedMapping::new(xen.map_own(&memory)?);
    (0..pages).for_each(|page| own.store(page * PAGE_WORDS + 1, page, Relaxed));
    own.copy_in(OWNER_NOTIFY_BYTE, &[1, 1]);
    let (listener, bell) = xen.doorbell(&peer)?;
    memory.pages().set_unmap_notify(UnmapNotify { byte_at: OWNER_NOTIFY_BYTE, port: &listener.0 })?;
    let grant = xen.grant(&memory, &peer, Access::ReadWrite)?;
    println!("offer {} {}", hex(&WireValue::emit(&grant)), hex(&WireValue::emit(&bell)));
    wait_unmap_notify(&listener.0, &own, MAPPER_NOTIFY_BYTE)?;
    let answered = (0..pages).filter(|page| own.load(page * PAGE_WORDS + 2, Relaxed) == page + 1).count();
    println!("answered {answered}");
    Ok(())
}

pub(crate) fn map_grant(xen: &Xen<Devices>, grant: &str, bell: &str) -> Result<()> {
    let (grant, bell) = (unhex::<XenGrant>(grant)?, unhex::<DoorbellToken>(bell)?);
    let (pages, size) = (grant.pages, RegionSize(u64::from(grant.pages) * PAGE_BYTES));
    let port = xen.doorbell_sender(bell)?.0;
    let unmap_notify = Some(UnmapNotify { byte_at: MAPPER_NOTIFY_BYTE, port: &port });
    let window = SharedMapping::new(xen.map_with_notify(&grant, size, Access::ReadWrite, unmap_notify)?);
    let in_order = |window: &SharedMapping| (0..pages).all(|page| window.load(page * PAGE_WORDS + 1, Relaxed) == page);
    if !in_order(&window) {
        bail!("pages are not where they should be");
    }
    (0..pages).for_each(|page| window.store(page * PAGE_WORDS + 2, page + 1, Relaxed));
    println!("inside {pages}");
    let watched = window.clone();
    std::thread::spawn(move || wait_unmap_notify(&port, &watched, OWNER_NOTIFY_BYTE));
    for order in std::io::stdin().lock().lines() {
        match order?.as_str() {
            "look" if in_order(&window) => println!("there"),
            "look" => bail!("pages are not what they were"),
            _ => break,
        }
    }
    Ok(())
}
