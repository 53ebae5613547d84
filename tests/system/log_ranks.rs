//! Ranks of an MPI job write one file in a log mount, directly and through MPI-IO, and read the
//! data of other ranks: on one mount, and on two mounts of one store, as on two nodes.

use std::path::{Path, PathBuf};

use crate::log::{CONTAINERS, Fixture, walk};
use crate::log_fixture;
use crate::skip;
use crate::stage::why_no_openmpi;

const PROGRAM: &str = include_str!("log_ranks.c");
const RANKS: usize = 4;
/// The size that the program writes.
const FILE_BYTES: u64 = 8 * RANKS as u64 * 47_008;

/// The two implementations of MPI-IO in OpenMPI.
const DRIVERS: [&str; 2] = ["ompio", "romio321"];

/// Returns the number of pairs of logs of a file, according to `quell log stat` and the
/// directories.
fn pairs(fixture: &Fixture, name: &str) -> usize {
    let mut stat = fixture.stage.quell();
    stat.args(["log", "stat", "--json"]).arg(&fixture.store).arg(name);
    let report = fixture.stage.run(&mut stat).expect(0).json();
    assert_eq!((&report["size"], &report["held_bytes"]), (&FILE_BYTES.into(), &FILE_BYTES.into()), "{name}");
    let writers = report["writers"].as_array().unwrap();
    assert!(writers.iter().all(|writer| writer["open"].is_null()), "{name}: {report}");
    let mut found = [0; 2];
    walk(&fixture.store.join(format!("{name}.container")), &mut |path| {
        for (count, end) in found.iter_mut().zip(["data", "index"]) {
            *count += usize::from(path.extension().is_some_and(|extension| extension == end));
        }
    });
    assert_eq!(found, [writers.len(); 2], "{name}");
    writers.len()
}

#[test]
fn ranks_write_one_file_and_read_the_data_of_other_ranks() {
    if let Some(reason) = why_no_openmpi() {
        skip!("{reason}");
    }
    let fixture = log_fixture!();
    let program = fixture.stage.mpi_program("mpicc", "log_ranks", PROGRAM);
    let run = |driver: &str, pattern: &str, paths: [&Path; 2]| {
        let mut command = fixture.stage.mpirun(RANKS);
        command.args(["--mca", "io", driver]).arg(&program).arg(pattern).args(paths);
        // mpirun ends its ranks, too, before the test's own time limit.
        command.env("MPIEXEC_TIMEOUT", "60");
        fixture.stage.run(&mut command)
    };
    let plain = fixture.stage.dir("plain").join(fixture.stage.mpi_name("file"));
    for driver in DRIVERS {
        let direct = run(driver, "collective", [&plain, &plain]);
        if direct.code() != Some(0) {
            skip!("MPI-IO does not work here without Quell either: {}", direct.err);
        }
    }
    // An object would be the log of one more writer than there are ranks.
    let mount = || fixture.mount_with(&[&fixture.store], CONTAINERS);
    let (one, other) = (mount(), mount());
    for driver in DRIVERS {
        for pattern in ["plain", "independent", "collective", "strided", "sizes", "truncated"] {
            for (mounts, second) in [("one", &one), ("two", &other)] {
                if pattern == "plain" && driver != DRIVERS[0] {
                    continue; // it does not use MPI-IO
                }
                let name = fixture.stage.mpi_name(&format!("{driver}-{pattern}-{mounts}"));
                let paths = [&*one.point.join(&name), &*second.point.join(&name)];
                let ended = run(driver, pattern, paths).expect(0);
                assert!(
                    ended.text().contains(&format!("{pattern}: {RANKS} ranks\n")),
                    "{name}: {}",
                    ended.text()
                );
                let pairs = pairs(&fixture, &name);
                match pattern {
                    // MPI-IO chooses the ranks that write for all.
                    "collective" => assert!((1..=RANKS).contains(&pairs), "{name}: {pairs}"),
                    // Ranks that had the file open before set its size, and ended as writers then.
                    "sizes" => assert!((RANKS..=2 * RANKS).contains(&pairs), "{name}: {pairs}"),
                    _ => assert_eq!(pairs, RANKS, "{name}"),
                }
            }
        }
    }
    assert_eq!(fixture.open_records(), Vec::<PathBuf>::new());
    one.umount();
    other.umount();
    fixture.stage.expect_nothing_left();
}
