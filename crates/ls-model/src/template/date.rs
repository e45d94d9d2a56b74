//! The date that a prompt tells the model.

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] =
    ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const SECONDS_PER_DAY: i64 = 86_400;

/// A day and a time of day, in whichever zone the caller thinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date {
    /// Days since 1970-01-01.
    days: i64,
    /// Seconds since midnight.
    seconds: i64,
}

/// A day in the Gregorian calendar.
struct Civil {
    year: i64,
    /// 1 to 12.
    month: i64,
    /// 1 to 31.
    day: i64,
}

impl Date {
    /// The date in UTC of a Unix time in seconds. Local time is got by adding the zone's offset.
    pub fn from_unix(seconds: i64) -> Self {
        Self {
            days: seconds.div_euclid(SECONDS_PER_DAY),
            seconds: seconds.rem_euclid(SECONDS_PER_DAY),
        }
    }

    /// Writes the date as C's `strftime` does in the C locale.
    ///
    /// # Errors
    /// The directive that is not known.
    pub(super) fn format(&self, format: &str) -> Result<String, String> {
        let mut text = String::with_capacity(format.len() + 16);
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                text.push(c);
                continue;
            }
            match chars.next() {
                Some('-') => {
                    let directive = chars.next().unwrap_or('-');
                    let padded = self.directive(directive).ok_or(format!("-{directive}"))?;
                    let bare = padded.trim_start_matches(['0', ' ']);
                    text.push_str(if bare.is_empty() { "0" } else { bare });
                }
                Some(c) => text.push_str(&self.directive(c).ok_or_else(|| c.to_string())?),
                None => return Err(String::new()),
            }
        }
        Ok(text)
    }

    fn directive(&self, directive: char) -> Option<String> {
        let Civil { year, month, day } = self.civil();
        let month_name = MONTHS[(month - 1) as usize];
        let weekday = WEEKDAYS[(self.days + 3).rem_euclid(7) as usize];
        let (hour, minute, second) =
            (self.seconds / 3600, self.seconds / 60 % 60, self.seconds % 60);
        Some(match directive {
            'Y' => year.to_string(),
            'y' => format!("{:02}", year.rem_euclid(100)),
            'm' => format!("{month:02}"),
            'B' => month_name.to_owned(),
            'b' | 'h' => month_name[..3].to_owned(),
            'd' => format!("{day:02}"),
            'e' => format!("{day:2}"),
            'j' => format!("{:03}", self.days - days_from_civil(year, 1, 1) + 1),
            'A' => weekday.to_owned(),
            'a' => weekday[..3].to_owned(),
            'H' => format!("{hour:02}"),
            'I' => format!("{:02}", (hour + 11) % 12 + 1),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'M' => format!("{minute:02}"),
            'S' => format!("{second:02}"),
            'F' => format!("{year}-{month:02}-{day:02}"),
            'D' => format!("{month:02}/{day:02}/{:02}", year.rem_euclid(100)),
            'T' => format!("{hour:02}:{minute:02}:{second:02}"),
            'R' => format!("{hour:02}:{minute:02}"),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }

    fn civil(&self) -> Civil {
        // Years begin in March here, so that the leap day is the last one: 400 years are 146,097
        // days, and month lengths from March on follow (153 m + 2) / 5.
        let shifted = self.days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * day_of_year + 2) / 153;
        let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        Civil { year, month, day: day_of_year - (153 * shifted_month + 2) / 5 + 1 }
    }
}

/// Days since 1970-01-01.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let shifted_month = (month + 9) % 12;
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_as_strftime_writes_them() {
        let date = Date::from_unix(1_709_215_445); // 2024-02-29 14:04:05 UTC, a Thursday
        let text = date.format("%d %b %Y|%A, %B %-d|%y-%m-%e %j|%I:%M:%S %p|%F %T 100%%").unwrap();
        let expected = "29 Feb 2024|Thursday, February 29|24-02-29 060|02:04:05 PM|\
                        2024-02-29 14:04:05 100%";
        assert_eq!(text, expected);
        assert_eq!(Date::from_unix(0).format("%a %e %-d %H %-H").unwrap(), "Thu  1 1 00 0");
        assert_eq!(Date::from_unix(-1).format("%F %T").unwrap(), "1969-12-31 23:59:59");
        assert_eq!(Date::from_unix(951_868_800).format("%F").unwrap(), "2000-03-01");
    }

    #[test]
    fn unknown_directives_are_named() {
        assert_eq!(Date::from_unix(0).format("%Q").unwrap_err(), "Q");
        assert_eq!(Date::from_unix(0).format("%-").unwrap_err(), "--");
        assert_eq!(Date::from_unix(0).format("50%").unwrap_err(), "");
    }

    #[test]
    fn every_day_of_four_centuries_converts_there_and_back() {
        for days in -100_000..150_000 {
            let Civil { year, month, day } = Date { days, seconds: 0 }.civil();
            assert_eq!(days_from_civil(year, month, day), days);
        }
    }

    #[test]
    fn far_away_times_do_not_overflow() {
        for seconds in [i64::MIN, i64::MAX] {
            assert!(Date::from_unix(seconds).format("%c").is_err());
            assert!(Date::from_unix(seconds).format("%F %j %A").is_ok());
        }
    }
}
