//! A batch is refused if no sequence of operations of its user can make its tables or its
//! certificate.

mod stores;

use std::io::{Read, Write};
use std::sync::Arc;

use quell_batch_service::{
    AdoptedFile, BlockCache, Certificate, CertifiedTable, Content, DataFile, Entry, FIRST_INODE, Inode,
    InodeChange, Key, NameSpace, NewNode, OperationsWriter, ProofForm, ROOT, Table, TableFiles, TableWriter,
    Timestamp, Xattr, split,
};
use quell_testkit::Random;
use quell_vfs::{ErrorKind, Rename};

use stores::{Fixture, LATER, NOW, Open, make_dir, make_file, tree, write};

/// A key and a value of a table.
type Pair = (Vec<u8>, Vec<u8>);

/// A store and a batch that has used most kinds of operations.
fn submitted() -> (Fixture, Open, Certificate) {
    let inode = stores::file_inode(FIRST_INODE, adopted("public"));
    let fixture = Fixture::beginning_with(&[("adopted", inode)]);
    let master = fixture.master();
    let d = make_dir(&*master, ROOT, "d");
    make_file(&*master, d, "old");
    make_file(&*master, d, "gone");
    let target = NewNode::Symlink(b"honest".to_vec());
    master.create(d, b"symlink", target, stores::FILE, NOW).unwrap();
    let removed = make_dir(&*master, d, "removed");
    make_file(&*master, removed, "inside");
    let batch = fixture.begin();
    let names = &batch.names;
    let new = make_dir(names, d, "new");
    let below = make_dir(names, new, "below");
    write(names, &make_file(names, below, "file"), b"content");
    let linked = make_file(names, new, "one");
    names.link((linked.inode.number, &linked.place), below, b"two", LATER).unwrap();
    names.rename((d, b"old"), (d, b"renamed"), Rename::Keep, LATER).unwrap();
    names.remove(d, b"gone", LATER).unwrap();
    names.remove(removed, b"inside", LATER).unwrap();
    names.remove_dir(d, b"removed", LATER).unwrap();
    let symlink = names.lookup(d, b"symlink").unwrap().unwrap();
    let change = InodeChange { modified: Some(Timestamp(9, 9)), ..InodeChange::default() };
    names.change((symlink.inode.number, &symlink.place), &change, LATER).unwrap();
    let file = names.lookup(ROOT, b"adopted").unwrap().unwrap();
    let change = InodeChange { permissions: Some(0o600), ..InodeChange::default() };
    names.change((file.inode.number, &file.place), &change, LATER).unwrap();
    names.create(new, b"link", NewNode::Symlink(b"x".to_vec()), stores::FILE, NOW).unwrap();
    let certificate = fixture.certificate(&batch);
    (fixture, batch, certificate)
}

/// Returns a content in the adopted tree, of 7 bytes.
fn adopted(path: &str) -> Content {
    let time = Timestamp(3, 4);
    let path = path.as_bytes().to_vec();
    Content::Adopted(Box::new(AdoptedFile { path, inode: 5, size_bytes: 7, modified: time, changed: time }))
}

fn pairs(fixture: &Fixture, batch: &Open, certificate: &Certificate) -> Vec<Pair> {
    let tables = fixture.primary.submitted_tables(&batch.record, certificate, &*batch.files).unwrap();
    let [table] = &tables[..] else { panic!("one table") };
    let mut entries = table.entries();
    let mut pairs = Vec::new();
    while let Some(pair) = entries.next(|key, value| (key.to_vec(), value.to_vec())).unwrap() {
        pairs.push(pair);
    }
    pairs
}

/// Writes other entries as the table of a certificate, or as a log.
fn with_pairs(batch: &Open, certificate: &Certificate, pairs: &[Pair]) -> Certificate {
    const NUMBER: u64 = 1 << 33;
    let file = batch.files.create(NUMBER).unwrap();
    let summary = match certificate.form {
        ProofForm::Certificate => {
            let mut writer = TableWriter::new(file);
            pairs.iter().try_for_each(|(key, value)| writer.add(key, value)).unwrap();
            writer.finish().unwrap()
        }
        ProofForm::Log => {
            let mut writer = OperationsWriter::new(file, batch.record.number);
            pairs.iter().try_for_each(|(key, value)| writer.add(key, value, None)).unwrap();
            writer.finish().unwrap()
        }
    };
    let table = CertifiedTable { number: NUMBER, entries: summary.entries, checksum: summary.checksum };
    Certificate { tables: vec![table], ..certificate.clone() }
}

/// Changes the inode of a name of the batch.
fn edit(pairs: &mut [Pair], name: &str, change: impl Fn(&mut Inode)) {
    let (_, value) = find(pairs, name);
    let Entry::Inode(mut inode) = Entry::decode(value).unwrap() else { panic!("{name} is an inode") };
    change(&mut inode);
    *value = Entry::Inode(inode).encode();
}

fn find<'a>(pairs: &'a mut [Pair], name: &str) -> &'a mut Pair {
    pairs.iter_mut().find(|(key, _)| split(key).unwrap().1 == name.as_bytes()).expect("the name")
}

/// Changes the inode of a directory of the batch.
fn edit_dir(pairs: &mut [Pair], name: &str, change: impl Fn(&mut Inode)) {
    let number = Entry::decode(&find(pairs, name).1).unwrap().inode_number();
    let key = Key::of_dir(number);
    let (_, value) = pairs.iter_mut().find(|(found, _)| found == key.as_bytes()).unwrap();
    let Entry::Inode(mut inode) = Entry::decode(value).unwrap() else { panic!("{name} is a directory") };
    change(&mut inode);
    *value = Entry::Inode(inode).encode();
}

type Forgery = (&'static str, fn(&mut Vec<Pair>));

const FORGERIES: &[Forgery] = &[
    ("the file of another user", |pairs| edit(pairs, "file", |inode| inode.uid = 0)),
    ("the group of others", |pairs| edit(pairs, "file", |inode| inode.gid = 5)),
    ("the directory of another user", |pairs| edit_dir(pairs, "below", |inode| inode.uid = 0)),
    ("the link of another user", |pairs| edit(pairs, "link", |inode| inode.uid = 0)),
    ("an inode number of others", |pairs| edit(pairs, "file", |inode| inode.number = 1 << 40)),
    ("an inode number of the snapshot", |pairs| edit(pairs, "file", |inode| inode.number = ROOT)),
    ("an inode number that was not used", |pairs| edit(pairs, "file", |inode| inode.number += 1000)),
    ("one inode number twice", |pairs| {
        let number = Entry::decode(&find(pairs, "link").1).unwrap().inode_number();
        edit(pairs, "file", |inode| inode.number = number);
    }),
    ("too many names", |pairs| edit(pairs, "file", |inode| inode.links = 2)),
    ("no type", |pairs| edit(pairs, "file", |inode| inode.mode &= 0o7777)),
    ("a directory without an inode of its own", |pairs| edit(pairs, "file", |inode| inode.mode = 0o40755)),
    ("a device", |pairs| edit(pairs, "file", |inode| inode.mode = 0o20644)),
    ("the data of another batch", |pairs| {
        edit(pairs, "file", |inode| {
            inode.content = Content::File(DataFile { batch: 77, inode: inode.number, version: 0 });
        });
    }),
    ("the data of another inode of the batch", |pairs| {
        edit(pairs, "file", |inode| {
            inode.content = Content::File(DataFile { batch: 1, inode: inode.number + 1, version: 0 });
        });
    }),
    ("a file of the adopted tree", |pairs| {
        edit(pairs, "file", |inode| inode.content = adopted("secret"));
    }),
    ("another size of a file of the adopted tree", |pairs| {
        edit(pairs, "adopted", |inode| inode.size_bytes = 8);
    }),
    ("another file of the adopted tree", |pairs| {
        edit(pairs, "adopted", |inode| inode.content = adopted("secret"));
    }),
    ("a target of a file", |pairs| {
        edit(pairs, "file", |inode| inode.content = Content::Target(b"content".to_vec()));
    }),
    ("a content that is too long", |pairs| {
        edit(pairs, "file", |inode| {
            inode.content = Content::Inline(vec![0; 65_537]);
            inode.size_bytes = 65_537;
        });
    }),
    ("a content beyond the size", |pairs| edit(pairs, "file", |inode| inode.size_bytes = 1)),
    ("a size beyond the largest", |pairs| edit(pairs, "file", |inode| inode.size_bytes = 1 << 63)),
    ("a time that is none", |pairs| {
        edit(pairs, "file", |inode| inode.modified = Timestamp(0, 1_000_000_000))
    }),
    ("an attribute of the system", |pairs| {
        edit(pairs, "file", |inode| {
            inode.xattrs = vec![Xattr { name: b"security.capability".to_vec(), value: Vec::new() }];
        });
    }),
    ("attributes that do not ascend", |pairs| {
        edit(pairs, "file", |inode| {
            let xattr = Xattr { name: b"user.a".to_vec(), value: Vec::new() };
            inode.xattrs = vec![xattr.clone(), xattr];
        });
    }),
    ("a directory below itself", |pairs| {
        let number = Entry::decode(&find(pairs, "below").1).unwrap().inode_number();
        edit_dir(pairs, "new", |inode| {
            inode.content = Content::Parent { dir: number, name: b"new".to_vec() };
        });
    }),
    ("a directory with another name", |pairs| {
        edit_dir(pairs, "below", |inode| {
            let Content::Parent { dir, .. } = inode.content else { panic!("a directory") };
            inode.content = Content::Parent { dir, name: b"other".to_vec() };
        });
    }),
    ("a directory without a name", |pairs| pairs.retain(|(key, _)| split(key).unwrap().1 != b"below")),
    ("a directory with a wrong number of links", |pairs| edit_dir(pairs, "new", |inode| inode.links = 2)),
    ("a directory without an inode", |pairs| {
        let number = Entry::decode(&find(pairs, "below").1).unwrap().inode_number();
        pairs.retain(|(key, _)| key != Key::of_dir(number).as_bytes());
    }),
    ("a name of a path", |pairs| {
        let (mut key, value) = find(pairs, "file").clone();
        key.extend_from_slice(b"/x");
        pairs.push((key, value));
        pairs.sort();
    }),
    ("a name of two periods", |pairs| {
        let (key, _) = find(pairs, "file");
        key.truncate(8);
        key.extend_from_slice(b"..");
        pairs.sort();
    }),
    ("a removal in a new directory", |pairs| find(pairs, "file").1.clear()),
    ("a linked file without one of its names", |pairs| {
        pairs.retain(|(key, _)| split(key).unwrap().1 != b"two");
    }),
    ("a linked file without an inode", |pairs| {
        pairs.retain(|(key, _)| split(key).unwrap().0 != 1);
    }),
    ("a change that the certificate does not state", |pairs| {
        pairs.retain(|(key, _)| split(key).unwrap().1 != b"gone");
    }),
    ("an entry of a directory that does not exist", |pairs| {
        let (_, value) = find(pairs, "file").clone();
        pairs.push((Key::of_name(1 << 50, b"x").as_bytes().to_vec(), value));
        pairs.sort();
    }),
    ("another target of a link of the snapshot", |pairs| {
        edit(pairs, "symlink", |inode| {
            inode.content = Content::Target(b"forged".to_vec());
        });
    }),
    ("a link with another type than its inode", |pairs| {
        let (_, value) = find(pairs, "two");
        let Entry::Link { inode, .. } = Entry::decode(value).unwrap() else { panic!("a link") };
        *value = Entry::Link { inode, type_bits: 0 }.encode();
    }),
    ("an entry in a removed directory", |pairs| {
        let (_, value) = find(pairs, "file").clone();
        find(pairs, "inside").1 = value;
        pairs.retain(|(key, _)| split(key).unwrap().1 != b"file");
    }),
    ("bytes that are no entry", |pairs| find(pairs, "file").1.push(0)),
    ("a new name of a file that does not exist", |pairs| edit(pairs, "renamed", |inode| inode.number += 100)),
    ("a file of the snapshot with another type", |pairs| {
        edit(pairs, "renamed", |inode| inode.mode = 0o120_777)
    }),
];

/// The forgeries that cannot be made with a log. A log states no entries of the snapshot, so a log
/// without one of the operations is the log of another valid batch; and each operation makes an
/// entry.
const NOT_OF_LOGS: [&str; 2] = ["a change that the certificate does not state", "bytes that are no entry"];

#[test]
fn forged_tables_are_refused() {
    let (fixture, batch, certificate) = submitted();
    let before = tree(&*fixture.master());
    let honest = pairs(&fixture, &batch, &certificate);
    for (name, forge) in FORGERIES {
        if certificate.form == ProofForm::Log && NOT_OF_LOGS.contains(name) {
            continue;
        }
        let mut pairs = honest.clone();
        forge(&mut pairs);
        assert!(pairs != honest, "{name}: nothing is forged");
        let forged = with_pairs(&batch, &certificate, &pairs);
        let refused = fixture.primary.commit(batch.record.number, &forged, &*batch.files);
        let error = refused.err().unwrap_or_else(|| panic!("{name} was accepted"));
        assert!(matches!(error.kind, ErrorKind::InvalidInput | ErrorKind::Damaged), "{name}: {error}");
    }
    assert_eq!(tree(&*fixture.master()), before);
    // The batch without a forgery is accepted.
    let again = with_pairs(&batch, &certificate, &honest);
    fixture.primary.commit(batch.record.number, &again, &*batch.files).unwrap();
}

#[test]
fn no_mutation_of_a_certificate_is_accepted() {
    const MUTATIONS: usize = 100_000;
    let (fixture, batch, certificate) = submitted();
    let honest = certificate.encode();
    let mut random = Random::new(11);
    let (mut decoded, mut undecoded) = (0, 0);
    for mutation in 0..MUTATIONS {
        let mut bytes = honest.clone();
        match mutation % 10 {
            0 => bytes.truncate(random.below(honest.len())),
            1 => {
                let length = 1 + random.below(20);
                bytes.extend(random.bytes(length));
            }
            _ => {
                for _ in 0..1 + random.below(3) {
                    let at = random.below(bytes.len());
                    bytes[at] ^= 1 << random.below(8);
                }
            }
        }
        // Every user can compute the checksum, so most mutations get the right checksum.
        const CHECKSUM: std::ops::Range<usize> = 16..24;
        if mutation % 3 != 0 && bytes.len() > CHECKSUM.end {
            let checksum = xxhash_rust::xxh3::xxh3_64(&bytes[CHECKSUM.end..]);
            bytes[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
        }
        if bytes == honest {
            continue;
        }
        match Certificate::decode(&bytes) {
            Err(_) => undecoded += 1,
            Ok(mutated) => {
                decoded += 1;
                assert_ne!(mutated, certificate, "two encodings of one certificate");
                let refused = fixture.primary.commit(batch.record.number, &mutated, &*batch.files);
                assert!(refused.is_err(), "mutation {mutation}: {mutated:?}");
            }
        }
    }
    assert!(decoded > MUTATIONS / 20 && undecoded > MUTATIONS / 20, "{decoded} decoded, {undecoded} not");
    fixture.primary.commit(batch.record.number, &certificate, &*batch.files).unwrap();
}

#[test]
fn a_certificate_is_valid_for_its_own_batch_only() {
    let (fixture, batch, certificate) = submitted();
    // The certificates are submitted to another store, for a batch with the same operations.
    let (other, other_batch, _) = submitted();
    let stolen = Certificate { store: 8, ..certificate.clone() };
    for certificate in [&stolen, &Certificate { batch: 2, ..certificate.clone() }] {
        let refused = other.primary.commit(other_batch.record.number, certificate, &*batch.files);
        assert_eq!(refused.unwrap_err().kind, ErrorKind::InvalidInput);
    }
    fixture.primary.commit(batch.record.number, &certificate, &*batch.files).unwrap();
    let replayed = fixture.primary.commit(batch.record.number, &certificate, &*batch.files);
    assert_eq!(replayed.unwrap_err().kind, ErrorKind::InvalidInput);
    // A later batch of the same store.
    let later = fixture.begin();
    let replayed = fixture.primary.commit(later.record.number, &certificate, &*batch.files);
    assert_eq!(replayed.unwrap_err().kind, ErrorKind::InvalidInput);
}

#[test]
fn a_damaged_table_is_refused_or_read_as_it_was() {
    const MUTATIONS: usize = 20_000;
    let (_fixture, batch, certificate) = submitted();
    let (names, store) = (batch.names.read().unwrap(), certificate.store);
    let certificate = names.0.submit(store, &batch.record, &*batch.files, ProofForm::Certificate, 1).unwrap();
    let [table] = &certificate.tables[..] else { panic!("one table") };
    let honest = {
        let mut bytes = Vec::new();
        batch.files.open(table.number).unwrap().read_to_end(&mut bytes).unwrap();
        bytes
    };
    let entries_of = |bytes: &[u8]| -> quell_vfs::Result<Vec<Pair>> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        let table = Arc::new(Table::open(file, None, Arc::new(BlockCache::default()))?);
        let mut entries = table.entries();
        let mut pairs = Vec::new();
        while let Some((key, value)) = entries.next(|key, value| (key.to_vec(), value.to_vec()))? {
            // A footer with false keys hides entries from look-ups.
            let found = table.get(&key)?;
            assert!(found.is_none_or(|found| found == value));
            pairs.push((key, value));
        }
        Ok(pairs)
    };
    let expected = entries_of(&honest).unwrap();
    let mut random = Random::new(5);
    let mut refused = 0;
    for _ in 0..MUTATIONS {
        let mut bytes = honest.clone();
        match random.below(8) {
            0 => bytes.truncate(random.below(honest.len())),
            1 => bytes.extend(random.bytes(8)),
            _ => {
                let at = random.below(bytes.len());
                bytes[at] ^= 1 << random.below(8);
            }
        }
        match entries_of(&bytes) {
            Ok(found) => assert_eq!(found, expected),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > MUTATIONS * 9 / 10, "{refused}");
    // Every user can compute the checksums: the footer with other numbers, and its checksum.
    for _ in 0..MUTATIONS {
        let mut bytes = honest.clone();
        let trailer = bytes.len() - 32;
        let length = u64::from_le_bytes(bytes[trailer..trailer + 8].try_into().unwrap()) as usize;
        let footer = trailer - length..trailer;
        for _ in 0..1 + random.below(3) {
            let at = footer.start + random.below(length);
            bytes[at] = random.below(256) as u8;
        }
        let checksum = xxhash_rust::xxh3::xxh3_64(&bytes[footer]);
        bytes[trailer + 8..trailer + 16].copy_from_slice(&checksum.to_le_bytes());
        // Either the entries of the blocks are read, or there is an error.
        if let Ok(found) = entries_of(&bytes) {
            assert!(found.iter().all(|pair| expected.contains(pair)));
        }
    }
}
