//! Pools with several copies of all names and data: daemons are killed or stopped while programs
//! use the pool, and other daemons run their members.

use rustix::process::Signal;

use crate::pool::{Pool, is_incomplete};
use crate::skip;
use crate::stage::{eventually, send};

/// Waits until all copies exist.
fn expect_copies(pool: &Pool) {
    let is_complete = || pool.quell(&["pool", "status", "p", "--json"]).json()["is_complete"] == true;
    assert!(eventually(is_complete), "copies are missing");
}

/// Creates files of one and of several chunks, directories, links and names that are removed again.
const PREPARE: &str = "mkdir a a/b && ln -s b a/link && echo kept >a/b/kept && mv a/b/kept a/b/moved
    for i in 0 1 2 3 4 5 6 7 8 9; do
        head -c 3000000 /dev/zero | tr '\\0' $i >large$i && sync large$i || exit
        echo $i >gone$i && rm gone$i
    done
    truncate -s 100 large9 && touch -d '2020-01-02 03:04:05' large8 && chmod 640 large8";

/// Checks everything that `PREPARE` has created.
const CHECK: &str = "set -e
    [ \"$(cat a/link/moved)\" = kept ]; [ \"$(echo *)\" = 'a large0 large1 large2 large3 large4 large5 large6 large7 large8 large9' ]
    for i in 0 1 2 3 4 5 6 7 8; do
        [ $(wc -c <large$i) = 3000000 ] && [ $(tr -d $i <large$i | wc -c) = 0 ]
    done
    [ $(wc -c <large9) = 100 ]; [ $(stat -c %a-%Y large8) = 640-$(date -d '2020-01-02 03:04:05' +%s) ]
    echo right";

/// Creates 200 files, and prints the number of errors. Wrong contents of a file that was created
/// without an error count 1000. Before file 60, it runs the commands in place of `FAULT`.
const CREATE_FILES: &str = "mkdir -p new; i=0; bad=0; failed=' '
    while [ $i -lt 200 ]; do
        if [ $i = 60 ]; then
            FAULT
        fi
        (echo $i >new/f$i) || { bad=$((bad + 1)); failed=\"$failed$i \"; }
        i=$((i + 1))
    done
    i=0
    while [ $i -lt 200 ]; do
        case $failed in *\" $i \"*) ;; *) [ \"$(cat new/f$i)\" = $i ] || bad=$((bad + 1000)) ;; esac
        i=$((i + 1))
    done
    echo $bad; rm -r new";

fn create_files(pool: &Pool, fault: &str) {
    let bad: u32 = pool.sh(&CREATE_FILES.replace("FAULT", fault)).expect(0).text().trim().parse().unwrap();
    // Requests to the failed daemon are sent again.
    assert_eq!(bad, 0);
}

#[test]
fn nothing_is_lost_when_daemons_of_a_pool_with_copies_are_killed() {
    if is_incomplete() {
        skip!("no quelld or no libquell_preload.so beside the binary");
    }
    let pool = Pool::start_with(4, &["--replicas", "2"]);
    pool.sh(PREPARE).expect(0);
    let killed = pool.daemons()[1];
    create_files(&pool, &format!("kill -KILL {killed}"));
    assert_eq!(pool.sh(CHECK).expect(0).text(), "right\n");
    // Programs use the first daemon. Of the others, one more can fail after the copies exist again.
    expect_copies(&pool);
    let daemons = pool.daemons();
    let next = daemons.iter().find(|pid| **pid != killed && **pid != daemons[0]).unwrap();
    create_files(&pool, &format!("kill -KILL {next}"));
    expect_copies(&pool);
    assert_eq!(pool.sh(CHECK).expect(0).text(), "right\n");
    pool.sh("mkdir d && rmdir d && rm -r a large*").expect(0);
    assert_eq!(pool.sh("ls").expect(0).text(), "");
    pool.expect_nothing_left();
}

#[test]
fn a_stopped_daemon_of_a_pool_with_copies_is_replaced_and_ends_when_it_continues() {
    if is_incomplete() {
        skip!("no quelld or no libquell_preload.so beside the binary");
    }
    let pool = Pool::start_with(3, &["--replicas", "3"]);
    pool.sh(PREPARE).expect(0);
    let stopped = pool.daemons()[2];
    create_files(&pool, &format!("kill -STOP {stopped}"));
    assert_eq!(pool.sh(CHECK).expect(0).text(), "right\n");
    send(stopped, Signal::CONT);
    let has_ended = || !std::path::Path::new(&format!("/proc/{stopped}")).exists();
    assert!(eventually(has_ended), "the daemon does not end");
    expect_copies(&pool);
    assert_eq!(pool.sh(CHECK).expect(0).text(), "right\n");
    pool.expect_nothing_left();
}

#[test]
fn a_pool_in_memory_has_copies() {
    if is_incomplete() {
        skip!("no quelld or no libquell_preload.so beside the binary");
    }
    let stage = crate::stage::Stage::new();
    let files = stage.dir("files");
    let _data = stage.dir("data");
    let mut up = stage.quell();
    up.args(["pool", "up", "p", "--local", "3", "--memory", "64M", "--replicas", "2"]);
    let ended = stage.run(&mut up);
    if ended.err.contains("cannot create a file system in memory") {
        skip!("user namespaces are not permitted");
    }
    ended.expect(0);
    let pool = Pool { stage, files };
    pool.sh(PREPARE).expect(0);
    send(pool.daemons()[2], Signal::KILL);
    assert_eq!(pool.sh(CHECK).expect(0).text(), "right\n");
    expect_copies(&pool);
    pool.expect_nothing_left();
}

#[test]
fn a_pool_has_at_least_as_many_daemons_as_copies() {
    let stage = crate::stage::Stage::new();
    let refused =
        stage.run(stage.quell().args(["pool", "up", "p", "--local", "2", "--replicas", "3"])).expect(2);
    assert!(refused.err.contains("--replicas 3"), "{}", refused.err);
}
