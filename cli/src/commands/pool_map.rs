//! `quell pool map`: shows the daemon of each range of bytes of a file.

use std::process::ExitCode;

use quell_mount_spec::{PlacedRange, PoolConnection, open_pool_at};
use quell_runtime::Pool;
use quell_vfs::{Context, FileSystem, Kind};
use serde_json::json;

use super::pool_staging::pool_and_path;
use crate::arguments::PoolMapArgs;
use crate::failure::Failure;
use crate::inputs::shown;
use crate::output::outln;
use crate::views::first_socket;

pub fn run(args: &PoolMapArgs) -> Result<ExitCode, Failure> {
    let (pool, path) = pool_and_path(&args.file)?;
    let socket = first_socket(&pool)?;
    let fs = open_pool_at(&socket, pool.chunk_bytes)?;
    let refused = |reason: &str| Failure::wrong_input(format!("{}: {reason}", shown(&args.file)));
    let found =
        fs.attributes_of_path(&Context::OWN, path)?.ok_or_else(|| refused("there is no such file"))?;
    let connection = PoolConnection::open(&socket)?;
    let placement = connection.placement(pool.chunk_bytes)?;
    let member = placement.of_attributes(found.node).ok_or_else(|| refused("the daemon has no such file"))?;
    let (attributes, host) = daemon_of(&pool, member);
    match args.json {
        true => outln!("{}", json!({ "part": "attributes", "daemon": attributes, "host": host })),
        false => outln!("attributes: daemon {attributes}  {host}"),
    }
    if found.kind != Kind::File {
        return Ok(ExitCode::SUCCESS);
    }
    if !args.json {
        outln!("{:>15} {:>15}  daemon", "start", "end");
    }
    let size_bytes = found.size_bytes;
    let ranges = match connection.is_inline(found.node)? {
        true if size_bytes == 0 => Vec::new(),
        true => vec![PlacedRange { bytes: 0..size_bytes, member }],
        false => placement.of_data(found.node, size_bytes).collect(),
    };
    for range in ranges {
        let (start, end) = (range.bytes.start, range.bytes.end);
        let (daemon, host) = daemon_of(&pool, range.member);
        match args.json {
            true => outln!(
                "{}",
                json!({ "part": "data", "start": start, "end": end, "daemon": daemon, "host": host })
            ),
            false => outln!("{start:>15} {end:>15}  {daemon}  {host}"),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the number of the daemon that runs a member, and the name of its node.
fn daemon_of(pool: &Pool, member: u16) -> (u16, &str) {
    let found = pool.members.iter().find(|found| found.id.0 == member);
    let daemon = found.and_then(|member| pool.daemon(member.daemon));
    daemon.map_or((0, "-"), |daemon| (daemon.id.0, &daemon.host))
}
