//! Daemons of a pool that are killed or stopped while programs use it: requests that need them fail
//! within a time limit, other requests succeed, and no files or processes remain.

use std::time::{Duration, Instant};

use crate::pool::{Pool, is_incomplete};
use crate::skip;

/// Creates 300 files, and prints how many were created and how many not. Before file 100, it runs
/// the commands in place of `FAULT`.
const CREATE_FILES: &str = "i=0; good=0; bad=0
    while [ $i -lt 300 ]; do
        if [ $i = 100 ]; then
            FAULT
        fi
        if (echo $i >f$i) 2>/dev/null; then good=$((good + 1)); else bad=$((bad + 1)); fi
        i=$((i + 1))
    done
    echo $good $bad";

/// Returns the numbers of files that were created and that were not.
fn create_files(pool: &Pool, fault: &str) -> (u32, u32) {
    let counts = pool.sh(&CREATE_FILES.replace("FAULT", fault)).expect(0).text();
    let (good, bad) = counts.trim().split_once(' ').expect("two numbers");
    (good.parse().unwrap(), bad.parse().unwrap())
}

#[test]
fn programs_go_on_without_a_daemon_that_is_killed_meanwhile() {
    if is_incomplete() {
        skip!("no quelld or no libquell_preload.so beside the binary");
    }
    let pool = Pool::start(3);
    // Programs use the first daemon, and the third one has the attributes of the root directory.
    let killed = pool.daemons()[1];
    let started = Instant::now();
    let (good, bad) = create_files(&pool, &format!("kill -KILL {killed}"));
    // Name and data of a file are on the other daemons with a probability of 4/9.
    assert!(good > 130 && bad > 40, "{good} of {} files were created", good + bad);
    // A file that was created before, and whose name and data are on other daemons, still exists,
    // and can be renamed and removed.
    let used = pool.sh("found=0; moved=0; removed=0; i=0
        while [ $i -lt 100 ]; do
            [ \"$(cat f$i 2>/dev/null)\" = $i ] && found=$((found + 1))
            mv f$i g$i 2>/dev/null && moved=$((moved + 1)) && rm g$i 2>/dev/null && removed=$((removed + 1))
            i=$((i + 1))
        done
        echo $found $moved $removed");
    let counts: Vec<u32> = used.expect(0).text().split_whitespace().map(|n| n.parse().unwrap()).collect();
    assert!(counts.iter().all(|count| (15..100).contains(count)), "{counts:?} were found, moved, removed");
    // Each of these needs all daemons.
    pool.sh("ls").expect(2);
    pool.sh("mkdir d && rmdir d").expect(1);
    // One wait of 5 seconds for each process that was the first to notice it, and the time for
    // hundreds of processes on a busy machine.
    assert!(started.elapsed() < Duration::from_secs(120), "{:?}", started.elapsed());
    pool.expect_nothing_left();
}

#[test]
fn programs_wait_for_a_daemon_that_is_stopped_and_go_on_when_it_continues() {
    if is_incomplete() {
        skip!("no quelld or no libquell_preload.so beside the binary");
    }
    let pool = Pool::start(3);
    let stopped = pool.daemons()[2];
    let fault = format!("kill -STOP {stopped}; (sleep 3; kill -CONT {stopped}) &");
    assert_eq!(create_files(&pool, &fault), (300, 0));
    let read = pool.sh("for i in 0 99 100 101 102 103 299; do cat f$i; done; rm f*; mkdir d; rmdir d; ls");
    assert_eq!(read.expect(0).text(), "0\n99\n100\n101\n102\n103\n299\n");
    pool.expect_nothing_left();
}
