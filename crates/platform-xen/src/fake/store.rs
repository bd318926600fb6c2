//! XenStore of the fake host, speaking the real protocol.

use super::{Domain, Host};
use crate::Domid;
use crate::store::Wire;
use crate::store::wire::{self, Incoming, Kind, Packet, Permission, Refusal, Rights};
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
    /// Counts changes, so that a transaction knows whether it met any.
    changes: u64,
    connections: BTreeMap<u64, Connection>,
    last_connection: u64,
}

#[derive(Debug)]
struct Connection {
    domid: Domid,
    answers: Vec<u8>,
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

/// A node that changed, and who could read it then: before, if it went.
#[derive(Clone, Debug)]
struct Change {
    path: String,
    permissions: Vec<Permission>,
}

fn permission(domid: Domid, rights: Rights) -> Permission {
    Permission { domid, rights }
}

impl Default for Tree {
    fn default() -> Self {
        let root = Node { value: Vec::new(), permissions: vec![permission(Domid::ZERO, Rights::None)] };
        let nodes = ["/", "/local", "/local/domain"].map(|path| (path.to_owned(), root.clone()));
        Self { nodes: nodes.into(), changes: 0, connections: BTreeMap::new(), last_connection: 0 }
    }
}

fn home(domid: Domid) -> String {
    format!("/local/domain/{domid}")
}

fn may(permissions: &[Permission], domid: Domid, wanted: Rights) -> bool {
    let Some((owner, others)) = permissions.split_first() else { return false };
    let named = others.iter().find(|permission| permission.domid == domid).map_or(owner.rights, |found| found.rights);
    domid == Domid::ZERO || owner.domid == domid || named == wanted || named == Rights::Both
}

/// The node itself, or the nearest above it that there is.
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

/// Looks for a node that this domain may use so. Whether there is one at all is for those to know who may read what is above.
fn find<'a>(nodes: &'a Nodes, path: &str, domid: Domid, wanted: Rights) -> Result<&'a Node, Refusal> {
    let node = nearest(nodes, path);
    let allowed = may(&node.permissions, domid, wanted);
    match nodes.contains_key(path) {
        _ if !allowed => Err(Refusal::Forbidden),
        true => Ok(node),
        false => Err(Refusal::Missing),
    }
}

fn below(path: &str, above: &str) -> bool {
    path == above || above == "/" || path.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'))
}

/// Sets a value, or makes a node where `value` is none; with those above it that are missing.
fn put(nodes: &mut Nodes, path: &str, domid: Domid, value: Option<&[u8]>) -> Result<Vec<Change>, Refusal> {
    match find(nodes, path, domid, Rights::Write) {
        Err(Refusal::Missing) | Ok(_) => {}
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
    let gone: Vec<String> = nodes.keys().filter(|node| below(node, path)).cloned().collect();
    let change = |path: String| nodes.remove(&path).map(|node| Change { path, permissions: node.permissions });
    gone.into_iter().filter_map(change).collect()
}

impl Tree {
    /// What the toolstack writes for a domain that it starts.
    pub(super) fn introduce(&mut self, domid: Domid) {
        let own = home(domid);
        let toolstack = vec![permission(Domid::ZERO, Rights::None), permission(domid, Rights::Read)];
        let node = |value: &str, permissions: &[Permission]| Node {
            value: value.as_bytes().to_vec(),
            permissions: permissions.to_vec(),
        };
        self.nodes.insert(format!("{own}/domid"), node(&domid.to_string(), &toolstack));
        self.nodes.insert(format!("{own}/data"), node("", &[permission(domid, Rights::None)]));
        self.nodes.insert(own, node("", &toolstack));
        self.tell_domain_0("@introduceDomain");
    }

    /// What becomes of it when the domain is gone.
    pub(super) fn release(&mut self, domid: Domid) {
        self.disconnect(domid);
        let changed = remove(&mut self.nodes, &home(domid));
        self.tell(&changed);
        self.tell_domain_0("@releaseDomain");
    }

    pub(super) fn disconnect(&mut self, domid: Domid) {
        self.connections.retain(|_, connection| connection.domid != domid);
    }

    /// Tells of what is no node. Others may watch it and hear nothing.
    fn tell_domain_0(&mut self, what: &str) {
        for connection in self.connections.values_mut().filter(|connection| connection.domid == Domid::ZERO) {
            for (_, token) in connection.watches.iter().filter(|(watched, _)| watched == what) {
                connection.answers.extend(event(what, token));
            }
        }
    }

    /// Tells whoever watches, and may read, what changed.
    fn tell(&mut self, changed: &[Change]) {
        self.changes += u64::from(!changed.is_empty());
        for connection in self.connections.values_mut() {
            for Change { path, permissions } in changed {
                let watches = connection.watches.iter().filter(|(watched, _)| {
                    below(path, &absolute(watched, connection.domid))
                        && may(permissions, connection.domid, Rights::Read)
                });
                for (watched, token) in watches {
                    // Who watches by a path of his own hears of it by that one.
                    let own = format!("{}/", home(connection.domid));
                    let said = if watched.starts_with('/') { path } else { path.strip_prefix(&own).unwrap_or(path) };
                    connection.answers.extend(event(said, token));
                }
            }
        }
    }

    fn answer(&mut self, id: u64, packet: &Packet) {
        let (kind, body) = match self.act(id, packet) {
            Ok(body) => (packet.kind.unwrap_or(Kind::Refused), body),
            Err(refusal) => (Kind::Refused, [refusal.name().as_bytes(), &[0]].concat()),
        };
        let answer = wire::emit(kind, packet.request, packet.transaction, &[], &body).unwrap_or_default();
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.answers.extend(answer);
        }
        let first = (kind == Kind::Watch).then(|| wire::event(&packet.body).ok()).flatten();
        if let (Some((path, token)), Some(connection)) = (first, self.connections.get_mut(&id)) {
            connection.answers.extend(event(path, token));
        }
    }

    fn act(&mut self, id: u64, packet: &Packet) -> Result<Vec<u8>, Refusal> {
        let connection = self.connections.get_mut(&id).ok_or(Refusal::Other)?;
        let domid = connection.domid;
        match packet.kind.ok_or(Refusal::Invalid)? {
            Kind::Begin => {
                connection.last_transaction += 1;
                let transaction =
                    Transaction { nodes: self.nodes.clone(), begun_at: self.changes, changed: Vec::new() };
                connection.transactions.insert(connection.last_transaction, transaction);
                return Ok(format!("{}\0", connection.last_transaction).into_bytes());
            }
            Kind::End => return self.end(id, packet),
            Kind::Watch => {
                let (path, token) = wire::event(&packet.body).map_err(|_| Refusal::Invalid)?;
                let watch = (path.to_owned(), token.to_owned());
                if connection.watches.contains(&watch) {
                    return Err(Refusal::Exists);
                }
                connection.watches.push(watch);
                return Ok(b"OK\0".to_vec());
            }
            Kind::Unwatch => {
                let (path, token) = wire::event(&packet.body).map_err(|_| Refusal::Invalid)?;
                connection.watches.retain(|watch| (watch.0.as_str(), watch.1.as_str()) != (path, token));
                return Ok(b"OK\0".to_vec());
            }
            _ => {}
        }
        if packet.transaction == 0 {
            let (body, changed) = about_node(&mut self.nodes, domid, packet)?;
            self.tell(&changed);
            return Ok(body);
        }
        let transaction = connection.transactions.get_mut(&packet.transaction).ok_or(Refusal::Missing)?;
        let (body, changed) = about_node(&mut transaction.nodes, domid, packet)?;
        transaction.changed.extend(changed);
        Ok(body)
    }

    fn end(&mut self, id: u64, packet: &Packet) -> Result<Vec<u8>, Refusal> {
        let connection = self.connections.get_mut(&id).ok_or(Refusal::Other)?;
        let ended = connection.transactions.remove(&packet.transaction).ok_or(Refusal::Missing)?;
        if packet.body == b"T\0" && !ended.changed.is_empty() {
            if ended.begun_at != self.changes {
                return Err(Refusal::Again);
            }
            self.nodes = ended.nodes;
            self.tell(&ended.changed);
        }
        Ok(b"OK\0".to_vec())
    }
}

fn event(path: &str, token: &str) -> Vec<u8> {
    wire::emit(Kind::Event, 0, 0, &[path, token], &[]).unwrap_or_default()
}

fn absolute(path: &str, domid: Domid) -> String {
    if path.starts_with(['/', '@']) { path.to_owned() } else { format!("{}/{path}", home(domid)) }
}

/// Requests that are about one node: the answer, and what changed.
fn about_node(nodes: &mut Nodes, domid: Domid, packet: &Packet) -> Result<(Vec<u8>, Vec<Change>), Refusal> {
    let end = packet.body.iter().position(|byte| *byte == 0).ok_or(Refusal::Invalid)?;
    let (path, rest) = (str::from_utf8(&packet.body[..end]).map_err(|_| Refusal::Invalid)?, &packet.body[end + 1..]);
    wire::check_path(path).map_err(|_| Refusal::Invalid)?;
    let path = &absolute(path, domid);
    let done = b"OK\0".to_vec();
    match packet.kind {
        Some(Kind::Read) => Ok((find(nodes, path, domid, Rights::Read)?.value.clone(), Vec::new())),
        Some(Kind::Directory) => {
            find(nodes, path, domid, Rights::Read)?;
            let inside = format!("{}/", path.trim_end_matches('/'));
            let names = nodes.keys().filter_map(|node| node.strip_prefix(&inside));
            let names = names.filter(|name| !name.is_empty() && !name.contains('/'));
            Ok((names.flat_map(|name| [name.as_bytes(), &[0]].concat()).collect(), Vec::new()))
        }
        Some(Kind::Permissions) => {
            let node = find(nodes, path, domid, Rights::Read)?;
            Ok((node.permissions.iter().flat_map(|one| format!("{}\0", one.emit()).into_bytes()).collect(), Vec::new()))
        }
        Some(Kind::Write) => Ok((done, put(nodes, path, domid, Some(rest))?)),
        Some(Kind::Make) if nodes.contains_key(path) => {
            find(nodes, path, domid, Rights::Write).map(|_| (done, Vec::new()))
        }
        Some(Kind::Make) => Ok((done, put(nodes, path, domid, None)?)),
        Some(Kind::Remove) => {
            find(nodes, path, domid, Rights::Write)?;
            Ok((done, remove(nodes, path)))
        }
        Some(Kind::SetPermissions) => {
            let texts = wire::strings(rest).map_err(|_| Refusal::Invalid)?;
            let wanted: Result<Vec<Permission>, _> = texts.into_iter().map(Permission::parse).collect();
            let wanted = wanted.ok().filter(|wanted| !wanted.is_empty()).ok_or(Refusal::Invalid)?;
            let owner = find(nodes, path, domid, Rights::Write)?.permissions[0].domid;
            if domid != Domid::ZERO && (owner != domid || wanted[0].domid != domid) {
                return Err(Refusal::Forbidden);
            }
            nodes.get_mut(path).ok_or(Refusal::Missing)?.permissions.clone_from(&wanted);
            Ok((done, vec![Change { path: path.clone(), permissions: wanted }]))
        }
        _ => Err(Refusal::Invalid),
    }
}

/// A domain's connection to the store.
#[derive(Debug)]
pub struct FakeWire {
    host: Host,
    id: u64,
    asked: Incoming,
}

impl FakeWire {
    pub(super) fn new(domain: &Domain) -> Self {
        let mut state = domain.host.lock();
        let tree = &mut state.store;
        tree.last_connection += 1;
        let connection = Connection {
            domid: domain.domid,
            answers: Vec::new(),
            watches: Vec::new(),
            transactions: BTreeMap::new(),
            last_transaction: 0,
        };
        tree.connections.insert(tree.last_connection, connection);
        let id = tree.last_connection;
        drop(state);
        Self { host: domain.host.clone(), id, asked: Incoming::default() }
    }
}

impl Wire for FakeWire {
    fn send(&mut self, packet: &[u8]) -> Result<(), Errno> {
        self.asked.push(packet);
        while let Some(packet) = self.asked.packet().map_err(|_| Errno::INVAL)? {
            self.host.lock().store.answer(self.id, &packet);
        }
        self.host.shared.happened.notify_all();
        Ok(())
    }

    fn receive(&mut self, into: &mut [u8], limit: Duration) -> Result<usize, Errno> {
        let end = Instant::now() + limit;
        let mut state = self.host.lock();
        loop {
            let connection = state.store.connections.get_mut(&self.id).ok_or(Errno::PIPE)?;
            let bytes = connection.answers.len().min(into.len());
            let left = end.saturating_duration_since(Instant::now());
            if bytes > 0 || left.is_zero() {
                for (to, from) in into.iter_mut().zip(connection.answers.drain(..bytes)) {
                    *to = from;
                }
                return Ok(bytes);
            }
            let waited = self.host.shared.happened.wait_timeout(state, left);
            state = waited.map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state);
        }
    }
}

impl Drop for FakeWire {
    fn drop(&mut self) {
        self.host.lock().store.connections.remove(&self.id);
    }
}
