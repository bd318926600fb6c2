//! The life of the file of resumable domains, as bytes: any text, then changes and restarts. The fuzz target and the tests run the same
//! lives.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use isthmus_control::tickets::{ResumableDomain, Tickets};
use isthmus_layout::Capability;
use isthmus_layout::control::{Name, Owner};
use isthmus_layout::ids::DomainId;

/// The number of times that one life lets old lines pile up.
const PILES_MAX: usize = 3;

type Item = (Capability, String);

/// All that the next daemon has to know.
#[derive(Debug, Default)]
struct Known {
    domains: BTreeMap<DomainId, ResumableDomain>,
    /// Items of domains of guests are here, too. The next daemon does not know them.
    holders: BTreeMap<Item, DomainId>,
    /// The highest number that was used.
    highest: u32,
}

impl Known {
    fn claims(&self) -> BTreeSet<(Item, DomainId)> {
        let known = self.holders.iter().filter(|(_, domain)| self.domains.contains_key(domain));
        known.map(|(item, domain)| (item.clone(), *domain)).collect()
    }
}

fn claims_of(tickets: &Tickets) -> BTreeSet<(Item, DomainId)> {
    let of = |capability| tickets.claims(capability).map(move |(item, domain)| ((capability, item.to_owned()), domain));
    Capability::ALL.into_iter().flat_map(of).collect()
}

fn unseen(domain: DomainId, name: u8) -> ResumableDomain {
    let names = ["web", "a name", "größer 日本", "- -", "first 9", "mx 1"];
    let name = Name::new(names[usize::from(name) % names.len()]).unwrap();
    ResumableDomain { domain, name, owner: Owner(domain.number() % 3), process: None }
}

/// Domains of guests do not resume.
fn is_of_guest(domain: DomainId) -> bool {
    domain.number() % 4 == 3
}

/// Lives in an empty folder. Two bytes are the length of the first file, which follows; each step is three bytes.
pub(crate) fn live(folder: &Path, life: &[u8]) {
    let Some((length, life)) = life.split_first_chunk() else { return };
    let (text, steps) = life.split_at(usize::from(u16::from_le_bytes(*length)).min(life.len()));
    let (path, next_path) = (folder.join("resume"), folder.join("resume.new"));
    std::fs::write(&path, text).unwrap();
    let mut tickets = Tickets::open(folder).expect("the daemon starts, whatever the file holds");
    let domains = tickets.resumable().iter().map(|domain| (domain.domain, domain.clone())).collect();
    let mut known = Known { domains, holders: claims_of(&tickets).into_iter().collect(), highest: 0 };
    let mut piles = 0;
    restart(&mut tickets, folder, &known);
    for step in steps.chunks_exact(3) {
        let (operation, low, high) = (step[0], step[1], step[2]);
        let batch = if low & 0x80 == 0 { 0 } else { 4096 * u32::from(high >> 5) };
        let domain = DomainId::new(1 + u32::from(low & 0x3f) + batch).unwrap();
        let item = (Capability::ALL[usize::from(high & 1)], format!("{} {}", high & 1, high >> 1 & 7));
        match operation % 9 {
            0 if !is_of_guest(domain) => {
                known.highest = known.highest.max(domain.number());
                known.domains.insert(domain, unseen(domain, high));
                tickets.record(unseen(domain, high));
            }
            0 | 1 => {
                known.highest = known.highest.max(domain.number());
                tickets.record_number(domain);
            }
            2 | 3 if is_of_guest(domain) || known.domains.contains_key(&domain) => {
                let holder = *known.holders.entry(item.clone()).or_insert(domain);
                if holder == domain {
                    tickets.claim(item.0, &item.1, domain);
                }
            }
            4 => {
                let own = known.holders.extract_if(.., |(of, _), holder| *of == item.0 && *holder == domain);
                let items: Vec<String> = own.map(|((_, item), _)| item).collect();
                tickets.release_claims(item.0, domain, &items);
            }
            5 => {
                known.domains.remove(&domain);
                known.holders.retain(|_, holder| *holder != domain);
                tickets.remove(domain);
            }
            6 if piles < PILES_MAX && known.domains.contains_key(&domain) => {
                piles += 1;
                let again = known.domains[&domain].clone();
                (0..u32::from(high) * 8).for_each(|_| tickets.record(again.clone()));
            }
            // A crash cuts a line short, or leaves a part of the next file.
            7 => {
                let line = format!("{} - - 7 größer 日本", domain.number());
                let cut = &line.as_bytes()[..usize::from(high) % line.len()];
                File::options().append(true).open(&path).and_then(|mut file| file.write_all(cut)).unwrap();
                std::fs::write(&next_path, cut).unwrap();
                restart(&mut tickets, folder, &known);
            }
            8 => restart(&mut tickets, folder, &known),
            _ => {}
        }
    }
    let last = DomainId::new(1).unwrap();
    known.domains.insert(last, unseen(last, 0));
    for _ in 0..known.domains.len() + 8 {
        tickets.record(unseen(last, 0));
        if !next_path.exists() {
            break;
        }
    }
    assert!(!next_path.exists(), "the next file does not replace the present one");
    restart(&mut tickets, folder, &known);
}

/// Starts another daemon, and checks that it knows all that it has to.
fn restart(tickets: &mut Tickets, folder: &Path, known: &Known) {
    let before = tickets.first();
    *tickets = Tickets::open(folder).expect("the daemon starts");
    assert!(tickets.is_persistent());
    assert!(tickets.first() >= before && tickets.first().number() > known.highest, "numbers are used twice");
    assert_eq!(tickets.resumable(), known.domains.values().cloned().collect::<Vec<_>>());
    assert_eq!(claims_of(tickets), known.claims());
}
