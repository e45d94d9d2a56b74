//! Stop strings in streamed text.

/// Passes text on until a stop string appears in it.
///
/// What is passed on never contains any part of the stop string that ends the text: a possible
/// beginning is held back until more text decides. The stop string that is complete first wins, so
/// the result does not depend on how the text is cut into pieces.
#[derive(Clone, Debug, Default)]
pub struct StopFilter {
    stops: Vec<String>,
    held: String,
    out: String,
}

/// What became of a piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed<'a> {
    /// This text may be shown (it can be empty); go on.
    Text(&'a str),
    /// This text may be shown, then the stop string of this index followed.
    Stopped(&'a str, usize),
}

impl StopFilter {
    /// A filter for `stops`; empty strings among them never match.
    pub fn new(stops: impl IntoIterator<Item = String>) -> Self {
        Self { stops: stops.into_iter().collect(), ..Self::default() }
    }

    /// Takes the next piece of text. After [`Passed::Stopped`] the filter is empty again.
    pub fn push(&mut self, text: &str) -> Passed<'_> {
        self.held.push_str(text);
        self.out.clear();
        if let Some((start, stop_idx)) = self.first_match() {
            self.out.push_str(&self.held[..start]);
            self.held.clear();
            return Passed::Stopped(&self.out, stop_idx);
        }
        let keep = self.undecided();
        self.out.push_str(&self.held[..keep]);
        self.held.drain(..keep);
        Passed::Text(&self.out)
    }

    /// Hands out what was held back, when no more text comes.
    pub fn finish(&mut self) -> &str {
        self.out.clear();
        self.out.push_str(&self.held);
        self.held.clear();
        &self.out
    }

    /// Start and stop index of the match that ends first; of those, the one that starts first.
    fn first_match(&self) -> Option<(usize, usize)> {
        let matches = self.stops.iter().enumerate().filter(|(_, stop)| !stop.is_empty());
        matches
            .filter_map(|(idx, stop)| self.held.find(stop.as_str()).map(|start| (start, idx)))
            .min_by_key(|&(start, idx)| (start + self.stops[idx].len(), start))
    }

    /// Where the longest end of the held text begins that is the beginning of a stop string.
    fn undecided(&self) -> usize {
        let begins_a_stop = |end: &str| self.stops.iter().any(|stop| stop.starts_with(end));
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let earliest = self.held.len().saturating_sub(longest);
        let mut starts = self.held.char_indices().map(|(i, _)| i).filter(|&i| i >= earliest);
        starts.find(|&i| begins_a_stop(&self.held[i..])).unwrap_or(self.held.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Shown text, and the stop string that ended it.
    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut filter = StopFilter::new(stops.iter().map(|s| s.to_string()));
        let mut shown = String::new();
        for piece in pieces {
            match filter.push(piece) {
                Passed::Text(text) => shown.push_str(text),
                Passed::Stopped(text, idx) => {
                    shown.push_str(text);
                    return (shown, Some(idx));
                }
            }
        }
        shown.push_str(filter.finish());
        (shown, None)
    }

    #[test]
    fn without_stop_strings_text_passes_at_once() {
        let mut filter = StopFilter::default();
        assert_eq!(filter.push("any\u{e9}"), Passed::Text("any\u{e9}"));
    }

    #[test]
    fn a_stop_string_is_found_across_pieces() {
        assert_eq!(run(&["\nUser:"], &["Hi.", "\n", "Us", "er", ": x"]), ("Hi.".into(), Some(0)));
    }

    #[test]
    fn a_beginning_is_held_back_until_decided() {
        let mut filter = StopFilter::new(["END".to_string()]);
        assert_eq!(filter.push("the EN"), Passed::Text("the "));
        assert_eq!(filter.push("emy"), Passed::Text("ENemy"));
        assert_eq!(filter.push("E"), Passed::Text(""));
        assert_eq!(filter.finish(), "E");
    }

    #[test]
    fn a_beginning_inside_a_failed_beginning_is_not_lost() {
        assert_eq!(run(&["aab"], &["aa", "ab", "c"]), ("a".into(), Some(0)));
    }

    #[test]
    fn the_stop_string_that_is_complete_first_wins() {
        assert_eq!(run(&["abcd", "bc"], &["xabcd"]), ("xa".into(), Some(1)));
        assert_eq!(run(&["abcd", "bc"], &["xa", "b", "c", "d"]), ("xa".into(), Some(1)));
        assert_eq!(run(&["c", "abc"], &["abc"]), ("".into(), Some(1)));
    }

    #[test]
    fn characters_of_several_bytes_are_not_cut() {
        assert_eq!(run(&["é!"], &["caf", "é", "?"]), ("café?".into(), None));
        assert_eq!(run(&["è"], &["é"]), ("é".into(), None));
    }

    #[test]
    fn empty_stop_strings_never_match() {
        assert_eq!(run(&[""], &["a", "b"]), ("ab".into(), None));
    }

    /// The plain definition: the shortest beginning of the text that ends in a stop string.
    fn reference(stops: &[String], text: &str) -> (String, Option<usize>) {
        for end in 0..=text.len() {
            let ending = |(_, stop): &(usize, &String)| text[..end].ends_with(stop.as_str());
            let found = stops
                .iter()
                .enumerate()
                .filter(ending)
                .max_by_key(|(i, s)| (s.len(), std::cmp::Reverse(*i)));
            if let Some((idx, stop)) = found {
                return (text[..end - stop.len()].to_string(), Some(idx));
            }
        }
        (text.to_string(), None)
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(
            stops in prop::collection::vec("[abc]{1,4}", 0..4),
            pieces in prop::collection::vec("[abc]{0,4}", 0..10),
        ) {
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let names: Vec<&str> = stops.iter().map(String::as_str).collect();
            prop_assert_eq!(run(&names, &pieces), reference(&stops, &pieces.concat()));
        }
    }
}
