//! The tables of docs/spec/xen.md, printed from the code.

use crate::admission::{BACKENDS, BACKENDS_MAX, GUESTS};
use crate::directory::{self, Level, ListPosition, PAGES_MAX, REFS_MAX};
use crate::kernel::PAGE_BYTES;
use crate::presence::{FOLLOWED_MAX, HEARTBEAT_INTERVAL, LEASE_TIMEOUT, NODE, OFFER_BYTES_MAX};
use crate::{Domid, EvtchnPort, GrantRef, GrantRefs, INLINE_MAX, Offer, SharedBatch, SharedHead, XenGrant};
use isthmus_shm::Access;

fn rows(head: &str, rows: &[String]) -> String {
    let columns = head.matches('|').count() - 1;
    format!("{head}\n|{}\n{}", " --- |".repeat(columns), rows.iter().map(|row| format!("{row}\n")).collect::<String>())
}

fn grant() -> String {
    let one = |access, refs| XenGrant { from: Domid::ZERO, access, pages: 1, refs }.emit();
    let inline = || GrantRefs::Inline(vec![GrantRef(7)]);
    let flag = |with: Vec<u8>, without: Vec<u8>| with[2] ^ without[2];
    let writable = flag(one(Access::ReadWrite, inline()), one(Access::Read, inline()));
    let listed = flag(one(Access::Read, GrantRefs::Listed(GrantRef(7))), one(Access::Read, inline()));
    let bytes = one(Access::Read, inline());
    rows(
        "| offset | bytes | meaning |",
        &[
            format!("| 0 | 1 | {}: `{}` |", bytes[0], bytes[0] as char),
            format!("| 1 | 1 | version: {} |", bytes[1]),
            format!(
                "| 2 | 1 | flags: {writable} for writing, too; {listed} the reference is that of a list; others are 0 |"
            ),
            format!("| 3 | 1 | {} |", bytes[3]),
            format!("| 4 | 4 | pages: 1 to {PAGES_MAX} |"),
            format!(
                "| {} | 4 each | references: one for each page, {INLINE_MAX} at most; or the list's |",
                bytes.len() - 4
            ),
        ],
    )
}

fn list() -> String {
    let position = |level, leaf| ListPosition { level, pages: REFS_MAX as u32 + 1, leaf };
    let root = directory::emit(position(Level::Root, 0), &[GrantRef(1), GrantRef(2)]);
    let leaf = directory::emit(position(Level::Leaf, 1), &[GrantRef(1)]);
    rows(
        "| offset | bytes | meaning |",
        &[
            format!("| 0 | 4 | `{}` |", str::from_utf8(&root[..4]).unwrap()),
            format!("| 4 | 2 | version: {} |", root[4]),
            format!("| 6 | 2 | {} in a list of references of pages, {} in a list of such lists |", leaf[6], root[6]),
            "| 8 | 4 | pages of the whole grant |".to_owned(),
            "| 12 | 4 | which list of references of pages this is, from 0; in the list of lists 0 |".to_owned(),
            format!(
                "| {} | 4 each | references, {REFS_MAX} at most; then zeroes |",
                PAGE_BYTES as usize - 4 * REFS_MAX
            ),
        ],
    )
}

fn lists() -> String {
    let row = |pages: u32| {
        let last = ListPosition { level: Level::Leaf, pages, leaf: directory::leaves(pages) - 1 }.len();
        let root = if Level::first(pages) == Level::Root { 1 } else { 0 };
        format!("| {pages} | {root} | {} | {last} |", directory::leaves(pages))
    };
    let pages = [INLINE_MAX as u32 + 1, REFS_MAX as u32, REFS_MAX as u32 + 1, 4096, PAGES_MAX];
    rows("| pages | lists of lists | lists | references in the last |", &pages.map(row))
}

fn store() -> String {
    rows(
        "| node | belongs to | may be read by | value |",
        &[
            format!(
                "| `/local/domain/G/{BACKENDS}` | 0 | *G*, *B* | the backends that *G* may attach to: numbers separated by spaces, {BACKENDS_MAX} at most |"
            ),
            format!(
                "| `/local/domain/B/{GUESTS}/G` | 0 | *B* | *G*'s name, if it is known; *B* checks whether *G* may attach |"
            ),
            format!(
                "| `/local/domain/G/{NODE}` | *G* | its backends, and the guests it communicates with | its advertisement |"
            ),
            format!("| `/local/domain/B/{NODE}` | *B* | the guests that may attach | its advertisement |"),
        ],
    )
}

fn offer() -> String {
    let from = Domid::new(7).unwrap();
    let grant = |refs| XenGrant { from, access: Access::ReadWrite, pages: 1, refs };
    let one = grant(GrantRefs::Inline(vec![GrantRef(7)]));
    let offer = Offer {
        backend: Domid::new(0x0201).unwrap(),
        incarnation: 0x1817_1615_1413_1211,
        port: EvtchnPort(0x2423_2221),
        head: one.clone(),
        proxy_ring: one.clone(),
    };
    let (bytes, len) = (offer.emit(), one.emit().len());
    assert_eq!(
        (bytes[2], bytes[4], bytes[12], usize::from(bytes[16]), bytes.len()),
        (1, 0x11, 0x21, len, 17 + 2 * len)
    );
    rows(
        "| offset | bytes | meaning |",
        &[
            format!("| 0 | 1 | {}: `{}` |", bytes[0], bytes[0] as char),
            format!("| 1 | 1 | version: {} |", bytes[1]),
            "| 2 | 2 | the backend that it is for |".to_owned(),
            "| 4 | 8 | the incarnation of that backend's daemon |".to_owned(),
            "| 12 | 4 | a port of an event channel, to which the backend binds |".to_owned(),
            "| 16 | 1 | bytes of the grant that follows |".to_owned(),
            "| 17 | those | the grant of the window's head page |".to_owned(),
            "| then | to the end | the grant of its proxy ring |".to_owned(),
        ],
    )
}

fn shared() -> String {
    let refs = GrantRefs::Inline(vec![GrantRef(7)]);
    let head = XenGrant { from: Domid::ZERO, access: Access::ReadWrite, pages: 1, refs };
    let bytes = SharedHead { port: EvtchnPort(0x2423_2221), head }.emit();
    assert_eq!((bytes[4], bytes[8]), (0x21, b'G'));
    let port = "a port of an event channel, to which the other guest binds";
    start_and_grant(&bytes, port, "the grant of the window's head page")
}

fn shared_batch() -> String {
    let refs = GrantRefs::Inline(vec![GrantRef(7)]);
    let pages = XenGrant { from: Domid::ZERO, access: Access::ReadWrite, pages: 1, refs };
    let bytes = SharedBatch { event_channel: Some(EvtchnPort(0x2423_2221)), pages }.emit();
    assert_eq!((bytes[4], bytes[8]), (0x21, b'G'));
    let port = "the port of the batch's event channel, to which the other guest binds; 0 where it has none";
    start_and_grant(&bytes, port, "the grant of its pages")
}

fn start_and_grant(bytes: &[u8], port: &str, grant: &str) -> String {
    rows(
        "| offset | bytes | meaning |",
        &[
            format!("| 0 | 1 | {}: `{}` |", bytes[0], bytes[0] as char),
            format!("| 1 | 1 | version: {} |", bytes[1]),
            "| 2 | 2 | 0 |".to_owned(),
            format!("| 4 | 4 | {port} |"),
            format!("| 8 | to the end | {grant} |"),
        ],
    )
}

fn times() -> String {
    rows(
        "| what | |",
        &[
            format!("| an advertisement is written again | every {} s |", HEARTBEAT_INTERVAL.as_secs()),
            format!("| a domain without a new heartbeat counts as gone | after {} s |", LEASE_TIMEOUT.as_secs()),
            format!("| bytes of an offer | {OFFER_BYTES_MAX} at most |"),
            format!("| domains that one watcher follows | {FOLLOWED_MAX} at most |"),
        ],
    )
}

#[test]
fn the_specification_has_the_tables_of_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/spec/xen.md");
    let mut page = std::fs::read_to_string(path).unwrap();
    for (name, table) in [
        ("grant", grant()),
        ("list", list()),
        ("lists", lists()),
        ("nodes", store()),
        ("times", times()),
        ("offer", offer()),
        ("shared", shared()),
        ("shared-batch", shared_batch()),
    ] {
        let mark = format!("<!-- table {name} -->\n");
        let start = page.find(&mark).unwrap_or_else(|| panic!("no table {name}")) + mark.len();
        let end = start + page[start..].find("<!-- end -->").expect("a table ends");
        page.replace_range(start..end, &format!("\n{table}\n"));
    }
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    assert!(
        std::fs::read_to_string(path).unwrap() == page,
        "docs/spec/xen.md is not what the code says: run with UPDATE=1"
    );
}
