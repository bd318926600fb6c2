//! MX boards, their endpoint numbers, and who can be reached.

use isthmus_layout::ids::EndpointAddress;

use crate::broker::Broker;
use crate::directory::mx::MxBoard;
use crate::schema::{DomainName, Mx, MxBoardRow, MxEndpointRow, MxNumber, MxPeerRow, SCHEMA};

pub(super) fn report(broker: &Broker) -> Mx {
    let mx = broker.directory.mx();
    let board = |(number, board): (usize, &MxBoard)| MxBoardRow {
        number: number as u32,
        nic: board.nic.number(),
        mac: board.nic.to_string(),
        name: board.name.clone(),
        endpoints: endpoints(broker, number as u32),
        endpoints_max: board.endpoints,
    };
    let peer =
        |board: &MxBoard| MxPeerRow { nic: board.nic.number(), mac: board.nic.to_string(), name: board.name.clone() };
    Mx {
        schema: SCHEMA,
        boards: mx.boards().iter().enumerate().map(board).collect(),
        peers: mx.boards().iter().map(peer).collect(),
    }
}

fn endpoints(broker: &Broker, board: u32) -> Vec<MxEndpointRow> {
    let claims = broker.directory.mx().claims().filter(|(number, _)| number.board == board);
    let rows = claims.filter_map(|(number, claim)| {
        let domain = broker.directory.get(claim.at.domain)?;
        Some(MxEndpointRow {
            number: number.endpoint,
            domain: DomainName::of(domain),
            index: claim.at.endpoint.number(),
            uid: domain.owner.0,
        })
    });
    rows.collect()
}

pub(super) fn number(broker: &Broker, at: EndpointAddress) -> Option<MxNumber> {
    let number = broker.directory.mx().number_of(at)?;
    Some(MxNumber { board: number.board, endpoint: number.endpoint })
}
