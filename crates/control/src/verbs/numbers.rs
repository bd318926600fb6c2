//! The queue pair numbers of the host, in blocks. This module decides and remembers; it does no I/O.
//!
//! ```text
//!   block 0      1      2      3      …      65534      65535
//!   never   │ free │ (domain, endpoint) │ reserved │ … │   never
//!            free: a queue, with the block that was returned the longest time ago in front
//! ```
//!
//! A number that a peer still remembers should not name another queue pair soon. So a block is given out again only after all blocks
//! that were free before it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use isthmus_layout::control::Owner;
use isthmus_layout::ids::{DomainId, EndpointAddress};
use isthmus_layout::reason::Reason;
use isthmus_layout::verbs::{BLOCKS_MAX, FIRST_BLOCK, LAST_BLOCK, block_of, first_number};

use crate::places::{Places, Taker};
use crate::reserved::Reserved;

/// The blocks, and the endpoints that have them.
#[derive(Debug, Default)]
pub(super) struct NumberBlocks {
    /// The block that is given out first.
    start: u16,
    /// The free blocks in the order in which they are given out. None until a block is taken or reserved.
    free: Option<VecDeque<u16>>,
    holders: BTreeMap<u16, EndpointAddress>,
    /// The blocks of each domain that has some.
    by_domain: BTreeMap<DomainId, DomainBlocks>,
    /// Blocks of domains of the previous daemon that may still resume.
    reserved: Reserved<u16>,
    places: Places,
}

/// The blocks of a domain.
#[derive(Debug)]
struct DomainBlocks {
    /// The user that they count for.
    account: Owner,
    blocks: Vec<u16>,
}

impl NumberBlocks {
    /// Creates the state. `start` decides which block is given out first; every number is allowed.
    pub(super) fn new(start: u16) -> Self {
        let blocks = LAST_BLOCK - FIRST_BLOCK + 1;
        Self { start: FIRST_BLOCK + start % blocks, places: Places::new(blocks.into()), ..Self::default() }
    }

    /// Takes a block for an endpoint, and returns its first number. `first` is a block that the domain had with a previous daemon.
    pub(super) fn take(&mut self, first: Option<u32>, at: EndpointAddress, taker: Taker) -> Result<u32, Reason> {
        let wanted = first.map(|first| block_beginning_at(first).ok_or(Reason::VerbsNumberTaken)).transpose()?;
        if let Some(block) = wanted {
            match self.holders.get(&block) {
                // The request may be repeated, because a reply was lost with a connection.
                Some(holder) if *holder == at => return Ok(first_number(block)),
                Some(_) => return Err(Reason::VerbsNumberTaken),
                None if self.reserved.is_for_other(block, at.domain) => return Err(Reason::VerbsNumberTaken),
                None => {}
            }
        }
        if self.by_domain.get(&at.domain).is_some_and(|of_domain| of_domain.blocks.len() >= BLOCKS_MAX) {
            return Err(Reason::VerbsNumbersFull);
        }
        let block = match wanted {
            Some(block) => block,
            None => *self.free().front().ok_or(Reason::VerbsNumbersFull)?,
        };
        // A block that is reserved for the domain was within the share of its user before the restart.
        if !self.reserved.remove(block, &mut self.places) {
            self.places.check(taker).map_err(|_| Reason::VerbsNumbersFull)?;
            self.remove_free(block);
        }
        let account = taker.account;
        self.places.add(account, 1);
        self.holders.insert(block, at);
        let new = || DomainBlocks { account, blocks: Vec::new() };
        self.by_domain.entry(at.domain).or_insert_with(new).blocks.push(block);
        Ok(first_number(block))
    }

    /// Returns the endpoint that has a number.
    pub(super) fn holder_of(&self, number: u32) -> Option<EndpointAddress> {
        self.holders.get(&block_of(number)?).copied()
    }

    /// Reserves a block for a domain that may resume. No other domain can take it until then.
    pub(super) fn reserve(&mut self, first: u32, domain: DomainId, account: Owner) {
        let Some(block) = block_beginning_at(first) else { return };
        self.remove_free(block);
        self.reserved.add(block, domain, account, &mut self.places);
    }

    /// Returns the blocks of an endpoint that was closed to the free ones, and their first numbers to the caller.
    pub(super) fn close(&mut self, at: EndpointAddress) -> Vec<u32> {
        let Some(DomainBlocks { account, blocks }) = self.by_domain.get_mut(&at.domain) else { return Vec::new() };
        let account = *account;
        let closed: Vec<u16> = blocks.extract_if(.., |block| self.holders.get(block) == Some(&at)).collect();
        if blocks.is_empty() {
            self.by_domain.remove(&at.domain);
        }
        self.places.give_back(account, closed.len());
        self.release(&closed);
        closed.into_iter().map(first_number).collect()
    }

    /// Releases all blocks of a domain that has left, or that will not resume, and returns their first numbers.
    pub(super) fn remove_domain(&mut self, domain: DomainId) -> Vec<u32> {
        let mut blocks = self.reserved.remove_domain(domain, &mut self.places);
        if let Some(held) = self.by_domain.remove(&domain) {
            self.places.give_back(held.account, held.blocks.len());
            blocks.extend(held.blocks);
        }
        self.release(&blocks);
        blocks.into_iter().map(first_number).collect()
    }

    /// The number of blocks that are taken.
    pub(super) fn taken(&self) -> usize {
        self.holders.len()
    }

    /// The number of domains that have blocks.
    pub(super) fn domains(&self) -> usize {
        self.by_domain.len()
    }

    /// The first domain with blocks and a number above another one, or of all.
    pub(super) fn next_domain_after(&self, after: Option<DomainId>) -> Option<DomainId> {
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.by_domain.range((after, Bound::Unbounded)).next().map(|(domain, _)| *domain)
    }

    /// The first numbers of the blocks of a domain, in ascending order.
    pub(super) fn of_domain(&self, domain: DomainId) -> impl Iterator<Item = u32> {
        let mut blocks = self.by_domain.get(&domain).map_or_else(Vec::new, |of_domain| of_domain.blocks.clone());
        blocks.sort_unstable();
        blocks.into_iter().map(first_number)
    }

    fn free(&mut self) -> &mut VecDeque<u16> {
        let start = self.start.max(FIRST_BLOCK);
        self.free.get_or_insert_with(|| (start..=LAST_BLOCK).chain(FIRST_BLOCK..start).collect())
    }

    fn remove_free(&mut self, block: u16) {
        let free = self.free();
        if let Some(at) = free.iter().position(|other| *other == block) {
            free.remove(at);
        }
    }

    fn release(&mut self, blocks: &[u16]) {
        for block in blocks {
            self.holders.remove(block);
        }
        if !blocks.is_empty() {
            self.free().extend(blocks);
        }
    }
}

fn block_beginning_at(first: u32) -> Option<u16> {
    block_of(first).filter(|block| first_number(*block) == first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use isthmus_layout::ids::EndpointIndex;
    use isthmus_layout::verbs::BLOCK_NUMBERS;

    const BLOCKS: u32 = (LAST_BLOCK - FIRST_BLOCK + 1) as u32;

    const USER: Taker = Taker { account: Owner(5), has_others: false };

    fn id(domain: u32) -> DomainId {
        DomainId::new(domain).unwrap()
    }

    fn at(domain: u32) -> EndpointAddress {
        EndpointAddress { domain: id(domain), endpoint: EndpointIndex::new(0).unwrap() }
    }

    #[test]
    fn finds_the_holder_of_each_number_of_a_block() {
        let mut numbers = NumberBlocks::new(0);
        let firsts = [1, 2, 1].map(|domain| numbers.take(None, at(domain), USER).unwrap());
        assert_eq!(firsts, [256, 512, 768]);
        let holders = [255, 256, 511, 512, 768, 1023, 1024, u32::MAX].map(|number| numbers.holder_of(number));
        let right = [None, Some(1), Some(1), Some(2), Some(1), Some(1), None, None];
        assert_eq!(holders, right.map(|domain| domain.map(at)));
        numbers.remove_domain(id(1));
        assert_eq!([256, 512, 768].map(|number| numbers.holder_of(number)), [None, Some(at(2)), None]);
    }

    #[test]
    fn a_returned_block_is_given_out_after_all_others() {
        let mut numbers = NumberBlocks::new(70);
        let first = numbers.take(None, at(1), USER).unwrap();
        assert_eq!(numbers.close(at(1)), [first]);
        let mut seen = std::collections::BTreeSet::new();
        for domain in 2..2 + BLOCKS - 1 {
            let taken = numbers.take(None, at(domain), USER).unwrap();
            assert!(taken != first && taken.is_multiple_of(BLOCK_NUMBERS) && seen.insert(taken), "{taken}");
            if domain.is_multiple_of(2) {
                numbers.remove_domain(id(domain));
            }
        }
        assert_eq!(numbers.take(None, at(1), USER), Ok(first), "all others were given out since");
        assert_eq!((seen.first(), seen.last()), (Some(&256), Some(&(0xFF_FFFF - 511))));
    }

    #[test]
    fn refuses_further_blocks_of_a_domain_and_when_none_is_free() {
        let mut numbers = NumberBlocks::new(0);
        for _ in 0..BLOCKS_MAX {
            numbers.take(None, at(1), USER).unwrap();
        }
        assert_eq!(numbers.take(None, at(1), USER), Err(Reason::VerbsNumbersFull));
        for block in BLOCKS_MAX as u32..BLOCKS {
            numbers.take(None, at(2 + block), USER).unwrap();
        }
        assert_eq!(numbers.take(None, at(2), USER), Err(Reason::VerbsNumbersFull));
        numbers.remove_domain(id(1));
        assert_eq!(numbers.take(None, at(2), USER), Ok(256));
    }

    #[test]
    fn reserves_blocks_for_resumable_domains() {
        let mut numbers = NumberBlocks::new(0);
        for (first, domain) in [(256, 1), (512, 1), (768, 2), (255, 2), (300, 2)] {
            numbers.reserve(first, id(domain), USER.account);
        }
        assert_eq!(numbers.holder_of(256), None, "its domain has not resumed");
        assert_eq!(numbers.take(Some(256), at(3), USER), Err(Reason::VerbsNumberTaken));
        assert_eq!(numbers.take(None, at(3), USER), Ok(1024));
        assert_eq!([numbers.take(Some(512), at(1), USER), numbers.take(Some(256), at(1), USER)], [Ok(512), Ok(256)]);
        assert_eq!(numbers.take(Some(256), at(1), USER), Ok(256), "a repeated request");
        assert_eq!(numbers.take(Some(256), at(3), USER), Err(Reason::VerbsNumberTaken));
        numbers.remove_domain(id(2));
        assert_eq!(numbers.take(Some(768), at(3), USER), Ok(768), "domain 2 will not resume");
        for first in [0, 257, 0xFF_FF00, u32::MAX] {
            assert_eq!(numbers.take(Some(first), at(3), USER), Err(Reason::VerbsNumberTaken), "{first}");
        }
        assert_eq!((numbers.taken(), numbers.domains()), (4, 2));
        assert_eq!(numbers.places.total(), 4);
    }

    #[test]
    fn reserved_blocks_count_for_their_user() {
        let mut numbers = NumberBlocks::new(0);
        let user = |user| Taker { account: Owner(user), has_others: true };
        let reserved = BLOCKS / 2;
        (1..=reserved).for_each(|block| numbers.reserve(block << 8, id(block), Owner(1)));
        assert_eq!(numbers.take(None, at(1 << 16), user(1)), Err(Reason::VerbsNumbersFull), "a user with its share");
        let taken = (0..BLOCKS).filter(|n| numbers.take(None, at((2 << 16) | (n / 60)), user(2)).is_ok()).count();
        let shared = (BLOCKS - BLOCKS / 8) as usize;
        assert_eq!(taken, (shared - reserved as usize) / 2);
        assert_eq!(numbers.take(Some(256), at(1), user(1)), Ok(256), "the domain resumes");
    }

    #[test]
    fn users_share_the_blocks() {
        let mut numbers = NumberBlocks::new(0);
        let user = |user| Taker { account: Owner(user), has_others: true };
        let mut take =
            |of: u32| (0..BLOCKS).filter(|n| numbers.take(None, at((of << 16) | (n / 60)), user(of)).is_ok()).count();
        let taken = [1, 2].map(&mut take);
        let shared = BLOCKS as usize - BLOCKS as usize / 8;
        assert_eq!(taken, [shared / 2, (shared - shared / 2) / 2]);
        let rest: usize = (3..30).map(&mut take).sum();
        assert!(taken[0] + taken[1] + rest < BLOCKS as usize, "the last blocks are for users that have none");
        assert!((100..200).all(|of| numbers.take(None, at(of << 16), user(of)).is_ok()));
        let domains = 1 << 16..2 << 16;
        domains.for_each(|domain| drop(numbers.remove_domain(id(domain))));
        assert!(numbers.places.total() < BLOCKS as usize / 2);
        assert!(numbers.take(None, at(2 << 16), user(2)).is_ok());
    }
}
