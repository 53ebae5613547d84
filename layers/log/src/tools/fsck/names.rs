//! Classifies the names in a container and in its log directories. Pure functions.

use crate::format::{data_name, index_name};

/// Prefix of the temporary name of an index log that is created again.
pub const TEMPORARY_INDEX: &str = ".new-";

/// A name in the directory of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerName {
    LogDirectory(u32),
    /// Any other name that the log layer creates.
    Other,
    Foreign,
}

/// A name in a log directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogName {
    /// The data log or index log of this writer.
    Log(u64),
    TemporaryIndex,
    Foreign,
}

/// Classifies a name in a container with this number of log directories.
pub fn classify_container_name(name: &[u8], directories: u32) -> ContainerName {
    let text = std::str::from_utf8(name).unwrap_or("");
    let hex = |prefix| text.strip_prefix(prefix).and_then(|hex| u64::from_str_radix(hex, 16).ok());
    let number = hex("logs-").and_then(|number| u32::try_from(number).ok());
    match number {
        Some(number) if number < directories && text == format!("logs-{number:x}") => {
            ContainerName::LogDirectory(number)
        }
        _ if matches!(text, "container" | "access" | "given-away" | "meta")
            || hex("epoch-").is_some()
            || text.starts_with("flat-") =>
        {
            ContainerName::Other
        }
        _ => ContainerName::Foreign,
    }
}

/// Classifies a name in log directory `directory` of `directories`.
pub fn classify_log_name(name: &[u8], directory: u32, directories: u32) -> LogName {
    let text = std::str::from_utf8(name).unwrap_or("");
    let log = text.strip_suffix(".data").or(text.strip_suffix(".index"));
    let writer = log.filter(|log| log.len() == 16).and_then(|log| u64::from_str_radix(log, 16).ok());
    match writer {
        Some(writer)
            if writer % u64::from(directories) == u64::from(directory)
                && (name == data_name(writer) || name == index_name(writer)) =>
        {
            LogName::Log(writer)
        }
        _ if text.starts_with(TEMPORARY_INDEX) => LogName::TemporaryIndex,
        _ => LogName::Foreign,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_a_container_are_accepted_in_one_spelling_only() {
        for (name, expected) in [
            ("logs-0", ContainerName::LogDirectory(0)),
            ("logs-1f", ContainerName::LogDirectory(31)),
            ("logs-20", ContainerName::Foreign),
            ("logs-01", ContainerName::Foreign),
            ("logs-1F", ContainerName::Foreign),
            ("logs-", ContainerName::Foreign),
            ("container", ContainerName::Other),
            ("access", ContainerName::Other),
            ("meta", ContainerName::Other),
            ("epoch-1a", ContainerName::Other),
            ("epoch-x", ContainerName::Foreign),
            ("flat-7-8", ContainerName::Other),
            ("", ContainerName::Foreign),
        ] {
            assert_eq!(classify_container_name(name.as_bytes(), 32), expected, "{name}");
        }
        assert_eq!(classify_container_name(b"\xff", 32), ContainerName::Foreign);
    }

    #[test]
    fn a_log_is_accepted_only_in_the_directory_of_its_writer() {
        for (name, expected) in [
            ("0000000000000005.data", LogName::Log(5)),
            ("0000000000000005.index", LogName::Log(5)),
            ("0000000000000006.data", LogName::Foreign),
            ("5.data", LogName::Foreign),
            ("000000000000000A.data", LogName::Foreign),
            (".new-0123", LogName::TemporaryIndex),
            ("0000000000000005", LogName::Foreign),
        ] {
            assert_eq!(classify_log_name(name.as_bytes(), 1, 4), expected, "{name}");
        }
    }
}
