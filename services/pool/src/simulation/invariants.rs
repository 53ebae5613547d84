//! The rules for the records of all members when all faults have ended, no client is left, and no
//! operation is being performed.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use quell_kv::{KeyRange, KeyValue};
use quell_wire::pool::{FileId, NodeKind};

use super::cluster::Cluster;
use crate::inode::{EntryRecord, Inode, from_bytes};
use crate::keys;

/// Returns descriptions of violated rules.
pub fn violations(cluster: &Rc<Cluster>) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut inodes: BTreeMap<FileId, Inode> = BTreeMap::new();
    let mut entries: Vec<(FileId, Vec<u8>, EntryRecord)> = Vec::new();
    let mut chunks: BTreeSet<FileId> = BTreeSet::new();
    let mut xattrs: BTreeSet<FileId> = BTreeSet::new();
    let mut inline: BTreeMap<FileId, usize> = BTreeMap::new();
    for number in 0..cluster.members() {
        let store = &cluster.disk(number).store;
        store
            .scan(&KeyRange::prefix(&[]), &mut |key, value| {
                let id = || FileId(u64::from_be_bytes(key[1..9].try_into().unwrap()));
                match key[0] {
                    1 => {
                        let (_, name) = keys::parse_entry(key).unwrap();
                        entries.push((id(), name.to_vec(), from_bytes(value, "").unwrap()));
                    }
                    2 => drop(inodes.insert(id(), from_bytes(value, "").unwrap())),
                    5 => wrong.push(format!("member {number} has a prepared transaction")),
                    6 => wrong
                        .push(format!("member {number} has a decision that other members have not received")),
                    11 => drop(xattrs.insert(id())),
                    13 => drop(inline.insert(id(), value.len())),
                    10 => wrong.push(format!("member {number} has an unfinished node {:?}", id())),
                    _ => {}
                }
                true
            })
            .unwrap();
        let files = cluster.disk(number).chunks.root().names().unwrap().into_iter();
        chunks.extend(files.map(|name| {
            let first = name.split(|byte| *byte == b'.').next();
            FileId::from_data_name(first.unwrap_or_default()).unwrap()
        }));
        wrong.extend(cluster.running(number).unwrap().member.remains());
    }
    let mut named = BTreeSet::from([FileId::ROOT]);
    for (dir, name, entry) in &entries {
        let name = format!("{dir:?}/{}", String::from_utf8_lossy(name));
        match inodes.get(&entry.id) {
            None => wrong.push(format!("{name} leads to the missing node {:?}", entry.id)),
            Some(inode) => {
                let described = inode
                    .name
                    .as_ref()
                    .map(|(dir, name)| format!("{dir:?}/{}", String::from_utf8_lossy(name)));
                if described.as_deref() != Some(name.as_str()) {
                    wrong.push(format!("{name} leads to a node with the name {described:?}"));
                }
            }
        }
        match inodes.get(dir) {
            Some(parent) if parent.kind == NodeKind::Dir => {}
            _ => wrong.push(format!("{name} is an entry of no directory")),
        }
        if !named.insert(entry.id) {
            wrong.push(format!("{name} is another name of {:?}", entry.id));
        }
    }
    wrong.extend(inodes.keys().filter(|id| !named.contains(id)).map(|id| format!("{id:?} has no name")));
    wrong.extend(
        chunks
            .iter()
            .filter(|id| !inodes.contains_key(id))
            .map(|id| format!("{id:?} has chunks but no record")),
    );
    let with_xattrs = inodes.iter().filter(|(_, inode)| inode.has_xattrs).map(|(id, _)| *id).collect();
    wrong.extend(
        xattrs
            .symmetric_difference(&with_xattrs)
            .map(|id| format!("{id:?} and its extended attributes do not belong together")),
    );
    let without_chunks = chunks.iter().filter(|id| inodes.get(id).is_some_and(|inode| !inode.has_chunks));
    wrong.extend(without_chunks.map(|id| format!("{id:?} has chunks, but not according to its record")));
    let with_inline = inodes.iter().filter(|(_, inode)| inode.is_inline && inode.inline_bytes > 0);
    let with_inline: BTreeMap<FileId, usize> =
        with_inline.map(|(id, inode)| (*id, inode.inline_bytes as usize)).collect();
    if inline != with_inline {
        wrong.push(format!("inline data {inline:?} does not belong to the records {with_inline:?}"));
    }
    // Every node must be reached from the root.
    let mut reached = BTreeSet::from([FileId::ROOT]);
    let mut waiting = vec![FileId::ROOT];
    while let Some(dir) = waiting.pop() {
        for (_, _, entry) in entries.iter().filter(|(of, _, _)| *of == dir) {
            if reached.insert(entry.id) {
                waiting.push(entry.id);
            }
        }
    }
    wrong.extend(named.difference(&reached).map(|id| format!("{id:?} cannot be reached from the root")));
    wrong
}
