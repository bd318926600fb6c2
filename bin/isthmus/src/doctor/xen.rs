//! Checks of a Xen domain: the devices of its kernel, the limit of grants, and the permission of domain 0. Other machines get no
//! finding.

use isthmus_platform_xen::kernel::Kernel as _;
use isthmus_platform_xen::{Devices, Domid, Store, admission};

use super::Finding;

/// The file in which the kernel names its hypervisor.
const HYPERVISOR: &str = "/sys/hypervisor/type";

/// The file with the number of pages that all programs of a domain together may grant.
const LIMIT: &str = "/sys/module/xen_gntalloc/parameters/limit";

/// The number of pages that a window with one program needs, with a reserve.
const LIMIT_PAGES: u32 = 4096;

/// The result of the probe.
enum Found {
    /// A node is missing, or not accessible to this user.
    Closed { node: &'static str, why: String },
    /// XenStore does not answer.
    Unreachable(String),
    /// All devices work. The fields are the permissions of domain 0 and the limit of grants.
    Available { own: Domid, backends: Vec<Domid>, guests: Vec<Domid>, limit: Option<u32> },
}

pub(super) fn check(findings: &mut Vec<Finding>) {
    if std::fs::read_to_string(HYPERVISOR).is_ok_and(|kind| kind.trim() == "xen") {
        findings.extend(report_findings(&probe()));
    }
}

fn probe() -> Found {
    if let Err((node, errno)) = Devices::check() {
        return Found::Closed { node, why: errno.to_string() };
    }
    let asked = || {
        let mut store = Store::new(Devices.store().map_err(|errno| errno.to_string())?);
        let own = store.own_domid().map_err(|error| error.to_string())?;
        let backends = admission::backends(&mut store, own).map_err(|error| error.to_string())?;
        let guests = admission::guests(&mut store, own).map_err(|error| error.to_string())?;
        Ok((own, backends, guests))
    };
    let limit = std::fs::read_to_string(LIMIT).ok().and_then(|limit| limit.trim().parse().ok());
    match asked() {
        Ok((own, backends, guests)) => Found::Available { own, backends, guests, limit },
        Err(why) => Found::Unreachable(why),
    }
}

fn report_findings(found: &Found) -> Vec<Finding> {
    let tried = "opening the devices with which a Xen domain shares memory";
    let problem = |result: String| Finding::problem("xen.devices", tried, result);
    match found {
        Found::Closed { node, why } => vec![problem(format!("{node}: {why}")).remedy(
            "As root, load the missing modules: `modprobe -a xen-gntalloc xen-gntdev xen-evtchn`. The nodes belong to root; `isthmusd` needs all of them, programs need none.",
        )],
        Found::Unreachable(why) => vec![problem(format!("XenStore does not answer: {why}"))],
        Found::Available { own, backends, guests, limit } => {
            let mut findings = vec![Finding::ok("xen.devices", tried, format!("all devices work; this is domain {own}"))];
            findings.push(admitted(*own, backends, guests));
            findings.extend(limit.map(limited));
            findings
        }
    }
}

fn admitted(own: Domid, backends: &[Domid], guests: &[Domid]) -> Finding {
    let (id, tried) = ("xen.admission", "reading from XenStore which domains may share memory with this one");
    let list = |domains: &[Domid]| domains.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match (backends, guests) {
        ([], []) => Finding::note(id, tried, "none").remedy(format!(
            "In domain 0, for a guest that is to attach: `isthmus guest allow DOMAIN`. For this domain as a guest: `isthmus guest allow {own}`."
        )),
        ([], guests) => Finding::ok(id, tried, format!("guests that may attach here: {}", list(guests))),
        (backends, _) => Finding::ok(id, tried, format!("backends that this domain may attach to: {}", list(backends))),
    }
}

fn limited(pages: u32) -> Finding {
    let (id, tried) = ("xen.limit", format!("reading {LIMIT}"));
    let result = format!("programs of this domain may grant {pages} pages at once");
    if pages >= LIMIT_PAGES {
        return Finding::ok(id, tried, result);
    }
    Finding::note(id, tried, result).remedy(format!(
        "This suffices for a few programs. Raise it with `echo 32768 >{LIMIT}`, and permanently with `options xen_gntalloc limit=32768` in a file of `/etc/modprobe.d`."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Severity;

    fn severities(found: &Found) -> Vec<(&'static str, Severity)> {
        report_findings(found).iter().map(|finding| (finding.id, finding.severity)).collect()
    }

    #[test]
    fn missing_parts_have_a_remedy() {
        let closed = report_findings(&Found::Closed { node: "/dev/xen/gntalloc", why: "not found".to_owned() });
        assert_eq!((closed[0].id, closed[0].severity), ("xen.devices", Severity::Problem));
        assert!(closed[0].remedy.is_some());
        let own = Domid::new(7).unwrap_or(Domid::ZERO);
        let none_admitted = Found::Available { own, backends: Vec::new(), guests: Vec::new(), limit: Some(1024) };
        let findings = report_findings(&none_admitted);
        assert!(findings[1..].iter().all(|finding| finding.severity == Severity::Warning && finding.remedy.is_some()));
        let remedy = findings[1].remedy.clone().unwrap_or_default();
        assert!(remedy.contains("isthmus guest allow 7"), "{remedy}");
    }

    #[test]
    fn guest_that_may_attach_is_ok() {
        let backends = vec![Domid::ZERO];
        let found = Found::Available { own: Domid::ZERO, backends, guests: Vec::new(), limit: Some(LIMIT_PAGES) };
        let all = ["xen.devices", "xen.admission", "xen.limit"];
        assert_eq!(severities(&found), all.map(|id| (id, Severity::Ok)));
    }
}
