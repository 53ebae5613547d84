//! Times for users: local time with the offset from UTC, as `ls -l --time-style=full-iso` prints
//! it. JSON has seconds since 1970, which programs compare.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use quell_vfs::Time;

/// Returns a time in the time zone of this machine, or in the time zone that the variable TZ names,
/// without the part of a second. A time that no calendar has (before the year -9999 or after 9999)
/// is returned in seconds since 1970.
pub fn local_time(time: Time) -> String {
    in_zone(time, TimeZone::system())
}

fn in_zone(time: Time, zone: TimeZone) -> String {
    match Timestamp::from_second(time.seconds) {
        Ok(timestamp) => timestamp.to_zoned(zone).strftime("%Y-%m-%d %H:%M:%S %z").to_string(),
        Err(_) => format!("{} s since 1970", time.seconds),
    }
}

/// Returns the offset of the local time from UTC, in seconds, at a time in seconds since 1970.
pub fn utc_offset_s(since_1970_s: f64) -> i32 {
    let timestamp = Timestamp::from_second(since_1970_s as i64).unwrap_or(Timestamp::UNIX_EPOCH);
    TimeZone::system().to_offset(timestamp).seconds()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_offset_of_their_zone() {
        let time = |seconds| Time { seconds, nanoseconds: 999_999_999 };
        let west = TimeZone::posix("EST5EDT,M3.2.0,M11.1.0").unwrap();
        assert_eq!(in_zone(time(0), TimeZone::UTC), "1970-01-01 00:00:00 +0000");
        assert_eq!(in_zone(time(-1), TimeZone::UTC), "1969-12-31 23:59:59 +0000");
        assert_eq!(in_zone(time(1_751_371_200), west.clone()), "2025-07-01 08:00:00 -0400");
        assert_eq!(in_zone(time(1_735_732_800), west), "2025-01-01 07:00:00 -0500");
        assert_eq!(in_zone(time(i64::MAX), TimeZone::UTC), format!("{} s since 1970", i64::MAX));
    }
}
