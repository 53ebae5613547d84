//! Clients over TCP with keys of users of a store for a group: their rights, refused keys, and the
//! look-up of their groups.

mod served;

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use quell_batch::{BatchStore, UserKey, derive_user_key};
use quell_batch_server::{ServerOptions, UserGroups};
use quell_batch_service::{
    Attributes, Bytes, InodeChange, NewNode, PROTOCOL, Place, Reply, Request, Timestamp,
};
use quell_transport::peer::{Client, ClientKey, ClientSettings, Endpoint, PoolKey, Role};
use quell_vfs::{Error, ErrorKind, Result, errno};
use quell_wire::{decode, encode};

use served::{LONG, Served};

/// Users that no system has.
const MEMBER: u32 = 4_300_001;
const OTHER: u32 = 4_300_002;
const STRANGER: u32 = 4_300_003;
const UNKNOWN: u32 = 4_300_004;
const UNREADABLE: u32 = 4_300_005;
const SLOW: u32 = 4_300_006;
/// Users whose look-ups do not return.
const HELD: [u32; 2] = [4_300_007, 4_300_008];
/// As `STRANGER`; the look-ups are counted.
const FORMER: u32 = 4_300_009;

/// The number of look-ups of `FORMER`.
static LOOKUPS_OF_FORMER: AtomicUsize = AtomicUsize::new(0);

/// Whether the look-up of `SLOW` may return.
static RELEASED: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

/// Returns the group of this process, which is the group of the stores.
fn own_group() -> u32 {
    std::fs::metadata("/proc/self").unwrap().gid()
}

fn find_groups(uid: u32) -> io::Result<Option<UserGroups>> {
    match uid {
        SLOW => {
            let is_held = |released: &mut bool| !*released;
            drop(RELEASED.1.wait_while(RELEASED.0.lock().unwrap(), is_held).unwrap());
        }
        UNREADABLE => return Err(io::Error::other("no connection to the directory")),
        UNKNOWN => return Ok(None),
        uid if HELD.contains(&uid) => loop {
            std::thread::park();
        },
        FORMER => {
            LOOKUPS_OF_FORMER.fetch_add(1, Ordering::Relaxed);
            return Ok(Some(UserGroups { gid: uid, groups: vec![uid] }));
        }
        STRANGER => return Ok(Some(UserGroups { gid: uid, groups: vec![uid] })),
        _ => {}
    }
    Ok(Some(UserGroups { gid: uid, groups: vec![uid, own_group()] }))
}

/// Starts a server of a store for the group of this process, over TCP.
fn serve(options: ServerOptions) -> Served {
    Served::start_new(true, ServerOptions { find_groups, ..options }, |path| {
        BatchStore::create_for_group(path, own_group()).map(drop)
    })
}

/// Returns a key of a user that does not expire.
fn key_of(served: &Served, uid: u32) -> ClientKey {
    key_until(served, uid, None)
}

fn key_until(served: &Served, uid: u32, expires_s: Option<u64>) -> ClientKey {
    let content = derive_user_key(&served.path(), UserKey { uid, expires_s }).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    std::fs::write(&path, content).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    ClientKey::read(&path).unwrap()
}

fn connect(served: &Served, key: ClientKey) -> Client {
    let ClientKey { secret, description } = key;
    let settings = ClientSettings::new(Role::Batch, Endpoint::Tcp(served.address().unwrap()), secret);
    Client::start(ClientSettings { description, ..settings }).unwrap()
}

fn begin(client: &Client, request: &Request) -> std::sync::mpsc::Receiver<Result<Vec<u8>>> {
    begin_with(client, request, 1 << 20)
}

/// Sends a request whose reply has at most this length. The server limits the sum of these lengths
/// for each client.
fn begin_with(
    client: &Client,
    request: &Request,
    reply_bytes_max: u32,
) -> std::sync::mpsc::Receiver<Result<Vec<u8>>> {
    let (sender, receiver) = channel();
    let done = Box::new(move |result| _ = sender.send(result));
    client.call(encode(request), reply_bytes_max, Instant::now() + LONG, done);
    receiver
}

fn result_of(reply: Vec<u8>) -> Result<Reply> {
    match decode(&reply)? {
        Reply::Failed(failure) => Err(failure.into_error("test", b"")),
        reply => Ok(reply),
    }
}

fn call(client: &Client, request: &Request) -> Result<Reply> {
    result_of(begin(client, request).recv().unwrap()?)
}

fn hello(client: &Client) -> Result<Reply> {
    call(client, &Request::Hello { protocol: PROTOCOL })
}

fn create(name: &str, uid: u32, gid: u32) -> Request {
    Request::Create {
        dir: 0,
        name: Bytes(name.as_bytes().to_vec()),
        node: NewNode::File,
        new: Attributes { permissions: 0o666, uid, gid },
        now: Timestamp(5, 0),
    }
}

fn refused(result: Result<Reply>) -> (ErrorKind, String) {
    let error: Error = result.unwrap_err();
    (error.kind, error.to_string())
}

#[test]
fn a_client_with_a_key_has_the_rights_of_its_user() {
    let served = serve(ServerOptions::default());
    let client = connect(&served, key_of(&served, MEMBER));
    assert!(matches!(hello(&client), Ok(Reply::Welcome { .. })));
    // The user is that of the key, and the groups are those of the databases.
    let Ok(Reply::Found(Some(found))) = call(&client, &create("mine", MEMBER, own_group())) else { panic!() };
    assert_eq!((found.inode.uid, found.inode.gid), (MEMBER, own_group()));
    // The time is that of the server.
    assert!(found.inode.modified.0 > 1_000_000);
    for (uid, gid) in [(OTHER, MEMBER), (0, MEMBER)] {
        assert_eq!(refused(call(&client, &create("other", uid, gid))).0, ErrorKind::Os(errno::EPERM));
    }
    assert_eq!(refused(call(&client, &Request::Counters)).0, ErrorKind::PermissionDenied);
    let other = connect(&served, key_of(&served, OTHER));
    let remove = Request::Remove { dir: 0, name: Bytes(b"mine".to_vec()), now: Timestamp(5, 0) };
    // The top directory has the sticky bit.
    assert_eq!(refused(call(&other, &remove)).0, ErrorKind::Os(errno::EPERM));
    assert!(call(&client, &remove).is_ok());
    // The key of the store is still that of the owner.
    assert!(matches!(served.raw(&Request::Counters), Ok(Reply::Counters(_))));
}

#[test]
fn the_present_time_of_a_client_whose_clock_differs_is_the_present_time() {
    let served = serve(ServerOptions::default());
    let owner = connect(&served, key_of(&served, MEMBER));
    let Ok(Reply::Found(Some(found))) = call(&owner, &create("file", MEMBER, own_group())) else { panic!() };
    let other = connect(&served, key_of(&served, OTHER));
    let touch = |modified: i64, now: i64| Request::Change {
        number: found.inode.number,
        place: Place::Name { dir: 0, name: b"file".to_vec() },
        change: InodeChange { modified: Some(Timestamp(modified, 0)), ..InodeChange::default() },
        now: Timestamp(now, 0),
    };
    let Ok(Reply::Changed(inode)) = call(&other, &touch(1000, 1001)) else { panic!("touch is refused") };
    assert!(inode.modified.0 > 1_000_000, "the time is that of the server");
    // Only the owner of the file can set another time.
    assert_eq!(refused(call(&other, &touch(1000, 2000))).0, ErrorKind::Os(errno::EPERM));
    let Ok(Reply::Changed(inode)) = call(&owner, &touch(1000, 1001)) else { panic!() };
    assert_eq!(inode.modified, Timestamp(1000, 0));
}

#[test]
fn a_key_with_another_description_or_of_another_store_is_refused() {
    let served = serve(ServerOptions::default());
    let until = |uid, expires_s| UserKey { uid, expires_s }.encode().to_vec();
    let limited = || key_until(&served, MEMBER, Some(1 << 40));
    let of_other_store = key_of(&serve(ServerOptions::default()), MEMBER);
    let changed = [
        ClientKey { description: until(OTHER, Some(1 << 40)), ..limited() },
        ClientKey { description: until(MEMBER, Some(1 << 41)), ..limited() },
        ClientKey { description: until(MEMBER, None), ..limited() },
        ClientKey { description: Vec::new(), ..limited() },
        ClientKey { description: b"auxiliary server".to_vec(), ..limited() },
        ClientKey { secret: PoolKey([0; 32]), ..limited() },
        of_other_store,
    ];
    assert!(hello(&connect(&served, limited())).is_ok());
    std::thread::scope(|scope| {
        for key in changed {
            let client = connect(&served, key);
            scope.spawn(move || assert_eq!(refused(hello(&client)).0, ErrorKind::PermissionDenied));
        }
    });
    // Descriptions that the owner of the store could derive, and that are not those of users.
    let secret = ClientKey::read_underived(&served.path().join("key")).unwrap();
    let owner = std::fs::metadata(served.path()).unwrap().uid();
    let unknown =
        [until(0, None), until(owner, None), until(65_534, None), b"user".to_vec(), b"other".to_vec()];
    std::thread::scope(|scope| {
        for description in unknown {
            let client = connect(&served, ClientKey::derive(&secret, description.clone()));
            scope.spawn(move || {
                let (kind, reason) = refused(hello(&client));
                assert_eq!(kind, ErrorKind::Unsupported, "{description:?}: {reason}");
            });
        }
    });
}

#[test]
fn a_key_ends_with_the_key_of_the_store() {
    let mut served = serve(ServerOptions::default());
    let (old, key) = (key_of(&served, MEMBER), key_of(&served, MEMBER));
    assert!(hello(&connect(&served, old)).is_ok());
    std::fs::remove_file(served.path().join("key")).unwrap();
    served.restart(true);
    assert_eq!(refused(hello(&connect(&served, key))).0, ErrorKind::PermissionDenied);
    assert!(hello(&connect(&served, key_of(&served, MEMBER))).is_ok());
}

#[test]
fn a_key_ends_at_its_time_also_on_connections_that_exist() {
    let served = serve(ServerOptions::default());
    let client_until = |seconds| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        connect(&served, key_until(&served, MEMBER, Some(now + seconds)))
    };
    let is_expired = |(kind, reason): (ErrorKind, String)| {
        kind == ErrorKind::PermissionDenied && reason.contains("the key has expired")
    };
    assert!(is_expired(refused(hello(&client_until(0)))));
    // On a slow machine, a key can expire before the first request is executed.
    let client = (1..7).map(|power| client_until(1 << power)).find(|client| hello(client).is_ok());
    let client = client.expect("a request was executed within 64 s");
    let end = Instant::now() + LONG;
    while call(&client, &Request::Sync).is_ok() {
        assert!(Instant::now() < end, "the key has not expired");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(is_expired(refused(call(&client, &Request::Sync))));
}

#[test]
fn users_who_are_not_members_of_the_group_in_the_databases_are_refused() {
    let served = serve(ServerOptions::default());
    for (uid, kind, words) in [
        (UNKNOWN, ErrorKind::PermissionDenied, "user 4300004 is not known on the node of the server"),
        (STRANGER, ErrorKind::PermissionDenied, "user 4300003 is not a member of group"),
        (UNREADABLE, ErrorKind::Unavailable, "no connection to the directory"),
    ] {
        let client = connect(&served, key_of(&served, uid));
        let (found, reason) = refused(hello(&client));
        assert_eq!(found, kind, "{reason}");
        assert!(reason.contains(words), "{reason}");
    }
}

#[test]
fn a_refused_user_is_not_looked_up_again_for_each_request() {
    let served = serve(ServerOptions::default());
    let client = connect(&served, key_of(&served, FORMER));
    let begun = Instant::now();
    for _ in 0..50 {
        let (kind, reason) = refused(hello(&client));
        assert_eq!(kind, ErrorKind::PermissionDenied, "{reason}");
        assert!(reason.contains("user 4300009 is not a member of group"), "{reason}");
    }
    // A refusal is kept for 10 s.
    let lookups_max = 1 + begun.elapsed().as_secs() as usize / 10;
    assert!((1..=lookups_max).contains(&LOOKUPS_OF_FORMER.load(Ordering::Relaxed)));
}

#[test]
fn the_waiting_requests_of_a_user_are_limited_and_are_refused_when_the_server_ends() {
    let served = serve(ServerOptions::default());
    // They occupy the threads that look users up.
    let held = HELD.map(|uid| connect(&served, key_of(&served, uid)));
    let first: Vec<_> = held.iter().map(|held| begin(held, &Request::Sync)).collect();
    let client = connect(&served, key_of(&served, HELD[0]));
    let mut waiting: Vec<_> = (0..260).map(|_| begin_with(&client, &Request::Sync, 4096)).collect();
    // The two threads may have taken requests of this client.
    for beyond in waiting.split_off(252) {
        let (kind, reason) = refused(beyond.recv().unwrap().and_then(result_of));
        assert_eq!(kind, ErrorKind::Busy, "{reason}");
        assert!(reason.contains("250 requests of user 4300007 are waiting"), "{reason}");
    }
    served.stop();
    let refusals = waiting.into_iter().map(|reply| refused(reply.recv().unwrap().and_then(result_of)));
    let (ended, others): (Vec<_>, Vec<_>) =
        refusals.partition(|(kind, reason)| *kind == ErrorKind::Busy && reason.contains("the server ends"));
    // The threads have taken some of the requests; on a slow machine, their look-ups have ended.
    assert!(ended.len() > 200, "{others:?}");
    let is_refusal = |kind: &ErrorKind| matches!(kind, ErrorKind::Unavailable | ErrorKind::Busy);
    assert!(others.iter().all(|(kind, _)| is_refusal(kind)), "{others:?}");
    // Requests of the client may have occupied the threads before these.
    for reply in first {
        let (kind, reason) = refused(reply.recv().unwrap().and_then(result_of));
        assert!(is_refusal(&kind), "{reason}");
    }
}

#[test]
fn a_database_that_does_not_answer_delays_no_other_user() {
    let served = Arc::new(serve(ServerOptions { threads: 1, ..ServerOptions::default() }));
    let slow = connect(&served, key_of(&served, SLOW));
    let waiting = begin(&slow, &Request::Hello { protocol: PROTOCOL });
    let other = connect(&served, key_of(&served, MEMBER));
    assert!(hello(&other).is_ok() && call(&other, &Request::Sync).is_ok());
    assert!(served.raw(&Request::Sync).is_ok());
    // The request waits for a limited time only.
    let (kind, reason) = refused(waiting.recv().unwrap().and_then(result_of));
    assert_eq!(kind, ErrorKind::Unavailable, "{reason}");
    assert!(reason.contains("do not answer"), "{reason}");
    *RELEASED.0.lock().unwrap() = true;
    RELEASED.1.notify_all();
    let end = Instant::now() + LONG;
    while hello(&slow).is_err() {
        assert!(Instant::now() < end, "the look-up has not ended");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_keys_of_one_user_count_as_one_user() {
    let served = serve(ServerOptions { clients_max: 8, ..ServerOptions::default() });
    let client_until = |expires_s| connect(&served, key_until(&served, MEMBER, expires_s));
    // Each client begins to connect when it is created.
    let first = client_until(None);
    assert!(hello(&first).is_ok());
    let second = client_until(Some(1 << 40));
    assert!(hello(&second).is_ok());
    let (kind, reason) = refused(hello(&client_until(Some(1 << 41))));
    assert_eq!(kind, ErrorKind::Unavailable, "{reason}");
    assert!(reason.contains("maximum number of clients"), "{reason}");
    assert!(hello(&connect(&served, key_of(&served, OTHER))).is_ok());
}

#[test]
fn keys_are_derived_for_other_users_of_a_store_for_a_group_only() {
    let served = serve(ServerOptions::default());
    let owner = std::fs::metadata(served.path()).unwrap().uid();
    for uid in [owner, 0, 65_534] {
        let refused = derive_user_key(&served.path(), UserKey { uid, expires_s: None }).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::InvalidInput, "{uid}: {refused}");
    }
    let private = Served::start(true);
    let key = UserKey { uid: MEMBER, expires_s: None };
    assert_eq!(derive_user_key(&private.path(), key).unwrap_err().kind, ErrorKind::InvalidInput);
    // Its server does not know such keys either.
    let secret = ClientKey::read_underived(&private.path().join("key")).unwrap();
    let client = connect(&private, ClientKey::derive(&secret, key.encode().to_vec()));
    assert_eq!(refused(hello(&client)).0, ErrorKind::Unsupported);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    BatchStore::create_for_group(&path, own_group()).unwrap();
    assert_eq!(derive_user_key(&path, key).unwrap_err().kind, ErrorKind::NotFound);
}
