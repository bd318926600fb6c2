//! The side of one Xen domain in tests of several domains: a program for guests, linked statically. `tests/guests` builds and runs it.
//!
//! ```text
//!  xen-test-agent conform one|other DOMAIN        runs the conformance suite, with the other side at standard input and output
//!  xen-test-agent grant-pages DOMAIN PAGES        grants pages, prints the grant, and reports the mapper's unmap notification
//!  xen-test-agent map-grant GRANT BELL            maps a grant, and reports the owner's unmap notification
//!  xen-test-agent echo-events DOMAIN              prints an event channel, and returns its events until it is killed
//!  xen-test-agent ring BELL ROUNDS                measures an event and one back by an event channel
//!  xen-test-agent advertise NUMBER DOMAIN…        advertises this domain to these domains
//!  xen-test-agent watch-presence all|DOMAIN…      reports domains that appear and disappear
//!  xen-test-agent hold-transaction                keeps a transaction open until a line arrives, and prints its result
//!  xen-test-agent show-admission                  prints the backends that this domain may attach to, and the guests that may attach to it
//! ```

#![forbid(unsafe_code)]

mod event_channel;
mod pages;
mod presence;

use anyhow::{Context, Result, bail};
use isthmus_platform::conformance::{CheckRole, LineTransport, check_side};
use isthmus_platform_xen::kernel::Kernel;
use isthmus_platform_xen::{DeviceStoreTransport, Devices, Domid, Store, Xen, admission};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let Err((node, errno)) = Devices::check() {
        bail!("{node}: {errno}");
    }
    match arguments[..] {
        ["conform", side, peer] => conform(side, domid(peer)?),
        ["grant-pages", peer, pages] => pages::grant_pages(&own()?, domid(peer)?, pages.parse()?),
        ["map-grant", grant, bell] => pages::map_grant(&own()?, grant, bell),
        ["echo-events", peer] => event_channel::bounce(&own()?, domid(peer)?),
        ["ring", bell, rounds] => event_channel::measure(&own()?, bell, rounds.parse()?),
        ["advertise", number, ref readers @ ..] => {
            presence::announce(&mut store()?, number.parse()?, &domids(readers)?)
        }
        ["watch-presence", "all"] => presence::watch_presence(store()?, None),
        ["watch-presence", ref others @ ..] => presence::watch_presence(store()?, Some(&domids(others)?)),
        ["hold-transaction"] => transact(&mut store()?),
        ["show-admission"] => admitted(),
        _ => bail!("no such test: {arguments:?}"),
    }
}

fn store() -> Result<Store<DeviceStoreTransport>> {
    Ok(Store::new(Devices.store().context("opening XenStore")?))
}

/// Returns the platform of this domain.
fn own() -> Result<Xen<Devices>> {
    Ok(Xen::new(Devices, store()?.own_domid()?))
}

fn domid(text: &str) -> Result<Domid> {
    Domid::parse(text.as_bytes()).with_context(|| format!("{text:?} is no number of a domain"))
}

fn domids(texts: &[&str]) -> Result<Vec<Domid>> {
    texts.iter().map(|text| domid(text)).collect()
}

/// Runs the conformance suite. Passed checks are printed to standard error, because standard output is the line to the other side.
fn conform(side: &str, peer: Domid) -> Result<()> {
    let side = match side {
        "one" => CheckRole::One,
        "other" => CheckRole::Other,
        _ => bail!("sides are called one and other"),
    };
    let mut transport = LineTransport::new(std::io::stdin().lock(), std::io::stdout().lock());
    check_side(side, &own()?, &peer, &mut transport, &mut |name| eprintln!("passed: {name}"));
    Ok(())
}

fn transact(store: &mut Store<DeviceStoreTransport>) -> Result<()> {
    let done = store.transaction(|store| {
        store.write("data/transaction", b"begun")?;
        println!("begun");
        let told = std::io::stdin().read_line(&mut String::new());
        told.expect("standard input is there");
        store.write("data/transaction", b"ended")
    });
    println!("{}", done.map_or_else(|error| error.to_string(), |()| "done".to_owned()));
    Ok(())
}

fn admitted() -> Result<()> {
    let mut store = store()?;
    let own = store.own_domid()?;
    let numbers = |domids: Vec<Domid>| domids.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    println!("backends: {}", numbers(admission::backends(&mut store, own)?));
    println!("guests: {}", numbers(admission::guests(&mut store, own)?));
    Ok(())
}
