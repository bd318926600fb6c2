//! The state that one daemon leaves to the next: a key, and the domain numbers used so far.
//!
//! A domain is given a ticket, a keyed BLAKE3 hash over its number, owner and name. Shown to a later daemon that has the same key, the
//! ticket proves that the domain had this number. The file also lists the domains with their names, owners, processes and claims (see
//! [`Tickets::claim`]). The later daemon reads there which domains may still resume, and keeps for them their names and what they had
//! claimed. If the file cannot be written, because its file system is full, the daemon keeps what it has read and tries again at each change.
//! The file lies in the runtime folder and is readable by the daemon's user only. File and folder are made again if they are gone at a change.
//! A daemon that ends while no domain is attached removes the file, and the folder that it has made, so that nothing stays behind.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::ops::Bound;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use isthmus_layout::Capability;
use isthmus_layout::control::{Name, Owner, Ticket};
use isthmus_layout::ids::DomainId;
use isthmus_layout::reason::Reason;

use crate::accounts::Accounts;
use crate::socket;

/// The number of domain numbers that are reserved in the file at once.
const NUMBER_BATCH: u32 = 4096;

/// The number of lines of a file that could not be written. The next change replaces the file.
const INCOMPLETE: usize = usize::MAX;

/// The permissions of a runtime folder that is made. The next daemon may have its socket there, for all users.
const FOLDER_MODE: u32 = 0o755;

const FILE: &str = "resume";
const FILE_HEADER: &str = "isthmus resume 2";

/// The beginning of a line with the first number that is not reserved.
const FIRST_NUMBER: &str = "first ";

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumableDomain {
    /// Its number.
    pub domain: DomainId,
    /// Its name.
    pub name: Name,
    /// Its owner.
    pub owner: Owner,
    /// Its process, if the daemon could see it.
    pub process: Option<Process>,
}

impl ResumableDomain {
    fn is_alive(&self) -> bool {
        self.process.is_none_or(|process| Process::of_pid(process.pid) == Some(process))
    }
}

/// The number of domains that a change copies into the next file, while one is being written.
const COPIED_DOMAINS: usize = 4;

/// The items of capabilities that each domain has claimed.
type Claims = BTreeMap<DomainId, BTreeSet<(Capability, String)>>;

/// A file that will replace the present one. Each change copies a few domains, so that none takes long.
///
/// Changes go into both files meanwhile. Later lines override earlier ones, so it does not matter whether a domain was copied before.
#[derive(Debug)]
struct NextFile {
    file: File,
    /// The last domain that was copied.
    copied: Option<DomainId>,
    lines: usize,
}

/// The key, the numbers and the domains.
#[derive(Debug)]
pub struct Tickets {
    key: [u8; 32],
    /// The daemon may use numbers below this one.
    reserved: u32,
    first: DomainId,
    path: Option<PathBuf>,
    /// Whether this daemon has made the folder.
    has_made_folder: bool,
    domains: BTreeMap<DomainId, ResumableDomain>,
    resumable: Vec<ResumableDomain>,
    /// Domains of earlier daemons that will not resume.
    ended: BTreeSet<DomainId>,
    claims: Claims,
    /// The number of claims of all domains.
    claims_count: usize,
    /// The number of lines in the file that name a domain, including domains that have left. [`INCOMPLETE`] if the file lacks something.
    lines: usize,
    next: Option<NextFile>,
    /// The file as this daemon has last written it. None if it could not be written.
    written: Option<FileState>,
    accounts: Accounts,
}

/// Tells a file from another one in its place, and from the file that it was before another program wrote to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileState {
    device: u64,
    inode: u64,
    size: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
}

impl FileState {
    fn of(file: &std::fs::Metadata) -> Self {
        let modified = (file.mtime(), file.mtime_nsec());
        Self { device: file.dev(), inode: file.ino(), size: file.size(), modified }
    }
}

impl Tickets {
    /// Reads the file in `folder`, or creates one, and the folder. Fails only if there can be no such folder, or if a file is there and cannot
    /// be read.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let has_made_folder = make_folder(folder)?;
        let path = folder.join(FILE);
        let file = match read(&path) {
            Ok(text) => parse(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let TicketFile { key, first, resumable, mut ended, claims } = match file {
            Some(file) => file,
            None => TicketFile {
                key: random_key()?,
                first: 1,
                resumable: Vec::new(),
                ended: BTreeSet::new(),
                claims: BTreeMap::new(),
            },
        };
        let (resumable, dead): (Vec<_>, Vec<_>) = resumable.into_iter().partition(ResumableDomain::is_alive);
        ended.extend(dead.iter().map(|dead| dead.domain));
        let domains: BTreeMap<_, _> = resumable.iter().map(|resumable| (resumable.domain, resumable.clone())).collect();
        let claims: Claims = claims.into_iter().filter(|(domain, _)| domains.contains_key(domain)).collect();
        let first = DomainId::new(first).unwrap_or(DomainId::new(1).expect("one is not zero"));
        let mut tickets = Self {
            key,
            reserved: first.number().saturating_add(NUMBER_BATCH),
            first,
            path: Some(path),
            has_made_folder,
            domains,
            resumable,
            ended,
            claims_count: claims.values().map(BTreeSet::len).sum(),
            claims,
            lines: 0,
            next: None,
            written: None,
            accounts: Accounts::of_host(),
        };
        tickets.write();
        Ok(tickets)
    }

    /// Returns tickets for a daemon that has no successor. Nothing is written.
    pub fn ephemeral() -> io::Result<Self> {
        let first = DomainId::new(1).expect("one is not zero");
        Ok(Self {
            key: random_key()?,
            reserved: u32::MAX,
            first,
            path: None,
            has_made_folder: false,
            domains: BTreeMap::new(),
            resumable: Vec::new(),
            ended: BTreeSet::new(),
            claims: BTreeMap::new(),
            claims_count: 0,
            lines: 0,
            next: None,
            written: None,
            accounts: Accounts::of_host(),
        })
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
        let (number, line) = (domain.domain, domain_line(&domain));
        self.domains.insert(number, domain);
        self.reserve(number);
        self.append(&line, 1);
    }

    /// Records that a number is used by a domain that cannot resume, so that no other domain gets the number.
    pub fn record_number(&mut self, domain: DomainId) {
        self.reserve(domain);
    }

    /// Reserves a batch of numbers that has this one, if the number is not reserved already.
    fn reserve(&mut self, domain: DomainId) {
        if domain.number() >= self.reserved {
            self.reserved = domain.number().saturating_add(NUMBER_BATCH);
            self.append(&format!("{FIRST_NUMBER}{}\n", self.reserved), 1);
        }
    }

    /// Removes a domain that has left and will not resume.
    pub fn remove(&mut self, domain: DomainId) {
        if domain < self.first {
            self.ended.insert(domain);
        }
        self.claims_count -= self.claims.remove(&domain).map_or(0, |items| items.len());
        if self.domains.remove(&domain).is_some() {
            self.append(&format!("{} -\n", domain.number()), 1);
        }
    }

    /// Records that a domain has an item of a capability, which is kept for the domain until it resumes. The capability names the item, with
    /// a text of one line.
    pub fn claim(&mut self, capability: Capability, item: &str, domain: DomainId) {
        let is_new = self.claims.entry(domain).or_default().insert((capability, item.to_owned()));
        self.claims_count += usize::from(is_new);
        self.append(&claim_line(capability, item, &domain.number().to_string()), 1);
    }

    /// Records that items of a domain are free.
    pub fn release_claims(&mut self, capability: Capability, domain: DomainId, items: &[String]) {
        let mut lines = String::new();
        for item in items {
            let known = self.claims.get_mut(&domain);
            let is_known = known.is_some_and(|claims| claims.remove(&(capability, item.clone())));
            self.claims_count -= usize::from(is_known);
            lines.push_str(&claim_line(capability, item, "-"));
        }
        if self.claims.get(&domain).is_some_and(BTreeSet::is_empty) {
            self.claims.remove(&domain);
        }
        if !items.is_empty() {
            self.append(&lines, items.len());
        }
    }

    /// Whether a domain that is not known may still resume, because the file may have lost its line: an earlier daemon may have given out its
    /// number, and nothing says that it has ended.
    pub fn may_have_lost(&self, domain: DomainId) -> bool {
        domain < self.first && !self.ended.contains(&domain)
    }

    /// The user that a resumable domain counts for.
    pub fn account_of(&self, domain: DomainId) -> Owner {
        self.domains.get(&domain).map_or(Owner(u32::MAX), |domain| self.accounts.account_of(domain.owner.0))
    }

    /// The claimed items of a capability with their domains. At the start these are resumable domains.
    pub fn claims(&self, capability: Capability) -> impl Iterator<Item = (&str, DomainId)> {
        let claims = self.claims.iter().flat_map(|(domain, items)| items.iter().map(|item| (item, *domain)));
        let of_capability = claims.filter(move |((of, _), _)| *of == capability);
        of_capability.map(|((_, item), domain)| (item.as_str(), domain))
    }

    /// Appends lines. The caller has already updated the fields, so the whole file can be written anew if it is incomplete.
    fn append(&mut self, lines: &str, count: usize) {
        if self.lines == INCOMPLETE {
            return self.write();
        }
        let Some(path) = &self.path else { return };
        let appended = File::options().append(true).open(path).and_then(|mut file| {
            let is_own = self.written == Some(FileState::of(&file.metadata()?));
            is_own.then_some(()).ok_or_else(|| io::Error::other("another program has changed it"))?;
            file.write_all(lines.as_bytes())?;
            file.metadata()
        });
        if let Ok(file) = &appended {
            self.written = Some(FileState::of(file));
        }
        match appended.and_then(|_| self.continue_next(lines, count)) {
            Ok(()) => self.lines += count,
            // The file is gone, or there is no room and a part of the lines was written.
            Err(error) => {
                tracing::warn!(%error, "the file of resumable domains is replaced");
                self.write();
            }
        }
    }

    /// Begins the next file once too many lines have piled up, adds lines to it, and copies a few domains. Replaces the present file once
    /// all are copied.
    fn continue_next(&mut self, lines: &str, count: usize) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let next_path = path.with_extension("new");
        let next = match &mut self.next {
            Some(next) => next,
            None if self.lines <= 2 * (self.domains.len() + self.claims_count) + 1024 => return Ok(()),
            None => {
                let file = self.create(&next_path)?;
                self.next.insert(NextFile { file, copied: None, lines: 0 })
            }
        };
        next.file.write_all(lines.as_bytes())?;
        let after = next.copied.map_or(Bound::Unbounded, Bound::Excluded);
        let domains = self.domains.range((after, Bound::Unbounded)).take(COPIED_DOMAINS);
        let domains: Vec<&ResumableDomain> = domains.map(|(_, domain)| domain).collect();
        let copies: Vec<String> = domains.iter().flat_map(|domain| lines_of(domain, &self.claims)).collect();
        next.file.write_all(copies.concat().as_bytes())?;
        next.lines += count + copies.len();
        match domains.last() {
            Some(last) => next.copied = Some(last.domain),
            None => {
                std::fs::rename(&next_path, path)?;
                self.written = Some(FileState::of(&next.file.metadata()?));
                self.lines = next.lines - count; // The caller adds these.
                self.next = None;
            }
        }
        Ok(())
    }

    /// Replaces the file.
    fn write(&mut self) {
        self.next = None;
        let Some(path) = &self.path else { return };
        let next = path.with_extension("new");
        let folder = path.parent().map_or(Ok(false), make_folder);
        self.has_made_folder |= matches!(folder, Ok(true));
        let written = folder.and_then(|_| self.write_file(&next)).and_then(|file| {
            std::fs::rename(&next, path)?;
            file.metadata()
        });
        match written {
            Ok(file) => self.written = Some(FileState::of(&file)),
            Err(error) => {
                let _ = std::fs::remove_file(&next); // A part of a file takes room.
                return self.is_incomplete(&error);
            }
        }
        if self.lines == INCOMPLETE {
            tracing::info!(file = %path.display(), "the file of resumable domains is written again");
        }
        self.lines = self.domains.len() + self.claims_count;
    }

    fn write_file(&self, path: &Path) -> io::Result<File> {
        let lines: String = self.domains.values().flat_map(|domain| lines_of(domain, &self.claims)).collect();
        let mut file = self.create(path)?;
        file.write_all(lines.as_bytes())?;
        Ok(file)
    }

    /// Writes the file again if it is gone, is another one, or was changed by another program. The daemon may be killed before its next
    /// change, and its domains could not resume without the file.
    pub fn keep_file(&mut self) {
        let Some(path) = &self.path else { return };
        let present = std::fs::metadata(path).ok().map(|file| FileState::of(&file));
        if self.lines == INCOMPLETE || present == self.written {
            return;
        }
        let (file, is_gone) = (path.display(), present.is_none());
        tracing::warn!(%file, is_gone, "another program has removed or changed the file of resumable domains; it is written again");
        self.write();
    }

    /// Creates a file without domains.
    fn create(&self, path: &Path) -> io::Result<File> {
        let key: String = self.key.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all(format!("{FILE_HEADER}\n{key}\n{}\n", self.reserved).as_bytes())?;
        Ok(file)
    }

    /// Records that the file lacks something. Only the first of several failures is logged.
    fn is_incomplete(&mut self, error: &io::Error) {
        if self.lines != INCOMPLETE {
            let text = "cannot write which domains may resume; the next domain that attaches or leaves tries again, and until \
                        then new domains attach anew after a restart: make room in `daemon.runtime_dir`, where the daemon must \
                        be able to write";
            tracing::warn!(%error, "{text}");
        }
        self.lines = INCOMPLETE;
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
        self.path.is_some() && self.lines != INCOMPLETE
    }

    /// Removes the file, because no domain will resume.
    pub fn delete_file(&mut self) {
        if let Some(path) = self.path.take() {
            let _ = std::fs::remove_file(path.with_extension("new"));
            let _ = std::fs::remove_file(&path); // The file may be gone with its folder.
            if self.has_made_folder
                && let Some(folder) = path.parent()
            {
                let _ = std::fs::remove_dir(folder); // Unless something else is in it.
            }
        }
    }
}

/// Reads a file. Anything else in its place is an error: opening a pipe would wait for a writer.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let mut file = File::options().read(true).custom_flags(nonblocking).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other(format!("{} is no file: remove it", path.display())));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Makes the runtime folder if it is missing. Returns whether it was. A folder that another user has put there at that moment is refused.
fn make_folder(folder: &Path) -> io::Result<bool> {
    if folder.is_dir() {
        return Ok(false);
    }
    std::fs::DirBuilder::new().mode(FOLDER_MODE).recursive(true).create(folder)?;
    if socket::is_trusted(folder)? {
        tracing::info!(folder = %folder.display(), "made the runtime folder, which was missing");
        Ok(true)
    } else {
        Err(io::Error::new(io::ErrorKind::PermissionDenied, Reason::SocketUntrusted.summary()))
    }
}

fn domain_line(domain: &ResumableDomain) -> String {
    let ResumableDomain { domain, name, owner: Owner(owner), process } = domain;
    let process = match process {
        Some(Process { pid, start }) => format!("{pid} {start}"),
        None => "- -".to_owned(),
    };
    format!("{} {process} {owner} {name}\n", domain.number())
}

/// The lines of a domain and its claims.
fn lines_of<'a>(domain: &'a ResumableDomain, claims: &'a Claims) -> impl Iterator<Item = String> + 'a {
    let number = domain.domain.number().to_string();
    let items = claims.get(&domain.domain).into_iter().flatten();
    let claims = items.map(move |(capability, item)| claim_line(*capability, item, &number));
    std::iter::once(domain_line(domain)).chain(claims)
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
    ended: BTreeSet<DomainId>,
    claims: Claims,
}

/// Parses a file. A line that a crash cut short, even within a character, is left out, and so are lines that are no text.
fn parse(bytes: &[u8]) -> Option<TicketFile> {
    let end = bytes.iter().rposition(|byte| *byte == b'\n')?;
    let mut lines = bytes[..end].split(|byte| *byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok());
    if lines.next()? != FILE_HEADER {
        return None;
    }
    let key = *blake3::Hash::from_hex(lines.next()?).ok()?.as_bytes();
    let mut first = lines.next()?.parse().ok()?;
    let (mut domains, mut holders, mut claims) = (BTreeMap::new(), BTreeMap::new(), Claims::new());
    let mut ended = BTreeSet::new();
    for line in lines {
        if let Some(number) = line.strip_prefix(FIRST_NUMBER) {
            first = number.parse().map_or(first, |number: u32| number.max(first));
        } else if let Some((item, domain)) = parse_claim(line) {
            let before = match domain {
                Some(domain) => holders.insert(item.clone(), domain),
                None => holders.remove(&item),
            };
            if let Some(items) = before.and_then(|before| claims.get_mut(&before)) {
                items.remove(&item);
            }
            if let Some(domain) = domain {
                claims.entry(domain).or_default().insert(item);
            }
        } else if let Some((domain, resumable)) = parse_line(line) {
            match resumable {
                Some(resumable) => {
                    ended.remove(&domain);
                    domains.insert(domain, resumable);
                }
                None => {
                    ended.insert(domain);
                    domains.remove(&domain);
                    for item in claims.remove(&domain).into_iter().flatten() {
                        holders.remove(&item);
                    }
                }
            }
        }
    }
    claims.retain(|_, items| !items.is_empty());
    Some(TicketFile { key, first, resumable: domains.into_values().collect(), ended, claims })
}

/// Parses an item of a capability and the domain that has claimed it; none if the item was released.
fn parse_claim(line: &str) -> Option<((Capability, String), Option<DomainId>)> {
    let (name, rest) = line.split_once(' ')?;
    let capability = Capability::ALL.into_iter().find(|capability| capability.name() == name)?;
    let (item, holder) = rest.rsplit_once(' ')?;
    let domain = if holder == "-" { None } else { Some(DomainId::new(holder.parse().ok()?)?) };
    Some(((capability, item.to_owned()), domain))
}

/// Parses the number of a domain and the domain; none if the domain has left.
fn parse_line(line: &str) -> Option<(DomainId, Option<ResumableDomain>)> {
    let (number, rest) = line.split_once(' ')?;
    let domain = DomainId::new(number.parse().ok()?)?;
    if rest == "-" {
        return Some((domain, None));
    }
    let mut words = rest.splitn(4, ' '); // The name comes last, because it may contain spaces.
    let process = match (words.next()?, words.next()?) {
        ("-", _) => None,
        (pid, start) => Some(Process { pid: pid.parse().ok()?, start: start.parse().ok()? }),
    };
    let (owner, name) = (Owner(words.next()?.parse().ok()?), Name::new(words.next()?).ok()?);
    Some((domain, Some(ResumableDomain { domain, name, owner, process })))
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

    fn unseen(number: u32) -> ResumableDomain {
        let name = Name::new(&format!("domain number {number}")).unwrap();
        ResumableDomain { domain: id(number), name, owner: Owner(1000 + number), process: None }
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
        first.record(unseen(4097));
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
        let process = Process::of_pid(std::process::id() as i32);
        let own = ResumableDomain { process, ..unseen(1) };
        let later = process.map(|own| Process { start: own.start + 1, ..own });
        let other = ResumableDomain { process: later, ..unseen(2) };
        let left = ResumableDomain { process, ..unseen(4) };
        for domain in [&own, &other, &unseen(3), &left] {
            before.record(domain.clone());
        }
        before.remove(left.domain);
        assert_eq!(Tickets::open(folder.path()).unwrap().resumable(), [own, unseen(3)]);
        assert!(process.is_some());
    }

    #[test]
    fn claims_of_resumable_domains_reach_the_next_daemon() {
        let folder = tempfile::tempdir().unwrap();
        let mut before = Tickets::open(folder.path()).unwrap();
        for domain in 1..=3 {
            before.record(unseen(domain));
        }
        before.record(ResumableDomain { process: Some(Process { pid: i32::MAX, start: 1 }), ..unseen(4) });
        for (item, domain) in [("1 10", 1), ("1 11", 1), ("1 12", 2), ("1 13", 3), ("1 14", 4)] {
            before.claim(Capability::Mx, item, id(domain));
        }
        before.claim(Capability::Sockets, "1 10", id(3));
        before.release_claims(Capability::Mx, id(1), &["1 11".to_owned()]);
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
        tickets.record(unseen(1));
        for _ in 0..5000 {
            tickets.claim(Capability::Mx, "0 0", id(1));
            tickets.release_claims(Capability::Mx, id(1), &["0 0".to_owned()]);
        }
        let lines = std::fs::read_to_string(folder.path().join(FILE)).unwrap().lines().count();
        assert!(lines < 1100, "{lines} lines");
        assert_eq!(Tickets::open(folder.path()).unwrap().claims(Capability::Mx).count(), 0);
    }

    #[test]
    fn next_file_has_what_changed_while_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let mut tickets = Tickets::open(folder.path()).unwrap();
        let domains = 8 * COPIED_DOMAINS as u32;
        (1..=domains).for_each(|domain| tickets.record(unseen(domain)));
        let mut step = 0_u32;
        let mut replaced = 0;
        // Each round changes another domain, so that changes fall before and after the domain that is copied just then.
        while replaced < 3 {
            let was_begun = tickets.next.is_some();
            let domain = id(1 + step * 7 % domains);
            match step % 4 {
                0 => tickets.claim(Capability::Mx, &format!("0 {}", domain.number()), domain),
                1 => tickets.release_claims(Capability::Mx, domain, &[format!("0 {}", domain.number())]),
                2 => tickets.remove(domain),
                _ => tickets.record(unseen(domain.number())),
            }
            step += 1;
            replaced += u32::from(was_begun && tickets.next.is_none());
            if was_begun || tickets.next.is_some() {
                let text = std::fs::read_to_string(folder.path().join(FILE)).unwrap();
                let read = parse(text.as_bytes()).unwrap();
                let known: Vec<_> = tickets.domains.values().cloned().collect();
                assert_eq!(read.resumable, known, "step {step}");
                let mut claims = read.claims;
                claims.retain(|domain, _| tickets.domains.contains_key(domain));
                let mut known = tickets.claims.clone();
                known.retain(|domain, _| tickets.domains.contains_key(domain));
                assert_eq!(claims, known, "step {step}");
            }
        }
        assert!(tickets.is_persistent() && !folder.path().join("resume.new").exists());
        tickets.record_number(id(3 * NUMBER_BATCH));
        assert!(Tickets::open(folder.path()).unwrap().first().number() > 3 * NUMBER_BATCH);
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

    /// The state of a runtime folder after all that the tickets of this daemon have recorded.
    fn assert_next_daemon_knows(folder: &Path, domains: &[u32]) {
        let next = Tickets::open(folder).unwrap();
        assert_eq!(next.resumable(), domains.iter().map(|domain| unseen(*domain)).collect::<Vec<_>>());
        let claims: Vec<_> = next.claims(Capability::Mx).map(|(item, domain)| (item.to_owned(), domain)).collect();
        assert_eq!(claims, [("0 0".to_owned(), id(1))]);
    }

    #[test]
    fn missing_folder_is_made_and_goes_with_the_daemon() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("run/isthmus");
        let mut tickets = Tickets::open(&folder).unwrap();
        assert!(tickets.is_persistent());
        tickets.record(unseen(1));
        tickets.claim(Capability::Mx, "0 0", id(1));
        assert_next_daemon_knows(&folder, &[1]);
        tickets.delete_file();
        assert!(!folder.exists());
        // What was there before stays.
        std::fs::create_dir(&folder).unwrap();
        Tickets::open(&folder).unwrap().delete_file();
        assert!(folder.exists());
    }

    #[test]
    fn folder_and_file_that_vanish_come_back_whole_at_the_next_change() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("run");
        let mut tickets = Tickets::open(&folder).unwrap();
        tickets.record(unseen(1));
        tickets.claim(Capability::Mx, "0 0", id(1));
        for removed in 2..=5 {
            if removed % 2 == 0 {
                std::fs::remove_dir_all(&folder).unwrap();
            } else {
                std::fs::remove_file(folder.join(FILE)).unwrap();
            }
            tickets.record(unseen(removed));
            assert!(tickets.is_persistent());
            assert_next_daemon_knows(&folder, &(1..=removed).collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_is_no_file_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        std::fs::create_dir(&path).unwrap();
        let open = || Tickets::open(folder.path()).map(drop).unwrap_err().to_string();
        assert_eq!(open(), format!("{} is no file: remove it", path.display()));
        std::fs::remove_dir(&path).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert_eq!(open(), format!("{} is no file: remove it", path.display()));
    }

    #[test]
    fn file_that_another_program_removes_or_changes_is_written_again_without_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let mut tickets = Tickets::open(folder.path()).unwrap();
        (1..=3).for_each(|domain| tickets.record(unseen(domain)));
        tickets.claim(Capability::Mx, "0 0", id(1));
        let own = std::fs::read(&path).unwrap();
        tickets.keep_file();
        assert_eq!(std::fs::read(&path).unwrap(), own, "a file that is as it was is left alone");
        let ways: [&dyn Fn(); 4] = [
            &|| std::fs::remove_file(&path).unwrap(),
            &|| std::fs::write(&path, "garbage").unwrap(),
            &|| std::fs::write(&path, vec![b'x'; own.len()]).unwrap(),
            &|| std::fs::remove_dir_all(folder.path()).unwrap(),
        ];
        for way in ways {
            way();
            tickets.keep_file();
            assert_next_daemon_knows(folder.path(), &[1, 2, 3]);
            tickets.keep_file(); // The next daemon has written its own file.
        }
        std::fs::write(&path, "garbage").unwrap();
        tickets.record(unseen(4));
        assert_next_daemon_knows(folder.path(), &[1, 2, 3, 4]);
    }

    #[test]
    fn folder_that_vanishes_while_the_next_file_is_written_comes_back() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("run");
        let mut tickets = Tickets::open(&folder).unwrap();
        let domains: Vec<u32> = (1..=8 * COPIED_DOMAINS as u32).collect();
        domains.iter().for_each(|domain| tickets.record(unseen(*domain)));
        assert!((0..5000).any(|_| {
            tickets.claim(Capability::Mx, "0 0", id(1));
            tickets.next.is_some()
        }));
        std::fs::remove_dir_all(&folder).unwrap();
        tickets.claim(Capability::Mx, "0 0", id(1));
        assert!(tickets.is_persistent() && tickets.next.is_none());
        assert_next_daemon_knows(&folder, &domains);
    }

    #[test]
    fn folder_that_cannot_be_made_is_an_error() {
        let parent = tempfile::tempdir().unwrap();
        std::fs::write(parent.path().join("file"), "").unwrap();
        Tickets::open(&parent.path().join("file")).unwrap_err();
        Tickets::open(&parent.path().join("file/run")).unwrap_err();
    }

    #[test]
    fn file_that_is_no_text_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(FILE), [0xFF; 64]).unwrap();
        assert_eq!(Tickets::open(folder.path()).unwrap().first().number(), 1);
    }

    /// Has no file be written in the folder until the guard is dropped, also by root: the next file is a folder.
    struct Full(PathBuf);

    impl Full {
        fn new(folder: &Path) -> Self {
            let next = folder.join(FILE).with_extension("new");
            std::fs::create_dir(&next).unwrap();
            Self(next)
        }
    }

    impl Drop for Full {
        fn drop(&mut self) {
            std::fs::remove_dir(&self.0).unwrap();
        }
    }

    #[test]
    fn keeps_what_it_has_read_and_tries_again_when_the_folder_is_full() {
        let folder = tempfile::tempdir().unwrap();
        let mut before = Tickets::open(folder.path()).unwrap();
        let ticket = before.ticket(id(1), unseen(1).owner, &unseen(1).name);
        before.record(unseen(1));
        let full = Full::new(folder.path());
        let mut tickets = Tickets::open(folder.path()).unwrap();
        assert_eq!((tickets.resumable(), tickets.is_persistent()), (&[unseen(1)][..], false));
        assert!(tickets.verify(&ticket, id(1), unseen(1).owner, &unseen(1).name));
        tickets.record(unseen(2));
        // What the previous daemon has left is still there for the next one.
        assert_eq!(Tickets::open(folder.path()).unwrap().resumable(), [unseen(1)]);
        drop(full);
        tickets.remove(id(1));
        assert!(tickets.is_persistent());
        let next = Tickets::open(folder.path()).unwrap();
        assert_eq!(next.resumable(), [unseen(2)]);
        assert!(next.first() > tickets.first() && next.verify(&ticket, id(1), unseen(1).owner, &unseen(1).name));
    }

    #[test]
    fn first_file_is_written_when_there_is_room() {
        let folder = tempfile::tempdir().unwrap();
        let full = Full::new(folder.path());
        let mut tickets = Tickets::open(folder.path()).unwrap();
        assert!(!tickets.is_persistent());
        drop(full);
        tickets.record(unseen(1));
        assert!(tickets.is_persistent());
        assert_eq!(Tickets::open(folder.path()).unwrap().resumable(), [unseen(1)]);
    }

    #[test]
    fn line_that_was_cut_short_is_left_out_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let mut tickets = Tickets::open(folder.path()).unwrap();
        tickets.record(unseen(1));
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{text}2 - - 5 we")).unwrap();
        assert_eq!(Tickets::open(folder.path()).unwrap().resumable(), [unseen(1)]);
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 4);
    }

    #[test]
    fn line_that_was_cut_within_a_character_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let mut tickets = Tickets::open(folder.path()).unwrap();
        tickets.record(unseen(1));
        let mut text = std::fs::read(folder.path().join(FILE)).unwrap();
        text.extend(&"2 - - 5 größer".as_bytes()[..11]);
        std::fs::write(folder.path().join(FILE), text).unwrap();
        assert_eq!(Tickets::open(folder.path()).unwrap().resumable(), [unseen(1)]);
    }

    #[test]
    fn domain_that_attaches_after_it_has_left_has_no_earlier_claims() {
        let folder = tempfile::tempdir().unwrap();
        let mut tickets = Tickets::open(folder.path()).unwrap();
        tickets.record(unseen(1));
        tickets.claim(Capability::Mx, "0 0", id(1));
        tickets.remove(id(1));
        tickets.record(unseen(1));
        tickets.claim(Capability::Mx, "0 1", id(1));
        let next = Tickets::open(folder.path()).unwrap();
        assert_eq!(next.claims(Capability::Mx).collect::<Vec<_>>(), [("0 1", id(1))]);
    }
}
