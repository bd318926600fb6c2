//! MX boards, and the endpoints that have claimed their numbers. This module decides and remembers; it does no I/O.
//!
//! ```text
//!   board 0   nic id, name    │ 0 │ 1 │ 2 │ … │ endpoints - 1      a number is free, or claimed:
//!   board 1   nic id, name    │ 0 │ 1 │ 2 │ … │ endpoints - 1        (domain, endpoint), key
//! ```
//!
//! A board is to MX what a network card is: it has an address, and programs have endpoint numbers on it. All domains share the boards. A
//! number is claimed for an open endpoint of a domain, and is released when the endpoint closes. The endpoint that had a number is
//! remembered for a while, so that a receiver can still name the sender of a message that it holds.

use std::collections::{BTreeMap, HashMap, VecDeque};

use isthmus_config::MxBoardEntry;
use isthmus_layout::control::Owner;
use isthmus_layout::ids::{DomainId, EndpointAddress, EndpointIndex};
use isthmus_layout::reason::Reason;

use crate::places::{Places, Taker};
use crate::reserved::Reserved;

/// The number of endpoints without a number that are remembered.
const RECENT_MAX: usize = 4096;

/// An endpoint number on a board.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MxNumber {
    /// The number of the board.
    pub(crate) board: u32,
    /// The number of the endpoint on the board.
    pub(crate) endpoint: u32,
}

impl MxNumber {
    /// Parses the text that [`Display`](std::fmt::Display) returns.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (board, endpoint) = text.split_once(' ')?;
        Some(Self { board: board.parse().ok()?, endpoint: endpoint.parse().ok()? })
    }
}

/// The number as it stands in the file of tickets.
impl std::fmt::Display for MxNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.board, self.endpoint)
    }
}

/// The claim of an endpoint to a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// The endpoint.
    pub(crate) at: EndpointAddress,
    /// The key that a connecting program has to show.
    key: u32,
    /// The user that the number counts for.
    account: Owner,
}

/// The MX boards of the daemon, and the claims of their numbers.
#[derive(Debug, Default)]
pub(super) struct EndpointNumbers {
    boards: Vec<MxBoardEntry>,
    claims: BTreeMap<MxNumber, Claim>,
    numbers: BTreeMap<EndpointAddress, MxNumber>,
    /// Numbers of domains of the previous daemon that may still resume.
    reserved: Reserved<MxNumber>,
    recent: RecentNumbers,
    places: Places,
    /// The most claims of a user.
    per_user_max: usize,
}

impl EndpointNumbers {
    /// Creates the state for these boards, numbered from 0.
    pub(super) fn new(boards: Vec<MxBoardEntry>, per_user_max: usize) -> Self {
        let places = Places::new(boards.iter().map(|board| board.endpoints as usize).sum());
        Self { boards, places, per_user_max, ..Self::default() }
    }

    /// The boards, in the order of their numbers.
    pub(super) fn boards(&self) -> &[MxBoardEntry] {
        &self.boards
    }

    /// The board of this number.
    pub(super) fn board(&self, number: u32) -> Option<&MxBoardEntry> {
        self.boards.get(number as usize)
    }

    /// Claims a number for an endpoint: the requested one, or the first free one, by endpoint number and then by board.
    pub(super) fn open(
        &mut self,
        board: Option<u32>,
        endpoint: Option<u32>,
        key: u32,
        at: EndpointAddress,
        taker: Taker,
    ) -> Result<MxNumber, Reason> {
        if self.numbers.contains_key(&at) {
            return Err(Reason::RequestInvalid);
        }
        let boards = match board {
            Some(board) if self.board(board).is_none() => return Err(Reason::MxBoardUnknown),
            Some(board) => board..board + 1,
            None if self.boards.is_empty() => return Err(Reason::MxBoardUnknown),
            None => 0..self.boards.len() as u32,
        };
        let most = boards.clone().filter_map(|board| self.board(board)).map(|board| board.endpoints).max().unwrap_or(0);
        let endpoints = match endpoint {
            Some(endpoint) if endpoint >= most => return Err(Reason::MxEndpointOutOfRange),
            Some(endpoint) => endpoint..endpoint + 1,
            None => 0..most,
        };
        let number = endpoints
            .flat_map(|endpoint| boards.clone().map(move |board| MxNumber { board, endpoint }))
            .find(|number| self.contains(*number) && self.is_free(*number, at.domain))
            .ok_or(Reason::MxEndpointTaken)?;
        // A number that is reserved for the domain was within the share of its user before the restart.
        let had_it = self.reserved.remove(number, &mut self.places);
        let is_full = |places: &Places| places.of(taker.account) >= self.per_user_max || places.check(taker).is_err();
        if !had_it && is_full(&self.places) {
            return Err(Reason::MxUserEndpointsFull);
        }
        let account = taker.account;
        self.places.add(account, 1);
        self.claims.insert(number, Claim { at, key, account });
        self.numbers.insert(at, number);
        Ok(number)
    }

    /// Returns the endpoint that has this number. Fails if the endpoint requires another key. `may_connect` is asked before the key is
    /// compared, so that a domain that may not talk with the endpoint does not learn whether it has the key.
    pub(super) fn connect(
        &self,
        (nic, endpoint, key): (u64, u32, u32),
        may_connect: impl FnOnce(EndpointAddress) -> Result<(), Reason>,
    ) -> Result<EndpointAddress, Reason> {
        let board = self.boards.iter().position(|board| board.nic.number() == nic).ok_or(Reason::MxNicUnknown)?;
        let number = MxNumber { board: board as u32, endpoint };
        if !self.contains(number) {
            return Err(Reason::MxEndpointOutOfRange);
        }
        let claim = self.claims.get(&number).ok_or(Reason::MxEndpointClosed)?;
        may_connect(claim.at)?;
        if claim.key == key { Ok(claim.at) } else { Err(Reason::MxBadKey) }
    }

    /// The number that an endpoint has, or had until recently.
    pub(super) fn last_number_of(&self, at: EndpointAddress) -> Result<MxNumber, Reason> {
        self.number_of(at).or_else(|| self.recent.number_of(at)).ok_or(Reason::MxNumberMissing)
    }

    /// The number that an endpoint has.
    pub(super) fn number_of(&self, at: EndpointAddress) -> Option<MxNumber> {
        self.numbers.get(&at).copied()
    }

    /// The numbers of a domain's endpoints.
    pub(super) fn of_domain(&self, domain: DomainId) -> impl Iterator<Item = (EndpointAddress, MxNumber)> {
        let at = |endpoint| EndpointAddress { domain, endpoint };
        let of_domain = self.numbers.range(at(EndpointIndex::MIN)..=at(EndpointIndex::MAX));
        of_domain.map(|(at, number)| (*at, *number))
    }

    /// All claims, by board and then by number.
    pub(super) fn claims(&self) -> impl ExactSizeIterator<Item = (MxNumber, &Claim)> {
        self.claims.iter().map(|(number, claim)| (*number, claim))
    }

    /// The claims of numbers on a board, in the order of the numbers.
    pub(super) fn claims_of(&self, board: u32) -> impl Iterator<Item = (MxNumber, &Claim)> {
        let number = |endpoint| MxNumber { board, endpoint };
        self.claims.range(number(0)..=number(u32::MAX)).map(|(number, claim)| (*number, claim))
    }

    /// Reserves a number for a domain that may resume. No other domain can claim it until then.
    pub(super) fn reserve(&mut self, number: MxNumber, domain: DomainId, account: Owner) {
        self.reserved.add(number, domain, account, &mut self.places);
    }

    /// Releases the number of an endpoint that was closed, and returns the number.
    pub(super) fn close(&mut self, at: EndpointAddress) -> Option<MxNumber> {
        let number = self.numbers.remove(&at)?;
        if let Some(claim) = self.claims.remove(&number) {
            self.places.give_back(claim.account, 1);
        }
        self.recent.push(at, number);
        Some(number)
    }

    /// Releases all numbers of a domain that has left, and returns those that its endpoints had.
    pub(super) fn remove_domain(&mut self, domain: DomainId) -> Vec<MxNumber> {
        let (endpoints, numbers): (Vec<EndpointAddress>, Vec<MxNumber>) = self.of_domain(domain).unzip();
        for at in endpoints {
            self.close(at);
        }
        self.reserved.remove_domain(domain, &mut self.places);
        numbers
    }

    fn is_free(&self, number: MxNumber, domain: DomainId) -> bool {
        !self.claims.contains_key(&number) && !self.reserved.is_for_other(number, domain)
    }

    fn contains(&self, number: MxNumber) -> bool {
        self.board(number.board).is_some_and(|board| number.endpoint < board.endpoints)
    }
}

/// Endpoints that had a number. The one that lost its number first is at the front.
#[derive(Debug, Default)]
struct RecentNumbers {
    order: VecDeque<EndpointAddress>,
    numbers: HashMap<EndpointAddress, MxNumber>,
}

impl RecentNumbers {
    fn push(&mut self, at: EndpointAddress, number: MxNumber) {
        if self.numbers.insert(at, number).is_some() {
            self.order.retain(|known| *known != at);
        }
        self.order.push_back(at);
        if self.order.len() > RECENT_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.numbers.remove(&oldest);
        }
    }

    fn number_of(&self, at: EndpointAddress) -> Option<MxNumber> {
        self.numbers.get(&at).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isthmus_layout::ids::NicId;

    fn boards(endpoints: &[u32]) -> EndpointNumbers {
        let board = |(at, endpoints): (usize, &u32)| MxBoardEntry {
            nic: NicId::new(0x0200_0000_0000 + at as u64).unwrap(),
            name: format!("host:{at}"),
            endpoints: *endpoints,
        };
        EndpointNumbers::new(endpoints.iter().enumerate().map(board).collect(), usize::MAX)
    }

    fn at(domain: u32, endpoint: u8) -> EndpointAddress {
        EndpointAddress { domain: DomainId::new(domain).unwrap(), endpoint: EndpointIndex::new(endpoint).unwrap() }
    }

    const USER: Taker = Taker { account: Owner(5), has_others: false };

    fn number(board: u32, endpoint: u32) -> MxNumber {
        MxNumber { board, endpoint }
    }

    #[test]
    fn claims_the_lowest_number_on_the_lowest_board() {
        let mut mx = boards(&[2, 1, 3]);
        let taken: Vec<_> = (1..=7).map(|domain| mx.open(None, None, 0, at(domain, 0), USER)).collect();
        let right = [(0, 0), (1, 0), (2, 0), (0, 1), (2, 1), (2, 2)].map(|(board, endpoint)| number(board, endpoint));
        assert_eq!(taken[..6], right.map(Ok));
        assert_eq!(taken[6], Err(Reason::MxEndpointTaken));
        mx.close(at(3, 0));
        assert_eq!(mx.open(None, None, 0, at(8, 0), USER), Ok(number(2, 0)));
    }

    #[test]
    fn a_number_is_claimed_once_and_free_again_after_its_endpoint() {
        let mut mx = boards(&[4, 4]);
        assert_eq!(mx.open(Some(1), Some(3), 7, at(1, 0), USER), Ok(number(1, 3)));
        assert_eq!(mx.open(Some(1), Some(3), 7, at(2, 0), USER), Err(Reason::MxEndpointTaken));
        assert_eq!(mx.open(None, Some(3), 7, at(2, 0), USER), Ok(number(0, 3)));
        assert_eq!(mx.open(None, Some(3), 7, at(3, 0), USER), Err(Reason::MxEndpointTaken));
        assert_eq!(mx.open(Some(1), None, 7, at(3, 0), USER), Ok(number(1, 0)));
        assert_eq!(mx.open(Some(0), None, 7, at(1, 0), USER), Err(Reason::RequestInvalid), "one number an endpoint");
        mx.remove_domain(DomainId::new(1).unwrap());
        assert_eq!(mx.open(Some(1), Some(3), 7, at(4, 0), USER), Ok(number(1, 3)));
    }

    #[test]
    fn reserves_numbers_for_resumable_domains() {
        let (mut mx, back, lost) = (boards(&[4]), DomainId::new(1).unwrap(), DomainId::new(2).unwrap());
        mx.reserve(number(0, 0), back, USER.account);
        mx.reserve(number(0, 1), lost, USER.account);
        assert_eq!(mx.open(None, None, 0, at(3, 0), USER), Ok(number(0, 2)));
        assert_eq!(mx.open(None, Some(0), 0, at(4, 0), USER), Err(Reason::MxEndpointTaken));
        assert_eq!(mx.open(None, Some(0), 0, at(1, 0), USER), Ok(number(0, 0)));
        mx.remove_domain(lost);
        assert_eq!(mx.open(None, Some(1), 0, at(4, 0), USER), Ok(number(0, 1)));
        mx.close(at(1, 0));
        assert_eq!(mx.open(None, Some(0), 0, at(5, 0), USER), Ok(number(0, 0)), "kept for the first claim only");
    }

    #[test]
    fn a_user_at_its_limit_claims_again_what_it_had() {
        let mut mx = EndpointNumbers { per_user_max: 2, ..boards(&[8]) };
        let domain = DomainId::new(1).unwrap();
        [3, 4].into_iter().for_each(|endpoint| mx.reserve(number(0, endpoint), domain, USER.account));
        assert_eq!(mx.open(None, None, 0, at(2, 0), USER), Err(Reason::MxUserEndpointsFull));
        assert_eq!(mx.open(Some(0), Some(4), 0, at(1, 0), USER), Ok(number(0, 4)));
        assert_eq!(mx.open(None, None, 0, at(2, 0), USER), Err(Reason::MxUserEndpointsFull));
        mx.remove_domain(domain);
        assert_eq!(mx.open(None, None, 0, at(2, 0), USER), Ok(number(0, 0)));
    }

    #[test]
    fn parses_the_text_of_a_number() {
        assert_eq!(number(1, 20).to_string(), "1 20");
        assert_eq!(MxNumber::parse("1 20"), Some(number(1, 20)));
        assert!(["", "1", "1 ", "1 2 3", "a 1"].into_iter().all(|text| MxNumber::parse(text).is_none()));
    }

    #[test]
    fn reports_unknown_boards_and_numbers() {
        let mut mx = boards(&[4, 8]);
        assert_eq!(mx.open(Some(2), None, 0, at(1, 0), USER), Err(Reason::MxBoardUnknown));
        assert_eq!(mx.open(Some(u32::MAX), Some(u32::MAX), 0, at(1, 0), USER), Err(Reason::MxBoardUnknown));
        assert_eq!(mx.open(Some(0), Some(4), 0, at(1, 0), USER), Err(Reason::MxEndpointOutOfRange));
        assert_eq!(mx.open(None, Some(u32::MAX), 0, at(1, 0), USER), Err(Reason::MxEndpointOutOfRange));
        assert_eq!(mx.open(None, Some(7), 0, at(1, 0), USER), Ok(number(1, 7)), "the board that has it");
        assert_eq!(boards(&[]).open(None, None, 0, at(1, 0), USER), Err(Reason::MxBoardUnknown));
    }

    #[test]
    fn connect_reports_the_first_mismatch() {
        let mut mx = boards(&[4]);
        let nic = mx.boards()[0].nic.number();
        mx.open(None, Some(2), 0x1234, at(1, 5), USER).unwrap();
        let connect = |nic, endpoint, key| mx.connect((nic, endpoint, key), |_| Ok(()));
        assert_eq!(connect(nic, 2, 0x1234), Ok(at(1, 5)));
        assert_eq!(connect(nic, 2, 0), Err(Reason::MxBadKey));
        assert_eq!(connect(nic, 3, 0x1234), Err(Reason::MxEndpointClosed));
        assert_eq!(connect(nic, 4, 0x1234), Err(Reason::MxEndpointOutOfRange));
        assert_eq!(connect(nic + 1, 2, 0x1234), Err(Reason::MxNicUnknown));
        assert_eq!(connect(u64::MAX, u32::MAX, 0), Err(Reason::MxNicUnknown));
        let denied = |_| Err(Reason::TalkForbidden);
        assert_eq!([0, 0x1234].map(|key| mx.connect((nic, 2, key), denied)), [Err(Reason::TalkForbidden); 2]);
    }

    #[test]
    fn remembers_closed_endpoints_up_to_the_limit() {
        let mut mx = boards(&[2]);
        mx.open(None, Some(1), 0, at(1, 0), USER).unwrap();
        assert_eq!(mx.last_number_of(at(1, 0)), Ok(number(0, 1)));
        mx.remove_domain(DomainId::new(1).unwrap());
        assert_eq!((mx.last_number_of(at(1, 0)), mx.number_of(at(1, 0))), (Ok(number(0, 1)), None));
        assert_eq!(mx.last_number_of(at(1, 1)), Err(Reason::MxNumberMissing));
        for domain in 2..=RECENT_MAX as u32 + 1 {
            assert_eq!(mx.last_number_of(at(1, 0)), Ok(number(0, 1)));
            mx.open(None, None, 0, at(domain, 0), USER).unwrap();
            mx.remove_domain(DomainId::new(domain).unwrap());
        }
        assert_eq!(mx.last_number_of(at(1, 0)), Err(Reason::MxNumberMissing));
        assert_eq!((mx.recent.order.len(), mx.recent.numbers.len()), (RECENT_MAX, RECENT_MAX));
    }

    #[test]
    fn an_endpoint_that_claims_again_has_its_new_number() {
        let mut mx = boards(&[4]);
        for endpoint in 0..3 {
            mx.open(None, Some(endpoint), 0, at(1, 0), USER).unwrap();
            assert_eq!(mx.last_number_of(at(1, 0)), Ok(number(0, endpoint)));
            mx.close(at(1, 0));
            assert_eq!(mx.last_number_of(at(1, 0)), Ok(number(0, endpoint)));
        }
        assert_eq!((mx.recent.order.len(), mx.claims().len()), (1, 0));
    }

    #[test]
    fn users_share_the_numbers_of_all_boards() {
        let mut mx = boards(&[8, 8]);
        let user = |user| Taker { account: Owner(user), has_others: true };
        mx.reserve(number(0, 7), DomainId::new(70).unwrap(), Owner(70));
        let mut count =
            |of: u32| (0..20).filter(|d| mx.open(None, None, 0, at(100 * of + d, 0), user(of)).is_ok()).count();
        // One of the sixteen is reserved, and counts for its user.
        assert_eq!([1, 2, 3].map(&mut count), [6, 3, 2]);
        assert_eq!(mx.open(None, None, 0, at(1, 0), user(1)), Err(Reason::MxUserEndpointsFull));
        assert_eq!(mx.open(Some(0), Some(7), 0, at(70, 0), user(1)), Ok(number(0, 7)), "it had it before");
        assert!(mx.open(None, None, 0, at(400, 0), user(4)).is_ok(), "a user that has none");
        (100..120).for_each(|domain| drop(mx.remove_domain(DomainId::new(domain).unwrap())));
        assert_eq!((mx.places.of(Owner(1)), mx.places.of(Owner(2))), (1, 3));
    }
}
