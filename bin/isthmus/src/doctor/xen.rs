//! A domain of Xen: whether its kernel has what a window is granted by, how much it may grant, and whether domain 0 lets it attach. A
//! machine that is none is told nothing.

use isthmus_platform_xen::kernel::Kernel as _;
use isthmus_platform_xen::{Devices, Domid, Store, admission};

use super::Finding;

/// What the kernel says it runs on.
const HYPERVISOR: &str = "/sys/hypervisor/type";

/// Pages that all programs of a domain together may grant.
const LIMIT: &str = "/sys/module/xen_gntalloc/parameters/limit";

/// Pages that a window needs before its second program has attached, and some.
const LIMIT_PAGES: u32 = 4096;

/// What was found.
enum Found {
    /// A node is missing, or not for this user.
    Closed { node: &'static str, why: String },
    /// The store does not answer.
    Unreachable(String),
    /// All is there; what domain 0 allowed, and how much may be granted.
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
    let tried = "looking for what a domain of Xen shares memory by";
    let problem = |result: String| Finding::problem("xen.devices", tried, result);
    match found {
        Found::Closed { node, why } => vec![problem(format!("{node}: {why}")).remedy(
            "As root, load what is missing: `modprobe -a xen-gntalloc xen-gntdev xen-evtchn`. The nodes are root's; `isthmusd` needs all of them, programs none.",
        )],
        Found::Unreachable(why) => vec![problem(format!("XenStore cannot be asked: {why}"))],
        Found::Available { own, backends, guests, limit } => {
            let mut findings = vec![Finding::ok("xen.devices", tried, format!("they are there; this is domain {own}"))];
            findings.push(admitted(*own, backends, guests));
            findings.extend(limit.map(limited));
            findings
        }
    }
}

fn admitted(own: Domid, backends: &[Domid], guests: &[Domid]) -> Finding {
    let (id, tried) = ("xen.admission", "asking XenStore which domains may share memory with this one");
    let list = |domains: &[Domid]| domains.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match (backends, guests) {
        ([], []) => Finding::note(id, tried, "none may").remedy(format!(
            "In domain 0, for a guest that is to attach: `isthmus guest allow <domain>`. For this one as a guest: `isthmus guest allow {own}`."
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
        "That is room for a few programs. `echo 32768 >{LIMIT}`, and for good `options xen_gntalloc limit=32768` in a file of `/etc/modprobe.d`."
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
        let nobody = Found::Available { own, backends: Vec::new(), guests: Vec::new(), limit: Some(1024) };
        let findings = report_findings(&nobody);
        assert!(findings[1..].iter().all(|finding| finding.severity == Severity::Warning && finding.remedy.is_some()));
        let remedy = findings[1].remedy.clone().unwrap_or_default();
        assert!(remedy.contains("isthmus guest allow 7"), "{remedy}");
    }

    #[test]
    fn a_guest_that_may_attach_is_all_right() {
        let backends = vec![Domid::ZERO];
        let found = Found::Available { own: Domid::ZERO, backends, guests: Vec::new(), limit: Some(LIMIT_PAGES) };
        let all = ["xen.devices", "xen.admission", "xen.limit"];
        assert_eq!(severities(&found), all.map(|id| (id, Severity::Ok)));
    }
}
