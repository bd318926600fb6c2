//! MX endpoint numbers: claiming a number, finding the endpoint that has a number, and listing the MX boards. The daemon decides.
//! Messages then go to the endpoint as to any other.

use crate::control::ReplyLimit;
use crate::domain::Domain;
use crate::error::Refusal;
use crate::matcher::Matcher;
use crate::query::QueryClient;
use isthmus_layout::EndpointAddress;
use isthmus_layout::control::{RequestSerial, ToClient, ToDaemon, Topic};
use isthmus_layout::ids::EndpointIndex;
use isthmus_layout::mx::{MxConnect, MxOpen, MxResolve, MxToClient};
use isthmus_layout::reason::Reason;
use serde::Deserialize;
use std::time::Duration;

/// An endpoint of another host replies to a connect itself.
pub(crate) const CONNECT_LIMIT: ReplyLimit =
    ReplyLimit { time: Duration::from_secs(60), silence: Reason::MxUnreachable };

/// The MX endpoint number that an endpoint has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MxOpenedEndpoint {
    /// On which board.
    pub board: u32,
    /// Which number.
    pub endpoint: u32,
    /// The board's nic id: six octets, the first in bits 47 to 40.
    pub nic: u64,
}

/// The MX boards of this host, and those that can be reached.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct MxBoards {
    /// The boards of this host, by number.
    pub boards: Vec<MxBoard>,
    /// Boards that can be reached, those of this host first.
    pub peers: Vec<MxPeer>,
}

/// An MX board of this host.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct MxBoard {
    /// Its number.
    pub number: u32,
    /// Its nic id.
    pub nic: u64,
    /// The name of the board: `host:number`, unless it was given another one.
    pub name: String,
    /// The number of endpoint numbers of the board, which begin at 0.
    pub endpoints_max: u32,
    /// The endpoint numbers that are taken, of programs that this one may see.
    pub endpoints: Vec<MxEndpoint>,
    /// The number of the other ones.
    #[serde(default)]
    pub endpoints_hidden: u32,
}

/// An MX endpoint number that is taken.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct MxEndpoint {
    /// Which.
    pub number: u32,
    /// By which domain.
    pub domain: MxDomain,
    /// For which of its endpoints.
    pub index: u8,
    /// The user it belongs to, as the daemon sees it.
    pub uid: u32,
}

/// The domain that has taken a number.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct MxDomain {
    /// Its number.
    pub id: u32,
    /// Its name.
    pub name: String,
}

/// An MX board that can be reached.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct MxPeer {
    /// Its nic id.
    pub nic: u64,
    /// The name of the board.
    pub name: String,
}

impl<M: Matcher> Domain<M> {
    /// Claims an MX endpoint number for the open endpoint `index`: on that board or on any, that number or any. It is given back when
    /// the endpoint is closed, and claimed again from a daemon that comes after this one.
    ///
    /// Refused with [`Reason::MxBoardUnknown`], [`Reason::MxEndpointOutOfRange`], [`Reason::MxEndpointTaken`] or [`Reason::MxUserEndpointsFull`].
    pub fn mx_open(
        &mut self,
        board: Option<u32>,
        endpoint: Option<u32>,
        key: u32,
        index: EndpointIndex,
    ) -> Result<MxOpenedEndpoint, Refusal> {
        match self.core.request(MxOpen { board, endpoint, key, index }.into())?.message {
            ToClient::Mx(MxToClient::MxOpened(opened)) => {
                let (board, endpoint, nic) = (opened.board, opened.endpoint, opened.nic);
                let claim = MxOpen { board: Some(board), endpoint: Some(endpoint), key, index };
                self.core.endpoints.claim(index, claim.into());
                Ok(MxOpenedEndpoint { board, endpoint, nic })
            }
            _ => Err(Reason::NotIsthmus.into()),
        }
    }

    /// Returns the endpoint that has an MX endpoint number. From then on the daemon notifies this domain when the other one goes. For a
    /// board of another host this call blocks until the host replies; [`Self::mx_connect_later`] does not block.
    ///
    /// Refused with [`Reason::MxNicUnknown`], [`Reason::MxEndpointOutOfRange`], [`Reason::MxEndpointClosed`], [`Reason::MxBadKey`],
    /// [`Reason::TalkForbidden`], [`Reason::MxUnreachable`] and [`Reason::MxPartnersFull`]; [`Reason::MxNumberMissing`] if this domain has
    /// no MX endpoint number by which another host could know it.
    pub fn mx_connect(&mut self, nic: u64, endpoint: u32, key: u32) -> Result<EndpointAddress, Refusal> {
        let connect = ToDaemon::from(MxConnect { nic, endpoint, key });
        let reply =
            self.core.request_or_retry(|control| control.request_within(connect.clone(), &[], CONNECT_LIMIT))?;
        mx_found(&reply.message)
    }

    /// Like [`Self::mx_connect`], without blocking: [`Matcher::answered`] gets the reply, for [`mx_found`].
    pub fn mx_connect_later(&mut self, nic: u64, endpoint: u32, key: u32) -> Result<RequestSerial, Refusal> {
        self.request_later(MxConnect { nic, endpoint, key }.into())
    }

    /// The nic id and MX endpoint number that an endpoint has, or had if it went lately; else [`Reason::MxNumberMissing`].
    pub fn mx_resolve(&mut self, address: EndpointAddress) -> Result<(u64, u32), Refusal> {
        let EndpointAddress { domain, endpoint } = address;
        match self.core.request(MxResolve { domain, endpoint }.into())?.message {
            ToClient::Mx(MxToClient::MxResolved(is)) => Ok((is.nic, is.endpoint)),
            _ => Err(Reason::NotIsthmus.into()),
        }
    }

    /// The MX boards there are, and those that can be reached.
    pub fn mx(&mut self) -> Result<MxBoards, Refusal> {
        self.query(Topic::Mx, &[]).and_then(|json| report(&json))
    }
}

/// The endpoint that the reply to a connect names.
pub fn mx_found(reply: &ToClient) -> Result<EndpointAddress, Refusal> {
    match reply {
        ToClient::Mx(MxToClient::MxFound(found)) => {
            Ok(EndpointAddress { domain: found.domain, endpoint: found.endpoint })
        }
        _ => Err(Reason::NotIsthmus.into()),
    }
}

impl QueryClient {
    /// The MX boards there are, and those that can be reached.
    pub fn mx(&mut self) -> Result<MxBoards, Refusal> {
        self.query(Topic::Mx, &[]).and_then(|json| report(&json))
    }
}

/// Fields that are not known here are left out: the daemon may be newer.
fn report(json: &str) -> Result<MxBoards, Refusal> {
    serde_json::from_str(json).map_err(|error| Refusal::new(Reason::NotIsthmus, format!("report on MX: {error}")))
}
