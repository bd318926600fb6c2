//! `isthmus guest allow`, `guest forbid`: what a host of Xen makes for its guests, so that they may attach. Needs no daemon.
//!
//! These are nodes of XenStore which only domain 0 can make (docs/spec/xen.md). What is done is printed as the commands that
//! would do the same.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use isthmus_platform_xen::admission::{self, Step};
use isthmus_platform_xen::kernel::Kernel as _;
use isthmus_platform_xen::presence;
use isthmus_platform_xen::store::Wire;
use isthmus_platform_xen::store::wire::Refusal;
use isthmus_platform_xen::{Devices, Domid, Store, StoreError};
use serde::Serialize;

use crate::cli::{AllowArgs, ForbidArgs};
use crate::output::{Ended, Misuse, Output};

#[derive(Serialize)]
struct Guest {
    guest: u16,
    backends: Vec<u16>,
    /// False where it was only said.
    done: bool,
    commands: Vec<String>,
}

impl Guest {
    fn new(guest: Domid, backends: &[Domid], steps: &[Step], done: bool) -> Self {
        let backends = backends.iter().map(|backend| backend.number()).collect();
        Self { guest: guest.number(), backends, done, commands: steps.iter().flat_map(Step::commands).collect() }
    }

    fn tell(&self, output: Output) -> Result<Ended> {
        output.result("guest", self, || self.commands.iter().map(|command| format!("{command}\n")).collect())?;
        Ok(Ended::Done)
    }
}

pub(crate) fn allow(output: Output, args: &AllowArgs) -> Result<Ended> {
    if args.dry_run {
        let (guest, backends) = (number(&args.domain)?, numbers(&args.backend)?);
        return Guest::new(guest, &backends, &steps(guest, "", &backends)?, false).tell(output);
    }
    let mut store = store()?;
    let guest = find(&mut store, &args.domain)?;
    let backends = args.backend.iter().map(|name| find(&mut store, name)).collect::<Result<Vec<_>>>()?;
    let name = admission::name(&mut store, Domid::ZERO, guest).context("cannot read the guest's name")?;
    let name = name.and_then(|name| String::from_utf8(name).ok()).unwrap_or_default();
    let mut steps = steps(guest, &name, &backends)?;
    let outdated = admission::outdated(&mut store, guest, &backends);
    steps.extend(outdated.context("cannot read what guests were allowed before")?);
    carry_out(&mut store, &steps)?;
    let told = Guest::new(guest, &backends, &steps, true).tell(output)?;
    // One that moves.
    let has_left = |store: &mut _| {
        let backend = admission::offered_to(store, guest)?;
        Ok(backend.is_none_or(|backend| backends.contains(&backend)))
    };
    if !has_let_go(&mut store, guest, has_left)? {
        bail!(
            "for {} s the guest's daemon has not let go of the backend that it had: the guest moves once it does, or is started again",
            LET_GO_LIMIT.as_secs()
        );
    }
    Ok(told)
}

pub(crate) fn forbid(output: Output, args: &ForbidArgs) -> Result<Ended> {
    let mut store = store()?;
    let guest = find(&mut store, &args.domain)?;
    let backends = admission::backends(&mut store, guest).context("cannot read what the guest was allowed")?;
    let steps = admission::forbid(guest, &backends);
    carry_out(&mut store, &steps)?;
    let told = Guest::new(guest, &backends, &steps, true).tell(output)?;
    // Who says nothing of itself has nothing open that a restored domain could not close.
    let is_silent = |store: &mut Store<_>| match store.read(&presence::node_of(guest)) {
        Err(StoreError::Refused { why: Refusal::Missing, .. }) => Ok(true),
        said => said.map(|_| false),
    };
    if !has_let_go(&mut store, guest, is_silent)? {
        bail!("the guest's daemon has not let go of its backend for {} s", LET_GO_LIMIT.as_secs());
    }
    Ok(told)
}

/// How long a guest's daemon may take to hear that it may not attach any more, and to let go.
const LET_GO_LIMIT: Duration = Duration::from_secs(15);

/// Waits until that is so, which what the guest says of itself shows.
fn has_let_go<W: Wire>(
    store: &mut Store<W>,
    guest: Domid,
    is_so: impl Fn(&mut Store<W>) -> Result<bool, StoreError>,
) -> Result<bool> {
    store.watch(&presence::node_of(guest), "says").context("cannot watch the guest")?;
    let limit = Instant::now() + LET_GO_LIMIT;
    while !is_so(store).context("cannot read what the guest says")? {
        if Instant::now() >= limit {
            return Ok(false);
        }
        let _ = store.event(limit.saturating_duration_since(Instant::now()));
    }
    Ok(true)
}

fn store() -> Result<Store<impl Wire>> {
    let wire = Devices.store().context(
        "there is no XenStore at /dev/xen/xenbus: this is for domain 0 of a Xen host \
         (with --dry-run, and numbers of domains, it is only said what would be done)",
    )?;
    Ok(Store::new(wire))
}

/// A domain by its number or name, of those that there are.
fn find(store: &mut Store<impl Wire>, wanted: &str) -> Result<Domid> {
    admission::find(store, wanted).context("cannot find the domain (`xl list` shows all, to domain 0)")
}

/// A domain by its number alone.
fn number(wanted: &str) -> Result<Domid> {
    let why = || Misuse(format!("{wanted:?} is no number of a domain, and only domain 0 can look names up"));
    Domid::parse(wanted.as_bytes()).ok_or_else(|| why().into())
}

fn numbers(wanted: &[String]) -> Result<Vec<Domid>> {
    wanted.iter().map(|wanted| number(wanted)).collect()
}

fn steps(guest: Domid, name: &str, backends: &[Domid]) -> Result<Vec<Step>> {
    admission::allow(guest, name, backends).map_err(|fault| Misuse(fault.to_string()).into())
}

/// Does it, or says what does not let us.
fn carry_out(store: &mut Store<impl Wire>, steps: &[Step]) -> Result<()> {
    match admission::carry_out(store, steps) {
        Err(error) if error.refusal().is_some() => {
            bail!("cannot change XenStore: {error} (only domain 0 may, as root)")
        }
        done => done.context("cannot change XenStore"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_store_domains_have_numbers_only() {
        assert_eq!(number("7").unwrap().number(), 7);
        assert!(number("web").is_err() && number("99999").is_err() && number("-1").is_err());
        let same = steps(number("7").unwrap(), "web", &numbers(&["7".to_owned()]).unwrap()).unwrap_err();
        assert_eq!(same.to_string(), "domain 7 cannot be its own backend");
    }
}
