//! MX boards with the parts that depend on the host: addresses of interfaces, tables of peers, and open links.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use isthmus_layout::ids::NicId;
use isthmus_link::{Link, PacketLink, PacketOptions, UdpLink, UdpOptions};
use isthmus_mx::board::{BoardSetup, parse_peers};
use isthmus_mx::wire::{BoardName, Dialect, Sizes};
use isthmus_service::{MxBoardNumber, MxView, NewMxBoard};

use isthmus_config::{BoardNic, Carrier, LinkPlan, MxBoardEntry, MxBoardPlan, Network};

use super::peer_hosts::{PeerHosts, UnresolvedHosts};

/// The size of an Ethernet header. Open-MX's frame limit includes it, an MTU does not, and hosts use the same number for both.
const HEADER_BYTES: u32 = 14;

/// The boards, as the control plane and the data plane need them.
#[derive(Debug, Default)]
pub(super) struct OpenedBoards {
    /// All boards, by number.
    pub(super) boards: Vec<MxBoardEntry>,
    /// The boards with links, for the data plane.
    pub(super) linked: Vec<NewMxBoard>,
    /// The published state of each board, by number; `None` for boards without links.
    pub(super) views: Vec<Option<Arc<Mutex<MxView>>>>,
    /// The hosts of links over UDP that do not resolve.
    pub(super) unresolved: UnresolvedHosts,
}

impl OpenedBoards {
    /// Logs the boards and the state of their links.
    pub(super) fn log(&self) {
        for (number, board) in self.boards.iter().enumerate() {
            tracing::info!(board = number, nic = %board.nic, name = %board.name, "MX board");
            let Some(view) = self.views.get(number).and_then(Option::as_ref) else { continue };
            for link in &view.lock().unwrap_or_else(PoisonError::into_inner).links {
                tracing::info!(board = number, link = %link.name, kind = %link.kind, state = %link.state, "MX link");
            }
        }
    }
}

/// True if a board has an AF_XDP link.
pub(super) fn has_xdp_links(plans: &[MxBoardPlan]) -> bool {
    let mut links = plans.iter().filter_map(|plan| plan.network.as_ref()).flat_map(|network| &network.links);
    links.any(|link| matches!(link.carrier, Carrier::Xdp { .. }))
}

/// Opens the links of all boards. An error names the key of the configuration and the cause.
pub(super) fn open(plans: &[MxBoardPlan]) -> Result<OpenedBoards, String> {
    let address_of = |_, interface: &str| isthmus_link::interface(interface).map(|interface| interface.nic);
    let boards = MxBoardPlan::resolve_addresses(plans, address_of)?;
    let mut opened = OpenedBoards { views: vec![None; boards.len()], ..OpenedBoards::default() };
    for (number, (plan, board)) in plans.iter().zip(&boards).enumerate() {
        let Some(network) = &plan.network else { continue };
        let view = Arc::new(Mutex::new(MxView::default()));
        let links = open_links(number, plan, network, board.nic, &opened.unresolved)?;
        let new = open_board(number, network, board, &boards, links, &view);
        opened.linked.push(new.map_err(|error| format!("mx.board[{number}]: {error}"))?);
        opened.views[number] = Some(view);
    }
    opened.boards = boards;
    Ok(opened)
}

/// Open links, each with its rank.
type RankedLinks = Vec<(Box<dyn Link>, u32)>;

/// Opens the links of a board.
fn open_links(
    number: usize,
    plan: &MxBoardPlan,
    network: &Network,
    nic: NicId,
    unresolved: &UnresolvedHosts,
) -> Result<RankedLinks, String> {
    let open = |(at, link): (usize, &LinkPlan)| {
        let opened = check_address(plan, &link.carrier, nic).and_then(|()| open_link(link, network, nic, unresolved));
        let opened = opened.map_err(|error| link_error(number, at, &link.carrier, &error))?;
        Ok((opened, rank(network, at)))
    };
    network.links.iter().enumerate().map(open).collect()
}

/// Describes why a link cannot be opened, with its key and its address. Most causes name the address already.
fn link_error(number: usize, at: usize, carrier: &Carrier, cause: &str) -> String {
    let address = match carrier {
        Carrier::Packet { interface } | Carrier::Xdp { interface } => interface.clone(),
        Carrier::Udp { local, .. } => local.to_string(),
    };
    let key = format!("mx.board[{number}].links[{at}]");
    if cause.contains(&address) { format!("{key}: {cause}") } else { format!("{key}: {address}: {cause}") }
}

fn open_board(
    number: usize,
    network: &Network,
    board: &MxBoardEntry,
    boards: &[MxBoardEntry],
    links: RankedLinks,
    view: &Arc<Mutex<MxView>>,
) -> Result<NewMxBoard, String> {
    let sizes = match network.dialect {
        Dialect::Mx => Sizes::MX,
        Dialect::OpenMx { .. } => {
            let frame_limit = links.iter().map(|(link, _)| link.frame_bytes_max()).min().unwrap_or(0);
            let limit = network.frame_bytes_max.unwrap_or(frame_limit.saturating_sub(HEADER_BYTES));
            Sizes::open_mx(limit).ok_or_else(|| format!("frames of {limit} bytes are too short for anything"))?
        }
    };
    if let Some((link, _)) = links.iter().find(|(link, _)| link.frame_bytes_max() < sizes.frame_bytes_max()) {
        let (name, frame_limit, needed) = (link.name(), link.frame_bytes_max(), sizes.frame_bytes_max());
        return Err(format!(
            "{name} carries frames of {frame_limit} bytes, {needed} are needed: raise its MTU, or lower frame_bytes_max"
        ));
    }
    let [serial, secret] = random_u32s().map_err(|error| format!("drawing random numbers: {error}"))?;
    let name = |name: &str| BoardName::new(name.as_bytes()).ok_or_else(|| format!("{name} cannot be a board's name"));
    let mut setup = BoardSetup::new(board.nic, name(&board.name)?, network.dialect, serial, secret);
    setup.discovery = network.discovery;
    setup.tuning.endpoints_max = board.endpoints as u16; // The configuration limits this to 255.
    let others = boards.iter().filter(|other| other.nic != board.nic);
    let locals = others.map(|other| Ok((other.nic, name(&other.name)?))).collect::<Result<_, String>>()?;
    let mut peers: Vec<(NicId, BoardName)> = network.peers.iter().map(|peer| (peer.nic, peer.name)).collect();
    if let Some(path) = &network.peers_file {
        peers.extend(read_peers(path)?);
    }
    let number = MxBoardNumber(number as u32);
    let (tuning, view) = (network.tuning(), Arc::clone(view));
    let new = NewMxBoard { number, setup, sizes, tuning, locals, peers, links, view };
    // Publishes the links and the configured peers, for requests that arrive before the worker has polled the board.
    new.show();
    Ok(new)
}

/// Returns an error if the board's fixed address is not the interface's, because an interface receives only frames for its own address.
fn check_address(plan: &MxBoardPlan, carrier: &Carrier, nic: NicId) -> Result<(), String> {
    let (BoardNic::Fixed(_), Carrier::Packet { interface } | Carrier::Xdp { interface }) = (&plan.nic, carrier) else {
        return Ok(());
    };
    match isthmus_link::interface(interface) {
        Ok(found) if found.nic != nic => Err(format!(
            "{interface} has the address {}, so it gets no frames for {nic}: leave `mac` out, or give the interface that address (`ip link set {interface} address {nic}`)",
            found.nic
        )),
        _ => Ok(()),
    }
}

fn read_peers(path: &Path) -> Result<Vec<(NicId, BoardName)>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    parse_peers(&text).map_err(|problem| format!("{}: {problem}", path.display()))
}

/// Returns the preference of a link; higher is better. Links are ordered by the lowest configured `rank` first, then by the order of the list.
fn rank(network: &Network, at: usize) -> u32 {
    let worse = |other: usize| (network.links[other].rank, other) > (network.links[at].rank, at);
    (0..network.links.len()).filter(|other| worse(*other)).count() as u32
}

fn open_link(
    link: &LinkPlan,
    network: &Network,
    nic: NicId,
    unresolved: &UnresolvedHosts,
) -> Result<Box<dyn Link>, String> {
    let ethertype = network.dialect.ethertype();
    match &link.carrier {
        Carrier::Packet { interface } => {
            let opened = PacketLink::open(interface, ethertype, &PacketOptions::default());
            Ok(Box::new(opened.map_err(|error| error.to_string())?))
        }
        Carrier::Xdp { interface } => open_xdp(interface, ethertype),
        Carrier::Udp { local, peers, .. } => {
            let options = UdpOptions {
                bind: *local,
                ethertype,
                frame_bytes_max: network.frame_bytes_max,
                ..UdpOptions::new(nic)
            };
            let mut opened = UdpLink::open(&options).map_err(|error| error.to_string())?;
            let nics = network.peers.iter().map(|peer| peer.nic);
            let hosts = PeerHosts::resolve(opened.name(), peers, *local, nics, unresolved);
            opened.set_peers(&hosts.known()).map_err(|error| error.to_string())?;
            if hosts.has_unresolved() {
                let updates = opened.peer_updates();
                hosts.retry(updates).map_err(|error| format!("starting a thread that resolves hosts: {error}"))?;
            }
            Ok(Box::new(opened))
        }
    }
}

#[cfg(feature = "af-xdp")]
fn open_xdp(interface: &str, ethertype: u16) -> Result<Box<dyn Link>, String> {
    let opened = isthmus_link::XdpLink::open(interface, ethertype, &isthmus_link::XdpOptions::default());
    Ok(Box::new(opened.map_err(|error| error.to_string())?))
}

#[cfg(not(feature = "af-xdp"))]
fn open_xdp(interface: &str, _: u16) -> Result<Box<dyn Link>, String> {
    Err(format!(
        "{interface}: this isthmusd was built without AF_XDP (`--features af-xdp`); kind = \"packet\" does the same"
    ))
}

/// Returns two random numbers.
pub(super) fn random_u32s() -> std::io::Result<[u32; 2]> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    let [a, b, c, d, e, f, g, h] = bytes;
    Ok([u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])])
}

#[cfg(test)]
mod tests {
    use isthmus_config::{ConfigFile, Inputs, MxHost, Role, load};

    use super::*;

    #[test]
    fn error_of_a_link_names_its_key_and_its_address_once() {
        let carrier = Carrier::Packet { interface: "eth0".to_owned() };
        let of_the_kernel = link_error(1, 2, &carrier, "opening a packet socket needs CAP_NET_RAW");
        assert_eq!(of_the_kernel, "mx.board[1].links[2]: eth0: opening a packet socket needs CAP_NET_RAW");
        let with_address = link_error(0, 0, &carrier, "there is no interface eth0");
        assert_eq!(with_address, "mx.board[0].links[0]: there is no interface eth0");
    }

    #[test]
    fn tells_xdp_links_from_others() {
        let has_xdp = |links: &str| {
            let bytes = format!("[[mx.board]]\nlinks = [{links}]\n").into_bytes();
            let file = ConfigFile::Given { path: "test.toml".into(), bytes };
            let config = load(&Inputs { file, ..Inputs::bare(Role::System) }).unwrap().config;
            has_xdp_links(&config.mx.plans(&MxHost { name: "node7".to_owned(), id: [7; 32] }).unwrap())
        };
        assert!(!has_xdp(""));
        assert!(!has_xdp("{ interface = 'eth0' }"));
        assert!(!has_xdp("{ udp = '10.0.0.1', peers = ['10.0.0.2'] }"));
        assert!(has_xdp("{ interface = 'eth0' }, { interface = 'eth1', kind = 'xdp' }"));
    }
}
