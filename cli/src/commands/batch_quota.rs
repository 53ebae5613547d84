//! `quell batch quota`: lists the use and the limits of a store, and sets limits.

use std::process::ExitCode;

use indicatif::HumanBytes;
use quell_batch::StoreAccess;
use quell_batch_service::{LimitChange, NumberChange, Quota, QuotaSubject, UNLIMITED};
use serde_json::{Value, json};

use super::batch_store::WAIT;
use crate::arguments::{BatchQuotaArgs, NumberLimit};
use crate::failure::Failure;
use crate::output::{counted, outln};

pub fn run(args: &BatchQuotaArgs) -> Result<ExitCode, Failure> {
    let subject = match args.user {
        Some(uid) => Some(QuotaSubject::User(uid)),
        None if args.each_user => Some(QuotaSubject::EachUser),
        None if args.whole_store => Some(QuotaSubject::Store),
        None => None,
    };
    let store = StoreAccess::open_of(&args.store, &args.trust.trust_owner, WAIT)?;
    match subject {
        Some(subject) => {
            let inodes = change(subject, args.files)?;
            store.set_limit(subject, LimitChange { inodes, bytes: change(subject, args.bytes)? })?;
        }
        None if args.output.json => list_json(&store.quotas()?),
        None => list(&store.quotas()?),
    }
    Ok(ExitCode::SUCCESS)
}

fn change(subject: QuotaSubject, limit: Option<NumberLimit>) -> Result<NumberChange, Failure> {
    let is_user = matches!(subject, QuotaSubject::User(_));
    Ok(match limit {
        None => NumberChange::Keep,
        Some(NumberLimit::AtMost(number)) => NumberChange::Set(number),
        Some(NumberLimit::None) if is_user => NumberChange::Set(UNLIMITED),
        Some(NumberLimit::None) => NumberChange::Unset,
        Some(NumberLimit::Default) if is_user => NumberChange::Unset,
        Some(NumberLimit::Default) => {
            return Err(Failure::wrong_input(
                "`default` is possible with --user only; pass `none` to remove the limit",
            ));
        }
    })
}

/// Returns the sum of the sizes. Sparse files can have more bytes together than 64 bits can state.
fn bytes(quota: &Quota) -> u64 {
    u64::try_from(quota.usage.bytes).unwrap_or(u64::MAX)
}

fn list_json(quotas: &[Quota]) {
    let limit = |number: Option<u64>| match number {
        None => Value::Null,
        Some(UNLIMITED) => json!("none"),
        Some(number) => json!(number),
    };
    let (mut store, mut each_user, mut users) = (Value::Null, Value::Null, Vec::new());
    for quota in quotas {
        let (files, bytes) = (quota.usage.inodes, bytes(quota));
        let (files_limit, bytes_limit) = (limit(quota.limit.inodes), limit(quota.limit.bytes));
        match quota.subject {
            QuotaSubject::Store => {
                store = json!({
                    "files": files, "bytes": bytes, "files_limit": files_limit, "bytes_limit": bytes_limit,
                });
            }
            QuotaSubject::EachUser => {
                each_user = json!({ "files_limit": files_limit, "bytes_limit": bytes_limit });
            }
            QuotaSubject::User(uid) => users.push(json!({
                "user": uid, "files": files, "bytes": bytes, "files_limit": files_limit,
                "bytes_limit": bytes_limit,
            })),
        }
    }
    outln!("{:#}", json!({ "store": store, "each_user": each_user, "users": users }));
}

fn list(quotas: &[Quota]) {
    for quota in quotas {
        let subject = match quota.subject {
            QuotaSubject::Store => "whole store".to_owned(),
            QuotaSubject::EachUser => "each user".to_owned(),
            QuotaSubject::User(uid) => uid.to_string(),
        };
        let files = quota.limit.inodes.map(|limit| match limit {
            UNLIMITED => "any number of files".to_owned(),
            limit => format!("at most {}", counted(limit, "file", "files")),
        });
        let size = quota.limit.bytes.map(|limit| match limit {
            UNLIMITED => "any size".to_owned(),
            limit => format!("at most {}", HumanBytes(limit)),
        });
        let limit = [files, size].into_iter().flatten().collect::<Vec<_>>().join(", ");
        if quota.subject == QuotaSubject::EachUser {
            if !limit.is_empty() {
                outln!("{subject:>11}  {limit}");
            }
            continue;
        }
        let used = format!("{}, {}", counted(quota.usage.inodes, "file", "files"), HumanBytes(bytes(quota)));
        match limit.is_empty() {
            true => outln!("{subject:>11}  {used}"),
            false => outln!("{subject:>11}  {used}; {limit}"),
        }
    }
}
