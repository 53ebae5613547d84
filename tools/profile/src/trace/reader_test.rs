//! Small traces, each of a case that was or could be read incorrectly. They check the file of each
//! call, and that each line counts once.

use crate::analysis::readings::FirstReading;
use crate::locations::{Links, LocationRules, MountPoint, NoLinks, PathMap, UnknownDirectories};
use crate::paths::PathId;
use crate::report::Report;
use crate::trace::event::{CallResult, CallTarget, Event};
use crate::trace::reader::{LineSource, Output, Reader};

const SOURCE: LineSource = LineSource { space: 0, pid: 0 };

fn location_rules() -> LocationRules {
    let mount = |point: &str, kind: &str| MountPoint { point: point.into(), file_system: kind.into() };
    LocationRules {
        mounts: vec![mount("/", "ext4"), mount("/sw", "lustre")],
        working: Some(b"/home/u".to_vec()),
        ..LocationRules::default()
    }
}

/// The events of a trace, one call per line: name, path, `!` if it failed, `?` if its end is not
/// known.
struct Events {
    calls: Vec<String>,
    reader: Reader,
}

fn events_with_links(lines: &[(LineSource, &[u8])], links: &mut dyn Links) -> Events {
    let mut map = PathMap::new(&location_rules(), links);
    let working = map.resolve(PathId::ROOT, b"/home/u", true);
    let mut reader = Reader::new(Some(working));
    let mut calls = Vec::new();
    let mut on_event = |event: &Event, map: &mut PathMap| {
        let path = match event.target {
            CallTarget::File(path) => map.paths.text(path),
            CallTarget::NoFile => "-".into(),
            CallTarget::Unknown => "unknown".into(),
            CallTarget::Invalid => "bad".into(),
        };
        let end = match event.result {
            CallResult::Succeeded => "",
            CallResult::Failed(_) => "!",
            CallResult::Unknown => "?",
        };
        calls.push(format!("{} {path}{end}", String::from_utf8_lossy(event.name)));
    };
    let mut output = Output { map: &mut map, on_event: &mut on_event };
    for (source, line) in lines {
        reader.line(*source, line, &|| "t:1".into(), &mut output);
    }
    reader.finish(&mut output);
    let s = &reader.skipped;
    let others = s.other_calls + s.events + s.resumed + s.orphans + s.truncated + s.foreign;
    assert_eq!(reader.lines, calls.len() as u64 + others, "each line counts once: {calls:?} {s:?}");
    Events { calls, reader }
}

fn events(trace: &str) -> Events {
    let lines: Vec<(LineSource, &[u8])> = trace
        .lines()
        .map(|line| (SOURCE, line.strip_prefix("           ").unwrap_or(line).as_bytes()))
        .collect();
    events_with_links(&lines, &mut NoLinks)
}

#[track_caller]
fn assert_events(trace: &str, expected: &[&str]) {
    assert_eq!(events(trace).calls, expected, "{trace}");
}

fn report(lines: &[&[u8]]) -> Report {
    let mut links = NoLinks;
    let mut first = FirstReading::new(&location_rules(), Vec::new(), &mut links);
    lines.iter().for_each(|line| first.line(SOURCE, line, String::new));
    first.end();
    let mut second = first.choose(1.0, &mut UnknownDirectories);
    lines.iter().for_each(|line| second.line(SOURCE, line));
    second.report(Some(&crate::analysis::readings::Capacity { operations_per_s: 1e4, from: "test".into() }))
}

#[test]
fn descriptors_are_followed_through_every_copy() {
    assert_events(
        r#"1 openat(AT_FDCWD, "a", O_RDONLY|O_CLOEXEC) = 3
           1 dup(3) = 4
           1 dup2(4, 9) = 9
           1 dup3(9, 8, O_CLOEXEC) = 8
           1 fcntl(3, F_DUPFD, 20) = 20
           1 fcntl(3, F_DUPFD_CLOEXEC, 20) = 21
           1 fcntl(20, F_DUPFD_QUERY, 3) = 1
           1 dup2(3, 3) = 3
           1 ioctl(4, FIOCLEX) = 0
           1 execve("/x", [], 0x7f) = 0
           1 read(1, "", 1) = 0
           1 read(3, "", 1) = -1 EBADF (Bad file descriptor)
           1 fstat(4, {}) = 0
           1 fstat(8, {}) = 0
           1 fstat(9, {}) = 0
           1 fstat(20, {}) = 0
           1 fstat(21, {}) = 0"#,
        &[
            "openat /home/u/a",
            "execve /x",
            "read unknown",
            "read bad!",
            "fstat unknown",
            "fstat unknown",
            "fstat /home/u/a",
            "fstat /home/u/a",
            "fstat unknown",
        ],
    );
}

#[test]
fn ranges_of_descriptors_are_closed() {
    assert_events(
        r#"1 openat(AT_FDCWD, "a", O_RDONLY) = 3
           1 openat(AT_FDCWD, "b", O_RDONLY) = 4
           1 vfork() = 2
           2 close_range(4, 4294967295, CLOSE_RANGE_UNSHARE) = 0
           2 fstat(3, {}) = 0
           2 fstat(4, {}) = 0
           1 fstat(4, {}) = 0
           1 close_range(0, 4294967295, CLOSE_RANGE_CLOEXEC) = 0
           1 fstat(3, {}) = 0
           1 execve("/x", [], 0x7f) = 0
           1 fstat(3, {}) = 0"#,
        &[
            "openat /home/u/a",
            "openat /home/u/b",
            "fstat /home/u/a",
            "fstat unknown",
            "fstat /home/u/b",
            "fstat /home/u/a",
            "execve /x",
            "fstat unknown",
        ],
    );
}

#[test]
fn processes_that_share_descriptors_or_directory_see_changes_of_each_other() {
    assert_events(
        r#"1 clone(child_stack=0x7f, flags=CLONE_VM|CLONE_FILES) = 2
           1 clone(child_stack=0x7f, flags=CLONE_FS|SIGCHLD) = 3
           2 openat(AT_FDCWD, "a", O_RDONLY) = 3
           3 chdir("/tmp") = 0
           1 fstat(3, {}) = 0
           1 stat("b", {}) = 0
           2 stat("b", {}) = 0
           1 unshare(CLONE_FILES) = 0
           2 close(3) = 0
           1 fstat(3, {}) = 0
           1 fchdir(3) = 0
           1 stat("c", {}) = 0
           3 stat("c", {}) = 0"#,
        &[
            "openat /home/u/a",
            "chdir /tmp",
            "fstat /home/u/a",
            "stat /tmp/b",
            "stat /home/u/b",
            "close /home/u/a",
            "fstat /home/u/a",
            "fchdir /home/u/a",
            "stat /home/u/a/c",
            "stat /home/u/a/c",
        ],
    );
}

#[test]
fn each_of_several_new_processes_has_the_files_of_its_parent() {
    assert_events(
        r#"1 openat(AT_FDCWD, "a", O_RDONLY) = 3
           2 openat(AT_FDCWD, "b", O_RDONLY) = 3
           1 clone(flags=SIGCHLD <unfinished ...>
           2 vfork( <unfinished ...>
           12 fstat(3, {}) = 0
           11 fstat(3, {}) = 0
           11 +++ exited with 0 +++
           1 <... clone resumed>) = 11
           12 close(3) = 0
           2 <... vfork resumed>) = 12
           2 fstat(3, {}) = 0"#,
        &[
            "openat /home/u/a",
            "openat /home/u/b",
            "fstat /home/u/a",
            "fstat /home/u/b",
            "close /home/u/b",
            "fstat /home/u/b",
        ],
    );
}

#[test]
fn a_reused_process_id_is_another_process() {
    let read = events(
        r#"1 openat(AT_FDCWD, "a", O_RDONLY) = 3
           1 vfork() = 2
           2 close(3) = 0
           2 +++ killed by SIGKILL +++
           1 vfork( <unfinished ...>
           2 fstat(3, {}) = 0
           1 <... vfork resumed>) = 2
           2 +++ exited with 0 +++
           1 vfork( <unfinished ...>
           2 +++ exited with 0 +++
           1 <... vfork resumed>) = 2"#,
    );
    assert_eq!(read.calls, ["openat /home/u/a", "close /home/u/a", "fstat /home/u/a"]);
    assert_eq!(read.reader.resolver.processes.groups, 4);
}

#[test]
fn a_child_that_only_ends_counts_once() {
    let read = events(
        r#"1 openat(AT_FDCWD, "a", O_RDONLY) = 3
           1 vfork( <unfinished ...>
           2 +++ exited with 0 +++
           1 <... vfork resumed>) = 2
           1 close(3) = 0
           1 openat(AT_FDCWD, "b", O_RDONLY) = 3
           1 vfork( <unfinished ...>
           2 vfork( <unfinished ...>
           3 fstat(3, {}) = 0
           2 <... vfork resumed>) = 3
           1 <... vfork resumed>) = 2"#,
    );
    assert_eq!(read.calls, ["openat /home/u/a", "close /home/u/a", "openat /home/u/b", "fstat /home/u/b"]);
    assert_eq!(read.reader.resolver.processes.groups, 4);
}

#[test]
fn a_thread_that_executes_a_program_takes_the_id_of_its_process() {
    let read = events(
        r#"1 openat(AT_FDCWD, "a", O_RDONLY) = 3
           1 clone3({flags=CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_THREAD, exit_signal=0} => {parent_tid=[2]}, 88) = 2
           1 futex(0x7f, FUTEX_WAIT, 0, NULL <unfinished ...>
           2 execve("/bin/true", ["true"], 0x7f <unfinished ...>
           1 +++ superseded by execve in pid 2 +++
           1 <... execve resumed>) = 0
           1 fstat(3, {}) = 0"#,
    );
    assert_eq!(read.calls, ["openat /home/u/a", "execve /bin/true", "fstat /home/u/a"]);
    assert_eq!((read.reader.skipped.orphans, read.reader.skipped.unfinished), (0, 0));
    assert_eq!(read.reader.resolver.processes.groups, 1);
}

#[test]
fn pids_of_another_namespace_are_those_of_the_trace() {
    assert_events(
        r#"1 openat(AT_FDCWD, "a", O_RDONLY) = 3
           1 vfork( <unfinished ...>
           1 <... vfork resumed>)              = 2 /* 28917 in strace's PID NS */
           28917 fstat(3, {}) = 0
           1 clone(flags=SIGCHLD) = 3<sh> /* 28918 in strace's PID NS */
           28918<sh> fstat(3, {}) = 0"#,
        &["openat /home/u/a", "fstat /home/u/a", "fstat /home/u/a"],
    );
}

#[test]
fn without_o_some_lines_have_pids_and_remarks_split_lines() {
    let read = events(
        "openat(AT_FDCWD, \"a\", O_RDONLY) = 3\n\
         clone(child_stack=NULL, flags=SIGCHLDstrace: Process 2 attached\n\
         , child_tidptr=0x7f) = 2\n\
         [pid     1] wait4(-1,  <unfinished ...>\n\
         [pid     2] fstat(3, strace: Process 3 attached\n\
         strace: Process 4 attached\n\
         {st_mode=0}) = 0\n\
         [pid     2] close(3) = 0\n\
         [pid     2] +++ exited with 0 +++\n\
         <... wait4 resumed>NULL, 0, NULL) = 2\n\
         --- SIGCHLD {si_signo=SIGCHLD, si_code=CLD_EXITED} ---\n\
         fstat(3, {st_mode=0}) = 0\n\
         clone(child_stack=NULL, flags=SIGCHLDstrace: Process 5 attached\n \
          <unfinished ...>\n\
         [pid     5] fstat(3, {st_mode=0}) = 0\n\
         [pid     1] <... clone resumed>, child_tidptr=0x7f) = 5\n\
         +++ exited with 0 +++\n",
    );
    let expected =
        ["openat /home/u/a", "fstat /home/u/a", "close /home/u/a", "fstat /home/u/a", "fstat /home/u/a"];
    assert_eq!(read.calls, expected);
    assert_eq!((read.reader.skipped.orphans, read.reader.skipped.unfinished), (0, 0));
    assert_eq!(read.reader.resolver.processes.groups, 3);
}

#[test]
fn a_first_process_without_pid_continues_with_a_pid() {
    let read = events(
        "openat(AT_FDCWD, \"a\", O_RDONLY) = 3\n\
         vfork(strace: Process 2 attached\n \
          <unfinished ...>\n\
         [pid     1] <... vfork resumed>) = 2\n\
         [pid     1] fstat(3, {}) = 0\n\
         [pid     2] fstat(3, {}) = 0\n",
    );
    assert_eq!(read.calls, ["openat /home/u/a", "fstat /home/u/a", "fstat /home/u/a"]);
    assert_eq!((read.reader.resolver.processes.groups, read.reader.skipped.orphans), (2, 0));
}

#[test]
fn calls_in_lines_without_pid_are_counted() {
    let read = events(
        "5 read(3</a>,  <unfinished ...>\n\
         write(4</b>, \"\", 1 <unfinished ...>\n\
         6 close(3</c>) = 0\n\
         5 <... read resumed>\"\", 1) = 1\n",
    );
    // The lines count for the only process of the trace, which cannot make two calls at once.
    assert_eq!(read.calls, ["read /a?", "close /c", "write /b?"]);
}

#[test]
fn interrupted_calls_count_once() {
    let read = events(
        r#"1 read(3</a>,  <unfinished ...>
           1 futex(0x7f, FUTEX_WAIT <unfinished ...>
           1 <... read resumed>"", 5) = 0
           1 <... futex resumed>) = 0
           1 openat(AT_FDCWD, "b", O_RDONLY <unfinished ...>
           1 close(4) = 0
           1 <... openat resumed>) = 4
           2 read(3</c>,  <unfinished ...>
           2 +++ killed by SIGKILL +++
           3 write(3</d>, "", 1 <unfinished ...>
           3 <... write resumed>) = 
           4 ????( <unfinished ...>
           4 <... ???? resumed>) = ?
           5 stat("/e",  <unfinished ...>"#,
    );
    let expected = ["read /a?", "openat /home/u/b?", "close unknown", "read /c?", "write /d?", "stat /e?"];
    assert_eq!(read.calls, expected);
    let skipped = &read.reader.skipped;
    assert_eq!((skipped.unfinished, skipped.orphans, skipped.resumed), (5, 2, 2));
    assert_eq!((skipped.truncated, skipped.other_calls), (1, 2));
}

#[test]
fn a_descriptor_reused_during_its_close_is_the_new_one() {
    assert_events(
        r#"1 openat(AT_FDCWD, "a", O_RDONLY|O_CLOEXEC) = 3
           1 clone3({flags=CLONE_FS|CLONE_FILES|CLONE_THREAD}, 88) = 2
           1 close(3 <unfinished ...>
           2 openat(AT_FDCWD, "b", O_RDONLY|O_CLOEXEC) = 3
           1 <... close resumed>) = 0
           2 fstat(3, {}) = 0
           2 execve("/x", [], 0x7f) = 0
           2 fstat(3, {}) = 0"#,
        &[
            "openat /home/u/a",
            "openat /home/u/b",
            "close /home/u/a",
            "fstat /home/u/b",
            "execve /x",
            "fstat unknown",
        ],
    );
}

#[test]
fn annotations_of_every_kind_are_parsed() {
    assert_events(
        r#"1 write(7</tmp/del\76x->(deleted), "y", 1) = 1
           1 newfstatat(7</tmp/x (deleted)>, "", {st_size=1}, AT_EMPTY_PATH) = 0
           1 write(8</dev/null<char 1:3>>, "z", 1) = 1
           1 openat(AT_FDCWD</sw>, "a", O_RDONLY) = 3</sw/a> [system_u:object_r:x:s0]
           1 fstat(3</sw/a> [system_u:object_r:x:s0], {}) = 0
           1 stat("/sw/b" [system_u:object_r:x:s0], {}) = 0
           1 sendfile(3<UNIX-STREAM:[1->2,"/run/x, y>"]>, 4</sw/c>, NULL, 5) = 5
           1 write(6<TCP:[127.0.0.1:80->127.0.0.1:5]>, "", 5) = 5
           1 read(3<\x2f\x73\x77\x2f\x61>, "\x78", 1) = 1
           1 write(3<\x73\x6f\x63\x6b\x65\x74\x3a\x5b\x31\x5d>, "\x78", 1) = 1
           1 fstat(9</memfd:mm>(deleted), {}) = 0
           1 openat(-100, "d", O_RDONLY) = -1 ENOENT (No)
           1 openat(0xffffff9c, "d", O_RDONLY) = -1 ENOENT (No)"#,
        &[
            "write /tmp/del>x-",
            "newfstatat /tmp/x",
            "write /dev/null",
            "openat /sw/a",
            "fstat /sw/a",
            "stat /sw/b",
            "sendfile /sw/c",
            "write -",
            "read /sw/a",
            "write -",
            "fstat -",
            "openat /sw/d!",
            "openat /sw/d!",
        ],
    );
}

#[test]
fn paths_are_resolved_from_the_directory_that_the_kernel_uses() {
    assert_events(
        r#"1 openat(AT_FDCWD, "/sw", O_RDONLY|O_PATH) = 3
           1 openat(3, "env", O_RDONLY|O_DIRECTORY) = 4
           1 newfstatat(4, "", {}, AT_EMPTY_PATH) = 0
           1 statx(4, NULL, AT_EMPTY_PATH, STATX_ALL, {}) = 0
           1 openat2(4, "/lib", {flags=O_RDONLY, resolve=RESOLVE_IN_ROOT}, 24) = 5
           1 openat2(4, "/lib", {flags=O_RDONLY, resolve=0}, 24) = 6
           1 stat("/proc/self/fd/4", {}) = 0
           1 openat(AT_FDCWD, "/proc/self/fd/4/bin", O_RDONLY) = 7
           1 readlink("/proc/self/fd/4", "", 9) = 8
           1 stat("/dev/fd/77", {}) = 0
           1 stat(0x7f12, 0x7f) = -1 EFAULT (Bad address)
           1 newfstatat(99, "x", {}, 0) = 0
           1 chroot("/sw/env") = 0
           1 stat("/bin/x", {}) = 0
           1 fstat(5, {}) = 0
           1 chdir("/") = 0
           1 stat("y", {}) = 0"#,
        &[
            "openat /sw",
            "openat /sw/env",
            "newfstatat /sw/env",
            "statx /sw/env",
            "openat2 /sw/env/lib",
            "openat2 /lib",
            "stat /sw/env",
            "openat /sw/env/bin",
            "readlink /proc/self/fd/4",
            "stat /dev/fd/77",
            "stat bad!",
            "newfstatat unknown",
            "chroot /sw/env",
            "stat /sw/env/bin/x",
            "fstat /sw/env/lib",
            "chdir /sw/env",
            "stat /sw/env/y",
        ],
    );
}

struct Apps;

impl Links for Apps {
    fn target(&mut self, path: &[u8]) -> Option<Vec<u8>> {
        (path == b"/apps").then(|| b"/sw/apps".to_vec())
    }
}

#[test]
fn a_link_is_not_followed_with_nofollow_flags() {
    let lines = [
        r#"1 newfstatat(AT_FDCWD, "/apps", {}, 0) = 0"#,
        r#"1 newfstatat(AT_FDCWD, "/apps", {}, AT_SYMLINK_NOFOLLOW) = 0"#,
        r#"1 openat(AT_FDCWD, "/apps", O_RDONLY|O_NOFOLLOW) = -1 ELOOP (Loop)"#,
        r#"1 newfstatat(AT_FDCWD, "/apps/AT_SYMLINK_NOFOLLOW", {}, 0) = 0"#,
        r#"1 stat("/apps/x", {}) = 0"#,
    ];
    let lines: Vec<(LineSource, &[u8])> = lines.iter().map(|line| (SOURCE, line.as_bytes())).collect();
    assert_eq!(
        events_with_links(&lines, &mut Apps).calls,
        [
            "newfstatat /sw/apps",
            "newfstatat /apps",
            "openat /apps!",
            "newfstatat /sw/apps/AT_SYMLINK_NOFOLLOW",
            "stat /sw/apps/x"
        ]
    );
}

#[test]
fn line_prefixes_of_every_option_are_parsed() {
    let read = events(
        r#"7 15:35:57 (+     0.000387) [  12] [00007f9ee29bac47] close(3) = 0
           7<tmux: server> close(3) = 0
           [pid     7<sh>] 15:35:57.000001 close(3) = 0
           7 [unconfined_u:unconfined_r:x:s0] close(3) = 0
           1700000000 close(3) = 0
           7      0.000021 close(3) = ?
           7 close(3) = ? ERESTARTSYS (To be restarted if SA_RESTART is set)
           7 close(3) = ? <unavailable>
            > /usr/lib/x86_64-linux-gnu/libc.so.6(__vfork+0x8) [0xd43b8]
           7 syscall_0x1d0(0x1, 0x2) = 0
           7 strace: Process 7 detached"#,
    );
    assert_eq!(read.calls.len(), 8);
    let skipped = &read.reader.skipped;
    assert_eq!((skipped.events, skipped.other_calls, skipped.foreign), (2, 1, 0), "{:?}", skipped.examples);
}

#[test]
fn executing_a_program_in_memory_closes_descriptors() {
    assert_events(
        r#"1 openat(AT_FDCWD, "a", O_RDONLY|O_CLOEXEC) = 3
           1 memfd_create("x", 0) = 4
           1 execveat(4, "", ["x"], NULL, AT_EMPTY_PATH) = 0
           1 fstat(3, {}) = 0"#,
        &["openat /home/u/a", "execveat -", "fstat unknown"],
    );
}

#[test]
fn an_unfinished_anonymous_mapping_is_not_counted() {
    let read = events("1 mmap(NULL, 4096, PROT_READ <unfinished ...>");
    assert_eq!(
        (read.calls.len(), read.reader.skipped.unfinished, read.reader.skipped.other_calls),
        (0, 0, 1)
    );
}

#[test]
fn anonymous_mappings_are_not_counted() {
    assert_events(
        r#"1 mmap(NULL, 4096, PROT_READ, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7f0000000000
           1 mmap(NULL, 4096, PROT_READ, MAP_PRIVATE|MAP_ANONYMOUS, 3</a>, 0) = 0x7f0000000000
           1 mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, 3</a>, 0) = 0x7f0000000000"#,
        &["mmap /a"],
    );
}

#[test]
fn files_named_with_a_pid_belong_to_one_trace() {
    let source = |pid| LineSource { space: 0, pid };
    let lines: [(LineSource, &[u8]); 6] = [
        (source(1), br#"1700000000.1 openat(AT_FDCWD, "a", O_RDONLY) = 3"#),
        (source(1), b"1700000000.2 vfork() = 2"),
        (source(2), b"1700000000.3 fstat(3, {}) = 0"),
        (source(2), br#"1700000000.4 execve("/x", [], 0x7f <pid changed to 1 ...>"#),
        (source(1), b"1700000000.5 +++ superseded by execve in pid 2 +++"),
        (source(1), b"1700000000.6 fstat(3, {}) = 0"),
    ];
    let read = events_with_links(&lines, &mut NoLinks);
    assert_eq!(read.calls, ["openat /home/u/a", "fstat /home/u/a", "execve /x?", "fstat /home/u/a"]);
}

#[test]
fn binary_lines_are_foreign_and_long_lines_are_truncated() {
    let long = [b"1 write(3</a>, \"".as_slice(), &vec![b'x'; 5_000_000], b"\", 5) = 5"].concat();
    let lines: [(LineSource, &[u8]); 6] = [
        (SOURCE, b"1 close(3</a>) = 0\r"),
        (SOURCE, b"1 read(3</a>,  <unfinished ...>\r"),
        (SOURCE, b"1 <... read resumed>\"\", 5) = 0\r"),
        (SOURCE, b"\0\0\0"),
        (SOURCE, b"\xff\xfe 1 close(3) = 0"),
        (SOURCE, &long),
    ];
    let read = events_with_links(&lines, &mut NoLinks);
    assert_eq!(read.calls, ["close /a", "read /a"]);
    assert_eq!((read.reader.skipped.foreign, read.reader.skipped.truncated), (2, 1));
}

#[test]
fn jumping_clocks_still_give_a_report() {
    for times in [
        ["99999999999.999999", "1700000000.000000", "0.5"],
        ["1700000000.000000", "1600000000.000000", "99999999999.9"],
        ["23:59:59.9", "00:00:00.1", "23:59:59.8"],
        ["99999999.999999", "99999999.999999", "99999999.9"],
    ] {
        let lines: Vec<String> = times
            .iter()
            .map(|time| format!("1 {time} stat(\"/sw/a\", {{}}) = 0 <99999999999999999999.999999>"))
            .chain(times.iter().map(|time| format!("1 {time} stat(\"/sw/a\", {{}}) = 0 <9999999999.0>")))
            .collect();
        let lines: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
        let report = report(&lines);
        assert_eq!(report.totals.calls, 6);
        assert!(report.rate.len() <= 600 && report.duration_s.is_finite());
    }
}

#[test]
fn times_of_day_continue_after_midnight() {
    let lines: [&[u8]; 4] = [
        br#"1 23:59:59.500000 stat("/sw/a", {}) = 0"#,
        br#"1 00:00:00.100000 stat("/sw/a", {}) = 0"#,
        br#"1 23:59:59.900000 stat("/sw/a", {}) = 0"#,
        br#"1 00:00:00.500000 +++ exited with 0 +++"#,
    ];
    assert!((report(&lines).duration_s - 1.0).abs() < 1e-6);
}

#[test]
fn a_trace_of_exits_has_no_duration() {
    let report = report(&[b"1 1700000000.5 +++ exited with 0 +++"]);
    assert_eq!((report.totals.calls, report.duration_s), (0, 0.0));
}

#[test]
fn foreign_lines_do_not_change_the_time() {
    let lines: [&[u8]; 3] = [
        br#"1 1700000000.0 stat("/sw/a", {}) = 0 <0.1>"#,
        b"99999999999.9 bottles of beer",
        br#"1 1700000001.0 stat("/sw/a", {}) = 0 <0.1>"#,
    ];
    assert!((report(&lines).duration_s - 1.1).abs() < 1e-6);
}

#[test]
fn the_largest_numbers_do_not_overflow() {
    for number in
        ["9223372036854775807", "18446744073709551615", "99999999999999999999999", "0xffffffffffffffff"]
    {
        let line = [
            format!("1 read(3</sw/a>, \"\", {number}) = {number}"),
            format!("1 write(3</sw/b>, \"\", {number}) = {number}"),
            format!("1 sendfile(4</sw/b>, 3</sw/a>, NULL, {number}) = {number}"),
            format!("1 mmap(NULL, {number}, PROT_READ, MAP_SHARED, 3</sw/a>, {number}) = {number}"),
            format!("1 mmap(NULL, {number}, PROT_READ, MAP_SHARED, 3</sw/c>, {number}) = -{number}"),
            format!("1 close({number}) = 0"),
            format!("1 dup2({number}, 2147483647) = 2147483647"),
            format!("1 close_range({number}, -{number}, 0) = 0"),
            format!("1 vfork() = {number}"),
            format!("{number} {number}.{number} close(3) = 0 <{number}.{number}>"),
            format!("1 openat(AT_FDCWD, \"/sw/a\", O_RDONLY) = {number}"),
        ];
        let lines: Vec<&[u8]> = line.iter().cycle().take(6 * line.len()).map(|l| l.as_bytes()).collect();
        let report = report(&lines);
        assert_eq!(report.totals.lines, lines.len() as u64);
    }
}

/// Returns the processor time that this thread has used, in seconds.
fn processor_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    // The name of the program, in parentheses, may contain any character. Fields 14 and 15 are in
    // hundredths of a second.
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / 100.0
}

#[test]
fn no_trace_takes_quadratic_time() {
    // Reading each of these traces takes minutes if an operation is quadratic in the length of the
    // trace, and otherwise less than a second, even without optimisation. Processor time does not
    // depend on the load of the machine.
    const PROCESSOR_S_MAX: f64 = 30.0;
    let mut traces: Vec<Vec<Vec<u8>>> = Vec::new();
    // Deeply nested directories.
    let deep = |_| br#"1 chdir("a/b/c/d/e/f/g/h") = 0"#.to_vec();
    traces.push((0..20_000).map(deep).collect());
    // Forks that never return, of one process and of many.
    traces.push((0..40_000).map(|n| format!("{} vfork( <unfinished ...>", n % 9_000).into_bytes()).collect());
    // Many descriptors, and many children that each change one.
    let open =
        (0..40_000).map(|n| format!("1 openat(AT_FDCWD, \"/a\", O_RDONLY|O_CLOEXEC) = {n}").into_bytes());
    let fork = (2..20_000u32).flat_map(|n| {
        let lines = [format!("1 vfork() = {n}"), format!("{n} close(5) = 0"), format!("{n} dup(7) = 70")];
        lines.map(String::into_bytes)
    });
    traces.push(open.chain(fork).collect());
    // Children whose parent is unknown.
    let two = ["1 vfork( <unfinished ...>", "2 vfork( <unfinished ...>"].map(|l| l.as_bytes().to_vec());
    traces
        .push(two.into_iter().chain((3..40_000).map(|n| format!("{n} close(3) = 0").into_bytes())).collect());
    // A sequence of processes, with lines without process id in between.
    let nameless = (1..20_000).flat_map(|n| [format!("{n} close(3) = 0"), "close(3) = 0".into()]);
    let ends = (1..20_000).flat_map(|n| [format!("{n} +++ exited with 0 +++"), "close(3) = 0".into()]);
    traces.push(nameless.chain(ends).map(String::into_bytes).collect());
    // Long lines of characters that begin descriptors, strings, flags or structures.
    for part in [
        "1<a>",
        "1<",
        "\"",
        "\\",
        "(",
        "{",
        "|",
        " = ",
        "a/../",
        "<... ",
        ",",
        "1<2->",
        "strace: Process 1 attached",
    ] {
        let mut line = b"1 openat(AT_FDCWD, \"".to_vec();
        line.extend(part.as_bytes().iter().cycle().take(60_000));
        traces.push(vec![line; 50]);
        let mut line = b"1 stat(".to_vec();
        line.extend(part.as_bytes().iter().cycle().take(60_000));
        line.extend_from_slice(b", {}) = 0");
        traces.push(vec![line; 50]);
    }
    for trace in traces {
        let lines: Vec<(LineSource, &[u8])> = trace.iter().map(|line| (SOURCE, line.as_slice())).collect();
        let before_s = processor_s();
        events_with_links(&lines, &mut NoLinks);
        let lines: Vec<&[u8]> = trace.iter().map(Vec::as_slice).collect();
        assert_eq!(report(&lines).totals.lines, lines.len() as u64);
        let used_s = processor_s() - before_s;
        let first = String::from_utf8_lossy(&lines[0][..lines[0].len().min(40)]);
        assert!(used_s < PROCESSOR_S_MAX, "{used_s} s for {} lines like {first}", lines.len());
    }
}
