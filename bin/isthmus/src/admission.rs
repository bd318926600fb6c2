//! `isthmus guest allow` and `guest deny`: permit and forbid that guests of a Xen host attach. Need no daemon.
//!
//! Both write nodes of XenStore that only domain 0 can create (docs/spec/xen.md), and print the equivalent commands.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use isthmus_platform_xen::admission::{self, StoreChange};
use isthmus_platform_xen::kernel::Kernel as _;
use isthmus_platform_xen::presence;
use isthmus_platform_xen::store::StoreTransport;
use isthmus_platform_xen::store::protocol::StoreRefusal;
use isthmus_platform_xen::{Devices, Domid, Store, StoreError};
use serde::Serialize;

use crate::cli::{AllowArgs, DenyArgs};
use crate::output::{Outcome, Output, UsageError};

#[derive(Serialize)]
struct GuestChange {
    guest: u16,
    backends: Vec<u16>,
    /// Whether XenStore was changed; false with `--dry-run`.
    done: bool,
    commands: Vec<String>,
}

impl GuestChange {
    fn new(guest: Domid, backends: &[Domid], steps: &[StoreChange], done: bool) -> Self {
        let backends = backends.iter().map(|backend| backend.number()).collect();
        Self { guest: guest.number(), backends, done, commands: steps.iter().flat_map(StoreChange::commands).collect() }
    }

    fn print(&self, output: Output) -> Result<Outcome> {
        output.result("guest", self, || self.commands.iter().map(|command| format!("{command}\n")).collect())?;
        Ok(Outcome::Done)
    }
}

pub(crate) fn allow(output: Output, args: &AllowArgs) -> Result<Outcome> {
    if args.dry_run {
        let (guest, backends) = (number(&args.domain)?, numbers(&args.backend)?);
        return GuestChange::new(guest, &backends, &steps(guest, "", &backends)?, false).print(output);
    }
    let mut store = store()?;
    let guest = find(&mut store, &args.domain)?;
    let backends = args.backend.iter().map(|name| find(&mut store, name)).collect::<Result<Vec<_>>>()?;
    let name = admission::name(&mut store, Domid::ZERO, guest).context("cannot read the guest's name")?;
    let name = name.and_then(|name| String::from_utf8(name).ok()).unwrap_or_default();
    let mut steps = steps(guest, &name, &backends)?;
    let outdated = admission::stale_nodes(&mut store, guest, &backends);
    steps.extend(outdated.context("cannot read the previous permissions of guests")?);
    apply(&mut store, &steps)?;
    let printed = GuestChange::new(guest, &backends, &steps, true).print(output)?;
    // The guest may still be attached to another backend.
    let has_left = |store: &mut _| {
        let backend = admission::current_backend(store, guest)?;
        Ok(backend.is_none_or(|backend| backends.contains(&backend)))
    };
    if !wait_for_detach(&mut store, guest, has_left)? {
        bail!(
            "the guest daemon has not detached from its previous backend for {} s; the guest moves when it detaches or restarts",
            DETACH_TIMEOUT.as_secs()
        );
    }
    Ok(printed)
}

pub(crate) fn deny(output: Output, args: &DenyArgs) -> Result<Outcome> {
    let mut store = store()?;
    let guest = find(&mut store, &args.domain)?;
    let backends = admission::backends(&mut store, guest).context("cannot read the permissions of the guest")?;
    let steps = admission::deny(guest, &backends);
    apply(&mut store, &steps)?;
    let printed = GuestChange::new(guest, &backends, &steps, true).print(output)?;
    // A guest without this node has no connection open that a restored domain could not close.
    let is_silent = |store: &mut Store<_>| match store.read(&presence::node_of(guest)) {
        Err(StoreError::Refused { why: StoreRefusal::Missing, .. }) => Ok(true),
        other => other.map(|_| false),
    };
    if !wait_for_detach(&mut store, guest, is_silent)? {
        bail!("the guest daemon has not detached from its backend for {} s", DETACH_TIMEOUT.as_secs());
    }
    Ok(printed)
}

/// The time in which a guest daemon must detach after it lost its permission.
const DETACH_TIMEOUT: Duration = Duration::from_secs(15);

/// Waits until `is_so` returns true, which it reads from the nodes of the guest. Returns false after a timeout.
fn wait_for_detach<W: StoreTransport>(
    store: &mut Store<W>,
    guest: Domid,
    is_so: impl Fn(&mut Store<W>) -> Result<bool, StoreError>,
) -> Result<bool> {
    store.watch(&presence::node_of(guest), "presence").context("cannot watch the guest")?;
    let limit = Instant::now() + DETACH_TIMEOUT;
    while !is_so(store).context("cannot read the guest's nodes")? {
        if Instant::now() >= limit {
            return Ok(false);
        }
        let _ = store.event(limit.saturating_duration_since(Instant::now()));
    }
    Ok(true)
}

fn store() -> Result<Store<impl StoreTransport>> {
    let wire = Devices.store().context(
        "there is no XenStore at /dev/xen/xenbus: this is for domain 0 of a Xen host \
         (`--dry-run` with domain numbers prints the commands elsewhere, too)",
    )?;
    Ok(Store::new(wire))
}

/// Finds an existing domain by its number or name.
fn find(store: &mut Store<impl StoreTransport>, wanted: &str) -> Result<Domid> {
    admission::find(store, wanted).context("cannot find the domain (`xl list` shows all, to domain 0)")
}

/// Parses the number of a domain.
fn number(wanted: &str) -> Result<Domid> {
    let why = || UsageError(format!("{wanted:?} is not the number of a domain, and only domain 0 can look up names"));
    Domid::parse(wanted.as_bytes()).ok_or_else(|| why().into())
}

fn numbers(wanted: &[String]) -> Result<Vec<Domid>> {
    wanted.iter().map(|wanted| number(wanted)).collect()
}

fn steps(guest: Domid, name: &str, backends: &[Domid]) -> Result<Vec<StoreChange>> {
    admission::allow(guest, name, backends).map_err(|fault| UsageError(fault.to_string()).into())
}

/// Applies the changes. The error says why XenStore refuses them.
fn apply(store: &mut Store<impl StoreTransport>, steps: &[StoreChange]) -> Result<()> {
    match admission::apply(store, steps) {
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
