//! What one domain of Xen does in a test of several: a program for guests, linked statically (`tests/guests` builds and runs it).
//!
//! ```text
//!  xen-side conform one|other DOMAIN      the conformance suite, its other side at standard input and output
//!  xen-side offer DOMAIN PAGES            lets it in, says how, and tells of its farewell
//!  xen-side enter GRANT BELL              maps that, and tells of the owner's farewell
//!  xen-side bounce DOMAIN                 says an event channel, and sends events of it back until it is killed
//!  xen-side bells BELL ROUNDS             what an event and one back take by it
//!  xen-side announce NUMBER DOMAIN…       advertises itself for these
//!  xen-side lookout all|DOMAIN…           says who comes and goes
//!  xen-side transact                      is in the midst of a transaction until it is told to go on, and says how that ends
//!  xen-side admitted                      whom we may attach to, and who to us
//! ```

#![forbid(unsafe_code)]

mod bells;
mod pages;
mod presence;

use anyhow::{Context, Result, bail};
use isthmus_platform::conformance::{Lines, Side, check_side};
use isthmus_platform_xen::kernel::Kernel;
use isthmus_platform_xen::{DeviceWire, Devices, Domid, Store, Xen, admission};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let Err((node, errno)) = Devices::check() {
        bail!("{node}: {errno}");
    }
    match arguments[..] {
        ["conform", side, peer] => conform(side, domid(peer)?),
        ["offer", peer, pages] => pages::offer(&own()?, domid(peer)?, pages.parse()?),
        ["enter", grant, bell] => pages::enter(&own()?, grant, bell),
        ["bounce", peer] => bells::bounce(&own()?, domid(peer)?),
        ["bells", bell, rounds] => bells::bells(&own()?, bell, rounds.parse()?),
        ["announce", number, ref readers @ ..] => presence::announce(&mut store()?, number.parse()?, &domids(readers)?),
        ["lookout", "all"] => presence::lookout(store()?, None),
        ["lookout", ref others @ ..] => presence::lookout(store()?, Some(&domids(others)?)),
        ["transact"] => transact(&mut store()?),
        ["admitted"] => admitted(),
        _ => bail!("no such test: {arguments:?}"),
    }
}

fn store() -> Result<Store<DeviceWire>> {
    Ok(Store::new(Devices.store().context("opening XenStore")?))
}

/// The platform of the domain that we are in.
fn own() -> Result<Xen<Devices>> {
    Ok(Xen::new(Devices, store()?.own_domid()?))
}

fn domid(text: &str) -> Result<Domid> {
    Domid::parse(text.as_bytes()).with_context(|| format!("{text:?} is no number of a domain"))
}

fn domids(texts: &[&str]) -> Result<Vec<Domid>> {
    texts.iter().map(|text| domid(text)).collect()
}

/// Standard output is for the other side: what passed goes to standard error.
fn conform(side: &str, peer: Domid) -> Result<()> {
    let side = match side {
        "one" => Side::One,
        "other" => Side::Other,
        _ => bail!("sides are called one and other"),
    };
    let mut border = Lines::new(std::io::stdin().lock(), std::io::stdout().lock());
    check_side(side, &own()?, &peer, &mut border, &mut |name| eprintln!("passed: {name}"));
    Ok(())
}

fn transact(store: &mut Store<DeviceWire>) -> Result<()> {
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
