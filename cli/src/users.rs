//! Parses the users and groups of options.

/// Returns the user id: a number, or a name in the system's user databases.
pub fn parse(text: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    quell_supervisor::user_id(text).ok_or_else(|| "no user has this name".to_owned())
}

/// Returns the group id: a number, or a name in the system's group databases.
pub fn parse_group(text: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    quell_supervisor::group_id(text).ok_or_else(|| "no group has this name".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_are_names_and_numbers() {
        assert_eq!((parse("0"), parse("root"), parse("4000000")), (Ok(0), Ok(0), Ok(4_000_000)));
        assert_eq!((parse_group("0"), parse_group("root")), (Ok(0), Ok(0)));
        assert!(parse_group("no such group").is_err() && parse_group("").is_err());
        assert!(parse("no such user").is_err() && parse("").is_err() && parse("-u").is_err());
    }
}
