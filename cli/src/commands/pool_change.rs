//! `quell pool expand`, `shrink` and `repair`: change the daemons of a running pool.

use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

use quell_runtime::Pool;
use quell_supervisor::{CommandProgress, DaemonId, KeeperCommand, find_pool, send_command};
use quell_threads::lock;

use crate::arguments::{PoolExpandArgs, PoolRepairArgs, PoolShrinkArgs};
use crate::commands::pool_daemons::new_daemons;
use crate::failure::Failure;
use crate::inputs::shown;
use crate::progress::watch_line;

pub fn expand(args: &PoolExpandArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let pool = find_pool(&args.name)?;
    // A user name before the name of a node does not distinguish nodes.
    let has_daemon = |host: &str| pool.daemons.iter().any(|daemon| daemon.host == host);
    let daemons = new_daemons(&args.launch, false, &|host| !has_daemon(host))?;
    let timeout_ms = u64::from(args.launch.timeout) * 1000;
    change(&pool, &KeeperCommand::Expand { daemons, timeout_ms }, quiet)
}

pub fn shrink(args: &PoolShrinkArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let pool = find_pool(&args.name)?;
    let mut daemons = Vec::new();
    for name in &args.daemons {
        let is_named = |id: DaemonId, host: &str| name.parse() == Ok(id.0) || name == host;
        let named: Vec<DaemonId> = pool
            .daemons
            .iter()
            .filter(|daemon| is_named(daemon.id, &daemon.host))
            .map(|daemon| daemon.id)
            .collect();
        if named.is_empty() {
            let name = shown(name);
            return Err(Failure::wrong_input(format!(
                "the pool has no daemon {name}; `quell pool status {}` lists the daemons",
                pool.name
            )));
        }
        daemons.extend(named);
    }
    daemons.sort();
    daemons.dedup();
    change(&pool, &KeeperCommand::Shrink(daemons), quiet)
}

pub fn repair(args: &PoolRepairArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let pool = find_pool(&args.name)?;
    change(&pool, &KeeperCommand::Repair { timeout_ms: u64::from(args.timeout) * 1000 }, quiet)
}

/// Sends a command to the keeper, and shows its progress.
fn change(pool: &Pool, command: &KeeperCommand, quiet: bool) -> Result<ExitCode, Failure> {
    let progress = Mutex::new(CommandProgress::Starting);
    let line = |elapsed: Duration| match *lock(&progress) {
        CommandProgress::Starting => format!("starting daemons: {} s", elapsed.as_secs()),
        CommandProgress::Moving { moved, total } => format!("moving parts of the pool: {moved} of {total}"),
        CommandProgress::Ending => "ending daemons".to_owned(),
    };
    watch_line(&line, quiet, &|| (), || {
        send_command(&pool.name, command, &mut |reported| *lock(&progress) = reported)
    })?;
    Ok(ExitCode::SUCCESS)
}
