//! XenStore of the fake host, with the real protocol.

use super::{FakeDomain, FakeHost};
use crate::Domid;
use crate::store::StoreTransport;
use crate::store::protocol::{self, Incoming, NodeRights, PacketKind, Permission, StorePacket, StoreRefusal};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

type Nodes = BTreeMap<String, Node>;

#[derive(Clone, Debug)]
struct Node {
    value: Vec<u8>,
    permissions: Vec<Permission>,
}

#[derive(Debug)]
pub(super) struct Tree {
    nodes: Nodes,
    /// The number of changes so far, with which a transaction detects conflicts.
    changes: u64,
    connections: BTreeMap<u64, Connection>,
    last_connection: u64,
}

#[derive(Debug)]
struct Connection {
    domid: Domid,
    outgoing: Vec<u8>,
    watches: Vec<(String, String)>,
    transactions: BTreeMap<u32, Transaction>,
    last_transaction: u32,
}

#[derive(Debug)]
struct Transaction {
    nodes: Nodes,
    begun_at: u64,
    changed: Vec<Change>,
}

/// A changed node, and the permissions at that time; those before the change if the node was removed.
#[derive(Clone, Debug)]
struct Change {
    path: String,
    permissions: Vec<Permission>,
}

fn permission(domid: Domid, rights: NodeRights) -> Permission {
    Permission { domid, rights }
}

impl Default for Tree {
    fn default() -> Self {
        let root = Node { value: Vec::new(), permissions: vec![permission(Domid::ZERO, NodeRights::None)] };
        let nodes = ["/", "/local", "/local/domain"].map(|path| (path.to_owned(), root.clone()));
        Self { nodes: nodes.into(), changes: 0, connections: BTreeMap::new(), last_connection: 0 }
    }
}

fn domain_path(domid: Domid) -> String {
    format!("/local/domain/{domid}")
}

fn is_permitted(permissions: &[Permission], domid: Domid, required: NodeRights) -> bool {
    let Some((owner, others)) = permissions.split_first() else { return false };
    let node_rights =
        others.iter().find(|permission| permission.domid == domid).map_or(owner.rights, |found| found.rights);
    domid == Domid::ZERO || owner.domid == domid || node_rights == required || node_rights == NodeRights::Both
}

/// Returns the node, or its nearest existing ancestor.
fn nearest<'a>(nodes: &'a Nodes, path: &str) -> &'a Node {
    let mut path = path;
    loop {
        match (nodes.get(path), path.rsplit_once('/')) {
            (Some(node), _) => return node,
            (None, Some((above, _))) if !above.is_empty() => path = above,
            (None, _) => return &nodes["/"],
        }
    }
}

/// Finds a node on which this domain has the required rights. A domain learns that a node is missing only if it may read the nearest
/// ancestor.
fn find<'a>(nodes: &'a Nodes, path: &str, domid: Domid, required: NodeRights) -> Result<&'a Node, StoreRefusal> {
    let node = nearest(nodes, path);
    let allowed = is_permitted(&node.permissions, domid, required);
    match nodes.contains_key(path) {
        _ if !allowed => Err(StoreRefusal::Forbidden),
        true => Ok(node),
        false => Err(StoreRefusal::Missing),
    }
}

fn is_below(path: &str, above: &str) -> bool {
    path == above || above == "/" || path.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'))
}

/// Sets a value, or creates an empty node if `value` is `None`. Creates missing parents.
fn put(nodes: &mut Nodes, path: &str, domid: Domid, value: Option<&[u8]>) -> Result<Vec<Change>, StoreRefusal> {
    match find(nodes, path, domid, NodeRights::Write) {
        Err(StoreRefusal::Missing) | Ok(_) => {}
        Err(refusal) => return Err(refusal),
    }
    let mut permissions = nearest(nodes, path).permissions.clone();
    if domid != Domid::ZERO && !nodes.contains_key(path) {
        permissions[0].domid = domid;
    }
    let mut missing = path;
    while !nodes.contains_key(missing) {
        nodes.insert(missing.to_owned(), Node { value: Vec::new(), permissions: permissions.clone() });
        missing = missing.rsplit_once('/').map_or("/", |(above, _)| above);
    }
    if let (Some(node), Some(value)) = (nodes.get_mut(path), value) {
        node.value = value.to_vec();
    }
    Ok(vec![Change { path: path.to_owned(), permissions: nodes[path].permissions.clone() }])
}

fn remove(nodes: &mut Nodes, path: &str) -> Vec<Change> {
    let removed: Vec<String> = nodes.keys().filter(|node| is_below(node, path)).cloned().collect();
    let change = |path: String| nodes.remove(&path).map(|node| Change { path, permissions: node.permissions });
    removed.into_iter().filter_map(change).collect()
}

impl Tree {
    /// Writes the nodes that the toolstack writes for a domain that it starts.
    pub(super) fn introduce(&mut self, domid: Domid) {
        let own = domain_path(domid);
        let toolstack = vec![permission(Domid::ZERO, NodeRights::None), permission(domid, NodeRights::Read)];
        let node = |value: &str, permissions: &[Permission]| Node {
            value: value.as_bytes().to_vec(),
            permissions: permissions.to_vec(),
        };
        self.nodes.insert(format!("{own}/domid"), node(&domid.to_string(), &toolstack));
        self.nodes.insert(format!("{own}/data"), node("", &[permission(domid, NodeRights::None)]));
        self.nodes.insert(own, node("", &toolstack));
        self.notify_domain_0("@introduceDomain");
    }

    /// Removes the nodes of a domain that is gone, and its connections.
    pub(super) fn release(&mut self, domid: Domid) {
        self.disconnect(domid);
        let changed = remove(&mut self.nodes, &domain_path(domid));
        self.notify_watches(&changed);
        self.notify_domain_0("@releaseDomain");
    }

    pub(super) fn disconnect(&mut self, domid: Domid) {
        self.connections.retain(|_, connection| connection.domid != domid);
    }

    /// Sends events for a name that is not a node. Other domains may watch it and receive nothing.
    fn notify_domain_0(&mut self, what: &str) {
        for connection in self.connections.values_mut().filter(|connection| connection.domid == Domid::ZERO) {
            for (_, token) in connection.watches.iter().filter(|(watched, _)| watched == what) {
                connection.outgoing.extend(event(what, token));
            }
        }
    }

    /// Sends events to all watches of the changed nodes by domains that may read them.
    fn notify_watches(&mut self, changed: &[Change]) {
        self.changes += u64::from(!changed.is_empty());
        for connection in self.connections.values_mut() {
            for Change { path, permissions } in changed {
                let watches = connection.watches.iter().filter(|(watched, _)| {
                    is_below(path, &absolute(watched, connection.domid))
                        && is_permitted(permissions, connection.domid, NodeRights::Read)
                });
                for (watched, token) in watches {
                    // A watch with a relative path reports relative paths.
                    let own = format!("{}/", domain_path(connection.domid));
                    let reported_path =
                        if watched.starts_with('/') { path } else { path.strip_prefix(&own).unwrap_or(path) };
                    connection.outgoing.extend(event(reported_path, token));
                }
            }
        }
    }

    fn handle_request(&mut self, id: u64, packet: &StorePacket) {
        let (kind, body) = match self.execute(id, packet) {
            Ok(body) => (packet.kind.unwrap_or(PacketKind::Error), body),
            Err(refusal) => (PacketKind::Error, [refusal.name().as_bytes(), &[0]].concat()),
        };
        let reply = protocol::emit(kind, packet.request, packet.transaction, &[], &body).unwrap_or_default();
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.outgoing.extend(reply);
        }
        let first = (kind == PacketKind::Watch).then(|| protocol::event(&packet.body).ok()).flatten();
        if let (Some((path, token)), Some(connection)) = (first, self.connections.get_mut(&id)) {
            connection.outgoing.extend(event(path, token));
        }
    }

    fn execute(&mut self, id: u64, packet: &StorePacket) -> Result<Vec<u8>, StoreRefusal> {
        let connection = self.connections.get_mut(&id).ok_or(StoreRefusal::Other)?;
        let domid = connection.domid;
        match packet.kind.ok_or(StoreRefusal::Invalid)? {
            PacketKind::TransactionStart => {
                connection.last_transaction += 1;
                let transaction =
                    Transaction { nodes: self.nodes.clone(), begun_at: self.changes, changed: Vec::new() };
                connection.transactions.insert(connection.last_transaction, transaction);
                return Ok(format!("{}\0", connection.last_transaction).into_bytes());
            }
            PacketKind::TransactionEnd => return self.end(id, packet),
            PacketKind::Watch => {
                let (path, token) = protocol::event(&packet.body).map_err(|_| StoreRefusal::Invalid)?;
                let watch = (path.to_owned(), token.to_owned());
                if connection.watches.contains(&watch) {
                    return Err(StoreRefusal::Exists);
                }
                connection.watches.push(watch);
                return Ok(b"OK\0".to_vec());
            }
            PacketKind::Unwatch => {
                let (path, token) = protocol::event(&packet.body).map_err(|_| StoreRefusal::Invalid)?;
                connection.watches.retain(|watch| (watch.0.as_str(), watch.1.as_str()) != (path, token));
                return Ok(b"OK\0".to_vec());
            }
            _ => {}
        }
        if packet.transaction == 0 {
            let (body, changed) = request_node(&mut self.nodes, domid, packet)?;
            self.notify_watches(&changed);
            return Ok(body);
        }
        let transaction = connection.transactions.get_mut(&packet.transaction).ok_or(StoreRefusal::Missing)?;
        let (body, changed) = request_node(&mut transaction.nodes, domid, packet)?;
        transaction.changed.extend(changed);
        Ok(body)
    }

    fn end(&mut self, id: u64, packet: &StorePacket) -> Result<Vec<u8>, StoreRefusal> {
        let connection = self.connections.get_mut(&id).ok_or(StoreRefusal::Other)?;
        let ended = connection.transactions.remove(&packet.transaction).ok_or(StoreRefusal::Missing)?;
        if packet.body == b"T\0" && !ended.changed.is_empty() {
            if ended.begun_at != self.changes {
                return Err(StoreRefusal::Conflict);
            }
            self.nodes = ended.nodes;
            self.notify_watches(&ended.changed);
        }
        Ok(b"OK\0".to_vec())
    }
}

fn event(path: &str, token: &str) -> Vec<u8> {
    protocol::emit(PacketKind::WatchEvent, 0, 0, &[path, token], &[]).unwrap_or_default()
}

fn absolute(path: &str, domid: Domid) -> String {
    if path.starts_with(['/', '@']) { path.to_owned() } else { format!("{}/{path}", domain_path(domid)) }
}

/// Handles the requests for one node; returns the reply and the changes.
fn request_node(nodes: &mut Nodes, domid: Domid, packet: &StorePacket) -> Result<(Vec<u8>, Vec<Change>), StoreRefusal> {
    let end = packet.body.iter().position(|byte| *byte == 0).ok_or(StoreRefusal::Invalid)?;
    let (path, rest) =
        (str::from_utf8(&packet.body[..end]).map_err(|_| StoreRefusal::Invalid)?, &packet.body[end + 1..]);
    protocol::check_path(path).map_err(|_| StoreRefusal::Invalid)?;
    let path = &absolute(path, domid);
    let done = b"OK\0".to_vec();
    match packet.kind {
        Some(PacketKind::Read) => Ok((find(nodes, path, domid, NodeRights::Read)?.value.clone(), Vec::new())),
        Some(PacketKind::Directory) => {
            find(nodes, path, domid, NodeRights::Read)?;
            let inside = format!("{}/", path.trim_end_matches('/'));
            let names = nodes.keys().filter_map(|node| node.strip_prefix(&inside));
            let names = names.filter(|name| !name.is_empty() && !name.contains('/'));
            Ok((names.flat_map(|name| [name.as_bytes(), &[0]].concat()).collect(), Vec::new()))
        }
        Some(PacketKind::Permissions) => {
            let node = find(nodes, path, domid, NodeRights::Read)?;
            Ok((node.permissions.iter().flat_map(|one| format!("{}\0", one.emit()).into_bytes()).collect(), Vec::new()))
        }
        Some(PacketKind::Write) => Ok((done, put(nodes, path, domid, Some(rest))?)),
        Some(PacketKind::Mkdir) if nodes.contains_key(path) => {
            find(nodes, path, domid, NodeRights::Write).map(|_| (done, Vec::new()))
        }
        Some(PacketKind::Mkdir) => Ok((done, put(nodes, path, domid, None)?)),
        Some(PacketKind::Remove) => {
            find(nodes, path, domid, NodeRights::Write)?;
            Ok((done, remove(nodes, path)))
        }
        Some(PacketKind::SetPermissions) => {
            let texts = protocol::strings(rest).map_err(|_| StoreRefusal::Invalid)?;
            let required: Result<Vec<Permission>, _> = texts.into_iter().map(Permission::parse).collect();
            let required = required.ok().filter(|required| !required.is_empty()).ok_or(StoreRefusal::Invalid)?;
            let owner = find(nodes, path, domid, NodeRights::Write)?.permissions[0].domid;
            if domid != Domid::ZERO && (owner != domid || required[0].domid != domid) {
                return Err(StoreRefusal::Forbidden);
            }
            nodes.get_mut(path).ok_or(StoreRefusal::Missing)?.permissions.clone_from(&required);
            Ok((done, vec![Change { path: path.clone(), permissions: required }]))
        }
        _ => Err(StoreRefusal::Invalid),
    }
}

/// A domain's connection to the store.
#[derive(Debug)]
pub struct FakeStoreTransport {
    host: FakeHost,
    id: u64,
    incoming: Incoming,
}

impl FakeStoreTransport {
    pub(super) fn new(domain: &FakeDomain) -> Self {
        let mut state = domain.host.lock();
        let tree = &mut state.store;
        tree.last_connection += 1;
        let connection = Connection {
            domid: domain.domid,
            outgoing: Vec::new(),
            watches: Vec::new(),
            transactions: BTreeMap::new(),
            last_transaction: 0,
        };
        tree.connections.insert(tree.last_connection, connection);
        let id = tree.last_connection;
        drop(state);
        Self { host: domain.host.clone(), id, incoming: Incoming::default() }
    }
}

impl StoreTransport for FakeStoreTransport {
    fn send(&mut self, packet: &[u8]) -> Result<(), Errno> {
        self.incoming.push(packet);
        while let Some(packet) = self.incoming.packet().map_err(|_| Errno::INVAL)? {
            self.host.lock().store.handle_request(self.id, &packet);
        }
        self.host.shared.changed.notify_all();
        Ok(())
    }

    fn receive(&mut self, into: &mut [u8], limit: Duration) -> Result<usize, Errno> {
        let end = Instant::now() + limit;
        let mut state = self.host.lock();
        loop {
            let connection = state.store.connections.get_mut(&self.id).ok_or(Errno::PIPE)?;
            let bytes = connection.outgoing.len().min(into.len());
            let left = end.saturating_duration_since(Instant::now());
            if bytes > 0 || left.is_zero() {
                for (to, from) in into.iter_mut().zip(connection.outgoing.drain(..bytes)) {
                    *to = from;
                }
                return Ok(bytes);
            }
            let waited = self.host.shared.changed.wait_timeout(state, left);
            state = waited.map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state);
        }
    }
}

impl Drop for FakeStoreTransport {
    fn drop(&mut self) {
        self.host.lock().store.connections.remove(&self.id);
    }
}
