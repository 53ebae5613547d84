//! Reports for tests: the paper's MAKER, an empty one, a huge one, and one with hostile names.

use crate::report::{
    AccessMode, Directory, Elsewhere, LocationTotals, Locations, MetadataRates, NextStep, Nodes, NotProposed,
    Operation, PathNode, ProcessLane, Program, Rate, RatePoint, Remaining, Report, Reread, SCHEMA, Scenarios,
    Search, SearchDirectory, SharedTotals, SharedWrite, Skipped, SlowDown, SmallFiles, Totals, Tracing, Tree,
    Verdict, VerdictKind,
};

/// Returns MAKER as measured in the paper. The calls and bytes of each location are from its figure
/// 2, rates and nodes from its text. Their division (metadata and data, read and written,
/// directories, programs) is invented.
pub fn maker() -> Report {
    let location = |roots: &[&str], metadata, data, bytes_read, bytes_written, missing, on_shared, mode| {
        LocationTotals {
            roots: roots.iter().map(|root| (*root).to_owned()).collect(),
            metadata,
            data,
            bytes_read,
            bytes_written,
            missing,
            on_shared,
            mode,
        }
    };
    let (read_write, read_only) = (AccessMode::ReadWrite, AccessMode::ReadOnly);
    let sw = "/shared/sw/maker";
    let rates = Scenarios {
        direct: Rate { average: 483.0, peak: 10_454.0, peak_at_s: 42.0 },
        index: Rate { average: 6.2, peak: 104.0, peak_at_s: 41.0 },
        boot: Rate { average: 0.4, peak: 12.0, peak_at_s: 0.0 },
    };
    let remaining = Scenarios {
        direct: Remaining { metadata: 1_142_781, bytes_read: 2_807_495_139 },
        index: Remaining { metadata: 14_726, bytes_read: 2_809_395_139 },
        boot: Remaining { metadata: 948, bytes_read: 611_203_944 },
    };
    Report {
        schema: SCHEMA.to_owned(),
        made_by: "quell 0.1.0".to_owned(),
        command: ["mpiexec", "-n", "8", "maker", "-genome", "e coli.fasta", "maker_opts.ctl"]
            .map(str::to_owned)
            .to_vec(),
        traces: (1..=24).map(|n| format!("trace/maker.{}", 4000 + n)).collect(),
        started_s: 1_793_318_399.0,
        utc_offset_s: 3600,
        duration_s: 2366.0,
        host: Some("node17".to_owned()),
        job: Some("SLURM_JOB_ID=4711.0".to_owned()),
        verdict: Verdict {
            outcome: VerdictKind::Proposed,
            text: format!(
                "An index of {sw} leaves 14,726 of 1,142,781 metadata operations of one node (1.3 %), a boot image \
                 948 (0.08 %)."
            ),
        },
        tracing: Some(Tracing {
            tracer: "strace 6.13".to_owned(),
            traced_s: 2366.0,
            direct_s: 1012.0,
            slow_down: 2.34,
            how: SlowDown::Measured,
            exit_code: Some(0),
        }),
        totals: Totals {
            lines: 5_120_933,
            calls: 4_001_288,
            metadata: 2_412_019,
            data: 1_427_624,
            elsewhere: Elsewhere { no_file: 151_220, unknown: 10_311, bad: 114 },
            failed: 1_067_990,
            missing: 1_052_114,
            bytes_read: 5_010_998_112,
            bytes_written: 1_763_990_649,
            shared: SharedTotals {
                metadata: 1_142_781,
                data: 369_764,
                missing: 861_220,
                bytes_read: 2_807_495_139,
                bytes_written: 0,
            },
            processes: 18_244,
            paths: 96_312,
            by_call: [
                ("openat", 1_280_114),
                ("newfstatat", 811_902),
                ("read", 1_001_420),
                ("write", 301_774),
                ("access", 166_220),
                ("readlink", 81_004),
                ("getdents64", 30_112),
                ("execve", 18_244),
            ]
            .map(|(call, calls)| (call.to_owned(), calls))
            .into_iter()
            .collect(),
            skipped: Skipped {
                other_calls: 1_098_221,
                events: 19_004,
                resumed: 2_420,
                truncated: 2,
                unfinished: 1,
                examples: vec!["trace/maker.4007:88123: 1793318.221 openat(AT_FDCWD, \"/shar".to_owned()],
                ..Skipped::default()
            },
        },
        locations: Locations {
            cwd: location(
                &["/shared/home/ann/ecoli (panfs)"],
                97_060,
                160_000,
                402_117_004,
                1_033_111_804,
                4_410,
                257_060,
                read_write,
            ),
            tmp: location(
                &["/tmp (xfs)"],
                402_711,
                761_000,
                1_733_228_112,
                730_107_030,
                20_114,
                0,
                read_write,
            ),
            shared: location(
                &["/shared/sw (panfs)"],
                1_142_781,
                369_764,
                2_807_495_139,
                0,
                861_220,
                1_512_545,
                read_only,
            ),
            local: location(
                &["/usr", "/lib", "/etc"],
                769_467,
                136_860,
                68_929_672,
                0,
                166_370,
                0,
                read_only,
            ),
        },
        operations: [
            ("cwd", "metadata", "openat", 51_220, 4_410, 4_410, 0, 0, 3.25),
            ("cwd", "data", "write", 121_004, 0, 0, 0, 1_033_111_804, 9.5),
            ("tmp", "metadata", "unlink", 110_220, 3, 3, 0, 0, 1.125),
            ("shared", "metadata", "openat", 912_114, 861_220, 861_220, 0, 0, 88.5),
            ("shared", "data", "read", 369_764, 0, 0, 2_807_495_139, 0, 21.75),
            ("local", "metadata", "newfstatat", 511_902, 166_370, 166_370, 0, 0, 4.0),
            ("elsewhere", "data", "read", 151_220, 0, 0, 1_220_114, 0, 0.5),
        ]
        .map(|(location, class, call, calls, failed, missing, bytes_read, bytes_written, seconds)| {
            Operation {
                location: location.to_owned(),
                class: class.to_owned(),
                call: call.to_owned(),
                calls,
                failed,
                missing,
                bytes_read,
                bytes_written,
                seconds,
            }
        })
        .to_vec(),
        rate: bursts(2366),
        metadata_rate: MetadataRates { step_s: 1.0, window_s: 1.0, calls: rates.direct, scenarios: rates },
        path_tree: [
            (0, "", 1_142_781, true),
            (1, "/perl5", 470_000, true),
            (2, "/perl5/lib/site_perl/5.16.3", 439_432, true),
            (3, "/perl5/lib/site_perl/5.16.3/x86_64-linux-thread-multi", 198_410, true),
            (1, "/RepeatMasker", 190_012, true),
            (2, "/RepeatMasker/Libraries", 122_311, true),
            (1, "/openmpi/lib/openmpi", 90_227, true),
            (1, "/blast/bin", 88_004, true),
            (1, "/python2.7", 71_300, false),
        ]
        .map(|(depth, below, direct, in_tree)| PathNode {
            path: format!("{sw}{below}"),
            depth,
            operations: Scenarios { direct, index: direct / 80, boot: direct / 1200 },
            in_tree,
        })
        .to_vec(),
        processes: (0..9u32)
            .map(|number| ProcessLane {
                pid: u64::from(4000 + number),
                program: format!("{sw}/perl5/bin/perl"),
                begin_s: f64::from(number) * 120.0,
                end_s: f64::from(number) * 120.0 + 900.0,
                calls: 40_000,
                operations: 12_000 + u64::from(number),
                steps: (0..60).map(|step| u64::from((step * 7 + number * 13) % 40) * 10).collect(),
            })
            .collect(),
        directories: [
            ("/perl5/lib/site_perl/5.16.3", 241_022, 229_877),
            ("/perl5/lib/site_perl/5.16.3/x86_64-linux-thread-multi", 198_410, 187_004),
            ("/RepeatMasker/Libraries", 122_311, 21_004),
            ("/openmpi/lib/openmpi", 90_227, 55_120),
            ("/blast/bin", 88_004, 80_911),
            ("/python2.7/lib/python2.7/site-packages", 71_300, 68_200),
            ("/exonerate/lib", 40_020, 33_100),
            ("/lib", 22_114, 9_220),
            ("/data/te_proteins", 10_880, 0),
            ("/snap/HMM", 6_204, 102),
            ("/bin", 2_214, 1_100),
        ]
        .map(|(below, metadata, missing)| Directory {
            path: format!("{sw}{below}"),
            location: "shared".to_owned(),
            metadata,
            missing,
            data: metadata / 7,
            bytes_read: metadata * 2210,
            bytes_written: 0,
            remaining: Scenarios { direct: metadata, index: metadata / 80, boot: metadata / 1200 },
        })
        .to_vec(),
        programs: [
            ("/perl5/bin/perl", 1204, 801_220, 611_004, 511_220),
            ("/blast/bin/blastx", 9021, 411_007, 260_114, 180_440),
            ("/RepeatMasker/RepeatMasker", 410, 190_012, 120_449, 80_224),
            ("/exonerate/bin/exonerate", 2207, 120_660, 71_020, 60_114),
        ]
        .map(|(below, processes, metadata, shared, missing)| Program {
            path: format!("{sw}{below}"),
            processes,
            metadata,
            shared,
            missing,
            missing_shared: missing / 2,
            data: metadata / 3,
        })
        .to_vec(),
        searches: vec![
            Search {
                variable: "PERL5LIB".to_owned(),
                how: "environment".to_owned(),
                missing: 511_220,
                shared: 508_114,
                found: 61_300,
                directories: vec![
                    SearchDirectory {
                        path: format!("{sw}/perl5/lib/site_perl/5.16.3"),
                        missing: 229_877,
                        found: 11_145,
                    },
                    SearchDirectory {
                        path: format!("{sw}/perl5/lib/5.16.3"),
                        missing: 187_004,
                        found: 50_155,
                    },
                ],
            },
            Search {
                variable: "LD_LIBRARY_PATH or RPATH".to_owned(),
                how: "names".to_owned(),
                missing: 210_004,
                shared: 188_220,
                found: 71_300,
                directories: vec![SearchDirectory {
                    path: format!("{sw}/openmpi/lib"),
                    missing: 55_120,
                    found: 35_107,
                }],
            },
        ],
        rereads: vec![Reread {
            path: format!("{sw}/data/te_proteins/te_proteins.fasta"),
            location: "shared".to_owned(),
            opens: 4402,
            processes: 2201,
            bytes_read: 1_940_221_004,
            times: 212.4,
        }],
        shared_writes: vec![SharedWrite {
            path: "/shared/home/ann/ecoli/ecoli.maker.output/datastore_index.log".to_owned(),
            location: "cwd".to_owned(),
            on_shared: true,
            writers: 8,
            writes: 41_220,
            bytes_written: 3_110_448,
            record: 75,
        }],
        small_files: vec![SmallFiles {
            directory: "/shared/home/ann/ecoli/ecoli.maker.output/theVoid".to_owned(),
            location: "cwd".to_owned(),
            files: 11_022,
            bytes_written: 90_221_004,
        }],
        trees: vec![Tree {
            path: sw.to_owned(),
            file_system: "panfs".to_owned(),
            metadata: 1_130_022,
            missing: 861_220,
            opens: 50_894,
            files_opened: 2_118,
            small_files_opened: 1_304,
            check: None,
            remaining,
        }],
        not_proposed: vec![
            NotProposed {
                path: "/shared/home/ann/ecoli".to_owned(),
                metadata: 97_060,
                why: "the program changed /shared/home/ann/ecoli/log".to_owned(),
                only_bytecode: false,
            },
            NotProposed {
                path: "/tmp".to_owned(),
                metadata: 402_711,
                why: "the program changed /tmp/x".to_owned(),
                only_bytecode: false,
            },
        ],
        remaining,
        nodes: Some(Nodes {
            direct: Some(66),
            index: Some(5000),
            boot: None,
            by_peak: Scenarios { direct: Some(3), index: Some(307), boot: Some(2600) },
            capacity: 32_000.0,
            capacity_from: "--capacity 32000".to_owned(),
            leaves_out: vec![
                "other users of the file system".to_owned(),
                "bursts of several nodes that coincide".to_owned(),
            ],
        }),
        next: vec![
            NextStep {
                purpose: "Index the tree".to_owned(),
                command: format!("quell index {sw} -o report/maker.quell"),
            },
            NextStep {
                purpose: "Run the program with the index".to_owned(),
                command: "quell run --config report/quell.toml -- mpiexec -n 8 maker -genome 'e coli.fasta' \
                          maker_opts.ctl"
                    .to_owned(),
            },
        ],
        notes: vec![
            "operations are estimated for a node with cold caches".to_owned(),
            "10,311 calls use descriptors whose paths are not in the traces".to_owned(),
        ],
    }
}

/// Returns bursts at the start, in the middle and at the end, with a low rate in between, as in the
/// paper's figure 1.
fn bursts(steps: usize) -> Vec<RatePoint> {
    let step = |n: usize| {
        let part = n as f64 / steps as f64;
        // Irregular, but deterministic, so that the drawing is the same every time.
        let uneven = (n * 7919 % 101) as f64 / 101.0;
        let burst = match part {
            p if p < 0.025 => 8000.0,
            p if (0.4..0.47).contains(&p) => 2400.0,
            p if p > 0.93 => 1500.0,
            p if (p * 40.0).fract() < 0.12 => 900.0,
            _ => 60.0,
        };
        let metadata = if n == 42 { 10_454.0 } else { burst * (0.25 + uneven) };
        let index = if metadata > 3000.0 { metadata / 100.0 } else { (metadata / 90.0).floor() };
        RatePoint {
            t: n as f64,
            metadata,
            data: metadata / 3.0,
            direct: metadata * 0.8,
            index,
            boot: if n < 8 { 12.0 - n as f64 } else { (index / 20.0).floor() },
            elsewhere: 400.0 * uneven,
        }
    };
    (0..steps).map(step).collect()
}

/// Returns a report that is larger than any real one.
pub fn huge() -> Report {
    let mut report = maker();
    report.rate = bursts(100_000);
    report.duration_s = 1e9;
    for (repeat, list) in [(3000, &mut report.notes), (5000, &mut report.traces)] {
        *list = list.iter().cycle().take(repeat).enumerate().map(|(n, text)| format!("{text} {n}")).collect();
    }
    report.next = report.next.iter().cycle().take(400).cloned().collect();
    report.path_tree = report.path_tree.iter().cycle().take(20_000).cloned().collect();
    report.processes = report.processes.iter().cycle().take(20_000).cloned().collect();
    report.processes.iter_mut().for_each(|process| process.steps = vec![u64::MAX; 1000]);
    report.directories = report.directories.iter().cycle().take(20_000).cloned().collect();
    report.programs = report.programs.iter().cycle().take(20_000).cloned().collect();
    report.searches = report.searches.iter().cycle().take(2000).cloned().collect();
    for search in &mut report.searches {
        search.directories = search.directories.iter().cycle().take(300).cloned().collect();
    }
    report.rereads = report.rereads.iter().cycle().take(20_000).cloned().collect();
    report.shared_writes = report.shared_writes.iter().cycle().take(20_000).cloned().collect();
    report.small_files = report.small_files.iter().cycle().take(20_000).cloned().collect();
    report.trees = report.trees.iter().cycle().take(2000).cloned().collect();
    report.not_proposed = report.not_proposed.iter().cycle().take(2000).cloned().collect();
    report.totals.by_call = (0..500).map(|n| (format!("call{n}"), u64::MAX - n)).collect();
    report.totals.skipped.examples = vec!["x".repeat(4000); 2000];
    report.command = vec!["argument".to_owned(); 50_000];
    for totals in [&mut report.locations.cwd, &mut report.locations.shared] {
        (totals.metadata, totals.data) = (u64::MAX, u64::MAX - 1);
        (totals.bytes_read, totals.bytes_written) = (u64::MAX, u64::MAX);
        totals.roots = (0..3000).map(|n| format!("/shared/{n} (lustre)")).collect();
    }
    report.remaining.direct.metadata = u64::MAX;
    report.metadata_rate.scenarios.direct = Rate { average: 1e15, peak: 1e18, peak_at_s: 1e9 };
    report.nodes.as_mut().expect("it has some").leaves_out = vec!["something".repeat(300); 500];
    report
}

/// Text that could be misinterpreted by a browser or a terminal, or mislead a reader.
pub const HOSTILE: [&str; 9] = [
    "</title><script>alert(1)</script>",
    "\"><img src=x onerror=alert(2)>",
    "'; alert(3); '",
    "{{ 7 * 7 }}{% raw %}&amp;&lt;",
    "\x1b[2J\x1b]0;title\x07\0\x08\r\n<b>bold",
    "\u{202e}txt.exe\u{2066}\u{200f}\u{feff}\u{2028}",
    "]]></style></svg><script>alert(4)</script><!--",
    "javascript:alert(5)",
    "z\u{0335}\u{0321}\u{0322}a\u{0334}\u{0315}l\u{0337}g\u{0335}o 模型 نموذج",
];

/// Returns `maker` with every text that comes from a trace or a command line replaced by hostile
/// text; one in ten has 4,000 bytes.
pub fn hostile() -> Report {
    let mut report = maker();
    let mut at = 0;
    let mut next = || {
        at += 1;
        match at % 10 {
            0 => format!("/{}", "<x-\u{202e}>".repeat(500)),
            n => format!("/shared/{}", HOSTILE[n - 1]),
        }
    };
    report.made_by = next();
    report.command = (0..20).map(|_| next()).collect();
    report.traces = (0..20).map(|_| next()).collect();
    report.next = (0..20).map(|_| NextStep { purpose: next(), command: next() }).collect();
    (report.host, report.job) = (Some(next()), Some(next()));
    report.verdict.text = next();
    report.path_tree.iter_mut().for_each(|node| node.path = next());
    report.processes.iter_mut().for_each(|process| process.program = next());
    report.notes = (0..20).map(|_| next()).collect();
    report.totals.skipped.examples = (0..20).map(|_| next()).collect();
    report.totals.by_call = (0..20).map(|n| (next(), n)).collect();
    report.tracing.as_mut().expect("it was traced").tracer = next();
    for totals in [&mut report.locations.cwd, &mut report.locations.tmp, &mut report.locations.shared] {
        totals.roots = (0..10).map(|_| next()).collect();
    }
    report.directories.extend_from_within(..);
    report.directories.iter_mut().for_each(|d| (d.path, d.location) = (next(), next()));
    report.programs = vec![report.programs[0].clone(); 12];
    report.programs.iter_mut().for_each(|p| p.path = next());
    report.searches = vec![report.searches[0].clone(); 12];
    for search in &mut report.searches {
        (search.variable, search.how) = (next(), next());
        search.directories.iter_mut().for_each(|d| d.path = next());
    }
    report.rereads = vec![report.rereads[0].clone(); 12];
    report.rereads.iter_mut().for_each(|r| (r.path, r.location) = (next(), next()));
    report.shared_writes = vec![report.shared_writes[0].clone(); 12];
    report.shared_writes.iter_mut().for_each(|w| (w.path, w.location) = (next(), next()));
    report.small_files = vec![report.small_files[0].clone(); 12];
    report.small_files.iter_mut().for_each(|s| (s.directory, s.location) = (next(), next()));
    report.trees = vec![report.trees[0].clone(); 12];
    report.trees.iter_mut().for_each(|t| (t.path, t.file_system) = (next(), next()));
    report.not_proposed = vec![report.not_proposed[0].clone(); 12];
    report.not_proposed.iter_mut().for_each(|n| (n.path, n.why) = (next(), next()));
    let nodes = report.nodes.as_mut().expect("it has some");
    nodes.capacity_from = next();
    nodes.leaves_out = (0..12).map(|_| next()).collect();
    report.operations.iter_mut().for_each(|o| o.call = next());
    report
}
