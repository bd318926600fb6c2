//! The state that one daemon leaves to the next: a key, and the domain numbers used so far.
//!
//! A domain is given a ticket, a keyed BLAKE3 hash over its number, owner and name. Shown to a later daemon that has the same key, the
//! ticket proves that the domain had this number. The file also lists the domains with their processes and their claims (see [`Tickets::claim`]). The later
//! daemon reads there which domains may still resume, and keeps for them what they had claimed. The file lies in the runtime folder and is
//! readable by the daemon's user only. A daemon that ends while no domain is attached removes the file, so that nothing stays behind.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use isthmus_layout::Capability;
use isthmus_layout::control::{Name, Owner, Ticket};
use isthmus_layout::ids::DomainId;

/// The number of domain numbers that are reserved in the file at once.
const NUMBER_BATCH: u32 = 4096;

const FILE: &str = "resume";
const FILE_HEADER: &str = "isthmus resume 1";

/// A process, identified so that a later process with the same PID is not mistaken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its PID.
    pub pid: i32,
    /// Its start time in the kernel's ticks.
    pub start: u64,
}

impl Process {
    /// Returns the process that has this PID now.
    pub fn of_pid(pid: i32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The program's name stands in brackets and may contain any character, including brackets.
        let start = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
        Some(Self { pid, start })
    }
}

/// A domain that was attached to a previous daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumableDomain {
    /// Its number.
    pub domain: DomainId,
    /// Its process, if the daemon could see it.
    pub process: Option<Process>,
}

impl ResumableDomain {
    /// Returns a domain that belongs to this process now.
    pub fn of_process(domain: DomainId, pid: Option<i32>) -> Self {
        Self { domain, process: pid.and_then(Process::of_pid) }
    }

    fn is_alive(&self) -> bool {
        self.process.is_none_or(|process| Process::of_pid(process.pid) == Some(process))
    }
}

/// The domain that has claimed an item of a capability.
type Claims = BTreeMap<(Capability, String), DomainId>;

/// The key, the numbers and the domains.
#[derive(Debug)]
pub struct Tickets {
    key: [u8; 32],
    /// The daemon may use numbers below this one.
    reserved: u32,
    first: DomainId,
    path: Option<PathBuf>,
    domains: BTreeMap<DomainId, ResumableDomain>,
    resumable: Vec<ResumableDomain>,
    claims: Claims,
    /// The number of lines in the file that name a domain, including domains that have left.
    lines: usize,
}

impl Tickets {
    /// Reads the file in `folder`, or creates one.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let path = folder.join(FILE);
        let file = match std::fs::read_to_string(&path) {
            Ok(text) => parse(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let TicketFile { key, first, resumable, claims } = match file {
            Some(file) => file,
            None => TicketFile { key: random_key()?, first: 1, resumable: Vec::new(), claims: BTreeMap::new() },
        };
        let resumable: Vec<ResumableDomain> = resumable.into_iter().filter(ResumableDomain::is_alive).collect();
        let is_resumable =
            |domain: DomainId| resumable.iter().any(|resumable_domain| resumable_domain.domain == domain);
        let claims = claims.into_iter().filter(|(_, domain)| is_resumable(*domain)).collect();
        let first = DomainId::new(first).unwrap_or(DomainId::new(1).expect("one is not zero"));
        let mut tickets = Self {
            key,
            reserved: first.number().saturating_add(NUMBER_BATCH),
            first,
            path: Some(path),
            domains: resumable.iter().map(|resumable_domain| (resumable_domain.domain, *resumable_domain)).collect(),
            resumable,
            claims,
            lines: 0,
        };
        tickets.write()?;
        Ok(tickets)
    }

    /// Returns tickets for a daemon that has no successor. Nothing is written.
    pub fn ephemeral() -> io::Result<Self> {
        let first = DomainId::new(1).expect("one is not zero");
        let (domains, resumable, claims) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        Ok(Self { key: random_key()?, reserved: u32::MAX, first, path: None, domains, resumable, claims, lines: 0 })
    }

    /// The number of the first new domain. It is above all numbers that a previous daemon may have used.
    pub fn first(&self) -> DomainId {
        self.first
    }

    /// The domains of the previous daemon, except those with a process that is known to have ended.
    pub fn resumable(&self) -> &[ResumableDomain] {
        &self.resumable
    }

    /// Records a domain for the next daemon. If the file cannot be written, the domain attaches anew after a restart.
    pub fn record(&mut self, domain: ResumableDomain) {
        self.domains.insert(domain.domain, domain);
        let written = if domain.domain.number() >= self.reserved {
            self.reserved = domain.domain.number().saturating_add(NUMBER_BATCH);
            self.write()
        } else {
            self.append(&domain_line(&domain))
        };
        if let Err(error) = written {
            tracing::warn!(%error, "cannot write which domains are attached; after a restart they attach anew");
        }
    }

    /// Records that a number is used by a domain that cannot resume, so that no other domain gets the number.
    pub fn record_number(&mut self, domain: DomainId) {
        if domain.number() >= self.reserved {
            self.reserved = domain.number().saturating_add(NUMBER_BATCH);
            if let Err(error) = self.write() {
                tracing::warn!(%error, "cannot write which numbers were used; after a restart one may come again");
            }
        }
    }

    /// Removes a domain that has left and will not resume.
    pub fn remove(&mut self, domain: DomainId) {
        self.claims.retain(|_, claimed| *claimed != domain);
        if self.domains.remove(&domain).is_some()
            && let Err(error) = self.append(&format!("{} -\n", domain.number()))
        {
            tracing::debug!(%error, "cannot write which domain has left; a later daemon finds out by its process");
        }
    }

    /// Records that a domain has an item of a capability, which is kept for the domain until it resumes. The capability names the item, with
    /// a text of one line.
    pub fn claim(&mut self, capability: Capability, item: &str, domain: DomainId) {
        self.claims.insert((capability, item.to_owned()), domain);
        self.append_claim(capability, item, &domain.number().to_string());
    }

    /// Records that an item is free.
    pub fn release_claim(&mut self, capability: Capability, item: &str) {
        self.claims.remove(&(capability, item.to_owned()));
        self.append_claim(capability, item, "-");
    }

    fn append_claim(&mut self, capability: Capability, item: &str, holder: &str) {
        if let Err(error) = self.append(&claim_line(capability, item, holder)) {
            let capability = capability.name();
            tracing::debug!(%error, capability, item, "cannot write a claim; after a restart another domain may get the item");
        }
    }

    /// The claimed items of a capability with their domains. At the start these are resumable domains.
    pub fn claims(&self, capability: Capability) -> impl Iterator<Item = (&str, DomainId)> {
        let of_capability = self.claims.iter().filter(move |((of, _), _)| *of == capability);
        of_capability.map(|((_, item), domain)| (item.as_str(), *domain))
    }

    /// Appends a line. The caller has already updated the fields, so the whole file can be written anew once too many lines have piled up.
    fn append(&mut self, line: &str) -> io::Result<()> {
        if self.lines > 2 * (self.domains.len() + self.claims.len()) + 1024 {
            return self.write();
        }
        let Some(path) = &self.path else { return Ok(()) };
        self.lines += 1;
        std::fs::File::options().append(true).open(path)?.write_all(line.as_bytes())
    }

    fn write(&mut self) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let key: String = self.key.iter().map(|byte| format!("{byte:02x}")).collect();
        let claims = self.claims.iter();
        let claims =
            claims.map(|((capability, item), domain)| claim_line(*capability, item, &domain.number().to_string()));
        let lines: String = self.domains.values().map(domain_line).chain(claims).collect();
        let next = path.with_extension("new");
        let mut file = std::fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&next)?;
        file.write_all(format!("{FILE_HEADER}\n{key}\n{}\n{lines}", self.reserved).as_bytes())?;
        std::fs::rename(&next, path)?;
        self.lines = self.domains.len() + self.claims.len();
        Ok(())
    }

    /// Returns the ticket that proves that a domain had this number, owner and name.
    pub fn ticket(&self, domain: DomainId, owner: Owner, name: &Name) -> Ticket {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(b"isthmus ticket 1");
        hasher.update(&domain.number().to_le_bytes());
        hasher.update(&owner.0.to_le_bytes());
        hasher.update(name.as_str().as_bytes());
        Ticket(*hasher.finalize().as_bytes())
    }

    /// Checks a ticket. The comparison takes the same time wherever the two differ.
    pub fn verify(&self, ticket: &Ticket, domain: DomainId, owner: Owner, name: &Name) -> bool {
        blake3::Hash::from_bytes(self.ticket(domain, owner, name).0) == blake3::Hash::from_bytes(ticket.0)
    }

    /// Identifies this host where nothing else does. The value is constant as long as the key is kept.
    pub fn host_id(&self) -> [u8; 32] {
        *blake3::Hasher::new_keyed(&self.key).update(b"isthmus host 1").finalize().as_bytes()
    }

    /// True if a later daemon will know the domains of this one.
    pub fn is_persistent(&self) -> bool {
        self.path.is_some()
    }

    /// Removes the file, because no domain will resume.
    pub fn delete_file(&mut self) {
        if let Some(path) = self.path.take() {
            let _ = std::fs::remove_file(path); // The file may be gone with its folder.
        }
    }
}

fn domain_line(domain: &ResumableDomain) -> String {
    match domain.process {
        Some(Process { pid, start }) => format!("{} {pid} {start}\n", domain.domain.number()),
        None => format!("{}\n", domain.domain.number()),
    }
}

fn claim_line(capability: Capability, item: &str, holder: &str) -> String {
    format!("{} {item} {holder}\n", capability.name())
}

/// The contents of a file.
struct TicketFile {
    key: [u8; 32],
    /// The first number that was not reserved.
    first: u32,
    resumable: Vec<ResumableDomain>,
    claims: Claims,
}

/// Parses a file. A line that a crash cut short is left out.
fn parse(text: &str) -> Option<TicketFile> {
    let mut lines = text.lines();
    if lines.next()? != FILE_HEADER {
        return None;
    }
    let key = *blake3::Hash::from_hex(lines.next()?).ok()?.as_bytes();
    let first = lines.next()?.parse().ok()?;
    let (mut domains, mut claims) = (BTreeMap::new(), BTreeMap::new());
    for line in lines {
        if let Some((item, domain)) = parse_claim(line) {
            match domain {
                Some(domain) => claims.insert(item, domain),
                None => claims.remove(&item),
            };
        } else if let Some((domain, process)) = parse_line(line) {
            match process {
                Some(process) => domains.insert(domain, ResumableDomain { domain, process }),
                None => domains.remove(&domain),
            };
        }
    }
    Some(TicketFile { key, first, resumable: domains.into_values().collect(), claims })
}

/// Parses an item of a capability and the domain that has claimed it; none if the item was released.
fn parse_claim(line: &str) -> Option<((Capability, String), Option<DomainId>)> {
    let (name, rest) = line.split_once(' ')?;
    let capability = Capability::ALL.into_iter().find(|capability| capability.name() == name)?;
    let (item, holder) = rest.rsplit_once(' ')?;
    let domain = if holder == "-" { None } else { Some(DomainId::new(holder.parse().ok()?)?) };
    Some(((capability, item.to_owned()), domain))
}

/// Parses a domain and its process, which is none if it could not be seen. In place of both, none means that the domain has left.
fn parse_line(line: &str) -> Option<(DomainId, Option<Option<Process>>)> {
    let mut words = line.split(' ');
    let domain = DomainId::new(words.next()?.parse().ok()?)?;
    let process = match words.next() {
        Some("-") => return Some((domain, None)),
        Some(pid) => Some(Process { pid: pid.parse().ok()?, start: words.next()?.parse().ok()? }),
        None => None,
    };
    Some((domain, Some(process)))
}

fn random_key() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u32) -> DomainId {
        DomainId::new(number).unwrap()
    }

    #[test]
    fn verifies_a_ticket_for_its_domain_and_in_the_next_daemon() {
        let folder = tempfile::tempdir().unwrap();
        let before = Tickets::open(folder.path()).unwrap();
        let (web, db) = (Name::new("web").unwrap(), Name::new("db").unwrap());
        let ticket = before.ticket(id(3), Owner(5), &web);
        let after = Tickets::open(folder.path()).unwrap();
        assert!(after.verify(&ticket, id(3), Owner(5), &web));
        assert!(!after.verify(&ticket, id(4), Owner(5), &web));
        assert!(!after.verify(&ticket, id(3), Owner(6), &web));
        assert!(!after.verify(&ticket, id(3), Owner(5), &db));
        assert!(after.first() > before.first());
        assert_eq!(after.host_id(), before.host_id());
        assert_ne!(after.host_id(), Tickets::ephemeral().unwrap().host_id());
    }

    #[test]
    fn numbers_are_taken_in_batches_and_never_twice() {
        let folder = tempfile::tempdir().unwrap();
        let mut first = Tickets::open(folder.path()).unwrap();
        assert_eq!(first.first().number(), 1);
        first.record(ResumableDomain { domain: id(4097), process: None });
        let mut second = Tickets::open(folder.path()).unwrap();
        assert_eq!(second.first().number(), 4097 + NUMBER_BATCH);
        second.record_number(id(4097 + 2 * NUMBER_BATCH));
        let third = Tickets::open(folder.path()).unwrap();
        assert_eq!((third.first().number(), third.resumable().len()), (4097 + 3 * NUMBER_BATCH, 1));
    }

    #[test]
    fn only_domains_with_a_live_process_are_resumable() {
        let folder = tempfile::tempdir().unwrap();
        let mut before = Tickets::open(folder.path()).unwrap();
        let own = ResumableDomain::of_process(id(1), Some(std::process::id() as i32));
        let other =
            ResumableDomain { domain: id(2), process: own.process.map(|own| Process { start: own.start + 1, ..own }) };
        let unseen = ResumableDomain { domain: id(3), process: None };
        let left = ResumableDomain { domain: id(4), ..own };
        for domain in [own, other, unseen, left] {
            before.record(domain);
        }
        before.remove(left.domain);
        assert_eq!(Tickets::open(folder.path()).unwrap().resumable(), [own, unseen]);
        assert!(own.process.is_some());
    }

    #[test]
    fn claims_of_resumable_domains_reach_the_next_daemon() {
        let folder = tempfile::tempdir().unwrap();
        let mut before = Tickets::open(folder.path()).unwrap();
        for domain in 1..=3 {
            before.record(ResumableDomain { domain: id(domain), process: None });
        }
        before.record(ResumableDomain { domain: id(4), process: Some(Process { pid: i32::MAX, start: 1 }) });
        for (item, domain) in [("1 10", 1), ("1 11", 1), ("1 12", 2), ("1 13", 3), ("1 14", 4)] {
            before.claim(Capability::Mx, item, id(domain));
        }
        before.claim(Capability::Sockets, "1 10", id(3));
        before.release_claim(Capability::Mx, "1 11");
        before.remove(id(2));
        let expected = [("1 10", id(1)), ("1 13", id(3))];
        let after = Tickets::open(folder.path()).unwrap();
        assert_eq!(after.claims(Capability::Mx).collect::<Vec<_>>(), expected);
        assert_eq!(after.claims(Capability::Sockets).collect::<Vec<_>>(), [("1 10", id(3))]);
        // A third daemon reads the same, although it has only the file that the second one wrote.
        assert_eq!(Tickets::open(folder.path()).unwrap().claims(Capability::Mx).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn rewrites_the_file_when_old_lines_pile_up() {
        let folder = tempfile::tempdir().unwrap();
        let mut tickets = Tickets::open(folder.path()).unwrap();
        tickets.record(ResumableDomain { domain: id(1), process: None });
        for _ in 0..5000 {
            tickets.claim(Capability::Mx, "0 0", id(1));
            tickets.release_claim(Capability::Mx, "0 0");
        }
        let lines = std::fs::read_to_string(folder.path().join(FILE)).unwrap().lines().count();
        assert!(lines < 1100, "{lines} lines");
        assert_eq!(Tickets::open(folder.path()).unwrap().claims(Capability::Mx).count(), 0);
    }

    #[test]
    fn delete_file_leaves_the_directory_empty() {
        let folder = tempfile::tempdir().unwrap();
        Tickets::open(folder.path()).unwrap().delete_file();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn replaces_a_file_of_another_format() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(FILE), "something else\n").unwrap();
        assert_eq!(Tickets::open(folder.path()).unwrap().first().number(), 1);
    }
}
