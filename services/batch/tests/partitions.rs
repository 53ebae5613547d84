//! Directories that are divided between a primary server and partition servers have the same names
//! as in the reference model, also when servers end, and beside batches.

mod stores;

use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use quell_batch_service::{
    Assignment, FoundNode, Inode, InodeChange, MemoryEntries, NameSpace, NewAssignment, NewNode, Obstacle,
    PartitionServers, PartitionStore, Place, Primary, Quota, QuotaSubject, ROOT, Removed, Renamed,
    ReturnedChanges, Timestamp,
};
use quell_kv::{Batch, KeyRange, KeyValue, MemoryStore, Value};
use quell_testkit::Random;
use quell_vfs::{Error, ErrorKind, Kind, NewEntry, Rename, Result, Time};

use stores::operations::operation;
use stores::{FILE, Fixture, LATER, NEW, NOW, UnsyncedFiles, make_dir, make_file, tables, tree, usage};

/// The number of random sequences: the value of the variable `QUELL_HISTORIES`, or 60.
fn sequences() -> u64 {
    std::env::var("QUELL_HISTORIES").map_or(60, |text| text.parse().expect("a number"))
}

/// A key-value store whose process ends at a call.
struct Ending {
    store: MemoryStore,
    /// The number of calls until the end. `None`: it does not end.
    calls: Mutex<Option<u64>>,
}

impl Ending {
    fn new() -> Arc<Ending> {
        Arc::new(Ending { store: MemoryStore::new(), calls: Mutex::new(None) })
    }

    fn end_after(&self, calls: Option<u64>) {
        *self.calls.lock().unwrap() = calls;
    }

    fn has_ended(&self) -> bool {
        *self.calls.lock().unwrap() == Some(0)
    }

    /// Counts a call. From the end on, all calls fail.
    fn count(&self) -> Result<()> {
        match &mut *self.calls.lock().unwrap() {
            None => Ok(()),
            Some(0) => Err(Error::new(ErrorKind::Os(5), "use a process that has ended", "")),
            Some(calls) => {
                *calls -= 1;
                Ok(())
            }
        }
    }
}

impl KeyValue for Ending {
    fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        self.count()?;
        self.store.get(key)
    }

    fn scan(&self, range: &KeyRange<'_>, visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        self.count()?;
        self.store.scan(range, visit)
    }

    fn commit(&self, batch: Batch) -> Result<()> {
        self.count()?;
        self.store.commit(batch)
    }

    fn sync(&self) -> Result<()> {
        self.count()?;
        self.store.sync()
    }

    fn size_bytes(&self) -> Result<u64> {
        self.store.size_bytes()
    }
}

/// A partition server in this process.
struct Server {
    store: Arc<Ending>,
    /// `None` if it is not running.
    running: Mutex<Option<Arc<PartitionStore>>>,
    /// The number of assignments that it refuses.
    refuses: Mutex<u32>,
}

/// The partition servers of a store, with the numbers 1, 2, ...
#[derive(Clone)]
struct Servers {
    files: Arc<UnsyncedFiles>,
    servers: Arc<Vec<Server>>,
}

impl Servers {
    fn new(fixture: &Fixture, count: usize) -> Servers {
        let server = |_| Server { store: Ending::new(), running: Mutex::new(None), refuses: Mutex::new(0) };
        let files = Arc::new(tables(&fixture.directory.path().join("image")));
        Servers { files, servers: Arc::new((0..count).map(server).collect()) }
    }

    /// Returns a server, and starts it if it is not running.
    fn server(&self, number: u32) -> Arc<PartitionStore> {
        let server = &self.servers[number as usize - 1];
        let mut running = server.running.lock().unwrap();
        let open = || Arc::new(PartitionStore::open(server.store.clone(), self.files.clone()).unwrap());
        running.get_or_insert_with(open).clone()
    }

    fn end(&self, number: u32) {
        *self.servers[number as usize - 1].running.lock().unwrap() = None;
    }
}

impl PartitionServers for Servers {
    fn available(&self) -> Result<Vec<u32>> {
        Ok((1..=self.servers.len() as u32).collect())
    }

    fn assign(&self, new: &NewAssignment) -> Result<()> {
        let mut refuses = self.servers[new.assignment.server as usize - 1].refuses.lock().unwrap();
        if *refuses > 0 {
            *refuses -= 1;
            return Err(Error::new(ErrorKind::Unavailable, "assign", ""));
        }
        self.server(new.assignment.server).assign(new.clone())
    }

    fn give_back(&self, assignment: &Assignment) -> Result<ReturnedChanges> {
        self.server(assignment.server).give_back(assignment.number)
    }

    fn forget(&self, assignment: &Assignment) -> Result<()> {
        self.server(assignment.server).forget(assignment.number)
    }

    fn touched(&self, server: u32, dir: u64, number: u64) -> Result<Option<Timestamp>> {
        self.server(server).touched(dir, number)
    }

    fn sync(&self, server: u32) -> Result<()> {
        self.server(server).sync()
    }
}

/// A client, which sends operations on one name to the partition server of the name.
struct Client<'a> {
    primary: &'a Primary,
    servers: &'a Servers,
}

impl Client<'_> {
    fn routed<T>(&self, dir: u64, name: &[u8], operation: impl Fn(&dyn NameSpace) -> Result<T>) -> Result<T> {
        for _ in 0..3 {
            let map = self.primary.servers_of(dir, name)?;
            let Some(server) = map.and_then(|map| map.server_of(name)) else { break };
            let done = operation(self.servers.server(server).name_space());
            match done.as_ref().err().and_then(Obstacle::of) {
                Some(Obstacle::NotAssigned) => {}
                Some(_) => break,
                None => return done,
            }
        }
        operation(&*self.primary.name_space())
    }

    fn routed_node<T>(
        &self,
        place: &Place,
        operation: impl Fn(&dyn NameSpace, &Place) -> Result<T>,
    ) -> Result<T> {
        match place {
            Place::Name { dir, name } => self.routed(*dir, name, |names| operation(names, place)),
            place => operation(&*self.primary.name_space(), place),
        }
    }
}

impl NameSpace for Client<'_> {
    fn is_shared(&self) -> bool {
        true
    }

    fn lookup(&self, dir: u64, name: &[u8]) -> Result<Option<FoundNode>> {
        self.routed(dir, name, |names| names.lookup(dir, name))
    }

    fn find(&self, number: u64, place: &Place) -> Result<FoundNode> {
        self.routed_node(place, |names, place| names.find(number, place))
    }

    fn parent(&self, dir: u64) -> Result<(u64, Vec<u8>)> {
        self.primary.name_space().parent(dir)
    }

    fn list(&self, dir: u64, after: &[u8], visit: &mut dyn FnMut(&[u8], u64, Kind) -> bool) -> Result<()> {
        self.primary.name_space().list(dir, after, visit)
    }

    fn create(&self, dir: u64, name: &[u8], node: NewNode, new: NewEntry, now: Time) -> Result<FoundNode> {
        if node == NewNode::Dir {
            return self.primary.name_space().create(dir, name, node, new, now);
        }
        self.routed(dir, name, |names| names.create(dir, name, node.clone(), new, now))
    }

    fn link(&self, node: (u64, &Place), dir: u64, name: &[u8], now: Time) -> Result<FoundNode> {
        self.primary.name_space().link(node, dir, name, now)
    }

    fn remove(&self, dir: u64, name: &[u8], now: Time) -> Result<Removed> {
        self.routed(dir, name, |names| names.remove(dir, name, now))
    }

    fn remove_dir(&self, dir: u64, name: &[u8], now: Time) -> Result<Removed> {
        self.primary.name_space().remove_dir(dir, name, now)
    }

    fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), mode: Rename, now: Time) -> Result<Renamed> {
        self.primary.name_space().rename(from, to, mode, now)
    }

    fn change(&self, (number, place): (u64, &Place), change: &InodeChange, now: Time) -> Result<Inode> {
        self.routed_node(place, |names, place| names.change((number, place), change, now))
    }

    fn quota(&self) -> Result<Option<Quota>> {
        self.primary.name_space().quota()
    }

    fn sync(&self) -> Result<()> {
        self.primary.name_space().sync()
    }
}

/// Returns a store whose directories are divided after `creations` creations.
fn divided(count: usize, creations: u64) -> (Fixture, Servers) {
    let mut fixture = Fixture::new();
    let servers = Servers::new(&fixture, count);
    fixture.primary = restarted(&fixture, &servers, creations).unwrap();
    (fixture, servers)
}

fn restarted(fixture: &Fixture, servers: &Servers, creations: u64) -> Result<Primary> {
    let primary = Primary::open(fixture.store.clone(), servers.files.clone())?;
    let primary = primary.with_partition_servers(Box::new(servers.clone()), creations, Duration::ZERO);
    primary.take_back_all()?;
    Ok(primary)
}

fn inode_numbers(names: &dyn NameSpace, dir: u64) -> Vec<u64> {
    let mut numbers = Vec::new();
    names
        .list(dir, b"", &mut |_, number, _| {
            numbers.push(number);
            true
        })
        .unwrap();
    numbers
}

#[test]
fn random_operations_on_divided_directories_match_the_model() {
    let (mut taken_back, mut divisions, mut restarts) = (0, 0, 0);
    for seed in 0..sequences() {
        let mut random = Random::new(seed);
        let count = 1 + random.below(4);
        let (mut fixture, servers) = divided(count, 1 + random.below(3) as u64);
        let model = RwLock::new(MemoryEntries::new(NEW, NOW));
        for round in 0..10 {
            let open = random.one_in(4).then(|| fixture.begin());
            for step in 0..random.below(60) {
                let client = Client { primary: &fixture.primary, servers: &servers };
                let names: &dyn NameSpace = open.as_ref().map_or(&client, |open| &open.names);
                let operation = operation(&mut random);
                let (found, expected) = (operation.run(names), operation.run(&model));
                let kind = |result: Result<()>| result.map_err(|error| error.kind);
                assert_eq!(kind(found), kind(expected), "seed {seed}, {round}.{step}, {operation:?}");
                if random.one_in(10) {
                    servers.end(1 + random.below(count) as u32);
                    restarts += 1;
                }
            }
            let counters = fixture.primary.partition_counters();
            assert_eq!(counters.failed, 0);
            if let Some(open) = &open {
                assert_eq!(fixture.conflicts(open), [], "seed {seed}, round {round}");
            } else if random.one_in(3) {
                // The primary server ends without taking back partitions.
                (taken_back, divisions) = (taken_back + counters.taken_back, divisions + counters.divided);
                fixture.primary = restarted(&fixture, &servers, 1 + random.below(3) as u64).unwrap();
            }
            let client = Client { primary: &fixture.primary, servers: &servers };
            assert_eq!(tree(&client), tree(&model), "seed {seed}, round {round}");
            // The counted use of the users is compared with all entries, too.
            fixture.check(&format!("seed {seed}, round {round}"));
        }
    }
    let enough = sequences() / 2;
    assert!(
        divisions > enough && taken_back > enough && restarts > enough,
        "{divisions} {taken_back} {restarts}"
    );
}

#[test]
fn a_directory_is_divided_further_until_each_server_has_a_part_of_it() {
    let (fixture, servers) = divided(3, 10);
    let client = Client { primary: &fixture.primary, servers: &servers };
    let dir = make_dir(&client, ROOT, "large");
    let (mut numbers, mut depths) = (Vec::new(), Vec::new());
    for number in 0..400 {
        let name = format!("file-{number}");
        numbers.push(make_file(&client, dir, &name).inode.number);
        let map = (0..400)
            .find_map(|at: u32| fixture.primary.servers_of(dir, format!("new-{at}").as_bytes()).unwrap());
        depths.extend(map.map(|map| (map.depth, map.servers.len())));
    }
    depths.dedup();
    assert_eq!(depths, [(1, 2), (2, 4)]);
    let assigned: usize = (1..=3).map(|number| servers.server(number).assignments().unwrap()).sum();
    assert_eq!(assigned, 3);
    // Each server creates inodes with other numbers.
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 400);
    assert_eq!(inode_numbers(&client, dir).len(), 400);
    let counters = fixture.primary.partition_counters();
    assert_eq!((counters.divided, counters.taken_back, counters.failed), (2, 2, 0));
    // The servers keep nothing of assignments that have ended.
    let assigned: usize = (1..=3).map(|number| servers.server(number).assignments().unwrap()).sum();
    assert_eq!(assigned, 0);
}

#[test]
fn names_that_the_primary_server_alone_changes_do_not_end_the_division() {
    let (fixture, servers) = divided(1, 20);
    let client = Client { primary: &fixture.primary, servers: &servers };
    let dir = make_dir(&client, ROOT, "large");
    let subdirs: Vec<u64> = (0..8).map(|number| make_dir(&client, dir, &format!("dir-{number}"))).collect();
    for number in 0..40 {
        make_file(&client, dir, &format!("file-{number}"));
    }
    assert_eq!(fixture.primary.partition_counters().divided, 1);
    for (number, subdir) in subdirs.iter().enumerate() {
        let found = client.lookup(dir, format!("dir-{number}").as_bytes()).unwrap().unwrap();
        assert_eq!(found.inode.number, *subdir);
        make_file(&client, *subdir, "file");
    }
    assert_eq!(fixture.primary.partition_counters().taken_back, 0);
    // A directory can be created and removed in each partition.
    for (number, subdir) in subdirs.iter().enumerate() {
        client.remove(*subdir, b"file", LATER).unwrap();
        client.remove_dir(dir, format!("dir-{number}").as_bytes(), LATER).unwrap();
    }
    assert!(fixture.primary.partition_counters().taken_back > 0);
}

#[test]
fn a_divided_directory_has_the_time_of_the_last_change_by_any_server() {
    let (fixture, servers) = divided(2, 4);
    let client = Client { primary: &fixture.primary, servers: &servers };
    let dir = make_dir(&client, ROOT, "large");
    for number in 0..64 {
        let now = Time { seconds: 1000 + number, nanoseconds: 5 };
        client.create(dir, format!("file-{number}").as_bytes(), NewNode::File, FILE, now).unwrap();
        let by_place = client.find(dir, &Place::Dir(dir)).unwrap().inode;
        let by_name = client.lookup(ROOT, b"large").unwrap().unwrap().inode;
        assert_eq!((by_place.modified, by_place.changed), (now.into(), now.into()), "{number}");
        assert_eq!(by_name, by_place);
    }
    assert!(fixture.primary.partition_counters().divided > 0);
    // The times that a program sets are not replaced by those of earlier changes.
    let change = InodeChange { modified: Some(Timestamp(7, 8)), ..InodeChange::default() };
    client.change((dir, &Place::Dir(dir)), &change, LATER).unwrap();
    assert_eq!(client.find(dir, &Place::Dir(dir)).unwrap().inode.modified, Timestamp(7, 8));
    fixture.primary.take_back_all().unwrap();
    assert_eq!(client.find(dir, &Place::Dir(dir)).unwrap().inode.modified, Timestamp(7, 8));
}

#[test]
fn a_directory_is_used_as_before_if_a_server_accepts_no_partition() {
    let (fixture, servers) = divided(2, 10);
    let client = Client { primary: &fixture.primary, servers: &servers };
    *servers.servers[0].refuses.lock().unwrap() = 1;
    *servers.servers[1].refuses.lock().unwrap() = 1;
    let dir = make_dir(&client, ROOT, "large");
    for number in 0..100 {
        make_file(&client, dir, &format!("file-{number}"));
    }
    assert!(fixture.primary.partition_counters().failed > 0);
    assert_eq!(inode_numbers(&client, dir).len(), 100);
}

#[test]
fn an_assignment_that_was_taken_back_before_it_was_received_is_refused() {
    let (fixture, servers) = divided(1, 0);
    let client = Client { primary: &fixture.primary, servers: &servers };
    let dir = make_dir(&client, ROOT, "large");
    (0..10).for_each(|number| drop(make_file(&client, dir, &format!("file-{number}"))));
    let inode = client.find(dir, &Place::Dir(dir)).unwrap().inode;
    let server = servers.server(1);
    let partitions = quell_batch_service::SlotPartitions { dir, depth: 1, slots: 2, slot: 1 };
    let assignment = Assignment { number: 1 << 30, server: 1, partitions, tables: Vec::new(), inodes: 0..1 };
    let returned = server.give_back(assignment.number).unwrap();
    assert_eq!((returned.table, returned.touched), (None, None));
    let refused = server.assign(NewAssignment { assignment, dir: inode }).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Stale);
}

#[test]
fn limits_of_the_use_end_the_division_of_directories() {
    let (fixture, servers) = divided(1, 10);
    let client = Client { primary: &fixture.primary, servers: &servers };
    let dir = make_dir(&client, ROOT, "large");
    (0..50).for_each(|number| drop(make_file(&client, dir, &format!("file-{number}"))));
    assert_eq!(fixture.primary.partition_counters().divided, 1);
    let number = quell_batch_service::NumberChange::Set(60);
    let kept = quell_batch_service::NumberChange::Keep;
    let change = quell_batch_service::LimitChange { inodes: number, bytes: kept };
    fixture.primary.set_limit(QuotaSubject::Store, change).unwrap();
    assert_eq!(usage(&fixture.primary)[0].1.inodes, 52);
    let create = |number| client.create(dir, format!("new-{number}").as_bytes(), NewNode::File, FILE, NOW);
    (0..8).for_each(|number| drop(create(number).unwrap()));
    assert_eq!(create(8).unwrap_err().kind, ErrorKind::Quota);
}

#[test]
fn operations_of_several_threads_on_a_divided_directory_are_all_kept() {
    let (fixture, servers) = divided(3, 50);
    let dir = make_dir(&*fixture.master(), ROOT, "large");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (fixture, servers) = (&fixture, &servers);
            scope.spawn(move || {
                let client = Client { primary: &fixture.primary, servers };
                for number in 0..300 {
                    let name = format!("{thread}-{number}");
                    make_file(&client, dir, &name);
                    if number % 3 == 0 {
                        client.remove(dir, name.as_bytes(), LATER).unwrap();
                    }
                    if number % 60 == 0 {
                        // It needs all names.
                        inode_numbers(&client, dir);
                    }
                }
            });
        }
    });
    assert!(fixture.primary.partition_counters().divided > 2);
    let client = Client { primary: &fixture.primary, servers: &servers };
    assert_eq!(inode_numbers(&client, dir).len(), 4 * 200);
    fixture.check("after all threads");
}

/// Ends one of the processes at a call of its key-value store, in cases that a seed determines. All
/// operations that have returned before are kept, and the interrupted one was executed or not.
#[test]
fn no_operation_is_lost_if_a_process_ends_at_any_call() {
    let (mut interrupted, mut of_primary) = (0, 0);
    for seed in 0..sequences() * 5 {
        let mut random = Random::new(seed);
        let count = 1 + random.below(3);
        let fixture = Fixture::new();
        let servers = Servers::new(&fixture, count);
        let store = Ending::new();
        quell_batch_service::Image::create(&*store, 7, NEW, NOW).unwrap();
        let open = |servers: &Servers| {
            let primary = Primary::open(store.clone(), servers.files.clone()).unwrap();
            primary.with_partition_servers(Box::new(servers.clone()), 2, Duration::ZERO)
        };
        let mut primary = open(&servers);
        let model = RwLock::new(MemoryEntries::new(NEW, NOW));
        for round in 0..4 {
            let ends = random.below(count + 1);
            let ending = if ends == 0 { &store } else { &servers.servers[ends - 1].store }.clone();
            ending.end_after(Some(1 + random.below(200) as u64));
            for step in 0..60 {
                let operation = operation(&mut random);
                let before = model.read().unwrap().0.clone();
                let found = operation.run(&Client { primary: &primary, servers: &servers });
                let expected = operation.run(&model);
                let kind = |result: Result<()>| result.map_err(|error| error.kind);
                if !ending.has_ended() {
                    let text = format!("seed {seed}, {round}.{step}, {operation:?}");
                    assert_eq!(kind(found), kind(expected), "{text}");
                    continue;
                }
                // The process is replaced, and the others continue.
                ending.end_after(None);
                interrupted += 1;
                if ends == 0 {
                    of_primary += 1;
                    primary = open(&servers);
                } else {
                    servers.end(ends as u32);
                }
                let after = tree(&Client { primary: &primary, servers: &servers });
                let was_executed = after == tree(&model);
                let model_before = RwLock::new(quell_batch_service::Names(before));
                let text = format!("seed {seed}, {round}.{step}, {operation:?}");
                assert!(
                    was_executed || after == tree(&model_before),
                    "{text}: {after:?}, {:?}",
                    tree(&model)
                );
                if !was_executed {
                    *model.write().unwrap() = model_before.into_inner().unwrap();
                }
                break;
            }
            ending.end_after(None);
        }
        let names = Client { primary: &primary, servers: &servers };
        assert_eq!(tree(&names), tree(&model), "seed {seed}");
        let mut problems = Vec::new();
        primary.check(false, &mut |problem| problems.push(problem.clone())).unwrap();
        assert_eq!(problems, [], "seed {seed}");
    }
    let enough = sequences() as usize;
    assert!(interrupted > enough && of_primary > enough / 4, "{interrupted} {of_primary}");
}
