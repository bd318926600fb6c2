//! Pages of one domain in another one, until either side ends.
//!
//! Each page has its number in its second word, and the mapper's answer in its third. The first two bytes of the first page are cleared by
//! the kernels: of the side that ends.

use anyhow::{Context, Result, bail};
use isthmus_layout::RegionSize;
use isthmus_platform::Platform;
use isthmus_platform::conformance::Portable;
use isthmus_platform_xen::kernel::{Farewell, PAGE_BYTES, Pages, Port};
use isthmus_platform_xen::{Bell, Devices, Domid, Grant, Xen};
use isthmus_shm::{Access, Payload, Window, Words};
use std::io::BufRead;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Cleared when the owner ends, and when the mapper does.
const OWNER_AT: u64 = 0;
const MAPPER_AT: u64 = 1;

const PAGE_WORDS: u32 = PAGE_BYTES as u32 / 4;

/// Waiting ends by events; this is how often it begins anew.
const WHILE: Duration = Duration::from_secs(60);

fn byte(window: &Window, at: u64) -> u8 {
    let mut bytes = [0];
    window.copy_out(at, &mut bytes);
    bytes[0]
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex<T: Portable>(text: &str) -> Result<T> {
    let digits = text.as_bytes().chunks(2).map(|pair| Ok(u8::from_str_radix(str::from_utf8(pair)?, 16)?));
    T::parse(&digits.collect::<Result<Vec<u8>>>()?).context("no grant or bell")
}

/// Waits until the byte is cleared.
fn farewell(port: &impl Port, window: &Window, at: u64) -> Result<()> {
    while byte(window, at) != 0 {
        port.wait(WHILE)?;
    }
    println!("farewell");
    Ok(())
}

pub(crate) fn offer(xen: &Xen<Devices>, peer: Domid, pages: u32) -> Result<()> {
    let size = RegionSize(u64::from(pages) * PAGE_BYTES);
    let memory = xen.allocate(size, &peer, Access::ReadWrite)?;
    let own = Window::new(xen.map_own(&memory)?);
    (0..pages).for_each(|page| own.store(page * PAGE_WORDS + 1, page, Relaxed));
    own.copy_in(OWNER_AT, &[1, 1]);
    let (listener, bell) = xen.doorbell(&peer)?;
    memory.pages().set_farewell(Farewell { byte_at: OWNER_AT, port: &listener.0 })?;
    let grant = xen.grant(&memory, &peer, Access::ReadWrite)?;
    println!("offer {} {}", hex(&Portable::emit(&grant)), hex(&Portable::emit(&bell)));
    farewell(&listener.0, &own, MAPPER_AT)?;
    let answered = (0..pages).filter(|page| own.load(page * PAGE_WORDS + 2, Relaxed) == page + 1).count();
    println!("answered {answered}");
    Ok(())
}

pub(crate) fn enter(xen: &Xen<Devices>, grant: &str, bell: &str) -> Result<()> {
    let (grant, bell) = (unhex::<Grant>(grant)?, unhex::<Bell>(bell)?);
    let (pages, size) = (grant.pages, RegionSize(u64::from(grant.pages) * PAGE_BYTES));
    let port = xen.ringer(bell)?.0;
    let farewell_of_ours = Some(Farewell { byte_at: MAPPER_AT, port: &port });
    let window = Window::new(xen.map_until(&grant, size, Access::ReadWrite, farewell_of_ours)?);
    let in_order = |window: &Window| (0..pages).all(|page| window.load(page * PAGE_WORDS + 1, Relaxed) == page);
    if !in_order(&window) {
        bail!("pages are not where they should be");
    }
    (0..pages).for_each(|page| window.store(page * PAGE_WORDS + 2, page + 1, Relaxed));
    println!("inside {pages}");
    let watched = window.clone();
    std::thread::spawn(move || farewell(&port, &watched, OWNER_AT));
    for order in std::io::stdin().lock().lines() {
        match order?.as_str() {
            "look" if in_order(&window) => println!("there"),
            "look" => bail!("pages are not what they were"),
            _ => break,
        }
    }
    Ok(())
}
